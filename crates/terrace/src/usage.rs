//! Who uses which memory now: nodes, processes, mappings, and by samples who accesses them. Reads
//! only; nothing of a process is changed.

use serde::Serialize;
use std::collections::BTreeMap;
use terrace_engine::{Mapping, MappingKind, SampleRequest, Tracker};
use terrace_sys::{node_memory, now, numa_maps, sleep, task, NodeMapping, Root};
use terrace_track::PerfSamples;
use terrace_types::{Bytes, Nanos, Pid, Vpn, VpnRange};

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeUsage {
    /// Node.
    pub node: u16,
    /// All that it has.
    pub total_bytes: u64,
    /// Free.
    pub free_bytes: u64,
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
    /// Bytes of pages that were sampled at least once.
    pub hot_bytes: u64,
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
    why_no_samples: Option<String>,
}

impl UsageWatch {
    /// Of this machine.
    #[must_use]
    pub fn new(subject: UsageSubject) -> Self {
        let root = Root::live();
        let (tracker, why_no_samples) = match PerfSamples::new(root.clone(), SHARE) {
            Ok(tracker) => (Some(tracker), None),
            Err(error) => (None, Some(format!("accesses are not sampled: {error}"))),
        };
        Self { root, subject, tracker, why_no_samples }
    }

