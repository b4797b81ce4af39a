//! `crash advise`: which objects to flush, and how often, so that restarts succeed as often as
//! wanted at least cost. Each proposal is tried: the recording goes through the caches with the
//! flushes added, and the program restarts from every image. What flushes cost is simulated: the
//! recording runs on a machine file with all memory in the slowest tier, with and without them.

use super::recorded::RecordedRun;
use super::reference::ReferenceRun;
use super::workspace::Workspace;
use super::{restart_each, stop_or_go_on, CrashError, CrashProgress, CrashSpec, CrashStep};
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_crash::flushes::region_flushes;
use terrace_crash::study::study;
use terrace_crash::{
    FlushPlace, FlushPlan, ObjectKind, RegionFile, StudyError, StudyOptions, SuccessRate,
};
use terrace_machine::Machine;
use terrace_model::LINE;
use terrace_sim::recording::RecordedFlush;
use terrace_sim::{simulate_in_slow_memory, SimInput, SimSetup, SlowMemoryRun};

/// The longest period that is tried.
const LONGEST_PERIOD: u64 = 64;

/// What is wanted, besides a [`CrashSpec`].
#[derive(Debug, Clone)]
pub struct AdviseSpec {
    /// Share of restarts that succeed, from 0 to 1.
    pub wanted: f64,
    /// The machine on which flushes are simulated; its slowest memory takes them.
    pub machine: Machine,
}

/// An object, where and how often it is flushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlushedObject {
    /// Which.
    pub object: String,
    /// Where.
    pub place: FlushPlace,
    /// Every so many times that the program comes there.
    pub every: u64,
}

/// A proposal that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct FlushTrial {
    /// What is flushed.
    pub flushes: Vec<FlushedObject>,
    /// Restarts.
    #[serde(flatten)]
    pub rate: SuccessRate,
    /// The share that succeeds.
    pub share: f64,
    /// Modelled bytes that memory is given beyond those without flushes of any object.
    pub extra_bytes: u64,
    /// Modelled seconds beyond those of that run.
    pub extra_seconds: f64,
    /// As a share of them.
    pub slowdown: f64,
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct AdviceReport {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The share of successes that is wanted.
    pub wanted: f64,
    /// The machine on which flushes are simulated.
    pub machine: String,
    /// Modelled seconds of the whole program with its own flushes alone.
    pub base_seconds: f64,
    /// In the order in which they were tried; the first flushes nothing.
    pub trials: Vec<FlushTrial>,
    /// The cheapest that reaches what is wanted.
    pub advice: Option<FlushTrial>,
}

impl AdviceReport {
    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "success   extra bytes  slowdown  flushed")?;
        for trial in &self.trials {
            writeln!(
                out,
                "{:>6.1}%  {:>12}  {:>7.2}%  {}",
                trial.share * 100.0,
                trial.extra_bytes,
                trial.slowdown * 100.0,
                describe(&trial.flushes)
            )?;
        }
        let wanted = self.wanted * 100.0;
        match &self.advice {
            Some(best) => writeln!(
                out,
                "\nflush {}: {:.1}% of restarts succeed, at {:.2}% of {:.3} s on {}",
                describe(&best.flushes),
                best.share * 100.0,
                best.slowdown * 100.0,
                self.base_seconds,
                self.machine
            ),
            None => writeln!(out, "\nno flushes that were tried reach {wanted:.1}%"),
        }
    }
}

