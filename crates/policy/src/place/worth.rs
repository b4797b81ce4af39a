//! What it is worth to serve one access from a better tier, from the machine's own figures.

use serde::{Deserialize, Serialize};
use terrace_machine::{Figure, Machine};
use terrace_types::{Bytes, BytesPerSec, Nanos, NodeId};

/// Nanoseconds saved by each access that the better of two tiers serves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AccessWorth {
    /// By a read.
    pub read_ns: f64,
    /// By a write.
    pub write_ns: f64,
}

/// Bytes of a cache line, the unit of a read.
const LINE: f64 = 64.0;

impl AccessWorth {
    /// Of `fast` over `slow`, as the CPUs of the machine see them, for touches such as these.
    /// `unknown_gap_ns` is taken for the latency gained where the machine tells none.
    ///
    /// A lone access saves the difference in latency. Misses overlap: a core with `n` outstanding
    /// misses waits for between one and `1/n` of a latency; the geometric mean, `1/sqrt(n)`, is off
    /// by at most `sqrt(n)` either way. A page that is swept through saves none: the prefetcher
    /// hides it.
    ///
    /// Both save the difference in time that their lines hold the bus, as far as anybody waits for
    /// it ([`AccessKnowledge::wait`]). A lone write fetches its line (a read) and later leaves one
    /// medium block on the bus, at write bandwidth; a sweep fetches and leaves all lines of its
    /// page.
    #[must_use]
    pub fn between(
        machine: &Machine,
        fast: &[NodeId],
        slow: &[NodeId],
        touches: &AccessKnowledge,
        unknown_gap_ns: f64,
    ) -> Self {
        let overlap = f64::from(machine.core.outstanding_misses.max(1)).sqrt();
        let latency = match (latency(machine, slow), latency(machine, fast)) {
            (Some(slow), Some(fast)) => slow - fast,
            _ => unknown_gap_ns,
        };
        let wait = touches.wait(machine, slow);
        let page = touches.lines * LINE;
        let read = touches.mix(LINE, page) * per_byte(machine, slow, false, fast);
        let written = |nodes| {
            touches.mix(block(machine, nodes), page) * per_byte(machine, nodes, true, nodes)
        };
        let write = (written(slow) - written(fast)).max(0.0);
        let read_ns = (touches.mix(latency / overlap, 0.0) + wait * read).max(0.0);
        Self { read_ns, write_ns: read_ns + wait * write }
    }

    /// The larger of the two: nanoseconds that one access, more or less, makes.
    #[must_use]
    pub fn unit(&self) -> f64 {
        self.read_ns.max(self.write_ns)
    }

    /// In units of the larger: what one access counts for beside another, whatever either is worth
    /// now.
    #[must_use]
    pub fn relative(self) -> Self {
        let unit = self.unit().max(f64::MIN_POSITIVE);
        Self { read_ns: self.read_ns / unit, write_ns: self.write_ns / unit }
    }

    /// Reads and writes taken alike: a store is worth what a load is.
    #[must_use]
    pub fn write_blind(self) -> Self {
        Self { read_ns: self.read_ns, write_ns: self.read_ns }
    }
}

/// What is known of a program's accesses beside where they go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccessKnowledge {
    /// Pages found read, a second, all pages together.
    pub reads: f64,
    /// Pages found written, a second.
    pub writes: f64,
    /// Part of both, from 0 to 1, that belongs to sweeps through whole pages
    /// ([`crate::heat::SweepEstimator`]).
    pub swept: f64,
    /// Lines of a page.
    pub lines: f64,
}

impl AccessKnowledge {
    /// As many that every bus is busy, none of them in sweeps.
    pub const BUSY: Self = Self { reads: f64::INFINITY, writes: 0.0, swept: 0.0, lines: 64.0 };

    /// Of pages of `page` bytes.
    #[must_use]
    pub fn new(reads: f64, writes: f64, swept: f32, page: Bytes) -> Self {
        Self {
            reads,
            writes,
            swept: f64::from(swept.clamp(0.0, 1.0)),
            lines: (page.get() as f64 / LINE).max(1.0),
        }
    }

    /// Of a figure of a lone access and that of a sweep through a page.
    fn mix(&self, lone: f64, sweep: f64) -> f64 {
        (1.0 - self.swept) * lone + self.swept * sweep
    }

    /// How long a transfer waits for the bus of `slow`, in transfers, if all that is touched were
    /// there: the mean wait of a queue with random arrivals and equal transfers, `u / 2(1 - u)` at
    /// utilisation `u` (Pollaczek and Khinchine), and at most one, for a core has few misses in
    /// flight. Computed with all accesses, wherever they go now, so that what a page is worth does
    /// not change as pages move.
    #[must_use]
    pub fn wait(&self, machine: &Machine, slow: &[NodeId]) -> f64 {
        let page = self.lines * LINE;
        let bytes = self.mix(block(machine, slow), page);
        let (read, write) =
            (per_byte(machine, slow, false, slow), per_byte(machine, slow, true, slow));
        let busy = ((self.reads + self.writes) * bytes * read + self.writes * bytes * write) / 1e9;
        if busy >= 2.0 / 3.0 {
            1.0
        } else {
            busy / (2.0 * (1.0 - busy))
        }
    }
}

