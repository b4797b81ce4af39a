//! What remote accesses take, against what their figures say.

mod common;

use common::{compile, run_with, RunOptions};
use std::sync::OnceLock;
use terrace_types::Nanos;
use terrace_xbgas::clock::CoreOrder;
use terrace_xbgas::element::ElementsEnd;
use terrace_xbgas::network::ElementNetwork;

/// Memory of `lab-dcpmm`'s fast node, its core's misses and time of an instruction.
const MEMORY_NS: f64 = 80.0;
const OUTSTANDING: f64 = 10.0;

/// `time.c`, compiled once; `None` without a compiler.
fn program() -> Option<&'static [u8]> {
    static FILE: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    FILE.get_or_init(|| compile("time.c", 2018)).as_deref()
}

/// Nanoseconds that `time.c` prints.
fn measure(
    file: &[u8],
    what: &str,
    steps: u32,
    elements: u32,
    order: CoreOrder,
    network: ElementNetwork,
) -> f64 {
    let options = RunOptions::of(elements).in_time("lab-dcpmm", order, network);
    let run = run_with(file, &[what, &steps.to_string()], elements, &options);
    assert_eq!(run.end, ElementsEnd::Exit(0), "{:?}", run.printed);
    let first = run.printed[0].split(' ').next().expect("a number");
    first.parse().expect("a number")
}

fn unlimited(latency_ns: u64) -> ElementNetwork {
    ElementNetwork {
        bandwidth: None,
        messages_per_us: None,
        ..ElementNetwork::preset(Nanos(latency_ns))
    }
}

#[track_caller]
fn assert_near(found: f64, expected: f64, percent: f64) {
    let off = (found / expected - 1.0).abs() * 100.0;
    assert!(off <= percent, "{found} instead of {expected} ns");
}

#[test]
fn a_chase_takes_a_round_trip_a_step_on_either_core() {
    let Some(file) = program() else { return };
    for order in [CoreOrder::InOrder, CoreOrder::OutOfOrder] {
        for (what, latency) in [("chase", 100), ("chase", 200), ("memory", 200), ("both", 200)] {
            let took = measure(file, what, 400, 2, order, unlimited(latency));
            assert_near(took, 400.0 * (2.0 * latency as f64 + MEMORY_NS), 4.0);
        }
    }
}

#[test]
fn eight_loads_at_once_overlap_where_single_ones_cannot() {
    let Some(file) = program() else { return };
    let trip = 2.0 * 200.0 + MEMORY_NS;
    let took = |what, order| measure(file, what, 800, 2, order, unlimited(200));
    // In order, a single get waits for its value, and eight for the first of them.
    assert_near(took("singles", CoreOrder::InOrder), 800.0 * trip, 6.0);
    assert_near(took("get", CoreOrder::InOrder), 100.0 * trip, 10.0);
    // Out of order, miss registers bound what overlaps.
    assert_near(took("get", CoreOrder::OutOfOrder), 800.0 / OUTSTANDING * trip, 10.0);
    // Stores do not wait, but each takes a register until its answer.
    assert_near(took("put", CoreOrder::InOrder), 800.0 / OUTSTANDING * trip, 10.0);
}

#[test]
fn rates_of_the_network_bound_transfers() {
    let Some(file) = program() else { return };
    let slow = |key: &str| ElementNetwork::parse(&format!("latency_ns=100,{key}")).unwrap();
    let put = |network| measure(file, "put", 2000, 2, CoreOrder::OutOfOrder, network);
    // 2 messages a microsecond; 24 bytes at 60 MB/s.
    assert_near(put(slow("messages_per_us=2")), 2000.0 * 500.0, 2.0);
    assert_near(put(slow("bandwidth_bytes_per_s=60000000")), 2000.0 * 400.0, 2.0);
}

#[test]
fn a_barrier_takes_a_trip_for_each_of_its_rounds() {
    let Some(file) = program() else { return };
    for (elements, rounds) in [(2, 1.0), (4, 2.0), (8, 3.0), (16, 4.0)] {
        let network = unlimited(1000);
        let took = measure(file, "barrier", 20, elements, CoreOrder::OutOfOrder, network);
        // A fence waits for the last round's answer, which overlaps the next barrier's begin.
        let trip = 1000.0 + MEMORY_NS;
        let least = 20.0 * rounds * 1000.0;
        assert!(took >= least && took <= 20.0 * (rounds + 1.0) * 1.1 * trip, "{elements} {took}");
    }
}
