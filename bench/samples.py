#!/usr/bin/env python3
"""What samples are worth to `terrace`: each workload in the simulator under first touch and under
`terrace` that sees accesses by page tables, by samples and by DAMON. Prints rows of the table in
docs/results/tracking.md. usage: bench/samples.py [ACCESSES [WORKLOAD...]]; TERRACE names the
command (target/release/terrace)."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERRACE = os.environ.get("TERRACE", ROOT / "target" / "release" / "terrace")
WORKLOADS = ["skew", "shift", "fits", "rwsplit", "scan", "graph-bfs", "graph-pagerank", "stream",
    "chase", "npb-bt", "npb-cg", "npb-ft", "npb-is", "npb-lu", "npb-mg", "npb-sp"]
TRACKERS = ["page-table", "pebs", "damon"]


def seconds(workload, accesses, tracker, policies):
    """Seconds of each policy."""
    command = [TERRACE, "sim", "--machine", "lab-cxl", "--policy", ",".join(policies), "--tracker",
        tracker, "--workload", f"{workload},accesses={accesses}", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [run["seconds"] for run in json.loads(done.stdout)["runs"]]


def main():
    accesses, workloads = (sys.argv[1:2] or ["16M"])[0], sys.argv[2:] or WORKLOADS
    print("| workload | first touch, s | page tables | samples | DAMON |")
    print("|---|---|---|---|---|")
    for workload in workloads:
        base, first = seconds(workload, accesses, TRACKERS[0], ["first-touch", "terrace"])
        others = [seconds(workload, accesses, t, ["terrace"])[0] for t in TRACKERS[1:]]
        ratios = " | ".join(f"{time / base:.3f}" for time in [first, *others])
        print(f"| `{workload}` | {base:.3f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
