//! One job: unpack, set up, run, count, answer.

use crate::freelists;
use crate::kernel::{self, ChildExit};
use crate::place;
use crate::reclaim::Reclaimer;
use crate::span::{ProgramSpan, ProgramWatch};
use crate::stats;
use crate::wire::{
    self, ArchiveEntry, ArchiveWriter, AtMark, GuestJob, JobOutcome, PlaceReport, ReclaimReport,
    Reply, Setting, WireError,
};
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

const PAGE: u64 = 4096;
const STDOUT: &str = "/run/terrace/stdout";
const STDERR: &str = "/run/terrace/stderr";
const BEGIN_FIFO: &str = "/run/terrace/mark-begin";
const REPLY_FIFO: &str = "/run/terrace/mark-reply";

/// Run what the archive asks for and return the archive of the answer, of at most `space` bytes.
pub fn run(archive: Vec<u8>, space: usize) -> Result<Vec<u8>, WireError> {
    let entries = wire::read_archive(&archive)?;
    let job: GuestJob = wire::from_json(wire::find(&entries, wire::JOB_NAME)?)?;
    let ranking = match wire::find(&entries, wire::PAGES_NAME) {
        Ok(bytes) => wire::decode_pages(bytes)?,
        Err(_) => Vec::new(),
    };
    let unpacked = unpack(&entries);
    // The command is forked from this process, and its exec gives back the copy of what was here.
    drop(archive);
    let mut reply = match unpacked {
        Err(why) => Reply::not_started(why),
        Ok(()) => Runner { job: &job, ranking: &ranking }.run(),
    };
    answer(&job, &mut reply, space)
}

fn unpack(entries: &[ArchiveEntry<'_>]) -> Result<(), String> {
    for entry in entries.iter().filter(|e| !e.name.starts_with('@')) {
        let path = Path::new(entry.name);
        if !path.is_absolute() || path.components().any(|c| c == Component::ParentDir) {
            return Err(format!("{}: not an absolute path", entry.name));
        }
        unpack_entry(path, entry).map_err(|e| format!("{}: {e}", entry.name))?;
    }
    Ok(())
}

fn unpack_entry(path: &Path, entry: &ArchiveEntry<'_>) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    match entry.mode & wire::S_IFMT {
        wire::S_IFLNK => {
            // The guest has folders of its own where some hosts have links, such as /var/run.
            if fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
                return Ok(());
            }
            let _ = fs::remove_file(path);
            return std::os::unix::fs::symlink(OsStr::from_bytes(entry.data), path);
        }
        wire::S_IFDIR => fs::create_dir_all(path)?,
        _ => fs::write(path, entry.data)?,
    }
    fs::set_permissions(path, fs::Permissions::from_mode(entry.mode & 0o7777))?;
    if entry.changed_s > 0 {
        let changed = UNIX_EPOCH + Duration::from_secs(entry.changed_s);
        File::open(path)?
            .set_times(FileTimes::new().set_accessed(changed).set_modified(changed))?;
    }
    Ok(())
}

fn apply(settings: &[Setting], warnings: &mut Vec<String>) -> Result<(), String> {
    for s in settings {
        let done = OpenOptions::new()
            .write(true)
            .open(&s.path)
            .and_then(|mut f| f.write_all(s.value.as_bytes()));
        if let Err(e) = done {
            let what = format!("writing '{}' to {}: {e}", s.value, s.path);
            if s.required {
                return Err(what);
            }
            warnings.push(what);
        }
    }
    Ok(())
}

struct Runner<'a> {
    job: &'a GuestJob,
    ranking: &'a [u64],
}

/// What waiting for the command gave.
struct Waited {
    outcome: JobOutcome,
    user_nanos: u64,
    system_nanos: u64,
    placed: Option<PlaceReport>,
    reclaimed: Option<ReclaimReport>,
}

