//! A running QEMU: started, watched against the wall clock, never left behind.

use crate::error::{io, LabError, Result};
use crate::monitor::was_too_slow;
use crate::stop::StopFlag;
use crate::wire::{self, ArchiveWriter, MailboxHeader, MailboxState};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(10);

/// The host's end of the mailbox: a file that the guest sees as a device.
#[derive(Debug)]
pub struct MailboxFile {
    path: PathBuf,
    bytes: u64,
}

impl MailboxFile {
    /// A fresh, empty (sparse) file.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let file = File::create(path).map_err(io("creating", path))?;
        file.set_len(bytes).map_err(io("sizing", path))?;
        Ok(MailboxFile { path: path.to_path_buf(), bytes })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Put a job's archive.
    pub fn put_job(&self, archive: ArchiveWriter) -> Result<()> {
        let archive = archive.finish();
        let space = wire::archive_capacity(self.bytes);
        if archive.len() as u64 > space {
            return Err(LabError::JobTooLarge {
                job_bytes: archive.len() as u64,
                room_bytes: space,
            });
        }
        let header = MailboxHeader {
            state: MailboxState::Job,
            len: archive.len() as u64,
            sum: wire::checksum(&archive),
        };
        let file =
            OpenOptions::new().write(true).open(&self.path).map_err(io("opening", &self.path))?;
        file.write_all_at(&archive, wire::BODY_OFFSET as u64).map_err(io("writing", &self.path))?;
        file.write_all_at(&header.encode(), 0).map_err(io("writing", &self.path))
    }

    /// Whose turn it is, while the guest and this file share memory.
    pub fn header(&self) -> Result<MailboxHeader> {
        read_header(&self.path)
    }
}

/// The header at the start of a file.
pub fn read_header(path: &Path) -> Result<MailboxHeader> {
    let mut head = [0u8; wire::HEADER_LEN];
    let file = File::open(path).map_err(io("opening", path))?;
    file.read_exact_at(&mut head, 0).map_err(io("reading", path))?;
    Ok(MailboxHeader::decode(&head)?)
}

/// The archive in a file of a whole mailbox, checked against the header.
pub fn read_archive_bytes(path: &Path, header: MailboxHeader) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(io("opening", path))?;
    let space = file
        .metadata()
        .map_err(io("reading", path))?
        .len()
        .saturating_sub(wire::BODY_OFFSET as u64);
    if header.len > space {
        return Err(wire::WireError::TooLarge { what: "archive" }.into());
    }
    let mut bytes = vec![0u8; header.len as usize];
    file.read_exact_at(&mut bytes, wire::BODY_OFFSET as u64).map_err(io("reading", path))?;
    if wire::checksum(&bytes) != header.sum {
        return Err(wire::WireError::BadChecksum.into());
    }
    Ok(bytes)
}

/// A child process that is QEMU.
pub struct Vm {
    child: Child,
    stderr: PathBuf,
    console: PathBuf,
    started: Instant,
    stop: StopFlag,
}

impl Vm {
    /// Start QEMU; its standard error and the guest's console are kept in files for error messages.
    pub fn start(
        qemu: &Path,
        arguments: &[String],
        stderr: &Path,
        console: &Path,
        stop: StopFlag,
    ) -> Result<Self> {
        let errors = File::create(stderr).map_err(io("creating", stderr))?;
        let mut command = with_death_signal(qemu);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let child = command.spawn().map_err(io("starting", qemu))?;
        Ok(Vm {
            child,
            stderr: stderr.to_path_buf(),
            console: console.to_path_buf(),
            started: Instant::now(),
            stop,
        })
    }

    /// Whether somebody asked to end.
    pub fn stop(&self) -> StopFlag {
        self.stop
    }

    /// Wait until `done` says so; an early end or `limit` of wall-clock time is an error.
    pub fn wait_until(
        &mut self,
        what: &'static str,
        limit: Duration,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        loop {
            if done()? {
                return Ok(());
            }
            if let Some(status) = self.try_wait()? {
                self.stop.check()?;
                return Err(self.died(status));
            }
            self.check_time(what, limit)?;
            std::thread::sleep(LOOK);
        }
    }

