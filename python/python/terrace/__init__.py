"""Terrace's recordings, journals and predictions in Python, and arrays in a tier of memory.

- :func:`recording` opens a recording's accesses as a NumPy structured array or as columns.
- :func:`simulate` predicts what machines and policies would give; :func:`sweep` does so over their
product.
- :func:`terrace.sim.run` runs a policy that is a Python function in the simulator.
- :func:`journal` reads what a managed run did.
- :mod:`terrace.alloc` places NumPy arrays; :mod:`terrace.far` makes them larger than their memory;
:mod:`terrace.stage` has them worked on
  block by block by way of fast memory.
- :mod:`terrace.gpu` says which GPU memory each array of a CuPy kernel belongs in.

Results become pandas DataFrames with their ``frame`` methods, if pandas is installed. Units are in
the names, as in Terrace's JSON. What cannot be done is a :class:`TerraceError` whose text says
what, why and what to try.
"""

from __future__ import annotations

from . import alloc, crash, far, gpu, sim, stage
from ._native import TerraceError, policies, presets
from .journals import Journal, journal
from .predictions import Case, Prediction, SystemCase, cases, predict, simulate, sweep, system_cases
from .recordings import ACCESS, Recording, recording

__all__ = [
    "ACCESS",
    "Case",
    "Journal",
    "Prediction",
    "Recording",
    "SystemCase",
    "TerraceError",
    "alloc",
    "cases",
    "crash",
    "far",
    "gpu",
    "journal",
    "policies",
    "predict",
    "presets",
    "recording",
    "sim",
    "simulate",
    "stage",
    "sweep",
    "system_cases",
]
