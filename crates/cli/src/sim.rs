//! `terrace sim`.

use crate::args::SimArgs;
use crate::output::{print, print_json, Ending, Failure};
use terrace_terrace::predict::{parse_sweep, predict, PredictError, Question};
use terrace_terrace::topology::{load_machine, Source};
use terrace_terrace::types::Seed;

/// `terrace sim`.
pub fn sim(args: &SimArgs) -> Ending {
    let machine = load_machine(&Source::parse_machine(&args.machine)).map_err(Failure::usage)?;
    let sweep = match &args.sweep {
        Some(text) => parse_sweep(text).map_err(Failure::usage)?,
        None => Vec::new(),
    };
    let question =
        Question { machine, policies: args.policy.clone(), input: args.input.clone(), sweep, seed: Seed(args.seed) };
    let answer = predict(&question).map_err(|e| match e {
        PredictError::Usage(_) => Failure::usage(e),
        PredictError::Sim(_) => Failure::failed(e),
    })?;
    if args.json {
        print_json(&answer)
    } else {
        print(&answer.text())
    }
}
