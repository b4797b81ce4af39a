//! Which files a command uses: it is run once under ptrace(2), in a sandbox in which the machine's
//! files are read-only, and the paths of its system calls are noted.
//!
//! No privilege is needed where the kernel allows user namespaces. What the command writes goes to
//! memory that is gone with it: a new file in its working folder or among the temporary files.
//! Writing to files that are there already fails in the sandbox. It has no network.

mod calls;
mod sandbox;

use crate::{now, open_pidfd, signal_process, PidFd, SysError};
use calls::{Call, NamedPath};
use sandbox::Sandbox;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;
use terrace_types::{Nanos, Pid};

/// What to run.
#[derive(Debug)]
pub struct TracedCommand {
    /// The program's file, absolute.
    pub program: PathBuf,
    /// Its arguments, without its own name.
    pub arguments: Vec<OsString>,
    /// Its whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its standard input; an empty one without.
    pub stdin: Option<File>,
}

/// What it used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileUse {
    /// Programs that it executed, absolute.
    pub programs: BTreeSet<PathBuf>,
    /// Files and folders that it opened or asked about, absolute, as it named them.
    pub paths: BTreeSet<PathBuf>,
    /// Whether it ended within the limit.
    pub ended: bool,
}

/// Between two questions whether to stop.
const ASKED_EVERY: Duration = Duration::from_millis(50);
const REMEDY: &str = "allow user namespaces and ptrace, or name the files by hand";

/// Runs the command to its end, or until `limit` or `stop`; its output goes nowhere.
///
/// # Errors
/// [`SysError`] where the sandbox cannot be made or the program cannot be started.
pub fn trace_files(
    command: TracedCommand,
    limit: Nanos,
    stop: &AtomicBool,
) -> Result<FileUse, SysError> {
    let sandbox = Sandbox::prepare(&command.cwd);
    let name = command.program.display().to_string();
    let mut child = Command::new(&command.program);
    child
        .args(&command.arguments)
        .env_clear()
        .envs(command.environment)
        .current_dir(&command.cwd)
        .stdin(command.stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: between fork and exec only system calls are made, on strings prepared before;
    // nothing is allocated there.
    unsafe {
        child.pre_exec(move || sandbox.enter());
    }
    let child = child.spawn().map_err(|e| SysError::from_io("running", &name, &e, REMEDY))?;
    let pid = child.id() as i32;
    let handle = open_pidfd(Pid(pid))?;
    let over = AtomicBool::new(false);
    let (done, ended) = channel::<()>();
    let mut used = FileUse::default();
    let traced = std::thread::scope(|scope| {
        let (handle, over) = (&handle, &over);
        scope.spawn(move || watch(handle, limit, stop, over, &ended));
        let traced = Tracer::new(pid, over, &mut used).run();
        drop(done);
        traced
    });
    used.ended = !over.load(Ordering::Relaxed);
    used.programs.insert(command.program);
    traced.map(|()| used)
}

/// Kills the command when its time is over or somebody asks to stop.
fn watch(
    command: &PidFd,
    limit: Nanos,
    stop: &AtomicBool,
    over: &AtomicBool,
    ended: &std::sync::mpsc::Receiver<()>,
) {
    let start = now();
    while ended.recv_timeout(ASKED_EVERY) == Err(RecvTimeoutError::Timeout) {
        if stop.load(Ordering::Relaxed) || now().since(start) >= limit {
            over.store(true, Ordering::Relaxed);
            // It may have ended by itself; the tracer ends what it started.
            let _ = signal_process(command, libc::SIGKILL);
        }
    }
}

/// Threads of the command that are stopped and continued.
struct Tracer<'a> {
    first: i32,
    over: &'a AtomicBool,
    /// By thread: the call that it is in.
    inside: HashMap<i32, Option<NamedPath>>,
    used: &'a mut FileUse,
}

impl<'a> Tracer<'a> {
    fn new(first: i32, over: &'a AtomicBool, used: &'a mut FileUse) -> Self {
        Self { first, over, inside: HashMap::new(), used }
    }

    fn run(mut self) -> Result<(), SysError> {
        loop {
            let mut status = 0;
            // SAFETY: `status` is writable. Threads that were made by other threads are waited for
            // too; not children of this process's other threads.
            let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
            if tid < 0 {
                let error = SysError::last("waitpid", "the command", REMEDY);
                match error.errno() {
                    libc::EINTR => continue,
                    libc::ECHILD => return Ok(()),
                    _ => return Err(error),
                }
            }
            if !libc::WIFSTOPPED(status) {
                self.inside.remove(&tid);
            }
            if self.over.load(Ordering::Relaxed) {
                for tid in self.inside.keys() {
                    // SAFETY: two numbers; a thread of the command's that was not waited for.
                    unsafe { libc::kill(*tid, libc::SIGKILL) };
                }
            }
            if !libc::WIFSTOPPED(status) {
                continue;
            }
            let deliver = self.stopped(tid, status);
            // SAFETY: a thread of ours that is stopped; numbers only. Where it was killed
            // meanwhile the next wait says so.
            unsafe {
                libc::ptrace(libc::PTRACE_SYSCALL, tid, 0, libc::c_long::from(deliver));
            }
        }
    }

    /// A thread stands: what it was doing is noted. Gives the signal that it is to get.
    fn stopped(&mut self, tid: i32, status: i32) -> i32 {
        let signal = libc::WSTOPSIG(status);
        if let Entry::Vacant(new) = self.inside.entry(tid) {
            new.insert(None);
            if tid == self.first {
                let options = libc::PTRACE_O_TRACESYSGOOD
                    | libc::PTRACE_O_TRACEFORK
                    | libc::PTRACE_O_TRACEVFORK
                    | libc::PTRACE_O_TRACECLONE
                    | libc::PTRACE_O_TRACEEXEC
                    | libc::PTRACE_O_EXITKILL;
                // SAFETY: a stopped thread of ours; numbers only.
                unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as libc::c_long) };
            }
            // The stop after the first exec, or the one with which a new thread begins.
            return if signal == libc::SIGTRAP || signal == libc::SIGSTOP { 0 } else { signal };
        }
        if signal == libc::SIGTRAP | 0x80 {
            match calls::at(tid) {
                Some(Call::Entry(noted)) => {
                    self.inside.insert(tid, noted);
                }
                Some(Call::Exit { failed }) => {
                    if let Some(noted) = self.inside.insert(tid, None).flatten() {
                        self.note(noted, failed);
                    }
                }
                None => {}
            }
            return 0;
        }
        // Events: a fork, a clone, an exec.
        if status >> 16 != 0 {
            return 0;
        }
        signal
    }

    fn note(&mut self, noted: NamedPath, failed: bool) {
        if failed {
            return;
        }
        if noted.executes {
            self.used.programs.insert(noted.path.clone());
        }
        self.used.paths.insert(noted.path);
    }
}

#[cfg(test)]
mod tests;
