//! `terrace trace import` from outside: what is refused leaves nothing behind, and samples are not
//! simulated as if they were all accesses.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("terrace-import-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn terrace(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
fn what_is_refused_leaves_no_file_and_names_the_line() {
    let folder = Folder::new("refused");
    fs::write(folder.0.join("x.txt"), "# a title\nnot a sample\n").unwrap();
    for from in ["perf", "lackey", "damo"] {
        let done = terrace(&folder.0, &["trace", "import", "x.txt", "--from", from]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("is not: ") && said.lines().count() == 1, "{said}");
        assert!(!folder.0.join("x.trace").exists(), "{from}");
    }
}

#[test]
fn samples_are_reported_as_such_and_not_simulated() {
    let folder = Folder::new("samples");
    let text = "monitoring_end: 50 ms\ntarget_id: 0\n1000-9000 ( 32.000 KiB)   3   9\n";
    fs::write(folder.0.join("x.txt"), text).unwrap();
    let done = terrace(&folder.0, &["trace", "import", "x.txt", "--from", "damo"]);
    assert!(done.status.success());
    assert!(String::from_utf8_lossy(&done.stdout).ends_with("not understood, samples\n"));
    let info = terrace(&folder.0, &["trace", "info", "x.trace", "--json"]);
    assert!(String::from_utf8_lossy(&info.stdout).contains("\"sampled\": true"));
    let run = ["sim", "--machine", "lab-cxl", "--policy", "first-touch", "x.trace"];
    let done = terrace(&folder.0, &run);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("samples, at a rate that is not known"), "{said}");
}

/// What samples of `perf record` hold is kept without perf's help.
#[test]
fn a_file_of_perf_record_is_recognized() {
    let outside = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/perf").join(name)
    };
    let (file, without) = (outside("weight_struct.data"), outside("throttle.data"));
    if !file.exists() || !without.exists() {
        println!("skipped: {} is not there", file.display());
        return;
    }
    let folder = Folder::new("perf-data");
    let import = |file: &Path| {
        terrace(&folder.0, &["trace", "import", &file.display().to_string(), "-o", "x.trace"])
    };
    let done = import(&file);
    let reported = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(reported.contains("14 samples of about 10009 events each; 0 lost"), "{reported}");
    let info = terrace(&folder.0, &["trace", "info", "x.trace"]);
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    assert!(info.contains("LFB: 5 samples, latency "), "{info}");
    let report = terrace(&folder.0, &["report", "x.trace"]);
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("pages seen") && report.contains("LFB: 5 samples"), "{report}");
    let done = import(&without);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("none of 14980 samples has a data address"), "{said}");
    let (bytes, cut) = (fs::read(&file).unwrap(), folder.0.join("cut.data"));
    fs::write(&cut, &bytes[..bytes.len() * 9 / 10]).unwrap();
    let done = import(&cut);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.contains("it was cut off"), "{said}");
    fs::write(folder.0.join("y.txt"), "whose?\n").unwrap();
    assert_eq!(terrace(&folder.0, &["trace", "import", "y.txt"]).status.code(), Some(2));
}

/// Page faults stand for a processor's events. `touch` has two callers, which the samples tell
/// apart, live and by perf's own recorder.
#[test]
fn samples_say_which_calls_led_to_them() {
    let folder = Folder::new("callers");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/callers.c");
    let cc = Command::new("cc")
        .args(["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"])
        .args([folder.0.join("callers"), source])
        .output();
    let symbols = Command::new("addr2line").arg("--version").output();
    if ![cc, symbols].iter().all(|done| done.as_ref().is_ok_and(|done| done.status.success())) {
        return println!("skipped: no C compiler, or no addr2line");
    }
    // Software events have type 1; 2 is a page fault.
    let event = "event=2,type=1,precise=0,operation=both,loads=1,stores=1";
    let live = ["record", "--source", "perf", "--callers", "--sampling", event, "-o", "x.trace"];
    let done = terrace(&folder.0, &[&live[..], &["./callers"]].concat());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.code() == Some(3) {
        return println!("skipped: {said}");
    }
    assert!(done.status.success(), "{said}");
    // Recording begins a moment after the program, and what it does between intervals is not seen.
    let [index, grid] = samples_by_caller(&folder.0, "x.trace");
    assert!(index > 0 && (2 * index..=4 * index).contains(&grid), "{index} and {grid}");
    let perf = Command::new("perf")
        .args(["record", "-q", "-e", "page-faults", "-c", "1", "-g", "-d", "-o", "y.data"])
        .arg("./callers")
        .current_dir(&folder.0)
        .output();
    if !perf.is_ok_and(|done| done.status.success()) {
        return println!("skipped in part: no perf");
    }
    assert!(terrace(&folder.0, &["trace", "import", "y.data"]).status.success());
    assert_eq!(samples_by_caller(&folder.0, "y.trace"), [120, 360]);
}

/// Samples of `touch` when `make_index` and `make_grid` called it.
fn samples_by_caller(folder: &Path, recording: &str) -> [u64; 2] {
    let done = terrace(folder, &["report", recording, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let paths = report["samples"]["calls"].as_array().unwrap();
    let calls = |path: &serde_json::Value, at: usize| {
        path["calls"].get(at).and_then(|call| call.as_str()).unwrap_or("").to_owned()
    };
    ["make_index ", "make_grid "].map(|caller| {
        let by = |path: &&serde_json::Value| {
            calls(path, 0).starts_with("touch ") && calls(path, 1).starts_with(caller)
        };
        paths.iter().filter(by).map(|path| path["samples"].as_u64().unwrap()).sum::<u64>()
    })
}
