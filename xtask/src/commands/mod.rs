//! `cargo xtask commands PREFIX`: runs every command of README, the guides and `--help` with the
//! Terrace that is installed in PREFIX, as an ordinary user, in an empty folder for each document.
//!
//! Prints a line for each: `ok`, `FAILED` with the reason, `skipped` where this machine lacks what
//! is needed (status 3, or 125 of `run`), or `not run` with the reason that the document's marker
//! gives.

mod extract;

use extract::{commands_in, examples_in};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

/// Documents whose commands are run. Others' are for those who change Terrace.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "docs/machine-file.md",
    "docs/guide/allocate.md",
    "docs/guide/far.md",
    "docs/guide/measure.md",
    "docs/guide/preload.md",
    "docs/guide/stage.md",
    "capture/README.md",
];

/// A command that takes longer is not an example.
const LIMIT_SECONDS: u32 = 60;

/// Stands in for an ordinary user where the test runs as root: `nobody`.
const ORDINARY_ID: &str = "65534";

/// Where commands run, and with what.
struct Bench {
    prefix: PathBuf,
    work: PathBuf,
    root: bool,
}

/// What became of one command.
enum Verdict {
    Worked,
    Lacking(String),
    Failed(String),
}

/// Runs all.
pub fn commands(prefix: Option<String>) -> ExitCode {
    let Some(prefix) = prefix else {
        eprintln!("usage: cargo xtask commands PREFIX");
        return ExitCode::from(2);
    };
    match run_all(Path::new(&prefix)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            println!("FAILED commands: {why}");
            ExitCode::FAILURE
        }
    }
}

/// How many failed.
fn run_all(prefix: &Path) -> Result<usize, String> {
    let bench = Bench::new(prefix)?;
    let mut failed = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(document).map_err(|e| format!("{document}: {e}"))?;
        let commands = commands_in(&text).map_err(|why| format!("{document}: {why}"))?;
        bench.furnish()?;
        for command in commands {
            let name = format!("{document}:{} {}", command.line, command.text);
            failed += match command.not_run {
                Some(why) => report(&name, Err(&why)),
                None => report(&name, Ok(bench.run(&command.text)?)),
            };
        }
    }
    bench.furnish()?;
    for path in bench.subcommands()? {
        let help = bench.output(&format!("COLUMNS=1000 terrace {path} --help"))?;
        for example in examples_in(&String::from_utf8_lossy(&help.stdout)) {
            let name = format!("terrace {path} --help: {example}");
            failed += match not_an_example(&path) {
                Some(why) => report(&name, Err(why)),
                None => report(&name, Ok(bench.run(&example)?)),
            };
        }
    }
    std::fs::remove_dir_all(&bench.work).map_err(|e| format!("{}: {e}", bench.work.display()))?;
    Ok(failed)
}

/// Commands whose example a test cannot run.
fn not_an_example(path: &str) -> Option<&'static str> {
    match path {
        "trace import" => Some("lackey.txt is what valgrind writes"),
        "plan" => Some("takes a recording with named objects; see docs/guide/preload.md"),
        "attach" => Some("4242 stands for a process of the reader's"),
        "top" | "show" => Some("solver stands for a process of the reader's"),
        "riscv run" => {
            Some("takes a riscv64 program; crates/riscv/tests/programs.rs compiles some")
        }
        "riscv boot" => Some("takes a riscv64 kernel; crates/cli/tests/riscv.rs makes one"),
        "riscv disasm" => Some("takes a riscv64 program; crates/cli/tests/riscv.rs compiles one"),
        "crash run" | "crash check" | "crash advise" => {
            Some("takes a program of examples/crash; crates/cli/tests/crash.rs compiles some")
        }
        "probe" => Some("takes most of a minute; crates/cli/tests/probe.rs runs it"),
        _ if path.starts_with("lab ") => Some("boots a virtual machine; scripts/ring3.sh does"),
        _ => None,
    }
}

/// Prints the line; 1 where the command failed.
fn report(name: &str, verdict: Result<Verdict, &str>) -> usize {
    match verdict {
        Err(why) => println!("not run {name}: {why}"),
        Ok(Verdict::Worked) => println!("ok {name}"),
        Ok(Verdict::Lacking(why)) => println!("skipped {name}: {why}"),
        Ok(Verdict::Failed(why)) => {
            println!("FAILED {name}: {why}");
            return 1;
        }
    }
    0
}

impl Bench {
    fn new(prefix: &Path) -> Result<Self, String> {
        let prefix = prefix.canonicalize().map_err(|e| format!("{}: {e}", prefix.display()))?;
        let id = Command::new("id").arg("-u").output().map_err(|e| format!("id: {e}"))?;
        let root = id.stdout == b"0\n";
        let work = std::env::temp_dir().join(format!("terrace-commands-{}", std::process::id()));
        Ok(Self { prefix, work, root })
    }

    /// An empty folder with what documents take for granted: a program, its input, a machine file,
    /// a plan and a CUDA kernel.
    fn furnish(&self) -> Result<(), String> {
        let script = format!(
            "rm -rf '{work}' && mkdir -p '{work}' && cd '{work}' && cp \"$(command -v sort)\" \
                solver \
             && cp solver program && seq 1000 >input \
             && cp '{presets}/lab-cxl.toml' machine.toml && cp '{kernels}/fir.cu' . \
             && printf 'arena bulk prefer 0\\ndefault bulk\\n' >plan && chmod 755 . \
             && {{ [ \"$(id -u)\" != 0 ] || chown -R {ORDINARY_ID}:{ORDINARY_ID} .; }}",
            work = self.work.display(),
            presets =
                Path::new("crates/machine/presets").canonicalize().unwrap_or_default().display(),
            kernels = Path::new("crates/gpu/kernels").canonicalize().unwrap_or_default().display(),
        );
        let made = Command::new("sh").args(["-c", &script]).output();
        match made {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(e) => Err(format!("sh: {e}")),
        }
    }

    fn output(&self, text: &str) -> Result<Output, String> {
        let limit = LIMIT_SECONDS.to_string();
        let mut words = vec!["timeout", "-k", "5", &limit];
        if self.root {
            words = ["setpriv", "--reuid", ORDINARY_ID, "--regid", ORDINARY_ID, "--clear-groups"]
                .into_iter()
                .chain(words)
                .collect();
        }
        words.extend(["sh", "-c", text]);
        Command::new(words[0])
            .args(&words[1..])
            .current_dir(&self.work)
            .env_clear()
            .env("PATH", format!("{}/bin:/usr/local/bin:/usr/bin:/bin", self.prefix.display()))
            .env("HOME", &self.work)
            .env("LC_ALL", "C.UTF-8")
            .stdin(std::process::Stdio::null())
            .output()
            .map_err(|e| format!("{}: {e}", words[0]))
    }

    fn run(&self, text: &str) -> Result<Verdict, String> {
        let output = self.output(text)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = said.lines().last().unwrap_or_default().to_owned();
        Ok(match output.status.code() {
            Some(0) => Verdict::Worked,
            // Wrong usage names the help; what the machine lacks names what would do.
            Some(3 | 125) if !said.contains("--help") => Verdict::Lacking(last),
            Some(status) => Verdict::Failed(format!("status {status}: {last}")),
            None => Verdict::Failed(format!("ended by a signal: {last}")),
        })
    }

    fn subcommands(&self) -> Result<Vec<String>, String> {
        let listed = self.output("terrace list commands --names")?;
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        if names.is_empty() {
            return Err(format!("{} lists no commands", self.prefix.join("bin/terrace").display()));
        }
        Ok(names.lines().map(str::to_owned).collect())
    }
}
