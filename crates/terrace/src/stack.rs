//! `terrace device hbm` and `terrace sim --machine stack:...`: stacked memory evaluated, swept and
//! put under programs.

use crate::predict::{predict, PredictError, Prediction, Question};
use serde::Serialize;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use terrace_device::hbm::design::{PublishedFigures, StackDesign};
use terrace_device::hbm::energy::StackTraffic;
use terrace_device::hbm::evaluate::{
    evaluate_with, Detail, StackEvaluation, StackLoad, ThermalState,
};
use terrace_device::hbm::sweep::{designs, pareto, SweptDesign, SweptKey};
use terrace_device::hbm::{file, node, presets, StackError};
use terrace_machine::Machine;
use terrace_types::text::{clip, TextTable};
use terrace_types::{BaselineId, Contender};

/// Before the stack that `terrace sim --machine` names.
pub const STACK_PREFIX: &str = "stack:";
/// The machine that gets the stacks as its HBM.
pub const STACK_BASE: &str = "preset:xeon-max";
/// Bytes of a stack file at most.
const LARGEST_FILE: u64 = 1 << 20;
/// Fast memory that a workload is sized by unless it says otherwise: ours. By the stacks' own tens
/// of GiB no host could simulate it.
const WORKLOAD_FAST: &str = "fast=256MiB";
/// Rounds of program and temperature at most: refresh has four rates, and each round that changes
/// nothing ends the loop.
const MAX_ROUNDS: usize = 6;

/// Why there is no stack or no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StackProblem {
    /// The description is wrong.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The file cannot be read.
    #[error("stack file {path}: {why}; give a stack file or preset:NAME")]
    File {
        /// The file.
        path: String,
        /// Why not.
        why: String,
    },
    /// The base machine has no CPUs or no node left.
    #[error("machine {0}: no CPUs or no free node number for the stacks; give another --base")]
    Base(String),
    /// The simulation failed.
    #[error(transparent)]
    Predict(#[from] PredictError),
}

