//! The sampling unit: a record of every n-th access of a kind, as a processor's sampling makes them
//! (`terrace_sampling`'s `unit` describes what the guest sees of it).
//!
//! Each vCPU counts for itself and has a buffer. Storing a record takes the vCPU time; so does the
//! interrupt when the buffer is nine tenths full, which moves all records to the vCPU's ring. What
//! finds the ring full is lost, and counted there as perf does. Only accesses in user mode count.

use std::sync::atomic::{AtomicU64, Ordering};
use terrace_machine::KernelCosts;
use terrace_sampling::{
    encode_lost, encode_sample, records_at_interrupt, ring_offset, PerfSample, UnitAnswer,
    UnitEvent, UnitSettings, MOST_UNIT_CPUS, RING_HEAD_OFFSET, RING_TAIL_OFFSET, UNIT_ANSWER_WORD,
    UNIT_PAGE_BYTES, UNIT_REGION_BYTES, UNIT_RING_BYTES,
};

/// Addresses of user mode lie below this.
const USER_END: u64 = 1 << 47;

/// Whether an instruction at this address runs in user mode.
#[inline(always)]
pub fn is_user(instruction: u64) -> bool {
    instruction < USER_END
}

/// The region that host and guest share.
#[derive(Debug, Clone, Copy)]
pub struct UnitRegion(*mut u8);

impl UnitRegion {
    /// The region at the end of shared memory of `length` bytes at `start`; `None` if it is too
    /// small or not aligned to words.
    ///
    /// # Safety
    /// `start` points to `length` bytes that stay mapped and writable as long as the plugin runs,
    /// and that Rust references nowhere.
    pub unsafe fn at_end(start: *mut u8, length: u64) -> Option<Self> {
        let before = usize::try_from(length.checked_sub(UNIT_REGION_BYTES)?).ok()?;
        // SAFETY: `before` is at most `length`, so the pointer stays within the bytes promised.
        let region = unsafe { start.add(before) };
        (region.align_offset(8) == 0).then_some(Self(region))
    }

    /// The word at a byte offset that is a multiple of eight, below the region's end.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset % 8 == 0 && offset + 8 <= UNIT_REGION_BYTES as usize);
        // SAFETY: within the region by the check, aligned since region and offset are; the guest
        // writes it too, on this thread or under QEMU's control, which is why it is an atomic.
        unsafe { &*self.0.add(offset).cast::<AtomicU64>() }
    }

    fn words<const N: usize>(&self, first: usize) -> [u64; N] {
        std::array::from_fn(|i| self.word(8 * (first + i)).load(Ordering::Acquire))
    }

    /// Copies `bytes` to the records of a ring, from position `at` on, around its end.
    fn put(&self, cpu: usize, at: u64, bytes: &[u8]) {
        assert!(cpu < MOST_UNIT_CPUS && bytes.len() <= UNIT_RING_BYTES);
        let from = at as usize & (UNIT_RING_BYTES - 1);
        let (first, second) = bytes.split_at(bytes.len().min(UNIT_RING_BYTES - from));
        let data = ring_offset(cpu) + UNIT_PAGE_BYTES;
        for (at, part) in [(from, first), (0, second)] {
            // SAFETY: `at` and the part's length stay within the ring's records, and these within
            // the region by the check above; the guest reads them only once the head is moved.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), self.0.add(data + at), part.len());
            }
        }
    }
}

/// One vCPU's counters and buffer.
#[derive(Debug, Default)]
struct CpuBuffer {
    /// Events until the next sample, in the order of [`UnitEvent::ALL`].
    until: [u64; 3],
    /// Records, as the ring will hold them.
    records: Vec<Vec<u8>>,
    /// Records that found the ring full, not yet reported.
    lost: u64,
}

/// See the module.
#[derive(Debug)]
pub struct SamplingUnit {
    memory: Option<UnitRegion>,
    settings: UnitSettings,
    threshold: usize,
    record_ps: u64,
    interrupt_ps: u64,
    cpus: Vec<CpuBuffer>,
    totals: UnitAnswer,
    /// Some event counts all loads or all stores.
    every: bool,
    on: bool,
}

impl SamplingUnit {
    /// One that samples nothing yet.
    pub fn new(vcpus: u32, costs: &KernelCosts) -> Self {
        Self {
            memory: None,
            settings: UnitSettings::default(),
            threshold: 1,
            record_ps: costs.sample_record.0,
            interrupt_ps: costs.sample_interrupt.0,
            cpus: (0..vcpus).map(|_| CpuBuffer::default()).collect(),
            totals: UnitAnswer::default(),
            every: false,
            on: false,
        }
    }

    /// Whether anything is sampled.
    #[inline(always)]
    pub fn on(&self) -> bool {
        self.on
    }

    /// Whether accesses that caches serve count too.
    #[inline(always)]
    pub fn every(&self) -> bool {
        self.every
    }

    /// What was asked last.
    pub fn settings(&self) -> &UnitSettings {
        &self.settings
    }

