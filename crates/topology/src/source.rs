//! Where a machine is read from, as the command line names it.

use crate::error::TopologyError;
use crate::sysfs::survey;
use crate::tree::{read_archive, DiskTree};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use terrace_machine::{
    from_hwloc_xml, preset_names, preset_or_error, Machine, Surroundings, Survey,
};

/// Largest file that is read: an archive of a very large machine has some 20 MiB.
const MAX_INPUT: usize = 256 << 20;

/// Where a machine is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineSource {
    /// The machine this runs on.
    Live,
    /// A machine file, hwloc XML, a gathered tree or its archive.
    Path(PathBuf),
    /// A preset by name.
    Preset(String),
}

impl MachineSource {
    /// As `tiers --machine` takes it: `live`, `preset:NAME` or a path.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix("preset:") {
            Some(name) => Self::Preset(name.to_owned()),
            None if text == "live" => Self::Live,
            None => Self::Path(PathBuf::from(text)),
        }
    }

    /// As `--machine` takes it: also a preset's bare name, unless a file of that name is there.
    #[must_use]
    pub fn parse_machine(text: &str) -> Self {
        if preset_names().any(|name| name == text) && !Path::new(text).exists() {
            return Self::Preset(text.to_owned());
        }
        Self::parse(text)
    }

    /// How JSON and messages name it.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Live => "live".to_owned(),
            Self::Path(path) => path.to_string_lossy().into_owned(),
            Self::Preset(name) => format!("preset:{name}"),
        }
    }
}

/// Reads the machine alone.
pub fn load_machine(source: &MachineSource) -> Result<Machine, TopologyError> {
    load(source).map(|survey| survey.machine)
}

/// Reads a machine and what surrounds it.
pub fn load(source: &MachineSource) -> Result<Survey, TopologyError> {
    match source {
        MachineSource::Live => {
            let mut found = survey(&DiskTree::live(), "live")?;
            found.machine.page_size = terrace_sys::page_size();
            Ok(found)
        }
        MachineSource::Preset(name) => Ok(plain(preset_or_error(name)?)),
        MachineSource::Path(path) => load_path(path),
    }
}

fn plain(machine: Machine) -> Survey {
    Survey { machine, surroundings: Surroundings::default() }
}

fn load_path(path: &Path) -> Result<Survey, TopologyError> {
    let shown = path.to_string_lossy().into_owned();
    let data = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => TopologyError::Absent { path: shown.clone() },
        _ => TopologyError::io("open", &shown, &error),
    })?;
    let stem = stem(path);
    if data.is_dir() {
        return survey(&DiskTree::new(path), &stem);
    }
    let bytes = read(path, &shown)?;
    if let Some(format) = compressed(&bytes) {
        return Err(TopologyError::Compressed { path: shown, format });
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return survey(&read_archive(&bytes, &shown)?, &stem);
    }
    let unknown = || TopologyError::UnknownFormat { path: shown.clone() };
    let text = String::from_utf8(bytes).map_err(|_| unknown())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.trim_start().starts_with('<') {
        return Ok(from_hwloc_xml(text, &stem)?);
    }
    if text.contains('\0') {
        return Err(unknown());
    }
    let mut machine = Machine::from_toml(text, &shown_name(&shown))?;
    if machine.name == shown_name(&shown) {
        machine.name = stem;
    }
    Ok(plain(machine))
}

/// The path where it can name a machine until the file's stem does.
fn shown_name(path: &str) -> String {
    let tail: Vec<char> = path.chars().rev().take(60).collect();
    let short: String = tail.into_iter().rev().filter(|c| !c.is_control()).collect();
    if short.len() <= 64 && !short.is_empty() {
        short
    } else {
        "machine file".to_owned()
    }
}

fn read(path: &Path, shown: &str) -> Result<Vec<u8>, TopologyError> {
    let fail = |error: std::io::Error| TopologyError::io("read", shown, &error);
    let file = fs::File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(MAX_INPUT as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() > MAX_INPUT {
        return Err(TopologyError::TooLarge {
            path: shown.to_owned(),
            limit: MAX_INPUT,
            unit: "bytes",
        });
    }
    Ok(bytes)
}

/// File name without its last ending, shortened to what can name a machine.
fn stem(path: &Path) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let stem: String = stem.chars().filter(|c| !c.is_control()).take(60).collect();
    if stem.is_empty() || stem.len() > 64 {
        "machine".to_owned()
    } else {
        stem
    }
}

fn compressed(bytes: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 4] = [
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
    ];
    MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, name)| *name)
}
