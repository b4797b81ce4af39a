//! Programs that Debian's cross compiler makes, here and under `qemu-riscv64`: the same output and
//! the same status.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_riscv::linux::{Errno, GuestFileStatus, Host, Process, ProcessEnd};
use terrace_testkit::{run_riscv_compiler, RISCV_COMPILER};

const ORACLE: &str = "qemu-riscv64";

/// Keeps what is written to standard output; has no files, and a clock that stands still.
#[derive(Debug, Default)]
struct Collector(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl Host for Collector {
    fn read(&mut self, _: i32, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    fn write(&mut self, descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
        if descriptor != 1 {
            return Ok(bytes.len());
        }
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

/// A program: its source, and how it is compiled.
struct Case(&'static str, &'static [&'static str]);

/// Twenty programs; `-lm` and such stand where the linker wants them.
const CASES: [Case; 20] = [
    Case("mix.c", &["-O2", "-pthread", "-lm"]),
    Case("mix.c", &["-O0", "-pthread", "-lm"]),
    Case("mix.c", &["-Os", "-march=rv64g", "-lm"]),
    Case("mix.c", &["-O3", "-march=rv64gc_zba_zbb", "-lm"]),
    Case("signals.c", &["-O2", "-pthread"]),
    Case("signals.c", &["-O0", "-pthread"]),
    Case("memory.c", &["-O2"]),
    Case("sieve.c", &["-O2"]),
    Case("sieve.c", &["-O3", "-march=rv64gc_zba_zbb"]),
    Case("text.c", &["-O2"]),
    Case("numbers.c", &["-O2", "-lm"]),
    Case("numbers.c", &["-O3", "-ffast-math", "-lm"]),
    Case("jumps.c", &["-O1", "-pthread"]),
    Case("jumps.c", &["-O2", "-static-pie", "-pthread"]),
    Case("containers.cpp", &["-O2", "-std=c++17"]),
    Case("exceptions.cpp", &["-O2", "-std=c++17", "-pthread"]),
    Case("exceptions.cpp", &["-O0", "-std=c++17", "-pthread"]),
    Case("matrix.f90", &["-O2"]),
    Case("matrix.f90", &["-O0"]),
    Case("particles.f90", &["-O2"]),
];

/// Compiles a program into the folder of this test's build; `None` without its compiler.
fn compile(Case(name, flags): &Case) -> Option<PathBuf> {
    let compiler = match name.rsplit('.').next() {
        Some("cpp") => "riscv64-linux-gnu-g++",
        Some("f90") => "riscv64-linux-gnu-gfortran",
        _ => RISCV_COMPILER,
    };
    let output = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{name}{}", flags.concat().replace('/', "_")));
    let mut words = vec![OsString::from("-static"), source(name).into()];
    words.extend(flags.iter().map(OsString::from));
    if !run_riscv_compiler(compiler, words, &output) {
        return None;
    }
    Some(output)
}

/// Runs a program here; what it prints, the status that a shell would show, and its threads.
fn run_here(program: &Path) -> (String, i32, usize) {
    let arguments = ["program".to_owned(), "one".to_owned()].map(String::into_bytes);
    let host = Collector::default();
    let printed = host.0.clone();
    let file = std::fs::read(program).expect("it was compiled");
    let mut process = Process::new(&file, &arguments, &[], 1 << 30, host).expect("it is a program");
    let status = match process.run(&mut (), 4_000_000_000) {
        ProcessEnd::Exit(status) => status.into(),
        ProcessEnd::Signal { signal, .. } => 128 + i32::from(signal),
        end => panic!("{}: {end:?}", program.display()),
    };
    (String::from_utf8(printed.take()).expect("text"), status, process.thread_count())
}

#[test]
fn static_programs_print_and_end_as_under_the_oracle() {
    for case in &CASES {
        let Some(program) = compile(case) else { continue };
        let (printed, status, threads) = run_here(&program);
        assert!(!printed.is_empty() && (case.0 != "mix.c" || threads == 5), "{printed}");
        let mut oracle = Command::new(ORACLE);
        let oracle = oracle.args(["-cpu", "rv64,zba=true,zbb=true"]).arg(&program).arg("one");
        let Ok(expected) = oracle.output() else {
            println!("skipped: {ORACLE} is not installed");
            return;
        };
        let at = program.display();
        assert_eq!(printed, String::from_utf8(expected.stdout).unwrap(), "{at}");
        let signal = std::os::unix::process::ExitStatusExt::signal(&expected.status);
        let oracle_status = expected.status.code().or(signal.map(|signal| 128 + signal));
        assert_eq!(Some(status), oracle_status, "{at}");
    }
}
