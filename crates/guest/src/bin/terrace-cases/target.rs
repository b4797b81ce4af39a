//! Targets that do to their own memory what makes moving pages hard. Each prints only values
//! that depend on its data, so that two runs print the same whatever was done to the pages.

use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;

/// Runs the target `mode`; returns its exit status.
pub fn run(mode: &str) -> i32 {
    match mode {
        "steady" => report("steady", &steady(160 << 20, 60)),
        "brief" => report("brief", &steady(64 << 20, 3)),
        "exec" => exec_again(),
        "fork" => fork_children(),
        "unmap" => unmap_and_remap(),
        "huge" => huge(),
        "shared" => shared_and_locked(),
        "status" => {
            report("status", &steady(32 << 20, 4));
            return 37;
        }
        _ => {
            eprintln!("unknown target {mode}");
            return 2;
        }
    }
    0
}

fn report(name: &str, sum: &u64) {
    println!("{name} {sum:016x}");
}

/// An anonymous private mapping of whole pages, unmapped when dropped.
struct Map {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; access goes through `&self`/`&mut self`
// methods, and the only sharing between threads in this file is of disjoint maps.
unsafe impl Send for Map {}

impl Map {
    fn new(len: usize, flags: i32) -> Self {
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses aliases nothing.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert!(base != libc::MAP_FAILED, "mmap of {len} bytes failed");
        Self { base: base.cast(), len }
    }

    fn words(&mut self) -> &mut [u64] {
        // SAFETY: base is page-aligned, `len` bytes are mapped read-write for as long as `self`
        // lives, and the unique borrow of `self` makes the slice the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len / 8) }
    }

    fn advise(&self, advice: i32) {
        // SAFETY: the range is exactly this mapping; the advice does not change what it holds.
        unsafe { libc::madvise(self.base.cast(), self.len, advice) };
    }

    fn lock(&self) {
        // SAFETY: the range is exactly this mapping; locking changes no contents.
        unsafe { libc::mlock(self.base.cast(), self.len) };
    }

    fn grow(&mut self, len: usize) {
        // SAFETY: the old range is exactly this mapping, no reference into it is live (unique
        // borrow), and the result replaces base and len.
        let base = unsafe { libc::mremap(self.base.cast(), self.len, len, libc::MREMAP_MAYMOVE) };
        assert!(base != libc::MAP_FAILED, "mremap to {len} bytes failed");
        self.base = base.cast();
        self.len = len;
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is exactly this mapping and no reference outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Words of a cache line: only its first word is used, which touches every page for little work.
const LINE_WORDS: usize = 8;

fn fill(words: &mut [u64], seed: u64) {
    for (i, w) in words.iter_mut().enumerate().step_by(LINE_WORDS) {
        *w = (i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Rounds of random writes to the last quarter, a pause after each, so that guest time passes
/// without much work; then a checksum of everything.
fn churn(words: &mut [u64], rounds: u64) -> u64 {
    let hot = words.len() / 4;
    let start = words.len() - hot;
    let mut x = 88_172_645_463_325_252_u64;
    for _ in 0..rounds {
        for _ in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let slot = start + ((x as usize) % hot) / LINE_WORDS * LINE_WORDS;
            words[slot] = words[slot].rotate_left(1) ^ x;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    words.iter().step_by(LINE_WORDS).fold(0, |sum, w| sum.rotate_left(5) ^ w)
}

fn steady(bytes: usize, rounds: u64) -> u64 {
    let mut map = Map::new(bytes, libc::MAP_PRIVATE);
    fill(map.words(), 1);
    churn(map.words(), rounds)
}

fn exec_again() {
    report("exec", &steady(160 << 20, 20));
    let own = std::env::current_exe().map(|p| p.to_string_lossy().into_owned());
    let Some(program) = own.ok().and_then(|p| CString::new(p).ok()) else { return };
    let words = [program.clone(), c"target".into(), c"brief".into()];
    let mut argv: Vec<*const libc::c_char> = words.iter().map(|w| w.as_ptr()).collect();
    argv.push(ptr::null());
    // SAFETY: argv is a null-terminated array of valid C strings that live across the call.
    unsafe { libc::execv(program.as_ptr(), argv.as_ptr()) };
}

fn fork_children() {
    let mut map = Map::new(48 << 20, libc::MAP_PRIVATE);
    fill(map.words(), 2);
    let mut children = Vec::new();
    for child in 0..3_u64 {
        // SAFETY: this process has one thread here, so the child may go on using std.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let half = map.words().len() / 2;
            let sum = churn(&mut map.words()[..half], 20 + child);
            // SAFETY: _exit ends the child at once; its status carries eight bits of the sum.
            unsafe { libc::_exit((sum & 0x7f) as i32) };
        }
        children.push(pid);
    }
    let own = churn(map.words(), 30);
    for pid in children {
        let mut status = 0;
        // SAFETY: waits for a child of our own; status points to a live integer.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        println!("child {:#x}", libc::WEXITSTATUS(status));
    }
    report("fork", &own);
}

fn unmap_and_remap() {
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let busy = std::thread::spawn(move || {
        let mut map = Map::new(32 << 20, libc::MAP_PRIVATE);
        fill(map.words(), 3);
        let sum = churn(map.words(), 20);
        seen.store(true, Ordering::Release);
        sum
    });
    let mut sum = 0_u64;
    for round in 0..40_u64 {
        let mut map = Map::new(8 << 20, libc::MAP_PRIVATE);
        fill(map.words(), round);
        map.grow(12 << 20);
        let tail = map.words().len() - PAGE;
        fill(&mut map.words()[tail..], round);
        sum = sum.rotate_left(9) ^ churn(map.words(), 1);
    }
    let other = busy.join().unwrap_or(0);
    assert!(stop.load(Ordering::Acquire), "the busy thread ended early");
    report("unmap", &(sum ^ other));
}

fn huge() {
    let mut map = Map::new(64 << 20, libc::MAP_PRIVATE);
    map.advise(libc::MADV_HUGEPAGE);
    fill(map.words(), 4);
    report("huge", &churn(map.words(), 20));
}

fn shared_and_locked() {
    let mut shared = Map::new(16 << 20, libc::MAP_SHARED);
    let mut locked = Map::new(4 << 20, libc::MAP_PRIVATE);
    locked.lock();
    let mut merged = Map::new(8 << 20, libc::MAP_PRIVATE);
    merged.advise(libc::MADV_MERGEABLE);
    for map in [&mut shared, &mut locked, &mut merged] {
        fill(map.words(), 5);
    }
    // SAFETY: this process has one thread here, so the child may go on using std.
    let pid = unsafe { libc::fork() };
    let half = shared.words().len() / 2;
    if pid == 0 {
        churn(&mut shared.words()[..half], 12);
        // SAFETY: _exit ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let own = churn(&mut shared.words()[half..], 12) ^ churn(locked.words(), 8);
    let mut status = 0;
    // SAFETY: waits for a child of our own; status points to a live integer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let all = churn(shared.words(), 1) ^ churn(merged.words(), 8);
    report("shared", &(own ^ all));
}
