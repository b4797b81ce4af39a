//! Descriptions of migratory machines: presets, and figures that replace theirs.

use crate::{MigratoryError, PS_PER_S};
use terrace_types::{Bytes, BytesPerSec, Nanos};

/// A machine: nodes of nodelets. All figures are of one nodelet unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigratoryMachine {
    /// Its name, for messages.
    pub name: String,
    /// Nodes, joined by a network.
    pub nodes: u32,
    /// Nodelets of a node.
    pub nodelets_per_node: u32,
    /// Cores of a nodelet.
    pub cores: u32,
    /// Threads that a core interleaves.
    pub threads_per_core: u32,
    /// Cycles a second of a core, which issues one instruction a cycle.
    pub clock_hz: u64,
    /// Cycles between two instructions of the same thread: the depth of the pipeline.
    pub issue_cycles: u32,
    /// Memory.
    pub memory: Bytes,
    /// From a load's issue to its value.
    pub memory_latency: Nanos,
    /// Of the memory channel; an access moves a word of 8 bytes.
    pub memory_bandwidth: BytesPerSec,
    /// Thread contexts a second that a migration engine sends.
    pub migrations_per_s: u64,
    /// From the migration engine to another nodelet of the node.
    pub migration_latency: Nanos,
    /// From a nodelet to another of the node, for updates, acknowledgements and ends of threads.
    pub packet_latency: Nanos,
    /// Bytes of a thread's context on the network between nodes.
    pub context: Bytes,
    /// Bytes of an update on the network between nodes.
    pub packet: Bytes,
    /// Cycles that a spawn takes beyond an instruction.
    pub spawn_cycles: u32,
    /// Contexts that a migration queue holds, into a nodelet and out of it. Arrivals beyond it are
    /// written to memory and read back; departures wait in their thread slot.
    pub queue_length: u32,
    /// Updates of one thread that are not yet acknowledged, at most; it bounds service queues.
    pub unacknowledged: u32,
    /// From a node to the switch between nodes.
    pub network_latency: Nanos,
    /// Of a node's link to the switch, each direction.
    pub network_bandwidth: BytesPerSec,
}

/// The machine of the MCHPC 2018 paper (its table 1): 8 nodelets, 1 core of 64 threads at 150 MHz,
/// 8 GB of 8-bit DRAM at 1600 MT/s, about 200 bytes a context. The paper does not give the rest.
/// Migrations: the first characterisation of the machine (Hein et al., AsHES 2018) reports about 9
/// million a second, and latencies of one to two microseconds; quoted from memory. The network's
/// bandwidth is the one that the maker's simulator prints ("SRIO SystemIC bandwidth", ES-INT-35.0).
/// The depth of the pipeline, memory latency, spawn time and queue lengths are our assumptions: at
/// half or double of them times change, counts hardly.
const CHICK: (u32, u32, u32, u64, u64) = (1, 8, 1, 150_000_000, 1_600_000_000);

impl MigratoryMachine {
    /// Names of the presets, with what they are.
    pub const PRESETS: [(&'static str, &'static str); 4] = [
        ("emu-chick", "one node of the Emu Chick prototype: 8 nodelets, 64 threads each, 150 MHz"),
        ("emu-chick-8", "all 8 nodes of the prototype"),
        (
            "emu-full-speed",
            "a node as designed: 8 nodelets of 4 cores at 300 MHz, DRAM at 2133 MT/s",
        ),
        ("pathfinder", "a Lucata Pathfinder: 8 nodes of 8 nodelets of 3 cores at 220 MHz"),
    ];

    /// One node of the Emu Chick.
    #[must_use]
    pub fn emu_chick() -> Self {
        let (nodes, nodelets_per_node, cores, clock_hz, bandwidth) = CHICK;
        Self {
            name: "emu-chick".to_owned(),
            nodes,
            nodelets_per_node,
            cores,
            threads_per_core: 64,
            clock_hz,
            issue_cycles: 8,
            memory: Bytes(8_000_000_000),
            memory_latency: Nanos(100),
            memory_bandwidth: BytesPerSec(bandwidth),
            migrations_per_s: 9_000_000,
            migration_latency: Nanos(1_200),
            packet_latency: Nanos(600),
            context: Bytes(200),
            packet: Bytes(32),
            spawn_cycles: 20,
            queue_length: 64,
            unacknowledged: 8,
            network_latency: Nanos(500),
            network_bandwidth: BytesPerSec(2_500_000_000),
        }
    }

