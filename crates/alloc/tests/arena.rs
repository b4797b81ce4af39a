//! Arenas from outside: what is promised, and what goes wrong.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::time::Duration;
use terrace_alloc::arena::fake::FakeNodes;
use terrace_alloc::arena::*;
use terrace_types::{Bytes, NodeId};

const PAGE: usize = 4096;
const FAST: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);

fn arena() -> Arena {
    Arena::create(&ArenaSpec::default()).unwrap()
}

/// Nodes 0 and 1 (which see a page first when its node is asked for: hence the calls of
/// `residency`) with space for so many pages, for ever.
fn fake(fast: u64, slow: u64) -> &'static FakeNodes {
    Box::leak(Box::new(FakeNodes::new(&[(FAST, fast), (SLOW, slow)])))
}

fn on(nodes: &'static FakeNodes, devices: Devices) -> Arena {
    Arena::create(&ArenaSpec { devices, nodes, ..ArenaSpec::default() }).unwrap()
}

fn release(block: NonNull<u8>) -> Result<(), FreeError> {
    // SAFETY: tests free what they no longer use, or what must be refused.
    unsafe { free(block.as_ptr()) }
}

fn end(arena: Arena) {
    // SAFETY: the test is done with the arena's blocks.
    unsafe { arena.destroy() }.unwrap();
}

fn fill(block: NonNull<u8>, bytes: usize, with: u8) {
    // SAFETY: a block of at least so many bytes, the test's alone.
    unsafe { block.as_ptr().write_bytes(with, bytes) };
}

fn holds(block: NonNull<u8>, bytes: usize, what: u8) -> bool {
    // SAFETY: as in `fill`, and written or zero.
    unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) }.iter().all(|b| *b == what)
}

fn pages_of(residency: &Residency, node: NodeId) -> u64 {
    residency.nodes.get(&node).map_or(0, |b| b.get() / PAGE as u64)
}

#[test]
fn every_size_is_a_block_of_its_own_until_it_overflows() {
    let arena = arena();
    let sizes: Vec<usize> = (0..200)
        .chain((8..26).flat_map(|log| [(1 << log) - 1, 1 << log, (1 << log) + 1]))
        .collect();
    let mut taken = BTreeSet::new();
    for (at, size) in sizes.iter().enumerate() {
        let block = arena.alloc(*size).unwrap();
        let start = block.as_ptr() as usize;
        assert_eq!(start % 16, 0);
        let usable = usable_size(block.as_ptr()).unwrap();
        assert!(usable >= *size, "{usable} for {size}");
        if let Some((before, len)) = taken.range(..=(start, usize::MAX)).next_back() {
            assert!(before + len <= start, "overlaps");
        }
        taken.insert((start, usable));
        fill(block, (*size).min(4096), at as u8);
        assert_eq!(lookup(block.as_ptr()), Some(arena));
    }
    for size in [usize::MAX, usize::MAX - 16, isize::MAX as usize + 1] {
        assert_eq!(arena.alloc(size), Err(ArenaAllocError::TooLarge));
        assert_eq!(arena.alloc_aligned(size, 4096), Err(ArenaAllocError::TooLarge));
    }
    assert_eq!(arena.alloc(isize::MAX as usize), Err(ArenaAllocError::NoAddresses));
    assert_eq!(arena.calloc(usize::MAX / 2, 3), Err(ArenaAllocError::TooLarge));
    let stats = arena.stats().unwrap();
    assert_eq!(stats.blocks, sizes.len() as u64);
    assert!(
        stats.allocated >= Bytes(sizes.iter().sum::<usize>() as u64)
            && stats.reserved >= stats.allocated
    );
    end(arena);
}

#[test]
fn alignments_are_powers_of_two_of_any_size() {
    let arena = arena();
    for log in 0..25 {
        for size in [0, 1, 100, 5000, 70_000, 300_000] {
            let align = 1 << log;
            let block = arena.alloc_aligned(size, align).unwrap();
            assert_eq!(block.as_ptr() as usize % align, 0, "{size} at {align}");
            fill(block, size, 1);
        }
    }
    for align in [0, 3, 48, usize::MAX] {
        assert_eq!(arena.alloc_aligned(8, align), Err(ArenaAllocError::Alignment));
    }
    assert_eq!(arena.alloc_aligned(8, 1 << 63), Err(ArenaAllocError::TooLarge));
    end(arena);
}

