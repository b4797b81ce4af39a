"""Journals: what a managed run saw, decided and did."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

from . import _native
from ._frames import frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Journal:
    """A journal, as far as it could be read."""

    header: Dict[str, Any]
    #: In the order written; ``entry`` names the kind: ``snapshot``, ``decision``, ``outcome``,
    #: ``note``, ``end``.
    entries: List[Dict[str, Any]]
    #: Entries of kinds that this version does not know.
    skipped: int
    #: Why reading stopped before the end, if it did; what came before is sound.
    problem: Optional[str]

    def of(self, kind: str) -> List[Dict[str, Any]]:
        """Entries of a kind."""
        return [e for e in self.entries if e["entry"] == kind]

    def frame(self, kind: str) -> "pandas.DataFrame":
        """Entries of a kind as a DataFrame, one row each; nested values stay as they are."""
        return frame(self.of(kind))


def journal(path: Union[str, "os.PathLike[str]"]) -> Journal:
    """Reads a journal.

    Raises:
        TerraceError: there is no usable header. Any later damage is :attr:`Journal.problem`.
    """
    raw = json.loads(_native.read_journal(os.fspath(path)))
    return Journal(raw["header"], raw["entries"], raw["skipped"], raw["problem"])
