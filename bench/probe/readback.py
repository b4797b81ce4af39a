"""How far a measured machine file is from the one that the machine was made from.

readback.py MADE_FROM MEASURED: prints the worst deviation of latency, read and write bandwidth over
all links; exit status 1 where a link is missing, a latency is off by more than 5% or a bandwidth by
more than 10%.
"""

import sys
import tomllib

UNITS = {"B/s": 1.0, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
FIGURES = (("latency", 0.05), ("read", 0.10), ("write", 0.10))


def number(figure):
    """A figure of a machine file, plain or with its evidence, in nanoseconds or bytes a second."""
    value = figure["value"] if isinstance(figure, dict) else figure
    if isinstance(value, str):
        amount, unit = value.split()
        return float(amount) * UNITS[unit]
    return float(value)


def links(path):
    with open(path, "rb") as file:
        machine = tomllib.load(file)
    found = {}
    for link in machine["link"]:
        latency = link.get("read_latency_ns", link.get("latency_ns"))
        read = link.get("read_bandwidth", link.get("bandwidth"))
        write = link.get("write_bandwidth", link.get("bandwidth"))
        found[link["initiator"], link["target"]] = [number(f) for f in (latency, read, write)]
    return found


def main():
    made, measured = links(sys.argv[1]), links(sys.argv[2])
    missing = sorted(set(made) - set(measured))
    good = not missing
    parts = [f"{len(made)} links"] + [f"{len(missing)} not measured: {missing}"] * bool(missing)
    for index, (name, bound) in enumerate(FIGURES):
        worst = max((abs(measured[k][index] / made[k][index] - 1.0), k) for k in made
            if k in measured)
        good &= worst[0] <= bound
        parts.append(f"{name} {100 * worst[0]:.2f}% off at most ({worst[1][0]} to {worst[1][1]})")
    print(", ".join(parts))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
