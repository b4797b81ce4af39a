//! `run` and `attach`: the engine over a live machine.

use crate::idle::{self, IdleMemory, IdleObserver};
use crate::journal_file::{JournalFile, UnmanagedJournal};
use crate::output::{RunSummary, Stopped};
use crate::tracker_id::TrackerId;
use crate::written;
use std::cell::RefCell;
use std::ffi::OsString;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use terrace_alloc::move_costs;
use terrace_engine::{Config, Engine, EngineParts, Journal, MoveLimits, StopReason};
use terrace_machine::{rank, Machine, RankAttribute};
use terrace_migrate::live_mover;
use terrace_policy::place::Placement;
use terrace_sys::{
    become_subreaper, own_cpu, task, Capabilities, CommandExit, DamonProbe, InTurn, MemPolicy,
    PriorityBoost, Root, Runner, StartError, ThreadMemory,
};
use terrace_topology::{load_machine, MachineSource};
use terrace_track::{
    AttachedProcess, Budget, LiveClock, LiveTarget, LiveTrackers, PerfSettings, ProcessTree,
    TierNodes, TrackerChoice, Waiter,
};
use terrace_types::{BytesPerSec, Nanos, NodeId, Pid, PolicyId, Seed};

/// How to manage.
#[derive(Debug, Clone)]
pub struct ManageSpec {
    /// The policy; `None` moves nothing and observes (`none`).
    pub policy: Option<PolicyId>,
    /// Machine file, preset or `None` for the live machine.
    pub machine: Option<String>,
    /// Where the journal goes.
    pub journal: Option<PathBuf>,
    /// Share of one core for tracking, deciding and moving (0.03).
    pub cpu_share: f64,
    /// Most bytes a second to move.
    pub rate: Option<BytesPerSec>,
    /// Seed of the policy.
    pub seed: Seed,
    /// Trackers to use: `auto`, `page-table`, `damon`, `damon-page`, `soft-dirty` or `perf`, the
    /// last with settings behind a comma ([`PerfSettings::parse`]).
    pub trackers: String,
    /// Parameters of the policy, by name.
    pub set: Vec<(String, String)>,
}

/// Why managing did not begin. `lacking` failures are exit status 3 for `attach`; `run` goes on
/// unmanaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManageError {
    /// Asked for wrongly: unknown policy or tracker, damaged machine file.
    #[error("{0}")]
    Usage(String),
    /// The machine lacks what was asked.
    #[error("{0}")]
    Lacking(String),
    /// The process may not be managed.
    #[error("{0}")]
    Refused(String),
    /// A file of ours cannot be written.
    #[error("journal {path}: {why}; give another --journal file")]
    Journal {
        /// The file.
        path: String,
        /// The system's words.
        why: String,
    },
}

/// All that can be made before there is a target.
struct PreparedRun {
    machine: Machine,
    placement: Placement,
    tiers: Vec<TierNodes>,
    trackers: LiveTrackers,
    journal: Option<Box<dyn Journal>>,
    notes: Vec<String>,
    /// What is observed where nothing is moved.
    observed: Option<Arc<Mutex<IdleObserver>>>,
}

