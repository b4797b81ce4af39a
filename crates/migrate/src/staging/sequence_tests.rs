//! Blocks that come while others are worked on.

use super::pipeline_tests::{costs, fixed, kernel, node, uneven};
use super::*;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, Weak};
use terrace_types::Bytes;

/// Ways to work, each with blocks asked for one by one.
fn ways() -> [StagingOptions; 4] {
    let one = |o: StagingOptions| StagingOptions { ahead: 1, ..o };
    [
        one(StagingOptions { slots: Some(3), ..fixed(2, 1) }),
        one(StagingOptions {
            keep_addresses: true,
            slow: Some(node()),
            slots: Some(2),
            ..fixed(1, 2)
        }),
        one(StagingOptions::new(node(), Threads::InPlace(3))),
        one(StagingOptions {
            passes: 20.0,
            costs: Some(costs()),
            slots: Some(3),
            ..StagingOptions::new(node(), Threads::Auto(3))
        }),
    ]
}

/// What plain code makes of these blocks.
fn plain(mut data: Vec<u64>, blocks: &[Range<usize>]) -> Vec<u64> {
    blocks.iter().cloned().enumerate().for_each(|(b, range)| kernel(b, &mut data[range]));
    data
}

/// An error of this machine, not of the pipeline.
fn here<T: std::fmt::Debug>(result: Result<T, StageError>) -> Option<Result<T, StageError>> {
    match result {
        Err(StageError::Sys(e)) => {
            println!("skipped: {e}");
            None
        }
        other => Some(other),
    }
}

#[test]
fn blocks_are_asked_for_while_others_are_worked_on() {
    for options in ways() {
        let blocks = uneven(150_000, 11);
        let (asked, through, most) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let mut data: Vec<u64> = (0..150_000).collect();
        let wanted = plain(data.clone(), &blocks);
        let given = blocks.iter().cloned().inspect(|_| {
            let ahead = asked.fetch_add(1, Ordering::SeqCst) + 1 - through.load(Ordering::SeqCst);
            most.fetch_max(ahead, Ordering::SeqCst);
        });
        let counted = |block: usize, part: &mut [u64]| {
            kernel(block, part);
            through.fetch_add(1, Ordering::SeqCst);
        };
        let Some(report) = here(stage_update(&mut data, given, &options, counted)) else { return };
        let report = report.unwrap();
        assert!(data == wanted, "{options:?}");
        assert_eq!((report.blocks, asked.into_inner()), (blocks.len(), blocks.len()));
        // Those in buffers or in threads' hands, and the one that is asked for.
        let most = most.into_inner();
        assert!(most <= 4, "{most} ahead: {options:?}");
    }
}

#[test]
fn what_gives_the_blocks_may_wait_for_the_one_before() {
    for options in ways() {
        let mut data = vec![1_u64; 64_000];
        let (reported, heard) = sync_channel(64);
        let mut next = 0;
        // As long as kernels tell: block k + 1 is known once block k was worked on.
        let given = std::iter::from_fn(move || {
            if next > 0 {
                let through: usize = heard.recv().expect("the kernel is there");
                assert_eq!(through, next - 1);
            }
            next += 1;
            (next <= 16).then(|| (next - 1) * 4000..next * 4000)
        });
        let tells = |block: usize, part: &mut [u64]| {
            part.fill(block as u64);
            reported.send(block).expect("the iterator is there");
        };
        let Some(report) = here(stage_update(&mut data, given, &options, tells)) else { return };
        assert_eq!(report.unwrap().blocks, 16, "{options:?}");
        assert!(data.iter().enumerate().all(|(i, x)| *x as usize == i / 4000), "{options:?}");
    }
}

#[test]
fn a_late_overlap_ends_the_run_with_blocks_whole_and_buffers_given_back() {
    for options in ways() {
        // Of blocks that are through by then, and of those that are not.
        for (bad, first) in
            [(3_000..3_500, 3), (38_999..39_001, 38), (38_500..38_600, 38), (0..40_000, 0)]
        {
            let mut data = vec![1_u64; 40_000];
            let given = (0..39).map(|k| k * 1000..(k + 1) * 1000).chain(std::iter::once(bad));
            let result = stage_update(&mut data, given, &options, |_, part| {
                part.iter_mut().for_each(|x| *x += 1)
            });
            let Some(result) = here(result) else { return };
            match result {
                Err(StageError::Overlap { first: reported, second: 39 }) if first > 0 => {
                    assert_eq!(reported, first)
                }
                Err(StageError::Overlap { second: 39, .. }) => {}
                other => panic!("{other:?}"),
            }
            assert!(
                data.chunks(1000).all(|b| b.iter().all(|x| *x == b[0] && (1..=2).contains(x))),
                "half a block"
            );
            assert!(data[39_000..].iter().all(|x| *x == 1), "what is in no block is as it was");
        }
        let beyond = stage_read(
            &[0_u8; 900][..],
            (0..).map(|k| k * 100..k * 100 + 100),
            &options,
            |_, _| {},
        );
        let Some(beyond) = here(beyond) else { return };
        assert_eq!(
            beyond,
            Err(StageError::OutOfBounds { block: 9, start: 900, end: 1000, length: 900 })
        );
        let twice = stage_read(
            &[0_u8; 900][..],
            (0..).map(|k| k % 9 * 100..k % 9 * 100 + 100),
            &options,
            |_, _| {},
        );
        assert_eq!(
            twice,
            Err(StageError::Overlap { first: 0, second: 9 }),
            "whether it is through or not"
        );
    }
    let (mut data, buffers) = (vec![1_u8; 50_000], Mutex::new(Weak::new()));
    let given = (0..40).map(|k| k * 1000..(k + 1) * 1000).chain(std::iter::once(0..1));
    let result = stage_held(
        &mut data,
        true,
        given,
        &StagingOptions { ahead: 1, ..fixed(1, 1) },
        |_, _, held| {
            *buffers.lock().unwrap() = held.map_or_else(Weak::new, std::sync::Arc::downgrade);
        },
    );
    assert_eq!(result, Err(StageError::Overlap { first: 0, second: 40 }));
    assert!(buffers.lock().unwrap().upgrade().is_none(), "buffers are given back");
}

