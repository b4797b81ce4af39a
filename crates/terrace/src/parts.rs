//! Finds the files that the command needs beside itself: preload libraries, the capture plugin,
//! the translator.
//!
//! A part is looked for in this order, so that one command works from a build folder, from an
//! installed prefix and from an unpacked package alike:
//!
//! 1. the file that its environment variable names;
//! 2. the folder of the running program, and `deps` in it (cargo puts libraries there);
//! 3. `../lib/terrace` and `../lib`: an installed prefix;
//! 4. `terrace` in the user's cache folder: where `scripts/setup.sh --capture` builds;
//! 5. `../install/lib/terrace`: what `make build` stages beside cargo's folders.

use std::path::{Path, PathBuf};
use terrace_lab::{Lab, LabError};

/// A file that belongs to Terrace and is not part of the program itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstalledPart {
    /// Name of the file.
    pub file: &'static str,
    /// Environment variable that names another file.
    pub variable: &'static str,
    /// What it is, with its article.
    pub what: &'static str,
}

/// Places allocations of an unmodified program.
pub const PRELOAD: InstalledPart = InstalledPart {
    file: "libterrace_preload.so",
    variable: "TERRACE_PRELOAD",
    what: "the library for run --alloc",
};

/// Keeps part of an unmodified program's memory in a store.
pub const FAR_PRELOAD: InstalledPart = InstalledPart {
    file: "libterrace_far_preload.so",
    variable: "TERRACE_FAR_PRELOAD",
    what: "the library for run --far",
};

/// Reports loads and stores from within QEMU's user mode.
pub const CAPTURE_PLUGIN: InstalledPart = InstalledPart {
    file: "terrace-capture.so",
    variable: "TERRACE_CAPTURE_PLUGIN",
    what: "the QEMU plugin for record --source full",
};

/// Runs a program from translated code that reports its loads and stores.
pub const TRANSLATOR: InstalledPart = InstalledPart {
    file: "terrace-translate",
    variable: "TERRACE_TRANSLATOR",
    what: "the program for record --source translated",
};

/// All of them.
pub const ALL: [InstalledPart; 4] = [PRELOAD, FAR_PRELOAD, CAPTURE_PLUGIN, TRANSLATOR];

/// A part that is nowhere, with a command that makes it where there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, {what}, is not in {prefix}, and {variable} names no file; {remedy}")]
pub struct MissingPart {
    file: &'static str,
    what: &'static str,
    variable: &'static str,
    prefix: String,
    remedy: String,
}

impl InstalledPart {
    /// The file.
    ///
    /// # Errors
    /// [`MissingPart`].
    pub fn find(self) -> Result<PathBuf, MissingPart> {
        if let Some(path) = std::env::var_os(self.variable).filter(|v| !v.is_empty()) {
            return Ok(path.into());
        }
        let program = std::env::current_exe().unwrap_or_default();
        candidates(&program, user_cache().as_deref(), self.file)
            .into_iter()
            .find(|path| path.is_file())
            .and_then(|path| path.canonicalize().ok())
            .ok_or_else(|| self.missing(&program))
    }

    /// That it is not here, for who found the named file unusable.
    #[must_use]
    pub fn missing_here(self) -> MissingPart {
        self.missing(&std::env::current_exe().unwrap_or_default())
    }

    fn missing(self, program: &Path) -> MissingPart {
        let folder = program.parent().unwrap_or(Path::new("."));
        let prefix = match folder.file_name() {
            Some(name) if name == "bin" => folder.parent().unwrap_or(folder),
            _ => folder,
        };
        MissingPart {
            file: self.file,
            what: self.what,
            variable: self.variable,
            prefix: prefix.display().to_string(),
            remedy: match source_tree(program) {
                Some(tree) => format!("run: {}", make_build(&tree)),
                None => "install Terrace again, this installation is incomplete".to_owned(),
            },
        }
    }
}

/// Opens the lab: QEMU and kernel in its folder, what Terrace builds there or in the prefix.
///
/// # Errors
/// [`LabError::NotSetUp`] with the command that fetches or builds what is missing.
pub fn open_lab() -> Result<Lab, LabError> {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = Lab::default_dir();
    let installed = program.parent().map(|bin| bin.join("../lib/terrace/lab"));
    let installed = installed.filter(|lab| lab.is_dir()).and_then(|lab| lab.canonicalize().ok());
    let remedy = lab_remedy(installed.as_deref(), source_tree(&program).as_deref(), &folder);
    Lab::open_installed(&folder, installed.as_deref(), &remedy)
}

