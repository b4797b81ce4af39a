"""The package against files of the repository and small simulations."""

import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import terrace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "formats"
TRACE = FIXTURES / "v1" / "trace.trace"
SMALL = "workload:skew,accesses=20k,size=4MiB,hot_size=1MiB"


def test_recordings_are_columns_and_structured_arrays():
    whole = terrace.recording(TRACE, times=True)
    array = whole.array()
    assert array.dtype == terrace.ACCESS and len(array) == len(whole) > 0
    for name in terrace.ACCESS.names:
        assert np.array_equal(array[name], whole.columns[name]), name
    assert len(whole.columns["time"]) == len(whole)
    assert set(np.unique(whole.pages())) == set(int(a) // 4096 for a in array["address"])
    assert array["store"].any() and not array["store"].all()


def test_recordings_are_arrow_tables(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    whole = terrace.recording(TRACE, times=True)
    table = whole.table()
    assert table.column_names == list(whole.columns) and len(table) == len(whole) > 0
    for name, column in whole.columns.items():
        assert np.array_equal(table[name].to_numpy(), column), name
    address = table["address"].chunk(0).buffers()[1]
    assert address.address == whole.columns["address"].ctypes.data, "no copy"
    assert table.schema.metadata[b"terrace.header"].decode() == whole.header
    parquet.write_table(table, tmp_path / "trace.parquet")
    assert parquet.read_table(tmp_path / "trace.parquet").equals(table)


def test_without_pyarrow_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"terrace\[arrow\]"):
        terrace.recording(TRACE).table()


def test_a_part_of_a_recording_is_the_same_part():
    whole = terrace.recording(TRACE).array()
    part = terrace.recording(TRACE, first=3, count=5).array()
    assert np.array_equal(part, whole[3:8])
    assert len(terrace.recording(TRACE, first=len(whole))) == 0
    with pytest.raises(ValueError):
        terrace.recording(TRACE, first=-1)


def test_damage_is_told_and_what_is_no_recording_is_an_error(tmp_path):
    good = (TRACE).read_bytes()
    cut = tmp_path / "cut.trace"
    cut.write_bytes(good[: len(good) - 20])
    assert terrace.recording(cut).damage
    other = tmp_path / "other"
    other.write_text("no trace")
    with pytest.raises(terrace.TerraceError, match="other"):
        terrace.recording(other)
    with pytest.raises(terrace.TerraceError, match="missing"):
        terrace.recording(tmp_path / "missing")


def test_predictions_are_rows_with_the_contracts_fields():
    answer = terrace.simulate("lab-cxl", SMALL, ["first-touch", "bound:all-fast"], sweep="fast=2%")
    assert [r["policy"] for r in answer.runs] == ["first-touch", "bound:all-fast"]
    assert answer.runs[1]["fast_access_share"] == 1.0 and answer.runs[1]["seconds"] > 0
    assert answer.runs[0]["accesses"] == 20_000 and answer.runs[0]["fast_bytes"] > 0
    frame = answer.frame()
    assert {"machine", "policy", "seconds", "fast_access_share"} <= set(frame.columns)
    assert list(frame["seconds"]) == [r["seconds"] for r in answer.runs]


def test_the_policy_of_the_guide_runs_and_beats_first_touch(capsys):
    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "policy.md"
    code = guide.read_text().split("```python\n")[1].split("```")[0]
    names = {}
    exec(compile(code, str(guide), "exec"), names)
    first, ours, own = (names["result"].runs[i] for i in (0, 2, 1))
    assert (first["policy"], ours["policy"]) == ("first-touch", "hottest_fit")
    assert own["policy"] == "terrace"
    assert ours["seconds"] < 0.95 * first["seconds"] and ours["promoted_pages"] > 500
    assert names["result"].notes == []
    assert "hottest_fit" in capsys.readouterr().out


def test_a_policy_is_shown_its_pages_and_what_it_does_wrong_is_raised():
    seen = []

    class Watcher:
        def __call__(self, snapshot):
            seen.append(snapshot)

    result = terrace.sim.run("lab-cxl", SMALL, Watcher(), beside=(), fast="2MiB")
    assert [run["policy"] for run in result.runs] == ["Watcher"]
    assert result.runs[0]["promoted_pages"] == 0 and seen
    last = seen[-1]
    assert last.page_bytes == 4096 and last.tiers[0].capacity_bytes > last.tiers[0].free_bytes
    assert sum(last.pages["pages"]) * 4096 >= 5 << 20, "the program's 5 MiB"
    assert set(last.pages["tier"]) == {0, 1} and len(last.on(1)) > 0

    def broken(snapshot):
        raise LookupError("no such idea")

    def nowhere(snapshot):
        return [(snapshot.pages[:1], 9)]

    def invented(snapshot):
        return [([1], 0)]

    with pytest.raises(LookupError, match="no such idea"):
        terrace.sim.run("lab-cxl", SMALL, broken)
    with pytest.raises(terrace.TerraceError, match="no tier 9"):
        terrace.sim.run("lab-cxl", SMALL, nowhere)
    with pytest.raises(terrace.TerraceError, match="cannot be moved"):
        terrace.sim.run("lab-cxl", SMALL, invented)
    with pytest.raises(ValueError, match="terrace"):
        terrace.sim.run("lab-cxl", SMALL, type("terrace", (), {"__call__": lambda self, s: None})())
    with pytest.raises(TypeError, match="function"):
        terrace.sim.run("lab-cxl", SMALL, 3)


def test_what_does_not_gain_is_said():
    notes = terrace.simulate("lab-cxl", SMALL, ["first-touch"]).notes
    assert any("everything fits" in note and "--sweep fast=" in note for note in notes), notes


def test_what_cannot_be_done_says_why():
    with pytest.raises(terrace.TerraceError, match="no-such"):
        terrace.simulate("lab-cxl", SMALL, ["no-such"])
    with pytest.raises(terrace.TerraceError, match="tracker"):
        terrace.simulate("lab-cxl", SMALL, tracker="no-such")
    with pytest.raises(terrace.TerraceError, match="lab-cxl"):
        terrace.simulate("no-machine", SMALL)
    with pytest.raises(TypeError):
        terrace.simulate("lab-cxl", SMALL, "terrace")
    assert "lab-cxl" in terrace.presets() and "hyplacer" in terrace.policies()


def test_sweeps_go_through_any_map_and_give_the_same():
    # Larger than the caches (4 MiB), and its hot set than 2% of the fast tier.
    program = "workload:skew,accesses=200k,size=12MiB,hot_size=3MiB"
    cases = terrace.cases(["lab-cxl"], [program], ["first-touch"], [2, 100])
    assert [c.fast_percent for c in cases] == [2, 100]
    assert pickle.loads(pickle.dumps(cases)) == cases
    here = terrace.sweep(cases)
    with ProcessPoolExecutor(2) as pool:
        there = terrace.sweep(cases, map=lambda f, all_cases: pool.map(f, all_cases))
    assert here == there
    assert here.runs[0]["seconds"] > 2 * here.runs[1]["seconds"]
    assert [r["fast_percent"] for r in here.runs] == [2, 100]


def test_systems_of_hosts_go_through_any_map_too():
    # Larger than the caches, so that it matters where memory lies.
    program = "workload:skew,accesses=200k,size=48MiB,hot_size=16MiB"
    cases = terrace.system_cases(["opal"], [program], ["local-first", "1:16"], [1, 2])
    assert [(c.policy, c.hosts) for c in cases][:2] == [("local-first", 1), ("local-first", 2)]
    assert pickle.loads(pickle.dumps(cases)) == cases
    here = terrace.sweep(cases)
    with ProcessPoolExecutor(2) as pool:
        there = terrace.sweep(cases, map=lambda f, all_cases: pool.map(f, all_cases))
    assert here == there
    alone, beside, pooled, crowded = (run["seconds"] for run in here.runs)
    # Hosts do not share their local memory; each has a seed of its own.
    assert beside == pytest.approx(alone, rel=0.01)
    assert pooled > 2 * alone and crowded > pooled
    assert len(here.runs[3]["run"]["hosts"]) == 2
    with pytest.raises(terrace.TerraceError, match="best"):
        terrace.predict(terrace.SystemCase("opal", (program,), "best"))


def test_journals_are_entries_and_frames(tmp_path):
    path = tmp_path / "run.jsonl"
    header = (
        '{"terrace_journal":1,"command":"./solver","policy":"terrace","page_size_bytes":4096,'
        '"tiers":[{"rank":0,"nodes":[0],"capacity_bytes":1048576}]}\n'
    )
    notes = "".join('{"entry":"note","at_ns":%d,"text":"n%d"}\n' % (i, i) for i in range(3))
    path.write_text(header + notes + '{"entry":"note","at_ns":9')
    read = terrace.journal(path)
    assert read.header["policy"] == "terrace" and read.skipped == 0
    assert [e["text"] for e in read.of("note")] == ["n0", "n1", "n2"]
    assert list(read.frame("note")["at_ns"]) == [0, 1, 2]
    assert "cut off" in read.problem
    path.write_text("{}")
    with pytest.raises(terrace.TerraceError, match="not a terrace journal"):
        terrace.journal(path)
