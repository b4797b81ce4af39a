//! `terrace`: the command line over the library. Thin: parse, call, render, exit status.
#![forbid(unsafe_code)]

mod args;
mod lab;
mod manage;
mod output;
mod probe;
mod record;
mod replace;
mod see;
mod sim;
mod trace;

use args::{Cli, Command, LabCommand, TraceCommand};
use clap::{CommandFactory, Parser};
use output::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Tiers(a) => see::tiers(&a),
        Command::Doctor(a) => see::doctor(&a),
        Command::Gather(a) => see::gather(&a),
        Command::Probe(a) => probe::probe(&a),
        Command::Degrade(a) => probe::degrade(&a),
        Command::Run(a) => return ExitCode::from(manage::run(&a)),
        Command::Attach(a) => manage::attach(&a),
        Command::Record(a) => record::record(&a),
        Command::Trace(TraceCommand::Info(a)) => trace::info(&a),
        Command::Trace(TraceCommand::Cat(a)) => trace::cat(&a),
        Command::Trace(TraceCommand::Import(a)) => trace::import(&a),
        Command::Report(a) => see::report(&a),
        Command::Sim(a) => sim::sim(&a),
        Command::Lab(LabCommand::Setup(a)) => lab::setup(&a),
        Command::Lab(LabCommand::Run(a)) => lab::run(&a),
        Command::Lab(LabCommand::Compare(a)) => lab::compare(&a),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "terrace", &mut std::io::stdout());
            Ok(0)
        }
        Command::Man => clap_mangen::Man::new(Cli::command())
            .render(&mut std::io::stdout())
            .map(|()| 0)
            .map_err(|e| Failure::failed(format!("cannot write the manual page: {e}"))),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}
