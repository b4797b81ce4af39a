//! One workload under several policies, each from the same saved machine.

use crate::account::{self, KnownFigures};
use crate::calibrate::{self, Calibration};
use crate::command::HostCommand;
use crate::error::{io, LabError, Result};
use crate::job::{JobResult, JobSpec, ServedPages};
use crate::lab::{LabMachine, ProgressSink};
use crate::placement::{self, PageRanking};
use crate::policies::{self, PageMover, PolicySetup};
use crate::wire::{self, AtMark};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Where the guest finds the programs that the lab brings.
const GUEST_WORKLOAD: &str = "/usr/bin/terrace-workload";
const GUEST_TERRACE: &str = "/usr/bin/terrace";
const GUEST_SUMMARY: &str = "/run/terrace/summary.json";
const GUEST_JOURNAL: &str = "/run/terrace/journal";

/// Version of the comparison's JSON.
pub(crate) const JSON_VERSION: u32 = 1;

const PAGE: u64 = 4096;
/// Said of a bound under which a program without marks ran.
const WHOLE_PROGRAM: &str = "the program marks no phase, so that all of it counts, and its pages \
                             are served as placed from their first access";

/// What runs.
#[derive(Debug, Clone)]
pub enum CompareInput {
    /// One of our workloads, `NAME[,key=value...]`, by the static program given.
    Workload {
        /// The specification.
        spec: String,
        /// `terrace-workload`, static.
        program: PathBuf,
    },
    /// A command of the host.
    Command(HostCommand),
}

/// A comparison.
#[derive(Debug, Clone)]
pub struct CompareSpec {
    /// Names of policies, in the order of the table.
    pub policies: Vec<String>,
    /// What runs.
    pub input: CompareInput,
    /// `terrace`, static, for our own policies.
    pub terrace: Option<PathBuf>,
    /// Arguments between `terrace run` and `--`, beside the policy, journal and summary.
    pub terrace_args: Vec<String>,
    /// Machines awake at a time.
    pub jobs: usize,
    /// Runs of each policy; the median is reported.
    pub repeat: usize,
    /// Wall-clock limit of one run.
    pub limit_wall: Duration,
    /// Folder in which profiles of the bounds are kept and looked for; without one each bound is
    /// profiled anew.
    pub profiles: Option<PathBuf>,
}

/// One policy's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LabRun {
    /// Its name.
    pub policy: String,
    /// Guest seconds of the measured phase: of the program's marked one, else from its exec to its
    /// exit. Null where there is an error.
    pub seconds: Option<f64>,
    /// Guest seconds from the command's start to the program's exec: what a tool that starts the
    /// program takes first. Not part of `seconds`.
    #[serde(default)]
    pub startup_seconds: Option<f64>,
    /// Why there is no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Largest less smallest of the repeated runs, guest seconds.
    pub seconds_spread: f64,
    /// Share of last-level misses that the fast node served.
    pub fast_access_share: Option<f64>,
    /// Pages that came to the fast node.
    pub promoted_pages: Option<u64>,
    /// Pages that left it.
    pub demoted_pages: Option<u64>,
    /// Bytes moved between nodes.
    pub migrated_bytes: Option<u64>,
    /// Processor seconds of tracking and deciding: kernel threads started for it and the tool
    /// itself.
    pub overhead_seconds: Option<f64>,
    /// Not modelled.
    pub energy_joules: Option<f64>,
    /// What has to be set to repeat it.
    pub settings: BTreeMap<String, String>,
    /// Sum over the command's standard output; equal in all runs of a program that behaves.
    pub output_sum: String,
    /// Wall-clock seconds of the run.
    pub wall_seconds: f64,
    /// What did not go as asked.
    pub warnings: Vec<String>,
    /// The tool's journal, where there is one; not part of the JSON.
    #[serde(skip)]
    pub journal: Option<Vec<u8>>,
}

impl LabRun {
    /// A run of which only the time is known.
    #[must_use]
    pub fn new(policy: &str, seconds: f64) -> Self {
        LabRun {
            policy: policy.to_string(),
            seconds: Some(seconds),
            startup_seconds: None,
            error: None,
            seconds_spread: 0.0,
            fast_access_share: None,
            promoted_pages: None,
            demoted_pages: None,
            migrated_bytes: None,
            overhead_seconds: None,
            energy_joules: None,
            settings: BTreeMap::new(),
            output_sum: String::new(),
            wall_seconds: 0.0,
            warnings: Vec::new(),
            journal: None,
        }
    }

    /// A run without a time.
    #[must_use]
    pub fn without_time(policy: &str, why: String) -> Self {
        LabRun { seconds: None, error: Some(why), ..LabRun::new(policy, 0.0) }
    }
}

