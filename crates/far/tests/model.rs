//! A model beside the real thing: several threads read and write far memory at random while it is
//! evicted, flushed, pinned, squeezed, and its store fails; each read is held against what that
//! thread wrote last. Not a byte may differ.
//!
//! Some seconds as a test; `TERRACE_FAR_SECONDS=600` (what `make soak` does) goes on. A failure
//! prints its seed, and `TERRACE_FAR_SEED=N` begins with it.
// a test may stop at the first surprise, in its helpers too
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_far::store::{BackingStore, Compressed, Faults, Faulty, FileStore, Mem, Tiered};
use terrace_far::{Advice, FarError, FarMap, FarOptions};
use terrace_types::{Bytes, Seed};

/// Words between those used: eight a page, so that threads share pages and never words.
const STEP: usize = 64;
const THREADS: usize = 3;

struct Chance(Seed);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        let (r, next) = self.0.next();
        self.0 = next;
        (r >> 8) % n.max(1)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The word that thread `me` uses as its `nth`.
fn used(nth: usize, me: usize) -> usize {
    (nth * THREADS + me) * STEP + nth % STEP
}

/// What a world is filled with at first: nothing, or numbers, as a compressed store keeps in a way
/// of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Filled {
    Not,
    Numbers,
}

impl Filled {
    fn word(self, at: usize) -> u64 {
        match self {
            Self::Not => 0,
            // Of some pages in half a word's width, of others in a quarter.
            Self::Numbers => {
                1 << 40
                    | (at as u64).wrapping_mul(0x9e37_79b9)
                        & if at / 512 % 3 == 0 { 0xff_ffff } else { 0xffff }
            }
        }
    }

    /// Fits in with what is there, now and then not.
    fn written(self, at: usize, step: u64) -> u64 {
        match self {
            Self::Numbers if step % 300 != 0 => self.word(at.wrapping_add(step as usize)),
            // Zeros now and then: whole pages of them are not stored.
            _ if step % 5 == 0 => 0,
            _ => step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (step % 50),
        }
    }
}

/// One thread's part of the model: the words whose number leaves `me` over.
fn work(words: &[AtomicU64], me: usize, seed: Seed, filled: Filled, stop: &AtomicBool) -> u64 {
    let count = words.len() / STEP;
    let mut truth: Vec<u64> =
        (0..count.div_ceil(THREADS)).map(|nth| filled.word(used(nth, me))).collect();
    let mut chance = Chance(seed);
    let mut step = 0;
    let mut checked = 0;
    let mut access = |nth: usize, write: bool, step: u64| {
        let at = used(nth, me);
        let Some(word) = words.get(at) else {
            return;
        };
        let found = word.load(Relaxed);
        assert_eq!(found, truth[nth], "thread {me}, word {nth}");
        if write {
            truth[nth] = filled.written(at, step);
            word.store(truth[nth], Relaxed);
        }
        checked += 1;
    };
    let own = (count - me).div_ceil(THREADS).saturating_sub(1);
    while !stop.load(Relaxed) {
        step += 1;
        let write = chance.below(2) == 0;
        let from = chance.below(own as u64) as usize;
        match chance.below(6) {
            0 | 1 => access(from, write, step),
            2 => (from..own.min(from + 600)).for_each(|n| access(n, write, step + n as u64)),
            3 => (from.saturating_sub(600)..from)
                .rev()
                .for_each(|n| access(n, write, step + n as u64)),
            4 => (from..own).step_by(11).take(200).for_each(|n| access(n, write, step + n as u64)),
            _ => {
                (0..40).for_each(|_| access((from + chance.below(30) as usize) % own, write, step))
            }
        }
    }
    (0..own).for_each(|n| access(n, false, 0));
    checked
}

