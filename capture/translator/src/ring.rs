//! A thread's side of its ring of words: the layout is `capture/ring.h`'s, and so is what it means.
//!
//! Unlike there, words may be written past the end of a chunk, up to [`SLACK`]: a block looks for
//! space once. A ring is mapped twice in a row, so that nothing need be cut at its end.

use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = 0x0343_4150_4152_5254;
/// Words between looks at the recorder.
pub const CHUNK: u64 = 1024;
/// Words that can be written behind `Context::limit` without a look: a message and a block.
pub const SLACK: u64 = 1024;
pub const SINK_BYTES: u64 = (CHUNK + SLACK) * 8;

pub(crate) const IS_WORD: u64 = 1 << 63;
const MESSAGE: u64 = IS_WORD | 1 << 60;

pub mod message {
    pub const THREAD: u64 = 1;
    pub const BLOCK: u64 = 2;
    pub const SYSCALL: u64 = 3;
    pub const JUMP: u64 = 4;
    pub const MAP: u64 = 5;
    pub const EXEC: u64 = 6;
    pub const MARK: u64 = 7;
    pub const BEGIN: u64 = 8;
    pub const END: u64 = 9;
    pub const EXIT: u64 = 10;
    pub const UNRECORDED: u64 = 13;
    /// A flush, a fence or a non-temporal store: which, the address, and the instruction's.
    pub const CACHE: u64 = 14;
}

/// A message's first word.
pub const fn head(which: u64, words: u64) -> u64 {
    MESSAGE | which | words << 16
}

/// [`Control::options`]: every store is followed by the value it wrote.
pub const KEEP_VALUES: u32 = 1;

/// `struct control`.
#[repr(C)]
pub struct Control {
    magic: u64,
    slots: u32,
    ring_words: u32,
    recorder: i32,
    pub(crate) stopped: AtomicU32,
    /// Numbers of blocks given so far.
    pub blocks: AtomicU32,
    pub(crate) unplaced: AtomicU32,
    pub options: u32,
    escaped: AtomicU32,
    /// Slots from this one on have never been used.
    pub(crate) claimed: AtomicU32,
    /// So many slots have rings of `ring_words`, the others of `small_ring_words`.
    large_slots: u32,
    small_ring_words: u32,
    /// Grows while the recorder lives.
    beat: AtomicU32,
    /// Inode of the recorder's PID namespace, 0 where it cannot tell.
    pid_namespace: u64,
    pub begin_at: [u8; 256],
    pub end_at: [u8; 256],
    /// The translator's own path, here.
    pub emulator: [u8; 1024],
    plugin: [u8; 1024],
    pub area: [u8; 256],
    /// Times that a thread has taken a slot.
    pub(crate) claims: AtomicU64,
}

/// `struct slot`: a thread's place in the recorder's memory.
#[repr(C)]
pub struct Slot {
    pub(crate) state: AtomicU32,
    pub(crate) pid: AtomicU32,
    pub(crate) tid: AtomicU32,
    pub(crate) zero: u32,
    pub(crate) clock: AtomicU64,
    /// Words up to here, from `head` on, are zero or written: so the recorder finds what a killed
    /// thread did not hand over.
    pub(crate) cleared: AtomicU64,
    /// Inode of the process's PID namespace; 0: the recorder's; 1: not known.
    pub(crate) pid_namespace: AtomicU64,
    /// How many times slots were taken before this one was.
    pub(crate) claim: AtomicU64,
    pub(crate) pad1: [u8; 16],
    pub(crate) head: AtomicU64,
    pub(crate) pad2: [u8; 56],
    pub(crate) tail: AtomicU64,
    pub(crate) pad3: [u8; 120],
}
const _: () =
    assert!(core::mem::size_of::<Slot>() == 256 && core::mem::size_of::<Control>() <= 4096);

/// The recorder's memory.
pub struct Area {
    pub(crate) control: &'static Control,
    pub(crate) slots: &'static [Slot],
    pub(crate) rings: u64,
    /// Which file it is.
    pub file: sys::FileId,
}

