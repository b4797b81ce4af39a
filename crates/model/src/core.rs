//! One core: misses in flight, dependence of an address on loaded values, stream detection.

/// Instructions a core can have in flight past an unfinished miss (a reorder buffer of 224 entries).
pub const WINDOW: u64 = 224;
/// Sequential streams followed at once.
const STREAMS: usize = 16;
/// Values of missing loads remembered for dependence.
const LOADED: usize = 16;
/// An address this close above a loaded value is a field of what it points to.
const FIELD: u64 = 4096;

#[derive(Debug, Clone, Copy, Default)]
struct InFlight {
    instruction: u64,
    done: u64,
}

/// State of one core between misses. Times in picoseconds, instructions counted from start.
#[derive(Debug, Clone)]
pub struct Core {
    ps_per_instruction: u64,
    limit: usize,
    in_flight: Vec<InFlight>,
    loaded: [(u64, u64); LOADED],
    next_loaded: usize,
    streams: [u64; STREAMS],
    next_stream: usize,
}

impl Core {
    /// A core that keeps `limit` misses in flight at most.
    #[must_use]
    pub fn new(ps_per_instruction: u64, limit: u32) -> Self {
        Self {
            ps_per_instruction,
            limit: limit.max(1) as usize,
            in_flight: Vec::with_capacity(64),
            loaded: [(u64::MAX, 0); LOADED],
            next_loaded: 0,
            streams: [u64::MAX; STREAMS],
            next_stream: 0,
        }
    }

    /// Time at which instruction number `now_instruction`, otherwise executed at `now`, really
    /// executes, given the misses that must have finished before it.
    #[inline]
    pub fn retire(&mut self, now: u64, now_instruction: u64) -> u64 {
        let mut time = now;
        let per = self.ps_per_instruction;
        self.in_flight.retain(|miss| {
            let stalled_at = miss.instruction + WINDOW;
            if stalled_at <= now_instruction {
                time = time.max(miss.done + (now_instruction - stalled_at) * per);
                false
            } else {
                miss.done > time
            }
        });
        time
    }

    /// Waits for a free slot for one more miss; the time when there is one.
    #[inline]
    pub fn slot(&mut self, time: u64) -> u64 {
        if self.in_flight.len() < self.limit {
            return time;
        }
        let first = self.in_flight.iter().enumerate().min_by_key(|(_, m)| m.done).map(|(i, _)| i);
        match first {
            Some(i) => time.max(self.in_flight.swap_remove(i).done),
            None => time,
        }
    }

    /// Time at which `address` is known: when the miss that loaded it is done.
    #[inline]
    #[must_use]
    pub fn known(&self, address: u64, time: u64) -> u64 {
        let mut known = time;
        for &(value, done) in &self.loaded {
            if address.wrapping_sub(value) < FIELD {
                known = known.max(done);
            }
        }
        known
    }

    /// Adds a miss in flight.
    #[inline]
    pub fn add(&mut self, instruction: u64, done: u64) {
        self.in_flight.push(InFlight { instruction, done });
    }

    /// Remembers what a missing load brought.
    #[inline]
    pub fn remember(&mut self, value: u64, done: u64) {
        self.loaded[self.next_loaded % LOADED] = (value, done);
        self.next_loaded += 1;
    }

    /// Whether `line` (virtual) continues a stream; follows it if so, else starts to look there.
    #[inline]
    pub fn streams(&mut self, line: u64) -> bool {
        for last in &mut self.streams {
            if last.wrapping_add(1) == line || last.wrapping_sub(1) == line {
                *last = line;
                return true;
            }
        }
        self.streams[self.next_stream % STREAMS] = line;
        self.next_stream += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn independent_misses_overlap_up_to_the_limit() {
        let mut core = Core::new(250, 2);
        core.add(0, 300_000);
        assert_eq!(core.slot(1_000), 1_000);
        core.add(4, 301_000);
        assert_eq!(core.slot(2_000), 300_000);
    }

    #[test]
    fn the_window_stalls_the_core() {
        let mut core = Core::new(250, 10);
        core.add(0, 300_000);
        assert_eq!(core.retire(56_000, WINDOW - 1), 56_000);
        assert_eq!(core.retire(56_500, WINDOW + 2), 300_500);
    }

    #[test]
    fn a_pointer_is_known_when_its_load_is_done() {
        let mut core = Core::new(250, 10);
        core.remember(0x7000, 300_000);
        assert_eq!(core.known(0x7010, 10), 300_000);
        assert_eq!(core.known(0x9000, 10), 10);
    }
}
