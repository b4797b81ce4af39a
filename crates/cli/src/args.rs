//! The command line as data: parsed purely, before anything is touched.

use crate::suggestions::{
    LIVE_POLICIES, LIVE_TRACKERS, MACHINES, SIMULATED_POLICIES, SIMULATED_TRACKERS, WORKLOADS,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

mod lab;
mod see;
pub use lab::{LabCommand, LabCompareArgs, LabNeedsArgs, LabRunArgs, LabSetupArgs};
pub use see::{
    renamed, DoctorArgs, GatherArgs, ListArgs, ListTopic, RankBy, ReportArgs, TiersArgs,
};

/// See, use, manage and predict machines with more than one kind of memory.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, about, long_about = None)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List this machine's memory tiers, best first.
    #[command(
        after_help = "Example: terrace tiers --machine knl-snc4 --by bandwidth --initiator 0"
    )]
    Tiers(TiersArgs),
    /// Say what works on this machine, what does not, and what would help.
    #[command(after_help = "Example: terrace doctor --json")]
    Doctor(DoctorArgs),
    /// Show who uses which memory, again and again.
    #[command(after_help = "Example: terrace top -p solver")]
    Top(crate::top::TopArgs),
    /// Show which memory a process uses, once.
    #[command(after_help = "Example: terrace show solver --json")]
    Show(crate::top::ShowArgs),
    /// Copy what sysfs says of this machine into one file, for a bug report.
    #[command(
        after_help = "Example: terrace gather -o machine.tar && terrace tiers --machine machine.tar"
    )]
    Gather(GatherArgs),
    /// Measure this machine's memory and write a machine file.
    #[command(
        after_help = "Example: terrace probe --quick -o machine.toml && terrace tiers --machine \
            machine.toml"
    )]
    Probe(ProbeArgs),
    /// Run a command while a node gives only so much bandwidth.
    #[command(after_help = "Example: terrace degrade 1 --to 20GB/s ./solver input")]
    Degrade(DegradeArgs),
    /// Run a command with its memory placed across the tiers.
    #[command(after_help = "Example: terrace run --journal run.jsonl ./solver input")]
    Run(RunArgs),
    /// Place the memory of a process that already runs.
    #[command(after_help = "Example: terrace attach -p 4242 --summary summary.json")]
    Attach(AttachArgs),
    /// Run a command and record every load and store it makes.
    #[command(after_help = "Example: terrace record -o run.trace ./solver input")]
    Record(RecordArgs),
    /// From a recording with named objects, write which allocations belong in fast memory.
    #[command(after_help = "Example: terrace plan run.trace --machine lab-cxl --fast 64M -o plan")]
    Plan(crate::plan::PlanArgs),
    /// Look into recordings, and read those of other tools.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Turn a journal, or the JSON of a comparison, into one HTML file.
    #[command(after_help = "Example: terrace report run.jsonl -o report.html")]
    Report(ReportArgs),
    /// Predict what a machine and a policy would give.
    #[command(after_help = "Example: terrace sim --machine lab-cxl --policy \
            first-touch,terrace,bound:all-fast --workload skew,accesses=8M")]
    Sim(SimArgs),
    /// What survives a crash when memory keeps its contents.
    #[command(subcommand)]
    Crash(crate::crash::CrashCommand),
    /// Memory devices, from their descriptions to figures and machine files.
    #[command(subcommand)]
    Device(crate::device::DeviceCommand),
    /// Which GPU memory for which array of a kernel.
    #[command(subcommand)]
    Gpu(crate::gpu::GpuCommand),
    /// Threads that migrate to the data, and a compiler that saves their migrations.
    #[command(subcommand)]
    Migratory(crate::migratory::MigratoryCommand),
    /// Programs for RISC-V, on any host.
    #[command(subcommand)]
    Riscv(crate::riscv::RiscvCommand),
    /// The virtual machine whose slow node really is slow.
    #[command(subcommand)]
    Lab(LabCommand),
    /// List what can be named: policies, workloads, machines, trackers.
    #[command(after_help = "Example: terrace list workloads")]
    List(ListArgs),
    /// Print shell completions.
    #[command(hide = true)]
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or a command's.
    #[command(hide = true)]
    Man {
        /// The command, one or two words.
        command: Vec<String>,
    },
}

