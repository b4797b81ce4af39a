//! Many arenas, many threads, forks, few kernel mappings.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc;
use terrace_alloc::arena::*;
use terrace_types::Seed;

fn arena() -> Arena {
    Arena::create(&ArenaSpec::default()).unwrap()
}

fn end(arena: Arena) {
    // SAFETY: the test is done with the arena's blocks.
    unsafe { arena.destroy() }.unwrap();
}

fn release(block: usize) {
    // SAFETY: each block is freed once, by whoever has it.
    unsafe { free(block as *mut u8) }.unwrap();
}

/// Writes the block's own address at both ends.
fn sign(block: NonNull<u8>, size: usize) -> usize {
    let at = block.as_ptr() as usize;
    // SAFETY: the block has `size` bytes, at least 16, aligned to 16.
    unsafe {
        block.as_ptr().cast::<usize>().write(at);
        block.as_ptr().add(size / 8 * 8 - 8).cast::<usize>().write(at);
    }
    at
}

fn check(at: usize, size: usize) {
    // SAFETY: as in `sign`, which wrote both.
    unsafe {
        assert_eq!((at as *const usize).read(), at);
        assert_eq!(((at + size / 8 * 8 - 8) as *const usize).read(), at);
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn ten_thousand_arenas_and_a_hundred_thousand_pieces_are_few_mappings() {
    let before = mappings();
    let arenas: Vec<Arena> = (0..10_000).map(|_| arena()).collect();
    let mut blocks = BTreeMap::new();
    for (n, arena) in arenas.iter().enumerate() {
        for piece in 0..10 {
            let size = 100 + (n * 7 + piece * 1000) % 9000;
            blocks.insert(sign(arena.alloc(size).unwrap(), size), (size, *arena));
        }
    }
    assert_eq!(blocks.len(), 100_000);
    let during = mappings();
    assert!(during < before + 100, "{before} mappings before, {during} with 10,000 arenas");
    for (at, (size, arena)) in &blocks {
        check(*at, *size);
        assert_eq!(lookup(*at as *const u8), Some(*arena));
    }
    arenas.into_iter().for_each(end);
}

/// Waits until threads have ended. A scope goes on when their work is done, and what a thread keeps
/// for itself may be handed back after that.
fn join<T>(threads: Vec<std::thread::ScopedJoinHandle<'_, T>>) {
    threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
}

#[test]
fn a_thousand_threads_share_an_arena_and_leave_nothing() {
    let arena = arena();
    for _ in 0..10 {
        std::thread::scope(|s| {
            let work = || {
                let mine: Vec<(usize, usize)> = (16..80)
                    .map(|size| (sign(arena.alloc(size * 8).unwrap(), size * 8), size * 8))
                    .collect();
                mine.iter().for_each(|(at, size)| check(*at, *size));
                mine.iter().for_each(|(at, _)| release(*at));
            };
            join((0..100).map(|_| s.spawn(work)).collect());
        });
    }
    let stats = arena.stats().unwrap();
    assert_eq!((stats.blocks, stats.freed_twice), (0, 0));
    assert!(
        stats.reserved.get() <= 100 * 64 * 64 * 1024,
        "{} reserved by caches of threads that ended",
        stats.reserved
    );
    end(arena);
}

#[test]
fn a_thousand_threads_at_once_each_have_their_blocks() {
    const THREADS: usize = 1000;
    let arenas = [arena(), arena()];
    let (gate, there) = (std::sync::RwLock::new(()), AtomicUsize::new(0));
    std::thread::scope(|s| {
        // Dropped when all are there, or when one cannot be.
        let shut = gate.write().unwrap();
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (arenas, gate, there) = (&arenas, &gate, &there);
            let work = move || {
                let size = |n: usize| 16 + (thread * 7 + n * 100) % 2000;
                let mine: Vec<usize> =
                    (0..6).map(|n| sign(arenas[n % 2].alloc(size(n)).unwrap(), size(n))).collect();
                there.fetch_add(1, Relaxed);
                drop(gate.read());
                for (n, at) in mine.iter().enumerate() {
                    check(*at, size(n));
                    release(*at);
                }
            };
            match std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(s, work) {
                Ok(started) => threads.push(started),
                Err(error) => panic!("thread {thread}: {error}; raise ulimit -u"),
            }
        }
        while there.load(Relaxed) < THREADS {
            std::thread::yield_now();
        }
        drop(shut);
        join(threads);
    });
    for arena in arenas {
        assert_eq!(arena.stats().unwrap().blocks, 0);
        end(arena);
    }
}

#[test]
fn blocks_change_hands_between_threads() {
    let arenas = [arena(), arena()];
    let (send, receive) = mpsc::channel::<(usize, usize)>();
    let freed = AtomicUsize::new(0);
    std::thread::scope(|s| {
        let mut threads = Vec::new();
        for thread in 0..3 {
            let (arenas, send) = (&arenas, send.clone());
            threads.push(s.spawn(move || {
                let mut seed = Seed(thread);
                for _ in 0..30_000 {
                    let (number, next) = seed.next();
                    seed = next;
                    let size = 16 + number as usize % 3000;
                    let block = arenas[number as usize % 2].alloc(size).unwrap();
                    send.send((sign(block, size), size)).unwrap();
                }
            }));
        }
        drop(send);
        threads.push(s.spawn(|| {
            for (at, size) in receive {
                check(at, size);
                release(at);
                freed.fetch_add(1, Relaxed);
            }
        }));
        join(threads);
    });
    assert_eq!(freed.load(Relaxed), 90_000);
    for arena in arenas {
        assert_eq!(arena.stats().unwrap().blocks, 0);
        end(arena);
    }
}

#[test]
fn memory_freed_by_another_thread_is_reused() {
    let arena = arena();
    let (send, receive) = mpsc::channel::<Vec<usize>>();
    let freer = std::thread::spawn(move || {
        receive.iter().for_each(|blocks| blocks.into_iter().for_each(release))
    });
    for _ in 0..200 {
        let blocks: Vec<usize> =
            (0..1000).map(|_| arena.alloc(512).unwrap().as_ptr() as usize).collect();
        send.send(blocks).unwrap();
        while arena.stats().unwrap().blocks > 0 {
            std::thread::yield_now();
        }
    }
    drop(send);
    freer.join().unwrap();
    assert!(arena.stats().unwrap().peak.get() < 4 << 20, "{} at most", arena.stats().unwrap().peak);
    end(arena);
}

#[test]
fn a_child_of_a_program_with_threads_goes_on() {
    let arena = arena();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !done.load(Relaxed) {
                    let blocks: Vec<usize> =
                        (0..200).map(|n| arena.alloc(n * 300).unwrap().as_ptr() as usize).collect();
                    blocks.into_iter().for_each(release);
                }
            });
        }
        let kept = sign(arena.alloc(100).unwrap(), 100);
        for _ in 0..50 {
            // SAFETY: the child only uses arenas, whose locks it finds free, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                check(kept, 100);
                release(kept);
                let more: Vec<NonNull<u8>> =
                    (0..300).map(|n| arena.alloc(n * 300).unwrap()).collect();
                more.into_iter().for_each(|b| release(b.as_ptr() as usize));
                // SAFETY: ends the child without destructors of the parent's.
                unsafe { libc::_exit(0) };
            }
            let mut status = -1;
            // SAFETY: waits for the child started above; `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        check(kept, 100);
        done.store(true, Relaxed);
    });
    end(arena);
}
