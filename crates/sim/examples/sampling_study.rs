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
    sample_program, BufferDrain, PebsSettings, Recording, SampledProgram, SimError, SimInput,
    SimSetup,
};
use terrace_types::{Bytes, Nanos};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Kernels of ours, and what of the PEBS paper each stands for.
const KERNELS: [(&str, &str); 6] = [
    ("npb-bt", "GeoFEM (implicit solver)"),
    ("npb-cg", "HPCG, miniFE (conjugate gradients)"),
    ("graph-pagerank", "LAMMPS (sums over lists of neighbours)"),
    ("npb-mg", "AMG2013 (multigrid)"),
    ("npb-ft", "none: all-to-all transposes"),
    ("stream", "none: regular streams"),
];
const ACCESSES: &str = "accesses=4M,size=16MiB,threads=2";
/// Conjugate gradients on as many pages as the buffer of the paper's figure 4 has, 1536, with
/// samples enough for figure 7.
const FIGURE_4: &str = "npb-cg,accesses=32M,size=6MiB,threads=2";
/// Resets and buffers of the PEBS paper, figure 3.
const RESETS: [u64; 3] = [64, 128, 256];
const BUFFERS_KIB: [u64; 3] = [8, 16, 32];
/// Last-level misses for each page of the buffer in the excerpt of figure 4. The paper does not
/// say how long it is: 1430 of 1536 pages are what 4,106 samples at random places show
/// (1536 (1 - exp(-4106 / 1536))), each 64 misses apart.
const EXCERPT_MISSES_PER_PAGE: u64 = 171;
/// Periods of a thread that drains, and buffers of it, KiB.
const VISITS: [(u64, u64); 4] = [(100, 8), (100, 32), (1000, 8), (1000, 64)];
/// Periods of the counter paper, figure 5.
const PERIODS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/// `lab-numa` with a last level as small beside the data as a node's is beside an application's.
fn machine() -> Outcome<Machine> {
    let mut machine = preset("lab-numa").ok_or("no preset lab-numa")?;
    let last = machine.caches.last_mut().ok_or("no caches")?;
    last.size = Bytes(512 << 10);
    Ok(machine)
}

