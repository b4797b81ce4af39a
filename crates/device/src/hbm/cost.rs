//! Yield and relative cost of a stack. Prices are not published; all of this is ours, in units of
//! one good planar die of the same capacity, for comparing designs and nothing else.
//!
//! A die yields (1 + A D / a)^-a (negative binomial; C. Stapper, IBM JRD 27(6), 1983). Vias of data
//! fail alone; each hundred have the design's spares. Dies that are tested before they are stacked
//! multiply no yields; wafers bonded whole do, since a bad die cannot be left out: the paper's
//! table 1 gives hybrid bonding's pitch for wafer to wafer.

use super::design::{Bonding, StackDesign};
use super::tsv;

/// Defects a cm2 after repair: ours.
const DEFECTS_PER_CM2: f64 = 0.1;
/// Clustering of defects: the usual value.
const CLUSTERING: f64 = 3.0;
/// Chance that a via is bad: ours.
const VIA_FAILURE: f64 = 1e-5;
/// Vias that share spares.
const SPARE_GROUP: f64 = 100.0;
/// Cost of bonding one die, of a base die with its test, in planar dies: ours.
const BOND_COST: f64 = 0.15;
/// See [`BOND_COST`].
const BASE_COST: f64 = 0.5;

/// Yield and cost.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct StackCost {
    /// Share of dies that are good.
    pub die_yield: f64,
    /// Share of stacks that are good, made of dies that were tested where the technique allows it.
    pub stack_yield: f64,
    /// Cost of a good stack, planar dies of the same capacity.
    pub relative_cost: f64,
}

/// Yield of bonding one die.
const fn bond_yield(bonding: Bonding) -> f64 {
    // Ours: a mature and two young processes.
    match bonding {
        Bonding::Microbump => 0.995,
        Bonding::Hybrid => 0.99,
        Bonding::DirectOxide => 0.985,
    }
}

/// Yield and cost of this design.
#[must_use]
pub fn cost(design: &StackDesign) -> StackCost {
    let dies = design.geometry.dies;
    let area_cm2 = design.die_mm2() / 100.0;
    let yield_of = |cm2: f64| (1.0 + cm2 * DEFECTS_PER_CM2 / CLUSTERING).powf(-CLUSTERING);
    let die_yield = yield_of(area_cm2);
    let vias = group_yield(design.tsv.spare_percent).powf(tsv::data_tsvs(design) / SPARE_GROUP);
    let layer = bond_yield(design.bond.bonding) * vias;
    let wafer_to_wafer = design.bond.bonding != Bonding::Microbump;
    let picked = if wafer_to_wafer { die_yield.powf(dies) } else { 1.0 };
    let stack_yield = layer.powf(dies) * picked;
    // A planar die has no vias, so that it is smaller by their area.
    let planar_cm2 = area_cm2 * (1.0 - tsv::area_share(design));
    let planar = planar_cm2 / yield_of(planar_cm2);
    let die = if wafer_to_wafer { area_cm2 } else { area_cm2 / die_yield } / planar;
    let made =
        dies * (die + BOND_COST) + if design.geometry.base_um > 0.0 { BASE_COST } else { 0.0 };
    StackCost { die_yield, stack_yield, relative_cost: made / stack_yield }
}

/// Chance that a hundred vias with so many spares (whole ones) have enough good ones.
fn group_yield(spares: f64) -> f64 {
    let spares = spares.floor();
    let all = SPARE_GROUP + spares;
    let mut term = (1.0 - VIA_FAILURE).powf(all);
    let mut sum = term;
    let mut bad = 0.0;
    while bad < spares {
        term *= (all - bad) / (bad + 1.0) * VIA_FAILURE / (1.0 - VIA_FAILURE);
        sum += term;
        bad += 1.0;
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_turn_a_likely_loss_into_an_unlikely_one() {
        assert!((group_yield(0.0) - (1.0 - VIA_FAILURE).powi(100)).abs() < 1e-12);
        let lost = 1.0 - group_yield(1.0);
        // Two bad of 101: about 101 x 100 / 2 x 1e-10.
        assert!((lost / 5.05e-7 - 1.0).abs() < 0.01, "{lost}");
    }

    #[test]
    fn bonding_whole_wafers_multiplies_die_yields() {
        let mut design = StackDesign::reference("x");
        let picked = cost(&design);
        design.set_bonding(Bonding::Hybrid);
        let whole = cost(&design);
        assert!(whole.stack_yield < picked.stack_yield * picked.die_yield.powi(7));
        assert!(picked.relative_cost > 8.0, "eight dies cost more than eight planar ones");
    }
}
