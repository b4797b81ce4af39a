//! `plan`: from a recording with named objects to a plan for `run --alloc`.
//!
//! A plan tells allocations apart by size, so objects of one size are placed together. Which sizes
//! go to the fast tier is the solver's answer to a problem with two tiers: a size weighs what its
//! objects miss the machine's last cache, by the tiers' latencies, and takes as many bytes as its
//! objects have at the same time at most.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{Read, Seek};
use terrace_cache::Cache;
use terrace_machine::{rank, Machine, RankAttribute};
use terrace_policy::solve::{solve, Object, PlacementProblem, SolverTier, TierSplit};
use terrace_trace::{Block, BlockKind, EventKind, TraceError, TraceEvent, TraceReader};
use terrace_types::{Bytes, NodeId};

/// Bytes of a cache line; machines with others are planned for as if they had these.
const LINE: u64 = 64;
/// Sizes that get a rule of their own; the rest of a plan's 4096 is left to its reader.
const MOST_SIZES: usize = 2048;
/// An arena's limit is this much larger than what is planned for it: heaps keep headers and
/// rounded blocks beside the objects. A sixteenth is what arenas were measured to need at most
/// (docs/results/allocation.md).
const SLACK_SHIFT: u32 = 4;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum AllocationPlanError {
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] TraceError),
    /// No object of it has a name.
    #[error(
        "the recording names no objects: build the program with terrace-cc, and record it with \
         --objects BYTES"
    )]
    NoObjects,
    /// The machine has one tier.
    #[error("{0} has one tier of memory, so there is nothing to choose")]
    OneTier(String),
    /// The machine file says too little.
    #[error("{machine}: {why}")]
    Machine {
        /// Its name.
        machine: String,
        /// What is missing.
        why: String,
    },
}

/// Objects of one size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SizeUse {
    /// Bytes of each.
    pub bytes: u64,
    /// How many there were.
    pub objects: u64,
    /// Bytes of those that there were at the same time, at most.
    pub peak_bytes: u64,
    /// Loads that missed the last cache; of a sampled recording its samples of loads.
    pub loads: u64,
    /// The same of stores.
    pub stores: u64,
    /// Names of the first few.
    pub names: Vec<String>,
}

/// What a recording says of its objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllocationProfile {
    /// By size, ascending.
    pub sizes: Vec<SizeUse>,
    /// Misses that belong to no named object.
    pub elsewhere: u64,
}

/// Names kept of each size.
const MOST_NAMES: usize = 3;

#[derive(Debug, Default)]
struct ProfileBuilder {
    /// Live objects of each process by first byte: end, and size.
    live: HashMap<u32, BTreeMap<u64, u64>>,
    /// By size: what was seen, and bytes that live now.
    sizes: BTreeMap<u64, (SizeUse, u64)>,
    elsewhere: u64,
}

impl ProfileBuilder {
    fn take(&mut self, event: &TraceEvent) {
        match &event.what {
            EventKind::Object { start, length, name } => {
                self.end(event.process, *start);
                if !name.is_empty() && *length > 0 {
                    self.begin(event.process, *start, *length, name);
                }
            }
            EventKind::Exec { .. } => {
                let gone = self.live.remove(&event.process).unwrap_or_default();
                gone.values().for_each(|bytes| self.lessen(*bytes));
            }
            EventKind::Fork { parent } => {
                let copy = self.live.get(parent).cloned().unwrap_or_default();
                // The pages are shared until they are written: they count once.
                self.live.insert(event.process, copy);
            }
            _ => {}
        }
    }

    fn begin(&mut self, process: u32, start: u64, bytes: u64, name: &str) {
        self.live.entry(process).or_default().insert(start, bytes);
        let (seen, live) = self.sizes.entry(bytes).or_default();
        seen.bytes = bytes;
        seen.objects += 1;
        *live += bytes;
        seen.peak_bytes = seen.peak_bytes.max(*live);
        if seen.names.len() < MOST_NAMES && seen.names.iter().all(|known| known != name) {
            seen.names.push(name.to_owned());
        }
    }

    fn end(&mut self, process: u32, start: u64) {
        let gone = self.live.get_mut(&process).and_then(|live| live.remove(&start));
        gone.into_iter().for_each(|bytes| self.lessen(bytes));
    }

    fn lessen(&mut self, bytes: u64) {
        if let Some((_, live)) = self.sizes.get_mut(&bytes) {
            *live = live.saturating_sub(bytes);
        }
    }

    fn count(&mut self, process: u32, address: u64, store: bool) {
        let object = self
            .live
            .get(&process)
            .and_then(|live| live.range(..=address).next_back())
            .filter(|(start, bytes)| address - **start < **bytes);
        match object.and_then(|(_, bytes)| self.sizes.get_mut(bytes)) {
            Some((seen, _)) if store => seen.stores += 1,
            Some((seen, _)) => seen.loads += 1,
            None => self.elsewhere += 1,
        }
    }
}

