//! The runner takes over signals and children of the whole process, so it has a process of its
//! own: no harness, one thread.

#![allow(clippy::unwrap_used)] // a test that fails may panic

use std::ffi::OsString;
use terrace_sys::{Ended, Runner};
use terrace_types::Nanos;

fn argv(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn main() {
    let mut seven = Runner::start(&argv(&["sh", "-c", "exit 7"])).unwrap();
    assert_eq!(seven.wait_to_end(), Ended::Code(7));
    drop(seven);

    let mut killed = Runner::start(&argv(&["sh", "-c", "kill -USR1 $$"])).unwrap();
    assert_eq!(killed.wait_to_end(), Ended::Signal(10));
    drop(killed);

    let mut slow = Runner::start(&argv(&["sleep", "60"])).unwrap();
    assert_eq!(slow.wait(Nanos::millis(20)), None);
    // A signal sent to the tool reaches the command, and the tool itself lives on.
    let me = std::process::id().to_string();
    let mut sender = std::process::Command::new("sh").args(["-c", &format!("kill -TERM {me}")]).spawn().unwrap();
    assert_eq!(slow.wait_to_end(), Ended::Signal(15));
    let _already_reaped = sender.wait();
    println!("ok: status and signals pass through");
}
