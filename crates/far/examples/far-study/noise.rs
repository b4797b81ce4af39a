//! Data that repeats from its index, so that it can be checked without being kept twice.

use terrace_types::Seed;

/// A number from 0 to 1, not 1 itself, that looks random and is the same for the same place.
pub fn noise(place: usize) -> f64 {
    (Seed(place as u64).next().0 >> 11) as f64 / (1_u64 << 53) as f64
}

/// The same for another array: `which` tells arrays of one kernel apart.
pub fn noise_of(which: usize, place: usize) -> f64 {
    noise((which << 48) ^ place)
}

/// Whether a number is as expected, but for rounding.
pub fn close(found: f64, expected: f64, tolerance: f64) -> bool {
    (found - expected).abs() <= tolerance * expected.abs().max(1e-300)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_fills_its_range_and_repeats() {
        let mean = (0..10_000).map(noise).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((0..10_000).map(noise).all(|x| (0.0..1.0).contains(&x)));
        assert!(noise(3) == noise(3) && noise(3) != noise(4) && noise_of(1, 3) != noise_of(2, 3));
    }

    #[test]
    fn what_is_no_number_is_not_close() {
        assert!(close(1.0 + 1e-12, 1.0, 1e-9));
        assert!(!close(1.0 + 1e-6, 1.0, 1e-9));
        assert!(!close(f64::NAN, 1.0, 1e-9));
    }
}