impl AllocationProfile {
    /// Reads all of a recording. Of a recording of all accesses those count that miss the last
    /// cache of `machine`; samples all count.
    ///
    /// # Errors
    /// [`AllocationPlanError`].
    pub fn from_reader<R: Read + Seek>(
        reader: &mut TraceReader<R>,
        machine: &Machine,
    ) -> Result<Self, AllocationPlanError> {
        let mut cache = match reader.header().sampled {
            true => None,
            false => Some(last_cache(machine)?),
        };
        let mut builder = ProfileBuilder::default();
        let mut block = Block::new().map_err(|source| TraceError::Read { offset: 0, source })?;
        reader.rewind_to(0);
        while reader.next_block(&mut block)? {
            if block.info().kind == BlockKind::Events {
                block.events().iter().for_each(|event| builder.take(event));
                continue;
            }
            let process = block.info().process;
            for (address, kind) in block.addresses().iter().zip(block.kinds()) {
                // Addresses of user mode have 47 bits: the process goes above them.
                let line = (*address | u64::from(process) << 47) / LINE;
                let hit = cache.as_mut().is_some_and(|cache| cache.fetch(line, false).hit());
                if !hit {
                    builder.count(process, *address, kind.is_store());
                }
            }
        }
        let sizes: Vec<SizeUse> = builder.sizes.into_values().map(|(seen, _)| seen).collect();
        if sizes.is_empty() {
            return Err(AllocationPlanError::NoObjects);
        }
        Ok(Self { sizes, elsewhere: builder.elsewhere })
    }
}

fn last_cache(machine: &Machine) -> Result<Cache, AllocationPlanError> {
    let wrong = |why: String| AllocationPlanError::Machine { machine: machine.name.clone(), why };
    let level = machine.caches.last().ok_or_else(|| wrong("it names no cache".to_owned()))?;
    Cache::new(level.size.get(), level.ways, LINE).map_err(|e| wrong(e.to_string()))
}

/// A plan and what it promises.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocationPlan {
    /// The plan file's text.
    pub text: String,
    /// Sizes that go to the fast tier, with what they are.
    pub fast: Vec<SizeUse>,
    /// Bytes that these have at most.
    pub fast_bytes: Bytes,
    /// Share of the misses of named objects that the fast tier serves then.
    pub fast_share: f64,
    /// Misses of no named object, as a share of all.
    pub elsewhere_share: f64,
}

/// Chooses what goes to the best tier of `machine`, of which `space` bytes may be used.
///
/// # Errors
/// [`AllocationPlanError`].
pub fn plan_allocations(
    profile: &AllocationProfile,
    machine: &Machine,
    space: Bytes,
) -> Result<AllocationPlan, AllocationPlanError> {
    let wrong = |why: String| AllocationPlanError::Machine { machine: machine.name.clone(), why };
    let ranking =
        rank(machine, RankAttribute::Bandwidth, None).map_err(|e| wrong(e.to_string()))?;
    let (fast, slow) = match ranking.tiers.as_slice() {
        [fast, .., slow] => (fast, slow),
        _ => return Err(AllocationPlanError::OneTier(machine.name.clone())),
    };
    let gain = |better: Option<f64>, worse: Option<f64>| match (better, worse) {
        (Some(better), Some(worse)) if better > 0.0 => (worse / better).max(1.0),
        // Nothing but the order is known.
        _ => 2.0,
    };
    let ns = |figure: &Option<terrace_machine::Figure<terrace_types::Nanos>>| {
        figure.as_ref().map(|f| f.value.get() as f64)
    };
    let tiers = vec![
        SolverTier {
            capacity: space,
            read_gain: gain(ns(&fast.read_latency), ns(&slow.read_latency)),
            write_gain: gain(ns(&fast.write_latency), ns(&slow.write_latency)),
        },
        SolverTier { capacity: Bytes(u64::MAX >> 8), read_gain: 1.0, write_gain: 1.0 },
    ];
    let mut hottest: Vec<&SizeUse> = profile.sizes.iter().collect();
    hottest.sort_by_key(|size| (std::cmp::Reverse(size.loads + size.stores), size.bytes));
    hottest.truncate(MOST_SIZES);
    let object = |size: &&SizeUse| {
        let each = |count: u64| count as f64 / size.peak_bytes.max(1) as f64;
        Object {
            priority: 1.0,
            reads: each(size.loads),
            writes: each(size.stores),
            size: Bytes(size.peak_bytes),
            wanted: vec![0, 1],
            fallback: Vec::new(),
            split: TierSplit::Free,
            strict: false,
            whole: true,
        }
    };
    let problem = PlacementProblem {
        granule: machine.page_size,
        tiers,
        objects: hottest.iter().map(object).collect(),
    };
    let solution = solve(&problem).map_err(|e| wrong(e.to_string()))?;
    let mut chosen: Vec<SizeUse> = hottest
        .iter()
        .zip(&solution.placed)
        .filter(|(size, placed)| placed.bytes_in(0) > Bytes(0) && size.loads + size.stores > 0)
        .map(|(size, _)| (*size).clone())
        .collect();
    chosen.sort_by_key(|size| size.bytes);
    let count = |sizes: &[SizeUse]| -> u64 { sizes.iter().map(|s| s.loads + s.stores).sum() };
    let (all, won) = (count(&profile.sizes), count(&chosen));
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    Ok(AllocationPlan {
        text: text(&chosen, &fast.nodes, &slow.nodes, space),
        fast_bytes: Bytes(chosen.iter().map(|s| s.peak_bytes).sum()),
        fast_share: share(won, all),
        elsewhere_share: share(profile.elsewhere, all + profile.elsewhere),
        fast: chosen,
    })
}

