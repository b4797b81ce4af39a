//! Arenas under threads, for the thread sanitizer: `scripts/sanitize.sh` builds it with one.
//! Threads hand blocks to one another by atomics and are joined, and by nothing else, since the
//! standard library is not instrumented and what it orders would look like a race. `cargo run -p
//! terrace-alloc --example races [SECONDS]`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};
use terrace_alloc::arena::{
    self, Arena, ArenaSpec, Devices, KernelNodes, NodeOps as _, Strictness,
};
use terrace_alloc::shared::{SharedArena, SharedSpec};
use terrace_types::{Bytes, Seed};

const SLOTS: usize = 512;
const ARENAS: usize = 4;

/// Blocks on their way from thread to thread; each word is a block, or 0.
static SLOT: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];
static ENDED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);

/// Takes what is in a slot, checks what its last owner wrote, and frees it.
fn take_over(slot: usize, with: usize) {
    let old = SLOT[slot].swap(with, AcqRel);
    if old == 0 {
        return;
    }
    // SAFETY: whoever takes a block out of a slot owns it; its first word was written before it was
    // put there.
    let (signed, freed) = unsafe { ((old as *const usize).read(), arena::free(old as *mut u8)) };
    if signed != old || freed.is_err() {
        FAILED.fetch_add(1, Relaxed);
    }
}

fn worker(arenas: &[Arena; ARENAS], number: u64) {
    let mut seed = Seed(number);
    let mut draw = |below: usize| {
        let (number, next) = seed.next();
        seed = next;
        (number >> 11) as usize % below
    };
    while !ENDED.load(Acquire) {
        let size = [draw(200), draw(3000), draw(200_000)][draw(3)] + 8;
        let of = arenas[draw(ARENAS)];
        let Ok(mut block) = of.alloc(size) else { continue };
        if draw(4) == 0 {
            // SAFETY: a block of this thread's own.
            block = unsafe { arena::realloc(block.as_ptr(), size * 2) }.unwrap_or(block);
        }
        let at = block.as_ptr() as usize;
        // SAFETY: a block of at least 8 bytes, aligned to 16, this thread's alone.
        unsafe { (at as *mut usize).write(at) };
        take_over(draw(SLOTS), at);
        if draw(64) == 0 {
            let _counted = of.stats();
        }
        CALLS.fetch_add(1, Relaxed);
    }
}

/// Moves arenas while others allocate from them.
fn mover(arenas: &[Arena; ARENAS]) {
    let nodes = KernelNodes.nodes();
    let mut turn = 0_usize;
    while !ENDED.load(Acquire) {
        turn += 1;
        let devices = nodes
            .get(turn % nodes.len().max(1))
            .map_or(Devices::Anywhere, |n| Devices::Prefer(vec![*n]));
        let _moved_or_refused = arenas[turn % ARENAS].set_device(&devices, Strictness::Partial);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sharer(shared: &'static SharedArena) {
    let mut turn = 0;
    while !ENDED.load(Acquire) {
        turn += 1;
        let Ok(block) = shared.alloc(64 + turn % 5000, 64) else { continue };
        // SAFETY: a block of at least 64 bytes, this thread's alone.
        unsafe {
            block.as_ptr().write_bytes(turn as u8, 64);
            if shared.free(block.as_ptr()).is_err() {
                FAILED.fetch_add(1, Relaxed);
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut arenas = [Arena::create(&ArenaSpec::default())?; ARENAS];
    for arena in &mut arenas[1..] {
        *arena = Arena::create(&ArenaSpec::default())?;
    }
    let spec = SharedSpec { size: Bytes::mib(4), ..SharedSpec::default() };
    let shared: &'static SharedArena = Box::leak(Box::new(SharedArena::create(&spec)?));
    let mut round = 0_usize;
    while Instant::now() < until {
        // Short lives: what a thread leaves behind when it ends is taken over too.
        ENDED.store(false, Release);
        let mut threads: Vec<_> = (0..4)
            .map(|n| std::thread::spawn(move || worker(&arenas, (round * 4 + n) as u64)))
            .collect();
        threads.push(std::thread::spawn(move || mover(&arenas)));
        threads.extend((0..2).map(|_| std::thread::spawn(move || sharer(shared))));
        std::thread::sleep(Duration::from_millis(400));
        ENDED.store(true, Release);
        for thread in threads {
            thread.join().map_err(|_| "a thread failed")?;
        }
        (0..SLOTS).for_each(|slot| take_over(slot, 0));
        let old =
            std::mem::replace(&mut arenas[round % ARENAS], Arena::create(&ArenaSpec::default())?);
        assert_eq!(old.stats()?.blocks, 0, "all blocks were freed");
        // SAFETY: none of its blocks is left.
        unsafe { old.destroy()? };
        round += 1;
    }
    assert_eq!(
        FAILED.load(Relaxed),
        0,
        "blocks were freed that were none, or changed on their way"
    );
    println!("{} allocations in {round} rounds", CALLS.load(Relaxed));
    Ok(())
}
