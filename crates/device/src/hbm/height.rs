//! Height of a stack: base die, bond layers, thinned dies and the topmost die.
//!
//! With a base die each DRAM die has a bond layer below it. Makers leave the topmost die thicker
//! where the package allows more; this is the height without that.

use super::design::StackDesign;

/// Height, um.
#[must_use]
pub fn minimum_um(design: &StackDesign) -> f64 {
    let g = &design.geometry;
    let bonds = if g.base_um > 0.0 { g.dies } else { g.dies - 1.0 };
    g.base_um + bonds * design.bond.bond_um + (g.dies - 1.0) * g.die_um + g.top_um
}

/// Error of this model against published heights, of the height: the presets' are within 4% above
/// (a test). A stack is too high only when it is by more.
const ABOVE_SHARE: f64 = 0.04;

/// Whether the package allows it.
#[must_use]
pub fn fits(design: &StackDesign) -> bool {
    minimum_um(design) <= design.geometry.height_limit_um * (1.0 + ABOVE_SHARE)
}

#[cfg(test)]
mod tests {
    use super::super::presets;
    use super::*;

    #[test]
    fn the_papers_stack_by_hand() {
        let mut design = StackDesign::reference("x");
        // Base and top, eight gaps of 30 um and seven dies of 50 um.
        assert_eq!(minimum_um(&design), 60.0 + 91.0 + 240.0 + 350.0);
        design.geometry.base_um = 0.0;
        assert_eq!(minimum_um(&design), 91.0 + 210.0 + 350.0);
    }

    /// Base and topmost die together are the one length that is fitted, over all presets with a
    /// published height. Each is predicted from the others.
    #[test]
    fn a_generation_left_out_is_predicted_within_ten_percent() {
        let known: Vec<(f64, f64)> = presets::names()
            .filter_map(|name| {
                let design = presets::preset(name).unwrap();
                let published = design.published.published_um?;
                let ends = design.geometry.base_um + design.geometry.top_um;
                Some((published, minimum_um(&design) - ends))
            })
            .collect();
        assert!(known.len() >= 3);
        let mean = |all: &[(f64, f64)]| {
            all.iter().map(|(published, rest)| published - rest).sum::<f64>() / all.len() as f64
        };
        let reference = StackDesign::reference("x").geometry;
        assert!((mean(&known) - reference.base_um - reference.top_um).abs() < 1.0, "{known:?}");
        let ends = reference.base_um + reference.top_um;
        assert!(known
            .iter()
            .all(|(published, rest)| rest + ends <= published * (1.0 + ABOVE_SHARE)));
        for out in 0..known.len() {
            let (published, rest) = known[out];
            let others: Vec<_> =
                known.iter().enumerate().filter(|k| k.0 != out).map(|k| *k.1).collect();
            let error = (rest + mean(&others)) / published - 1.0;
            assert!(error.abs() < 0.10, "{published} um predicted with {error:+.3}");
        }
    }
}
