//! Machines on which Linux runs and that are unlike most: each gives a machine and says what was
//! left out. Random trees of all such oddities follow; a failure prints the seed.

use terrace_machine::{
    rank, render_text, Evidence, Machine, MemoryKind, RankAttribute, TierRanking,
};
use terrace_topology::{gather, read_archive, survey, MemoryTree};
use terrace_types::{Bytes, CpuId, NodeId, Seed};

const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";

/// Adds a node: its CPUs as a list, its memory, its row of distances.
fn node(tree: &mut MemoryTree, id: u32, cpus: &str, mib: u64, distances: &str) {
    let folder = format!("{NODES}/node{id}");
    let meminfo = format!("Node {id} MemTotal: {:14} kB\n", mib << 10);
    tree.file(&format!("{folder}/cpulist"), format!("{cpus}\n"))
        .file(&format!("{folder}/meminfo"), meminfo)
        .file(&format!("{folder}/distance"), format!("{distances}\n"));
}

fn read(tree: &MemoryTree) -> Machine {
    survey(tree, "t").unwrap_or_else(|error| panic!("{error}")).machine
}

fn tiers(machine: &Machine) -> (Vec<Vec<u16>>, TierRanking) {
    let ranking =
        rank(machine, RankAttribute::Bandwidth, None).unwrap_or_else(|error| panic!("{error}"));
    let tiers = ranking.tiers.iter().map(|t| t.nodes.iter().map(|n| n.0).collect()).collect();
    (tiers, ranking)
}

