//! `access-count`: each page to the memory of the cell that accesses it most (hardware-counter page
//! migration paper, section 5, equations 3 and 4).
//!
//! Cells (nodes with CPUs) form groups at equal distance. For each page, equation 3 sums its
//! sampled accesses over the cells of each group; equation 4 takes the group with the largest
//! *sum*, then the cell in it with the most. The page goes to that cell's memory; a page already
//! there stays. The group with the largest sum may not hold the cell with the largest count: a
//! neighbour in a busy group beats a lone heavy user elsewhere, since all of the group gains.
//!
//! Decided here, where the paper is silent:
//! * Groups are packages where every cell's package is known and there are several; else cells at
//!   the least distance found between two cells form a group.
//! * A cell whose node has no memory sends pages to the nearest node that has (least distance, then
//!   latency, then order).
//! * On equal counts the page's present place wins, then the lower number: a tie moves nothing.
//! * Moves that would overfill a tier are left out.

use super::runs::{free_pages, units, MoveRuns};
use super::worth::nearest;
use super::{number, SetError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use terrace_machine::Machine;
use terrace_types::{
    CellCount, Decision, MoveReason, Nanos, NodeId, Pid, Plan, Request, Seed, Snapshot, Tick, Vpn,
};

/// A node with CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuNode {
    /// The node.
    pub id: NodeId,
    /// Number of its group.
    pub group: u32,
    /// Node whose memory is nearest to it.
    pub memory: NodeId,
}

/// Parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// Cells of the machine.
    pub cells: Vec<CpuNode>,
    /// `least_samples`: pages with fewer sampled accesses are left alone (1).
    pub least_samples: u64,
    /// `period_ms`: between two evaluations (500 ms).
    pub period: Nanos,
}

/// It remembers nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {}

