//! `libterrace_far_preload.so`: an unmodified program's heap and large mappings in far memory.
//! `terrace run --dram --far` sets it up:
//!
//! | variable | what |
//! |---|---|
//! | `TERRACE_FAR_DRAM` | bytes that may be in memory, divided evenly among the processes that have far memory |
//! | `TERRACE_FAR_STORE` | a folder, `compressed`, or a folder and `+compressed` |
//! | `TERRACE_FAR_TALLY` | where the counts go ([`terrace_far::tally`]); need not be there |
//!
//! ```text
//! ground   [ heap: arenas of terrace-preload ............ | large mappings: ranges, calls ........... ]
//! ```
//! Until a process holds [`plain_limit`] bytes there, the ground is ordinary memory and nothing
//! else is running: most processes of a run end before. Then a [`FarMap`] takes the ground over
//! with what lies there.
//!
//! Every call that changes the address space is followed ([`space`]): what it changes of far memory
//! the pager gives up before.
//!
//! What Rust code in this library allocates is glibc's, never far memory: the pager may not wait
//! for itself. Its thread, and the one that starts it, get what the C library allocates for them
//! from the reserve, and free nothing that lies in far memory. Neither takes a lock of the heap.

mod calls;
mod layout;
mod ordinary;
mod others;
mod raw;
mod remap;
mod space;

use layout::Kind;
use space::Change;
use std::ffi::{CStr, OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, AtomicUsize, Ordering::*};
use std::sync::{Arc, OnceLock};
use terrace_alloc::arena;
use terrace_far::store::StoreSpec;
use terrace_far::{tally, FarCounts, FarError, FarMap, FarOptions, InUse, Takeover};
use terrace_preload::far as threads;
use terrace_sys::{ForkSafeLock, ReservedMemory, SharedTable};
use terrace_types::{Bytes, Nanos};

/// What is tried for the ground, largest first: the kernel may not have so many addresses.
const GROUNDS: [u64; 8] =
    [512 << 30, 128 << 30, 32 << 30, 8 << 30, 2 << 30, 512 << 20, 128 << 20, 32 << 20];
/// Where addresses are limited (`ulimit -v`), the ground has a fourth of them: the program needs
/// the rest for what is not far, and for what finds no free space here.
const GROUND_SHARE: u64 = 4;
/// Far memory begins once a process holds so much, or half of what may be in memory.
const MAX_PLAIN: u64 = 32 << 20;
/// What an arena takes first, and the most that is left out before it for alignment.
const SEGMENT: u64 = 4 << 20;

/// There is no ground.
const OFF: u8 = 0;
/// The ground is ordinary memory.
const PLAIN: u8 = 1;
/// A map is taking it over: who would change its pages waits.
const STARTING: u8 = 2;
/// A map has it.
const ON: u8 = 3;
/// It is ordinary memory for good: no map could be made, or this is a child of a process that has
/// one.
const ORDINARY: u8 = 4;

static STATE: AtomicU8 = AtomicU8::new(OFF);
static RUN: OnceLock<Run> = OnceLock::new();
static MAP: AtomicPtr<FarMap> = AtomicPtr::new(null_mut());
/// Ends of what is in use of the heap's and the mappings' part.
static HEAP_TOP: AtomicUsize = AtomicUsize::new(0);
static MAPS_TOP: AtomicUsize = AtomicUsize::new(0);
/// Threads that are changing pages of the ground by themselves.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);
static FORKING: ForkSafeLock = ForkSafeLock::new();

/// What was asked for.
struct Run {
    ground: ReservedMemory,
    /// Where the heap's part ends and that of mappings begins.
    middle: usize,
    dram: Bytes,
    store: StoreSpec,
    tally: Option<PathBuf>,
}

