//! `terrace riscv`, and what `record --source riscv` does.

mod args;

pub use args::{
    DialectName, RiscvBootArgs, RiscvCommand, RiscvDisasmArgs, RiscvRunArgs, TransportName,
};

use crate::output::{say, CommandFailure, Ending};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver};
use terrace_terrace::far_run::size;
use terrace_terrace::riscv::{
    self, BootSpec, CoreOrder, DebugAddress, DebugError, DebugOptions, Dialect, ElementNetwork,
    ElementOptions, ElementSchedule, ElementTime, ElementTiming, ElementsRun, LookasideSize,
    MachineEnd, ObjectOption, RiscvError, RiscvProgram, RiscvRecording, RiscvRun, SpreadPlace,
};
use terrace_terrace::topology::{load_machine, MachineSource};
use terrace_terrace::types::{Bytes, Nanos};

/// Bytes of memory that a program may touch, where no other limit is given.
const MEMORY: u64 = 4 << 30;

fn program(command: &[OsString], root: Option<PathBuf>, seed: u64) -> RiscvProgram {
    RiscvProgram {
        path: command.first().map(PathBuf::from).unwrap_or_default(),
        arguments: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        root,
        memory: Bytes(MEMORY),
        seed,
    }
}

fn failure(error: RiscvError) -> CommandFailure {
    match error {
        RiscvError::NoMpi => CommandFailure::lacking(error),
        RiscvError::Program { .. }
        | RiscvError::Boot { .. }
        | RiscvError::Debug(DebugError::Element { .. })
        | RiscvError::Ranks { .. }
        | RiscvError::Note(_)
        | RiscvError::Caches { .. } => CommandFailure::usage(error),
        _ => CommandFailure::failed(error),
    }
}

fn leave(run: &RiscvRun) -> Ending {
    let (status, line) = run.status();
    line.map_or(Ok(status), |line| Err(CommandFailure { code: status, line }))
}

fn dialect(name: DialectName) -> Dialect {
    match name {
        DialectName::V2018 => Dialect::V2018,
        DialectName::V2_0 => Dialect::V2_0,
        DialectName::Rev => Dialect::Rev,
    }
}

/// Ends a machine that has the terminal, as telnet does.
const ESCAPE: u8 = 0x1d;