    /// Wait for QEMU to end by itself.
    pub fn wait(&mut self, what: &'static str, limit: Duration) -> Result<()> {
        loop {
            match self.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    self.stop.check()?;
                    return Err(self.died(status));
                }
                None => self.check_time(what, limit)?,
            }
            std::thread::sleep(LOOK);
        }
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(io("waiting for", &self.stderr))
    }

    /// What to say when the monitor's connection failed: a machine that ended says more than a
    /// broken connection.
    pub fn explain(&mut self, what: &'static str, limit: Duration, error: LabError) -> LabError {
        // A terminal's Ctrl-C reaches QEMU too.
        if self.stop.is_set() {
            return LabError::Interrupted;
        }
        if was_too_slow(&error) {
            return LabError::TooSlow {
                what,
                seconds: limit.as_secs(),
                last_words: self.last_words(),
            };
        }
        for _ in 0..100 {
            match self.try_wait() {
                Ok(Some(status)) => return self.died(status),
                Ok(None) => std::thread::sleep(LOOK),
                Err(e) => return e,
            }
        }
        error
    }

    fn check_time(&self, what: &'static str, limit: Duration) -> Result<()> {
        self.stop.check()?;
        if self.started.elapsed() <= limit {
            return Ok(());
        }
        Err(LabError::TooSlow { what, seconds: limit.as_secs(), last_words: self.last_words() })
    }

    fn died(&self, status: ExitStatus) -> LabError {
        LabError::MachineDied { status: status.to_string(), last_words: self.last_words() }
    }

    /// The ends of QEMU's standard error and of the guest's console, on one line.
    #[must_use]
    pub fn last_words(&self) -> String {
        let tail = |path: &Path| {
            let bytes = std::fs::read(path).unwrap_or_default();
            last_lines(&String::from_utf8_lossy(&bytes), 6)
        };
        let words = [tail(&self.stderr), tail(&self.console)];
        let said: Vec<&str> = words.iter().map(String::as_str).filter(|w| !w.is_empty()).collect();
        if said.is_empty() {
            "it said nothing".into()
        } else {
            said.join(" | console: ")
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // Either QEMU has ended and this does nothing, or somebody gave up on it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// QEMU dies with the thread that started it, where util-linux is there to arrange that.
fn with_death_signal(program: &Path) -> Command {
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].into_iter().find(|p| Path::new(p).exists());
    match setpriv {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// The last `count` non-empty lines, joined by " / ", without control characters.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let clean: String =
        text.chars().map(|c| if c == '\n' || !c.is_control() { c } else { ' ' }).collect();
    let lines: Vec<&str> = clean.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("terrace-lab-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_job_put_is_the_job_taken() {
        let path = temp("box");
        let mailbox = MailboxFile::create(&path, 32 << 20).unwrap();
        assert_eq!(mailbox.header().unwrap().state, MailboxState::Empty);
        let mut archive = ArchiveWriter::new();
        archive.add("/x", 0o644, b"abc");
        mailbox.put_job(archive).unwrap();
        let header = mailbox.header().unwrap();
        assert_eq!(header.state, MailboxState::Job);
        let bytes = read_archive_bytes(&path, header).unwrap();
        assert_eq!(wire::read_archive(&bytes).unwrap()[0].data, b"abc");
        let lie = MailboxHeader { len: u64::MAX, ..header };
        assert!(read_archive_bytes(&path, lie).is_err());
        let lie = MailboxHeader { len: header.len + 8, ..header };
        assert!(read_archive_bytes(&path, lie).is_err());
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn a_job_too_large_is_refused() {
        let path = temp("small-box");
        let mailbox = MailboxFile::create(&path, 8192).unwrap();
        let mut archive = ArchiveWriter::new();
        archive.add("/x", 0o644, &[0; 8192]);
        assert!(matches!(mailbox.put_job(archive), Err(LabError::JobTooLarge { .. })));
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn a_machine_that_dies_is_quoted() {
        let (err, console) = (temp("err"), temp("console"));
        std::fs::write(&console, "Kernel panic\u{7} - not syncing\n").unwrap();
        let args = ["-c".to_string(), "echo no such option >&2; exit 3".to_string()];
        let mut vm =
            Vm::start(Path::new("/bin/sh"), &args, &err, &console, StopFlag::default()).unwrap();
        let e = vm.wait("the test", Duration::from_secs(5)).unwrap_err().to_string();
        assert!(e.contains("no such option") && e.contains("Kernel panic"), "{e}");
        let args = ["-c".to_string(), "exec sleep 60".to_string()];
        let mut vm =
            Vm::start(Path::new("/bin/sh"), &args, &err, &console, StopFlag::default()).unwrap();
        assert!(matches!(
            vm.wait("the test", Duration::from_millis(50)),
            Err(LabError::TooSlow { .. })
        ));
        for p in [err, console] {
            let _ = std::fs::remove_file(p);
        }
    }

    #[test]
    fn last_lines_are_one_line() {
        assert_eq!(last_lines("a\n\nb\r\nc\n", 2), "b / c");
        assert_eq!(last_lines("", 2), "");
    }
}