impl Run {
    fn from_environment() -> Result<Self, String> {
        let dram = variable(c"TERRACE_FAR_DRAM").and_then(|d| d.to_str()?.parse().ok()).map(Bytes);
        let dram = dram.ok_or("TERRACE_FAR_DRAM is not a number of bytes")?;
        let store = variable(c"TERRACE_FAR_STORE").ok_or("TERRACE_FAR_STORE is not set")?;
        let mut last = None;
        let most = terrace_sys::address_limit().map_or(u64::MAX, |limit| limit.0 / GROUND_SHARE);
        let most = most / (2 * SEGMENT) * (2 * SEGMENT);
        for len in GROUNDS.map(|len| len.min(most)) {
            match ReservedMemory::map(len as usize) {
                Ok(ground) => {
                    // A child of a process that has no far memory yet is as any child.
                    let whole = ground.start()..ground.start() + ground.len();
                    space::inherit_part(&whole, true);
                    space::real_advise(ground.start(), ground.len(), libc::MADV_DONTDUMP);
                    let middle = ground.start() + ground.len() / 2;
                    space::reserve(&(middle..whole.end));
                    let tally = variable(c"TERRACE_FAR_TALLY").map(PathBuf::from);
                    return Ok(Self { ground, middle, dram, store: store_named(&store), tally });
                }
                Err(error) => last = Some(error.to_string()),
            }
        }
        Err(last.unwrap_or_default())
    }

    /// Bytes up to the ends of what is in use.
    fn used(&self) -> usize {
        let heap = HEAP_TOP.load(SeqCst).saturating_sub(self.ground.start());
        heap + MAPS_TOP.load(SeqCst).saturating_sub(self.middle)
    }

    /// What a map takes over. No other thread changes the ground meanwhile.
    fn in_use(&self) -> InUse {
        let base = self.ground.start();
        let whole = base..base + self.ground.len();
        let offsets = |part: &Range<usize>| part.start - base..part.end - base;
        let pieces = space::with(|l| l.pieces(&whole));
        let of_kind = |kind| {
            let some = pieces.iter().filter(move |(_, k)| *k == kind);
            some.map(|(part, _)| part.clone()).collect::<Vec<_>>()
        };
        let (far, mut others) = (of_kind(Kind::Far), of_kind(Kind::Ordinary));
        // Gaps are left alone like mappings of the program's own.
        let mut gaps = of_kind(Kind::Free);
        let last_is_at_the_end = gaps.last().is_some_and(|last| last.end == whole.end);
        let unused = if last_is_at_the_end { gaps.pop() } else { None };
        others.append(&mut gaps);
        let heap_top = HEAP_TOP.load(SeqCst).max(base);
        // Of the heap's part most was never touched.
        let touched = far.iter().map(|part| {
            let end = if part.start < self.middle { part.end.min(heap_top) } else { part.end };
            part.start..end.max(part.start)
        });
        InUse {
            touched: touched.filter(|part| !part.is_empty()).map(|part| offsets(&part)).collect(),
            managed: far.iter().map(offsets).collect(),
            others: others.iter().map(offsets).collect(),
            unused: unused.as_ref().map_or(0..0, offsets),
        }
    }
}

fn variable(name: &CStr) -> Option<OsString> {
    // SAFETY: the name ends with zero; nobody changes the environment while the program starts.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: the environment's strings end with zero.
    (!value.is_null())
        .then(|| OsString::from_vec(unsafe { CStr::from_ptr(value) }.to_bytes().to_vec()))
}

