//! Far memory over the real kernel: every way in and out, and what must never happen.
// a test may stop at the first surprise, in its helpers too
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use terrace_far::store::{BackingStore, Compressed, Faults, Faulty, FileStore, Mem, Tiered};
use terrace_far::{Advice, FarError, FarMap, FarOptions};
use terrace_types::{Bytes, Nanos, Seed};

const PAGE_WORDS: usize = 512;

/// Or says why not.
fn map(
    bytes: Bytes,
    dram: Bytes,
    store: Box<dyn BackingStore>,
    options: &FarOptions,
) -> Option<FarMap> {
    match FarMap::with(bytes, dram, store, options) {
        Ok(map) => Some(map),
        Err(FarError::Kernel(error)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn file_store(bytes: Bytes) -> FileStore {
    let folder = std::env::temp_dir();
    FileStore::create(&[folder.as_path(), folder.as_path()], bytes).unwrap()
}

fn stores(bytes: Bytes) -> Vec<Box<dyn BackingStore>> {
    vec![
        Box::new(Mem::new()),
        Box::new(file_store(bytes)),
        Box::new(Compressed::new(bytes)),
        Box::new(Tiered::new(Compressed::new(Bytes::mib(1)), Box::new(file_store(bytes)))),
    ]
}

#[test]
fn four_times_the_memory_through_each_store() {
    for store in stores(Bytes::mib(24)) {
        let name = store.name();
        let Some(map) = map(Bytes::mib(24), Bytes::mib(6), store, &FarOptions::default()) else {
            return;
        };
        let words = map.words();
        let value = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 40);
        for n in (0..words.len()).step_by(64) {
            words[n].store(value(n), Relaxed);
        }
        for round in 0..2 {
            for n in (0..words.len()).step_by(64) {
                assert_eq!(words[n].load(Relaxed), value(n), "{name}, round {round}, word {n}");
            }
        }
        for n in (0..words.len()).step_by(3 * PAGE_WORDS).rev() {
            assert_eq!(
                words[n / 64 * 64].load(Relaxed),
                value(n / 64 * 64),
                "{name}, backwards, word {n}"
            );
        }
        let c = map.statistics().counts;
        assert!(c.written_bytes > 16 << 20 && c.read_bytes > 24 << 20, "{name}: {c:?}");
        assert!(c.mapped_bytes <= 6 << 20 && c.lost_bytes == 0, "{name}: {c:?}");
        assert!(c.faults < 24 << 8, "{name}: prefetch leaves few faults: {c:?}");
        let metadata = map.statistics().metadata;
        assert!(
            metadata > Bytes(20 << 10) && metadata < Bytes((24 << 20) / 100),
            "{name}: {metadata} of accounts"
        );
    }
}

#[test]
fn every_chunk_size() {
    for (shift, dram) in [(12, 1), (14, 2), (18, 9), (21, 72)] {
        let options = FarOptions { chunk: Bytes(1 << shift), ..FarOptions::default() };
        // A map that ends within a chunk, and within a page of several pages.
        let bytes = Bytes((80 << 20) + 4096);
        let Some(map) = map(bytes, Bytes::mib(dram), Box::new(Mem::new()), &options) else {
            return;
        };
        let words = map.words();
        let step = 11 * PAGE_WORDS + 7;
        for n in (0..words.len()).step_by(step) {
            words[n].store(n as u64 + 1, Relaxed);
        }
        words[words.len() - 1].store(77, Relaxed);
        for n in (0..words.len()).step_by(step) {
            assert_eq!(words[n].load(Relaxed), n as u64 + 1, "chunks of 2^{shift}");
        }
        assert_eq!(words[words.len() - 1].load(Relaxed), 77);
    }
}

#[test]
fn commands_do_what_they_say() {
    let Some(map) =
        map(Bytes::mib(32), Bytes::mib(8), Box::new(Mem::new()), &FarOptions::default())
    else {
        return;
    };
    let words = map.words();
    for (n, word) in words.iter().enumerate() {
        word.store(n as u64, Relaxed);
    }
    map.flush().unwrap();
    let before = map.statistics().counts.written_bytes;
    map.flush().unwrap();
    assert_eq!(map.statistics().counts.written_bytes, before, "nothing was left to write");

    map.advise(0..1 << 20, Advice::Cold).unwrap();
    let faults = map.statistics().counts.misses;
    map.set_dram(Bytes::mib(24)).unwrap();
    map.prefetch(0..1 << 20).unwrap();
    // What is on its way arrives; touching it then waits for no store, or for what is on its way.
    for n in (0..1 << 17).step_by(PAGE_WORDS) {
        assert_eq!(words[n].load(Relaxed), n as u64);
    }
    assert!(map.statistics().counts.misses <= faults + 1, "prefetched");

    map.pin(0..1 << 20, true).unwrap();
    assert!(matches!(map.pin(0..32 << 20, true), Err(FarError::Pinned { .. })));
    assert!(matches!(map.prefetch(0..33 << 20), Err(FarError::Range { .. })));
    assert!(matches!(map.set_dram(Bytes::mib(1)), Err(FarError::TooLittle { .. })));
    map.pin(0..1 << 20, false).unwrap();

    map.advise(4096..12_288, Advice::Discard).unwrap();
    assert_eq!(
        (words[511].load(Relaxed), words[512].load(Relaxed), words[1536].load(Relaxed)),
        (511, 0, 1536)
    );

    map.set_dram(Bytes::mib(3)).unwrap();
    for n in (2048..words.len()).step_by(PAGE_WORDS) {
        assert_eq!(words[n].load(Relaxed), n as u64);
    }
    assert!(map.statistics().counts.mapped_bytes <= 3 << 20);
}

#[test]
fn shapes_that_cannot_be_are_refused_with_what_to_do() {
    let small =
        FarMap::new(Bytes::mib(64), Bytes(4096), Box::new(Mem::new())).unwrap_err().to_string();
    assert!(small.contains("give at least 2 MiB"), "{small}");
    let odd = FarOptions { chunk: Bytes(5000), ..FarOptions::default() };
    assert!(matches!(
        FarMap::with(Bytes(1), Bytes::mib(9), Box::new(Mem::new()), &odd),
        Err(FarError::Shape { .. })
    ));
    assert!(FarMap::new(Bytes(0), Bytes::mib(9), Box::new(Mem::new())).is_err());
    let nowhere =
        FileStore::create(&[Path::new("/nowhere/at/all")], Bytes::mib(1)).unwrap_err().to_string();
    assert!(nowhere.contains("name a folder"), "{nowhere}");
    let huge = FileStore::create(&[std::env::temp_dir().as_path()], Bytes(1 << 50))
        .unwrap_err()
        .to_string();
    assert!(huge.contains("free some space"), "{huge}");
}

#[test]
fn no_file_is_left_to_be_seen() {
    let folder = std::env::temp_dir().join(format!("terrace-far-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let store = FileStore::create(&[&folder], Bytes::mib(8)).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    drop(store);
    std::fs::remove_dir(&folder).unwrap();
}

/// System calls fill and read absent pages as well.
#[test]
fn the_kernel_reads_and_writes_far_memory() {
    let Some(map) =
        map(Bytes::mib(16), Bytes::mib(4), Box::new(Mem::new()), &FarOptions::default())
    else {
        return;
    };
    if !map.statistics().features.kernel_faults {
        println!("skipped: system calls into absent pages need privilege here");
        return;
    }
    let words = map.words();
    for (n, word) in words.iter().enumerate() {
        word.store(n as u64, Relaxed);
    }
    // A thousand threads at once, each with its own page, while others evict it.
    std::thread::scope(|scope| {
        for t in 0..1000_usize {
            let words = &words;
            scope.spawn(move || {
                let n = t * words.len() / 1000;
                assert_eq!(words[n].fetch_add(1, Relaxed), n as u64);
            });
        }
    });
    for t in 0..1000_usize {
        let n = t * words.len() / 1000;
        assert_eq!(words[n].load(Relaxed), n as u64 + 1);
    }
    // Programs started meanwhile neither see nor disturb it.
    assert!(Command::new("true").status().unwrap().success());
}

/// How a program ended that lost something.
struct Ended {
    signal: i32,
    printed: String,
    errors: String,
}

/// Runs this very test program with the named case, which ends by a signal.
fn ends_by_signal(case: &str) -> Option<Ended> {
    use std::os::unix::process::ExitStatusExt;
    let me = std::env::current_exe().unwrap();
    let out = Command::new(me)
        .args(["--exact", case, "--nocapture"])
        .env("TERRACE_FAR_CASE", case)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    let printed = String::from_utf8_lossy(&out.stdout).into_owned();
    if let Some(skip) = printed.lines().find(|l| l.starts_with("skipped: ")) {
        println!("{skip}");
        return None;
    }
    Some(Ended { signal: out.status.signal().unwrap_or(0), printed, errors })
}

fn lose(altered: u32, reads: u32) {
    let faults = Arc::new(Faults::default());
    let store = Faulty::new(Box::new(Mem::new()), Arc::clone(&faults), Seed(1));
    let Some(map) = map(Bytes::mib(16), Bytes::mib(4), Box::new(store), &FarOptions::default())
    else {
        return;
    };
    let words = map.words();
    for word in words {
        word.store(7, Relaxed);
    }
    map.advise(0..8 << 20, Advice::Cold).unwrap();
    faults.altered.store(altered, Relaxed);
    faults.reads.store(reads, Relaxed);
    println!("read {}", words[1].load(Relaxed));
}

#[test]
fn altered_bytes_are_a_signal_and_one_line_never_data() {
    let case = "altered_bytes_are_a_signal_and_one_line_never_data";
    if std::env::var("TERRACE_FAR_CASE").as_deref() == Ok(case) {
        return lose(1000, 0);
    }
    let Some(Ended { signal, errors: text, .. }) = ends_by_signal(case) else {
        return;
    };
    assert_eq!(signal, 7, "{text}");
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("far memory:")).collect();
    assert!(lines.len() == 1 && lines[0].contains("not those that were written"), "{text}");
}

#[test]
fn unreadable_bytes_are_a_signal_and_one_line_never_data() {
    let case = "unreadable_bytes_are_a_signal_and_one_line_never_data";
    if std::env::var("TERRACE_FAR_CASE").as_deref() == Ok(case) {
        return lose(0, 1000);
    }
    let Some(Ended { signal, errors: text, .. }) = ends_by_signal(case) else {
        return;
    };
    assert_eq!(signal, 7, "{text}");
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("far memory:")).collect();
    assert!(lines.len() == 1 && lines[0].contains("errno 5"), "{text}");
}

/// Unmaps a page of the map as a program may that asks the kernel itself.
fn unmap_behind_its_back(map: &FarMap, page: usize) {
    let at = map.as_mut_ptr().wrapping_add(page * PAGE_WORDS * 8);
    // SAFETY: the page lies in the map, which is live; what becomes of its bytes is what is tested.
    let status = unsafe { libc::madvise(at.cast(), PAGE_WORDS * 8, libc::MADV_DONTNEED) };
    assert_eq!(status, 0);
}

/// Pages of which the store has a copy and those of which it has none, unmapped by somebody else.
fn unmapped_by_somebody_else() {
    let store = Box::new(Mem::new());
    let Some(map) = map(Bytes::mib(16), Bytes::mib(4), store, &FarOptions::default()) else {
        return;
    };
    let words = map.words();
    for word in words.iter().take(4 * PAGE_WORDS) {
        word.store(7, Relaxed);
    }
    map.flush().unwrap();
    words[PAGE_WORDS].store(8, Relaxed);
    unmap_behind_its_back(&map, 3);
    println!("clean {}", words[3 * PAGE_WORDS].load(Relaxed));
    unmap_behind_its_back(&map, 1);
    println!("written {}", words[PAGE_WORDS].load(Relaxed));
}

#[test]
fn unmapped_bytes_are_fetched_again_or_raise_sigbus() {
    let case = "unmapped_bytes_are_fetched_again_or_raise_sigbus";
    if std::env::var("TERRACE_FAR_CASE").as_deref() == Ok(case) {
        return unmapped_by_somebody_else();
    }
    let Some(ended) = ends_by_signal(case) else {
        return;
    };
    assert_eq!(ended.signal, 7, "{}", ended.errors);
    assert!(
        ended.printed.contains("clean 7") && !ended.printed.contains("written"),
        "{}",
        ended.printed
    );
    let lines: Vec<&str> = ended.errors.lines().filter(|l| l.starts_with("far memory:")).collect();
    assert!(lines.len() == 1 && lines[0].contains("unmapped by somebody else"), "{}", ended.errors);
}

#[test]
fn a_forked_child_faults_rather_than_reads_zeros() {
    let Some(map) = map(Bytes::mib(8), Bytes::mib(3), Box::new(Mem::new()), &FarOptions::default())
    else {
        return;
    };
    for (n, word) in map.words().iter().enumerate() {
        word.store(n as u64 + 1, Relaxed);
    }
    let reader = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Faults go on while the process forks.
        scope.spawn(|| {
            while !reader.load(Relaxed) {
                for (n, word) in map.words().iter().enumerate().step_by(PAGE_WORDS) {
                    assert_eq!(word.load(Relaxed), n as u64 + 1);
                }
            }
        });
        for word in [0, map.words().len() / 2, map.words().len() - 1] {
            // SAFETY: the child touches memory and exits; it takes no lock that another thread may
            // hold.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let found = map.words()[word].load(Relaxed);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(found == 0)) };
            }
            let mut status = 0;
            // SAFETY: waits for our own child; the status is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(
                libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
                "status {status:#x}"
            );
        }
        reader.store(true, Relaxed);
    });
}

