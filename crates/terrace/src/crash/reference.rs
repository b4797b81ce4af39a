//! The run without a crash that restarts are judged by.

use super::mapped::{create_run_folder, PersistentFile};
use super::workspace::Workspace;
use super::{describe_end, CrashError, CrashSpec, TIME_FACTOR, TIME_LEAST};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use terrace_sys::{run_bounded, BoundedCommand, BoundedEnd, CommandExit};
use terrace_types::{Bytes, Nanos};

/// A run without a crash may take a day.
const REFERENCE_TIME: Nanos = Nanos::secs(86_400);
/// Output that is compared at most.
pub const MAX_OUTPUT: u64 = 16 << 20;
/// Files that a restart may write, each.
pub const MAX_FILE: Bytes = Bytes(1 << 30);

/// What a run without a crash did.
#[derive(Debug)]
pub struct ReferenceRun {
    /// The program, by a path that another folder does not change, and its arguments.
    pub argv: Vec<OsString>,
    /// Its output, as far as it is compared.
    pub output: Vec<u8>,
    /// Its last iteration, where it has iterations.
    pub iterations: Option<i64>,
    /// How long it took.
    pub wall: Nanos,
    /// Limit of a restart's time.
    pub limit: Nanos,
    /// The file that the program maps, where that is what is persistent.
    pub own: Option<PersistentFile>,
}

impl ReferenceRun {
    pub fn make(
        spec: &CrashSpec,
        workspace: &Workspace,
        own: Option<PersistentFile>,
        stop: &AtomicBool,
    ) -> Result<Self, CrashError> {
        let argv = absolute(&spec.argv);
        let result = workspace.path("reference-result");
        let output = workspace.create_file("reference-output")?;
        let directory = create_run_folder(workspace, "reference", own.as_ref())?;
        // The program writes its result there, too.
        let inner = directory.join(".terrace-crash-result");
        let run = run_bounded(
            BoundedCommand {
                argv: argv.clone(),
                directory,
                environment: vec![("TERRACE_CRASH_RESULT", inner.clone().into_os_string())],
                output,
                memory: None,
                file: Some(MAX_FILE),
                time: REFERENCE_TIME,
            },
            stop,
        )?;
        match run.end {
            BoundedEnd::Ended(CommandExit::Code(0)) => {}
            BoundedEnd::Stopped => return Err(CrashError::Stopped),
            BoundedEnd::TimedOut => {
                return Err(CrashError::Reference {
                    how: "does not end within a day".into(),
                    last_line: workspace.last_line("reference-output"),
                })
            }
            BoundedEnd::Ended(ended) => {
                return Err(CrashError::Reference {
                    how: describe_end(ended),
                    last_line: workspace.last_line("reference-output"),
                })
            }
        }
        let _moved_for_nobody = std::fs::rename(&inner, &result);
        let limit = Nanos(run.wall.0.saturating_mul(TIME_FACTOR)).max(TIME_LEAST);
        Ok(Self {
            argv,
            output: read_output(&workspace.path("reference-output")),
            iterations: read_iterations(&result),
            wall: run.wall,
            limit: spec.time.unwrap_or(limit),
            own,
        })
    }
}

/// The output's bytes, as far as they are compared.
pub fn read_output(path: &Path) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(MAX_OUTPUT).read_to_end(&mut bytes));
    if read.is_err() {
        bytes.clear();
    }
    bytes
}

/// The iteration that `end_crash()` wrote.
pub fn read_iterations(path: &Path) -> Option<i64> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// A program named by a relative path is found from another folder, too.
pub fn absolute(argv: &[OsString]) -> Vec<OsString> {
    let mut argv = argv.to_vec();
    if let Some(program) = argv.first_mut() {
        let path = PathBuf::from(&*program);
        if path.components().count() > 1 {
            if let Ok(whole) = std::path::absolute(&path) {
                *program = whole.into_os_string();
            }
        }
    }
    argv
}
