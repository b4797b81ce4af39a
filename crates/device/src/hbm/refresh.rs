//! What refresh takes, by temperature.
//!
//! Up to the threshold (85 C: the paper, section 3.4) the rate is that of `refi_ns`; above it the
//! rate doubles, and again every `doubling_k`. With one rate for the stack the hottest die sets it;
//! with a rate for each die (K. Sohn et al., JSSC 52(1), 2017) each its own.

use super::design::{RefreshMode, RefreshRate, StackDesign};

/// Rates beyond which the models do not go: four doublings, one more than any part specifies.
const HIGHEST_RATE: f64 = 16.0;

/// How many times as often as at rest a die of this temperature must be refreshed.
#[must_use]
pub fn rate_at(design: &StackDesign, celsius: f64) -> f64 {
    let over = celsius - design.refresh.threshold_c;
    if over <= 0.0 {
        return 1.0;
    }
    // Beyond the highest temperature nothing is specified; the rate stays what it is there.
    let most = ((design.refresh.maximum_c - design.refresh.threshold_c)
        / design.refresh.doubling_k)
        .max(0.0);
    2_f64.powf((over / design.refresh.doubling_k).floor().min(most.floor()) + 1.0).min(HIGHEST_RATE)
}

/// The rates of dies with these temperatures.
#[must_use]
pub fn rates(design: &StackDesign, celsius: &[f64]) -> Vec<f64> {
    let own: Vec<f64> = celsius.iter().map(|c| rate_at(design, *c)).collect();
    match design.refresh.refresh_rate {
        RefreshRate::Die => own,
        RefreshRate::Stack => {
            let most = own.iter().copied().fold(1.0, f64::max);
            vec![most; own.len()]
        }
    }
}

/// Share of the time in which a bank is not being refreshed.
#[must_use]
pub fn available_share(design: &StackDesign, rate: f64) -> f64 {
    let r = &design.refresh;
    let busy = match r.refresh {
        RefreshMode::AllBank => r.rfc_ns,
        RefreshMode::SingleBank => r.rfc_bank_ns,
    };
    (1.0 - busy * rate / r.refi_ns).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_doubles_above_the_threshold_and_again() {
        let design = StackDesign::reference("x");
        let rates = [20.0, 85.0, 85.1, 94.9, 95.0, 105.0, 300.0].map(|c| rate_at(&design, c));
        assert_eq!(rates, [1.0, 1.0, 2.0, 2.0, 4.0, 8.0, 8.0]);
    }

    #[test]
    fn one_hot_die_costs_all_unless_each_has_its_own_rate() {
        let mut design = StackDesign::reference("x");
        assert_eq!(rates(&design, &[90.0, 60.0]), [2.0, 2.0]);
        design.refresh.refresh_rate = RefreshRate::Die;
        assert_eq!(rates(&design, &[90.0, 60.0]), [2.0, 1.0]);
    }

    #[test]
    fn an_all_bank_refresh_takes_its_share_of_time() {
        let mut design = StackDesign::reference("x");
        design.refresh.refresh = RefreshMode::AllBank;
        assert!((available_share(&design, 1.0) - (1.0 - 350.0 / 3900.0)).abs() < 1e-12);
        assert_eq!(available_share(&design, 1000.0), 0.0);
    }
}
