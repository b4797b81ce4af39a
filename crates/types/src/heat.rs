//! Access rate of one page in two bytes.

use serde::{Deserialize, Serialize};
use zerocopy::{Immutable, IntoBytes};

/// Accesses a second to one base page, as a 16-bit float: 5 bits of exponent over 11 bits of
/// mantissa, so relative error is at most 1/2048 and raw order is numeric order.
/// Two of these a page keep the heat map within its memory budget.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    IntoBytes,
    Immutable,
)]
#[repr(transparent)]
#[serde(transparent)]
pub struct Heat(pub u16);

const MANTISSA_BITS: u32 = 11;
const IMPLICIT: u64 = 1 << MANTISSA_BITS;

impl Heat {
    /// Never accessed.
    pub const COLD: Self = Self(0);
    /// The largest rate that can be held.
    pub const MAX: Self = Self(u16::MAX);

    /// The nearest heat at or below `rate` accesses a second.
    #[must_use]
    pub const fn from_rate(rate: u64) -> Self {
        if rate < IMPLICIT {
            return Self(rate as u16);
        }
        let shift = 63 - rate.leading_zeros() - MANTISSA_BITS;
        if shift + 1 > 31 {
            return Self::MAX;
        }
        let mantissa = (rate >> shift) - IMPLICIT;
        Self((((shift + 1) as u16) << MANTISSA_BITS) | mantissa as u16)
    }

    /// The nearest heat at or below `rate`, negative and unknown ones being none.
    #[must_use]
    pub const fn from_per_second(rate: f32) -> Self {
        const STEP: u32 = 23 - MANTISSA_BITS;
        const BASE: u32 = (126 + MANTISSA_BITS) << MANTISSA_BITS;
        if rate < IMPLICIT as f32 {
            return Self(rate as u16);
        }
        let code = (rate.to_bits() >> STEP).saturating_sub(BASE);
        Self(if code > u16::MAX as u32 { u16::MAX } else { code as u16 })
    }

    /// Accesses a second.
    #[must_use]
    pub const fn rate(self) -> u64 {
        let exponent = (self.0 >> MANTISSA_BITS) as u32;
        let mantissa = (self.0 as u64) & (IMPLICIT - 1);
        if exponent == 0 {
            mantissa
        } else {
            (mantissa + IMPLICIT) << (exponent - 1)
        }
    }

    /// Accesses a second, for reckoning with: exact, and in a quarter of the instructions of
    /// [`Self::rate`] and a conversion.
    #[must_use]
    pub const fn per_second(self) -> f32 {
        let exponent = (self.0 >> MANTISSA_BITS) as u32;
        let mantissa = (self.0 as u32) & (IMPLICIT as u32 - 1);
        if exponent == 0 {
            mantissa as f32
        } else {
            f32::from_bits(
                (exponent + MANTISSA_BITS + 126) << 23 | mantissa << (23 - MANTISSA_BITS),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_are_exact_and_order_is_kept() {
        for rate in 0..5_000 {
            let heat = Heat::from_rate(rate);
            assert!(heat.rate() <= rate && rate - heat.rate() <= rate / 2048 + 1);
            assert!(Heat::from_rate(rate + 1) >= heat);
        }
        assert_eq!(Heat::from_rate(2047).rate(), 2047);
        assert_eq!(Heat::from_rate(u64::MAX), Heat::MAX);
        assert_eq!(Heat::from_per_second(f32::INFINITY), Heat::MAX);
        assert_eq!(Heat::from_per_second(-1.0), Heat::COLD);
        assert_eq!(Heat::from_per_second(2049.9), Heat(2049));
    }

    #[test]
    fn every_bit_pattern_survives_the_round_trip() {
        for raw in 0..=u16::MAX {
            assert_eq!(Heat::from_rate(Heat(raw).rate()), Heat(raw));
            assert_eq!(Heat(raw).per_second(), Heat(raw).rate() as f32);
            assert_eq!(Heat::from_per_second(Heat(raw).per_second()), Heat(raw));
        }
    }
}