/// A comparison's result; as JSON it is the contract's `lab compare`.
#[derive(Debug, Clone, Serialize)]
pub struct CompareResult {
    /// Version of this JSON: keys are only added.
    pub version: u32,
    /// Name of the machine.
    pub machine: String,
    /// The workload or command.
    pub input: String,
    /// Memory accesses of the measured phase, where known.
    pub accesses: Option<u64>,
    /// What the comparison took.
    pub wall_seconds: f64,
    /// vCPUs.
    pub vcpus: u32,
    /// The proof that the machine is what its file says.
    pub calibration: Vec<calibrate::FigureReadBack>,
    /// One entry a policy, in the order asked.
    pub runs: Vec<LabRun>,
}

/// One policy's result and what it was made from.
type Ran = (LabRun, JobResult);

/// Run the comparison. A policy that cannot run has a row that says why; so have those that were
/// not run, or not to their end, because somebody asked to stop.
///
/// # Errors
/// What concerns all policies: names, the lab's parts, the machine, the command.
pub fn compare(
    bench: &LabMachine,
    spec: &CompareSpec,
    progress: &dyn ProgressSink,
) -> Result<CompareResult> {
    let started = Instant::now();
    let plans = spec
        .policies
        .iter()
        .map(|p| policies::plan(p, bench.shape()))
        .collect::<Result<Vec<_>>>()?;
    if plans.iter().any(|p| matches!(p.actor, PageMover::Terrace { .. })) && spec.terrace.is_none()
    {
        let hint = "run crates/guest/build.sh DIR/bin terrace-cli".into();
        return Err(LabError::NotSetUp {
            dir: bench.lab().dir().into(),
            what: "a static terrace program",
            hint,
        });
    }
    let comparison = Comparison::new(bench, spec, progress)?;
    let (runs, accesses) = comparison.run_all(&plans);
    Ok(CompareResult {
        version: JSON_VERSION,
        machine: bench.shape().name.clone(),
        input: comparison.input_name(),
        accesses,
        wall_seconds: started.elapsed().as_secs_f64(),
        vcpus: bench.shape().vcpus,
        calibration: comparison.calibration.readings,
        runs,
    })
}

/// The job that all policies share.
fn base_job(input: &CompareInput, usable_fast_bytes: u64, limit_wall: Duration) -> Result<JobSpec> {
    let mut job = match input {
        CompareInput::Command(command) => command.job()?,
        CompareInput::Workload { spec, program } => {
            let mut job =
                JobSpec::new(vec![GUEST_WORKLOAD.into(), with_fast(spec, usable_fast_bytes)]);
            job.carry_as(program, GUEST_WORKLOAD);
            job
        }
    };
    job.limit_wall = limit_wall;
    Ok(job)
}

/// Sizes of a workload follow what is free in the fast node; whole MiB, so that small changes
/// change nothing.
fn with_fast(spec: &str, usable: u64) -> String {
    let given = spec.split(',').skip(1).any(|part| part.starts_with("fast="));
    if given || usable < 1 << 20 {
        return spec.to_string();
    }
    format!("{spec},fast={}MiB", usable >> 20)
}

/// One input on one calibrated machine, ready to be run under any policy.
pub(crate) struct Comparison<'a> {
    bench: &'a LabMachine,
    spec: &'a CompareSpec,
    base: JobSpec,
    progress: &'a dyn ProgressSink,
    pub(crate) calibration: Calibration,
}

impl<'a> Comparison<'a> {
    /// Calibrate the machine, or see that it was, and make the job that all policies share.
    pub(crate) fn new(
        bench: &'a LabMachine,
        spec: &'a CompareSpec,
        progress: &'a dyn ProgressSink,
    ) -> Result<Self> {
        let calibration = calibrate::ensure(bench, progress)?;
        let base = base_job(&spec.input, calibration.usable_fast_bytes, spec.limit_wall)?;
        Ok(Comparison { bench, spec, base, progress, calibration })
    }

    /// The workload or command, in words.
    pub(crate) fn input_name(&self) -> String {
        let argv = &self.base.argv;
        if argv[0] == GUEST_WORKLOAD {
            format!("workload:{}", argv[1..].join(" "))
        } else {
            argv.join(" ")
        }
    }

    /// Sum over everything that this policy's result depends on: the saved machine (machine file,
    /// kernel, QEMU, plugin, guest program) and the job with all its files and settings. `terrace`
    /// is in the jobs of ours alone.
    pub(crate) fn key(&self, plan: &PolicySetup) -> Result<String> {
        job_key(self.bench, &self.job(plan)?)
    }

