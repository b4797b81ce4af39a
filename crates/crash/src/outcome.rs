//! What became of a program that restarted from an image.

use serde::Serialize;

/// The outcome of one restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum RestartOutcome {
    /// Its result is correct.
    Recomputed {
        /// Iterations beyond those of the run without a crash.
        more_iterations: u32,
    },
    /// It ended and its result is not correct.
    Wrong,
    /// It was ended by a signal.
    Crashed {
        /// Which.
        signal: i32,
    },
    /// It did not end within the limit of time.
    Hung,
    /// It refused the image, or could not be started.
    Refused,
}

impl RestartOutcome {
    /// Whether the result is correct.
    #[must_use]
    pub fn is_success(self) -> bool {
        matches!(self, Self::Recomputed { .. })
    }

    /// One word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recomputed { more_iterations: 0 } => "recomputed",
            Self::Recomputed { .. } => "recomputed with more iterations",
            Self::Wrong => "wrong",
            Self::Crashed { .. } => "crashed",
            Self::Hung => "hung",
            Self::Refused => "refused",
        }
    }
}

/// Successes among tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SuccessRate {
    /// Restarts whose result is correct.
    pub successes: u64,
    /// All restarts.
    pub restarts: u64,
}

impl SuccessRate {
    /// Counts one more.
    pub fn add(&mut self, outcome: RestartOutcome) {
        self.restarts += 1;
        self.successes += u64::from(outcome.is_success());
    }

    /// Of all, from 0 to 1; `None` of none.
    #[must_use]
    pub fn share(self) -> Option<f64> {
        (self.restarts > 0).then(|| self.successes as f64 / self.restarts as f64)
    }

    /// Wilson's interval at 95% (Wilson, 1927), which holds for few tries and for rates of 0 and
    /// 1.
    #[must_use]
    pub fn interval(self) -> Option<(f64, f64)> {
        let (n, share) = (self.restarts as f64, self.share()?);
        let z = 1.959_963_984_540_054_f64;
        let middle = share + z * z / (2.0 * n);
        let half = z * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + z * z / n;
        Some((((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0)))
    }
}

/// The phase, from 0, of a crash in iteration `iteration` (from 1) of `iterations`, which are
/// divided into `phases` equal parts (section 4.4).
#[must_use]
pub fn phase_of(iteration: i64, iterations: i64, phases: u32) -> u32 {
    let phases = i64::from(phases.max(1));
    if iterations <= 0 {
        return 0;
    }
    let done = i128::from(iteration.saturating_sub(1).clamp(0, iterations - 1));
    (done * i128::from(phases) / i128::from(iterations)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_wilsons_interval() {
        let mut rate = SuccessRate::default();
        assert_eq!((rate.share(), rate.interval()), (None, None));
        (0..8).for_each(|_| rate.add(RestartOutcome::Recomputed { more_iterations: 0 }));
        (0..2).for_each(|_| rate.add(RestartOutcome::Wrong));
        assert_eq!(rate.share(), Some(0.8));
        // Agresti and Coull, 1998, give 0.49 to 0.94 for 8 of 10.
        let (low, high) = rate.interval().unwrap();
        assert!((low - 0.490).abs() < 1e-3 && (high - 0.943).abs() < 1e-3, "{low} {high}");
    }

    #[test]
    fn phases_are_equal_parts_of_the_iterations() {
        let of = |iteration| phase_of(iteration, 15, 3);
        assert_eq!([0, 1, 5, 6, 10, 11, 15, 99].map(of), [0, 0, 0, 1, 1, 2, 2, 2]);
        assert_eq!(phase_of(1, 0, 3), 0);
    }
}
