//! Stack files: what is refused, and how it is said; and designs that run away.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use terrace_device::hbm::design::{RefreshRate, StackDesign};
use terrace_device::hbm::energy::StackTraffic;
use terrace_device::hbm::evaluate::{evaluate, evaluate_with, Detail, StackLoad, ThermalState};
use terrace_device::hbm::{file, node, presets};
use terrace_machine::{Machine, MemoryKind};
use terrace_types::NodeId;

const SMALL: &str = "generation = \"hbm2\"\n[stack]\ndies = 8\ndie_gbit = 8\n\
                     [interface]\nchannels = 8\nchannel_bits = 128\ndata_rate_gbps = 2.0\n";

#[test]
fn a_small_file_is_the_papers_stack() {
    let design = file::read(SMALL, "some/x.toml").unwrap();
    assert_eq!(design, StackDesign::reference("x"));
}

#[test]
fn each_mistake_is_one_line_with_file_line_key_value_and_range() {
    let cases = [
        ("dies = 8", "dies = 80", "x.toml:3: stack.dies = 80; give a whole number from 1 to 32"),
        ("dies = 8", "dies = 8.5", "x.toml:3: stack.dies = 8.5; give a whole number"),
        ("dies = 8", "dies = \"eight\"", "x.toml:3: stack.dies = \"eight\""),
        ("dies = 8\n", "", "x.toml: stack.dies is missing"),
        ("die_gbit = 8", "die_gbit = 8\ndie_mm = 3", "x.toml:5: stack.die_mm is not a key"),
        ("die_gbit = 8", "die_gbit = 8\ndie_um = \"50 mm\"", "from 3 to 200 micrometres"),
        ("die_gbit = 8", "die_gbit = 8\ndie_um = -50", "stack.die_um = -50"),
        ("die_gbit = 8", "die_gbit = 8\ndie_um = nan", "stack.die_um = nan"),
        ("die_gbit = 8", "die_gbit = 0x8", "stack.die_gbit = 0x8"),
        ("\"hbm2\"", "\"hbm7\"", "x.toml:1: generation = \"hbm7\"; give one of \"hbm1\""),
        ("\"hbm2\"", "2", "x.toml:1: generation = 2"),
        ("channels = 8", "channels = 7", "8 dies of 1 channels each do not make whole sets of 7"),
        ("channels = 8", "channels = 4", "the vias are point-to-point"),
        ("[stack]", "[stack", "x.toml:2: "),
        ("[interface]", "[interfaces]", "known here: name, generation, ecc, stack, interface"),
        ("dies = 8", "dies = 8\ndies = 9", "x.toml:4: "),
    ];
    for (from, to, expected) in cases {
        let text = SMALL.replacen(from, to, 1);
        let said = file::read(&text, "x.toml").unwrap_err().to_string();
        assert!(said.contains(expected), "{to:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn impossible_geometry_is_refused() {
    let cases = [
        ("[bond]\nbump_um = 60\n", "bumps of 60 um do not fit a pitch of 55"),
        ("[bond]\nbump_field_mm2 = 200\n", "bond.bump_field_mm2 = 200 on 92.0 mm2"),
        ("[tsv]\nsupply_tsvs = 200000\ntsv_um = 12\n", "% of the die"),
        ("[supply]\nvdd_minimum_v = 1.3\n", "supply.vdd_minimum_v = 1.3 with vdd_v = 1.2"),
        ("[refresh]\nrefi_ns = 500\nrfc_ns = 600\n", "refresh.rfc_ns = 600 with refi_ns = 500"),
    ];
    for (more, expected) in cases {
        let said = file::read(&format!("{SMALL}{more}"), "x.toml").unwrap_err().to_string();
        assert!(said.contains(expected) && said.lines().count() == 1, "{more:?}: {said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever a file holds, it is read or refused; a design that is read has figures.
    #[test]
    fn no_file_breaks_the_reader(
        text in "[ -~\n]{0,200}", key in "[a-z_]{1,12}", value in "[ -~]{0,20}",
    ) {
        let _ = file::read(&text, "x.toml");
        let _ = file::read(&format!("{SMALL}{key} = {value}\n"), "x.toml");
        let _ = file::read(&SMALL.replacen("8", &value, 1), "x.toml");
    }
}

/// Cooling so weak that leakage outruns it.
#[test]
fn thermal_runaway_is_found_and_reported() {
    let mut design = StackDesign::reference("x");
    design.package.processor_w = 2000.0;
    design.package.cooling_mm2k_per_w = 1000.0;
    design.supply.standby_mw_per_gbit = 200.0;
    let e = evaluate(&design);
    assert_eq!(e.thermal, ThermalState::Runaway);
    let said = e.violations.iter().find(|v| v.contains("thermal runaway"));
    assert!(said.is_some(), "{:?}", e.violations);
}

/// The loop: a hot processor, and refresh that follows each die or the hottest.
#[test]
fn heat_raises_refresh_and_refresh_takes_bandwidth() {
    let mut design = StackDesign::reference("x");
    let cool = evaluate(&design);
    assert!(cool.refresh_rates.iter().all(|r| *r == 1.0) && cool.thermal == ThermalState::Within);
    design.package.coolant_c = 80.0;
    let hot = evaluate(&design);
    assert!(hot.temperatures.hottest_c() > 85.0 && hot.refresh_rates.iter().all(|r| *r >= 2.0));
    let mixed = |e: &terrace_device::hbm::StackEvaluation| e.sustained_bytes_per_s.mixed;
    assert!(mixed(&hot) < mixed(&cool));
    assert!(hot.rest_w > cool.rest_w, "refresh and leakage");
    design.package.coolant_c = 76.0;
    design.refresh.refresh_rate = RefreshRate::Die;
    let own = evaluate(&design);
    let rates = &own.refresh_rates;
    assert!(rates.windows(2).all(|w| w[0] >= w[1]) && rates[0] > rates[7], "{rates:?}");
}

#[test]
fn a_thicker_lid_takes_longer_to_warm_up() {
    let mut design = StackDesign::reference("x");
    let thin = evaluate(&design).warm_up_s.unwrap();
    design.package.lid_mm = 8.0;
    let thick = evaluate(&design).warm_up_s.unwrap();
    // The lid's capacity behind the film: some 0.2 s a millimetre of copper, 0.1 at the least.
    assert!((0.05..2.0).contains(&thin) && thick > 1.5 * thin, "{thin} {thick}");
}

#[test]
fn less_traffic_is_cooler() {
    let design = presets::preset("hbm3").unwrap();
    let at = |share: f64| {
        let traffic = StackTraffic {
            read_bytes_per_s: share * 400e9,
            write_bytes_per_s: 0.0,
            activations_per_burst: 0.1,
        };
        evaluate_with(&design, StackLoad::Demand(traffic), Detail::Sweep).temperatures.hottest_c()
    };
    assert!(at(0.0) < at(0.5) && at(0.5) < at(1.0));
}

#[test]
fn a_machine_has_the_stacks_in_place_of_its_hbm_and_reads_back() {
    let base = terrace_machine::preset("xeon-max").unwrap();
    let design = presets::preset("hbm3").unwrap();
    let e = evaluate(&design);
    let machine = node::machine(&base, &design, &e).unwrap();
    let hbm: Vec<_> = machine.nodes.iter().filter(|n| n.kind == MemoryKind::Hbm).collect();
    let [hbm] = hbm[..] else { panic!("one node of HBM") };
    assert_eq!(hbm.capacity.get(), (4 * 24) << 30);
    let link = machine.link(NodeId(0), hbm.id).unwrap();
    let gb = link.read_bandwidth.unwrap().value.get() as f64 / 1e9;
    assert!((gb / (4.0 * e.sustained_bytes_per_s.stream_read / 1e9) - 1.0).abs() < 1e-3, "{gb}");
    assert_eq!(Machine::from_toml(&machine.to_toml(), "x").unwrap(), machine);
    // A machine without HBM gets a node of its own.
    let plain = terrace_machine::preset("dual-socket").unwrap();
    let more = node::machine(&plain, &design, &e).unwrap();
    assert_eq!(more.nodes.len(), plain.nodes.len() + 1);
    assert_eq!(Machine::from_toml(&more.to_toml(), "x").unwrap(), more);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any figures within their ranges that can be together have an evaluation, whose numbers are
    /// numbers.
    #[test]
    fn designs_at_the_edges_of_the_ranges_are_evaluated(seed: u64) {
        let mut design = StackDesign::reference("x");
        let mut chance = seed | 1;
        for field in terrace_device::hbm::fields::NUMBERS {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (low, high) = field.range;
            // Mostly as it is; else the least, the greatest or the middle.
            let value = match chance >> 60 {
                0 => low,
                1 => high,
                2 if field.whole => ((low + high) / 2.0).floor(),
                2 => (low + high) / 2.0,
                _ => continue,
            };
            let mut changed = design.clone();
            field.set(&mut changed, value);
            if file::check(&changed).is_ok() {
                design = changed;
            }
        }
        let e = evaluate_with(&design, StackLoad::Saturated, Detail::Sweep);
        let s = e.sustained_bytes_per_s;
        for figure in [s.mixed, s.random_read, e.power.total_w(), e.height_um, e.idle_latency_ns] {
            prop_assert!(figure.is_finite() && figure >= 0.0, "{:?}", design);
        }
        prop_assert!(e.temperatures.hottest_c().is_finite());
    }
}