/// What is typed, until the input ends. On a terminal Ctrl-] ends the command at once.
fn typed(terminal: bool) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    // Not awaited: it waits for input that may never come.
    std::thread::spawn(move || {
        let mut bytes = [0; 256];
        let mut input = std::io::stdin().lock();
        while let Ok(count @ 1..) = input.read(&mut bytes) {
            let read = &bytes[..count];
            if terminal && read.contains(&ESCAPE) {
                let _ = disable_raw_mode();
                std::process::exit(0);
            }
            if sender.send(read.to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// `terrace riscv boot`.
pub fn boot(args: &RiscvBootArgs) -> Ending {
    let memory = size(&args.memory)
        .filter(|bytes| (Bytes::mib(4)..=Bytes::gib(64)).contains(bytes))
        .ok_or_else(|| {
            let line = format!("--memory {}: give a size from 4 MiB to 64 GiB", args.memory);
            CommandFailure::usage(line)
        })?;
    let spec = BootSpec {
        kernel: args.kernel.clone(),
        initrd: args.initrd.clone(),
        disk: args.disk.clone(),
        arguments: args.append.clone(),
        memory,
        limit: args.instructions,
    };
    // The guest's terminal echoes, so this one must not.
    let terminal = std::io::stdin().is_terminal() && enable_raw_mode().is_ok();
    let run = riscv::boot(&spec, &typed(terminal), &mut std::io::stdout().lock());
    if terminal {
        let _ = disable_raw_mode();
    }
    let run = run.map_err(failure)?;
    if args.stats {
        say(&format!(
            "{} instructions in {:.3} s, {:.1} million a second",
            run.instructions,
            run.elapsed_s,
            run.instructions as f64 / run.elapsed_s.max(1e-9) / 1e6
        ));
    }
    match run.end {
        MachineEnd::PowerOff => Ok(0),
        MachineEnd::Reboot => {
            say("the guest asked to start again; it was ended instead");
            Ok(0)
        }
        MachineEnd::Idle => {
            say("the guest waits for input, which has ended");
            Ok(0)
        }
        MachineEnd::Budget => Err(CommandFailure::failed("the instructions granted are used up")),
        MachineEnd::Stuck { pc, cause } => Err(CommandFailure::failed(format!(
            "the guest has no handler for exception {cause} at {pc:#x}"
        ))),
    }
}

/// `terrace riscv disasm`.
pub fn disasm(args: &RiscvDisasmArgs) -> Ending {
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    match riscv::disassemble(&args.file, args.dialect.map(dialect), &mut output) {
        Ok(()) => Ok(0),
        // Whoever was reading has seen enough.
        Err(RiscvError::Output { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(0),
        Err(RiscvError::Output { source, .. }) => {
            Err(CommandFailure::failed(format!("cannot write the listing: {source}")))
        }
        Err(error) => Err(failure(error)),
    }
}

/// Time, and its parts.
fn describe_time(time: &ElementTime) -> String {
    let ns = |ps: u64| ps / 1000;
    format!(
        ", {} ns ({} local, {} remote, {} waiting)",
        ns(time.total_ps),
        ns(time.local_ps()),
        ns(time.remote_ps),
        ns(time.waiting_ps)
    )
}

/// One line for each element.
fn say_statistics(run: &ElementsRun) {
    for (number, element) in run.elements.iter().enumerate() {
        say(&format!(
            "element {number}: {} instructions, {} remote loads, {} remote stores, {} bytes, \
             {} local extended accesses, {} look-aside hits, {} misses, {} waits{}",
            element.instructions,
            element.remote_loads,
            element.remote_stores,
            element.remote_bytes,
            element.local_accesses,
            element.lookaside_hits,
            element.lookaside_misses,
            element.waits,
            element.time.as_ref().map_or(String::new(), describe_time)
        ));
    }
    if let Some(last) = run.elements.iter().filter_map(|e| Some(e.time?.total_ps)).max() {
        say(&format!("{:.3} us until the last element ended", last as f64 / 1e6));
    }
    let instructions: u64 = run.elements.iter().map(|element| element.instructions).sum();
    say(&format!(
        "{instructions} instructions of {} elements in {:.3} s, {:.1} million a second",
        run.elements.len(),
        run.elapsed_s,
        instructions as f64 / run.elapsed_s.max(1e-9) / 1e6
    ));
}

/// Machine and network of the elements, where one is given.
fn timing(args: &RiscvRunArgs) -> Result<Option<ElementTiming>, CommandFailure> {
    if args.machine.is_none() && args.fabric.is_none() {
        return Ok(None);
    }
    let machine = args.machine.as_deref().unwrap_or("ddr-cxl");
    let machine =
        load_machine(&MachineSource::parse_machine(machine)).map_err(CommandFailure::usage)?;
    let network = ElementNetwork::parse(args.fabric.as_deref().unwrap_or("100ns"))
        .map_err(CommandFailure::usage)?;
    let order = if args.in_order { CoreOrder::InOrder } else { CoreOrder::OutOfOrder };
    let lookaside_miss = args.olb_miss_ns.map(Nanos);
    Ok(Some(ElementTiming { machine, network, order, lookaside_miss }))
}

/// Elements in processes of their own: starts them, or is one of them.
fn run_spread(args: &RiscvRunArgs, program: &RiscvProgram, options: &ElementOptions) -> Ending {
    if args.record.is_some() || options.timing.is_some() {
        let line = "--transport shared or mpi with --record, --machine or --fabric: these need \
                    elements in turns; leave it out";
        return Err(CommandFailure::lacking(line));
    }
    if args.transport == TransportName::Mpi {
        let rank = riscv::run_rank(program, options, args.pes).map_err(failure)?;
        // Rank 0 knows and says; mpirun would end it for another one's status.
        return match rank.element {
            0 => leave_apart(args, 0, rank.run),
            _ => Ok(0),
        };
    }
    if options.count > riscv::MOST_SPREAD_ELEMENTS {
        let most = riscv::MOST_SPREAD_ELEMENTS;
        let line = format!("--pes {} --transport shared: give at most {most}", options.count);
        return Err(CommandFailure::usage(line));
    }
    let Some(place) = SpreadPlace::of_environment() else {
        let terrace = std::env::current_exe().map_err(|e| {
            CommandFailure::failed(format!("cannot find this program to start it again: {e}"))
        })?;
        let words: Vec<OsString> = std::env::args_os().skip(1).collect();
        let (status, line) =
            riscv::start_elements(&terrace, &words, options.count).map_err(failure)?;
        return line.map_or(Ok(status), |line| Err(CommandFailure { code: status, line }));
    };
    let run = riscv::run_spread_element(program, options, &place);
    leave_apart(args, place.element, run)
}

/// Ends the process of one of several elements; element 0 says how all ended.
fn leave_apart(args: &RiscvRunArgs, element: u32, run: Result<ElementsRun, RiscvError>) -> Ending {
    if element != 0 {
        return Ok(u8::from(run.is_err()));
    }
    end_elements(args, &run.map_err(failure)?)
}

/// Elements in turns, one of them under gdb.
fn run_debugged(
    args: &RiscvRunArgs,
    program: &RiscvProgram,
    options: &ElementOptions,
    address: &str,
) -> Ending {
    let apart = args.transport != TransportName::Turns;
    if apart || args.record.is_some() || options.timing.is_some() {
        let line = "--gdb with --transport, --record, --machine or --fabric: a debugger needs \
                    elements in turns and stops time; leave them out";
        return Err(CommandFailure::lacking(line));
    }
    let place = DebugAddress::parse(address).ok_or_else(|| {
        let line = format!(
            "--gdb {address}: give PORT, localhost:PORT or a path with a slash; debuggers of other \
             hosts cannot connect"
        );
        CommandFailure::usage(line)
    })?;
    let debug = DebugOptions { address: place, element: args.gdb_element };
    let mut announce = |at: &str| say(&format!("waiting for gdb: target remote {at}"));
    let run = riscv::debug_elements(program, options, &debug, &mut announce).map_err(failure)?;
    let Some(run) = run else {
        say("gdb ended the program");
        return Ok(128 + 9);
    };
    end_elements(args, &run)
}

/// Ends as elements did.
fn end_elements(args: &RiscvRunArgs, run: &ElementsRun) -> Ending {
    if args.stats {
        say_statistics(run);
    }
    let (status, line) = run.status();
    line.map_or(Ok(status), |line| Err(CommandFailure { code: status, line }))
}

/// A recording of all accesses.
fn everything(output: &Path) -> RiscvRecording {
    let filter = terrace_terrace::trace::capture::Filter::default();
    RiscvRecording { output: output.to_path_buf(), filter, pcs: true }
}

fn run_elements(args: &RiscvRunArgs, program: &RiscvProgram) -> Ending {
    let mut objects = Vec::new();
    for text in &args.objects {
        objects.push(ObjectOption::parse(text).ok_or_else(|| {
            let line = format!("--object {text}: give ID=FILE or ID=peN:START+LENGTH, ID from 1");
            CommandFailure::usage(line)
        })?);
    }
    let options = ElementOptions {
        count: args.pes.unwrap_or(1),
        dialect: args.dialect.map(dialect),
        schedule: ElementSchedule { quantum: args.quantum, seed: args.seed },
        lookaside: LookasideSize {
            entries: args.olb_entries as usize,
            ways: args.olb_ways as usize,
        },
        objects,
        timing: timing(args)?,
    };
    if let Some(address) = &args.gdb {
        return run_debugged(args, program, &options, address);
    }
    if args.transport != TransportName::Turns {
        return run_spread(args, program, &options);
    }
    let run = match args.record.as_deref().map(everything) {
        None => riscv::run_elements(program, &options),
        Some(recording) => riscv::record_elements(program, &options, &recording),
    };
    end_elements(args, &run.map_err(failure)?)
}

/// `terrace riscv run`: ends as the program did.
pub fn run(args: &RiscvRunArgs) -> Ending {
    let program = program(&args.command, args.root.clone(), args.seed);
    let elements = args.pes.is_some() || args.dialect.is_some() || !args.objects.is_empty();
    let elements = elements || args.gdb.is_some();
    let apart = args.transport != TransportName::Turns;
    if elements || apart || args.machine.is_some() || args.fabric.is_some() {
        return run_elements(args, &program);
    }
    let run = match &args.record {
        None => riscv::run(&program),
        Some(output) => riscv::record(&program, &everything(output)),
    }
    .map_err(failure)?;
    if args.stats {
        say(&format!(
            "{} instructions of {} threads in {:.3} s, {:.1} million a second",
            run.instructions,
            run.threads,
            run.elapsed_s,
            run.instructions as f64 / run.elapsed_s.max(1e-9) / 1e6
        ));
    }
    leave(&run)
}

/// Records a program's loads and stores; ends as the program did.
pub fn record(command: &[OsString], recording: &RiscvRecording, quiet: bool) -> Ending {
    // A program to be recorded may read what its user may read in this folder.
    let program = program(command, Some(PathBuf::from(".")), 1);
    let run = riscv::record(&program, recording).map_err(failure)?;
    if let (Some(seen), false) = (run.recorded, quiet) {
        say(&format!(
            "recorded {} of {} loads and stores ({} loads, {} stores) of {} threads into {}",
            seen.kept,
            seen.loads + seen.stores,
            seen.loads,
            seen.stores,
            run.threads,
            recording.output.display()
        ));
    }
    leave(&run)
}