/// Lines of `terrace tiers`, joined, so that a sentence can be looked for.
fn shown(machine: &Machine, ranking: &TierRanking) -> String {
    let text = render_text(machine, ranking, "x");
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// POWER9 with six GPUs: nodes 0, 8 and 250 to 255.
fn power9() -> MemoryTree {
    let mut tree = MemoryTree::new();
    let ids = [0, 8, 250, 251, 252, 253, 254, 255];
    tree.file(&format!("{NODES}/online"), "0,8,250-255\n");
    for (at, id) in ids.into_iter().enumerate() {
        let cpus = ["0-15", "16-31"].get(at).copied().unwrap_or("");
        let row: Vec<String> = (0..ids.len())
            .map(|to| {
                if to == at {
                    10
                } else if at + to == 1 {
                    40
                } else {
                    80
                }
            })
            .map(|d| d.to_string())
            .collect();
        node(&mut tree, id, cpus, if at < 2 { 131_072 } else { 15_360 }, &row.join(" "));
    }
    tree
}

#[test]
fn nodes_up_to_255_are_ranked_and_their_order_is_said_to_be_unknown() {
    let machine = read(&power9());
    let (order, ranking) = tiers(&machine);
    assert_eq!(order, [vec![0], vec![8], (250..=255).collect()]);
    assert_eq!(ranking.unordered.len(), 6);
    let text = shown(&machine, &ranking);
    assert!(
        text.contains("Nodes 250-255: order unknown.") && text.contains("terrace probe"),
        "{text}"
    );
}

#[test]
fn a_power9_with_a_gpu_driver_has_gpu_memory() {
    let mut tree = power9();
    tree.file("proc/cpuinfo", "cpu\t\t: POWER9, altivec supported\nplatform\t: PowerNV\n")
        .link("sys/bus/pci/drivers/nvidia/0004:04:00.0", "../../../../devices/pci0");
    let machine = read(&tree);
    assert!(machine.nodes.iter().all(|n| n.cpus.is_empty() == (n.kind == MemoryKind::Gpu)));
    // Its figures are not known for that, nor its order.
    assert_eq!(tiers(&machine).1.unordered.len(), 6);
}

#[test]
fn nodes_that_cannot_be_managed_are_left_out() {
    let mut tree = MemoryTree::new();
    node(&mut tree, 0, "0-3", 1024, "10 20 40");
    node(&mut tree, 255, "", 1024, "20 10 20");
    node(&mut tree, 300, "", 4096, "40 20 10");
    let machine = read(&tree);
    assert_eq!(machine.nodes.len(), 2);
    assert!(
        machine.notes.iter().any(|n| n.starts_with("Nodes 300 are left out")),
        "{:?}",
        machine.notes
    );
    // The row of distances counts it all the same.
    assert_eq!(machine.link(NodeId(0), NodeId(255)).and_then(|l| l.distance), Some(20));
}

#[test]
fn with_fake_numa_each_cpu_is_of_one_node() {
    let mut tree = MemoryTree::new();
    for id in 0..4 {
        node(&mut tree, id, "0-7", 1024, "10 10 10 10");
    }
    let machine = read(&tree);
    let cpus: Vec<usize> = machine.nodes.iter().map(|n| n.cpus.len()).collect();
    assert_eq!(cpus, [8, 0, 0, 0]);
    assert!(machine.notes.iter().any(|n| n.starts_with("CPUs 0-7 are listed by several nodes")));
    assert!(machine.nodes.iter().all(|n| n.kind == MemoryKind::Dram));
    assert_eq!(tiers(&machine).0, [[0, 1, 2, 3]]);
}

#[test]
fn distances_by_possible_node_and_zeros_are_read() {
    let mut tree = MemoryTree::new();
    tree.file(&format!("{NODES}/possible"), "0-3\n").file(&format!("{NODES}/online"), "0,2\n");
    node(&mut tree, 0, "0-1", 1024, "10 99 0 98");
    node(&mut tree, 2, "2-3", 1024, "20 99 10 98");
    let machine = read(&tree);
    let distance = |from, to| machine.link(NodeId(from), NodeId(to)).and_then(|l| l.distance);
    assert_eq!(
        [distance(0, 0), distance(0, 2), distance(2, 0), distance(2, 2)],
        [Some(10), None, Some(20), Some(10)]
    );
    assert!(machine.notes.iter().any(|n| n.starts_with("1 distance is no number")));
}

#[test]
fn what_is_offline_is_left_out_and_the_rest_is_whole() {
    let mut tree = MemoryTree::new();
    tree.file(&format!("{NODES}/online"), "0-1\n")
        .file(&format!("{CPUS}/online"), "1-3\n")
        .folder(&format!("{CPUS}/cpu0"));
    for cpu in 1..4 {
        tree.file(&format!("{CPUS}/cpu{cpu}/topology/physical_package_id"), "0\n")
            .file(&format!("{CPUS}/cpu{cpu}/cache/index0/level"), "1\n")
            .file(&format!("{CPUS}/cpu{cpu}/cache/index0/size"), "32K\n");
    }
    // The kernel lists CPU 0 still: it went offline while this was read.
    node(&mut tree, 0, "0-3", 1024, "10 20");
    node(&mut tree, 1, "", 1024, "20 10");
    node(&mut tree, 2, "", 0, "");
    let machine = read(&tree);
    assert_eq!(machine.nodes.len(), 2);
    assert!(machine.notes.iter().any(|n| n == "Nodes 2 are offline, and left out."));
    assert_eq!((machine.caches.len(), machine.nodes[0].package), (1, Some(0)));
}

#[test]
fn cpus_and_memory_of_no_node_are_placed_or_noted() {
    let mut tree = MemoryTree::new();
    tree.file(&format!("{CPUS}/online"), "0-3\n").file("proc/meminfo", "MemTotal: 4096 kB\n");
    node(&mut tree, 0, "0-1", 1, "10");
    let machine = read(&tree);
    assert!(machine.notes.iter().any(|n| n == "CPUs 2-3 are of no node, and left out."));
    node(&mut tree, 0, "", 1, "10");
    let machine = read(&tree);
    assert_eq!(machine.nodes[0].cpus, [0, 1, 2, 3].map(CpuId));
    // A node's own file without a size, as in containers that hide it.
    tree.file(&format!("{NODES}/node0/meminfo"), "");
    let machine = read(&tree);
    assert_eq!(
        (machine.nodes[0].capacity, machine.nodes[0].kind),
        (Bytes(4096 << 10), MemoryKind::Dram)
    );
}

/// Knights Landing in flat mode, without HMAT as it is.
fn knights_landing(hbm: u32, distances: [&str; 2]) -> MemoryTree {
    let mut tree = MemoryTree::new();
    tree.file(&format!("{CPUS}/modalias"), "cpu:type:x86,ven0000fam0006mod0057:feature:,0000\n");
    node(&mut tree, 0, "0-255", 98_304, distances[0]);
    for id in 1..=hbm {
        node(&mut tree, id, "", 16_384 / u64::from(hbm), distances[1]);
    }
    tree
}

#[test]
fn a_knights_landing_is_known_and_its_far_memory_is_the_fast_one() {
    let machine = read(&knights_landing(1, ["10 31", "31 10"]));
    let (order, ranking) = tiers(&machine);
    assert_eq!((order, machine.nodes[1].kind), (vec![vec![1], vec![0]], MemoryKind::Hbm));
    let figure = ranking.tiers[0].read_bandwidth.expect("the preset's");
    assert_eq!((figure.value.get(), figure.evidence), (400_000_000_000, Evidence::Preset));
    assert!(ranking.unordered.is_empty());
    // The same by its list of processors, where a tree has no more.
    let mut tree = knights_landing(1, ["10 31", "31 10"]);
    tree.file(&format!("{CPUS}/modalias"), "")
        .file("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 87\n");
    assert_eq!(read(&tree), machine);
    // Of another cluster mode no figures are known: the kind is, the order is not.
    let machine = read(&knights_landing(2, ["10 31 31", "31 10 41"]));
    let (_, ranking) = tiers(&machine);
    assert_eq!((machine.nodes[1].kind, ranking.unordered.len()), (MemoryKind::Hbm, 2));
    // Nor with distances that no such machine has.
    let machine = read(&knights_landing(1, ["10 17", "17 10"]));
    assert_eq!(tiers(&machine).1.unordered, [NodeId(1)]);
}

#[test]
fn a_grace_hopper_is_known() {
    let mut tree = MemoryTree::new();
    node(&mut tree, 0, "0-71", 491_520, "10 80");
    node(&mut tree, 1, "", 98_304, "80 10");
    tree.file(&format!("{CPUS}/cpu0/regs/identification/midr_el1"), "0x00000000410fd4f0\n")
        .link("sys/bus/pci/drivers/nvidia/0009:01:00.0", "../../../../devices/pci0");
    let machine = read(&tree);
    assert_eq!((machine.nodes[1].kind, tiers(&machine).1.unordered.len()), (MemoryKind::Gpu, 0));
    // What this rests on is gathered with the tree.
    let mut bytes = Vec::new();
    gather(&tree, Bytes(4096), &mut bytes).unwrap_or_else(|error| panic!("{error}"));
    let archive = read_archive(&bytes, "t").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(survey(&archive, "t").unwrap_or_else(|error| panic!("{error}")).machine, machine);
}

struct Random(Seed);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        let (value, next) = self.0.next();
        self.0 = next;
        value % limit.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A list of CPUs, overlapping others' at times.
    fn cpus(&mut self, id: u64) -> String {
        match self.below(6) {
            0 => String::new(),
            1 => "0-3".to_owned(),
            2 => format!("{}", self.below(9000)),
            _ => format!("{}-{}", id * 4, id * 4 + self.below(4)),
        }
    }
}

