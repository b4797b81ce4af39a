//! A machine that boots a kernel, its serial port at the caller's streams.

use super::{read_program, RiscvError};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use terrace_riscv::system::virtio::{BlockDevice, DiskImage};
use terrace_riscv::system::{BootFiles, SystemMachine};
use terrace_types::Bytes;

pub use terrace_riscv::system::MachineEnd;

/// Instructions between looks at what was typed: some 10 ms.
const TURN: u64 = 1_000_000;
/// A guest that waited so long in a turn, and printed nothing, is idle: it then waits for input
/// beside the host's other work. A kernel that starts waits for its devices for a shorter time.
const IDLE_TURN: Duration = Duration::from_millis(500);
/// A turn of an idle guest takes so long at least, unless something is typed.
const PACE: Duration = Duration::from_secs(1);
/// Without input, a guest that waited for so long of its own time and printed nothing has ended.
const LAST_WAIT: Duration = Duration::from_secs(60);

/// What to boot.
#[derive(Debug, Clone)]
pub struct BootSpec {
    /// The kernel's image.
    pub kernel: PathBuf,
    /// Its initial file system.
    pub initrd: Option<PathBuf>,
    /// A disk's image. What the guest writes goes into the file, if that may be written.
    pub disk: Option<PathBuf>,
    /// The kernel's arguments.
    pub arguments: String,
    /// The machine's memory.
    pub memory: Bytes,
    /// Instructions after which the run ends.
    pub limit: Option<u64>,
}

/// A machine that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BootRun {
    /// How.
    pub end: MachineEnd,
    /// Instructions executed.
    pub instructions: u64,
    /// Seconds it took, waiting for input included.
    pub elapsed_s: f64,
}

/// A file as a disk.
#[derive(Debug)]
struct FileDisk {
    file: File,
    length: u64,
}

impl FileDisk {
    fn open(path: &Path) -> std::io::Result<Self> {
        let writable = OpenOptions::new().read(true).write(true).open(path);
        let file = writable.or_else(|_| File::open(path))?;
        let length = file.metadata()?.len();
        Ok(Self { file, length })
    }
}

impl DiskImage for FileDisk {
    fn length(&self) -> u64 {
        self.length
    }
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> bool {
        self.file.read_exact_at(bytes, offset).is_ok()
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> bool {
        self.file.write_all_at(bytes, offset).is_ok()
    }
}

/// Boots a kernel and runs it until it switches the machine off, or waits for input that no longer
/// comes: without a timer, or for a minute of its time in which it prints nothing. `input`: what is
/// typed; `output`: what the machine prints.
///
/// # Errors
/// [`RiscvError`]: a file cannot be read, is no kernel or does not fit; the output takes no more.
pub fn boot(
    spec: &BootSpec,
    input: &Receiver<Vec<u8>>,
    output: &mut dyn Write,
) -> Result<BootRun, RiscvError> {
    let read = |path: &PathBuf| {
        read_program(path).map_err(|source| RiscvError::Read { path: path.clone(), source })
    };
    let kernel = read(&spec.kernel)?;
    let initrd = spec.initrd.as_ref().map(read).transpose()?;
    let disk = match &spec.disk {
        None => None,
        Some(path) => {
            let disk = FileDisk::open(path)
                .map_err(|source| RiscvError::Read { path: path.clone(), source })?;
            Some(BlockDevice::new(Box::new(disk)))
        }
    };
    let files =
        BootFiles { kernel: &kernel, initrd: initrd.as_deref(), arguments: &spec.arguments };
    let mut machine = SystemMachine::boot(&files, spec.memory.get(), disk)
        .map_err(|source| RiscvError::Boot { path: spec.kernel.clone(), source })?;
    let begun = Instant::now();
    let limit = spec.limit.unwrap_or(u64::MAX);
    let waited = |machine: &SystemMachine| Duration::from_micros(machine.waited_us());
    let mut printed_at = Duration::ZERO;
    let end = loop {
        let before = waited(&machine);
        let end = machine.run(TURN.min(limit - machine.instructions().min(limit)));
        let printed = machine.take_output();
        if !printed.is_empty() {
            printed_at = waited(&machine);
        }
        let idle = printed.is_empty() && waited(&machine) - before >= IDLE_TURN;
        output
            .write_all(&printed)
            .and_then(|()| output.flush())
            .map_err(|source| RiscvError::Output { path: "the serial port".into(), source })?;
        let typed = match end {
            MachineEnd::Budget if machine.instructions() >= limit => break end,
            MachineEnd::Budget => {
                match input.recv_timeout(if idle { PACE } else { Duration::ZERO }) {
                    Ok(typed) => typed,
                    Err(RecvTimeoutError::Disconnected)
                        if waited(&machine) - printed_at >= LAST_WAIT =>
                    {
                        break MachineEnd::Idle;
                    }
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => continue,
                }
            }
            MachineEnd::Idle => match input.recv() {
                Ok(typed) => typed,
                Err(_) => break end,
            },
            MachineEnd::PowerOff | MachineEnd::Reboot | MachineEnd::Stuck { .. } => break end,
        };
        machine.type_in(&typed);
    };
    let instructions = machine.instructions();
    Ok(BootRun { end, instructions, elapsed_s: begun.elapsed().as_secs_f64() })
}
