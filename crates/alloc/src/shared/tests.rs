//! Sharing, and dying at every step of it.

use super::*;
use crate::arena::fake::FakeNodes;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering::*};
use terrace_types::{NodeId, Seed};

/// Stores until this process dies; negative: never.
static LEFT: AtomicI64 = AtomicI64::new(-1);

pub(super) fn count_a_store() {
    if LEFT.load(Relaxed) >= 0 && LEFT.fetch_sub(1, Relaxed) == 0 {
        // SAFETY: ends this process as kill -9 would.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

fn small(mib: u64) -> SharedArena {
    SharedArena::create(&SharedSpec { size: Bytes::mib(mib), ..SharedSpec::default() }).unwrap()
}

fn release(arena: &SharedArena, block: NonNull<u8>) -> Result<(), SharedError> {
    // SAFETY: tests free what they no longer use, or what must be refused.
    unsafe { arena.free(block.as_ptr()) }
}

/// Runs `work` in a child, which ends by it or by `_exit`; its status.
fn in_a_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child uses the shared arena, whose lock no thread of this test holds, and ends
    // without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child started above; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn blocks_are_apart_aligned_and_refused_by_name_when_wrong() {
    let arena = small(4);
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    for size in [0, 1, 63, 64, 65, 1000, 70_000, 1 << 20] {
        for align in [1, 64, 4096, MAX_ALIGN] {
            let block = arena.alloc(size, align).unwrap();
            let start = block.as_ptr() as usize;
            assert_eq!(start % align.max(64), 0);
            let has = arena.usable_size(block.as_ptr()).unwrap();
            assert!(has >= size && has < size + 64 + 64);
            assert!(
                taken.range(..start + has).next_back().is_none_or(|(at, len)| at + len <= start),
                "overlaps"
            );
            taken.insert(start, has);
            // SAFETY: a fresh block of so many bytes.
            unsafe { block.as_ptr().write_bytes(1, has) };
            if size == 1 << 20 {
                assert!(arena.maps().is_whole());
                release(&arena, block).unwrap();
                taken.remove(&start);
            }
        }
    }
    assert_eq!(arena.stats().unwrap().blocks, taken.len() as u64);
    let one = arena.alloc(200, 1).unwrap();
    // SAFETY: neither is freed: both must be refused.
    unsafe {
        let inner = one.as_ptr().add(64);
        assert_eq!(arena.free(inner), Err(FreeError::Interior.into()));
        assert_eq!(arena.free(one.as_ptr().add(1)), Err(FreeError::Interior.into()));
        assert_eq!(arena.free(std::ptr::null_mut()), Err(FreeError::Foreign.into()));
    }
    release(&arena, one).unwrap();
    assert_eq!(release(&arena, one), Err(FreeError::NotAllocated.into()));
    for align in [0, 3, MAX_ALIGN * 2] {
        assert_eq!(arena.alloc(1, align), Err(SharedError::Alignment));
    }
    for size in [4 << 20, usize::MAX, usize::MAX - 63] {
        assert!(matches!(arena.alloc(size, 1), Err(SharedError::Full { .. })), "{size}");
    }
    for at in taken.into_keys() {
        release(&arena, NonNull::new(at as *mut u8).unwrap()).unwrap();
    }
    assert!(arena.maps().is_whole() && arena.stats().unwrap().used == Bytes::ZERO);
    // All of it in one piece again; freed, its memory is the kernel's.
    let all = arena.alloc(4 << 20, 1).unwrap();
    assert_eq!(arena.stats().unwrap().backed, Bytes::mib(4));
    release(&arena, all).unwrap();
    assert_eq!(arena.stats().unwrap().backed, Bytes::ZERO);
}

#[test]
fn what_one_process_writes_another_reads_by_name_and_descriptor() {
    let name = format!("terrace-shared-{}", std::process::id());
    let spec =
        SharedSpec { name: Some(name.clone()), size: Bytes::mib(1), ..SharedSpec::default() };
    let arena = SharedArena::create(&spec).unwrap();
    let block = arena.alloc(8, 8).unwrap();
    // SAFETY: a block of 8 bytes, aligned.
    unsafe { block.as_ptr().cast::<u64>().write(42) };
    arena.set_root(arena.offset(block.as_ptr()));
    let status = in_a_child(|| {
        let other = SharedArena::open(&name).unwrap();
        let there = other.pointer(other.root().unwrap()).unwrap();
        assert_ne!(there, block);
        // SAFETY: the block that the parent made, and does not use meanwhile.
        unsafe {
            assert_eq!(there.as_ptr().cast::<u64>().read(), 42);
            other.free(there.as_ptr()).unwrap();
        }
        other.set_root(None);
        let more = SharedArena::open_fd(other.fd().try_clone_to_owned().unwrap()).unwrap();
        more.alloc(100, 1).unwrap();
    });
    assert_eq!(status, 0);
    assert_eq!((arena.root(), arena.stats().unwrap().blocks), (None, 1));
    let taken = SharedArena::create(&spec).unwrap_err();
    assert!(taken.to_string().contains("open the one that is there"), "{taken}");
    SharedArena::remove(&name).unwrap();
    let gone = SharedArena::open(&name).unwrap_err();
    assert!(matches!(gone, SharedError::Kernel(_)), "{gone}");
    arena.alloc(10, 1).unwrap();
}

#[test]
fn what_is_no_shared_arena_is_refused() {
    for name in ["", "a/b", "..", ".x", "a\0b", &"x".repeat(201)] {
        assert!(matches!(SharedArena::open(name), Err(SharedError::Name { .. })), "{name:?}");
    }
    for size in [0, u64::MAX] {
        let spec = SharedSpec { size: Bytes(size), ..SharedSpec::default() };
        assert_eq!(SharedArena::create(&spec).map(drop), Err(SharedError::Size(Bytes(size))));
    }
    let not = |file: SharedFile| {
        SharedArena::open_fd(file.fd().try_clone_to_owned().unwrap())
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let plain = || SharedFile::unnamed(1 << 20).unwrap();
    assert!(not(plain()).contains("does not begin"));
    let arena = small(1);
    let copy = plain();
    // SAFETY: a head's bytes are copied from one mapping to another, each longer than that; nobody
    // else has either.
    unsafe { copy.as_ptr().copy_from_nonoverlapping(arena.file.as_ptr(), 64) };
    assert!(not(copy).contains("cut short"));
    let short = SharedFile::unnamed(16).unwrap();
    assert!(SharedArena::open_fd(short.fd().try_clone_to_owned().unwrap()).is_err());
    let nodes: &'static FakeNodes =
        Box::leak(Box::new(FakeNodes::new(&[(NodeId(0), 10), (NodeId(1), 10)])));
    let with = |devices| {
        SharedArena::create(&SharedSpec { devices, nodes, size: Bytes(1), ..SharedSpec::default() })
    };
    assert!(with(Devices::Only(vec![NodeId(1)])).is_ok());
    for devices in [Devices::Only(vec![NodeId(9)]), Devices::Spill(vec![NodeId(0)])] {
        assert!(matches!(with(devices), Err(SharedError::Devices(_))));
    }
    nodes.refuse_bind(true);
    assert!(matches!(
        with(Devices::Prefer(vec![NodeId(0)])),
        Err(SharedError::Devices(ArenaError::Bind(_)))
    ));
}

/// A child dies before its first store, its second, and so on, until it lives to the end of a few
/// calls.
#[test]
fn a_process_may_die_at_any_step() {
    let arena = small(1);
    let kept = arena.alloc(5000, 1).unwrap();
    let behind = arena.alloc(100, 1).unwrap();
    for block in [kept, behind] {
        // SAFETY: blocks of 100 bytes at least.
        unsafe { block.as_ptr().write_bytes(9, 100) };
    }
    let mut died = 0;
    loop {
        let freed = arena.alloc(9000, 1).unwrap();
        let status = in_a_child(|| {
            LEFT.store(died, Relaxed);
            let mine = arena.alloc(20_000, 1).unwrap();
            release(&arena, freed).unwrap();
            release(&arena, mine).unwrap();
        });
        if status == 0 {
            break;
        }
        assert_eq!(status, libc::SIGKILL, "the child failed");
        died += 1;
        // The lock comes back, and everything is as before or after a whole call.
        let after = arena.stats().unwrap();
        assert!(arena.maps().is_whole(), "after {died} stores");
        assert!(after.blocks >= 2 && after.used.get() >= 5000);
        for block in [kept, behind] {
            // SAFETY: written above.
            assert!(unsafe { std::slice::from_raw_parts(block.as_ptr(), 100) }
                .iter()
                .all(|b| *b == 9));
        }
        assert!(arena.usable_size(kept.as_ptr()).unwrap() >= 5000);
        sweep(&arena, &[kept, behind]);
        assert_eq!(arena.stats().unwrap().blocks, 2);
    }
    assert!(died > 30, "only {died} stores");
    assert!(arena.stats().unwrap().recovered > 20);
}

/// Children that allocate, free and sign their blocks are killed at times of chance.
#[test]
fn children_that_are_killed_harm_nobody() {
    let arena = small(8);
    let mine: Vec<NonNull<u8>> = (1..100).map(|n| arena.alloc(n * 50, 1).unwrap()).collect();
    for (n, block) in mine.iter().enumerate() {
        // SAFETY: blocks of 50 bytes and more.
        unsafe { block.as_ptr().write_bytes(n as u8, (n + 1) * 50) };
    }
    let mut seed = Seed(5);
    for round in 0..40 {
        let mut children = Vec::new();
        for _ in 0..2 {
            // SAFETY: as in `in_a_child`; it never returns from here.
            let child = unsafe { libc::fork() };
            if child == 0 {
                churn(&arena, Seed(round * 2 + children.len() as u64));
            }
            children.push(child);
        }
        let (number, next) = seed.next();
        seed = next;
        std::thread::sleep(std::time::Duration::from_micros(1000 + number % 4000));
        for child in children {
            let mut status = 0;
            // SAFETY: a child of this test, killed and waited for; `status` is writable.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
            }
            assert_eq!(status, libc::SIGKILL, "the child found something wrong");
        }
        let locked = arena.lock().unwrap();
        assert!(locked.maps.is_whole(), "round {round}");
        drop(locked);
        sweep(&arena, &mine);
    }
    for (n, block) in mine.iter().enumerate() {
        // SAFETY: written above.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), (n + 1) * 50) };
        assert!(bytes.iter().all(|b| *b == n as u8));
        release(&arena, *block).unwrap();
    }
    assert_eq!(arena.stats().unwrap().used, Bytes::ZERO);
}

/// Frees what the dead had.
fn sweep(arena: &SharedArena, mine: &[NonNull<u8>]) {
    for at in (0..arena.geometry.data_len as u64).step_by(64) {
        let at = arena.pointer(at).unwrap();
        if arena.usable_size(at.as_ptr()).is_ok() && !mine.contains(&at) {
            release(arena, at).unwrap();
        }
    }
}

fn churn(arena: &SharedArena, mut seed: Seed) -> ! {
    let mut blocks: Vec<(NonNull<u8>, usize)> = Vec::new();
    loop {
        let (number, next) = seed.next();
        seed = next;
        if blocks.len() < 50 && number % 3 > 0 {
            let size = 8 + number as usize % 3000;
            if let Ok(block) = arena.alloc(size, 8) {
                // SAFETY: a block of 8 bytes at least, aligned.
                unsafe { block.as_ptr().cast::<usize>().write(block.as_ptr() as usize) };
                blocks.push((block, size));
            }
        } else if !blocks.is_empty() {
            let (block, _) = blocks.swap_remove(number as usize % blocks.len());
            // SAFETY: this child's own block, signed above.
            let wrong = unsafe { block.as_ptr().cast::<usize>().read() } != block.as_ptr() as usize;
            if wrong || release(arena, block).is_err() {
                // SAFETY: tells the parent by its status.
                unsafe { libc::_exit(3) };
            }
        }
    }
}
