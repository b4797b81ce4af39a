//! `terrace migratory run`: a vertex program on a machine of migratory threads, before and after
//! transformations.

mod input;
mod text;

use input::left_out;
pub use input::{format_program, load_graph, load_program};
use serde::Serialize;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;
use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::{
    MigratoryCounters, MigratoryError, MigratoryMachine, NodeletCounters, NodeletSample,
};
use terrace_trace::TraceError;
use terrace_vertex::compile::{compile, CompiledProgram};
use terrace_vertex::format::format_lines;
use terrace_vertex::graph::{Graph, Orientation};
use terrace_vertex::layout::DataLayout;
use terrace_vertex::native::{self, ProgramResults};
use terrace_vertex::optimize::{rank_passes, PassCandidate};
use terrace_vertex::passes::{Pass, PassContext};
use terrace_vertex::record::{record, VertexRecordError};
use terrace_vertex::syntax::VertexProgram;
use terrace_vertex::VertexError;

/// Version of the answer's JSON.
const VERSION: u32 = 1;
/// One part in so many of a nodelet's memory may hold copies of properties.
const COPIES_PART: u64 = 16;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigratoryQuestion {
    /// A program's file, or the name of a shipped program.
    pub program: String,
    /// A recipe such as `rmat:scale=10`, or a file.
    pub graph: String,
    /// A preset, with figures replaced or not.
    pub machine: String,
    /// Name of a layout.
    pub layout: String,
    /// Names of passes, in order.
    pub passes: Vec<String>,
    /// Pick the passes by predicted time, in place of `passes`.
    pub optimize: bool,
    /// Values of the program's parameters.
    pub parameters: Vec<(String, i64)>,
    /// Host threads that simulate.
    pub host_threads: u32,
    /// Instructions at most, of all simulated threads.
    pub instructions: u64,
    /// Where to write a recording of native execution, after all passes, for `terrace sim`.
    pub record: Option<PathBuf>,
    /// Threads of that recording.
    pub recorded_threads: u32,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum MigratoryProblem {
    /// A file cannot be read.
    #[error("{what} {path}: {why}")]
    File {
        /// `program` or `graph`.
        what: &'static str,
        /// The file.
        path: String,
        /// Why not, and what to give.
        why: String,
    },
    /// A name that means nothing.
    #[error("{what} {name:?} is unknown; give {known}")]
    Unknown {
        /// What kind of name.
        what: &'static str,
        /// The name.
        name: String,
        /// What is known.
        known: String,
    },
    /// The recording cannot be written.
    #[error("recording {}: {error}", path.display())]
    Recording {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        error: VertexRecordError,
    },
    /// The program is wrong.
    #[error("program {program}: {error}")]
    Program {
        /// The program.
        program: String,
        /// What is wrong.
        error: VertexError,
    },
    /// Two ways to run a program gave different results: a fault of Terrace.
    #[error("{run} of {program} computes something else than native execution; please report it")]
    Different {
        /// The program.
        program: String,
        /// Which run.
        run: String,
    },
    /// The graph, or the machine.
    #[error(transparent)]
    Vertex(#[from] VertexError),
    /// The machine.
    #[error(transparent)]
    Machine(#[from] MigratoryError),
}

/// The answer; as JSON the output of `terrace migratory run`.
#[derive(Debug, Clone, Serialize)]
pub struct MigratoryAnswer {
    /// Version of this form: 1.
    pub version: u32,
    /// `migratory_threads`.
    pub kind: &'static str,
    /// The program's name.
    pub program: String,
    /// The graph as it was asked for.
    pub graph: String,
    /// Vertices of the graph.
    pub vertices: u64,
    /// Edges; an undirected edge counts twice.
    pub edges: u64,
    /// Whether edges have a direction.
    pub directed: bool,
    /// The machine as it was asked for.
    pub machine: String,
    /// Nodelets of the machine.
    pub nodelets: u32,
    /// The layout of the data.
    pub layout: String,
    /// Seconds that native execution took on one host thread.
    pub native_seconds: f64,
    /// The program as it is, then with each further pass.
    pub runs: Vec<MigratoryRun>,
    /// Where passes could not apply.
    pub notes: Vec<String>,
}

/// A program, perhaps transformed, on the machine.
#[derive(Debug, Clone, Serialize)]
pub struct MigratoryRun {
    /// Passes applied so far.
    pub passes: Vec<String>,
    /// Where the last of them applied.
    pub applied: Vec<String>,
    /// Simulated seconds.
    pub seconds: f64,
    /// Seconds of the host.
    pub host_seconds: f64,
    /// Migrations.
    pub migrations: u64,
    /// Updates sent to other nodelets.
    pub remote_updates: u64,
    /// Threads that were spawned.
    pub spawns: u64,
    /// Spawns that became calls.
    pub calls: u64,
    /// Instructions.
    pub instructions: u64,
    /// Words loaded and stored.
    pub memory_words: u64,
    /// Contexts that were written to memory because a queue was full.
    pub spills: u64,
    /// What the program returns.
    pub returned: Vec<ReturnedItem>,
    /// Figures of each nodelet.
    pub nodelet_counters: Vec<NodeletFigures>,
    /// Seconds of each point of the figures over time.
    pub sample_seconds: f64,
    /// The program's text with the migrations and remote updates of each line.
    pub lines: Vec<ProgramLine>,
}

/// A value that the program returns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReturnedItem {
    /// Its name.
    pub name: String,
    /// The value, or a ratio's numerator.
    pub value: i64,
    /// A ratio's denominator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denominator: Option<i64>,
    /// For people.
    pub text: String,
}

/// What a nodelet counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeletFigures {
    /// Threads that began here.
    pub threads_created: u64,
    /// Spawns by threads here.
    pub spawns: u64,
    /// Threads that ended here.
    pub threads_ended: u64,
    /// Migrations to each nodelet.
    pub migrations_to: Vec<u64>,
    /// Updates sent to other nodelets.
    pub remote_out: u64,
    /// Updates from other nodelets.
    pub remote_in: u64,
    /// Longest queue of contexts that wait for a slot.
    pub longest_arrivals: u64,
    /// Longest queue of contexts that wait for the migration engine.
    pub longest_departures: u64,
    /// Longest queue of updates that wait for memory.
    pub longest_updates: u64,
    /// Threads in slots, means over [`MigratoryRun::sample_seconds`].
    pub threads_over_time: Vec<f64>,
    /// Threads in slots that could run.
    pub runnable_over_time: Vec<f64>,
    /// Contexts that wait for a slot.
    pub arrivals_over_time: Vec<f64>,
    /// Contexts that wait for the migration engine.
    pub departures_over_time: Vec<f64>,
}

/// A line of a program with its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProgramLine {
    /// The text.
    pub text: String,
    /// Migrations that it caused.
    pub migrations: u64,
    /// Remote updates that it sent.
    pub remote_updates: u64,
}

