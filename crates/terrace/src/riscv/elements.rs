//! A program on several processing elements that reach each other by xBGAS instructions.

use super::{
    open_recording, read_program, start_from, HostFiles, RecordedAccesses, RiscvError,
    RiscvProgram, RiscvRecording,
};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;
use terrace_machine::Machine;
use terrace_riscv::linux::Process;
use terrace_riscv::memory::{READ, WRITE};
use terrace_types::{Bytes, Nanos};
use terrace_xbgas::clock::ElementCore;
pub use terrace_xbgas::clock::{CoreOrder, ElementTime, SimulatedClock};
use terrace_xbgas::element::{
    ElementMachine, ElementSetup, ElementsObserver, ObjectFile, ELEMENTS_VARIABLE, ELEMENT_VARIABLE,
};
pub use terrace_xbgas::element::{ElementSchedule, ElementStatistics, ElementsEnd, MOST_ELEMENTS};
pub use terrace_xbgas::lookaside::LookasideSize;
use terrace_xbgas::lookaside::{ObjectMemory, ObjectPlace, ObjectTable};
pub use terrace_xbgas::network::{ElementNetwork, NetworkError};
use terrace_xbgas::note::dialect_of_program;
pub use terrace_xbgas::Dialect;

/// Bytes of a file that is an object at most; it is held in memory.
const MAX_OBJECT: u64 = 1 << 30;
/// Bytes of cache tags that are modelled at most, all elements together: a host keeps an eighth.
const MAX_CACHES: u64 = 16 << 30;

/// The elements that run a program.
#[derive(Debug, Clone, PartialEq)]
pub struct ElementOptions {
    /// How many, 1 to [`MOST_ELEMENTS`].
    pub count: u32,
    /// How their extended instructions are encoded; `None`: as the program's note says, 2018 where
    /// it has none.
    pub dialect: Option<Dialect>,
    /// In which order they run without a model of time.
    pub schedule: ElementSchedule,
    /// The size of their look-aside buffers.
    pub lookaside: LookasideSize,
    /// Objects besides the elements' memories.
    pub objects: Vec<ObjectOption>,
    /// What time they take; `None`: no model of time.
    pub timing: Option<ElementTiming>,
}

/// A model of time for elements.
#[derive(Debug, Clone, PartialEq)]
pub struct ElementTiming {
    /// Each element has a core, caches and memory of such a machine.
    pub machine: Machine,
    /// How they reach each other.
    pub network: ElementNetwork,
    /// How a core waits for values from other elements.
    pub order: CoreOrder,
    /// What a miss of the look-aside buffer takes; `None`: as long as a load from memory.
    pub lookaside_miss: Option<Nanos>,
}

/// An object besides the elements' memories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectOption {
    /// Its id.
    pub id: u64,
    /// What it is.
    pub source: ObjectSource,
    /// Whether it may be written.
    pub writable: bool,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectSource {
    /// A file, which element 0 serves.
    File(PathBuf),
    /// A part of an element's memory.
    Part {
        /// The element.
        element: u32,
        /// First byte.
        base: u64,
        /// Bytes.
        length: u64,
    },
}

impl ObjectOption {
    /// Reads `ID=FILE` or `ID=peN:START+LENGTH`, either with `:rw` behind it where it may be
    /// written; `None` for other texts.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, rest) = text.split_once('=')?;
        let (rest, writable) = match rest.strip_suffix(":rw") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let id = number(id).filter(|id| *id != 0)?;
        let part = rest.strip_prefix("pe").and_then(|part| {
            let (element, range) = part.split_once(':')?;
            let (base, length) = range.split_once('+')?;
            let (base, length) = (number(base)?, number(length)?);
            Some(ObjectSource::Part { element: element.parse().ok()?, base, length })
        });
        let source =
            part.or_else(|| (!rest.is_empty()).then(|| ObjectSource::File(rest.into())))?;
        Some(Self { id, source, writable })
    }
}

