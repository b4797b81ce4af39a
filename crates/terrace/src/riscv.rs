//! Programs for RISC-V: run, and recorded, on any host.

mod apart;
mod boot;
mod debug;
mod elements;
mod files;
mod listing;
mod recording;
mod spread;

pub use apart::{run_rank, RankRun};
pub use boot::{boot, BootRun, BootSpec, MachineEnd};
pub use debug::{debug_elements, DebugAddress, DebugError, DebugOptions};
pub use elements::{
    record_elements, run_elements, CoreOrder, Dialect, ElementNetwork, ElementOptions,
    ElementSchedule, ElementStatistics, ElementTime, ElementTiming, ElementsEnd, ElementsRun,
    LookasideSize, NetworkError, ObjectOption, ObjectSource, SimulatedClock, MOST_ELEMENTS,
};
pub use files::HostFiles;
pub use listing::disassemble;
pub use recording::RecordedAccesses;
pub use spread::{run_spread_element, start_elements, SpreadPlace, MOST_SPREAD_ELEMENTS};

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use terrace_riscv::elf::ElfError;
use terrace_riscv::linux::{Process, ProcessEnd, ProcessObserver};
use terrace_trace::capture::Filter;
use terrace_trace::{TraceError, TraceHeader, TraceWriter};
use terrace_types::Bytes;
use terrace_xbgas::element::TimingError;
use terrace_xbgas::note::NoteError;

/// Bytes of a program file at most; a static program has a few million.
const MAX_FILE: u64 = 1 << 30;

/// What to run, and what it may reach.
#[derive(Debug, Clone)]
pub struct RiscvProgram {
    /// The static ELF file.
    pub path: PathBuf,
    /// Its arguments, the first being its name.
    pub arguments: Vec<Vec<u8>>,
    /// Folder below which it finds its files; without one it has its three streams only.
    pub root: Option<PathBuf>,
    /// Bytes of memory that it may touch.
    pub memory: Bytes,
    /// What its random numbers begin from.
    pub seed: u64,
}

/// What to record of a run.
#[derive(Debug, Clone)]
pub struct RiscvRecording {
    /// File to write.
    pub output: PathBuf,
    /// What to leave out.
    pub filter: Filter,
    /// Keep program counters.
    pub pcs: bool,
}

