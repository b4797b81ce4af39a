"""Policies written in Python, in the simulator.

A policy is a function of a :class:`Snapshot` that returns the moves it wants. It sees what
Terrace's own policies see (what trackers found, not what the program really did), and its moves
cost what theirs cost. It runs on modelled machines only.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import numpy

from . import _native
from .predictions import Prediction

#: One unit of memory that moves whole: a base page, or a huge page.
PAGE = numpy.dtype(
    [
        ("page", "u8"),  # number of its first base page: address / page_bytes
        ("pages", "u4"),  # base pages in it
        ("tier", "u4"),  # rank of the tier that it lies in; 0 is best
        ("reads_per_s", "u8"),
        ("writes_per_s", "u8"),
        ("known", "?"),  # whether the rates rest on enough observations
    ]
)


@dataclass(frozen=True)
class Tier:
    """One tier of memory."""

    #: Bytes that the program and others can have together.
    capacity_bytes: int
    #: Of those, bytes that are free.
    free_bytes: int


@dataclass(frozen=True)
class Snapshot:
    """What a policy may decide from."""

    #: Seconds since the program started.
    time_s: float
    #: Seconds that the rates rest on.
    window_s: float
    #: Bytes of a base page.
    page_bytes: int
    #: Tiers, best first.
    tiers: List[Tier]
    #: Structured array of :data:`PAGE`, by address: what of the program's memory can be moved.
    pages: "numpy.ndarray[Any, Any]"

    def on(self, tier: int) -> "numpy.ndarray[Any, Any]":
        """The pages that lie in this tier."""
        return self.pages[self.pages["tier"] == tier]


@dataclass(frozen=True)
class Plan:
    """What a policy wants done."""

    #: Pages (numbers from a snapshot's ``page``) and the tier that they should go to, in the order
    #: of the moves. What makes room comes first.
    moves: List[Tuple[Any, int]] = field(default_factory=list)
    #: One sentence for the journal.
    why: str = ""
    #: Seconds until the next step at least; ``None``: the engine's own pace.
    wait_s: Optional[float] = None


#: A policy: a function, or an object with a state of its own and ``__call__``.
Policy = Callable[[Snapshot], Union[Plan, Iterable[Tuple[Any, int]], None]]


def run(
    machine: str,
    input: Union[str, "os.PathLike[str]"],
    policy: Union[str, Policy],
    beside: Iterable[str] = ("first-touch",),
    fast: Optional[str] = None,
    seed: int = 1,
    tracker: str = "page-table",
) -> Prediction:
    """Runs ``input`` on ``machine`` under ``policy``, a function or a name, and under those named
    in ``beside``. ``fast`` as ``"25%"`` or ``"8MiB"``: so much of the best tier's memory.
    ``tracker`` as with :func:`terrace.simulate`.

    Raises:
        TerraceError: it cannot be done; the text says why and what to try.
        Exception: whatever the function raises.
    """
    amount = None if fast is None else f"fast={fast}"
    names = list(beside)
    if isinstance(policy, str):
        own = None
        names.append(policy)
    else:
        if not callable(policy):
            raise TypeError(f"policy={policy!r}: give a function of a snapshot, or a policy's name")
        name = getattr(policy, "__name__", type(policy).__name__)
        if name in _native.policies() or name in names:
            raise ValueError(f"a policy is called {name} already; give the function another name")
        own = (name, lambda shown: _answer(policy(_snapshot(shown))))
        names.append(name)
    answer = json.loads(_native.simulate(machine, os.fspath(input), names, amount, seed, tracker,
        own))
    common = {"machine": answer["machine"], "input": answer["input"],
        "accesses": answer["accesses"], "seed": seed}
    return Prediction([{**common, **one} for one in answer["runs"]], answer["notes"])


def _snapshot(shown: Dict[str, Any]) -> Snapshot:
    pages = numpy.zeros(len(shown["known"]), PAGE)
    for name in PAGE.names or ():
        pages[name] = numpy.frombuffer(shown[name], PAGE[name])
    tiers = [Tier(**tier) for tier in shown["tiers"]]
    return Snapshot(shown["time_s"], shown["window_s"], shown["page_bytes"], tiers, pages)


def _answer(answer: Union[Plan, Iterable[Tuple[Any, int]], None]) -> Tuple[List[Tuple[bytes, int]],
    str, Optional[float]]:
    plan = answer if isinstance(answer, Plan) else Plan(list(answer or ()))
    moves = []
    for pages, tier in plan.moves:
        numbers = numpy.atleast_1d(numpy.asarray(pages))
        if numbers.dtype.names:
            numbers = numbers["page"]
        if numbers.size and not numpy.issubdtype(numbers.dtype, numpy.integer):
            raise TypeError(f"pages of type {numbers.dtype}: give a part of snapshot.pages, or page numbers")
        moves.append((numpy.ascontiguousarray(numbers, "u8").tobytes(), int(tier)))
    return moves, str(plan.why), plan.wait_s
