//! A thread's side of its ring of words: the layout is `capture/ring.h`'s, and so is what it means.
//!
//! Unlike there, words may be written past the end of a chunk, up to [`SLACK`]: a block looks for
//! space once. A ring is mapped twice in a row, so that nothing need be cut at its end.

use crate::context::Context;
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = 0x0243_4150_4152_5254;
/// Words between looks at the recorder.
pub const CHUNK: u64 = 1024;
/// Words that can be written behind `Context::limit` without a look: a message and a block.
pub const SLACK: u64 = 1024;
pub const SINK_BYTES: u64 = (CHUNK + SLACK) * 8;

const IS_WORD: u64 = 1 << 63;
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
    stopped: AtomicU32,
    /// Numbers of blocks given so far.
    pub blocks: AtomicU32,
    unplaced: AtomicU32,
    pub options: u32,
    escaped: AtomicU32,
    /// Slots from this one on have never been used.
    claimed: AtomicU32,
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
}

#[repr(C)]
struct Slot {
    state: AtomicU32,
    pid: AtomicU32,
    tid: AtomicU32,
    zero: u32,
    clock: AtomicU64,
    /// Words up to here, from `head` on, are zero or written: so the recorder finds what a killed
    /// thread did not hand over.
    cleared: AtomicU64,
    /// Inode of the process's PID namespace; 0: the recorder's; 1: not known.
    pid_namespace: AtomicU64,
    pad1: [u8; 24],
    head: AtomicU64,
    pad2: [u8; 56],
    tail: AtomicU64,
    pad3: [u8; 120],
}
const _: () =
    assert!(core::mem::size_of::<Slot>() == 256 && core::mem::size_of::<Control>() <= 4096);

/// The recorder's memory.
pub struct Area {
    control: &'static Control,
    slots: &'static [Slot],
    rings: u64,
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
    fn foreign_namespace(&self) -> u64 {
        let own = sys::FileId::at(c"/proc/self/ns/pid");
        match own.filter(|_| self.control.pid_namespace != 0) {
            None => 1,
            Some(own) if own.inode == self.control.pid_namespace => 0,
            Some(own) => own.inode,
        }
    }

    /// Where a slot's ring lies, and its bytes.
    fn ring(&self, index: u64) -> (u64, u64) {
        let large = u64::from(self.control.large_slots);
        let (large_bytes, small_bytes) =
            (u64::from(self.control.ring_words) * 8, u64::from(self.control.small_ring_words) * 8);
        let start = index.min(large) * large_bytes + index.saturating_sub(large) * small_bytes;
        (self.rings + start, if index < large { large_bytes } else { small_bytes })
    }

    /// Slots that have been used.
    fn claimed(&self) -> &[Slot] {
        let claimed = self.control.claimed.load(Ordering::Relaxed) as usize;
        &self.slots[..claimed.min(self.slots.len())]
    }

    /// A thread goes on unrecorded.
    pub fn note_escape(&self) {
        self.control.escaped.fetch_add(1, Ordering::SeqCst);
    }

    /// The time of the thread that is furthest.
    fn furthest(&self) -> u64 {
        let used = self.claimed().iter().filter(|s| s.state.load(Ordering::Relaxed) == 1);
        used.map(|s| s.clock.load(Ordering::Relaxed)).max().unwrap_or(0)
    }
}

/// What a thread keeps of its ring.
#[repr(C)]
pub struct Writer {
    /// The recorder's memory, or null: words are dropped.
    area: *const Area,
    slot: *const Slot,
    ring: u64,
    bytes: u64,
    /// Words written out.
    written: u64,
    /// Where those end.
    begin: u64,
    /// Up to where the clock knows.
    reported: u64,
    pub clock: u64,
    /// Of all words written, up to where the ring is zero or written.
    cleared: u64,
    /// What tells this process from all others of the recording: its number, with that of a PID
    /// namespace of its own.
    pub process: u64,
}

