//! Who uses which memory now: nodes, processes, mappings, and by samples who accesses them. Reads
//! only; nothing of a process is changed.

mod rates;
mod samples;
mod text;

use rates::RateCounters;
use serde::Serialize;
use std::collections::BTreeMap;
use terrace_sys::{node_memory, now, numa_maps, sleep, task, NodeMapping, Root};
pub use terrace_trace::printable;
use terrace_track::PerfSamples;
use terrace_types::{Nanos, Pid};

/// Processes that are shown where none is named.
const MAX_PROCESSES: usize = 15;
/// Mappings of a process that are shown one by one.
const MAX_MAPPINGS: usize = 12;
/// Share of a core that watching may take.
const SHARE: f64 = 0.01;

/// Whose memory is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageSubject {
    /// Those with most memory, of all users.
    Largest,
    /// A process by number or name; all that have the name.
    Process(String),
    /// All in a control group: its path, from the root of the hierarchy or of the file system.
    ControlGroup(String),
}

/// Why nothing can be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// No process is called so.
    #[error("no process is called {0:?} or has this number; see ps")]
    NoProcess(String),
    /// No such group.
    #[error(
        "no control group {path:?} with processes in it: {why}; give its path below /sys/fs/cgroup"
    )]
    NoGroup {
        /// Path.
        path: String,
        /// What the kernel said.
        why: String,
    },
    /// None of the processes may be looked at.
    #[error("{0}; run as the process's user or as root")]
    Refused(String),
}

/// Memory by node, in order of nodes.
pub type BytesByNode = BTreeMap<u16, u64>;

/// One node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeUsage {
    /// Node.
    pub node: u16,
    /// All that it has.
    pub total_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Bytes a second read from DRAM behind the memory controllers of this node's CPUs; null where
    /// none is counted.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes a second written to it.
    pub written_bytes_per_s: Option<f64>,
}

/// Pages a second that the kernel moved over the interval, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct MoveRates {
    /// Moved for any reason.
    pub migrated_per_s: f64,
    /// Not moved.
    pub failed_per_s: f64,
    /// By NUMA balancing.
    pub balanced_per_s: f64,
    /// To a faster tier.
    pub promoted_per_s: f64,
    /// To a slower tier.
    pub demoted_per_s: f64,
}

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MappingUsage {
    /// First address.
    pub start: u64,
    /// File, `[heap]`, `[stack]`; empty: anonymous.
    pub name: String,
    /// Bytes in memory by node.
    pub by_node_bytes: BytesByNode,
    /// Samples of its accesses, and bytes of its pages that were sampled; null where nothing
    /// samples.
    pub samples: Option<u64>,
    /// See `samples`.
    pub hot_bytes: Option<u64>,
}

/// Samples of one process's accesses over the interval.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct AccessUsage {
    /// Samples.
    pub samples: u64,
    /// By thread.
    pub by_thread: BTreeMap<i32, u64>,
    /// By node of the CPU that made them.
    pub by_cpu_node: BTreeMap<u16, u64>,
    /// By node of the memory; pages that could not be found again are left out.
    pub by_memory_node: BTreeMap<u16, u64>,
    /// Share of the samples whose page was found that lie on the node of their CPU; null without
    /// any.
    pub local_share: Option<f64>,
    /// Bytes of pages that were sampled at least once.
    pub hot_bytes: u64,
    /// Bytes in memory that were not.
    pub cold_bytes: u64,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessUsage {
    /// Number.
    pub pid: i32,
    /// Name.
    pub name: String,
    /// Threads.
    pub threads: u64,
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// The same by node; empty where the kernel does not say.
    pub by_node_bytes: BytesByNode,
    /// Largest mappings, most memory first.
    pub mappings: Vec<MappingUsage>,
    /// What samples say of its accesses; null where nothing samples.
    pub accesses: Option<AccessUsage>,
}

/// All of it, once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryUsage {
    /// Of this format: 1.
    pub version: u32,
    /// Nodes with memory.
    pub nodes: Vec<NodeUsage>,
    /// Pages that the kernel moved; null where it does not say.
    pub moves: Option<MoveRates>,
    /// Processes, most memory first.
    pub processes: Vec<ProcessUsage>,
    /// Seconds over which accesses were sampled; zero where nothing samples.
    pub sampled_seconds: f64,
    /// Samples that were lost.
    pub lost_samples: u64,
    /// What could not be read, one sentence each.
    pub notes: Vec<String>,
}

