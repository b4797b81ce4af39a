//! Every preset is sound, and the lab's say what the design says.

use terrace_machine::{
    preset, preset_names, preset_or_error, Evidence, Machine, MemoryKind, MigrationCost,
};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

fn get(name: &str) -> Machine {
    preset_or_error(name).unwrap_or_else(|error| panic!("{error}"))
}

/// Read latency, write latency, read and write bandwidth of a link.
fn figures(machine: &Machine, from: u16, to: u16) -> (u64, u64, u64, u64) {
    let link = machine.link(NodeId(from), NodeId(to)).expect("link");
    (
        link.read_latency.expect("read latency").value.get(),
        link.write_latency.expect("write latency").value.get(),
        link.read_bandwidth.expect("read bandwidth").value.get(),
        link.write_bandwidth.expect("write bandwidth").value.get(),
    )
}

const GB: u64 = 1_000_000_000;

#[test]
fn every_preset_is_read_and_bears_its_own_name() {
    assert_eq!(preset_names().len(), 15);
    for name in preset_names() {
        let machine = get(name);
        assert_eq!(machine.name, name);
        assert_eq!(preset(name), Some(machine.clone()));
        for link in &machine.links {
            for evidence in [
                link.read_latency.map(|f| f.evidence),
                link.write_latency.map(|f| f.evidence),
                link.read_bandwidth.map(|f| f.evidence),
                link.write_bandwidth.map(|f| f.evidence),
            ] {
                assert!(evidence.is_none_or(|e| e == Evidence::Preset), "{name}");
            }
        }
    }
    assert_eq!(preset("lab-nothing"), None);
    let error = preset_or_error("lab-nothing").expect_err("no such preset").to_string();
    assert!(error.contains("lab-nothing") && error.contains("lab-cxl"), "{error}");
}

#[test]
fn presets_survive_being_written_and_read() {
    for name in preset_names() {
        let machine = get(name);
        let again = Machine::from_toml(&machine.to_toml(), name);
        assert_eq!(again.as_ref(), Ok(&machine), "{name}");
    }
}

#[test]
fn lab_machines_share_core_caches_and_costs() {
    for name in preset_names().filter(|n| n.starts_with("lab-")) {
        let machine = get(name);
        assert!((machine.core.ns_per_instruction - 0.25).abs() < 1e-12);
        assert_eq!(
            machine.core.outstanding_misses,
            if name == "lab-dcpmm" { 10 } else { 2 },
            "{name}: ADR 0001, 0002"
        );
        assert_eq!(machine.core.tlb_flush, Nanos::micros(500));
        assert_eq!(machine.migration, MigrationCost::default(), "{name}");
        assert_eq!(machine.page_size, Bytes(4096));
        let caches: Vec<_> =
            machine.caches.iter().map(|c| (c.size, c.ways, c.line, c.shared, c.hit)).collect();
        assert_eq!(
            caches,
            [
                (Bytes(32 << 10), 8, Bytes(64), false, Nanos(0)),
                (Bytes::mib(4), 16, Bytes(64), true, Nanos(15)),
            ]
        );
        let cpus: usize = machine.nodes.iter().map(|n| n.cpus.len()).sum();
        assert_eq!(cpus, if name == "lab-snc4" { 4 } else { 2 }, "{name}");
    }
}

#[test]
fn lab_figures_are_those_of_the_design() {
    let cxl = get("lab-cxl");
    assert_eq!(cxl.nodes[0].capacity, Bytes::mib(192));
    assert_eq!(cxl.nodes[1].capacity, Bytes::gib(1));
    assert_eq!(cxl.nodes[0].cpus, [CpuId(0), CpuId(1)]);
    assert!(cxl.nodes[1].cpus.is_empty());
    assert_eq!(figures(&cxl, 0, 0), (80, 80, 100 * GB, 100 * GB));
    assert_eq!(figures(&cxl, 0, 1), (300, 300, 20 * GB, 20 * GB));

    let hbm = get("lab-hbm");
    let (slow, fast) = (figures(&hbm, 0, 0), figures(&hbm, 0, 1));
    assert_eq!((slow.0, slow.2 * 5), (fast.0, fast.2));
    assert!(hbm.nodes[1].cpus.is_empty() && hbm.nodes[1].kind == MemoryKind::Hbm);

    let dcpmm = get("lab-dcpmm");
    assert_eq!(figures(&dcpmm, 0, 0), (80, 80, 40 * GB, 40 * GB));
    assert_eq!(figures(&dcpmm, 0, 1), (300, 300, 13 * GB, 4_600_000_000));
    assert_eq!(dcpmm.nodes[1].block, Bytes(256));

    let numa = get("lab-numa");
    assert!(numa.nodes.iter().all(|n| n.cpus.len() == 1));

    let pcie = get("lab-pcie");
    let (fast, slow) = (figures(&pcie, 0, 0), figures(&pcie, 0, 1));
    assert_eq!((fast.0 * 14, fast.2), (slow.0, slow.2 * 200));

    let snc4 = get("lab-snc4");
    let kinds = |kind| snc4.nodes.iter().filter(|n| n.kind == kind).count();
    assert_eq!((kinds(MemoryKind::Dram), kinds(MemoryKind::Hbm)), (4, 4));
}

#[test]
fn hyplacers_machine_is_asymmetric() {
    let machine = get("dram-dcpmm");
    let slow = machine.link(NodeId(0), NodeId(1)).expect("link");
    assert_eq!(slow.read_bandwidth.map(|f| f.value), Some(BytesPerSec::mb(13_200)));
    assert_eq!(slow.write_bandwidth.map(|f| f.value), Some(BytesPerSec::mb(4_600)));
    assert_eq!(machine.nodes[0].capacity, Bytes::gib(32));
    assert_eq!(machine.nodes[1].capacity, Bytes::gib(256));
}
