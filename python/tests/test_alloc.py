"""Arrays in a tier, on the machine that the tests run on: one class of memory will do."""

import gc
import os
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import terrace
from terrace import alloc

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "allocate.md"


def node():
    return alloc.Memory().classes[0].nodes[0]


def test_arrays_are_zero_of_their_shape_and_where_it_is_said():
    memory = alloc.Memory()
    assert memory.classes and memory.classes[0].read_gain == 1.0
    for shape, dtype, order in [((30, 40), float, "C"), (7, "u1", "C"),
        ((5, 6, 7), np.complex64, "F"), ((), int, "C")]:
        array = memory.zeros(shape, dtype, order=order, name="a")
        assert array.dtype == np.dtype(dtype) and array.shape == np.empty(shape).shape
        assert array.flags["WRITEABLE"] and array.flags["ALIGNED"] and array.flags[f"{order}_CONTIGUOUS"]
        assert not array.any() and array.__array_interface__["data"][0] % 4096 == 0
        array[...] = 3
        assert array.sum() == 3 * array.size
        row = memory.describe(array)
        assert row["name"] == "a" and sum(row["got_bytes"]) == row["size_bytes"] >= array.nbytes
    assert memory.zeros((0, 5)).shape == (0, 5)
    large = memory.zeros(1 << 20)
    assert large.__array_interface__["data"][0] % (2 << 20) == 0


def test_commit_weighs_all_and_says_what_each_got():
    memory = alloc.Memory()
    wish = alloc.Attributes(on_commit=True)
    arrays = [memory.zeros(1 << 18, attributes=wish, name=n, priority=p) for n,
        p in [("a", 2), ("b", 1)]]
    arrays[1][:] = 5
    report = memory.commit()
    assert [row["name"] for row in report.rows] == ["a", "b"] and report.refused == []
    assert all(sum(row["got_bytes"]) == row["size_bytes"] and row["why"] for row in report.rows)
    assert 0 < report.value <= report.bound * (1 + 1e-9) and report.decided_ns > 0
    assert list(report.frame()["moved_bytes"]) == [0, 0]
    assert (arrays[1] == 5).all()
    assert memory.commit().rows == [] and len(memory.commit(all=True).rows) == 2


def test_managed_memory_is_a_gpus_or_it_is_said_why_not():
    memory = alloc.Memory()
    array = memory.empty(100_000, on=(alloc.CUDA_MANAGED, [0]), prefetch=True)
    array[:] = 2
    assert not memory.zeros(1000, on=alloc.CUDA_MANAGED).any()
    row = memory.describe(array)
    try:
        gpus = memory.gpus()
    except terrace.TerraceError as why:
        assert re.search("no CUDA managed memory here: .*(build with|library|GPU)", str(why)), why
        assert row["got_managed_bytes"] == 0 and sum(row["got_bytes"]) == row["size_bytes"]
        assert "other memory is used" in row["why"]
        with pytest.raises(terrace.TerraceError, match="no CUDA managed memory here"):
            memory.zeros(10, on=alloc.CUDA_MANAGED, strict=True)
    else:
        assert row["got_managed_bytes"] == row["size_bytes"] == gpus[0].bound_bytes and gpus[0].blocks == 1
    assert array.sum() == 200_000


def test_memory_lives_as_long_as_a_view_and_no_longer():
    memory = alloc.Memory()
    array = memory.zeros((1000, 1000), name="big")
    row = array[999]
    row[:] = 4
    handle, at = memory, array.__array_interface__["data"][0]
    del array, memory
    gc.collect()
    assert row.sum() == 4000 and handle.describe(row[5:])["name"] == "big"
    del row
    gc.collect()
    with pytest.raises(terrace.TerraceError, match="not allocated here|freed before"):
        handle._native.describe(at)
    with pytest.raises(terrace.TerraceError, match="not allocated here"):
        handle.describe(np.zeros(10))


