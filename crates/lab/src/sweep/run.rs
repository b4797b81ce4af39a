//! Going through the list: which runs are due, several at a time, each result kept as soon as it is
//! there.

use super::cases::{Case, List};
use super::ratios::CaseSeconds;
use super::store::{CaseRecord, Origin, RecordStore};
use crate::account;
use crate::compare::{CompareInput, CompareResult, CompareSpec, Comparison, JSON_VERSION};
use crate::error::{io, LabError, Result};
use crate::lab::{Lab, LabMachine, ProgressSink};
use crate::policies::{self, PageMover, PolicySetup};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use terrace_machine::Machine;

/// How long a machine that waits for a quiet host sleeps between two looks.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How a sweep is made.
#[derive(Debug, Clone)]
pub struct SweepSettings {
    /// Folder that machine files in the list are relative to.
    pub base: PathBuf,
    /// Machines awake at a time.
    pub jobs: usize,
    /// A second machine and further ones are woken only while the host's load is below this.
    pub load: Option<f64>,
    /// Measure nothing: only show what was measured before.
    pub only_kept: bool,
    /// Wall-clock limit of one run.
    pub limit_wall: Duration,
    /// Written beside every new result.
    pub origin: Origin,
}

/// What came of one run.
#[derive(Debug, Clone, Serialize)]
pub struct SweepRun {
    /// The case.
    pub case: String,
    /// The policy.
    pub policy: String,
    /// Guest seconds.
    pub seconds: f64,
    /// Whether it was measured before.
    pub reused: bool,
    /// Its key.
    pub key: String,
    /// Where it was measured.
    pub origin: Origin,
}

/// What came of all.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SweepResult {
    /// Runs with a result, in the list's order.
    pub done: Vec<SweepRun>,
    /// Runs without: case, policy, why.
    pub failed: Vec<(String, String, String)>,
}

impl SweepResult {
    /// Seconds by case, for the tables.
    #[must_use]
    pub fn measured(&self, list: &List) -> Vec<CaseSeconds> {
        let of = |case: &Case| CaseSeconds {
            case: case.name.clone(),
            peers: case.peers.clone(),
            seconds: self
                .done
                .iter()
                .filter(|d| d.case == case.name)
                .map(|d| (d.policy.clone(), d.seconds))
                .collect(),
        };
        list.cases.iter().map(of).filter(|m| !m.seconds.is_empty()).collect()
    }
}

/// The machine of a case: a preset's name or a file.
pub fn machine(name: &str, base: &Path) -> Result<Machine> {
    if let Some(machine) = terrace_machine::preset(name) {
        return Ok(machine);
    }
    let path = base.join(name);
    let text = fs::read_to_string(&path).map_err(io("reading", &path))?;
    Machine::from_toml(&text, &path.display().to_string())
        .map_err(|e| LabError::Machine { name: name.to_string(), why: e.to_string() })
}

/// One run that may be due.
struct Task<'a> {
    case: &'a Case,
    spec: CompareSpec,
    plan: PolicySetup,
    bench: &'a LabMachine,
    key: String,
    kept: Option<CaseRecord>,
}

/// Go through the list.
pub fn sweep(
    lab: &Lab,
    list: &List,
    store: &RecordStore,
    settings: &SweepSettings,
    progress: &dyn ProgressSink,
) -> Result<SweepResult> {
    let mut out = SweepResult::default();
    let benches = benches(lab, list, settings, progress, &mut out);
    let tasks = tasks(lab, list, store, settings, &benches, progress, &mut out)?;
    let queue = Queue::new(&tasks, settings, progress);
    if !settings.only_kept {
        queue.work(store);
    }
    let fresh = queue.results.into_inner().unwrap_or_default();
    collect(&tasks, fresh, &mut out);
    keep_cases(store, &tasks, &out)?;
    Ok(out)
}

/// Every machine that the list names, booted where needed; those that cannot be had fail their
/// cases.
fn benches(
    lab: &Lab,
    list: &List,
    settings: &SweepSettings,
    progress: &dyn ProgressSink,
    out: &mut SweepResult,
) -> BTreeMap<String, LabMachine> {
    let mut benches = BTreeMap::new();
    for case in &list.cases {
        if case.policies.is_empty() || benches.contains_key(&case.machine) {
            continue;
        }
        let made =
            machine(&case.machine, &settings.base).and_then(|m| lab.bench(&m, None, progress));
        match made {
            Ok(bench) => {
                benches.insert(case.machine.clone(), bench);
            }
            Err(why) => out.failed.push((case.name.clone(), "all".into(), why.to_string())),
        }
    }
    benches
}

