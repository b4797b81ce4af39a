"""Arrays worked on block by block by way of buffers."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import terrace
from terrace import stage

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "stage.md"
#: A node that has memory, as the first that the kernel lists.
NODE = int(re.match(r"\d+", Path("/sys/devices/system/node/has_memory").read_text()).group())


def test_staged_results_are_those_of_numpy_alone():
    array = np.arange(600_000, dtype="f8").reshape(3000, 200)
    wanted = np.sqrt(array) + 1

    def kernel(number, block):
        assert block.shape[1] == 200 and block.dtype == "f8" and block.flags.writeable
        np.sqrt(block, out=block)
        block += 1

    told = stage.update(array, kernel, blocks=170, fast=NODE, threads=(1, 1))
    assert (array == wanted).all()
    assert told.staged and told.why is None and told.blocks == 18 and (told.threads,
        told.migrators) == (2, 1)
    assert told.brought_bytes == told.returned_bytes == array.nbytes and told.took_ns > 0


def test_reading_gives_each_block_once_and_lets_nobody_write():
    array = np.arange(100_000, dtype="i4")
    sums, lock = {}, threading.Lock()

    def kernel(number, block):
        assert not block.flags.writeable
        with lock:
            sums[number] = int(block.sum(dtype="i8"))

    array.flags.writeable = False
    told = stage.read(array, kernel, blocks=[(0, 10), (20, 20), (10, 90_000)], fast=NODE,
        threads=(2, 1))
    assert sums == {0: 45, 1: 0,
        2: int(array[10:90_000].sum(dtype="i8"))} and told.returned_bytes == 0
    with pytest.raises(ValueError, match="cannot be written"):
        stage.update(array, kernel, blocks=10, fast=NODE)


@pytest.mark.parametrize("how",
    [{"threads": (1, 1)}, {"threads": (2, 1), "slots": 2}, {"in_place": True}])
def test_blocks_may_come_while_others_are_worked_on(how):
    array = np.arange(40_000, dtype="f8")
    told, given = threading.Semaphore(0), []

    def blocks():
        for number, at in enumerate(range(0, 40_000, 1000)):
            if number:
                assert told.acquire(timeout=60)  # the kernel of the block before is through
            given.append(at)
            yield at, at + 1000

    def kernel(number, block):
        block *= 2
        told.release()

    report = stage.update(array, kernel, blocks=blocks(), fast=NODE, ahead=1, **how)
    assert (array == np.arange(40_000) * 2).all() and given == list(range(0, 40_000, 1000))
    assert report.blocks == 40 and report.staged == ("in_place" not in how)


@pytest.mark.parametrize("how", [{"threads": (1, 1)}, {"in_place": True}])
def test_what_the_blocks_raise_is_raised_and_late_overlaps_are_refused(how):
    def breaks():
        yield from ((at, at + 100) for at in range(0, 5000, 100))
        raise LookupError("no more of them")

    add = lambda _, block: np.add(block, 1, out=block)  # noqa: E731
    for blocks, error, what in [
        (breaks(), LookupError, "^'?no more of them'?$"),
        (((at, at + 100) for at in range(0, 20_000, 100)), ValueError,
            "block 100 is rows 10000 to 10100 of 10000"),
        (((at % 5000, at % 5000 + 100) for at in range(0, 20_000, 100)), terrace.TerraceError,
            "blocks 0 and 50 overlap"),
        (iter([(0, 10), "no range"]), ValueError, "unpack"),
    ]:
        array = np.zeros((10_000, 2))
        with pytest.raises(error, match=what):
            stage.update(array, add, blocks=blocks, fast=NODE, ahead=1, **how)
        assert all((block == block[0, 0]).all() and block[0, 0] in (0, 1)
            for block in array[100:].reshape(-1, 100, 2))
    for bad in ({"ahead": 0}, {"ahead": -1}):
        with pytest.raises(ValueError, match="ahead"):
            stage.update(array, add, blocks=10, fast=NODE, **bad)


def test_addresses_stay_where_they_are_asked_to():
    array = np.arange(1 << 20, dtype="f8")
    places = {}

    def kernel(number, block):
        places[number] = block.ctypes.data
        block += number

    told = stage.update(array, kernel, blocks=1 << 18, fast=NODE, threads=(1, 1),
        keep_addresses=True)
    assert places == {number: array.ctypes.data + (number << 21) for number in range(4)}
    assert (array == np.arange(1 << 20) + np.repeat(np.arange(4), 1 << 18)).all()
    assert told.staged and told.brought_bytes + told.stayed_bytes == array.nbytes
    assert told.brought_bytes == told.returned_bytes >= array.nbytes - 8 * 4096


def test_what_cannot_pay_runs_in_place_and_says_why():
    array = np.ones(1 << 20)
    addresses = set()
    kernel = lambda _, block: addresses.add(block.ctypes.data)  # noqa: E731
    told = stage.read(array, kernel, blocks=1 << 18, fast=NODE)
    assert not told.staged and "terrace probe" in told.why
    assert addresses == {array.ctypes.data + at * 8 for at in range(0, 1 << 20, 1 << 18)}
    told = stage.read(array, kernel, blocks=1 << 18, fast=0, slow=1, machine="lab-cxl", passes=1,
        threads=2)
    assert not told.staged and "passes" in told.why
    assert stage.read(array, kernel, blocks=1 << 18, fast=NODE,
        in_place=True).why == "it was asked for"


@pytest.mark.parametrize("how", [{"threads": (1, 1)}, {"in_place": True}])
def test_a_kernel_that_raises_ends_the_run_and_is_the_cause(how):
    array = np.zeros(40_000)

    def kernel(number, block):
        block[:] = number + 1
        if number == 3:
            raise LookupError("nothing here")

    with pytest.raises(terrace.TerraceError, match="block 3.*nothing here") as caught:
        stage.update(array, kernel, blocks=1000, fast=NODE, **how)
    assert isinstance(caught.value.__cause__, LookupError)
    assert "half done" in str(caught.value) if "in_place" in how else not array[3000:4000].any()
    for number, block in enumerate(array.reshape(40, 1000)):
        assert number == 3 or (block == number + 1).all() or not block.any()


def test_a_block_that_is_kept_stays_memory():
    array = np.arange(1 << 20, dtype="u8")
    kept = []
    stage.read(array, lambda _, block: kept.append(block[5:]), blocks=1 << 16, fast=NODE,
        threads=(1, 1), slots=2)
    assert len(kept) == 16 and all(int(block[0]) % 65536 == 5 for block in kept)
    assert len({block.ctypes.data for block in kept}) == 2


def test_an_interrupt_ends_the_run():
    array, seen = np.zeros(1 << 16), []

    def kernel(number, _):
        seen.append(number)
        time.sleep(0.02)

    # A shell has its background jobs ignore the signal, and Python leaves that so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            stage.update(array, kernel, blocks=64, fast=NODE, threads=(1, 1))
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert 0 < len(seen) < 1024


def test_bad_arguments_are_named():
    nothing = lambda _number, _block: None  # noqa: E731
    array = np.zeros((100, 10))
    for bad, what in [
        ({"array": array[:, :5]}, "one after the other"),
        ({"array": np.array([None])}, "plain bytes"),
        ({"blocks": 0}, "give 1"),
        ({"blocks": [(0, 101)]}, "rows 0 to 101"),
        ({"passes": float("nan")}, "passes"),
    ]:
        with pytest.raises(ValueError, match=what):
            stage.update(**{"array": array, "kernel": nothing, "blocks": 10, "fast": NODE, **bad})
    with pytest.raises(TypeError):
        stage.update([1, 2], nothing, blocks=1, fast=NODE)
    with pytest.raises(terrace.TerraceError, match="overlap"):
        stage.update(array, nothing, blocks=[(0, 10), (5, 15)], fast=NODE, threads=(1, 1))
    with pytest.raises(terrace.TerraceError, match="no threads"):
        stage.update(array, nothing, blocks=10, fast=NODE, threads=(0, 0))
    assert stage.update(np.zeros((0, 3)), nothing, blocks=10, fast=NODE, threads=(1, 1)).blocks == 0
    assert stage.update(np.zeros((5, 0)), nothing, blocks=2, fast=NODE, threads=(1, 1)).blocks == 3


def test_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"## Python.*?```python\n(.*?)```", GUIDE.read_text(), re.DOTALL).group(1)
    exec(code, {"NODE": NODE})
