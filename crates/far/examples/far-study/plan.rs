//! What is measured, in which order.

/// Degrees of the polynomials, as in the paper.
pub const DEGREES: &[usize] = &[16, 64, 128, 256, 512, 768, 1024, 2048, 8192];
/// Data in thousandths of the memory.
pub const FACTORS: &[u64] = &[200, 500, 1000, 2000, 4000];

/// One kernel at one size; all peers take their turn at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Name of the kernel.
    pub kernel: String,
    /// Data in thousandths of the memory.
    pub factor: u64,
}

/// FLOP a byte of a polynomial: two operations a degree, eight bytes an argument.
pub fn intensity(degree: usize) -> f64 {
    2.0 * degree as f64 / 8.0
}

/// Kernels whose names begin with one of `only`, or all.
pub fn cells(others: &[&str], only: &[&str]) -> Vec<Cell> {
    let polynomials = ["poly1", "poly2"]
        .into_iter()
        .flat_map(|p| DEGREES.iter().map(move |d| format!("{p}-{d}")));
    let kernels = polynomials.chain(others.iter().map(|o| (*o).to_owned()));
    let chosen: Vec<String> =
        kernels.filter(|k| only.is_empty() || only.iter().any(|o| k.starts_with(o))).collect();
    let at = |factor: &u64| {
        chosen.iter().map(|k| Cell { kernel: k.clone(), factor: *factor }).collect::<Vec<_>>()
    };
    FACTORS.iter().flat_map(at).collect()
}

/// Which cells come next, in order: all of them in the first round; later those that fit the
/// seconds that are left, by what they took, in the order of the plan. `None`: nothing fits any
/// more, or the rounds are done.
pub fn round(took: &[f64], number: usize, rounds: usize, left: f64) -> Option<Vec<usize>> {
    if number == 0 {
        return Some((0..took.len()).collect());
    }
    let mut cheap: Vec<usize> = (0..took.len()).collect();
    cheap.sort_by(|a, b| took[*a].total_cmp(&took[*b]));
    let mut left = left;
    let mut chosen: Vec<usize> = cheap
        .into_iter()
        .take_while(|n| {
            left -= took[*n];
            left >= 0.0
        })
        .collect();
    chosen.sort_unstable();
    (number < rounds && !chosen.is_empty()).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kernels_come_at_all_sizes() {
        let all = cells(&["stream", "fft"], &[]);
        assert_eq!(all.len(), (9 + 9 + 2) * 5);
        assert_eq!(all[0], Cell { kernel: "poly1-16".into(), factor: 200 });
        assert_eq!(cells(&["stream", "fft"], &["fft", "poly2"]).len(), 10 * 5);
        assert!(cells(&["stream"], &["tape"]).is_empty());
    }

    #[test]
    fn later_rounds_have_what_there_is_time_for() {
        let took = [5.0, 1.0, 3.0];
        assert_eq!(round(&took, 0, 3, 0.0), Some(vec![0, 1, 2]));
        assert_eq!(round(&took, 1, 3, 100.0), Some(vec![0, 1, 2]));
        assert_eq!(round(&took, 1, 3, 4.5), Some(vec![1, 2]));
        assert_eq!(round(&took, 2, 3, 0.5), None);
        assert_eq!(round(&took, 3, 3, 100.0), None);
    }

    #[test]
    fn intensity_is_that_of_the_paper() {
        assert!((intensity(1024) - 256.0).abs() < 1e-12);
    }
}
