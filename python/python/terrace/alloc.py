"""NumPy arrays in a tier of memory.

- :class:`Memory` allocates arrays by :class:`Attributes`: in which class of memory (0 is the
fastest this machine has, -1
  the slowest), how divided, at once or weighed together with others by :meth:`Memory.commit`.
- :class:`Arena` is a heap whose arrays move together to other nodes.

Arrays are ordinary ``numpy.ndarray``; views keep the memory, and it is given back with the last of
them. What is pickled, copied or computed from them is ordinary memory. Sizes are bytes, times
nanoseconds, as the names say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _native
from ._frames import frame

if TYPE_CHECKING:
    import pandas
    from numpy.typing import DTypeLike

__all__ = ["CUDA_MANAGED", "FASTEST", "SLOWEST", "Arena", "Attributes", "Class", "Gpu", "Memory",
    "Move", "Moved", "Report"]

#: The best class of a machine.
FASTEST = 0
#: The last class of a machine.
SLOWEST = -1
#: CUDA managed memory, one address for CPUs and GPUs; its indices are GPUs. Not in the ranking.
CUDA_MANAGED = 16384

#: Indices of a class's nodes, ``"all"``, or ``"local"``: those near the CPUs that the calling
#: thread is bound to.
Nodes = Union[Sequence[int], str]
#: A class, or a class and which nodes of it.
Place = Union[int, Tuple[int, Nodes]]
#: ``"os"``, ``"spill"``, ``"equal"``, ``("chunk", pages)`` or ``("weighted", weights)``.
Split = Union[str, Tuple[str, Union[int, Sequence[int]]]]
Shape = Union[int, Sequence[int]]


@dataclass(frozen=True)
class Attributes:
    """What an array asks for. What each means: docs/guide/allocate.md."""

    #: Classes, the preferred first.
    on: Union[Place, Sequence[Place]] = FASTEST
    #: How the bytes are divided among the nodes of all places.
    split: Split = "os"
    #: Weighed by :meth:`Memory.commit`; else bound at once.
    on_commit: bool = False
    #: What cannot be as asked is an error, and every page is there before the array is; else other
    #: memory will do.
    strict: bool = False
    #: Weight in a commit.
    priority: int = 1
    #: Expected reads of each byte, in any unit that is the same for all arrays.
    reads: float = 1.0
    #: Expected writes of each byte, in the same unit.
    writes: float = 1.0
    #: ``"auto"`` (huge from 2 MiB on), ``"base"`` or ``"huge"``.
    pages: str = "auto"
    #: ``"unknown"``, ``"short"`` or ``"long"``.
    lifetime: str = "unknown"
    #: In one class whole; ``None``: below 2 MiB.
    whole: Optional[bool] = None
    #: CUDA managed memory: brought to its GPU when it is bound, not by whoever touches it first.
    prefetch: bool = False
    #: What reports call it.
    name: str = ""

    @property
    def places(self) -> List[Tuple[int, Nodes]]:
        """``on`` as pairs of a class and its nodes."""
        on = self.on
        pair = isinstance(on, tuple) and len(on) == 2 and not isinstance(on[1], (int, tuple))
        listed: Sequence[Any] = [on] if isinstance(on,
            int) or pair else on  # type: ignore[assignment, list-item]
        return [(place, "all") if isinstance(place, int) else place for place in listed]

    @property
    def how(self) -> Tuple[str, List[int]]:
        """``split`` as a word and its numbers."""
        if isinstance(self.split, str):
            return (self.split, [])
        word, numbers = self.split
        return (word, [numbers] if isinstance(numbers, int) else list(numbers))


@dataclass(frozen=True)
class Class:
    """A class of memory of this machine."""

    #: Its nodes, by the numbers of ``terrace tiers``; an index counts them.
    nodes: List[int]
    #: What a byte read from it gains, the best class being 1.
    read_gain: float
    #: What a byte written to it gains, in the same measure.
    write_gain: float


@dataclass(frozen=True)
class Gpu:
    """A GPU with managed memory, an index of :data:`CUDA_MANAGED`."""

    #: What the driver calls it.
    name: str
    #: Its number in the driver's order.
    number: int
    #: The node it is attached to, where firmware says so.
    node: Optional[int]
    #: Memory it has.
    total_bytes: int
    #: Of that free, all processes counted.
    free_bytes: int
    #: Bytes of this memory that are at home there.
    bound_bytes: int
    #: Arrays that these are of.
    blocks: int
    #: Numbers of the GPUs that can access its memory.
    peers: List[int]


@dataclass(frozen=True)
class Report:
    """What a commit did."""

    #: One an array: ``name``, ``size_bytes``, ``wanted_classes``, ``got_bytes`` (by class),
    #: ``got_managed_bytes`` (at home on GPUs), ``refused``, ``why``, ``moved_bytes``,
    #: ``stayed_bytes``, ``populated_bytes``, ``cost_ns``.
    rows: List[Dict[str, Any]]
    #: The objective (the sum over bytes of priority times intensity times gain), as reached.
    value: float
    #: No placement reaches more.
    bound: float
    #: What weighing took.
    decided_ns: int
    #: What binding and moving took.
    applied_ns: int

    @property
    def refused(self) -> List[str]:
        """Names of strict arrays that found no room; they are not bound, and are weighed again in
        the next commit."""
        return [row["name"] for row in self.rows if row["refused"]]

    def frame(self) -> "pandas.DataFrame":
        """The rows as a DataFrame."""
        return frame(self.rows)


def _array(block: Any, shape: Shape, dtype: np.dtype, order: str) -> np.ndarray:
    return np.asarray(block)[: _bytes(shape, dtype)].view(dtype).reshape(shape,
        order=order)  # type: ignore[call-overload]


def _bytes(shape: Shape, dtype: np.dtype) -> int:
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} refers to Python objects, which live elsewhere; give a dtype of plain values")
    if any(int(n) < 0 for n in dims):
        raise ValueError(f"shape {shape}: no dimension can be negative")
    size = dtype.itemsize
    for n in dims:
        size *= int(n)
    if size >= 2**63:
        raise _native.TerraceError(f"cannot allocate shape {shape} of {dtype}: more than can be addressed")
    return size


class Memory:
    """Memory of this machine by class. Threads may share it; a commit that moves data lets others
    wait."""

    def __init__(self) -> None:
        """Reads the machine, or what ``TERRACE_MACHINE``, ``TERRACE_CLASSES`` and
        ``TERRACE_RANK_BY`` say.

        Raises:
            TerraceError: the machine cannot be read, or a variable says nothing.
        """
        self._native = _native.Memory()
        read = json.loads(self._native.classes())
        #: Best first.
        self.classes: List[Class] = [Class(**each) for each in read["classes"]]
        #: What was missing or overridden, one sentence each.
        self.notes: List[str] = read["notes"]

    def gpus(self) -> List[Gpu]:
        """GPUs with managed memory, in the order of the indices of :data:`CUDA_MANAGED`. CUDA's
        driver sets itself up on each.

        Raises:
            TerraceError: there are none; it says why.
        """
        return [Gpu(**each) for each in json.loads(self._native.gpus())]

    def zeros(
        self,
        shape: Shape,
        dtype: "DTypeLike" = float,
        attributes: Attributes = Attributes(),
        order: str = "C",
        **changes: Any,
    ) -> np.ndarray:
        """An array of zeros, its memory as ``attributes`` say; ``changes`` are fields of
        :class:`Attributes` that differ, as in ``memory.zeros(n, on=alloc.SLOWEST)``. It takes whole
        pages.

        Raises:
            TerraceError: a wish that means nothing here; with ``strict``, whatever cannot be as
            asked. ValueError: a dtype that holds Python objects, or a negative dimension.
        """
        array = self.empty(shape, dtype, attributes, order, **changes)
        if any(place[0] == CUDA_MANAGED for place in replace(attributes, **changes).places):
            array[...] = np.zeros((), array.dtype)
        return array

    def empty(
        self,
        shape: Shape,
        dtype: "DTypeLike" = float,
        attributes: Attributes = Attributes(),
        order: str = "C",
        **changes: Any,
    ) -> np.ndarray:
        """As :meth:`zeros`, for :data:`CUDA_MANAGED`: its driver promises no zeros, and whoever
        writes them has the pages."""
        kind = np.dtype(dtype)
        wish = replace(attributes, **changes)
        return _array(self._native.allocate(_bytes(shape, kind), wish), shape, kind, order)

    def commit(self, all: bool = False) -> Report:
        """Weighs the arrays that are bound on commit (those since the last commit, or ``all``) and
        places them: untouched ones for nothing, others by moving them.

        Raises:
            TerraceError: the kernel cannot be asked. A lack of room is no error: see
            :attr:`Report.refused`.
        """
        return Report(**json.loads(self._native.commit(all)))

    def describe(self, array: np.ndarray) -> Dict[str, Any]:
        """Where the array's memory is: a row as of :class:`Report`.

        Raises:
            TerraceError: it is not of this memory.
        """
        return json.loads(self._native.describe(array.__array_interface__["data"][0]))


@dataclass(frozen=True)
class Moved:
    """What became of an arena's pages (base pages)."""

    #: Pages with memory that it had.
    pages: int
    #: On the right nodes before.
    already: int
    #: Moved now.
    moved: int
    #: Given back while the move went on.
    gone: int
    #: Still elsewhere, by reason.
    stayed: Dict[str, int] = field(default_factory=dict)
    #: Why it is not as asked: strict and incomplete (what moved was brought back), or cancelled.
    problem: Optional[str] = None


