//! `terrace gpu`: which GPU memory for which array.

use crate::output::{print, print_json, say, CommandFailure, Ending};
use crate::replace::write;
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use terrace_terrace::gpu::advise::{
    advise, apply_advice, choose_kernel, recorded_model, AdviceRequest, KernelAdvice,
};
use terrace_terrace::gpu::analysis::LaunchNumbers;
use terrace_terrace::gpu::counters::{
    is_recorded_run, longest_launch, write_recorded_run, COUNTERS,
};
use terrace_terrace::gpu::managed::{is_managed_table, read_managed_arrays, ManagedModel};
use terrace_terrace::gpu::model::PlacementModel;
use terrace_terrace::gpu_profile::{compiler_objection, profile_command};

/// `terrace gpu`.
#[derive(Debug, Subcommand)]
pub enum GpuCommand {
    /// Say for each array of a CUDA kernel which memory it belongs in.
    #[command(
        after_help = "Example: terrace gpu advise fir.cu --size tap=32 --size signal=1000000 --arg n=1000000 --grid 3907 --block 256 --apply -o placed.cu

A CSV file in place of the source holds arrays in unified memory: a line for each array of a kernel with the columns Kernel, Data, DataSize, Threads, and of Nsight Compute Block Size, Grid Size, Registers Per Thread, Waves Per SM, Theoretical Occupancy. The advice is read-mostly, a preferred location, accessed-by, none, or a copy by hand."
    )]
    Advise(GpuAdviseArgs),
    /// Run a command and read the counters of its GPU kernels, by Nsight Compute.
    #[command(after_help = "Example: terrace gpu profile -o counters.csv -- ./solver input")]
    Profile(GpuProfileArgs),
}

