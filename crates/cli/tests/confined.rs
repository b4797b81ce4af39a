//! `terrace probe` and `terrace degrade` where they may have little: one CPU, a cpuset, a memory
//! limit, a ration of CPUs, other work. The real things, set by control groups of this machine
//! where it lets them be made, and gone afterwards.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One measures at a time: each would be the other's noise.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A control group of one's own. Removed when dropped, when nobody is in it any more.
struct Group(PathBuf);

impl Group {
    /// With files written: the name in version 1, in version 2, and the text. An error says why
    /// there can be none.
    fn new(controller: &str, files: &[(&str, &str, &str)]) -> Result<Self, String> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("terrace-test-{}-{number}", std::process::id());
        let (first, second) =
            (Path::new("/sys/fs/cgroup").join(controller), Path::new("/sys/fs/cgroup"));
        let shared =
            std::fs::read_to_string(second.join("cgroup.subtree_control")).unwrap_or_default();
        let (folder, version) = if first.join("cgroup.procs").exists() {
            (first.join(&name), 1)
        } else if shared.split_whitespace().any(|c| c == controller) {
            (second.join(&name), 2)
        } else {
            return Err(format!("there is no control group for {controller} here"));
        };
        std::fs::create_dir(&folder).map_err(|e| format!("making {}: {e}", folder.display()))?;
        let group = Self(folder);
        for (v1, v2, text) in files {
            let path = group.0.join(if version == 1 { v1 } else { v2 });
            std::fs::write(&path, text).map_err(|e| format!("writing {}: {e}", path.display()))?;
        }
        Ok(group)
    }

    /// `terrace` in this group.
    fn terrace(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.0);
        command.arg(env!("CARGO_BIN_EXE_terrace"));
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment to see that the last process is gone.
        for _ in 0..10_000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
        eprintln!("{} is left behind", self.0.display());
    }
}

/// `terrace` on this CPU alone.
fn on_cpu(cpu: u32) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string()]).arg(env!("CARGO_BIN_EXE_terrace"));
    command
}

fn own_cpus() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process's status");
    let list =
        status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).expect("its CPUs").trim();
    let number = |text: &str| text.parse::<u32>().expect("a number");
    list.split(',')
        .flat_map(|part| match part.split_once('-') {
            Some((first, last)) => number(first)..=number(last),
            None => number(part)..=number(part),
        })
        .collect()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("terrace-confined-{}-{name}", std::process::id()))
}

