//! Power delivery: voltage drop up the stack and across a die, and switching noise.
//!
//! Current enters at the base die and climbs by the supply vias, half for power and half for
//! ground: segment k carries what dies k and above draw. On a die it spreads from the bump field
//! in the middle (or from each row of supply vias half way to the next), evenly drawn: drop =
//! R_sheet I L^2 / (2 A). Switching noise is that of the supply vias' partial inductance,
//! mu0/(2 pi) l (ln(2 l / r) - 1) each (E. Rosa, 1908),
//! when the rising bits of all pins charge the vias in one edge. Package and board are not counted.

use super::design::StackDesign;
use super::energy::StackPower;
use super::{height, tsv};

/// mu0 / (2 pi), H/m.
const INDUCTANCE_H_PER_M: f64 = 2e-7;
/// Rise time of a via in its bit time (10 to 90% of one that just keeps up).
const RISE_SHARE: f64 = 0.35;
/// Share of random bits that rise at an edge.
const RISING_SHARE: f64 = 0.25;

/// What the supply loses, V, power and ground together.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct SupplyLoss {
    /// Up the stack, at the topmost die.
    pub vertical_v: f64,
    /// Across that die.
    pub lateral_v: f64,
    /// When vias switch together.
    pub switching_v: f64,
    /// What the part can lose.
    pub allowed_v: f64,
}

impl SupplyLoss {
    /// Static loss: vertical and lateral.
    #[must_use]
    pub fn static_v(&self) -> f64 {
        self.vertical_v + self.lateral_v
    }

    /// Whether static loss and switching noise together stay within what is allowed.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.static_v() + self.switching_v <= self.allowed_v
    }
}

/// The loss at this power and temperature.
#[must_use]
pub fn loss(design: &StackDesign, power: &StackPower, celsius: f64) -> SupplyLoss {
    let s = &design.supply;
    let via = tsv::via(design, celsius);
    let pairs = design.tsv.supply_tsvs / 2.0;
    let segment_ohm = 2.0 * via.resistance_ohm / pairs;
    let currents: Vec<f64> = power.dies_w.iter().map(|w| w / s.vdd_v).collect();
    let mut above: f64 = currents.iter().sum();
    let mut vertical_v = 0.0;
    for current in &currents {
        vertical_v += segment_ohm * above;
        above -= current;
    }
    let reach_mm = design.geometry.die_width_mm / (2.0 * design.tsv.supply_rows);
    let top = currents.last().copied().unwrap_or(0.0);
    let lateral_v = 2.0 * s.grid_ohm_per_square * top * reach_mm.powi(2) / (2.0 * design.die_mm2());
    SupplyLoss {
        vertical_v,
        lateral_v,
        switching_v: switching_v(design, pairs),
        allowed_v: s.vdd_v - s.vdd_minimum_v,
    }
}

fn switching_v(design: &StackDesign, pairs: f64) -> f64 {
    let length = height::minimum_um(design) * 1e-6;
    let radius = design.tsv.tsv_um * 0.5e-6;
    let one_h = INDUCTANCE_H_PER_M * length * ((2.0 * length / radius).ln() - 1.0);
    let path = tsv::path(design, 85.0);
    let vias = design.interface.channels * design.interface.channel_bits * design.tsv.tsv_per_pin;
    let via_gbps = design.interface.data_rate_gbps / design.tsv.tsv_per_pin;
    let rise_s = RISE_SHARE / (via_gbps.min(path.rate_gbps) * 1e9);
    let charge = RISING_SHARE * vias * path.mean_capacitance_f * design.supply.vdd_v;
    2.0 * one_h / pairs * charge / (rise_s * rise_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_dies_give_the_triangular_sum() {
        let design = StackDesign::reference("x");
        let power = StackPower { base_w: 0.0, dies_w: vec![1.2; 8] };
        let loss = loss(&design, &power, 20.0);
        let segment = 2.0 * tsv::via(&design, 20.0).resistance_ohm / (design.tsv.supply_tsvs / 2.0);
        assert!((loss.vertical_v / (segment * 36.0) - 1.0).abs() < 1e-12, "1 A a die: 8 + .. + 1");
        assert!((loss.allowed_v - 0.060).abs() < 1e-12);
    }

    #[test]
    fn more_supply_vias_lose_less() {
        let mut design = StackDesign::reference("x");
        let power = StackPower { base_w: 1.0, dies_w: vec![1.0; 8] };
        let few = loss(&design, &power, 85.0);
        design.tsv.supply_tsvs *= 2.0;
        let many = loss(&design, &power, 85.0);
        assert!((many.vertical_v / few.vertical_v - 0.5).abs() < 1e-9);
        assert!((many.switching_v / few.switching_v - 0.5).abs() < 1e-9);
        assert_eq!(many.lateral_v, few.lateral_v);
    }
}
