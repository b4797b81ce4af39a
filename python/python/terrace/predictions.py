"""Predictions: what another machine or another policy would give."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import asdict, dataclass, field
from typing import (
    TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union,
)

from . import _native
from ._frames import frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Case:
    """One simulation: plain values, so it can be pickled and sent anywhere."""

    #: A preset's name, or a machine file.
    machine: str
    #: A recording's file, or ``workload:NAME[,key=value...]``.
    input: str
    #: A policy's or a bound's name.
    policy: str
    #: Percent of the best tier's memory that programs can have; ``None``: as the machine is.
    fast_percent: Optional[int] = None
    #: Seed of the policies' and trackers' chance.
    seed: int = 1


@dataclass(frozen=True)
class SystemCase:
    """One simulation of hosts that share pools: plain values, to be pickled and sent anywhere."""

    #: A preset's name (``opal``, ``cxl2-8``, ...), or a system file.
    system: str
    #: One for all hosts, or one for each: a recording's file, or ``workload:NAME[,key=value...]``.
    inputs: Tuple[str, ...]
    #: An allocation policy's name; ``None``: as the file says.
    policy: Optional[str] = None
    #: Counts in place of what the file says.
    hosts: Optional[int] = None
    pools: Optional[int] = None
    #: Local memory of each host; ``None``: as its machine has it.
    local_bytes: Optional[int] = None
    #: A policy that moves pages between local memory and pools.
    placement: Optional[str] = None
    #: Seed of all chance.
    seed: int = 1


@dataclass(frozen=True)
class Prediction:
    """What came of some cases, in their order."""

    #: One dictionary a run: that of ``terrace sim --json``, and the case's own fields.
    runs: List[Dict[str, Any]]
    #: What to know of the figures: what of a recording is missing, whether memory is scarce at all.
    notes: List[str] = field(default_factory=list)

    def frame(self) -> "pandas.DataFrame":
        """One row a run; times in seconds, memory in bytes. ``caches`` stays a list."""
        return frame(self.runs)


def simulate(
    machine: str,
    input: Union[str, "os.PathLike[str]"],
    policies: Sequence[str] = ("first-touch", "terrace"),
    sweep: Optional[str] = None,
    seed: int = 1,
    tracker: str = "page-table",
) -> Prediction:
    """Runs ``input`` on ``machine`` under each policy, on all cores. ``sweep`` as
    ``fast=10%..100%``: with that much of the best tier's memory. ``tracker``: how policies see
    accesses, ``page-table``, ``pebs`` or ``damon``.

    Raises:
        TerraceError: it cannot be done; the text says why and what to try.
    """
    if isinstance(policies, str):
        raise TypeError(f"policies={policies!r}: give a list of names")
    answer = json.loads(_native.simulate(machine, os.fspath(input), list(policies), sweep, seed,
        tracker))
    common = {"machine": answer["machine"], "input": answer["input"],
        "accesses": answer["accesses"], "seed": seed}
    return Prediction([{**common, **run} for run in answer["runs"]], answer["notes"])


def predict(case: Union[Case, SystemCase]) -> Dict[str, Any]:
    """One case: a function of a plain value that returns a plain value, for ``map`` of any executor
    (Dask's ``Client.map`` too). Of a :class:`SystemCase` it has the case's fields, ``seconds`` and
    ``ipc`` (means over its hosts), and ``run``, what ``terrace sim --system --json`` says of it.

    Raises:
        TerraceError: as :func:`simulate`.
    """
    if isinstance(case, SystemCase):
        fields = asdict(case)
        answer = _native.simulate_system(**{**fields, "inputs": list(case.inputs)})
        run = json.loads(answer)["runs"][0]
        hosts = run["hosts"]
        mean = {key: sum(host[key] for host in hosts) / len(hosts) for key in ("seconds", "ipc")}
        return {**fields, **mean, "run": run}
    amount = None if case.fast_percent is None else f"fast={case.fast_percent}%"
    run = simulate(case.machine, case.input, [case.policy], amount, case.seed).runs[0]
    return {**run, "fast_percent": case.fast_percent}


def cases(
    machines: Iterable[str],
    inputs: Iterable[str],
    policies: Iterable[str],
    fast_percents: Iterable[Optional[int]] = (None,),
    seeds: Iterable[int] = (1,),
) -> List[Case]:
    """Every combination, the last argument changing fastest."""
    product: Iterator[Any] = itertools.product(machines, inputs, policies, fast_percents, seeds)
    return [Case(*values) for values in product]


def system_cases(
    systems: Iterable[str],
    inputs: Iterable[Union[str, Sequence[str]]],
    policies: Iterable[Optional[str]] = (None,),
    hosts: Iterable[Optional[int]] = (None,),
    pools: Iterable[Optional[int]] = (None,),
    local_bytes: Iterable[Optional[int]] = (None,),
    placements: Iterable[Optional[str]] = (None,),
    seeds: Iterable[int] = (1,),
) -> List[SystemCase]:
    """Every combination, the last argument changing fastest; an input is one for all hosts, or one
    for each."""
    of = [(one,) if isinstance(one, str) else tuple(one) for one in inputs]
    product: Iterator[Any] = itertools.product(
        systems, of, policies, hosts, pools, local_bytes, placements, seeds
    )
    return [SystemCase(*values) for values in product]


AnyCase = Union[Case, SystemCase]


def sweep(
    all_cases: Sequence[AnyCase],
    map: Callable[
        [Callable[[AnyCase], Dict[str, Any]], Sequence[AnyCase]], Iterable[Dict[str, Any]]
    ] = map,
) -> Prediction:
    """Runs all cases with ``map``: Python's own, an executor's, or with Dask
    ``lambda f, c: client.gather(client.map(f, c))``."""
    return Prediction(list(map(predict, all_cases)))