/// A tree as some kernel on some machine could show it: any numbers of nodes, memory anywhere, any
/// of the oddities above. CPUs are online somewhere, and there is memory.
fn random_tree(random: &mut Random) -> MemoryTree {
    let mut tree = MemoryTree::new();
    tree.file(&format!("{CPUS}/online"), format!("0-{}\n", random.below(64)))
        .file("proc/meminfo", "MemTotal: 16777216 kB\n");
    let mut ids: Vec<u64> = Vec::new();
    for _ in 0..random.below(12) {
        ids.push(if random.one_in(4) { 240 + random.below(800) } else { random.below(16) });
    }
    ids.sort_unstable();
    ids.dedup();
    let list: Vec<String> = ids.iter().map(u64::to_string).collect();
    let columns = if random.one_in(4) { 16 } else { ids.len() as u64 };
    if !random.one_in(3) {
        tree.file(&format!("{NODES}/online"), list.join(","));
    }
    if random.one_in(2) {
        tree.file(&format!("{NODES}/possible"), "0-15\n");
    }
    for id in ids {
        let row: Vec<String> = (0..columns)
            .map(|_| [0, 10, 20, 21, 31, 80, 255][random.below(7) as usize].to_string())
            .collect();
        let mib = [0, 1, 1024, 1 << 40][random.below(4) as usize];
        let cpus = random.cpus(id);
        node(&mut tree, id as u32, &cpus, mib, &row.join(" "));
        if random.one_in(6) {
            tree.file(&format!("{NODES}/node{id}/meminfo"), "Node MemFree: 1 kB\n");
        }
        if random.one_in(5) {
            let figures = format!("{NODES}/node{id}/access1/initiators");
            tree.file(&format!("{figures}/node{}", random.below(300)), "")
                .file(&format!("{figures}/read_latency"), "80\n")
                .file(&format!("{figures}/read_bandwidth"), format!("{}\n", random.below(2) << 14));
        }
    }
    for cpu in 0..random.below(8) {
        let id = if random.one_in(4) { "-1\n".to_owned() } else { format!("{}\n", cpu / 4) };
        tree.file(&format!("{CPUS}/cpu{cpu}/topology/physical_package_id"), id);
    }
    if random.one_in(8) {
        tree.file(&format!("{CPUS}/modalias"), "cpu:type:x86,ven0000fam0006mod0057:feature:\n");
    }
    tree
}

#[test]
fn any_machine_on_which_linux_runs_is_read() {
    let only = std::env::var("TERRACE_SEED").ok().and_then(|s| s.parse::<u64>().ok());
    for seed in only.map_or(0..3_000, |seed| seed..seed + 1) {
        let mut random = Random(Seed(seed));
        let tree = random_tree(&mut random);
        let found =
            survey(&tree, "t").unwrap_or_else(|error| panic!("TERRACE_SEED={seed}: {error}"));
        let machine = found.machine;
        assert_eq!(machine.check(), Ok(()), "TERRACE_SEED={seed}");
        for by in [RankAttribute::Bandwidth, RankAttribute::Latency, RankAttribute::Capacity] {
            let ranking = rank(&machine, by, None)
                .unwrap_or_else(|error| panic!("TERRACE_SEED={seed}: {error}"));
            let text = render_text(&machine, &ranking, "x");
            assert!(text.lines().all(|l| l.chars().count() <= 80), "TERRACE_SEED={seed}: {text}");
            let ranked: usize = ranking.tiers.iter().map(|t| t.nodes.len()).sum();
            let memory = machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO).count();
            assert_eq!(ranked, memory, "TERRACE_SEED={seed}");
        }
        let again = Machine::from_toml(&machine.to_toml(), "again");
        assert_eq!(again.as_ref(), Ok(&machine), "TERRACE_SEED={seed}");
    }
}
