//! `hardware:memory-mode` against an independent count: the share of misses that a direct-mapped
//! cache serves follows from the frames and the rates of their pages alone. In a slot that several
//! pages share, an access hits when the last one before it was to the same page: with rates `r`
//! summing to `R` in the slot, `sum of r * r / R`.

use std::collections::BTreeMap;
use terrace_model::{MemoryAccess, MemorySystem, ModelOptions, ModelParams, LINE};
use terrace_types::Bytes;

const PAGE: u64 = 4096;
const FAST_PAGES: u64 = 2048;
const SLOW_PAGES: u64 = 16_384;
const COLD: u64 = 1200;
const HOT: u64 = 400;
const HOT_PERCENT: u64 = 80;

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// `lab-cxl`, scaled down, with caches so small that nearly every access is a miss.
fn engine() -> MemorySystem {
    let mut machine = terrace_machine::preset("lab-cxl").expect("a preset");
    machine.nodes[0].capacity = Bytes(FAST_PAGES * PAGE);
    machine.nodes[1].capacity = Bytes(SLOW_PAGES * PAGE);
    machine.caches[0].size = Bytes(4096);
    machine.caches[1].size = Bytes(16_384);
    let options = ModelOptions { vcpus: 1, all_fast: false, memory_mode: true, outstanding: None };
    MemorySystem::new(
        ModelParams::from_machine(&machine, options).expect("can be modelled"),
        10_000_000,
    )
    .expect("caches of that size")
}

/// Share of misses that the fast node serves when pages (cold ones first) lie in these frames.
fn modelled(frames: &[u64], seed: u64) -> f64 {
    let (mut engine, mut random) = (engine(), Random(seed));
    let mut counted = [0u64; 2];
    let touches = 3_000_000;
    for touch in 0..touches {
        let hot = random.below(100) < HOT_PERCENT;
        let page = if hot { COLD + random.below(HOT) } else { random.below(COLD) };
        let physical = frames[page as usize] * PAGE + random.below(PAGE / LINE) * LINE;
        engine.units[0].core.execute(4);
        if engine.units[0].l1.hit(physical / LINE, false) {
            continue;
        }
        let served =
            engine.miss(0, MemoryAccess { physical, virtual_: physical, write: false }, || Some(0));
        // The first half fills the cache.
        if let Some(node) = served.filter(|_| touch > touches / 2) {
            counted[node] += 1;
        }
    }
    counted[0] as f64 / (counted[0] + counted[1]) as f64
}

/// The same from frames and rates.
fn expected(frames: &[u64]) -> f64 {
    let mut slots: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (page, frame) in (0u64..).zip(frames) {
        let share = HOT_PERCENT as f64 / 100.0;
        let rate = if page < COLD { (1.0 - share) / COLD as f64 } else { share / HOT as f64 };
        let slot = slots.entry(frame % FAST_PAGES).or_default();
        *slot = (slot.0 + rate, slot.1 + rate * rate);
    }
    slots.values().map(|(sum, squares)| squares / sum).sum()
}

#[test]
fn pages_that_share_no_set_are_all_served_by_the_fast_node() {
    // One after the other, as the guest's kernel gave them to a program that touches in order.
    let frames: Vec<u64> = (FAST_PAGES..FAST_PAGES + COLD + HOT).collect();
    assert!((expected(&frames) - 1.0).abs() < 1e-9);
    let share = modelled(&frames, 1);
    assert!(share > 0.999, "{share}");
}

#[test]
fn pages_that_share_sets_evict_each_other() {
    for seed in [2, 3] {
        let mut random = Random(seed);
        let mut free: Vec<u64> = (FAST_PAGES..FAST_PAGES + SLOW_PAGES).collect();
        let frames: Vec<u64> = (0..COLD + HOT)
            .map(|_| free.swap_remove(random.below(free.len() as u64) as usize))
            .collect();
        let (share, wanted) = (modelled(&frames, seed), expected(&frames));
        assert!(wanted < 0.9, "seed {seed}: {wanted}");
        assert!((share - wanted).abs() < 0.01, "seed {seed}: modelled {share}, expected {wanted}");
    }
}
