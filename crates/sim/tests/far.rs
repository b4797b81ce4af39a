//! Programs larger than the best tier's memory, with a store behind it.
#![allow(clippy::unwrap_used)]

mod common;

use common::recording;
use terrace_machine::{preset, FarStore, Machine};
use terrace_sim::{simulate, FarCount, RunOptions, SimError, SimInput, SimRun, SimSetup};
use terrace_trace::{Access, TraceWriter};
use terrace_types::{Bytes, BytesPerSec, Nanos, PolicyId};

const PAGE: u64 = 4096;
const BASE: u64 = 0x7f12_0000_0000;

type Writer = TraceWriter<Vec<u8>>;

fn touch(w: &mut Writer, thread: u32, page: u64, store: bool) {
    let access = Access {
        address: BASE + page * PAGE,
        size: 8,
        gap: 4,
        depends: 1,
        store,
        ..Access::default()
    };
    w.access(0, thread, &access).unwrap();
}

/// Each of so many pages in order.
fn sweep(w: &mut Writer, pages: u64, store: bool) {
    (0..pages).for_each(|page| touch(w, 0, page, store));
}

/// `count` pages of `pages`, none near the one before.
fn scattered(pages: u64, count: u64) -> impl Iterator<Item = u64> {
    (1..=count).map(move |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17).map(move |r| r % pages)
}

/// `lab-cxl` with so much fast memory for programs.
fn machine(dram: Bytes, store: FarStore) -> Machine {
    let mut machine = preset("lab-cxl").unwrap();
    machine.nodes[0].capacity = dram;
    machine.nodes[0].reserved = Bytes::ZERO;
    machine.far = vec![store];
    machine
}

fn disk() -> FarStore {
    let [disk, _] = FarStore::usual();
    disk
}

fn run(input: &SimInput, dram: Bytes, store: FarStore) -> (SimRun, FarCount) {
    let policy = format!("far:{}", store.name);
    let plan = SimSetup::from_machine(&machine(dram, store), input.clone()).unwrap();
    let run = simulate(&plan, &policy.parse().unwrap(), RunOptions::default()).unwrap();
    let far = run.far.unwrap();
    assert_eq!(far.dram_bytes, dram.get());
    (run, far)
}

#[test]
fn what_fits_pays_for_its_first_touches_alone() {
    // 4 MiB in 8 MiB, written, then read 50 times over.
    let input = recording(|w| {
        sweep(w, 1024, true);
        (0..50).for_each(|_| sweep(w, 1024, false));
    });
    let (first, far) = run(&input, Bytes::mib(8), disk());
    assert_eq!((far.misses, far.read_bytes, far.written_bytes), (0, 0, 0));
    // Zeros are mapped ahead of a walk: not each page is a fault.
    assert!((10..600).contains(&far.faults), "{far:?}");
    let plain = simulate(
        &SimSetup::from_machine(&machine(Bytes::mib(8), disk()), input).unwrap(),
        &PolicyId::FirstTouch.into(),
        RunOptions::default(),
    );
    let more = first.seconds - plain.unwrap().seconds;
    // As many half faults, there and back, and the pages; of the plain run's own first touches
    // none.
    let most = far.faults as f64 * 16e-6 + 1024.0 * 1.1e-6;
    assert!(more < most, "{more} s more, at most {most}");
}

#[test]
fn a_miss_takes_the_latency_and_those_of_two_threads_overlap() {
    let slow = |latency| FarStore { read_latency: latency, ..disk() };
    let one = |latency| {
        let input = recording(|w| {
            sweep(w, 4096, true);
            scattered(4096, 3000).for_each(|page| touch(w, 0, page, false));
        });
        run(&input, Bytes::mib(4), slow(latency))
    };
    let ((quick, few), (late, many)) = (one(Nanos::micros(100)), one(Nanos::millis(1)));
    // What is on its way differs with time, so misses need not be the same ones; each waits for 0.9
    // ms more.
    assert!(few.misses > 1500 && many.misses > 1500, "{few:?} {many:?}");
    let each = (late.seconds - quick.seconds) / many.misses as f64;
    assert!((0.8e-3..1.0e-3).contains(&each), "{each} s a miss");
    let both = recording(|w| {
        sweep(w, 4096, true);
        let pages: Vec<u64> = scattered(4096, 3000).collect();
        pages.chunks(2).for_each(|pair| {
            (0..2).for_each(|thread| touch(w, thread, pair[thread as usize], false))
        });
    });
    let (two, count) = run(&both, Bytes::mib(4), slow(Nanos::millis(1)));
    assert!(count.misses > 1500, "{count:?}");
    assert!(two.seconds < 0.65 * late.seconds, "{} of {}", two.seconds, late.seconds);
}

