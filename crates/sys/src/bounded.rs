//! Commands that may do anything and must not harm: each in a process group and a folder of its
//! own, with limits of memory, file size and time, and without the right to write elsewhere where
//! the kernel has Landlock (kernel: `Documentation/userspace-api/landlock.rst`). A supervisor ends
//! what a command leaves behind.

mod supervisor;

use crate::{now, open_pidfd, CommandExit, SysError};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_types::{Bytes, Nanos, Pid};

/// Between two questions whether to stop.
const ASKED_EVERY: Nanos = Nanos::millis(50);

/// A command and its bounds.
#[derive(Debug)]
pub struct BoundedCommand {
    /// The program and its arguments; looked up in PATH.
    pub argv: Vec<OsString>,
    /// Its working folder, the only one it may write to.
    pub directory: PathBuf,
    /// Set besides in its environment.
    pub environment: Vec<(&'static str, OsString)>,
    /// Where both output streams go.
    pub output: File,
    /// Limit of its address space.
    pub memory: Option<Bytes>,
    /// Limit of the size of each file it writes.
    pub file: Option<Bytes>,
    /// Limit of time.
    pub time: Nanos,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundedEnd {
    /// By itself, or by a signal that was not ours.
    Ended(CommandExit),
    /// It was killed: its time was over.
    TimedOut,
    /// It was killed: somebody asked to stop.
    Stopped,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundedRun {
    /// How it ended.
    pub end: BoundedEnd,
    /// Time from start to end.
    pub wall: Nanos,
    /// Whether it was kept from writing elsewhere.
    pub confined: bool,
}

/// Runs the command to its end, or until its time is over or `stop` is set. No process that it
/// started is left running, not even in a session of its own; the same if this process is killed.
/// Where the kernel does not list a process's children (`CONFIG_PROC_CHILDREN`), this holds for the
/// command's process group only.
///
/// # Errors
/// [`SysError`] where it cannot be started.
pub fn run_bounded(command: BoundedCommand, stop: &AtomicBool) -> Result<BoundedRun, SysError> {
    let Some((program, arguments)) = command.argv.split_first() else {
        return Err(SysError::from_io(
            "running",
            "no command",
            &std::io::Error::from_raw_os_error(libc::EINVAL),
            "write it after --",
        ));
    };
    let name = program.to_string_lossy().into_owned();
    let remedy = "check the program and free memory or descriptors";
    let failed = |e: std::io::Error| SysError::from_io("running", &name, &e, remedy);
    let fence = WriteFence::prepare(&command.directory);
    let confined = fence.is_some();
    let mut child = Command::new(program);
    child
        .args(arguments)
        .envs(command.environment)
        .current_dir(&command.directory)
        .stdin(Stdio::null())
        .stdout(command.output.try_clone().map_err(failed)?)
        .stderr(command.output)
        .process_group(0);
    let limits = [
        (libc::RLIMIT_AS, command.memory.map(|b| b.0)),
        (libc::RLIMIT_FSIZE, command.file.map(|b| b.0)),
    ];
    let tool = std::process::id() as i32;
    // SAFETY: between fork and exec only system calls are made, on values prepared before; nothing
    // is allocated there. The process was forked from this one just now, by one thread.
    unsafe {
        child.pre_exec(move || {
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            supervisor::split(tool)?;
            for (which, limit) in limits {
                if let Some(limit) = limit {
                    let both = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                    libc::setrlimit(which, &both);
                }
            }
            fence.as_ref().map_or(Ok(()), WriteFence::enter)
        });
    }
    let start = now();
    let mut child = child.spawn().map_err(failed)?;
    let pid = child.id() as i32;
    let handle = open_pidfd(Pid(pid));
    let mut killed = None;
    let mut pause = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
    if let Ok(handle) = &handle {
        pause.fd = handle.as_raw_fd();
    }
    loop {
        let past = now().since(start);
        if past >= command.time {
            killed = Some(BoundedEnd::TimedOut);
        } else if stop.load(Ordering::Relaxed) {
            killed = Some(BoundedEnd::Stopped);
        }
        if killed.is_some() || has_ended(pid) {
            break;
        }
        let span = (command.time - past).min(ASKED_EVERY).0.div_ceil(1_000_000) as i32;
        // Without a handle it is asked now and then.
        let span = if pause.fd < 0 { span.min(2) } else { span };
        // SAFETY: one initialised descriptor.
        unsafe { libc::poll(&mut pause, 1, span) };
    }
    // Before it is waited for, its number is nobody else's.
    if killed.is_some() {
        // SAFETY: kill takes two numbers.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
    let status = child.wait().map_err(failed)?;
    let wall = now().since(start);
    let ended = match (status.code(), status.signal()) {
        (Some(code), _) => CommandExit::Code(code),
        (None, signal) => CommandExit::Signal(signal.unwrap_or(0)),
    };
    Ok(BoundedRun { end: killed.unwrap_or(BoundedEnd::Ended(ended)), wall, confined })
}

/// Whether a child of ours has ended, without waiting for it.
fn has_ended(pid: i32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is writable, and zero bytes are a valid siginfo_t.
    unsafe {
        libc::waitid(libc::P_PID, pid as libc::id_t, info.as_mut_ptr(), options) == 0
            && info.assume_init().si_pid() == pid
    }
}

/// Landlock's rights that change files, up to version 3 (uapi/linux/landlock.h).
mod right {
    pub const WRITE_FILE: u64 = 1 << 1;
    /// REMOVE_DIR to MAKE_SYM.
    pub const CHANGE_FOLDER: u64 = 0x1ff << 4;
    pub const REFER: u64 = 1 << 13;
    pub const TRUNCATE: u64 = 1 << 14;
}

#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// A ruleset that allows writing beneath one folder and to devices.
struct WriteFence(OwnedFd);

impl WriteFence {
    /// `None` where the kernel has no Landlock.
    fn prepare(directory: &std::path::Path) -> Option<Self> {
        // SAFETY: no attributes and flag 1 ask for the version.
        let version = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::null::<RulesetAttributes>(),
                0,
                1,
            )
        };
        let mut handled = right::WRITE_FILE | right::CHANGE_FOLDER;
        match version {
            ..=0 => return None,
            1 => {}
            2 => handled |= right::REFER,
            _ => handled |= right::REFER | right::TRUNCATE,
        }
        let attributes = RulesetAttributes { handled_access_fs: handled };
        // SAFETY: the attributes are as long as stated; a new descriptor comes back.
        let rules = unsafe {
            let fd = libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &attributes,
                std::mem::size_of::<RulesetAttributes>(),
                0,
            );
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))?
        };
        for (path, allowed) in
            [(directory, handled), (std::path::Path::new("/dev"), right::WRITE_FILE)]
        {
            let folder = File::open(path).ok()?;
            let beneath = PathBeneath { allowed_access: allowed, parent_fd: folder.as_raw_fd() };
            // SAFETY: the rule is of the stated type (1, path beneath); both descriptors are open.
            let added = unsafe {
                libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), 1, &beneath, 0)
            };
            if added != 0 {
                return None;
            }
        }
        Some(Self(rules))
    }

    /// In the child, before exec.
    fn enter(&self) -> std::io::Result<()> {
        // SAFETY: numbers and an open descriptor.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0) == 0
        };
        if done {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, time: Nanos) -> (BoundedRun, String) {
        let name = format!("terrace-bounded-{}-{:x}-{time:?}", std::process::id(), script.len());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("out");
        let done = run_bounded(
            BoundedCommand {
                argv: ["sh", "-c", script].map(OsString::from).to_vec(),
                directory: folder.clone(),
                environment: vec![("WORD", "hello".into())],
                output: File::create(&path).unwrap(),
                memory: Some(Bytes(1 << 30)),
                file: Some(Bytes(1 << 16)),
                time,
            },
            &AtomicBool::new(false),
        );
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        (done.unwrap(), text)
    }

    #[test]
    fn a_command_ends_as_it_likes_within_its_bounds() {
        let long = Nanos::secs(60);
        let (run1, text) = run("echo $WORD; exit 3", long);
        assert_eq!((run1.end, text.as_str()), (BoundedEnd::Ended(CommandExit::Code(3)), "hello\n"));
        let (run2, _) = run("kill -SEGV $$", long);
        assert_eq!(run2.end, BoundedEnd::Ended(CommandExit::Signal(libc::SIGSEGV)));
        // A file of more than 64 KiB.
        let (run3, _) = run("head -c 1000000 /dev/zero > big && echo written", long);
        assert_ne!(run3.end, BoundedEnd::Ended(CommandExit::Code(0)));
    }

    #[test]
    fn nothing_that_a_command_started_outlives_it() {
        let is_gone = |text: &str| {
            let other: i32 = text.trim().parse().unwrap();
            let state = std::fs::read_to_string(format!("/proc/{other}/stat")).unwrap_or_default();
            assert!(state.is_empty(), "{state}");
        };
        let (over, text) = run("sleep 1000 & echo $!; wait", Nanos::millis(300));
        assert_eq!(over.end, BoundedEnd::TimedOut);
        is_gone(&text);
        // One that leaves its group, its session and its parent.
        let leaves = "setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.2; exit 4";
        let (ended, text) = run(leaves, Nanos::secs(60));
        assert_eq!(ended.end, BoundedEnd::Ended(CommandExit::Code(4)));
        let listed = std::path::Path::new("/proc/thread-self/children").exists();
        if listed {
            is_gone(&text);
        } else {
            println!("skipped: this kernel does not list a process's children");
        }
    }

    #[test]
    fn writing_elsewhere_is_refused() {
        let target = std::env::temp_dir().join(format!("terrace-outside-{}", std::process::id()));
        let script = format!("touch inside && touch {}", target.display());
        let (done, _) = run(&script, Nanos::secs(60));
        if !done.confined {
            println!("skipped: this kernel has no Landlock");
            let _ = std::fs::remove_file(&target);
            return;
        }
        assert!(!target.exists());
        assert_ne!(done.end, BoundedEnd::Ended(CommandExit::Code(0)));
    }
}