/// `terrace probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Less of everything, in under a minute.
    #[arg(long)]
    pub quick: bool,
    /// What a machine file needs and no more: latency, read and write bandwidth of each pair of
    /// nodes.
    #[arg(long, conflicts_with = "quick")]
    pub brief: bool,
    /// Measure the disk that this folder lies on, and not memory.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["brief", "report"])]
    pub disk: Option<PathBuf>,
    /// With --disk and --output: the far store's name in the machine file.
    #[arg(long, value_name = "NAME", default_value = "file", requires = "disk")]
    pub store: String,
    /// Machine file to write; with --disk: one that is there, which the disk is added to as a far
    /// store.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// HTML file to write, with plots.
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace degrade`.
#[derive(Debug, Args)]
pub struct DegradeArgs {
    /// The node to make slower.
    pub node: u16,
    /// What the command's CPUs can read of it, such as 20GB/s.
    #[arg(long, value_name = "BANDWIDTH")]
    pub to: String,
    /// CPUs that load it, such as 2-7; default: its own, or half of those nearest. The command has
    /// the rest.
    #[arg(long, value_name = "LIST")]
    pub load_cpus: Option<String>,
    /// Write what was measured here (JSON).
    #[arg(long)]
    pub summary: Option<PathBuf>,
    /// Nothing of ours on standard error.
    #[arg(short, long)]
    pub quiet: bool,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// What `run` and `attach` share.
#[derive(Debug, Args)]
pub struct ManageArgs {
    /// Policy that places pages; none moves nothing and tells how much memory was idle for how
    /// long.
    #[arg(long, default_value = "terrace", value_parser = LIVE_POLICIES)]
    pub policy: String,
    /// Preset or machine file; default: this machine as it describes itself.
    #[arg(long, value_parser = MACHINES)]
    pub machine: Option<String>,
    /// Write every decision here (JSON lines).
    #[arg(long)]
    pub journal: Option<PathBuf>,
    /// Write the summary here (JSON).
    #[arg(long)]
    pub summary: Option<PathBuf>,
    /// Share of one core for tracking, deciding and moving, in percent, in any four seconds; what
    /// is spent beyond it was gained before.
    #[arg(long, default_value_t = 3.0)]
    pub cpu: f64,
    /// Bytes a second that may be moved, such as 200M; default: as the policy finds worth it.
    #[arg(long)]
    pub rate: Option<String>,
    /// auto, page-table, damon, damon-page, soft-dirty or perf. Behind perf may follow settings,
    /// each after a comma: loads=N and stores=N (events between two samples), or an event of your
    /// own by event=HEX, type=N, config1=HEX, precise=N and operation=loads.
    #[arg(long, default_value = "auto", value_parser = LIVE_TRACKERS)]
    pub tracker: String,
    /// Old name of --tracker.
    #[arg(long, hide = true, conflicts_with = "tracker")]
    pub trackers: Option<String>,
    /// Parameter of the policy; may be given again.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Seed of the policy's random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// No summary line at the end.
    #[arg(short, long)]
    pub quiet: bool,
}

/// `terrace run`.
#[derive(Debug, Args)]
#[command(hide_possible_values = true)]
pub struct RunArgs {
    /// How to manage.
    #[command(flatten)]
    pub manage: ManageArgs,
    /// Place allocations by size, thread or call site, as this plan says, instead of managing
    /// pages.
    #[arg(long, value_name = "FILE", conflicts_with_all =
        ["policy", "machine", "journal", "rate", "set"])]
    pub alloc: Option<PathBuf>,
    /// Memory that the command may have of its heap and large mappings, such as 2G, or 50% of what
    /// is available; the rest is in --far.
    #[arg(long, value_name = "SIZE", requires = "far", conflicts_with_all =
        ["policy", "machine", "rate", "set", "alloc"])]
    pub dram: Option<String>,
    /// Where the rest is: a folder, compressed, or a folder and +compressed.
    #[arg(long, value_name = "STORE", requires = "dram")]
    pub far: Option<std::ffi::OsString>,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// `terrace attach`.
#[derive(Debug, Args)]
#[command(hide_possible_values = true)]
pub struct AttachArgs {
    /// How to manage.
    #[command(flatten)]
    pub manage: ManageArgs,
    /// Process to manage, children included.
    #[arg(short, long)]
    pub pid: i32,
    /// Stop managing after this many seconds; default: when the process ends.
    #[arg(long)]
    pub seconds: Option<f64>,
}

/// `terrace sim`.
#[derive(Debug, Args)]
#[command(hide_possible_values = true)]
pub struct SimArgs {
    /// Preset name or machine file; or stack:NAME, xeon-max with these stacks as its HBM. With a
    /// --sweep of a stack's key it is stack:hbm3, and --policy bound:all-fast, unless given.
    #[arg(long, value_parser = MACHINES, required_unless_present_any = ["system", "sweep"])]
    pub machine: Option<String>,
    /// Several hosts that share pools of memory, in place of --machine: a system file, or opal,
    /// cxl2-8, cxl3-32 or network-16.
    /// --policy then says where frames come from: local-first, alternate, round-robin,
    /// proportional, random, 1:2, 1:4, 1:8, 1:16, bandwidth, least-loaded, latency or
    /// application-aware; without it, the file does.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["machine", "sweep", "tracker", "journal"]
    )]
    pub system: Option<String>,
    /// With --system: so many hosts, in place of what the file says of its only group; several
    /// counts, separated by commas, are tried in turn.
    #[arg(long, value_name = "COUNT", requires = "system", value_delimiter = ',')]
    pub hosts: Vec<u32>,
    /// With --system: so many pools, which divide the capacity of the file's only group; several
    /// counts are tried in turn.
    #[arg(long, value_name = "COUNT", requires = "system", value_delimiter = ',')]
    pub pools: Vec<u32>,
    /// With --system: this policy of terrace list policies moves pages of every host between its
    /// local memory and the pools.
    #[arg(long, value_name = "NAME", requires = "system")]
    pub placement: Option<String>,
    /// With --system: so much local memory for each host, such as 512MiB; several sizes are tried
    /// in turn.
    #[arg(long, value_name = "SIZE", requires = "system", value_delimiter = ',')]
    pub local: Vec<String>,
    /// Policies, separated by commas; bound:NAME and hardware:memory-mode too, and far:file or
    /// far:compressed (a [[far]] of the machine file) for a store behind the best tier's memory, as
    /// with run --far.
    #[arg(
        long,
        value_delimiter = ',',
        required_unless_present_any = ["system", "sweep"],
        value_parser = SIMULATED_POLICIES
    )]
    pub policy: Vec<String>,
    /// Sizes of the fast tier to try: fast=10%..100%, or fast=1MiB..64MiB (doubling); of a stack,
    /// values of a key: dies=4..24.
    #[arg(long)]
    pub sweep: Option<String>,
    /// Seed of all chance.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How policies see accesses: page-table (with soft-dirty), pebs or damon.
    #[arg(long, default_value = "page-table", value_parser = SIMULATED_TRACKERS)]
    pub tracker: String,
    /// HTML file to write, as of a live run; with several policies one file each, its policy in the
    /// name.
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// Journal to write, as of a live run; with several policies one file each, named as reports
    /// are.
    #[arg(long)]
    pub journal: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// NAME[,key=value...], in place of INPUT.
    #[arg(long, conflicts_with = "input", value_parser = WORKLOADS)]
    pub workload: Option<String>,
    /// A recording, or workload:NAME[,key=value...]; with --system one for all hosts, or one for
    /// each, or shared:lines=64,reads=16,writes=8,sections=1000: memory that all hosts write, kept
    /// coherent by software, or not (flush=no, invalidate=no).
    #[arg(required_unless_present = "workload")]
    pub input: Vec<String>,
}

/// How to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordSource {
    /// The most complete that works here.
    Auto,
    /// All loads and stores, by running the command in an emulator.
    Full,
    /// The same, by running the command in a translator: faster; new, and so asked for by name.
    Translated,
    /// All loads and stores of a command that was compiled with terrace-cc; much faster.
    Hooks,
    /// All loads and stores of a static program for riscv64, on any host.
    Riscv,
    /// Samples of accesses by the processor; in the lab by its sampling unit.
    #[value(alias = "lab-pmu")]
    Perf,
}

/// `terrace record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// How to record.
    #[arg(long, value_enum, default_value = "auto")]
    pub source: RecordSource,
    /// File to write.
    #[arg(short, long, default_value = "terrace.trace")]
    pub output: PathBuf,
    /// Keep one access in so many of each thread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub period: u64,
    /// Keep accesses to these addresses only, such as 0x7f0000000000..0x7f0010000000.
    #[arg(long, value_name = "FROM..TO")]
    pub addresses: Option<String>,
    /// Keep accesses of so many bytes only, such as 8..65 for 8 to 64.
    #[arg(long, value_name = "FROM..TO")]
    pub sizes: Option<String>,
    /// Keep what each thread does in this span only, in instructions it has executed, such as
    /// 1000000..2000000.
    #[arg(long, value_name = "FROM..TO")]
    pub instructions: Option<String>,
    /// Begin when this function of the command is entered.
    #[arg(long, value_name = "FUNCTION")]
    pub begin_at: Option<String>,
    /// End when this function is entered.
    #[arg(long, value_name = "FUNCTION")]
    pub end_at: Option<String>,
    /// Keep the address of the instruction too.
    #[arg(long)]
    pub pc: bool,
    /// Keep the values stored too.
    #[arg(long)]
    pub values: bool,
    /// How --source perf samples, such as loads=1000,stores=0 (events between two samples), or an
    /// event of your own as behind run --tracker perf; default: as often as takes a hundredth of a
    /// core.
    #[arg(long, value_name = "SETTINGS")]
    pub sampling: Option<String>,
    /// Name allocations of at least so many bytes by the function that made them; with --source
    /// hooks.
    #[arg(long, value_name = "BYTES")]
    pub objects: Option<u64>,
    /// Keep the calls that led to each sample (--source perf), as far as the command keeps frame
    /// pointers.
    #[arg(long)]
    pub callers: bool,
    /// No summary line at the end.
    #[arg(short, long)]
    pub quiet: bool,
    /// Command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// `terrace trace`.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Say what a recording holds.
    #[command(after_help = "Example: terrace trace info run.trace --json")]
    Info(TraceInfoArgs),
    /// Print a recording as text, one access or event a line.
    #[command(after_help = "Example: terrace trace cat run.trace --lines 20")]
    Cat(TraceCatArgs),
    /// Read another tool's recording.
    #[command(after_help = "Example: terrace trace import lackey.txt --from lackey -o run.trace")]
    Import(TraceImportArgs),
}

