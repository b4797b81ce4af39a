//! Which files a command uses, found by running it once on this machine, for the lab to carry.

use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use terrace_lab::command::UsedFiles;
use terrace_lab::{HostCommand, JobSpec};
use terrace_sys::{trace_files, TracedCommand};
use terrace_types::Nanos;

/// The guest takes at least so many times as long as this machine: 20 ns an instruction
/// (lab/README.md), where this machine takes a nanosecond at most. A command that the lab can run
/// within its limit ends here within this part of it.
pub const GUEST_SLOWDOWN: u32 = 20;

/// What looking for files came to.
#[derive(Debug, Clone, Default)]
pub struct FileSearch {
    /// The files.
    pub used: UsedFiles,
    /// Why it found none, or may have missed some.
    pub note: Option<String>,
}

/// Runs the command once on this machine, in a sandbox in which it can change no file, with the
/// environment and the input that it has in the lab, and notes what it uses. A search that fails is
/// no failure of the lab's.
#[must_use]
pub fn find(
    command: &HostCommand,
    job: &JobSpec,
    limit: Duration,
    stop: &AtomicBool,
) -> FileSearch {
    let by_hand = "name what it needs with --file and --dir";
    let failed = |why: String| FileSearch {
        used: UsedFiles::default(),
        note: Some(format!(
            "the files that the command uses were not looked for: {why}; {by_hand}"
        )),
    };
    let Some((program, arguments)) = job.argv.split_first() else {
        return failed("no command given".into());
    };
    let stdin = command.stdin.as_ref().map(|path| File::open(command.absolute(path))).transpose();
    let traced = TracedCommand {
        program: program.into(),
        arguments: arguments.iter().map(Into::into).collect(),
        environment: job.environment().into_iter().map(|(n, v)| (n.into(), v.into())).collect(),
        cwd: command.cwd.clone(),
        stdin: match stdin {
            Ok(stdin) => stdin,
            Err(e) => return failed(format!("its input: {e}")),
        },
    };
    let limit = limit / GUEST_SLOWDOWN;
    match trace_files(traced, Nanos(limit.as_nanos() as u64), stop) {
        Ok(found) => FileSearch {
            note: (!found.ended).then(|| {
                let seconds = limit.as_secs_f64();
                format!(
                    "the command ran {seconds:.0} s on this machine while its files were looked \
                     for, and had not ended; {by_hand}"
                )
            }),
            used: UsedFiles {
                programs: found.programs.into_iter().collect(),
                paths: found.paths.into_iter().collect(),
            },
        },
        Err(e) => failed(e.to_string()),
    }
}
