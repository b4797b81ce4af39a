//! One core: its own time, its misses in flight, its streams.
//!
//! An out-of-order core does not wait for a miss until it must. It must when
//! - all its miss registers are taken (`outstanding`): it waits for the first to come free;
//! - it has gone on `window` instructions past a load that is still unfinished (its reorder buffer is full);
//! - a load's *address* needs a value that is not there yet: such a load starts when that value arrives.
//!
//! So computing and transferring overlap: a stretch of code costs the longer of the two, not their sum. Dependence is
//! read off the values that missing loads bring: an address within a page of a recent value is a pointer followed; an
//! address that moves by a multiple of what the last two values moved by is an index followed. A chase by either reads
//! the full latency at each step. What depends through arithmetic beyond that (a hash of a loaded value, say) is taken
//! as independent. Lines next to each other are a stream, which the prefetcher fetches ahead: only the bus limits it.

use crate::params::MAX_OUTSTANDING;

/// Lines that the prefetcher runs ahead.
const AHEAD: u64 = 16;
const STREAMS: usize = 16;
const PRODUCERS: usize = 16;
/// A pointer followed lands at most this many bytes from where it points.
const FIELD: u64 = 4096;
/// Largest record that an index followed is taken to step over, bytes.
const RECORD: i64 = 4096;

/// A missing load whose value may become somebody's address.
#[derive(Debug, Clone, Copy, Default)]
struct Producer {
    address: u64,
    value: u64,
    ready: u64,
}

/// A miss in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    /// When it ends, picoseconds.
    ends: u64,
    /// Instruction count past which the core waits for it.
    must_end_by: u64,
}

/// Its state.
#[derive(Debug, Clone)]
pub struct Core {
    /// Its own time, picoseconds.
    pub time: u64,
    /// Instructions executed.
    pub instructions: u64,
    instruction_ps: u64,
    window: u64,
    outstanding: usize,
    flights: [Flight; MAX_OUTSTANDING],
    /// Smallest `must_end_by` of the flights.
    next_wait: u64,
    /// Where the search for a free register begins: after the one taken last, for that is taken longest.
    next_flight: usize,
    streams: [u64; STREAMS],
    /// The low halves of `streams`: sixteen of them are compared in a few instructions.
    stream_halves: [u32; STREAMS],
    stream_next: usize,
    producers: [Producer; PRODUCERS],
    /// The low halves of the producers' values.
    value_halves: [u32; PRODUCERS],
    /// When the last of all values so far arrives.
    values_ready: u64,
    producer_next: usize,
}

impl Core {
    /// A core at time zero.
    #[must_use]
    pub fn new(instruction_ps: u64, window: u64, outstanding: usize) -> Self {
        Self {
            time: 0,
            instructions: 0,
            instruction_ps,
            window,
            outstanding: outstanding.clamp(1, MAX_OUTSTANDING),
            flights: [Flight::default(); MAX_OUTSTANDING],
            next_wait: u64::MAX,
            next_flight: 0,
            streams: [u64::MAX - 1; STREAMS],
            stream_halves: [u32::MAX - 1; STREAMS],
            stream_next: 0,
            producers: [Producer::default(); PRODUCERS],
            value_halves: [0; PRODUCERS],
            values_ready: 0,
            producer_next: 0,
        }
    }

    /// Execute `n` instructions.
    #[inline(always)]
    pub fn execute(&mut self, n: u64) {
        self.time += n * self.instruction_ps;
        self.instructions += n;
        if self.instructions > self.next_wait {
            self.wait_for_window();
        }
    }

    /// Time of an instruction, picoseconds.
    #[inline(always)]
    #[must_use]
    pub fn pace(&self) -> u64 {
        self.instruction_ps
    }

    /// Up to this count of instructions [`Core::execute`] only adds; executing as many at once, or one after the other,
    /// is the same then.
    #[inline(always)]
    #[must_use]
    pub fn clear_until(&self) -> u64 {
        self.next_wait
    }

    #[cold]
    fn wait_for_window(&mut self) {
        let mut next = u64::MAX;
        for f in &mut self.flights[..self.outstanding] {
            if f.ends <= self.time {
                continue;
            }
            if f.must_end_by < self.instructions {
                self.time = f.ends;
            } else {
                next = next.min(f.must_end_by);
            }
        }
        self.next_wait = next;
    }

