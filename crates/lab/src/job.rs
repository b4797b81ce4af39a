//! One command in one awakened machine.

use crate::error::{io, LabError, Result};
use crate::files::CarriedFiles;
use crate::lab::{Lab, LabMachine};
use crate::program::{self, GUEST_PATH};
use crate::scratch::ScratchFolder;
use crate::shape::Shape;
use crate::snapshot::{MachineSnapshot, Socket, MAILBOX_BYTES};
use crate::stats::{self, PluginStats};
use crate::vm::{read_archive_bytes, read_header, MailboxFile, Vm};
use crate::wire::{
    self, ArchiveWriter, AtMark, GuestJob, JobOutcome, MailboxState, MemoryPolicy, Reclaim, Reply,
    Setting,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const END_LIMIT: Duration = Duration::from_secs(30);

/// What to run and how.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Command and arguments as the guest sees them; `argv[0]` must be among the files or carried
    /// by `carry`.
    pub argv: Vec<String>,
    /// The guest's path of the program whose time counts, from its exec to its exit: that of
    /// `argv[0]`, or of what `argv[0]` starts.
    pub program: String,
    /// Environment on top of [`JobSpec::environment`]'s own.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: String,
    /// File of the guest that is the command's standard input; `None` is an empty one.
    pub stdin: Option<String>,
    /// Files for the guest.
    pub files: CarriedFiles,
    /// Settings written before the command starts.
    pub before: Vec<Setting>,
    /// Settings written after it ended.
    pub after: Vec<Setting>,
    /// Memory policy of the command.
    pub memory_policy: Option<MemoryPolicy>,
    /// What happens at the workload's mark.
    pub at_mark: AtMark,
    /// Reclaim while the command runs.
    pub reclaim: Option<Reclaim>,
    /// Pages, hottest first, for `AtMark::Place`.
    pub ranking: Vec<u64>,
    /// Report processor time of threads whose name starts with one of these.
    pub cpu_of: Vec<String>,
    /// Guest files to bring back.
    pub fetch: Vec<String>,
    /// Arguments of the timing plugin beyond the usual ones.
    pub plugin: Vec<(String, String)>,
    /// Which pages the timing plugin serves from the fast node, whatever the kernel does.
    pub served: Option<ServedPages>,
    /// Have the plugin count last-level misses by page.
    pub profile: bool,
    /// Guest time the command may take.
    pub limit_guest: Duration,
    /// Wall-clock time the whole job may take.
    pub limit_wall: Duration,
}

impl JobSpec {
    /// A command that the guest has already; add files with [`JobSpec::carry`].
    #[must_use]
    pub fn new(argv: Vec<String>) -> Self {
        JobSpec {
            program: argv.first().cloned().unwrap_or_default(),
            argv,
            env: Vec::new(),
            cwd: "/work".into(),
            stdin: None,
            files: CarriedFiles::default(),
            before: Vec::new(),
            after: Vec::new(),
            memory_policy: None,
            at_mark: AtMark::Nothing,
            reclaim: None,
            ranking: Vec::new(),
            cpu_of: Vec::new(),
            fetch: Vec::new(),
            plugin: Vec::new(),
            served: None,
            profile: false,
            limit_guest: Duration::from_secs(3600),
            limit_wall: Duration::from_secs(1800),
        }
    }

    /// Carry a program and all it needs, at the same paths.
    ///
    /// # Errors
    /// As [`program::closure`].
    pub fn carry(&mut self, program: &Path) -> Result<()> {
        program::add_closure(program, &mut self.files)
    }

    /// Carry one static program to a path of the guest.
    pub fn carry_as(&mut self, host_path: &Path, guest_path: &str) {
        self.files.add_as(host_path, guest_path);
    }

    /// The whole environment of the command.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let own = [("PATH", GUEST_PATH), ("HOME", "/root"), ("LANG", "C"), ("TERRACE_LAB", "1")];
        let mut env: Vec<(String, String)> =
            own.map(|(name, value)| (name.to_string(), value.to_string())).into();
        for (name, value) in &self.env {
            env.retain(|(other, _)| other != name);
            env.push((name.clone(), value.clone()));
        }
        env
    }

    /// Everything that the guest is given, as it goes into the mailbox.
    pub(crate) fn archive(&self) -> Result<ArchiveWriter> {
        let job = GuestJob {
            argv: self.argv.clone(),
            env: self.environment(),
            program: self.program.clone(),
            cwd: self.cwd.clone(),
            stdin: self.stdin.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
            memory_policy: self.memory_policy.clone(),
            at_mark: self.at_mark.clone(),
            reclaim: self.reclaim.clone(),
            limit_seconds: self.limit_guest.as_secs().max(1),
            cpu_of: self.cpu_of.clone(),
            fetch: self.fetch.clone(),
        };
        let mut archive = ArchiveWriter::new();
        archive.add(wire::JOB_NAME, 0o600, &wire::to_json(&job)?);
        if !self.ranking.is_empty() {
            archive.add(wire::PAGES_NAME, 0o600, &wire::encode_pages(&self.ranking));
        }
        self.files.put(&mut archive, wire::archive_capacity(MAILBOX_BYTES))?;
        Ok(archive)
    }
}