/// Looks again and again.
#[derive(Debug)]
pub struct UsageWatch {
    root: Root,
    subject: UsageSubject,
    tracker: Option<PerfSamples>,
    rates: RateCounters,
    /// Of what cannot be measured, why.
    missing: Vec<String>,
}

impl UsageWatch {
    /// Of this machine.
    #[must_use]
    pub fn new(subject: UsageSubject) -> Self {
        let root = Root::live();
        let mut missing = Vec::new();
        let tracker = PerfSamples::new(root.clone(), SHARE)
            .map_err(|error| missing.push(format!("accesses are not sampled: {error}")))
            .ok();
        let (rates, why_no_bandwidth) = RateCounters::open(&root);
        missing.extend(why_no_bandwidth);
        Self { root, subject, tracker, rates, missing }
    }

    /// Looks once, after `span`, over which accesses are sampled and rates are measured.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn look(&mut self, span: Nanos) -> Result<MemoryUsage, UsageError> {
        let mut notes = self.missing.clone();
        let mut read = self.read(&mut notes)?;
        self.rates.begin(&self.root, now());
        let (mut sampled_seconds, mut lost_samples) = (0.0, 0);
        match &mut self.tracker {
            Some(tracker) => {
                let before = now();
                match samples::sample(tracker, &mut read, span) {
                    Ok(lost) => {
                        sampled_seconds = now().since(before).as_secs_f64();
                        lost_samples = lost;
                    }
                    Err(error) => notes.push(error),
                }
            }
            None => sleep(span),
        }
        let rates = self.rates.finish(&self.root, now());
        let nodes = node_memory(&self.root).into_iter().map(|node| NodeUsage {
            node: node.node.0,
            total_bytes: node.total.get(),
            free_bytes: node.free.get(),
            read_bytes_per_s: rates.read.get(&node.node.0).copied(),
            written_bytes_per_s: rates.written.get(&node.node.0).copied(),
        });
        let nodes = nodes.collect();
        let mut processes: Vec<ProcessUsage> = read.into_iter().map(|(p, _)| p).collect();
        processes.sort_by_key(|p| (std::cmp::Reverse(p.resident_bytes), p.pid));
        Ok(MemoryUsage {
            version: 1,
            nodes,
            moves: rates.moves,
            processes,
            sampled_seconds,
            lost_samples,
            notes,
        })
    }

    /// Processes with their memory, and all their mappings.
    fn read(&self, notes: &mut Vec<String>) -> Result<Vec<ProcessMappings>, UsageError> {
        let mut read = Vec::new();
        let mut refused = None;
        for pid in self.pids()? {
            match numa_maps(&self.root, pid) {
                Ok(mappings) => read.push((process(&self.root, pid, &mappings), mappings)),
                Err(error) if task::is_over(&self.root, pid, &error) => {}
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            if read.is_empty() && self.subject != UsageSubject::Largest {
                return Err(UsageError::Refused(error.to_string()));
            }
            notes.push(format!("some processes are left out: {error}"));
        }
        Ok(read)
    }

    fn pids(&self) -> Result<Vec<Pid>, UsageError> {
        let all = || {
            let names = self.root.list("/proc").unwrap_or_default();
            names.into_iter().filter_map(|name| name.parse().ok().map(Pid)).collect::<Vec<_>>()
        };
        match &self.subject {
            UsageSubject::Largest => {
                let mut sizes: Vec<(u64, Pid)> = all()
                    .into_iter()
                    .filter_map(|pid| Some((task::resident_pages(&self.root, pid).ok()?, pid)))
                    .collect();
                sizes.sort_by_key(|(pages, pid)| (std::cmp::Reverse(*pages), *pid));
                Ok(sizes.into_iter().map(|(_, pid)| pid).take(MAX_PROCESSES).collect())
            }
            UsageSubject::Process(name) => {
                let number = name.parse().ok().map(Pid);
                let own = Pid(std::process::id() as i32);
                let called = |pid: &Pid| {
                    Some(*pid) == number
                        || number.is_none() && *pid != own && task::name(&self.root, *pid) == *name
                };
                let found: Vec<Pid> = all().into_iter().filter(called).collect();
                if found.is_empty() {
                    return Err(UsageError::NoProcess(name.clone()));
                }
                Ok(found)
            }
            UsageSubject::ControlGroup(path) => self.group(path),
        }
    }

    fn group(&self, path: &str) -> Result<Vec<Pid>, UsageError> {
        let below = format!("/sys/fs/cgroup/{}", path.trim_start_matches('/'));
        let text = [path.to_owned(), below]
            .iter()
            .map(|folder| self.root.text(&format!("{folder}/cgroup.procs")))
            .reduce(Result::or);
        let failed = |why: &dyn std::fmt::Display| UsageError::NoGroup {
            path: path.to_owned(),
            why: why.to_string(),
        };
        let text = match text {
            Some(Ok(text)) => text,
            Some(Err(error)) => return Err(failed(&error)),
            None => return Err(failed(&"no such path")),
        };
        let pids: Vec<Pid> = text.lines().filter_map(|line| line.parse().ok().map(Pid)).collect();
        if pids.is_empty() {
            return Err(failed(&"it is empty"));
        }
        Ok(pids)
    }
}

