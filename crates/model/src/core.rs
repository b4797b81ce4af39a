//! One core: its own time, its misses in flight, its streams.
//!
//! An out-of-order core does not wait for a miss until it must. It must when
//! - all its miss registers are taken (`outstanding`): it waits for the first to come free;
//! - it has gone on `window` instructions past a load that is still unfinished (its reorder buffer
//!   is full);
//! - a load's *address* needs a value that is not there yet: such a load starts when that value
//!   arrives.
//!
//! So computing and transferring overlap: a stretch of code costs the longer of the two, not their
//! sum. Dependence is read off the values that missing loads bring: an address within a page of a
//! recent value is a pointer followed; an address that moves by a multiple of what the last two
//! values moved by is an index followed. A chase by either reads the full latency at each step.
//! What depends through arithmetic beyond that (a hash of a loaded value, say) is taken as
//! independent. Lines next to each other are a stream, which the prefetcher fetches ahead: only the
//! bus limits it.

use crate::params::MAX_OUTSTANDING;

/// Lines that the prefetcher runs ahead.
const AHEAD: u64 = 16;
const STREAMS: usize = 16;
const PRODUCERS: usize = 16;
/// A pointer followed lands at most this many bytes from where it points.
const FIELD: u64 = 4096;
/// Largest record that an index followed is taken to step over, bytes.
const RECORD: i64 = 4096;

/// Registers in the ring of misses in flight: a power of two, so that a position is always one.
const RING: usize = MAX_OUTSTANDING.next_power_of_two();

/// A missing load whose value may become somebody's address.
#[derive(Debug, Clone, Copy, Default)]
struct Producer {
    address: u64,
    value: u64,
    ready: u64,
}

/// Numbers, counted by their lowest bits: tells of most that no number beside them is there.
#[derive(Debug, Clone)]
struct NeighborFilter([u8; Self::SLOTS]);

impl NeighborFilter {
    const SLOTS: usize = 1024;

    /// `count` times `number`.
    fn of(number: u64, count: u8) -> Self {
        let mut nearby = Self([0; Self::SLOTS]);
        nearby.0[number as usize % Self::SLOTS] = count;
        nearby
    }

    /// Whether `number`, the one before it or the one behind it may be there.
    #[inline(always)]
    fn may_have(&self, number: u64) -> bool {
        let count = |number: u64| self.0[number as usize % Self::SLOTS];
        count(number.wrapping_sub(1)) | count(number) | count(number.wrapping_add(1)) != 0
    }

    /// One of `old` becomes `new`.
    #[inline(always)]
    fn exchange(&mut self, old: u64, new: u64) {
        self.0[old as usize % Self::SLOTS] -= 1;
        self.0[new as usize % Self::SLOTS] += 1;
    }
}

/// A miss in flight.
#[derive(Debug, Clone, Copy, Default)]
struct OutstandingMiss {
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
    /// Those taken at `first_flight..last_flight`, by when they end. Some may have ended: a
    /// register is only given back when all are taken.
    flights: [OutstandingMiss; RING],
    first_flight: usize,
    last_flight: usize,
    /// No flight's `must_end_by` is smaller.
    next_wait: u64,
    streams: [u64; STREAMS],
    /// The same, to tell quickly that none is near.
    stream_lines: NeighborFilter,
    stream_next: usize,
    producers: [Producer; PRODUCERS],
    /// The producers' values by fields, to tell quickly that none is near.
    value_fields: NeighborFilter,
    /// When the last of all values so far arrives.
    values_ready: u64,
    producer_next: usize,
    /// Producers since the last whose value was not zero.
    nothing_since: usize,
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
            flights: [OutstandingMiss::default(); RING],
            first_flight: 0,
            last_flight: 0,
            next_wait: u64::MAX,
            streams: [u64::MAX - 1; STREAMS],
            stream_lines: NeighborFilter::of(u64::MAX - 1, STREAMS as u8),
            stream_next: 0,
            producers: [Producer::default(); PRODUCERS],
            value_fields: NeighborFilter::of(0, PRODUCERS as u8),
            values_ready: 0,
            producer_next: 0,
            nothing_since: PRODUCERS,
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

    /// Up to this count of instructions [`Core::execute`] only adds; executing as many at once, or
    /// one after the other, is the same then.
    #[inline(always)]
    #[must_use]
    pub fn clear_until(&self) -> u64 {
        self.next_wait
    }

