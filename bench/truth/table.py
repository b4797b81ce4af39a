"""Prints what `terrace sim` said beside what the lab measured.

table.py FOLDER [WHEN]: with a .lab (where there is one) and a .sim for each of the cases. The lab's
runs of other builds are in lab.csv beside this file. WHEN: adds the folder's runs there under this
name.
"""

import csv
import json
import statistics
import sys
from pathlib import Path

# Whose order in the lab is not counted: those that are so close together there.
ALIKE = 0.03
KEPT = Path(__file__).with_name("lab.csv")


def seconds(path):
    return {run["policy"]: run["seconds"]
        for run in json.loads(path.read_text())["runs"]} if path.exists() else {}


def kept():
    """The lab's runs by case and policy."""
    runs = {}
    lines = [line for line in KEPT.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        runs.setdefault((row["case"], row["policy"]),
            []).append((row["when"], float(row["seconds"])))
    return runs


def main():
    folder = Path(sys.argv[1])
    runs = kept()
    builds = {when for all_taken in runs.values() for when, _ in all_taken}
    cases = [line.split() for line in (folder / "cases").read_text().splitlines()]
    for name, _, _, _ in cases:
        taken = {policy: round(at, 3) for policy, at in seconds(folder / f"{name}.lab").items()}
        # Those that are kept already are not counted twice.
        if any(all((when, at) in runs.get((name, policy), []) for policy, at in taken.items())
            for when in builds):
            continue
        for policy, at in taken.items():
            runs.setdefault((name, policy),
                []).append((sys.argv[2] if len(sys.argv) > 2 else "now", at))
    if len(sys.argv) > 2:
        head = KEPT.read_text().splitlines()[:2]
        rows = [f"{case},{policy},{when},{taken:.3f}" for (case, policy), all_taken in runs.items()
            for when, taken in all_taken]
        KEPT.write_text("\n".join(head + rows) + "\n")
    print("| case | policy | lab, s | of builds | simulated, s | |")
    print("|---|---|---|---|---|---|")
    errors, inside, wrong, pairs, missing = [], 0, [], 0, []
    for name, _, _, policies in cases:
        known = policies.split(",")
        sim = seconds(folder / f"{name}.sim")
        if not sim or any((name, policy) not in runs for policy in known):
            missing.append(name)
            continue
        lab = {}
        for policy in known:
            taken = [t for _, t in runs[name, policy]]
            lab[policy] = statistics.median(taken)
            error = sim[policy] / lab[policy] - 1
            errors.append((abs(error), error, name, policy))
            inside += min(taken) <= sim[policy] <= max(taken)
            bold = "**" if abs(error) > 0.10 else ""
            spread = ", ".join(f"{t:.3f}" for t in taken)
            print(f"| {name} | `{policy}` | {lab[policy]:.3f} | {spread} | {sim[policy]:.3f} | {bold}{error:+.1%}{bold} |")
        for at, one in enumerate(known):
            for other in known[at + 1 :]:
                if abs(lab[one] / lab[other] - 1) <= ALIKE:
                    continue
                pairs += 1
                if (lab[one] < lab[other]) != (sim[one] < sim[other]):
                    wrong.append(f"{name}: {one} and {other}")
    if errors:
        within = [sum(e[0] <= bound for e in errors) for bound in (0.05, 0.10)]
        print(f"\n{len(errors)} runs against the lab's median: {within[0]} within 5%, {within[1]} within 10%; the worst {max(errors)[1]:+.1%},")
        print(f"{max(errors)[3]} on {max(errors)[2]}. {inside} lie between the lab's own builds. Ranking: {pairs - len(wrong)} of {pairs} pairs of policies in the lab's order")
        print(f"(those within {ALIKE:.0%} of each other in the lab aside){': ' if wrong else '.'}")
        for pair in wrong:
            print(f"- {pair} are the other way round")
    for name in missing:
        print(f"\n{name}: not run")


main()
