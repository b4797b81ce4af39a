//! Runs each target unmanaged and managed, and the tool under faults, and compares.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

type Verdict = Result<(), String>;

/// One case: its name and what it does.
struct Case {
    name: &'static str,
    body: fn(&Bench) -> Verdict,
}

const CASES: &[Case] = &[
    Case { name: "steady-same-output", body: |b| b.same("steady", &["--policy", "terrace"]) },
    Case { name: "steady-hyplacer", body: |b| b.same("steady", &["--policy", "hyplacer"]) },
    Case { name: "exits-while-moved", body: |b| b.same("brief", &["--policy", "hyplacer"]) },
    Case { name: "exec-while-moved", body: |b| b.same("exec", &["--policy", "hyplacer"]) },
    Case { name: "fork-while-moved", body: |b| b.same("fork", &["--policy", "hyplacer"]) },
    Case { name: "unmap-and-remap", body: |b| b.same("unmap", &["--policy", "hyplacer"]) },
    Case { name: "huge-pages", body: |b| b.same("huge", &["--policy", "hyplacer"]) },
    Case { name: "shared-locked-merged", body: |b| b.same("shared", &["--policy", "hyplacer"]) },
    Case { name: "status-passes-through", body: |b| b.same("status", &["--policy", "terrace"]) },
    Case { name: "signal-passes-through", body: signal_passes },
    Case { name: "command-not-found-is-127", body: not_found },
    Case { name: "access-count-refused", body: cells_refused },
    Case { name: "other-user-refused", body: other_user },
    Case { name: "no-privilege-says-why", body: unprivileged },
    Case { name: "full-node", body: full_node },
    Case { name: "cpuset-forbids", body: cpuset_forbids },
    Case { name: "killed-mid-move", body: killed },
    Case { name: "journal-disk-full", body: disk_full },
    Case { name: "damaged-machine-file", body: damaged_machine },
];

/// Names of all cases.
pub fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|c| c.name)
}

/// Runs the cases named (all when none is); returns 1 if any failed.
pub fn drive(terrace: &str, only: &[&str]) -> i32 {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("terrace-cases"));
    let bench = Bench { terrace: PathBuf::from(terrace), own };
    let mut failed = 0;
    for case in CASES.iter().filter(|c| only.is_empty() || only.contains(&c.name)) {
        match (case.body)(&bench) {
            Ok(()) => println!("ok {}", case.name),
            Err(why) if why.starts_with("skipped: ") => {
                println!("skipped {}: {}", case.name, &why[9..]);
            }
            Err(why) => {
                failed += 1;
                println!("FAILED {}: {}", case.name, why.replace('\n', " | "));
            }
        }
    }
    i32::from(failed > 0)
}

struct Bench {
    terrace: PathBuf,
    own: PathBuf,
}

impl Bench {
    fn target(&self, mode: &str) -> Command {
        let mut c = Command::new(&self.own);
        c.args(["target", mode]);
        c
    }

    fn managed(&self, options: &[&str], mode: &str) -> Command {
        let mut c = Command::new(&self.terrace);
        c.arg("run").args(options).arg("--").arg(&self.own).args(["target", mode]);
        c
    }