fn describe(flushes: &[FlushedObject]) -> String {
    if flushes.is_empty() {
        return "nothing".into();
    }
    let each = |f: &FlushedObject| match (f.place, f.every) {
        (FlushPlace::IterationEnd, 1) => format!("{} each iteration", f.object),
        (FlushPlace::IterationEnd, n) => format!("{} every {n} iterations", f.object),
        (FlushPlace::PhaseBegin(phase), 1) => format!("{} before each phase {phase}", f.object),
        (FlushPlace::PhaseBegin(phase), n) => {
            format!("{} before phase {phase} every {n} times", f.object)
        }
    };
    flushes.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// Finds what to flush. `stop` ends the search with what was found so far.
///
/// # Errors
/// [`CrashError`].
pub fn advise(
    spec: &CrashSpec,
    how: &AdviseSpec,
    stop: &AtomicBool,
    progress: &mut CrashProgress<'_>,
) -> Result<AdviceReport, CrashError> {
    let workspace = Workspace::create(&spec.work)?;
    progress(CrashStep::Reference, 0.0);
    let reference = ReferenceRun::make(spec, &workspace, None, stop)?;
    progress(CrashStep::Recording, 0.0);
    let recorded = RecordedRun::make(&reference, &workspace)?;
    let region = recorded.region()?;
    if region.iteration_object().is_none() {
        return Err(StudyError::NoIteration.into());
    }
    let mut search = Search {
        spec,
        how,
        stop,
        workspace: &workspace,
        reference: &reference,
        region: &region,
        recorded: &recorded,
        base: None,
        marked_phases: 0,
        trials: Vec::new(),
    };
    let critical: Vec<usize> = (0..region.objects.len())
        .filter(|i| region.objects[*i].kind == ObjectKind::Critical && region.objects[*i].bytes > 0)
        .collect();
    match search.find(&critical, progress) {
        Err(CrashError::Study(StudyError::Stopped)) if !search.trials.is_empty() => {}
        other => other?,
    }
    let reaches = |t: &&FlushTrial| t.share >= how.wanted;
    let cost = |a: &&FlushTrial, b: &&FlushTrial| a.extra_seconds.total_cmp(&b.extra_seconds);
    let advice = search.trials.iter().filter(reaches).min_by(cost).cloned();
    Ok(AdviceReport {
        command: spec.argv.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        wanted: how.wanted,
        machine: how.machine.name.clone(),
        base_seconds: search.base.map_or(0.0, |run| run.seconds),
        trials: search.trials,
        advice,
    })
}

struct Search<'a> {
    spec: &'a CrashSpec,
    how: &'a AdviseSpec,
    stop: &'a AtomicBool,
    workspace: &'a Workspace,
    reference: &'a ReferenceRun,
    region: &'a RegionFile,
    recorded: &'a RecordedRun,
    /// The simulation with the program's own flushes alone.
    base: Option<SlowMemoryRun>,
    /// Phases that the program marks: what can be flushed where one begins.
    marked_phases: u32,
    trials: Vec<FlushTrial>,
}