fn tasks<'a>(
    lab: &Lab,
    list: &'a List,
    store: &RecordStore,
    settings: &SweepSettings,
    benches: &'a BTreeMap<String, LabMachine>,
    progress: &dyn ProgressSink,
    out: &mut SweepResult,
) -> Result<Vec<Task<'a>>> {
    let hint = "run scripts/lab-parts.sh".to_string();
    let program = lab.guest_program("terrace-workload").ok_or_else(|| LabError::NotSetUp {
        dir: lab.dir().into(),
        what: "a static terrace-workload",
        hint,
    })?;
    let mut tasks = Vec::new();
    for case in &list.cases {
        let Some(bench) = benches.get(&case.machine) else { continue };
        let spec = CompareSpec {
            policies: Vec::new(),
            input: CompareInput::Workload { spec: case.workload.clone(), program: program.clone() },
            terrace: lab.guest_program("terrace"),
            terrace_args: Vec::new(),
            jobs: 1,
            repeat: 1,
            limit_wall: settings.limit_wall,
            profiles: Some(store.profiles()),
        };
        for policy in &case.policies {
            let made = (|| {
                let plan = policies::plan(policy, bench.shape())?;
                if matches!(plan.actor, PageMover::Terrace { .. }) && spec.terrace.is_none() {
                    let hint = "run scripts/lab-parts.sh".into();
                    return Err(LabError::NotSetUp {
                        dir: lab.dir().into(),
                        what: "a static terrace program",
                        hint,
                    });
                }
                let key = Comparison::new(bench, &spec, progress)?.key(&plan)?;
                let kept = store.find(&bench.shape().name, &key, policy);
                Ok(Task { case, spec: spec.clone(), plan, bench, key, kept })
            })();
            match made {
                Ok(task) => tasks.push(task),
                Err(why) => out.failed.push((case.name.clone(), policy.clone(), why.to_string())),
            }
        }
    }
    Ok(tasks)
}

/// A fresh record, or why there is none.
type Fresh = std::result::Result<CaseRecord, String>;

/// Tasks that are due and what came of them.
struct Queue<'a> {
    tasks: &'a [Task<'a>],
    due: Vec<usize>,
    next: AtomicUsize,
    results: Mutex<BTreeMap<usize, Fresh>>,
    settings: &'a SweepSettings,
    progress: &'a dyn ProgressSink,
    started: Instant,
}

