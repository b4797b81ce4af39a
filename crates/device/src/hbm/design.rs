//! What a stack is: geometry, interface, bonding, vias, timing, supply and surroundings.
//!
//! Figures are `f64` in the unit their names end with; counts are whole numbers in `f64`, which
//! [`fields`](super::fields) checks. Defaults of a bonding technique and of a generation are set by
//! [`StackDesign::set_bonding`] and [`StackDesign::set_generation`].

pub use super::choices::{
    Bonding, EccCode, Generation, Placement, RefreshMode, RefreshRate, TsvStructure,
};
pub use super::timing::{BankTiming, RefreshRules, StackSupply};
use super::{materials, timing};

/// Dies and their outlines.
#[derive(Debug, Clone, PartialEq)]
pub struct StackGeometry {
    /// DRAM dies; the base die is not counted.
    pub dies: f64,
    /// Capacity of a die, Gbit, without bits for ECC.
    pub die_gbit: f64,
    /// Outline of a die, mm, away from the processor.
    pub die_width_mm: f64,
    /// Outline of a die, mm, along the processor's edge.
    pub die_depth_mm: f64,
    /// Thickness of a thinned DRAM die, um.
    pub die_um: f64,
    /// Thickness of the base die, um; 0: none.
    pub base_um: f64,
    /// Thickness of the topmost DRAM die, um.
    pub top_um: f64,
    /// Height that the package allows, um.
    pub height_limit_um: f64,
}

/// Channels and pins.
#[derive(Debug, Clone, PartialEq)]
pub struct StackInterface {
    /// Independent channels of the stack.
    pub channels: f64,
    /// Channels whose banks are on one die.
    pub channels_per_die: f64,
    /// Pseudo-channels of a channel.
    pub pseudo_channels: f64,
    /// Data bits of a channel.
    pub channel_bits: f64,
    /// Rate of a data pin, Gbit/s.
    pub data_rate_gbps: f64,
    /// Transfers of a burst.
    pub burst: f64,
    /// Bank groups of a pseudo-channel on one die.
    pub bank_groups: f64,
    /// Banks of a pseudo-channel on one die.
    pub banks: f64,
    /// Bytes of an open row of a pseudo-channel.
    pub row_bytes: f64,
    /// From a core to the stack's pins and back, ns: caches, network, controller, PHY.
    pub path_ns: f64,
}

/// What is between two dies.
#[derive(Debug, Clone, PartialEq)]
pub struct BondLayer {
    /// Technique.
    pub bonding: Bonding,
    /// Thickness of the layer, um.
    pub bond_um: f64,
    /// Pitch of bumps or pads, um.
    pub bump_pitch_um: f64,
    /// Diameter of bumps or pads, um.
    pub bump_um: f64,
    /// Field of a die that holds the electrical bumps, mm2.
    pub bump_field_mm2: f64,
    /// Share of the rest of the die that has dummy bumps of the same pitch.
    pub dummy_share: f64,
    /// Thermal conductivity of what fills the layer between the bumps, W/(m K).
    pub underfill_w_per_mk: f64,
}

/// Through-silicon vias of a die.
#[derive(Debug, Clone, PartialEq)]
pub struct TsvArray {
    /// Diameter of the conductor, um.
    pub tsv_um: f64,
    /// Thickness of the oxide around it, um.
    pub tsv_oxide_um: f64,
    /// Width of the ring around it in which no transistor may be, um.
    pub keep_out_um: f64,
    /// Which dies share data vias.
    pub structure: TsvStructure,
    /// Data vias for each data pin.
    pub tsv_per_pin: f64,
    /// Vias for power and ground of a die.
    pub supply_tsvs: f64,
    /// Rows that the supply vias stand in across a die, evenly: 1 is the middle alone.
    pub supply_rows: f64,
    /// Vias of a die that only conduct heat.
    pub thermal_tsvs: f64,
    /// Spare vias for each hundred data vias.
    pub spare_percent: f64,
    /// Idle time of shared vias when another die begins to send, ns.
    pub switch_gap_ns: f64,
    /// Dies after which a repeater drives the data anew; 0: never.
    pub repeat_dies: f64,
}

