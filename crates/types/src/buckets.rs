//! Logarithmic buckets for histograms of positive figures (rates, values).
//!
//! A bucket is the upper bits of a float, six bits of mantissa wide (1.6%), so that none is
//! computed. All below 1 is in the first; they go on to 2^32, and what is larger is in the last.

const SHIFT: u32 = 17;
const BEFORE_ONE: u32 = (127 << 6) - 1;

/// How many there are.
pub const COUNT: usize = 1 + (32 << 6);

/// The bucket that a figure falls in. One below zero or not a number is the caller's mistake, and
/// falls in some bucket.
#[inline]
#[must_use]
pub fn bucket_of(figure: f32) -> usize {
    ((figure.to_bits() >> SHIFT).saturating_sub(BEFORE_ONE) as usize).min(COUNT - 1)
}

/// The figure that a bucket begins with.
#[inline]
#[must_use]
pub fn floor(bucket: usize) -> f32 {
    match bucket {
        0 => 0.0,
        // At most COUNT is asked for: the end of the last.
        bucket => f32::from_bits((bucket.min(COUNT) as u32 + BEFORE_ONE) << SHIFT),
    }
}

/// The figure in the middle of a bucket; of the first, none.
#[must_use]
pub fn middle(bucket: usize) -> f64 {
    match bucket {
        0 => 0.0,
        bucket => (f64::from(floor(bucket)) + f64::from(floor(bucket + 1))) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_begins_where_the_one_before_ends_and_is_narrow() {
        assert_eq!((bucket_of(0.0), bucket_of(0.99), bucket_of(1.0)), (0, 0, 1));
        for bucket in 1..COUNT {
            let (from, to) = (floor(bucket), floor(bucket + 1));
            assert!(from < to && to / from < 1.0157, "{bucket}: {from} to {to}");
            assert_eq!(bucket_of(from), bucket);
            assert_eq!(bucket_of(to), (bucket + 1).min(COUNT - 1));
            assert_eq!(bucket_of(middle(bucket) as f32), bucket);
        }
    }

    #[test]
    fn what_is_huge_is_in_the_last() {
        for huge in [1e10, f32::MAX, f32::INFINITY] {
            assert_eq!(bucket_of(huge), COUNT - 1);
        }
    }
}
