//! Timings, refresh rules and currents by generation: defaults of a stack file.
//!
//! Array times in nanoseconds have hardly changed between generations, so all have those of the
//! public simulators' HBM2 (DRAMsim3 `HBM2_8Gb_x128.ini`, Ramulator 2 `HBM3.cpp`, whose authors
//! found no others for HBM3 either); what follows the data rate (bursts, column commands) is
//! computed from it. Valid for DRAM of 2013 to 2026.

use super::choices::{Generation, RefreshMode, RefreshRate};

/// Timings of a bank and its pseudo-channel, ns. Names follow JESD235.
#[derive(Debug, Clone, PartialEq)]
pub struct BankTiming {
    /// Activate to read or write.
    pub rcd_ns: f64,
    /// Read to first data.
    pub cl_ns: f64,
    /// Write to first data.
    pub cwl_ns: f64,
    /// Precharge.
    pub rp_ns: f64,
    /// Activate to precharge.
    pub ras_ns: f64,
    /// Column commands of one bank group, in bursts.
    pub ccd_l_bursts: f64,
    /// Activates of different banks.
    pub rrd_ns: f64,
    /// Window in which at most four activates begin.
    pub faw_ns: f64,
    /// Last data written to read.
    pub wtr_ns: f64,
    /// Last data written to precharge.
    pub wr_ns: f64,
    /// Read to precharge.
    pub rtp_ns: f64,
}

/// When memory is refreshed.
#[derive(Debug, Clone, PartialEq)]
pub struct RefreshRules {
    /// What a command refreshes.
    pub refresh: RefreshMode,
    /// Whose temperature counts.
    pub refresh_rate: RefreshRate,
    /// Average time between refreshes of all banks up to the threshold, ns.
    pub refi_ns: f64,
    /// Time of an all-bank refresh, ns.
    pub rfc_ns: f64,
    /// Time of a single-bank refresh, ns.
    pub rfc_bank_ns: f64,
    /// Temperature above which the rate doubles, C.
    pub threshold_c: f64,
    /// Degrees after which it doubles again, K.
    pub doubling_k: f64,
    /// Highest temperature at which the part may work, C.
    pub maximum_c: f64,
}

/// Voltages and currents.
#[derive(Debug, Clone, PartialEq)]
pub struct StackSupply {
    /// Nominal core supply, V.
    pub vdd_v: f64,
    /// Lowest core supply, V.
    pub vdd_minimum_v: f64,
    /// Swing of an interface pin, V.
    pub io_v: f64,
    /// Energy of the arrays for a bit read at 1.2 V, pJ, without activation.
    pub read_pj_per_bit: f64,
    /// The same for a bit written, pJ.
    pub write_pj_per_bit: f64,
    /// Energy of activating and closing a row at 1.2 V, pJ for each byte of the row.
    pub activate_pj_per_byte: f64,
    /// Standby power of a Gbit at 1.2 V and 85 C, mW.
    pub standby_mw_per_gbit: f64,
    /// Energy that a Gbit takes for refresh in each refresh interval at 1.2 V, nJ.
    pub refresh_nj_per_gbit: f64,
    /// Sheet resistance of a die's supply wires, ohm a square, power and ground each.
    pub grid_ohm_per_square: f64,
}

/// Timings of a bank.
#[must_use]
pub fn bank_timing(generation: Generation) -> BankTiming {
    BankTiming {
        rcd_ns: 14.0,
        cl_ns: 14.0,
        cwl_ns: 4.0,
        rp_ns: 14.0,
        ras_ns: 34.0,
        // HBM1 has tCCD_L of one burst in DRAMsim3, later ones two.
        ccd_l_bursts: if generation == Generation::Hbm1 { 1.0 } else { 2.0 },
        rrd_ns: 4.0,
        // A pseudo-channel may begin four activates in 16 ns (gem5, `HBM_2000_4H_1x64`), the whole
        // channel of a part without them in 30 ns (DRAMsim3; gem5, `HBM_1000_4H_1x128`).
        faw_ns: match generation {
            Generation::Hbm1 | Generation::Ddr4Stacked => 30.0,
            _ => 16.0,
        },
        wtr_ns: 8.0,
        wr_ns: 16.0,
        rtp_ns: 6.0,
    }
}