impl ManageSpec {
    fn policy_name(&self) -> &'static str {
        self.policy.map_or("none", PolicyId::name)
    }

    fn prepare(&self) -> Result<PreparedRun, ManageError> {
        let machine = match &self.machine {
            Some(text) => load_machine(&MachineSource::parse_machine(text)),
            None => load_machine(&MachineSource::Live),
        }
        .map_err(|e| ManageError::Usage(e.to_string()))?;
        let damon = match tracker_choice(&self.trackers)? {
            TrackerChoice::Damon | TrackerChoice::DamonPage => DamonProbe::Always,
            _ => DamonProbe::WithoutPageTables,
        };
        self.prepare_on(machine, &Capabilities::probe_with(&Root::live(), damon))
    }

    /// As [`ManageSpec::prepare`], with what is known already.
    fn prepare_on(
        &self,
        machine: Machine,
        able: &Capabilities,
    ) -> Result<PreparedRun, ManageError> {
        let (mut placement, observed) = match self.policy {
            Some(id) => (Placement::new(id, &machine), None),
            None => {
                let (policy, observed) = idle::observer();
                (Placement::Custom(policy), Some(observed))
            }
        };
        for (name, value) in &self.set {
            placement.set(name, value).map_err(|e| ManageError::Usage(e.to_string()))?;
        }
        let choice = match tracker_choice(&self.trackers)? {
            // Only samples tell who accessed.
            TrackerChoice::Auto if placement.needs().cells => {
                TrackerChoice::Perf(PerfSettings::default())
            }
            choice => choice,
        };
        let tiers = match self.policy {
            Some(_) => tiers(&machine)?,
            None => online_tiers(&machine)?,
        };
        // Until the command is started, whose memory it would be otherwise.
        let _elsewhere = below_best(&tiers);
        let root = Root::live();
        if self.policy.is_some() && !able.move_pages.usable {
            return Err(ManageError::Lacking(format!(
                "pages cannot be moved: {}",
                able.move_pages.describe()
            )));
        }
        let budget = Budget::new(self.cpu_share, Nanos((self.cpu_share * 60e9) as u64));
        let trackers = LiveTrackers::new(&root, able, choice, budget)
            .map_err(|e| ManageError::Lacking(e.to_string()))?;
        let mut notes = left_out(able, &trackers);
        notes.extend(order_note(&machine));
        if !able.numa_balancing_quiet.usable {
            notes.push(able.numa_balancing_quiet.describe());
        }
        if let Some(missing) =
            placement.needs().missing(&terrace_engine::Tracker::info(&trackers).sees)
        {
            return Err(ManageError::Lacking(format!(
                "policy {} needs {missing}, and no tracker here tells it; try --policy terrace or \
                    see terrace doctor",
                self.policy_name()
            )));
        }
        // Last, so that a run that is not managed leaves alone what an older one wrote.
        let journal = match &self.journal {
            Some(path) => Some(Box::new(JournalFile::create(path).map_err(|e| {
                ManageError::Journal { path: path.display().to_string(), why: e.to_string() }
            })?) as Box<dyn Journal>),
            None => None,
        };
        Ok(PreparedRun { machine, placement, tiers, trackers, journal, notes, observed })
    }

    /// The journal of a run that is not managed, where one was asked for.
    fn unmanaged_journal(
        &self,
        why: &str,
        argv: &[OsString],
    ) -> Result<Option<UnmanagedJournal>, ManageError> {
        let Some(path) = &self.journal else { return Ok(None) };
        let source =
            self.machine.as_ref().map_or(MachineSource::Live, |m| MachineSource::parse_machine(m));
        let machine = load_machine(&source).ok();
        UnmanagedJournal::create(path, self.policy_name(), words(argv), machine.as_ref(), why)
            .map(Some)
            .map_err(|why| ManageError::Journal { path: path.display().to_string(), why })
    }

    fn config(&self, command: String) -> Config {
        let plain = Config::default();
        Config {
            command,
            limits: MoveLimits { rate: self.rate, ..plain.limits },
            tracking_share: self.cpu_share,
            seed: self.seed,
            ..plain
        }
    }
}

/// What this thread takes of memory while it lives comes from below the best tier (ADR 0198). Where
/// the kernel refuses, from where it would come anyway.
fn below_best(tiers: &[TierNodes]) -> Option<ThreadMemory> {
    let nodes: Vec<NodeId> = tiers.iter().skip(1).flat_map(|tier| tier.nodes.clone()).collect();
    ThreadMemory::from(&MemPolicy::Prefer(nodes)).ok()
}

/// What better tracking would take: each tracker that is not in use because it cannot be, with the
/// capability or command that would help.
fn left_out(able: &Capabilities, trackers: &LiveTrackers) -> Vec<String> {
    let names = trackers.names();
    let reads_pages = names.contains(&"page-table");
    [&able.page_tables, &able.damon, &able.soft_dirty]
        .into_iter()
        .filter(|c| !(c.usable || reads_pages && c.name == able.damon.name))
        .map(|c| format!("tracker {} left out: {}", c.name, c.describe()))
        .collect()
}

fn tracker_choice(text: &str) -> Result<TrackerChoice, ManageError> {
    let (name, settings) = text.split_once(',').unwrap_or((text, ""));
    if !settings.is_empty() && name != "perf" {
        let what = format!("--tracker {text}: only perf has settings");
        return Err(ManageError::Usage(what));
    }
    let found = TrackerId::from_name(name).and_then(TrackerId::live);
    match found {
        Some(TrackerChoice::Perf(_)) => PerfSettings::parse(settings)
            .map(TrackerChoice::Perf)
            .map_err(|why| ManageError::Usage(format!("--tracker perf: {why}"))),
        Some(choice) => Ok(choice),
        None => {
            let known = TrackerId::names(|id| id.live().is_some());
            Err(ManageError::Usage(format!("no tracker is called {name:?}; there are {known}")))
        }
    }
}

