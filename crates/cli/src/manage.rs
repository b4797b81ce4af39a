//! `run` and `attach`.

use crate::args::{renamed, AttachArgs, ManageArgs, RunArgs};
use crate::output::{json_text, say, CommandFailure, Ending};
use crate::replace::write;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};
use terrace_terrace::allocate;
use terrace_terrace::far_run::{self, FarFinished, FarJournal, FarSpec, LineSchedule, Moment};
use terrace_terrace::machine::parse_rate;
use terrace_terrace::manage::{self, CommandStartError, ManageError, ManageSpec};
use terrace_terrace::output::{RunSummary, Stopped};
use terrace_terrace::types::{Pid, Seed, UnknownPolicyError};
use terrace_terrace::Interrupt;

fn spec(args: &ManageArgs) -> Result<ManageSpec, String> {
    let rate = match &args.rate {
        None => None,
        Some(text) => {
            let per_second = if text.contains("/s") { text.clone() } else { format!("{text}B/s") };
            Some(
                parse_rate(&per_second)
                    .ok_or(format!("--rate {text}: give bytes a second, such as 200M"))?,
            )
        }
    };
    if !(args.cpu > 0.0 && args.cpu <= 100.0) {
        return Err(format!(
            "--cpu {}: give percent of one core, above 0 and at most 100",
            args.cpu
        ));
    }
    let set = args.set.iter().map(|text| {
        let pair = text.split_once('=').ok_or(format!("--set {text}: give NAME=VALUE"));
        pair.map(|(name, value)| (name.to_owned(), value.to_owned()))
    });
    let (tracker, old) =
        renamed(args.trackers.clone(), args.tracker.clone(), ["--trackers", "--tracker"]);
    old.iter().for_each(|note| say(note));
    Ok(ManageSpec {
        policy: match args.policy.as_str() {
            "none" => None,
            name => Some(name.parse().map_err(|e: UnknownPolicyError| e.to_string())?),
        },
        machine: args.machine.clone(),
        journal: args.journal.clone(),
        cpu_share: args.cpu / 100.0,
        rate,
        seed: Seed(args.seed),
        trackers: tracker,
        set: set.collect::<Result<_, _>>()?,
    })
}

/// Writes what the run reports of itself; nothing of this may change how the command ends.
fn tell(args: &ManageArgs, summary: &RunSummary) {
    if let Some(path) = &args.summary {
        let text = json_text(summary, &[]).map_err(|failure| failure.line);
        if let Err(e) = text.and_then(|t| write(path, t).map_err(|e| e.to_string())) {
            say(&format!("summary {}: {e}; name a file that can be written", path.display()));
        }
    }
    if !args.quiet {
        for note in summary.notes.iter().filter(|n| !n.starts_with("process ")) {
            say(note);
        }
        say(&summary.line());
    }
}

/// `terrace run`: ends as the command did; 125 to 127 for failures before it starts, as env(1).
pub fn run(args: &RunArgs) -> u8 {
    if let (Some(dram), Some(store)) = (&args.dram, &args.far) {
        return far(args, dram, store);
    }
    let spec = match spec(&args.manage) {
        Ok(spec) => spec,
        Err(why) => {
            say(&why);
            return 125;
        }
    };
    let ran = match &args.alloc {
        Some(plan) => allocate::run(plan, &args.command),
        None => manage::run(&spec, &args.command),
    };
    match ran {
        Ok(finished) => {
            tell(&args.manage, &finished.summary);
            finished.ended.leave()
        }
        Err(CommandStartError::Start(e)) => {
            say(&e.to_string());
            e.exit_code() as u8
        }
        Err(CommandStartError::Before(e)) => {
            say(&e.to_string());
            125
        }
    }
}

