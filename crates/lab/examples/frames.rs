//! What share of `skew`'s accesses a direct-mapped cache would hit, by the physical frames that
//! pages really got: a count of its own to hold `hardware:memory-mode` against. Runs inside the
//! guest, without the timing plugin's help:
//!
//! `lab run --machine lab-cxl --policy hardware:memory-mode --setting
//! /sys/kernel/mm/transparent_hugepage/enabled=never -- target/release/examples/frames COLD_MIB
//! HOT_MIB HOT_PERCENT CACHE_MIB`
//!
//! Pages are touched in order, cold ones first, as `skew` does. In a line of the cache that several
//! pages share, an access hits when the last one before it was to the same page: of a page with
//! rate `r` among a sum `R`, that is `r / R`.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;
const PER_MIB: usize = (1 << 20) / PAGE;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<Vec<usize>, _>>()?;
    let [cold_mib, hot_mib, hot_percent, cache_mib] = args[..] else {
        return Err("usage: frames COLD_MIB HOT_MIB HOT_PERCENT CACHE_MIB".into());
    };
    let (cold, hot) = (cold_mib * PER_MIB, hot_mib * PER_MIB);
    let mut memory = vec![0u8; (cold + hot + 1) * PAGE];
    for page in memory.chunks_mut(PAGE) {
        page[0] = 1;
    }
    let first = (memory.as_ptr() as usize).div_ceil(PAGE);
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut entries = vec![0u8; (cold + hot) * 8];
    pagemap.read_exact_at(&mut entries, (first * 8) as u64)?;
    let frames = entries.chunks_exact(8).map(|entry| {
        let mut eight = [0; 8];
        eight.copy_from_slice(entry);
        u64::from_le_bytes(eight) & ((1 << 55) - 1)
    });
    // Rates by page, all together one.
    let share = hot_percent as f64 / 100.0;
    let rates = (0..cold + hot).map(|i| {
        if i < cold {
            (1.0 - share) / cold as f64
        } else {
            share / hot as f64
        }
    });
    let mut slots: BTreeMap<u64, (f64, f64, u32)> = BTreeMap::new();
    for (frame, rate) in frames.zip(rates) {
        if frame == 0 {
            return Err("frames are hidden: this needs root".into());
        }
        let slot = slots.entry(frame % (cache_mib * PER_MIB) as u64).or_default();
        *slot = (slot.0 + rate, slot.1 + rate * rate, slot.2 + 1);
    }
    let hits: f64 = slots.values().map(|(sum, squares, _)| squares / sum).sum();
    let shared = slots.values().filter(|s| s.2 > 1).map(|s| s.2).sum::<u32>();
    println!(
        "{} pages in {} sets, {shared} of them share one; hits {:.4}",
        cold + hot,
        slots.len(),
        hits
    );
    Ok(())
}
