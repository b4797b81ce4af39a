//! Figures 2 and 3: threads that read and write memory line after line, and what one that follows
//! pointers meanwhile sees, as Intel's Memory Latency Checker does it. Threads are recordings, made
//! here.

use crate::kernels::each;
use crate::machine::{Scale, CORES, OF_EACH};
use serde::Serialize;
use std::fmt::Write;
use std::io::Cursor;
use std::sync::Arc;
use terrace_machine::Machine;
use terrace_sim::recording::{OpenRecording, RecordingSource, FIRST};
use terrace_sim::{FirstTouchPlacement, MachineMode, Recording, SimInput, SimSetup};
use terrace_trace::{Access, TraceHeader, TraceWriter};
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// Lines of a thread's memory, and of the chase's, and how often the former are gone through.
const LINES: u64 = 4096;
const PASSES: u64 = 6;
const CHASED: u64 = 8192;
/// Loads of the chase: more than are ever made.
const CHASE: u64 = 150_000;
const LINE: u64 = 64;
/// First address; each thread has a MiB.
const BASE: u64 = 0x1000_0000_0000;
const EACH: u64 = 1 << 20;
/// How far the world goes between looks at it.
const LOOK: Nanos = Nanos::micros(20);
/// Loads of the chase that are timed.
const TIMED: u64 = 400;

/// A point of figure 2.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    pub tier: &'static str,
    /// Reads for each write; 0: no writes.
    pub reads: u64,
    /// Instructions between two lines of a thread.
    pub gap: u32,
    pub gb_per_s: f64,
    pub latency_ns: f64,
}

/// A point of figure 3.
#[derive(Debug, Clone, Serialize)]
pub struct Balance {
    /// Channels with DRAM and with DCPMM.
    pub channels: [u64; 2],
    pub threads: u32,
    /// Share of pages in DRAM that was fastest, percent.
    pub best_percent: u64,
    /// How much faster than all in DRAM.
    pub gain: f64,
    /// Bandwidth with all in DRAM, GB/s.
    pub dram_gb_per_s: f64,
}

/// What threads do.
#[derive(Debug, Clone, Copy)]
struct Load {
    threads: u32,
    gap: u32,
    /// Every so many lines one is written; 0: none.
    store_every: u64,
    chase: bool,
}

/// The machine at its own speed, caches as small as the scaled one's so that little memory misses
/// them, space on both.
fn machine() -> Result<Machine, String> {
    let mut machine = Scale { size: 8192, clock: 8192, ..Scale::default() }.machine()?;
    machine.name = "dram-dcpmm, loaded".to_owned();
    machine.nodes.iter_mut().for_each(|n| n.capacity = Bytes::mib(64));
    Ok(machine)
}

fn recording(load: Load) -> Result<Recording, String> {
    let header = TraceHeader { dependence: true, ..TraceHeader::default() };
    let reported = |e: &dyn std::fmt::Display| e.to_string();
    let mut writer = TraceWriter::new(Vec::new(), &header).map_err(|e| reported(&e))?;
    let access = |address: u64| Access { address, size: 8, ..Access::default() };
    let first = u32::from(load.chase);
    if load.chase {
        // Every page once, so that later loads meet no fault; then lines in no order, each found by
        // the one before.
        for page in 0..CHASED * LINE / 4096 {
            writer
                .access(0, 0, &Access { gap: 4, ..access(BASE + page * 4096) })
                .map_err(|e| reported(&e))?;
        }
        for i in 0..CHASE {
            let line = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % CHASED;
            let chased = Access { gap: 4, depends: 1, ..access(BASE + line * LINE) };
            writer.access(0, 0, &chased).map_err(|e| reported(&e))?;
        }
    }
    for thread in first..load.threads + first {
        let start = BASE + u64::from(thread) * EACH;
        for i in 0..LINES * PASSES {
            let store = load.store_every > 0 && i % load.store_every == 0;
            let one = Access { gap: load.gap, store, ..access(start + i % LINES * LINE) };
            writer.access(0, thread, &one).map_err(|e| reported(&e))?;
        }
    }
    let bytes: Arc<[u8]> = writer.finish().map_err(|e| reported(&e))?.into();
    let open: Arc<OpenRecording> =
        Arc::new(move || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn RecordingSource>));
    Recording::new(open).map_err(|e| reported(&e))
}

