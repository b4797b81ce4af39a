//! `terrace sim --system`.

use crate::args::SimArgs;
use crate::output::{print, print_json, CommandFailure, Ending, StatusLine};
use crate::replace::write;
use std::time::Instant;
use terrace_terrace::machine::parse_bytes;
use terrace_terrace::pool::PoolError;
use terrace_terrace::sharing::{parse_sharing, simulate_shared_memory};
use terrace_terrace::system::{simulate_inputs, SystemProblem, SystemQuestion};
use terrace_terrace::types::{Bytes, Seed};

/// `terrace sim --system`: several hosts that share pools.
pub fn simulate_hosts(args: &SimArgs, system: &str) -> Ending {
    let question = SystemQuestion {
        system: system.to_owned(),
        inputs: match &args.workload {
            Some(workload) => vec![format!("workload:{workload}")],
            None => args.input.clone(),
        },
        policies: args.policy.clone(),
        hosts: args.hosts.clone(),
        pools: args.pools.clone(),
        placement: args.placement.clone(),
        local: read_sizes(&args.local)?,
        seed: Seed(args.seed),
    };
    if let [input] = &question.inputs[..] {
        if let Some(program) = parse_sharing(input).map_err(CommandFailure::usage)? {
            if args.report.is_some() {
                let why = "--report: shared:... has no report; give --json";
                return Err(CommandFailure::usage(why));
            }
            let answer =
                simulate_shared_memory(&question, program).map_err(CommandFailure::usage)?;
            return if args.json { print_json(&answer) } else { print(&answer.text()) };
        }
    }
    let (started, mut live) = (Instant::now(), StatusLine::new(args.json));
    let done = |finished: usize, all: usize| {
        let left = started.elapsed().as_secs_f64() / finished as f64 * (all - finished) as f64;
        if all > 1 {
            live.show(&format!("{finished} of {all} systems, about {left:.0} s left"));
        }
    };
    let answer = simulate_inputs(&question, done).map_err(|e| match e {
        SystemProblem::Pool(
            PoolError::Host { .. } | PoolError::Access { .. } | PoolError::ThreadLost,
        ) => CommandFailure::failed(e),
        _ => CommandFailure::usage(e),
    })?;
    live.clear();
    if let Some(path) = &args.report {
        let html = answer.html().map_err(CommandFailure::failed)?;
        write(path, html.as_bytes())
            .map_err(|e| CommandFailure::failed(format!("report {}: {e}", path.display())))?;
    }
    if args.json {
        print_json(&answer)
    } else {
        print(&answer.text())
    }
}

fn read_sizes(sizes: &[String]) -> Result<Vec<Bytes>, CommandFailure> {
    let read = |text: &String| match parse_bytes(text).filter(|size| size.get() >= 4096) {
        Some(size) => Ok(size),
        None => {
            Err(CommandFailure::usage(format!("--local {text}: no size; give one such as 512MiB")))
        }
    };
    sizes.iter().map(read).collect()
}
