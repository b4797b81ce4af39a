//! Through-silicon vias: resistance, capacitance, delay over the stack, data rate of the tallest
//! path, area and energy of a bit.
//!
//! A path is a ladder of one segment a die: a via of resistance rho L / (pi r^2) and capacitance
//! 2 pi eps L / ln((r + t) / r) (the oxide alone, an upper bound: depleted silicon in series lowers
//! it; G. Katti et al., IEEE TED 57(1), 2010), a bump in series and its pad in parallel. Its delay
//! is Elmore's. A bit needs the time from 10 to 90%: rate = 1 / (2.2 tau). Valid below about
//! 10 Gbit/s a via, where inductance does not matter.

use super::design::{Bonding, StackDesign, TsvStructure};
use super::materials::{
    COPPER_OHM_M, COPPER_PER_K, OXIDE_PERMITTIVITY, SOLDER_OHM_M, VACUUM_F_PER_M,
};
use std::f64::consts::PI;

/// Resistance of a via's driver, ohm. Fitted, once for all stacks, to the paper's statement that
/// the vias of an eight-high HBM2 stack are at their limit at 2 Gbit/s (section 3.1).
pub const DRIVER_OHM: f64 = 141.8;
/// Input and junction capacitance of a die that is connected to a via, F: ours, the gates and
/// protection of a small driver and receiver.
const DIE_LOAD_F: f64 = 60e-15;
/// Passivation between a bump's pad and the silicon, m: ours.
const PASSIVATION_M: f64 = 1e-6;
/// Share of bits that raise a via from 0 to 1, for random data.
const RISING_SHARE: f64 = 0.25;
/// Signals of a channel beside its data, for each data bit: 212 signals for 128 bits of HBM2
/// (Intel, HBM2 Interface FPGA IP User Guide 683189, table 21, signals of a channel added up).
const OTHER_SIGNALS_PER_BIT: f64 = 84.0 / 128.0;

/// Figures of one via and its bump.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ViaFigures {
    /// Resistance of via and bump, ohm.
    pub resistance_ohm: f64,
    /// Capacitance of via and pad, F.
    pub capacitance_f: f64,
}

/// Figures of the path to the topmost die.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct PathFigures {
    /// Elmore delay, ns.
    pub delay_ns: f64,
    /// Highest rate of a via, Gbit/s.
    pub rate_gbps: f64,
    /// Highest rate of a data pin whose vias work in parallel, Gbit/s.
    pub pin_rate_gbps: f64,
    /// Capacitance that a bit to the middle of the stack charges, F.
    pub mean_capacitance_f: f64,
    /// Time that repeaters add, ns.
    pub repeater_ns: f64,
}

/// Delay of a repeater, ns: ours, two gates of a DRAM process.
const REPEATER_NS: f64 = 0.3;

/// One via of this design at `celsius`.
#[must_use]
pub fn via(design: &StackDesign, celsius: f64) -> ViaFigures {
    let copper = COPPER_OHM_M * (1.0 + COPPER_PER_K * (celsius - 20.0));
    let length = design.geometry.die_um * 1e-6;
    let radius = design.tsv.tsv_um * 0.5e-6;
    let oxide = design.tsv.tsv_oxide_um * 1e-6;
    let bump_radius = design.bond.bump_um * 0.5e-6;
    let bump_height = design.bond.bond_um * 1e-6;
    let bump_area = PI * bump_radius * bump_radius;
    let bump_metal = match design.bond.bonding {
        Bonding::Microbump => SOLDER_OHM_M,
        Bonding::Hybrid | Bonding::DirectOxide => copper,
    };
    let permittivity = OXIDE_PERMITTIVITY * VACUUM_F_PER_M;
    let wall = 2.0 * PI * permittivity * length / ((radius + oxide) / radius).ln();
    ViaFigures {
        resistance_ohm: copper * length / (PI * radius * radius)
            + bump_metal * bump_height / bump_area,
        capacitance_f: wall + permittivity * bump_area / PASSIVATION_M,
    }
}

/// The path from the base die to the topmost die.
#[must_use]
pub fn path(design: &StackDesign, celsius: f64) -> PathFigures {
    let via = via(design, celsius);
    let dies = design.geometry.dies as usize;
    let section = match design.tsv.repeat_dies as usize {
        0 => dies,
        n => n.min(dies),
    };
    // Dies of a shared path hang on it everywhere, of a path of its own at its end.
    let loads_per_die = match design.tsv.structure {
        TsvStructure::PointToPoint => 0.0,
        TsvStructure::SharedRanks | TsvStructure::SharedChannel => {
            design.ranks() / design.geometry.dies
        }
    };
    let step_f = via.capacitance_f + loads_per_die * DIE_LOAD_F;
    let longest = elmore_s(section, via.resistance_ohm, step_f);
    let sections = (dies as f64 / section as f64).ceil();
    let rate_gbps = 1e-9 / (2.2 * longest);
    let repeaters = sections - 1.0;
    PathFigures {
        delay_ns: longest * sections * 1e9,
        rate_gbps,
        pin_rate_gbps: rate_gbps * design.tsv.tsv_per_pin,
        mean_capacitance_f: (dies as f64 + 1.0) / 2.0 * step_f + 2.0 * DIE_LOAD_F,
        repeater_ns: repeaters * REPEATER_NS,
    }
}

