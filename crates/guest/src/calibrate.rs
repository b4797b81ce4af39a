//! The two programs by which the lab proves its clock: a pointer chase for latency, a sweep for
//! bandwidth.

use crate::kernel::{self, GuestMapping};
use std::io;
use std::sync::Barrier;

const LINE: usize = 64;

/// A number generator good enough to shuffle a list (xorshift64*).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % n
    }
}

/// Nanoseconds a step of a dependent chase through `bytes` of memory on `node`.
pub fn chase(node: u32, bytes: usize, steps: u64, cpu: usize) -> io::Result<f64> {
    kernel::pin_to_cpu(cpu)?;
    let lines = bytes / LINE;
    let map = GuestMapping::anonymous(bytes)?;
    map.bind_to_node(node)?;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    for i in (1..lines).rev() {
        let j = rng.below(i + 1);
        order.swap(i, j);
    }
    let at =
        |i: usize| map.start().wrapping_add(order[i % lines] as usize * LINE).cast::<*mut u8>();
    for i in 0..lines {
        // SAFETY: `at` gives line starts inside the live mapping, aligned to 64; each line holds
        // one pointer.
        unsafe { at(i).write(at(i + 1).cast()) };
    }
    // From the line that was written first: those written last are still in the cache.
    let mut p = at(0);
    kernel::mark::<{ kernel::MARK_PHASE_BEGIN }>();
    let start = kernel::now();
    for _ in 0..steps {
        // SAFETY: every line of the mapping holds the address of another line of it, written above.
        p = unsafe { p.read_volatile() }.cast();
    }
    let nanos = kernel::now() - start;
    kernel::mark::<{ kernel::MARK_PHASE_END }>();
    std::hint::black_box(p);
    Ok(nanos as f64 / steps as f64)
}

/// What a sweep does to each cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineSweep {
    /// One load a line: bytes on the bus are the bytes read.
    Read,
    /// a = b + s * c, one word a line: three lines in (one of them to be written), one out.
    Triad,
}

impl LineSweep {
    fn lines_on_bus(self) -> u64 {
        match self {
            LineSweep::Read => 1,
            LineSweep::Triad => 4,
        }
    }
}

/// Times that a sweep is measured. One alone, of 3 ms, meets whatever else a CPU does now and then:
/// of four saved machines of eight nodes three had one reading that was 7 or 15% low, where 120
/// more on one of them were all exact.
const WINDOWS: usize = 3;

/// Bytes a second on the bus, all threads together, each on its own CPU of `cpus` and its own
/// memory on `node`: the median of [`WINDOWS`] measurements of `rounds` passes each.
pub fn sweep(
    kind: LineSweep,
    node: u32,
    bytes: usize,
    rounds: u32,
    cpus: &[usize],
) -> io::Result<f64> {
    let each = (bytes / cpus.len() / LINE / 24 * 24) * LINE;
    let maps =
        cpus.iter().map(|_| GuestMapping::anonymous(each)).collect::<io::Result<Vec<_>>>()?;
    for map in &maps {
        map.bind_to_node(node)?;
        for offset in (0..each).step_by(4096) {
            // SAFETY: `offset` is inside the live writable mapping.
            unsafe { map.start().add(offset).write_volatile(1) };
        }
    }
    let gate = Barrier::new(cpus.len());
    // Each CPU's start and end of each measurement.
    let spans = std::thread::scope(|scope| {
        let threads: Vec<_> = maps
            .iter()
            .zip(cpus)
            .map(|(map, &cpu)| {
                let (gate, address) = (&gate, map.start() as usize);
                scope.spawn(move || {
                    let pinned = kernel::pin_to_cpu(cpu);
                    // One pass that is not timed: it writes back what first touch left dirty in the
                    // caches.
                    sweep_once(kind, address as *mut u64, each);
                    let spans = [(); WINDOWS].map(|()| {
                        gate.wait();
                        let start = kernel::now();
                        for _ in 0..rounds {
                            sweep_once(kind, address as *mut u64, each);
                        }
                        (start, kernel::now())
                    });
                    pinned.map(|()| spans)
                })
            })
            .collect();
        let joined = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        joined.collect::<io::Result<Vec<_>>>()
    })?;
    let lines = match kind {
        LineSweep::Read => each / LINE,
        LineSweep::Triad => each / LINE / 3,
    };
    let moved = (lines * LINE) as u64 * kind.lines_on_bus() * u64::from(rounds) * cpus.len() as u64;
    let nanos = std::array::from_fn(|window| {
        let start = spans.iter().map(|s| s[window].0).min().unwrap_or(0);
        let end = spans.iter().map(|s| s[window].1).max().unwrap_or(1);
        (end - start).max(1)
    });
    Ok(moved as f64 * 1e9 / median(nanos) as f64)
}

fn median(mut of: [u64; WINDOWS]) -> u64 {
    of.sort_unstable();
    of[WINDOWS / 2]
}

/// One pass over `bytes` (a multiple of 24 lines) from `base`.
fn sweep_once(kind: LineSweep, base: *mut u64, bytes: usize) {
    const WORDS: usize = LINE / 8;
    match kind {
        LineSweep::Read => {
            // Eight loads a turn, so that the loop's own instructions stay below what the bus
            // allows.
            for turn in 0..bytes / LINE / 8 {
                let at = base.wrapping_add(turn * 8 * WORDS);
                for line in 0..8 {
                    // SAFETY: `turn * 8 + line` is below the number of lines of the caller's
                    // mapping of `bytes` bytes.
                    unsafe { at.add(line * WORDS).read_volatile() };
                }
            }
        }
        LineSweep::Triad => {
            let third = bytes / LINE / 3;
            for line in 0..third {
                // SAFETY: the three arrays are thirds of the caller's mapping; `line` is below a
                // third's lines.
                unsafe {
                    let b = base.add((third + line) * WORDS).read_volatile();
                    let c = base.add((2 * third + line) * WORDS).read_volatile();
                    base.add(line * WORDS).write_volatile(b.wrapping_add(c.wrapping_mul(3)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shuffle_stays_in_range() {
        let mut rng = Rng(1);
        assert!((0..1000).all(|_| rng.below(7) < 7));
    }

    #[test]
    fn one_disturbed_measurement_is_left_out() {
        assert_eq!([median([9, 1, 3]), median([3, 3, 9]), median([1, 3, 3])], [3; 3]);
    }

    #[test]
    fn a_sweep_of_this_machines_memory_moves_bytes() {
        let cpu = (0..1024).find(|&cpu| kernel::pin_to_cpu(cpu).is_ok()).unwrap();
        let rate = |kind| sweep(kind, 0, 1 << 20, 1, &[cpu]).unwrap();
        for kind in [LineSweep::Read, LineSweep::Triad] {
            assert!((1e6..1e13).contains(&rate(kind)), "{kind:?}: {}", rate(kind));
        }
    }

    #[test]
    fn sweeps_stay_inside_their_memory() {
        let mut words = vec![0u64; 24 * 8 * 2];
        words[16 * 8] = 5;
        for kind in [LineSweep::Read, LineSweep::Triad] {
            sweep_once(kind, words.as_mut_ptr(), words.len() * 8);
        }
        assert_eq!(words[16 * 8], 5);
    }
}