    /// Unmanaged and managed runs must print the same and end alike.
    fn same(&self, mode: &str, options: &[&str]) -> Verdict {
        let plain = output(&mut self.target(mode))?;
        let managed = output(&mut self.managed(options, mode))?;
        alike(&plain, &managed)
    }
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.stdin(Stdio::null()).output().map_err(|e| format!("cannot start {command:?}: {e}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn alike(plain: &Output, managed: &Output) -> Verdict {
    if plain.stdout.is_empty() && plain.status.success() {
        return Err("the unmanaged run printed nothing".into());
    }
    if plain.stdout != managed.stdout {
        return Err(format!(
            "output differs: {:?} unmanaged, {:?} managed; {}",
            text(&plain.stdout),
            text(&managed.stdout),
            text(&managed.stderr)
        ));
    }
    if plain.status != managed.status {
        return Err(format!("ended with {} unmanaged, {} managed", plain.status, managed.status));
    }
    if text(&managed.stderr).contains("panicked") {
        return Err(format!("the tool panicked: {}", text(&managed.stderr)));
    }
    if managed.stderr.is_empty() {
        return Err("no summary line on standard error".into());
    }
    Ok(())
}

fn send(pid: u32, signal: i32) {
    // SAFETY: sends a signal to a process this driver started and has not yet waited for.
    unsafe { libc::kill(pid as i32, signal) };
}

/// A terminating signal sent to the tool reaches the command; its death is reproduced.
fn signal_passes(b: &Bench) -> Verdict {
    let mut child = spawn(&mut b.managed(&[], "steady"))?;
    std::thread::sleep(Duration::from_millis(300));
    send(child.id(), libc::SIGTERM);
    let status = child.wait().map_err(|e| e.to_string())?;
    let code = std::os::unix::process::ExitStatusExt::signal(&status).or(status.code().map(|c| c - 128));
    if code == Some(libc::SIGTERM) {
        Ok(())
    } else {
        Err(format!("SIGTERM to the tool gave {status}"))
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {command:?}: {e}"))
}

fn not_found(b: &Bench) -> Verdict {
    let out = output(Command::new(&b.terrace).args(["run", "--", "/no/such/program"]))?;
    expect_code(&out, 127)
}

fn cells_refused(b: &Bench) -> Verdict {
    let out = output(&mut b.managed(&["--policy", "access-count"], "brief"))?;
    let attach_code = attach_code(b, &["--policy", "access-count"])?;
    if attach_code.0 != Some(3) {
        return Err(format!("attach gave {:?}: {}", attach_code.0, attach_code.1));
    }
    // `run` always runs the command, unmanaged if need be, and says so.
    if out.status.code() == Some(0) && text(&out.stderr).contains("access-count") {
        Ok(())
    } else {
        Err(format!("run gave {}: {}", out.status, text(&out.stderr)))
    }
}

fn attach_code(b: &Bench, options: &[&str]) -> Result<(Option<i32>, String), String> {
    let mut victim = spawn(&mut b.target("steady"))?;
    let pid = victim.id().to_string();
    let out = output(Command::new(&b.terrace).arg("attach").args(options).args(["-p", &pid]));
    send(victim.id(), libc::SIGKILL);
    let _ = victim.wait();
    let out = out?;
    Ok((out.status.code(), text(&out.stderr)))
}

fn expect_code(out: &Output, code: i32) -> Verdict {
    if out.status.code() == Some(code) {
        Ok(())
    } else {
        Err(format!("expected status {code}, got {}: {}", out.status, text(&out.stderr)))
    }
}

const NOBODY: u32 = 65534;

/// The tool run by somebody else must refuse our process.
fn other_user(b: &Bench) -> Verdict {
    let mut victim = spawn(&mut b.target("steady"))?;
    let pid = victim.id().to_string();
    let out = output(Command::new(&b.terrace).args(["attach", "-p", &pid]).uid(NOBODY));
    send(victim.id(), libc::SIGKILL);
    let _ = victim.wait();
    let out = out?;
    let said = text(&out.stderr);
    if out.status.success() || out.status.code().is_none() {
        return Err(format!("not refused: {} {said}", out.status));
    }
    if said.lines().count() != 1 || !said.contains(&pid) {
        return Err(format!("not one clear line naming the process: {said:?}"));
    }
    Ok(())
}

/// Without privilege the command still runs, output and status its own.
fn unprivileged(b: &Bench) -> Verdict {
    let plain = output(b.target("status").uid(NOBODY))?;
    let managed = output(b.managed(&[], "status").uid(NOBODY))?;
    alike(&plain, &managed)?;
    let said = text(&managed.stderr);
    if said.contains("CAP_") {
        Ok(())
    } else {
        Err(format!("names no capability: {said}"))
    }
}

/// The fast node is filled by another process; moving must back off, not fail the target.
fn full_node(b: &Bench) -> Verdict {
    let mut hog = spawn(&mut b.target("steady"))?;
    std::thread::sleep(Duration::from_millis(200));
    let verdict = b.same("steady", &["--policy", "hyplacer"]);
    send(hog.id(), libc::SIGKILL);
    let _ = hog.wait();
    verdict
}

/// The target may not use the fast node at all; the tool must not try for ever nor fail it.
fn cpuset_forbids(b: &Bench) -> Verdict {
    let group = Path::new("/sys/fs/cgroup/terrace-case");
    let prepare = || -> std::io::Result<()> {
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset")?;
        fs::create_dir_all(group)?;
        fs::write(group.join("cpuset.mems"), "1")
    };
    if let Err(e) = prepare() {
        return Err(format!("skipped: no cpuset controller: {e}"));
    }
    let procs = group.join("cgroup.procs");
    let enter = |c: &mut Command| {
        let procs = procs.clone();
        // SAFETY: the closure only opens and writes a file; no lock of the parent is needed.
        unsafe { c.pre_exec(move || fs::write(&procs, "0")) };
    };
    let mut plain = b.target("steady");
    enter(&mut plain);
    let mut managed = b.managed(&["--policy", "hyplacer"], "steady");
    enter(&mut managed);
    let verdict = alike(&output(&mut plain)?, &output(&mut managed)?);
    let _ = fs::remove_dir(group);
    verdict
}

/// The tool is killed while it moves pages: the target runs on, and no kdamond of ours stays on.
fn killed(b: &Bench) -> Verdict {
    let plain = output(&mut b.target("steady"))?;
    let mut victim = spawn(&mut b.target("steady"))?;
    let pid = victim.id().to_string();
    let mut tool = spawn(Command::new(&b.terrace).args(["attach", "--policy", "hyplacer", "-p", &pid]))?;
    std::thread::sleep(Duration::from_millis(700));
    let ended_early = tool.try_wait().map_err(|e| e.to_string())?.is_some();
    send(tool.id(), libc::SIGKILL);
    let _ = tool.wait();
    let mut said = Vec::new();
    if let Some(mut stdout) = victim.stdout.take() {
        stdout.read_to_end(&mut said).map_err(|e| e.to_string())?;
    }
    let status = victim.wait().map_err(|e| e.to_string())?;
    if ended_early {
        return Err("the tool ended before it could be killed".into());
    }
    if said != plain.stdout || status != plain.status {
        return Err(format!("the target was harmed: {status} {:?}", text(&said)));
    }
    std::thread::sleep(Duration::from_millis(500));
    let count = fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds");
    match count.as_deref().map(str::trim) {
        Ok("0") | Err(_) => Ok(()),
        Ok(_) => {
            let state = fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/0/state");
            match state.as_deref().map(str::trim) {
                Ok("off") => Ok(()),
                other => Err(format!("a kdamond was left {other:?}")),
            }
        }
    }
}

/// The journal's disk is full: the target does not notice, the tool says it once.
fn disk_full(b: &Bench) -> Verdict {
    if !Path::new("/dev/full").exists() {
        return Err("skipped: no /dev/full".into());
    }
    let plain = output(&mut b.target("status"))?;
    let managed = output(&mut b.managed(&["--journal", "/dev/full"], "status"))?;
    alike(&plain, &managed)?;
    let said = text(&managed.stderr);
    if said.contains("journal") {
        Ok(())
    } else {
        Err(format!("did not say that the journal failed: {said}"))
    }
}

fn damaged_machine(b: &Bench) -> Verdict {
    let file = std::env::temp_dir().join("terrace-case-damaged.toml");
    fs::write(&file, b"[[node]]\nid = -1\ncapacity = \"lots\"\n").map_err(|e| e.to_string())?;
    let file = file.to_string_lossy().into_owned();
    let out = output(&mut b.managed(&["--machine", &file], "brief"))?;
    let said = text(&out.stderr);
    if out.status.code() == Some(125) && said.lines().count() == 1 && !said.contains("panicked") {
        Ok(())
    } else {
        Err(format!("expected one line and status 125, got {}: {said}", out.status))
    }
}