fn say(line: &str) {
    let line = format!("terrace: far memory: {line}\n");
    // SAFETY: so many readable bytes.
    let _nobody_listens = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Mappings may be made before anything is allocated.
extern "C" fn loaded() {
    // The compiler would leave out a pair of which nobody sees the block.
    let block = std::hint::black_box(terrace_preload::malloc(1));
    // SAFETY: just made, and nobody else's.
    unsafe { terrace_preload::free(block) };
}

#[used]
#[link_section = ".init_array"]
static LOADED: extern "C" fn() = loaded;

/// Called by the allocator before it begins.
#[no_mangle]
pub extern "C" fn terrace_far_begin() {
    let run = match Run::from_environment() {
        Ok(run) => run,
        Err(why) => return say(&format!("{why}; the program runs in ordinary memory")),
    };
    let (start, middle, end) =
        (run.ground.start(), run.middle, run.ground.start() + run.ground.len());
    // Before anybody else asks for it: these are called last before a fork, when no other thread
    // holds a lock that the forking one has taken.
    if let Err(error) = terrace_sys::at_fork(before_fork, in_parent, in_child) {
        return say(&format!("{error}; the program runs in ordinary memory"));
    }
    if RUN.set(run).is_err()
        || !arena::stand_on(arena::ArenaBacking { start, len: middle - start, opened, discard })
    {
        return;
    }
    space::with(|l| l.begin(start..middle, end));
    STATE.store(PLAIN, SeqCst);
}

/// The first segment of the heap comes on top: every process has one.
fn plain_limit(run: &Run) -> u64 {
    (run.dram.0 / 2).min(MAX_PLAIN) + SEGMENT
}

/// The heap grew to `end`.
fn opened(end: usize) {
    let Some(run) = RUN.get() else { return };
    let before = HEAP_TOP.fetch_max(end, SeqCst).max(run.ground.start());
    if end > before {
        space::real_advise(before, end - before, libc::MADV_DODUMP);
    }
    consider();
}

/// Asks for far memory if enough is in use for it.
fn consider() {
    let Some(run) = RUN.get().filter(|_| STATE.load(Relaxed) == PLAIN) else {
        return;
    };
    if run.used() as u64 > plain_limit(run) {
        threads::set_due(start);
    }
}

/// The map, where there is one.
fn map() -> Option<&'static FarMap> {
    if STATE.load(Acquire) != ON {
        return None;
    }
    // SAFETY: set before the state, and never freed.
    unsafe { MAP.load(Acquire).as_ref() }
}

