//! Quantities with their unit in the type.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// None of it.
            pub const ZERO: Self = Self(0);

            /// The bare number, in the unit the type names.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Difference, never below zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Add::add)
            }
        }
    };
}

quantity! {
    /// An amount of memory in bytes.
    Bytes
}
quantity! {
    /// A span of time in nanoseconds.
    Nanos
}
quantity! {
    /// A throughput in bytes a second.
    BytesPerSec
}
quantity! {
    /// A point in time: nanoseconds since the clock's own start. Compared only with ticks of the
    /// same clock.
    Tick
}

impl Bytes {
    /// `n` mebibytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` gibibytes.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// Whole pages of `page` bytes that fit.
    #[must_use]
    pub const fn pages(self, page: Bytes) -> u64 {
        match self.0.checked_div(page.0) {
            Some(pages) => pages,
            None => 0,
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(u64, &str); 4] =
            [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (step, unit) in STEPS {
            if self.0 >= step {
                let value = self.0 as f64 / step as f64;
                return if self.0 % step == 0 {
                    write!(f, "{value:.0} {unit}")
                } else {
                    write!(f, "{value:.1} {unit}")
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl Nanos {
    /// `n` milliseconds.
    #[must_use]
    pub const fn millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// `n` microseconds.
    #[must_use]
    pub const fn micros(n: u64) -> Self {
        Self(n * 1_000)
    }

    /// `n` seconds.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// As seconds, for rates and display.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{:.2} s", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{:.1} ms", n as f64 / 1e6),
            n if n >= 1_000 => write!(f, "{:.1} us", n as f64 / 1e3),
            n => write!(f, "{n} ns"),
        }
    }
}

impl BytesPerSec {
    /// `n` megabytes (10^6 bytes) a second.
    #[must_use]
    pub const fn mb(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// `n` gigabytes (10^9 bytes) a second.
    #[must_use]
    pub const fn gb(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// Time to move `bytes` at this rate; `None` at rate zero.
    #[must_use]
    pub fn time_for(self, bytes: Bytes) -> Option<Nanos> {
        if self.0 == 0 {
            return None;
        }
        Some(Nanos((u128::from(bytes.0) * 1_000_000_000 / u128::from(self.0)) as u64))
    }
}

impl fmt::Display for BytesPerSec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{:.1} GB/s", n as f64 / 1e9),
            n => write!(f, "{:.1} MB/s", n as f64 / 1e6),
        }
    }
}

impl Tick {
    /// The tick `span` later.
    #[must_use]
    pub const fn after(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Tick) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Seed of a deterministic random sequence; always an argument, never taken from the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

impl Seed {
    /// Next value of the splitmix64 sequence and the seed that follows it.
    #[must_use]
    pub const fn next(self) -> (u64, Seed) {
        let state = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31), Seed(state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_saturate_and_print_their_unit() {
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
        assert_eq!(Bytes::mib(192).to_string(), "192 MiB");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Nanos::millis(20).to_string(), "20.0 ms");
        assert_eq!(BytesPerSec::gb(20).to_string(), "20.0 GB/s");
    }

    #[test]
    fn transfer_time_is_bytes_over_rate() {
        assert_eq!(BytesPerSec::gb(1).time_for(Bytes(1_000)), Some(Nanos(1_000)));
        assert_eq!(BytesPerSec::ZERO.time_for(Bytes(1)), None);
    }
}
