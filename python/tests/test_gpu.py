"""Advice on GPU memories for kernels as CuPy has them; no GPU and no CuPy are needed."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import terrace
from terrace import gpu

KERNELS = Path(__file__).resolve().parents[2] / "crates" / "gpu" / "kernels"


def raw_kernel(name, options=()):
    """What of ``cupy.RawKernel`` counts here."""
    return SimpleNamespace(code=(KERNELS / f"{name}.cu").read_text(), name=name, options=options)


def histogram():
    data, count = np.zeros(4_000_000, "i4"), np.zeros(256, "i4")
    return gpu.advise(
        raw_kernel("histogram", ("-DBINS=256", "--std=c++14")),
        (977,),
        256,
        (data, count, np.int32(data.size), np.int32(256)),
    )


def test_a_contended_histogram_goes_to_shared_memory():
    advice = histogram()
    assert advice.kernel == "histogram" and "H100" in advice.gpu
    count = next(a for a in advice.arrays if a.array == "count")
    assert count.placement == "shared" and count.expected_speedup > 2, count
    assert 0 < count.confidence <= 1 and count.rule
    assert "#define TILE_count" in advice.source and "__global__" in advice.source


def test_a_source_may_be_given_as_text():
    source = (KERNELS / "fir.cu").read_text()
    arrays = [np.zeros(100_031, "f4"), np.zeros(32, "f4"), np.zeros(100_000, "f4")]
    advice = gpu.advise(source, 391, (256, 1), (*arrays, 100_000), gpu="h200")
    assert [a.array for a in advice.arrays] == ["signal", "tap", "out"] and "H200" in advice.gpu


def test_what_does_not_fit_is_said():
    with pytest.raises(terrace.TerraceError,
        match="takes 3 arrays and 1 scalars, the launch has 0 and 1"):
        gpu.advise(raw_kernel("fir"), 1, 256, (1,))
    with pytest.raises(terrace.TerraceError, match="no measured GPU is called"):
        gpu.advise(raw_kernel("triad"), 1, 256, (*[np.zeros(9, "f4")] * 3, 9, 3.0), gpu="k40")
    with pytest.raises(terrace.TerraceError, match="no __global__"):
        gpu.advise("int main() {}", 1, 256, ())
    with pytest.raises(ValueError, match="one to three numbers"):
        gpu.advise(raw_kernel("fir"), (), 256, ())