fn complaints(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Probes briefly into a file by `command`; the file's text, or `None` where this machine cannot
/// (which is said).
fn probed(mut command: Command, name: &str) -> Option<String> {
    let path = file(name);
    let output = match command.args(["probe", "--brief", "--json", "-o"]).arg(&path).output() {
        Ok(output) => output,
        Err(e) => {
            println!("skipped: {:?} does not start: {e}", command.get_program());
            return None;
        }
    };
    let complaints = complaints(&output);
    if output.status.code() == Some(3) {
        println!("skipped: {complaints}");
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{complaints}");
    assert_eq!(complaints, "", "silent in a pipe");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(json["tiers"].as_array().is_some_and(|tiers| !tiers.is_empty()), "{json}");
    let tiers =
        Command::new(env!("CARGO_BIN_EXE_terrace")).args(["tiers", "--from"]).arg(&path).output();
    assert!(tiers.expect("terrace runs").status.success(), "the file is a machine");
    let text = std::fs::read_to_string(&path).expect("the file");
    std::fs::remove_file(&path).expect("removed");
    Some(text)
}

#[test]
fn one_cpu_is_measured_alone_and_degrades_nothing() {
    let _turn = turn();
    let cpu = own_cpus()[0];
    let Some(text) = probed(on_cpu(cpu), "one-cpu.toml") else { return };
    assert!(text.contains("read_bandwidth") && text.contains("measured"), "{text}");
    let mark = file("ran");
    let output =
        on_cpu(cpu).args(["degrade", "0", "--to", "1GB/s", "--", "touch"]).arg(&mark).output();
    let output = output.expect("taskset runs");
    let reported = complaints(&output);
    assert_eq!(output.status.code(), Some(3), "{reported}");
    assert!(
        reported.contains("one CPU may be used here") && reported.lines().count() == 1,
        "{reported}"
    );
    assert!(!mark.exists(), "the command does not run");
}

#[test]
fn a_cpuset_is_kept_to() {
    let _turn = turn();
    let cpus = own_cpus();
    if cpus.len() < 2 {
        return println!("skipped: one CPU may be used here, and a cpuset of fewer cannot be");
    }
    let last = cpus[cpus.len() - 1].to_string();
    let nodes =
        std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or("0".to_owned());
    let node = nodes.trim().split([',', '-']).next().unwrap_or("0").to_owned();
    let files = [
        ("cpuset.mems", "cpuset.mems", node.as_str()),
        ("cpuset.cpus", "cpuset.cpus", last.as_str()),
    ];
    let group = match Group::new("cpuset", &files) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let path = file("cpuset.json");
    let output = group
        .terrace()
        .args(["probe", "--brief", "--report"])
        .arg(file("cpuset.html"))
        .arg("-o")
        .arg(&path)
        .output();
    let output = output.expect("sh runs");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.code() == Some(3) {
        return println!("skipped: {}", complaints(&output));
    }
    assert_eq!(output.status.code(), Some(0), "{}", complaints(&output));
    // All that was measured was so by one thread, though the machine has more CPUs.
    let threads: Vec<&str> = table.lines().filter(|l| l.contains(" threads ")).collect();
    assert!(!threads.is_empty() && threads.iter().all(|l| l.contains(" 1 threads ")), "{table}");
    for name in ["cpuset.json", "cpuset.html"] {
        std::fs::remove_file(file(name)).expect("it was written");
    }
}

#[test]
fn a_memory_limit_below_a_tests_size_bounds_what_is_measured_and_nothing_is_killed() {
    let _turn = turn();
    let limited = |mib: u64| {
        let bytes = (mib << 20).to_string();
        Group::new("memory", &[("memory.limit_in_bytes", "memory.max", bytes.as_str())])
    };
    let group = match limited(100) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let path = file("limit.toml");
    let output = group
        .terrace()
        .args(["probe", "--brief", "--json", "-o"])
        .arg(&path)
        .output()
        .expect("sh runs");
    let reported = complaints(&output);
    if output.status.code() == Some(3) {
        // Caches as large as what may be measured: what they give is not published as memory's.
        assert!(
            reported.lines().count() == 1
                && reported.contains("cannot be distinguished from those of the caches"),
            "{reported}"
        );
        assert!(reported.contains("limit of control group") && !path.exists(), "{reported}");
    } else {
        assert_eq!((output.status.code(), reported.as_str()), (Some(0), ""));
        let text = std::fs::read_to_string(&path).expect("the file");
        std::fs::remove_file(&path).expect("removed");
        assert!(text.contains("evidence = \"measured\""), "{text}");
        // Half of what is left of the limit, at most, in whichever words.
        let largest = text
            .split("no region measured there is larger than ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        if let Some(largest) = largest {
            let mib: f64 = largest.parse().expect("a number of MiB");
            assert!(mib < 51.0 && text.contains("limit of control group"), "{text}");
        }
    }
    drop(group);
    // Less than the least that a measurement takes: said, not tried.
    let group = limited(12).expect("it was made before");
    let output = group
        .terrace()
        .args(["probe", "--brief", "-o"])
        .arg(file("none.toml"))
        .output()
        .expect("sh runs");
    let reported = complaints(&output);
    assert_eq!(output.status.code(), Some(3), "{reported}");
    assert!(
        reported.lines().count() == 1 && reported.contains("limit of control group"),
        "{reported}"
    );
    assert!(!file("none.toml").exists(), "no machine of nothing");
}

#[test]
fn a_ration_of_cpus_is_measured_and_ends() {
    let _turn = turn();
    let files = [("cpu.cfs_quota_us", "cpu.max", "60000")];
    let group = match Group::new("cpu", &files) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let Some(text) = probed(group.terrace(), "quota.toml") else { return };
    assert!(text.contains("read_bandwidth"), "{text}");
}

/// Programs that do nothing but run; ended when dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn on(cpus: &[u32]) -> Self {
        let one = |cpu: &u32| {
            let mut loops = Command::new("taskset");
            loops
                .args(["-c", &cpu.to_string(), "sh", "-c", "while :; do :; done"])
                .stdin(Stdio::null());
            loops.spawn().expect("taskset was there before")
        };
        Self(cpus.iter().flat_map(|cpu| [one(cpu), one(cpu)]).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Gone already: nothing to end.
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

#[test]
fn other_users_of_the_machine_are_reported() {
    let _turn = turn();
    let cpus = own_cpus();
    if cpus.len() > 8 || on_cpu(cpus[0]).arg("--version").output().is_err() {
        return println!("skipped: more CPUs than a test should keep busy, or no taskset");
    }
    let busy = Busy::on(&cpus);
    let text = probed(Command::new(env!("CARGO_BIN_EXE_terrace")), "noisy.toml");
    drop(busy);
    let Some(text) = text else { return };
    // Runs between the turns of others may all be good, and are few in a brief probe: what the
    // others had is reported all the same.
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    if !stat.lines().next().unwrap_or_default().contains(|c: char| ('1'..='9').contains(&c)) {
        return println!("skipped: this kernel does not say how busy its CPUs are");
    }
    let reported = text.contains("Other work had ");
    assert!(reported, "two programs were on each CPU: {text}");
}
