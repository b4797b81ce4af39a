//! Values of options that shells complete: policies, trackers, machines and workloads by name.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::Command;
use std::ffi::OsStr;
use terrace_terrace::names::{self, Named};

/// Takes any text, and offers names to shell completion: policies have options behind their names
/// and machines may be files, so that no list holds all that is right.
#[derive(Debug, Clone, Copy)]
pub struct Suggested(fn() -> Vec<String>);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// Policies for `run` and `attach`.
pub const LIVE_POLICIES: Suggested = Suggested(|| policies_of("run"));
/// Policies for `sim`.
pub const SIMULATED_POLICIES: Suggested = Suggested(|| policies_of("sim"));
/// Policies for `lab compare`.
pub const LAB_POLICIES: Suggested = Suggested(|| policies_of("lab compare"));
/// Trackers for `run` and `attach`.
pub const LIVE_TRACKERS: Suggested = Suggested(|| trackers_of("run"));
/// Trackers for `sim`.
pub const SIMULATED_TRACKERS: Suggested = Suggested(|| trackers_of("sim"));
/// Machine presets.
pub const MACHINES: Suggested = Suggested(|| plain(names::machines()));
/// Workloads, alone and with each parameter's key behind.
pub const WORKLOADS: Suggested = Suggested(workloads);

fn plain(named: Vec<Named>) -> Vec<String> {
    named.into_iter().map(|n| n.name).collect()
}

fn policies_of(command: &str) -> Vec<String> {
    plain(names::policies().into_iter().filter(|p| p.commands.contains(&command)).collect())
}

fn trackers_of(command: &str) -> Vec<String> {
    plain(names::trackers().into_iter().filter(|t| t.commands.contains(&command)).collect())
}

fn workloads() -> Vec<String> {
    let parameters = plain(names::workload_parameters());
    let with_keys = |name: String| {
        let keys: Vec<String> = parameters.iter().map(|key| format!("{name},{key}=")).collect();
        std::iter::once(name).chain(keys)
    };
    plain(names::workloads()).into_iter().flat_map(with_keys).collect()
}
