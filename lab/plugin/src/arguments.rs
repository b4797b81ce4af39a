//! The plugin's arguments: `key=value`, refused when unknown.

use std::path::PathBuf;
use terrace_machine::Machine;
use terrace_model::{ModelOptions, ModelParams};

const KNOWN: &str =
    "machine, stats, profile, profile_window_ms, profile_all, placed, clock0, quantum_us, \
        outstanding, all_fast, memory_mode, count_only, instruction_ns";

/// Parsed arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    machine: PathBuf,
    /// File for clock, spans and counts.
    pub stats: Option<PathBuf>,
    /// File for misses by page.
    pub profile: Option<PathBuf>,
    /// Length of the profile's windows; zero: one window.
    pub profile_window_ms: u64,
    /// The profile counts accesses that a cache serves too.
    pub profile_all: bool,
    /// File that says which pages the fast node serves.
    pub placed: Option<PathBuf>,
    /// Guest time to start from.
    pub clock0_ns: u64,
    /// Quantum in which the vCPUs are kept in step.
    pub quantum_us: u64,
    outstanding: Option<u32>,
    all_fast: bool,
    memory_mode: bool,
    /// Only instructions take time.
    pub count_only: bool,
    /// Time of an instruction in place of the machine file's.
    instruction_ns: Option<u64>,
}

impl Arguments {
    /// Parse `key=value` texts.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let mut out = Self {
            machine: PathBuf::new(),
            stats: None,
            profile: None,
            profile_window_ms: 0,
            profile_all: false,
            placed: None,
            clock0_ns: 0,
            quantum_us: 10,
            outstanding: None,
            all_fast: false,
            memory_mode: false,
            count_only: false,
            instruction_ns: None,
        };
        for text in texts {
            let (key, value) = text
                .split_once('=')
                .ok_or_else(|| format!("argument `{text}` is not key=value"))?;
            let number = || {
                value.parse::<u64>().map_err(|_| format!("`{key}` needs a number, not `{value}`"))
            };
            let switch = || match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(format!("`{key}` is on or off, not `{value}`")),
            };
            match key {
                "machine" => out.machine = value.into(),
                "stats" => out.stats = Some(value.into()),
                "profile" => out.profile = Some(value.into()),
                "profile_window_ms" => out.profile_window_ms = number()?,
                "profile_all" => out.profile_all = switch()?,
                "placed" => out.placed = Some(value.into()),
                "clock0" => out.clock0_ns = number()?,
                "quantum_us" => out.quantum_us = number()?,
                "outstanding" => {
                    out.outstanding = Some(u32::try_from(number()?).unwrap_or(u32::MAX))
                }
                "all_fast" => out.all_fast = switch()?,
                "memory_mode" => out.memory_mode = switch()?,
                "count_only" => out.count_only = switch()?,
                "instruction_ns" => out.instruction_ns = Some(number()?),
                _ => return Err(format!("unknown argument `{key}`; known: {KNOWN}")),
            }
        }
        if out.machine.as_os_str().is_empty() {
            return Err("machine=FILE is missing".into());
        }
        if !(1..=1000).contains(&out.quantum_us) {
            return Err(format!("quantum_us={}; 1 to 1000 work", out.quantum_us));
        }
        if let Some(ns) = out.instruction_ns.filter(|ns| !(1..=1000).contains(ns)) {
            return Err(format!("instruction_ns={ns}; 1 to 1000 work"));
        }
        Ok(out)
    }

    /// The machine file that they name.
    pub fn with_machine(self) -> Result<(Machine, Self), String> {
        let name = self.machine.display().to_string();
        let text = std::fs::read_to_string(&self.machine)
            .map_err(|e| format!("machine file {name}: {e}"))?;
        let mut machine =
            Machine::from_toml(&text, &name).map_err(|e| e.to_string().replace('\n', " "))?;
        if let Some(ns) = self.instruction_ns {
            machine.core.ns_per_instruction = f64::from(u32::try_from(ns).unwrap_or(u32::MAX));
        }
        Ok((machine, self))
    }

    /// What the model needs.
    pub fn params(&self, machine: &Machine, vcpus: u32) -> Result<ModelParams, String> {
        let options = ModelOptions {
            vcpus,
            all_fast: self.all_fast,
            memory_mode: self.memory_mode,
            outstanding: self.outstanding,
        };
        ModelParams::from_machine(machine, options).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(texts: &[&str]) -> String {
        let texts: Vec<String> = texts.iter().map(|t| (*t).to_string()).collect();
        match Arguments::parse(&texts).and_then(Arguments::with_machine) {
            Ok(_) => "accepted".into(),
            Err(why) => why,
        }
    }

    #[test]
    fn unknown_and_malformed_arguments_are_named() {
        assert!(refused(&["bogus=1"]).contains("bogus"));
        assert!(refused(&["all_fast=maybe"]).contains("maybe"));
        assert!(refused(&["clock0=x"]).contains("number"));
        assert!(refused(&["clock0"]).contains("key=value"));
        assert!(refused(&[]).contains("machine=FILE"));
        assert!(refused(&["machine=/no/such"]).contains("/no/such"));
        assert!(refused(&["machine=/no/such", "quantum_us=0"]).contains("quantum_us"));
        assert!(refused(&["machine=/no/such", "instruction_ns=0"]).contains("instruction_ns"));
        assert!(refused(&["machine=/no/such", "instruction_ns=1001"]).contains("instruction_ns"));
    }

    #[test]
    fn an_instruction_takes_what_the_file_says_or_the_argument() {
        let file =
            std::env::temp_dir().join(format!("terrace-arguments-{}.toml", std::process::id()));
        std::fs::write(&file, terrace_machine::preset_text("lab-cxl").unwrap()).unwrap();
        let machine = format!("machine={}", file.display());
        let takes = |more: &[&str]| {
            let texts: Vec<String> =
                [machine.as_str()].iter().chain(more).map(|t| (*t).to_string()).collect();
            Arguments::parse(&texts)
                .and_then(Arguments::with_machine)
                .unwrap()
                .0
                .core
                .ns_per_instruction
        };
        assert_eq!(takes(&[]), 0.25);
        assert_eq!(takes(&["instruction_ns=4"]), 4.0);
        std::fs::remove_file(file).unwrap();
    }
}