/// A placement that the timing plugin acts by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedPages {
    /// Addresses of the pages that the fast node serves; the slow one serves all others.
    pub fast_pages: Vec<u64>,
    /// The fast node.
    pub fast: u32,
    /// The slow node.
    pub slow: u32,
}

impl ServedPages {
    /// As the plugin reads it (lab/plugin/README.md).
    fn text(&self) -> String {
        let pages = self.fast_pages.iter().map(|address| format!("{:x}\n", address >> 12));
        format!("{} {}\n", self.fast, self.slow) + &pages.collect::<String>()
    }
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct JobResult {
    /// The guest's own account.
    pub reply: Reply,
    /// The command's standard output, whole.
    pub stdout: Vec<u8>,
    /// The command's standard error, whole.
    pub stderr: Vec<u8>,
    /// Files asked for by `fetch`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The timing plugin's account, where there is a plugin.
    pub stats: Option<PluginStats>,
    /// The timing plugin's profile, where one was asked for and a marked phase ended.
    pub profile: Option<Vec<u8>>,
    /// Wall-clock seconds from start to answer.
    pub wall_seconds: f64,
}

impl JobResult {
    /// Guest seconds of the marked phase, else from exec to exit.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        match self.stats.as_ref().and_then(PluginStats::measured) {
            Some(span) => span.seconds(),
            None => self.reply.nanos as f64 / 1e9,
        }
    }

    /// Guest seconds from the command's start to the program's exec: what a tool around the program
    /// takes first.
    #[must_use]
    pub fn startup_seconds(&self) -> f64 {
        self.reply.startup_nanos as f64 / 1e9
    }

    /// Exit status as a shell has it: 128 and the number for a signal.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self.reply.outcome {
            JobOutcome::Exited { status } => status as u8,
            JobOutcome::Signalled { signal } => 128_u8.saturating_add(signal as u8),
            JobOutcome::TimedOut | JobOutcome::NotStarted { .. } => 1,
        }
    }

    /// `Err` with words for people unless the command exited with status 0.
    pub fn success(&self) -> std::result::Result<(), String> {
        match &self.reply.outcome {
            JobOutcome::Exited { status: 0 } => Ok(()),
            JobOutcome::Exited { status } => Err(format!("exited with status {status}")),
            JobOutcome::Signalled { signal } => {
                Err(format!("was killed by {}", signal_name(*signal)))
            }
            JobOutcome::TimedOut => Err("ran out of guest time".into()),
            JobOutcome::NotStarted { why } => Err(format!("was not started: {why}")),
        }
    }
}

/// A signal by number and, where it has one on every Linux, by name (signal(7)).
#[must_use]
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(signal).ok().and_then(|n| NAMES.get(n.checked_sub(1)?));
    name.map_or(format!("signal {signal}"), |name| format!("signal {signal} (SIG{name})"))
}

impl LabMachine {
    /// Wake the machine up with the job in its mailbox and wait until it has powered off.
    ///
    /// # Errors
    /// [`LabError::NotRun`] where the command did not start, [`LabError::MachineDied`] where the
    /// machine gave no answer, and what reading and writing its files gives.
    pub fn run(&self, spec: &JobSpec) -> Result<JobResult> {
        run(self.lab(), self.shape(), self.snapshot(), spec)
    }
}

