//! Starts a command and stands in for it: its streams are untouched, signals sent to the tool
//! reach it, and its exit status or terminating signal becomes the tool's.

use crate::cpu_turns::CurrentCpu;
use crate::process::{open_pidfd, poll, signal_process, PidFd};
use crate::SysError;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_types::{Nanos, Pid};

/// Signals passed on to the command.
const FORWARDED: [i32; 10] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// Between two questions whether the command has ended, where nothing tells.
const ASKED_EVERY: Nanos = Nanos::millis(50);

/// Whether whoever started us ignores SIGPIPE: the runtime of the language ignores it from then on
/// in any case.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Called by the C library before the runtime of the language starts; in programs that load one of
/// our libraries too, where it asks and changes nothing.
#[used]
#[link_section = ".init_array"]
static BEFORE_MAIN: extern "C" fn() = note_sigpipe;

extern "C" fn note_sigpipe() {
    let mut old = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; `old` is writable, and zero bytes are a valid sigaction
    // besides.
    let old = unsafe {
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), old.as_mut_ptr());
        old.assume_init()
    };
    PIPE_IGNORED.store(old.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    /// With this exit status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Why the command could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No such program.
    #[error("cannot find the program '{0}'; check the name and PATH")]
    NotFound(String),
    /// It is there but cannot be executed.
    #[error("cannot execute '{program}' (errno {errno}); check its permissions and format")]
    NotExecutable {
        /// Program.
        program: String,
        /// The kernel's number.
        errno: i32,
    },
    /// The tool's own failure before the command.
    #[error("cannot start the command: {0}")]
    Own(#[from] SysError),
    /// No command was given.
    #[error("no command given; write it after --")]
    Empty,
}

impl StartError {
    /// Exit status, as env(1) gives it.
    #[must_use]
    pub const fn exit_code(&self) -> i32 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
            Self::Own(_) | Self::Empty => 125,
        }
    }
}

/// A running command. Create it before any thread and drop it on the same one: it blocks the
/// signals it passes on, and unblocks them when dropped.
#[derive(Debug)]
pub struct Runner {
    pid: Pid,
    /// None where the kernel or a filter of system calls has no such handles. The number is as good
    /// here: it stays the command's for as long as we have not waited for it.
    handle: Option<PidFd>,
    signals: OwnedFd,
    ended: Option<CommandExit>,
    before: libc::sigset_t,
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.take_signals();
        // SAFETY: `before` is the mask this thread had when it started the command.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

fn signal_set() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the whole set; sigaddset then changes an initialised set by
    // valid signal numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

impl Runner {
    /// Starts `argv`, looked up in PATH, with this process's own streams, environment and group, on
    /// the CPU that the calling thread is on: where it would have started without us, so that its
    /// first touches are local to the same node. It may run wherever the calling thread may.
    ///
    /// # Errors
    /// [`StartError`], whose [`StartError::exit_code`] is env(1)'s.
    pub fn start(argv: &[OsString]) -> Result<Self, StartError> {
        Self::start_with(argv, &[])
    }

    /// As [`Runner::start`], with these names set besides in the command's environment.
    ///
    /// # Errors
    /// As [`Runner::start`].
    pub fn start_with(
        argv: &[OsString],
        environment: &[(&str, OsString)],
    ) -> Result<Self, StartError> {
        Self::start_in(argv, environment, (None, None))
    }

