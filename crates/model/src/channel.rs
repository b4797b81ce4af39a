//! A node's bus. Bytes take time on it, and several cores share it.
//!
//! Cores run one after the other within a quantum (see [`crate::lockstep`]), so a single queue
//! would always serve the first core first. Instead each core has a queue of its own, and at the
//! end of each quantum the bus is divided anew: a core gets what the others did not use in the last
//! quantum, and never less than an equal share.

use crate::loaded::LoadedCurves;
use terrace_cache::{Cache, GeometryError, LruOutcome};

/// Shares are in units of 1/1024 of the bus.
const WHOLE: u64 = 1024;
/// A core that used less than this of the bus (in the same units) does not count as a competitor.
const NOTABLE: u64 = 10;
/// Blocks that the medium keeps open, for reads and for writes; only matters where blocks are
/// larger than lines. Optane's buffer holds 16 KiB, which is 64 blocks of 256 bytes (Yang et al.,
/// FAST 2020, section 4).
const OPEN_BLOCKS: u64 = 64;
const OPEN_WAYS: u32 = 8;

/// One core's queue at one node.
#[derive(Debug, Clone)]
struct Queue {
    /// Time until which the queue is busy, picoseconds.
    busy_until: u64,
    /// Bus time used in this quantum, at the full rate, picoseconds.
    used: u64,
    /// What of it was left for later quanta when the last one ended.
    later: u64,
    /// Share of the bus in this quantum.
    share: u64,
}

/// What users of a bus did with it in a quantum, for users of the same bus in other machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusDemand {
    /// Parts of the bus that were used, 1/1024 each.
    pub parts: u64,
    /// Cores that used it notably.
    pub notable: u64,
    /// Cores that used at least half of their share.
    pub wanting: u64,
}

impl BusDemand {
    /// This without `other`, which is a part of it.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            parts: self.parts.saturating_sub(other.parts),
            notable: self.notable.saturating_sub(other.notable),
            wanting: self.wanting.saturating_sub(other.wanting),
        }
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            parts: self.parts + other.parts,
            notable: self.notable + other.notable,
            wanting: self.wanting + other.wanting,
        }
    }
}

/// The bus of one node.
#[derive(Debug, Clone)]
pub struct Channel {
    queues: Vec<Queue>,
    open_reads: Cache,
    open_writes: Cache,
    demand: BusDemand,
    rivals: BusDemand,
    /// Most that this machine may take of the bus.
    limit: u64,
    block_shift: u32,
    /// Latency under load, and what decides it: bytes read and written in this quantum, and what a
    /// miss takes beyond its idle latency, picoseconds.
    loaded: LoadedCurves,
    read_bytes: u64,
    written_bytes: u64,
    added_ps: u64,
}

/// What one user of `whole` parts of a bus gets in the next quantum: `mine` is what it used in the
/// last one, `wants` whether it was half of its share.
fn divide(whole: u64, all: BusDemand, mine: u64, wants: bool) -> u64 {
    let left = whole.saturating_sub(all.parts);
    let rivals = all.notable - u64::from(mine >= NOTABLE);
    let fair = whole / (rivals + 1);
    let others = (all.wanting - u64::from(wants)).max(1);
    // With one other it is all of what is left, and so for one or two cores always.
    let most = if left > 0 { mine + left / others } else { whole.saturating_sub(all.parts - mine) };
    most.max(fair)
}

impl Channel {
    /// An idle bus for this many cores, with blocks of `block` bytes (a power of two).
    pub fn new(cores: usize, block: u64) -> Result<Self, GeometryError> {
        let queue = Queue { busy_until: 0, used: 0, later: 0, share: WHOLE };
        let open = Cache::new(OPEN_BLOCKS, OPEN_WAYS, 1)?;
        Ok(Self {
            queues: vec![queue; cores],
            open_reads: open.clone(),
            open_writes: open,
            demand: BusDemand::default(),
            rivals: BusDemand::default(),
            limit: WHOLE,
            loaded: LoadedCurves::default(),
            read_bytes: 0,
            written_bytes: 0,
            added_ps: 0,
            block_shift: block.max(crate::LINE).trailing_zeros() - crate::LINE.trailing_zeros(),
        })
    }

    /// The same, its misses slower under load.
    #[must_use]
    pub fn with_loaded_latency(self, loaded: LoadedCurves) -> Self {
        Self { loaded, ..self }
    }

    /// So many bytes are read from the medium.
    #[inline]
    pub fn count_read(&mut self, bytes: u64) {
        self.read_bytes += bytes;
    }

