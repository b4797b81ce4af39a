//! How a thread writes trace words into its ring: claims a slot, keeps its clock, waits for space.

use crate::context::Context;
use crate::ring::{head, message, Area, Slot, Writer, CHUNK, SLACK};
use crate::sys;
use core::sync::atomic::Ordering;

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
        slot.claim.store(area.control.claims.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
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
        self.wait_for_space();
        let process = self.writer.process;
        self.message(message::THREAD, &[process, tid as u64, start, parent], &[]);
    }

    /// The clock goes on with the blocks written since it was last set.
    fn keep_clock(&mut self) {
        let words = (self.next - self.writer.reported) / 8;
        // SAFETY: words of the ring, or of its second mapping, that this thread wrote.
        let words = unsafe {
            core::slice::from_raw_parts(self.writer.reported as *const u64, words as usize)
        };
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
        self.wait_for_space();
    }

    fn wait_for_space(&mut self) {
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
