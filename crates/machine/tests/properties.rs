//! Properties over machines made at random. A failure prints the input that shrank to it.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use terrace_machine::{
    explain, from_hwloc_xml, list, rank, render_text, CacheLevel, CoreModel, CostProfile,
    DaemonCosts, Energy, Evidence, FarStore, Figure, KernelCosts, Link, LoadLatencyCurve,
    LoadedPoint, Machine, MemoryKind, MigrationCost, Node, Picos, RankAttribute, TiersReport,
    TlbSpec,
};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

fn evidence() -> impl Strategy<Value = Evidence> {
    prop_oneof![
        Just(Evidence::Hmat),
        Just(Evidence::Measured),
        Just(Evidence::Config),
        Just(Evidence::Preset),
        Just(Evidence::Distance),
        Just(Evidence::Unknown),
    ]
}

fn kind() -> impl Strategy<Value = MemoryKind> {
    prop_oneof![
        Just(MemoryKind::Dram),
        Just(MemoryKind::Hbm),
        Just(MemoryKind::Cxl),
        Just(MemoryKind::Pmem),
        Just(MemoryKind::Gpu),
        Just(MemoryKind::Dax),
        Just(MemoryKind::Remote),
        Just(MemoryKind::Unknown),
    ]
}

/// Few values, so that ties are common.
fn time() -> impl Strategy<Value = Option<Figure<Nanos>>> {
    let value = prop_oneof![Just(80), Just(82), 1..=1_000_000_000u64].prop_map(Nanos);
    option::of((value, evidence()).prop_map(|(value, evidence)| Figure { value, evidence }))
}

fn rate() -> impl Strategy<Value = Option<Figure<BytesPerSec>>> {
    let value =
        prop_oneof![Just(20_000_000_000), Just(20_500_000_000), 1..=1_000_000_000_000_000u64]
            .prop_map(BytesPerSec);
    option::of((value, evidence()).prop_map(|(value, evidence)| Figure { value, evidence }))
}

fn cache() -> impl Strategy<Value = CacheLevel> {
    (3u32..12, 1u32..32, 1u64..1024, any::<bool>(), 0u64..1_000_000).prop_map(
        |(line, ways, sets, shared, hit)| CacheLevel {
            level: 0,
            size: Bytes((1 << line) * u64::from(ways) * sets),
            line: Bytes(1 << line),
            ways,
            shared,
            hit: Nanos(hit),
        },
    )
}

prop_compose! {
    fn part()(
        kind in kind(),
        cpus in btree_set(0u32..8, 0..3),
        capacity in prop_oneof![Just(0u64), Just(1 << 30), 1..=1u64 << 60],
        block in 0u32..20,
        package in option::of(0u32..65_536),
        (read, write, rest) in (option::of(0u32..), option::of(0u32..), option::of(0u32..)),
    ) -> Node {
        let cpus = cpus.into_iter().map(CpuId).collect();
        Node { id: NodeId(0), kind, cpus, capacity: Bytes(capacity), reserved: Bytes(capacity / 3),
            in_use: Bytes(capacity / 7), block: Bytes(1 << block), package,
            energy: Energy { read_pj_per_byte: read, write_pj_per_byte: write, static_mw: rest } }
    }
}

prop_compose! {
    fn figures()(
        read_latency in time(),
        write_latency in time(),
        read_bandwidth in rate(),
        write_bandwidth in rate(),
        distance in option::of(prop_oneof![Just(10u32), Just(20), 1..=1_000_000u32]),
    ) -> Link {
        let (initiator, target) = (NodeId(0), NodeId(0));
        Link { initiator, target, read_latency, write_latency, read_bandwidth, write_bandwidth,
            distance }
    }
}

prop_compose! {
    fn far_store()(
        times in [0u64..=1_000_000_000, 0..=1_000_000_000, 0..=1_000_000_000, 0..=1_000_000_000,
            0..=1_000_000_000],
        rates in [1u64..=1_000_000_000_000_000, 1..=1_000_000_000_000_000],
        on_cpu: bool,
    ) -> FarStore {
        FarStore {
            name: String::new(),
            fault: Nanos(times[0]),
            page: Nanos(times[1]),
            read_latency: Nanos(times[2]),
            write_latency: Nanos(times[3]),
            operation: Nanos(times[4]),
            read_bandwidth: BytesPerSec(rates[0]),
            write_bandwidth: BytesPerSec(rates[1]),
            on_cpu,
            evidence: Evidence::Measured,
        }
    }
}

