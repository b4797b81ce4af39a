//! The program to be recorded, and what it is started with.

use super::RecordError;
use crate::parts::{self, InstalledPart};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use terrace_sys::{gained_rights, StartError};

/// A program as it will be started.
pub struct Program {
    /// The name it is to find as its own.
    name: Option<OsString>,
    words: Vec<OsString>,
}

impl Program {
    /// Finds the program as the shell would, and the interpreter of a script as the kernel would.
    ///
    /// # Errors
    /// [`RecordError::Start`] as the shell would refuse it; [`RecordError::Lacking`] for a program
    /// that needs rights which it gets from the kernel alone.
    pub fn find(argv: &[OsString]) -> Result<Self, RecordError> {
        let (name, arguments) = argv.split_first().ok_or(StartError::Empty)?;
        let path = look_up(name)
            .ok_or_else(|| StartError::NotFound(name.to_string_lossy().into_owned()))?;
        let refused = |errno| StartError::NotExecutable {
            program: name.to_string_lossy().into_owned(),
            errno,
        };
        let usable =
            path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        if !usable {
            return Err(refused(13).into());
        }
        let mut head = Vec::new();
        let read = File::open(&path).and_then(|f| f.take(256).read_to_end(&mut head));
        read.map_err(|e| refused(e.raw_os_error().unwrap_or(13)))?;
        if let Some(rest) = head.strip_prefix(b"#!") {
            let line = rest.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
            let (interpreter, option) = match line.iter().position(|b| b.is_ascii_whitespace()) {
                Some(at) => (&line[..at], line[at..].trim_ascii()),
                None => (line, &b""[..]),
            };
            let mut words = vec![OsString::from_vec(interpreter.to_vec())];
            needs_no_rights(Path::new(&words[0]))?;
            words.extend((!option.is_empty()).then(|| OsStr::from_bytes(option).to_owned()));
            words.push(path.into_os_string());
            words.extend_from_slice(arguments);
            return Ok(Self { name: None, words });
        }
        // 64-bit little-endian ELF for x86-64.
        if head.get(..6) != Some(b"\x7fELF\x02\x01") || head.get(18..20) != Some(&[62, 0]) {
            return Err(refused(8).into());
        }
        needs_no_rights(&path)?;
        let mut words = vec![path.into_os_string()];
        words.extend_from_slice(arguments);
        Ok(Self { name: Some(name.clone()), words })
    }

    pub fn under(self, emulator: &Path, plugin: &Path, area: &Path) -> Vec<OsString> {
        let mut option = plugin.as_os_str().to_owned();
        option.push(",area=");
        option.push(area);
        let mut words: Vec<OsString> = vec![emulator.into(), "-plugin".into(), option];
        if let Some(name) = self.name {
            words.extend(["-0".into(), name]);
        }
        words.extend(self.words);
        words
    }

    pub fn translated(self, translator: &Path, area: &Path) -> Vec<OsString> {
        let name = self.name.unwrap_or_else(|| self.words[0].clone());
        let mut words: Vec<OsString> = vec![translator.into(), area.into(), name];
        words.extend(self.words);
        words
    }
}

/// Refuses a program that the kernel would start with more rights than it starts the emulator with.
fn needs_no_rights(program: &Path) -> Result<(), RecordError> {
    gained_rights(program).map_or(Ok(()), |why| {
        Err(RecordError::Lacking(format!(
            "{} cannot be recorded: {why}, and would run without the rights that it gets by that; \
             record it as the user whose rights it needs",
            program.display()
        )))
    })
}

fn look_up(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).exists().then(|| name.into());
    }
    let path = std::env::var_os("PATH")?;
    let usable = |p: &PathBuf| {
        p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(usable);
    found
}

/// The emulator, if it is there and takes plugins.
pub fn emulator() -> Result<PathBuf, RecordError> {
    const NAME: &str = "qemu-x86_64";
    let lacking = |why: &str| {
        RecordError::Lacking(format!(
            "record --source full needs {NAME} of QEMU 7.2 with plugins, {why}"
        ))
    };
    let install = "sudo apt-get install --no-install-recommends qemu-user";
    let path = look_up(OsStr::new(NAME))
        .ok_or_else(|| lacking(&format!("which is not installed; run: {install}")))?;
    let help = std::process::Command::new(&path).arg("-h").output();
    let takes_plugins = help.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("-plugin"));
    if takes_plugins {
        Ok(path)
    } else {
        Err(lacking(
            "and the one installed takes none; use --source translated, which needs no QEMU",
        ))
    }
}

/// The QEMU plugin.
pub fn plugin() -> Result<PathBuf, RecordError> {
    installed(parts::CAPTURE_PLUGIN)
}

/// The translator.
pub fn translator() -> Result<PathBuf, RecordError> {
    installed(parts::TRANSLATOR)
}

/// A part of ours, at a path that the program's own folder does not change.
fn installed(part: InstalledPart) -> Result<PathBuf, RecordError> {
    let found = part.find().ok().filter(|p| p.is_file()).and_then(|p| p.canonicalize().ok());
    found.ok_or_else(|| RecordError::Lacking(part.missing_here().to_string()))
}
