//! Elements as the ranks of an MPI job: this test starts itself by `mpirun`.
#![cfg(feature = "mpi")]

mod common;

use common::{compile, run_at, RunOptions};
use std::path::Path;
use std::process::Command;
use terrace_sys::MpiWorld;
use terrace_xbgas::transport::MpiTransport;

const RANKS: u32 = 4;

/// Which program a rank runs.
const WORD: &str = "TERRACE_TEST_WORD";
const FILE: &str = "TERRACE_TEST_FILE";

fn start_ranks(file: &Path, word: &str) -> Option<(bool, String)> {
    let run = Command::new("mpirun")
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--timeout",
            "60",
            "-n",
            &RANKS.to_string(),
        ])
        .arg(std::env::current_exe().expect("a program"))
        .args(["--nocapture", "--exact", "four_ranks_run_a_program_and_end_together"])
        .env(WORD, word)
        .env(FILE, file)
        .output();
    let Ok(run) = run else {
        println!("skipped: mpirun is not installed");
        return None;
    };
    let text = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((run.status.success(), text.concat()))
}

#[test]
fn four_ranks_run_a_program_and_end_together() {
    if let Ok(word) = std::env::var(WORD) {
        let file = std::fs::read(std::env::var_os(FILE).expect("a path")).expect("a program");
        let world = MpiWorld::start().expect("MPI starts");
        let (end, printed) = run_at(&file, &[&word], &RunOptions::of(RANKS), MpiTransport(world));
        // One line, which other ranks' output does not cut.
        println!("<{:?} {}>", end.end.status(), printed.trim_end());
        return;
    }
    let Some(program) = compile("single.c", 2018) else { return };
    // Other tests compile the same program, so ranks read a file of their own.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("single-of-ranks");
    std::fs::write(&file, program).expect("written");
    let start_ranks = |word: &str| start_ranks(&file, word);
    let Some((succeeded, text)) = start_ranks("figure") else { return };
    assert!(succeeded, "{text}");
    assert_eq!(text.matches("<(0, None) 406>").count(), RANKS as usize, "{text}");
    let Some((_, text)) = start_ranks("exits") else { return };
    let line = "(3, Some(\"element 1 exited with status 3 while 3 others wait;";
    assert_eq!(text.matches(line).count(), RANKS as usize, "{text}");
}
