//! Machines shipped with Terrace, as machine files with the source of each figure.

use crate::error::MachineError;
use crate::model::Machine;

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        const PRESETS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../presets/", $name, ".toml")))),*];
    };
}

presets![
    "lab-cxl",
    "lab-hbm",
    "lab-dcpmm",
    "lab-numa",
    "lab-snc4",
    "lab-pcie",
    "knl-flat",
    "knl-snc4",
    "dram-dcpmm",
    "ddr-cxl",
    "xeon-max",
    "grace-hopper",
    "dual-socket",
    "power8-p100",
    "disaggregated",
];

/// The preset of this name. A test reads every preset, so `None` means that there is none.
#[must_use]
pub fn preset(name: &str) -> Option<Machine> {
    Machine::from_toml(preset_text(name)?, name).ok()
}

/// As [`preset`], with an error that lists the names there are.
pub fn preset_or_error(name: &str) -> Result<Machine, MachineError> {
    match preset_text(name) {
        Some(text) => Machine::from_toml(text, name),
        None => Err(MachineError::NoSuchPreset {
            name: crate::error::shorten(name),
            known: preset_names().collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The machine file of a preset, comments and sources included: a start for a file of one's own.
#[must_use]
pub fn preset_text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// All presets, those of the lab first.
#[must_use]
pub fn preset_names() -> impl ExactSizeIterator<Item = &'static str> + Clone {
    PRESETS.iter().map(|(name, _)| *name)
}
