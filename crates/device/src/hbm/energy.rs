//! Energy of a bit and power of each die.
//!
//! A bit's energy is its part of the row's activation, the arrays' and column path's (both from
//! currents of HBM2, scaled with the square of the core supply), the vias' (`tsv`) and the pins':
//! C V^2 for each rising bit. Standby power is part leakage, which doubles with temperature.
//! Valid for traffic from none to the sustained bandwidth.

use super::banks::burst_bytes;
use super::design::{Placement, StackDesign};
use super::tsv;

/// Supply at which the energies of a stack file are given, V.
const REFERENCE_V: f64 = 1.2;
/// Capacitance of a pin, its wire over the interposer and the pads at both ends, F: ours, 5 mm of
/// 0.2 pF/mm and twice 0.4 pF. On the processor there is no wire.
const PIN_WIRE_F: f64 = 1.0e-12;
/// See [`PIN_WIRE_F`].
const PIN_PADS_F: f64 = 0.8e-12;
/// Share of random bits that raise a pin.
const RISING_SHARE: f64 = 0.25;
/// Share of standby power that is leakage at 85 C: ours.
const LEAKAGE_SHARE: f64 = 0.2;
/// Kelvin after which leakage doubles: ours, usual for subthreshold leakage.
const LEAKAGE_DOUBLING_K: f64 = 20.0;
/// Temperature at which standby power is given, C.
const STANDBY_C: f64 = 85.0;
/// Leakage is not followed beyond this, C, so that a runaway stays finite.
const HOTTEST_C: f64 = 400.0;

/// What a stack is asked for.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct StackTraffic {
    /// Bytes read a second.
    pub read_bytes_per_s: f64,
    /// Bytes written a second.
    pub write_bytes_per_s: f64,
    /// Activations for each burst.
    pub activations_per_burst: f64,
}

impl StackTraffic {
    /// No traffic.
    pub const NONE: Self =
        Self { read_bytes_per_s: 0.0, write_bytes_per_s: 0.0, activations_per_burst: 1.0 };

    /// All bytes a second.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.read_bytes_per_s + self.write_bytes_per_s
    }
}

/// Energy of a bit by where it is spent, pJ.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct BitEnergy {
    /// Its part of a row's activation.
    pub activation: f64,
    /// Arrays and column path.
    pub array: f64,
    /// Vias.
    pub tsv: f64,
    /// Pins.
    pub pin: f64,
}

impl BitEnergy {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.activation + self.array + self.tsv + self.pin
    }
}

/// Square of the core supply against that of the energies' source.
fn supply_scale(design: &StackDesign) -> f64 {
    (design.supply.vdd_v / REFERENCE_V).powi(2)
}

/// Energy of a bit moved.
#[must_use]
pub fn per_bit(design: &StackDesign, write: bool, activations_per_burst: f64) -> BitEnergy {
    let s = &design.supply;
    let scale = supply_scale(design);
    let row_pj = s.activate_pj_per_byte * design.interface.row_bytes;
    let wire = match design.package.placement {
        Placement::Beside => PIN_WIRE_F,
        Placement::OnProcessor => 0.0,
    };
    BitEnergy {
        activation: scale * row_pj * activations_per_burst / (8.0 * burst_bytes(design)),
        array: scale * if write { s.write_pj_per_bit } else { s.read_pj_per_bit },
        tsv: tsv::pj_per_bit(design),
        pin: RISING_SHARE * (wire + PIN_PADS_F) * s.io_v * s.io_v * 1e12,
    }
}

/// Power of the stack's dies, W.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StackPower {
    /// Base die.
    pub base_w: f64,
    /// Each DRAM die, the lowest first.
    pub dies_w: Vec<f64>,
}

impl StackPower {
    /// All dies together, W.
    #[must_use]
    pub fn total_w(&self) -> f64 {
        self.base_w + self.dies_w.iter().sum::<f64>()
    }
}

/// Power when each die has its temperature and refresh rate; traffic is spread over all dies.
#[must_use]
pub fn power(
    design: &StackDesign,
    traffic: &StackTraffic,
    celsius: &[f64],
    refresh_rates: &[f64],
) -> StackPower {
    let watts = |bytes_per_s: f64, pj: f64| bytes_per_s * 8.0 * pj * 1e-12;
    let read = per_bit(design, false, traffic.activations_per_burst);
    let write = per_bit(design, true, traffic.activations_per_burst);
    let dies = design.geometry.dies;
    let in_dies = watts(traffic.read_bytes_per_s, read.activation + read.array)
        + watts(traffic.write_bytes_per_s, write.activation + write.array);
    let in_base = watts(traffic.bytes_per_s(), read.pin + read.tsv);
    let scale = supply_scale(design);
    let standby = scale * design.supply.standby_mw_per_gbit * design.geometry.die_gbit * 1e-3;
    let refresh = scale * design.supply.refresh_nj_per_gbit * design.geometry.die_gbit
        / design.refresh.refi_ns;
    let dies_w = celsius
        .iter()
        .zip(refresh_rates)
        .map(|(c, rate)| {
            let over = (c.min(HOTTEST_C) - STANDBY_C) / LEAKAGE_DOUBLING_K;
            let idle = standby * (1.0 - LEAKAGE_SHARE + LEAKAGE_SHARE * over.exp2());
            in_dies / dies + idle + refresh * rate
        })
        .collect();
    StackPower { base_w: in_base, dies_w }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_rest_only_standby_and_refresh_are_left() {
        let design = StackDesign::reference("x");
        let power = power(&design, &StackTraffic::NONE, &[85.0; 8], &[1.0; 8]);
        // 66 mW of standby and 60.84 nJ each 3.9 us for eight Gbit.
        assert!((power.dies_w[0] - (0.066 + 0.0156)).abs() < 1e-4, "{power:?}");
        assert_eq!(power.base_w, 0.0);
    }

    #[test]
    fn energy_of_a_bit_lies_around_the_published_one() {
        // 3.9 pJ for HBM2 (O'Connor et al., MICRO 2017), a mean over programs between whole rows
        // and single bursts.
        let design = StackDesign::reference("x");
        let stream = per_bit(&design, false, 1.0 / 32.0).total();
        let random = per_bit(&design, false, 1.0).total();
        assert!(stream < 3.9 && 3.9 < random, "{stream} {random}");
    }

    #[test]
    fn a_lower_supply_saves_by_its_square() {
        let mut design = StackDesign::reference("x");
        let at = per_bit(&design, true, 0.5);
        design.supply.vdd_v = 0.6;
        let half = per_bit(&design, true, 0.5);
        assert!((half.array / at.array - 0.25).abs() < 1e-12);
        assert!((half.tsv / at.tsv - 0.25).abs() < 1e-12);
    }
}
