//! `terrace degrade`: a command while one of the machine's nodes is made slower.

use serde::Serialize;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
pub use terrace_probe::degrade::DegradeError;
use terrace_probe::degrade::{
    addition, divide, regions, CpuDivision, Knobs, LoadController, LoadSearch, LoadSummary,
    LoadTally, Loader, SearchAction, ThreadSampler, WINDOW,
};
use terrace_probe::kernels::ElementKernel;
use terrace_probe::{situation, Depth, Instrument, LiveMachine, Situation, Task, Trouble};
use terrace_sys::{now, pin, CommandExit, Root, Runner, StartError};
use terrace_topology::{load_machine, MachineSource, TopologyError};
use terrace_types::{Bytes, BytesPerSec, CpuId, Nanos, NodeId};

/// What is promised of the node's bandwidth.
const PROMISED: f64 = 0.1;
/// And for so much of the time.
const MOSTLY: f64 = 0.9;
/// Fewer readings than this say nothing of a share.
const FEW: u32 = 5;

/// What was held, and how.
#[derive(Debug, Clone, Serialize)]
pub struct DegradeAccount {
    /// The node.
    pub node: u16,
    /// What was asked for.
    pub wanted_bytes_per_s: u64,
    /// Read bandwidth of the command's CPUs without load.
    pub free_bytes_per_s: u64,
    /// With the load, before the command.
    pub before_bytes_per_s: u64,
    /// With the load, after the command; null where it was not measured.
    pub after_bytes_per_s: Option<u64>,
    /// Other nodes, without the load and with it.
    pub others: Vec<OtherNode>,
    /// CPUs of the load.
    pub loader_cpus: Vec<u32>,
    /// CPUs of the command.
    pub command_cpus: Vec<u32>,
    /// Loading threads.
    pub threads: u32,
    /// Additions after every 64 lines that the stencil goes over.
    pub adds: u32,
    /// What the loading threads go over together.
    pub region_bytes: u64,
    /// What was left while the command ran; null where nothing was read then.
    pub watched: Option<WatchedRun>,
    /// Why nothing was.
    pub not_watched: Option<String>,
}

/// What was seen and done while the command ran.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WatchedRun {
    /// What was left.
    #[serde(flatten)]
    pub held: LoadSummary,
    /// How often the load was changed.
    pub changes: u32,
    /// Readings that gave nothing: a thread did not get its CPU in time.
    pub disturbed: u32,
    /// What all readings took of the command's CPUs.
    pub cost_share: f64,
}

/// A node that is not to be slower.
#[derive(Debug, Clone, Serialize)]
pub struct OtherNode {
    /// The node.
    pub node: u16,
    /// Without the load.
    pub free_bytes_per_s: u64,
    /// With it.
    pub loaded_bytes_per_s: u64,
}

