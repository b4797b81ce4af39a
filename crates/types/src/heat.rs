//! Access rate of one page in two bytes.

use serde::{Deserialize, Serialize};

/// Accesses a second to one base page, as a 16-bit float: 5 bits of exponent over 11 bits of
/// mantissa, so relative error is at most 1/2048 and raw order is numeric order.
/// Two of these a page keep the heat map within its memory budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
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
    }

    #[test]
    fn every_bit_pattern_survives_the_round_trip() {
        for raw in 0..=u16::MAX {
            assert_eq!(Heat::from_rate(Heat(raw).rate()), Heat(raw));
        }
    }
}