/// `terrace run --dram --far`: as [`run`]; where this machine lacks what far memory takes the
/// command is not run (ADR 0143).
fn far(args: &RunArgs, dram: &str, store: &OsString) -> u8 {
    let Some(dram) = far_run::dram(dram) else {
        say(&format!(
            "--dram {dram}: give bytes, such as 2G or 512M, or a share of what is \
            available, such as 50%"
        ));
        return 125;
    };
    let spec = FarSpec { dram, store: store.clone() };
    let shows = !args.manage.quiet && std::io::stderr().is_terminal();
    let mut schedule = LineSchedule::default();
    let mut before: Option<Moment> = None;
    let mut journal = match far_journal(args, &spec) {
        Ok(journal) => journal,
        Err(why) => {
            say(&why);
            return 125;
        }
    };
    let mut unwritten = None;
    let mut note = |now: &Moment| {
        // A journal that fails is given up, and that is said once, at the end.
        if let Some(Err(error)) = journal.as_mut().map(|j| j.add(now)) {
            (journal, unwritten) = (None, Some(error));
        }
    };
    let ran = far_run::run(&spec, &args.command, |now| {
        note(now);
        if let Some(before) = before.as_ref().filter(|_| shows && schedule.is_due(now.elapsed)) {
            say(&far_run::live(now, before));
        }
        before = Some(*now);
    });
    match ran {
        Ok(finished) => {
            if let Some(path) = &args.manage.summary {
                let written = write(path, far_summary(&finished) + "\n");
                written.unwrap_or_else(|e| {
                    say(&format!(
                        "summary {}: {e}; name a file that can be written",
                        path.display()
                    ))
                });
            }
            note(&finished.end);
            if let Some(error) = unwritten {
                say(&format!("journal: {error}; it ends early"));
            }
            if !args.manage.quiet {
                say(&finished.line());
            }
            finished.ended.leave()
        }
        Err(CommandStartError::Start(e)) => {
            say(&e.to_string());
            e.exit_code() as u8
        }
        Err(CommandStartError::Before(e)) => {
            say(&e.to_string());
            125
        }
    }
}

fn far_journal(args: &RunArgs, spec: &FarSpec) -> Result<Option<FarJournal>, String> {
    let Some(path) = &args.manage.journal else {
        return Ok(None);
    };
    let made = FarJournal::create(path, spec, &args.command);
    made.map(Some)
        .map_err(|e| format!("journal {}: {e}; name a file that can be written", path.display()))
}

fn far_summary(f: &FarFinished) -> String {
    let t = &f.end.tally;
    let all = serde_json::json!({
        "version": 1, "seconds": f.end.elapsed.as_secs_f64(), "dram_bytes": f.dram.get(),
        "most_resident_bytes": f.most.get(),
        "processes": t.processes, "faults": t.faults, "misses": t.misses, "hits": t.hits,
        "read_bytes": t.read,
        "written_bytes": t.written, "prefetched_bytes": t.ahead, "wasted_bytes": t.wasted,
        "lost_bytes": t.lost,
        "write_failures": t.write_failures, "prefetch_accuracy": t.accuracy(),
    });
    format!("{all:#}")
}

/// `terrace attach`.
pub fn attach(args: &AttachArgs) -> Ending {
    let spec = spec(&args.manage).map_err(CommandFailure::usage)?;
    let until = args.seconds.map(seconds).transpose()?.map(|span| Instant::now() + span);
    // Asked to stop, it lets go of the process and gives its account, as when the time is over.
    let interrupt = Interrupt::catch();
    let over = || interrupt.seen() || until.is_some_and(|at| Instant::now() >= at);
    match manage::attach(&spec, Pid(args.pid), over) {
        Ok(summary) => {
            tell(&args.manage, &summary);
            Ok(match (summary.managed, summary.stopped) {
                (true, None) => 0,
                (true, Some(Stopped::Lacking)) => 3,
                (true, Some(Stopped::Refused)) | (false, _) => 1,
            })
        }
        Err(e @ ManageError::Usage(_)) => Err(CommandFailure::usage(e)),
        Err(e @ ManageError::Lacking(_)) => Err(CommandFailure::lacking(e)),
        Err(e) => Err(CommandFailure::failed(e)),
    }
}

/// Longer than anybody waits, and short enough for any clock.
const LONGEST_SECONDS: f64 = 1e9;

fn seconds(wanted: f64) -> Result<Duration, CommandFailure> {
    if !(0.0..=LONGEST_SECONDS).contains(&wanted) {
        return Err(CommandFailure::usage(format!(
            "--seconds {wanted}: give seconds from 0 to {LONGEST_SECONDS}"
        )));
    }
    Ok(Duration::from_secs_f64(wanted))
}