impl DegradeAccount {
    /// Lines for standard error.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let rate = |r: u64| BytesPerSec(r).to_string();
        let mut lines = vec![format!(
            "node {} gives the command {} of {} (asked for {}): {} loading threads, {} adds, over \
                {}",
            self.node,
            rate(self.before_bytes_per_s),
            rate(self.free_bytes_per_s),
            rate(self.wanted_bytes_per_s),
            self.threads,
            self.adds,
            Bytes(self.region_bytes)
        )];
        lines.extend(self.others.iter().map(|o| {
            let less = 1.0 - o.loaded_bytes_per_s as f64 / o.free_bytes_per_s.max(1) as f64;
            // The promise that is made of the node itself.
            let verdict = if less > 0.1 {
                format!(": {:.0}% less, NOT unaffected", less * 100.0)
            } else {
                String::new()
            };
            format!(
                "node {} gives {} with the load, {} without{verdict}",
                o.node,
                rate(o.loaded_bytes_per_s),
                rate(o.free_bytes_per_s)
            )
        }));
        lines
    }

    /// What was left while the command ran and after it, and whether it is what was asked for.
    #[must_use]
    pub fn last_line(&self) -> String {
        let rate = |r: u64| BytesPerSec(r).to_string();
        let off = |r: u64| (r as f64 / self.wanted_bytes_per_s.max(1) as f64 - 1.0) * 100.0;
        let mut reported = Vec::new();
        let mut held = None;
        if let Some(after) = self.after_bytes_per_s {
            reported.push(format!("{} at the end ({:+.1}%)", rate(after), off(after)));
            held = Some(off(after).abs() <= PROMISED * 100.0);
        }
        if let Some(WatchedRun { held: h, changes, cost_share, .. }) = &self.watched {
            let [low, high] = h.quartiles_bytes_per_s;
            reported.push(format!(
                "{} while the command ran (quartiles {} and {}; {:+.1}%), within 10% for {:.0}% \
                    of {} by means over {}, {:.0}% by single ones of {} readings, which took \
                    {:.1}% of its CPUs; the load was changed {changes} times",
                rate(h.median_bytes_per_s),
                rate(low),
                rate(high),
                off(h.median_bytes_per_s),
                h.share_within * 100.0,
                Nanos(h.span_ns),
                WINDOW,
                h.readings_within * 100.0,
                h.readings,
                cost_share * 100.0
            ));
            if h.readings >= FEW {
                held = Some(h.share_within >= MOSTLY);
            }
        }
        reported.extend(
            self.not_watched
                .as_ref()
                .map(|why| format!("not observed while the command ran ({why})")),
        );
        match held {
            None => {
                format!("node {} was let go; what it gave at the end was not measured", self.node)
            }
            Some(held) => {
                let verdict = if held { "held" } else { "NOT held within 10%" };
                format!("node {} gave {}: {verdict}", self.node, reported.join(", "))
            }
        }
    }
}

