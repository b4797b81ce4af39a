//! `record`: every load and store of a program, by running it under an emulator with the capture
//! plugin or from a translator's code cache, or as its compiler's hooks tell them.

mod holders;
mod program;
mod recorder;
mod sampled;

pub use sampled::{record_samples, SampledRecordSpec, SampledRecording};
pub use terrace_track::PerfSettings;

use program::{emulator, plugin, translator, Program};
use recorder::{MoreWords, Recorder};
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_sys::{CaptureArea, CaptureOptions, CommandExit, Runner, StartError, SysError};
use terrace_trace::capture::{Capture, CaptureTotals, Filter};
use terrace_trace::{TraceError, TraceHeader, TraceWriter};
use terrace_types::{Bytes, Nanos};

/// Threads that can be recorded at once. The memory is reserved for all of them, 1 GiB of
/// addresses, and taken as it is written.
const SLOTS: u32 = 8192;
/// So many of them have large rings.
const LARGE_SLOTS: u32 = 256;
/// Words of a large ring: 2 MiB. With a quarter of that, a program that sleeps until half of its
/// ring is free wakes after the recorder has emptied it, and both wait for each other a quarter of
/// the time.
const RING_WORDS: u32 = 1 << 18;
/// Words of the other rings: 64 KiB, so that thousands of threads fit. A thread writes up to 2048
/// words ahead of where it last saw space, so a ring cannot be much smaller.
const SMALL_RING_WORDS: u32 = 1 << 13;
/// Between two polls of empty rings; a ring of this size takes a fast program longer to fill.
const PAUSE: Nanos = Nanos::micros(300);

/// Who tells the loads and stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMethod {
    /// An emulator that the program runs under.
    Emulator,
    /// A translator that the program runs in (`capture/translator`).
    Translator,
    /// Hooks that the program was compiled with (`capture/hooks/terrace-cc`).
    Hooks,
}

/// What to record.
#[derive(Debug, Clone)]
pub struct RecordSpec {
    /// Who tells.
    pub source: CaptureMethod,
    /// Name allocations of at least so many bytes; with [`CaptureMethod::Hooks`] only.
    pub objects: Option<Bytes>,
    /// File to write.
    pub output: PathBuf,
    /// What to leave out.
    pub filter: Filter,
    /// Keep program counters.
    pub pcs: bool,
    /// Keep the values stored.
    pub values: bool,
    /// Begin when this function of the program is entered.
    pub begin_at: Option<String>,
    /// End when this function is entered.
    pub end_at: Option<String>,
    /// Set besides in the program's environment.
    pub environment: Vec<(&'static str, OsString)>,
    /// Where the program's output streams go; by default they are this process's.
    pub program_output: Option<Arc<File>>,
    /// The program's working folder; by default the current one.
    pub directory: Option<PathBuf>,
}

/// Why a program was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The emulator or the plugin is missing, or what is asked for cannot be had from this source.
    #[error("{0}")]
    Lacking(String),
    /// The program cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The file cannot be made.
    #[error("cannot write {}: {source}; give another file with -o", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The trace cannot be begun.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The kernel refused something.
    #[error(transparent)]
    System(#[from] SysError),
}

/// A recorded run.
#[derive(Debug)]
pub struct Recorded {
    /// How the program ended, to end alike.
    pub ended: CommandExit,
    /// What was seen and kept.
    pub totals: CaptureTotals,
    /// Bytes of the trace.
    pub bytes: u64,
    /// What went wrong meanwhile, one sentence each. What the recording lacks is in the file too.
    pub notes: Vec<String>,
}

impl Recorded {
    /// One line for standard error.
    #[must_use]
    pub fn line(&self, output: &Path) -> String {
        let t = &self.totals;
        let each = if t.kept > 0 { self.bytes as f64 / t.kept as f64 } else { 0.0 };
        format!(
            "recorded {} of {} loads and stores ({} loads, {} stores) of {} threads into {}: {} \
                bytes, {each:.2} an access",
            t.kept,
            t.loads + t.stores,
            t.loads,
            t.stores,
            t.threads,
            output.display(),
            self.bytes
        )
    }
}

/// Runs `argv` and records it. The program's streams are its own; if recording fails meanwhile, it
/// runs on.
///
/// # Errors
/// [`RecordError`], only before the program starts.
pub fn record(spec: &RecordSpec, argv: &[OsString]) -> Result<Recorded, RecordError> {
    spec.check()?;
    let (emulator, plugin) = match spec.source {
        CaptureMethod::Emulator => (emulator()?, plugin()?),
        CaptureMethod::Translator => (translator()?, PathBuf::new()),
        CaptureMethod::Hooks => Default::default(),
    };
    let program =
        if spec.source == CaptureMethod::Hooks { None } else { Some(Program::find(argv)?) };
    let output = |source| RecordError::Output { path: spec.output.clone(), source };
    let file = BufWriter::with_capacity(1 << 20, File::create(&spec.output).map_err(output)?);
    let filter = Filter { begins_later: spec.begin_at.is_some(), ..spec.filter.clone() };
    let mut writer = TraceWriter::new(file, &spec.header(argv))?;
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        // Begun with the first block, so after the program is started and signals to it are ours to
        // pass on.
        writer = writer.with_thread();
    }
    let capture = Capture::new(writer, filter, spec.values);
    let area = CaptureArea::create(&CaptureOptions {
        slots: SLOTS,
        large_slots: LARGE_SLOTS,
        ring_words: RING_WORDS,
        small_ring_words: SMALL_RING_WORDS,
        values: spec.values,
        begin_at: spec.begin_at.clone().unwrap_or_default(),
        end_at: spec.end_at.clone().unwrap_or_default(),
        emulator: emulator.clone(),
        plugin: plugin.clone(),
    })?;
    let mut runner = match program {
        Some(program) if spec.source == CaptureMethod::Translator => {
            spec.start(&program.translated(&emulator, &area.path()), Vec::new())?
        }
        Some(program) => {
            spec.start(&program.under(&emulator, &plugin, &area.path()), Vec::new())?
        }
        None => spec.start(argv, spec.environment(&area))?,
    };
    let mut recorder = Recorder::new(area, capture);
    let ended = loop {
        if recorder.take_all(MoreWords::Follows) {
            if let Some(ended) = runner.wait(Nanos::ZERO) {
                break ended;
            }
        } else if let Some(ended) = runner.wait(PAUSE) {
            break ended;
        }
    };
    Ok(recorder.finish(ended, spec))
}

