//! malloc + touch + free of 64 B by arenas and by others.
//!
//!     terrace-bench-alloc [--out FILE] [--rounds N] [--preload LIBRARY] [--only NAME,...]
//!     interleaved; medians terrace-bench-alloc --one NAME THREADS LIVE one, in this process
//!
//! Each measurement runs in a process of its own, with the peer's library loaded as a program
//! linked with it would have it; all go through the same loop and the same two function pointers.
//! Time is the CPU time of a thread, the slowest one's, so that what else runs on the machine does
//! not count; on an idle machine it is the time that passes, but for waiting at a peer's lock,
//! which does not count either. A process measures five times in a row and tells the least, which
//! is the one that others disturbed least; the figure is the median of the rounds.

mod moves;
mod peers;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::Barrier;

const SIZE: usize = 64;
const OPERATIONS: usize = 400_000;
const CHUNKS: usize = 5;

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds an operation takes: one block freed, one allocated and touched, `live` of them there
/// all the time.
fn chunk(peer: peers::Peer, live: &mut [*mut libc::c_void], operations: usize) -> f64 {
    let (alloc, free) = black_box((peer.alloc, peer.free));
    let mut at = 0;
    let start = thread_cpu_ns();
    for _ in 0..operations {
        // SAFETY: the slot holds a block of this peer's, the loop's alone; the new one has SIZE
        // bytes.
        unsafe {
            free(live[at]);
            let block = alloc(SIZE);
            block.cast::<u8>().write_volatile(1);
            live[at] = block;
        }
        at += 1;
        if at == live.len() {
            at = 0;
        }
    }
    (thread_cpu_ns() - start) as f64 / operations as f64
}

fn one(name: &str, threads: usize, live: usize) -> Result<Vec<f64>, String> {
    let peer = peers::peer(name)?;
    let barrier = Barrier::new(threads);
    let by_thread: Vec<Vec<f64>> = std::thread::scope(|s| {
        let work = || {
            (peer.begin)();
            // SAFETY: any size is right.
            let mut blocks: Vec<_> = (0..live).map(|_| unsafe { (peer.alloc)(SIZE) }).collect();
            assert!(blocks.iter().all(|b| !b.is_null()), "{name} gave no memory");
            chunk(peer, &mut blocks, OPERATIONS / 4);
            (0..CHUNKS)
                .map(|_| {
                    barrier.wait();
                    chunk(peer, &mut blocks, OPERATIONS)
                })
                .collect()
        };
        let started: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        started.into_iter().map(|t| t.join().expect("a measuring thread failed")).collect()
    });
    Ok((0..CHUNKS).map(|c| by_thread.iter().map(|t| t[c]).fold(0.0, f64::max)).collect())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn all(rounds: usize, preload: Option<&str>, only: Option<&str>) -> Result<String, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut found: BTreeMap<(usize, usize, &str), Vec<f64>> = BTreeMap::new();
    let mut skipped: BTreeMap<&str, String> = BTreeMap::new();
    for round in 0..rounds {
        for (threads, live) in [(1, 1), (1, 1000), (2, 1), (2, 1000)] {
            for (name, library) in peers::PEERS {
                if skipped.contains_key(name)
                    || only.is_some_and(|o| !o.split(',').any(|n| n == name))
                {
                    continue;
                }
                let library =
                    if name == "terrace-preload" { preload.or(Some("")) } else { library };
                let mut command = Command::new(&own);
                command.args(["--one", name, &threads.to_string(), &live.to_string()]);
                match library {
                    Some("") => {
                        skipped.insert(name, "no --preload LIBRARY given".into());
                        continue;
                    }
                    Some(library) => drop(command.env("LD_PRELOAD", library)),
                    None => drop(command.env_remove("LD_PRELOAD")),
                }
                let output = command.output().map_err(|e| e.to_string())?;
                let said = String::from_utf8_lossy(&output.stderr);
                if !output.status.success() || said.contains("cannot be preloaded") {
                    let why = said.lines().last().unwrap_or("it said nothing").to_owned();
                    eprintln!("skipped: {name}: {why}");
                    skipped.insert(name, why);
                    continue;
                }
                let text = String::from_utf8_lossy(&output.stdout);
                let values = text.split_whitespace().filter_map(|v| v.parse::<f64>().ok());
                let least = values.fold(f64::INFINITY, f64::min);
                if least.is_finite() {
                    found.entry((threads, live, name)).or_default().push(least);
                }
            }
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    let mut json = String::from("{\"rows\":[");
    for (at, ((threads, live, name), values)) in found.iter_mut().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let ns = median(values);
        let _infallible = write!(
            json,
            "{comma}\n{{\"name\":\"{name}\",\"threads\":{threads},\"live\":{live},\"ns\":{ns:.2}}}"
        );
        println!("{name:24} {threads} threads {live:5} live {ns:8.2} ns");
    }
    json.push_str("\n],\"skipped\":{");
    for (at, (name, why)) in skipped.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let _infallible =
            write!(json, "{comma}\"{name}\":\"{}\"", why.replace(['"', '\\', '\n'], " "));
    }
    let moved =
        moves::compare(256 << 20, 5).unwrap_or_else(|why| format!("{{\"skipped\":\"{why}\"}}"));
    println!("move: {moved}");
    let _infallible = writeln!(json, "}},\n\"move\":{moved}}}");
    Ok(json)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--one", name, threads, live] = text[..] {
        let (Ok(threads), Ok(live)) = (threads.parse::<usize>(), live.parse::<usize>()) else {
            eprintln!("--one NAME THREADS LIVE: give two numbers");
            return ExitCode::from(2);
        };
        return match one(name, threads.max(1), live.max(1)) {
            Ok(values) => {
                values.iter().for_each(|v| println!("{v}"));
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    let after =
        |flag: &str| text.iter().position(|a| *a == flag).and_then(|at| text.get(at + 1)).copied();
    let rounds = after("--rounds").and_then(|r| r.parse().ok()).unwrap_or(7);
    match all(rounds, after("--preload"), after("--only")) {
        Ok(json) => {
            if let Some(path) = after("--out") {
                if let Err(e) = std::fs::write(path, json) {
                    eprintln!("{path}: {e}");
                    return ExitCode::FAILURE;
                }
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
