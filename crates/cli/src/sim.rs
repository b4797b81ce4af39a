//! `terrace sim`.

use crate::args::SimArgs;
use crate::output::{print, print_json, width, CommandFailure, Ending};
use std::path::{Path, PathBuf};
use terrace_terrace::device::hbm::sweep;
use terrace_terrace::predict::{
    parse_contenders, parse_sweep, parse_tracker, predict, PredictError, Question,
};
use terrace_terrace::sim::SimError;
use terrace_terrace::stack::{
    load_stack, simulate_stacks, stack_input, StackProblem, STACK_BASE, STACK_PREFIX,
};
use terrace_terrace::topology::{load_machine, MachineSource};
use terrace_terrace::types::Seed;

/// What a sweep of a stack's key is of unless a machine is named.
const SWEPT_STACK: &str = "stack:hbm3";
/// Its policy: all memory in the stacks, so that the sweep shows the stacks alone.
const SWEPT_STACK_POLICY: &str = "bound:all-fast";

/// `terrace sim`.
pub fn sim(args: &SimArgs) -> Ending {
    if let Some(system) = &args.system {
        return crate::system::simulate_hosts(args, system);
    }
    if args.input.len() > 1 {
        return Err(CommandFailure::usage(
            "several inputs: give one, or --system for several hosts",
        ));
    }
    let sweeps_stack = args.sweep.as_deref().is_some_and(|text| sweep::parse(text).is_ok());
    let machine = match args.machine.as_deref() {
        Some(machine) => machine,
        None if sweeps_stack => SWEPT_STACK,
        None => {
            return Err(CommandFailure::usage("--sweep needs --machine; see terrace sim --help"))
        }
    };
    if let Some(stack) = machine.strip_prefix(STACK_PREFIX) {
        return stacks(args, stack);
    }
    if args.policy.is_empty() {
        return Err(CommandFailure::usage("--sweep needs --policy; see terrace sim --help"));
    }
    let machine =
        load_machine(&MachineSource::parse_machine(machine)).map_err(CommandFailure::usage)?;
    let sweep = match &args.sweep {
        Some(text) => parse_sweep(text).map_err(CommandFailure::usage)?,
        None => Vec::new(),
    };
    let question = Question {
        machine,
        policies: parse_contenders(&args.policy).map_err(CommandFailure::usage)?,
        input: input(args),
        sweep,
        seed: Seed(args.seed),
        tracker: parse_tracker(&args.tracker).map_err(CommandFailure::usage)?,
        journals: args.report.is_some() || args.journal.is_some(),
        custom: None,
    };
    let answer = predict(&question).map_err(|e| match e {
        PredictError::Usage(_)
        | PredictError::Sim(
            SimError::Workload(_) | SimError::NotSimulated { .. } | SimError::Needs(_),
        ) => CommandFailure::usage(e),
        PredictError::Sim(_) => CommandFailure::failed(e),
    })?;
    if let Some(path) = &args.report {
        write_each(path, "report", &answer.reports().map_err(CommandFailure::failed)?)?;
    }
    if let Some(path) = &args.journal {
        write_each(path, "journal", &answer.journals().collect::<Vec<_>>())?;
    }
    if args.json {
        print_json(&answer)
    } else {
        print(&answer.text(width()))
    }
}

/// `terrace sim --machine stack:NAME`: stacks of memory in place of the HBM of `xeon-max`.
fn stacks(args: &SimArgs, stack: &str) -> Ending {
    if args.report.is_some() || args.journal.is_some() {
        return Err(CommandFailure::usage(
            "--report and --journal with --machine stack:...: write a machine file with terrace \
             device hbm -o FILE and simulate that",
        ));
    }
    let design = load_stack(stack).map_err(CommandFailure::usage)?;
    let keys: Vec<_> = args
        .sweep
        .iter()
        .map(|text| sweep::parse(text))
        .collect::<Result<_, _>>()
        .map_err(CommandFailure::usage)?;
    let base =
        load_machine(&MachineSource::parse_machine(STACK_BASE)).map_err(CommandFailure::usage)?;
    let policies = match &args.policy[..] {
        [] => vec![SWEPT_STACK_POLICY.to_owned()],
        given => given.to_vec(),
    };
    let question = Question {
        machine: base.clone(),
        policies: parse_contenders(&policies).map_err(CommandFailure::usage)?,
        input: stack_input(&input(args)),
        sweep: Vec::new(),
        seed: Seed(args.seed),
        tracker: parse_tracker(&args.tracker).map_err(CommandFailure::usage)?,
        journals: false,
        custom: None,
    };
    let answer = simulate_stacks(&base, &design, &keys, &question).map_err(|e| match e {
        StackProblem::Predict(PredictError::Sim(_)) => CommandFailure::failed(e),
        _ => CommandFailure::usage(e),
    })?;
    if args.json {
        print_json(&answer)
    } else {
        print(&answer.text(width()))
    }
}

/// What runs, in the words of INPUT.
fn input(args: &SimArgs) -> String {
    match (&args.workload, &args.input) {
        (Some(workload), _) => format!("workload:{workload}"),
        (None, inputs) => inputs.first().cloned().unwrap_or_default(),
    }
}

/// Writes what there is of each policy that kept a journal: to `path`, or with several to files
/// beside it.
fn write_each<S: AsRef<str>>(
    path: &Path,
    option: &str,
    all: &[(String, S)],
) -> Result<(), CommandFailure> {
    if all.is_empty() {
        return Err(CommandFailure::failed(format!(
            "cannot write {}: none of the policies runs under the engine, so there is no journal \
                to show; add one such as \
             terrace to --policy",
            path.display()
        )));
    }
    for (policy, text) in all {
        let file = if all.len() > 1 { named(path, policy) } else { path.to_owned() };
        std::fs::write(&file, text.as_ref()).map_err(|e| {
            CommandFailure::failed(format!(
                "cannot write {}: {e}; give another --{option}",
                file.display()
            ))
        })?;
    }
    Ok(())
}

/// `report.html` as `report-POLICY.html`; what no file's name should have becomes a dash.
fn named(path: &Path, policy: &str) -> PathBuf {
    let plain: String = policy
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' })
        .collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{plain}{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_reports_have_their_policies_in_their_names() {
        assert_eq!(named(Path::new("out/a.html"), "terrace"), Path::new("out/a-terrace.html"));
        assert_eq!(named(Path::new("a"), "memos:huge/1"), Path::new("a-memos-huge-1"));
    }
}
