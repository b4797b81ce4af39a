#!/usr/bin/env python3
"""Redraws figures 4, 5, 6a and 6b of Perarnau et al. ("Exploring Data Migration for Future
Deep-Memory Many-Core Systems") from what the examples stage_bench and migration_study printed in
the lab.

usage: bench/stage_figures.py FOLDER    reads FOLDER/stage-MACHINE.txt and
FOLDER/migration-MACHINE.txt, writes FOLDER/*.svg
"""
import math
import sys
from pathlib import Path

COLOURS = ["#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#b8860b", "#5f6b6d"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 64, 240, 34, 48


def rows(path):
    """Cells of a table's rows, its head and rule left out."""
    cells = [[c.strip() for c in line.strip().strip("|").split("|")]
        for line in path.read_text().splitlines() if line.startswith("|")]
    return cells[2:]


class Axis:
    def __init__(self, values, low, high, log):
        self.log, self.low, self.high = log, low, high
        least, most = min(values), max(values)
        if log:
            self.least, self.most = math.log10(least), math.log10(most * 1.05)
            self.ticks = [b * 10**e for e in range(math.floor(self.least), math.ceil(self.most) + 1)
                for b in (1, 2, 5)]
        else:
            self.least, self.most = 0, most * 1.05
            step = next(s for e in range(-3, 9) for s in (10**e, 2 * 10**e, 5 * 10**e)
                if most / s <= 8)
            self.ticks = [step * i for i in range(int(self.most / step) + 1)]
        if self.most == self.least:
            self.most += 1

    def at(self, value):
        value = math.log10(value) if self.log else value
        return self.low + (value - self.least) / (self.most - self.least) * (self.high - self.low)

    def marks(self, limits):
        return [t for t in self.ticks if min(limits) - 1 <= self.at(t) <= max(limits) + 1]


def number(value):
    return f"{value:g}"


def draw(path, title, x_label, y_label, series, x_log=False, y_log=False, x_ticks=None,
    x_text=number):
    """series: name -> (points, dashed); a series with gaps has points alone."""
    points = [p for line, _ in series.values() for p in line]
    fullest = {name.split(",")[0]: 0 for name in series}
    for name, (line, _) in series.items():
        fullest[name.split(",")[0]] = max(fullest[name.split(",")[0]], len(line))
    if not points:
        return
    x = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT, x_log)
    y = Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, y_log)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">{title}</text>',
    ]
    for t in y.marks((HEIGHT - BOTTOM, TOP)):
        at = y.at(t)
        out.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(t)}</text>')
    for t in x_ticks or x.marks((LEFT, WIDTH - RIGHT)):
        at = x.at(t)
        out.append(f'<path d="M{at:.1f} {HEIGHT - BOTTOM}v5" stroke="#444"/>')
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x_text(t)}</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#444"/>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>')
    out.append(f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{y_label}</text>')
    for i, (name, (line, dashed)) in enumerate(series.items()):
        colour = COLOURS[i // 2 % len(COLOURS)] if dashed is not None else COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path_data = "M" + "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in sorted(line))
        whole = len(line) == fullest[name.split(",")[0]]
        if whole:
            out.append(f'<path d="{path_data}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        out += [f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="2.6" fill="{colour}"/>' for a,
            b in line]
        at = TOP + 10 + 20 * i
        if whole:
            out.append(f'<path d="M{WIDTH - RIGHT + 12} {at}h24" stroke="{colour}" stroke-width="1.8"{dash}/>')
        else:
            out.append(f'<circle cx="{WIDTH - RIGHT + 24}" cy="{at}" r="2.6" fill="{colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 42}" y="{at + 4}">{name}</text>')
    path.write_text("\n".join(out) + "\n</svg>\n")


def stage(folder):
    """machine -> row -> passes -> milliseconds."""
    found = {}
    for path in sorted(folder.glob("stage-*.txt")):
        machine = found.setdefault(path.stem.removeprefix("stage-"), {})
        for cells in rows(path):
            machine.setdefault(cells[1], {})[int(cells[0])] = float(cells[6])
    return found


def figure5(folder, found):
    series = {}
    for machine, by_row in found.items():
        placed = {int(r.split(":")[1]): t for r, t in by_row.items() if r.startswith("place:")}
        for passes in (1, 20):
            line = [(n, t[passes]) for n, t in placed.items() if passes in t]
            series[f"{machine}, I = {passes}"] = (line, passes != 1)
    threads = sorted({n for line, _ in series.values() for n, _ in line})
    draw(folder / "figure-5.svg", "Figure 5: in slow memory, by threads", "threads", "ms", series,
        y_log=True, x_ticks=threads)


def figure6(folder, found, name, title, favours):
    series = {}
    for machine, by_row in found.items():
        splits = [tuple(map(int, r.split(":"))) for r in by_row if r[0].isdigit()]
        split = next((s for s in splits if favours(*s)), None)
        if split is None:
            continue
        staged = by_row[f"{split[0]}:{split[1]}"]
        for threads, dashed in ((split[0], False), (sum(split), True)):
            base = by_row.get(f"place:{threads}", {})
            line = [(i, base[i] / t) for i, t in staged.items() if i in base]
            series[f"{machine}, over {threads} worker{'s' * (threads > 1)}"] = (line, dashed)
    draw(folder / f"{name}.svg", title, "passes over a block, I", "speedup", series, y_log=True)


def figure4(folder):
    serial, parallel = {}, {}
    for path in sorted(folder.glob("migration-*.txt")):
        machine = path.stem.removeprefix("migration-")
        table = [(int(c[0]), int(c[1]), c[2], float(c[3])) for c in rows(path)]
        largest = max(kib for threads, kib, _, _ in table if threads > 1)
        for method in dict.fromkeys(row[2] for row in table):
            # What takes less than the guest's clock steps by is no figure.
            one = {kib: ns for threads, kib, m, ns in table if m == method and threads == 1
                and ns > 0}
            serial[f"{machine}, {method}"] = ([(kib, ns / 1e3) for kib, ns in one.items()], None)
            many = [(t, kib, ns) for t, kib, m, ns in table if m == method and kib == largest]
            # The shared mover is asked by one thread.
            if len(many) > 1:
                parallel[f"{machine}, {method}"] = ([(t, one[largest] / ns) for t, _, ns in many
                    if largest in one], None)
    sizes = sorted({kib for line, _ in serial.values() for kib, _ in line})
    draw(folder / "figure-4a.svg", "Figure 4a: serial migration", "KiB", "µs", serial, x_log=True,
        y_log=True, x_ticks=sizes)
    threads = sorted({t for line, _ in parallel.values() for t, _ in line})
    draw(folder / "figure-4b.svg", "Figure 4b: speedup of parallel migration", "threads",
        "times one thread", parallel, x_ticks=threads)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    folder = Path(sys.argv[1])
    found = stage(folder)
    if found:
        figure5(folder, found)
        figure6(folder, found, "figure-6a", "Figure 6a: most threads work", lambda w, c: w == 2 * c)
        figure6(folder, found, "figure-6b", "Figure 6b: most threads copy", lambda w, c: c == 2 * w)
    if list(folder.glob("migration-*.txt")):
        figure4(folder)


if __name__ == "__main__":
    main()
