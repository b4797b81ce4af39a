//! Latency under load: what a miss takes beyond the idle latency, by how much of the node's memory
//! is asked for and by how much of that is read.

use crate::section::Section;
use crate::MachineError;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use terrace_types::{BytesPerSec, Nanos, NodeId};

/// Keys of a machine file's `[[loaded]]`.
pub(crate) const LOADED_KEYS: [&str; 4] = ["node", "read_percent", "gb_per_s", "added_ns"];
/// Most curves of a machine, and points of a curve, that are read.
pub(crate) const MAX_CURVES: usize = 4096;
const MAX_POINTS: usize = 256;
/// The highest figures that are believed: a petabyte a second, and a millisecond.
const MAX_GB_PER_S: f64 = 1e6;
const MAX_ADDED_NS: f64 = 1e6;

/// One curve of a node: added latency by bandwidth, at one share of reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadLatencyCurve {
    /// The node whose memory is loaded.
    pub node: NodeId,
    /// Bytes read of all bytes moved, per cent.
    pub read_percent: u8,
    /// Points by ascending bandwidth. Between two the latency is on the line through them; beyond
    /// the last it is the last one's.
    pub points: Vec<LoadedPoint>,
}

/// One point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedPoint {
    /// Bytes read and written a second, all CPUs together.
    pub bandwidth: BytesPerSec,
    /// What a miss takes beyond its idle latency.
    pub added: Nanos,
}

impl LoadLatencyCurve {
    /// Reads one `[[loaded]]`.
    pub(crate) fn read(section: &Section<'_, '_>) -> Result<Self, MachineError> {
        let node = section
            .integer("node", 0..=255)?
            .ok_or_else(|| section.missing("node", "`node = 1`"))?;
        let read_percent = section.integer("read_percent", 0..=100)?.unwrap_or(100) as u8;
        let rates = section.numbers("gb_per_s", MAX_POINTS, MAX_GB_PER_S)?;
        let added = section.numbers("added_ns", MAX_POINTS, MAX_ADDED_NS)?;
        if rates.is_empty() || rates.len() != added.len() {
            return Err(section.missing("added_ns", "as many numbers as in `gb_per_s`"));
        }
        if rates.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(section.missing("gb_per_s", "numbers that ascend"));
        }
        let point = |(rate, added): (&f64, &f64)| LoadedPoint {
            bandwidth: BytesPerSec((rate * 1e9).round() as u64),
            added: Nanos(added.round() as u64),
        };
        let points = rates.iter().zip(&added).map(point).collect();
        Ok(Self { node: NodeId(node as u16), read_percent, points })
    }

    /// Writes one `[[loaded]]`.
    pub(crate) fn write(&self, out: &mut String) {
        let list = |number: &dyn Fn(&LoadedPoint) -> String| {
            self.points.iter().map(number).collect::<Vec<_>>().join(", ")
        };
        let gb = |p: &LoadedPoint| {
            let (whole, rest) =
                (p.bandwidth.get() / 1_000_000_000, p.bandwidth.get() % 1_000_000_000);
            format!("{whole}.{rest:09}")
        };
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "\n[[loaded]]\nnode = {}\nread_percent = {}\ngb_per_s = [{}]\nadded_ns = [{}]\n",
            self.node,
            self.read_percent,
            list(&gb),
            list(&|p| p.added.get().to_string())
        );
    }
}
