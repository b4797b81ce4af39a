//! Restarts from images, several at a time.

use super::mapped::PersistentFile;
use super::reference::{read_iterations, read_output, ReferenceRun, MAX_FILE};
use super::workspace::Workspace;
use super::{CrashError, CrashSpec};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender};
use std::sync::Mutex;
use terrace_crash::RestartOutcome;
use terrace_sys::{run_bounded, BoundedCommand, BoundedEnd, CommandExit};
use terrace_types::Nanos;

/// The status with which `terrace_crash.h` refuses an image.
const REFUSED: i32 = 122;
const RESULT: &str = ".terrace-crash-result";

/// What to restart from.
pub struct RestartJob {
    /// Number of the crash.
    pub crash: usize,
    /// The image file's content.
    pub image: Vec<u8>,
}

/// What became of it.
pub struct RestartDone {
    pub crash: usize,
    pub outcome: RestartOutcome,
    /// Its last iteration, where it came to the region's end.
    pub iterations: Option<i64>,
    pub wall: Nanos,
    /// Whether it was kept from writing outside its folder.
    pub confined: bool,
}

/// Restarts from each of `next`; results come in the order in which restarts end.
pub fn restart_all(
    spec: &CrashSpec,
    workspace: &Workspace,
    reference: &ReferenceRun,
    next: &mut dyn FnMut() -> Option<RestartJob>,
    stop: &AtomicBool,
    each: &mut dyn FnMut(RestartDone),
) -> Result<(), CrashError> {
    let workers = spec.jobs.max(1);
    let mut places = Vec::new();
    for worker in 0..workers {
        let own = reference.own.as_ref().map(PersistentFile::name);
        let directory = workspace.create_folder(&format!("restart-{worker}"), own)?;
        let image = match own {
            Some(name) => directory.join(name),
            None => workspace.path(&format!("image-{worker}")),
        };
        places.push(WorkerPlace {
            directory,
            image,
            output: workspace.path(&format!("output-{worker}")),
        });
    }
    // One image waits for each worker that is busy.
    let (jobs, waiting) = sync_channel::<RestartJob>(workers);
    let waiting = Mutex::new(waiting);
    let (done, results) = channel();
    std::thread::scope(|scope| {
        for place in places {
            let (done, waiting) = (done.clone(), &waiting);
            scope.spawn(move || work(spec, reference, &place, waiting, stop, &done));
        }
        drop(done);
        let mut failure = None;
        let mut take = |result: Result<RestartDone, CrashError>| match result {
            Ok(done) => each(done),
            Err(error) => failure = Some(error),
        };
        while let Some(job) = (!stop.load(Ordering::Relaxed)).then(&mut *next).flatten() {
            // Without workers nobody takes it.
            if jobs.send(job).is_err() {
                break;
            }
            results.try_iter().for_each(&mut take);
        }
        drop(jobs);
        results.iter().for_each(&mut take);
        failure.map_or(Ok(()), Err)
    })
}

/// Where a worker's restarts run.
struct WorkerPlace {
    directory: PathBuf,
    image: PathBuf,
    output: PathBuf,
}

fn work(
    spec: &CrashSpec,
    reference: &ReferenceRun,
    place: &WorkerPlace,
    waiting: &Mutex<Receiver<RestartJob>>,
    stop: &AtomicBool,
    done: &Sender<Result<RestartDone, CrashError>>,
) {
    loop {
        let Ok(job) = waiting.lock().map(|jobs| jobs.recv()) else { return };
        let Ok(job) = job else { return };
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let result = restart(spec, reference, place, &job, stop);
        let failed = result.is_err();
        if let Some(result) = result.transpose() {
            if done.send(result).is_err() {
                return;
            }
        }
        if failed {
            return;
        }
    }
}

/// One restart; nothing where it was stopped.
fn restart(
    spec: &CrashSpec,
    reference: &ReferenceRun,
    place: &WorkerPlace,
    job: &RestartJob,
    stop: &AtomicBool,
) -> Result<Option<RestartDone>, CrashError> {
    let failed = |path: &Path, source| CrashError::Work { path: path.to_owned(), source };
    // Through a link that an earlier restart left there, anything could be written.
    let _none_yet = std::fs::remove_file(&place.image);
    std::fs::write(&place.image, &job.image).map_err(|e| failed(&place.image, e))?;
    let output = File::create(&place.output).map_err(|e| failed(&place.output, e))?;
    let result = place.directory.join(RESULT);
    let run = run_bounded(
        BoundedCommand {
            argv: reference.argv.clone(),
            directory: place.directory.clone(),
            environment: vec![
                ("TERRACE_CRASH_IMAGE", place.image.clone().into_os_string()),
                ("TERRACE_CRASH_RESULT", result.clone().into_os_string()),
            ],
            output,
            memory: spec.memory,
            file: Some(MAX_FILE),
            time: reference.limit,
        },
        stop,
    )?;
    let iterations = read_iterations(&result);
    let outcome = match run.end {
        BoundedEnd::Stopped => return Ok(None),
        BoundedEnd::TimedOut => RestartOutcome::Hung,
        BoundedEnd::Ended(CommandExit::Signal(signal)) => RestartOutcome::Crashed { signal },
        BoundedEnd::Ended(CommandExit::Code(REFUSED)) => RestartOutcome::Refused,
        BoundedEnd::Ended(CommandExit::Code(0)) if is_expected(spec, reference, &place.output) => {
            let more = match (iterations, reference.iterations) {
                (Some(now), Some(then)) => now.saturating_sub(then).max(0),
                _ => 0,
            };
            RestartOutcome::Recomputed { more_iterations: more.try_into().unwrap_or(u32::MAX) }
        }
        BoundedEnd::Ended(CommandExit::Code(_)) => RestartOutcome::Wrong,
    };
    Workspace::tidy_folder(&place.directory);
    let (wall, confined) = (run.wall, run.confined);
    Ok(Some(RestartDone { crash: job.crash, outcome, iterations, wall, confined }))
}

/// Whether the output is as asked for.
fn is_expected(spec: &CrashSpec, reference: &ReferenceRun, path: &Path) -> bool {
    if !spec.same_output && spec.expect.is_none() {
        return true;
    }
    let output = read_output(path);
    let same = !spec.same_output || output == reference.output;
    let text = String::from_utf8_lossy(&output);
    same && spec.expect.as_ref().is_none_or(|expected| text.contains(expected.as_str()))
}
