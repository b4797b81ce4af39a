//! Keys of a stack file: table, unit, range of validity and the figure behind each. Reading files,
//! sweeping and checking all go by these two tables, so that no key is known to one alone.

use super::design::{
    Bonding, EccCode, Generation, Placement, RefreshMode, RefreshRate, StackDesign, TsvStructure,
};

/// A number.
pub struct NumberField {
    /// Table of the file.
    pub table: &'static str,
    /// Key, which ends with the unit.
    pub key: &'static str,
    /// Least and greatest value for which the models hold.
    pub range: (f64, f64),
    /// Whether it counts things.
    pub whole: bool,
    /// Whether a file must give it.
    pub required: bool,
    /// The figure.
    pub at: fn(&mut StackDesign) -> &mut f64,
}

/// A choice among names.
pub struct NameField {
    /// Table of the file; empty: the top.
    pub table: &'static str,
    /// Key.
    pub key: &'static str,
    /// Names there are.
    pub names: fn() -> Vec<&'static str>,
    /// Sets the one of this index, with the defaults that come with it.
    pub set: fn(&mut StackDesign, usize),
}

macro_rules! number {
    ($table:literal, $key:literal, $($path:ident).+, $low:expr, $high:expr $(, $flag:ident)*) => {
        NumberField {
            table: $table,
            key: $key,
            range: ($low, $high),
            whole: flags!(whole $(, $flag)*),
            required: flags!(required $(, $flag)*),
            at: |design| &mut design.$($path).+,
        }
    };
}
macro_rules! flags {
    (whole) => { false };
    (whole, whole $(, $rest:ident)*) => { true };
    (whole, $other:ident $(, $rest:ident)*) => { flags!(whole $(, $rest)*) };
    (required) => { false };
    (required, required $(, $rest:ident)*) => { true };
    (required, $other:ident $(, $rest:ident)*) => { flags!(required $(, $rest)*) };
}