#[test]
fn a_sweep_goes_at_the_stores_bandwidth_and_no_faster() {
    let input = recording(|w| {
        sweep(w, 16_384, true);
        (0..4).for_each(|_| sweep(w, 16_384, false));
    });
    let (run, far) = run(&input, Bytes::mib(8), disk());
    let moved = far.read_bytes + far.written_bytes;
    assert!(far.read_bytes > 3 * (32 << 20) && far.written_bytes > 32 << 20, "{far:?}");
    let least = moved as f64 / 1.1e9;
    assert!(
        run.seconds > least && run.seconds < 1.6 * least,
        "{} s, {least} at the bandwidth",
        run.seconds
    );
    assert!(far.prefetched_bytes > far.read_bytes / 2 && far.misses < 2000, "{far:?}");
}

#[test]
fn more_memory_and_faster_stores_help_and_equal_runs_are_equal() {
    let input = recording(|w| {
        sweep(w, 4096, true);
        scattered(2048, 6000).for_each(|page| touch(w, 0, page, page % 3 == 0));
    });
    let seconds: Vec<f64> =
        [3, 6, 12, 24].map(|mib| run(&input, Bytes::mib(mib), disk()).0.seconds).into();
    assert!(seconds.windows(2).all(|pair| pair[1] < pair[0]), "{seconds:?}");
    let [_, compressed] = FarStore::usual();
    let (near, count) = run(&input, Bytes::mib(3), compressed);
    assert!(near.seconds < 0.6 * seconds[0], "{} and {seconds:?}", near.seconds);
    // The pager's CPU does it: it works for longer than with a disk.
    let (again, other) = run(&input, Bytes::mib(3), disk());
    assert!(near.overhead_seconds > again.overhead_seconds);
    assert_eq!(
        (again.seconds, other.read_bytes > 0, count.written_bytes > 0),
        (seconds[0], true, true)
    );
    let infinite =
        FarStore { read_bandwidth: BytesPerSec(1 << 40), operation: Nanos::ZERO, ..disk() };
    assert!(run(&input, Bytes::mib(3), infinite).0.seconds < seconds[0]);
}

#[test]
fn a_workload_with_threads_that_meet_comes_to_its_end() {
    let machine = machine(Bytes::mib(4), disk());
    let plan = SimSetup::new(&machine, "npb-cg,threads=3,size=12MiB,accesses=2M").unwrap();
    let run = simulate(&plan, &"far:file".parse().unwrap(), RunOptions::default()).unwrap();
    let plain =
        SimSetup::new(&preset("lab-cxl").unwrap(), "npb-cg,threads=3,size=12MiB,accesses=2M")
            .unwrap();
    let plain = simulate(&plain, &PolicyId::FirstTouch.into(), RunOptions::default()).unwrap();
    assert_eq!(run.accesses, plain.accesses);
    assert!(run.far.unwrap().misses > 0 && run.seconds > plain.seconds, "{run:?}");
}

#[test]
fn what_cannot_be_is_said() {
    let ask = |dram, policy: &str| {
        let plan = SimSetup::new(&machine(dram, disk()), "skew,accesses=10k,size=8MiB").unwrap();
        simulate(&plan, &policy.parse().unwrap(), RunOptions::default()).unwrap_err()
    };
    let error = ask(Bytes::mib(8), "far:tape");
    assert!(matches!(&error, SimError::NoStore { known, .. } if known == "file"), "{error}");
    let error = ask(Bytes::mib(1), "far:file");
    assert!(
        matches!(&error, SimError::TooLittle { need, .. } if *need == Bytes::mib(2)),
        "{error}"
    );
    assert!(error.to_string().contains("give it more"), "{error}");
}
