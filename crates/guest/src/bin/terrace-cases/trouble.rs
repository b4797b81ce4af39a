//! Machines that do not have what moving takes, or have memory that is not to be moved.

use crate::checks::{
    alike, expect_code, one_line, output, said, spawn, text, CaseVerdict, SummaryFile,
};
use crate::driver::CaseBench;
use crate::kinds::KSM;
use crate::memory::{SLOW, TOLD};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use terrace_guest::kernel;

fn put(path: &str, value: &str) -> CaseVerdict {
    fs::write(path, value).map_err(|e| format!("{path}: {e}"))
}

/// Another program takes the fast node while pages are moved there: what finds no free space stays,
/// and is counted.
pub fn full_node(b: &CaseBench) -> CaseVerdict {
    let plain = output(&mut b.target("crowded"))?;
    let mut hog = spawn(&mut b.watched("hog"))?;
    let managed = output(&mut b.managed(&["--policy", "hyplacer"], "crowded"));
    let kept = matches!(hog.try_wait(), Ok(None));
    let _killed = hog.kill();
    let _status = hog.wait();
    let managed = managed?;
    alike(&plain, &managed)?;
    if !kept {
        return Err("the other program ended early".into());
    }
    let account = SummaryFile::read(&b.summary())?;
    eprintln!("crowded: {}", account.shown());
    account.moved_but_for(&["node_full"])
}

/// The target may not use the fast node at all; the tool must not try for ever nor fail it.
pub fn cpuset_forbids(b: &CaseBench) -> CaseVerdict {
    let group = Path::new("/sys/fs/cgroup/terrace-case");
    let prepare = || -> std::io::Result<()> {
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset")?;
        fs::create_dir_all(group)?;
        fs::write(group.join("cpuset.mems"), SLOW.to_string())
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
    // It would wait for moves that must not come.
    managed.env_remove(TOLD);
    enter(&mut managed);
    let verdict = alike(&output(&mut plain)?, &output(&mut managed)?);
    let _ = fs::remove_dir(group);
    verdict?;
    let account = SummaryFile::read(&b.summary())?;
    account.managed()?;
    match account.moved() + account.failed("not_allowed") {
        0 => Ok(()),
        _ => Err(format!("it was tried: {}", account.shown())),
    }
}

/// Locked, file-backed, merged, hugetlb and shared pages stay; the others beside them are moved.
pub fn kinds(b: &CaseBench) -> CaseVerdict {
    let hugetlb =
        format!("/sys/devices/system/node/node{SLOW}/hugepages/hugepages-2048kB/nr_hugepages");
    if !Path::new(KSM).exists() || !Path::new(&hugetlb).exists() {
        return Err("skipped: this kernel has no KSM or no hugetlb pages".into());
    }
    put(&hugetlb, "1")?;
    put(&format!("{KSM}/pages_to_scan"), "2000")?;
    put(&format!("{KSM}/sleep_millisecs"), "5")?;
    let done = b.same("kinds", &["--policy", "hyplacer"]);
    put(&hugetlb, "0")?;
    let account = done?.1;
    account.moved_but_for(&[])?;
    match account.failed("shared") {
        0 => Ok(()),
        _ => Err(format!("it was tried to move pages of others: {}", account.shown())),
    }
}

/// The journal's disk is full from the start: the target does not notice, the tool says it once.
pub fn journal_refused(b: &CaseBench) -> CaseVerdict {
    if !Path::new("/dev/full").exists() {
        return Err("skipped: no /dev/full".into());
    }
    let (out, _) = b.same("status", &["--journal", "/dev/full"])?;
    one_line(&out, "journal").map(drop)
}

/// The journal's disk fills while pages move. What was written before can be read.
pub fn journal_cut_off(b: &CaseBench) -> CaseVerdict {
    let disk = b.file("disk");
    fs::create_dir_all(&disk).map_err(|e| e.to_string())?;
    let at = disk.to_string_lossy().into_owned();
    kernel::mount("tmpfs", &at, "tmpfs", 0, "size=64k").map_err(|e| format!("{at}: {e}"))?;
    let journal = disk.join("run.jsonl");
    let name = journal.to_string_lossy().into_owned();
    let (out, account) = b.same("steady", &["--policy", "hyplacer", "--journal", &name])?;
    account.moved_but_for(&[])?;
    let line = one_line(&out, "journal")?;
    if !line.contains("No space left on device") || said(&out).len() != 2 {
        return Err(format!("not one line that the disk is full: {}", text(&out.stderr)));
    }
    let written = fs::read_to_string(&journal).map_err(|e| e.to_string())?;
    if written.len() < 32 << 10
        || written.ends_with('\n')
        || !written.contains("\"entry\":\"snapshot\"")
    {
        return Err(format!("not cut off while it was written: {} bytes", written.len()));
    }
    let page = b.file("report.html");
    let report =
        output(Command::new(&b.terrace).arg("report").arg(&journal).arg("--output").arg(&page))?;
    expect_code(&report, 0)?;
    let html = fs::read_to_string(&page).map_err(|e| e.to_string())?;
    if !html.contains("cut off") || !html.contains("hyplacer") {
        return Err(format!(
            "the report does not say that the journal is cut off: {} bytes",
            html.len()
        ));
    }
    Ok(())
}