    /// The guest has written settings: take what buffers hold to the rings, go by the settings, and
    /// answer.
    pub fn control(&mut self, memory: UnitRegion) {
        self.memory = Some(memory);
        for cpu in 0..self.cpus.len() {
            self.empty_buffer(cpu);
        }
        let asked = UnitSettings::decode(memory.words(0));
        let fits = self.cpus.len() <= MOST_UNIT_CPUS;
        self.totals.accepted = asked.is_some() && fits;
        let settings = asked.filter(|_| fits).unwrap_or_default();
        let [_, loads, stores] = settings.periods;
        (self.on, self.every) = (settings.samples(), loads > 0 || stores > 0);
        self.threshold = records_at_interrupt(settings.buffer_bytes) as usize;
        for cpu in &mut self.cpus {
            for (until, (new, old)) in
                cpu.until.iter_mut().zip(settings.periods.iter().zip(self.settings.periods))
            {
                // A counter keeps its count while its period stays.
                if *new != old || *until == 0 {
                    *until = *new;
                }
            }
        }
        self.settings = settings;
        let answer = self.totals.encode();
        for (i, word) in answer.iter().enumerate().rev() {
            memory.word(8 * (UNIT_ANSWER_WORD + i)).store(*word, Ordering::Release);
        }
    }

    /// An event of a vCPU: whether it is to be sampled.
    #[inline]
    pub fn counts(&mut self, vcpu: usize, event: UnitEvent) -> bool {
        let at = event as usize;
        let until = &mut self.cpus[vcpu].until[at];
        if self.settings.periods[at] == 0 {
            return false;
        }
        *until = until.saturating_sub(1);
        if *until > 0 {
            return false;
        }
        *until = self.settings.periods[at];
        true
    }

    /// Stores the record of an event that is to be sampled; picoseconds that it takes the vCPU.
    pub fn record(&mut self, vcpu: usize, event: UnitEvent, sample: PerfSample<'_>) -> u64 {
        let mut bytes = Vec::with_capacity(72);
        encode_sample(
            &PerfSample { period: self.settings.periods[event as usize], ..sample },
            &mut bytes,
        );
        self.cpus[vcpu].records.push(bytes);
        self.totals.records += 1;
        let mut took = self.record_ps;
        if self.cpus[vcpu].records.len() >= self.threshold {
            took += self.interrupt_ps;
            self.totals.interrupts += 1;
            self.empty_buffer(vcpu);
        }
        self.totals.cost_ps += took;
        took
    }

