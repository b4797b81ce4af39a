//! `terrace record`: real programs under the emulator. Each test needs qemu-user with plugins and a
//! C compiler, and says `skipped` without.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use terrace_terrace::trace::{AccessDescriptor, Block, BlockKind, EventKind, TraceReader};

/// The folder with the plugin and the programs, or why there is none. Made once.
fn parts() -> Option<&'static Path> {
    static PARTS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = PARTS.get_or_init(|| {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("record-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let help = Command::new("qemu-x86_64").arg("-h").output();
        if !help.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("-plugin")) {
            return Err("no qemu-x86_64 with plugins (package qemu-user of Debian 12)".into());
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let done = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
        if !done(Command::new(here.join("../../capture/build.sh")).arg(folder.join("plugin.so"))) {
            return Err("the plugin cannot be built: no C compiler".into());
        }
        let programs: [(&str, &str, &[&str]); 4] = [
            ("counted.S", "counted", &["-nostdlib", "-static"]),
            ("threads.c", "threads", &["-O1", "-static", "-pthread"]),
            ("chase.c", "chase", &["-O1"]),
            ("chase.c", "chase-static", &["-O1", "-static"]),
        ];
        for (source, program, flags) in programs {
            let source = here.join("tests/programs").join(source);
            if !done(Command::new("cc").args(flags).arg("-o").arg(folder.join(program)).arg(source))
            {
                return Err(format!("{program} cannot be built"));
            }
        }
        Ok(folder)
    });
    match made {
        Ok(folder) => Some(folder),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Records `command` into a file of this name.
fn record(folder: &Path, name: &str, flags: &[&str], command: &[&str]) -> (Output, PathBuf) {
    let file = folder.join(name).with_extension("trace");
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .env("TERRACE_CAPTURE_PLUGIN", folder.join("plugin.so"))
        .args(["record", "-o"])
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
struct Seen {
    process: u32,
    thread: u32,
    address: u64,
    size: u32,
    kind: AccessDescriptor,
    pc: u64,
    value: Vec<u8>,
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
        let mut values = block.values();
        for (i, kind) in block.kinds().iter().enumerate() {
            let size = block.size(i);
            let length = if kind.is_store() { values.len().min(size as usize) } else { 0 };
            let (value, rest) = values.split_at(length);
            values = rest;
            accesses.push(Seen {
                process: block.info().process,
                thread: block.info().thread,
                address: block.addresses()[i],
                size,
                kind: *kind,
                pc: block.pcs().get(i).copied().unwrap_or(0),
                value: value.to_vec(),
            });
        }
    }
    (accesses, events)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_that_knows_its_own_count_is_counted_exactly() {
    let Some(folder) = parts() else { return };
    let (output, file) = record(folder, "counted", &["--values", "--pc"], &["./counted"]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let (accesses, events) = read(&file);
    let mut sizes: BTreeMap<(bool, u32), u32> = BTreeMap::new();
    for a in &accesses {
        *sizes.entry((a.kind.is_store(), a.size)).or_default() += 1;
    }
    let expected = [((false, 1), 1000), ((false, 4), 1), ((false, 8), 2000)];
    let stores = [((true, 4), 1), ((true, 8), 1001), ((true, 16), 1000)];
    assert_eq!(sizes, expected.into_iter().chain(stores).collect());
    // addq counts: its last value is 1000, told by the third round's instruction as by the last.
    let counts: Vec<&Seen> =
        accesses.iter().filter(|a| a.kind.is_store() && a.pc == accesses[3].pc).collect();
    assert_eq!((counts.len(), counts[999].value.as_slice()), (1000, &1000u64.to_le_bytes()[..]));
    assert!(events.contains(&EventKind::ThreadExit), "{events:?}");

    let info = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["trace", "info", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!((info["loads"].as_u64(), info["stores"].as_u64()), (Some(3001), Some(2002)));
    // 6007 instructions at the nominal four a nanosecond.
    let seconds = info["seconds"].as_f64().unwrap();
    assert!((seconds - 6007.0 * 0.25e-9).abs() < 1e-15, "{seconds}");
}

#[test]
fn output_and_status_are_the_programs_own() {
    let Some(folder) = parts() else { return };
    let native = Command::new("./chase").current_dir(folder).output().unwrap();
    let (output, _) = record(folder, "own", &["--quiet"], &["./chase"]);
    assert_eq!((output.stdout, output.stderr), (native.stdout, native.stderr));
    let (output, _) = record(folder, "killed", &[], &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15), "{}", text(&output.stderr));
    let (output, _) = record(folder, "none", &[], &["no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(text(&output.stderr).lines().count(), 1);
}

#[test]
fn threads_and_forked_children_are_counted_exactly() {
    let Some(folder) = parts() else { return };
    let (output, file) = record(folder, "threads", &[], &["./threads"]);
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
        *(if a.kind.is_store() { &mut seen.1 } else { &mut seen.0 }) += 1;
        seen.2.insert((a.process, a.thread));
        if a.kind.is_store() {
            seen.3.insert((a.process, a.thread));
        }
    }
    for array in 0..4 {
        let (loads, stores, who, stored) = &by_array[&array];
        // Of the last array the parent reads one word at the end.
        let parents = u32::from(array == 3);
        assert_eq!((*loads, *stores), (51_200 + parents, 51_200), "array {array}");
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

#[test]
fn programs_that_are_started_by_the_program_are_recorded_too() {
    let Some(folder) = parts() else { return };
    let (output, file) =
        record(folder, "shell", &[], &["sh", "-c", "./counted; ./counted; echo $?; exit 3"]);
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
    let stores = accesses
        .iter()
        .filter(|a| a.kind.is_store() && a.size == 16 && a.address < 0x100_0000)
        .count();
    assert_eq!(stores, 2000);
}

#[test]
fn addresses_loaded_from_memory_are_distinguished() {
    let Some(folder) = parts() else { return };
    for (function, next, depends) in
        [("chase", "gather", 1), ("gather", "plain", 1), ("plain", "after", 0)]
    {
        let flags = ["--begin-at", function, "--end-at", next];
        let (output, file) = record(folder, function, &flags, &["./chase-static"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let (accesses, _) = read(&file);
        assert!((1000..2100).contains(&accesses.len()), "{function}: {} accesses", accesses.len());
        let dependent = accesses.iter().filter(|a| a.kind.depends() == 1).count();
        let expected = if depends == 1 { 990..=1010 } else { 0..=10 };
        assert!(
            expected.contains(&dependent),
            "{function}: {dependent} dependent of {}",
            accesses.len()
        );
    }
}

#[test]
fn filters_keep_what_they_say() {
    let Some(folder) = parts() else { return };
    let count = |name: &str, flags: &[&str]| {
        let (output, file) = record(folder, name, flags, &["./counted"]);
        assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
        read(&file).0
    };
    assert_eq!(count("period", &["--period", "10"]).len(), 501);
    let wide = count("wide", &["--sizes", "16..17"]);
    assert_eq!(wide.len(), 1000);
    let at = wide[0].address;
    let range = format!("{at:#x}..{:#x}", at + 1);
    assert_eq!(count("range", &["--addresses", &range]).len(), 1000);
    assert_eq!(count("first", &["--instructions", "..9"]).len(), 5);
    let (output, _) = record(folder, "wrong", &["--sizes", "9..2"], &["./counted"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_full_disk_stops_the_recording_and_not_the_program() {
    let Some(folder) = parts() else { return };
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .env("TERRACE_CAPTURE_PLUGIN", folder.join("plugin.so"))
        .args(["record", "-o", "/dev/full", "--", "./threads"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("0x"), "{}", text(&output.stdout));
    assert!(
        text(&output.stderr).contains("recording stopped early: cannot write the trace"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_is_missing_is_said_in_one_line_with_status_3() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("missing.trace");
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .env("PATH", folder)
        .args(["record", "-o"])
        .arg(&file)
        .args(["--", "true"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(3), 1), "{said}");
    assert!(said.contains("apt-get install") && said.contains("qemu-user"), "{said}");
    assert!(!file.exists());
}
