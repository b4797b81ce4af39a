//! The runner takes over signals and children of the whole process, so it has a process of its
//! own: no harness, one thread.

#![allow(clippy::unwrap_used)] // a test that fails may panic

use std::ffi::OsString;
use terrace_sys::{CommandExit, Runner};
use terrace_types::Nanos;

fn argv(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn main() {
    let mut seven = Runner::start(&argv(&["sh", "-c", "exit 7"])).unwrap();
    assert_eq!(seven.wait_to_end(), CommandExit::Code(7));
    drop(seven);

    let mut killed = Runner::start(&argv(&["sh", "-c", "kill -USR1 $$"])).unwrap();
    assert_eq!(killed.wait_to_end(), CommandExit::Signal(10));
    drop(killed);

    let mut slow = Runner::start(&argv(&["sleep", "60"])).unwrap();
    assert_eq!(slow.wait(Nanos::millis(20)), None);
    // A signal sent to the tool reaches the command, and the tool itself lives on.
    let me = std::process::id().to_string();
    let mut sender =
        std::process::Command::new("sh").args(["-c", &format!("kill -TERM {me}")]).spawn().unwrap();
    assert_eq!(slow.wait_to_end(), CommandExit::Signal(15));
    let _already_reaped = sender.wait();
    cpus_are_passed_on();
    println!("ok: status, signals and CPUs pass through");
}

/// A command may run wherever we may.
fn cpus_are_passed_on() {
    let out = std::env::temp_dir().join(format!("terrace-runner-cpus-{}", std::process::id()));
    let line = format!("grep Cpus_allowed_list /proc/self/status >{}", out.display());
    let mut command = Runner::start(&argv(&["sh", "-c", &line])).unwrap();
    assert_eq!(command.wait_to_end(), CommandExit::Code(0));
    let allowed = |text: String| {
        text.lines().find(|l| l.starts_with("Cpus_allowed_list")).unwrap().to_owned()
    };
    let ours = allowed(std::fs::read_to_string("/proc/thread-self/status").unwrap());
    assert_eq!(allowed(std::fs::read_to_string(&out).unwrap()), ours);
    std::fs::remove_file(out).unwrap();
}