/// Elmore delay of `segments` equal segments behind the driver, with the receiver at the end, s.
fn elmore_s(segments: usize, segment_ohm: f64, segment_f: f64) -> f64 {
    let n = segments as f64;
    let whole = n * segment_f + 2.0 * DIE_LOAD_F;
    // The resistance up to segment i charges segments i to n and the receiver.
    DRIVER_OHM * whole + segment_ohm * (segment_f * n * (n + 1.0) / 2.0 + n * DIE_LOAD_F)
}

/// Energy of the vias for a bit moved, pJ: a path of the mean length is charged for each rising
/// bit; a bit takes one via whatever their number.
#[must_use]
pub fn pj_per_bit(design: &StackDesign) -> f64 {
    let charged = path(design, 85.0).mean_capacitance_f;
    let vdd = design.supply.vdd_v;
    RISING_SHARE * charged * vdd * vdd * 1e12
}

/// Vias of a die: data, commands, spares, supply, heat.
#[must_use]
pub fn count(design: &StackDesign) -> f64 {
    let data = data_tsvs(design);
    let pins = design.interface.channels * design.interface.channel_bits;
    data * (1.0 + design.tsv.spare_percent / 100.0)
        + pins * OTHER_SIGNALS_PER_BIT
        + design.tsv.supply_tsvs
        + design.tsv.thermal_tsvs
}

/// Data vias of a die, those that only pass through it included.
#[must_use]
pub fn data_tsvs(design: &StackDesign) -> f64 {
    design.interface.channels * design.interface.channel_bits * design.tsv.tsv_per_pin
}

/// Share of a die's area that vias and their keep-out zones take.
#[must_use]
pub fn area_share(design: &StackDesign) -> f64 {
    let tsv = &design.tsv;
    let radius_um = tsv.tsv_um / 2.0 + tsv.tsv_oxide_um + tsv.keep_out_um;
    count(design) * PI * radius_um * radius_um * 1e-6 / design.die_mm2()
}

#[cfg(test)]
mod tests {
    use super::super::presets;
    use super::*;

    #[test]
    fn a_thick_oxide_is_a_plate_capacitor_and_a_via_is_a_wire() {
        let mut d = StackDesign::reference("x");
        (d.tsv.tsv_um, d.tsv.tsv_oxide_um, d.bond.bump_um) = (30.0, 0.02, 0.2);
        let plate = OXIDE_PERMITTIVITY * VACUUM_F_PER_M * PI * 30e-6 * 50e-6 / 0.02e-6;
        assert!((via(&d, 20.0).capacitance_f / plate - 1.0).abs() < 1e-2, "thin liner: a plate");
        d.bond.bond_um = 1e-9;
        let wire = COPPER_OHM_M * 50e-6 / (PI * 15e-6 * 15e-6);
        assert!((via(&d, 20.0).resistance_ohm / wire - 1.0).abs() < 1e-4);
    }

    #[test]
    fn elmore_is_the_sum_over_the_ladder() {
        let (n, r, c) = (7, 3.0, 50e-15);
        let mut plain = 0.0;
        for node in 1..=n {
            // The node's capacitance sees the driver and all segments up to it.
            plain += c * (DRIVER_OHM + r * node as f64);
        }
        plain += DIE_LOAD_F * (DRIVER_OHM + r * n as f64) + DIE_LOAD_F * DRIVER_OHM;
        assert!((elmore_s(n, r, c) / plain - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_fit_is_at_the_papers_limit_and_rates_fall_with_height() {
        let design = StackDesign::reference("x");
        assert!((path(&design, 85.0).rate_gbps - 2.0).abs() < 0.02);
        let mut last = f64::INFINITY;
        for dies in 1..=32 {
            let mut taller = design.clone();
            taller.set_dies(f64::from(dies));
            let rate = path(&taller, 85.0).rate_gbps;
            assert!(rate < last, "{dies} dies: {rate}");
            last = rate;
        }
    }

    /// "Over 5,000" (Samsung, 2016); the bump map of HBM2 has 1904 signals and 3516 supplies
    /// (ascii.jp, May 2019).
    #[test]
    fn a_die_of_hbm2_has_about_as_many_vias_as_are_published() {
        let vias = count(&presets::preset("hbm2").unwrap());
        assert!(vias > 5000.0 && (vias / 5420.0 - 1.0).abs() < 0.1, "{vias}");
    }

    #[test]
    fn presets_have_the_least_power_of_two_of_vias_a_pin_that_keeps_up() {
        for name in presets::names().filter(|n| n.starts_with("hbm")) {
            let mut design = presets::preset(name).unwrap();
            let needs = design.interface.data_rate_gbps;
            assert!(path(&design, 85.0).pin_rate_gbps >= needs * 0.99, "{name}");
            if design.tsv.tsv_per_pin > 1.0 && design.bond.bonding == Bonding::Microbump {
                design.tsv.tsv_per_pin /= 2.0;
                assert!(path(&design, 85.0).pin_rate_gbps < needs, "{name}");
            }
        }
    }

    #[test]
    fn repeaters_shorten_the_sections() {
        let mut design = StackDesign::reference("x");
        let plain = path(&design, 85.0);
        design.tsv.repeat_dies = 4.0;
        let repeated = path(&design, 85.0);
        assert!(repeated.rate_gbps > 1.7 * plain.rate_gbps && repeated.repeater_ns > 0.0);
    }
}