#[test]
fn a_panic_of_what_gives_the_blocks_is_an_error() {
    for options in ways() {
        let mut data = vec![1_u64; 40_000];
        let given = (0..40).map(|k| {
            if k < 23 {
                k * 1000..(k + 1) * 1000
            } else {
                resume_unwind(Box::new("no more"))
            }
        });
        let Some(result) = here(stage_update(&mut data, given, &options, |_, part| part.fill(2)))
        else {
            return;
        };
        assert_eq!(result, Err(StageError::Sequence { after: 23, message: "no more".into() }));
        assert!(data.chunks(1000).all(|b| b.iter().all(|x| *x == b[0])), "half a block");
        assert!(data[23_000..].iter().all(|x| *x == 1));
    }
}

#[test]
fn a_block_larger_than_the_buffers_is_worked_on_where_it_lies() {
    let blocks = [0..1000, 1000..2000, 5000..90_000, 90_000..91_000, 91_000..150_000];
    let mut data: Vec<u64> = (0..150_000).collect();
    let wanted = plain(data.clone(), &blocks);
    let base = data.as_ptr() as usize;
    let there = Mutex::new(Vec::new());
    let options = StagingOptions { ahead: 2, ..fixed(2, 1) };
    let looks = |block: usize, part: &mut [u64]| {
        if part.as_ptr() as usize == base + blocks[block].start * 8 {
            there.lock().unwrap().push(block);
        }
        kernel(block, part);
    };
    let Some(report) = here(stage_update(&mut data, blocks.clone(), &options, looks)) else {
        return;
    };
    let report = report.unwrap();
    assert!(data == wanted);
    let mut there = there.into_inner().unwrap();
    there.sort_unstable();
    assert_eq!((there, report.stayed), (vec![2, 4], Bytes((85_000 + 59_000) * 8)));
    assert_eq!((report.brought, report.returned), (Bytes(24_000), Bytes(24_000)));
    // It is not intact if its kernel fails; it is staged where its size was reported.
    let fails = |block: usize, _: &mut [u64]| assert!(block != 2, "large");
    let failed = stage_update(&mut data, blocks.clone(), &options, fails);
    assert!(
        matches!(failed, Err(StageError::Panicked { block: 2, intact: false, .. })),
        "{failed:?}"
    );
    let reported = StagingOptions { largest: Some(Bytes(85_000 * 8)), ..options };
    let failed = stage_update(&mut data, blocks.clone(), &reported, fails);
    assert!(
        matches!(failed, Err(StageError::Panicked { block: 2, intact: true, .. })),
        "{failed:?}"
    );
}

#[test]
fn blocks_on_their_way_back_are_completed_when_a_kernel_fails() {
    // Of 32 parts each, so that the failure comes while some are on their way.
    const EACH: usize = 1 << 20;
    for round in 0..12 {
        let mut data = vec![1_u64; 4 * EACH];
        let turn = AtomicUsize::new(0);
        let options = StagingOptions { slots: Some(4), ..fixed(1, 1 + round % 2) };
        let result = stage_update(
            &mut data,
            (0..4).map(|k| k * EACH..(k + 1) * EACH),
            &options,
            |block, part| {
                part.fill(2);
                assert!(
                    turn.fetch_add(1, Ordering::SeqCst) < 1 + round as usize % 3,
                    "block {block}"
                );
            },
        );
        let Some(result) = here(result) else { return };
        assert!(matches!(result, Err(StageError::Panicked { intact: true, .. })), "{result:?}");
        let whole = |b: &[u64]| b.iter().all(|x| *x == b[0]);
        assert!(data.chunks(EACH).all(whole), "half a block is back in round {round}");
    }
}

#[test]
fn the_model_goes_by_what_is_expected() {
    let run = |options: &StagingOptions| {
        let mut at = 0;
        let unknown = std::iter::from_fn(|| {
            at += 1000;
            (at <= 60_000).then(|| at - 1000..at)
        });
        stage_read(&[7_u64; 60_000][..], unknown, options, |_, _| {})
    };
    let auto = StagingOptions {
        ahead: 1,
        passes: 20.0,
        costs: Some(costs()),
        ..StagingOptions::new(node(), Threads::Auto(3))
    };
    let Some(staged) = here(run(&auto)) else { return };
    assert_eq!(staged.unwrap().mode, StagingMode::Staged, "it is taken to go over all of the data");
    let one = StagingOptions { expected: Some(1), ..auto.clone() };
    let report = run(&one).unwrap();
    assert_eq!(
        (report.mode, report.blocks),
        (StagingMode::InPlace(NoStagingReason::OneBlock), 60),
        "told too few, it does them all the same"
    );
    let small = Costs { cache: Bytes(9000), ..costs() };
    let cached =
        run(&StagingOptions { expected: Some(1), costs: Some(small), ..auto.clone() }).unwrap();
    assert!(matches!(cached.mode, StagingMode::InPlace(_)));
    let reported = StagingOptions { largest: Some(Bytes(1 << 40)), ..auto };
    assert!(matches!(
        run(&reported).unwrap().mode,
        StagingMode::InPlace(NoStagingReason::NoSpace { .. })
    ));
}
