"""Crash tests: programs that say what a restart needs, and results as frames.

A program names its arrays and runs its iterations in a region::

    x = np.zeros(1000)
    with terrace.crash.region({"x": x}) as region:      # after a crash: x comes from memory
        for it in region.iterations(15):                # 1, 2, ..., or on from the last one done
            x += it

``terrace crash run -- python3 program.py`` then crashes and restarts it. Without the tool this does
nothing but count. It is ``terrace_crash.h`` for Python, and needs no compiler: the few instructions
that the tool recognises are no-ops that this module puts into memory itself. On other processors
than x86-64, which the tool cannot record, there are none.

:func:`studies` reads what ``terrace crash run --json`` printed.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Union

import numpy as np

from ._frames import frame
from ._native import TerraceError

if TYPE_CHECKING:
    import pandas

# As in terrace_crash.h.
_START, _END, _WRITE_BACK, _FLUSH, _FLUSH_ALL = 0xC0, 0xC1, 0xC4, 0xC5, 0xC6
_PHASE, _MOST_PHASES = 0xD0, 15
_CRITICAL, _CONSISTENT, _READ_ONLY = 1, 2, 3
_HEAD, _OBJECT = struct.Struct("<8sQQ"), struct.Struct("<IIQQ16s48s")
_MOST_OBJECTS = 256
_LINE = 64
_REFUSED = 122


class _Marks:
    """Functions of one no-op each, which the tool recognises; their argument is an address."""

    _STEP = 16

    def __init__(self) -> None:
        self._functions: Dict[int, Any] = {}
        if platform.machine() not in ("x86_64", "AMD64"):
            return
        numbers = [_START, _END, _WRITE_BACK, _FLUSH, _FLUSH_ALL]
        numbers += range(_PHASE + 1, _PHASE + _MOST_PHASES + 1)
        # mov rax, rdi; nop [rax + disp32] with the number in its displacement; ret
        code = [b"\x48\x89\xf8\x0f\x1f\x80" + bytes([n]) + b"\xa0\x44\x7e\xc3" for n in numbers]
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.write(b"".join(c.ljust(self._STEP, b"\xc3") for c in code))
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if libc.mprotect(start, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
            why = os.strerror(ctypes.get_errno())
            raise TerraceError(f"cannot make a page executable for crash tests: {why}")
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        for place, number in enumerate(numbers):
            self._functions[number] = function(start + place * self._STEP)

    def __call__(self, number: int, address: int = 0) -> None:
        function = self._functions.get(number)
        if function is not None:
            function(address)


@dataclass(frozen=True)
class _Object:
    name: str
    kind: int
    array: np.ndarray

    def packed(self) -> bytes:
        a = self.array
        words = (self.kind, a.itemsize, a.ctypes.data, a.nbytes)
        return _OBJECT.pack(*words, a.dtype.name.encode()[:15], self.name.encode()[:47])

    def bytes(self) -> memoryview:
        return memoryview(self.array).cast("B")


class Region:
    """The part of a program in which a crash may happen; see :func:`region`."""

    def __init__(self, objects: List[_Object]) -> None:
        self._done = np.zeros(1, dtype="i8")
        self._objects = objects + [_Object("done", _CONSISTENT, self._done)]
        self._marks = _Marks()
        for one in self._objects:
            flags = one.array.flags
            if not flags.c_contiguous or not flags.writeable:
                why = "not one piece of memory that can be written; give a copy"
                raise TerraceError(f"{one.name}: {why}")
        if len(self._objects) > _MOST_OBJECTS:
            raise TerraceError(f"{len(self._objects)} objects; {_MOST_OBJECTS} can be named")

    @property
    def done(self) -> int:
        """The last iteration that is done."""
        return int(self._done[0])

    def __enter__(self) -> "Region":
        image = os.environ.get("TERRACE_CRASH_IMAGE")
        if image is not None:
            self._restore(Path(image).read_bytes())
        self._marks(_FLUSH_ALL)
        path = os.environ.get("TERRACE_CRASH_REGION")
        if path is not None:
            Path(path).write_bytes(self._file(b"TERRCRR1"))
        self._marks(_START)
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is not None:
            return
        self._marks(_END)
        path = os.environ.get("TERRACE_CRASH_RESULT")
        if path is not None:
            Path(path).write_text(f"{self.done}\n")

    def iterations(self, last: int) -> Iterator[int]:
        """Numbers from the one behind the last done to ``last``.

        Each is done, and flushed, when the next is asked for.
        """
        for number in range(self.done + 1, last + 1):
            yield number
            self._done[0] = number
            self.write_back(self._done)

    def phase(self, number: int) -> None:
        """Marks the begin of a phase, from 1 to 15, by which successes are counted then."""
        if not 1 <= number <= _MOST_PHASES:
            raise TerraceError(f"phase {number}; give 1 to {_MOST_PHASES}")
        self._marks(_PHASE + number)

    def write_back(self, array: np.ndarray) -> None:
        """Writes the array's cache lines back to memory (CLWB)."""
        self._each_line(_WRITE_BACK, array)

    def flush(self, array: np.ndarray) -> None:
        """The same, and the lines leave all caches (CLFLUSH)."""
        self._each_line(_FLUSH, array)

    def _each_line(self, mark: int, array: np.ndarray) -> None:
        start = array.ctypes.data
        for line in range(start // _LINE, -(-(start + array.nbytes) // _LINE)):
            self._marks(mark, line * _LINE)

    def _file(self, magic: bytes) -> bytes:
        parts = [_HEAD.pack(magic, len(self._objects), 0)]
        parts += [one.packed() for one in self._objects]
        parts += [one.bytes() for one in self._objects if one.kind != _READ_ONLY]
        return b"".join(parts)

    def _restore(self, image: bytes) -> None:
        def refuse(why: str) -> None:
            print(f"terrace.crash: the image {why}", flush=True)
            os._exit(_REFUSED)

        at = _HEAD.size + _OBJECT.size * len(self._objects)
        if len(image) < at or _HEAD.unpack_from(image)[0] != b"TERRCRI1":
            refuse("is none, or ends early")
        if _HEAD.unpack_from(image)[1] != len(self._objects):
            refuse("has another number of objects than this program")
        for number, one in enumerate(self._objects):
            kind, _, _, size, _, _ = _OBJECT.unpack_from(image, _HEAD.size + _OBJECT.size * number)
            if (kind, size) != (one.kind, one.array.nbytes):
                refuse(f"has {one.name} with another size or kind than this program")
        for one in self._objects:
            if one.kind != _READ_ONLY:
                if len(image) < at + one.array.nbytes:
                    refuse("ends early")
                one.bytes()[:] = image[at : at + one.array.nbytes]
                at += one.array.nbytes


def region(
    critical: Mapping[str, np.ndarray], readonly: Optional[Mapping[str, np.ndarray]] = None
) -> Region:
    """A region of the program in which a crash may happen, as a context manager.

    Args:
        critical: arrays that a restart needs, by name. After a crash they are filled with what
            memory held.
        readonly: arrays that the program makes again by itself; they are in rates and in no image.

    Raises:
        TerraceError: an array is not one writable piece of memory.
    """
    objects = [_Object(name, _CRITICAL, array) for name, array in critical.items()]
    objects += [_Object(name, _READ_ONLY, array) for name, array in (readonly or {}).items()]
    return Region(objects)


@dataclass(frozen=True)
class Study:
    """What ``terrace crash run --json`` printed; keys as there."""

    values: Dict[str, Any]

    def frame(self, what: str = "results") -> "pandas.DataFrame":
        """A DataFrame with one row for each of ``results`` (crashes), ``phases``, ``objects`` or
        ``call_paths``.

        In ``results`` and ``phases`` there is a column for each object, ``rate_NAME``: its
        inconsistent rate, from 0 to 1.
        """
        names = [o["name"] for o in self.values["objects"]]
        sizes = [max(o["bytes"], 1) for o in self.values["objects"]]
        rows = []
        for one in self.values[what]:
            row = dict(one)
            rates = row.pop("inconsistent_rates", None)
            lost = row.pop("inconsistent_bytes", None)
            if lost is not None:
                rates = [bytes_lost / size for bytes_lost, size in zip(lost, sizes)]
            row.update({f"rate_{name}": rate for name, rate in zip(names, rates or [])})
            rows.append(row)
        return frame(rows)


def studies(path: Union[str, "os.PathLike[str]"]) -> List[Study]:
    """Reads one study, or several one behind the other.

    Raises:
        TerraceError: the file holds something else.
    """
    text, at, found = Path(path).read_text(), 0, []
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError as error:
            wanted = "give what terrace crash run --json printed"
            raise TerraceError(f"cannot read {os.fspath(path)}: {error}; {wanted}") from error
        if not isinstance(value, dict) or value.get("kind") != "crash_study":
            name = os.fspath(path)
            raise TerraceError(f"cannot read {name}: no study of terrace crash run --json")
        found.append(Study(value))
    return found
