#!/usr/bin/env python3
"""Runs the suite of programs in the lab under policies and peers, and prints what they gave.

usage: suite.py list | build
       suite.py run NAME|development|judgement|hard... [OPTION...]
       suite.py table development|judgement|hard|all [OPTION...]
       suite.py shared [--seed N]
options: --policy P,P  --pages kernel|base|huge  --threads N  --seed N

Pages: as the `kernel` gives them (in the lab, arrays of 2 MiB and more in huge pages), or `base`
pages alone, or `huge` pages asked for. A run that was made with the same command, pages, threads
and policy is not made again; our own policies are told apart by the `terrace` program in the lab as
well. Needs `terrace` (TERRACE, else target/release/terrace), a lab (lab/README.md), gcc, and the
packages that `list` names. `--seed` gives the programs other inputs; the halves stay. `shared` runs
two programs at once that share the fast tier.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target" / "bench" / "programs"
SUITE = tomllib.loads((HERE / "programs.toml").read_text())
# glibc then asks for huge pages in what it allocates (madvise), for programs that are not changed.
HUGE = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"


def lab_folder():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    return pathlib.Path(os.environ.get("TERRACE_LAB_DIR", cache / "terrace" / "lab"))


def halves():
    """Names of the development half and of the judgement half, and of programs in neither."""
    given = {half: [p["name"] for p in SUITE["program"] if half in p] for half in ("development", "hard")}
    split = {"judgement": [], **given}
    halved = [p for p in SUITE["program"] if not any(half in p for half in given)]
    for origin in (False, True):
        names = [p["name"] for p in halved if ("package" in p) == origin]
        names.sort(key=lambda name: hashlib.sha256(f"{SUITE['split_seed']} {name}".encode()).digest()[:8])
        middle = len(names) // 2
        split["development"] += names[:middle]
        split["judgement"] += names[middle:]
    return split


def chosen(words):
    split, names = halves(), []
    for word in words:
        known = split.get(word) or [p["name"] for p in SUITE["program"]
            if word in ("all", p["name"])]
        if not known:
            sys.exit(f"suite.py: no program {word}; see suite.py list")
        names += known
    return [p for p in SUITE["program"] if p["name"] in names]


def build():
    """Compiles the kernels, once for each state of their sources."""
    binaries = WORK / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    header = HERE / "kernels" / "kernel.h"
    for source in sorted((HERE / "kernels").glob("*.c")):
        program = binaries / source.stem
        newest = max(source.stat().st_mtime, header.stat().st_mtime)
        if program.exists() and program.stat().st_mtime >= newest:
            continue
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
        compiler = os.environ.get("CC", "gcc")
        subprocess.run([compiler, *flags, "-o", program, source, "-lm"], check=True)


def filled(text, threads):
    places = {"bin": WORK / "bin", "inputs": HERE / "inputs", "made": WORK / "made"}
    return text.format(**places, seed=SUITE["seed"], threads=threads)


def lab_arguments(program, pages, threads):
    """Arguments of `terrace lab compare` that say what to run."""
    (WORK / "made").mkdir(parents=True, exist_ok=True)
    for line in program.get("make", []):
        subprocess.run(filled(line, threads), shell=True, check=True)
    arguments = []
    for carried in program.get("carry", []):
        path = shutil.which(filled(carried, threads))
        if path is None:
            sys.exit(f"suite.py: {program['name']} needs {carried}: install {program['package']}")
        arguments += ["--carry", path]
    if "stdin" in program:
        arguments += ["--stdin", filled(program["stdin"], threads)]
    command = [filled(word, threads) for word in program["command"]]
    if pages == "huge":
        arguments += ["--env", HUGE]
    if pages == "base":
        arguments += ["--carry", shutil.which(command[0]) or command[0]]
        command = [filled("{bin}/nohuge", threads), *command]
    return [*arguments, "--", *command]


def ours(policy):
    return policy.split("+")[0] in ("terrace", "hyplacer", "first-touch-managed")


def result_path(program, pages, threads, policy):
    told = [SUITE["machine"], SUITE["seed"], program["command"], program.get("make"), pages,
        threads, policy]
    if pages == "base":
        told.append("nohuge")
    if ours(policy):
        told.append(hashlib.sha256((lab_folder() / "bin" / "terrace").read_bytes()).hexdigest())
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]
    name = policy.replace(":", "_").replace("+", "_")
    return WORK / "runs" / f"{program['name']}-{pages}-{threads}-{name}-{digest}.json"


def run(program, pages, threads, policies):
    terrace = os.environ.get("TERRACE", ROOT / "target" / "release" / "terrace")
    for policy in policies:
        path = result_path(program, pages, threads, policy)
        if read(program, pages, threads, policy):
            continue
        journals = WORK / "journals" / path.stem
        command = [terrace, "lab", "compare", "--json", "--jobs", "1", "--machine",
            SUITE["machine"]]
        command += ["--policy", policy, "--keep", journals, *lab_arguments(program, pages, threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            result = json.loads(done.stdout)["runs"][0]
        except (ValueError, LookupError):
            print(f"{path.stem}: {done.stderr.strip()}", file=sys.stderr)
            continue
        if not result.get("seconds"):
            # Not kept, so that it is made again the next time.
            print(f"{path.stem}: {result.get('error') or done.stderr.strip()}", file=sys.stderr)
            continue
        result["repaid_pages"] = repaid(journals)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1))
        print(f"{program['name']} {pages} {threads} {policy}: {result['seconds']} s", flush=True)


def repaid(journals):
    """Promoted pages that repaid their moves, by the account that ends our journal, or None."""
    for path in journals.rglob("terrace.journal"):
        try:
            return json.loads(path.read_text().splitlines()[-1]).get("repaid_pages")
        except (ValueError, LookupError):
            pass
    return None


def read(program, pages, threads, policy):
    path = result_path(program, pages, threads, policy)
    result = json.loads(path.read_text()) if path.exists() else {}
    return result if result.get("seconds") else None


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def whole(result):
    """Seconds with what the tool takes before the program begins."""
    return result["seconds"] + result.get("startup_seconds", 0)


def count(number):
    return "-" if number is None else str(number)


def shared():
    """Runs two programs at once: none managed, each by a `terrace run` of its own, or one alone."""
    terrace = os.environ.get("TERRACE", ROOT / "target" / "release" / "terrace")
    binaries, manager = WORK / "bin", lab_folder() / "bin" / "terrace"
    seed = SUITE["seed"]
    first = f"{binaries}/semijoin {seed} 1200000 3000000 20 1"
    second = f"{binaries}/counts {seed} 3000000 2000000 3000000 1 2097152"
    for name, managed in (("none", ""), ("both", "12"), ("first", "1"), ("second", "2")):
        started = [f"{manager} run -- {one}" if number in managed else one
                   for number, one in (("1", first), ("2", second))]
        # Printed in order, so that the lab's sum of the output tells whether a run changed it.
        script = (f"{started[0]} > /tmp/first & {started[1]} > /tmp/second & wait; "
                  "for of in first second; do read -r line < /tmp/$of; echo $line; done")
        command = [terrace, "lab", "compare", "--json", "--jobs", "1", "--machine",
            SUITE["machine"], "--policy", "first-touch", "--no-trace"]
        for carried in (binaries / "semijoin", binaries / "counts", manager):
            command += ["--carry", carried]
        done = subprocess.run([*command, "--", "/bin/sh", "-c", script], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        try:
            result = json.loads(done.stdout)["runs"][0]
        except (ValueError, LookupError):
            result = {}
        if not result.get("seconds"):
            sys.exit(f"suite.py: shared: {result.get('error') or done.stderr.strip()}")
        output = result["output_sum"]
        print(f"{name} managed: {result['seconds']:.3f} s, output {output}", flush=True)


def table(programs, pages, threads, policies):
    """Seconds, and ratios of `terrace` to first touch and to the best peer, as Markdown."""
    print("| program | " + " | ".join(f"`{p}`" for p in policies) +
          " | to first touch | to best peer | own CPU, s | up | repaid | down |")
    print("|---" * (len(policies) + 7) + "|")
    peers = [p for p in policies if not ours(p) and not p.startswith("bound:")]
    to_peer = {peer: [] for peer in peers}
    for program in programs:
        runs = {p: read(program, pages, threads, p) for p in policies}
        sums = {r["output_sum"] for r in runs.values() if r}
        name = program["name"] + (" (OUTPUT DIFFERS)" if len(sums) > 1 else "")
        cells = ["-" if r is None else f"{whole(r):.3f}" for r in runs.values()]
        tail = ["-"] * 6
        if runs.get("terrace") and runs.get("first-touch"):
            mine, seen = whole(runs["terrace"]), {p: whole(runs[p]) for p in peers if runs[p]}
            tail = [f"{mine / seen['first-touch']:.3f}", f"{mine / min(seen.values()):.3f}",
                    f"{runs['terrace']['overhead_seconds']:.2f}",
                    *(count(runs["terrace"].get(key))
                      for key in ("promoted_pages", "repaid_pages", "demoted_pages"))]
            for peer, seconds in seen.items():
                to_peer[peer].append(mine / seconds)
        print(f"| {name} | " + " | ".join(cells + tail) + " |")
    print()
    for peer, ratios in to_peer.items():
        if ratios:
            print(f"`terrace` to `{peer}`: geometric mean {geometric_mean(ratios):.3f}, "
                  f"worst {max(ratios):.3f}, of {len(ratios)} programs")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("what", choices=["list", "build", "run", "table", "shared"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--policy", default=",".join(SUITE["policies"]))
    parser.add_argument("--pages", choices=["kernel", "base", "huge"], default="kernel")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=SUITE["seed"])
    given = parser.parse_args()
    SUITE["seed"] = given.seed
    policies = given.policy.split(",")
    if given.what == "list":
        for half, names in halves().items():
            for program in chosen(names):
                origin = program.get("package", "kernel")
                print(f"{half:12} {program['name']:10} {origin:14} {program['what']}")
        return
    if given.what in ("build", "run", "shared"):
        build()
    if given.what == "shared":
        return shared()
    programs = chosen(given.names)
    if given.what == "run":
        for program in programs:
            run(program, given.pages, given.threads, policies)
    elif given.what == "table":
        table(programs, given.pages, given.threads, policies)


if __name__ == "__main__":
    main()
