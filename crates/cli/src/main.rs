//! `terrace`: the command line over the library. Thin: parse, call, render, exit status.
#![forbid(unsafe_code)]

mod args;
mod crash;
mod device;
mod gpu;
mod lab;
mod manage;
mod migratory;
mod output;
mod plan;
mod probe;
mod record;
mod reference;
mod replace;
mod riscv;
mod see;
mod sim;
mod suggestions;
mod system;
mod top;
mod trace;

use args::{Cli, Command, LabCommand, TraceCommand};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use std::process::ExitCode;

fn main() -> ExitCode {
    terrace_terrace::outlive_file_size_limit();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(e) => return not_understood(&e),
    };
    let done = match cli.command {
        Command::Tiers(a) => see::tiers(&a),
        Command::Doctor(a) => see::doctor(&a),
        Command::Top(a) => top::top(&a),
        Command::Show(a) => top::show(&a),
        Command::Gather(a) => see::gather(&a),
        Command::Probe(a) => probe::probe(&a),
        Command::Degrade(a) => probe::degrade(&a),
        Command::Run(a) => return ExitCode::from(manage::run(&a)),
        Command::Attach(a) => manage::attach(&a),
        Command::Plan(a) => plan::plan(&a),
        Command::Record(a) => record::record(&a),
        Command::Trace(TraceCommand::Info(a)) => trace::info(&a),
        Command::Trace(TraceCommand::Cat(a)) => trace::cat(&a),
        Command::Trace(TraceCommand::Import(a)) => trace::import(&a),
        Command::Report(a) => see::report(&a),
        Command::Sim(a) => sim::sim(&a),
        Command::Crash(crash::CrashCommand::Run(a)) => crash::run(&a),
        Command::Crash(crash::CrashCommand::Check(a)) => crash::check(&a),
        Command::Crash(crash::CrashCommand::Advise(a)) => crash::advise(&a),
        Command::Device(device::DeviceCommand::Hbm(a)) => device::hbm(&a),
        Command::Gpu(gpu::GpuCommand::Advise(a)) => gpu::advise_kernel(&a),
        Command::Gpu(gpu::GpuCommand::Profile(a)) => gpu::profile(&a),
        Command::Migratory(migratory::MigratoryCommand::Run(a)) => migratory::run(&a),
        Command::Migratory(migratory::MigratoryCommand::Format(a)) => migratory::format(&a),
        Command::Riscv(riscv::RiscvCommand::Run(a)) => riscv::run(&a),
        Command::Riscv(riscv::RiscvCommand::Boot(a)) => riscv::boot(&a),
        Command::Riscv(riscv::RiscvCommand::Disasm(a)) => riscv::disasm(&a),
        Command::Lab(LabCommand::Setup(a)) => lab::setup(&a),
        Command::Lab(LabCommand::Run(a)) => lab::run(&a),
        Command::Lab(LabCommand::Compare(a)) => lab::compare(&a),
        Command::List(a) => reference::list(&a),
        Command::Completions { shell } => reference::completions(shell),
        Command::Man { command } => reference::man(&command),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Reads the arguments; help is as wide as the terminal. None at all ask for help.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = Cli::command().term_width(output::width());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
}

/// Help and version go to standard output. What is wrong is one line; before a command that was to
/// be run, with the status of env(1).
fn not_understood(error: &clap::Error) -> ExitCode {
    let asked_for_nothing = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if asked_for_nothing || !error.use_stderr() {
        return output::print(&error.render().to_string())
            .map_or(ExitCode::FAILURE, ExitCode::from);
    }
    let text = error.render().to_string();
    // Usage and hints follow after an empty line.
    let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error:");
    let first = std::env::args_os().nth(1).unwrap_or_default();
    let command = Cli::command()
        .get_subcommands()
        .map(|c| c.get_name().to_owned())
        .find(|name| first == name.as_str());
    let words: Vec<&str> = what.split_whitespace().collect();
    let help = command
        .as_ref()
        .map_or("terrace --help".to_owned(), |name| format!("terrace {name} --help"));
    output::say(&format!("{}; see {help}", words.join(" ")));
    ExitCode::from(if command.is_some_and(|name| name == "run") { 125 } else { 2 })
}
