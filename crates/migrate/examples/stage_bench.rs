//! The microbenchmark of section V of Perarnau et al., "Exploring Data Migration for Future Deep-Memory Many-Core Systems",
//! on the staging pipeline: threads go over blocks of slow memory I times, in place, with fixed splits and with the chosen one.
//!
//! `stage_bench SLOW_NODE SLOW_GB/S FAST_NODE FAST_GB/S THREADS MIB BLOCK_KIB CACHE_KIB COMPUTE_NS_PER_BYTE I[,I...]`
//!
//! The bandwidths are those of the machine file; a thread by itself is taken to reach them, as in the lab, whose cores prefetch
//! streams without limit. Prints one row a run: what was expected of it before, what it took (buffers made and touched before
//! the clock, as in the paper), and a sum that is the same for all rows of an I.

use std::sync::atomic::{AtomicU64, Ordering};
use terrace_migrate::staging::{decide, past_caches, stage_read, Costs, Decision, Mode, Options, Threads, Work};
use terrace_sys::{Mapping, Pages};
use terrace_types::{Bytes, BytesPerSec, NodeId};

struct Setup {
    slow: NodeId,
    fast: NodeId,
    threads: u32,
    block: usize,
    compute: f64,
    costs: Costs,
}

/// One word of each cache line, eight lines a turn: the lab's small cores keep up with the fast bus, as eight real ones do.
fn sweep(part: &[u64], passes: u32) -> u64 {
    let mut sums = [0_u64; 8];
    for _ in 0..passes {
        for lines in std::hint::black_box(part).chunks_exact(64) {
            for (sum, line) in sums.iter_mut().zip(lines.chunks_exact(8)) {
                *sum = sum.wrapping_add(line[0]);
            }
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn run(setup: &Setup, data: &[u64], passes: u32, name: &str, threads: Threads) -> Result<(), String> {
    let blocks: Vec<_> =
        (0..data.len()).step_by(setup.block).map(|at| at..(at + setup.block).min(data.len())).collect();
    let options = Options {
        slow: Some(setup.slow),
        passes: f64::from(passes),
        compute_ns_per_byte: setup.compute,
        costs: Some(setup.costs),
        ..Options::new(setup.fast, threads)
    };
    let work = Work {
        blocks: blocks.len(),
        largest: Bytes((setup.block * 8) as u64),
        total: Bytes((data.len() * 8) as u64),
        passes: f64::from(passes),
        compute_ns_per_byte: setup.compute,
        back: false,
        threads: setup.threads,
        room: options.room,
        one_tier: false,
        read_first: !past_caches(),
    };
    let expected = match decide(Some(&setup.costs), &work) {
        Decision::Staged(split) => format!("{:.3}", split.expected.as_secs_f64() * 1e3),
        Decision::InPlace(_) => "in place".to_owned(),
    };
    let sum = AtomicU64::new(0);
    let report = stage_read(data, blocks, &options, |_, part| {
        sum.fetch_add(sweep(part, passes), Ordering::Relaxed);
    })
    .map_err(|e| e.to_string())?;
    let took = (report.took.get().saturating_sub(report.prepared.get())) as f64 / 1e6;
    let mode = if report.mode == Mode::Staged { "staged" } else { "in place" };
    println!(
        "| {passes} | {name} | {mode} | {}:{} | {} | {expected} | {took:.3} | {} | {:.3} | {:x} |",
        report.threads - report.migrators,
        report.migrators,
        report.slots,
        report.stalls,
        report.stalled.as_secs_f64() * 1e3,
        sum.into_inner()
    );
    Ok(())
}

fn all(a: &[String]) -> Result<(), String> {
    let number = |at: usize| -> Result<f64, String> {
        let text = a.get(at).ok_or("too few arguments; see the head of this file")?;
        text.parse().map_err(|_| format!("{text} is no number"))
    };
    let rate = |at: usize| number(at).map(|gb| BytesPerSec((gb * 1e9) as u64));
    let (slow, fast) = (NodeId(number(0)? as u16), NodeId(number(2)? as u16));
    let (slow_rate, fast_rate, threads) = (rate(1)?, rate(3)?, number(4)? as u32);
    let (mib, block) = (number(5)? as u64, number(6)? as usize * 128);
    let costs = Costs {
        slow: slow_rate,
        slow_thread: slow_rate,
        fast: fast_rate,
        fast_thread: fast_rate,
        copy_thread: slow_rate,
        cache: Bytes((number(7)? as u64) << 10),
        cache_thread: fast_rate,
    };
    let setup = Setup { slow, fast, threads, block, compute: number(8)?, costs };
    let passes: Vec<u32> = a.get(9).map(|l| l.split(',').filter_map(|i| i.parse().ok()).collect()).unwrap_or_default();
    let memory = Mapping::new(Bytes::mib(mib), Pages::Base).map_err(|e| e.to_string())?;
    memory.bind(slow).map_err(|e| e.to_string())?;
    memory.prefault(0..memory.len()).map_err(|e| e.to_string())?;
    // SAFETY: the mapping is aligned to a page, touched, this long, and nobody else's while it lives.
    let data = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast::<u64>(), (mib << 20) as usize / 8) };
    data.iter_mut().enumerate().for_each(|(i, x)| *x = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    println!("| I | threads | mode | workers:migrators | buffers | expected ms | ms | stalls | stalled ms | sum |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for passes in passes {
        run(&setup, data, passes, "all in place", Threads::InPlace(threads))?;
        run(&setup, data, passes, "auto", Threads::Auto(threads))?;
        for migrators in 1..threads {
            let split = Threads::Fixed { workers: threads - migrators, migrators };
            run(&setup, data, passes, "fixed", split)?;
        }
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = all(&arguments) {
        eprintln!("stage_bench: {why}");
        std::process::exit(1);
    }
}
