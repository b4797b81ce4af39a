//! STREAM's four loops over three arrays.

use crate::kernel::Kernel;
use crate::noise::noise;
use crate::threads::{each, share};
use std::time::Instant;

const SCALE: f64 = 3.0;
const NAMES: [&str; 4] = ["stream-copy", "stream-scale", "stream-add", "stream-triad"];

/// STREAM.
pub struct Stream {
    len: usize,
    threads: usize,
    seconds: [f64; 4],
}

impl Stream {
    /// Three arrays in so many bytes.
    pub fn new(bytes: u64, threads: usize) -> Self {
        Self { len: bytes as usize / 24, threads, seconds: [0.0; 4] }
    }

    /// Whole numbers, so that all sums are exact.
    fn start(n: usize) -> f64 {
        1.0 + (noise(n) * 4e9).floor()
    }

    /// `to = f(one, other)`, in shares.
    fn sweep(
        &self,
        to: &mut [f64],
        one: &[f64],
        other: &[f64],
        f: impl Fn(f64, f64) -> f64 + Sync,
    ) {
        let share = share(self.len, self.threads);
        let pieces = to.chunks_mut(share).zip(one.chunks(share)).zip(other.chunks(share));
        each(pieces, |_, ((to, one), other)| {
            to.iter_mut().zip(one).zip(other).for_each(|((to, one), other)| *to = f(*one, *other));
        });
    }
}

impl Kernel for Stream {
    fn words(&self) -> usize {
        3 * self.len
    }

    fn gflop(&self) -> f64 {
        4.0 * self.len as f64 / 1e9
    }

    fn shape(&self) -> String {
        format!("3 arrays of {}", self.len)
    }

    fn fill(&mut self, data: &mut [f64]) {
        let (len, share) = (self.len, share(self.len, self.threads));
        for (which, array) in data.chunks_mut(len).enumerate() {
            // b and c are written before they are read; not zeros, which far memory would not
            // store.
            each(array.chunks_mut(share), |n, part| {
                part.iter_mut()
                    .enumerate()
                    .for_each(|(i, x)| *x = Self::start(n * share + i) + which as f64);
            });
        }
    }

    fn run(&mut self, data: &mut [f64]) {
        let (a, rest) = data.split_at_mut(self.len);
        let (b, c) = rest.split_at_mut(self.len);
        let mut at = Instant::now();
        let mut seconds = [0.0; 4];
        let mut lap = |n: usize| {
            seconds[n] = at.elapsed().as_secs_f64();
            at = Instant::now();
        };
        self.sweep(c, a, a, |a, _| a);
        lap(0);
        self.sweep(b, c, c, |c, _| SCALE * c);
        lap(1);
        self.sweep(c, a, b, |a, b| a + b);
        lap(2);
        self.sweep(a, b, c, |b, c| b + SCALE * c);
        lap(3);
        self.seconds.iter_mut().zip(seconds).for_each(|(sum, s)| *sum += s);
    }

    fn check(&mut self, data: &mut [f64]) -> Result<(), String> {
        // c = x, b = 3x, c = x + 3x, a = 3x + 3 * 4x.
        let share = share(self.len, self.threads);
        let wrong: usize = (data.chunks(self.len).zip([15.0, 3.0, 4.0]))
            .flat_map(|(array, factor)| {
                each(array.chunks(share), |n, part| {
                    part.iter()
                        .enumerate()
                        .filter(|(i, x)| **x != factor * Self::start(n * share + i))
                        .count()
                })
            })
            .sum();
        if wrong == 0 {
            Ok(())
        } else {
            Err(format!("{wrong} words are wrong"))
        }
    }

    fn parts(&self) -> Vec<(&'static str, f64)> {
        NAMES.into_iter().zip(self.seconds).collect()
    }
}