impl Area {
    /// Maps the memory behind this descriptor, which stays open; why not, if not.
    pub fn map(fd: i64) -> Result<Self, &'static str> {
        let file = sys::FileId::of(fd).ok_or("cannot be opened")?;
        // SAFETY: the mapping is new.
        unsafe {
            let map = |bytes| sys::call(sys::MMAP, [0, bytes, 3, sys::MAP_SHARED, fd as u64, 0]);
            let first = map(4096);
            if first < 0 || (*(first as *const Control)).magic != MAGIC {
                return Err("made for another version of terrace; build both from one source");
            }
            let slots = u64::from((*(first as *const Control)).slots);
            let headers = (4096 + slots * 256).next_multiple_of(4096);
            let control = &*(first as *const Control);
            let large = u64::from(control.large_slots);
            let words = large * u64::from(control.ring_words)
                + (slots - large) * u64::from(control.small_ring_words);
            let all = map(headers + words * 8);
            if all < 0 {
                return Err("cannot be mapped");
            }
            let control = &*(all as *const Control);
            let slots =
                core::slice::from_raw_parts((all as u64 + 4096) as *const Slot, slots as usize);
            sys::call3(sys::MUNMAP, first as u64, 4096, 0);
            Ok(Self { control, slots, rings: all as u64 + headers, file })
        }
    }

    pub fn control(&self) -> &'static Control {
        self.control
    }

    /// Whether the recorder takes no more words.
    ///
    /// In another PID namespace its number means nothing. There, a recorder that shows no sign of
    /// life for five seconds is taken to be gone: it gives one several thousand times a second.
    pub fn gone(&self) -> bool {
        if self.control.stopped.load(Ordering::Relaxed) != 0 {
            return true;
        }
        if self.foreign_namespace() == 0 {
            // SAFETY: asks whether the process is there.
            return unsafe {
                sys::call3(sys::KILL, self.control.recorder as u64, 0, 0) == -sys::ESRCH
            };
        }
        let beat = self.control.beat.load(Ordering::Relaxed);
        for _ in 0..5000 {
            if self.control.beat.load(Ordering::Relaxed) != beat {
                return false;
            }
            let millisecond = [0u64, 1_000_000];
            // SAFETY: gives the core to others.
            unsafe { sys::call3(sys::NANOSLEEP, millisecond.as_ptr() as u64, 0, 0) };
        }
        self.control.stopped.store(1, Ordering::SeqCst);
        true
    }

    /// Inode of this process's PID namespace; 0: the recorder's; 1: not known.
    pub(crate) fn foreign_namespace(&self) -> u64 {
        let own = sys::FileId::at(c"/proc/self/ns/pid");
        match own.filter(|_| self.control.pid_namespace != 0) {
            None => 1,
            Some(own) if own.inode == self.control.pid_namespace => 0,
            Some(own) => own.inode,
        }
    }

    /// Where a slot's ring lies, and its bytes.
    pub(crate) fn ring(&self, index: u64) -> (u64, u64) {
        let large = u64::from(self.control.large_slots);
        let (large_bytes, small_bytes) =
            (u64::from(self.control.ring_words) * 8, u64::from(self.control.small_ring_words) * 8);
        let start = index.min(large) * large_bytes + index.saturating_sub(large) * small_bytes;
        (self.rings + start, if index < large { large_bytes } else { small_bytes })
    }

    /// Slots that have been used.
    pub(crate) fn claimed(&self) -> &[Slot] {
        let claimed = self.control.claimed.load(Ordering::Relaxed) as usize;
        &self.slots[..claimed.min(self.slots.len())]
    }

    /// A thread goes on unrecorded.
    pub fn note_escape(&self) {
        self.control.escaped.fetch_add(1, Ordering::SeqCst);
    }

    /// The time of the thread that is furthest.
    pub(crate) fn furthest(&self) -> u64 {
        let used = self.claimed().iter().filter(|s| s.state.load(Ordering::Relaxed) == 1);
        used.map(|s| s.clock.load(Ordering::Relaxed)).max().unwrap_or(0)
    }
}

/// What a thread keeps of its ring.
#[repr(C)]
pub struct Writer {
    /// The recorder's memory, or null: words are dropped.
    pub(crate) area: *const Area,
    pub(crate) slot: *const Slot,
    pub(crate) ring: u64,
    pub(crate) bytes: u64,
    /// Words written out.
    pub(crate) written: u64,
    /// Where those end.
    pub(crate) begin: u64,
    /// Up to where the clock knows.
    pub(crate) reported: u64,
    pub clock: u64,
    /// Of all words written, up to where the ring is zero or written.
    pub(crate) cleared: u64,
    /// What tells this process from all others of the recording: its number, with that of a PID
    /// namespace of its own.
    pub process: u64,
}