/// A run of elements that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ElementsRun {
    /// How.
    pub end: ElementsEnd,
    /// What each element did.
    pub elements: Vec<ElementStatistics>,
    /// Seconds it took.
    pub elapsed_s: f64,
    /// Accesses seen and kept, where it was recorded.
    pub recorded: Option<RecordedAccesses>,
}

impl ElementsRun {
    /// The status to end with, and where not all elements exited a line that names the one at
    /// fault.
    #[must_use]
    pub fn status(&self) -> (u8, Option<String>) {
        self.end.status()
    }
}

/// What object ids name, and the files among them.
fn build_objects(
    count: u32,
    options: &[ObjectOption],
) -> Result<(ObjectTable, Vec<ObjectFile>), RiscvError> {
    let mut table = ObjectTable::of_elements(count);
    let mut files = Vec::new();
    for object in options {
        let permissions = if object.writable { READ | WRITE } else { READ };
        let (memory, base, length) = match &object.source {
            ObjectSource::Part { element, base, length } => {
                (ObjectMemory::Element(*element), *base, *length)
            }
            ObjectSource::File(path) => {
                let read = |source| RiscvError::Read { path: path.clone(), source };
                let size = std::fs::metadata(path).map_err(read)?.len();
                if size > MAX_OBJECT {
                    let size = Bytes(size);
                    return Err(RiscvError::ObjectSize { path: path.clone(), size });
                }
                let bytes = std::fs::read(path).map_err(read)?;
                let length = bytes.len() as u64;
                files.push(ObjectFile { bytes, element: 0 });
                (ObjectMemory::File(files.len() as u32 - 1), 0, length)
            }
        };
        table.set(object.id, ObjectPlace { memory, base, length, permissions });
    }
    Ok((table, files))
}

/// The core of each element; refuses more caches than a host can hold.
fn build_core(timing: &ElementTiming, count: u32) -> Result<ElementCore, RiscvError> {
    let caches: u64 = timing.machine.caches.iter().map(|level| level.size.get()).sum();
    if caches.saturating_mul(count.into()) > MAX_CACHES {
        return Err(RiscvError::Caches { count, each: Bytes(caches) });
    }
    ElementCore::new(&timing.machine, timing.order, timing.lookaside_miss)
        .map_err(|error| RiscvError::Timing(error.into()))
}

/// Runs the program on elements to its end; they share its memory limit and this process's
/// streams. Files that are writable objects are written back.
///
/// # Errors
/// [`RiscvError`], before the program starts or when a file cannot be written back.
pub fn run_elements(
    program: &RiscvProgram,
    options: &ElementOptions,
) -> Result<ElementsRun, RiscvError> {
    run_observed(program, options, &mut ())
}

/// The same, and writes all loads and stores to one recording, in which each element is a process.
///
/// # Errors
/// [`RiscvError`], also when the recording cannot be finished.
pub fn record_elements(
    program: &RiscvProgram,
    options: &ElementOptions,
    recording: &RiscvRecording,
) -> Result<ElementsRun, RiscvError> {
    let note = "a process is an xBGAS element; in each, one thread stands for each other element \
                that reaches its memory; accesses to files that are objects are left out";
    // A program that is not there leaves an older recording of that name as it is.
    read_program(&program.path)
        .map_err(|source| RiscvError::Read { path: program.path.clone(), source })?;
    let mut observer = open_recording(program, recording, Some(note))?;
    let run = run_observed(program, options, &mut observer);
    // Also where a file that is an object cannot be written back.
    let recorded = observer.finish()?;
    run.map(|run| ElementsRun { recorded: Some(recorded), ..run })
}

/// Loaded elements, and what they run with.
pub(super) struct PreparedElements {
    pub processes: Vec<Process<HostFiles>>,
    pub setup: ElementSetup,
    core: Option<ElementCore>,
    clocks: Vec<SimulatedClock>,
}