fn run(lab: &Lab, shape: &Shape, snapshot: &MachineSnapshot, spec: &JobSpec) -> Result<JobResult> {
    let started = Instant::now();
    lab.stop().check()?;
    let parts = lab.parts();
    let mut folder = ScratchFolder::create(&lab.runs(), "")?;
    if std::env::var_os("TERRACE_LAB_KEEP").is_some() {
        folder.keep();
    }
    let dir = folder.path();
    let mailbox = MailboxFile::create(&dir.join("mailbox"), MAILBOX_BYTES)?;
    mailbox.put_job(spec.archive()?)?;
    let profile = dir.join("profile");
    let mut extra = spec.plugin.clone();
    if spec.profile {
        extra.push(("profile".into(), profile.display().to_string()));
    }
    if let Some(served) = &spec.served {
        let path = dir.join("placed");
        fs::write(&path, served.text()).map_err(io("writing", &path))?;
        extra.push(("placed".into(), path.display().to_string()));
    }
    let socket = Socket::below(dir);
    let arguments = snapshot.restore_arguments(parts, shape, &mailbox, dir, socket.path(), &extra);
    let (errors, console) = (dir.join("stderr"), dir.join("console"));
    let mut vm = Vm::start(&parts.qemu, &arguments, &errors, &console, lab.stop())?;
    let answer = dir.join("answer");
    snapshot.play(&mut vm, socket.path(), spec.limit_wall, &answer)?;
    vm.wait("ending the machine", END_LIMIT + spec.limit_wall)?;
    let header = read_header(&answer)?;
    if !matches!(header.state, MailboxState::Done | MailboxState::Refused) {
        return Err(LabError::MachineDied {
            status: "no answer in the mailbox".into(),
            last_words: vm.last_words(),
        });
    }
    let archive = read_archive_bytes(&answer, header)?;
    let mut result = read_reply(&archive)?;
    if let JobOutcome::NotStarted { why } = &result.reply.outcome {
        return Err(LabError::NotRun { why: why.clone() });
    }
    if parts.plugin.is_some() {
        result.stats = Some(stats::read(&dir.join("stats.json"))?);
    }
    if spec.profile {
        result.profile = match fs::read(&profile) {
            Ok(profile) => Some(profile),
            // The plugin writes it when a marked phase ends.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(io("reading", &profile)(e)),
        };
    }
    result.wall_seconds = started.elapsed().as_secs_f64();
    Ok(result)
}

fn read_reply(archive: &[u8]) -> Result<JobResult> {
    let entries = wire::read_archive(archive)?;
    let file =
        |name: &'static str| wire::find(&entries, name).map(<[u8]>::to_vec).unwrap_or_default();
    Ok(JobResult {
        reply: wire::from_json(wire::find(&entries, wire::REPLY_NAME)?)?,
        stdout: file(wire::STDOUT_NAME),
        stderr: file(wire::STDERR_NAME),
        files: entries
            .iter()
            .filter(|e| !e.name.starts_with('@'))
            .map(|e| (e.name.to_string(), e.data.to_vec()))
            .collect(),
        stats: None,
        profile: None,
        wall_seconds: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_and_a_broken_one_refused() {
        let mut w = ArchiveWriter::new();
        w.add(wire::REPLY_NAME, 0, &wire::to_json(&Reply::not_started("x".into())).unwrap());
        w.add(wire::STDOUT_NAME, 0, b"out\0bytes");
        w.add("/etc/file", 0, b"f");
        let bytes = w.finish();
        let got = read_reply(&bytes).unwrap();
        assert_eq!(got.stdout, b"out\0bytes");
        assert_eq!(got.files["/etc/file"], b"f");
        assert!(got.success().unwrap_err().contains("not started"));
        assert!(read_reply(&bytes[..bytes.len() / 2]).is_err());
        assert!(read_reply(&ArchiveWriter::new().finish()).is_err());
    }

    #[test]
    fn exit_statuses_are_reported_as_a_shell_does() {
        let ended = |outcome| {
            let reply = Reply { outcome, ..Reply::not_started(String::new()) };
            let (stdout, stderr) = (vec![], vec![]);
            let files = BTreeMap::new();
            JobResult {
                reply,
                stdout,
                stderr,
                files,
                stats: None,
                profile: None,
                wall_seconds: 0.0,
            }
        };
        let killed = ended(JobOutcome::Signalled { signal: 11 });
        assert_eq!(killed.success(), Err("was killed by signal 11 (SIGSEGV)".into()));
        assert_eq!(killed.exit_status(), 139);
        assert_eq!(ended(JobOutcome::Exited { status: 3 }).exit_status(), 3);
        assert_eq!(ended(JobOutcome::TimedOut).exit_status(), 1);
        assert_eq!(signal_name(31), "signal 31 (SIGSYS)");
        assert_eq!((signal_name(0), signal_name(34)), ("signal 0".into(), "signal 34".into()));
    }

    #[test]
    fn served_pages_are_numbers_below_their_nodes() {
        let served = ServedPages { fast_pages: vec![0x7f00_1000, 0x1000], fast: 0, slow: 1 };
        assert_eq!(served.text(), "0 1\n7f001\n1\n");
    }

    #[test]
    fn what_is_asked_for_stands_in_place_of_the_labs_environment() {
        let mut spec = JobSpec::new(vec!["/bin/true".into()]);
        spec.env = vec![("HOME".into(), "/elsewhere".into()), ("A".into(), "1".into())];
        let env = spec.environment();
        let of = |name: &str| env.iter().filter(|(n, _)| n == name).collect::<Vec<_>>();
        assert_eq!(of("HOME"), [&("HOME".to_string(), "/elsewhere".to_string())]);
        assert_eq!((of("A").len(), of("PATH").len()), (1, 1));
    }
}