    /// Looks once, after sampling accesses for `span` where something samples.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn look(&mut self, span: Nanos) -> Result<MemoryUsage, UsageError> {
        let mut notes: Vec<String> = self.why_no_samples.iter().cloned().collect();
        let pids = self.pids()?;
        let mut read: Vec<(ProcessUsage, Vec<NodeMapping>)> = Vec::new();
        let mut refused = None;
        for pid in pids {
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
        let (mut sampled_seconds, mut lost_samples) = (0.0, 0);
        if let Some(tracker) = &mut self.tracker {
            let before = now();
            match sample(tracker, &read, span) {
                Ok((accesses, lost)) => {
                    sampled_seconds = now().since(before).as_secs_f64();
                    lost_samples = lost;
                    for (process, _) in &mut read {
                        process.accesses = accesses.get(&process.pid).cloned();
                    }
                }
                Err(error) => notes.push(error),
            }
        }
        let nodes = node_memory(&self.root).into_iter().map(|node| NodeUsage {
            node: node.node.0,
            total_bytes: node.total.get(),
            free_bytes: node.free.get(),
        });
        let mut processes: Vec<ProcessUsage> = read.into_iter().map(|(p, _)| p).collect();
        processes.sort_by_key(|p| (std::cmp::Reverse(p.resident_bytes), p.pid));
        let nodes = nodes.collect();
        Ok(MemoryUsage { version: 1, nodes, processes, sampled_seconds, lost_samples, notes })
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

type AccessesByProcess = BTreeMap<i32, AccessUsage>;

/// Samples all processes for `span`: what of each, and how many samples were lost.
fn sample(
    tracker: &mut PerfSamples,
    processes: &[(ProcessUsage, Vec<NodeMapping>)],
    span: Nanos,
) -> Result<(AccessesByProcess, u64), String> {
    // Whatever the addresses: the tracker keeps counts by page for all that these processes access.
    let mappings: Vec<Mapping> = processes
        .iter()
        .map(|(process, _)| Mapping {
            pid: Pid(process.pid),
            range: VpnRange::new(Vpn(0), Vpn(0)),
            kind: MappingKind::Anonymous,
            writable: true,
        })
        .collect();
    let ask = SampleRequest {
        interval: span,
        fine: Vec::new(),
        reads: true,
        writes: true,
        relaxed: false,
        quick_scan: false,
    };
    tracker.begin(&mappings, &ask).map_err(|e| e.to_string())?;
    sleep(span);
    let seen = tracker.finish(now()).map_err(|e| e.to_string())?;
    let page = terrace_sys::page_size().get();
    let mut all = AccessesByProcess::new();
    let mut last = None;
    for count in &seen.by_cell {
        let usage = all.entry(count.pid.0).or_default();
        let samples = u64::from(count.reads) + u64::from(count.writes);
        usage.samples += samples;
        *usage.by_cpu_node.entry(count.cell.0).or_default() += samples;
        if let Some(thread) = count.thread {
            *usage.by_thread.entry(thread.0).or_default() += samples;
        }
        // Counts are in order of pages.
        if last.replace((count.pid, count.vpn)) != Some((count.pid, count.vpn)) {
            usage.hot_bytes += page;
        }
    }
    Ok((all, seen.lost))
}

impl MemoryUsage {
    /// For a terminal of so many columns; `lines` at most, if given.
    #[must_use]
    pub fn text(&self, columns: usize, lines: Option<usize>) -> String {
        let mut out: Vec<String> = Vec::new();
        for node in &self.nodes {
            let used = node.total_bytes.saturating_sub(node.free_bytes);
            out.push(format!(
                "node {:<3} {:>10} used of {:>10}, {:>10} free",
                node.node,
                Bytes(used).to_string(),
                Bytes(node.total_bytes).to_string(),
                Bytes(node.free_bytes).to_string()
            ));
        }
        out.push(String::new());
        let mut head = format!("{:>8} {:<16} {:>7} {:>10}", "pid", "name", "threads", "memory");
        self.nodes
            .iter()
            .for_each(|node| head += &format!(" {:>10}", format!("node {}", node.node)));
        head += &format!(" {:>9} {:>10}", "samples", "hot");
        out.push(head);
        for process in &self.processes {
            out.push(self.process_line(process));
            if self.processes.len() == 1 {
                out.extend(self.details(process));
            }
        }
        if self.lost_samples > 0 {
            out.push(format!("{} samples were lost", self.lost_samples));
        }
        out.extend(self.notes.iter().map(|note| format!("note: {note}")));
        let kept = lines.unwrap_or(out.len());
        let fit = |line: &String| line.chars().take(columns).collect::<String>() + "\n";
        out.iter().take(kept).map(fit).collect()
    }

    fn process_line(&self, process: &ProcessUsage) -> String {
        let name: String = printable(&process.name).chars().take(16).collect();
        let mut line = format!(
            "{:>8} {name:<16} {:>7} {:>10}",
            process.pid,
            process.threads,
            Bytes(process.resident_bytes).to_string()
        );
        line += &self.by_node(&process.by_node_bytes);
        match &process.accesses {
            Some(accesses) => {
                let hot = Bytes(accesses.hot_bytes).to_string();
                line += &format!(" {:>9} {hot:>10}", accesses.samples);
            }
            None => line += &format!(" {:>9} {:>10}", "-", "-"),
        }
        line
    }

    fn by_node(&self, bytes: &BytesByNode) -> String {
        let of = |node: &NodeUsage| bytes.get(&node.node).copied().unwrap_or(0);
        self.nodes.iter().map(|node| format!(" {:>10}", Bytes(of(node)).to_string())).collect()
    }

    /// Mappings and threads of the only process.
    fn details(&self, process: &ProcessUsage) -> Vec<String> {
        let mut lines = vec![String::new(), "mappings with most memory:".to_owned()];
        for mapping in &process.mappings {
            let name = match mapping.name.as_str() {
                "" => "anonymous".to_owned(),
                name => printable(name),
            };
            let nodes = self.by_node(&mapping.by_node_bytes);
            lines.push(format!("{:>16x}{nodes}  {name}", mapping.start));
        }
        if let Some(accesses) = &process.accesses {
            let all = accesses.samples.max(1) as f64;
            let share = |n: &u64| format!("{:.0}%", 100.0 * *n as f64 / all);
            lines.push("samples by thread:".to_owned());
            let by_thread = accesses.by_thread.iter().take(MAX_MAPPINGS);
            lines.extend(by_thread.map(|(tid, n)| format!("{tid:>16} {n:>10} {:>5}", share(n))));
            lines.push("samples by node of the CPU:".to_owned());
            let by_node = accesses.by_cpu_node.iter();
            lines.extend(by_node.map(|(node, n)| format!("{node:>16} {n:>10} {:>5}", share(n))));
        }
        lines
    }
}

/// A name from a program or file, fit for a terminal.
fn printable(text: &str) -> String {
    terrace_trace::printable(text)
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