/// All numbers. Ranges are those in which the models' equations hold: from the thinnest and
/// finest technology that the paper names to the coarsest in use.
pub const NUMBERS: &[NumberField] = &[
    number!("stack", "dies", geometry.dies, 1.0, 32.0, whole, required),
    number!("stack", "die_gbit", geometry.die_gbit, 1.0, 64.0, whole, required),
    number!("stack", "die_width_mm", geometry.die_width_mm, 2.0, 20.0),
    number!("stack", "die_depth_mm", geometry.die_depth_mm, 2.0, 20.0),
    number!("stack", "die_um", geometry.die_um, 3.0, 200.0),
    number!("stack", "base_um", geometry.base_um, 0.0, 300.0),
    number!("stack", "top_um", geometry.top_um, 3.0, 700.0),
    number!("stack", "height_limit_um", geometry.height_limit_um, 100.0, 2000.0),
    number!("interface", "channels", interface.channels, 1.0, 128.0, whole, required),
    number!("interface", "channels_per_die", interface.channels_per_die, 1.0, 64.0, whole),
    number!("interface", "pseudo_channels", interface.pseudo_channels, 1.0, 4.0, whole),
    number!("interface", "channel_bits", interface.channel_bits, 8.0, 512.0, whole, required),
    number!("interface", "data_rate_gbps", interface.data_rate_gbps, 0.2, 32.0, required),
    number!("interface", "burst", interface.burst, 1.0, 32.0, whole),
    number!("interface", "bank_groups", interface.bank_groups, 1.0, 16.0, whole),
    number!("interface", "banks", interface.banks, 1.0, 128.0, whole),
    number!("interface", "row_bytes", interface.row_bytes, 64.0, 16384.0, whole),
    number!("interface", "path_ns", interface.path_ns, 0.0, 1000.0),
    number!("bond", "bond_um", bond.bond_um, 0.1, 60.0),
    number!("bond", "bump_pitch_um", bond.bump_pitch_um, 0.5, 200.0),
    number!("bond", "bump_um", bond.bump_um, 0.2, 100.0),
    number!("bond", "bump_field_mm2", bond.bump_field_mm2, 0.0, 400.0),
    number!("bond", "dummy_share", bond.dummy_share, 0.0, 1.0),
    number!("bond", "underfill_w_per_mk", bond.underfill_w_per_mk, 0.05, 20.0),
    number!("tsv", "tsv_um", tsv.tsv_um, 0.5, 30.0),
    number!("tsv", "tsv_oxide_um", tsv.tsv_oxide_um, 0.02, 2.0),
    number!("tsv", "keep_out_um", tsv.keep_out_um, 0.0, 30.0),
    number!("tsv", "tsv_per_pin", tsv.tsv_per_pin, 1.0, 16.0, whole),
    number!("tsv", "supply_tsvs", tsv.supply_tsvs, 10.0, 200_000.0, whole),
    number!("tsv", "supply_rows", tsv.supply_rows, 1.0, 16.0, whole),
    number!("tsv", "thermal_tsvs", tsv.thermal_tsvs, 0.0, 1_000_000.0, whole),
    number!("tsv", "spare_percent", tsv.spare_percent, 0.0, 100.0),
    number!("tsv", "switch_gap_ns", tsv.switch_gap_ns, 0.0, 50.0),
    number!("tsv", "repeat_dies", tsv.repeat_dies, 0.0, 32.0, whole),
    number!("timing", "rcd_ns", timing.rcd_ns, 1.0, 100.0),
    number!("timing", "cl_ns", timing.cl_ns, 1.0, 100.0),
    number!("timing", "cwl_ns", timing.cwl_ns, 1.0, 100.0),
    number!("timing", "rp_ns", timing.rp_ns, 1.0, 100.0),
    number!("timing", "ras_ns", timing.ras_ns, 1.0, 200.0),
    number!("timing", "ccd_l_bursts", timing.ccd_l_bursts, 1.0, 8.0),
    number!("timing", "rrd_ns", timing.rrd_ns, 0.1, 50.0),
    number!("timing", "faw_ns", timing.faw_ns, 0.1, 200.0),
    number!("timing", "wtr_ns", timing.wtr_ns, 0.1, 100.0),
    number!("timing", "wr_ns", timing.wr_ns, 0.1, 100.0),
    number!("timing", "rtp_ns", timing.rtp_ns, 0.1, 100.0),
    number!("refresh", "refi_ns", refresh.refi_ns, 500.0, 64_000.0),
    number!("refresh", "rfc_ns", refresh.rfc_ns, 20.0, 2000.0),
    number!("refresh", "rfc_bank_ns", refresh.rfc_bank_ns, 10.0, 1000.0),
    number!("refresh", "threshold_c", refresh.threshold_c, 40.0, 125.0),
    number!("refresh", "doubling_k", refresh.doubling_k, 2.0, 100.0),
    number!("refresh", "maximum_c", refresh.maximum_c, 60.0, 150.0),
    number!("supply", "vdd_v", supply.vdd_v, 0.5, 2.0),
    number!("supply", "vdd_minimum_v", supply.vdd_minimum_v, 0.4, 2.0),
    number!("supply", "io_v", supply.io_v, 0.1, 2.0),
    number!("supply", "read_pj_per_bit", supply.read_pj_per_bit, 0.01, 20.0),
    number!("supply", "write_pj_per_bit", supply.write_pj_per_bit, 0.01, 20.0),
    number!("supply", "activate_pj_per_byte", supply.activate_pj_per_byte, 0.001, 10.0),
    number!("supply", "standby_mw_per_gbit", supply.standby_mw_per_gbit, 0.0, 200.0),
    number!("supply", "refresh_nj_per_gbit", supply.refresh_nj_per_gbit, 0.0, 200.0),
    number!("supply", "grid_ohm_per_square", supply.grid_ohm_per_square, 0.001, 1.0),
    number!("package", "stacks", package.stacks, 1.0, 16.0, whole),
    number!("package", "processor_w", package.processor_w, 0.0, 2000.0),
    number!("package", "processor_depth_mm", package.processor_depth_mm, 2.0, 100.0),
    number!("package", "processor_width_mm", package.processor_width_mm, 2.0, 100.0),
    number!("package", "spacing_mm", package.spacing_mm, 0.05, 20.0),
    number!("package", "coolant_c", package.coolant_c, -40.0, 80.0),
    number!("package", "cooling_mm2k_per_w", package.cooling_mm2k_per_w, 0.1, 5000.0),
    number!("package", "lid_mm", package.lid_mm, 0.1, 20.0),
    number!("package", "microchannel_w_per_m2k", package.microchannel_w_per_m2k, 0.0, 200_000.0),
];