    /// All plans, several machines at a time, and the accesses of the first that ended well.
    fn run_all(&self, plans: &[PolicySetup]) -> (Vec<LabRun>, Option<u64>) {
        let repeat = self.spec.repeat.max(1);
        let mut tasks: Vec<(usize, &PolicySetup)> =
            (0..plans.len()).flat_map(|i| std::iter::repeat_n((i, &plans[i]), repeat)).collect();
        // The bound needs two runs, one after the other: begin with it.
        tasks.sort_by_key(|(i, p)| (p.actor != PageMover::Agent, *i));
        let queue = Mutex::new(tasks.into_iter());
        let done: Mutex<Vec<(usize, Result<Ran>)>> = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.spec.jobs.clamp(1, plans.len().max(1) * repeat) {
                scope.spawn(|| loop {
                    let task = queue.lock().ok().and_then(|mut q| q.next());
                    let Some((i, plan)) = task else { break };
                    let outcome = self.run_one(plan);
                    if let (Err(why), PolicySetup { name, .. }) = (&outcome, plan) {
                        self.progress.step(&format!("{name}: {why}"));
                    }
                    if let Ok(mut done) = done.lock() {
                        done.push((i, outcome));
                    }
                });
            }
        });
        let mut by_plan: Vec<Vec<Result<Ran>>> = plans.iter().map(|_| Vec::new()).collect();
        for (i, outcome) in done.into_inner().unwrap_or_default() {
            by_plan[i].push(outcome);
        }
        let rows: Vec<(LabRun, Option<JobResult>)> =
            plans.iter().zip(by_plan).map(|(plan, outcomes)| row(plan, outcomes)).collect();
        let accesses = rows.iter().find_map(|(_, result)| account::accesses(result.as_ref()?));
        (rows.into_iter().map(|(run, _)| run).collect(), accesses)
    }

    /// Run one policy once.
    pub(crate) fn run_one(&self, plan: &PolicySetup) -> Result<Ran> {
        let mut job = self.job(plan)?;
        let mut warning = None;
        if plan.actor == PageMover::Agent {
            let ranking = self.profile(&plan.name, &job)?;
            if ranking.whole_program {
                warning = Some(WHOLE_PROGRAM.to_string());
                self.serve(&mut job, ranking.pages);
            } else {
                job.ranking = ranking.pages;
            }
        }
        self.progress.step(&format!("{}: running", plan.name));
        let result = self.checked(&plan.name, &job)?;
        let mut run = self.account(plan, &result);
        run.warnings.extend(warning);
        self.progress.step(&format!(
            "{}: {:.3} guest s, {:.0} wall s",
            plan.name,
            result.seconds(),
            run.wall_seconds
        ));
        Ok((run, result))
    }

    /// A program without a phase has no moment at which its pages could move, for there are none
    /// when it begins. Each is served as placed from its first access.
    fn serve(&self, job: &mut JobSpec, mut pages: Vec<u64>) {
        if let AtMark::Place { fast, slow, reserve_pages, .. } = job.at_mark {
            let space = self.calibration.usable_fast_bytes / PAGE;
            pages.truncate(space.saturating_sub(reserve_pages) as usize);
            job.served = Some(ServedPages { fast_pages: pages, fast, slow });
            // The environment of the profiled run, so that addresses are the same.
            job.at_mark = AtMark::Answer;
        }
    }

    /// The common job with this policy's set-up around it.
    fn job(&self, plan: &PolicySetup) -> Result<JobSpec> {
        let mut job = self.base.clone();
        job.before = plan.before.clone();
        job.after = plan.after.clone();
        job.memory_policy = plan.memory_policy.clone();
        job.at_mark = plan.at_mark.clone();
        job.reclaim = plan.reclaim.clone();
        job.cpu_of = plan.cpu_of.clone();
        job.fetch = plan.fetch.clone();
        job.plugin = plan.plugin.clone();
        if let (PageMover::Terrace { policy, tracker, set }, Some(terrace)) =
            (&plan.actor, &self.spec.terrace)
        {
            job.carry_as(terrace, GUEST_TERRACE);
            let mut argv: Vec<String> =
                [GUEST_TERRACE, "run", "--policy", policy.name(), "--journal", GUEST_JOURNAL]
                    .into_iter()
                    .chain(["--summary", GUEST_SUMMARY])
                    .map(String::from)
                    .collect();
            let tracker = tracker.iter().map(|name| ["--tracker".to_string(), name.clone()]);
            let set = set.iter().map(|pair| ["--set".to_string(), pair.clone()]);
            argv.extend(tracker.chain(set).flatten());
            argv.extend(self.spec.terrace_args.iter().cloned());
            argv.push("--".into());
            argv.extend(job.argv);
            job.argv = argv;
            job.fetch.extend([GUEST_SUMMARY.to_string(), GUEST_JOURNAL.to_string()]);
        }
        Ok(job)
    }

    /// Pages by what they would gain in the fast node, from a run in which nothing moves.
    fn profile(&self, policy: &str, moved: &JobSpec) -> Result<PageRanking> {
        let mut job = moved.clone();
        // The same marks and environment as in the run that moves, so that addresses are the same.
        job.at_mark = AtMark::Answer;
        job.profile = true;
        let kept = match &self.spec.profiles {
            Some(dir) => Some(dir.join(format!(
                "{}-{}",
                self.bench.shape().name,
                job_key(self.bench, &job)?
            ))),
            None => None,
        };
        let profile = match kept.as_ref().and_then(|path| fs::read(path).ok()) {
            Some(profile) => profile,
            None => {
                self.progress.step("profiling first touch, for the bounds");
                let profile = self
                    .checked(policy, &job)?
                    .profile
                    .ok_or_else(|| LabError::Unmarked { policy: policy.into() })?;
                if let Some(path) = &kept {
                    fs::write(path, &profile).map_err(io("writing", path))?;
                }
                profile
            }
        };
        placement::rank(&profile, self.bench.shape())
    }

    fn checked(&self, policy: &str, job: &JobSpec) -> Result<JobResult> {
        let result = self.bench.run(job)?;
        result.success().map_err(|how| LabError::WorkloadFailed {
            policy: policy.to_string(),
            how,
            stderr: crate::vm::last_lines(&String::from_utf8_lossy(&result.stderr), 3),
        })?;
        Ok(result)
    }

    fn account(&self, plan: &PolicySetup, result: &JobResult) -> LabRun {
        let summary = match plan.actor {
            PageMover::Terrace { .. } => {
                account::tool(result.files.get(GUEST_SUMMARY).map(Vec::as_slice), result)
            }
            _ => account::kernel(plan, result),
        };
        let KnownFigures { promoted_pages, demoted_pages, migrated_bytes, overhead_seconds } =
            summary;
        let span = result.stats.as_ref().and_then(|s| s.measured());
        LabRun {
            policy: plan.name.clone(),
            seconds: Some(result.seconds()),
            startup_seconds: Some(result.startup_seconds()),
            error: None,
            seconds_spread: 0.0,
            fast_access_share: account::fast_share(plan, span, self.bench.shape().fast),
            promoted_pages,
            demoted_pages,
            migrated_bytes,
            overhead_seconds,
            energy_joules: None,
            settings: plan.settings.iter().cloned().collect(),
            output_sum: format!("{:016x}", wire::checksum(&result.stdout)),
            wall_seconds: result.wall_seconds,
            warnings: result
                .reply
                .warnings
                .iter()
                .cloned()
                .chain(account::refusals(result))
                .collect(),
            journal: result.files.get(GUEST_JOURNAL).cloned(),
        }
    }
}

