//! What tests share that compile programs and run them in the translator.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The file that an environment variable names for the translator.
pub const TRANSLATOR: &str = "terrace-translate";

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command; what it said where it fails.
pub fn done(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(text(&output.stderr)),
        Err(error) => Err(error.to_string()),
    }
}

/// A program to compile: its source, its name, and the compiler's flags.
pub struct TestProgram {
    source: PathBuf,
    name: String,
    flags: Vec<String>,
}

impl TestProgram {
    /// `source` is relative to the folder of this crate.
    pub fn new(source: &str, name: &str, flags: &[&str]) -> Self {
        Self {
            source: Path::new(env!("CARGO_MANIFEST_DIR")).join(source),
            name: name.to_owned(),
            flags: flags.iter().map(|f| (*f).to_owned()).collect(),
        }
    }
}

/// Programs of `tests/programs`: source, name and flags.
#[allow(dead_code)] // not every test has some
pub fn own_programs(programs: &[(&str, &str, &[&str])]) -> Vec<TestProgram> {
    let program = |(source, name, flags): &(&str, &str, &[&str])| {
        TestProgram::new(&format!("tests/programs/{source}"), name, flags)
    };
    programs.iter().map(program).collect()
}

/// A new folder with the translator and these programs, or why there is none.
pub fn folder_with(name: &str, programs: Vec<TestProgram>) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = root.join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut build = Command::new(here.join("../../capture/translator/build.sh"));
    build.arg(folder.join(TRANSLATOR)).env("TERRACE_TRANSLATOR_TARGET", root.join("translator"));
    let waiting = Mutex::new(programs.into_iter());
    let compile = || -> Result<(), String> {
        loop {
            let next = waiting.lock().map_err(|e| e.to_string())?.next();
            let Some(program) = next else { return Ok(()) };
            let mut cc = Command::new("cc");
            cc.arg("-o").arg(folder.join(&program.name)).arg(program.source);
            done(cc.args(&program.flags))
                .map_err(|e| format!("{} cannot be built: {e}", program.name))?;
        }
    };
    // Two at a time, besides the translator.
    let failed = |_| Err("compiling panicked".to_owned());
    std::thread::scope(|scope| {
        let others = [scope.spawn(compile), scope.spawn(compile)];
        let own = done(&mut build).map_err(|e| format!("the translator cannot be built: {e}"));
        others.into_iter().try_fold((), |(), other| other.join().unwrap_or_else(failed))?;
        own
    })?;
    Ok(folder)
}

/// The folder, or a line that says why the test is skipped.
pub fn or_skip(made: &'static Result<PathBuf, String>) -> Option<&'static Path> {
    match made {
        Ok(folder) => Some(folder),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}
