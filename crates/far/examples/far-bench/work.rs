//! One measurement.

use crate::spent::Spent;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use terrace_far::store::{BackingStore, Compressed, FileStore};
use terrace_far::{FarMap, FarOptions};
use terrace_types::{Bytes, Seed};

const PAGE: usize = 512;
/// Words of a cache line.
const LINE: usize = 8;

/// Memory of one kind or another.
enum Memory {
    Far(FarMap),
    Plain { at: *mut u8, len: usize },
}

impl Memory {
    fn words(&self) -> &[AtomicU64] {
        match self {
            Self::Far(map) => map.words(),
            // SAFETY: made in `mapped`: page-aligned, readable and writable, `len` bytes, never
            // unmapped.
            Self::Plain { at, len } => unsafe { std::slice::from_raw_parts(at.cast(), len / 8) },
        }
    }
}

fn mapped(bytes: usize, file: Option<&Path>) -> Result<Memory, String> {
    use std::os::fd::AsRawFd;
    let opened = match file {
        Some(folder) => {
            let path = folder.join(format!("far-bench-{}", std::process::id()));
            let made =
                std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            let made = made.map_err(|e| format!("{}: {e}", path.display()))?;
            std::fs::remove_file(&path).map_err(|e| e.to_string())?;
            // Written out, so that its blocks exist: a sparse file would have to find space while
            // it is measured. SAFETY: takes a descriptor that is open and numbers.
            if unsafe { libc::fallocate(made.as_raw_fd(), 0, 0, bytes as i64) } != 0 {
                return Err(std::io::Error::last_os_error().to_string());
            }
            Some(made)
        }
        None => None,
    };
    let (flags, fd) = match &opened {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
    };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().to_string());
    }
    Ok(Memory::Plain { at: at.cast(), len: bytes })
}

fn far(bytes: u64, dram: u64, store: impl BackingStore + 'static) -> Result<Memory, String> {
    let mut options = FarOptions::default();
    let set = |name: &str| {
        std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok()).map(|kib| Bytes(kib << 10))
    };
    options.chunk = set("FAR_BENCH_UNIT_KIB").unwrap_or(options.chunk);
    options.window = set("FAR_BENCH_WINDOW_KIB").unwrap_or(options.window);
    options.beside = std::env::var_os("FAR_BENCH_NOT_BESIDE").is_none();
    options.checksum = std::env::var_os("FAR_BENCH_NO_SUMS").is_none();
    FarMap::with(Bytes(bytes), Bytes(dram), Box::new(store), &options)
        .map(Memory::Far)
        .map_err(|e| e.to_string())
}

/// The value of a word: three of eight words of a line are random, so that lz4 makes about half of
/// it.
fn value(n: usize) -> u64 {
    if n % LINE < 3 {
        Seed(n as u64).next().0
    } else {
        (n / PAGE) as u64
    }
}

fn fill(words: &[AtomicU64]) {
    for (n, w) in words.iter().enumerate() {
        w.store(value(n), Relaxed);
    }
}

/// Touches the first word of each line of the pages of a walk; true if all were right. A write
/// writes what is there.
fn walk(words: &[AtomicU64], pages: impl Iterator<Item = usize>, write: bool) -> bool {
    let mut wrong = 0;
    for page in pages {
        for n in (page * PAGE..(page + 1) * PAGE).step_by(LINE) {
            let found = words[n].load(Relaxed);
            wrong |= found ^ value(n);
            if write {
                words[n].store(found, Relaxed);
            }
        }
    }
    wrong == 0
}

/// Touches a word each of so many pages at random, for four seconds at most; how many, and true if
/// all were right.
fn at_random(words: &[AtomicU64], mut seed: Seed, most: usize, write: bool) -> (usize, bool) {
    let (pages, begin, mut touched, mut right) = (words.len() / PAGE, Instant::now(), 0, true);
    while touched < most && begin.elapsed().as_secs() < 4 {
        let (r, next) = seed.next();
        seed = next;
        let n = (r >> 16) as usize % pages * PAGE;
        let found = words[n].load(Relaxed);
        right &= found == value(n);
        if write {
            words[n].store(found, Relaxed);
        }
        touched += 1;
    }
    (touched, right)
}

