//! Recordings run on a simulated machine.
#![allow(clippy::unwrap_used)]

mod common;

use common::recording;
use terrace_machine::preset;
use terrace_sim::recording::RecordedFlush;
use terrace_sim::{
    simulate, simulate_in_slow_memory, RunOptions, SimError, SimInput, SimRun, SimSetup,
};
use terrace_trace::{Access, TraceWriter};

fn run(input: SimInput, policy: &str) -> Result<SimRun, SimError> {
    let plan = SimSetup::from_machine(&preset("lab-cxl").unwrap(), input)?;
    simulate(&plan, &policy.parse().unwrap(), RunOptions::default())
}

/// Every line once, in an order that no prefetcher follows, over 32 MiB.
fn scattered(i: u64) -> u64 {
    0x7f12_0000_0000 + i.wrapping_mul(0x9e37_79b1) % (1 << 19) * 64
}

const STEPS: u64 = 100_000;

fn chase(thread: u32, depends: u8) -> impl Fn(&mut TraceWriter<Vec<u8>>) {
    chase_for(STEPS, thread, depends)
}

fn chase_for(steps: u64, thread: u32, depends: u8) -> impl Fn(&mut TraceWriter<Vec<u8>>) {
    move |w| {
        for i in 0..steps {
            let access = Access {
                address: scattered(i + u64::from(thread) * STEPS),
                size: 8,
                gap: 4,
                depends,
                ..Access::default()
            };
            w.access(0, thread, &access).unwrap();
        }
    }
}

#[test]
fn a_chase_takes_the_latency_and_independent_loads_overlap() {
    // 80 ns a load where pages lie in the fast node, less what the caches serve; two misses in
    // flight. Twice as many touch no page first that the others have not.
    let per_load = |depends| {
        let seconds = |times| {
            run(recording(chase_for(times * STEPS, 0, depends)), "first-touch").unwrap().seconds
        };
        (seconds(2) - seconds(1)) * 1e9 / STEPS as f64
    };
    let (slow, quick) = (per_load(1), per_load(0));
    assert!((70.0..86.0).contains(&slow), "{slow}");
    assert!((35.0..45.0).contains(&quick), "{quick}");
    let dependent = run(recording(chase(0, 1)), "first-touch").unwrap();
    assert_eq!((dependent.accesses, dependent.fast_access_share), (STEPS, Some(1.0)));
}

#[test]
fn lines_that_are_written_back_cost_bytes_and_time() {
    const LINES: u64 = 512;
    const ROUNDS: u64 = 20;
    let line = |number: u64| 0x7f12_0000_0000 + number * 64;
    let stores = |w: &mut TraceWriter<Vec<u8>>| {
        for i in 0..ROUNDS * LINES {
            let address = line(i % LINES);
            let access = Access { address, size: 8, gap: 4, store: true, ..Access::default() };
            w.access(0, 0, &access).unwrap();
        }
    };
    let SimInput::Recording { name, recording } = recording(stores) else { panic!() };
    // All lines are written back every so many rounds.
    let run = |period: u64| {
        let flush = |round: u64| RecordedFlush {
            process: 0,
            thread: 0,
            time: (round + 1) * LINES * 4,
            addresses: (0..LINES).map(line).collect(),
        };
        let due = (0..ROUNDS).filter(|round| (round + 1) % period == 0).map(flush);
        let recording = recording.clone().with_flushes(due);
        let input = SimInput::Recording { name: name.clone(), recording };
        let plan = SimSetup::from_machine(&preset("lab-dcpmm").unwrap(), input).unwrap();
        simulate_in_slow_memory(&plan).unwrap()
    };
    // Whole blocks are written, and the lines fit the caches.
    let (never, every, second) = (run(ROUNDS + 1), run(1), run(2));
    assert_eq!(every.written_bytes - never.written_bytes, ROUNDS * LINES * 64);
    assert_eq!(second.written_bytes - never.written_bytes, ROUNDS / 2 * LINES * 64);
    assert!(never.seconds < second.seconds && second.seconds < every.seconds);
}

