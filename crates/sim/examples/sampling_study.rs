//! Both papers on sampling, repeated in the simulator: tables for docs/results/counters.md and
//! docs/results/pebs.md.
//! `cargo run --release -p terrace-sim --example sampling_study counters|pebs [RECORDING...]`.
//!
//! Programs run alone on `lab-numa`, where first touch puts their memory. `pebs` takes recordings
//! beside the kernels.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_machine::{preset, Machine};
use terrace_sim::recording::RecordingSource;
use terrace_sim::{
    sample_program, PebsSettings, Recording, SampledProgram, SimError, SimInput, SimSetup,
};
use terrace_types::Bytes;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Kernels of ours, and what of the PEBS paper each stands for.
const KERNELS: [(&str, &str); 6] = [
    ("npb-cg", "HPCG, miniFE (conjugate gradients)"),
    ("npb-mg", "AMG2013 (multigrid)"),
    ("npb-bt", "GeoFEM (implicit solver)"),
    ("npb-ft", "none: all-to-all transposes"),
    ("graph-pagerank", "none: irregular gathers"),
    ("stream", "none: regular streams"),
];
const ACCESSES: &str = "accesses=4M,size=16MiB,threads=2";
/// Resets and buffers of the PEBS paper, figure 3.
const RESETS: [u64; 3] = [64, 128, 256];
const BUFFERS_KIB: [u64; 3] = [8, 16, 32];
/// Periods of the counter paper, figure 5.
const PERIODS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// `lab-numa` with a last level as small beside the data as a node's is beside an application's.
fn machine() -> Outcome<Machine> {
    let mut machine = preset("lab-numa").ok_or("no preset lab-numa")?;
    let last = machine.caches.last_mut().ok_or("no caches")?;
    last.size = Bytes(512 << 10);
    Ok(machine)
}

fn settings(loads: u64, kib: u64) -> PebsSettings {
    // The papers sample loads alone.
    PebsSettings { loads: Some(loads), stores: u64::MAX, buffer: Bytes(kib << 10) }
}

/// D of the counter paper over all cores that missed.
fn sampling_error(run: &SampledProgram) -> f64 {
    let sum = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
    let (all, sampled) = (sum(&run.misses), sum(&run.sampled));
    let errors = run.misses.iter().zip(&run.sampled).filter(|(all, _)| **all > 0);
    let errors: Vec<f64> = errors
        .map(|(core, of)| (*of as f64 / sampled - *core as f64 / all).abs() / (*core as f64 / all))
        .collect();
    errors.iter().sum::<f64>() / errors.len().max(1) as f64
}

fn counters() -> Outcome<()> {
    print!("| kernel | last-level load misses |");
    PERIODS.iter().for_each(|period| print!(" {period} |"));
    println!("\n|---|---|{}", "---|".repeat(PERIODS.len()));
    for kernel in ["npb-bt", "npb-cg", "npb-ft", "npb-mg"] {
        let setup = SimSetup::new(&machine()?, &format!("{kernel},{ACCESSES}"))?;
        let mut cells = Vec::new();
        let mut misses = 0;
        for period in PERIODS {
            let run = sample_program(&setup, Some(settings(period, 64)))?;
            misses = run.misses.iter().sum::<u64>();
            let share = 100.0 * run.samples as f64 / misses.max(1) as f64;
            cells.push(format!("{:.4} ({share:.2}%)", sampling_error(&run)));
        }
        println!("| `{kernel}` | {misses} | {} |", cells.join(" | "));
    }
    Ok(())
}

fn pebs(recordings: &[String]) -> Outcome<()> {
    print!("| program |");
    RESETS.iter().for_each(|reset| {
        BUFFERS_KIB.iter().for_each(|kib| print!(" {reset}, {kib} KiB |"));
    });
    println!(" pages seen at 64, 128, 256 | between interrupts at 64, 128, 256, us | above 50 |");
    println!("|---|{}", "---|".repeat(RESETS.len() * BUFFERS_KIB.len() + 3));
    for (kernel, _) in KERNELS {
        let setup = SimSetup::new(&machine()?, &format!("{kernel},{ACCESSES}"))?;
        line(kernel, &setup)?;
    }
    for path in recordings {
        let file = PathBuf::from(path);
        let open = move || -> std::io::Result<Box<dyn RecordingSource>> {
            Ok(Box::new(BufReader::new(File::open(&file)?)))
        };
        let recording = Recording::new(Arc::new(open))?;
        let input = SimInput::Recording { name: path.clone(), recording };
        let setup = SimSetup::from_machine(&machine()?, input)?;
        line(path, &setup)?;
    }
    println!("\nWhat stands for what:\n");
    KERNELS.iter().for_each(|(kernel, of)| println!("- `{kernel}`: {of}"));
    Ok(())
}

/// Overheads in percent, and what each reset value showed.
fn line(name: &str, setup: &SimSetup) -> Result<(), SimError> {
    let base = sample_program(setup, None)?;
    let (mut cells, mut pages, mut gaps, mut hot) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for reset in RESETS {
        for kib in BUFFERS_KIB {
            let run = sample_program(setup, Some(settings(reset, kib)))?;
            cells.push(format!("{:.2}%", 100.0 * (run.seconds / base.seconds - 1.0)));
            if kib != BUFFERS_KIB[0] {
                continue;
            }
            pages.push(run.by_page.len().to_string());
            let at = |share: usize| run.intervals.get(run.intervals.len() * share / 100);
            let us = |share| at(share).map_or(0.0, |s| s * 1e6);
            gaps.push(format!("{:.0} ({:.0} to {:.0})", us(50), us(10), us(90)));
            if reset == RESETS[0] {
                hot = run.by_page.iter().filter(|samples| **samples > 50).count();
            }
        }
    }
    let (pages, gaps) = (pages.join(", "), gaps.join(", "));
    println!("| `{name}` | {} | {pages} of {} | {gaps} | {hot} |", cells.join(" | "), base.pages);
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((word, [])) if word == "counters" => counters(),
        Some((word, recordings)) if word == "pebs" => pebs(recordings),
        _ => Err("say counters, or pebs and perhaps recordings".into()),
    }
}
