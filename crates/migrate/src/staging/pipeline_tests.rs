//! Staging on one node: the same results as in place, whatever the threads, buffers and blocks.

use super::pipeline::lock;
use super::*;
use crate::MoveCosts;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use terrace_sys::AnonymousMapping;
use terrace_types::{Bytes, BytesPerSec, NodeId, Seed};

pub(super) fn node() -> NodeId {
    terrace_sys::zones::nodes_with_memory(&terrace_sys::Root::live())
        .first()
        .copied()
        .unwrap_or_default()
}

pub(super) fn fixed(workers: u32, migrators: u32) -> StagingOptions {
    StagingOptions::new(node(), Threads::Fixed { workers, migrators })
}

/// Blocks of uneven sizes over so many elements, some empty, gaps between some.
pub(super) fn uneven(elements: usize, seed: u64) -> Vec<Range<usize>> {
    let mut seed = Seed(seed);
    let (mut at, mut blocks) = (0, Vec::new());
    while at < elements {
        let (random, next) = seed.next();
        seed = next;
        let length = (random % 9000) as usize * usize::from(random % 7 != 0);
        let end = (at + length).min(elements);
        blocks.push(at..end);
        at = end + (random >> 32) as usize % 3;
    }
    blocks
}

pub(super) fn kernel(block: usize, part: &mut [u64]) {
    for (i, x) in part.iter_mut().enumerate() {
        *x = x.wrapping_mul(31).wrapping_add((block * 7 + i) as u64);
    }
}

#[test]
fn staged_results_are_those_of_plain_code() {
    for (seed, options) in [
        (1, fixed(1, 1)),
        (2, fixed(3, 1)),
        (3, fixed(1, 2)),
        (4, StagingOptions { slots: Some(2), ..fixed(2, 2) }),
    ] {
        let blocks = uneven(150_000, seed);
        let mut data: Vec<u64> = (0..150_000).collect();
        let mut plain = data.clone();
        blocks.iter().cloned().enumerate().for_each(|(b, range)| kernel(b, &mut plain[range]));
        let report = match stage_update(&mut data, blocks.clone(), &options, kernel) {
            Err(StageError::Sys(e)) => return println!("skipped: {e}"),
            other => other.unwrap(),
        };
        assert_eq!(data, plain, "seed {seed}");
        let bytes: usize = blocks.iter().map(|r| r.len() * 8).sum();
        assert_eq!((report.mode, report.blocks), (StagingMode::Staged, blocks.len()));
        assert_eq!((report.brought, report.returned), (Bytes(bytes as u64), Bytes(bytes as u64)));
    }
}

#[test]
fn blocks_in_parts_are_whole_when_they_are_worked_on_and_when_they_are_back() {
    // Up to twelve parts a block, several threads copying each; odd ends.
    let ends = [0, 400_000, 400_001, 733_333, 733_333, 1_000_003, 1_150_000];
    let blocks: Vec<Range<usize>> = ends.windows(2).map(|w| w[0]..w[1]).collect();
    for (workers, migrators, slots) in [(1, 3, 2), (2, 4, 6), (3, 1, 4)] {
        let mut data: Vec<u64> = (0..1_200_000).collect();
        let mut plain = data.clone();
        blocks.iter().cloned().enumerate().for_each(|(b, range)| kernel(b, &mut plain[range]));
        let options = StagingOptions { slots: Some(slots), ..fixed(workers, migrators) };
        let report = match stage_update(&mut data, blocks.clone(), &options, kernel) {
            Err(StageError::Sys(e)) => return println!("skipped: {e}"),
            other => other.unwrap(),
        };
        assert!(data == plain, "{workers}:{migrators}");
        assert_eq!((report.brought, report.returned), (Bytes(1_150_000 * 8), Bytes(1_150_000 * 8)));
    }
}

