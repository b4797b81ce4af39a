//! `terrace sim --system SYSTEM shared:...`: written memory that hosts keep coherent by software.

use crate::system::{apply_choice, list_choices, load_machines, load_system};
use crate::system::{SystemProblem, SystemQuestion};
use serde::Serialize;
use std::fmt::Write;
use terrace_pool::{simulate_sharing, SharingOutcome, SharingProgram};

/// Version of the answer's JSON.
const VERSION: u32 = 1;
/// What the inputs begin with that are such programs.
const PREFIX: &str = "shared:";

/// The answer; as JSON it is the contract's `sim --system` of `shared:`.
#[derive(Debug, Clone, Serialize)]
pub struct SharingAnswer {
    /// Version of this form: 1.
    pub version: u32,
    /// `shared_memory`.
    pub kind: &'static str,
    /// Name of the system.
    pub system: String,
    /// What the hosts do.
    pub program: SharingProgram,
    /// One entry a count of hosts.
    pub runs: Vec<SharingOutcome>,
}

/// The program of an input `shared:key=value,...`; `None`: it is another kind of input.
///
/// # Errors
/// [`SystemProblem::Program`]: a key or value that is not known.
pub fn parse_sharing(input: &str) -> Result<Option<SharingProgram>, SystemProblem> {
    let Some(text) = input.strip_prefix(PREFIX) else { return Ok(None) };
    let mut program = SharingProgram::default();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = |known: &'static str| SystemProblem::Program { part: part.to_owned(), known };
        let (key, value) = part.split_once('=').ok_or(wrong("key=value"))?;
        let count = || value.parse::<u64>().map_err(|_| wrong("a whole number"));
        let choice = || match value {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(wrong("yes or no")),
        };
        match key {
            "lines" => program.lines = count()?,
            "reads" => program.reads = count()?,
            "writes" => program.writes = count()?,
            "sections" => program.sections = count()?,
            "flush" => program.flushes = choice()?,
            "invalidate" => program.invalidates = choice()?,
            _ => return Err(wrong("lines, reads, writes, sections, flush or invalidate")),
        }
    }
    Ok(Some(program))
}

/// Runs `program` on the question's system, for each of its counts of hosts and pools.
///
/// # Errors
/// [`SystemProblem`].
pub fn simulate_shared_memory(
    question: &SystemQuestion,
    program: SharingProgram,
) -> Result<SharingAnswer, SystemProblem> {
    let mut system = load_system(&question.system)?;
    let machines = load_machines(&system, &question.system)?;
    let file = &question.system;
    let mut runs = Vec::new();
    for choice in &list_choices(question)? {
        apply_choice(&mut system, choice)?;
        system.check(file)?;
        runs.push(simulate_sharing(&system, file, &machines, &program, question.seed)?);
    }
    let system = system.name;
    Ok(SharingAnswer { version: VERSION, kind: "shared_memory", system, program, runs })
}

impl SharingAnswer {
    /// The answer as a table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let name: String =
            self.system.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let mut out = format!("memory that hosts share on {name}, simulated\n");
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:>5}{:>11}{:>9}{:>10}{:>9}{:>10}{:>10}{:>8}{:>7}",
            "hosts", "seconds", "lock", "coherence", "reads", "read", "written", "stale", "lost"
        );
        for run in &self.runs {
            let _ = writeln!(
                out,
                "{:>5}{:>11.6}{:>9.0}{:>10.0}{:>9.0}{:>10}{:>10}{:>8}{:>7}",
                run.hosts,
                run.seconds,
                run.lock_ns,
                run.coherence_ns,
                run.read_ns,
                run.lines_read,
                run.lines_written,
                run.stale_reads,
                run.lost_updates
            );
        }
        let _ = writeln!(out, "lock, coherence (drops and flushes), reads: ns a section, mean;");
        let _ = writeln!(out, "read, written: lines of the pool; stale: reads of an older value;");
        let _ = writeln!(out, "lost: lines of the pool overwritten by older ones.");
        for run in &self.runs {
            if let Some(stale) = &run.first_stale_read {
                let _ =
                    writeln!(
                    out,
                    "{} hosts: the first stale read is of line {} by {} in section {}, which {} \
                     wrote in section {}",
                    run.hosts, stale.line, stale.host, stale.section, stale.writer, stale.written_in
                );
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_and_what_is_wrong_is_named() {
        assert_eq!(parse_sharing("workload:skew").unwrap(), None);
        assert_eq!(parse_sharing("shared:").unwrap(), Some(SharingProgram::default()));
        let program = parse_sharing("shared:lines=8, writes=2,flush=no").unwrap().unwrap();
        assert_eq!((program.lines, program.writes, program.flushes), (8, 2, false));
        for (text, expected) in [
            ("shared:lines", "\"lines\": give key=value"),
            ("shared:lines=x", "\"lines=x\": give a whole number"),
            ("shared:flush=1", "\"flush=1\": give yes or no"),
            ("shared:line=1", "give lines, reads, writes"),
        ] {
            let error = parse_sharing(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