impl<'a> Queue<'a> {
    fn new(
        tasks: &'a [Task<'a>],
        settings: &'a SweepSettings,
        progress: &'a dyn ProgressSink,
    ) -> Self {
        let due: Vec<usize> = (0..tasks.len()).filter(|i| tasks[*i].kept.is_none()).collect();
        progress.step(&format!(
            "{} runs, of which {} were measured before",
            tasks.len(),
            tasks.len() - due.len()
        ));
        Queue {
            tasks,
            due,
            next: AtomicUsize::new(0),
            results: Mutex::default(),
            settings,
            progress,
            started: Instant::now(),
        }
    }

    fn work(&self, store: &RecordStore) {
        std::thread::scope(|scope| {
            for worker in 0..self.settings.jobs.clamp(1, self.due.len().max(1)) {
                scope.spawn(move || loop {
                    self.wait_for_quiet(worker);
                    let Some(&index) = self.due.get(self.next.fetch_add(1, Ordering::Relaxed))
                    else {
                        break;
                    };
                    let fresh = self.one(&self.tasks[index], store).map_err(|e| e.to_string());
                    self.tell(&self.tasks[index], &fresh);
                    if let Ok(mut results) = self.results.lock() {
                        results.insert(index, fresh);
                    }
                });
            }
        });
    }

    /// The first worker never waits; the others leave a busy host alone.
    fn wait_for_quiet(&self, worker: usize) {
        let Some(limit) = self.settings.load.filter(|_| worker > 0) else { return };
        while self.next.load(Ordering::Relaxed) < self.due.len()
            && load().is_some_and(|load| load >= limit)
        {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn one(&self, task: &Task<'_>, store: &RecordStore) -> Result<CaseRecord> {
        // Two names may stand for the same settings, and two sweeps may share a store.
        if let Some(record) = store.find(&task.bench.shape().name, &task.key, &task.plan.name) {
            return Ok(record);
        }
        let comparison = Comparison::new(task.bench, &task.spec, &crate::Silent)?;
        let (run, result) = comparison.run_one(&task.plan)?;
        let record = CaseRecord {
            key: task.key.clone(),
            machine: task.bench.shape().name.clone(),
            vcpus: task.bench.shape().vcpus,
            input: comparison.input_name(),
            accesses: account::accesses(&result),
            calibration: comparison.calibration.readings.clone(),
            origin: self.settings.origin.clone(),
            run,
        };
        store.keep(&record)?;
        Ok(record)
    }

    fn tell(&self, task: &Task<'_>, fresh: &Fresh) {
        let done = self.results.lock().map_or(0, |r| r.len()) + 1;
        let took = self.started.elapsed().as_secs_f64();
        let left = took / done as f64 * (self.due.len() - done) as f64;
        let what = match fresh {
            Ok(r) => format!(
                "{:.3} guest s, {:.0} wall s",
                r.run.seconds.unwrap_or(f64::NAN),
                r.run.wall_seconds
            ),
            Err(why) => why.clone(),
        };
        let (case, policy) = (&task.case.name, &task.plan.name);
        self.progress.step(&format!(
            "[{done}/{}] {case} {policy}: {what}; {} left",
            self.due.len(),
            words(left)
        ));
    }
}

/// The host's load of the last minute, where it says.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

fn words(seconds: f64) -> String {
    let minutes = (seconds / 60.0).ceil() as u64;
    if minutes < 60 {
        format!("about {minutes} min")
    } else {
        format!("about {} h {:02} min", minutes / 60, minutes % 60)
    }
}

fn collect(tasks: &[Task<'_>], mut fresh: BTreeMap<usize, Fresh>, out: &mut SweepResult) {
    for (i, task) in tasks.iter().enumerate() {
        let (record, reused) = match (&task.kept, fresh.remove(&i)) {
            (Some(record), _) => (record.clone(), true),
            (None, Some(Ok(record))) => (record, false),
            (None, Some(Err(why))) => {
                out.failed.push((task.case.name.clone(), task.plan.name.clone(), why));
                continue;
            }
            (None, None) => continue,
        };
        let Some(seconds) = record.run.seconds else { continue };
        out.done.push(SweepRun {
            case: task.case.name.clone(),
            policy: record.run.policy.clone(),
            seconds,
            reused,
            key: record.key,
            origin: record.origin,
        });
    }
}

/// Each case's runs as one comparison, as `lab compare --json` would have printed it.
fn keep_cases(store: &RecordStore, tasks: &[Task<'_>], out: &SweepResult) -> Result<()> {
    let mut by_case: BTreeMap<&str, Vec<CaseRecord>> = BTreeMap::new();
    for task in tasks {
        let name = &task.bench.shape().name;
        if out.done.iter().any(|d| d.key == task.key) {
            by_case.entry(&task.case.name).or_default().extend(store.find(
                name,
                &task.key,
                &task.plan.name,
            ));
        }
    }
    for (case, records) in by_case {
        let Some(first) = records.first().cloned() else { continue };
        let runs: Vec<_> = records.into_iter().map(|r| r.run).collect();
        let wall_seconds = runs.iter().map(|r| r.wall_seconds).sum();
        let CaseRecord { machine, vcpus, input, accesses, calibration, .. } = first;
        store.keep_case(
            case,
            &CompareResult {
                version: JSON_VERSION,
                machine,
                input,
                accesses,
                wall_seconds,
                vcpus,
                calibration,
                runs,
            },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_in_words() {
        assert_eq!(words(0.0), "about 0 min");
        assert_eq!(words(61.0), "about 2 min");
        assert_eq!(words(3700.0), "about 1 h 02 min");
    }

    #[test]
    fn results_stand_by_case() {
        let done = |case: &str, policy: &str, seconds| SweepRun {
            case: case.into(),
            policy: policy.into(),
            seconds,
            reused: false,
            key: String::new(),
            origin: Origin::default(),
        };
        let sweep =
            SweepResult { done: vec![done("a", "x", 1.0), done("a", "y", 2.0)], failed: vec![] };
        let case = |name: &str| Case {
            name: name.into(),
            machine: "m".into(),
            workload: "w".into(),
            policies: vec![],
            peers: vec!["x".into()],
        };
        let list = List {
            names: vec![],
            columns: vec![],
            cases: vec![case("b"), case("a")],
            claims: vec![],
        };
        let expected = CaseSeconds {
            case: "a".into(),
            peers: vec!["x".into()],
            seconds: vec![("x".into(), 1.0), ("y".into(), 2.0)],
        };
        assert_eq!(sweep.measured(&list), [expected]);
    }

    #[test]
    fn machines_are_presets_or_files() {
        assert_eq!(machine("lab-cxl", Path::new("/nowhere")).unwrap().name, "lab-cxl");
        assert!(machine("no-such.toml", Path::new("/nowhere")).is_err());
    }
}