    /// A preset, or one with figures replaced: `emu-chick,nodelets=16,clock_mhz=300`.
    ///
    /// # Errors
    /// [`MigratoryError::UnknownMachine`], [`MigratoryError::BadFigure`].
    pub fn parse(text: &str) -> Result<Self, MigratoryError> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let mut machine = Self::preset(name).ok_or_else(|| MigratoryError::UnknownMachine {
            name: name.to_owned(),
            known: Self::PRESETS.map(|(name, _)| name).join(", "),
        })?;
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            machine.set(key, value)?;
        }
        machine.name = text.to_owned();
        machine.check()?;
        Ok(machine)
    }

    fn preset(name: &str) -> Option<Self> {
        let chick = Self::emu_chick();
        let machine = match name {
            "emu-chick" => chick,
            "emu-chick-8" => Self { nodes: 8, ..chick },
            // The prototype's design before it was scaled down, as the maker's simulator prints it
            // (ES-INT-35.0: 4 cores a nodelet, 2^33 bytes, 300 MHz, DDR4-2133). That simulator
            // reaches 16 million migrations a second (Hein et al., quoted from memory); latencies
            // are half the prototype's, as the clock is double: ours.
            "emu-full-speed" => Self {
                cores: 4,
                clock_hz: 300_000_000,
                memory: Bytes(1 << 33),
                memory_bandwidth: BytesPerSec(2_133_000_000),
                migrations_per_s: 16_000_000,
                migration_latency: Nanos(600),
                packet_latency: Nanos(300),
                ..chick
            },
            // One chassis at Georgia Tech (gt-crnch-rg.readthedocs.io, "Lucata Pathfinder FAQs"): 8
            // nodes, in each 24 cores at about 220 MHz for 1536 threads, 8 memory processors, 64
            // GB, channels of 16 bits, a link to each of 6 switches. Ours: DRAM at 1600 MT/s,
            // RapidIO links of 2.5 GB/s as the prototype's, migrations as in the design above.
            "pathfinder" => Self {
                nodes: 8,
                cores: 3,
                clock_hz: 220_000_000,
                memory_bandwidth: BytesPerSec(3_200_000_000),
                migrations_per_s: 16_000_000,
                migration_latency: Nanos(600),
                packet_latency: Nanos(300),
                network_bandwidth: BytesPerSec(15_000_000_000),
                ..chick
            },
            _ => return None,
        };
        Some(Self { name: name.to_owned(), ..machine })
    }

    /// Replaces one figure.
    ///
    /// # Errors
    /// [`MigratoryError::BadFigure`] where the key is unknown or the value no number.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), MigratoryError> {
        let number = value.parse::<u64>();
        let bad = |expected: &str| MigratoryError::BadFigure {
            machine: self.name.clone(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.to_owned(),
        };
        let number = number.map_err(|_| bad("a whole number"))?;
        let count = u32::try_from(number).map_err(|_| bad("a number below 2^32"));
        match key {
            "nodes" => self.nodes = count?,
            "nodelets" => self.nodelets_per_node = count?,
            "cores" => self.cores = count?,
            "threads" => self.threads_per_core = count?,
            "clock_mhz" => self.clock_hz = number.saturating_mul(1_000_000),
            "issue_cycles" => self.issue_cycles = count?,
            "memory_bytes" => self.memory = Bytes(number),
            "memory_latency_ns" => self.memory_latency = Nanos(number),
            "memory_mb_per_s" => {
                self.memory_bandwidth = BytesPerSec(number.saturating_mul(1_000_000));
            }
            "migrations_per_s" => self.migrations_per_s = number,
            "migration_latency_ns" => self.migration_latency = Nanos(number),
            "packet_latency_ns" => self.packet_latency = Nanos(number),
            "spawn_cycles" => self.spawn_cycles = count?,
            "queue_length" => self.queue_length = count?,
            "unacknowledged" => self.unacknowledged = count?,
            "network_latency_ns" => self.network_latency = Nanos(number),
            _ => return Err(bad("one of the keys that docs/guide/migratory.md lists")),
        }
        Ok(())
    }

    /// Checks that all figures are possible together.
    ///
    /// # Errors
    /// [`MigratoryError::BadFigure`].
    pub fn check(&self) -> Result<(), MigratoryError> {
        let limits = [
            ("nodes", u64::from(self.nodes), 1, 64),
            ("nodelets", u64::from(self.nodelets_per_node), 1, 256),
            ("cores", u64::from(self.cores), 1, 1024),
            ("threads", u64::from(self.threads_per_core), 1, 4096),
            ("clock_mhz", self.clock_hz / 1_000_000, 1, 10_000),
            ("issue_cycles", u64::from(self.issue_cycles), 1, 1000),
            ("memory_latency_ns", self.memory_latency.get(), 1, 100_000),
            ("memory_mb_per_s", self.memory_bandwidth.get() / 1_000_000, 1, 1_000_000),
            ("migrations_per_s", self.migrations_per_s, 1000, 10_000_000_000),
            ("migration_latency_ns", self.migration_latency.get(), 10, 1_000_000),
            ("packet_latency_ns", self.packet_latency.get(), 10, 1_000_000),
            ("spawn_cycles", u64::from(self.spawn_cycles), 0, 100_000),
            ("queue_length", u64::from(self.queue_length), 1, 1 << 20),
            ("unacknowledged", u64::from(self.unacknowledged), 1, 1 << 20),
            ("network_latency_ns", self.network_latency.get(), 10, 1_000_000),
        ];
        match limits.into_iter().find(|(_, value, least, most)| value < least || value > most) {
            None => Ok(()),
            Some((key, value, least, most)) => Err(MigratoryError::BadFigure {
                machine: self.name.clone(),
                key: key.to_owned(),
                value: value.to_string(),
                expected: format!("{least} to {most}"),
            }),
        }
    }

    /// Nodelets of all nodes.
    #[must_use]
    pub fn nodelets(&self) -> u32 {
        self.nodes * self.nodelets_per_node
    }

    /// Threads that a nodelet interleaves.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.cores * self.threads_per_core
    }

    /// Picoseconds of a cycle.
    #[must_use]
    pub fn cycle_ps(&self) -> u64 {
        PS_PER_S / self.clock_hz.max(1)
    }

    /// Picoseconds for which a word occupies the memory channel.
    #[must_use]
    pub fn word_ps(&self) -> u64 {
        8 * PS_PER_S / self.memory_bandwidth.get().max(1)
    }

    /// Picoseconds between two contexts that a migration engine sends.
    #[must_use]
    pub fn engine_ps(&self) -> u64 {
        PS_PER_S / self.migrations_per_s.max(1)
    }

    /// Picoseconds of a simulation window: the least latency between nodelets.
    #[must_use]
    pub fn window_ps(&self) -> u64 {
        let mut least = self.migration_latency.get().min(self.packet_latency.get());
        if self.nodes > 1 {
            least = least.min(2 * self.network_latency.get());
        }
        least * 1000
    }
}