    /// So many bytes are written to the medium.
    #[inline]
    pub fn count_written(&mut self, bytes: u64) {
        self.written_bytes += bytes;
    }

    /// What a miss takes beyond its idle latency now, picoseconds.
    #[inline]
    #[must_use]
    pub const fn added_latency(&self) -> u64 {
        self.added_ps
    }

    /// Sets the added latency by what was moved in a quantum of `length` picoseconds, that of
    /// other machines on the same bus in proportion. Half of it: what a core asks for follows its
    /// latency, and the whole difference would swing from one quantum to the next.
    fn follow_load(&mut self, length: u64) {
        let (read, written) =
            (std::mem::take(&mut self.read_bytes), std::mem::take(&mut self.written_bytes));
        if self.loaded.is_empty() {
            return;
        }
        let all = |bytes: u64| match self.demand.parts {
            0 => bytes,
            own => bytes.saturating_mul(own + self.rivals.parts) / own,
        };
        let target = self.loaded.added(all(read), all(written), length);
        self.added_ps = (self.added_ps + target) / 2;
    }

    /// Does moving this line open a new block? If not, the bytes came with the block's first line.
    #[inline]
    pub fn opens_block(&mut self, line: u64, write: bool) -> bool {
        if self.block_shift == 0 {
            return true;
        }
        let block = line >> self.block_shift;
        let open = if write { &mut self.open_writes } else { &mut self.open_reads };
        open.access(block, write) != LruOutcome::Hit
    }

    /// Occupy the bus for `bus_time` picoseconds, not before `from`: the time at which the transfer
    /// ends.
    #[inline]
    pub fn transfer(&mut self, core: usize, from: u64, bus_time: u64) -> u64 {
        let queue = &mut self.queues[core];
        queue.used += bus_time;
        // A division takes longer than the rest; a core that has the bus to itself needs none.
        let taken = if queue.share == WHOLE { bus_time } else { bus_time * WHOLE / queue.share };
        queue.busy_until = queue.busy_until.max(from) + taken;
        queue.busy_until
    }

    /// Time at which the core's queue is free, picoseconds.
    #[inline]
    #[must_use]
    pub fn free_at(&self, core: usize) -> u64 {
        self.queues[core].busy_until
    }

    /// What this machine's cores did with the bus in the last quantum.
    #[must_use]
    pub const fn demand(&self) -> BusDemand {
        self.demand
    }

    /// From now on the bus is shared with cores of other machines that want this much of it; by
    /// default there are none.
    pub fn set_rivals(&mut self, rivals: BusDemand) {
        self.rivals = rivals;
    }

    /// From now on this machine takes so many 1024ths of the bus at most, since what lies between
    /// serves no more; by default all.
    pub fn set_limit(&mut self, parts: u64) {
        self.limit = parts.clamp(1, WHOLE);
    }

