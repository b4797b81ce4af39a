//! Faults of cells, periphery and vias, what a code corrects of them, and failures in time (FIT, a
//! failure in 1e9 hours).
//!
//! Rates of a die are those of a DRAM device in the field: V. Sridharan and D. Liberty, "A Study of
//! DRAM Failures in the Field", SC 2012, transient and permanent faults together, as the public
//! simulator FaultSim has them (D. Roberts and P. Nair; its mode Jaguar). A die counts as a device
//! (ours: no rates of stacked dies are published). Like FaultSim, this leaves out faults of several
//! ranks, since those of a module do not translate to a stack. Rates grow with temperature by
//! Arrhenius' law, 0.7 eV from 55 C, as makers compute them (Analog Devices, "Details of
//! Reliability Calculations"; AMD UG116).

use super::design::{EccCode, StackDesign};

/// Single cells.
const CELL_FIT: f64 = 32.8;
/// Several bits of one word.
const WORD_FIT: f64 = 1.7;
/// One bit of many words: columns.
const COLUMN_FIT: f64 = 7.0;
/// Rows, banks, several banks.
const PERIPHERY_FIT: f64 = 8.4 + 10.8 + 1.7;
/// Vias of a die, all together: ours, a fifth of the other rates, since no rates in the field are
/// published (FaultSim asks its user). At half or double all faults change by a tenth; uncorrected
/// ones do not, since both codes correct a via.
const TSV_FIT: f64 = 14.0;
/// Activation energy over Boltzmann's constant, K.
const ACTIVATION_K: f64 = 0.7 / 8.617e-5;
/// Temperature of the field data, K.
const FIELD_K: f64 = 273.15 + 55.0;
/// Bits of a line.
const LINE_BITS: f64 = 512.0;

/// Failures of a stack.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct FaultRates {
    /// All faults, FIT.
    pub faults_fit: f64,
    /// Those that the code does not correct, FIT.
    pub uncorrected_fit: f64,
    /// Bits of a line of 64 bytes that one faulty data via spoils.
    pub bits_spoiled: f64,
}

/// Bits of a 512-bit line that one data via carries: the line over the vias of a channel.
#[must_use]
pub fn bits_spoiled(design: &StackDesign) -> f64 {
    (LINE_BITS / (design.interface.channel_bits * design.tsv.tsv_per_pin)).max(1.0).ceil()
}

/// Whether the code corrects a line in which one data via is wrong.
///
/// SECDED words are the 64 bits of a beat of half a channel, so that a via's bits, which are in
/// different beats, are in different words. A symbol code corrects 16 bits of a burst, and a pin's
/// bits are in one symbol.
#[must_use]
pub fn corrects_via(design: &StackDesign) -> bool {
    match design.ecc {
        EccCode::None => false,
        EccCode::Secded => design.interface.channel_bits >= 64.0 || design.tsv.tsv_per_pin > 1.0,
        EccCode::Symbol => design.interface.burst <= 16.0,
    }
}

/// Rates at this mean temperature of the dies.
#[must_use]
pub fn rates(design: &StackDesign, celsius: f64) -> FaultRates {
    let dies = design.geometry.dies;
    let kelvin = (celsius + 273.15).max(1.0);
    let faster = (ACTIVATION_K * (1.0 / FIELD_K - 1.0 / kelvin)).exp();
    let vias = if corrects_via(design) { 0.0 } else { TSV_FIT };
    let uncorrected = match design.ecc {
        EccCode::None => CELL_FIT + WORD_FIT + COLUMN_FIT + PERIPHERY_FIT + vias,
        EccCode::Secded => WORD_FIT + PERIPHERY_FIT + vias,
        EccCode::Symbol => PERIPHERY_FIT + vias,
    };
    let all = CELL_FIT + WORD_FIT + COLUMN_FIT + PERIPHERY_FIT + TSV_FIT;
    FaultRates {
        faults_fit: dies * all * faster,
        uncorrected_fit: dies * uncorrected * faster,
        bits_spoiled: bits_spoiled(design),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faulty_via_spoils_four_bits_of_a_line() {
        assert_eq!(bits_spoiled(&StackDesign::reference("x")), 4.0, "the paper, section 3.5");
    }

    /// The plain reference: put a line on the vias of a channel beat by beat and count the wrong
    /// bits of each SECDED word.
    #[test]
    fn secded_corrects_a_via_since_its_bits_are_in_different_words() {
        let design = StackDesign::reference("x");
        let vias = design.interface.channel_bits as usize;
        for faulty in 0..vias {
            let mut wrong = vec![0_u32; 512 / 64];
            for bit in (0..512).filter(|bit| bit % vias == faulty) {
                wrong[bit / 64] += 1;
            }
            assert_eq!(wrong.iter().sum::<u32>(), 4);
            assert!(wrong.iter().all(|w| *w <= 1), "via {faulty}: {wrong:?}");
        }
        assert!(corrects_via(&design));
    }

    #[test]
    fn taller_hotter_and_unprotected_stacks_fail_more() {
        let mut design = StackDesign::reference("x");
        let at = rates(&design, 55.0);
        // At the field's temperature and with eight dies: the sum of the table.
        assert!((at.faults_fit - 8.0 * (32.8 + 1.7 + 7.0 + 20.9 + 14.0)).abs() < 1e-9);
        assert!(rates(&design, 95.0).faults_fit > 10.0 * at.faults_fit);
        design.ecc = EccCode::None;
        assert_eq!(rates(&design, 55.0).uncorrected_fit, at.faults_fit);
        design.set_dies(16.0);
        assert_eq!(rates(&design, 55.0).faults_fit, 2.0 * at.faults_fit);
    }
}
