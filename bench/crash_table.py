"""Tables of docs/results/crash.md from the results in a folder; cases come on standard input."""
import json
import pathlib
import sys


def percent(share):
    return "-" if share is None else f"{100 * share:.0f}%"


def main():
    folder = pathlib.Path(sys.argv[1])
    found = []
    for line in sys.stdin:
        name = line.split()[0]
        path = folder / f"{name}.json"
        if path.exists():
            found.append((name, json.loads(path.read_text())))
    print("| case | crashes | success | by phase | more iterations | reference s | recording s "
          "| caches s | restarts s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, r in found:
        total = r["total"]
        phases = ", ".join(percent(p["share"]) for p in r["phases"])
        more = ", ".join(
            "-" if p["mean_more_iterations"] is None else f"{p['mean_more_iterations']:.1f}"
            for p in r["phases"]
        )
        share = total["successes"] / total["restarts"] if total["restarts"] else None
        print(f"| {name} | {total['restarts']} | {percent(share)} | {phases} | {more} "
              f"| {r['reference_seconds']:.2f} | {r['recording_seconds']:.1f} "
              f"| {r['caches_seconds']:.1f} | {r['restarts_seconds']:.1f} |")
    print()
    print("| case | object | bytes | inconsistent rate by phase |")
    print("|---|---|---|---|")
    for name, r in found:
        for i, o in enumerate(r["objects"]):
            rates = ", ".join(f"{100 * p['inconsistent_rates'][i]:.1f}%" for p in r["phases"])
            print(f"| {name} | `{o['name']}` | {o['bytes']} | {rates} |")
        rates = ", ".join(f"{100 * p['inconsistent_rate_of_all']:.1f}%" for p in r["phases"])
        print(f"| {name} | all memory | | {rates} |")


main()
