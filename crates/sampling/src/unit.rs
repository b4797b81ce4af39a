//! The lab's sampling unit as its guest sees it: registers and rings in memory that the timing
//! plugin and the guest share. QEMU has no sampling of accesses, so the plugin takes the
//! processor's place; what reads its rings is what reads perf's.
//!
//! The memory is the end of the mailbox, a PCI device of shared memory. All words have eight bytes,
//! little-endian.
//!
//! | page | what |
//! |---|---|
//! | 0 | registers: what is asked ([`UnitSettings`]), then the answer ([`UnitAnswer`]) |
//! | from 1 | for each CPU a ring as perf maps it |
//!
//! A ring is a page of which head and tail are used (`struct perf_event_mmap_page`), then
//! [`UNIT_RING_BYTES`] of records ([`crate::encode_sample`]).
//!
//! The guest writes the settings and executes the no-op instruction with [`UNIT_MARK`]; the answer
//! is there when the instruction has ended.

use crate::source::MemoryOperation;

/// Bytes of the whole, at the end of the shared memory.
pub const UNIT_REGION_BYTES: u64 = 16 << 20;
/// Displacement of the no-op instruction `nopl disp32(%rax)` (`0f 1f 80 imm32`) that makes the unit
/// read its settings.
pub const UNIT_MARK: u32 = 0x7e44_a021;
/// Bytes of a page of the region.
pub const UNIT_PAGE_BYTES: usize = 4096;
/// Bytes of the records of a CPU's ring.
pub const UNIT_RING_BYTES: usize = 128 << 10;
/// CPUs that have rings; the plugin takes no more.
pub const MOST_UNIT_CPUS: usize = 64;
/// Where `data_head` and `data_tail` lie in a ring's first page (`struct perf_event_mmap_page`).
pub const RING_HEAD_OFFSET: usize = 1024;
/// See [`RING_HEAD_OFFSET`].
pub const RING_TAIL_OFFSET: usize = 1032;
/// Smallest and largest buffer of a CPU, bytes: those of the PEBS paper (MCHPC'18), and its
/// driver's default.
pub const UNIT_BUFFER_BYTES: std::ops::RangeInclusive<u64> = (8 << 10)..=(64 << 10);

/// Bytes of a record in a CPU's buffer: 24 words on Knights Landing (MCHPC'18, "On the
/// Applicability of PEBS based Online Memory Access Tracking", section 3).
const RECORD_BYTES: u64 = 192;
/// The interrupt comes when a tenth of the buffer is free (that paper's driver).
const FREE_AT_INTERRUPT: u64 = 10;

/// Where the ring of a CPU begins in the region.
#[must_use]
pub const fn ring_offset(cpu: usize) -> usize {
    UNIT_PAGE_BYTES + cpu * (UNIT_PAGE_BYTES + UNIT_RING_BYTES)
}

/// Records in a buffer of so many bytes when the interrupt comes.
#[must_use]
pub const fn records_at_interrupt(buffer_bytes: u64) -> u64 {
    let records = buffer_bytes / RECORD_BYTES;
    let threshold = records - records / FREE_AT_INTERRUPT;
    if threshold == 0 {
        1
    } else {
        threshold
    }
}

/// What the unit counts. Only accesses in user mode count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitEvent {
    /// Loads that the last level did not serve.
    LoadMisses,
    /// All loads.
    Loads,
    /// All stores.
    Stores,
}

impl UnitEvent {
    /// All of them, in the order of [`UnitSettings::periods`].
    pub const ALL: [Self; 3] = [Self::LoadMisses, Self::Loads, Self::Stores];

    /// What its samples are.
    #[must_use]
    pub const fn operation(self) -> MemoryOperation {
        match self {
            Self::LoadMisses | Self::Loads => MemoryOperation::Load,
            Self::Stores => MemoryOperation::Store,
        }
    }
}

/// What is asked of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitSettings {
    /// Events between two samples, in the order of [`UnitEvent::ALL`] (PEBS's reset value); zero:
    /// not sampled.
    pub periods: [u64; 3],
    /// Buffer of each CPU, within [`UNIT_BUFFER_BYTES`].
    pub buffer_bytes: u64,
    /// Where the kernel keeps the task that a CPU runs, from the start of the CPU's own area.
    pub current_task: u64,
    /// Where a task's number lies in it (`task_struct.pid`).
    pub task_pid: u64,
    /// Where its process's number lies in it (`task_struct.tgid`).
    pub task_tgid: u64,
}

/// Words that settings take.
pub const UNIT_SETTING_WORDS: usize = 7;
/// First word of the answer.
pub const UNIT_ANSWER_WORD: usize = 16;
/// Words that an answer takes.
pub const UNIT_ANSWER_WORDS: usize = 5;
/// Places beyond this in a kernel structure or a CPU's own area are not believed.
const MOST_OFFSET: u64 = 1 << 24;

