//! `terrace record --source hooks`: programs compiled with `capture/hooks/terrace-cc`. Each test
//! needs a C compiler, does what it does with gcc and with clang as far as they are there, and says
//! `skipped` without.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use terrace_terrace::trace::{Block, BlockKind, EventKind, TraceReader};

/// The folder with the runtime and `hooked-COMPILER`, and the compilers that were there. Made once.
fn parts() -> &'static (PathBuf, Vec<&'static str>) {
    static PARTS: OnceLock<(PathBuf, Vec<&'static str>)> = OnceLock::new();
    PARTS.get_or_init(|| {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hooks-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let there = |name: &&str| {
            Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success())
        };
        let compilers: Vec<&str> = ["gcc", "clang"].into_iter().filter(there).collect();
        if compilers.is_empty() {
            println!("skipped: neither gcc nor clang");
            return (folder, compilers);
        }
        let run = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(
                output.status.success(),
                "{command:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        run(Command::new(here.join("../../capture/hooks/build.sh"))
            .env("CC", compilers[0])
            .arg(&folder));
        for compiler in &compilers {
            run(Command::new(folder.join("terrace-cc"))
                .env("TERRACE_CC", compiler)
                .args(["-O3", "-mavx2", "-ffast-math", "-pthread", "-o"])
                .arg(folder.join(format!("hooked-{compiler}")))
                .arg(here.join("tests/programs/hooked.c")));
        }
        (folder, compilers)
    })
}

fn record(name: &str, flags: &[&str], program: &str) -> (Output, PathBuf) {
    let folder = &parts().0;
    let file = folder.join(format!("{name}.trace"));
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["record", "--source", "hooks", "-o"])
        .arg(&file)
        .args(flags)
        .args(["--", &format!("./{program}")])
        .current_dir(folder)
        .output()
        .unwrap();
    (output, file)
}

/// By array of the program: loads and bytes loaded, stores and bytes stored; and all events.
type ByArray = BTreeMap<u64, [u64; 4]>;

fn read(file: &Path, said: &[u8]) -> (ByArray, Vec<EventKind>) {
    let said = String::from_utf8_lossy(said).into_owned();
    let (start, length) = said.trim().split_once(' ').unwrap();
    let start = u64::from_str_radix(start.trim_start_matches("0x"), 16).unwrap();
    let length: u64 = length.parse().unwrap();
    let mut reader = TraceReader::open(BufReader::new(std::fs::File::open(file).unwrap())).unwrap();
    assert!(reader.is_finished() && reader.damage().is_none());
    let (mut by_array, mut events) = (ByArray::new(), Vec::new());
    let mut block = Block::new().unwrap();
    while reader.next_block(&mut block).unwrap() {
        events.extend(block.events().iter().map(|e| e.what.clone()));
        if block.info().kind != BlockKind::Accesses {
            continue;
        }
        for (i, (address, kind)) in block.addresses().iter().zip(block.kinds()).enumerate() {
            let Some(array) = address.checked_sub(start).map(|at| at / length).filter(|n| *n < 8)
            else {
                continue;
            };
            let counts = by_array.entry(array).or_default();
            let way = if kind.is_store() { 2 } else { 0 };
            counts[way] += 1;
            counts[way + 1] += u64::from(block.size(i));
        }
    }
    (by_array, events)
}