/// Runs a program as it is and after each pass, and compares all results with native execution.
/// `progress` is given what runs.
///
/// # Errors
/// [`MigratoryProblem`].
pub fn run_program(
    question: &MigratoryQuestion,
    mut progress: impl FnMut(&str),
) -> Result<MigratoryAnswer, MigratoryProblem> {
    let machine = MigratoryMachine::parse(&question.machine)?;
    let layout = DataLayout::named(&question.layout).ok_or_else(|| unknown_layout(question))?;
    let passes = named_passes(&question.passes)?;
    let program = load_program(&question.program)?;
    progress("building the graph");
    let graph = load_graph(&question.graph)?;
    let wrong = |error| match error {
        VertexError::Machine(error) => MigratoryProblem::Machine(error),
        error => MigratoryProblem::Program { program: question.program.clone(), error },
    };
    progress("running natively");
    let started = Instant::now();
    let expected = native::run(&program, &graph, &question.parameters, 1).map_err(wrong)?;
    let native_seconds = started.elapsed().as_secs_f64();
    let copy_bytes = machine.memory.get() / COPIES_PART;
    let context = PassContext { graph: &graph, copy_bytes };
    let mut answer = MigratoryAnswer {
        version: VERSION,
        kind: "migratory_threads",
        program: program.name.clone(),
        graph: question.graph.clone(),
        vertices: u64::from(graph.vertices()),
        edges: graph.edges(),
        directed: graph.orientation() == Orientation::Directed,
        machine: machine.name.clone(),
        nodelets: machine.nodelets(),
        layout: question.layout.clone(),
        native_seconds,
        runs: Vec::new(),
        notes: left_out(&question.graph, &graph).into_iter().collect(),
    };
    let passes = if question.optimize {
        progress("predicting sets of passes");
        let parameters = &question.parameters;
        let ranked = rank_passes(&program, parameters, layout, &machine, context).map_err(wrong)?;
        answer.notes.extend(explain(&ranked));
        ranked.into_iter().next().map_or(Vec::new(), |best| best.passes)
    } else {
        passes
    };
    let mut current = program;
    let mut applied = (Vec::new(), Vec::new());
    for step in 0..=passes.len() {
        if let Some(pass) = step.checked_sub(1).map(|last| passes[last]) {
            let outcome = pass.apply(&current, context).map_err(wrong)?;
            current = outcome.program;
            let note = |note: &terrace_vertex::passes::PassNote| {
                format!("{} at line {}: {}", pass.name(), note.line, note.what)
            };
            applied.0.push(pass.name().to_owned());
            applied.1 = outcome.applied.iter().map(note).collect();
            let refused = outcome.refused.iter().map(note).map(|n| format!("not applied: {n}"));
            answer.notes.extend(refused);
        }
        let name = applied.0.last().map_or("the program as it is", String::as_str);
        progress(&format!("simulating {name}"));
        let compiled = compile(&current, &graph, &question.parameters, layout, machine.nodelets())
            .map_err(wrong)?;
        let (mut run, results) = run_compiled(question, &machine, &current, &compiled)?;
        if results.returned != expected.returned
            || results.properties.iter().zip(&expected.properties).any(|(a, b)| a != b)
        {
            let (program, run) = (question.program.clone(), name.to_owned());
            return Err(MigratoryProblem::Different { program, run });
        }
        (run.passes, run.applied) = applied.clone();
        answer.runs.push(run);
    }
    if let Some(path) = &question.record {
        progress("recording");
        write_recording(question, &current, &graph, path)?;
    }
    Ok(answer)
}