impl Params {
    /// The machine's cells and groups.
    #[must_use]
    pub fn for_machine(machine: &Machine) -> Self {
        let with_memory: Vec<NodeId> =
            machine.nodes.iter().filter(|n| n.capacity.get() > 0).map(|n| n.id).collect();
        let cpus: Vec<NodeId> =
            machine.nodes.iter().filter(|n| !n.cpus.is_empty()).map(|n| n.id).collect();
        let groups = groups(machine, &cpus);
        let memory = |id: NodeId| {
            if with_memory.contains(&id) {
                Some(id)
            } else {
                nearest(machine, id, &with_memory)
            }
        };
        let cells = cpus
            .iter()
            .zip(groups)
            .filter_map(|(id, group)| Some(CpuNode { id: *id, group, memory: memory(*id)? }));
        Self { cells: cells.collect(), least_samples: 1, period: Nanos::millis(500) }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        vec![
            ("least_samples", self.least_samples.to_string()),
            ("period_ms", (self.period.get() / 1_000_000).to_string()),
        ]
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "least_samples" => {
                self.least_samples = number(value, 1.0, 1e9, "samples, from 1")? as u64
            }
            "period_ms" => {
                let ms = number(value, 1.0, 600_000.0, "milliseconds, 1 to 600000")?;
                self.period = Nanos::millis(ms as u64);
            }
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

fn groups(machine: &Machine, cells: &[NodeId]) -> Vec<u32> {
    let packages: Vec<Option<u32>> =
        cells.iter().map(|c| machine.node(*c).and_then(|n| n.package)).collect();
    let first = packages.first().copied().flatten();
    if packages.iter().all(Option::is_some) && packages.iter().any(|p| *p != first) {
        return packages.into_iter().flatten().collect();
    }
    let distance = |a: NodeId, b: NodeId| machine.link(a, b).and_then(|l| l.distance);
    let pairs = || {
        let all = (0..cells.len()).flat_map(|a| (a + 1..cells.len()).map(move |b| (a, b)));
        all.filter_map(|(a, b)| Some((a, b, distance(cells[a], cells[b])?)))
    };
    let Some(least) = pairs().map(|(_, _, d)| d).min() else {
        return vec![0; cells.len()];
    };
    let mut group: Vec<u32> = (0..cells.len() as u32).collect();
    for (a, b, _) in pairs().filter(|(_, _, d)| *d == least) {
        let (keep, drop) = (group[a].min(group[b]), group[a].max(group[b]));
        for g in group.iter_mut().filter(|g| **g == drop) {
            *g = keep;
        }
    }
    group
}

/// Sends every sampled page to the cell that equations 3 and 4 name.
pub fn step(p: &Params, _s: &mut State, snap: &Snapshot, _now: Tick, _seed: Seed) -> Plan {
    let mut plan = Plan { requests: vec![Request::Wait(p.period)], ..Plan::default() };
    let hold = |name: &str, why: String| Decision {
        name: name.to_owned(),
        why,
        gain_ns_per_s: 0,
        cost_ns: 0,
    };
    if !snap.sees.cells {
        let why = "no tracker tells which cell accesses a page".to_owned();
        plan.decisions.push(hold("hold", why));
        return plan;
    }
    let mut free_counts = FreePageCounts::new(snap);
    let (mut runs, mut stay, mut full) = (MoveRuns::default(), 0u64, 0u64);
    let counts = by_unit(snap);
    plan.work.scanned_pages += snap.page_count();
    plan.work.rated_pages += counts.len() as u64;
    for (area_index, area) in snap.areas.iter().enumerate() {
        for unit in units(area).filter(|u| u.stat.movable()) {
            let Some(count) = counts.get(&(area_index, unit.index)) else {
                continue;
            };
            if count.values().sum::<u64>() < p.least_samples {
                continue;
            }
            let here = unit.stat.node();
            match home(p, count, here) {
                Some(to) if to != here => {
                    if free_counts.take(snap, here, to, u64::from(unit.pages)) {
                        runs.push(area.pid, area.start, &unit, to, MoveReason::NearAccessor);
                    } else {
                        full += u64::from(unit.pages);
                    }
                }
                _ => stay += u64::from(unit.pages),
            }
        }
    }
    let why = format!(
        "{} pages go to the cell that accesses them most, {stay} are there, {full} find it full",
        runs.pages
    );
    plan.decisions.push(hold(if runs.pages > 0 { "migrate" } else { "hold" }, why));
    plan.moves = runs.moves;
    plan
}

/// Equations 3 and 4: the memory of the cell that should have the page.
fn home(p: &Params, count: &BTreeMap<NodeId, u64>, here: NodeId) -> Option<NodeId> {
    let cell = |id: NodeId| {
        let own = CpuNode { id, group: u32::MAX - u32::from(id.0), memory: id };
        p.cells.iter().find(|c| c.id == id).copied().unwrap_or(own)
    };
    let mut sums: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
    for (id, n) in count {
        let c = cell(*id);
        let sum = sums.entry(c.group).or_default();
        sum.0 += n;
    }
    for c in p.cells.iter().filter(|c| c.memory == here) {
        if let Some(sum) = sums.get_mut(&c.group) {
            sum.1 = true;
        }
    }
    // Largest sum; on a tie the group the page is in, then the lower number.
    let (group, _) =
        sums.iter().max_by_key(|(g, (sum, here))| (*sum, *here, std::cmp::Reverse(**g)))?;
    let members = count.iter().map(|(id, n)| (cell(*id), *n)).filter(|(c, _)| c.group == *group);
    members
        .max_by_key(|(c, n)| (*n, c.memory == here, std::cmp::Reverse(c.id)))
        .map(|(c, _)| c.memory)
}

/// Sampled accesses by cell for each unit that has any: (area, first page) to cell to count.
fn by_unit(snap: &Snapshot) -> BTreeMap<(usize, usize), BTreeMap<NodeId, u64>> {
    let mut pages: BTreeMap<(Pid, Vpn), BTreeMap<NodeId, u64>> = BTreeMap::new();
    for CellCount { pid, vpn, cell, reads, writes, .. } in &snap.by_cell {
        *pages.entry((*pid, *vpn)).or_default().entry(*cell).or_default() +=
            u64::from(*reads) + u64::from(*writes);
    }
    let mut found: BTreeMap<(usize, usize), BTreeMap<NodeId, u64>> = BTreeMap::new();
    for (i, area) in snap.areas.iter().enumerate() {
        let range = area.range();
        let mut inside = pages.range((area.pid, range.start)..(area.pid, range.end)).peekable();
        if inside.peek().is_none() {
            continue;
        }
        for unit in units(area) {
            let end = Vpn(area.start.0 + (unit.index + unit.pages as usize) as u64);
            while let Some((_, cells)) = inside.next_if(|((_, vpn), _)| *vpn < end) {
                let sum = found.entry((i, unit.index)).or_default();
                for (cell, n) in cells {
                    *sum.entry(*cell).or_default() += n;
                }
            }
        }
    }
    found
}

/// Free pages by tier as moves are added in order.
struct FreePageCounts(Vec<u64>);

impl FreePageCounts {
    fn new(snap: &Snapshot) -> Self {
        Self((0..snap.tiers.len()).map(|rank| free_pages(snap, rank)).collect())
    }

    fn take(&mut self, snap: &Snapshot, from: NodeId, to: NodeId, pages: u64) -> bool {
        let Some(into) = snap.rank_of(to) else {
            return false;
        };
        let out = snap.rank_of(from);
        if out == Some(into) {
            return true;
        }
        if self.0[into] < pages {
            return false;
        }
        self.0[into] -= pages;
        if let Some(out) = out {
            self.0[out] += pages;
        }
        true
    }
}
