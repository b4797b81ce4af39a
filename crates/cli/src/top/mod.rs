//! `top` and `show`: who uses which memory.

mod screen;

use crate::output::{print, print_json, width, CommandFailure, Ending};
use clap::Args;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use terrace_terrace::types::Nanos;
use terrace_terrace::usage::{UsageError, UsageSubject, UsageWatch};

/// Watching may take a hundredth of a core: after a look, a hundred times as long without one.
const REST: u32 = 100;

/// `terrace top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only this process, by number or name.
    #[arg(short, long, value_name = "PID|NAME")]
    pub process: Option<String>,
    /// Only processes of this control group.
    #[arg(long, value_name = "PATH", conflicts_with = "process")]
    pub cgroup: Option<String>,
    /// Print it once, then end.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub interval: f64,
    /// Print JSON; takes --once.
    #[arg(long, requires = "once")]
    pub json: bool,
}

/// `terrace show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The process, by number or name.
    #[arg(value_name = "PID|NAME")]
    pub process: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn failed(error: UsageError) -> CommandFailure {
    CommandFailure::failed(error)
}

/// `terrace show`.
pub fn show(args: &ShowArgs) -> Ending {
    let subject = UsageSubject::Process(args.process.clone());
    let usage = UsageWatch::new(subject).look(Nanos::millis(500)).map_err(failed)?;
    if args.json {
        return print_json(&usage);
    }
    print(&usage.text(width(), None))
}

/// `terrace top`.
pub fn top(args: &TopArgs) -> Ending {
    if !(0.1..=3600.0).contains(&args.interval) {
        let what = "--interval takes seconds, from 0.1 to 3600";
        return Err(CommandFailure::usage(format!("top: {what}")));
    }
    let subject = match (&args.process, &args.cgroup) {
        (Some(name), _) => UsageSubject::Process(name.clone()),
        (None, Some(path)) => UsageSubject::ControlGroup(path.clone()),
        (None, None) => UsageSubject::Largest,
    };
    let mut watch = UsageWatch::new(subject);
    let span = Nanos((args.interval * 1e9) as u64);
    if args.once {
        let usage = watch.look(span.min(Nanos::millis(500))).map_err(failed)?;
        return if args.json { print_json(&usage) } else { print(&usage.text(width(), None)) };
    }
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return screen::run(watch, span);
    }
    loop {
        let begin = Instant::now();
        let sampled = Nanos(span.get() / 4);
        let usage = watch.look(sampled).map_err(failed)?;
        let mut out = std::io::stdout();
        match out
            .write_all((usage.text(width(), None) + "\n").as_bytes())
            .and_then(|()| out.flush())
        {
            Ok(()) => {}
            // Whoever was reading has seen enough.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(0),
            Err(e) => return Err(CommandFailure::failed(format!("top: {e}"))),
        }
        std::thread::sleep(rest(begin.elapsed(), sampled, span));
    }
}

/// How long to rest after a look that took so long, sampling included.
fn rest(elapsed: Duration, sampled: Nanos, span: Nanos) -> Duration {
    let took = elapsed.saturating_sub(Duration::from_nanos(sampled.get()));
    Duration::from_nanos(span.get()).max(took * REST).saturating_sub(elapsed)
}