def test_attributes_are_read_and_nonsense_is_named():
    memory = alloc.Memory()
    two = [(alloc.FASTEST, [0]), alloc.SLOWEST]
    for split in ["os", "spill", "equal", ("chunk", 2), ("weighted", [3, 1])]:
        assert not memory.zeros(100_000, on=two, split=split, pages="base", lifetime="long",
            whole=False).any()
    strict = memory.zeros(1000, strict=True)
    assert sum(memory.describe(strict)["got_bytes"]) == 8192
    for changes, said in [
        ({"on": 1000, "strict": True}, "no class 1000"),
        ({"on": (0, [99]), "strict": True}, "no index 99"),
        ({"on": (0, "near")}, "near"),
        ({"split": "half"}, "half"),
        ({"split": ("chunk", 0)}, "chunk"),
        ({"pages": "giant"}, "giant"),
        ({"lifetime": "ever"}, "ever"),
        ({"reads": float("nan")}, "finite"),
    ]:
        with pytest.raises(terrace.TerraceError, match=said):
            memory.zeros(10, **changes)
    with pytest.raises(terrace.TerraceError, match="cannot allocate"):
        memory.zeros(1 << 50, strict=True)
    with pytest.raises(terrace.TerraceError, match="addressed"):
        memory.zeros((1 << 40, 1 << 40))
    with pytest.raises(ValueError, match="objects"):
        memory.zeros(3, object)
    with pytest.raises(ValueError, match="negative"):
        memory.zeros((-1, 4))
    with pytest.raises(TypeError):
        memory.zeros(3, colour="red")


def test_arrays_of_an_arena_move_together_and_keep_their_content():
    arena = alloc.Arena(limit_bytes=64 << 20, name="fields")
    arrays = [arena.empty((50, n + 1), np.int64) for n in range(100)]
    for n, array in enumerate(arrays):
        assert array.__array_interface__["data"][0] % 64 == 0
        array[...] = n
    zeros = arena.zeros(1000)
    assert not zeros.any() and arena.stats["blocks"] == 101 and arena.stats["limit_bytes"] == 64 << 20
    moved = arena.set_device([node()], strict=True)
    assert moved.problem is None and moved.pages == moved.moved + moved.already > 0 and not moved.stayed
    move = arena.set_device_async([node()], how="only")
    assert move.wait().pages > 0 and move.ended and move.progress[0] == move.progress[1]
    assert all((array == n).all() for n, array in enumerate(arrays))
    nodes, untouched = arena.residency
    assert nodes[node()] > 0 and untouched >= 0
    with pytest.raises(terrace.TerraceError, match="limit"):
        arena.empty(100 << 20, np.uint8)
    with pytest.raises(terrace.TerraceError, match="node 999"):
        arena.set_device([999])
    with pytest.raises(terrace.TerraceError, match="sideways"):
        alloc.Arena(how="sideways")
    del arrays, array, zeros
    gc.collect()
    assert arena.stats["blocks"] == 0


def test_an_arena_lives_as_long_as_its_arrays():
    array = alloc.Arena().empty(100_000)
    gc.collect()
    array[:] = 7
    assert (array == 7).all() and pickle.loads(pickle.dumps(array)).sum() == 700_000


def test_threads_share_a_memory_and_an_arena():
    memory, arena, wrong = alloc.Memory(), alloc.Arena(), []

    def work(thread):
        for n in range(200):
            one, two = memory.zeros(500 + n, "i8"), arena.empty(300 + n, "i8")
            one[:], two[:] = thread, thread
            if (one != thread).any() or (two != thread).any():
                wrong.append(thread)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and arena.stats["blocks"] == 0


def test_a_forked_child_has_its_own_copy():
    memory = alloc.Memory()
    array = memory.zeros(1000)
    array[:] = 1
    child = os.fork()
    if child == 0:
        array[:] = 2
        os._exit(0 if (memory.zeros(10) == 0).all() and (array == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array == 1).all()


def test_the_guides_programs_run():
    programs = re.findall(r"\n```python\n(.*?)\n```", GUIDE.read_text(), re.S)
    assert programs
    for program in programs:
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
            timeout=60)
        assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr
