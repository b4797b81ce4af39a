"""NumPy arrays larger than the memory given to them.

:func:`empty` gives an ordinary ``numpy.ndarray`` of which ``dram`` bytes are in memory and the rest
in a ``store``: a folder on a disk, ``"compressed"`` (memory), or a folder and ``"+compressed"``.
What is needed is fetched, mostly before it is needed. Views keep the memory, and it is given back
with the last of them. The other functions take such an array or a view of it.

A forked child does not have it (touching it there ends the child), so start processes with
``multiprocessing``'s ``spawn``.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, Tuple, Union

import numpy as np

from . import _native
from .alloc import Shape, _array, _bytes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["advise", "empty", "flush", "open", "pin", "prefetch", "set_dram", "statistics"]

#: Bytes, or as in ``"2G"``.
Size = Union[int, str]


def empty(
    shape: Shape, dtype: "DTypeLike" = float, *, dram: Size, store: str = "compressed",
        order: str = "C"
) -> np.ndarray:
    """An array of zeros of which at most ``dram`` bytes, buffers included, are in memory.

    Raises:
        TerraceError: userfaultfd is refused (the text says what to set), too little ``dram``, a
        store that cannot be made. ValueError: a dtype that holds Python objects, or a negative
        dimension.
    """
    kind = np.dtype(dtype)
    return _array(_native.Far(_bytes(shape, kind), dram, store), shape, kind, order)


def open(
    path: "os.PathLike[str] | str", dtype: "DTypeLike" = np.uint8, *, dram: Size, mode: str = "r",
        shape: "Shape | None" = None
) -> np.ndarray:
    """An array of the elements of a file that is there, of which at most ``dram`` bytes, buffers
    included, are in memory; all whole elements unless a ``shape`` is given. ``mode`` is ``"r"``,
    and the array cannot be written to, or ``"r+"``: what is written to it is written to the file
    when it leaves memory, by :func:`flush`, and when the array is gone.

    Raises:
        TerraceError: no such file, an empty one, no permission; userfaultfd is refused; too little
        ``dram``. ValueError: another mode, a shape larger than the file, or a dtype that holds
        Python objects.
    """
    if mode not in ("r", "r+"):
        raise ValueError(f'mode {mode!r}: give "r" or "r+"')
    kind = np.dtype(dtype)
    if kind.hasobject or kind.itemsize == 0:
        raise ValueError(f"{kind}: give a dtype whose elements are plain bytes")
    far = _native.Far.open(os.fspath(path), dram, mode == "r+")
    shape = (far.bytes // kind.itemsize,) if shape is None else shape
    if _bytes(shape, kind) > far.bytes:
        raise ValueError(f"{shape} of {kind} is more than the {far.bytes} bytes of {os.fspath(path)}")
    array = _array(far, shape, kind, "C")
    array.flags.writeable = mode == "r+"
    return array


def _of(array: np.ndarray) -> Any:
    under: Any = array
    while isinstance(under, (np.ndarray, memoryview)):
        under = under.base if isinstance(under, np.ndarray) else under.obj
    if not isinstance(under, _native.Far):
        raise TypeError("this array is not in far memory; make one with terrace.far.empty")
    return under


def _extent(far: Any, array: np.ndarray) -> Tuple[int, int]:
    """First byte of a view within its range, and bytes to its end."""
    if array.size == 0:
        return (0, 0)
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides)]
    first = array.__array_interface__["data"][0] + sum(s for s in steps if s < 0) - far.address
    return (first, sum(abs(s) for s in steps) + array.itemsize)


def flush(array: np.ndarray) -> None:
    """Writes what the store does not have to it, of the whole range, and waits for that. It stays
    in memory.

    Raises:
        TerraceError: the store failed; nothing is lost.
    """
    _of(array).flush()


def advise(array: np.ndarray, advice: str) -> None:
    """What is to become of the bytes from the first to the last of ``array``: ``"will-need"``
    (fetched, as far as there is room), ``"cold"`` (out of memory) or ``"discard"`` (zeros from now
    on; whole pages).

    Raises:
        TerraceError: another word, or a store that failed.
    """
    far = _of(array)
    far.advise(*_extent(far, array), advice)


def prefetch(array: np.ndarray) -> None:
    """As :func:`advise` with ``"will-need"``."""
    advise(array, "will-need")


def pin(array: np.ndarray, on: bool = True) -> None:
    """Brings ``array`` into memory and keeps it there, or no longer. At most half of the memory can
    be pinned.

    Raises:
        TerraceError: more than that.
    """
    far = _of(array)
    far.pin(*_extent(far, array), on)


def set_dram(array: np.ndarray, dram: Size) -> None:
    """Changes the memory that the whole range may use, while it is used.

    Raises:
        TerraceError: too little.
    """
    _of(array).set_dram(dram)


def statistics(array: np.ndarray) -> Dict[str, Any]:
    """What the whole range did so far: ``faults``, of them ``misses`` and ``hits``, bytes
    ``read_bytes``, ``written_bytes``, ``ahead_bytes`` (of them ``wasted_bytes``),
    ``resident_bytes`` and ``store_bytes`` now, ``lost_bytes``, ``write_failures``, and ``remarks``
    on what is slower here than elsewhere.
    """
    return json.loads(_of(array).statistics())
