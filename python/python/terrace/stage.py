"""Staging: blocks of an array in slow memory pass through fast memory while threads work on them.

:func:`update` calls ``kernel(number, block)`` for every block of rows and keeps what it makes of
them; :func:`read` lets it read only. A block is an ordinary ``numpy.ndarray``, in the array itself
or in a buffer that begins at a page, and is the kernel's for the time of the call: what is kept
longer stays valid memory, whose contents change. Kernels of different blocks run at the same time
as far as they leave Python's lock alone, as NumPy does in large operations.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from operator import length_hint
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _native

__all__ = ["Staged", "read", "update"]

#: A number of threads that a model divides, or workers and migrators.
Threads = Union[int, Tuple[int, int]]
#: Rows a block, or ranges of rows (first, and one beyond the last).
Blocks = Union[int, Iterable[Tuple[int, int]]]


@dataclass(frozen=True)
class Staged:
    """What was done. ``why`` says why it ran in place, if it did."""

    staged: bool
    why: Optional[str]
    threads: int
    migrators: int
    slots: int
    blocks: int
    brought_bytes: int
    returned_bytes: int
    stayed_bytes: int
    stalls: int
    stalled_ns: int
    prepared_ns: int
    released_ns: int
    took_ns: int


class _How:
    """Arguments under the names that the native side reads."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)


def update(array: np.ndarray, kernel: Callable[[int, np.ndarray], Any], *, blocks: Blocks,
    fast: int, **how: Any) -> Staged:
    """Runs ``kernel`` on every block and keeps what it makes of them; rows in no block are not
    touched.

    Args:
        array: C-contiguous, of plain elements, writable.
        kernel: gets the block's number and the block.
        blocks: rows a block, or ranges of rows, which may not overlap. A list or a tuple of them is
        checked before anything runs; any other
            iterable, a generator say, is asked for them while others are worked on, by one thread
            at a time.
        fast: node of the buffers.
        slow: node that the array lies on.
        machine: a machine file (``terrace probe -o FILE``) or a preset: what the model that divides
        threads and decides whether to stage
            at all goes by. Without it nothing is staged unless ``threads`` is a pair.
        initiator: node of the CPUs; ``fast`` unless told.
        threads: in all, two unless told; or (workers, migrators), staged whether it pays or not.
        in_place: all threads work in the array itself.
        passes, compute_ns_per_byte: how often the kernel goes over a block, and nanoseconds a byte
        of a pass takes a thread, were
            memory infinitely fast.
        room_bytes, slots: fast memory that buffers may take (1 GiB), and their number.
        ahead, expected, largest_bytes: of blocks that are asked for: how many of them before
        anything runs, by which the model goes; how
            many there will be (``operator.length_hint``, or as many as go over the array), and the
            largest, where it comes later. One that is larger than a buffer is worked on where it
            lies. What gives the blocks may wait for the kernel of a block that it gave ``ahead``
            blocks before, or earlier.
        cpus: CPUs that threads are kept on, in turn.
        keep_addresses: blocks are worked on in the array itself, whose pages are moved to the fast
        node and home again.

    Raises:
        TerraceError: a kernel that raised (its exception is the cause; every other block is as it
        was or complete), blocks that
            overlap, buffers that cannot be had, a machine that does not tell what is needed.
        ValueError, TypeError: an array or argument of another kind.
        What the iterable of blocks raises; blocks before are as they were or complete.
    """
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError("the array cannot be written to; use terrace.stage.read")
    return _run(array, kernel, blocks, True, fast, **how)


def read(array: np.ndarray, kernel: Callable[[int, np.ndarray], Any], *, blocks: Blocks, fast: int,
    **how: Any) -> Staged:
    """As :func:`update`, but that blocks cannot be written to and nothing goes back."""
    return _run(array, kernel, blocks, False, fast, **how)


def _ranges(blocks: Blocks, rows: int,
    row: int) -> "List[Tuple[int, int]] | Iterator[Tuple[int, int]]":
    """First bytes and bytes of blocks: all of them where they are known, else as they come."""
    if isinstance(blocks, (int, np.integer)):
        if blocks < 1:
            raise ValueError(f"blocks of {blocks} rows: give 1 at least")
        blocks = [(at, min(at + int(blocks), rows)) for at in range(0, rows, int(blocks))]
    come = _checked(blocks, rows, row)
    return list(come) if isinstance(blocks, (list, tuple)) else come


def _checked(blocks: Iterable[Tuple[int, int]], rows: int, row: int) -> Iterator[Tuple[int, int]]:
    for number, (first, end) in enumerate(blocks):
        if not 0 <= first <= end <= rows:
            raise ValueError(f"block {number} is rows {first} to {end} of {rows}")
        yield int(first) * row, (int(end) - int(first)) * row


def _run(
    array: np.ndarray,
    kernel: Callable[[int, np.ndarray], Any],
    blocks: Blocks,
    back: bool,
    fast: int,
    *,
    slow: Optional[int] = None,
    machine: "os.PathLike[str] | str | None" = None,
    initiator: Optional[int] = None,
    threads: Threads = 2,
    in_place: bool = False,
    passes: float = 1.0,
    compute_ns_per_byte: float = 0.0,
    room_bytes: Optional[int] = None,
    slots: Optional[int] = None,
    ahead: int = 64,
    expected: Optional[int] = None,
    largest_bytes: Optional[int] = None,
    cpus: Sequence[int] = (),
    keep_addresses: bool = False,
) -> Staged:
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise TypeError("give a numpy.ndarray of one dimension or more")
    if not array.flags.c_contiguous:
        raise ValueError("the array's rows do not lie one after the other; give a C-contiguous one")
    if array.dtype.hasobject:
        raise ValueError(f"{array.dtype}: give a dtype whose elements are plain bytes")
    pair = (threads, None) if isinstance(threads, (int, np.integer)) else tuple(threads)
    for name, value in (("passes", passes), ("compute_ns_per_byte", compute_ns_per_byte)):
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}: give a number that is not negative")
    kind, rest = array.dtype, array.shape[1:]
    row = kind.itemsize * int(np.prod(rest, dtype=np.int64))
    if ahead < 1:
        raise ValueError(f"ahead is {ahead}: give 1 at least")
    if expected is None and not isinstance(blocks, (int, np.integer)):
        expected = length_hint(blocks) or None
    ranges = _ranges(blocks, array.shape[0], row)

    def call(number: int, block: Any) -> None:
        part = np.asarray(block).view(kind) if row else np.empty(0, kind)
        kernel(number, part.reshape((-1, *rest) if row else (0, *rest)))

    how = _How(
        fast=fast,
        slow=slow,
        machine=None if machine is None else os.fspath(machine),
        initiator=initiator,
        threads=pair,
        in_place=in_place,
        passes=float(passes),
        compute_ns_per_byte=float(compute_ns_per_byte),
        room=room_bytes,
        slots=slots,
        ahead=ahead,
        expected=expected,
        largest=largest_bytes,
        cpus=list(cpus),
        keep_addresses=bool(keep_addresses),
    )
    report = _native.stage(array, array.ctypes.data, array.nbytes, ranges, back, call, how)
    return Staged(**json.loads(report))