#[test]
fn what_is_no_block_is_refused_by_name() {
    let arena = arena();
    let (small, large) = (arena.alloc(64).unwrap(), arena.alloc(200_000).unwrap());
    let mut local = 0_u8;
    // SAFETY: none of these is freed: each must be refused.
    unsafe {
        assert_eq!(free(&raw mut local), Err(FreeError::Foreign));
        assert_eq!(free(std::ptr::null_mut()), Err(FreeError::Foreign));
        assert_eq!(free(small.as_ptr().add(16)), Err(FreeError::Interior));
        assert_eq!(free(large.as_ptr().add(16)), Err(FreeError::Interior));
        assert_eq!(free(large.as_ptr().add(1 << 22)), Err(FreeError::NotAllocated));
        assert_eq!(
            realloc(small.as_ptr().add(8), 100),
            Err(ReallocError::Free(FreeError::Interior))
        );
    }
    assert_eq!(release(small), Ok(()));
    assert_eq!(release(small), Err(FreeError::NotAllocated));
    assert_eq!(usable_size(small.as_ptr()), Err(FreeError::NotAllocated));
    assert_eq!(release(large), Ok(()));
    assert_eq!(release(large), Err(FreeError::NotAllocated));
    end(arena);
    assert_eq!(release(small), Err(FreeError::NotAllocated));
}

#[test]
fn freed_twice_is_seen_across_threads() {
    let arena = arena();
    let block = arena.alloc(64).unwrap().as_ptr() as usize;
    let other = || {
        // SAFETY: freed once; the second time it must be refused.
        std::thread::spawn(move || unsafe { free(block as *mut u8) }).join().unwrap()
    };
    assert_eq!(other(), Ok(()));
    assert_eq!(other(), Err(FreeError::NotAllocated));
    // SAFETY: it must be refused.
    assert_eq!(unsafe { free(block as *mut u8) }, Err(FreeError::NotAllocated));
    assert_eq!(arena.stats().unwrap().blocks, 0);
    end(arena);
}

#[test]
fn calloc_is_zero_even_where_memory_was_used() {
    let arena = arena();
    for size in [10, 5000, 70_000, 900_000, 3_000_000] {
        let dirty = arena.alloc(size).unwrap();
        fill(dirty, size, 0xee);
        release(dirty).unwrap();
        let clean = arena.calloc(size, 1).unwrap();
        assert!(holds(clean, size, 0), "{size}");
        release(clean).unwrap();
    }
    end(arena);
}

#[test]
fn realloc_keeps_what_was_there_and_stays_in_its_arena() {
    let arena = arena();
    let mut block = arena.alloc(10).unwrap();
    fill(block, 10, 7);
    let mut has = 10;
    for size in [20, 100, 5000, 60_000, 70_000, 1_000_000, 9_000_000, 500_000, 66_000, 3000, 30, 1]
    {
        // SAFETY: the block is this test's alone.
        block = unsafe { realloc(block.as_ptr(), size) }.unwrap();
        assert!(holds(block, has.min(size), 7), "{size}");
        fill(block, size, 7);
        has = size;
        assert_eq!(lookup(block.as_ptr()), Some(arena));
    }
    assert_eq!(arena.stats().unwrap().blocks, 1);
    // SAFETY: as above.
    let too_large = unsafe { realloc(block.as_ptr(), usize::MAX) };
    assert_eq!(too_large, Err(ReallocError::Alloc(ArenaAllocError::TooLarge)));
    assert!(holds(block, 1, 7));
    end(arena);
}

#[test]
fn the_limit_holds_and_space_comes_back() {
    let spec = ArenaSpec { limit: Some(Bytes::mib(1)), ..ArenaSpec::default() };
    let arena = Arena::create(&spec).unwrap();
    assert_eq!(arena.alloc(2 << 20), Err(ArenaAllocError::Limit));
    let mut blocks = Vec::new();
    let refused = loop {
        match arena.alloc(1000) {
            Ok(block) => blocks.push(block),
            Err(e) => break e,
        }
        assert!(blocks.len() < 2000);
    };
    assert_eq!(refused, ArenaAllocError::Limit);
    assert!(blocks.len() >= 1000, "{}", blocks.len());
    assert_eq!(arena.stats().unwrap().reserved, Bytes::mib(1));
    for block in blocks {
        release(block).unwrap();
    }
    arena.alloc(512 << 10).unwrap();
    assert_eq!(arena.stats().unwrap().limit, Some(Bytes::mib(1)));
    end(arena);
    let none = ArenaSpec { limit: Some(Bytes::ZERO), ..ArenaSpec::default() };
    assert_eq!(Arena::create(&none), Err(ArenaError::Limit(Bytes::ZERO)));
}