impl UnitSettings {
    /// As they lie in the registers, from word zero.
    #[must_use]
    pub const fn encode(&self) -> [u64; UNIT_SETTING_WORDS] {
        let [misses, loads, stores] = self.periods;
        let [task, pid, tgid] = [self.current_task, self.task_pid, self.task_tgid];
        [misses, loads, stores, self.buffer_bytes, task, pid, tgid]
    }

    /// Reads them; `None` where a buffer or an offset is out of bounds.
    #[must_use]
    pub fn decode(words: [u64; UNIT_SETTING_WORDS]) -> Option<Self> {
        let [misses, loads, stores, buffer_bytes, current_task, task_pid, task_tgid] = words;
        let near = [current_task, task_pid, task_tgid].iter().all(|offset| *offset < MOST_OFFSET);
        (near && UNIT_BUFFER_BYTES.contains(&buffer_bytes)).then_some(Self {
            periods: [misses, loads, stores],
            buffer_bytes,
            current_task,
            task_pid,
            task_tgid,
        })
    }

    /// Whether anything is sampled.
    #[must_use]
    pub fn samples(&self) -> bool {
        self.periods != [0; 3]
    }
}

/// What the unit answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitAnswer {
    /// The settings are in force; else nothing is sampled.
    pub accepted: bool,
    /// Records that were made since the machine was awakened.
    pub records: u64,
    /// Interrupts that emptied a buffer.
    pub interrupts: u64,
    /// Records that found a ring full.
    pub lost: u64,
    /// Picoseconds that records and interrupts took of all CPUs together.
    pub cost_ps: u64,
}

/// First word of an answer: yes and no. Zero: no unit has read the settings.
const ACCEPTED: u64 = 0x7e44_0001;
const REFUSED: u64 = 0x7e44_0002;

impl UnitAnswer {
    /// As it lies in the registers, from [`UNIT_ANSWER_WORD`].
    #[must_use]
    pub const fn encode(&self) -> [u64; UNIT_ANSWER_WORDS] {
        let first = if self.accepted { ACCEPTED } else { REFUSED };
        [first, self.records, self.interrupts, self.lost, self.cost_ps]
    }

    /// Reads it; `None`: nobody has answered.
    #[must_use]
    pub const fn decode(words: [u64; UNIT_ANSWER_WORDS]) -> Option<Self> {
        let [first, records, interrupts, lost, cost_ps] = words;
        let accepted = match first {
            ACCEPTED => true,
            REFUSED => false,
            _ => return None,
        };
        Some(Self { accepted, records, interrupts, lost, cost_ps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_answers_are_read_as_written() {
        let settings = UnitSettings {
            periods: [64, 0, 100_003],
            buffer_bytes: 8 << 10,
            current_task: 0x34d00,
            task_pid: 1424,
            task_tgid: 1428,
        };
        assert_eq!(UnitSettings::decode(settings.encode()), Some(settings));
        assert!(settings.samples() && !UnitSettings::default().samples());
        let wrong = [
            UnitSettings { buffer_bytes: 4 << 10, ..settings },
            UnitSettings { buffer_bytes: 65 << 10, ..settings },
            UnitSettings { task_pid: 1 << 40, ..settings },
        ];
        assert!(wrong.iter().all(|w| UnitSettings::decode(w.encode()).is_none()));
        let answer =
            UnitAnswer { accepted: true, records: 9, interrupts: 1, lost: 2, cost_ps: 250_000 };
        assert_eq!(UnitAnswer::decode(answer.encode()), Some(answer));
        let refused = UnitAnswer { accepted: false, ..answer };
        assert_eq!(UnitAnswer::decode(refused.encode()), Some(refused));
        assert_eq!(UnitAnswer::decode([0; UNIT_ANSWER_WORDS]), None);
    }

    /// The paper's driver has 42, 85 and 170 records in 8, 16 and 32 kB, and 341 in 64.
    #[test]
    fn a_buffer_interrupts_when_a_tenth_is_free() {
        let records = |kib: u64| records_at_interrupt(kib << 10);
        assert_eq!([8, 16, 32, 64].map(records), [42 - 4, 85 - 8, 170 - 17, 341 - 34]);
        assert_eq!(records_at_interrupt(0), 1);
    }

    #[test]
    fn all_rings_lie_in_the_region() {
        assert!(ring_offset(MOST_UNIT_CPUS) as u64 <= UNIT_REGION_BYTES);
        assert!(ring_offset(0) >= 8 * (UNIT_ANSWER_WORD + UNIT_ANSWER_WORDS));
        const { assert!(UNIT_SETTING_WORDS <= UNIT_ANSWER_WORD) };
        const { assert!(UNIT_RING_BYTES.is_power_of_two()) };
    }
}
