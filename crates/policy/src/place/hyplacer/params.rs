//! HyPlacer's parameters, by name.

use crate::place::worth::nearest;
use crate::place::{number, SetError};
use serde::{Deserialize, Serialize};
use terrace_machine::Machine;
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// One socket: an instance of HyPlacer manages its nodes and no others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketNodes {
    /// Nodes of the socket, memory-only ones with the socket they are nearest to.
    pub nodes: Vec<NodeId>,
}

impl SocketNodes {
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }
}

/// Parameters. Defaults are the paper's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// `fast_limit`: share of the fast tier that may be in use (0.95).
    pub fast_limit: f64,
    /// `slow_write_threshold`: above it the slow tier holds write-intensive pages (10 MB/s).
    pub slow_write_threshold: BytesPerSec,
    /// `round_pages`: base pages selected at most in one round (131,072).
    pub round_pages: u64,
    /// `delay`: between CLEAR and selection (50 ms); sets the rate at which a page is intensive.
    pub delay: Nanos,
    /// `intensive_per_s`: rate at which a page counts as referenced where no bits are given; 0:
    /// `ln 2` accesses in one delay.
    pub intensive_per_s: f64,
    /// Writes are treated as reads: the variant that the paper's observation 2 is shown against.
    /// The control rule then reads the slow tier's accesses instead of its writes.
    pub write_blind: bool,
    /// Sockets.
    pub sockets: Vec<SocketNodes>,
    /// Memory of each node, to share a tier's free memory between sockets.
    pub capacities: Vec<(NodeId, Bytes)>,
}

impl Params {
    /// The paper's parameters, and this machine's sockets.
    #[must_use]
    pub fn for_machine(machine: &Machine) -> Self {
        Self {
            fast_limit: 0.95,
            slow_write_threshold: BytesPerSec::mb(10),
            round_pages: 131_072,
            delay: Nanos::millis(50),
            intensive_per_s: 0.0,
            write_blind: false,
            sockets: sockets(machine),
            capacities: machine.nodes.iter().map(|n| (n.id, n.capacity)).collect(),
        }
    }

    pub(crate) fn capacity_of(&self, node: NodeId) -> u64 {
        self.capacities.iter().find(|(n, _)| *n == node).map_or(0, |(_, c)| c.get())
    }

    /// Rate from which a page counts as touched within one delay.
    pub(crate) fn touched_per_s(&self) -> f64 {
        if self.intensive_per_s > 0.0 {
            self.intensive_per_s
        } else {
            std::f64::consts::LN_2 / self.delay.as_secs_f64().max(1e-6)
        }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("fast_limit", self.fast_limit.to_string()),
            (
                "slow_write_threshold_mb_per_s",
                (self.slow_write_threshold.get() / 1_000_000).to_string(),
            ),
            ("round_pages", self.round_pages.to_string()),
            ("delay_ms", (self.delay.get() as f64 / 1e6).to_string()),
            ("intensive_per_s", self.intensive_per_s.to_string()),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "fast_limit" => self.fast_limit = number(value, 0.01, 1.0, "a share from 0.01 to 1")?,
            "slow_write_threshold_mb_per_s" => {
                let mb = number(value, 0.0, 1e9, "megabytes a second, from 0")?;
                self.slow_write_threshold = BytesPerSec((mb * 1e6) as u64);
            }
            "round_pages" => self.round_pages = number(value, 1.0, 1e9, "pages, from 1")? as u64,
            "delay_ms" => {
                let ms = number(value, 0.1, 60_000.0, "milliseconds, 0.1 to 60000")?;
                self.delay = Nanos((ms * 1e6) as u64);
            }
            "intensive_per_s" => {
                self.intensive_per_s = number(value, 0.0, 1e12, "accesses a second, from 0")?;
            }
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

/// One socket a package; nodes of no package (CXL, PMEM) belong to the socket nearest to them.
fn sockets(machine: &Machine) -> Vec<SocketNodes> {
    let mut packages: Vec<u32> =
        machine.nodes.iter().filter(|n| !n.cpus.is_empty()).filter_map(|n| n.package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.len() < 2 {
        return vec![SocketNodes { nodes: machine.nodes.iter().map(|n| n.id).collect() }];
    }
    let with_cpus: Vec<NodeId> = machine
        .nodes
        .iter()
        .filter(|n| !n.cpus.is_empty() && n.package.is_some())
        .map(|n| n.id)
        .collect();
    let package_of = |node: &terrace_machine::Node| {
        node.package.filter(|p| packages.contains(p)).or_else(|| {
            let near = nearest(machine, node.id, &with_cpus)?;
            machine.node(near)?.package
        })
    };
    let socket = |package: u32| {
        let nodes = machine.nodes.iter().filter(|n| package_of(n) == Some(package));
        SocketNodes { nodes: nodes.map(|n| n.id).collect() }
    };
    packages.iter().map(|p| socket(*p)).collect()
}