/// GB/s on all buses, and ns a load of the chase, once all memory has been touched. Pages that
/// `first_touch_placement` puts on several nodes must be found on several.
fn measure(
    machine: &Machine,
    load: Load,
    first_touch_placement: FirstTouchPlacement,
) -> Result<(f64, f64), String> {
    let dealt_out = match &first_touch_placement {
        FirstTouchPlacement::Placed(nodes) => {
            [0, 1].into_iter().filter(|node| nodes.values().any(|n| n == node)).count()
        }
        _ => 1,
    };
    let input = SimInput::Recording { name: "load".to_owned(), recording: recording(load)? };
    let plan = SimSetup::from_machine(machine, input).map_err(|e| e.to_string())?;
    let mut world =
        plan.world(MachineMode::Plain, first_touch_placement).map_err(|e| e.to_string())?;
    let first = usize::from(load.chase);
    let loaders = first..load.threads as usize + first;
    let warm = LINES + LINES / 2;
    let made = |world: &terrace_sim::world::World, core: usize| {
        let c = world.engine().counters(core);
        c.loads + c.stores
    };
    while loaders.clone().any(|core| made(&world, core) < warm) && !world.ended() {
        world.pass(LOOK);
    }
    let bytes = |world: &terrace_sim::world::World| {
        let c = world.counters();
        c.read_bytes.iter().chain(&c.write_bytes).sum::<u64>()
    };
    let (from, before, chased) = (world.now(), bytes(&world), made(&world, 0));
    let most = LINES * PASSES - LINES / 4;
    while loaders.clone().all(|core| made(&world, core) < most)
        && (!load.chase || made(&world, 0) < chased + TIMED)
        && !world.ended()
    {
        world.pass(LOOK);
    }
    let found = world.counters().read_bytes.iter().filter(|bytes| **bytes > 0).count();
    if found < dealt_out {
        return Err(format!("pages were dealt out to {dealt_out} nodes and lie on {found}"));
    }
    let span = world.now().since(from).get() as f64;
    let latency = span / (made(&world, 0) - chased).max(1) as f64;
    Ok(((bytes(&world) - before) as f64 / span.max(1.0), latency))
}

/// Latency under load, of both tiers, reads only and with a write for each three and each two
/// reads.
pub fn figure2() -> Result<Vec<Point>, String> {
    let machine = machine()?;
    let mut points = Vec::new();
    for (tier, first_touch_placement) in
        [("DRAM", FirstTouchPlacement::Nearest), ("DCPMM", FirstTouchPlacement::Slow)]
    {
        for reads in [0, 3, 2] {
            for gap in [2048, 1024, 640, 448, 320, 224, 160, 112, 80, 56, 40, 28] {
                // A line that is stored to is read first, and written when it leaves: with one in n
                // stored to, n reads go with each write.
                let load = Load { threads: CORES, gap, store_every: reads, chase: true };
                let (gb_per_s, latency_ns) =
                    measure(&machine, load, first_touch_placement.clone())?;
                points.push(Point { tier, reads, gap, gb_per_s, latency_ns });
            }
        }
    }
    Ok(points)
}

pub fn tell2(out: &mut String, points: &[Point]) {
    let of = |tier: &str, reads: u64| {
        points.iter().filter(|p| p.tier == tier && p.reads == reads).collect::<Vec<_>>()
    };
    let _ = writeln!(
        out,
        "## Figure 2: latency (ns) at bandwidth (GB/s), by instructions between lines\n"
    );
    let kinds = [("DRAM", 0), ("DRAM", 3), ("DRAM", 2), ("DCPMM", 0), ("DCPMM", 3), ("DCPMM", 2)];
    let title = |(tier, reads): &(&str, u64)| match reads {
        0 => format!("{tier} reads"),
        n => format!("{tier} {n}R:1W"),
    };
    let _ = writeln!(
        out,
        "| gap | {} |\n|---|{}",
        kinds.iter().map(title).collect::<Vec<_>>().join(" | "),
        "---|".repeat(6)
    );
    for (i, first) in of("DRAM", 0).iter().enumerate() {
        let cell = |kind: &(&str, u64)| {
            of(kind.0, kind.1).get(i).map(|p| format!("{:.0} @ {:.1}", p.latency_ns, p.gb_per_s))
        };
        let cells: Vec<String> = kinds.iter().filter_map(cell).collect();
        let _ = writeln!(out, "| {} | {} |", first.gap, cells.join(" | "));
    }
    let peak =
        |tier: &str, reads: u64| of(tier, reads).iter().map(|p| p.gb_per_s).fold(0.0, f64::max);
    let (dram, dcpmm) = (of("DRAM", 0), of("DCPMM", 0));
    let ratio =
        dram.iter().zip(&dcpmm).map(|(a, b)| b.latency_ns / a.latency_ns).fold(0.0, f64::max);
    let _ = writeln!(
        out,
        "\nReads only, DCPMM against DRAM at equal demand: latency up to {ratio:.1} times, peak \
            bandwidth {:.2} times less. \
         Peak with 2R:1W over reads only: DRAM {:.2}, DCPMM {:.2}.\n",
        peak("DRAM", 0) / peak("DCPMM", 0),
        peak("DRAM", 2) / peak("DRAM", 0),
        peak("DCPMM", 2) / peak("DCPMM", 0)
    );
}

