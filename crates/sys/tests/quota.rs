//! A ration of CPUs by a control group of this machine, seen from within.

use std::path::Path;
use std::process::Command;
use terrace_sys::{cpu_quota, idle_cpus, Root};

/// Set for the copy of this test that runs in the group.
const INSIDE: &str = "TERRACE_TEST_INSIDE_A_QUOTA";

#[test]
fn a_quota_is_seen_from_within() {
    if std::env::var_os(INSIDE).is_some() {
        println!("quota={:?} idle={}", cpu_quota(&Root::live()), idle_cpus(&Root::live()));
        return;
    }
    let base = Path::new("/sys/fs/cgroup");
    let second = std::fs::read_to_string(base.join("cgroup.subtree_control")).unwrap_or_default();
    let name = format!("terrace-quota-{}", std::process::id());
    let (group, file) = if base.join("cpu/cpu.cfs_quota_us").exists() {
        (base.join("cpu").join(name), "cpu.cfs_quota_us")
    } else if second.split_whitespace().any(|c| c == "cpu") {
        (base.join(name), "cpu.max")
    } else {
        return println!("skipped: no control group rations CPUs here");
    };
    if let Err(e) = std::fs::create_dir(&group) {
        return println!("skipped: making {}: {e}", group.display());
    }
    // The period is 100 ms unless told.
    let reported = std::fs::write(group.join(file), "130000").map(|()| {
        let me = std::env::current_exe().expect("this test");
        let mut child = Command::new("sh");
        child.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&group).arg(me);
        child.args(["--exact", "a_quota_is_seen_from_within", "--nocapture"]).env(INSIDE, "1");
        child.output().expect("sh runs")
    });
    // The kernel takes a moment to see that the child is gone.
    let removed = (0..10_000).any(|_| {
        std::fs::remove_dir(&group).is_ok() || {
            std::thread::yield_now();
            false
        }
    });
    assert!(removed, "{} is left behind", group.display());
    let output = match reported {
        Ok(output) => output,
        Err(e) => return println!("skipped: writing {file}: {e}"),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let line = said.lines().find(|l| l.contains("quota=")).unwrap_or_else(|| panic!("{said}"));
    // The tests themselves may be rationed more.
    let all = cpu_quota(&Root::live()).unwrap_or(u64::MAX).min(1300);
    assert!(line.contains(&format!("quota=Some({all})")), "{line}");
    assert!(line.ends_with("idle=1"), "one whole CPU of 1.3: {line}");
}
