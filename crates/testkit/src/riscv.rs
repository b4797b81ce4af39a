//! Programs for riscv64 that tests compile with Debian's cross compilers.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Debian's C compiler for riscv64.
pub const RISCV_COMPILER: &str = "riscv64-linux-gnu-gcc";

/// Runs a cross compiler in the folder of its output; `false`, and a line that says so, where it is
/// not installed.
///
/// # Panics
/// With the compiler's messages, where it refuses.
#[must_use]
pub fn run_riscv_compiler<W: AsRef<OsStr>>(
    compiler: &str,
    words: impl IntoIterator<Item = W>,
    output: &Path,
) -> bool {
    let mut command = Command::new(compiler);
    command.current_dir(output.parent().unwrap_or(Path::new("/"))).arg("-o").arg(output);
    let Ok(run) = command.args(words).output() else {
        println!("skipped: {compiler} is not installed");
        return false;
    };
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    true
}

/// Compiles a C program together with xBGAS's run-time library, for a dialect by its number; as
/// [`run_riscv_compiler`].
///
/// # Panics
/// As there.
#[must_use]
pub fn compile_xbgas_program(source: &Path, dialect: u32, output: &Path) -> bool {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xbgas/runtime");
    let dialect = format!("-DXBGAS_DIALECT={dialect}");
    let flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static", "-no-pie", "-I"];
    let mut words: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    let library = ["xbrtime.c", "transfer.c"].map(|file| runtime.join(file));
    words.extend([runtime.as_os_str(), dialect.as_ref(), source.as_os_str()]);
    words.extend(library.iter().map(|file| file.as_os_str()));
    run_riscv_compiler(RISCV_COMPILER, words, output)
}