impl Search<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Where something can be flushed.
    fn places(&self) -> Vec<FlushPlace> {
        let begins = (1..=self.marked_phases).map(FlushPlace::PhaseBegin);
        [FlushPlace::IterationEnd].into_iter().chain(begins).collect()
    }

    fn find(
        &mut self,
        critical: &[usize],
        progress: &mut CrashProgress<'_>,
    ) -> Result<(), CrashError> {
        let mut plans = self.add_until_wanted(critical, progress)?;
        self.thin_out(&mut plans, progress)
    }

    /// Adds the object and the place that help most, one by one.
    fn add_until_wanted(
        &mut self,
        critical: &[usize],
        progress: &mut CrashProgress<'_>,
    ) -> Result<Vec<FlushPlan>, CrashError> {
        let mut plans: Vec<FlushPlan> = Vec::new();
        let mut share = self.try_plans(&plans, progress)?.share;
        while share < self.how.wanted && !self.stopped() {
            let mut best: Option<(f64, u64, FlushPlan)> = None;
            for plan in self.plans_besides(critical, &plans) {
                let tried = self.try_plans(&[plans.as_slice(), &[plan]].concat(), progress)?;
                let (now, bytes) = (tried.share, tried.extra_bytes);
                let better = best
                    .is_none_or(|(share, cost, _)| now > share || (now == share && bytes < cost));
                if better {
                    best = Some((now, bytes, plan));
                }
                if self.stopped() {
                    break;
                }
            }
            let Some((now, _, plan)) = best else { break };
            plans.push(plan);
            share = now;
        }
        Ok(plans)
    }

    /// One plan more: any object at any place where it is not flushed yet.
    fn plans_besides(&self, critical: &[usize], plans: &[FlushPlan]) -> Vec<FlushPlan> {
        let at = |object: usize, place| FlushPlan { object, place, period: 1 };
        let all = critical.iter().flat_map(|o| self.places().into_iter().map(|p| at(*o, p)));
        let is_new = |plan: &FlushPlan| {
            plans.iter().all(|p| (p.object, p.place) != (plan.object, plan.place))
        };
        all.filter(is_new).collect()
    }

    /// Leaves objects out, and flushes them less often, while restarts succeed as wanted.
    fn thin_out(
        &mut self,
        plans: &mut Vec<FlushPlan>,
        progress: &mut CrashProgress<'_>,
    ) -> Result<(), CrashError> {
        let wanted = self.how.wanted;
        if self.trials.iter().all(|t| t.share < wanted) {
            return Ok(());
        }
        let mut at = 0;
        while at < plans.len() && plans.len() > 1 && !self.stopped() {
            let mut fewer = plans.clone();
            fewer.remove(at);
            if self.try_plans(&fewer, progress)?.share >= wanted {
                *plans = fewer;
            } else {
                at += 1;
            }
        }
        for at in 0..plans.len() {
            while plans[at].period < LONGEST_PERIOD && !self.stopped() {
                let mut rarer = plans.clone();
                rarer[at].period *= 2;
                if self.try_plans(&rarer, progress)?.share < wanted {
                    break;
                }
                *plans = rarer;
            }
        }
        Ok(())
    }

    /// The program with its own flushes and those of plans, in the machine's slowest memory.
    fn simulate(&self, plans: &[FlushPlan]) -> Result<SlowMemoryRun, CrashError> {
        let mut reader = self.recorded.open()?;
        let flushes = region_flushes(&mut reader, self.region, plans, LINE)?;
        let flushes = flushes.into_iter().map(|flush| RecordedFlush {
            process: flush.process,
            thread: flush.thread,
            time: flush.time,
            addresses: flush.addresses,
        });
        let recording = self.recorded.simulated()?.with_flushes(flushes);
        let input = SimInput::Recording { name: "the program".into(), recording };
        Ok(simulate_in_slow_memory(&SimSetup::from_machine(&self.how.machine, input)?)?)
    }

    fn try_plans(
        &mut self,
        plans: &[FlushPlan],
        progress: &mut CrashProgress<'_>,
    ) -> Result<FlushTrial, CrashError> {
        let options = StudyOptions {
            setup: self.spec.setup.clone(),
            schedule: self.spec.schedule.clone(),
            most: super::MAX_CRASHES as usize,
            flushes: plans.to_vec(),
        };
        let mut reader = self.recorded.open()?;
        let set = study(&mut reader, self.region, &options, &mut |done| {
            progress(CrashStep::Caches, done);
            stop_or_go_on(self.stop)
        })?;
        if self.trials.is_empty() {
            self.marked_phases = set.marked_phases;
        }
        let mut rate = SuccessRate::default();
        restart_each(
            self.spec,
            self.workspace,
            self.reference,
            (self.region, &set),
            self.stop,
            &mut |(result, _)| rate.add(result.outcome),
        )?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(StudyError::Stopped.into());
        }
        progress(CrashStep::Simulation, 0.0);
        let run = self.simulate(plans)?;
        let base = *self.base.get_or_insert(run);
        let extra_seconds = (run.seconds - base.seconds).max(0.0);
        let name = |plan: &FlushPlan| FlushedObject {
            object: self.region.objects[plan.object].name.clone(),
            place: plan.place,
            every: plan.period,
        };
        let trial = FlushTrial {
            flushes: plans.iter().map(name).collect(),
            rate,
            share: rate.share().unwrap_or(0.0),
            extra_bytes: run.written_bytes.saturating_sub(base.written_bytes),
            extra_seconds,
            slowdown: extra_seconds / base.seconds.max(1e-12),
        };
        // A trial that was cut short says nothing.
        if !self.stopped() {
            self.trials.push(trial.clone());
        }
        Ok(trial)
    }
}
