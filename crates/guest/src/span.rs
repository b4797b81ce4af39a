//! The time that counts: from the program's exec to its exit, whoever starts it.
//!
//! A tool such as `terrace run` starts the program in its own time, and ends after it. A thread of
//! the agent waits at an [`ExecGate`] before the program's file: whoever executes it first is the
//! program. The thread executes the marks of the timing plugin and reads the clock.

use crate::kernel::{self, ExecGate};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::JoinHandle;

/// Guest clock at both ends of the program, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramSpan {
    /// Before the kernel executes it.
    pub start_ns: u64,
    /// When it had ended, or was given up.
    pub end_ns: u64,
}

/// A thread that waits for the program's exec and exit.
pub struct ProgramWatch {
    thread: JoinHandle<io::Result<Option<ProgramSpan>>>,
    /// Dropped to have the thread end.
    stop: OwnedFd,
}

impl ProgramWatch {
    /// Watch the file of this name.
    pub fn start(program: &str) -> io::Result<Self> {
        let gate = ExecGate::new(program)?;
        let (stopped, stop) = kernel::pipe()?;
        let thread = std::thread::Builder::new().spawn(move || watch(gate, &stopped))?;
        Ok(ProgramWatch { thread, stop })
    }

    /// The program's span, once everything that was started has ended; `None` if nobody executed
    /// it.
    pub fn finish(self) -> io::Result<Option<ProgramSpan>> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

fn watch(gate: ExecGate, stopped: &OwnedFd) -> io::Result<Option<ProgramSpan>> {
    // Whatever runs beside the program, its ends are noted at once. Where that is refused, later.
    let _ = kernel::run_before_others();
    let request = loop {
        let ready = kernel::poll_readable(&[gate.descriptor(), stopped.as_raw_fd()], None)?;
        match gate.request()? {
            Some(request) => break request,
            None if ready[1] => return Ok(None),
            None => {}
        }
    };
    let process = kernel::process_handle(request.pid)?;
    kernel::mark::<{ kernel::MARK_JOB_START }>();
    let start_ns = kernel::now();
    gate.allow(&request)?;
    let watched = [process.as_raw_fd(), stopped.as_raw_fd(), gate.descriptor()];
    loop {
        let ready = kernel::poll_readable(&watched, None)?;
        if ready[0] || ready[1] {
            kernel::mark::<{ kernel::MARK_JOB_END }>();
            return Ok(Some(ProgramSpan { start_ns, end_ns: kernel::now() }));
        }
        // The program executes itself again. The gate stays: closing it takes the kernel some 20
        // ms, in which the end would be missed.
        if let Some(again) = gate.request()? {
            gate.allow(&again)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// A program that nobody else executes.
    fn program(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("terrace-span-{name}-{}", std::process::id()));
        std::fs::copy("/bin/true", &path).unwrap();
        path
    }

    /// `None`, said so, where this user may not watch.
    fn watch(path: &std::path::Path) -> Option<ProgramWatch> {
        match ProgramWatch::start(path.to_str().unwrap()) {
            Ok(watch) => Some(watch),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                println!("skipped: no fanotify here: {e}");
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn the_program_is_found_by_its_path_and_not_by_its_parent() {
        let path = program("inner");
        let Some(watch) = watch(&path) else { return };
        let before = kernel::now();
        let script = format!("/bin/true; {}; /bin/true; {0}", path.display());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        let span = watch.finish().unwrap().unwrap();
        assert!(before < span.start_ns && span.start_ns < span.end_ns);
        assert!(span.end_ns <= kernel::now());
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn a_program_that_was_not_executed_has_no_span() {
        let path = program("idle");
        let Some(watch) = watch(&path) else { return };
        assert!(Command::new("/bin/true").status().unwrap().success());
        assert_eq!(watch.finish().unwrap(), None);
        let _ = std::fs::remove_file(path);
    }
}
