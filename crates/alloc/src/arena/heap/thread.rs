//! What a thread knows of arenas: its cache in each, and whether it is inside the allocator.

use super::{meta, Cache, Inner, NO_CACHE};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::OnceLock;
use terrace_sys::ThreadEnd;

thread_local! {
    /// A constant initialiser and no destructor: reading it is one instruction and never allocates.
    static HERE: Cell<*mut Thread> = const { Cell::new(null_mut()) };
}

/// The cache that a thread used last; alive or not, its generation tells. In a shared library a
/// variable of a thread is found by a call, `__tls_get_addr`, and each `malloc` and `free` asks for
/// this one. C has a word for variables that are at a fixed place from the thread's pointer
/// (`initial-exec`); stable Rust has none, so it is in assembly (ADR 0156).
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod last {
    use super::{Cache, NO_CACHE};
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tdata.terrace_last_cache,\"awT\",@progbits",
        ".globl terrace_last_cache",
        ".hidden terrace_last_cache",
        ".type terrace_last_cache, @object",
        ".size terrace_last_cache, 8",
        ".p2align 3",
        "terrace_last_cache: .quad {none}",
        ".popsection",
        none = sym NO_CACHE,
    );

    #[inline(always)]
    pub(super) fn get() -> *mut Cache {
        let cache: *mut Cache;
        // SAFETY: reads the calling thread's own variable above, which always holds the address of
        // a cache.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + terrace_last_cache@GOTTPOFF]",
                "mov {at}, qword ptr fs:[{at}]",
                at = out(reg) cache,
                options(nostack, preserves_flags, readonly),
            );
        }
        cache
    }

    pub(super) fn set(cache: *mut Cache) {
        // SAFETY: writes the calling thread's own variable, which nothing else refers to.
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + terrace_last_cache@GOTTPOFF]",
                "mov qword ptr fs:[{at}], {cache}",
                at = out(reg) _,
                cache = in(reg) cache,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod last {
    use super::{Cache, Cell, NO_CACHE};

    thread_local! {
        static LAST: Cell<*mut Cache> = const { Cell::new((&raw const NO_CACHE.0).cast_mut()) };
    }

    #[inline(always)]
    pub(super) fn get() -> *mut Cache {
        LAST.with(Cell::get)
    }

    pub(super) fn set(cache: *mut Cache) {
        LAST.with(|l| l.set(cache));
    }
}

/// The cache that the calling thread used last; never null.
#[inline(always)]
pub(crate) fn last_cache() -> *mut Cache {
    last::get()
}

/// Notes a cache of the calling thread's as the one used last.
pub(crate) fn note_cache(cache: *mut Cache) {
    last::set(cache);
}

/// Cache of one arena, good while the arena's generation is this.
#[repr(C)]
struct Entry {
    cache: *mut Cache,
    generation: u64,
}

/// State of one thread.
#[repr(C, align(64))]
pub(crate) struct Thread {
    entries: Cell<*mut Entry>,
    len: Cell<usize>,
    /// Names the thread among all that ever were; never reused, so a dead thread is never mistaken
    /// for one alive.
    pub(crate) token: u64,
    pub(crate) busy: Cell<bool>,
    /// Index and generation of the thread's own default arena; generation 0: none.
    pub(crate) default: Cell<(u32, u64)>,
}

static TOKENS: AtomicU64 = AtomicU64::new(1);

fn key() -> Option<ThreadEnd> {
    static KEY: OnceLock<Option<ThreadEnd>> = OnceLock::new();
    *KEY.get_or_init(|| ThreadEnd::new(ended).ok())
}

impl Thread {
    /// The calling thread's state; null before [`Thread::begin`], and when the thread has ended.
    #[inline(always)]
    pub(crate) fn here() -> *const Thread {
        HERE.with(Cell::get)
    }

    /// The calling thread's state, made where there is none; null without memory.
    #[cold]
    pub(crate) fn begin() -> *const Thread {
        let here = Self::here();
        if !here.is_null() {
            return here;
        }
        let record = meta::take(size_of::<Thread>()).cast::<Thread>();
        if record.is_null() {
            return record;
        }
        let thread = Thread {
            entries: Cell::new(null_mut()),
            len: Cell::new(0),
            token: TOKENS.fetch_add(1, Relaxed),
            // What arms the word at the thread's end may itself allocate: that is refused as
            // re-entered.
            busy: Cell::new(true),
            default: Cell::new((0, 0)),
        };
        // SAFETY: a fresh record of this size.
        unsafe { record.write(thread) };
        HERE.with(|h| h.set(record));
        // Without the word at the thread's end its caches stay its own for ever: a leak, nothing
        // worse.
        let _reported_at_the_end = key().is_some_and(|key| key.arm(record as usize));
        // SAFETY: as above; this thread alone uses it.
        unsafe { (*record).busy.set(false) };
        record
    }

    /// The cache of an arena, if this thread has one.
    #[inline(always)]
    pub(crate) fn cache(&self, index: usize, generation: u64) -> *mut Cache {
        if index < self.len.get() {
            // SAFETY: the table has `len` entries.
            let entry = unsafe { &*self.entries.get().add(index) };
            if entry.generation == generation {
                return entry.cache;
            }
        }
        null_mut()
    }

    /// Enters a cache. Whether there was memory for it.
    pub(crate) fn enter(&self, index: usize, generation: u64, cache: *mut Cache) -> bool {
        if index >= self.len.get() {
            let len = (index + 1).next_power_of_two().max(64);
            let table = meta::take(len * size_of::<Entry>()).cast::<Entry>();
            if table.is_null() {
                return false;
            }
            let old = self.len.get();
            // SAFETY: the new table holds `len` entries, the old one `old` of them, fewer; they are
            // apart.
            unsafe {
                if old > 0 {
                    table.copy_from_nonoverlapping(self.entries.get(), old);
                    meta::give(self.entries.get().cast(), old * size_of::<Entry>());
                }
                for at in old..len {
                    table.add(at).write(Entry { cache: null_mut(), generation: 0 });
                }
            }
            self.entries.set(table);
            self.len.set(len);
        }
        // SAFETY: `index` is below the table's length.
        unsafe { self.entries.get().add(index).write(Entry { cache, generation }) };
        true
    }
}

/// The thread ends: its caches become orphans, which the next thread in need takes over.
unsafe extern "C" fn ended(value: *mut std::ffi::c_void) {
    let record = value.cast::<Thread>();
    // SAFETY: the value was armed by this thread with its own record.
    let thread = unsafe { &*record };
    // Frees by destructors that run later come from a thread without state: they count as
    // another's.
    HERE.with(|h| h.set(null_mut()));
    note_cache((&raw const NO_CACHE.0).cast_mut());
    for index in 0..thread.len.get() {
        // SAFETY: below the table's length.
        let entry = unsafe { &*thread.entries.get().add(index) };
        if !entry.cache.is_null() {
            Inner::by_index(index).orphan(entry.cache, entry.generation);
        }
    }
    // SAFETY: nobody else knows of the table or the record, and this thread has forgotten them.
    unsafe {
        if thread.len.get() > 0 {
            meta::give(thread.entries.get().cast(), thread.len.get() * size_of::<Entry>());
        }
        meta::give(record.cast(), size_of::<Thread>());
    }
}