/// What is around the stack.
#[derive(Debug, Clone, PartialEq)]
pub struct StackPackage {
    /// Where the stack is.
    pub placement: Placement,
    /// Stacks of the package.
    pub stacks: f64,
    /// Power of the processor, W.
    pub processor_w: f64,
    /// Edge of the processor that stacks are beside, mm.
    pub processor_depth_mm: f64,
    /// Its other edge, mm.
    pub processor_width_mm: f64,
    /// Between processor and stack, and between stacks, mm.
    pub spacing_mm: f64,
    /// Temperature of the coolant, C.
    pub coolant_c: f64,
    /// From the lid's surface to the coolant, mm2 K/W.
    pub cooling_mm2k_per_w: f64,
    /// Thickness of the lid, mm.
    pub lid_mm: f64,
    /// Heat that a coolant in channels between the dies takes, W/(m2 K) of a die; 0: none.
    pub microchannel_w_per_m2k: f64,
}

/// Published figures of a part, for comparison only; no model reads them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PublishedFigures {
    /// Peak bandwidth, GB/s (powers of ten).
    pub published_gb_per_s: Option<f64>,
    /// Capacity, GiB (which the makers write GB).
    pub published_gib: Option<f64>,
    /// Height, um.
    pub published_um: Option<f64>,
    /// Energy of a bit moved, pJ.
    pub published_pj_per_bit: Option<f64>,
}

/// A stack.
#[derive(Debug, Clone, PartialEq)]
pub struct StackDesign {
    /// Its name.
    pub name: String,
    /// Standard.
    pub generation: Generation,
    /// Dies.
    pub geometry: StackGeometry,
    /// Channels.
    pub interface: StackInterface,
    /// Between dies.
    pub bond: BondLayer,
    /// Vias.
    pub tsv: TsvArray,
    /// Bank timings.
    pub timing: BankTiming,
    /// Refresh.
    pub refresh: RefreshRules,
    /// Supply.
    pub supply: StackSupply,
    /// Surroundings.
    pub package: StackPackage,
    /// Error correction.
    pub ecc: EccCode,
    /// For comparison.
    pub published: PublishedFigures,
}

impl StackDesign {
    /// The paper's stack (section 2) under this name: eight dies of HBM2 at 2 Gbit/s. Each default
    /// is explained beside it.
    #[must_use]
    pub fn reference(name: &str) -> Self {
        let mut design = Self {
            name: name.to_owned(),
            generation: Generation::Hbm2,
            geometry: StackGeometry {
                dies: 8.0,
                die_gbit: 8.0,
                // HBM2's outline, 7.75 by 11.87 mm (Samsung, Hot Chips 2026, slide on the footprint
                // of the PHY, as reported by jasonschips.ai).
                die_width_mm: 7.75,
                die_depth_mm: 11.87,
                die_um: 50.0,
                // Ours, fitted together over all presets with a published height: base and top die
                // are not published. See docs/results/hbm.md for the error of each left out.
                base_um: 60.0,
                top_um: 91.0,
                // JEDEC's limit until HBM4 (semiengineering.com, "HBM4 Sticks With Microbumps").
                height_limit_um: 720.0,
            },
            interface: StackInterface {
                channels: 8.0,
                channels_per_die: 1.0,
                pseudo_channels: 2.0,
                channel_bits: 128.0,
                data_rate_gbps: 2.0,
                burst: 4.0,
                bank_groups: 4.0,
                banks: 16.0,
                row_bytes: 1024.0,
                // Ours: the estimate of 130 ns load to use in preset xeon-max, less what this
                // model gives for its HBM2E.
                path_ns: 96.0,
            },
            bond: BondLayer {
                bonding: Bonding::Microbump,
                bond_um: 30.0,
                bump_pitch_um: 55.0,
                bump_um: 25.0,
                // The paper, section 2: close to 20 mm2.
                bump_field_mm2: 20.0,
                dummy_share: 1.0,
                underfill_w_per_mk: materials::UNDERFILL_W_PER_MK,
            },
            tsv: TsvArray {
                // The paper, section 2: 5 to 10 um.
                tsv_um: 6.0,
                // Ours: usual liners are 0.1 to 0.5 um (F. Wang et al., Microelectronics Journal
                // 45, 2014).
                tsv_oxide_um: 0.2,
                // Ours: a few micrometres around vias of this size.
                keep_out_um: 3.0,
                structure: TsvStructure::PointToPoint,
                tsv_per_pin: 1.0,
                // HBM2's bump map: 1762 for ground, 1754 for three supplies (ascii.jp, May 2019); a
                // via a bump is ours. With data and commands this is "over 5,000" (Samsung, 2016).
                supply_tsvs: 3516.0,
                // The paper, section 2: all bumps are in the middle.
                supply_rows: 1.0,
                thermal_tsvs: 0.0,
                spare_percent: 5.0,
                // Ours: one clock of HBM2, "an idle cycle" (the paper, section 3.2).
                switch_gap_ns: 1.0,
                repeat_dies: 0.0,
            },
            timing: timing::bank_timing(Generation::Hbm2),
            refresh: timing::refresh_rules(Generation::Hbm2),
            supply: timing::supply(Generation::Hbm2),
            package: StackPackage {
                placement: Placement::Beside,
                stacks: 4.0,
                processor_w: 300.0,
                processor_depth_mm: 28.0,
                processor_width_mm: 26.0,
                spacing_mm: 1.0,
                // Public simulators' ambient.
                coolant_c: 40.0,
                // Ours: a good cold plate, 0.03 K/W over 1000 mm2 of lid.
                cooling_mm2k_per_w: 30.0,
                lid_mm: 2.0,
                microchannel_w_per_m2k: 0.0,
            },
            ecc: EccCode::Secded,
            published: PublishedFigures::default(),
        };
        design.set_generation(Generation::Hbm2);
        design.set_bonding(Bonding::Microbump);
        design
    }

