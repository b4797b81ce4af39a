//! Where test data lies, and comparison with golden files.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file or folder of `fixtures/`.
pub fn fixture(path: &str) -> PathBuf {
    workspace().join("fixtures").join(path)
}

/// Data of others that is kept outside the repository; `None`, said on the test's output, where it
/// is absent.
pub fn outside(path: &str) -> Option<PathBuf> {
    let named = std::env::var_os("TERRACE_SHARED_DATA").map(PathBuf::from);
    let beside = ["../shared/data", "../../shared/data"].map(|p| workspace().join(p));
    let found = named.into_iter().chain(beside).map(|p| p.join(path)).find(|p| p.exists());
    if found.is_none() {
        println!(
            "skipped: {path} is not there; set TERRACE_SHARED_DATA to the folder of outside data"
        );
    }
    found
}

/// Compares with `fixtures/golden/NAME`, or writes it where the environment has UPDATE.
pub fn golden(name: &str, got: &str) {
    let path = fixture("golden").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, got).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let want = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        got == want,
        "fixtures/golden/{name} differs. Got:\n{got}\nIf this is right, accept it with: \
         UPDATE=1 cargo test -p terrace-topology --test golden"
    );
}

/// A folder for one test, removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
