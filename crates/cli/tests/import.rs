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
    fs::write(folder.0.join("y.txt"), "whose?\n").unwrap();
    assert_eq!(terrace(&folder.0, &["trace", "import", "y.txt"]).status.code(), Some(2));
}