/// Whether `run` with its usual policy and trackers would manage a command on this machine; if not,
/// why.
pub(crate) fn would_manage(machine: Machine, able: &Capabilities) -> Result<(), ManageError> {
    let usual = ManageSpec {
        policy: Some(PolicyId::Terrace),
        machine: None,
        journal: None,
        cpu_share: Config::default().tracking_share,
        rate: None,
        seed: Seed(0),
        trackers: "auto".to_owned(),
        set: Vec::new(),
    };
    usual.prepare_on(machine, able).map(|_| ())
}

/// What is to be known of the order of the tiers before it is relied on.
fn order_note(machine: &Machine) -> Option<String> {
    let unordered = rank(machine, RankAttribute::Bandwidth, None).ok()?.unordered;
    (!unordered.is_empty()).then(|| {
        format!(
            "the order of nodes {} is a guess by distance, they may be the fastest; measure with \
             terrace probe",
            terrace_machine::list(&unordered)
        )
    })
}

/// Nodes that are online here by tier, best first.
pub(crate) fn online_tiers(machine: &Machine) -> Result<Vec<TierNodes>, ManageError> {
    let online = terrace_sys::zones::nodes_with_memory(&Root::live());
    let ranking = rank(machine, RankAttribute::Bandwidth, None)
        .map_err(|e| ManageError::Usage(e.to_string()))?;
    Ok(ranking
        .tiers
        .iter()
        .map(|t| TierNodes {
            nodes: t.nodes.iter().copied().filter(|n| online.contains(n)).collect(),
        })
        .filter(|t| !t.nodes.is_empty())
        .collect())
}

/// The tiers to place pages on: nodes that are online here, ranked by the machine's bandwidth (or
/// what is known in its place).
fn tiers(machine: &Machine) -> Result<Vec<TierNodes>, ManageError> {
    let tiers = online_tiers(machine)?;
    if tiers.len() < 2 {
        let nodes = tiers.iter().map(|t| t.nodes.len()).sum::<usize>();
        return Err(ManageError::Lacking(format!(
            "this machine has one memory tier ({nodes} node{}), so there is nothing to place; see \
                terrace doctor",
            if nodes == 1 { "" } else { "s" }
        )));
    }
    Ok(tiers)
}

/// A command that was run to its end.
#[derive(Debug)]
pub struct FinishedRun {
    /// The account, ours.
    pub summary: RunSummary,
    /// How the command ended, to end alike.
    pub ended: CommandExit,
}

/// Runs a command, managed if it can be. It is always run, unless the arguments are wrong.
///
/// # Errors
/// The tool's own failures before the command starts: a [`ManageError`] that is not
/// [`ManageError::Lacking`], or a [`StartError`].
pub fn run(spec: &ManageSpec, argv: &[OsString]) -> Result<FinishedRun, CommandStartError> {
    let ready = match spec.prepare() {
        Ok(ready) => become_subreaper().map(|()| ready).map_err(|e| e.to_string()),
        Err(ManageError::Lacking(why)) => Err(why),
        Err(other) => return Err(CommandStartError::Before(other)),
    };
    let mut journal = match &ready {
        Err(why) => spec.unmanaged_journal(why, argv).map_err(CommandStartError::Before)?,
        Ok(_) => None,
    };
    let runner = Rc::new(RefCell::new(Runner::start(argv).map_err(CommandStartError::Start)?));
    let mut summary = match ready {
        Err(why) => RunSummary::unmanaged(spec.policy_name(), why),
        Ok(ready) => {
            let pid = runner.borrow().pid();
            let seen = runner.clone();
            let command = words(argv);
            let tree =
                ProcessTree::new(Root::live(), pid).adopting(Pid(std::process::id() as i32), []);
            let ended = move || seen.borrow().ended().is_some();
            manage(spec, ready, tree, runner.clone(), command, ended)
        }
    };
    let ended = runner.borrow_mut().wait_to_end();
    if let Some(Err(why)) = journal.take().map(UnmanagedJournal::finish) {
        summary.notes.push(format!("journal: {why}; it ends early"));
    }
    Ok(FinishedRun { summary, ended })
}

