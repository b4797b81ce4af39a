//! A span of time in one byte: how long a page has been observed.

use zerocopy::{Immutable, IntoBytes};

/// Steps an octave: one step is 6 to 12%. They are the three uppermost bits of a float's fraction,
/// so that no logarithm is taken.
const STEPS: f32 = 8.0;
/// Bits of a float below those three.
const SHIFT: u32 = 20;
/// The uppermost bits of 1.0.
const ONE: u32 = 127 << 3;
/// The shortest span distinguished from none.
const UNIT: f32 = 1e-6;

/// Seconds of evidence, on a logarithmic scale from one microsecond to about an hour; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct LogDuration(pub u8);

impl LogDuration {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// The shortest.
    pub const LEAST: Self = Self(1);

    pub const STEPS_AN_OCTAVE: u8 = STEPS as u8;

    /// Seconds.
    pub fn seconds(self) -> f32 {
        if self.0 == 0 {
            0.0
        } else {
            UNIT * f32::from_bits((u32::from(self.0) - 1 + ONE) << SHIFT)
        }
    }

    /// Bits of a dither.
    pub const DITHER_BITS: u32 = SHIFT;

    /// The span at or next to `seconds`; `dither`, of so many bits, decides which, so that many
    /// small additions do not all vanish in rounding.
    pub fn from_seconds(seconds: f32, dither: u32) -> Self {
        if seconds.is_nan() || seconds < UNIT {
            return Self::NONE;
        }
        let code = ((seconds / UNIT).to_bits().saturating_add(dither) >> SHIFT) - ONE + 1;
        Self(code.min(255) as u8)
    }

    /// Shorter by `codes` steps; gone when nothing is left.
    pub fn faded(self, codes: u8) -> Self {
        Self(self.0.saturating_sub(codes))
    }

    /// Steps by which a span fades while `elapsed` out of a memory of `memory` seconds pass.
    pub fn fading(elapsed: f32, memory: f32) -> f32 {
        STEPS * std::f32::consts::LOG2_E * elapsed / memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_holds_a_microsecond_to_an_hour_within_a_tenth() {
        for exponent in 0..31 {
            let seconds = UNIT * (exponent as f32).exp2() * 1.3;
            let back = LogDuration::from_seconds(seconds, 1 << 19).seconds();
            assert!((back / seconds - 1.0).abs() < 0.13, "{seconds} {back}");
        }
        assert_eq!(LogDuration::from_seconds(0.0, 900_000), LogDuration::NONE);
        assert_eq!(LogDuration::from_seconds(f32::NAN, 0), LogDuration::NONE);
        assert_eq!(LogDuration::from_seconds(1e30, 0), LogDuration(255));
    }

    #[test]
    fn fading_by_one_memory_leaves_a_third() {
        let span = LogDuration::from_seconds(1.0, 1 << 19);
        let faded = span.faded(LogDuration::fading(1.0, 1.0).round() as u8).seconds();
        assert!((faded - 0.37).abs() < 0.05, "{faded}");
    }
}
