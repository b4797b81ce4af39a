//! `terrace sim --system`.

use crate::args::SimArgs;
use crate::output::{print, print_json, CommandFailure, Ending};
use terrace_terrace::pool::PoolError;
use terrace_terrace::system::{simulate_inputs, SystemProblem, SystemQuestion};
use terrace_terrace::types::Seed;

/// `terrace sim --system`: several hosts that share pools.
pub fn simulate_hosts(args: &SimArgs, system: &str) -> Ending {
    let question = SystemQuestion {
        system: system.to_owned(),
        inputs: match &args.workload {
            Some(workload) => vec![format!("workload:{workload}")],
            None => args.input.clone(),
        },
        policies: args.policy.clone(),
        hosts: args.hosts,
        pools: args.pools,
        seed: Seed(args.seed),
    };
    let answer = simulate_inputs(&question).map_err(|e| match e {
        SystemProblem::Pool(PoolError::Host { .. } | PoolError::ThreadLost) => {
            CommandFailure::failed(e)
        }
        _ => CommandFailure::usage(e),
    })?;
    if args.json {
        print_json(&answer)
    } else {
        print(&answer.text())
    }
}
