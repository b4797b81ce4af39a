//! A command of the host with everything that it needs in the guest.

use crate::error::{io, LabError, Result};
use crate::files::is_guests_own;
use crate::job::JobSpec;
use crate::program;
use std::path::{Path, PathBuf};

/// Where the guest has what the command reads as its standard input.
const GUEST_STDIN: &str = "/run/terrace/stdin";

/// A command of the host. Its program and all that this needs to start are carried along, at the
/// same paths.
#[derive(Debug, Clone, Default)]
pub struct HostCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// `PATH`, in which a program without a slash is looked for.
    pub search: Option<String>,
    /// Working directory; the same in the guest.
    pub cwd: PathBuf,
    /// Environment on top of the lab's own.
    pub env: Vec<(String, String)>,
    /// Programs to carry along, by name or path.
    pub carry: Vec<String>,
    /// Files to carry along.
    pub files: Vec<PathBuf>,
    /// Folders to carry along, whole.
    pub folders: Vec<PathBuf>,
    /// File that becomes the command's standard input.
    pub stdin: Option<PathBuf>,
    /// What the command was seen to use on the host.
    pub used: UsedFiles,
}

/// What a command was seen to use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedFiles {
    /// Programs that it executed, absolute.
    pub programs: Vec<PathBuf>,
    /// Files and folders that it opened or asked about, absolute.
    pub paths: Vec<PathBuf>,
}

impl HostCommand {
    /// The program's file.
    ///
    /// # Errors
    /// [`LabError::Program`] where there is none.
    pub fn program(&self) -> Result<PathBuf> {
        let name = self.argv.first().ok_or_else(|| LabError::Program {
            program: String::new(),
            why: "no command given".into(),
        })?;
        program::look_up(name, self.search.as_deref(), &self.cwd)
    }

    /// The job, with every file.
    ///
    /// # Errors
    /// [`LabError::Program`] for programs that cannot be carried, [`LabError::Io`] for files that
    /// are not there.
    pub fn job(&self) -> Result<JobSpec> {
        let program = self.program()?;
        let mut job = JobSpec::new(self.argv.clone());
        job.argv[0] = program.display().to_string();
        job.program.clone_from(&job.argv[0]);
        job.env.clone_from(&self.env);
        job.carry(&program)?;
        for name in &self.carry {
            job.carry(&program::look_up(name, self.search.as_deref(), &self.cwd)?)?;
        }
        if !self.cwd.as_os_str().is_empty() && !is_guests_own(&self.cwd) {
            job.cwd = self.cwd.display().to_string();
            job.files.add(&self.cwd)?;
        }
        // What was seen to be used is a help: a file that went meanwhile, and a program of another
        // kind of processor, are left out.
        for path in &self.used.programs {
            let _ = job.carry(path);
        }
        for path in &self.used.paths {
            let _ = job.files.add(path);
        }
        for path in &self.files {
            job.files.add(&self.absolute(path))?;
        }
        for path in &self.folders {
            job.files.add_folder(&self.absolute(path))?;
        }
        if let Some(path) = &self.stdin {
            let path = self.absolute(path);
            std::fs::File::open(&path).map_err(io("reading", &path))?;
            job.files.add_as(&path, GUEST_STDIN);
            job.stdin = Some(GUEST_STDIN.into());
        }
        Ok(job)
    }

    /// A path as the command's working directory has it.
    #[must_use]
    pub fn absolute(&self, path: &Path) -> PathBuf {
        self.cwd.join(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::CarriedPath;

    #[test]
    fn a_command_brings_its_libraries_and_what_it_was_seen_to_use() {
        let dir = std::env::temp_dir().join(format!("terrace-command-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let dir = std::fs::canonicalize(dir).unwrap();
        std::fs::write(dir.join("in"), "1").unwrap();
        std::fs::write(dir.join("seen"), "2").unwrap();
        let mut command = HostCommand {
            argv: vec!["sh".into(), "-c".into(), ":".into()],
            search: Some("/bin:/usr/bin".into()),
            cwd: dir.clone(),
            stdin: Some("in".into()),
            ..HostCommand::default()
        };
        command.used.paths = vec![dir.join("seen"), dir.join("gone")];
        let job = command.job().unwrap();
        assert!(job.argv[0].ends_with("/sh") && job.program == job.argv[0]);
        let named = |name: &str| job.files.iter().find(|(path, _)| path.ends_with(name));
        assert!(named("ld-linux-x86-64.so.2").is_some());
        assert!(named("/seen").is_some() && named("/gone").is_none());
        let stdin = job.stdin.as_deref().unwrap();
        assert!(matches!(named(stdin), Some((_, CarriedPath::File { .. }))));
        assert_eq!(job.cwd, dir.display().to_string());
        command.files = vec!["gone".into()];
        assert!(command.job().unwrap_err().to_string().contains("gone"));
        command.files.clear();
        command.stdin = Some("none".into());
        assert!(command.job().unwrap_err().to_string().contains("none"));
        assert!(HostCommand::default().job().is_err());
        let _ = std::fs::remove_dir_all(dir);
    }
}