impl Runner<'_> {
    fn run(&self) -> Reply {
        let mut reply = Reply::not_started(String::new());
        let with_free_memory = stats::free_bytes(Path::new("/sys"))
            .into_iter()
            .filter(|(_, free)| *free >= freelists::TAKEN);
        if let Err(e) =
            freelists::empty(&with_free_memory.map(|(node, _)| node).collect::<Vec<_>>())
        {
            reply.warnings.push(format!("emptying the lists of free pages of each processor: {e}"));
        }
        if let Err(why) = apply(&self.job.before, &mut reply.warnings) {
            reply.outcome = JobOutcome::NotStarted { why };
            return reply;
        }
        let procfs = Path::new("/proc");
        reply.usable_bytes = stats::free_bytes(Path::new("/sys"))
            .into_iter()
            .map(|(node, free)| {
                (node, free.saturating_sub(stats::reserve_pages(procfs, node) * PAGE))
            })
            .collect();
        let cpu = stats::threads_cpu(procfs, &self.job.cpu_of);
        let before = stats::vmstat(procfs);
        let start = kernel::now();
        let waited = self.watched(&mut reply.warnings);
        reply.vmstat = stats::difference(&before, &stats::vmstat(procfs));
        reply.cpu = stats::threads_cpu_since(&cpu, stats::threads_cpu(procfs, &self.job.cpu_of));
        match waited {
            Ok((w, span)) => {
                let span = span.unwrap_or(ProgramSpan { start_ns: start, end_ns: kernel::now() });
                reply.nanos = span.end_ns.saturating_sub(span.start_ns);
                reply.startup_nanos = span.start_ns.saturating_sub(start);
                reply.outcome = w.outcome;
                reply.user_nanos = w.user_nanos;
                reply.system_nanos = w.system_nanos;
                reply.placed = w.placed;
                reply.reclaimed = w.reclaimed;
            }
            Err(e) => {
                reply.outcome =
                    JobOutcome::NotStarted { why: format!("{}: {e}", self.job.argv.join(" ")) }
            }
        }
        if let Err(why) = apply(&self.job.after, &mut reply.warnings) {
            reply.warnings.push(why);
        }
        reply
    }

    /// Start the command and wait; beside how it ended, when the program began and ended.
    fn watched(&self, warnings: &mut Vec<String>) -> io::Result<(Waited, Option<ProgramSpan>)> {
        // First: threads inherit that SIGCHLD is blocked.
        let events = kernel::child_events()?;
        let watch = ProgramWatch::start(&self.job.program)?;
        let waited = self.start_and_wait(&events, warnings);
        let span = watch.finish()?;
        Ok((waited?, span))
    }

    fn start_and_wait(&self, events: &OwnedFd, warnings: &mut Vec<String>) -> io::Result<Waited> {
        let marks = if self.job.at_mark == AtMark::Nothing { None } else { Some(Marks::open()?) };
        let mut reclaimer =
            self.job.reclaim.clone().map(|r| Reclaimer::new(r, kernel::now())).transpose()?;
        let child = self.command()?.spawn()?;
        let pid = child.id() as i32;
        let deadline = kernel::now() + self.job.limit_seconds.saturating_mul(1_000_000_000);
        let mut placed = None;
        let mut waited = loop {
            if let Some(ended) = reap_all(pid)? {
                break Waited::new(&ended, outcome_of(ended.status));
            }
            let left = deadline.saturating_sub(kernel::now());
            if left == 0 {
                break give_up(pid)?;
            }
            let pause = reclaimer.as_ref().map_or(left, |r| left.min(r.wait(kernel::now())));
            self.wait_event(events, marks.as_ref(), pause, &mut placed, warnings)?;
            if let Some(reclaimer) = &mut reclaimer {
                reclaimer.tick(kernel::now);
            }
        };
        waited.placed = placed;
        waited.reclaimed = reclaimer.map(Reclaimer::report);
        Ok(waited)
    }

    /// Sleep until a child ends, the mark is reached or time is up.
    fn wait_event(
        &self,
        events: &OwnedFd,
        marks: Option<&Marks>,
        left: u64,
        placed: &mut Option<PlaceReport>,
        warnings: &mut Vec<String>,
    ) -> io::Result<()> {
        let mut fds = vec![events.as_raw_fd()];
        fds.extend(marks.map(|m| m.begin.as_raw_fd()));
        let ms = i32::try_from(left / 1_000_000 + 1).unwrap_or(i32::MAX);
        let ready = kernel::poll_readable(&fds, Some(ms))?;
        if ready[0] {
            // One read clears all pending SIGCHLD; which child it was does not matter.
            let mut sink = [0u8; 128];
            let _ = File::from(events.try_clone()?).read(&mut sink);
        }
        if let (Some(marks), Some(true)) = (marks, ready.get(1)) {
            for pid in marks.arrivals()? {
                if let AtMark::Place { fast, slow, reserve_pages, counts } = self.job.at_mark {
                    match place::apply(
                        pid,
                        self.ranking,
                        place::Nodes { fast, slow, reserve_pages },
                    ) {
                        Ok(report) => *placed = Some(report),
                        Err(e) => warnings.push(format!("placing the pages of process {pid}: {e}")),
                    }
                    if !counts {
                        // The later of two begins is the one that the plugin counts from.
                        kernel::mark::<{ kernel::MARK_PHASE_BEGIN }>();
                    }
                }
                marks.release()?;
            }
        }
        Ok(())
    }

    fn command(&self) -> io::Result<Command> {
        let program =
            self.job.argv.first().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        fs::create_dir_all(&self.job.cwd)?;
        let mut command = Command::new(program);
        command.args(&self.job.argv[1..]).env_clear().current_dir(&self.job.cwd).stdin(match &self
            .job
            .stdin
        {
            Some(path) => File::open(path)?.into(),
            None => Stdio::null(),
        });
        command.stdout(File::create(STDOUT)?).stderr(File::create(STDERR)?);
        command.envs(self.job.env.iter().map(|(k, v)| (k, v)));
        if self.job.at_mark != AtMark::Nothing {
            command.env("TERRACE_MARK_FIFO", BEGIN_FIFO).env("TERRACE_MARK_REPLY", REPLY_FIFO);
        }
        let policy = self.job.memory_policy.clone();
        let group = self.job.reclaim.as_ref().map(|_| Reclaimer::procs()).transpose()?;
        // SAFETY: the closure runs between fork and exec and makes only plain system calls (setsid,
        // sigprocmask, write, set_mempolicy); nothing is allocated or freed there.
        unsafe {
            command.pre_exec(move || {
                kernel::fresh_child()?;
                if let Some(mut group) = group.as_ref() {
                    group.write_all(b"0")?;
                }
                match &policy {
                    Some(p) => kernel::set_mempolicy(p.mode, &p.nodes)?,
                    None => kernel::set_mempolicy(0, &[])?,
                }
                Ok(())
            });
        }
        Ok(command)
    }
}