/// Writes a recording of native execution of a program.
fn write_recording(
    question: &MigratoryQuestion,
    program: &VertexProgram,
    graph: &Graph,
    path: &Path,
) -> Result<(), MigratoryProblem> {
    let bad = |error| MigratoryProblem::Recording { path: path.to_owned(), error };
    let system = |source| bad(VertexRecordError::Write(TraceError::Write { offset: 0, source }));
    let file = std::fs::File::create(path).map_err(system)?;
    let command = [&question.program, &question.graph].map(String::clone);
    let (parameters, threads) = (&question.parameters, question.recorded_threads);
    let out = BufWriter::new(file);
    let (_, out) = record(program, graph, parameters, threads, &command, out).map_err(bad)?;
    out.into_inner().map_err(|error| system(error.into_error()))?;
    Ok(())
}

/// Why the first of ranked sets of passes was picked.
fn explain(ranked: &[PassCandidate]) -> Vec<String> {
    let names = |candidate: &PassCandidate| {
        let names: Vec<&str> = candidate.passes.iter().map(|pass| pass.name()).collect();
        if names.is_empty() {
            "no pass".to_owned()
        } else {
            names.join(",")
        }
    };
    let shown = |candidate: &PassCandidate| {
        format!(
            "{}: {:.3} ms predicted, {} migrations, bound by {}",
            names(candidate),
            candidate.predicted_ps / 1e9,
            candidate.migrations,
            candidate.bound
        )
    };
    let mut lines = vec![format!("picked of {} legal sets of passes:", ranked.len())];
    lines.extend(ranked.iter().take(3).map(shown));
    let original = ranked.iter().find(|candidate| candidate.passes.is_empty());
    lines.extend(original.map(shown));
    lines.dedup();
    lines
}

fn unknown_layout(question: &MigratoryQuestion) -> MigratoryProblem {
    let known = DataLayout::NAMES.map(|(name, _)| name).join(", ");
    MigratoryProblem::Unknown { what: "layout", name: question.layout.clone(), known }
}