    /// Sets the standard and the timings, refresh rules and currents that come with it.
    pub fn set_generation(&mut self, generation: Generation) {
        self.generation = generation;
        self.timing = timing::bank_timing(generation);
        self.refresh = timing::refresh_rules(generation);
        self.supply = timing::supply(generation);
        self.ecc = match generation {
            Generation::Hbm3 | Generation::Hbm3e | Generation::Hbm4 => EccCode::Symbol,
            _ => EccCode::Secded,
        };
    }

    /// Sets the bonding technique and the geometry that comes with it: the paper, table 1, in the
    /// middle of its ranges. Via diameters are ours where the table has only pitches: a fifth of
    /// the die's thickness at most (an aspect ratio of ten to one leaves a factor of two), and no
    /// more than half the pitch.
    pub fn set_bonding(&mut self, bonding: Bonding) {
        let (die_um, bond_um, pitch, bump, tsv, oxide, keep_out) = match bonding {
            Bonding::Microbump => (50.0, 30.0, 55.0, 25.0, 6.0, 0.2, 3.0),
            Bonding::Hybrid => (20.0, 5.0, 2.5, 1.25, 1.25, 0.1, 0.6),
            Bonding::DirectOxide => (15.0, 5.0, 17.5, 3.0, 3.0, 0.1, 1.5),
        };
        self.bond.bonding = bonding;
        self.geometry.die_um = die_um;
        self.bond.bond_um = bond_um;
        self.bond.bump_pitch_um = pitch;
        self.bond.bump_um = bump;
        self.tsv.tsv_um = tsv;
        self.tsv.tsv_oxide_um = oxide;
        self.tsv.keep_out_um = keep_out;
    }

    /// Sets the number of dies. With vias from point to point each die brings its channels; else
    /// the channels stay and more dies share each.
    pub fn set_dies(&mut self, dies: f64) {
        self.geometry.dies = dies;
        if self.tsv.structure == TsvStructure::PointToPoint {
            self.interface.channels = dies * self.interface.channels_per_die;
        }
    }

    /// Sets the structure of the vias; from point to point implies a channel for each die's own.
    pub fn set_structure(&mut self, structure: TsvStructure) {
        self.tsv.structure = structure;
        self.set_dies(self.geometry.dies);
    }

    /// Dies that share one set of data vias (logical ranks), 1 or more.
    #[must_use]
    pub fn ranks(&self) -> f64 {
        self.geometry.dies * self.interface.channels_per_die / self.interface.channels
    }

    /// Capacity of the stack, bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        (self.geometry.dies * self.geometry.die_gbit) as u64 * (1 << 27)
    }

    /// Area of a die, mm2.
    #[must_use]
    pub fn die_mm2(&self) -> f64 {
        self.geometry.die_width_mm * self.geometry.die_depth_mm
    }
}