#[test]
fn a_destroyed_arena_is_an_error_and_its_number_is_reused() {
    let one = arena();
    one.alloc(64).unwrap();
    let parts = one.to_parts();
    end(one);
    assert_eq!(one.alloc(64), Err(ArenaAllocError::Destroyed));
    assert_eq!(one.alloc(1 << 20), Err(ArenaAllocError::Destroyed));
    assert_eq!(one.stats(), Err(ArenaError::Destroyed));
    assert_eq!(one.name(), None);
    // SAFETY: it must be refused.
    assert_eq!(unsafe { one.destroy() }, Err(ArenaError::Destroyed));
    assert_eq!(
        one.set_device(&Devices::Anywhere, Strictness::Partial),
        Err(ArenaError::Destroyed.into())
    );
    assert_eq!(Arena::from_parts(parts.0, parts.1), None);
    let two = arena();
    assert_ne!(one, two);
    two.alloc(64).unwrap();
    end(two);
}

#[test]
fn memory_of_a_destroyed_arena_goes_back() {
    let spec = ArenaSpec { limit: Some(Bytes::mib(64)), ..ArenaSpec::default() };
    for round in 0..30 {
        let arena = Arena::create(&spec).unwrap();
        let block = arena.alloc(16 << 20).unwrap();
        fill(block, 16 << 20, round);
        end(arena);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap()
        .trim()
        .trim_end_matches(" kB");
    assert!(
        resident.parse::<u64>().unwrap() < 256 << 10,
        "{resident} kB after giving back 30 times 16 MiB"
    );
}

#[test]
fn each_thread_may_have_a_default() {
    let arena = arena();
    assert_eq!(thread_default(), None);
    set_thread_default(Some(arena));
    assert_eq!(thread_default(), Some(arena));
    assert_eq!(std::thread::spawn(thread_default).join().unwrap(), None);
    end(arena);
    assert_eq!(thread_default(), None);
    set_thread_default(None);
}

#[test]
fn arenas_are_listed_and_named() {
    let arena =
        Arena::create(&ArenaSpec { name: "fields".into(), ..ArenaSpec::default() }).unwrap();
    assert!(list().contains(&arena));
    assert_eq!(arena.name().as_deref(), Some("fields"));
    assert_eq!(Arena::from_parts(arena.to_parts().0, arena.to_parts().1), Some(arena));
    end(arena);
    assert!(!list().contains(&arena));
    assert_eq!(Arena::from_parts(70_000, 1), None);
}

#[test]
fn devices_that_are_not_there_are_refused() {
    let create = |devices| Arena::create(&ArenaSpec { devices, ..ArenaSpec::default() });
    assert_eq!(create(Devices::Only(vec![NodeId(999)])), Err(ArenaError::NoNode(NodeId(999))));
    assert!(matches!(create(Devices::Spill(vec![])), Err(ArenaError::Devices(_))));
    let nodes = fake(10, 10);
    nodes.refuse_bind(true);
    let refused = Arena::create(&ArenaSpec {
        devices: Devices::Only(vec![SLOW]),
        nodes,
        ..ArenaSpec::default()
    })
    .unwrap_err();
    assert!(
        matches!(&refused, ArenaError::Bind(e) if e.to_string().contains("mbind")),
        "{refused}"
    );
}

#[test]
fn the_kernel_binds_to_the_node_there_is() {
    let devices = Devices::Only(vec![KernelNodes.nodes()[0]]);
    let arena = match Arena::create(&ArenaSpec { devices, ..ArenaSpec::default() }) {
        Ok(arena) => arena,
        Err(e) => return println!("skipped: {e}"),
    };
    let block = arena.alloc(1 << 20).unwrap();
    fill(block, 1 << 19, 1);
    let residency = arena.residency().unwrap();
    assert_eq!(pages_of(&residency, KernelNodes.nodes()[0]), (1 << 19) / PAGE as u64);
    assert_eq!(residency.untouched, Bytes(1 << 19));
    end(arena);
}

#[test]
fn an_arena_moves_as_a_whole_and_so_does_what_comes_after() {
    let nodes = fake(10_000, 10_000);
    let arena = on(nodes, Devices::Only(vec![FAST]));
    let other = on(nodes, Devices::Only(vec![FAST]));
    let blocks: Vec<_> = (0..100).map(|n| arena.alloc(n * 500 + 1).unwrap()).collect();
    for (n, block) in blocks.iter().enumerate() {
        fill(*block, n * 500 + 1, n as u8);
    }
    let stays = other.alloc(100).unwrap();
    fill(stays, 100, 1);
    let touched = pages_of(&arena.residency().unwrap(), FAST);
    assert!(touched >= 100 * 99 / 2 * 500 / PAGE as u64);
    let report = arena.set_device(&Devices::Only(vec![SLOW]), Strictness::Strict).unwrap();
    assert_eq!((report.pages, report.moved, report.already), (touched, touched, 0));
    assert_eq!(pages_of(&arena.residency().unwrap(), SLOW), touched);
    assert_eq!(nodes.node_of(stays.as_ptr()), Some(FAST));
    for (n, block) in blocks.iter().enumerate() {
        assert!(holds(*block, n * 500 + 1, n as u8));
    }
    let later = arena.alloc(1 << 20).unwrap();
    fill(later, 1, 1);
    assert_eq!(nodes.node_of(later.as_ptr()), Some(SLOW));
    assert_eq!(arena.devices(), Some(Devices::Only(vec![SLOW])));
    let again = arena.set_device(&Devices::Only(vec![SLOW]), Strictness::Strict).unwrap();
    assert_eq!((again.moved, again.already), (0, touched + 1));
    end(arena);
    end(other);
}

#[test]
fn a_strict_move_that_fails_brings_all_back() {
    let nodes = fake(10_000, 10_000);
    let arena = on(nodes, Devices::Prefer(vec![FAST]));
    let block = arena.alloc(64 * PAGE + 1).unwrap();
    fill(block, 64 * PAGE, 3);
    arena.residency().unwrap();
    // SAFETY: inside the block.
    nodes.stick(unsafe { block.as_ptr().add(10 * PAGE) });
    let Err(MoveError::Incomplete(report)) =
        arena.set_device(&Devices::Only(vec![SLOW]), Strictness::Strict)
    else {
        panic!("it moved")
    };
    assert_eq!((report.moved, report.stayed.get(&StayReason::Busy)), (63, Some(&1)));
    assert_eq!(pages_of(&arena.residency().unwrap(), FAST), 64);
    assert_eq!(arena.devices(), Some(Devices::Prefer(vec![FAST])));
    let report = arena.set_device(&Devices::Only(vec![SLOW]), Strictness::Partial).unwrap();
    assert_eq!((report.moved, report.stayed.get(&StayReason::Busy)), (63, Some(&1)));
    nodes.unstick();
    let report = arena.set_device(&Devices::Only(vec![SLOW]), Strictness::Strict).unwrap();
    assert_eq!((report.moved, report.already), (1, 63));
    end(arena);
}

#[test]
fn a_move_without_space_reports_how_much_stayed() {
    let nodes = fake(100, 40);
    let arena = on(nodes, Devices::Prefer(vec![FAST]));
    fill(arena.alloc(64 * PAGE + 1).unwrap(), 64 * PAGE, 3);
    arena.residency().unwrap();
    let report = arena.set_device(&Devices::Prefer(vec![SLOW]), Strictness::Partial).unwrap();
    assert_eq!((report.moved, report.stayed.get(&StayReason::NoSpace)), (40, Some(&24)));
    nodes.refuse_bind(true);
    assert!(matches!(
        arena.set_device(&Devices::Interleave(vec![FAST, SLOW]), Strictness::Partial),
        Err(MoveError::Arena(ArenaError::Bind(_)))
    ));
    nodes.refuse_bind(false);
    end(arena);
}

#[test]
fn several_nodes_are_filled_in_order_or_in_turn() {
    let nodes = fake(10_000, 20);
    let arena = on(nodes, Devices::Prefer(vec![FAST]));
    fill(arena.alloc(64 * PAGE + 1).unwrap(), 64 * PAGE, 3);
    arena.residency().unwrap();
    let third = NodeId(2);
    assert_eq!(
        arena.set_device(&Devices::Only(vec![SLOW, third]), Strictness::Partial),
        Err(ArenaError::NoNode(third).into())
    );
    let report =
        arena.set_device(&Devices::Interleave(vec![SLOW, FAST]), Strictness::Partial).unwrap();
    assert_eq!(report.moved + report.already + report.stayed.values().sum::<u64>(), 64);
    assert_eq!(report.moved, 20);
    end(arena);
}

#[test]
fn spilling_goes_segment_by_segment_in_order() {
    // Space for one segment of 4 MiB and a bit.
    let nodes = fake(1100, 100_000);
    let arena = on(nodes, Devices::Spill(vec![FAST, SLOW]));
    let mut blocks = Vec::new();
    for _ in 0..3 {
        blocks.push(arena.alloc(2 << 20).unwrap());
        fill(blocks[blocks.len() - 1], 2 << 20, 1);
        arena.residency().unwrap();
    }
    let nodes_of: Vec<_> = blocks.iter().map(|b| nodes.node_of(b.as_ptr())).collect();
    assert_eq!(nodes_of, [Some(FAST), Some(FAST), Some(SLOW)]);
    end(arena);
}

#[test]
fn an_asynchronous_move_can_be_polled_and_cancelled_during_allocation() {
    let nodes = fake(1 << 20, 1 << 20);
    nodes.slow_down(Duration::from_millis(30));
    let arena = on(nodes, Devices::Only(vec![FAST]));
    // Apart in batches: each large block is a stretch of its own once those between are free.
    let mut blocks: Vec<_> = (0..20).map(|_| arena.alloc(70_000).unwrap()).collect();
    blocks.iter().for_each(|b| fill(*b, 8 * PAGE, 5));
    for at in (0..20).rev().step_by(2) {
        release(blocks.remove(at)).unwrap();
    }
    arena.residency().unwrap();
    let moving = arena.set_device_async(&Devices::Only(vec![SLOW]), Strictness::Partial).unwrap();
    assert_eq!(arena.set_device(&Devices::Anywhere, Strictness::Partial), Err(MoveError::Moving));
    while moving.progress().done == 0 {
        let block = arena.alloc(1000).unwrap();
        fill(block, 1000, 9);
        release(block).unwrap();
    }
    moving.cancel();
    let Err(MoveError::Cancelled(report)) = moving.wait() else { panic!("{:?}", moving.poll()) };
    assert!(report.moved >= 8 && report.stayed[&StayReason::Cancelled] >= 8, "{report}");
    assert_eq!(moving.poll(), Some(Err(MoveError::Cancelled(report))));
    let moving = arena.set_device_async(&Devices::Only(vec![SLOW]), Strictness::Strict).unwrap();
    let report = moving.wait_for(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(report.pages, report.moved + report.already);
    let progress = moving.progress();
    assert!(progress.ended && progress.done == progress.total && progress.total == report.pages);
    assert!(blocks.iter().all(|b| holds(*b, 8 * PAGE, 5)));
    end(arena);
}

#[test]
fn an_arena_can_be_destroyed_while_it_moves() {
    let nodes = fake(1 << 20, 1 << 20);
    nodes.slow_down(Duration::from_millis(20));
    for _ in 0..5 {
        let arena = on(nodes, Devices::Only(vec![FAST]));
        let blocks: Vec<_> = (0..20).map(|_| arena.alloc(70_000).unwrap()).collect();
        blocks.iter().for_each(|b| fill(*b, 100, 5));
        blocks.iter().step_by(2).for_each(|b| release(*b).unwrap());
        arena.residency().unwrap();
        let moving =
            arena.set_device_async(&Devices::Only(vec![SLOW]), Strictness::Partial).unwrap();
        end(arena);
        let ended = moving.poll();
        assert!(
            matches!(ended, Some(Err(MoveError::Cancelled(_) | MoveError::Arena(_)))),
            "{ended:?}"
        );
    }
}