fn job_key(bench: &LabMachine, job: &JobSpec) -> Result<String> {
    let mut all = job.archive()?.finish();
    let machine = bench.snapshot().dir().file_name().map(|n| n.to_string_lossy().into_owned());
    all.extend_from_slice(format!("{machine:?} {:?} {}", job.plugin, job.profile).as_bytes());
    Ok(format!("{:016x}", wire::checksum(&all)))
}

/// One policy's row of its repeated runs: the median, with the spread of all; or why one of them
/// failed.
fn row(plan: &PolicySetup, outcomes: Vec<Result<Ran>>) -> (LabRun, Option<JobResult>) {
    let mut runs = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(ran) => runs.push(ran),
            Err(error) => {
                // The row names the policy.
                let text = error.to_string();
                let why = text.strip_prefix(&format!("{}: ", plan.name)).unwrap_or(&text);
                return (LabRun::without_time(&plan.name, why.to_string()), None);
            }
        }
    }
    match median(runs) {
        Some((run, result)) => (run, Some(result)),
        None => (LabRun::without_time(&plan.name, LabError::Interrupted.to_string()), None),
    }
}

/// The run with the median time; it carries the spread of all.
fn median(mut runs: Vec<Ran>) -> Option<Ran> {
    let seconds = |ran: &Ran| ran.1.seconds();
    runs.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let spread = seconds(runs.last()?) - seconds(runs.first()?);
    let mut middle = runs.swap_remove((runs.len() - 1) / 2);
    middle.0.seconds_spread = spread;
    Some(middle)
}

/// Write the journals of ours to a directory, one file a policy.
pub fn save_journals(result: &CompareResult, dir: &std::path::Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for run in &result.runs {
        if let Some(journal) = &run.journal {
            let path = dir.join(format!("{}.journal", run.policy.replace([':', '/'], "-")));
            std::fs::write(&path, journal).map_err(io("writing", &path))?;
            out.push(path);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_usable_memory_unless_given() {
        assert_eq!(with_fast("skew,threads=2", 140_000_000), "skew,threads=2,fast=133MiB");
        assert_eq!(with_fast("skew,fast=64MiB", 140_000_000), "skew,fast=64MiB");
        assert_eq!(with_fast("skew", 0), "skew");
    }
}