#[test]
fn reading_brings_every_block_once_and_returns_nothing() {
    let data: Vec<u32> = (0..100_000).collect();
    let blocks: Vec<Range<usize>> = (0..25).map(|k| k * 4000..(k + 1) * 4000).collect();
    let (sum, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let result = stage_read(&data, blocks, &fixed(2, 1), |_, part| {
        calls.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(part.iter().map(|x| *x as usize).sum(), Ordering::Relaxed);
    });
    let report = match result {
        Err(StageError::Sys(e)) => return println!("skipped: {e}"),
        other => other.unwrap(),
    };
    assert_eq!((sum.into_inner(), calls.into_inner()), (100_000 / 2 * 99_999, 25));
    assert_eq!((report.brought, report.returned), (Bytes(400_000), Bytes::ZERO));
}

#[test]
fn blocks_whose_addresses_stay_are_worked_on_where_they_are() {
    // On one node pages are there already; the lab moves them for real (stage-in-the-lab of ring
    // 3).
    for (seed, split) in [(5, (2, 1)), (6, (1, 2))] {
        let blocks = uneven(150_000, seed);
        let mut data: Vec<u64> = (0..150_000).collect();
        let mut plain = data.clone();
        blocks.iter().cloned().enumerate().for_each(|(b, range)| kernel(b, &mut plain[range]));
        let (begin, end) = (data.as_ptr() as usize, data.as_ptr() as usize + 150_000 * 8);
        let options = StagingOptions { keep_addresses: true, ..fixed(split.0, split.1) };
        let firsts: Vec<usize> = blocks.iter().map(|b| begin + b.start * 8).collect();
        let result = stage_update(&mut data, blocks.clone(), &options, |block, part| {
            assert!(
                part.is_empty() || part.as_ptr() as usize == firsts[block],
                "block {block} is elsewhere"
            );
            kernel(block, part);
        });
        let report = match result {
            Err(StageError::Sys(e)) => return println!("skipped: {e}"),
            other => other.unwrap(),
        };
        assert_eq!((data == plain, report.mode), (true, StagingMode::Staged), "seed {seed}");
        let page = terrace_sys::page_size().get() as usize;
        let whole = |b: &Range<usize>| {
            let (start, end) = (begin + b.start * 8, begin + b.end * 8);
            (end / page).saturating_sub(start.div_ceil(page)) * page
        };
        let (bytes, all): (usize, usize) =
            (blocks.iter().map(whole).sum(), blocks.iter().map(|b| b.len() * 8).sum());
        assert_eq!(report.brought, Bytes(bytes as u64), "{begin:x}..{end:x}");
        assert_eq!((report.returned, report.stayed), (report.brought, Bytes((all - bytes) as u64)));
    }
}

#[test]
fn a_kernel_that_panics_where_addresses_stay_may_leave_its_block_half_done() {
    let mut data = vec![1_u64; 100_000];
    let blocks: Vec<Range<usize>> = (0..10).map(|k| k * 10_000..(k + 1) * 10_000).collect();
    let options = StagingOptions { keep_addresses: true, ..fixed(1, 1) };
    let panics = |block: usize, part: &mut [u64]| {
        part[0] = 2;
        assert!(block != 3, "the third");
    };
    match stage_update(&mut data, blocks.clone(), &options, panics) {
        Err(StageError::Sys(e)) => return println!("skipped: {e}"),
        Err(StageError::Panicked { block, message, intact }) => {
            assert_eq!((block, message.as_str(), intact), (3, "the third", false))
        }
        other => panic!("{other:?}"),
    }
    let read = stage_read(&data, blocks, &options, |block, _| assert!(block != 3, "the third"));
    assert!(matches!(read, Err(StageError::Panicked { block: 3, intact: true, .. })), "{read:?}");
    // Not touched, so that nobody knows where it would go back to.
    let fresh = AnonymousMapping::new(Bytes::mib(1), terrace_sys::MappingPages::Base).unwrap();
    // SAFETY: the mapping is this long, zeroed, aligned, and nobody else's while it lives.
    let fresh = unsafe { std::slice::from_raw_parts(fresh.as_ptr().cast_const(), 1 << 20) };
    let nowhere = stage_read(fresh, (0..4).map(|k| k << 18..(k + 1) << 18), &options, |_, _| {});
    assert_eq!(nowhere, Err(StageError::NoHome));
}

/// Figures by which staging pays.
pub(super) fn costs() -> Costs {
    Costs {
        slow: BytesPerSec::gb(2),
        slow_thread: BytesPerSec::gb(1),
        fast: BytesPerSec::gb(40),
        fast_thread: BytesPerSec::gb(10),
        copy_thread: BytesPerSec::gb(1),
        cache: Bytes(1 << 10),
        cache_thread: BytesPerSec::gb(40),
        moves: MoveCosts::default(),
    }
}

#[test]
fn the_model_decides_and_gives_its_reason() {
    let blocks: Vec<Range<usize>> = (0..60).map(|k| k * 1000..(k + 1) * 1000).collect();
    let mut data: Vec<u64> = (0..60_000).collect();
    let mut plain = data.clone();
    blocks.iter().cloned().enumerate().for_each(|(b, range)| kernel(b, &mut plain[range]));
    let auto = StagingOptions {
        passes: 20.0,
        costs: Some(costs()),
        ..StagingOptions::new(node(), Threads::Auto(3))
    };
    match stage_update(&mut data, blocks.clone(), &auto, kernel) {
        Err(StageError::Sys(e)) => return println!("skipped: {e}"),
        other => assert_eq!(other.unwrap().mode, StagingMode::Staged),
    }
    assert_eq!(data, plain);
    let cases = [
        (StagingOptions { slow: Some(node()), ..auto.clone() }, NoStagingReason::OneTier),
        (StagingOptions { costs: None, ..auto.clone() }, NoStagingReason::NoFigures),
        (StagingOptions { threads: Threads::Auto(1), ..auto.clone() }, NoStagingReason::OneThread),
        (StagingOptions { threads: Threads::InPlace(2), ..auto.clone() }, NoStagingReason::Asked),
    ];
    for (options, why) in cases {
        let mut data: Vec<u64> = (0..60_000).collect();
        let report = stage_update(&mut data, blocks.clone(), &options, kernel).unwrap();
        assert_eq!((report.mode, report.brought), (StagingMode::InPlace(why), Bytes::ZERO));
        assert_eq!(data, plain, "{why}");
    }
}

#[test]
fn nothing_to_do_is_done_and_no_threads_are_an_error() {
    let mut none: Vec<u64> = Vec::new();
    for options in [fixed(2, 1), StagingOptions::new(node(), Threads::Auto(4))] {
        let report = stage_update(&mut none, [], &options, |_, _| panic!("no block")).unwrap();
        assert_eq!(
            (report.mode, report.blocks),
            (StagingMode::InPlace(NoStagingReason::Nothing), 0)
        );
    }
    let mut data = [1_u64; 10];
    let calls = AtomicUsize::new(0);
    let count = |_: usize, part: &mut [u64]| {
        assert!(part.is_empty());
        calls.fetch_add(1, Ordering::Relaxed);
    };
    stage_update(&mut data, [3..3, 3..3], &fixed(1, 1), count).unwrap();
    assert_eq!(calls.into_inner(), 2, "an empty block is a block");
    assert_eq!(
        stage_update(&mut data, Some(0..4), &fixed(0, 0), |_, _| {}),
        Err(StageError::NoThreads)
    );
    let mut units = [(); 5];
    stage_update(&mut units, [0..2, 2..5], &fixed(1, 1), |_, _| {}).unwrap();
}

#[test]
fn ranges_that_overlap_or_leave_the_data_are_refused() {
    let mut data = [0_u8; 100];
    let ran = AtomicUsize::new(0);
    let kernel = |_: usize, _: &mut [u8]| {
        ran.fetch_add(1, Ordering::Relaxed);
    };
    let overlap = stage_update(&mut data, [50..60, 0..10, 9..20], &fixed(1, 1), kernel);
    assert_eq!(overlap, Err(StageError::Overlap { first: 1, second: 2 }));
    let beyond = stage_update(&mut data, [0..10, 90..101], &fixed(1, 1), kernel);
    assert_eq!(beyond, Err(StageError::OutOfBounds { block: 1, start: 90, end: 101, length: 100 }));
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = stage_update(&mut data, Some(9..3), &fixed(1, 1), kernel);
    assert!(matches!(backwards, Err(StageError::OutOfBounds { block: 0, .. })));
    assert_eq!(
        stage_read(&data, [0..5, 0..5], &fixed(1, 1), |_, _| {}),
        Err(StageError::Overlap { first: 0, second: 1 })
    );
    assert_eq!(ran.into_inner(), 0);
}

#[test]
fn a_kernel_that_panics_is_an_error_and_the_source_is_whole() {
    let blocks: Vec<Range<usize>> = (0..40).map(|k| k * 500..(k + 1) * 500).collect();
    for (workers, migrators) in [(1, 1), (3, 2)] {
        let mut data: Vec<u64> = vec![1; 20_000];
        let result =
            stage_update(&mut data, blocks.clone(), &fixed(workers, migrators), |block, part| {
                part.fill(2);
                assert!(block != 17, "seventeen");
            });
        let (block, message) = match result {
            Err(StageError::Panicked { block, message, intact: true }) => (block, message),
            Err(StageError::Sys(e)) => return println!("skipped: {e}"),
            other => panic!("{other:?}"),
        };
        assert!(block == 17 && message.contains("seventeen"), "{message}");
        assert!(data[17 * 500..18 * 500].iter().all(|x| *x == 1), "the block is as it was");
        // Every other block is as it was or whole.
        assert!(data.chunks(500).all(|b| b.iter().all(|x| *x == b[0])));
    }
    let mut data: Vec<u64> = vec![1; 20_000];
    let result = stage_update(
        &mut data,
        blocks,
        &StagingOptions::new(node(), Threads::InPlace(2)),
        |block, _| {
            assert!(block != 3, "three");
        },
    );
    assert!(
        matches!(result, Err(StageError::Panicked { block: 3, intact: false, .. })),
        "{result:?}"
    );
}

#[test]
fn no_space_and_an_absent_node() {
    let mut data = vec![0_u64; 10_000];
    let blocks = [0..5000, 5000..10_000];
    let small = StagingOptions { room: Bytes(50_000), ..fixed(1, 1) };
    let report = stage_update(&mut data, blocks.clone(), &small, |_, part| part.fill(3)).unwrap();
    assert!(matches!(report.mode, StagingMode::InPlace(NoStagingReason::NoSpace { .. })));
    assert!(data.iter().all(|x| *x == 3));
    let nowhere = StagingOptions { fast: NodeId(999), ..fixed(1, 1) };
    assert!(matches!(
        stage_update(&mut data, blocks, &nowhere, |_, part| part.fill(4)),
        Err(StageError::Sys(_))
    ));
    assert!(data.iter().all(|x| *x == 3), "nothing was begun");
}

#[test]
fn buffers_that_somebody_keeps_outlive_the_run() {
    let mut data = vec![7_u8; 40_000];
    let kept = Mutex::new(Vec::new());
    let blocks = (0..4).map(|b| b * 10_000..(b + 1) * 10_000);
    stage_held(&mut data, true, blocks, &fixed(1, 1), |block, part, buffers| {
        part.fill(block as u8);
        let at = part.as_ptr() as usize;
        lock(&kept).push((at, buffers.cloned().expect("staged blocks lie in buffers")));
    })
    .unwrap();
    assert!(data.chunks(10_000).enumerate().all(|(b, part)| part.iter().all(|x| *x == b as u8)));
    let kept = kept.into_inner().unwrap();
    assert_eq!(kept.len(), 4);
    for (at, buffers) in &kept {
        let inside = at - buffers.as_ptr() as usize;
        assert!(inside + 10_000 <= buffers.len());
        // SAFETY: within the mapping, which the Arc keeps; the run is over, so nobody writes to it.
        let part = unsafe { std::slice::from_raw_parts(*at as *const u8, 10_000) };
        assert!(part.iter().all(|x| *x == part[0] && *x < 4));
    }
    let options = StagingOptions::new(node(), Threads::InPlace(1));
    stage_held(&mut data, false, std::iter::once(0..100), &options, |_, _, buffers| {
        assert!(buffers.is_none())
    })
    .unwrap();
}