    #[cold]
    fn wait_for_window(&mut self) {
        let mut next = u64::MAX;
        for at in self.first_flight..self.last_flight {
            let f = self.flights[at % RING];
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
    #[inline(always)]
    pub fn follows_stream(&mut self, line: u64) -> bool {
        if self.stream_lines.may_have(line) {
            for last in &mut self.streams {
                if line.wrapping_sub(*last).wrapping_add(1) <= 2 {
                    self.stream_lines.exchange(*last, line);
                    *last = line;
                    return true;
                }
            }
        }
        self.stream_lines.exchange(self.streams[self.stream_next], line);
        self.streams[self.stream_next] = line;
        self.stream_next = (self.stream_next + 1) % STREAMS;
        false
    }

    /// When the value that `address` depends on arrives, picoseconds; zero if it depends on nothing
    /// known.
    #[inline]
    fn address_ready(&self, address: u64) -> u64 {
        // Where all values are zero nothing depends on them: they point to where nothing lies, and
        // step by nothing.
        if self.values_ready <= self.time || self.nothing_since >= PRODUCERS && address > FIELD {
            return 0;
        }
        let at = |back: usize| &self.producers[(self.producer_next + PRODUCERS - back) % PRODUCERS];
        if self.value_fields.may_have(address / FIELD) {
            for back in 1..=PRODUCERS {
                let p = at(back);
                if p.ready > self.time
                    && address.wrapping_sub(p.value).wrapping_add(FIELD) <= 2 * FIELD
                {
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

    /// Start a miss of `latency` at the earliest time possible: picoseconds at which it starts.
    /// `value`: what a load brings, `None` for stores. `bus`: told the start, answers when the bus
    /// has delivered (or zero).
    #[inline]
    pub fn miss(
        &mut self,
        address: u64,
        value: Option<u64>,
        latency: u64,
        bus: impl FnOnce(u64) -> u64,
    ) -> u64 {
        self.take_register();
        let start =
            if value.is_some() { self.time.max(self.address_ready(address)) } else { self.time };
        // Waiting for the bus delays the start; the transfer itself is part of the latency.
        let ends = bus(start).max(start + latency);
        let must_end_by = self.instructions + self.window;
        self.fly(OutstandingMiss { ends, must_end_by });
        self.next_wait = self.next_wait.min(must_end_by);
        if let Some(value) = value {
            let producer = &mut self.producers[self.producer_next];
            self.value_fields.exchange(producer.value / FIELD, value / FIELD);
            *producer = Producer { address, value, ready: ends };
            self.values_ready = self.values_ready.max(ends);
            self.producer_next = (self.producer_next + 1) % PRODUCERS;
            self.nothing_since = if value == 0 { self.nothing_since + 1 } else { 0 };
        }
        start
    }

    /// Takes a miss register: where all are taken, the one whose miss ends first, after that.
    #[inline(always)]
    fn take_register(&mut self) {
        if self.last_flight - self.first_flight >= self.outstanding {
            self.time = self.time.max(self.flights[self.first_flight % RING].ends);
            self.first_flight += 1;
        }
    }

    /// Puts a miss among those in flight, by its end, which is mostly the last.
    #[inline(always)]
    fn fly(&mut self, flight: OutstandingMiss) {
        let mut at = self.last_flight;
        self.last_flight += 1;
        while at > self.first_flight && self.flights[(at - 1) % RING].ends > flight.ends {
            self.flights[at % RING] = self.flights[(at - 1) % RING];
            at -= 1;
        }
        self.flights[at % RING] = flight;
    }

    /// A transfer that nobody waits for (prefetch, write-back) ends at `ends`: wait until it is at
    /// most [`AHEAD`] transfers of `line_time` away.
    #[inline]
    pub fn run_behind(&mut self, ends: u64, line_time: u64) {
        self.time = self.time.max(ends.saturating_sub(AHEAD * line_time));
    }
}

/// Whether `moved` is 1 to [`RECORD`] times `step`, which is not zero. A division is worth some
/// comparisons before it.
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

    /// Picoseconds a step of `steps` loads that `address_and_value` gives, with `insns`
    /// instructions each.
    fn per_step(
        c: &mut Core,
        steps: u64,
        insns: u64,
        address_and_value: impl Fn(u64) -> (u64, u64),
    ) -> u64 {
        let start = c.time;
        for i in 0..steps {
            c.execute(insns);
            let (address, value) = address_and_value(i);
            c.miss(address, Some(value), LATENCY, |_| 0);
        }
        (c.time - start) / steps
    }

    #[test]
    fn whole_records_are_recognised() {
        let slowly = |moved: i64, step: i64| {
            let records = moved.wrapping_div(step);
            (1..=RECORD).contains(&records) && records.wrapping_mul(step) == moved
        };
        let values = [
            1,
            -1,
            7,
            64,
            -64,
            4096,
            4097,
            64 * 4096,
            -64 * 4096,
            64 * 4097,
            i64::MAX,
            i64::MIN,
            0,
            12_345_678,
        ];
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
        let step = |outstanding, insns| {
            per_step(&mut core(outstanding), 10_000, insns, |i| (scattered(i), i * i))
        };
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
