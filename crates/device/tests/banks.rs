//! The cycle model against its closed-form bounds and its limits.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use terrace_device::hbm::banks::{bounds, burst_bytes, peak_bytes_per_s, AccessPattern};
use terrace_device::hbm::cycle::{serve, Arrival};
use terrace_device::hbm::design::{RefreshMode, StackDesign, TsvStructure};
use terrace_device::hbm::evaluate::sustained;
use terrace_device::hbm::presets;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any timings, pattern, refresh rate and structure.
    #[test]
    fn sustained_bandwidth_lies_between_its_bounds(
        rcd in 5.0..40.0, cl in 5.0..40.0, rp in 5.0..40.0, ras in 15.0..80.0,
        faw in 4.0..60.0, rrd in 0.5..10.0, ccd_l in 1.0..4.0, wtr in 1.0..20.0,
        bursts_per_row in 1_u32..33, write_share in 0.0..1.0, rate in 0_i32..3,
        groups in 0_u32..3, per_group in 1_u32..5, all_bank: bool, shared: bool, seed: u64,
    ) {
        let mut d = presets::preset(if shared { "hbm2e" } else { "hbm2" }).unwrap();
        d.timing.rcd_ns = rcd;
        d.timing.cl_ns = cl;
        d.timing.rp_ns = rp;
        d.timing.ras_ns = ras;
        d.timing.faw_ns = faw;
        d.timing.rrd_ns = rrd;
        d.timing.ccd_l_bursts = ccd_l;
        d.timing.wtr_ns = wtr;
        d.interface.bank_groups = f64::from(1 << groups);
        d.interface.banks = f64::from((1 << groups) * per_group);
        d.refresh.refresh = if all_bank { RefreshMode::AllBank } else { RefreshMode::SingleBank };
        let rate = 2_f64.powi(rate);
        let pattern = AccessPattern { bursts_per_row, write_share };
        let one = serve(&d, pattern, rate, Arrival::Saturated, 3000, seed).bytes_per_s;
        let channels = d.interface.channels * d.interface.pseudo_channels;
        let limits = bounds(&d, pattern, rate);
        // What is under way when the first and last refresh interval begins and ends.
        let edge = 1.04;
        prop_assert!(one * channels <= limits.upper * edge, "{} > {:?}", one * channels, limits);
        prop_assert!(one * channels * edge >= limits.lower, "{} < {:?}", one * channels, limits);
    }
}

#[test]
fn whole_rows_come_close_to_the_peak_and_single_bursts_to_the_activation_window() {
    let design = StackDesign::reference("x");
    let peak = peak_bytes_per_s(&design);
    let stream = sustained(&design, AccessPattern::stream(&design), 1.0);
    assert!(stream > 0.85 * peak, "{}", stream / peak);
    let random = sustained(&design, AccessPattern::RANDOM, 1.0);
    let limits = bounds(&design, AccessPattern::RANDOM, 1.0);
    assert!(random > 0.8 * limits.upper, "{}", random / limits.upper);
}

#[test]
fn shared_vias_lose_bandwidth_unless_the_dies_hold_banks_of_one_channel() {
    let mut design = presets::preset("hbm3").unwrap();
    let of = |d: &StackDesign| sustained(d, AccessPattern::RANDOM, 1.0);
    // Let the bus, not activations, be what limits.
    (design.timing.faw_ns, design.timing.rrd_ns) = (2.0, 0.5);
    let shared = of(&design);
    design.tsv.switch_gap_ns *= 4.0;
    let long_gap = of(&design);
    design.tsv.structure = TsvStructure::SharedChannel;
    let in_step = of(&design);
    // A gap of a nanosecond is hidden but for chance: the controller serves one die's requests
    // together where it can.
    assert!(shared < 1.01 * in_step && long_gap < shared, "{shared} {in_step}");
    assert!(long_gap < 0.95 * in_step, "{long_gap} {in_step}");
    design.tsv.structure = TsvStructure::SharedRanks;
    design.tsv.switch_gap_ns = 0.0;
    assert!((of(&design) / in_step - 1.0).abs() < 0.01, "no gap, no loss");
}

#[test]
fn refresh_takes_more_when_it_is_hot_and_single_bank_refresh_takes_less() {
    let mut design = StackDesign::reference("x");
    let stream = |d: &StackDesign, rate| sustained(d, AccessPattern::stream(d), rate);
    design.refresh.refresh = RefreshMode::AllBank;
    let (cool, hot) = (stream(&design, 1.0), stream(&design, 2.0));
    // 350 ns of 3.9 us, once or twice.
    assert!((hot / cool - 0.82 / 0.91).abs() < 0.03, "{}", hot / cool);
    design.refresh.refresh = RefreshMode::SingleBank;
    assert!(stream(&design, 2.0) > hot);
}

#[test]
fn latency_rises_with_load_and_begins_at_the_idle_one() {
    let design = StackDesign::reference("x");
    let at = |every_ns| {
        serve(&design, AccessPattern::RANDOM, 1.0, Arrival::Every(every_ns), 5000, 3)
            .mean_latency_ns
    };
    // A row that was left open is closed first: up to 14 ns more than from a closed bank.
    let idle = at(10_000.0);
    assert!((30.0..46.0).contains(&idle), "{idle}");
    let loads: Vec<f64> = [100.0, 20.0, 8.0, 5.0].into_iter().map(at).collect();
    assert!(loads.windows(2).all(|w| w[0] < w[1]), "{loads:?}");
    assert!(loads[3] > 1.3 * idle, "{loads:?}");
    assert_eq!(burst_bytes(&design), 32.0);
}