/// Measures one case over one kind of memory and prints it.
pub fn run(backing: &str, case: &str, size: &str, dram: &str, folder: &str) -> Result<(), String> {
    let mib = |text: &str| {
        text.parse::<u64>().map(|n| n << 20).map_err(|_| format!("{text} is no number of MiB"))
    };
    let (size, dram) = (mib(size)?, mib(dram)?);
    let folder = Path::new(folder);
    let bytes = if case == "fits" { dram / 2 } else { size };
    let memory = match backing {
        "far-file" => far(
            bytes,
            dram,
            FileStore::create(&[folder], Bytes(bytes)).map_err(|e| e.to_string())?,
        )?,
        "far-compressed" => far(bytes, dram, Compressed::new(Bytes(2 * bytes)))?,
        "plain" => mapped(bytes as usize, None)?,
        "mmap-file" => mapped(bytes as usize, Some(folder))?,
        other => {
            return Err(format!("{other} is none of far-file, far-compressed, plain, mmap-file"))
        }
    };
    let words = memory.words();
    let pages = words.len() / PAGE;
    fill(words);
    let counts = || match &memory {
        Memory::Far(map) => format!("{:?}", map.statistics().counts),
        Memory::Plain { .. } => String::new(),
    };
    let misses = || match &memory {
        Memory::Far(map) => Some(map.statistics().counts.misses),
        Memory::Plain { .. } => None,
    };
    let (before, missed_before) = (counts(), misses());
    let spent = Spent::so_far();
    let begin = Instant::now();
    let mut touched = 0;
    let mut right = true;
    let mut sweeps = 0;
    match case {
        "seq-read" | "seq-write" => {
            for _ in 0..2 {
                right &= walk(words, 0..pages, case == "seq-write");
                touched += pages;
            }
        }
        "stride-read" | "stride-write" => {
            // Every third page, each page once in three rounds.
            for first in 0..3 {
                right &= walk(words, (first..pages).step_by(3), case == "stride-write");
                touched += pages / 3;
            }
        }
        "random-read" | "random-write" => {
            (touched, right) = at_random(words, Seed(7), 40_000, case == "random-write")
        }
        threads if threads.starts_with("random-read-") => {
            let count: u64 = threads["random-read-".len()..]
                .parse()
                .map_err(|_| format!("{threads} is no case"))?;
            let one = |n| move || at_random(words, Seed(7 + n), 40_000, false);
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..count).map(|n| scope.spawn(one(n))).collect();
                for thread in all {
                    let (pages, fine) = thread.join().unwrap_or((0, false));
                    touched += pages;
                    right &= fine;
                }
            });
        }
        "fits" => {
            while begin.elapsed().as_millis() < 1500 {
                right &= walk(words, 0..pages, sweeps % 2 == 1);
                touched += pages;
                sweeps += 1;
            }
        }
        other => return Err(format!("{other} is no case")),
    }
    let seconds = begin.elapsed().as_secs_f64();
    let spent = Spent::so_far().since(spent);
    if !right {
        return Err(format!("{backing}, {case}: wrong data"));
    }
    let missed = misses().zip(missed_before).map(|(after, before)| after - before);
    println!(
        "{}",
        serde_json::json!({
            "seconds": seconds,
            "pages": touched,
            "bytes_per_s": touched as f64 * 4096.0 / seconds,
            "missed_bytes_per_s": missed.map(|pages| pages as f64 * 4096.0 / seconds),
            "us_per_page": seconds * 1e6 / touched as f64,
            "spent": spent,
            "counts_before": before,
            "counts": counts(),
        })
    );
    Ok(())
}