/// Why the command did not run.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// The node cannot be degraded so.
    #[error(transparent)]
    Degrade(#[from] DegradeError),
    /// The machine cannot be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The command cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Runs `argv` while reads of `node` by the command's CPUs are held at `to`, the load on the CPUs
/// `load` or on some that are chosen. `reported` hears what was found before the command starts.
/// The load ends with this function, and with the process however it ends.
///
/// # Errors
/// [`NotRun`]: the command did not run.
pub fn degrade(
    node: NodeId,
    to: BytesPerSec,
    load: Option<&[CpuId]>,
    argv: &[OsString],
    reported: &mut dyn FnMut(&DegradeAccount),
) -> Result<(CommandExit, DegradeAccount), NotRun> {
    let machine = load_machine(&MachineSource::Live)?;
    let whole = situation(machine, &Root::live());
    let division = divide(&whole, node, load)?;
    let regions = regions(&whole, node)?;
    let command = Situation { cpus: division.program.clone(), ..whole.clone() };
    let never = AtomicBool::new(false);
    let loader = Loader::start(&division.loader, node, regions.1).map_err(DegradeError::Trouble)?;
    let (mut account, knobs) = {
        let mut live = LiveMachine::new(&command, Depth::Quick, &never);
        let others: Vec<NodeId> = command.nodes.iter().copied().filter(|n| *n != node).collect();
        let free: Vec<_> =
            others.iter().map(|n| (*n, available(&mut live, &command, *n).ok())).collect();
        let mut search = LoadSearch::new(node, to, division.loader.len() as u32, regions);
        let mut action = search.first();
        let (knobs, before) = loop {
            match action {
                SearchAction::Try(knobs) => {
                    loader.set(knobs).map_err(DegradeError::Trouble)?;
                    action = search.observe(available(&mut live, &command, node)?)?;
                }
                SearchAction::Hold(knobs, rate) => break (knobs, rate),
            }
        };
        let others = free
            .into_iter()
            .filter_map(|(n, free)| {
                let loaded = available(&mut live, &command, n).ok()?;
                Some(OtherNode {
                    node: n.0,
                    free_bytes_per_s: free?.get(),
                    loaded_bytes_per_s: loaded.get(),
                })
            })
            .collect();
        (account(node, to, &division, (search.free(), before), knobs, others), knobs)
    };
    reported(&account);
    // The command inherits its CPUs.
    pin(&division.program).map_err(|e| DegradeError::Trouble(Trouble::Sys(e)))?;
    let control = LoadController::new(to, knobs, division.loader.len() as u32, addition());
    let (ended, watched) = run(argv, sampler(&command, node), control, &loader, to)?;
    match watched {
        Ok(watched) => account.watched = Some(watched),
        Err(why) => account.not_watched = Some(why),
    }
    let mut live = LiveMachine::new(&command, Depth::Quick, &never);
    account.after_bytes_per_s = available(&mut live, &command, node).ok().map(BytesPerSec::get);
    Ok((ended, account))
}

fn account(
    node: NodeId,
    to: BytesPerSec,
    division: &CpuDivision,
    (free, before): (BytesPerSec, BytesPerSec),
    knobs: Knobs,
    others: Vec<OtherNode>,
) -> DegradeAccount {
    DegradeAccount {
        node: node.0,
        wanted_bytes_per_s: to.get(),
        free_bytes_per_s: free.get(),
        before_bytes_per_s: before.get(),
        after_bytes_per_s: None,
        others,
        loader_cpus: division.loader.iter().map(|c| c.0).collect(),
        command_cpus: division.program.iter().map(|c| c.0).collect(),
        threads: knobs.threads,
        adds: knobs.adds,
        region_bytes: knobs.region.get(),
        watched: None,
        not_watched: None,
    }
}

/// Readings of a node by the command's CPUs: those that [`available`] measures with.
fn sampler(command: &Situation, node: NodeId) -> Result<ThreadSampler, DegradeError> {
    let cpus = command.cpus_of(most(command)?);
    let cache = command.last_cache.get().max(8 << 20);
    let region = Bytes((cache * 4).min(1 << 30)).min(Bytes(command.space(node).get() / 2));
    if region.get() < cache * 2 {
        return Err(DegradeError::NoSpace {
            node,
            space: command.space(node),
            wanted: Bytes(cache * 4),
        });
    }
    Ok(ThreadSampler::start(&cpus, node, region)?)
}

/// Runs the command, and watches meanwhile; where that cannot be, the load stays as it was found.
fn run(
    argv: &[OsString],
    sampler: Result<ThreadSampler, DegradeError>,
    mut control: LoadController,
    loader: &Loader,
    wanted: BytesPerSec,
) -> Result<(CommandExit, Result<WatchedRun, String>), NotRun> {
    let mut runner = Runner::start(argv)?;
    let over = AtomicBool::new(false);
    Ok(std::thread::scope(|scope| {
        // Begun after the command: signals for that are blocked here.
        let watching = sampler
            .map(|sampler| scope.spawn(|| watch(sampler, &mut control, loader, wanted, &over)));
        let ended = runner.wait_to_end();
        over.store(true, Ordering::Release);
        let watched = watching.map_err(|e| e.to_string()).and_then(|thread| {
            thread.thread().unpark();
            // It does not panic: our own threads and arithmetic.
            thread.join().unwrap_or_else(|_| Err("nothing was read".to_owned()))
        });
        (ended, watched)
    }))
}

/// Takes readings and changes the load by them until the command is over.
fn watch(
    mut sampler: ThreadSampler,
    control: &mut LoadController,
    loader: &Loader,
    wanted: BytesPerSec,
    over: &AtomicBool,
) -> Result<WatchedRun, String> {
    sampler.on_first().map_err(|e| e.to_string())?;
    let began = now();
    let (mut tally, mut last, mut bursts) = (LoadTally::default(), began, 0);
    while !over.load(Ordering::Acquire) {
        bursts += 1;
        if let Some(reading) = sampler.read(loader) {
            let at = now();
            tally.add(reading.left, at.since(last));
            last = at;
            let before = control.now();
            if let Some(knobs) = control.observe(reading) {
                if (Knobs { adds: knobs.adds, ..before }) == knobs {
                    loader.set_adds(knobs.adds);
                } else {
                    // The region stays: nothing is touched, so that nothing can fail.
                    loader.set(knobs).map_err(|e| e.to_string())?;
                }
            }
        }
        let each = Nanos(sampler.spent().get() / bursts / sampler.cpus());
        std::thread::park_timeout(Duration::from_nanos(control.pause(each).get()));
    }
    let all = now().since(began).get().max(1) * sampler.cpus();
    let disturbed = sampler.disturbed();
    let held = tally
        .summarize(wanted, PROMISED)
        .ok_or_else(|| format!("{disturbed} readings were disturbed"))?;
    let cost_share = sampler.spent().get() as f64 / all as f64;
    Ok(WatchedRun { held, changes: control.changes(), disturbed, cost_share })
}

fn most(command: &Situation) -> Result<NodeId, DegradeError> {
    command
        .initiators()
        .into_iter()
        .max_by_key(|i| command.cpus_of(*i).len())
        .ok_or(DegradeError::OneCpu)
}

/// What the command's CPUs can read of a node now: those of the node that has most of them.
fn available(
    live: &mut LiveMachine<'_>,
    command: &Situation,
    node: NodeId,
) -> Result<BytesPerSec, DegradeError> {
    let most = most(command)?;
    let bytes =
        Bytes((command.last_cache.get().max(8 << 20) * 4).min(1 << 30)).min(command.space(node));
    let threads = command.cpus_of(most).len() as u32;
    let task =
        Task::Stream { initiator: most, target: node, kernel: ElementKernel::Read, threads, bytes };
    Ok(BytesPerSec(live.measure(&task)?.figure.value as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_node_slowed_by_the_load_is_reported() {
        let other = |node, loaded| OtherNode {
            node,
            free_bytes_per_s: 100_000_000_000,
            loaded_bytes_per_s: loaded,
        };
        let account = DegradeAccount {
            node: 1,
            wanted_bytes_per_s: 12_000_000_000,
            free_bytes_per_s: 20_000_000_000,
            before_bytes_per_s: 12_100_000_000,
            after_bytes_per_s: Some(13_500_000_000),
            others: vec![other(0, 95_000_000_000), other(2, 81_000_000_000)],
            loader_cpus: vec![1],
            command_cpus: vec![0],
            threads: 1,
            adds: 5,
            region_bytes: 64 << 20,
            watched: None,
            not_watched: None,
        };
        let lines = account.lines();
        assert!(lines[1].ends_with("without"), "{lines:?}");
        assert!(lines[2].ends_with(": 19% less, NOT unaffected"), "{lines:?}");
        assert!(account.last_line().contains("NOT held"), "{}", account.last_line());
        let ended = DegradeAccount { after_bytes_per_s: Some(12_900_000_000), ..account };
        assert!(ended.last_line().ends_with(": held"));
        // What was read while the command ran counts, once it is more than a few readings.
        let watched = |readings, share_within| {
            let (median_bytes_per_s, quartiles_bytes_per_s) =
                (12_100_000_000, [11_900_000_000, 12_300_000_000]);
            let span_ns = 2_000_000_000;
            let held = LoadSummary {
                readings,
                span_ns,
                share_within,
                readings_within: 0.5,
                median_bytes_per_s,
                quartiles_bytes_per_s,
            };
            let watched = Some(WatchedRun { held, changes: 3, disturbed: 0, cost_share: 0.004 });
            DegradeAccount { watched, ..ended.clone() }.last_line()
        };
        assert!(watched(50, 0.97).contains("within 10% for 97% of 2.0"), "{}", watched(50, 0.97));
        assert!(
            watched(50, 0.97).ends_with(": held")
                && watched(50, 0.8).ends_with("NOT held within 10%")
        );
        assert!(watched(2, 0.5).ends_with(": held"), "too few to judge by");
    }
}
