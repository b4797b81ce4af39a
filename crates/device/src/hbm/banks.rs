//! Closed forms of a pseudo-channel: peak bandwidth, idle latency, and bounds of what it sustains.
//!
//! The upper bound is the least of what bus, activation window and banks allow; the lower one
//! serves one access at a time, from a closed bank to the end of all recovery times. The cycle
//! model lies between them (a property test).

use super::design::{RefreshMode, StackDesign};
use super::{refresh, tsv};

/// How accesses follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccessPattern {
    /// Consecutive bursts in a row before another bank's row: 1 is random.
    pub bursts_per_row: u32,
    /// Share of accesses that are writes.
    pub write_share: f64,
}

impl AccessPattern {
    /// Whole rows, read.
    #[must_use]
    pub fn stream(design: &StackDesign) -> Self {
        let bursts = design.interface.row_bytes / burst_bytes(design);
        Self { bursts_per_row: bursts as u32, write_share: 0.0 }
    }

    /// Single bursts anywhere, read.
    pub const RANDOM: Self = Self { bursts_per_row: 1, write_share: 0.0 };

    /// The same with one write for each two reads.
    #[must_use]
    pub fn with_writes(self) -> Self {
        Self { write_share: 1.0 / 3.0, ..self }
    }
}

/// Bytes of a burst of a pseudo-channel.
#[must_use]
pub fn burst_bytes(design: &StackDesign) -> f64 {
    let i = &design.interface;
    i.channel_bits / i.pseudo_channels * i.burst / 8.0
}

/// Rate of a data pin, Gbit/s: its own or what its vias keep up with.
#[must_use]
pub fn pin_rate_gbps(design: &StackDesign) -> f64 {
    design.interface.data_rate_gbps.min(tsv::path(design, 85.0).pin_rate_gbps)
}

/// Time of a burst on the bus, ns.
#[must_use]
pub fn burst_ns(design: &StackDesign) -> f64 {
    design.interface.burst / pin_rate_gbps(design)
}

/// Pseudo-channels of the stack.
#[must_use]
pub fn pseudo_channels(design: &StackDesign) -> f64 {
    design.interface.channels * design.interface.pseudo_channels
}

/// Peak bandwidth of the stack, bytes a second.
#[must_use]
pub fn peak_bytes_per_s(design: &StackDesign) -> f64 {
    let i = &design.interface;
    i.channels * i.channel_bits * pin_rate_gbps(design) / 8.0 * 1e9
}

/// Idle latency at the stack's pins of a read in a closed bank, ns: activate, read, burst, vias
/// there and back.
#[must_use]
pub fn idle_ns(design: &StackDesign) -> f64 {
    let path = tsv::path(design, 85.0);
    let t = &design.timing;
    t.rcd_ns + t.cl_ns + burst_ns(design) + path.repeater_ns + 2.0 * path.delay_ns
}

/// Bounds of the sustained bandwidth of the stack, bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct BandwidthBounds {
    /// One access at a time.
    pub lower: f64,
    /// The least of bus, activations and banks.
    pub upper: f64,
}

/// The bounds for this pattern when refreshes come `refresh_rate` times as often as at rest.
#[must_use]
pub fn bounds(design: &StackDesign, pattern: AccessPattern, refresh_rate: f64) -> BandwidthBounds {
    let (t, r) = (&design.timing, &design.refresh);
    let bytes = burst_bytes(design);
    let burst = burst_ns(design);
    let banks = design.interface.banks * design.ranks();
    let bursts = f64::from(pattern.bursts_per_row.max(1));
    let all_bank = r.refresh == RefreshMode::AllBank;
    // Only what no schedule can hide counts here.
    let bus_share = if all_bank { refresh::available_share(design, refresh_rate) } else { 1.0 };
    let bank_share = refresh::available_share(design, refresh_rate);
    let row_cycle =
        (t.ras_ns + t.rp_ns).max(t.rcd_ns + (bursts - 1.0) * burst + t.rtp_ns + t.rp_ns);
    // Activations of several dies have a window each.
    let ranks = design.ranks();
    let upper = (bytes / burst * bus_share)
        .min(4.0 * bursts * bytes / t.faw_ns * ranks * bus_share)
        .min(bursts * bytes / t.rrd_ns * ranks * bus_share)
        .min(banks * bursts * bytes / row_cycle * bank_share);
    let serial = t.ras_ns
        + t.rp_ns
        + t.rcd_ns
        + t.cl_ns.max(t.cwl_ns)
        + burst * t.ccd_l_bursts.max(1.0)
        + t.wr_ns
        + t.wtr_ns
        + t.rtp_ns
        + t.faw_ns
        + t.rrd_ns
        + design.tsv.switch_gap_ns;
    let interval = r.refi_ns / refresh_rate;
    let lost = if all_bank {
        (r.rfc_ns + serial) / interval
    } else {
        banks * (r.rfc_bank_ns + serial) / interval
    };
    let scale = pseudo_channels(design) * 1e9;
    BandwidthBounds { lower: bytes / serial * (1.0 - lost).max(0.0) * scale, upper: upper * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_and_bursts_are_those_of_the_standard() {
        let design = StackDesign::reference("x");
        assert!((peak_bytes_per_s(&design) / 256e9 - 1.0).abs() < 0.01);
        assert_eq!(burst_bytes(&design), 32.0);
        assert!((burst_ns(&design) - 2.0).abs() < 0.02);
        // 14 + 14 + 2 ns, and some via delay.
        assert!((30.0..31.0).contains(&idle_ns(&design)), "{}", idle_ns(&design));
    }

    #[test]
    fn random_reads_are_bound_by_the_activation_window() {
        let mut design = StackDesign::reference("x");
        let random = bounds(&design, AccessPattern::RANDOM, 1.0);
        // Four bursts of 32 bytes in 16 ns for each of 16 pseudo-channels.
        assert!((random.upper - 16.0 * 4.0 * 32.0 / 16e-9).abs() < 1e3);
        design.timing.faw_ns = 1.0;
        design.timing.rrd_ns = 0.25;
        let bus = bounds(&design, AccessPattern::RANDOM, 1.0).upper;
        assert!(bus > random.upper);
    }
}