impl RecordSpec {
    fn start(
        &self,
        argv: &[OsString],
        mut environment: Vec<(&'static str, OsString)>,
    ) -> Result<Runner, StartError> {
        environment.extend(self.environment.iter().cloned());
        let place = (self.program_output.as_deref(), self.directory.as_deref());
        Runner::start_in(argv, &environment, place)
    }

    /// What the hooks cannot give.
    fn check(&self) -> Result<(), RecordError> {
        let lacking = |why: &str| Err(RecordError::Lacking(why.to_owned()));
        match self.source {
            CaptureMethod::Hooks if self.values => {
                lacking("hooks come before a store and do not know its value; use --source full")
            }
            CaptureMethod::Hooks if self.pcs => {
                lacking("hooks do not tell where an instruction lies; use --source full")
            }
            CaptureMethod::Emulator | CaptureMethod::Translator if self.objects.is_some() => {
                lacking(
                    "objects are reported by hooks only; compile with terrace-cc and use --source \
                    hooks",
                )
            }
            _ => Ok(()),
        }
    }

    fn header(&self, argv: &[OsString]) -> TraceHeader {
        let mut notes = self.filter.notes();
        for (name, what) in [(&self.begin_at, "began at"), (&self.end_at, "ended at")] {
            notes.extend(name.iter().map(|name| format!("recording {what} function {name}")));
        }
        if self.source == CaptureMethod::Hooks {
            notes.push("instructions are not known: each load or store counts as one".into());
            notes.push("what libraries do is not seen, but for copying and filling memory".into());
        }
        TraceHeader {
            source: match self.source {
                CaptureMethod::Emulator => "full",
                CaptureMethod::Translator => "translated",
                CaptureMethod::Hooks => "hooks",
            }
            .into(),
            command: argv.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            period: self.filter.period,
            page_size_bytes: terrace_sys::page_size().0,
            pcs: self.pcs,
            values: self.values,
            dependence: self.source != CaptureMethod::Hooks,
            notes,
            ..TraceHeader::default()
        }
    }

    /// How the program finds the recorder.
    fn environment(&self, area: &CaptureArea) -> Vec<(&'static str, OsString)> {
        let mut set = vec![("TERRACE_HOOKS_AREA", area.path().into_os_string())];
        set.extend(
            self.objects.map(|least| ("TERRACE_HOOKS_OBJECTS", least.0.max(1).to_string().into())),
        );
        set
    }
}