/// Why a program was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RiscvError {
    /// The program or its root cannot be read.
    #[error("cannot read {}: {source}; check the path", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is no program that can be executed.
    #[error("cannot execute {}: {source}", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ElfError,
    },
    /// The machine cannot be made.
    #[error("cannot boot {}: {source}", path.display())]
    Boot {
        /// The kernel.
        path: PathBuf,
        /// What is wrong.
        source: terrace_riscv::system::BootError,
    },
    /// The recording cannot be made.
    #[error("cannot write {}: {source}; give another file with -o", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The recording cannot be written on.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The program's notes tell no dialect.
    #[error("{0}, or say which with --dialect")]
    Note(#[from] NoteError),
    /// A file that is too large to be an object.
    #[error("{} has {size}; an object has at most 1 GiB", path.display())]
    ObjectSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: Bytes,
    },
    /// More caches than are modelled.
    #[error("{count} elements with {each} of caches each; take a machine with less, or fewer")]
    Caches {
        /// Elements.
        count: u32,
        /// Caches of one.
        each: Bytes,
    },
    /// Memory for the elements' messages cannot be had, or MPI does not start.
    #[error(transparent)]
    System(#[from] terrace_sys::SysError),
    /// A build without MPI.
    #[error(
        "--transport mpi: this terrace was built without MPI; install Open MPI's development \
             files and build it with --features mpi"
    )]
    NoMpi,
    /// Another number of elements than there are ranks.
    #[error("--pes {asked}: mpirun started {ranks}; give it -n {asked}, or leave --pes out")]
    Ranks {
        /// Elements that there are to be.
        asked: u32,
        /// Ranks that there are.
        ranks: u32,
    },
    /// The program cannot be debugged.
    #[error(transparent)]
    Debug(#[from] DebugError),
    /// Elements in other processes went silent.
    #[error(transparent)]
    Transport(#[from] terrace_xbgas::transport::TransportError),
    /// The model of time refuses the machine or the network.
    #[error(transparent)]
    Timing(#[from] TimingError),
}

/// A run that ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RiscvRun {
    /// How.
    pub end: ProcessEnd,
    /// Instructions of all threads.
    pub instructions: u64,
    /// Threads that there were.
    pub threads: usize,
    /// Seconds it took.
    pub elapsed_s: f64,
    /// Accesses seen and kept, where it was recorded.
    pub recorded: Option<RecordedAccesses>,
}

impl RiscvRun {
    /// The status to end with, as a shell shows it, and for a program that did not exit by itself
    /// a line that says why.
    #[must_use]
    pub fn status(&self) -> (u8, Option<String>) {
        match self.end {
            ProcessEnd::Exit(status) => (status, None),
            ProcessEnd::Signal { signal, thread, pc, trap } => {
                let why = trap.map_or("the program sent it".to_owned(), |trap| trap.to_string());
                let line = format!("thread {thread} ended by signal {signal} at {pc:#x}: {why}");
                (128 + signal, Some(line))
            }
            ProcessEnd::Deadlock => {
                (1, Some("all threads wait for each other; none can go on".to_owned()))
            }
            ProcessEnd::UnknownInstruction { thread, word } => {
                (132, Some(format!("thread {thread}: illegal instruction {word:#010x}")))
            }
            ProcessEnd::Breakpoint { thread } => {
                (1, Some(format!("thread {thread} is at a breakpoint")))
            }
            ProcessEnd::Budget => (1, Some("the instructions granted are used up".to_owned())),
        }
    }
}

/// Runs the program to its end; its streams are this process's.
///
/// # Errors
/// [`RiscvError`], before the program starts.
pub fn run(program: &RiscvProgram) -> Result<RiscvRun, RiscvError> {
    let mut process = start(program, &[])?;
    Ok(to_end(&mut process, &mut ()))
}

/// Runs the program and writes its loads and stores to a recording.
///
/// # Errors
/// [`RiscvError`], before the program starts or when the recording cannot be finished.
pub fn record(program: &RiscvProgram, recording: &RiscvRecording) -> Result<RiscvRun, RiscvError> {
    let mut process = start(program, &[])?;
    let mut observer = open_recording(program, recording, None)?;
    let mut run = to_end(&mut process, &mut observer);
    run.recorded = Some(observer.finish()?);
    Ok(run)
}

/// Begins a recording's file.
fn open_recording(
    program: &RiscvProgram,
    recording: &RiscvRecording,
    note: Option<&str>,
) -> Result<recording::TraceObserver<BufWriter<File>>, RiscvError> {
    let output = |source| RiscvError::Output { path: recording.output.clone(), source };
    let file = BufWriter::with_capacity(1 << 20, File::create(&recording.output).map_err(output)?);
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let mut notes = recording.filter.notes();
    notes.push("a program for riscv64; an atomic operation is a load and a store".to_owned());
    notes.extend(note.map(str::to_owned));
    let header = TraceHeader {
        source: "riscv".into(),
        command: program.arguments.iter().map(text).collect(),
        period: recording.filter.period,
        page_size_bytes: terrace_riscv::memory::PAGE_BYTES,
        pcs: recording.pcs,
        notes,
        ..TraceHeader::default()
    };
    let mut writer = TraceWriter::new(file, &header)?;
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        writer = writer.with_thread();
    }
    Ok(recording::TraceObserver::new(writer, recording.filter.clone()))
}

fn start(
    program: &RiscvProgram,
    environment: &[Vec<u8>],
) -> Result<Process<HostFiles>, RiscvError> {
    let file = read_program(&program.path)
        .map_err(|source| RiscvError::Read { path: program.path.clone(), source })?;
    start_from(&file, program, environment, None)
}

/// As [`start`], with the file's bytes, and with a clock in place of the host's.
fn start_from(
    file: &[u8],
    program: &RiscvProgram,
    environment: &[Vec<u8>],
    clock: Option<SimulatedClock>,
) -> Result<Process<HostFiles>, RiscvError> {
    let root = program.root.as_deref();
    let read = |source| RiscvError::Read { path: root.unwrap_or(Path::new("")).into(), source };
    let host = HostFiles::new(root, program.seed).map_err(read)?.with_clock(clock);
    Process::new(file, &program.arguments, environment, program.memory.0, host)
        .map_err(|source| RiscvError::Program { path: program.path.clone(), source })
}

fn read_program(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut file = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut file)?;
    Ok(file)
}

fn to_end(process: &mut Process<HostFiles>, observer: &mut impl ProcessObserver) -> RiscvRun {
    let started = std::time::Instant::now();
    let end = process.run(observer, u64::MAX);
    RiscvRun {
        end,
        instructions: process.instructions(),
        threads: process.thread_count(),
        elapsed_s: started.elapsed().as_secs_f64(),
        recorded: None,
    }
}
