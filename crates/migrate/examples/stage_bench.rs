//! The microbenchmark of section V of Perarnau et al., "Exploring Data Migration for Future
//! Deep-Memory Many-Core Systems", on the staging pipeline: threads go over blocks of slow memory I
//! times with a 3-point stencil, in place, with fixed splits and with the chosen one.
//!
//! `stage_bench slow=NODE,GB/S fast=NODE,GB/S cache=KIB mib=N block=KIB passes=I[,I...]
//! rows=ROW[,ROW...] [slots=N]`
//!
//! A row is `place:N`, `auto:N` or `WORKERS:MIGRATORS`; with `stay/` before it addresses stay, and
//! pages are moved (`page_us=N`, as in the machine file, says what a page costs). Bandwidths and
//! cache are those of the machine file. Cores are taken to fetch streams ahead without limit, as
//! the timing model's do, so that a thread is bound by a node's bandwidth or by its own
//! instructions; how fast these are, for the stencil and for copies, is measured before any run, in
//! the caches.
//!
//! Prints a table: what was expected of each run before it, what it took (buffers made and touched
//! before the clock, as in the paper, and given back after it), and a sum that is the same for all
//! rows of an I.

use std::hint::black_box;
use std::sync::atomic::{compiler_fence, AtomicU64, Ordering};
use terrace_migrate::staging::{
    copy, expected, past_caches, stage_read, Costs, StagingMode, StagingOptions, StagingReport,
    StagingWork, Threads,
};
use terrace_migrate::MoveCosts;
use terrace_sys::{now, AnonymousMapping, MappingPages};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

struct Setup {
    slow: NodeId,
    fast: NodeId,
    block: usize,
    /// Nanoseconds of a pass over a byte in the first-level cache.
    compute: f64,
    costs: Costs,
    slots: Option<u32>,
}

/// An element of the array: records of a cache line each, of which the stencil reads one field. So
/// a slow core needs the bandwidth of a fast one that reads whole lines.
type Element = [u64; 8];
const BYTES: usize = std::mem::size_of::<Element>();

/// Sums what a 3-point stencil makes of each element, eight elements a turn, so that few
/// instructions are the loop's own. Each is loaded once and in order: what follows no stream is not
/// prefetched.
fn stencil(part: &[Element], passes: u32) -> u64 {
    let mut sum = 0_u64;
    for _ in 0..passes {
        let [first, second, rest @ ..] = black_box(part) else { return 0 };
        let (mut before, mut here) = (first[0], second[0]);
        let mut point = |element: &Element| {
            let after = element[0];
            compiler_fence(Ordering::SeqCst);
            sum = sum.wrapping_add(before.wrapping_add(here).wrapping_add(after));
            (before, here) = (here, after);
        };
        let turns = rest.chunks_exact(8);
        let last = turns.remainder();
        turns.for_each(|turn| turn.iter().for_each(&mut point));
        last.iter().for_each(point);
    }
    sum
}

/// Sums over the parts of any division of the data into blocks are equal: the points between two
/// blocks are counted by neither.
fn between(data: &[Element], block: usize) -> u64 {
    let inner = (block..data.len()).step_by(block);
    inner.fold(0_u64, |sum, at| {
        sum.wrapping_add(stencil(&data[at.saturating_sub(2)..(at + 2).min(data.len())], 1))
    })
}

/// Nanoseconds a byte of `work` on so many bytes, the best of five tries.
fn pace(bytes: usize, work: impl Fn()) -> f64 {
    const TIMES: u32 = 200;
    let one = || {
        let began = now();
        (0..TIMES).for_each(|_| work());
        now().since(began).get() as f64 / f64::from(TIMES) / bytes as f64
    };
    (0..5).map(|_| one()).fold(f64::INFINITY, f64::min)
}

impl Setup {
    /// Expected before the run, and the run itself.
    fn run(
        &self,
        data: &[Element],
        passes: u32,
        row: &str,
    ) -> Result<(f64, StagingReport, u64), String> {
        let (row, stay) = row.strip_prefix("stay/").map_or((row, false), |row| (row, true));
        let threads = parse_row(row)?;
        let block = match threads {
            Threads::InPlace(n) => data.len().div_ceil(n as usize),
            _ => self.block,
        };
        let blocks: Vec<_> =
            (0..data.len()).step_by(block).map(|at| at..(at + block).min(data.len())).collect();
        let cpus = match threads {
            Threads::Auto(n) | Threads::InPlace(n) => n,
            Threads::Fixed { workers, migrators } => workers + migrators,
        };
        let options = StagingOptions {
            slow: Some(self.slow),
            passes: f64::from(passes),
            compute_ns_per_byte: self.compute,
            costs: Some(self.costs),
            keep_addresses: stay,
            slots: self.slots,
            cpus: (0..cpus).map(|cpu| CpuId(cpu as _)).collect(),
            ..StagingOptions::new(self.fast, threads)
        };
        let work = StagingWork {
            blocks: blocks.len(),
            largest: Bytes((block * BYTES) as u64),
            total: Bytes((data.len() * BYTES) as u64),
            passes: f64::from(passes),
            compute_ns_per_byte: self.compute,
            back: false,
            threads: cpus,
            room: options.room,
            one_tier: false,
            read_first: !past_caches(),
            stay,
        };
        let before = expected(&self.costs, &work, threads);
        let sum = AtomicU64::new(0);
        let report = stage_read(data, blocks, &options, |_, part| {
            sum.fetch_add(stencil(part, passes), Ordering::Relaxed);
        })
        .map_err(|e| e.to_string())?;
        let edges = between(data, block).wrapping_mul(u64::from(passes));
        Ok((before.as_secs_f64() * 1e3, report, sum.into_inner().wrapping_add(edges)))
    }
}

