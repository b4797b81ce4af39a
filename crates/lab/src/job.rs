//! One command in one awakened machine.

use crate::error::{io, LabError, Result};
use crate::program::{self, Carried};
use crate::shape::Shape;
use crate::snapshot::{socket_path, unique, Parts, Snapshot, MAILBOX_BYTES};
use crate::stats::{self, Stats};
use crate::vm::{read_archive_bytes, read_header, MailboxFile, Vm};
use crate::wire::{
    self, ArchiveWriter, AtMark, Job, MemoryPolicy, Outcome, Reclaim, Reply, Setting, State,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const END_LIMIT: Duration = Duration::from_secs(30);

/// What to run and how.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Command and arguments as the guest sees them; `argv[0]` must be among the files or carried
    /// by `carry`.
    pub argv: Vec<String>,
    /// Environment on top of a small fixed one.
    pub env: Vec<(String, String)>,
    /// Files for the guest.
    pub files: Vec<Carried>,
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
            argv,
            env: Vec::new(),
            files: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            memory_policy: None,
            at_mark: AtMark::Nothing,
            reclaim: None,
            ranking: Vec::new(),
            cpu_of: Vec::new(),
            fetch: Vec::new(),
            plugin: Vec::new(),
            profile: false,
            limit_guest: Duration::from_secs(3600),
            limit_wall: Duration::from_secs(1800),
        }
    }

    /// A command of the host: its program and all it needs are carried along, at the same paths.
    pub fn of_host_command(argv: &[String], search: Option<&str>) -> Result<Self> {
        let Some(name) = argv.first() else {
            return Err(LabError::Program {
                program: String::new(),
                why: "no command given".into(),
            });
        };
        let program = program::look_up(name, search)?;
        let mut spec = JobSpec::new(argv.to_vec());
        spec.argv[0] = program.display().to_string();
        spec.carry(&program)?;
        Ok(spec)
    }

    /// Carry a program and all it needs, at the same paths.
    pub fn carry(&mut self, program: &Path) -> Result<()> {
        for file in program::closure(program)? {
            if !self.files.contains(&file) {
                self.files.push(file);
            }
        }
        Ok(())
    }

    /// Carry one static program to a path of the guest.
    pub fn carry_as(&mut self, host_path: &Path, guest_path: &str) {
        self.files
            .push(Carried { guest_path: guest_path.into(), host_path: host_path.to_path_buf() });
    }

    /// Everything that the guest is given, as it goes into the mailbox.
    pub(crate) fn archive(&self) -> Result<ArchiveWriter> {
        let mut env = vec![
            ("PATH".to_string(), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_string()),
            ("HOME".to_string(), "/root".to_string()),
            ("LANG".to_string(), "C".to_string()),
            ("TERRACE_LAB".to_string(), "1".to_string()),
        ];
        env.extend(self.env.iter().cloned());
        let job = Job {
            argv: self.argv.clone(),
            env,
            cwd: "/work".into(),
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
        for file in &self.files {
            let data = fs::read(&file.host_path).map_err(io("reading", &file.host_path))?;
            let meta = fs::metadata(&file.host_path).map_err(io("reading", &file.host_path))?;
            archive.add(&file.guest_path, meta.permissions().mode() & 0o777, &data);
        }
        Ok(archive)
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
    pub stats: Option<Stats>,
    /// The timing plugin's profile, where one was asked for and a marked phase ended.
    pub profile: Option<Vec<u8>>,
    /// Wall-clock seconds from start to answer.
    pub wall_seconds: f64,
}

impl JobResult {
    /// Guest seconds of the marked phase, else from exec to exit.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        match self.stats.as_ref().and_then(Stats::measured) {
            Some(span) => span.seconds(),
            None => self.reply.nanos as f64 / 1e9,
        }
    }

    /// `Err` with words for people unless the command exited with status 0.
    pub fn success(&self) -> std::result::Result<(), String> {
        match &self.reply.outcome {
            Outcome::Exited { status: 0 } => Ok(()),
            Outcome::Exited { status } => Err(format!("exited with status {status}")),
            Outcome::Signalled { signal } => Err(format!("was ended by signal {signal}")),
            Outcome::TimedOut => Err("ran out of guest time".into()),
            Outcome::NotStarted { why } => Err(format!("was not started: {why}")),
        }
    }
}

/// Wake the machine up with the job in its mailbox and wait until it has powered off.
pub fn run(
    parts: &Parts,
    shape: &Shape,
    snapshot: &Snapshot,
    runs: &Path,
    spec: &JobSpec,
) -> Result<JobResult> {
    let started = Instant::now();
    let dir = RunDir::create(runs)?;
    let mailbox = MailboxFile::create(&dir.0.join("mailbox"), MAILBOX_BYTES)?;
    mailbox.put_job(spec.archive()?)?;
    let profile = dir.0.join("profile");
    let mut extra = spec.plugin.clone();
    if spec.profile {
        extra.push(("profile".into(), profile.display().to_string()));
    }
    let socket = Socket(socket_path());
    let arguments = snapshot.restore_arguments(parts, shape, &mailbox, &dir.0, &socket.0, &extra);
    let mut vm = Vm::start(&parts.qemu, &arguments, &dir.0.join("stderr"), &dir.0.join("console"))?;
    let answer = dir.0.join("answer");
    snapshot.play(&mut vm, &socket.0, spec.limit_wall, &answer)?;
    vm.wait("ending the machine", END_LIMIT + spec.limit_wall)?;
    let header = read_header(&answer)?;
    if !matches!(header.state, State::Done | State::Refused) {
        return Err(LabError::MachineDied {
            status: "no answer in the mailbox".into(),
            last_words: vm.last_words(),
        });
    }
    let archive = read_archive_bytes(&answer, header)?;
    let mut result = read_reply(&archive)?;
    if let Outcome::NotStarted { why } = &result.reply.outcome {
        return Err(LabError::NotRun { why: why.clone() });
    }
    if parts.plugin.is_some() {
        result.stats = Some(stats::read(&dir.0.join("stats.json"))?);
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

/// A monitor's socket, gone when the run is over.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A directory of one run, gone when the run is over.
struct RunDir(PathBuf);

impl RunDir {
    fn create(runs: &Path) -> Result<Self> {
        let dir = runs.join(format!("{}-{}", std::process::id(), unique()));
        fs::create_dir_all(&dir).map_err(io("creating", &dir))?;
        Ok(RunDir(dir))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if std::env::var_os("TERRACE_LAB_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
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
    fn commands_of_the_host_bring_their_libraries() {
        let spec = JobSpec::of_host_command(
            &["sh".into(), "-c".into(), ":".into()],
            Some("/bin:/usr/bin"),
        )
        .unwrap();
        assert!(spec.argv[0].ends_with("/sh"));
        assert!(spec.files.len() >= 2);
        assert!(JobSpec::of_host_command(&[], None).is_err());
    }
}