#[test]
fn threads_run_at_once_unless_one_waited_for_the_other() {
    let one = run(recording(chase(0, 1)), "first-touch").unwrap().seconds;
    let both = |w: &mut TraceWriter<Vec<u8>>| {
        chase(0, 1)(w);
        chase(1, 1)(w);
    };
    let together = run(recording(both), "first-touch").unwrap().seconds;
    assert!(together < 1.2 * one, "{together} against {one}");
    let waiting = |w: &mut TraceWriter<Vec<u8>>| {
        chase(0, 1)(w);
        w.advance(0, 1, STEPS * 4).unwrap();
        chase(1, 1)(w);
    };
    let in_turn = run(recording(waiting), "first-touch").unwrap().seconds;
    // The second finds all pages touched, as one would that went on.
    let expected = run(recording(chase_for(2 * STEPS, 0, 1)), "first-touch").unwrap().seconds;
    assert!((0.95..1.05).contains(&(in_turn / expected)), "{in_turn} against {expected}");
}

#[test]
fn any_address_is_accepted_and_a_small_machine_is_refused() {
    let wide = |w: &mut TraceWriter<Vec<u8>>| {
        for i in 0..1000u64 {
            w.access(
                0,
                0,
                &Access {
                    address: i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    size: 8,
                    gap: 1,
                    ..Access::default()
                },
            )
            .unwrap();
        }
    };
    assert_eq!(run(recording(wide), "first-touch").unwrap().accesses, 1000);
    let large = |w: &mut TraceWriter<Vec<u8>>| {
        for page in 0..(1200u64 << 20) / 4096 {
            w.access(0, 0, &Access { address: page * 4096, size: 8, gap: 1, ..Access::default() })
                .unwrap();
        }
    };
    let error = run(recording(large), "terrace").unwrap_err();
    assert!(matches!(error, SimError::TooSmall { .. }), "{error}");
}

/// Few hot pages among many, the hot ones touched last, twice as large as the fast node.
fn hot_at_the_end(w: &mut TraceWriter<Vec<u8>>) {
    const PAGES: u64 = (240 << 20) / 4096;
    let touch = |page: u64, line: u64| Access {
        address: 0x7f00_0000_0000 + page * 4096 + line % 64 * 64,
        size: 8,
        gap: 4,
        ..Access::default()
    };
    for page in 0..PAGES {
        w.access(0, 0, &touch(page, 0)).unwrap();
    }
    let hot = PAGES / 10;
    for i in 0..600_000u64 {
        w.access(0, 0, &touch(PAGES - 1 - i.wrapping_mul(0x9e37_79b1) % hot, i * 7)).unwrap();
    }
}

#[test]
fn bounds_place_the_pages_of_a_recording_too() {
    let seconds = |policy: &str| run(recording(hot_at_the_end), policy).unwrap().seconds;
    let (first, fixed, knows) =
        (seconds("first-touch"), seconds("bound:static"), seconds("bound:clairvoyant"));
    assert!(fixed < 0.9 * first && knows < 0.9 * first, "{first} {fixed} {knows}");
}

#[test]
fn policies_side_by_side_share_blocks_and_nothing_else() {
    let input = recording(|w| {
        chase(0, 1)(w);
        chase(1, 0)(w);
    });
    let SimInput::Recording { recording, .. } = &input else { panic!("a recording") };
    let recording = recording.clone();
    let plan = SimSetup::from_machine(&preset("lab-cxl").unwrap(), input).unwrap();
    let policies = ["first-touch", "bound:all-fast", "terrace", "first-touch"];
    let go = |workers| {
        let before = recording.blocks_decoded();
        let runs = terrace_sim::all(&policies, workers, |p| {
            simulate(&plan, &p.parse().unwrap(), RunOptions::default())
        })
        .unwrap();
        (runs, recording.blocks_decoded() - before)
    };
    let ((apart, by_each), (together, once)) = (go(1), go(4));
    assert_eq!(apart, together);
    // How many are shared depends on how the host deals out its cores (see the tests of `decoded`).
    assert!(by_each == 4 * 8 && (8..=by_each).contains(&once), "{by_each} {once}");
}
