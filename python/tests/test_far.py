"""Arrays larger than their memory."""

import gc
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import terrace
from terrace import far

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "far.md"


def made(shape, dtype=float, **how):
    try:
        return far.empty(shape, dtype, **how)
    except terrace.TerraceError as error:
        if "userfaultfd" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("store", ["compressed", "folder", "both"])
def test_an_array_four_times_its_memory_keeps_its_values(store, tmp_path):
    store = {"compressed": "compressed", "folder": str(tmp_path),
        "both": f"{tmp_path}+compressed"}[store]
    array = made((2000, 2000), dram="8M", store=store)
    assert isinstance(array, np.ndarray) and not array[:10].any()
    array[...] = np.arange(4e6).reshape(2000, 2000)
    assert array.sum() == 4e6 * (4e6 - 1) / 2 and (array[1234]
        == np.arange(1234 * 2000, 1235 * 2000)).all()
    told = far.statistics(array)
    assert told["faults"] > 0 and told["read_bytes"] > 8 << 20 and told["written_bytes"] > 16 << 20
    assert told["resident_bytes"] <= 8 << 20 and told["lost_bytes"] == 0


def test_what_is_asked_of_a_view_is_done_to_that_view(tmp_path):
    array = made(4 << 20, "u8", dram=8 << 20, store=str(tmp_path))
    array[:] = np.arange(4 << 20)
    far.pin(array[:1000])
    far.prefetch(array[1 << 20 : (1 << 20) + 5000])
    far.advise(array[2 << 20 : 3 << 20], "discard")
    assert not array[2 << 20 : 3 << 20].any() and array[(2 << 20)
        - 1] == (2 << 20) - 1 and array[3 << 20] == 3 << 20
    # A view that runs backwards, of another dtype, covers the same bytes.
    far.advise(array[1 << 20 : 2 << 20].view("u4")[::-1], "discard")
    assert not array[1 << 20 : 2 << 20].any() and array[5] == 5
    far.flush(array)
    far.set_dram(array, "6M")
    assert far.statistics(array)["resident_bytes"] <= 8 << 20
    far.pin(array[:1000], on=False)


def test_a_file_is_an_array(tmp_path):
    path = tmp_path / "numbers"
    np.arange(2 << 20, dtype="u8").tofile(path)
    with path.open("ab") as file:
        file.write(b"end")
    try:
        array = far.open(path, "u8", dram="6M", mode="r+")
    except terrace.TerraceError as error:
        if "userfaultfd" in str(error):
            pytest.skip(str(error))
        raise
    assert array.shape == (2 << 20,) and (array == np.arange(2 << 20)).all()
    array[::1000] = 7
    array[-1] = 9
    far.flush(array)
    expected = np.arange(2 << 20, dtype="u8")
    expected[::1000] = 7
    expected[-1] = 9
    assert path.read_bytes() == expected.tobytes() + b"end"
    array[5] = 1
    del array
    gc.collect()
    expected[5] = 1
    assert path.read_bytes() == expected.tobytes() + b"end"
    read = far.open(path, "u4", dram="6M", shape=(1000, 1000))
    assert read.shape == (1000, 1000) and read[0, 10] == 1
    with pytest.raises(ValueError):
        read[0, 0] = 1
    with pytest.raises(ValueError, match="bytes of"):
        far.open(path, "u8", dram="6M", shape=3 << 20)
    with pytest.raises(terrace.TerraceError, match="none"):
        far.open(tmp_path / "none", dram="6M")
    with pytest.raises(ValueError, match="mode"):
        far.open(path, dram="6M", mode="w")


def test_what_cannot_be_is_said():
    with pytest.raises(terrace.TerraceError, match="at least"):
        made(1 << 24, "u1", dram=4096)
    with pytest.raises(terrace.TerraceError, match="2G"):
        far.empty(10, dram="much")
    with pytest.raises(terrace.TerraceError, match="no/such"):
        far.empty(10, dram="8M", store="/no/such/folder")
    with pytest.raises(ValueError, match="Python objects"):
        far.empty(10, object, dram="8M")
    with pytest.raises(TypeError, match="terrace.far.empty"):
        far.flush(np.zeros(10))
    array = made(1 << 20, dram="8M")
    with pytest.raises(terrace.TerraceError, match="discard"):
        far.advise(array, "burn")
    with pytest.raises(terrace.TerraceError, match="half"):
        far.pin(array)
    assert made((0, 5), dram="8M").shape == (0, 5)


def test_it_lives_as_long_as_a_view_and_threads_may_use_it():
    array = made((64, 1 << 16), dram="8M")
    wrong = []

    def use(row):
        row[:] = np.arange(len(row))
        wrong.extend([] if (row == np.arange(len(row))).all() else [1])

    threads = [threading.Thread(target=use, args=(array[n],)) for n in range(64)]
    for t in threads:
        t.start()
    last = array[63]
    for t in threads:
        t.join()
    del array, threads
    gc.collect()
    assert not wrong and last[-1] == (1 << 16) - 1


def test_the_guides_programs_run(tmp_path):
    programs = re.findall(r"\n```python\n(.*?)\n```", GUIDE.read_text(), re.S)
    assert programs
    for program in programs:
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
            timeout=120, cwd=tmp_path)
        assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr
