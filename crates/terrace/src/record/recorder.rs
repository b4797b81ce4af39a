//! The recorder's side of the shared memory: from the slots' words to the trace.

use super::holders::lasting_holders;
use super::{CaptureMethod, RecordSpec, Recorded, SLOTS};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use terrace_sys::{has_thread_ended, CaptureArea, CommandExit, SlotOwner};
use terrace_trace::capture::{Capture, CaptureTotals};
use terrace_trace::{BlockKind, TraceError, TraceReader};

/// After so many polls that find nothing, it is looked up whether a slot's thread was killed.
const POLLS: u32 = 3000;
/// For how many polls the words of a thread that has ended wait for what they need.
const ENDED_POLLS: u32 = 64;
/// So often everything is taken once the command has ended: a ring of 2 MiB takes 16 rounds.
const MAX_ROUNDS: u32 = 64;
/// Words that a thread which is killed loses at most where its writer does not clear its ring.
const CHUNK: u32 = 1024;

/// Whether words may follow those that are handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoreWords {
    /// A message that is cut off, or a block of code that another thread names, waits for more.
    Follows,
    /// What makes no sense by now never will.
    Never,
}

/// What is known of a slot.
#[derive(Debug, Default)]
struct SlotState {
    /// Whose words they are.
    owner: Option<SlotOwner>,
    /// Words that could not be used yet.
    words: Vec<u64>,
    /// For how many polls nothing came.
    idle: u32,
    /// Its thread outlived the command: no more words are taken.
    abandoned: bool,
}

/// See the module.
pub struct Recorder {
    area: CaptureArea,
    /// Gone once writing has failed.
    capture: Option<Capture<BufWriter<File>>>,
    slots: Vec<SlotState>,
    /// What was seen when writing failed.
    reached: CaptureTotals,
    notes: Vec<String>,
    /// Threads that were killed and whose last words are not known.
    cut: u32,
}

impl Recorder {
    pub fn new(area: CaptureArea, capture: Capture<BufWriter<File>>) -> Self {
        Self {
            area,
            capture: Some(capture),
            slots: Vec::new(),
            reached: CaptureTotals::default(),
            notes: Vec::new(),
            cut: 0,
        }
    }

    /// Takes what there is; whether anything could be done.
    pub fn take_all(&mut self, more: MoreWords) -> bool {
        self.area.beat();
        // Slots are met in the order in which they were taken: a thread before its successor in the
        // same process, a parent before its child. One that was taken since the round began waits
        // for the next, as one that was taken before it may have been passed already.
        let claims = self.area.claims();
        let (mut any, mut unmet) = (false, Vec::new());
        for slot in 0..self.area.claimed() {
            if self.slots.get(slot as usize).is_some_and(|s| s.owner.is_some()) {
                let done = self.take(slot, more);
                any |= self.or_stop(done).unwrap_or(false);
            } else if let Some(claim) = self.area.claim(slot).filter(|claim| *claim < claims) {
                unmet.push((claim, slot));
            }
        }
        unmet.sort_unstable();
        for (_, slot) in unmet {
            let done = self.take(slot, more);
            any |= self.or_stop(done).unwrap_or(false);
        }
        any
    }

    /// Where writing failed, recording stops and the program goes on.
    fn or_stop<T>(&mut self, done: Result<T, TraceError>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(error) => {
                self.notes.push(format!("recording stopped early: {error}"));
                self.area.stop();
                if let Some(capture) = self.capture.take() {
                    self.reached = capture.totals();
                    capture.abandon();
                }
                None
            }
        }
    }

    fn take(&mut self, slot: u32, more: MoreWords) -> Result<bool, TraceError> {
        let index = slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, SlotState::default);
        }
        let state = &mut self.slots[index];
        if state.abandoned {
            return self.feed(slot, more);
        }
        let before = state.words.len();
        let Some(taken) = self.area.take(slot, &mut state.words) else { return Ok(false) };
        let came = state.words.len() > before;
        state.idle = if came { 0 } else { state.idle + 1 };
        if state.owner != Some(taken.owner) {
            state.owner = Some(taken.owner);
            self.end_predecessor(slot, taken.owner)?;
        }
        let idle = self.slots[index].idle;
        if taken.ended && !came {
            let used = self.feed(slot, more)?;
            // Code that its words name may come from another thread yet.
            let waits = !self.slots[index].words.is_empty() && more == MoreWords::Follows;
            if waits && idle < ENDED_POLLS {
                return Ok(used);
            }
            self.feed(slot, MoreWords::Never)?;
            self.free(slot)?;
            return Ok(true);
        }
        if !came && is_time_to_check(idle) && has_thread_ended(&taken.owner) == Some(true) {
            self.end_killed(slot)?;
            return Ok(true);
        }
        Ok(came | self.feed(slot, more)?)
    }

    /// Hands a slot's words on; whether any could be used.
    fn feed(&mut self, slot: u32, more: MoreWords) -> Result<bool, TraceError> {
        let words = &mut self.slots[slot as usize].words;
        let Some(capture) = &mut self.capture else {
            words.clear();
            return Ok(false);
        };
        if words.is_empty() {
            return Ok(false);
        }
        // A round over thousands of full rings takes seconds.
        self.area.beat();
        let used = capture.feed(slot, words, more == MoreWords::Never)?;
        words.drain(..used);
        Ok(used > 0)
    }

    /// A thread that starts another program in place of its own becomes its process's main thread,
    /// and that one is gone though the kernel knows its number. `slot` was taken after all slots
    /// met before it.
    fn end_predecessor(&mut self, slot: u32, owner: SlotOwner) -> Result<(), TraceError> {
        // Who cannot tell its namespace may share its number with others.
        if owner.namespace == 1 {
            return Ok(());
        }
        let same = |(i, s): (usize, &SlotState)| {
            (i != slot as usize && s.owner == Some(owner)).then_some(i as u32)
        };
        for earlier in self.slots.iter().enumerate().filter_map(same).collect::<Vec<_>>() {
            self.end_killed(earlier)?;
        }
        Ok(())
    }

    /// A thread was ended by a signal or by another thread: takes the rest of its words.
    fn end_killed(&mut self, slot: u32) -> Result<(), TraceError> {
        let words = &mut self.slots[slot as usize].words;
        loop {
            let before = words.len();
            match self.area.take(slot, words) {
                Some(taken) if taken.ended => break,
                Some(_) if words.len() > before => {}
                Some(_) => {
                    self.cut += u32::from(!self.area.recover(slot, words));
                    break;
                }
                None => return Ok(()),
            }
        }
        self.feed(slot, MoreWords::Never)?;
        self.free(slot)
    }

    fn free(&mut self, slot: u32) -> Result<(), TraceError> {
        // What is left is a message that was cut off.
        self.slots[slot as usize] = SlotState::default();
        self.area.free(slot);
        match &mut self.capture {
            Some(capture) => capture.close(slot),
            None => Ok(()),
        }
    }

    /// The command has ended: takes what is left and says what is missing.
    pub fn finish(mut self, ended: CommandExit, spec: &RecordSpec) -> Recorded {
        // Somebody else stopped it who saw no sign of us, or writing failed.
        let early = self.area.is_stopped() && self.capture.is_some();
        // Whatever the program left behind goes on, unrecorded.
        self.area.stop();
        // Not for ever: what was left behind may write on for a while.
        for _ in 0..MAX_ROUNDS {
            if !self.take_all(MoreWords::Follows) {
                break;
            }
        }
        let mut running = 0;
        for slot in 0..self.area.claimed() {
            let Some(owner) = self.slots.get(slot as usize).and_then(|s| s.owner) else { continue };
            // Where nothing can be said of its namespace, its number is taken for one of ours.
            let ours = SlotOwner { namespace: 0, ..owner };
            if has_thread_ended(&owner).or_else(|| has_thread_ended(&ours)) == Some(false) {
                running += 1;
                self.slots[slot as usize].abandoned = true;
            } else {
                let done = self.end_killed(slot);
                self.or_stop(done);
            }
        }
        while self.take_all(MoreWords::Follows) {}
        while self.take_all(MoreWords::Never) {}
        let mut missing = self.missing(early, running);
        // A process that starts another, or itself anew, has no slot for a moment.
        let unseen = if running == 0 { lasting_holders(&self.area.path()) } else { 0 };
        if unseen > 0 {
            missing.push(format!("{unseen} processes outlived the command and ran on unrecorded"));
        }
        if spec.source == CaptureMethod::Hooks && self.totals().threads == 0 {
            missing.push(
                "the program has no hooks; compile and link it with terrace-cc, or use --source \
                    full"
                    .into(),
            );
        }
        if let Some(capture) = &mut self.capture {
            missing.iter().for_each(|sentence| capture.omit(sentence));
        }
        self.notes.extend(missing);
        self.close(ended, spec)
    }

    fn totals(&self) -> CaptureTotals {
        self.capture.as_ref().map_or(self.reached, Capture::totals)
    }

    /// What the recording lacks.
    fn missing(&self, early: bool, running: u32) -> Vec<String> {
        let (unplaced, escaped) = (self.area.unplaced(), self.area.escaped());
        let nonsense = self.totals().nonsense;
        let mut all = Vec::new();
        let mut add = |is: bool, sentence: String| all.extend(is.then_some(sentence));
        add(
            early,
            "a program in another PID namespace saw no sign of the recorder for 5 s and stopped it"
                .into(),
        );
        add(
            unplaced > 0,
            format!(
                "{unplaced} threads beyond {SLOTS} at once, or without memory, were not recorded"
            ),
        );
        add(
            escaped > 0,
            format!(
                "{escaped} threads met code that the translator cannot run and went on unrecorded: \
                 what is recorded is not whole; use --source full"
            ),
        );
        add(
            self.cut > 0,
            format!(
                "{} threads were ended before they handed over their last loads and stores, at \
                    most \
                 {CHUNK} each",
                self.cut
            ),
        );
        add(running > 0, format!("{running} threads outlived the command and ran on unrecorded"));
        add(nonsense > 0, format!("{nonsense} words from the program made no sense"));
        all
    }

    fn close(mut self, ended: CommandExit, spec: &RecordSpec) -> Recorded {
        let mut totals = self.totals();
        let mut written = false;
        if let Some(capture) = self.capture.take() {
            let failed = |source| TraceError::Write { offset: 0, source };
            let done = capture.finish().and_then(|(all, mut file)| {
                totals = all;
                file.flush().map_err(failed)
            });
            match done {
                Ok(()) => written = true,
                Err(error) => self.notes.push(format!("recording stopped early: {error}")),
            }
        }
        // What was handed to the writer is not what reached the disk.
        let (bytes, kept) = match contents(&spec.output) {
            Some((bytes, kept)) => (bytes, if written { totals.kept } else { kept }),
            None => (0, if written { totals.kept } else { 0 }),
        };
        totals.kept = kept;
        if let (Some(name), 0) = (&spec.begin_at, totals.begun) {
            self.notes.push(format!(
                "function {name} was not entered, or the program has no symbols: nothing was kept"
            ));
        }
        Recorded { ended, totals, bytes, notes: self.notes }
    }
}