prop_compose! {
    fn machine()(
        name in "[ -~é]{1,30}",
        notes in vec("[ -~]{0,20}|\"\\\\|\u{e9}\n\t\u{7f}", 0..3),
        page in 12u32..22,
        ns in prop_oneof![Just(0.25), 1e-9..1e6f64],
        outstanding_misses in 1u32..=65_536,
        tlb in (0u32..9, 1u32..9, 0u64..100),
        times in [0u64..=3_600_000_000_000, 0..=3_600_000_000_000, 0..=3_600_000_000_000],
        caches in vec(cache(), 0..4),
        nodes in btree_map(0u16..=255, part(), 1..7),
        links in btree_map((0usize..7, 0usize..7), figures(), 0..20),
        far in vec(far_store(), 0..4),
    ) -> Machine {
        let numbered = |(number, store)| FarStore { name: format!("store-{number}"), ..store };
        let far = far.into_iter().enumerate().map(numbered).collect();
        let mut nodes: Vec<Node> = nodes
            .into_iter()
            .enumerate()
            .map(|(index, (id, mut node))| {
                node.id = NodeId(id);
                for cpu in &mut node.cpus {
                    cpu.0 += 8 * index as u32;
                }
                node
            })
            .collect();
        nodes[0].cpus = vec![CpuId(0)];
        let last = nodes.len() - 1;
        nodes[last].capacity = nodes[last].capacity.max(Bytes(1));
        let last = nodes[last].id;
        let links = links
            .into_iter()
            .filter_map(|((from, to), link)| {
                let (from, to) = (nodes.get(from)?, nodes.get(to)?);
                (to.capacity > Bytes(0))
                    .then_some(Link { initiator: from.id, target: to.id, ..link })
            })
            .collect();
        let caches = caches
            .into_iter()
            .enumerate()
            .map(|(index, cache)| CacheLevel { level: index as u8 + 1, ..cache })
            .collect();
        Machine {
            name,
            page_size: Bytes(1 << page),
            core: CoreModel { ns_per_instruction: ns, outstanding_misses,
                tlb_flush: Nanos(times[0]) },
            tlb: TlbSpec { entries: tlb.1 << tlb.0, ways: tlb.1, l2_hit: Nanos(tlb.2),
                walk: Nanos(tlb.2 * 9), ..TlbSpec::UNLIMITED },
            caches,
            nodes,
            links,
            migration: MigrationCost { call: Nanos(times[1]), page: Nanos(times[2]),
                serial_percent: (times[1] % 101) as u8 },
            kernel: KernelCosts { query_page: Picos(times[1] % 1_000_000_000_001),
                ..KernelCosts::profile(if times[2] % 2 == 0 { CostProfile::Lab } else {
                    CostProfile::Host }) },
            loaded: vec![LoadLatencyCurve { node: last, read_percent: (times[0] % 101) as u8,
                points: vec![LoadedPoint { bandwidth: BytesPerSec(times[1] % 1_000_000_000_000),
                    added: Nanos(times[2] % 1_000_000) }] }],
            daemon: DaemonCosts { own_pages: (times[2] % 1000) as u32, ..DaemonCosts::default() },
            far,
            notes,
        }
    }
}

fn by() -> impl Strategy<Value = RankAttribute> {
    prop_oneof![
        Just(RankAttribute::Bandwidth),
        Just(RankAttribute::Latency),
        Just(RankAttribute::Capacity)
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(machine in machine()) {
        prop_assert_eq!(machine.check(), Ok(()));
        let text = machine.to_toml();
        let again = Machine::from_toml(&text, "again");
        prop_assert_eq!(again.as_ref(), Ok(&machine), "{}", text);
    }

    #[test]
    fn tiers_hold_each_node_with_memory_once_and_in_order(machine in machine(), by in by()) {
        let ranking = rank(&machine, by, None).expect("node 0 has CPUs");
        let mut ranked: Vec<NodeId> = ranking.tiers.iter().flat_map(|t| t.nodes.clone()).collect();
        ranked.sort_unstable();
        let memory: Vec<NodeId> =
            machine.nodes.iter().filter(|n| n.capacity > Bytes(0)).map(|n| n.id).collect();
        prop_assert_eq!(ranked, memory);
        for pair in ranking.tiers.windows(2) {
            prop_assert!(pair[0].basis <= pair[1].basis);
            if let (RankAttribute::Latency, Some(a), Some(b)) =
                (by, pair[0].read_latency, pair[1].read_latency) {
                prop_assert!(a.value <= b.value);
            }
            if let (RankAttribute::Bandwidth, Some(a), Some(b)) =
                (by, pair[0].read_bandwidth, pair[1].read_bandwidth) {
                prop_assert!(a.value >= b.value);
            }
            if by == RankAttribute::Capacity {
                prop_assert!(pair[0].capacity >= pair[1].capacity);
            }
        }
        let total: Bytes = ranking.tiers.iter().map(|t| t.capacity).sum();
        prop_assert_eq!(total, machine.nodes.iter().map(|n| n.capacity).sum());
        prop_assert_eq!(serde_json::to_value(TiersReport::new(&machine, &ranking, "x")).is_ok(),
            true);
        for line in render_text(&machine, &ranking, "x").lines() {
            prop_assert!(line.chars().count() <= 80, "{}", line);
        }
        prop_assert!(!explain(&machine).is_empty());
    }

    #[test]
    fn the_order_does_not_depend_on_the_order_of_the_description(machine in machine(), by in by()) {
        let mut turned = machine.clone();
        turned.nodes.reverse();
        turned.links.reverse();
        let ranking = |m: &Machine| rank(m, by, Some(machine.nodes[0].id)).expect("ranking");
        prop_assert_eq!(ranking(&machine).tiers, ranking(&turned).tiers);
    }

    #[test]
    fn lists_of_nodes_are_read_back(nodes in btree_set(0u16..300, 0..20)) {
        let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
        let again = terrace_machine::parse_list(&list(&nodes), 299).expect("a list");
        prop_assert_eq!(again, nodes.iter().map(|n| u32::from(n.0)).collect::<Vec<_>>());
    }

    #[test]
    fn any_text_gives_a_machine_or_one_line(bytes in vec(any::<u8>(), 0..300)) {
        let text = String::from_utf8_lossy(&bytes);
        for error in [
            Machine::from_toml(&text, "x").err(),
            from_hwloc_xml(&text, "x").err(),
        ].into_iter().flatten() {
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
    }
}
