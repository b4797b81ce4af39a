//! All measurements, interleaved, with the kernel's peers set up and taken down.

use serde_json::{json, Value};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const GROUP: &str = "/sys/fs/cgroup/memory/terrace-far-bench";
const CASES: &[&str] = &["seq-read", "seq-write", "stride-read", "stride-write", "random-read", "random-write", "fits"];

/// Peers: name, backing, and the swap that it needs.
const PEERS: &[(&str, &str, Option<&str>)] = &[
    ("far-file", "far-file", None),
    ("swap-file", "plain", Some("file")),
    ("mmap-file", "mmap-file", Some("none")),
    ("far-compressed", "far-compressed", None),
    ("zram", "plain", Some("zram")),
];

/// Something to undo, undone last first.
#[derive(Default)]
struct Undo(Vec<Vec<String>>);

impl Drop for Undo {
    fn drop(&mut self) {
        for words in self.0.iter().rev() {
            if let Err(error) = sh(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
                eprintln!("far-bench: not undone: {error}");
            }
        }
    }
}

fn sh(words: &[&str]) -> Result<String, String> {
    let out = Command::new(words[0]).args(&words[1..]).output().map_err(|e| format!("{}: {e}", words[0]))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim()))
}

fn write(path: &str, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{path}: {e}"))
}

/// A memory cgroup with a limit; as an error, why there is none.
fn group(dram: u64, undo: &mut Undo) -> Result<(), String> {
    std::fs::create_dir(GROUP).map_err(|e| format!("{GROUP}: {e} (memory cgroup v1, root)"))?;
    undo.0.push(vec!["rmdir".into(), GROUP.into()]);
    write(&format!("{GROUP}/memory.limit_in_bytes"), &(dram << 20).to_string())
}

/// Swap for one peer, as long as the value lives.
fn swap(kind: &str, folder: &Path, size: u64) -> Result<Undo, String> {
    let mut undo = Undo::default();
    let bytes = ((2 * size) << 20).to_string();
    match kind {
        "file" => {
            let path = folder.join(format!("swap-{}", std::process::id())).to_string_lossy().into_owned();
            undo.0.push(vec!["rm".into(), "-f".into(), path.clone()]);
            sh(&["dd", "if=/dev/zero", &format!("of={path}"), "bs=1M", &format!("count={}", 2 * size)])?;
            sh(&["chmod", "600", &path])?;
            sh(&["mkswap", &path])?;
            sh(&["swapon", &path])?;
            undo.0.push(vec!["swapoff".into(), path]);
        }
        "zram" => {
            let disk = "/sys/block/zram0";
            if std::fs::read_to_string(format!("{disk}/disksize")).map_err(|e| e.to_string())?.trim() != "0" {
                return Err("zram0 is in use".to_owned());
            }
            undo.0.push(vec!["sh".into(), "-c".into(), format!("echo 1 > {disk}/reset")]);
            write(&format!("{disk}/comp_algorithm"), "lz4")?;
            write(&format!("{disk}/disksize"), &bytes)?;
            sh(&["mkswap", "/dev/zram0"])?;
            sh(&["swapon", "/dev/zram0"])?;
            undo.0.push(vec!["swapoff".into(), "/dev/zram0".into()]);
        }
        _ => {}
    }
    Ok(undo)
}

fn measure(backing: &str, case: &str, size: u64, dram: u64, folder: &Path, grouped: bool) -> Result<Value, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?.to_string_lossy().into_owned();
    let enter = if grouped { format!("echo $$ > {GROUP}/cgroup.procs && ") } else { String::new() };
    let line = format!("{enter}exec \"$0\" \"$@\"");
    let (size, dram) = (size.to_string(), dram.to_string());
    let told = sh(&["sh", "-c", &line, &me, "work", backing, case, &size, &dram, &folder.to_string_lossy()])?;
    serde_json::from_str(&told).map_err(|e| format!("{told}: {e}"))
}

/// What the device does by itself.
#[derive(Clone, Copy, PartialEq)]
enum Alone {
    Read,
    Write,
    /// Reads as much as it writes, both at once, as a sweep that writes asks of it.
    Both,
}

