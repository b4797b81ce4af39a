"""Regions of programs, with the tool's side played by the test; and results as frames."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import terrace
from terrace import crash

PROGRAM = """
import numpy as np, terrace
x, table = np.arange(10.0), np.ones((3, 4), dtype="f4")
with terrace.crash.region({"x": x}, readonly={"table": table}) as region:
    for it in region.iterations(6):
        x += it
        region.write_back(x)
        region.flush(x)
print(x.sum(), region.done)
"""


def run(folder, **environment):
    command, environment = [sys.executable, "-c", PROGRAM], {**os.environ, **environment}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


def test_a_program_restarts_from_an_image_and_counts_on(tmp_path):
    alone = run(tmp_path)
    assert alone.stdout == f"{45.0 + 10 * 21} 6\n", alone.stderr
    files = {n: str(tmp_path / n) for n in ("region", "result")}
    told = run(tmp_path, **{f"TERRACE_CRASH_{n.upper()}": path for n, path in files.items()})
    assert told.returncode == 0 and (tmp_path / "result").read_text() == "6\n"
    region = (tmp_path / "region").read_bytes()
    assert struct.unpack_from("<8sQQ", region) == (b"TERRCRR1", 3, 0)
    kinds = [struct.unpack_from("<II", region, 24 + 88 * i) for i in range(3)]
    assert kinds == [(1, 8), (3, 4), (2, 8)] and len(region) == 24 + 3 * 88 + 80 + 8
    # As if the crash had come behind iteration 4, and x were lost but for its first element.
    x = np.zeros(10)
    x[0] = 100
    image = b"TERRCRI1" + region[8 : 24 + 3 * 88] + x.tobytes() + struct.pack("<q", 4)
    (tmp_path / "image").write_bytes(image)
    restarted = run(tmp_path, TERRACE_CRASH_IMAGE=str(tmp_path / "image"))
    assert restarted.stdout == f"{100.0 + 10 * 11} 6\n", restarted.stderr
    larger = image.replace(struct.pack("<Q", 80), struct.pack("<Q", 88), 1)
    for bad in (image[:40], image[:-1], larger):
        (tmp_path / "image").write_bytes(bad)
        refused = run(tmp_path, TERRACE_CRASH_IMAGE=str(tmp_path / "image"))
        assert refused.returncode == 122 and "the image" in refused.stdout


def test_arrays_that_are_in_pieces_are_refused():
    with pytest.raises(terrace.TerraceError, match="y: not one piece of memory"):
        crash.region({"y": np.zeros((4, 4))[:, ::2]})


def test_studies_are_frames(tmp_path):
    pytest.importorskip("pandas")
    crashes = [{"crash": n, "inconsistent_bytes": [n * 8, 0], "outcome": "wrong"} for n in range(3)]
    phases = [{"phase": 1, "share": 0.5, "inconsistent_rates": [0.1, 0.0]}]
    objects = [{"name": "x", "bytes": 80}, {"name": "done", "bytes": 8}]
    study = {"kind": "crash_study", "objects": objects, "results": crashes, "phases": phases}
    path = tmp_path / "studies.json"
    path.write_text(json.dumps(study) + "\n" + json.dumps(study, indent=1) + "\n")
    first, second = crash.studies(path)
    assert first == second
    assert list(first.frame()["rate_x"]) == [0.0, 0.1, 0.2]
    assert list(first.frame()["outcome"]) == ["wrong"] * 3
    assert list(first.frame("phases")["rate_x"]) == [0.1]
    path.write_text('{"kind": "other"}')
    with pytest.raises(terrace.TerraceError, match="no study"):
        crash.studies(path)
