//! All measurements, interleaved, with the kernel's swap set up and taken down.

use crate::kernel::OTHERS;
use crate::peers::{group, load, measure, sh, swap, Undo};
use crate::plan::{cells, round, Cell, FACTORS};
use serde_json::{json, Value};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

const GROUP: &str = "/sys/fs/cgroup/memory/terrace-far-study";
/// MiB that a process in the cgroup may have beside its data: code, stacks, blocks copied for the
/// caches. Far memory's processes have as much, which is not within its DRAM either.
const BESIDE: u64 = 12;
/// Peers: name and backing. The last one is the process in a cgroup.
const PEERS: &[(&str, &str)] = &[("plain", "plain"), ("far", "far-file"), ("swap", "plain")];

/// How much is measured.
struct Form {
    dram: u64,
    rounds: usize,
    /// Seconds: of one measurement, and after which no further round of a cell begins.
    limit: u64,
    budget: f64,
}

const QUICK: Form = Form { dram: 48, rounds: 3, limit: 25, budget: 460.0 };
const FULL: Form = Form { dram: 96, rounds: 3, limit: 60, budget: 1400.0 };

/// What was asked for.
struct Asked<'a> {
    form: Form,
    only: Vec<&'a str>,
    reported: &'a str,
}

fn asked<'a>(rest: &[&'a str]) -> Result<Asked<'a>, String> {
    let mut asked = Asked { form: FULL, only: Vec::new(), reported: "" };
    let mut words = rest.iter().copied();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word}: a value is missing"));
        match word {
            "--quick" => asked.form = QUICK,
            "--only" => asked.only = value()?.split(',').collect(),
            "--lines" => asked.reported = value()?,
            "--dram" => asked.form.dram = value()?.parse().map_err(|_| "--dram MIB".to_owned())?,
            "--seconds" => {
                asked.form.budget = value()?.parse().map_err(|_| "--seconds NUMBER".to_owned())?
            }
            other => return Err(format!("{other}: not known")),
        }
    }
    Ok(asked)
}

/// Runs all of it and adds a line of JSON for each measurement to a file.
pub fn run(folder: &str, rest: &[&str]) -> Result<(), String> {
    let Asked { form, only, reported } = asked(rest)?;
    let all = cells(OTHERS, &only);
    if all.is_empty() || reported.is_empty() {
        return Err(
            "drive FOLDER --lines FILE [--quick] [--only KERNEL,...] [--dram MIB] [--seconds N]"
                .to_owned(),
        );
    }
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(reported);
    let mut lines = opened.map_err(|e| format!("{reported}: {e}"))?;
    let mut undo = Undo::default();
    let folder = Path::new(folder);
    let most = FACTORS.iter().max().copied().unwrap_or(0) * form.dram / 1000;
    // Swap first: it is undone last, when nobody is in the cgroup any more.
    let ready = swap("file", folder, most + 64)
        .and_then(|swap| group(GROUP, (form.dram + BESIDE) << 20, &mut undo).map(|()| swap));
    if let Err(why) = &ready {
        println!("skipped: swap: {why}");
    }
    let (begun, before) = (Instant::now(), load());
    let mut took = vec![0.0; all.len()];
    let mut number = 0;
    while let Some(now) =
        round(&took, number, form.rounds, form.budget - begun.elapsed().as_secs_f64())
    {
        let mut ahead: f64 = now.iter().map(|n| took[*n]).sum();
        for n in now {
            let cell = &all[n];
            let since = Instant::now();
            let mut seen = Vec::new();
            for (peer, backing) in PEERS.iter().filter(|p| p.0 != "swap" || ready.is_ok()) {
                let line = one(&form, peer, backing, cell, folder);
                seen.push(format!(
                    "{peer} {}",
                    line["seconds"].as_f64().map_or("-".to_owned(), |s| format!("{s:.3}"))
                ));
                writeln!(lines, "{line}").map_err(|e| format!("{reported}: {e}"))?;
            }
            ahead -= took[n];
            took[n] = since.elapsed().as_secs_f64();
            let so_far = begun.elapsed().as_secs_f64();
            let left = if number == 0 {
                "first round".to_owned()
            } else {
                format!("{ahead:.0} s of this round left")
            };
            let factor = cell.factor as f64 / 1000.0;
            eprintln!(
                "[{so_far:4.0}s] {} {} x{factor}: {} s; {left}",
                number + 1,
                cell.kernel,
                seen.join(", ")
            );
        }
        number += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let end = json!({"load_before": before, "load_after": load(), "wall_seconds": seconds,
        "dram_mib": form.dram,
        "limit_s": form.limit, "beside_mib": BESIDE, "swap": ready.is_ok()});
    writeln!(lines, "{end}").map_err(|e| format!("{reported}: {e}"))
}

/// One measurement as a line of JSON; where there is none, `why`.
fn one(form: &Form, peer: &str, backing: &str, cell: &Cell, folder: &Path) -> Value {
    let (dram, factor) = (form.dram.to_string(), cell.factor.to_string());
    let args = ["work", backing, &cell.kernel, &factor, &dram, &folder.to_string_lossy()];
    let mut line =
        measure((peer == "swap").then_some(GROUP), form.limit, &args).unwrap_or_else(|why| {
            let why = match why {
                _ if why.contains("status: 124") => format!("longer than {} s", form.limit),
                _ if why.contains("SIGKILL") => {
                    "ended by the kernel, no memory in the cgroup".to_owned()
                }
                other => other,
            };
            eprintln!("{peer}, {}: {why}", cell.kernel);
            json!({ "why": why })
        });
    line["peer"] = peer.into();
    line["kernel"] = cell.kernel.as_str().into();
    line["factor"] = cell.factor.into();
    line
}

/// Takes down what a run that was ended by force left: processes in the cgroup, the cgroup, swap
/// files of the folder.
pub fn undo(folder: &str) -> Result<(), String> {
    for process in
        std::fs::read_to_string(format!("{GROUP}/cgroup.procs")).unwrap_or_default().lines()
    {
        sh(&["kill", "-9", process])?;
    }
    let all = std::fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    for entry in
        all.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("terrace-swap-"))
    {
        let path = entry.path().to_string_lossy().into_owned();
        let full = entry.path().canonicalize().map_err(|e| format!("{path}: {e}"))?;
        if swaps.lines().any(|l| l.split_whitespace().next() == full.to_str()) {
            sh(&["swapoff", &path])?;
        }
        std::fs::remove_file(&path).map_err(|e| format!("{path}: {e}"))?;
    }
    if Path::new(GROUP).exists() {
        sh(&["rmdir", GROUP])?;
    }
    Ok(())
}
