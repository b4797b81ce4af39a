"""Which GPU memory each array of a CuPy kernel belongs in. No GPU is needed to ask::

    kernel = cupy.RawKernel(source, "fir")
    advice = terrace.gpu.advise(kernel, (3907,), (256,), (signal, tap, out, numpy.int32(n)))
    for array in advice.arrays:
        print(array.array, array.placement, array.expected_speedup, array.rule)

``advice.source`` is the source with the advice applied. Its callers copy constant arrays, make
textures and ask for shared memory at the launch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _native

__all__ = ["Advice", "ArrayAdvice", "advise"]


@dataclass(frozen=True)
class ArrayAdvice:
    """Advice for one array."""

    #: The array's name in the source.
    array: str
    #: ``global``, ``read_only``, ``shared``, ``constant``, ``texture`` or ``persisting_l2``.
    placement: str
    #: The kernel's speed with the array there over that with all arrays in global memory.
    expected_speedup: float
    #: How sure that is, from 0 to 1.
    confidence: float
    #: The learned rule that says so, or what was seen of the accesses.
    rule: str
    #: Placements that are not offered, each with the reason.
    not_offered: List[str]


@dataclass(frozen=True)
class Advice:
    """Advice for a kernel."""

    #: The kernel's name.
    kernel: str
    #: The measured GPU whose profile was used.
    gpu: str
    #: By array, in the order of the parameters.
    arrays: List[ArrayAdvice]
    #: The source with the advice applied.
    source: str


def _axes(name: str, shape: Union[int, Sequence[int]]) -> List[int]:
    axes = [int(n) for n in ((shape,) if isinstance(shape, int) else shape)]
    if not 1 <= len(axes) <= 3 or min(axes) < 1:
        raise ValueError(f"{name}={shape!r}: give one to three numbers from 1")
    return axes + [1] * (3 - len(axes))


def _defines(options: Sequence[str]) -> Dict[str, int]:
    """The whole numbers among ``-DNAME=VALUE``; the rest does not change how arrays are
    accessed."""
    found = {}
    for option in options:
        name, _, value = option[2:].partition("=") if option.startswith("-D") else ("", "", "")
        try:
            found[name.strip()] = int(value, 0)
        except ValueError:
            continue
    return found


def advise(
    kernel: Any,
    grid: Union[int, Sequence[int]],
    block: Union[int, Sequence[int]],
    args: Sequence[Any],
    *,
    gpu: str = "h100",
    name: Optional[str] = None,
) -> Advice:
    """Advice for a launch ``kernel(grid, block, args)``.

    Args:
        kernel: a ``cupy.RawKernel``, or the source as a string.
        grid: blocks of the grid along each axis.
        block: threads of a block along each axis.
        args: what the kernel would be called with: arrays of CuPy or NumPy, and numbers.
        gpu: a part of the name of a measured GPU.
        name: the kernel, where a source has several.

    Raises:
        TerraceError: there is no advice; the text says why and what to try.
    """
    source: str = kernel if isinstance(kernel, str) else kernel.code
    name = name or (None if isinstance(kernel, str) else kernel.name)
    options = () if isinstance(kernel, str) else tuple(getattr(kernel, "options", ()) or ())
    elements: List[int] = []
    scalars: List[int] = []
    for value in args:
        # Numbers of NumPy have a size too, and no axes.
        if getattr(value, "ndim", 0):
            elements.append(int(value.size))
        else:
            scalars.append(int(value))
    answer: Tuple[str, str] = _native.gpu_advise(
        source, name, _axes("grid", grid), _axes("block", block), elements, scalars,
            _defines(options), gpu
    )
    told = json.loads(answer[0])
    return Advice(told["kernel"], told["gpu"], [ArrayAdvice(**array) for array in told["arrays"]],
        answer[1])