/// A command as a person would type it.
fn words(argv: &[OsString]) -> String {
    argv.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Why a command did not run.
#[derive(Debug, thiserror::Error)]
pub enum CommandStartError {
    /// Our own failure.
    #[error(transparent)]
    Before(ManageError),
    /// The command cannot be started.
    #[error(transparent)]
    Start(StartError),
}

/// Manages a running process, its children included, until it ends or `until` says so.
///
/// # Errors
/// [`ManageError`]; the process is left as it was.
pub fn attach(
    spec: &ManageSpec,
    pid: Pid,
    until: impl FnMut() -> bool,
) -> Result<RunSummary, ManageError> {
    let root = Root::live();
    task::check_owner(&root, pid).map_err(|e| ManageError::Refused(e.to_string()))?;
    let waiter = AttachedProcess::new(pid).map_err(|e| ManageError::Refused(e.to_string()))?;
    let ready = spec.prepare()?;
    let command = format!("process {pid} ({})", task::name(&root, pid));
    Ok(manage(spec, ready, ProcessTree::new(root, pid), waiter, command, until))
}

/// The engine from start to end. A failure of ours never reaches the target: it runs on, unmanaged.
fn manage<W: Waiter + 'static>(
    spec: &ManageSpec,
    ready: PreparedRun,
    tree: ProcessTree,
    waiter: W,
    command: String,
    mut until: impl FnMut() -> bool,
) -> RunSummary {
    let names: Vec<String> = ready.trackers.names().iter().map(|n| (*n).to_owned()).collect();
    let mut notes = ready.notes;
    let observed = ready.observed;
    // Fast memory is for the command.
    let _elsewhere = below_best(&ready.tiers);
    let (counters, refused) = written::counters(&Root::live(), &ready.machine, &ready.tiers);
    if let Some(why) = refused {
        notes.push(format!("what is written to each tier is estimated: {why}"));
    }
    let target = match LiveTarget::new(Root::live(), tree, ready.tiers) {
        Ok(target) => target.counting(counters),
        Err(e) => return RunSummary::unmanaged(spec.policy_name(), e.to_string()),
    };
    let parts = EngineParts {
        clock: Box::new(LiveClock::new(waiter)),
        trackers: vec![Box::new(ready.trackers)],
        target: Box::new(target),
        mover: Box::new(live_mover(move_costs(&ready.machine))),
        journal: ready.journal,
        placement: ready.placement,
        machine: ready.machine,
        own_cpu: Box::new(|_| own_cpu()),
    };
    let mut said = Vec::new();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        // After the command was started: it keeps its own priority.
        let _ahead = PriorityBoost::of_ordinary_work();
        let _in_turn = InTurn::among_cpus();
        let mut engine = Engine::new(parts, spec.config(command));
        let ended = engine.run(|report| {
            said.extend(report.notes.iter().cloned());
            until()
        });
        said.extend(engine.tracker_accounts());
        ended
    }));
    notes.extend(said);
    let idle = observed
        .and_then(|observed| observed.lock().unwrap_or_else(PoisonError::into_inner).idle());
    notes.extend(idle.iter().map(IdleMemory::line));
    match ran {
        Ok((account, stop)) => {
            let stopped = match &stop {
                Some(StopReason::Refused(_)) => Some(Stopped::Refused),
                Some(StopReason::Missing { .. }) => Some(Stopped::Lacking),
                Some(StopReason::TargetEnded) | None => None,
            };
            let because = stop.filter(|_| stopped.is_some()).map(|stop| stop.to_string());
            notes.extend(because.iter().map(|why| format!("managing stopped early: {why}")));
            RunSummary {
                managed: true,
                unmanaged_because: None,
                stopped_because: because,
                stopped,
                policy: spec.policy_name().to_owned(),
                trackers: names,
                overhead_seconds: (account.tracking_cpu_ns + account.deciding_cpu_ns) as f64 / 1e9,
                moving_seconds: account.moving_ns as f64 / 1e9,
                idle,
                notes,
                account,
            }
        }
        Err(_) => RunSummary::unmanaged(
            spec.policy_name(),
            "an internal error ended management early; the command was not touched by it".into(),
        ),
    }
}