/// Bus time of a byte on `nodes`, less that on `than` when they differ; 0 when not known.
fn per_byte(machine: &Machine, nodes: &[NodeId], write: bool, than: &[NodeId]) -> f64 {
    let of = |nodes: &[NodeId]| {
        best(machine, nodes, |link| {
            let figure = if write {
                link.write_bandwidth.or(link.read_bandwidth)
            } else {
                link.read_bandwidth
            };
            figure.map(|f: Figure<BytesPerSec>| 1e9 / f.value.get().max(1) as f64)
        })
    };
    match (of(nodes), of(than)) {
        (Some(a), Some(b)) if nodes != than => a - b,
        (Some(a), _) if nodes == than => a,
        _ => 0.0,
    }
}

fn block(machine: &Machine, nodes: &[NodeId]) -> f64 {
    let blocks = nodes.iter().filter_map(|n| machine.node(*n)).map(|n| n.block.get());
    (blocks.max().unwrap_or(0) as f64).max(LINE)
}

fn latency(machine: &Machine, nodes: &[NodeId]) -> Option<f64> {
    best(machine, nodes, |link| link.read_latency.map(|f: Figure<Nanos>| f.value.get() as f64))
}

/// The least figure over all links from nodes with CPUs to `nodes`.
fn best(
    machine: &Machine,
    nodes: &[NodeId],
    figure: impl Fn(&terrace_machine::Link) -> Option<f64>,
) -> Option<f64> {
    let from_cpus = |link: &&terrace_machine::Link| {
        nodes.contains(&link.target)
            && machine.node(link.initiator).is_some_and(|n| !n.cpus.is_empty())
    };
    machine.links.iter().filter(from_cpus).filter_map(figure).min_by(f64::total_cmp)
}

/// The node of `tier` nearest to `page_node`: least latency, then distance, then the tier's order.
#[must_use]
pub fn nearest(machine: &Machine, page_node: NodeId, tier: &[NodeId]) -> Option<NodeId> {
    let rank = |to: &NodeId| {
        let link = machine.link(page_node, *to).or_else(|| machine.link(*to, page_node));
        let distance = link.and_then(|l| l.distance);
        let latency = link.and_then(|l| l.read_latency).map(|f| f.value.get());
        (distance.unwrap_or(u32::MAX), latency.unwrap_or(u64::MAX))
    };
    let package = |n: NodeId| machine.node(n).and_then(|n| n.package);
    let home = package(page_node);
    tier.iter().copied().min_by_key(|to| (home.is_some() && package(*to) != home, rank(to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: &[NodeId] = &[NodeId(0)];
    const SLOW: &[NodeId] = &[NodeId(1)];
    const HBM: (&[NodeId], &[NodeId]) = (SLOW, FAST);

    fn worth(preset: &str, tiers: (&[NodeId], &[NodeId]), touches: AccessKnowledge) -> AccessWorth {
        let machine = terrace_machine::preset(preset).unwrap();
        AccessWorth::between(&machine, tiers.0, tiers.1, &touches, 100.0)
    }

    fn swept(part: f64) -> AccessKnowledge {
        AccessKnowledge { swept: part, ..AccessKnowledge::BUSY }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.02 * b.abs()
    }

    #[test]
    fn a_lone_access_saves_latency_and_a_sweep_the_bus() {
        // 220 ns of latency over sqrt(2) misses in flight and one line at 20 instead of 100 GB/s;
        // or 64 lines.
        let of = |part| worth("lab-cxl", (FAST, SLOW), swept(part)).read_ns;
        assert!(
            close(of(0.0), 155.6 + 2.56) && close(of(1.0), 64.0 * 2.56),
            "{} {}",
            of(0.0),
            of(1.0)
        );
        assert!(close(of(0.5), (of(0.0) + of(1.0)) / 2.0));
    }

    #[test]
    fn where_only_bandwidth_differs_sweeps_are_worth_a_page_of_lines() {
        // 10 against 50 GB/s, latencies alike.
        let (lone, sweep) = (worth("lab-hbm", HBM, swept(0.0)), worth("lab-hbm", HBM, swept(1.0)));
        assert!(
            close(lone.read_ns, 5.12) && close(sweep.read_ns, 64.0 * 5.12),
            "{lone:?} {sweep:?}"
        );
    }

    #[test]
    fn bandwidth_that_nobody_waits_for_is_worth_nothing() {
        let of = |reads| {
            worth("lab-hbm", HBM, AccessKnowledge { reads, ..AccessKnowledge::BUSY }).read_ns
        };
        // 64 bytes each at 10 GB/s: 6.4 ns of the bus.
        assert!(of(0.0) == 0.0 && of(1e6) < 0.05, "{} {}", of(0.0), of(1e6));
        let half = 0.5e9 / 6.4;
        assert!(close(of(half), 0.5 * 5.12) && close(of(1e9), 5.12), "{} {}", of(half), of(1e9));
        // A page at a time it takes a 64th of the touches.
        let sweep = |reads| worth("lab-hbm", HBM, AccessKnowledge { reads, ..swept(1.0) }).read_ns;
        assert!(close(sweep(half / 64.0), 0.5 * 64.0 * 5.12), "{}", sweep(half / 64.0));
    }

    #[test]
    fn writes_of_a_sweep_leave_whole_blocks() {
        // Optane, 4.6 GB/s against 40: alone a line costs a block of 256 bytes, in a sweep it
        // shares one with three more.
        let of = |part| worth("lab-dcpmm", (FAST, SLOW), swept(part));
        let (lone, sweep) = (of(0.0), of(1.0));
        assert!(close(lone.write_ns - lone.read_ns, 256.0 / 4.6 - 64.0 / 40.0), "{lone:?}");
        assert!(
            close(sweep.write_ns - sweep.read_ns, 4096.0 * (1.0 / 4.6 - 1.0 / 40.0)),
            "{sweep:?}"
        );
    }
}
