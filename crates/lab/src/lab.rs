//! The handle on a lab: where it lives and what it is made of.

use crate::error::{LabError, Result};
use crate::fit::{fit, last_cache};
use crate::scratch;
use crate::shape::Shape;
use crate::snapshot::{MachineParts, MachineSnapshot, BUILDING};
use crate::stop::StopFlag;
use std::path::{Path, PathBuf};
use terrace_machine::Machine;
use terrace_types::Bytes;

/// Receives what is going on; the library prints nothing itself.
pub trait ProgressSink: Send + Sync {
    /// A step begins, in words for people.
    fn step(&self, what: &str);
}

/// Says nothing.
pub struct Silent;

impl ProgressSink for Silent {
    fn step(&self, _what: &str) {}
}

/// A directory with QEMU, kernel, plugin and guest program, and the cache of saved machines.
#[derive(Debug, Clone)]
pub struct Lab {
    dir: PathBuf,
    installed: Option<PathBuf>,
    parts: MachineParts,
    stop: StopFlag,
}

/// A machine of the lab, saved and ready to wake up.
#[derive(Debug, Clone)]
pub struct LabMachine {
    lab: Lab,
    shape: Shape,
    last_cache: Bytes,
    snapshot: MachineSnapshot,
}

/// All parts, fetched and built.
const PARTS: &str = "in Terrace's source folder, run: scripts/lab-parts.sh";

impl Lab {
    /// Where the lab lives if nobody says: `$TERRACE_LAB_DIR`, else below the user's cache
    /// directory.
    #[must_use]
    pub fn default_dir() -> PathBuf {
        let of = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        of("TERRACE_LAB_DIR").unwrap_or_else(|| {
            of("XDG_CACHE_HOME")
                .or_else(|| of("HOME").map(|h| h.join(".cache")))
                .unwrap_or_else(|| PathBuf::from("/var/tmp"))
                .join("terrace/lab")
        })
    }

    /// Look whether everything is there.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_installed(dir, None, PARTS)
    }

    /// As [`Lab::open`], where what Terrace itself builds (plugin and guest programs) may also lie
    /// in `installed`, which comes first: it was built with the running program. `remedy` is the
    /// command that fetches or builds what is missing.
    pub fn open_installed(dir: &Path, installed: Option<&Path>, remedy: &str) -> Result<Self> {
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
        let need = |relative: &str, what: &'static str| {
            let places = [installed, Some(&dir)].into_iter().flatten();
            places.map(|place| place.join(relative)).find(|path| path.exists()).ok_or_else(|| {
                LabError::NotSetUp { dir: dir.clone(), what, hint: remedy.to_owned() }
            })
        };
        let parts = MachineParts {
            qemu: need("qemu-system", "QEMU")?,
            kernel: need("kernel/vmlinuz", "a kernel")?,
            guest: need("bin/terrace-guest", "the guest program")?,
            plugin: match std::env::var_os("TERRACE_LAB_NO_PLUGIN") {
                // For work on the lab itself: time is then the number of instructions and no figure
                // means anything.
                Some(_) => None,
                None => Some(need("plugin.so", "the timing plugin")?),
            },
        };
        let (installed, stop) = (installed.map(Path::to_owned), StopFlag::default());
        Ok(Lab { dir, installed, parts, stop })
    }

    /// The same lab, whose machines end when `stop` is set.
    #[must_use]
    pub fn stopping(self, stop: StopFlag) -> Self {
        Lab { stop, ..self }
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it is made of.
    pub(crate) fn parts(&self) -> &MachineParts {
        &self.parts
    }

    /// Whether somebody asked to end.
    #[must_use]
    pub fn stop(&self) -> StopFlag {
        self.stop
    }

    /// Where the files of runs are.
    pub(crate) fn runs(&self) -> PathBuf {
        self.dir.join("runs")
    }

    /// A static program for the guest, if it was built into the lab or is installed.
    #[must_use]
    pub fn guest_program(&self, name: &str) -> Option<PathBuf> {
        let places = self.installed.iter().chain([&self.dir]);
        places.map(|place| place.join("bin").join(name)).find(|path| path.exists())
    }

    /// The machine, booted and saved now if it is not in the cache.
    pub fn bench(
        &self,
        machine: &Machine,
        vcpus: Option<u32>,
        progress: &dyn ProgressSink,
    ) -> Result<LabMachine> {
        let (shape, machine) = fit(machine, vcpus)?;
        progress.step(&format!(
            "machine {} with {} vCPUs: looking for a saved one",
            shape.name, shape.vcpus
        ));
        let cache = self.dir.join("machines");
        scratch::remove_left_behind(&cache, BUILDING);
        scratch::remove_left_behind(&self.runs(), "");
        let text = machine.to_toml();
        let snapshot = MachineSnapshot::ensure(&cache, &self.parts, &shape, &text, self.stop)?;
        Ok(LabMachine { lab: self.clone(), shape, last_cache: last_cache(&machine), snapshot })
    }
}

impl LabMachine {
    /// The machine's shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Its last cache.
    #[must_use]
    pub fn last_cache(&self) -> Bytes {
        self.last_cache
    }

    /// The saved machine.
    #[must_use]
    pub fn snapshot(&self) -> &MachineSnapshot {
        &self.snapshot
    }

    /// The lab it belongs to.
    #[must_use]
    pub fn lab(&self) -> &Lab {
        &self.lab
    }
}
