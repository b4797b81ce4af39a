//! A persistent list, as list.c: nodes are written and persistent before the head points at them.
//!
//!     rustc -O -g list.rs                      correct
//!     BUG=1 rustc -O -g list.rs                the node is not flushed
//!     BUG=2 rustc -O -g list.rs                the head points at the node first
//!     BUG=3 rustc -O -g list.rs                the node is written after its flush
//!     terrace crash check -- ./list

mod pm;
mod terrace_crash;

use pm::{checksum, is_bug, persist, restarted, Cell};
use terrace_crash::CrashRegion;

const NODES: usize = 12;

/// In a line of its own.
#[repr(C, align(64))]
struct Node {
    value: Cell,
    /// Number of a node, from 1; 0 at the end.
    next: Cell,
    checksum: Cell,
}

#[repr(C, align(64))]
struct Pool {
    head: Cell,
    nodes: [Node; NODES],
}

static POOL: Pool = Pool {
    head: Cell::new(0),
    nodes: [const { Node { value: Cell::new(0), next: Cell::new(0), checksum: Cell::new(0) } };
        NODES],
};

#[inline(never)]
fn push(number: u64, value: u64) {
    let node = &POOL.nodes[number as usize - 1];
    let old = POOL.head.get();
    if is_bug(2) {
        POOL.head.set(number);
        persist(&POOL.head);
    }
    node.next.set(old);
    node.value.set(value);
    if !is_bug(3) {
        node.checksum.set(checksum(value, old));
    }
    if !is_bug(1) {
        pm::flush(node);
    }
    if is_bug(3) {
        node.checksum.set(checksum(value, old));
    }
    pm::fence();
    if !is_bug(2) {
        POOL.head.set(number);
        persist(&POOL.head);
    }
}

/// Every node that can be reached is whole, and none is reached twice.
fn is_whole() -> bool {
    let (mut at, mut steps) = (POOL.head.get(), 0);
    while at > 0 {
        let node = POOL.nodes.get(at as usize - 1);
        let whole = node.is_some_and(|n| n.checksum.get() == checksum(n.value.get(), n.next.get()));
        steps += 1;
        if !whole || steps > NODES as u64 {
            println!("node {at} is not whole");
            return false;
        }
        at = node.map_or(0, |n| n.next.get());
    }
    steps == POOL.head.get()
}

fn main() {
    let mut region = CrashRegion::default();
    let words = std::mem::size_of::<Pool>() / 8;
    // SAFETY: the pool is made of atomics, and stays.
    unsafe { region.critical_data("pool", (&raw const POOL).cast_mut().cast::<u64>(), words) };
    region.crash_restore();
    if !restarted() {
        region.start_crash();
        (1..=NODES as u64).for_each(|i| push(i, 100 + i));
        region.end_crash();
    }
    std::process::exit(i32::from(!is_whole()));
}