/// The papers sample loads alone.
fn sample(
    setup: &SimSetup,
    (loads, kib): (u64, u64),
    drain: BufferDrain,
) -> Result<SampledProgram, SimError> {
    let buffer = Bytes(kib << 10);
    let settings = PebsSettings { loads: Some(loads), stores: u64::MAX, buffer };
    sample_program(setup, Some(settings), drain)
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
            let run = sample(&setup, (period, 64), BufferDrain::Interrupt)?;
            misses = run.misses.iter().sum::<u64>();
            let share = 100.0 * run.samples as f64 / misses.max(1) as f64;
            cells.push(format!("{:.4} ({share:.2}%)", sampling_error(&run)));
        }
        println!("| `{kernel}` | {misses} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// A program of the PEBS study.
struct StudiedProgram {
    name: String,
    /// What of the paper's it stands for.
    stands_for: &'static str,
    setup: SimSetup,
}

fn programs(recordings: &[String]) -> Outcome<Vec<StudiedProgram>> {
    let mut all = Vec::new();
    for (kernel, stands_for) in KERNELS {
        let setup = SimSetup::new(&machine()?, &format!("{kernel},{ACCESSES}"))?;
        all.push(StudiedProgram { name: kernel.to_owned(), stands_for, setup });
    }
    for path in recordings {
        let file = PathBuf::from(path);
        let name = file.file_name().map_or_else(|| path.clone(), |n| n.to_string_lossy().into());
        let stands_for = if name.contains("lulesh") { "Lulesh" } else { "none: a recording" };
        let open = move || -> std::io::Result<Box<dyn RecordingSource>> {
            Ok(Box::new(BufReader::new(File::open(&file)?)))
        };
        let recording = Recording::new(Arc::new(open))?;
        let input = SimInput::Recording { name: path.clone(), recording };
        let setup = SimSetup::from_machine(&machine()?, input)?;
        all.push(StudiedProgram { name, stands_for, setup });
    }
    Ok(all)
}

/// A table's head and the line below it.
fn print_head(columns: &[String]) {
    println!("\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
}

fn pebs(recordings: &[String]) -> Outcome<()> {
    let programs = programs(recordings)?;
    let pairs = RESETS.iter().flat_map(|reset| BUFFERS_KIB.map(|kib| (*reset, kib)));
    let mut columns = vec!["program".to_owned(), "stands for".to_owned()];
    columns.extend(pairs.map(|(reset, kib)| format!("{reset}, {kib} KiB")));
    print_head(&columns);
    for program in &programs {
        print_overheads(program)?;
    }
    print_head(
        &["program", "pages", "in an excerpt", "in all", "above 50", "peaks"].map(str::to_owned),
    );
    let setup = SimSetup::new(&machine()?, FIGURE_4)?;
    let figure_4 = StudiedProgram { name: FIGURE_4.to_owned(), stands_for: "miniFE", setup };
    for program in std::iter::once(&figure_4).chain(&programs) {
        print_sight(program)?;
    }
    let mut columns = vec!["program".to_owned(), "interrupts, 8 KiB".to_owned()];
    columns.extend(VISITS.iter().map(|(us, kib)| format!("thread each {us} us, {kib} KiB")));
    print_head(&columns);
    for program in &programs {
        print_drains(program)?;
    }
    Ok(())
}

/// In percent.
fn overhead(run: &SampledProgram, base: &SampledProgram) -> f64 {
    100.0 * (run.seconds / base.seconds - 1.0)
}

/// Figure 3.
fn print_overheads(program: &StudiedProgram) -> Result<(), SimError> {
    let base = sample_program(&program.setup, None, BufferDrain::Interrupt)?;
    let mut cells = Vec::new();
    for reset in RESETS {
        for kib in BUFFERS_KIB {
            let run = sample(&program.setup, (reset, kib), BufferDrain::Interrupt)?;
            cells.push(format!("{:.2}%", overhead(&run, &base)));
        }
    }
    println!("| `{}` | {} | {} |", program.name, program.stands_for, cells.join(" | "));
    Ok(())
}

/// Figures 4 to 7 by reset value: pages of the largest buffer that samples show in an excerpt and
/// in all, pages with more than 50 samples, and where the times between interrupts of the first
/// core have peaks.
fn print_sight(program: &StudiedProgram) -> Result<(), SimError> {
    let (mut excerpt, mut all, mut hot, mut peaks) = (vec![], vec![], vec![], vec![]);
    let mut pages = 0;
    for reset in RESETS {
        let run = sample(&program.setup, (reset, 8), BufferDrain::Interrupt)?;
        pages = run.largest_buffer.map_or(0, |buffer| buffer.len());
        let samples = (EXCERPT_MISSES_PER_PAGE * pages / reset) as usize;
        excerpt.push(run.buffer_pages_seen(samples).to_string());
        all.push(run.buffer_pages_seen(usize::MAX).to_string());
        hot.push(run.by_page.iter().filter(|samples| **samples > 50).count().to_string());
        let found = run.interval_peaks(0);
        let found: Vec<String> = found
            .iter()
            .map(|peak| format!("{:.0} ({:.0}%)", peak.seconds * 1e6, 100.0 * peak.share))
            .collect();
        peaks.push(found.join(" + "));
    }
    let [excerpt, all, hot] = [excerpt, all, hot].map(|cells| cells.join(", "));
    println!("| `{}` | {pages} | {excerpt} | {all} | {hot} | {} |", program.name, peaks.join("; "));
    Ok(())
}

/// The paper's future work at reset 64: a thread that drains the buffers.
fn print_drains(program: &StudiedProgram) -> Result<(), SimError> {
    let base = sample_program(&program.setup, None, BufferDrain::Interrupt)?;
    let run = sample(&program.setup, (RESETS[0], 8), BufferDrain::Interrupt)?;
    let mut cells = vec![format!("{:.2}%", overhead(&run, &base))];
    for (us, kib) in VISITS {
        let drain = BufferDrain::Thread { period: Nanos(us * 1000) };
        let run = sample(&program.setup, (RESETS[0], kib), drain)?;
        let lost = 100.0 * run.lost as f64 / (run.lost + run.samples).max(1) as f64;
        let busy = 100.0 * run.draining_seconds / run.seconds;
        cells.push(format!("{:.2}%, {lost:.1}%, {busy:.1}%", overhead(&run, &base)));
    }
    println!("| `{}` | {} |", program.name, cells.join(" | "));
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