fn parse_row(row: &str) -> Result<Threads, String> {
    let (left, right) = row
        .split_once(':')
        .ok_or_else(|| format!("{row} is no row; say place:N, auto:N or W:C"))?;
    let number =
        |text: &str| text.parse::<u32>().map_err(|_| format!("{text} is no number of threads"));
    Ok(match left {
        "place" => Threads::InPlace(number(right)?),
        "auto" => Threads::Auto(number(right)?),
        _ => Threads::Fixed { workers: number(left)?, migrators: number(right)? },
    })
}

/// Nanoseconds a byte of a stencil's pass, and of a copy.
fn paces() -> (f64, f64) {
    // In the first-level cache; in the second for copies, which are done otherwise when large.
    const CACHED: usize = 8 << 10;
    const COPIED: usize = 256 << 10;
    let from: Vec<Element> = vec![[1; 8]; COPIED / BYTES];
    let mut to = from.clone();
    let kernel = pace(CACHED, || {
        black_box(stencil(&from[..CACHED / BYTES], 1));
    });
    let target = to.as_mut_ptr().cast::<u8>();
    let copying = pace(COPIED, || {
        // SAFETY: both have so many bytes, and are different.
        unsafe { copy(black_box(from.as_ptr()).cast(), black_box(target), COPIED) };
    });
    (kernel, copying)
}

fn all(arguments: &[String]) -> Result<(), String> {
    let text = |name: &str| {
        let of = |a: &'_ String| {
            a.strip_prefix(name).and_then(|v| v.strip_prefix('=')).map(str::to_owned)
        };
        arguments
            .iter()
            .find_map(of)
            .ok_or_else(|| format!("{name}= is missing; see the head of this file"))
    };
    let number =
        |text: &str| text.trim().parse::<f64>().map_err(|_| format!("{text} is no number"));
    let node = |name: &str| -> Result<_, String> {
        let text = text(name)?;
        let (id, rate) = text.split_once(',').ok_or_else(|| format!("{name}=NODE,GB/S"))?;
        Ok((NodeId(number(id)? as u16), BytesPerSec((number(rate)? * 1e9) as u64)))
    };
    let (slow, slow_rate) = node("slow")?;
    let (fast, fast_rate) = node("fast")?;
    let (compute, copying) = paces();
    let page_us = text("page_us").map_or(Ok(2.3), |us| number(&us))?;
    let copies = BytesPerSec((1e9 / copying) as u64);
    let costs = Costs {
        slow: slow_rate,
        slow_thread: slow_rate,
        fast: fast_rate,
        fast_thread: fast_rate,
        copy_thread: copies.min(slow_rate),
        cache: Bytes((number(&text("cache")?)? as u64) << 10),
        cache_thread: fast_rate,
        moves: MoveCosts { page: Nanos((page_us * 1e3) as u64), ..MoveCosts::default() },
    };
    println!(
        "a thread's stencil: {:.2} GB/s; its copies: {:.2} GB/s",
        1.0 / compute,
        1.0 / copying
    );
    let slots = text("slots").ok().map(|n| number(&n)).transpose()?.map(|n| n as u32);
    let setup = Setup {
        slots,
        slow,
        fast,
        block: number(&text("block")?)? as usize * 1024 / BYTES,
        compute,
        costs,
    };
    let bytes = Bytes::mib(number(&text("mib")?)? as u64);
    let memory = AnonymousMapping::new(bytes, MappingPages::Base).map_err(|e| e.to_string())?;
    memory.bind(slow).map_err(|e| e.to_string())?;
    memory.prefault(0..memory.len()).map_err(|e| e.to_string())?;
    // SAFETY: the mapping is aligned to a page, touched, this long, and nobody else's while it
    // lives.
    let data = unsafe {
        std::slice::from_raw_parts_mut(
            memory.as_ptr().cast::<Element>(),
            bytes.get() as usize / BYTES,
        )
    };
    data.iter_mut()
        .enumerate()
        .for_each(|(i, x)| *x = [(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15); 8]);
    // What was just written lies dirty in the cache and would be written back during the first run.
    black_box(stencil(data, 1));
    println!(
        "| I | row | mode | workers:migrators | buffers | expected ms | ms | stalls | \
        stalled ms | sum | with buffers ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for passes in text("passes")?.split(',') {
        let passes = number(passes)? as u32;
        for row in text("rows")?.split(',') {
            print(passes, row, &setup.run(data, passes, row)?);
        }
    }
    Ok(())
}

fn print(passes: u32, row: &str, (before, report, sum): &(f64, StagingReport, u64)) {
    let took = report.took.get().saturating_sub(report.prepared.get() + report.released.get())
        as f64
        / 1e6;
    let mode = if report.mode == StagingMode::Staged { "staged" } else { "in place" };
    println!(
        "| {passes} | {row} | {mode} | {}:{} | {} | {before:.3} | {took:.3} | {} | {:.3} | \
            {sum:x} | {:.3} |",
        report.threads - report.migrators,
        report.migrators,
        report.slots,
        report.stalls,
        report.stalled.as_secs_f64() * 1e3,
        report.took.as_secs_f64() * 1e3,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = all(&arguments) {
        eprintln!("stage_bench: {why}");
        std::process::exit(1);
    }
}
