//! The plugin's arguments: `key=value`, refused when unknown.

use crate::Timing;
use std::path::PathBuf;
use terrace_machine::Machine;
use terrace_model::Options;

/// Parsed arguments.
#[derive(Debug)]
pub struct Arguments {
    /// The machine to model.
    pub machine: Machine,
    /// What is switched on.
    pub options: Options,
    /// Where statistics go.
    pub stats: Option<PathBuf>,
    /// Where the profile by page goes.
    pub profile: Option<PathBuf>,
    clock0_ns: u64,
    quantum_us: u64,
    count_only: bool,
}

const KNOWN: &str = "machine, stats, profile, clock0, quantum_us, all_fast, memory_mode, count_only";

impl Arguments {
    /// Parses `key=value` texts. Reads the machine file.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let mut machine = None;
        let mut out = Self {
            machine: terrace_machine::preset("lab-cxl").ok_or("preset lab-cxl is missing")?,
            options: Options::default(),
            stats: None,
            profile: None,
            clock0_ns: 0,
            quantum_us: 10,
            count_only: false,
        };
        for text in texts {
            let (key, value) =
                text.split_once('=').ok_or_else(|| format!("argument `{text}` is not key=value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("`{key}` needs a number, not `{value}`"));
            let switch = || match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(format!("`{key}` is on or off, not `{value}`")),
            };
            match key {
                "machine" => machine = Some(value.to_owned()),
                "stats" => out.stats = Some(value.into()),
                "profile" => out.profile = Some(value.into()),
                "clock0" => out.clock0_ns = number()?,
                "quantum_us" => out.quantum_us = number()?.clamp(1, 50),
                "all_fast" => out.options.all_fast = switch()?,
                "memory_mode" => out.options.memory_mode = switch()?,
                "count_only" => out.count_only = switch()?,
                _ => return Err(format!("unknown argument `{key}`; known: {KNOWN}")),
            }
        }
        let path = machine.ok_or("machine=FILE is missing")?;
        let text = std::fs::read_to_string(&path).map_err(|e| format!("machine file {path}: {e}"))?;
        out.machine = Machine::from_toml(&text, &path).map_err(|e| e.to_string())?;
        Ok(out)
    }

    /// What the C side needs.
    pub fn timing(&self) -> Timing {
        Timing {
            ps_per_instruction: (self.machine.core.ns_per_instruction * 1000.0).round() as u64,
            tlb_flush_ps: self.machine.core.tlb_flush.get() * 1000,
            clock0_ns: self.clock0_ns,
            quantum_ps: self.quantum_us * 1_000_000,
            count_only: i32::from(self.count_only),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(&texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn unknown_and_malformed_arguments_are_named() {
        assert!(parse(&["bogus=1"]).expect_err("refused").contains("bogus"));
        assert!(parse(&["all_fast=maybe"]).expect_err("refused").contains("maybe"));
        assert!(parse(&["clock0"]).expect_err("refused").contains("key=value"));
        assert!(parse(&[]).expect_err("refused").contains("machine=FILE"));
        assert!(parse(&["machine=/no/such"]).expect_err("refused").contains("/no/such"));
    }
}