/// Runs `plain` while no map takes the ground over, or `far` with the map that has it.
fn either<T>(plain: impl FnOnce() -> T, far: impl FnOnce(&'static FarMap) -> T) -> T {
    loop {
        AT_WORK.fetch_add(1, SeqCst);
        let state = STATE.load(SeqCst);
        if state == STARTING {
            AT_WORK.fetch_sub(1, SeqCst);
            terrace_sys::sleep(Nanos::micros(50));
            continue;
        }
        let done = match map() {
            Some(map) => {
                AT_WORK.fetch_sub(1, SeqCst);
                return far(map);
            }
            None => plain(),
        };
        AT_WORK.fetch_sub(1, SeqCst);
        return done;
    }
}

/// Offsets in the ground.
fn offsets(start: usize, len: usize) -> Range<usize> {
    let base = RUN.get().map_or(0, |r| r.ground.start());
    start - base..start - base + len
}

/// Frees the pages of a part of the heap: zeros from now on. Called with the allocator's locks
/// held, which a thread that forks waits for.
fn discard(start: usize, len: usize) -> bool {
    let pieces = space::with(|l| l.pieces(&(start..start + len)));
    pieces.into_iter().fold(true, |all, (part, kind)| {
        let done = match kind {
            Kind::Far => space::discard(&part),
            Kind::Ordinary => space::real_advise(part.start, part.len(), libc::MADV_DONTNEED) == 0,
            Kind::Free => false,
        };
        all && done
    })
}

/// Has a map take the ground over. Called outside every lock of the allocator, by whichever thread
/// allocates next.
fn start() {
    let Some(run) = RUN.get() else { return };
    let _no_fork = Change::begin();
    if STATE.compare_exchange(PLAIN, STARTING, SeqCst, SeqCst).is_err() {
        return;
    }
    // What the C library allocates for the new thread must not be in far memory.
    threads::set_aside(0, Some(threads::this_thread()));
    while AT_WORK.load(SeqCst) != 0 {
        terrace_sys::sleep(Nanos::micros(20));
    }
    let made = take_over(run);
    threads::set_aside(0, None);
    match made {
        Ok(map) => {
            MAP.store(std::ptr::from_ref(map).cast_mut(), SeqCst);
            STATE.store(ON, SeqCst);
            space::inherit(false);
        }
        Err(error) => {
            threads::set_aside(1, None);
            threads::DUE.store(false, SeqCst);
            STATE.store(ORDINARY, SeqCst);
            say(&format!("{error}; this process goes on in ordinary memory"));
        }
    }
}

fn take_over(run: &'static Run) -> Result<&'static FarMap, FarError> {
    let table = run
        .tally
        .as_deref()
        .and_then(|path| SharedTable::open(path, tally::WORDS).ok())
        .map(Arc::new);
    let row = table.as_ref().and_then(|table| tally::claim(table));
    let among = table.as_ref().map_or(1, |t| tally::sharers(t)).max(1);
    let least = Bytes(32 * (64 << 10));
    let dram = Bytes(run.dram.0 / among).max(least);
    let options = FarOptions {
        on_counts: table.zip(row).map(|(t, row)| counted(t, row, run.dram, dram)),
        stalls: terrace_far::stalls(),
        ..FarOptions::default()
    };
    let bytes = Bytes(run.ground.len() as u64);
    let takeover = Takeover {
        ground: run.ground,
        first: || threads::set_aside(1, Some(threads::this_thread())),
        used: Box::new(|| run.in_use()),
        dram,
        store: Box::new(move || Ok(run.store.make(bytes, run.dram)?)),
    };
    FarMap::over(takeover, &options)
}

/// Writes the counts where they are read, and divides memory among those who have far memory.
fn counted(
    table: Arc<SharedTable>,
    row: tally::ProcessTally,
    all: Bytes,
    first: Bytes,
) -> terrace_far::OnCounts {
    let (looked, share) = (AtomicU64::new(0), AtomicU64::new(first.0));
    let least = FarMap::least(first, FarOptions::default().chunk_for(first));
    Arc::new(move |counts: &FarCounts, _stored: Bytes| {
        row.tell(&table, counts);
        let now = terrace_sys::now().0;
        if now - looked.load(Relaxed) < Nanos::millis(100).0 {
            return None;
        }
        looked.store(now, Relaxed);
        let mine = Bytes(all.0 / tally::sharers(&table).max(1)).max(least);
        (share.swap(mine.0, Relaxed) != mine.0).then_some(mine)
    })
}

unsafe extern "C" fn before_fork() {
    FORKING.lock();
    space::begin_fork();
    if let Some(map) = map() {
        if let Err(error) = map.gather() {
            say(&format!("{error}; a forked child gets SIGBUS for what cannot be read"));
        }
        space::inherit(true);
    }
}

unsafe extern "C" fn in_parent() {
    if let Some(map) = map() {
        space::inherit(false);
        map.let_go();
    }
    space::end_fork();
    FORKING.unlock();
}

unsafe extern "C" fn in_child() {
    // All of it is in memory, and the pager's thread is the parent's.
    if STATE.load(SeqCst) == ON {
        STATE.store(ORDINARY, SeqCst);
        threads::set_aside(1, None);
        threads::DUE.store(false, SeqCst);
    }
    space::begin_as_child();
    AT_WORK.store(0, SeqCst);
    FORKING.unlock();
}

/// The store of this name, its folder absolute, since the program may change its own.
fn store_named(text: &OsStr) -> StoreSpec {
    let spec = StoreSpec::parse(text);
    let folder = spec.folder.map(|f| std::path::absolute(&f).unwrap_or(f));
    StoreSpec { folder, ..spec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_absolute() {
        assert!(store_named(OsStr::new("a+compressed")).folder.is_some_and(|f| f.is_absolute()));
        assert_eq!(store_named(OsStr::new("compressed")).folder, None);
    }
}