static SEEN_BY: [std::sync::atomic::AtomicU64; 2] =
    [std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0)];

extern "C" fn on_signal(_signal: libc::c_int) {
    let word = SEEN_BY[0].load(Relaxed) as *const std::sync::atomic::AtomicU64;
    // SAFETY: the test keeps the map, and so the word, while signals come.
    SEEN_BY[1].store(unsafe { (*word).load(Relaxed) }, Relaxed);
}

/// Whether the calling thread may run on so many CPUs; not at the very moment that it is woken,
/// perhaps.
fn may_run_on(cpus: usize) -> bool {
    (0..100).any(|n| {
        terrace_sys::sleep(Nanos::millis(n));
        terrace_sys::own_cpus().unwrap().len() == cpus
    })
}

#[test]
fn a_lone_waiter_keeps_its_affinity_while_the_pager_runs() {
    let options = FarOptions { chunk: Bytes(64 << 10), beside: true, ..FarOptions::default() };
    let Some(map) =
        map(Bytes::mib(16), Bytes::mib(4), Box::new(Compressed::new(Bytes::mib(16))), &options)
    else {
        return;
    };
    let words = map.words();
    for (n, word) in words.iter().enumerate().step_by(PAGE_WORDS) {
        word.store(n as u64, Relaxed);
    }
    let before = terrace_sys::own_cpus().unwrap().len();
    let touch = |seed: u64, count: usize| {
        let mut seed = Seed(seed);
        for _ in 0..count {
            let (r, next) = seed.next();
            seed = next;
            let n = (r >> 16) as usize % (words.len() / PAGE_WORDS) * PAGE_WORDS;
            assert_eq!(words[n].load(Relaxed), n as u64);
        }
    };
    // Two rounds at least are done where the kernel chooses, one beside the pager.
    touch(7, 6_000);
    let counts = map.statistics().counts;
    if before > 1 {
        assert!(counts.woken_here > 100, "{counts:?}");
    }
    assert!(may_run_on(before));
    // One that is kept on a CPU stays there: the pager comes to it.
    let cpus = terrace_sys::own_cpus().unwrap();
    for cpu in cpus.iter().copied().take(2) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                terrace_sys::pin(&[cpu]).unwrap();
                touch(u64::from(cpu.0) + 9, 3_000);
                assert_eq!(terrace_sys::own_cpus().unwrap(), [cpu]);
            });
        });
    }
    // Several at once: none is left on one CPU.
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || {
                touch(n + 20, 1_500);
                assert!(may_run_on(before), "{before} {:?}", terrace_sys::own_cpus());
            });
        }
    });
}