/// Reads `preset:NAME`, the name of a preset, or a stack file.
///
/// # Errors
/// [`StackProblem`].
pub fn load_stack(source: &str) -> Result<StackDesign, StackProblem> {
    if let Some(name) = source.strip_prefix("preset:") {
        return Ok(presets::preset(name)?);
    }
    if presets::names().any(|n| n == source) && !Path::new(source).exists() {
        return Ok(presets::preset(source)?);
    }
    let bad = |why: String| StackProblem::File { path: source.to_owned(), why };
    let open = std::fs::File::open(source).map_err(|e| bad(e.to_string()))?;
    let mut bytes = Vec::new();
    open.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(|e| bad(e.to_string()))?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(bad(format!("longer than {LARGEST_FILE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("not UTF-8 text".to_owned()))?;
    Ok(file::read(&text, source)?)
}

/// One design of a study.
#[derive(Debug, Clone, Serialize)]
pub struct StudiedDesign {
    /// What a sweep set: key and value.
    pub settings: Vec<(String, String)>,
    /// Why it cannot be, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impossible: Option<String>,
    /// No other design beats it in bandwidth, capacity, temperature, energy and cost at once.
    pub pareto: bool,
    /// Its figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<StackEvaluation>,
    /// Published figures, where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedComparison>,
    /// The design.
    #[serde(skip)]
    pub design: Option<StackDesign>,
}

/// Published figures beside the model's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PublishedComparison {
    /// Peak bandwidth, GB/s.
    pub peak_gb_per_s: Option<[f64; 2]>,
    /// Capacity, GiB.
    pub capacity_gib: Option<[f64; 2]>,
    /// Height, um.
    pub height_um: Option<[f64; 2]>,
    /// Energy of a bit, pJ: published, and of ours the mean of whole rows and single bursts.
    pub pj_per_bit: Option<[f64; 2]>,
}

impl PublishedComparison {
    fn new(published: PublishedFigures, e: &StackEvaluation) -> Option<Self> {
        if published == PublishedFigures::default() {
            return None;
        }
        let pair = |p: Option<f64>, ours: f64| p.map(|p| [p, ours]);
        let energy = (e.stream_pj_per_bit.total() + e.random_pj_per_bit.total()) / 2.0;
        Some(Self {
            peak_gb_per_s: pair(published.published_gb_per_s, e.peak_bytes_per_s / 1e9),
            capacity_gib: pair(published.published_gib, gib(e.capacity_bytes)),
            height_um: pair(published.published_um, e.height_um),
            pj_per_bit: pair(published.published_pj_per_bit, energy),
        })
    }
}

/// One or many designs evaluated; as JSON the output of `terrace device hbm`.
#[derive(Debug, Clone, Serialize)]
pub struct StackStudy {
    /// Of this format.
    pub version: u32,
    /// `stacked_memory`.
    pub kind: &'static str,
    /// Name of the stack that it started from.
    pub stack: String,
    /// The designs, in the order of the sweep.
    pub designs: Vec<StudiedDesign>,
}

/// Evaluates a design, or all designs of a sweep, on all cores of the host; `done` is notified of
/// each design that is finished, with how many there are.
///
/// # Errors
/// [`StackError::Sweep`].
pub fn study(
    base: &StackDesign,
    keys: &[SweptKey],
    done: impl Fn(usize, usize) + Sync,
) -> Result<StackStudy, StackError> {
    let swept = designs(base, keys)?;
    let detail = if keys.is_empty() { Detail::Full } else { Detail::Sweep };
    let evaluations = evaluate_all(&swept, detail, done);
    let best = pareto(&evaluations.iter().map(Option::as_ref).collect::<Vec<_>>());
    let designs = swept
        .into_iter()
        .zip(evaluations)
        .zip(best)
        .map(|((swept, evaluation), pareto)| {
            let published = evaluation
                .as_ref()
                .filter(|_| swept.settings.is_empty())
                .and_then(|e| PublishedComparison::new(base.published, e));
            StudiedDesign {
                settings: swept.settings,
                impossible: swept.design.as_ref().err().map(ToString::to_string),
                pareto,
                evaluation,
                published,
                design: swept.design.ok(),
            }
        })
        .collect();
    Ok(StackStudy { version: 1, kind: "stacked_memory", stack: base.name.clone(), designs })
}

impl StackStudy {
    /// The study as a page of HTML that needs nothing else.
    ///
    /// # Errors
    /// A study that cannot be read back, which is a fault of ours.
    pub fn html(&self) -> Result<String, terrace_report::ReportError> {
        let bad = |e: serde_json::Error| terrace_report::ReportError::StackedMemory(e.to_string());
        let json = serde_json::to_vec(self).map_err(bad)?;
        Ok(terrace_report::read(&json)?.to_html())
    }
}

fn evaluate_all(
    swept: &[SweptDesign],
    detail: Detail,
    done: impl Fn(usize, usize) + Sync,
) -> Vec<Option<StackEvaluation>> {
    let next = AtomicUsize::new(0);
    let finished = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; swept.len()]);
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(swept.len());
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(design) = swept.get(index) else { return };
        let result =
            design.design.as_ref().ok().map(|d| evaluate_with(d, StackLoad::Saturated, detail));
        if let Ok(mut results) = results.lock() {
            results[index] = result;
        }
        done(finished.fetch_add(1, Ordering::Relaxed) + 1, swept.len());
    };
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    results.into_inner().unwrap_or_default()
}

/// `base` with these stacks in place of its HBM.
///
/// # Errors
/// [`StackProblem::Base`].
pub fn stack_machine(
    base: &Machine,
    design: &StackDesign,
    evaluation: &StackEvaluation,
) -> Result<Machine, StackProblem> {
    node::machine(base, design, evaluation).ok_or_else(|| StackProblem::Base(base.name.clone()))
}

/// What a program's run on a design came to.
#[derive(Debug, Clone, Serialize)]
pub struct StackRun {
    /// What a sweep set.
    pub settings: Vec<(String, String)>,
    /// Why it cannot be, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impossible: Option<String>,
    /// What it runs under.
    pub policy: Contender,
    /// Modelled seconds, at the temperature that the traffic leads to.
    pub seconds: Option<f64>,
    /// Rounds of program and temperature until nothing changed.
    pub rounds: usize,
    /// Bytes a second that the program moved from and to one stack.
    pub stack_bytes_per_s: Option<f64>,
    /// Power of a stack, W.
    pub stack_w: Option<f64>,
    /// Hottest die, C.
    pub hottest_c: Option<f64>,
    /// Highest refresh rate of a die, in units of that at rest.
    pub refresh_rate: Option<f64>,
    /// Limits that the design does not hold.
    pub violations: Vec<String>,
}

/// A program on one or many designs; as JSON the output of `terrace sim --machine stack:...`.
#[derive(Debug, Clone, Serialize)]
pub struct StackAnswer {
    /// Of this format.
    pub version: u32,
    /// The stack that it started from.
    pub stack: String,
    /// The program.
    pub input: String,
    /// One entry a design and policy.
    pub runs: Vec<StackRun>,
}