fn text(fast: &[SizeUse], best: &[NodeId], worst: &[NodeId], space: Bytes) -> String {
    let list = terrace_machine::list;
    let limit = space.get() + (space.get() >> SLACK_SHIFT);
    let mut out = String::new();
    let _ = writeln!(out, "# Sizes of the objects that miss most, to the best tier.");
    let _ = writeln!(out, "arena fast prefer {} limit {limit}", list(best));
    let _ = writeln!(out, "arena slow prefer {}", list(worst));
    for size in fast {
        let names: Vec<String> =
            size.names.iter().map(|name| name.replace(['#', '\n'], " ")).collect();
        let more = if size.objects > size.names.len() as u64 { " and others" } else { "" };
        let _ = writeln!(
            out,
            "size {}..{} fast # {} x {}{more}",
            size.bytes,
            size.bytes + 1,
            size.objects,
            names.join(", ")
        );
    }
    let _ = writeln!(out, "default slow");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_alloc::arena::plan::ArenaPlan;

    fn object(start: u64, length: u64, name: &str) -> TraceEvent {
        let name = name.to_owned();
        TraceEvent {
            time: 0,
            process: 0,
            thread: 0,
            what: EventKind::Object { start, length, name },
        }
    }

    fn profile(builder: ProfileBuilder) -> AllocationProfile {
        let sizes = builder.sizes.into_values().map(|(seen, _)| seen).collect();
        AllocationProfile { sizes, elsewhere: builder.elsewhere }
    }

    #[test]
    fn objects_are_counted_by_size_while_they_live() {
        let mut b = ProfileBuilder::default();
        b.take(&object(0x1000, 4096, "make+0x10"));
        b.take(&object(0x9000, 4096, "make+0x20"));
        b.count(0, 0x1fff, false);
        b.count(0, 0x2000, false);
        b.count(0, 0x9000, true);
        b.take(&object(0x1000, 4096, ""));
        b.count(0, 0x1000, false);
        b.count(1, 0x9000, false);
        // The freed address again: never more than two at a time.
        b.take(&object(0x1000, 4096, "make+0x10"));
        let p = profile(b);
        let wanted = SizeUse {
            bytes: 4096,
            objects: 3,
            peak_bytes: 8192,
            loads: 1,
            stores: 1,
            names: vec!["make+0x10".to_owned(), "make+0x20".to_owned()],
        };
        assert_eq!((p.sizes.as_slice(), p.elsewhere), ([wanted].as_slice(), 3));
    }

    #[test]
    fn what_misses_most_for_its_bytes_is_fast_and_the_plan_can_be_read() {
        let machine = terrace_machine::preset("lab-cxl").unwrap();
        let size = |bytes: u64, loads: u64, name: &str| SizeUse {
            bytes,
            objects: 1,
            peak_bytes: bytes,
            loads,
            stores: 0,
            names: vec![name.to_owned()],
        };
        let mib = 1 << 20;
        let profile = AllocationProfile {
            sizes: vec![
                size(2 * mib, 4000, "small # and hot"),
                size(8 * mib, 9000, "large"),
                size(9 * mib, 100, "cold"),
            ],
            elsewhere: 100,
        };
        let plan = plan_allocations(&profile, &machine, Bytes(9 * mib)).unwrap();
        // Both do not fit: the larger has more misses, which is what counts.
        assert_eq!(plan.fast.iter().map(|s| s.bytes).collect::<Vec<_>>(), [8 * mib]);
        assert!((plan.fast_share - 9000.0 / 13_100.0).abs() < 1e-9);
        let plan = plan_allocations(&profile, &machine, Bytes(10 * mib)).unwrap();
        assert_eq!((plan.fast.len(), plan.fast_bytes), (2, Bytes(10 * mib)));
        let read = ArenaPlan::parse(plan.text.as_bytes()).unwrap();
        assert_eq!((read.rules.len(), read.arenas.len(), read.default), (2, 2, Some(1)));
        assert_eq!(read.arenas[0].limit, Some(Bytes(10 * mib + 10 * mib / 16)));
        assert_eq!(read.arenas[1].devices.nodes(), [NodeId(1)]);
        let one = terrace_machine::preset("lab-cxl").map(|mut m| {
            m.nodes.truncate(1);
            m.links.retain(|l| l.target == NodeId(0));
            m
        });
        assert!(plan_allocations(&profile, &one.unwrap(), Bytes(mib)).is_err());
    }
}