/// Loads those of the elements that this process runs.
pub(super) fn prepare(
    program: &RiscvProgram,
    options: &ElementOptions,
    here: Range<u32>,
) -> Result<PreparedElements, RiscvError> {
    let count = options.count;
    let read = |source| RiscvError::Read { path: program.path.clone(), source };
    let file = read_program(&program.path).map_err(read)?;
    let dialect = match options.dialect {
        Some(dialect) => dialect,
        None => dialect_of_program(&file)?.unwrap_or(Dialect::V2018),
    };
    let core = options.timing.as_ref().map(|timing| build_core(timing, count)).transpose()?;
    let clocks: Vec<SimulatedClock> = (0..count).map(|_| SimulatedClock::default()).collect();
    let mut processes = Vec::new();
    for element in here {
        let environment = [(ELEMENT_VARIABLE, element), (ELEMENTS_VARIABLE, count)]
            .map(|(name, value)| format!("{name}={value}").into_bytes());
        let one = RiscvProgram {
            memory: Bytes(program.memory.0 / u64::from(count)),
            seed: program.seed.wrapping_add(u64::from(element) << 32),
            ..program.clone()
        };
        let clock = core.is_some().then(|| clocks[element as usize].clone());
        processes.push(start_from(&file, &one, &environment, clock)?);
    }
    let (objects, files) = build_objects(count, &options.objects)?;
    let ElementOptions { schedule, lookaside, .. } = *options;
    let setup = ElementSetup { objects, files, dialect, schedule, lookaside };
    Ok(PreparedElements { processes, setup, core, clocks })
}

fn run_observed<O: ElementsObserver>(
    program: &RiscvProgram,
    options: &ElementOptions,
    observer: &mut O,
) -> Result<ElementsRun, RiscvError> {
    let count = options.count.clamp(1, MOST_ELEMENTS);
    let options = ElementOptions { count, ..options.clone() };
    let PreparedElements { processes, setup, core, clocks } = prepare(program, &options, 0..count)?;
    let started = Instant::now();
    let mut machine = ElementMachine::new(processes, &setup);
    if let (Some(core), Some(timing)) = (&core, &options.timing) {
        machine = machine.with_time(core, &timing.network, &clocks)?;
    }
    let end = machine.run_observed(observer, u64::MAX);
    let elapsed_s = started.elapsed().as_secs_f64();
    write_back(|file| machine.file_bytes(file), &options.objects)?;
    Ok(ElementsRun { end, elements: machine.statistics(), elapsed_s, recorded: None })
}

/// Writes back the files that are writable objects, by what they hold now.
pub(super) fn write_back(
    mut bytes_of: impl FnMut(usize) -> Option<Vec<u8>>,
    objects: &[ObjectOption],
) -> Result<(), RiscvError> {
    let paths = objects.iter().filter_map(|object| match &object.source {
        ObjectSource::File(path) => Some((path, object.writable)),
        ObjectSource::Part { .. } => None,
    });
    for (number, (path, writable)) in paths.enumerate() {
        let bytes = if writable { bytes_of(number) } else { None };
        if let Some(bytes) = bytes {
            std::fs::write(path, bytes)
                .map_err(|source| RiscvError::Output { path: path.clone(), source })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_files_or_parts_of_elements() {
        let file = |path: &str| ObjectSource::File(path.into());
        let object = |id, source, writable| Some(ObjectOption { id, source, writable });
        assert_eq!(ObjectOption::parse("9=a/b"), object(9, file("a/b"), false));
        assert_eq!(ObjectOption::parse("0x10=pe.txt:rw"), object(16, file("pe.txt"), true));
        let part = ObjectSource::Part { element: 3, base: 0x1000, length: 64 };
        assert_eq!(ObjectOption::parse("7=pe3:0x1000+64:rw"), object(7, part, true));
        for wrong in ["", "9", "0=a", "x=a", "9=", "9=:rw"] {
            assert_eq!(ObjectOption::parse(wrong), None, "{wrong}");
        }
    }
}