/// `terrace gpu advise`.
#[derive(Debug, Args)]
pub struct GpuAdviseArgs {
    /// CUDA source with the kernel, or a CSV file of arrays in unified memory.
    pub source: PathBuf,
    /// The kernel, where the source has several.
    #[arg(long)]
    pub kernel: Option<String>,
    /// The GPU, by a part of its name: h100 or h200.
    #[arg(long, default_value = "h100")]
    pub gpu: String,
    /// Elements of an array; without it the array is taken to be large.
    #[arg(long, value_name = "ARRAY=ELEMENTS")]
    pub size: Vec<String>,
    /// Value of a whole-number parameter, or of a name that the source needs defined.
    #[arg(long, value_name = "NAME=VALUE")]
    pub arg: Vec<String>,
    /// Threads of a block: X, X,Y or X,Y,Z.
    #[arg(long, default_value = "256")]
    pub block: String,
    /// Blocks of the grid: X, X,Y or X,Y,Z.
    #[arg(long, default_value = "1024")]
    pub grid: String,
    /// A run that `terrace gpu profile -o` recorded: grid and block are those that the kernel spent
    /// most time in.
    #[arg(long, conflicts_with_all = ["grid", "block"])]
    pub run: Option<PathBuf>,
    /// Write the source with the advice applied, to --output.
    #[arg(long, requires = "output")]
    pub apply: bool,
    /// File for the source with the advice applied.
    #[arg(short, long, requires = "apply")]
    pub output: Option<PathBuf>,
    /// A model of your own in place of the one that comes with Terrace.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `terrace gpu profile`.
#[derive(Debug, Args)]
pub struct GpuProfileArgs {
    /// CSV file for the counters.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

fn numbers<T: std::str::FromStr>(
    option: &str,
    texts: &[String],
) -> Result<Vec<(String, T)>, CommandFailure> {
    let pair = |text: &String| {
        let (name, value) = text.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    let read = |text: &String| {
        pair(text).ok_or_else(|| {
            CommandFailure::usage(format!("--{option} {text}: give NAME=NUMBER, such as n=1000"))
        })
    };
    texts.iter().map(read).collect()
}

fn axes(option: &str, text: &str) -> Result<[u32; 3], CommandFailure> {
    let parsed: Option<Vec<u32>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
    let wrong =
        || CommandFailure::usage(format!("--{option} {text}: give one to three numbers from 1"));
    let parsed = parsed.filter(|p| (1..=3).contains(&p.len()) && !p.contains(&0));
    let parsed = parsed.ok_or_else(wrong)?;
    Ok(std::array::from_fn(|axis| parsed.get(axis).copied().unwrap_or(1)))
}

/// The most bytes of a source or model that are read.
const MAX_BYTES: u64 = 64 << 20;

fn read(path: &PathBuf) -> Result<String, CommandFailure> {
    let failed = |e: std::io::Error| CommandFailure::failed(format!("{}: {e}", path.display()));
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > MAX_BYTES {
        return Err(CommandFailure::failed(format!(
            "{}: {length} bytes are too many",
            path.display()
        )));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// `terrace gpu advise`.
pub fn advise_kernel(args: &GpuAdviseArgs) -> Ending {
    let source = read(&args.source)?;
    if is_managed_table(&source) {
        return advise_managed(args, &source);
    }
    if is_recorded_run(&source) {
        let run = args.source.display();
        return Err(CommandFailure::usage(format!(
            "{run} is a recorded run, which does not say how a kernel uses its arrays; give the \
                kernel's source, and --run {run}"
        )));
    }
    let request = request(args, source)?;
    let model = match &args.model {
        Some(path) => PlacementModel::read(&read(path)?)
            .map_err(|e| CommandFailure::failed(format!("{}: {e}", path.display())))?,
        None => recorded_model().map_err(CommandFailure::failed)?,
    };
    let advice = advise(&request, &model).map_err(CommandFailure::usage)?;
    if let Some(output) = args.output.as_ref().filter(|_| args.apply) {
        apply(args, output, &request, &advice)?;
    }
    if args.json {
        return print_json(&advice);
    }
    let mut text = format!("{} on {}\n", advice.kernel, advice.gpu);
    for array in &advice.arrays {
        let _ = writeln!(
            text,
            "{:<16} {:<13} {:>5.2} times the speed, {:.0}% sure: {}",
            array.array,
            array.placement.name(),
            array.expected_speedup,
            100.0 * array.confidence,
            array.rule
        );
    }
    print(&text)
}

/// What is asked, from the options and the recorded run.
fn request(args: &GpuAdviseArgs, source: String) -> Result<AdviceRequest, CommandFailure> {
    let (mut grid, mut block) = (axes("grid", &args.grid)?, axes("block", &args.block)?);
    if let Some(run) = &args.run {
        let kernel = choose_kernel(&source, args.kernel.as_deref());
        let kernel = kernel.map_err(CommandFailure::usage)?.name;
        let recorded = longest_launch(&run.display().to_string(), &read(run)?, &kernel)
            .map_err(CommandFailure::failed)?;
        (grid, block) = (recorded.grid, recorded.block);
        say(&format!(
            "grid {grid:?} and block {block:?}, of {} launches of {kernel} that took {:.3} ms",
            recorded.launches,
            recorded.duration_ns / 1e6
        ));
    }
    let threads: u64 = block.iter().map(|b| u64::from(*b)).product();
    if threads > 1024 {
        let line = format!("block {block:?}: {threads} threads; a block has at most 1024");
        return Err(CommandFailure::usage(line));
    }
    let scalars: Vec<(String, i64)> = numbers("arg", &args.arg)?;
    Ok(AdviceRequest {
        source,
        kernel: args.kernel.clone(),
        elements: numbers("size", &args.size)?.into_iter().collect(),
        launch: LaunchNumbers {
            grid,
            block,
            scalars: scalars.into_iter().collect(),
            defines: Default::default(),
        },
        gpu: args.gpu.clone(),
    })
}

/// Writes the source with the advice applied, and says what its callers must do.
fn apply(
    args: &GpuAdviseArgs,
    output: &Path,
    request: &AdviceRequest,
    advice: &KernelAdvice,
) -> Result<(), CommandFailure> {
    let variant = apply_advice(request, advice).map_err(CommandFailure::failed)?;
    let text = variant.standalone(request.launch.block);
    let name = args.source.display().to_string();
    let kernel = choose_kernel(&request.source, Some(&advice.kernel));
    let kernel = kernel.map_err(CommandFailure::failed)?;
    // What is no parameter of the kernel is a name that its source needs defined.
    let defined = |name: &String| kernel.scalars.iter().all(|scalar| scalar.name != *name);
    let scalars = request.launch.scalars.iter().filter(|(name, _)| defined(name));
    let defines: Vec<(String, i64)> = scalars.map(|(name, value)| (name.clone(), *value)).collect();
    if let Some(words) = compiler_objection(&name, &text, &defines) {
        return Err(CommandFailure::failed(format!("the placed source is not written: {words}")));
    }
    write(output, &text)
        .map_err(|e| CommandFailure::failed(format!("{}: {e}", output.display())))?;
    for (array, variable) in &variant.constants {
        say(&format!("copy {array} to the module's variable {variable} before a launch"));
    }
    for array in &variant.textures {
        say(&format!("pass {array} as a texture over linear memory"));
    }
    if variant.shared.get() > 0 {
        let bytes = variant.shared.get();
        say(&format!("launch with {bytes} bytes of dynamic shared memory"));
    }
    Ok(())
}

/// Advice for arrays in unified memory.
fn advise_managed(args: &GpuAdviseArgs, text: &str) -> Ending {
    let file = args.source.display().to_string();
    let arrays = read_managed_arrays(&file, text).map_err(CommandFailure::failed)?;
    let model = ManagedModel::shipped().map_err(CommandFailure::failed)?;
    let choices = arrays.iter().map(|array| (array, model.choose(&array.features)));
    if args.json {
        let choices: Vec<serde_json::Value> = choices
            .map(|(array, choice)| {
                serde_json::json!({
                    "kernel": array.kernel, "array": array.array,
                    "advice": choice.advice, "confidence": choice.confidence,
                })
            })
            .collect();
        return print_json(&serde_json::json!({ "version": 1, "unified_memory": choices }));
    }
    say(
        "learned from two programs on a Tesla V100; docs/results/gpu.md says how often it is right",
    );
    let mut text = String::new();
    for (array, choice) in choices {
        let _ = writeln!(
            text,
            "{:<24} {:<24} {:.0}% of the votes: {}",
            array.kernel,
            array.array,
            100.0 * choice.confidence,
            choice.advice.text()
        );
    }
    print(&text)
}

/// `terrace gpu profile`.
pub fn profile(args: &GpuProfileArgs) -> Ending {
    let launches = profile_command(&args.command).map_err(|error| match error.is_lacking() {
        true => CommandFailure::lacking(error),
        false => CommandFailure::failed(error),
    })?;
    let csv = write_recorded_run(&launches);
    if let Some(output) = &args.output {
        write(output, &csv)
            .map_err(|e| CommandFailure::failed(format!("{}: {e}", output.display())))?;
    }
    if args.json {
        let names = COUNTERS.map(|(_, name)| name);
        return print_json(
            &serde_json::json!({ "version": 1, "counters": names, "launches": launches }),
        );
    }
    match args.output {
        Some(_) => print(&format!("{} launches\n", launches.len())),
        None => print(&csv),
    }
}