    /// Does the access to this virtual line continue a stream?
    #[inline]
    pub fn follows_stream(&mut self, line: u64) -> bool {
        let half = line as u32;
        // A match of whole lines is one of halves, so most that follow nothing are told without a branch each.
        let near = |last: &u32| half.wrapping_sub(*last).wrapping_add(1) <= 2;
        if self.stream_halves.iter().fold(false, |any, last| any | near(last)) {
            for at in 0..STREAMS {
                if near(&self.stream_halves[at]) && line.wrapping_sub(self.streams[at]).wrapping_add(1) <= 2 {
                    (self.streams[at], self.stream_halves[at]) = (line, half);
                    return true;
                }
            }
        }
        self.streams[self.stream_next] = line;
        self.stream_halves[self.stream_next] = half;
        self.stream_next = (self.stream_next + 1) % STREAMS;
        false
    }

    /// When the value that `address` depends on arrives, picoseconds; zero if it depends on nothing known.
    #[inline]
    fn address_ready(&self, address: u64) -> u64 {
        if self.values_ready <= self.time {
            return 0;
        }
        let at = |back: usize| &self.producers[(self.producer_next + PRODUCERS - back) % PRODUCERS];
        // As with streams: a value near the address has its lower half near the address's.
        let near = |value: &u32| (address as u32).wrapping_sub(*value).wrapping_add(FIELD as u32) <= 2 * FIELD as u32;
        if self.value_halves.iter().fold(false, |any, value| any | near(value)) {
            for back in 1..=PRODUCERS {
                let p = at(back);
                if p.ready > self.time && address.wrapping_sub(p.value).wrapping_add(FIELD) <= 2 * FIELD {
                    return p.ready;
                }
            }
        }
        for back in [1, 2] {
            let (new, old) = (at(back), at(2 * back));
            let step = new.value.wrapping_sub(old.value) as i64;
            let moved = address.wrapping_sub(new.address) as i64;
            if new.ready > self.time && step != 0 && is_records(moved, step) {
                return new.ready;
            }
        }
        0
    }

    /// Start a miss of `latency` at the earliest time possible: picoseconds at which it starts. `value`: what a load
    /// brings, `None` for stores. `bus`: told the start, answers when the bus has delivered (or zero).
    #[inline]
    pub fn miss(&mut self, address: u64, value: Option<u64>, latency: u64, bus: impl FnOnce(u64) -> u64) -> u64 {
        let slot = self.free_slot();
        let start = if value.is_some() { self.time.max(self.address_ready(address)) } else { self.time };
        // Waiting for the bus delays the start; the transfer itself is part of the latency.
        let ends = bus(start).max(start + latency);
        let must_end_by = self.instructions + self.window;
        self.flights[slot] = Flight { ends, must_end_by };
        self.next_wait = self.next_wait.min(must_end_by);
        if let Some(value) = value {
            self.producers[self.producer_next] = Producer { address, value, ready: ends };
            self.value_halves[self.producer_next] = value as u32;
            self.values_ready = self.values_ready.max(ends);
            self.producer_next = (self.producer_next + 1) % PRODUCERS;
        }
        start
    }

    /// A miss register that is free, after waiting for one if need be. Which of several does not matter.
    #[inline]
    fn free_slot(&mut self) -> usize {
        let flights = &self.flights[..self.outstanding];
        let mut slot = self.next_flight;
        let mut first = slot;
        for _ in 0..flights.len() {
            if flights[slot].ends <= self.time {
                self.next_flight = if slot + 1 == flights.len() { 0 } else { slot + 1 };
                return slot;
            }
            if flights[slot].ends < flights[first].ends {
                first = slot;
            }
            slot = if slot + 1 == flights.len() { 0 } else { slot + 1 };
        }
        self.time = flights[first].ends;
        self.next_flight = if first + 1 == flights.len() { 0 } else { first + 1 };
        first
    }