    /// As [`Runner::start_with`]; where a file is given, both output streams go there, and where a
    /// folder is given, the command starts in it.
    ///
    /// # Errors
    /// As [`Runner::start`].
    pub fn start_in(
        argv: &[OsString],
        environment: &[(&str, OsString)],
        (output, directory): (Option<&std::fs::File>, Option<&std::path::Path>),
    ) -> Result<Self, StartError> {
        let (program, arguments) = argv.split_first().ok_or(StartError::Empty)?;
        let set = signal_set();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` is initialised; `before` is written by the call.
        let before = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr());
            before.assume_init()
        };
        // SAFETY: `set` is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(SysError::last("signalfd", "this process", "free some descriptors").into());
        }
        // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
        let signals = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut command = std::process::Command::new(program);
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = directory {
            command.current_dir(folder);
        }
        if let Some(file) = output {
            let copy = || {
                let copied = file.try_clone();
                copied.map_err(|e| SysError::from_io("dup", "output", &e, "free some descriptors"))
            };
            command.stdout(copy()?).stderr(copy()?);
        }
        let here = CurrentCpu::now();
        // SAFETY: the closure runs between fork and exec and makes async-signal-safe calls only.
        unsafe {
            command.pre_exec(move || {
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                // The standard library has just given it its default action.
                if PIPE_IGNORED.load(Ordering::Relaxed) {
                    libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                }
                here.go();
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| {
            // SAFETY: `before` is the mask this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
            let name = program.to_string_lossy().into_owned();
            match e.raw_os_error() {
                Some(libc::ENOENT) => StartError::NotFound(name),
                Some(libc::EAGAIN | libc::ENOMEM) => StartError::Own(SysError::from_io(
                    "fork",
                    name,
                    &e,
                    "free memory or raise the process limit",
                )),
                errno => StartError::NotExecutable { program: name, errno: errno.unwrap_or(0) },
            }
        })?;
        let pid = Pid(child.id() as i32);
        Ok(Self { pid, handle: open_pidfd(pid).ok(), signals, ended: None, before })
    }

    /// The command's process.
    #[must_use]
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    fn send(&self, signal: i32) {
        let _ended_meanwhile = match &self.handle {
            Some(handle) => signal_process(handle, signal).is_err(),
            // SAFETY: kill takes two numbers. The process is a child of ours that was not waited
            // for, or `ended` would be known.
            None => self.ended.is_none() && unsafe { libc::kill(self.pid.0, signal) } != 0,
        };
    }

    /// How it ended, once it has.
    #[must_use]
    pub const fn ended(&self) -> Option<CommandExit> {
        self.ended
    }

    /// Lets up to `span` pass, passing signals on and burying the dead; returns early, with how,
    /// once the command has ended.
    pub fn wait(&mut self, span: Nanos) -> Option<CommandExit> {
        let start = crate::now();
        loop {
            self.take_signals();
            self.reap();
            let left = span - crate::now().since(start);
            if self.ended.is_some() || left == Nanos::ZERO {
                return self.ended;
            }
            let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // The handle too: another thread that does not block SIGCHLD may swallow it. Without a
            // handle it is asked now and then.
            match &self.handle {
                Some(handle) => {
                    poll(&mut [watch(self.signals.as_raw_fd()), watch(handle.as_raw_fd())], left)
                }
                None => poll(&mut [watch(self.signals.as_raw_fd())], left.min(ASKED_EVERY)),
            }
        }
    }

    /// Waits until the command ends.
    pub fn wait_to_end(&mut self) -> CommandExit {
        loop {
            if let Some(ended) = self.wait(Nanos::secs(3600)) {
                return ended;
            }
        }
    }

    fn take_signals(&self) {
        loop {
            let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
            let size = std::mem::size_of::<libc::signalfd_siginfo>();
            // SAFETY: `info` is `size` writable bytes; the descriptor is our signalfd.
            let got =
                unsafe { libc::read(self.signals.as_raw_fd(), info.as_mut_ptr().cast(), size) };
            if got != size as isize {
                return;
            }
            // SAFETY: the kernel filled the structure whole.
            let info = unsafe { info.assume_init() };
            // A signal from the terminal (code SI_KERNEL) went to the command too: it is in our
            // process group. Only what somebody sent to us is passed on.
            if info.ssi_signo as i32 != libc::SIGCHLD && info.ssi_code <= 0 {
                self.send(info.ssi_signo as i32);
            }
        }
    }

    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: `status` is writable; -1 names any child.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
            if pid <= 0 {
                return;
            }
            if pid != self.pid.0 {
                continue;
            }
            if libc::WIFEXITED(status) {
                self.ended = Some(CommandExit::Code(libc::WEXITSTATUS(status)));
            } else if libc::WIFSIGNALED(status) {
                self.ended = Some(CommandExit::Signal(libc::WTERMSIG(status)));
            } else if libc::WIFSTOPPED(status) {
                self.stop_along();
            }
        }
    }

    /// The command was stopped: stop too, so that the shell notices; go on together.
    fn stop_along(&self) {
        // SAFETY: raise takes a number; SIGSTOP acts before it returns.
        unsafe { libc::raise(libc::SIGSTOP) };
        self.send(libc::SIGCONT);
    }
}

impl CommandExit {
    /// Exit status a shell would show.
    #[must_use]
    pub const fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Ends this process the same way: the last call of `terrace run`. A terminating signal is
    /// reproduced, without a second core file.
    pub fn leave(self) -> ! {
        if let Self::Signal(signal) = self {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `none` outlives setrlimit; the default action is a valid disposition; the
            // set is initialised before use; raise takes a number.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                libc::signal(signal, libc::SIG_DFL);
                let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
                libc::sigemptyset(set.as_mut_ptr());
                libc::sigaddset(set.as_mut_ptr(), signal);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
                libc::raise(signal);
            }
        }
        std::process::exit(self.exit_code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn failures_have_the_status_of_env() {
        let missing = Runner::start(&argv(&["/no/such/program"])).unwrap_err();
        assert_eq!(missing.exit_code(), 127);
        let folder = Runner::start(&argv(&["/"])).unwrap_err();
        assert_eq!(folder.exit_code(), 126);
        assert_eq!(Runner::start(&[]).unwrap_err().exit_code(), 125);
        assert_eq!(CommandExit::Signal(9).exit_code(), 137);
    }

    #[test]
    fn without_a_handle_the_command_is_waited_for_and_gets_its_signals() {
        let mut runner = Runner::start(&argv(&["sleep", "600"])).unwrap();
        runner.handle = None;
        assert_eq!(runner.wait(Nanos::ZERO), None);
        runner.send(libc::SIGTERM);
        assert_eq!(runner.wait_to_end(), CommandExit::Signal(libc::SIGTERM));
        // It is over: its number may be somebody else's by now.
        runner.send(libc::SIGTERM);
    }
}
