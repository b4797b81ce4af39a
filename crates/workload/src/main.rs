//! `terrace-workload SPEC`: one named workload as a program.
//!
//! Standard output is one line that depends on the specification alone. Times go, as one line of
//! JSON, to the file that `TERRACE_MARK_LOG` names, else to standard error. When
//! `TERRACE_MARK_FIFO` is set, `begin PID` is written there after the begin mark and a line is
//! awaited from `TERRACE_MARK_REPLY`, inside the measured phase.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::ExitCode;
use terrace_workload::{
    base_pages_only, mark, run_threads, DataPageSize, PhaseHooks, RoiMarker, Timing, WorkloadError,
    WorkloadResult, WorkloadSpec,
};

const USAGE: &str = "usage: terrace-workload NAME[,key=value...]
example: terrace-workload skew,accesses=32M,layout=scattered,hot=read,seed=7";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [text] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let spec = match WorkloadSpec::parse(text) {
        Ok(spec) => spec,
        Err(error) => {
            eprintln!("terrace-workload: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&spec) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrace-workload: {spec}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(spec: &WorkloadSpec) -> Result<(), WorkloadError> {
    if spec.pages == DataPageSize::Base {
        base_pages_only();
    }
    let mut ends = Ends {
        fifo: std::env::var("TERRACE_MARK_FIFO").ok(),
        reply: std::env::var("TERRACE_MARK_REPLY").ok(),
    };
    let (outcome, timing) = run_threads(spec, &mut ends)?;
    let line = if spec.seconds.is_some() {
        format!("{spec} verified\n")
    } else {
        format!("{spec} accesses={} checksum={:016x}\n", outcome.accesses, outcome.checksum)
    };
    write_all(&mut std::io::stdout(), "write to", "standard output", &line)?;
    log(spec, &outcome, &timing)
}

fn log(
    spec: &WorkloadSpec,
    outcome: &WorkloadResult,
    timing: &Timing,
) -> Result<(), WorkloadError> {
    let seconds = timing.phase.as_secs_f64();
    let line = format!(
        "{{\"workload\":\"{spec}\",\"threads\":{},\"accesses\":{},\"seconds\":{seconds:.9},\
         \"accesses_per_s\":{:.0},\"prepare_seconds\":{:.9}}}\n",
        spec.threads,
        outcome.accesses,
        outcome.accesses as f64 / seconds.max(1e-9),
        timing.prepare.as_secs_f64(),
    );
    match std::env::var("TERRACE_MARK_LOG") {
        Err(_) => write_all(&mut std::io::stderr(), "write to", "standard error", &line),
        Ok(path) => {
            let mut file =
                open("append to TERRACE_MARK_LOG", &path, |o| o.append(true).create(true))?;
            write_all(&mut file, "write to", &path, &line)
        }
    }
}

/// The marks, and whoever listens for them.
struct Ends {
    fifo: Option<String>,
    reply: Option<String>,
}

impl PhaseHooks for Ends {
    fn begin(&mut self) -> Result<(), WorkloadError> {
        mark(RoiMarker::Begin);
        if let Some(path) = &self.fifo {
            let mut file = open("write to TERRACE_MARK_FIFO", path, |o| o.write(true))?;
            let line = format!("begin {}\n", std::process::id());
            write_all(&mut file, "write to", path, &line)?;
        }
        if let Some(path) = self.reply.as_ref().filter(|_| self.fifo.is_some()) {
            let file = open("read TERRACE_MARK_REPLY", path, |o| o.read(true))?;
            let mut line = String::new();
            BufReader::new(file)
                .read_line(&mut line)
                .map_err(|source| failed("read", path, source))?;
        }
        Ok(())
    }

    fn end(&mut self) {
        mark(RoiMarker::End);
    }
}

fn open(
    what: &'static str,
    path: &str,
    how: impl FnOnce(&mut OpenOptions) -> &mut OpenOptions,
) -> Result<File, WorkloadError> {
    how(&mut OpenOptions::new()).open(path).map_err(|source| failed(what, path, source))
}

fn write_all(
    to: &mut impl Write,
    what: &'static str,
    path: &str,
    line: &str,
) -> Result<(), WorkloadError> {
    to.write_all(line.as_bytes())
        .and_then(|()| to.flush())
        .map_err(|source| failed(what, path, source))
}

fn failed(what: &'static str, path: &str, source: std::io::Error) -> WorkloadError {
    WorkloadError::Mark { what, path: path.to_owned(), source }
}