impl Waited {
    fn new(ended: &ChildExit, outcome: JobOutcome) -> Self {
        let ChildExit { user_nanos, system_nanos, .. } = *ended;
        Waited { outcome, user_nanos, system_nanos, placed: None, reclaimed: None }
    }
}

/// Time is up: end the command and everything that it started.
fn give_up(pid: i32) -> io::Result<Waited> {
    // The child leads its own session, so the group is everything it started and did not move away.
    let _ = kernel::kill(-pid, libc::SIGKILL);
    let _ = kernel::kill(pid, libc::SIGKILL);
    loop {
        if let Some(ended) = reap_all(pid)? {
            return Ok(Waited::new(&ended, JobOutcome::TimedOut));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The two fifos of the mark protocol, held open at both ends so that nothing blocks and nothing is
/// lost.
struct Marks {
    begin: File,
    reply: File,
}

impl Marks {
    fn open() -> io::Result<Self> {
        let both = |path: &str| -> io::Result<File> {
            if !Path::new(path).exists() {
                kernel::mkfifo(path)?;
            }
            OpenOptions::new().read(true).write(true).open(path)
        };
        Ok(Marks { begin: both(BEGIN_FIFO)?, reply: both(REPLY_FIFO)? })
    }

    /// Processes that say "begin PID". A line is shorter than a pipe's atomic write, so it comes
    /// whole.
    fn arrivals(&self) -> io::Result<Vec<i32>> {
        let mut buf = [0u8; 4096];
        let n = (&self.begin).read(&mut buf)?;
        Ok(parse_begins(&String::from_utf8_lossy(&buf[..n])))
    }

    fn release(&self) -> io::Result<()> {
        (&self.reply).write_all(b"go\n")
    }
}

fn parse_begins(text: &str) -> Vec<i32> {
    text.lines()
        .filter_map(|l| l.strip_prefix("begin ")?.trim().parse().ok())
        .filter(|&pid| pid > 1)
        .collect()
}

/// Reap everything that has ended (as init we inherit orphans); give back `pid` if it is among
/// them.
fn reap_all(pid: i32) -> io::Result<Option<ChildExit>> {
    loop {
        match kernel::reap() {
            Ok(Some(ended)) if ended.pid == pid => return Ok(Some(ended)),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

fn outcome_of(status: i32) -> JobOutcome {
    if libc::WIFSIGNALED(status) {
        JobOutcome::Signalled { signal: libc::WTERMSIG(status) }
    } else {
        JobOutcome::Exited { status: libc::WEXITSTATUS(status) }
    }
}

/// Pack the reply; files that do not fit are left out with a warning rather than cut.
fn answer(job: &GuestJob, reply: &mut Reply, space: usize) -> Result<Vec<u8>, WireError> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut used = 1 << 20;
    let names = [(wire::STDOUT_NAME, STDOUT), (wire::STDERR_NAME, STDERR)];
    let wanted = names.iter().copied().chain(job.fetch.iter().map(|f| (f.as_str(), f.as_str())));
    for (name, path) in wanted {
        match fs::read(path) {
            Ok(data) if used + data.len() < space => {
                used += data.len() + name.len() + 64;
                files.push((name.to_string(), data));
            }
            Ok(data) => {
                reply.warnings.push(format!("{name}: {} bytes do not fit the mailbox", data.len()))
            }
            Err(e) if !name.starts_with('@') => reply.warnings.push(format!("{name}: {e}")),
            Err(_) => {}
        }
    }
    let mut archive = ArchiveWriter::new();
    archive.add(wire::REPLY_NAME, 0o600, &wire::to_json(reply)?);
    for (name, data) in &files {
        archive.add(name, 0o600, data);
    }
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_lines() {
        assert_eq!(parse_begins("begin 17\nbegin x\nbegin 1\nnonsense\n"), vec![17]);
    }

    #[test]
    fn wait_statuses() {
        assert_eq!(outcome_of(3 << 8), JobOutcome::Exited { status: 3 });
        assert_eq!(outcome_of(9), JobOutcome::Signalled { signal: 9 });
    }

    #[test]
    fn hostile_paths_are_not_unpacked() {
        let bad = ArchiveEntry { name: "/tmp/../etc/x", mode: 0o644, changed_s: 0, data: b"" };
        assert!(unpack(&[bad]).is_err());
        let bad = ArchiveEntry { name: "relative", mode: 0o644, changed_s: 0, data: b"" };
        assert!(unpack(&[bad]).is_err());
    }

    #[test]
    fn folders_links_and_times_are_unpacked() {
        let root = std::env::temp_dir().join(format!("terrace-unpack-{}", std::process::id()));
        let at = |name: &str| root.join(name).display().to_string();
        let (folder, file, link) = (at("lib"), at("lib/x"), at("lib64"));
        let entry = |name, mode, changed_s, data| ArchiveEntry { name, mode, changed_s, data };
        let entries = [
            entry(&folder, wire::S_IFDIR | 0o755, 0, &b""[..]),
            entry(&file, 0o640, 1_000_000_000, b"data"),
            entry(&link, wire::S_IFLNK | 0o777, 0, b"lib"),
            // A link where a folder is: the folder stays.
            entry(&folder, wire::S_IFLNK | 0o777, 0, b"/nowhere"),
        ];
        unpack(&entries).unwrap();
        assert_eq!(fs::read(root.join("lib64/x")).unwrap(), b"data");
        let meta = fs::metadata(root.join("lib/x")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o640);
        let changed = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(meta.modified().unwrap(), changed);
        let _ = fs::remove_dir_all(root);
    }

    #[test]
    fn a_required_setting_that_fails_stops_the_job() {
        let s = |required| Setting { path: "/nonexistent/x".into(), value: "1".into(), required };
        let mut warnings = Vec::new();
        assert!(apply(&[s(true)], &mut warnings).is_err());
        assert!(apply(&[s(false)], &mut warnings).is_ok());
        assert_eq!(warnings.len(), 1);
    }
}