#[test]
fn a_signal_handler_may_fault() {
    let Some(map) = map(Bytes::mib(8), Bytes::mib(3), Box::new(Mem::new()), &FarOptions::default())
    else {
        return;
    };
    // SAFETY: installs a handler that touches atomics only.
    unsafe {
        libc::signal(libc::SIGUSR1, on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t)
    };
    for (n, word) in map.words().iter().enumerate() {
        word.store(n as u64 + 1, Relaxed);
    }
    for n in (0..map.words().len()).step_by(7 * PAGE_WORDS) {
        SEEN_BY[0].store(std::ptr::from_ref(&map.words()[n]) as u64, Relaxed);
        // SAFETY: the handler is installed; this thread gets the signal.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
        assert_eq!(SEEN_BY[1].load(Relaxed), n as u64 + 1);
    }
}

#[test]
fn memory_is_given_back_while_programs_stall() {
    let stalled = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let reported = Arc::clone(&stalled);
    let stalls: terrace_far::StallClock =
        Arc::new(move || Some(terrace_types::Nanos(reported.load(Relaxed))));
    let options = FarOptions { stalls: Some(stalls), ..FarOptions::default() };
    let Some(map) = map(Bytes::mib(32), Bytes::mib(16), Box::new(Mem::new()), &options) else {
        return;
    };
    let touch = || map.words().iter().step_by(PAGE_WORDS).for_each(|w| w.store(1, Relaxed));
    let budget = || map.statistics().counts.budget_bytes;
    touch();
    let whole = budget();
    assert!(whole > 14 << 20, "{whole}");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while budget() > whole / 8 * 7 && std::time::Instant::now() < deadline {
        stalled.fetch_add(20_000_000, Relaxed);
        touch();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(budget() <= whole / 8 * 7, "{} of {whole}", budget());
    // A budget that is set meanwhile is what the eighths are of.
    map.set_dram(Bytes::mib(12)).unwrap();
    map.flush().unwrap();
    touch();
    assert!(
        budget() < 12 << 20 && map.statistics().counts.mapped_bytes <= budget() + (1 << 20),
        "{}",
        budget()
    );
}
