//! Signals: to the tool for the command, to the tool for itself, and the one that it cannot handle.

use crate::checks::{
    alike, one_line, output, said, spawn, text, wait_for, CaseVerdict, SummaryFile,
};
use crate::driver::{CaseBench, TargetProcess};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output};
use std::time::Duration;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// In which a guardian must have cleaned up.
const SOON: Duration = Duration::from_secs(5);
/// In which a tracker must have started, and a tool that is asked to must have ended.
const PATIENCE: Duration = Duration::from_secs(20);

fn send(child: &Child, signal: i32) {
    // SAFETY: sends a signal to a process this driver started and has not yet waited for.
    unsafe { libc::kill(child.id() as i32, signal) };
}

fn collect(child: Child) -> Result<Output, String> {
    child.wait_with_output().map_err(|e| e.to_string())
}

/// A terminating signal sent to the tool reaches the command; its death is reproduced.
pub fn signal_passes(b: &CaseBench) -> CaseVerdict {
    let mut tool = spawn(&mut b.managed(&["--policy", "hyplacer"], "held"))?;
    b.wait_moving(&mut tool)?;
    send(&tool, libc::SIGTERM);
    let out = collect(tool)?;
    let signal = out.status.signal().or(out.status.code().map(|c| c - 128));
    if signal != Some(libc::SIGTERM) || !out.stdout.is_empty() {
        return Err(format!("SIGTERM to the tool gave {}: {}", out.status, text(&out.stdout)));
    }
    SummaryFile::read(&b.summary())?.moved_but_for(&[])
}

/// Attaches to the target, waits for `begun` and kills the tool.
fn kill(
    b: &CaseBench,
    held: &mut TargetProcess,
    options: &[&str],
    begun: impl Fn(&mut Child) -> CaseVerdict,
) -> CaseVerdict {
    let mut tool = spawn(&mut b.attach(held, options))?;
    let begun = begun(&mut tool);
    send(&tool, libc::SIGKILL);
    let out = collect(tool)?;
    begun.map_err(|why| format!("{why}; {}", text(&out.stderr)))?;
    if out.status.signal() == Some(libc::SIGKILL) && held.runs() {
        Ok(())
    } else {
        Err(format!("the tool ended with {}, the target runs: {}", out.status, held.runs()))
    }
}

/// What it printed is what an unmanaged run prints. Gives how many of its pages are on the fast
/// node.
fn unharmed(b: &CaseBench, held: TargetProcess) -> Result<(u64, u64), String> {
    let out = held.let_go()?;
    alike(&output(&mut b.target("held"))?, &out)?;
    let shown = text(&out.stderr);
    let mut numbers = shown.split(' ').filter_map(|word| word.parse().ok());
    numbers.next().zip(numbers.next()).ok_or(format!("the target told nothing: {shown}"))
}

/// The tool is killed while it moves pages: the target runs on.
pub fn killed(b: &CaseBench) -> CaseVerdict {
    let mut held = b.hold()?;
    kill(b, &mut held, &["--policy", "hyplacer"], |tool| b.wait_moving(tool))?;
    let (fast, of) = unharmed(b, held)?;
    if 0 < fast && fast < of {
        Ok(())
    } else {
        Err(format!("not while pages were moved: {fast} of {of} had been"))
    }
}

fn kdamonds() -> Option<u32> {
    fs::read_to_string(format!("{KDAMONDS}/nr_kdamonds")).ok()?.trim().parse().ok()
}

/// Waits until our kdamond runs; its process.
fn wait_kdamond() -> Result<String, String> {
    let state =
        || fs::read_to_string(format!("{KDAMONDS}/0/state")).is_ok_and(|t| t.trim() == "on");
    wait_for("a kdamond is on", PATIENCE, state)?;
    let pid = fs::read_to_string(format!("{KDAMONDS}/0/pid")).map_err(|e| e.to_string())?;
    Ok(format!("/proc/{}", pid.trim()))
}

/// The tool is killed while a kdamond works for it: that is turned off, and the next tool can use
/// DAMON again.
pub fn killed_with_damon(b: &CaseBench) -> CaseVerdict {
    if kdamonds().is_none() {
        return Err("skipped: this kernel has no DAMON in sysfs".into());
    }
    let options = ["--policy", "hyplacer", "--tracker", "damon"];
    let mut held = b.hold()?;
    let kdamond = std::cell::OnceCell::new();
    kill(b, &mut held, &options, |_| {
        wait_kdamond().map(|process| kdamond.set(process).unwrap_or_default())
    })?;
    let process = kdamond.get().ok_or("no kdamond")?;
    wait_for("no kdamond is left", SOON, || kdamonds() == Some(0) && !Path::new(process).exists())?;
    let tool = spawn(&mut b.attach(&held, &options))?;
    let begun = wait_kdamond();
    let alive = held.runs();
    unharmed(b, held)?;
    let out = collect(tool)?;
    begun.map_err(|why| format!("the second tool: {why}; {}", text(&out.stderr)))?;
    let account = SummaryFile::read(&b.summary())?;
    account.managed()?;
    if !alive
        || !out.status.success()
        || account.trackers() != ["damon", "soft-dirty"]
        || kdamonds() != Some(0)
    {
        return Err(format!(
            "target {alive}, {} with {:?}, {:?} kdamonds left; {}",
            out.status,
            account.trackers(),
            kdamonds(),
            text(&out.stderr)
        ));
    }
    Ok(())
}

/// Interrupted, `attach` leaves the target alone and gives its account.
pub fn interrupted(b: &CaseBench) -> CaseVerdict {
    let mut held = b.hold()?;
    let mut tool = spawn(&mut b.attach(&held, &["--policy", "hyplacer"]))?;
    let begun = b.wait_moving(&mut tool);
    send(&tool, libc::SIGINT);
    let ended = wait_for("the tool ends", PATIENCE, || matches!(tool.try_wait(), Ok(Some(_))));
    send(&tool, libc::SIGKILL);
    let out = collect(tool)?;
    let alive = held.runs();
    unharmed(b, held)?;
    begun.and(ended).map_err(|why| format!("{why}; {}", text(&out.stderr)))?;
    if !alive || out.status.code() != Some(0) || said(&out).len() != 1 {
        return Err(format!("target {alive}, {}, said {:?}", out.status, text(&out.stderr)));
    }
    one_line(&out, " pages promoted, ")?;
    SummaryFile::read(&b.summary())?.moved_but_for(&[])
}