/// All choices. `generation` and `bonding` come first: the others may change what they set.
pub const NAMES: &[NameField] = &[
    NameField {
        table: "",
        key: "generation",
        names: || Generation::NAMED.iter().map(|n| n.0).collect(),
        set: |design, index| design.set_generation(Generation::NAMED[index].1),
    },
    NameField {
        table: "bond",
        key: "bonding",
        names: || Bonding::NAMED.iter().map(|n| n.0).collect(),
        set: |design, index| design.set_bonding(Bonding::NAMED[index].1),
    },
    NameField {
        table: "tsv",
        key: "structure",
        names: || TsvStructure::NAMED.iter().map(|n| n.0).collect(),
        set: |design, index| design.set_structure(TsvStructure::NAMED[index].1),
    },
    NameField {
        table: "refresh",
        key: "refresh",
        names: || RefreshMode::NAMED.iter().map(|n| n.0).collect(),
        set: |design, index| design.refresh.refresh = RefreshMode::NAMED[index].1,
    },
    NameField {
        table: "refresh",
        key: "refresh_rate",
        names: || RefreshRate::NAMED.iter().map(|n| n.0).collect(),
        set: |design, index| design.refresh.refresh_rate = RefreshRate::NAMED[index].1,
    },
    NameField {
        table: "package",
        key: "placement",
        names: || Placement::NAMED.iter().map(|n| n.0).collect(),
        set: |design, index| design.package.placement = Placement::NAMED[index].1,
    },
    NameField {
        table: "",
        key: "ecc",
        names: || EccCode::NAMED.iter().map(|n| n.0).collect(),
        set: |design, index| design.ecc = EccCode::NAMED[index].1,
    },
];

/// A published figure.
pub struct PublishedField {
    /// Key in table `published`.
    pub key: &'static str,
    /// The figure.
    pub at: fn(&mut StackDesign) -> &mut Option<f64>,
}

/// Published figures, for comparison alone.
pub const PUBLISHED: &[PublishedField] = &[
    PublishedField { key: "gb_per_s", at: |d| &mut d.published.published_gb_per_s },
    PublishedField { key: "gib", at: |d| &mut d.published.published_gib },
    PublishedField { key: "height_um", at: |d| &mut d.published.published_um },
    PublishedField { key: "pj_per_bit", at: |d| &mut d.published.published_pj_per_bit },
];

impl NumberField {
    /// What is accepted, in words: range and unit.
    #[must_use]
    pub fn accepted(&self) -> String {
        let kind = if self.whole { "a whole number" } else { "a number" };
        let unit = unit_of(self.key).map_or(String::new(), |u| format!(" {u}"));
        format!("{kind} from {} to {}{unit}", self.range.0, self.range.1)
    }

    /// Whether the models hold for it.
    #[must_use]
    pub fn accepts(&self, value: f64) -> bool {
        let whole = !self.whole || value.fract() == 0.0;
        value.is_finite() && whole && (self.range.0..=self.range.1).contains(&value)
    }

    /// Sets the figure and what follows from it.
    pub fn set(&self, design: &mut StackDesign, value: f64) {
        if self.key == "dies" {
            design.set_dies(value);
        } else {
            *(self.at)(design) = value;
        }
    }
}

/// The unit that a key ends with.
fn unit_of(key: &str) -> Option<&'static str> {
    const UNITS: &[(&str, &str)] = &[
        ("_mm2k_per_w", "mm2 K/W"),
        ("_w_per_m2k", "W/(m2 K)"),
        ("_w_per_mk", "W/(m K)"),
        ("_pj_per_bit", "pJ a bit"),
        ("_pj_per_byte", "pJ a byte"),
        ("_mw_per_gbit", "mW a Gbit"),
        ("_nj_per_gbit", "nJ a Gbit"),
        ("_ohm_per_square", "ohm a square"),
        ("_mm2", "square millimetres"),
        ("_mm", "millimetres"),
        ("_um", "micrometres"),
        ("_ns", "nanoseconds"),
        ("_gbps", "Gbit/s"),
        ("_gbit", "Gbit"),
        ("_bytes", "bytes"),
        ("_bits", "bits"),
        ("_percent", "%"),
        ("_c", "degrees Celsius"),
        ("_k", "kelvin"),
        ("_v", "volts"),
        ("_w", "watts"),
    ];
    UNITS.iter().find(|(end, _)| key.ends_with(end)).map(|u| u.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_unique_so_that_a_sweep_needs_no_table() {
        let keys: BTreeSet<&str> =
            NUMBERS.iter().map(|f| f.key).chain(NAMES.iter().map(|f| f.key)).collect();
        assert_eq!(keys.len(), NUMBERS.len() + NAMES.len());
    }

    #[test]
    fn each_key_is_a_figure_of_its_own() {
        let mut design = StackDesign::reference("x");
        for (index, field) in NUMBERS.iter().enumerate() {
            *(field.at)(&mut design) = index as f64 + 0.5;
        }
        for (index, field) in NUMBERS.iter().enumerate() {
            assert_eq!(*(field.at)(&mut design), index as f64 + 0.5, "{}", field.key);
        }
    }

    #[test]
    fn the_reference_is_within_all_ranges() {
        let mut design = StackDesign::reference("x");
        for field in NUMBERS {
            let value = *(field.at)(&mut design);
            assert!(field.accepts(value), "{} = {value}: {}", field.key, field.accepted());
        }
    }
}