/// Clears the accessed bits of some pages again and again, as reclaim and DAMON do: the kernel
/// finds page tables changed while it moves pages.
fn age(map: &FarMap, over: &AtomicBool, seed: Seed) {
    let mut chance = Chance(seed);
    while !over.load(Relaxed) {
        let from = chance.below(map.len() as u64) as usize / 4096 * 4096;
        let len = (chance.below(64) as usize * 4096).min(map.len() - from);
        // SAFETY: the range lies in the map, which lives on; the advice changes no content.
        unsafe { libc::madvise(map.as_mut_ptr().wrapping_add(from).cast(), len, libc::MADV_COLD) };
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn store(chance: &mut Chance, bytes: Bytes) -> Box<dyn BackingStore> {
    let folder = std::env::temp_dir();
    let file = || Box::new(FileStore::create(&[folder.as_path()], bytes).unwrap());
    match chance.below(4) {
        0 => Box::new(Mem::new()),
        1 => file(),
        2 => Box::new(Compressed::new(Bytes(2 * bytes.0))),
        _ => Box::new(Tiered::new(Compressed::new(Bytes::mib(1 + chance.below(4))), file())),
    }
}

/// Does something when it goes out of scope.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// One world. Nothing where there can be none.
fn round(seed: u64, length: Duration) -> Option<u64> {
    let mut chance = Chance(Seed(seed));
    let bytes = Bytes((chance.below(3) + 1) * (6 << 20) + chance.below(16) * 4096);
    let chunk = Bytes(4096 << chance.below(8));
    let least = 33 * chunk.0;
    let dram = Bytes(least + chance.below(bytes.0 / 2));
    let faults = Arc::new(Faults::default());
    let mut inner = store(&mut chance, bytes);
    let name = inner.name();
    if chance.below(3) > 0 {
        faults.late.store(chance.below(300) as u32, Relaxed);
        inner = Box::new(Faulty::new(inner, Arc::clone(&faults), Seed(seed)));
    }
    let window = if chance.below(4) == 0 { Bytes::ZERO } else { Bytes::mib(1) };
    let options = FarOptions {
        chunk,
        window,
        checksum: chance.below(2) == 0,
        tries: 12,
        ..FarOptions::default()
    };
    let filled = if chance.below(2) == 0 { Filled::Numbers } else { Filled::Not };
    println!("seed {seed}: {bytes} in {dram}, chunks of {chunk}, {name}, filled: {filled:?}");
    let map = match FarMap::with(bytes, dram, inner, &options) {
        Ok(map) => map,
        Err(FarError::Kernel(error)) => {
            println!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let working = AtomicUsize::new(THREADS);
    if filled == Filled::Numbers {
        map.words().iter().enumerate().for_each(|(at, word)| word.store(filled.word(at), Relaxed));
    }
    let checked: u64 = std::thread::scope(|scope| {
        let words = map.words();
        let (stop, over, working, map_seen) = (&stop, &over, &working, &map);
        // However this ends, a panic included, the other threads end too, and are waited for.
        let _ends = OnDrop(|| [stop, over].iter().for_each(|flag| flag.store(true, Relaxed)));
        let workers: Vec<_> = (0..THREADS)
            .map(|me| {
                scope.spawn(move || {
                    let _counted = OnDrop(|| {
                        working.fetch_sub(1, Relaxed);
                    });
                    work(words, me, Seed(seed ^ me as u64), filled, stop)
                })
            })
            .collect();
        // Threads that wait for ever would be as wrong as a byte that differs.
        scope.spawn(move || {
            for _ in 0..600 {
                std::thread::sleep(Duration::from_millis(100));
                if working.load(Relaxed) == 0 {
                    return;
                }
            }
            // What is printed would be captured, and lost.
            let c = map_seen.statistics();
            let _shown = writeln!(std::io::stderr(), "seed {seed}: not done after a minute: {c:?}");
            std::process::abort();
        });
        if chance.below(2) == 0 {
            scope.spawn(move || age(map_seen, over, Seed(seed)));
        }
        let begin = Instant::now();
        let mut pinned = None;
        while begin.elapsed() < length && workers.iter().all(|w| !w.is_finished()) {
            std::thread::sleep(Duration::from_millis(chance.below(20)));
            let start = chance.below(bytes.0) as usize;
            let range = start..(start + chance.below(1 << 21) as usize).min(map.len());
            match chance.below(9) {
                0 => match map.set_dram(Bytes(least + chance.below(bytes.0))) {
                    Ok(()) | Err(FarError::TooLittle { .. }) => {}
                    Err(error) => panic!("{error}"),
                },
                1 => map.flush().or_else(partly).unwrap(),
                2 => map.prefetch(range).unwrap(),
                3 | 4 => map.advise(range, Advice::Cold).or_else(partly).unwrap(),
                5 => match pinned.take() {
                    Some(range) => map.pin(range, false).unwrap(),
                    None => pinned = map.pin(range.clone(), true).is_ok().then_some(range),
                },
                6 => faults.writes.store(chance.below(4) as u32 * 100, Relaxed),
                7 => faults.reads.store(chance.below(3) as u32 * 50, Relaxed),
                _ => assert!(
                    Command::new("true").status().unwrap().success(),
                    "a program started meanwhile"
                ),
            }
        }
        stop.store(true, Relaxed);
        let checked = workers.into_iter().map(|w| w.join().expect("a byte differs")).sum();
        over.store(true, Relaxed);
        checked
    });
    // What nobody used is as it was.
    let others =
        map.words().iter().enumerate().filter(|(at, _)| at / STEP / THREADS % STEP != at % STEP);
    others.for_each(|(at, word)| {
        assert_eq!(word.load(Relaxed), filled.word(at), "word {at} that nobody used")
    });
    let c = map.statistics().counts;
    assert_eq!(c.lost_bytes, 0, "{c:?}");
    Some(checked)
}

fn partly(error: FarError) -> Result<(), FarError> {
    match error {
        FarError::Partly { .. } => Ok(()),
        other => Err(other),
    }
}

#[test]
fn not_a_byte_differs() {
    let seconds = number("TERRACE_FAR_SECONDS").unwrap_or(5);
    let begin = Instant::now();
    let first = number("TERRACE_FAR_SEED").unwrap_or(1);
    let (mut seed, mut checked) = (first, 0);
    while begin.elapsed() < Duration::from_secs(seconds) || seed == first {
        match round(seed, Duration::from_millis(600)) {
            Some(n) => checked += n,
            None => return,
        }
        seed += 1;
    }
    println!("{} worlds from seed {first}, {checked} words checked", seed - first);
    assert!(checked > 1000, "{checked} words checked only");
}