    /// Moves what a buffer holds to the ring; what has no space there is lost.
    fn empty_buffer(&mut self, vcpu: usize) {
        let Some(memory) = self.memory else { return };
        let cpu = &mut self.cpus[vcpu];
        let header = ring_offset(vcpu);
        let tail = memory.word(header + RING_TAIL_OFFSET).load(Ordering::Acquire);
        let mut head = memory.word(header + RING_HEAD_OFFSET).load(Ordering::Relaxed);
        // A tail that the guest did not leave within the ring leaves no space.
        let space = |head: u64| (UNIT_RING_BYTES as u64).saturating_sub(head.wrapping_sub(tail));
        for record in cpu.records.drain(..) {
            let mut bytes = Vec::with_capacity(record.len());
            if cpu.lost > 0 {
                encode_lost(cpu.lost, &mut bytes);
            }
            bytes.extend_from_slice(&record);
            if (bytes.len() as u64) > space(head) {
                cpu.lost += 1;
                self.totals.lost += 1;
                continue;
            }
            cpu.lost = 0;
            memory.put(vcpu, head, &bytes);
            head += bytes.len() as u64;
        }
        memory.word(header + RING_HEAD_OFFSET).store(head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_sampling::{records, EventAttributes, PerfRecord, RING_SAMPLE_TYPE};

    /// A unit with a region of its own; the region lives as long as the vector.
    fn unit(settings: UnitSettings) -> (SamplingUnit, UnitRegion, Vec<u64>) {
        let mut region = vec![0_u64; UNIT_REGION_BYTES as usize / 8 + 512];
        let (start, length) = (region.as_mut_ptr().cast(), 8 * region.len() as u64);
        // SAFETY: the vector's buffer outlives the unit and is used through the pointer alone.
        let memory = unsafe { UnitRegion::at_end(start, length) }.unwrap();
        let mut unit = SamplingUnit::new(2, &KernelCosts::default());
        ask(&mut unit, memory, settings);
        (unit, memory, region)
    }

    fn ask(unit: &mut SamplingUnit, memory: UnitRegion, settings: UnitSettings) {
        for (i, word) in settings.encode().into_iter().enumerate() {
            memory.word(8 * i).store(word, Ordering::Relaxed);
        }
        unit.control(memory);
    }

    fn answer(memory: UnitRegion) -> UnitAnswer {
        UnitAnswer::decode(memory.words(UNIT_ANSWER_WORD)).unwrap()
    }

    /// Addresses of the samples in a ring, and how many were lost; the ring is empty then.
    fn take(memory: UnitRegion, cpu: usize) -> (Vec<u64>, u64) {
        let word = |at| memory.word(ring_offset(cpu) + at);
        let head = word(RING_HEAD_OFFSET).load(Ordering::Acquire);
        let tail = word(RING_TAIL_OFFSET).load(Ordering::Acquire);
        let bytes: Vec<u8> = (tail..head)
            .map(|at| {
                let offset = ring_offset(cpu) + UNIT_PAGE_BYTES + at as usize % UNIT_RING_BYTES;
                memory.word(offset & !7).load(Ordering::Relaxed).to_le_bytes()[offset & 7]
            })
            .collect();
        word(RING_TAIL_OFFSET).store(head, Ordering::Release);
        let event = EventAttributes { sample_type: RING_SAMPLE_TYPE, ..EventAttributes::default() };
        let mut found = (Vec::new(), 0);
        for record in records(&bytes, &event) {
            match record.unwrap() {
                PerfRecord::Sample(sample) => found.0.push(sample.address),
                PerfRecord::Lost(lost, _) => found.1 += lost,
                other => panic!("{other:?}"),
            }
        }
        found
    }

    fn at(address: u64) -> PerfSample<'static> {
        PerfSample { address, cpu: Some(0), ..PerfSample::default() }
    }

    #[test]
    fn every_nth_event_is_stored_and_a_full_buffer_interrupts() {
        let settings =
            UnitSettings { periods: [3, 0, 5], buffer_bytes: 8 << 10, ..UnitSettings::default() };
        let (mut unit, memory, _region) = unit(settings);
        assert!(unit.on() && unit.every() && answer(memory).accepted);
        let costs = KernelCosts::default();
        let (mut took, mut sampled) = (0, 0);
        for i in 1..=3 * 38 {
            assert!(!unit.counts(1, UnitEvent::Loads), "not asked for");
            if unit.counts(0, UnitEvent::LoadMisses) {
                took += unit.record(0, UnitEvent::LoadMisses, at(i));
                sampled += 1;
            }
        }
        assert_eq!((sampled, took), (38, 38 * costs.sample_record.0 + costs.sample_interrupt.0));
        let (addresses, lost) = take(memory, 0);
        assert_eq!((addresses.len(), addresses[0], addresses[37], lost), (38, 3, 114, 0));
        // What waits in a buffer comes when the guest asks for anything, for example to stop.
        (0..5).for_each(|_| {
            if unit.counts(1, UnitEvent::Stores) {
                unit.record(1, UnitEvent::Stores, at(77));
            }
        });
        assert_eq!(take(memory, 1), (vec![], 0));
        let stop = UnitSettings { periods: [0; 3], ..settings };
        ask(&mut unit, memory, stop);
        assert_eq!(take(memory, 1), (vec![77], 0));
        assert!(!unit.on() && !unit.counts(0, UnitEvent::LoadMisses));
        let totals = answer(memory);
        assert_eq!((totals.records, totals.interrupts, totals.lost), (39, 1, 0));
        assert_eq!(totals.cost_ps, took + costs.sample_record.0);
    }

    #[test]
    fn a_full_ring_loses_records_and_says_how_many() {
        let settings =
            UnitSettings { periods: [1, 0, 0], buffer_bytes: 8 << 10, ..UnitSettings::default() };
        let (mut unit, memory, _region) = unit(settings);
        let holds = UNIT_RING_BYTES / 72;
        let made = holds.next_multiple_of(38) + 38;
        for i in 0..made as u64 {
            assert!(unit.counts(0, UnitEvent::LoadMisses));
            unit.record(0, UnitEvent::LoadMisses, at(i));
        }
        let (addresses, lost) = take(memory, 0);
        assert_eq!((addresses.len(), lost), (holds, 0));
        assert_eq!(answer(memory).lost, 0, "not asked since");
        // The next that find space say how many did not, and lie around the ring's end.
        (0..38).for_each(|i| {
            unit.record(0, UnitEvent::LoadMisses, at(1000 + i));
        });
        let (addresses, lost) = take(memory, 0);
        assert_eq!((addresses.len(), addresses[0]), (38, 1000));
        assert_eq!(lost as usize, made - holds);
        ask(&mut unit, memory, settings);
        assert_eq!(answer(memory).lost as usize, made - holds);
    }

    #[test]
    fn settings_that_are_not_believed_sample_nothing() {
        let settings =
            UnitSettings { periods: [1, 0, 0], buffer_bytes: 4096, ..UnitSettings::default() };
        let (mut unit, memory, mut region) = unit(settings);
        assert!(!answer(memory).accepted && !unit.on());
        // A tail beyond the head: no space, no panic.
        ask(&mut unit, memory, UnitSettings { buffer_bytes: 8 << 10, ..settings });
        memory.word(ring_offset(0) + RING_TAIL_OFFSET).store(u64::MAX, Ordering::Relaxed);
        (0..100).for_each(|i| {
            unit.record(0, UnitEvent::LoadMisses, at(i));
        });
        // SAFETY: nothing is dereferenced before the length is checked.
        assert!(unsafe { UnitRegion::at_end(region.as_mut_ptr().cast(), 4096) }.is_none());
        assert!(is_user(0x40_1000) && !is_user(0xffff_ffff_8100_0000));
    }
}
