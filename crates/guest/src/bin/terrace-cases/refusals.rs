//! What cannot be done is said, once, with what it would take; the command runs in any case.

use crate::checks::{alike, expect_code, one_line, output, said, text, CaseVerdict, SummaryFile};
use crate::driver::CaseBench;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

const NOBODY: u32 = 65534;

pub fn not_found(b: &CaseBench) -> CaseVerdict {
    let out = output(Command::new(&b.terrace).args(["run", "--", "/no/such/program"]))?;
    expect_code(&out, 127)
}

/// Attaching with these options is refused with this status and one line.
fn attach_refused(
    b: &CaseBench,
    options: &[&str],
    tweak: impl Fn(&mut Command) -> &mut Command,
    code: i32,
) -> Result<String, String> {
    let mut held = b.hold()?;
    let mut tool = b.attach(&held, options);
    tweak(&mut tool);
    let out = output(&mut tool)?;
    let (pid, runs) = (held.pid(), held.runs());
    expect_code(&out, code)?;
    let said = said(&out);
    match said.as_slice() {
        [line] if runs => Ok(line.replace(&pid.to_string(), "PID")),
        _ => {
            Err(format!("not one clear line, or the target ended ({runs}): {}", text(&out.stderr)))
        }
    }
}

fn names(line: &str, words: &[&str]) -> CaseVerdict {
    let lower = line.to_lowercase();
    match words.iter().find(|w| !lower.contains(&w.to_lowercase())) {
        None => Ok(()),
        Some(word) => Err(format!("does not name {word}: {line}")),
    }
}

/// Nothing was managed, and the one line says why.
fn unmanaged(b: &CaseBench, out: &Output) -> Result<String, String> {
    if SummaryFile::read(&b.summary())?.managed().is_ok() {
        return Err(format!("was managed: {}", text(&out.stderr)));
    }
    one_line(out, "ran unmanaged")
}

/// Page tables do not say which thread accessed a page: with them alone `access-count` is refused.
pub fn cells(b: &CaseBench) -> CaseVerdict {
    let options = ["--policy", "access-count", "--tracker", "page-table"];
    let line = attach_refused(b, &options, |tool| tool, 3)?;
    names(&line, &["access-count"])?;
    let plain = output(&mut b.target("brief"))?;
    let out = output(&mut b.managed(&options, "brief"))?;
    alike(&plain, &out)?;
    names(&unmanaged(b, &out)?, &["access-count"])
}

/// The tool run by somebody else must refuse our process.
pub fn other_user(b: &CaseBench) -> CaseVerdict {
    let line = attach_refused(b, &[], |tool| tool.uid(NOBODY), 1)?;
    names(&line, &["PID"])
}

/// Without privilege the command is managed by what is left, and each tracker that is not says
/// which capability it takes.
pub fn unprivileged(b: &CaseBench) -> CaseVerdict {
    let plain = output(b.target("steady").uid(NOBODY))?;
    let managed = output(b.managed(&["--policy", "hyplacer"], "steady").uid(NOBODY))?;
    alike(&plain, &managed)?;
    names(&one_line(&managed, "page-tables left out")?, &["CAP_SYS_RAWIO"])?;
    names(&one_line(&managed, "damon left out")?, &["CAP_PERFMON"])?;
    let account = SummaryFile::read(&b.summary())?;
    // These two lines and the summary's: what is left works to the end of the target.
    if account.trackers() != ["soft-dirty"] || said(&managed).len() != 3 {
        return Err(format!("trackers {:?}: {}", account.trackers(), text(&managed.stderr)));
    }
    account.moved_but_for(&[])
}

/// A user who may not even read the tool may not read what `/proc` shows of it: no tracker is left.
pub fn untrackable(b: &CaseBench) -> CaseVerdict {
    let copy = b.file("terrace");
    let made = fs::copy(&b.terrace, &copy)
        .and_then(|_| fs::set_permissions(&copy, fs::Permissions::from_mode(0o711)));
    made.map_err(|e| format!("{}: {e}", copy.display()))?;
    let plain = output(b.target("status").uid(NOBODY))?;
    let out = output(b.managed_by(&copy, &[], "status").uid(NOBODY))?;
    alike(&plain, &out)?;
    let line = unmanaged(b, &out)?;
    let [_, page_table, damon, soft_dirty] = line.split(" left out: ").collect::<Vec<_>>()[..]
    else {
        return Err(format!("not three trackers left out: {line}"));
    };
    names(page_table, &["CAP_SYS_RAWIO"])?;
    names(damon, &["CAP_PERFMON"])?;
    names(soft_dirty, &["CAP_DAC_OVERRIDE"])
}

/// A filter such as containers have denies `move_pages`.
pub fn immovable(b: &CaseBench) -> CaseVerdict {
    let plain = output(&mut b.target("status"))?;
    let out = output(deny_moves(&mut b.managed(&[], "status")))?;
    alike(&plain, &out)?;
    // What refuses is a filter; a capability of the program's file would not help.
    names(&unmanaged(b, &out)?, &["cannot be moved", "seccomp filter", "SYS_NICE"])?;
    let line = attach_refused(b, &[], deny_moves, 3)?;
    names(&line, &["cannot be moved", "seccomp filter", "SYS_NICE"])
}

/// To the command and all that it starts, `move_pages` fails with EPERM.
fn deny_moves(command: &mut Command) -> &mut Command {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let filter = move || {
        let mut lines = [
            line(LOAD_WORD, 0, 0), // the call's number
            line(JUMP_IF, 1, libc::SYS_move_pages as u32),
            line(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            line(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
        // SAFETY: both calls take numbers and a program of live, initialised lines, which the
        // kernel copies.
        let rc = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
                | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: the closure makes two system calls on memory of its own stack; nothing is allocated,
    // no lock is needed.
    unsafe { command.pre_exec(filter) }
}

pub fn damaged_machine(b: &CaseBench) -> CaseVerdict {
    let file = b.file("damaged.toml");
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
