//! A node's bus. Bytes take time on it, and several cores share it.
//!
//! Cores run one after the other within a quantum (see [`crate::lockstep`]), so a single queue would always serve the
//! first core first. Instead each core has a queue of its own, and at the end of each quantum the bus is divided anew:
//! a core gets what the others did not use in the last quantum, and never less than an equal share.

use terrace_cache::{Cache, GeometryError, Outcome};

/// Shares are in units of 1/1024 of the bus.
const WHOLE: u64 = 1024;
/// A core that used less than this of the bus (in the same units) does not count as a competitor.
const NOTABLE: u64 = 10;
/// Blocks that the medium keeps open, for reads and for writes; only matters where blocks are larger than lines. Optane's
/// buffer holds 16 KiB, which is 64 blocks of 256 bytes (Yang et al., FAST 2020, section 4).
const OPEN_BLOCKS: u64 = 64;
const OPEN_WAYS: u32 = 8;

/// One core's queue at one node.
#[derive(Debug, Clone)]
struct Queue {
    /// Time until which the queue is busy, picoseconds.
    busy_until: u64,
    /// Bus time used in this quantum, at the full rate, picoseconds.
    used: u64,
    /// Share of the bus in this quantum.
    share: u64,
}

/// The bus of one node.
#[derive(Debug, Clone)]
pub struct Channel {
    queues: Vec<Queue>,
    open_reads: Cache,
    open_writes: Cache,
    block_shift: u32,
}

impl Channel {
    /// An idle bus for this many cores, with blocks of `block` bytes (a power of two).
    pub fn new(cores: usize, block: u64) -> Result<Self, GeometryError> {
        let queue = Queue { busy_until: 0, used: 0, share: WHOLE };
        let open = Cache::new(OPEN_BLOCKS, OPEN_WAYS, 1)?;
        Ok(Self {
            queues: vec![queue; cores],
            open_reads: open.clone(),
            open_writes: open,
            block_shift: block.max(crate::LINE).trailing_zeros() - crate::LINE.trailing_zeros(),
        })
    }

    /// Does moving this line open a new block? If not, the bytes came with the block's first line.
    #[inline]
    pub fn opens_block(&mut self, line: u64, write: bool) -> bool {
        if self.block_shift == 0 {
            return true;
        }
        let block = line >> self.block_shift;
        let open = if write { &mut self.open_writes } else { &mut self.open_reads };
        open.access(block, write) != Outcome::Hit
    }

    /// Occupy the bus for `bus_time` picoseconds, not before `from`: the time at which the transfer ends.
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

    /// Divide the bus anew after a quantum of `length` picoseconds.
    pub fn end_quantum(&mut self, length: u64) {
        let part = |q: &Queue| (q.used.saturating_mul(WHOLE) / length.max(1)).min(WHOLE);
        let parts_sum: u64 = self.queues.iter().map(part).sum();
        let notable = self.queues.iter().filter(|q| part(q) >= NOTABLE).count() as u64;
        for queue in &mut self.queues {
            let mine = part(queue);
            let rivals = notable - u64::from(mine >= NOTABLE);
            let fair = WHOLE / (rivals + 1);
            queue.share = WHOLE.saturating_sub(parts_sum - mine).max(fair);
            queue.used = 0;
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
        c.end_quantum(640_000);
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
            c.end_quantum(quantum);
        }
        assert_eq!(c.queues[0].share, 512);
        assert_eq!(c.queues[1].share, 512);
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
            c.end_quantum(64_000);
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
}
