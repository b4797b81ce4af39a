//! `terrace record --source translated`: real programs in the translator, held against what they
//! know of themselves and against the emulator. Each test needs a C compiler and a cargo that can
//! fetch the translator's one dependency, and says `skipped` without.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod compiled;

use compiled::{done, folder_with, or_skip, own_programs, text, TRANSLATOR};
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use terrace_terrace::trace::{Block, BlockKind, EventKind, TraceReader};

/// The folder with the translator and the programs, or why there is none. Made once.
fn parts() -> Option<&'static Path> {
    static PARTS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    or_skip(PARTS.get_or_init(|| {
        let alone: &[&str] =
            &["-nostdlib", "-static", "-no-pie", "-O2", "-fno-builtin", "-fno-stack-protector"];
        let programs: [(&str, &str, &[&str]); 9] = [
            ("counted.S", "counted", &["-nostdlib", "-static"]),
            ("instructions.c", "instructions", alone),
            ("threads.c", "threads", &["-O1", "-static", "-pthread"]),
            ("threads.c", "threads-dynamic", &["-O1", "-pthread"]),
            ("chase.c", "chase", &["-O1"]),
            ("chase.c", "chase-static", &["-O1", "-static"]),
            ("signals.c", "signals", &["-O1", "-pthread"]),
            ("made.c", "made", &["-O1"]),
            ("gathers.c", "gathers", &["-O1"]),
        ];
        let folder = folder_with("translated", own_programs(&programs))?;
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../capture/build.sh");
        done(Command::new(build).arg(folder.join("plugin.so")))?;
        Ok(folder)
    }))
}

/// Records `command` into a file of this name.
fn record(
    folder: &Path,
    source: &str,
    name: &str,
    flags: &[&str],
    command: &[&str],
) -> (Output, PathBuf) {
    let file = folder.join(name).with_extension("trace");
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .env("TERRACE_TRANSLATOR", folder.join(TRANSLATOR))
        .env("TERRACE_CAPTURE_PLUGIN", folder.join("plugin.so"))
        .args(["record", "--source", source, "-o"])
        .arg(&file)
        .args(flags)
        .arg("--")
        .args(command)
        .current_dir(folder)
        .output()
        .expect("terrace starts");
    (output, file)
}

/// An access as tests look at it.
#[derive(Clone, Copy)]
struct Seen {
    process: u32,
    thread: u32,
    address: u64,
    size: u32,
    store: bool,
    depends: u8,
    pc: u64,
}

fn read(file: &Path) -> (Vec<Seen>, Vec<EventKind>) {
    let mut reader = TraceReader::open(BufReader::new(std::fs::File::open(file).unwrap())).unwrap();
    assert!(reader.is_finished() && reader.damage().is_none());
    let (mut accesses, mut events) = (Vec::new(), Vec::new());
    let mut block = Block::new().unwrap();
    while reader.next_block(&mut block).unwrap() {
        events.extend(block.events().iter().map(|e| e.what.clone()));
        if block.info().kind != BlockKind::Accesses {
            continue;
        }
        for (i, kind) in block.kinds().iter().enumerate() {
            accesses.push(Seen {
                process: block.info().process,
                thread: block.info().thread,
                address: block.addresses()[i],
                size: block.size(i),
                store: kind.is_store(),
                depends: kind.depends(),
                pc: block.pcs().get(i).copied().unwrap_or(0),
            });
        }
    }
    (accesses, events)
}

/// Loads, stores, and instructions at the nominal four a nanosecond.
fn totals(file: &Path) -> (u64, u64, u64) {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["trace", "info", "--json"])
        .arg(file)
        .output()
        .unwrap();
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let instructions = (info["seconds"].as_f64().unwrap() * 4e9).round() as u64;
    (info["loads"].as_u64().unwrap(), info["stores"].as_u64().unwrap(), instructions)
}