fn named_passes(names: &[String]) -> Result<Vec<Pass>, MigratoryProblem> {
    let named = |name: &String| {
        Pass::named(name).ok_or_else(|| MigratoryProblem::Unknown {
            what: "pass",
            name: name.clone(),
            known: Pass::ALL.map(|(name, ..)| name).join(", "),
        })
    };
    names.iter().map(named).collect()
}

fn run_compiled(
    question: &MigratoryQuestion,
    machine: &MigratoryMachine,
    program: &VertexProgram,
    compiled: &CompiledProgram,
) -> Result<(MigratoryRun, ProgramResults), MigratoryProblem> {
    let mut memory = compiled.memory.clone();
    let limits = SimulationLimits {
        host_threads: question.host_threads,
        instructions: question.instructions,
    };
    let started = Instant::now();
    let counters = simulate(machine, &compiled.map, &compiled.code, &mut memory, limits)?;
    let host_seconds = started.elapsed().as_secs_f64();
    let results = compiled
        .results(&memory)
        .map_err(|error| MigratoryProblem::Program { program: question.program.clone(), error })?;
    let returned = results
        .returned
        .iter()
        .map(|value| ReturnedItem {
            name: value.name.clone(),
            value: value.value,
            denominator: value.denominator,
            text: value.text(),
        })
        .collect();
    let run = MigratoryRun {
        passes: Vec::new(),
        applied: Vec::new(),
        seconds: counters.seconds(),
        host_seconds,
        migrations: counters.migrations(),
        remote_updates: counters.remote_updates(),
        spawns: counters.sum(|n| n.spawns),
        calls: counters.sum(|n| n.calls),
        instructions: counters.sum(|n| n.instructions),
        memory_words: counters.sum(|n| n.memory_words),
        spills: counters.sum(|n| n.spills),
        returned,
        nodelet_counters: nodelet_figures(&counters),
        sample_seconds: counters.sample_ps as f64 / 1e12,
        lines: program_lines(program, compiled, &counters),
    };
    Ok((run, results))
}

fn nodelet_figures(counters: &MigratoryCounters) -> Vec<NodeletFigures> {
    // Three digits behind the point tell all that a mean of whole numbers is good for.
    let over_time = |nodelet: usize, of: fn(&NodeletSample) -> f64| -> Vec<f64> {
        let samples = counters.samples.iter().filter_map(|sample| sample.get(nodelet));
        samples.map(|sample| (of(sample) * 1e3).round() / 1e3).collect()
    };
    let figures = |(index, nodelet): (usize, &NodeletCounters)| NodeletFigures {
        threads_created: nodelet.threads_created,
        spawns: nodelet.spawns,
        threads_ended: nodelet.threads_ended,
        migrations_to: nodelet.migrations_to.clone(),
        remote_out: nodelet.remote_out,
        remote_in: nodelet.remote_in,
        longest_arrivals: nodelet.longest_arrivals,
        longest_departures: nodelet.longest_departures,
        longest_updates: nodelet.longest_updates,
        threads_over_time: over_time(index, |sample| sample.threads),
        runnable_over_time: over_time(index, |sample| sample.runnable),
        arrivals_over_time: over_time(index, |sample| sample.arrivals),
        departures_over_time: over_time(index, |sample| sample.departures),
    };
    counters.nodelets.iter().enumerate().map(figures).collect()
}

/// Counts by source line. Where a pass made several lines of one, the first has its counts.
fn program_lines(
    program: &VertexProgram,
    compiled: &CompiledProgram,
    counters: &MigratoryCounters,
) -> Vec<ProgramLine> {
    let mut counts = std::collections::HashMap::<u32, (u64, u64)>::new();
    let each = counters.migrations_at.iter().zip(&counters.remote_at);
    for (index, (migrations, remote)) in each.enumerate() {
        let at = terrace_migratory::code::CodeAddress(index as u32);
        let count = counts.entry(compiled.code.line(at)).or_default();
        count.0 += migrations;
        count.1 += remote;
    }
    format_lines(program)
        .into_iter()
        .map(|line| {
            let count = (line.line > 0).then(|| counts.remove(&line.line)).flatten();
            let (migrations, remote_updates) = count.unwrap_or_default();
            ProgramLine { text: line.text, migrations, remote_updates }
        })
        .collect()
}