/// `terrace trace info`.
#[derive(Debug, Args)]
pub struct TraceInfoArgs {
    /// The recording.
    pub file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace trace cat`.
#[derive(Debug, Args)]
pub struct TraceCatArgs {
    /// The recording.
    pub file: PathBuf,
    /// Lines at most.
    #[arg(long)]
    pub lines: Option<u64>,
    /// Old name of --lines.
    #[arg(long, hide = true, conflicts_with = "lines")]
    pub limit: Option<u64>,
    /// Accesses of this thread only, as the recording numbers threads.
    #[arg(long)]
    pub thread: Option<u32>,
    /// Only blocks that reach into this span of time, in the recording's ticks.
    #[arg(long, value_name = "FROM..TO")]
    pub times: Option<String>,
}

/// Whose recording it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// valgrind --tool=lackey --trace-mem=yes
    Lackey,
    /// perf.data, or perf script of memory samples, with at least tid,time,event,addr
    Perf,
    /// damo report access --raw_form, or damo show --raw
    Damo,
}

/// `terrace trace import`.
#[derive(Debug, Args)]
pub struct TraceImportArgs {
    /// What the other tool wrote; - is standard input.
    pub file: PathBuf,
    /// The other tool; perf.data files are recognized without it.
    #[arg(long, value_enum)]
    pub from: Option<ImportFormat>,
    /// File to write; default: FILE with .trace.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Print what was read as JSON.
    #[arg(long)]
    pub json: bool,
}