    /// A transfer that nobody waits for (prefetch, write-back) ends at `ends`: wait until it is at most [`AHEAD`]
    /// transfers of `line_time` away.
    #[inline]
    pub fn run_behind(&mut self, ends: u64, line_time: u64) {
        self.time = self.time.max(ends.saturating_sub(AHEAD * line_time));
    }
}

/// Whether `moved` is 1 to [`RECORD`] times `step`, which is not zero. A division is worth some comparisons before it.
#[inline]
fn is_records(moved: i64, step: i64) -> bool {
    let (long, short) = (moved.unsigned_abs(), step.unsigned_abs());
    moved != 0
        && (moved < 0) == (step < 0)
        && long >= short
        && long / RECORD as u64 <= short
        && long % short == 0
        && long / short <= RECORD as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: u64 = 300_000;

    fn core(outstanding: usize) -> Core {
        Core::new(250, 256, outstanding)
    }

    /// Picoseconds a step of `steps` loads that `address_and_value` gives, with `insns` instructions each.
    fn per_step(c: &mut Core, steps: u64, insns: u64, address_and_value: impl Fn(u64) -> (u64, u64)) -> u64 {
        let start = c.time;
        for i in 0..steps {
            c.execute(insns);
            let (address, value) = address_and_value(i);
            c.miss(address, Some(value), LATENCY, |_| 0);
        }
        (c.time - start) / steps
    }

    #[test]
    fn whole_records_are_told_from_others() {
        let slowly = |moved: i64, step: i64| {
            let records = moved.wrapping_div(step);
            (1..=RECORD).contains(&records) && records.wrapping_mul(step) == moved
        };
        let values =
            [1, -1, 7, 64, -64, 4096, 4097, 64 * 4096, -64 * 4096, 64 * 4097, i64::MAX, i64::MIN, 0, 12_345_678];
        for moved in values {
            for step in values.into_iter().filter(|s| *s != 0) {
                assert_eq!(is_records(moved, step), slowly(moved, step), "{moved} by {step}");
            }
        }
    }

    fn scattered(i: u64) -> u64 {
        i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 << 6
    }

    #[test]
    fn a_pointer_chase_reads_the_latency() {
        let step = per_step(&mut core(10), 10_000, 4, |i| (scattered(i), scattered(i + 1)));
        assert!((297_000..=303_000).contains(&step), "{step}");
    }

    #[test]
    fn a_chase_by_index_reads_the_latency() {
        let base = 0x7f00_0000_0000;
        let index = |i: u64| scattered(i) >> 30;
        let step = per_step(&mut core(10), 10_000, 4, |i| (base + 64 * index(i), index(i + 1)));
        assert!((297_000..=303_000).contains(&step), "{step}");
    }

    #[test]
    fn two_chases_at_once_overlap() {
        let other = 1 << 50;
        let at = |i: u64| scattered(i / 2) + other * (i % 2);
        let step = per_step(&mut core(10), 10_000, 4, |i| (at(i), at(i + 2)));
        assert!((145_000..=155_000).contains(&step), "{step}");
    }

    #[test]
    fn independent_misses_overlap_up_to_the_limit() {
        let step = |outstanding, insns| per_step(&mut core(outstanding), 10_000, insns, |i| (scattered(i), i * i));
        assert!((29_000..=31_000).contains(&step(10, 4)));
        assert!((297_000..=303_000).contains(&step(1, 4)));
        // With 100 instructions between misses only three fit the window of 256.
        assert!((90_000..=160_000).contains(&step(10, 100)));
    }

    #[test]
    fn instructions_hide_behind_transfers() {
        let mut c = core(10);
        let mut bus = 0u64;
        for _ in 0..10_000 {
            c.execute(4);
            bus = bus.max(c.time) + 3200;
            c.run_behind(bus, 3200);
        }
        assert!((31_900_000..=32_100_000).contains(&c.time), "{}", c.time);
    }

    #[test]
    fn streams_go_both_ways() {
        let mut c = core(10);
        assert!(!c.follows_stream(100));
        assert!(c.follows_stream(101) && c.follows_stream(102));
        assert!(!c.follows_stream(500));
        assert!(c.follows_stream(499) && c.follows_stream(103));
        assert!(!c.follows_stream(1000));
    }
}