#[test]
fn a_program_that_knows_its_own_count_is_counted_exactly() {
    let Some(folder) = parts() else { return };
    let (output, file) = record(folder, "translated", "counted", &["--pc"], &["./counted"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let (accesses, events) = read(&file);
    let mut sizes: BTreeMap<(bool, u32), u32> = BTreeMap::new();
    for a in &accesses {
        *sizes.entry((a.store, a.size)).or_default() += 1;
    }
    let expected = [((false, 1), 1000), ((false, 4), 1), ((false, 8), 2000)];
    let stores = [((true, 4), 1), ((true, 8), 1001), ((true, 16), 1000)];
    assert_eq!(sizes, expected.into_iter().chain(stores).collect());
    assert!(events.contains(&EventKind::ThreadExit), "{events:?}");
    assert_eq!(totals(&file), (3001, 2002, 6007));
}

#[test]
fn what_the_emulator_sees_is_seen_alike() {
    let Some(folder) = parts() else { return };
    let native = Command::new("./instructions").current_dir(folder).output().unwrap().status.code();
    let (output, ours) = record(folder, "translated", "ours", &["--pc"], &["./instructions"]);
    assert_eq!(output.status.code(), native, "{}", text(&output.stderr));
    let (output, theirs) = record(folder, "full", "theirs", &["--pc"], &["./instructions"]);
    if output.status.code() == Some(3) {
        println!("skipped: {}", text(&output.stderr));
        return;
    }
    assert_eq!(totals(&ours), totals(&theirs));
    // The stack lies elsewhere; all else of the program does not move. The two loads of a
    // comparison of strings come in either order.
    let reported = |file: &Path| {
        let mut all: Vec<_> = read(file).0;
        let mut at = 1;
        while at < all.len() {
            let (a, b) = (all[at - 1], all[at]);
            if a.pc == b.pc && !a.store && !b.store && a.address > b.address {
                all.swap(at - 1, at);
                at += 1;
            }
            at += 1;
        }
        let place = |a: &Seen| if a.address < 1 << 32 { a.address } else { 0 };
        all.iter().map(|a| (a.pc, a.store, a.size, place(a), a.depends)).collect::<Vec<_>>()
    };
    let (ours, theirs) = (reported(&ours), reported(&theirs));
    assert!(ours.len() > 10_000);
    let differs =
        ours.iter().zip(&theirs).position(|(a, b)| (a.0, a.1, a.2, a.3) != (b.0, b.1, b.2, b.3));
    assert_eq!(differs.map(|i| (i, ours[i], theirs[i])), None);
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn output_and_status_are_the_programs_own() {
    let Some(folder) = parts() else { return };
    let native = Command::new("./chase").current_dir(folder).output().unwrap();
    let (output, _) = record(folder, "translated", "own", &["--quiet"], &["./chase"]);
    assert_eq!((output.stdout, output.stderr), (native.stdout, native.stderr));
    let (output, _) = record(folder, "translated", "killed", &[], &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15), "{}", text(&output.stderr));
    let (output, _) = record(folder, "translated", "none", &[], &["no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
}

#[test]
fn threads_and_forked_children_are_counted_exactly() {
    let Some(folder) = parts() else { return };
    for program in ["./threads", "./threads-dynamic"] {
        let (output, file) = record(folder, "translated", "threads", &[], &[program]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        let (start, length) = said.trim().split_once(' ').unwrap();
        let start = u64::from_str_radix(start.trim_start_matches("0x"), 16).unwrap();
        let length: u64 = length.parse().unwrap();
        let (accesses, events) = read(&file);
        // By array: loads, stores, the processes and threads that made either, and those that made
        // stores.
        type Uses = (u32, u32, BTreeSet<(u32, u32)>, BTreeSet<(u32, u32)>);
        let mut by_array: BTreeMap<u64, Uses> = BTreeMap::new();
        for a in accesses.iter().filter(|a| a.address >= start && a.address < start + 4 * length) {
            let seen = by_array.entry((a.address - start) / length).or_default();
            *(if a.store { &mut seen.1 } else { &mut seen.0 }) += 1;
            seen.2.insert((a.process, a.thread));
            if a.store {
                seen.3.insert((a.process, a.thread));
            }
        }
        for array in 0..4 {
            let (loads, stores, who, stored) = &by_array[&array];
            // Of the last array the parent reads one word at the end.
            let parents = u32::from(array == 3);
            assert_eq!((*loads, *stores), (51_200 + parents, 51_200), "{program}, array {array}");
            assert_eq!(who.len(), 1 + parents as usize, "array {array}: {who:?}");
            let processes: Vec<u32> = stored.iter().map(|(process, _)| *process).collect();
            assert_eq!(
                processes,
                [u32::from(array == 3)],
                "array {array}: the child is a process of its own"
            );
        }
        assert!(events.contains(&EventKind::Fork { parent: 0 }), "{events:?}");
        assert_eq!(events.iter().filter(|e| matches!(e, EventKind::ThreadStart { .. })).count(), 5);
    }
}

#[test]
fn programs_that_are_started_by_the_program_are_recorded_too() {
    let Some(folder) = parts() else { return };
    let command = ["sh", "-c", "./counted; ./counted; echo $?; exit 3"];
    let (output, file) = record(folder, "translated", "shell", &[], &command);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(3), "5\n"),
        "{}",
        text(&output.stderr)
    );
    let (accesses, events) = read(&file);
    let runs = events
        .iter()
        .filter(|e| matches!(e, EventKind::Exec { name } if name.ends_with("counted")))
        .count();
    assert_eq!(runs, 2, "{events:?}");
    // Only that program stores 16 bytes at an address below its end.
    let stores =
        accesses.iter().filter(|a| a.store && a.size == 16 && a.address < 0x100_0000).count();
    assert_eq!(stores, 2000);
}

#[test]
fn signals_come_as_they_do_without_a_translator() {
    let Some(folder) = parts() else { return };
    let native = Command::new("./signals").current_dir(folder).output().unwrap();
    assert_eq!(native.status.code(), Some(4), "{}", text(&native.stderr));
    for round in 0..3 {
        let (output, _) = record(folder, "translated", "signals", &["--quiet"], &["./signals"]);
        assert_eq!(
            text(&output.stdout),
            text(&native.stdout),
            "round {round}: {}",
            text(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(4));
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn recording_begins_and_ends_at_functions_and_knows_dependence() {
    let Some(folder) = parts() else { return };
    for (function, next, depends) in
        [("chase", "gather", 1), ("gather", "plain", 1), ("plain", "after", 0)]
    {
        for program in ["./chase-static", "./chase"] {
            let flags = ["--begin-at", function, "--end-at", next];
            let (output, file) = record(folder, "translated", function, &flags, &[program]);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let (accesses, _) = read(&file);
            assert!(
                (1000..2100).contains(&accesses.len()),
                "{program} {function}: {} accesses",
                accesses.len()
            );
            let dependent = accesses.iter().filter(|a| a.depends == 1).count();
            let expected = if depends == 1 { 990..=1010 } else { 0..=10 };
            assert!(
                expected.contains(&dependent),
                "{function}: {dependent} dependent of {}",
                accesses.len()
            );
        }
    }
}

#[test]
fn a_full_disk_stops_the_recording_and_not_the_program() {
    let Some(folder) = parts() else { return };
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .env("TERRACE_TRANSLATOR", folder.join(TRANSLATOR))
        .args(["record", "--source", "translated", "-o", "/dev/full", "--", "./threads"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("0x"), "{}", text(&output.stdout));
    let said = text(&output.stderr);
    assert!(said.contains("recording stopped early: cannot write the trace"), "{said}");
}

#[test]
fn generated_code_is_followed_or_refused() {
    let Some(folder) = parts() else { return };
    let expected = "40\n41\n42\n43\n44\n";
    let (output, _) = record(folder, "translated", "made", &["--quiet"], &["./made"]);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), (expected, Some(6)));
    assert_eq!(text(&output.stderr), "");
    let (output, _) = record(folder, "translated", "writable", &[], &["./made", "writable"]);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), (expected, Some(6)));
    let said = text(&output.stderr);
    assert!(said.contains("goes on unrecorded") && said.contains("not whole"), "{said}");
}

#[test]
fn gathers_are_recorded_element_by_element() {
    let Some(folder) = parts() else { return };
    let (output, file) = record(folder, "translated", "gathers", &["--pc"], &["./gathers"]);
    if output.status.code() == Some(3) {
        println!("skipped: no AVX2 here");
        return;
    }
    let said = text(&output.stdout);
    let at: Vec<u64> = said
        .split_whitespace()
        .map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).unwrap())
        .collect();
    let (accesses, _) = read(&file);
    let within = |start: u64, size: u32| -> Vec<u64> {
        let all = accesses
            .iter()
            .filter(|a| !a.store && (start..start + 64 * u64::from(size)).contains(&a.address));
        all.inspect(|a| assert_eq!(a.size, size))
            .map(|a| (a.address - start) / u64::from(size))
            .collect()
    };
    assert_eq!(within(at[0], 8), [0, 10, 30]);
    assert_eq!(within(at[1], 4), [10, 20, 30, 50]);
}