impl Context {
    fn slot(&self) -> Option<&'static Slot> {
        // SAFETY: null or a slot of the area, which stays mapped.
        unsafe { self.writer.slot.as_ref() }
    }

    /// Whether words go anywhere.
    pub fn recorded(&self) -> bool {
        !self.writer.slot.is_null()
    }

    fn set_limit(&mut self, limit: u64) {
        let limit = if self.waiting.any() { 0 } else { limit };
        self.limit = limit;
        self.minus_limit = limit.wrapping_neg();
    }

    /// Words go nowhere from now on.
    fn drop_all(&mut self) {
        self.writer.slot = core::ptr::null();
        self.next = self.sink;
        self.set_limit(self.sink + CHUNK * 8);
    }

    /// Takes a slot and says whose it is. `parent`: the key ([`Writer::process`]) of the process
    /// this one was forked from just now, else 0.
    pub fn claim(&mut self, area: Option<&'static Area>, parent: u64) {
        self.writer = Writer {
            area: area.map_or(core::ptr::null(), |a| a),
            slot: core::ptr::null(),
            ring: 0,
            bytes: 0,
            written: 0,
            begin: 0,
            reported: 0,
            clock: 0,
            cleared: 0,
            process: 0,
        };
        let Some(area) = area.filter(|a| !a.gone()) else { return self.drop_all() };
        let start = area.furthest();
        let free =
            |s: &&Slot| s.state.compare_exchange(0, 3, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let Some(slot) = area.slots.iter().find(free) else {
            area.control.unplaced.fetch_add(1, Ordering::SeqCst);
            return self.drop_all();
        };
        let index = (slot as *const Slot as u64 - area.slots.as_ptr() as u64) / 256;
        area.control.claimed.fetch_max(index as u32 + 1, Ordering::SeqCst);
        let (start_of_ring, bytes) = area.ring(index);
        let Some(ring) = map_twice(start_of_ring, bytes) else {
            slot.state.store(0, Ordering::SeqCst);
            area.control.unplaced.fetch_add(1, Ordering::SeqCst);
            return self.drop_all();
        };
        let namespace = area.foreign_namespace();
        slot.pid_namespace.store(namespace, Ordering::SeqCst);
        // SAFETY: asks who this is.
        let (pid, tid) =
            unsafe { (sys::call3(sys::GETPID, 0, 0, 0), sys::call3(sys::GETTID, 0, 0, 0)) };
        slot.pid.store(pid as u32, Ordering::SeqCst);
        slot.tid.store(tid as u32, Ordering::SeqCst);
        let written = slot.head.load(Ordering::SeqCst);
        self.next = ring + written * 8 % bytes;
        self.writer.slot = slot;
        (self.writer.ring, self.writer.bytes, self.writer.written) = (ring, bytes, written);
        (self.writer.begin, self.writer.reported, self.writer.clock) =
            (self.next, self.next, start);
        self.writer.cleared = written;
        self.writer.process = pid as u64 & 0xffff_ffff | namespace << 32;
        slot.clock.store(start, Ordering::SeqCst);
        slot.state.store(1, Ordering::SeqCst);
        self.wait_for_room();
        let process = self.writer.process;
        self.message(message::THREAD, &[process, tid as u64, start, parent], &[]);
    }

    /// The clock goes on with the blocks written since it was last told.
    fn keep_clock(&mut self) {
        let words = (self.next - self.writer.reported) / 8;
        // SAFETY: words of the ring, or of its second mapping, that this thread wrote.
        let words =
            unsafe { core::slice::from_raw_parts(self.writer.reported as *const u64,
                words as usize) };
        let length = |w: &u64| if w >> 60 == 8 { w >> 32 & 0xfff } else { 0 };
        self.writer.clock += words.iter().map(length).sum::<u64>();
        self.writer.reported = self.next;
    }

    /// Words up to `next` can be taken.
    pub fn write_out(&mut self) {
        let Some(slot) = self.slot() else { return };
        self.keep_clock();
        self.writer.written += (self.next - self.writer.begin) / 8;
        if self.next >= self.writer.ring + self.writer.bytes {
            self.next -= self.writer.bytes;
            self.set_limit(self.limit.saturating_sub(self.writer.bytes));
        }
        (self.writer.begin, self.writer.reported) = (self.next, self.next);
        slot.clock.store(self.writer.clock, Ordering::Relaxed);
        slot.head.store(self.writer.written, Ordering::Release);
    }

    /// The limit was reached: writes out and waits until there is space for a chunk and the slack
    /// behind it.
    pub fn refill(&mut self) {
        if self.slot().is_none() {
            return self.drop_all();
        }
        self.write_out();
        // SAFETY: not null while there is a slot.
        if unsafe { (*self.writer.area).control.stopped.load(Ordering::Relaxed) != 0 } {
            return self.drop_all();
        }
        self.wait_for_room();
    }

    fn wait_for_room(&mut self) {
        let Some(slot) = self.slot() else { return };
        let words = self.writer.bytes / 8;
        let mut most = words - CHUNK - SLACK;
        let mut turn = 0u32;
        while self.writer.written - slot.tail.load(Ordering::Acquire) > most {
            // Once it has to wait, until half the ring is free: to wait for each chunk costs more
            // than to write it.
            most = words / 2;
            turn += 1;
            // SAFETY: not null while there is a slot.
            if turn % 64 == 63 && unsafe { (*self.writer.area).gone() } {
                return self.drop_all();
            }
            let time = [0, 100_000u64 << turn.min(8).saturating_sub(2)];
            // SAFETY: gives the core to others, for a while.
            unsafe {
                if turn < 3 {
                    sys::call3(sys::SCHED_YIELD, 0, 0, 0);
                } else {
                    sys::call3(sys::NANOSLEEP, time.as_ptr() as u64, 0, 0);
                }
            }
        }
        self.clear_ahead(slot);
        self.set_limit(self.next + CHUNK * 8);
    }

    /// Makes the words zero that may be written before there is the next look for space; see
    /// `Slot::cleared`.
    fn clear_ahead(&mut self, slot: &Slot) {
        let until = self.writer.written + CHUNK + SLACK;
        let from = self.writer.cleared.max(self.writer.written);
        let at = self.next + (from - self.writer.written) * 8;
        // SAFETY: space in the ring or its second mapping that the recorder has emptied: a ring is
        // longer than a chunk and the slack.
        unsafe { core::ptr::write_bytes(at as *mut u64, 0, (until - from) as usize) };
        self.writer.cleared = until;
        slot.cleared.store(until, Ordering::Release);
    }

    /// A word of the program's execution, from the runtime.
    pub fn put(&mut self, word: u64) {
        if self.next > self.limit {
            self.refill();
        }
        // SAFETY: up to the limit and the slack behind it is space in the ring or the sink.
        unsafe { *(self.next as *mut u64) = word };
        self.next += 8;
    }

    /// Numbers, then bytes filled up to whole words; about 600 words at most.
    pub fn message(&mut self, which: u64, numbers: &[u64], bytes: &[u8]) {
        if self.next > self.limit {
            self.refill();
        }
        if self.recorded() {
            self.keep_clock();
        }
        let (mut at, whole) = (self.next, numbers.len() + bytes.len().div_ceil(8));
        let chunks = bytes.chunks(8).map(|c| {
            let mut word = [0; 8];
            word[..c.len()].copy_from_slice(c);
            u64::from_le_bytes(word)
        });
        for word in
            core::iter::once(head(which, whole as u64)).chain(numbers.iter().copied()).chain(chunks)
        {
            // SAFETY: a message and a block fit into the slack.
            unsafe { *(at as *mut u64) = word };
            at += 8;
        }
        self.next = at;
        self.writer.reported = at;
    }

    /// A message of numbers and a text behind its length.
    pub fn text_message(&mut self, which: u64, numbers: &[u64], text: &[u8]) {
        let text = &text[..text.len().min(2048)];
        let mut all = [0; 12];
        all[..numbers.len()].copy_from_slice(numbers);
        all[numbers.len()] = text.len() as u64;
        self.message(which, &all[..=numbers.len()], text);
    }

    /// The thread waited for others: it goes on at the time of the one that is furthest.
    pub fn catch_up(&mut self) {
        if !self.recorded() {
            return;
        }
        self.keep_clock();
        // SAFETY: not null while there is a slot.
        let now = unsafe { (*self.writer.area).furthest() };
        if now > self.writer.clock {
            let ticks = now - self.writer.clock;
            self.writer.clock = now;
            self.message(message::JUMP, &[ticks], &[]);
        }
    }

    /// All words are written out and the slot can be emptied and given to others; `last` says so to
    /// the recorder.
    pub fn give_up_slot(&mut self, last: bool) {
        if self.recorded() && last {
            self.message(message::EXIT, &[], &[]);
        }
        let Some(slot) = self.slot() else { return };
        self.write_out();
        slot.state.store(2, Ordering::SeqCst);
        let (ring, bytes) = (self.writer.ring, self.writer.bytes);
        self.drop_all();
        // SAFETY: this thread's own mappings, used no more.
        unsafe { sys::call3(sys::MUNMAP, ring, 2 * bytes, 0) };
    }

    /// In a forked child: the ring is the parent's.
    pub fn claim_in_child(&mut self) {
        let Some(area) = crate::area().filter(|_| self.recorded()) else { return };
        let (ring, bytes) = (self.writer.ring, self.writer.bytes);
        // SAFETY: the child's copy of the mapping, which it does not write to.
        unsafe { sys::call3(sys::MUNMAP, ring, 2 * bytes, 0) };
        let parent = self.writer.process;
        self.claim(Some(area), parent);
        self.write_out();
    }
}

/// Shared memory of `bytes` at `ring` mapped again, twice in a row. Not by its file: programs close
/// what they do not know.
fn map_twice(ring: u64, bytes: u64) -> Option<u64> {
    let at = sys::map(0, 2 * bytes, 0, sys::MAP_NORESERVE)?;
    for half in 0..2 {
        // SAFETY: over memory reserved just now; an old length of 0 makes another mapping of what
        // is shared.
        let done = unsafe { sys::call(sys::MREMAP, [ring, 0, bytes, 3, at + half * bytes, 0]) };
        if done < 0 {
            return None;
        }
    }
    Some(at)
}