/// A workload without a size gets one; a recording has its own.
#[must_use]
pub fn stack_input(input: &str) -> String {
    let sized = input.contains("fast=") || !input.starts_with("workload:");
    if sized {
        return input.to_owned();
    }
    format!("{input},{WORKLOAD_FAST}")
}

/// Runs the question's program on `base` with each design in turn. The loop is closed: traffic
/// gives power and temperature, these give the refresh rate, this gives the machine's bandwidth,
/// and the program runs again until the machine stays what it was.
///
/// # Errors
/// [`StackProblem`]; a design that is impossible is an entry instead.
pub fn simulate_stacks(
    base: &Machine,
    stack: &StackDesign,
    keys: &[SweptKey],
    question: &Question,
) -> Result<StackAnswer, StackProblem> {
    let mut runs = Vec::new();
    for swept in designs(stack, keys)? {
        for policy in &question.policies {
            let settings = swept.settings.clone();
            let run = match &swept.design {
                Ok(design) => close_loop(base, design, settings, policy, question)?,
                Err(why) => impossible(settings, policy, why),
            };
            runs.push(run);
        }
    }
    Ok(StackAnswer { version: 1, stack: stack.name.clone(), input: question.input.clone(), runs })
}

fn impossible(settings: Vec<(String, String)>, policy: &Contender, why: &StackError) -> StackRun {
    StackRun {
        settings,
        impossible: Some(why.to_string()),
        policy: policy.clone(),
        seconds: None,
        rounds: 0,
        stack_bytes_per_s: None,
        stack_w: None,
        hottest_c: None,
        refresh_rate: None,
        violations: Vec::new(),
    }
}

fn close_loop(
    base: &Machine,
    design: &StackDesign,
    settings: Vec<(String, String)>,
    policy: &Contender,
    question: &Question,
) -> Result<StackRun, StackProblem> {
    let demand = |traffic| evaluate_with(design, StackLoad::Demand(traffic), Detail::Sweep);
    let mut evaluation = demand(StackTraffic::NONE);
    let mut machine = stack_machine(base, design, &evaluation)?;
    let mut rounds = 0;
    let (seconds, traffic) = loop {
        rounds += 1;
        let counted = with_known_energy(&machine);
        let answer = predict(&Question {
            machine: counted.clone(),
            policies: vec![policy.clone()],
            ..question.clone()
        })?;
        let (seconds, traffic) = traffic_of(&answer, &counted, design, policy);
        evaluation = demand(traffic);
        let next = stack_machine(base, design, &evaluation)?;
        let same = next.links == machine.links;
        let runaway = evaluation.thermal == ThermalState::Runaway;
        machine = next;
        if same || runaway || rounds >= MAX_ROUNDS {
            break (seconds, traffic);
        }
    };
    Ok(StackRun {
        settings,
        impossible: None,
        policy: policy.clone(),
        seconds: Some(seconds),
        rounds,
        stack_bytes_per_s: Some(traffic.bytes_per_s()),
        stack_w: Some(evaluation.power.total_w()),
        hottest_c: Some(evaluation.temperatures.hottest_c()),
        refresh_rate: Some(evaluation.refresh_rates.iter().copied().fold(1.0, f64::max)),
        violations: evaluation.violations,
    })
}

/// The machine with an energy for each node's bytes, since bytes are counted by it.
fn with_known_energy(machine: &Machine) -> Machine {
    let mut machine = machine.clone();
    for node in &mut machine.nodes {
        node.energy.read_pj_per_byte.get_or_insert(1);
        node.energy.write_pj_per_byte.get_or_insert(1);
    }
    machine
}

/// Seconds of the run, and what one stack was asked for: bytes are the node's energy over what the
/// machine says that a byte takes.
fn traffic_of(
    answer: &Prediction,
    machine: &Machine,
    design: &StackDesign,
    policy: &Contender,
) -> (f64, StackTraffic) {
    let Some(entry) = answer.runs.first() else { return (0.0, StackTraffic::NONE) };
    let seconds = entry.run.seconds;
    let mut traffic =
        StackTraffic { activations_per_burst: node::activations(design), ..StackTraffic::NONE };
    let stacks = design.package.stacks;
    // All memory is as fast as the best tier's then, wherever it lies.
    let all_fast = *policy == BaselineId::AllFast.into();
    let in_stacks =
        |n: &&terrace_machine::Node| all_fast || n.kind == terrace_machine::MemoryKind::Hbm;
    for node in machine.nodes.iter().filter(in_stacks) {
        let Some(energy) = entry.run.energy.iter().find(|e| e.node == node.id) else { continue };
        let rate = |joules: Option<f64>, pj: Option<u32>| match (joules, pj) {
            (Some(joules), Some(pj)) if pj > 0 && seconds > 0.0 => {
                joules / (f64::from(pj) * 1e-12) / seconds / stacks
            }
            _ => 0.0,
        };
        traffic.read_bytes_per_s += rate(energy.read_joules, node.energy.read_pj_per_byte);
        traffic.write_bytes_per_s += rate(energy.write_joules, node.energy.write_pj_per_byte);
    }
    (seconds, traffic)
}

