//! What tests of programs under the library share. Not each uses all of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library, built for this profile.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().and_then(Path::parent).unwrap();
        let library = folder.join("libterrace_preload.so");
        // Cargo builds it before these tests, but not always to the outer folder.
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "-p", "terrace-preload"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let built = build.status();
        assert!(library.is_file(), "{} is not there: {built:?}", library.display());
        library
    })
}

/// An empty folder for a test.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _fresh = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|o| o.status.success())
}

/// A script in a folder, with these variables and no plan but theirs.
pub fn run(folder: &Path, script: &str, environment: &[(&str, &Path)]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder).env("LC_ALL", "C").env_remove("TERRACE_ALLOC");
    command.envs(environment.iter().copied()).output().unwrap()
}

/// Compiles a program of this folder; `false`, and a word, without a compiler.
pub fn compile(folder: &Path, source: &str, out: &str, flags: &[&str]) -> bool {
    if !has("gcc") {
        println!("skipped: gcc is not installed");
        return false;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut command = Command::new("gcc");
    command.args(["-O1", "-o", out]).args(flags).arg(source).arg("-pthread").current_dir(folder);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    true
}

/// Runs a script without the library, with it, and with a plan that sends sizes to different
/// arenas.
pub fn same(name: &str, needs: &[&str], script: &str) {
    if let Some(missing) = needs.iter().find(|p| !has(p)) {
        return println!("skipped: {missing} is not installed");
    }
    let plan = folder(&format!("{name}-plan")).join("plan");
    let rules = "arena small limit 1M\narena large huge\nsize ..200 small\nsize 100K.. \
        large\nthread 1 small\n";
    std::fs::write(&plan, rules).unwrap();
    let plain = run(&folder(name), script, &[]);
    let ours = run(&folder(name), script, &[("LD_PRELOAD", library())]);
    let planned =
        run(&folder(name), script, &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", &plan)]);
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    assert!(!plain.stdout.is_empty());
    for other in [ours, planned] {
        assert_eq!(String::from_utf8_lossy(&plain.stdout), String::from_utf8_lossy(&other.stdout));
        assert_eq!(String::from_utf8_lossy(&plain.stderr), String::from_utf8_lossy(&other.stderr));
        assert_eq!(plain.status, other.status);
    }
}