/// Refresh rules: an all-bank refresh takes 260, 350, 450 ns for 4, 8, 16 Gbit a channel, a
/// single-bank refresh 160 ns (Ramulator 2, `HBM2.cpp` and `HBM3.cpp`; for 8 Gbit DRAMsim3 and gem5
/// have 260 and 220 ns). Stacked DDR4 has DDR4's 350 ns for 8 Gbit (DRAMsim3, `DDR4_8Gb_x8`).
#[must_use]
pub fn refresh_rules(generation: Generation) -> RefreshRules {
    RefreshRules {
        refresh: match generation {
            Generation::Hbm1 | Generation::Ddr4Stacked => RefreshMode::AllBank,
            _ => RefreshMode::SingleBank,
        },
        refresh_rate: RefreshRate::Stack,
        refi_ns: 3900.0,
        rfc_ns: match generation {
            Generation::Hbm1 => 260.0,
            Generation::Hbm2 | Generation::Ddr4Stacked => 350.0,
            _ => 450.0,
        },
        rfc_bank_ns: 160.0,
        // The paper, section 3.4.
        threshold_c: 85.0,
        // DDR3 and DDR4 ask for twice the rate from 85 to 95 C (data sheets: 7.8 and 3.9 us); that
        // HBM does so too, and doubles again beyond, is ours.
        doubling_k: 10.0,
        // SK hynix's HBM2E works at 105 C ("A 16-GB 640-GB/s HBM2E DRAM", JSSC 56(1), 2021).
        maximum_c: 105.0,
    }
}

/// Voltages and energies. Energies come from the currents of DRAMsim3's HBM2 (mA a channel at 1.2
/// V and 2 Gbit/s: IDD0 65, IDD2N 40, IDD3N 55, IDD4R 390, IDD4W 500, IDD5AB 250), by the usual
/// differences: read (IDD4R - IDD3N) V over 256 Gbit/s; activation (IDD0 - what stands by
/// meanwhile) V tRC over a row of 2 KiB; refresh (IDD5AB - IDD3N) V tRFC over 8 Gbit. Models
/// scale them with the square of the supply.
#[must_use]
pub fn supply(generation: Generation) -> StackSupply {
    let (vdd_v, io_v) = match generation {
        Generation::Hbm1 | Generation::Hbm2 | Generation::Hbm2e | Generation::Ddr4Stacked => {
            (1.2, 1.2)
        }
        // JESD238 as JEDEC announced it (January 2022): 1.1 V core, 0.4 V interface.
        Generation::Hbm3 | Generation::Hbm3e => (1.1, 0.4),
        // JESD270-4 as JEDEC announced it (April 2025): core 1.0 or 1.05 V, interface 0.7, 0.75,
        // 0.8 or 0.9 V. The higher core and the second interface are ours.
        Generation::Hbm4 => (1.05, 0.75),
    };
    let (idd0, idd2n, idd3n, idd4r, idd4w, idd5ab) = (65.0, 40.0, 55.0, 390.0, 500.0, 250.0);
    let (volts, ras, rp, channel_gbps, channel_gbit, row_bytes) =
        (1.2, 34.0, 14.0, 256.0, 8.0, 2048.0);
    // mA V ns = pJ; mA V over Gbit/s = pJ a bit.
    let activate_pj = idd0 * (ras + rp) - idd3n * ras - idd2n * rp;
    StackSupply {
        vdd_v,
        // The paper, section 3.7: 1.14 V of 1.2 V. The same 95% for the others is ours.
        vdd_minimum_v: vdd_v * 0.95,
        io_v,
        read_pj_per_bit: (idd4r - idd3n) * volts / channel_gbps,
        write_pj_per_bit: (idd4w - idd3n) * volts / channel_gbps,
        activate_pj_per_byte: activate_pj * volts / row_bytes,
        standby_mw_per_gbit: idd3n * volts / channel_gbit,
        refresh_nj_per_gbit: (idd5ab - idd3n) * volts * 260.0e-3 / channel_gbit,
        // Ours: aluminium of 0.8 um (35 milliohm a square), a third of it for each net.
        grid_ohm_per_square: 0.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energies_are_those_that_the_currents_give_by_hand() {
        let supply = supply(Generation::Hbm2);
        assert!((supply.read_pj_per_bit - 335.0 * 1.2 / 256.0).abs() < 1e-12);
        // 65 mA x 48 ns less 55 mA x 34 ns and 40 mA x 14 ns: 690 pC, 828 pJ at 1.2 V.
        assert!((supply.activate_pj_per_byte * 2048.0 - 828.0).abs() < 1e-9);
        // 195 mA x 1.2 V x 260 ns = 60.84 nJ for 8 Gbit.
        assert!((supply.refresh_nj_per_gbit - 7.605).abs() < 1e-9);
        assert!((supply.vdd_v - supply.vdd_minimum_v - 0.060).abs() < 1e-12, "the paper's 60 mV");
    }
}