/// Pages dealt out so that `percent` of a hundred are in DRAM, in steps of five.
fn dealt(percent: u64) -> FirstTouchPlacement {
    let fast = percent / 5;
    // All memory lies in one GiB, which is the first that is touched.
    FirstTouchPlacement::in_order_from(
        FIRST,
        (0..1u64 << 14).map(|page| u8::from((page + 1) * fast / 20 == page * fast / 20)),
    )
}

/// The best share of pages in DRAM by threads and channels; a thread asks for what its miss
/// registers allow.
pub fn figure3(workers: usize) -> Result<Vec<Balance>, String> {
    let mut tasks = Vec::new();
    for channels in [[3, 3], [2, 4], [1, 5]] {
        for threads in [1, 2, 4, 6, 8, 10, 12, 14, 16] {
            tasks.push((channels, threads));
        }
    }
    each(&tasks, workers, |(channels, threads)| {
        let mut machine = machine()?;
        // Modules of the machine file: two of each.
        for (link, modules) in machine.links.iter_mut().zip(channels) {
            for rate in [&mut link.read_bandwidth, &mut link.write_bandwidth].into_iter().flatten()
            {
                rate.value = BytesPerSec(rate.value.get() / 2 * modules);
            }
        }
        let latency = machine.links[0].read_latency.map_or(100.0, |f| f.value.get() as f64);
        // Four simulated threads ask for what that many cores would: the fewer, the better buses
        // are shared.
        let a_line = latency / f64::from(machine.core.outstanding_misses / OF_EACH) * 4.0
            / f64::from(*threads);
        let gap = (a_line / machine.core.ns_per_instruction) as u32;
        let load = Load { threads: 4, gap, store_every: 0, chase: false };
        let mut best = (100, 0.0);
        let mut all = 0.0;
        for percent in (50..=100).rev().step_by(5) {
            let (rate, _) = measure(&machine, load, dealt(percent))?;
            if percent == 100 {
                all = rate;
            }
            // Less than a part in two hundred is no gain.
            if rate > best.1 * 1.005 {
                best = (percent, rate);
            }
        }
        let gain = best.1 / all;
        Ok(Balance {
            channels: *channels,
            threads: *threads,
            best_percent: best.0,
            gain,
            dram_gb_per_s: all,
        })
    })
}

pub fn tell3(out: &mut String, points: &[Balance]) {
    let _ = writeln!(
        out,
        "## Figure 3: what the best share of pages in DRAM gains over all of them, reads only\n"
    );
    let _ = writeln!(out, "| cores | 3:3 | 2:4 | 1:5 |\n|---|---|---|---|");
    for first in points.iter().filter(|p| p.channels == [3, 3]) {
        let cell = |channels: [u64; 2]| {
            let point =
                points.iter().find(|p| p.channels == channels && p.threads == first.threads);
            point.map_or_else(String::new, |p| {
                format!("{:.2} with {}% (all: {:.1} GB/s)", p.gain, p.best_percent, p.dram_gb_per_s)
            })
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |",
            first.threads,
            cell([3, 3]),
            cell([2, 4]),
            cell([1, 5])
        );
    }
    let _ = writeln!(out);
}
