//! Small machine models.

use terrace_machine::{
    CoreModel, DaemonCosts, Energy, Evidence, Figure, KernelCosts, Link, Machine, MemoryKind,
    MigrationCost, Node, TlbSpec,
};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId, TierState};

/// One node, as a test states it.
#[derive(Debug, Clone, Copy)]
pub struct NodeSpec {
    /// Whether CPUs are local to it.
    pub cpus: bool,
    /// Its memory.
    pub capacity: Bytes,
    /// Read latency from every CPU, ns; remote CPUs see half more.
    pub latency_ns: u64,
    /// Read and write bandwidth, GB/s.
    pub gb_per_s: (u64, u64),
    /// Smallest unit of the medium, bytes.
    pub block: u64,
    /// Socket.
    pub package: Option<u32>,
}

/// A machine of these nodes, numbered in order; moves cost 11 us a page and 100 us a call.
#[must_use]
pub fn machine(name: &str, specs: &[NodeSpec]) -> Machine {
    let figure = |value| Figure { value, evidence: Evidence::Config };
    let nodes = specs.iter().enumerate().map(|(i, s)| Node {
        id: NodeId(i as u16),
        kind: MemoryKind::Dram,
        cpus: if s.cpus { vec![CpuId(i as u32)] } else { Vec::new() },
        capacity: s.capacity,
        reserved: Bytes::ZERO,
        in_use: Bytes::ZERO,
        block: Bytes(s.block),
        package: s.package,
        energy: Energy::default(),
    });
    let mut links = Vec::new();
    for (from, a) in specs.iter().enumerate().filter(|(_, a)| a.cpus) {
        for (to, b) in specs.iter().enumerate() {
            let far = a.package != b.package && b.package.is_some() || (b.cpus && from != to);
            let latency = Nanos(if far { b.latency_ns * 3 / 2 } else { b.latency_ns });
            links.push(Link {
                initiator: NodeId(from as u16),
                target: NodeId(to as u16),
                read_latency: Some(figure_of(figure(latency.get()), Nanos)),
                write_latency: Some(figure_of(figure(latency.get()), Nanos)),
                read_bandwidth: Some(figure_of(figure(b.gb_per_s.0), BytesPerSec::gb)),
                write_bandwidth: Some(figure_of(figure(b.gb_per_s.1), BytesPerSec::gb)),
                distance: Some(if from == to {
                    10
                } else if far {
                    21
                } else {
                    14
                }),
            });
        }
    }
    Machine {
        name: name.to_owned(),
        page_size: Bytes(4096),
        core: CoreModel { ns_per_instruction: 0.25, outstanding_misses: 10, tlb_flush: Nanos(0) },
        tlb: TlbSpec::default(),
        caches: Vec::new(),
        nodes: nodes.collect(),
        links,
        migration: MigrationCost::default(),
        kernel: KernelCosts::default(),
        daemon: DaemonCosts::default(),
        loaded: Vec::new(),
        far: Vec::new(),
        notes: Vec::new(),
    }
}

fn figure_of<T, U>(figure: Figure<T>, f: impl Fn(T) -> U) -> Figure<U> {
    Figure { value: f(figure.value), evidence: figure.evidence }
}

/// Node 0 fast with the CPUs (80 ns, 100 GB/s), node 1 slow (300 ns, 20 GB/s).
#[must_use]
pub fn cxl(fast: Bytes, slow: Bytes) -> Machine {
    let node = |cpus, capacity, latency_ns, gb| NodeSpec {
        cpus,
        capacity,
        latency_ns,
        gb_per_s: (gb, gb),
        block: 64,
        package: None,
    };
    machine("test-cxl", &[node(true, fast, 80, 100), node(false, slow, 300, 20)])
}

/// Node 0 fast (80 ns, 40 GB/s), node 1 persistent memory (300 ns, 13 and 4.6 GB/s, 256-byte
/// blocks; 4 GB/s stands for 4.6).
#[must_use]
pub fn dcpmm(fast: Bytes, slow: Bytes) -> Machine {
    let spec = NodeSpec {
        cpus: true,
        capacity: fast,
        latency_ns: 80,
        gb_per_s: (40, 40),
        block: 64,
        package: None,
    };
    let slow = NodeSpec {
        cpus: false,
        capacity: slow,
        latency_ns: 300,
        gb_per_s: (13, 4),
        block: 256,
        ..spec
    };
    machine("test-dcpmm", &[spec, slow])
}

/// Node 0 DDR with the CPUs (20 GB/s), node 1 HBM without (100 GB/s), equal latency.
#[must_use]
pub fn hbm(fast: Bytes, slow: Bytes) -> Machine {
    let ddr = NodeSpec {
        cpus: true,
        capacity: slow,
        latency_ns: 100,
        gb_per_s: (20, 20),
        block: 64,
        package: None,
    };
    let hbm = NodeSpec { cpus: false, capacity: fast, gb_per_s: (100, 100), ..ddr };
    machine("test-hbm", &[ddr, hbm])
}

/// `cells` nodes with CPUs and memory, one socket each where `sockets`.
#[must_use]
pub fn numa(cells: usize, sockets: bool) -> Machine {
    let node = |i: usize| NodeSpec {
        cpus: true,
        capacity: Bytes::mib(64),
        latency_ns: 80,
        gb_per_s: (50, 50),
        block: 64,
        package: sockets.then_some(i as u32),
    };
    machine("test-numa", &(0..cells).map(node).collect::<Vec<_>>())
}

/// A tier of these nodes, in base pages of 4 KiB.
#[must_use]
pub fn tier(nodes: &[u16], capacity_pages: u64, free_pages: u64) -> TierState {
    TierState {
        nodes: nodes.iter().map(|n| NodeId(*n)).collect(),
        capacity: Bytes(capacity_pages * 4096),
        free: Bytes(free_pages * 4096),
        unused: Bytes(free_pages * 4096),
        write_throughput: None,
        throughput_source: terrace_types::ThroughputSource::Unknown,
    }
}