/// Whether a thread's end is looked up after so many polls in which nothing came of it: seldom
/// where it has long been idle.
fn is_time_to_check(idle: u32) -> bool {
    idle % POLLS == 0 && (idle / POLLS).is_power_of_two()
}

/// Bytes of the file and accesses in its whole blocks; `None` where it is no file, such as a pipe.
fn contents(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::metadata(path).ok().filter(|m| m.is_file())?;
    let accesses = |reader: TraceReader<_>| {
        let blocks = reader.blocks().iter().filter(|b| b.kind == BlockKind::Accesses);
        blocks.map(|b| u64::from(b.count)).sum()
    };
    let opened = File::open(path).ok().map(BufReader::new).map(TraceReader::open);
    Some((file.len(), opened.and_then(Result::ok).map_or(0, accesses)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::FileExt;
    use terrace_sys::CaptureOptions;
    use terrace_trace::capture::Filter;
    use terrace_trace::{TraceHeader, TraceWriter};

    const SLOTS: u32 = 2;
    const RING_WORDS: u64 = 4096;
    const IN_USE: u32 = 1;
    const ALL_WRITTEN: u32 = 2;
    const MESSAGE: u64 = 9 << 60;
    const EXIT: u64 = MESSAGE | 10;

    /// Plays the part of the main thread of this process; offsets as in `capture/ring.h`.
    struct Program(File);

    impl Program {
        fn put(&self, at: u64, bytes: &[u8]) {
            self.0.write_all_at(bytes, at).unwrap();
        }

        fn claims(&self, count: u64) {
            self.put(2880, &count.to_le_bytes());
        }

        /// Takes a slot and says so.
        fn claim(&self, slot: u64, claim: u64) {
            let (at, pid) = (4096 + slot * 256, std::process::id());
            self.put(40, &SLOTS.to_le_bytes());
            self.put(at + 4, &pid.to_le_bytes());
            self.put(at + 8, &pid.to_le_bytes());
            self.put(at + 40, &claim.to_le_bytes());
            let pid = u64::from(pid);
            self.write(slot, 0, &[MESSAGE | 1 | 4 << 16, pid, pid, 0, 0], IN_USE);
        }

        fn write(&self, slot: u64, head: u64, words: &[u64], state: u32) {
            let ring = 8192 + slot * RING_WORDS * 8;
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            self.put(ring + head * 8, &bytes);
            let at = 4096 + slot * 256;
            self.put(at + 64, &(head + words.len() as u64).to_le_bytes());
            self.put(at, &state.to_le_bytes());
        }
    }

    fn recorder() -> (Recorder, Program) {
        let area = CaptureArea::create(&CaptureOptions {
            slots: SLOTS,
            large_slots: SLOTS,
            ring_words: RING_WORDS as u32,
            ..Default::default()
        });
        let area = area.unwrap();
        let program = Program(File::options().write(true).open(area.path()).unwrap());
        let file = BufWriter::new(File::create("/dev/null").unwrap());
        let writer = TraceWriter::new(file, &TraceHeader::default()).unwrap();
        (Recorder::new(area, Capture::new(writer, Filter::default(), false)), program)
    }

    #[test]
    fn a_program_outlives_the_one_that_started_it_in_its_place_whichever_slot_each_has() {
        for (old, new) in [(0, 1), (1, 0)] {
            let (mut recorder, program) = recorder();
            program.claim(old, 0);
            program.write(old, 5, &[MESSAGE | 6 | 1 << 16, 0], ALL_WRITTEN);
            program.claim(new, 1);
            // The new program came while the recorder went through the slots: it may have passed
            // the old one's.
            program.claims(1);
            recorder.take_all(MoreWords::Follows);
            assert_eq!(recorder.totals().threads, 1);
            program.claims(2);
            recorder.take_all(MoreWords::Follows);
            let loads = [3 << 48 | 0x1000; 100];
            program.write(new, 5, &loads, IN_USE);
            program.write(new, 105, &[EXIT], ALL_WRITTEN);
            while recorder.take_all(MoreWords::Follows) {}
            let totals = recorder.totals();
            assert_eq!((totals.processes, totals.threads), (1, 2));
            assert_eq!((totals.loads, totals.nonsense), (100, 0));
        }
    }

    #[test]
    fn what_a_program_left_in_use_when_it_started_another_is_freed() {
        for (old, new) in [(0, 1), (1, 0)] {
            let (mut recorder, program) = recorder();
            program.claim(old, 0);
            program.claim(new, 1);
            program.claims(2);
            recorder.take_all(MoreWords::Follows);
            let owned = |slot: u64| recorder.slots[slot as usize].owner.is_some();
            assert_eq!((owned(old), owned(new)), (false, true));
        }
    }
}