/// The device's own speed, in bytes a second each way: 1 MiB at a time, past the page cache.
fn device(folder: &Path, size: u64, what: Alone) -> Result<f64, String> {
    let name = |n: u32| folder.join(format!("device-{}-{n}", std::process::id())).to_string_lossy().into_owned();
    let (read, written) = (name(0), name(1));
    let _undo = Undo(vec![vec!["rm".into(), "-f".into(), read.clone(), written.clone()]]);
    let count = format!("count={size}");
    for file in [&read, &written] {
        sh(&["dd", "if=/dev/urandom", &format!("of={file}"), "bs=1M", &count, "oflag=direct"])?;
    }
    let dd = |words: &[&str]| {
        let mut command = Command::new("dd");
        command.args(words).stderr(std::process::Stdio::null()).spawn().map_err(|e| format!("dd: {e}"))
    };
    let (from, to) = (format!("if={read}"), format!("of={written}"));
    let begin = Instant::now();
    let mut all = Vec::new();
    if what != Alone::Write {
        all.push(dd(&[&from, "of=/dev/null", "bs=1M", &count, "iflag=direct"])?);
    }
    if what != Alone::Read {
        // The file keeps its length and its blocks.
        all.push(dd(&["if=/dev/zero", &to, "bs=1M", &count, "oflag=direct", "conv=notrunc"])?);
    }
    for mut one in all {
        let status = one.wait().map_err(|e| format!("dd: {e}"))?;
        if !status.success() {
            return Err(format!("dd: {status}"));
        }
    }
    Ok((size << 20) as f64 / begin.elapsed().as_secs_f64())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Runs everything and prints a table, and JSON to a file when asked.
pub fn run(folder: &str, rest: &[&str]) -> Result<(), String> {
    let quick = rest.contains(&"--quick");
    let (size, dram, repeats) = if quick { (128, 64, 2) } else { (512, 256, 3) };
    let folder = Path::new(folder);
    let mut undo = Undo::default();
    let grouped = group(dram, &mut undo);
    if let Err(why) = &grouped {
        println!("skipped: the kernel's peers: {why}");
    }
    let only: Vec<&&str> = CASES.iter().filter(|c| !rest.contains(&"--only") || rest.contains(*c)).collect();
    let mut results: Vec<(String, String, Vec<f64>)> = Vec::new();
    let mut note = |peer: &str, case: &str, value: f64| match results.iter_mut().find(|r| r.0 == peer && r.1 == case) {
        Some(found) => found.2.push(value),
        None => results.push((peer.to_owned(), case.to_owned(), vec![value])),
    };
    let (mut log, begun, first_load) = (Vec::new(), Instant::now(), load());
    for repeat in 0..repeats {
        for (who, case, what) in [
            ("device", "seq-read", Alone::Read),
            ("device", "seq-write", Alone::Write),
            ("device-both", "seq-write", Alone::Both),
        ] {
            note(who, case, device(folder, size, what)?);
        }
        for case in &only {
            for (peer, backing, swapped) in PEERS {
                if swapped.is_some() && grouped.is_err() {
                    continue;
                }
                let (name, kind) = match (**case, *peer) {
                    ("fits", "swap-file") => ("plain", "none"),
                    ("fits", "zram" | "mmap-file" | "far-compressed") => continue,
                    _ => (*peer, swapped.unwrap_or("none")),
                };
                let swap = match swap(kind, folder, size) {
                    Ok(undo) => undo,
                    Err(why) => {
                        println!("skipped: {name}: {why}");
                        continue;
                    }
                };
                let group = swapped.is_some() && name != "plain";
                let result = measure(backing, case, size, dram, folder, group);
                drop(swap);
                let value = match result {
                    Ok(value) => value,
                    Err(why) => {
                        println!("skipped: {name}, {case}: {why}");
                        continue;
                    }
                };
                note(name, case, value["bytes_per_s"].as_f64().unwrap_or(f64::NAN));
                eprintln!("[{:4.0}s] {repeat} {name} {case} {}", begun.elapsed().as_secs_f64(), value["us_per_page"]);
                log.push(json!({"repeat": repeat, "peer": name, "case": case, "result": value}));
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{size} MiB in {dram} MiB, {repeats} interleaved repeats, load {first_load} to {}, {seconds:.0} s",
        load()
    );
    println!();
    table(&mut results);
    if let Some(at) = rest.iter().position(|a| *a == "--json") {
        let path = rest.get(at + 1).ok_or("--json FILE")?;
        let told = json!({"size_mib": size, "dram_mib": dram, "repeats": repeats, "load_before": first_load,
            "load_after": load(), "wall_seconds": seconds, "runs": log});
        std::fs::write(path, format!("{told:#}\n")).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

fn table(results: &mut [(String, String, Vec<f64>)]) {
    let spread = |values: &[f64]| {
        let (low, high) = values.iter().fold((f64::MAX, 0.0_f64), |(l, h), v| (l.min(*v), h.max(*v)));
        format!("{:.0} to {:.0}", low / 1e6, high / 1e6)
    };
    println!("| case | who | MB/s, median | spread | us a page |");
    println!("|---|---|---|---|---|");
    let mut medians = std::collections::HashMap::new();
    for (peer, case, values) in results.iter_mut() {
        let spread = spread(values);
        let m = median(values);
        medians.insert((peer.clone(), case.clone()), m);
        println!("| {case} | {peer} | {:.0} | {spread} | {:.2} |", m / 1e6, 4096e6 / m);
    }
    println!();
    println!("| ratio | {} |", CASES.join(" | "));
    println!("|---|{}", "---|".repeat(CASES.len()));
    for (a, b) in [
        ("far-file", "device"),
        ("far-file", "device-both"),
        ("far-file", "swap-file"),
        ("far-file", "mmap-file"),
        ("far-compressed", "zram"),
        ("far-file", "plain"),
    ] {
        let ratio = |case: &&str| {
            let get = |who: &str| medians.get(&(who.to_owned(), (*case).to_owned()));
            get(a).zip(get(b)).map_or("-".to_owned(), |(a, b)| format!("{:.2}", a / b))
        };
        println!("| {a} / {b} | {} |", CASES.iter().map(ratio).collect::<Vec<_>>().join(" | "));
    }
}
