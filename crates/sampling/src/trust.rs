//! How far samples can be trusted.
//!
//! D is the sampling error of Lorenzo-Castillo et al. ("A Flexible and Dynamic Page Migration
//! Infrastructure Based on Hardware Counters", section 4.1): the difference between a processor's
//! share of the samples and its share of all accesses, relative to the latter, as a mean over
//! processors. Where all accesses are not known, two halves of the sample stand for sample and
//! whole.

/// D of sampled counts against counts of all accesses, by processor, thread or page; items without
/// an access are left out. `None` without samples or accesses.
#[must_use]
pub fn sampling_error(sampled: &[u64], all: &[u64]) -> Option<f64> {
    let (sampled_sum, all_sum) = (sum(sampled), sum(all));
    if sampled_sum == 0.0 || all_sum == 0.0 {
        return None;
    }
    let errors: Vec<f64> = all
        .iter()
        .zip(sampled.iter().chain(std::iter::repeat(&0)))
        .filter(|(all, _)| **all > 0)
        .map(|(all, sampled)| {
            let share = *all as f64 / all_sum;
            (*sampled as f64 / sampled_sum - share).abs() / share
        })
        .collect();
    Some(errors.iter().sum::<f64>() / errors.len() as f64)
}

/// An estimate of D from the sample alone: its two halves' difference, scaled from that of two
/// halves to that of one whole sample. The difference of two independent halves has twice the
/// variance of a half, a half has twice that of the whole: hence a factor of one half.
#[must_use]
pub fn estimated_error(odd: &[u64], even: &[u64]) -> Option<f64> {
    let both: Vec<u64> = odd.iter().zip(even).map(|(a, b)| a + b).collect();
    let (odd_sum, even_sum, all_sum) = (sum(odd), sum(even), sum(&both));
    if odd_sum == 0.0 || even_sum == 0.0 {
        return None;
    }
    let errors: Vec<f64> = both
        .iter()
        .enumerate()
        .filter(|(_, all)| **all > 0)
        .map(|(i, all)| {
            let difference = odd[i] as f64 / odd_sum - even[i] as f64 / even_sum;
            difference.abs() / 2.0 / (*all as f64 / all_sum)
        })
        .collect();
    Some(errors.iter().sum::<f64>() / errors.len() as f64)
}

/// At least so many pages were accessed, as the pages sampled once and twice tell (A. Chao,
/// Nonparametric Estimation of the Number of Classes in a Population, Scand. J. Statist. 11, 1984;
/// in the form without bias).
#[must_use]
pub fn estimated_pages(seen: u64, once: u64, twice: u64) -> u64 {
    let (once, twice) = (once as f64, twice as f64);
    seen.saturating_add((once * (once - 1.0).max(0.0) / (2.0 * (twice + 1.0))).round() as u64)
}

fn sum(counts: &[u64]) -> f64 {
    counts.iter().map(|n| *n as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_papers() {
        // Shares 0.5 and 0.5 sampled as 0.6 and 0.4: 20% each.
        assert!((sampling_error(&[6, 4], &[500, 500]).unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(sampling_error(&[5, 5], &[500, 500]), Some(0.0));
        // A processor that is never sampled is wrong by all of its share.
        assert_eq!(sampling_error(&[4], &[1, 1]), Some(1.0));
        assert_eq!((sampling_error(&[], &[1]), sampling_error(&[1], &[0])), (None, None));
    }

    #[test]
    fn halves_tell_about_as_much_as_all_accesses() {
        // Draws from two thirds and one third, with a plain generator.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::from(state % 3 == 0)
        };
        let (mut real, mut reported) = (0.0, 0.0);
        for _ in 0..400 {
            let mut halves = [[0u64; 2]; 2];
            (0..600).for_each(|i| halves[i % 2][draw()] += 1);
            let both = [halves[0][0] + halves[1][0], halves[0][1] + halves[1][1]];
            real += sampling_error(&both, &[2000, 1000]).unwrap();
            reported += estimated_error(&halves[0], &halves[1]).unwrap();
        }
        assert!((reported / real - 1.0).abs() < 0.1, "{reported} for {real}");
    }

    #[test]
    fn pages_that_were_missed_are_estimated() {
        // 1000 pages, each sampled 2 times on average by chance: about 135 are missed.
        let (once, twice, seen) = (271, 271, 865);
        let reported = estimated_pages(seen, once, twice);
        assert!((980..1020).contains(&reported), "{reported}");
        assert_eq!(estimated_pages(5, 0, 0), 5);
    }
}