impl StackAnswer {
    /// The answer as a table for people, on a terminal of so many columns.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let mut out =
            clip(&format!("{} on {} beside DDR, simulated", self.input, self.stack), columns);
        out.push('\n');
        let heads = ["design", "policy", "seconds", "GB/s", "W", "hot C", "rate"];
        let mut table = TextTable::new(2, &heads);
        for run in &self.runs {
            let figure = |value: Option<f64>, digits: usize| {
                value.map_or("-".to_owned(), |v| format!("{v:.digits$}"))
            };
            table.row([
                named(&run.settings, &self.stack),
                run.policy.to_string(),
                figure(run.seconds, 4),
                figure(run.stack_bytes_per_s.map(|b| b / 1e9), 2),
                figure(run.stack_w, 2),
                figure(run.hottest_c, 1),
                figure(run.refresh_rate, 0),
            ]);
            run.impossible.iter().chain(&run.violations).for_each(|note| table.remark(note));
        }
        out.push_str(&table.text(columns));
        out.push_str("GB/s and W: of one stack; rate: refresh, in units of that at rest.\n");
        out
    }
}

/// Settings of a design in a few words.
pub(crate) fn named(settings: &[(String, String)], base: &str) -> String {
    if settings.is_empty() {
        return base.to_owned();
    }
    settings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
}

pub(crate) fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::TrackerKind;
    use terrace_device::hbm::sweep::parse;
    use terrace_types::Seed;

    fn question(base: &Machine, input: &str) -> Question {
        Question {
            machine: base.clone(),
            policies: vec![BaselineId::AllFast.into()],
            input: input.to_owned(),
            sweep: vec![],
            seed: Seed(1),
            tracker: TrackerKind::PageTable,
            journals: false,
            custom: None,
        }
    }

    #[test]
    fn a_study_is_ordered_as_the_sweep_and_becomes_a_page() {
        let base = presets::preset("hbm3").unwrap();
        let reported = Mutex::new(Vec::new());
        let keys = [parse("dies=4..12").unwrap(), parse("bonding=microbump,hybrid").unwrap()];
        let study = study(&base, &keys, |n, all| reported.lock().unwrap().push((n, all))).unwrap();
        let names: Vec<String> =
            study.designs.iter().map(|d| named(&d.settings, &study.stack)).collect();
        assert_eq!(names[0], "dies=4 bonding=microbump");
        assert_eq!(names[5], "dies=12 bonding=hybrid");
        assert_eq!(reported.lock().unwrap().len(), 6);
        assert!(study.text(80).lines().all(|l| l.chars().count() <= 80), "{}", study.text(80));
        assert!(study.html().unwrap().contains("Cross-sections to scale"));
    }

    /// Memory so hot that it is refreshed twice as often: the program is slower than on cool
    /// memory.
    #[test]
    fn a_program_feels_the_temperature() {
        let mut base = terrace_machine::preset("lab-hbm").unwrap();
        // So that the stack is the better tier.
        let ddr = &mut base.links[0];
        for rate in [&mut ddr.read_bandwidth, &mut ddr.write_bandwidth] {
            rate.as_mut().unwrap().value = terrace_types::BytesPerSec::gb(1);
        }
        let mut design = presets::preset("hbm1").unwrap();
        // A narrow stack, so that the program waits for it.
        (design.interface.data_rate_gbps, design.interface.channel_bits) = (0.2, 32.0);
        design.package.stacks = 1.0;
        let input = "workload:stream,accesses=400k,size=24MiB";
        let run = |design: &StackDesign| {
            simulate_stacks(&base, design, &[], &question(&base, input)).unwrap().runs.remove(0)
        };
        let cool = run(&design);
        design.package.coolant_c = 80.0;
        design.package.processor_w = 600.0;
        let hot = run(&design);
        assert!(cool.refresh_rate == Some(1.0) && hot.refresh_rate > Some(1.0), "{hot:?}");
        assert!(hot.seconds > cool.seconds, "{cool:?} {hot:?}");
        assert!(cool.stack_bytes_per_s > Some(1e9), "{cool:?}");
    }
}