fn lab_remedy(installed: Option<&Path>, tree: Option<&Path>, folder: &Path) -> String {
    let word = |path: PathBuf| quote(&path.to_string_lossy());
    match (installed, tree) {
        (Some(lab), _) => {
            format!("run: {} {}", word(lab.join("fetch.sh")), word(folder.to_owned()))
        }
        (None, Some(tree)) => format!("run: {}", word(tree.join("scripts/lab-parts.sh"))),
        (None, None) => "this installation is without the lab; install Terrace again".to_owned(),
    }
}

/// The command that builds all parts in a source tree, to be pasted into a shell.
#[must_use]
pub fn make_build(tree: &Path) -> String {
    format!("make -C {} build", quote(&tree.to_string_lossy()))
}

/// A word as a shell reads it back.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The source tree that `program` was built in: the nearest folder above it that holds both
/// `Makefile` and `scripts/build.sh`.
#[must_use]
pub fn source_tree(program: &Path) -> Option<PathBuf> {
    let is_tree = |folder: &&Path| {
        folder.join("scripts/build.sh").is_file() && folder.join("Makefile").is_file()
    };
    program.ancestors().skip(1).find(is_tree).map(Path::to_owned)
}

/// `$XDG_CACHE_HOME`, else `~/.cache`.
fn user_cache() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")))
}

/// Where `file` may lie, the first choice first.
fn candidates(program: &Path, cache: Option<&Path>, file: &str) -> Vec<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("."));
    let near = ["", "deps", "../lib/terrace", "../lib"].map(|place| folder.join(place).join(file));
    let cached = cache.map(|cache| cache.join("terrace").join(file));
    let staged = folder.join("../install/lib/terrace").join(file);
    near.into_iter().chain(cached).chain([staged]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_installed_prefix_is_searched_before_the_cache() {
        let all = candidates(Path::new("/opt/t/bin/terrace"), Some(Path::new("/c")), "x.so");
        let at = |path: &str| all.iter().position(|p| p == Path::new(path)).expect(path);
        assert!(at("/opt/t/bin/x.so") < at("/opt/t/bin/../lib/terrace/x.so"));
        assert!(at("/opt/t/bin/../lib/terrace/x.so") < at("/c/terrace/x.so"));
        assert!(candidates(Path::new("terrace"), None, "x.so").contains(&PathBuf::from("x.so")));
    }

    #[test]
    fn a_missing_part_names_a_command_that_a_shell_understands() {
        let tree = std::env::temp_dir().join(format!("terrace parts {}", std::process::id()));
        fs::create_dir_all(tree.join("scripts")).unwrap();
        let program = tree.join("target/release/terrace");
        assert_eq!(source_tree(&program), None);
        for part in ALL {
            let text = part.missing(Path::new("/usr/bin/terrace")).to_string();
            assert!(text.contains(part.file) && text.contains("is not in /usr, and"), "{text}");
        }
        fs::write(tree.join("scripts/build.sh"), "").unwrap();
        fs::write(tree.join("Makefile"), "build:\n\t@echo built\n").unwrap();
        assert_eq!(source_tree(&program).as_deref(), Some(tree.as_path()));
        let text = PRELOAD.missing(&program).to_string();
        let command = text.split_once("run: ").expect("a command").1;
        let ran = std::process::Command::new("sh").args(["-c", command]).output().unwrap();
        fs::remove_dir_all(&tree).unwrap();
        let out = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success() && out.contains("built"), "{command}: {ran:?}");
        let (lab, cache) = (Path::new("/opt/lib/terrace/lab"), Path::new("/var/a b/lab"));
        assert_eq!(
            lab_remedy(Some(lab), Some(&tree), cache),
            "run: /opt/lib/terrace/lab/fetch.sh '/var/a b/lab'"
        );
        assert!(lab_remedy(None, Some(&tree), cache).ends_with("scripts/lab-parts.sh'"));
        assert_eq!((quote("it's"), quote("")), (r"'it'\''s'".to_owned(), "''".to_owned()));
    }
}