    /// Divide the bus anew after a quantum of `length` picoseconds.
    ///
    /// What nobody used goes to those who would use it, in equal parts. Given to each of them
    /// whole, as it once was, it is given many times: eight cores that each used 0.9 of an eighth
    /// could take 1.7 times the bus in the next quantum.
    ///
    /// `end` is when it ended, picoseconds. What a queue is still busy with then is used later, not
    /// in this quantum: a core that waits for long transfers would otherwise be taken to want much
    /// in one quantum and nothing in the next, and what it seems to leave would be given away.
    pub fn end_quantum(&mut self, end: u64, length: u64) {
        // Figures of two cores rest on its absence, and there it makes 3% at most.
        let carry = self.queues.len() > 2;
        for queue in self.queues.iter_mut().filter(|_| carry) {
            let beyond = queue.busy_until.saturating_sub(end).saturating_mul(queue.share) / WHOLE;
            queue.later = beyond.min(queue.used);
            queue.used -= queue.later;
        }
        let part = |q: &Queue| (q.used.saturating_mul(WHOLE) / length.max(1)).min(WHOLE);
        let wants = |q: &Queue| part(q) >= NOTABLE && 2 * part(q) >= q.share;
        self.demand = BusDemand {
            parts: self.queues.iter().map(part).sum(),
            notable: self.queues.iter().filter(|q| part(q) >= NOTABLE).count() as u64,
            wanting: self.queues.iter().filter(|q| wants(q)).count() as u64,
        };
        self.follow_load(length);
        let all = self.demand.plus(self.rivals);
        for queue in &mut self.queues {
            let (mine, wants) = (part(queue), wants(queue));
            queue.share = divide(WHOLE, all, mine, wants);
            if self.limit < WHOLE {
                let limited = divide(self.limit, self.demand, mine, wants);
                queue.share = queue.share.min(limited).max(1);
            }
            queue.used = queue.later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_gets_the_whole_bus() {
        let mut c = Channel::new(2, 64).unwrap();
        let end = (0..1000).fold(0, |_, _| c.transfer(0, 0, 640));
        assert_eq!(end, 640_000);
        c.end_quantum(640_000, 640_000);
        assert_eq!(c.transfer(0, 640_000, 640), 640_640);
    }

    #[test]
    fn two_greedy_cores_get_half_each() {
        let mut c = Channel::new(2, 64).unwrap();
        let quantum = 64_000;
        for q in 0..10 {
            for core in 0..2 {
                while c.free_at(core) < (q + 1) * quantum {
                    c.transfer(core, q * quantum, 640);
                }
            }
            c.end_quantum((q + 1) * quantum, quantum);
        }
        assert_eq!(c.queues[0].share, 512);
        assert_eq!(c.queues[1].share, 512);
    }

    #[test]
    fn two_machines_that_exchange_their_use_share_as_two_cores_do() {
        let mut machines = [Channel::new(1, 64).unwrap(), Channel::new(1, 64).unwrap()];
        let quantum = 64_000;
        for q in 0..10 {
            for c in &mut machines {
                while c.free_at(0) < (q + 1) * quantum {
                    c.transfer(0, q * quantum, 640);
                }
                c.end_quantum((q + 1) * quantum, quantum);
            }
            let demands = machines.each_ref().map(Channel::demand);
            machines[0].set_rivals(demands[1]);
            machines[1].set_rivals(demands[0]);
        }
        let shares: Vec<u64> = machines.iter().map(|c| c.queues[0].share).collect();
        assert_eq!(shares, [512, 512]);
        // The other is idle now.
        machines[0].set_rivals(BusDemand::default());
        machines[0].end_quantum(11 * quantum, quantum);
        assert_eq!(machines[0].queues[0].share, WHOLE);
    }

    #[test]
    fn a_limited_machine_takes_its_part_with_any_number_of_cores() {
        for cores in [1, 2, 3, 8] {
            let mut c = Channel::new(cores, 64).unwrap();
            c.set_limit(256);
            let (quantum, mut used) = (640_000, 0);
            for q in 0..60 {
                for core in 0..cores {
                    while c.free_at(core) < (q + 1) * quantum {
                        c.transfer(core, q * quantum, 640);
                        used += u64::from(q >= 20) * 640;
                    }
                }
                c.end_quantum((q + 1) * quantum, quantum);
            }
            let part = used as f64 / (40 * quantum) as f64;
            assert!((0.23..0.28).contains(&part), "{cores} cores: {part}");
        }
    }

    #[test]
    fn a_modest_core_leaves_the_rest() {
        let mut c = Channel::new(2, 64).unwrap();
        for q in 0..10u64 {
            let end = (q + 1) * 64_000;
            for _ in 0..10 {
                c.transfer(1, q * 64_000, 640);
            }
            while c.free_at(0) < end {
                c.transfer(0, q * 64_000, 640);
            }
            c.end_quantum(end, 64_000);
        }
        assert!((900..940).contains(&c.queues[0].share), "{}", c.queues[0].share);
        assert_eq!(c.queues[1].share, 512);
    }

    #[test]
    fn lines_of_an_open_block_are_free() {
        let mut c = Channel::new(1, 256).unwrap();
        let opened: Vec<bool> = (0..8).map(|l| c.opens_block(l, false)).collect();
        assert_eq!(opened, [true, false, false, false, true, false, false, false]);
        assert!(c.opens_block(0, true));
        assert!(!c.opens_block(3, true));
    }

    #[test]
    fn many_streams_keep_their_blocks_open() {
        let mut c = Channel::new(1, 256).unwrap();
        // Six streams whose blocks have the same remainder by any power of two up to 2^20.
        let opened = (0..4096u64).flat_map(|l| (0..6u64).map(move |s| l + (s << 22)));
        let count = opened.filter(|line| c.opens_block(*line, false)).count();
        assert_eq!(count, 6 * 4096 / 4);
    }

    const QUANTUM: u64 = 10_000_000;
    const LINE_TIME: u64 = 1_500;
    const QUANTA: u64 = 200;
    /// Every core begins with the whole bus; they are counted once it has been divided.
    const BEGUN: u64 = 20;

    /// Cores that sweep, `think` picoseconds of computing between two lines, one line in `writes`
    /// written too: all lines, when each core's last transfer ended, as one number, and the part of
    /// the bus that was used once they had begun.
    fn sweeps(cores: usize, think: u64, writes: u64) -> (u64, u64, f64) {
        let mut bus = Channel::new(cores, 64).unwrap();
        let (mut time, mut lines, mut before) = (vec![0u64; cores], 0u64, 0);
        for quantum in 1..=QUANTA {
            for (core, now) in time.iter_mut().enumerate() {
                while *now < quantum * QUANTUM {
                    *now += think * (16 + (core as u64 * 7 + lines / 64) % 5) / 16;
                    for _ in 0..1 + u64::from(lines % writes == 0) {
                        let ends = bus.transfer(core, *now, LINE_TIME);
                        *now = (*now).max(ends.saturating_sub(16 * LINE_TIME));
                        lines += 1;
                    }
                }
            }
            bus.end_quantum(quantum * QUANTUM, QUANTUM);
            before = if quantum == BEGUN { lines } else { before };
        }
        let ends =
            (0..cores).fold(0u64, |all, core| all.wrapping_mul(31).wrapping_add(bus.free_at(core)));
        (lines, ends, ((lines - before) * LINE_TIME) as f64 / ((QUANTA - BEGUN) * QUANTUM) as f64)
    }

    #[test]
    fn one_and_two_cores_take_what_they_always_took() {
        // Recorded before what is left was divided: results of the lab and of the simulator rest on
        // it.
        for (cores, think, writes, lines, ends) in [
            (1, 500, 2, 1_333_350, 2_000_025_500),
            (1, 500, 1000, 1_333_349, 2_000_024_000),
            (1, 2_000, 3, 1_333_343, 2_000_016_625),
            (1, 5_000, 2, 711_146, 2_000_003_448),
            (1, 20_000, 5, 111_094, 2_000_015_250),
            (2, 500, 2, 1_340_696, 64_000_788_899),
            (2, 500, 1000, 1_341_096, 64_000_859_693),
            (2, 2_000, 3, 1_341_087, 64_000_796_504),
            (2, 5_000, 2, 1_334_458, 64_000_945_610),
            (2, 20_000, 5, 222_184, 64_000_651_038),
        ] {
            let now = sweeps(cores, think, writes);
            assert_eq!(
                (now.0, now.1),
                (lines, ends),
                "{cores} cores, {think} ps, one in {writes} written"
            );
        }
    }

    #[test]
    fn many_cores_take_no_more_than_there_is() {
        for cores in [3, 4, 8, 9, 16, 64] {
            for (think, writes) in
                [(500, 2), (2_000, 2), (8_000, 2), (12_000, 2), (20_000, 2), (2_000, 1 << 20)]
            {
                let used = sweeps(cores, think, writes).2;
                let asked = cores as f64 * (1.0 + 1.0 / writes as f64) * LINE_TIME as f64
                    / (1.125 * think as f64);
                assert!(used < 1.01, "{cores} cores, {think} ps: {used}");
                assert!(
                    used > 0.9 * asked.min(1.0),
                    "{cores} cores, {think} ps: {used} of {asked}"
                );
            }
        }
    }

    /// As an emulator has it: cores run blocks of eight lines, one at least each time it is their
    /// turn, and the next quantum begins as soon as the last of them has run this one, in the
    /// middle of a round.
    fn blocks_of_lines(cores: usize, line_time: u64) -> f64 {
        let mut bus = Channel::new(cores, 64).unwrap();
        let mut time: Vec<u64> = (0..cores as u64).map(|core| core * 3_700_000).collect();
        let (mut lines, mut start) = (0u64, 0);
        while start < 2000 * QUANTUM {
            for core in 0..cores {
                loop {
                    let done = time[core] >= start + QUANTUM;
                    for _ in 0..8 {
                        time[core] += 1_250;
                        let ends = bus.transfer(core, time[core], line_time);
                        time[core] = time[core].max(ends.saturating_sub(16 * line_time));
                        lines += 1;
                    }
                    if done {
                        break;
                    }
                }
                let slowest = time.iter().min().copied().unwrap_or(0);
                let quanta = slowest.saturating_sub(start) / QUANTUM;
                start += quanta * QUANTUM;
                if quanta > 0 {
                    bus.end_quantum(start, quanta * QUANTUM);
                }
            }
        }
        (lines * line_time) as f64 / start as f64
    }

    #[test]
    fn transfers_as_long_as_quanta_are_not_given_away() {
        for (cores, line_time) in
            [(3, 128_000), (4, 128_000), (6, 128_000), (12, 128_000), (12, 9_000), (12, 1_600)]
        {
            let used = blocks_of_lines(cores, line_time);
            assert!((0.95..1.05).contains(&used), "{cores} cores, {line_time} ps a line: {used}");
        }
    }
}
