//! Arguments of `riscv`.

use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use terrace_terrace::riscv::{self, ElementSchedule, LookasideSize};

/// `terrace riscv`.
#[derive(Debug, Subcommand)]
pub enum RiscvCommand {
    /// Run a static program for riscv64 Linux, on one or more xBGAS processing elements.
    #[command(after_help = "Example: terrace riscv run --root . --stats ./a.out input.txt\n\
        Example: terrace riscv run --pes 4 --stats ./gather\n\
        Example: terrace riscv run --pes 4 --transport shared --stats ./gather\n\
        Example: mpirun -n 4 terrace riscv run --transport mpi ./gather\n\
        Example: terrace riscv run --gdb localhost:3333 ./a.out\n\
        Example: terrace riscv run --pes 4 --machine lab-cxl --fabric 200ns --stats ./gather")]
    Run(RiscvRunArgs),
    /// Boot an unmodified riscv64 kernel on a simulated machine; Ctrl-] ends it.
    #[command(
        after_help = "Example: terrace riscv boot --initrd initrd.img --stats vmlinux-riscv64"
    )]
    Boot(RiscvBootArgs),
    /// Print the instructions of a static program.
    #[command(after_help = "Example: terrace riscv disasm --dialect 2018 ./gather")]
    Disasm(RiscvDisasmArgs),
}

/// `terrace riscv boot`.
#[derive(Debug, Args)]
pub struct RiscvBootArgs {
    /// Initial file system.
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Disk image; what the guest writes goes into the file, if that may be written.
    #[arg(long, value_name = "FILE")]
    pub disk: Option<PathBuf>,
    /// Arguments of the kernel.
    #[arg(long, value_name = "TEXT", default_value = "console=ttyS0 earlycon=sbi")]
    pub append: String,
    /// Memory of the machine, from 4 MiB to 64 GiB.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub memory: String,
    /// End after so many instructions.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub instructions: Option<u64>,
    /// Say at the end how many instructions were executed, and how fast.
    #[arg(long)]
    pub stats: bool,
    /// The kernel's image, not compressed.
    pub kernel: PathBuf,
}

/// `terrace riscv disasm`.
#[derive(Debug, Args)]
pub struct RiscvDisasmArgs {
    /// Name xBGAS instructions in this encoding; without one they print as data.
    #[arg(long, value_name = "D")]
    pub dialect: Option<DialectName>,
    /// The program.
    pub file: PathBuf,
}

/// A published encoding of xBGAS instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DialectName {
    /// That of the binary tools of 2018.
    #[value(name = "2018")]
    V2018,
    /// That of the specification 2.0.
    #[value(name = "2.0")]
    V2_0,
    /// That of its revision.
    #[value(name = "rev")]
    Rev,
}

/// How elements reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    /// In one process, in turns that repeat exactly.
    Turns,
    /// Each in a process of its own, by messages through shared memory.
    Shared,
    /// Each a rank of the job that mpirun starts; in builds with the feature `mpi`.
    Mpi,
}

/// `terrace riscv run`.
#[derive(Debug, Args)]
pub struct RiscvRunArgs {
    /// Folder below which the program finds its files; without one it has its streams only.
    #[arg(long, value_name = "FOLDER")]
    pub root: Option<PathBuf>,
    /// Seed of the random numbers that the program is given.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Say at the end how many instructions were executed, and how fast.
    #[arg(long)]
    pub stats: bool,
    /// Write a recording of all loads and stores.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Run so many copies as xBGAS processing elements, each with memory of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32)
        .range(1..=i64::from(riscv::MOST_ELEMENTS)))]
    pub pes: Option<u32>,
    /// How elements reach each other's memory.
    #[arg(long, value_name = "T", default_value = "turns")]
    pub transport: TransportName,
    /// Execute xBGAS instructions in this encoding; without it, in that of the program's note, or
    /// 2018.
    #[arg(long, value_name = "D")]
    pub dialect: Option<DialectName>,
    /// Instructions of an element's turn at most; its length is drawn with --seed.
    #[arg(long, value_name = "N", default_value_t = ElementSchedule::from_seed(0).quantum)]
    pub quantum: u64,
    /// Entries of an element's object look-aside buffer.
    #[arg(long, value_name = "N", default_value_t = LookasideSize::default().entries as u32,
        value_parser = clap::value_parser!(u32).range(0..=65_536))]
    pub olb_entries: u32,
    /// Ways of the look-aside buffer.
    #[arg(long, value_name = "N", default_value_t = LookasideSize::default().ways as u32,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub olb_ways: u32,
    /// What a miss of the look-aside buffer takes, in nanoseconds, with --machine or --fabric;
    /// without it, as long as a load from memory.
    #[arg(long, value_name = "NS",
        value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub olb_miss_ns: Option<u64>,
    /// Make a file an object (ID=FILE), or a part of an element's memory (ID=peN:START+LENGTH);
    /// with :rw behind it, it may be written.
    #[arg(long = "object", value_name = "ID=WHAT")]
    pub objects: Vec<String>,
    /// Model time: each element is a core of this machine, a preset's name or a file (with
    /// --fabric: ddr-cxl).
    #[arg(long, value_name = "M")]
    pub machine: Option<String>,
    /// Model time: how elements reach each other, 100ns, 200ns or figures by name (with --machine:
    /// 100ns).
    #[arg(long, value_name = "F")]
    pub fabric: Option<String>,
    /// Let cores wait where they first use what another element sends, instead of when their
    /// window is full.
    #[arg(long)]
    pub in_order: bool,
    /// Wait for gdb at a port of this host (PORT or localhost:PORT) or a socket (a path with a
    /// slash), which then controls one element.
    #[arg(long, value_name = "WHERE")]
    pub gdb: Option<String>,
    /// The element that gdb controls; the others run while it does.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "gdb")]
    pub gdb_element: u32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}
