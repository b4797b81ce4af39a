//! Carrying a program into the guest: the file itself, and what a dynamic one needs, at the same
//! paths.

use crate::error::{LabError, Result};
use crate::files::CarriedFiles;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `PATH` of commands in the guest.
pub const GUEST_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

const MAX_SCRIPT_DEPTH: usize = 4;

/// Find a program as the shell would: a path from `cwd`, or a name in `PATH`.
///
/// # Errors
/// [`LabError::Program`] where there is none, or one that cannot be executed.
pub fn look_up(name: &str, search: Option<&str>, cwd: &Path) -> Result<PathBuf> {
    let bad = |why: &str| LabError::Program { program: name.to_string(), why: why.to_string() };
    let runnable =
        |p: &Path| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if name.contains('/') {
        let path = cwd.join(name);
        return match path.metadata() {
            Err(_) => Err(bad("no such program")),
            Ok(_) if !runnable(&path) => Err(bad("not an executable file")),
            Ok(_) => Ok(path),
        };
    }
    search
        .unwrap_or_default()
        .split(':')
        .filter(|dir| dir.starts_with('/'))
        .map(|dir| Path::new(dir).join(name))
        .find(|p| runnable(p))
        .ok_or_else(|| bad("not found in PATH"))
}

/// The program and everything it needs to start: a script's interpreter, an ELF file's loader and
/// libraries.
///
/// # Errors
/// [`LabError::Program`] for what is no program of this kind of processor, or lacks a library.
pub fn closure(program: &Path) -> Result<CarriedFiles> {
    let mut files = CarriedFiles::default();
    add_closure(program, &mut files)?;
    Ok(files)
}

/// As [`closure`], added to what is carried already.
pub(crate) fn add_closure(program: &Path, files: &mut CarriedFiles) -> Result<()> {
    collect(program, files, 0)
}

fn collect(program: &Path, files: &mut CarriedFiles, depth: usize) -> Result<()> {
    let bad = |why: String| LabError::Program { program: program.display().to_string(), why };
    if depth > MAX_SCRIPT_DEPTH {
        return Err(bad("a script whose interpreter is a script, too deep".into()));
    }
    let head = std::fs::read(program).map_err(|e| bad(e.to_string()))?;
    files.add(program)?;
    if let Some(interpreter) = shebang(&head) {
        let words: Vec<&str> = interpreter.split_whitespace().collect();
        let first = words.first().ok_or_else(|| bad("empty interpreter line".into()))?;
        collect(Path::new(first), files, depth + 1)?;
        if first.ends_with("/env") {
            let name = words
                .get(1)
                .ok_or_else(|| bad("env without a program in the interpreter line".into()))?;
            let found = look_up(name, Some(GUEST_PATH), Path::new("/"))?;
            collect(&found, files, depth + 1)?;
        }
        return Ok(());
    }
    let Some(loader) = elf_interpreter(&head).map_err(|e| bad(e.into()))? else { return Ok(()) };
    files.add(Path::new(&loader))?;
    // The loader itself says what it would map; nothing of the program runs.
    let out = Command::new(&loader)
        .arg("--list")
        .arg(program)
        .output()
        .map_err(|e| bad(format!("{loader}: {e}")))?;
    if !out.status.success() {
        return Err(bad(format!(
            "{loader} --list: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        )));
    }
    for library in listed_libraries(&String::from_utf8_lossy(&out.stdout))
        .map_err(|l| bad(format!("lacks {l}")))?
    {
        files.add(Path::new(&library))?;
    }
    Ok(())
}

fn shebang(head: &[u8]) -> Option<String> {
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    Some(String::from_utf8_lossy(line).into_owned())
}

/// Paths in the output of `ld.so --list`; `Err` names a library that was not found.
fn listed_libraries(text: &str) -> std::result::Result<Vec<String>, String> {
    let mut out = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let path = match line.split_once("=>") {
            Some((name, rest)) if rest.trim_start().starts_with("not found") => {
                return Err(name.trim().to_string())
            }
            Some((_, rest)) => rest,
            None => line,
        };
        let path = path.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            out.push(path.to_string());
        }
    }
    Ok(out)
}

/// The dynamic loader named in an x86-64 ELF file; `None` for a static one.
fn elf_interpreter(bytes: &[u8]) -> std::result::Result<Option<String>, &'static str> {
    const PT_INTERP: u32 = 3;
    const BROKEN: &str = "broken ELF file";
    if !bytes.starts_with(b"\x7fELF") {
        return Err("neither an ELF file nor a script");
    }
    if bytes.get(4) != Some(&2) || bytes.get(5) != Some(&1) || number(bytes, 18, 2) != Some(62) {
        return Err("not an x86-64 program");
    }
    let table = number(bytes, 32, 8).ok_or(BROKEN)?;
    let (size, count) = (number(bytes, 54, 2).ok_or(BROKEN)?, number(bytes, 56, 2).ok_or(BROKEN)?);
    for i in 0..count {
        let at = i.checked_mul(size).and_then(|o| o.checked_add(table)).ok_or(BROKEN)? as usize;
        if number(bytes, at, 4).ok_or(BROKEN)? as u32 != PT_INTERP {
            continue;
        }
        let from = number(bytes, at.saturating_add(8), 8).ok_or(BROKEN)? as usize;
        let len = number(bytes, at.saturating_add(32), 8).ok_or(BROKEN)? as usize;
        let name = from.checked_add(len).and_then(|end| bytes.get(from..end)).ok_or(BROKEN)?;
        let name = name.split(|&b| b == 0).next().unwrap_or_default();
        return String::from_utf8(name.to_vec()).map(Some).map_err(|_| BROKEN);
    }
    Ok(None)
}

/// A little-endian number of `len` (at most 8) bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let slice = bytes.get(at..at.checked_add(len)?)?;
    Some(slice.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_itself_is_dynamic_and_closed() {
        let me = std::env::current_exe().unwrap();
        let files = closure(&me).unwrap();
        let names: Vec<&str> = files.iter().map(|(path, _)| path).collect();
        assert!(names.contains(&me.to_str().unwrap()));
        assert!(names.iter().any(|n| n.contains("ld-linux-x86-64")), "{names:?}");
        assert!(names.iter().any(|n| n.contains("libc.so")), "{names:?}");
    }

    #[test]
    fn loader_output() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => \
            /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let got = listed_libraries(text).unwrap();
        assert_eq!(got, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert_eq!(listed_libraries("\tlibfoo.so => not found\n"), Err("libfoo.so".to_string()));
    }

    #[test]
    fn hostile_elf_files_are_survived() {
        let me = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for i in 0..64 {
            for value in [0u8, 0x7f, 0xff] {
                let mut hurt = me[..4096].to_vec();
                hurt[i] = value;
                let _ = elf_interpreter(&hurt);
            }
        }
        for len in 0..200 {
            let _ = elf_interpreter(&me[..len]);
        }
        assert!(elf_interpreter(b"text").is_err());
    }

    #[test]
    fn names_are_looked_up() {
        assert!(look_up("sh", Some("/bin:/usr/bin"), Path::new("/")).unwrap().ends_with("sh"));
        assert!(look_up("no-such-program-here", Some("/bin"), Path::new("/")).is_err());
        assert!(look_up("/no/such/program", None, Path::new("/")).is_err());
        assert!(look_up("/etc/passwd", None, Path::new("/")).is_err());
        assert_eq!(look_up("./sh", None, Path::new("/bin")).unwrap(), Path::new("/bin/./sh"));
    }
}
