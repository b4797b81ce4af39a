"""Prints what `terrace sim` said beside what the lab measured: table.py FOLDER, with a .lab and a .sim for each of its cases."""

import json
import sys
from pathlib import Path

# Whose order in the lab is not counted: those that are so close together there.
ALIKE = 0.03


def seconds(path):
    return {run["policy"]: run["seconds"] for run in json.loads(path.read_text())["runs"]}


def main():
    folder = Path(sys.argv[1])
    print("| case | policy | lab, s | simulated, s | |")
    print("|---|---|---|---|---|")
    errors, wrong, pairs, missing = [], [], 0, []
    for line in (folder / "cases").read_text().splitlines():
        name, _, _, policies = line.split()
        if not all((folder / f"{name}.{side}").exists() for side in ("lab", "sim")):
            missing.append(name)
            continue
        lab, sim = (seconds(folder / f"{name}.{side}") for side in ("lab", "sim"))
        for policy in policies.split(","):
            error = sim[policy] / lab[policy] - 1
            errors.append((abs(error), error, name, policy))
            bold = "**" if abs(error) > 0.10 else ""
            print(f"| {name} | `{policy}` | {lab[policy]:.3f} | {sim[policy]:.3f} | {bold}{error:+.1%}{bold} |")
        known = policies.split(",")
        for at, one in enumerate(known):
            for other in known[at + 1 :]:
                if abs(lab[one] / lab[other] - 1) <= ALIKE:
                    continue
                pairs += 1
                if (lab[one] < lab[other]) != (sim[one] < sim[other]):
                    wrong.append(f"{name}: {one} and {other}")
    if errors:
        within = [sum(e[0] <= bound for e in errors) for bound in (0.05, 0.10)]
        print(f"\n{len(errors)} pairs of runs: {within[0]} within 5%, {within[1]} within 10%; the worst {max(errors)[1]:+.1%},")
        print(f"{max(errors)[3]} on {max(errors)[2]}. Ranking: {pairs - len(wrong)} of {pairs} pairs of policies in the lab's order")
        print(f"(those within {ALIKE:.0%} of each other in the lab aside){': ' if wrong else '.'}")
        for pair in wrong:
            print(f"- {pair} are the other way round")
    for name in missing:
        print(f"\n{name}: not run")


main()