def _moved(text: str) -> Moved:
    read = json.loads(text)
    return Moved(**{**read, "stayed": dict(read["stayed"])})


class Move:
    """A move under way."""

    def __init__(self, native: Any) -> None:
        self._native = native

    @property
    def progress(self) -> Tuple[int, int]:
        """Base pages looked at, and in all (0 until they are counted)."""
        done, total, _ = self._native.progress()
        return (done, total)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._native.progress()[2]

    def cancel(self) -> None:
        """Asks it to end after the batch it is at."""
        self._native.cancel()

    def wait(self) -> Moved:
        """Waits for the end.

        Raises:
            TerraceError: nothing could be moved.
        """
        return _moved(self._native.wait())


class Arena:
    """A heap whose arrays share pages with no other's, so that all of it can be moved. It ends when
    the arena and all arrays in it are gone. Nodes are those of ``terrace tiers``."""

    def __init__(
        self,
        nodes: Sequence[int] = (),
        how: str = "prefer",
        limit_bytes: Optional[int] = None,
        huge: bool = False,
        name: str = "",
    ) -> None:
        """``how``: ``"prefer"`` (no nodes: wherever the kernel puts them), ``"only"`` (a page
        touched when they are full gets the process killed), ``"interleave"`` or ``"spill"`` (the
        first until it is full).

        Raises:
            TerraceError: nodes that are not here, or a kernel that refuses.
        """
        self._native = _native.Arena(how, list(nodes), limit_bytes, huge, name)

    def empty(self, shape: Shape, dtype: "DTypeLike" = float, order: str = "C") -> np.ndarray:
        """An array, its content whatever was there.

        Raises:
            TerraceError: the arena's limit is reached.
            ValueError: a dtype that holds Python objects, or a negative dimension.
        """
        kind = np.dtype(dtype)
        align = max(64, kind.alignment)
        return _array(self._native.allocate(_bytes(shape, kind), align), shape, kind, order)

    def zeros(self, shape: Shape, dtype: "DTypeLike" = float, order: str = "C") -> np.ndarray:
        """An array of zeros; otherwise as :meth:`empty`."""
        array = self.empty(shape, dtype, order)
        array[...] = np.zeros((), array.dtype)
        return array

    def set_device(self, nodes: Sequence[int], how: str = "prefer", strict: bool = False) -> Moved:
        """Moves all of it, and what is allocated later comes from there. ``strict``: all pages or
        none.

        Raises:
            TerraceError: nothing was begun: nodes that are not here, or a move under way.
        """
        return _moved(self._native.set_device(how, list(nodes), strict))

    def set_device_async(self, nodes: Sequence[int], how: str = "prefer",
        strict: bool = False) -> Move:
        """As :meth:`set_device`, in a thread of its own.

        Raises:
            TerraceError: nothing was begun.
        """
        return Move(self._native.set_device_async(how, list(nodes), strict))

    @property
    def stats(self) -> Dict[str, Any]:
        """``blocks``, ``allocated_bytes``, ``held_bytes``, ``peak_bytes`` and ``limit_bytes``,
        counted now."""
        return json.loads(self._native.stats())

    @property
    def residency(self) -> Tuple[Dict[int, int], int]:
        """Bytes by node, asked of the kernel now, and bytes it holds that were never touched."""
        nodes, untouched = self._native.residency()
        return dict(nodes), untouched