#[test]
fn a_program_that_knows_its_accesses_is_counted_exactly() {
    for compiler in &parts().1 {
        let (output, file) =
            record(&format!("counted-{compiler}"), &[], &format!("hooked-{compiler}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{compiler}: {said}");
        let (seen, events) = read(&file, &output.stdout);
        let is = |array: u64| seen.get(&array).copied().unwrap_or_default();
        // Sixteen of each width.
        assert_eq!(is(0), [64, 16 * 15, 64, 16 * 15], "{compiler}: widths");
        // 100 read-modify-writes, a comparison that succeeds, an atomic and a plain load.
        assert_eq!(is(1), [103, 413, 101, 408], "{compiler}: atomics");
        // Copied from twice, the second time all but a byte; in pieces of 64 where they lie so.
        assert_eq!((is(2)[0], is(2)[1]), (64 + 63 + 6, 4096 + 4095), "{compiler}: copied from");
        assert_eq!((is(3)[2], is(3)[3]), (64 + 64 + 6 + 63, 3 * 4096 - 1), "{compiler}: copied to");
        // However wide the vectors.
        assert_eq!((is(4)[1], is(4)[3]), (4096, 0), "{compiler}: vectors");
        assert_eq!(is(5), [15_000; 4], "{compiler}: threads");
        assert_eq!(is(6), [0, 0, 1000, 1000], "{compiler}: child");
        assert_eq!(is(7)[1], 2 * 1024, "{compiler}: compared");
        assert!(events.contains(&EventKind::Fork { parent: 0 }), "{compiler}");
        assert_eq!(
            events.iter().filter(|e| matches!(e, EventKind::ThreadStart { .. })).count(),
            5,
            "{compiler}"
        );
        let maps = events
            .iter()
            .filter(|e| matches!(e, EventKind::Map { name, .. } if name.contains("hooked")))
            .count();
        assert!(maps > 0, "{compiler}: the program's own mappings have names");
    }
}

#[test]
fn a_fortran_program_is_counted_exactly() {
    let (folder, compilers) = parts();
    let there =
        Command::new("gfortran").arg("--version").output().is_ok_and(|o| o.status.success());
    if !there || compilers.is_empty() {
        println!("skipped: no gfortran, or no C compiler for the runtime");
        return;
    }
    let output = Command::new(folder.join("terrace-cc"))
        .env("TERRACE_CC", "gfortran")
        .args(["-O2", "-o"])
        .arg(folder.join("hooked-gfortran"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hooked.f90"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (output, file) = record("counted-gfortran", &[], "hooked-gfortran");
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let (seen, _) = read(&file, &output.stdout);
    // The first is filled and read, the second filled from it and read.
    assert_eq!(seen, ByArray::from([(0, [1000, 8000, 1000, 8000]), (1, [1000, 8000, 1000, 8000])]));
}

#[test]
fn without_a_recorder_it_runs_plainly_and_with_one_its_output_is_its_own() {
    for compiler in &parts().1 {
        let program = parts().0.join(format!("hooked-{compiler}"));
        let alone = Command::new(&program).output().unwrap();
        assert_eq!((alone.status.code(), alone.stderr.len()), (Some(7), 0), "{compiler}");
        let lost = Command::new(&program).env("TERRACE_HOOKS_AREA", "/nowhere").output().unwrap();
        assert_eq!(lost.status.code(), Some(7), "{compiler}");
        assert!(
            String::from_utf8_lossy(&lost.stderr).contains("not recorded: /nowhere"),
            "{compiler}"
        );
        let (output, _) =
            record(&format!("quiet-{compiler}"), &["--quiet"], &format!("hooked-{compiler}"));
        assert_eq!((output.status.code(), output.stderr.len()), (Some(7), 0), "{compiler}");
    }
}

#[test]
fn a_function_bounds_the_recording_and_objects_have_names() {
    for compiler in &parts().1 {
        let program = format!("hooked-{compiler}");
        let (output, file) = record(
            &format!("bounded-{compiler}"),
            &["--begin-at", "atomics", "--end-at", "sum"],
            &program,
        );
        let (seen, _) = read(&file, &output.stdout);
        let arrays: Vec<u64> = seen.keys().copied().collect();
        assert_eq!(arrays, [1, 2, 3], "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
        let (output, file) =
            record(&format!("objects-{compiler}"), &["--objects", "65536"], &program);
        let (_, events) = read(&file, &output.stdout);
        let names: Vec<&str> = events
            .iter()
            .filter_map(|e| match e {
                EventKind::Object { length, name, .. } if *length >= 100_000 => Some(name.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(names.len(), 2, "{compiler}: made and gone: {names:?}");
        assert!(names[0].starts_with("main+0x") && names[1].is_empty(), "{compiler}: {names:?}");
    }
}

#[test]
fn filters_hold_and_a_program_without_hooks_is_said_to_have_none() {
    for compiler in &parts().1 {
        let program = format!("hooked-{compiler}");
        let (output, file) = record(&format!("sizes-{compiler}"), &["--sizes", "2..3"], &program);
        assert_eq!(read(&file, &output.stdout).0[&0], [16, 32, 16, 32], "{compiler}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["record", "--source", "hooks", "-o"])
        .arg(parts().0.join("none.trace"))
        .args(["--", "sh", "-c", "exit 4"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("terrace-cc"));
    let refused = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["record", "--source", "hooks", "--values", "--", "true"])
        .current_dir(&parts().0)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(3));
}

#[test]
fn a_thread_that_the_programs_exit_ends_makes_the_recording_incomplete() {
    let (folder, compilers) = parts();
    for compiler in compilers {
        let source = folder.join("late.c");
        let code = "#include <pthread.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
            static volatile long word;\n\
            static void *work(void *p) { for (;;) word++; return p; }\n\
            int main(void) \
            { pthread_t t; pthread_create(&t, 0, work, 0); usleep(50000); exit(3); }\n";
        std::fs::write(&source, code).unwrap();
        let program = format!("late-{compiler}");
        let built = Command::new(folder.join("terrace-cc"))
            .env("TERRACE_CC", compiler)
            .args(["-O1", "-pthread", "-o"])
            .arg(folder.join(&program))
            .arg(&source)
            .status();
        assert!(built.unwrap().success(), "{compiler}");
        let (output, file) = record(&program, &[], &program);
        assert_eq!(output.status.code(), Some(3), "{compiler}");
        let reader = TraceReader::open(BufReader::new(std::fs::File::open(file).unwrap())).unwrap();
        assert!(reader.is_finished() && !reader.is_complete(), "{compiler}");
        let missing = reader.omissions().join("\n");
        assert!(missing.contains("before they handed over"), "{compiler}: {missing}");
    }
}
