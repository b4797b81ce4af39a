//! All measurements, interleaved, with the kernel's peers set up and taken down.

use crate::peers::{group, load, measure, median, sh, swap, Undo};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use terrace_sys::{ChunkFrame, Ring, StoreFile, Transfer, TransferBuffer, TransferPiece};
use terrace_types::Seed;

const GROUP: &str = "/sys/fs/cgroup/memory/terrace-far-bench";
const CASES: &[&str] = &[
    "seq-read",
    "seq-write",
    "stride-read",
    "stride-write",
    "random-read",
    "random-write",
    THREADS,
    "fits",
];
/// Sixteen threads at random.
const THREADS: &str = "random-read-16";

/// Peers: name, backing, and the swap that it needs.
const PEERS: &[(&str, &str, Option<&str>)] = &[
    ("far-file", "far-file", None),
    ("swap-file", "plain", Some("file")),
    ("mmap-file", "mmap-file", Some("none")),
    ("far-compressed", "far-compressed", None),
    ("zram", "plain", Some("zram")),
];

/// Seconds after which a measurement is given up.
const LIMIT: u64 = 600;

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
    let name = |n: u32| {
        folder.join(format!("device-{}-{n}", std::process::id())).to_string_lossy().into_owned()
    };
    let (read, written) = (name(0), name(1));
    let _undo = Undo(vec![vec!["rm".into(), "-f".into(), read.clone(), written.clone()]]);
    let count = format!("count={size}");
    for file in [&read, &written] {
        sh(&["dd", "if=/dev/urandom", &format!("of={file}"), "bs=1M", &count, "oflag=direct"])?;
    }
    let dd = |words: &[&str]| {
        let mut command = Command::new("dd");
        command
            .args(words)
            .stderr(std::process::Stdio::null())
            .spawn()
            .map_err(|e| format!("dd: {e}"))
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

/// The device's own speed with pages at random, 32 of them at a time for a second, in bytes a
/// second.
fn device_at_random(folder: &Path, size: u64) -> Result<f64, String> {
    const AT_ONCE: usize = 32;
    let reported = |e: &dyn std::fmt::Display| e.to_string();
    let made = StoreFile::create(folder, size << 20).map_err(|e| reported(&e))?;
    // Blocks that were never written are read without the device.
    let content: Vec<u8> =
        (0..1_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut buffer = ChunkFrame::pool(AT_ONCE, 1 << 20).map_err(|e| reported(&e))?;
    let mut ring = Ring::new(AT_ONCE as u32, vec![made.file]).map_err(|e| reported(&e))?;
    let (mut seed, mut done, mut count) = (Seed(1), Vec::new(), 0_u64);
    buffer[0].bytes_mut().copy_from_slice(&content);
    let whole = Arc::new(buffer.remove(0));
    for n in 0..size {
        let pieces = vec![TransferPiece { file: 0, offset: n << 20, start: 0, len: 1 << 20 }];
        ring.begin(Transfer { tag: n, buffer: TransferBuffer::Send(Arc::clone(&whole)), pieces });
    }
    while ring.in_flight() > 0 {
        ring.submit()
            .and_then(|()| ring.wait(&[], None))
            .and_then(|_| ring.finished(&mut done))
            .map_err(|e| reported(&e))?;
    }
    done.clear();
    let begin = Instant::now();
    loop {
        let running = begin.elapsed().as_secs_f64() < 1.0;
        for slot in buffer.drain(..).filter(|_| running) {
            let (r, next) = seed.next();
            seed = next;
            let pieces = vec![TransferPiece {
                file: 0,
                offset: ((r >> 16) % (size << 8)) << 12,
                start: 0,
                len: 4096,
            }];
            ring.begin(Transfer { tag: 0, buffer: TransferBuffer::Fill(slot), pieces });
        }
        if ring.in_flight() == 0 {
            return Ok(count as f64 * 4096.0 / begin.elapsed().as_secs_f64());
        }
        ring.submit()
            .and_then(|()| ring.wait(&[], None))
            .and_then(|_| ring.finished(&mut done))
            .map_err(|e| reported(&e))?;
        for (transfer, errno) in done.drain(..) {
            count += 1;
            if errno != 0 {
                return Err(format!("reading at random: errno {errno}"));
            }
            if let TransferBuffer::Fill(slot) = transfer.buffer {
                buffer.push(slot);
            }
        }
    }
}

/// Runs everything and prints a table, and JSON to a file when asked.
pub fn run(folder: &str, rest: &[&str]) -> Result<(), String> {
    let quick = rest.contains(&"--quick");
    let (size, dram, repeats) = if quick { (128, 64, 2) } else { (512, 256, 3) };
    let folder = Path::new(folder);
    let mut undo = Undo::default();
    let grouped = group(GROUP, dram << 20, &mut undo);
    if let Err(why) = &grouped {
        println!("skipped: the kernel's peers: {why}");
    }
    let only: Vec<&&str> =
        CASES.iter().filter(|c| !rest.contains(&"--only") || rest.contains(*c)).collect();
    let mut results: Vec<(String, String, Vec<f64>)> = Vec::new();
    let mut note = |peer: &str, case: &str, value: f64| match results
        .iter_mut()
        .find(|r| r.0 == peer && r.1 == case)
    {
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
        note("device", THREADS, device_at_random(folder, size)?);
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
                let swap = match swap(kind, folder, 2 * size) {
                    Ok(undo) => undo,
                    Err(why) => {
                        println!("skipped: {name}: {why}");
                        continue;
                    }
                };
                let group = swapped.is_some() && name != "plain";
                let (size, dram) = (size.to_string(), dram.to_string());
                let args = ["work", backing, case, &size, &dram, &folder.to_string_lossy()];
                let result = measure(group.then_some(GROUP), LIMIT, &args);
                drop(swap);
                let value = match result {
                    Ok(value) => value,
                    Err(why) => {
                        println!("skipped: {name}, {case}: {why}");
                        continue;
                    }
                };
                note(name, case, value["bytes_per_s"].as_f64().unwrap_or(f64::NAN));
                if let Some(missed) = value["missed_bytes_per_s"]
                    .as_f64()
                    .filter(|_| name == "far-file" && **case == THREADS)
                {
                    note("far-file, misses", case, missed);
                }
                eprintln!(
                    "[{:4.0}s] {repeat} {name} {case} {}",
                    begun.elapsed().as_secs_f64(),
                    value["us_per_page"]
                );
                log.push(json!({"repeat": repeat, "peer": name, "case": case, "result": value}));
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{size} MiB in {dram} MiB, {repeats} interleaved repeats, load {first_load} to {}, \
            {seconds:.0} s",
        load()
    );
    println!();
    table(&mut results);
    if let Some(at) = rest.iter().position(|a| *a == "--json") {
        let path = rest.get(at + 1).ok_or("--json FILE")?;
        let reported = json!({"size_mib": size, "dram_mib": dram, "repeats": repeats,
                "load_before": first_load,
            "load_after": load(), "wall_seconds": seconds, "runs": log});
        std::fs::write(path, format!("{reported:#}\n")).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

fn table(results: &mut [(String, String, Vec<f64>)]) {
    let spread = |values: &[f64]| {
        let (low, high) =
            values.iter().fold((f64::MAX, 0.0_f64), |(l, h), v| (l.min(*v), h.max(*v)));
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
        ("far-file, misses", "device"),
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
