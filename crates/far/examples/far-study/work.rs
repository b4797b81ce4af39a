//! One measurement.

use crate::kernel::make;
use crate::memory::Memory;
use crate::spent::Spent;
use serde_json::{json, Value};
use std::path::Path;
use std::time::Instant;

/// Rounds are added until so many seconds were timed.
const ENOUGH: f64 = 0.1;
/// Rounds at most.
const MOST: u32 = 20;

/// Most memory that this process had at once, in MiB; without plain memory's data this is what a
/// peer took.
fn peak_mib() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

/// Measures one kernel over one kind of memory: `factor` thousandths of `dram` MiB of data.
pub fn run(
    backing: &str,
    kernel: &str,
    factor: &str,
    dram: &str,
    folder: &str,
) -> Result<Value, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
    let dram = number(dram)? << 20;
    let bytes = dram * number(factor)? / 1000;
    let asked = std::env::var("FAR_STUDY_THREADS").ok().and_then(|n| n.parse().ok());
    let threads =
        asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut kernel = make(kernel, bytes, dram, threads)?;
    let words = kernel.words();
    let mut memory = Memory::make(backing, words, dram, Path::new(folder))?;
    let (mut rounds, mut seconds, mut pager) = (0, 0.0, 0.0);
    while rounds == 0 || (seconds < ENOUGH && rounds < MOST) {
        let data = &mut memory.words()[..words];
        kernel.fill(data);
        // What the fill left to be written out is written out, and all was read once.
        let settled: u64 = data.iter().step_by(512).map(|x| x.to_bits() & 1).sum();
        std::hint::black_box(settled);
        let before = Spent::so_far();
        let begin = Instant::now();
        kernel.run(data);
        seconds += begin.elapsed().as_secs_f64();
        pager += Spent::so_far().since(before)["pager_cpu_s"].as_f64().unwrap_or(0.0);
        kernel.check(data).map_err(|why| format!("{backing}: wrong result: {why}"))?;
        rounds += 1;
    }
    let each = f64::from(rounds);
    let parts: serde_json::Map<String, Value> =
        kernel.parts().into_iter().map(|(name, s)| (name.to_owned(), json!(s / each))).collect();
    Ok(json!({
        "seconds": seconds / each,
        "rounds": rounds,
        "bytes": words * 8,
        "shape": kernel.shape(),
        "threads": threads,
        "gflops": kernel.gflop() * each / seconds,
        "parts": parts,
        "pager_cpu_s": pager / each,
        "peak_mib": peak_mib(),
        "counts": memory.counts(),
    }))
}