/// A process with all its mappings.
type ProcessMappings = (ProcessUsage, Vec<NodeMapping>);

fn process(root: &Root, pid: Pid, mappings: &[NodeMapping]) -> ProcessUsage {
    let mut by_node = BytesByNode::new();
    for (node, bytes) in mappings.iter().flat_map(|m| &m.by_node) {
        *by_node.entry(node.0).or_default() += bytes.get();
    }
    let mut largest: Vec<&NodeMapping> = mappings.iter().collect();
    largest.sort_by_key(|m| (std::cmp::Reverse(m.resident()), m.start));
    let usage = |m: &&NodeMapping| MappingUsage {
        start: m.start,
        name: m.name.clone(),
        by_node_bytes: m.by_node.iter().map(|(node, bytes)| (node.0, bytes.get())).collect(),
        samples: None,
        hot_bytes: None,
    };
    ProcessUsage {
        pid: pid.0,
        name: task::name(root, pid),
        threads: task::threads(root, pid).map_or(0, |threads| threads.len() as u64),
        resident_bytes: by_node.values().sum(),
        by_node_bytes: by_node,
        mappings: largest.iter().take(MAX_MAPPINGS).map(usage).collect(),
        accesses: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_shown_with_its_memory_by_node() {
        let own = std::process::id().to_string();
        let mut watch = UsageWatch::new(UsageSubject::Process(own.clone()));
        let memory = vec![1u8; 32 << 20];
        let usage = match watch.look(Nanos::millis(1)) {
            Ok(usage) => usage,
            Err(error) => return println!("skipped: {error}"),
        };
        let [process] = &usage.processes[..] else { panic!("{usage:?}") };
        assert!(process.resident_bytes >= memory.len() as u64, "{process:?}");
        assert_eq!(process.by_node_bytes.values().sum::<u64>(), process.resident_bytes);
        assert!(process.threads >= 1 && !process.mappings.is_empty());
        let text = usage.text(80, None);
        assert!(
            text.contains(&own) && text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(usage.text(80, Some(2)).lines().count(), 2);
        assert!(memory.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn a_missing_process_is_an_error() {
        let look = |subject| UsageWatch::new(subject).look(Nanos::ZERO).unwrap_err().to_string();
        let none = look(UsageSubject::Process("no such program".into()));
        assert!(none.starts_with("no process is called"), "{none}");
        let none = look(UsageSubject::ControlGroup("no/such/group".into()));
        assert!(none.contains("no control group \"no/such/group\""), "{none}");
    }

    #[test]
    fn the_largest_come_first() {
        let usage = UsageWatch::new(UsageSubject::Largest).look(Nanos::ZERO).unwrap();
        let sizes: Vec<u64> = usage.processes.iter().map(|p| p.resident_bytes).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes.len() <= MAX_PROCESSES, "{sizes:?}");
        assert_eq!(usage.version, 1);
    }
}
