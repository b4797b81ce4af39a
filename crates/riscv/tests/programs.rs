//! Programs that Debian's cross compiler makes, here and under `qemu-riscv64`: the same output and
//! the same status.

use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_riscv::linux::{Errno, GuestFileStatus, Host, Process, ProcessEnd};

const COMPILER: &str = "riscv64-linux-gnu-gcc";
const ORACLE: &str = "qemu-riscv64";

/// Keeps what is written to standard output; has no files, and a clock that stands still.
#[derive(Debug, Default)]
struct Collector(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl Host for Collector {
    fn read(&mut self, _: i32, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    fn write(&mut self, descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
        assert_eq!(descriptor, 1, "{}", String::from_utf8_lossy(bytes));
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn open(&mut self, _: &[u8], _: u32, _: u32) -> Result<i32, Errno> {
        Err(Errno(2))
    }
    fn close(&mut self, _: i32) -> Result<(), Errno> {
        Ok(())
    }
    fn seek(&mut self, _: i32, _: i64, _: u32) -> Result<u64, Errno> {
        Err(Errno(29))
    }
    fn status(&mut self, _: i32) -> Result<GuestFileStatus, Errno> {
        Ok(GuestFileStatus { mode: 0o10_600, ..GuestFileStatus::default() })
    }
    fn now_ns(&mut self, _: u32) -> u64 {
        0
    }
    fn sleep_ns(&mut self, _: u64) {}
    fn fill_random(&mut self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Compiles a program into the folder of this test's build; `None` without a compiler.
fn compile(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{name}{}", flags.concat().replace('/', "_")));
    let run = Command::new(COMPILER).arg("-o").arg(&output).arg(source(name)).args(flags).output();
    let run = run.ok()?;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(output)
}

#[test]
fn a_static_program_prints_and_ends_as_under_the_oracle() {
    for flags in [
        ["-O2", "-static", "-pthread", "-lm"],
        ["-O0", "-static", "-pthread", "-lm"],
        ["-Os", "-static", "-march=rv64g", "-lm"],
        ["-O3", "-static", "-march=rv64gc_zba_zbb", "-lm"],
    ] {
        let Some(program) = compile("mix.c", &flags) else {
            println!("skipped: {COMPILER} is not installed");
            return;
        };
        let arguments = ["mix".to_owned(), "one".to_owned()].map(String::into_bytes);
        let host = Collector::default();
        let printed = host.0.clone();
        let file = std::fs::read(&program).unwrap();
        let mut process = Process::new(&file, &arguments, &[], 1 << 30, host).unwrap();
        let end = process.run(&mut (), 2_000_000_000);
        let printed = String::from_utf8(printed.take()).unwrap();
        assert_eq!(end, ProcessEnd::Exit(7), "{flags:?}\n{printed}");
        assert!(printed.contains("argument one") && process.thread_count() == 5, "{printed}");
        let mut oracle = Command::new(ORACLE);
        let oracle = oracle.args(["-cpu", "rv64,zba=true,zbb=true"]).arg(&program).arg("one");
        let Ok(expected) = oracle.output() else {
            println!("skipped: {ORACLE} is not installed");
            return;
        };
        assert_eq!(printed, String::from_utf8(expected.stdout).unwrap(), "{flags:?}");
        assert_eq!(expected.status.code(), Some(7));
    }
}
