"""Recordings as arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Union

import numpy as np

from . import _native

if TYPE_CHECKING:
    import pyarrow

#: One access. ``gap``: instructions since the thread's last access, this one's included.
#: ``depends``: how many loads ago the value was loaded that the address was computed from; 0: none
#: known.
ACCESS = np.dtype(
    [
        ("address", np.uint64),
        ("gap", np.uint32),
        ("size", np.uint32),
        ("thread", np.uint32),
        ("process", np.uint32),
        ("depends", np.uint8),
        ("store", np.bool_),
    ]
)


@dataclass(frozen=True)
class Recording:
    """Accesses of a recording, in the order of the file, which is each thread's own order."""

    #: Columns by the names of :data:`ACCESS`, and ``time`` (ticks of the recording's clock) if it
    #: was asked for.
    columns: Dict[str, np.ndarray]
    #: Damage that was found and left out, one sentence each.
    damage: List[str]
    #: What the recording says of itself.
    header: str

    def __len__(self) -> int:
        return len(self.columns["address"])

    def array(self) -> np.ndarray:
        """A structured array of :data:`ACCESS`; a copy."""
        out = np.empty(len(self), dtype=ACCESS)
        for name in ACCESS.names or ():
            out[name] = self.columns[name]
        return out

    def table(self) -> "pyarrow.Table":
        """The columns as an Arrow table, for what reads Arrow (DuckDB, Polars, Parquet files): no
        copy but of ``store``, which Arrow keeps as bits. The table's metadata has
        ``terrace.header`` and, a line each, ``terrace.damage``.

        Raises:
            ImportError: pyarrow is not installed.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise ImportError("Arrow tables need pyarrow: pip install 'terrace[arrow]'") from error
        told = {"terrace.header": self.header, "terrace.damage": "\n".join(self.damage)}
        return pyarrow.table(self.columns).replace_schema_metadata(told)

    def pages(self, page_bytes: int = 4096) -> np.ndarray:
        """Number of the page of each access."""
        if page_bytes < 1:
            raise ValueError(f"pages of {page_bytes} bytes; give at least 1")
        return self.columns["address"] // np.uint64(page_bytes)


def recording(
    path: Union[str, "os.PathLike[str]"], first: int = 0, count: Optional[int] = None,
        times: bool = False
) -> Recording:
    """Reads accesses ``first`` to ``first + count`` (all that follow, without ``count``). Blocks
    outside are not decoded.

    Raises:
        TerraceError: the file is no recording, or cannot be read. Damage behind the header is no
        error: see
            :attr:`Recording.damage`.
    """
    if first < 0 or (count is not None and count < 0):
        raise ValueError(f"first={first}, count={count}: neither can be negative")
    most = 2**64 - 1
    raw = _native.read_recording(os.fspath(path), first, most if count is None else count, times)
    types = {name: ACCESS[name] for name in ACCESS.names or ()}
    if times:
        types["time"] = np.dtype(np.uint64)
    columns = {name: np.frombuffer(raw[name], dtype=kind) for name, kind in types.items()}
    return Recording(columns, raw["damage"], raw["header"])
