//! Processes: state, credentials, children, CPU time (kernel: `fs/proc/array.c`, `fs/proc/base.c`).

use crate::{Root, SysError, TEXT_LIMIT};
use terrace_types::{Nanos, NodeId, Pid, Tid};

/// Reads `/proc/PID/file`; a missing process is [`SysError::Gone`], not a missing file.
pub(crate) fn read_of(
    root: &Root,
    pid: Pid,
    file: &str,
    limit: usize,
) -> Result<Vec<u8>, SysError> {
    let path = format!("/proc/{pid}/{file}");
    match root.read(&path, limit) {
        Err(SysError::Absent { call, .. }) if !root.exists(&format!("/proc/{pid}/stat")) => {
            Err(SysError::Gone { call, target: format!("process {pid}") })
        }
        other => other,
    }
}

/// What `/proc/PID/stat` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Process.
    pub pid: Pid,
    /// Name of the program, at most 15 bytes, as the process set it.
    pub name: String,
    /// State letter; `Z` and `X` have ended.
    pub state: char,
    /// Parent.
    pub parent: Pid,
    /// Start, in clock ticks after boot: with the pid it names a process for ever.
    pub start_ticks: u64,
}

impl Stat {
    /// Ended, or ending without memory of its own.
    #[must_use]
    pub const fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Reads the text of a stat file. The name may hold anything, brackets and line ends too.
///
/// # Errors
/// [`SysError::Malformed`].
pub fn parse_stat(text: &str) -> Result<Stat, SysError> {
    let bad = |what| SysError::Malformed { target: "stat".to_owned(), what, line: 1 };
    let open = text.find('(').ok_or_else(|| bad("no name"))?;
    let close = text.rfind(')').filter(|&c| c > open).ok_or_else(|| bad("no end of name"))?;
    let pid = text[..open].trim().parse().map_err(|_| bad("no pid"))?;
    let rest: Vec<&str> = text[close + 1..].split_ascii_whitespace().collect();
    let field = |at: usize| rest.get(at).copied().ok_or_else(|| bad("too few fields"));
    Ok(Stat {
        pid: Pid(pid),
        name: text[open + 1..close].to_owned(),
        state: field(0)?.chars().next().ok_or_else(|| bad("no state"))?,
        parent: Pid(field(1)?.parse().map_err(|_| bad("no parent"))?),
        start_ticks: field(19)?.parse().map_err(|_| bad("no start time"))?,
    })
}

/// State of a process.
///
/// # Errors
/// [`SysError::Gone`] once it has been waited for.
pub fn stat(root: &Root, pid: Pid) -> Result<Stat, SysError> {
    parse_stat(&String::from_utf8_lossy(&read_of(root, pid, "stat", 4096)?))
}

/// Whether `error` came of a process that has ended or is about to. One that ends gives up its
/// memory before it is a zombie; from then on most of what `/proc` shows of it belongs to root
/// (`task_dump_owner` in `fs/proc/base.c`), and its owner is refused.
#[must_use]
pub fn is_over(root: &Root, pid: Pid, error: &SysError) -> bool {
    let without_memory = || match read_of(root, pid, "statm", 256) {
        Ok(text) => text.starts_with(b"0 "),
        Err(e) => e.is_gone(),
    };
    error.is_gone() || matches!(error, SysError::NotPermitted { .. }) && without_memory()
}

/// Pages of a process that are in memory, by the one line of `statm`: a fraction of what [`status`]
/// costs. Counters by CPU are summed up roughly (`get_mm_counter` in `include/linux/mm.h`).
///
/// # Errors
/// [`SysError::Gone`] once it has been waited for; [`SysError::Malformed`].
pub fn resident_pages(root: &Root, pid: Pid) -> Result<u64, SysError> {
    let text = String::from_utf8_lossy(&read_of(root, pid, "statm", 256)?).into_owned();
    let field = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
    field.ok_or_else(|| SysError::Malformed {
        target: "statm".to_owned(),
        what: "no resident pages",
        line: 1,
    })
}

/// What `/proc/PID/status` tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Effective user.
    pub euid: u32,
    /// Real user.
    pub uid: u32,
    /// Thread group, that is, the process.
    pub tgid: i32,
    /// Kilobytes locked in memory.
    pub locked_kib: u64,
    /// Kilobytes of hugetlbfs.
    pub hugetlb_kib: u64,
    /// Resident kilobytes.
    pub rss_kib: u64,
    /// Nodes its cpuset allows.
    pub mems_allowed: Vec<NodeId>,
    /// Effective capabilities, as a bit mask.
    pub cap_eff: u64,
    /// Kernel thread.
    pub kthread: bool,
    /// It gets no transparent huge pages (`PR_SET_THP_DISABLE`, Linux 5.0 on).
    pub thp_disabled: bool,
}

/// Reads a list such as `0-3,8`. At most `limit` members.
#[must_use]
pub fn parse_list(text: &str, limit: usize) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if to < from || all.len() + (to - from) as usize >= limit {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

/// Reads the text of a status file; lines it does not know are skipped.
#[must_use]
pub fn parse_status(text: &str) -> Status {
    let mut status = Status::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let word = |at: usize| value.split_ascii_whitespace().nth(at).unwrap_or("");
        let kib = || word(0).parse().unwrap_or(0);
        match key {
            "Uid" => {
                status.uid = word(0).parse().unwrap_or(u32::MAX);
                status.euid = word(1).parse().unwrap_or(u32::MAX);
            }
            "Tgid" => status.tgid = word(0).parse().unwrap_or(0),
            "VmLck" => status.locked_kib = kib(),
            "HugetlbPages" => status.hugetlb_kib = kib(),
            "VmRSS" => status.rss_kib = kib(),
            "Kthread" => status.kthread = word(0) == "1",
            "THP_enabled" => status.thp_disabled = word(0) == "0",
            "CapEff" => status.cap_eff = u64::from_str_radix(word(0), 16).unwrap_or(0),
            "Mems_allowed_list" => {
                let list = parse_list(value, 1 << 16).unwrap_or_default();
                status.mems_allowed =
                    list.into_iter().filter_map(|n| u16::try_from(n).ok()).map(NodeId).collect();
            }
            _ => {}
        }
    }
    status
}

/// Status of a process.
///
/// # Errors
/// [`SysError::Gone`] once it has been waited for.
pub fn status(root: &Root, pid: Pid) -> Result<Status, SysError> {
    Ok(parse_status(&String::from_utf8_lossy(&read_of(root, pid, "status", 1 << 16)?)))
}

/// Threads of a process.
///
/// # Errors
/// [`SysError::Gone`] once it has been waited for.
pub fn threads(root: &Root, pid: Pid) -> Result<Vec<Tid>, SysError> {
    let names = root.list(&format!("/proc/{pid}/task")).map_err(|e| match e {
        SysError::Absent { call, .. } => SysError::Gone { call, target: format!("process {pid}") },
        other => other,
    })?;
    Ok(names.iter().filter_map(|n| n.parse().ok()).map(Tid).collect())
}

/// Direct children of a process, forked by any of its threads.
///
/// # Errors
/// [`SysError::Gone`] once it has been waited for; [`SysError::Absent`] on a kernel without
/// `CONFIG_PROC_CHILDREN`.
pub fn children(root: &Root, pid: Pid) -> Result<Vec<Pid>, SysError> {
    let mut all = Vec::new();
    for tid in threads(root, pid)? {
        match root.read(&format!("/proc/{pid}/task/{tid}/children"), 1 << 20) {
            Ok(bytes) => all.extend(
                String::from_utf8_lossy(&bytes)
                    .split_ascii_whitespace()
                    .filter_map(|w| w.parse().ok())
                    .map(Pid),
            ),
            Err(SysError::Gone { .. }) => {}
            // The thread ended meanwhile, or the kernel has no such file at all.
            Err(e @ SysError::Absent { .. }) => {
                if root.exists(&format!("/proc/{pid}/task/{tid}/stat")) {
                    return Err(e);
                }
            }
            Err(e) => return Err(e),
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Every process and its parent, for kernels without `children` files.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn all_parents(root: &Root) -> Result<Vec<(Pid, Pid)>, SysError> {
    let pids = root.list("/proc")?;
    let numbers = pids.iter().filter_map(|n| n.parse().ok()).map(Pid);
    Ok(numbers.filter_map(|p| stat(root, p).ok()).map(|s| (s.pid, s.parent)).collect())
}

/// Time a task has run on a CPU (`schedstat`, first field); works for kernel threads too.
///
/// # Errors
/// [`SysError::Gone`] once it has ended; [`SysError::Absent`] without `CONFIG_SCHED_INFO`.
pub fn cpu_time(root: &Root, pid: Pid) -> Result<Nanos, SysError> {
    let bytes = read_of(root, pid, "schedstat", 256)?;
    let text = String::from_utf8_lossy(&bytes);
    text.split_ascii_whitespace().next().and_then(|w| w.parse().ok()).map(Nanos).ok_or_else(|| {
        SysError::Malformed { target: format!("/proc/{pid}/schedstat"), what: "no number", line: 1 }
    })
}

/// Refuses processes that are not this user's, unless this is root; and kernel threads.
///
/// # Errors
/// [`SysError::NotPermitted`] for another user's process, [`SysError::Gone`] for none.
pub fn check_owner(root: &Root, pid: Pid) -> Result<(), SysError> {
    let theirs = status(root, pid)?;
    if theirs.kthread {
        return Err(SysError::NotPermitted {
            call: "attach",
            target: format!("kernel thread {pid}"),
            errno: libc::EPERM,
            remedy: "name an ordinary process",
        });
    }
    // SAFETY: geteuid takes no argument, touches no memory and cannot fail.
    let me = unsafe { libc::geteuid() };
    if me == 0 || (theirs.euid == me && theirs.uid == me) {
        return Ok(());
    }
    Err(SysError::NotPermitted {
        call: "attach",
        target: format!("process {pid} of user {}", theirs.uid),
        errno: libc::EPERM,
        remedy: "run as that user or as root",
    })
}

/// Text of `/proc/PID/comm` or the start of its command line, for display.
#[must_use]
pub fn name(root: &Root, pid: Pid) -> String {
    read_of(root, pid, "comm", 4096)
        .map(|b| String::from_utf8_lossy(&b).trim_end().to_owned())
        .unwrap_or_default()
}

/// Limit for reading one file of `/proc`, re-exported for callers that read their own.
pub const PROC_LIMIT: usize = TEXT_LIMIT;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn me() -> Pid {
        Pid(std::process::id() as i32)
    }

    #[test]
    fn own_process_is_seen() {
        let root = Root::live();
        let stat = stat(&root, me()).unwrap();
        assert!(!stat.ended() && stat.pid == me() && stat.start_ticks > 0);
        assert!(threads(&root, me()).unwrap().contains(&Tid(me().0)));
        let status = status(&root, me()).unwrap();
        assert_eq!(status.tgid, me().0);
        assert!(!status.mems_allowed.is_empty());
        assert!(check_owner(&root, me()).is_ok());
    }

    #[test]
    fn processes_that_refuse_huge_pages_are_told_apart() {
        let refuses = |text: &str| parse_status(text).thp_disabled;
        assert!(refuses("Name:\tnohuge\nTHP_enabled:\t0\n"));
        assert!(!refuses("THP_enabled:\t1\n"));
        assert!(!refuses("Name:\told kernel\n"));
    }

    #[test]
    fn resident_pages_follow_what_is_touched() {
        let root = Root::live();
        let before = resident_pages(&root, me()).unwrap();
        // Filled for certain: what nobody reads need not be.
        let memory = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = resident_pages(&root, me()).unwrap();
        // Other tests of this process come and go beside it, and counters by CPU are rough.
        assert!(before > 0 && after >= before + (48 << 20) / 4096, "{before} {after}");
        drop(memory);
        assert!(resident_pages(&root, Pid(i32::MAX)).unwrap_err().is_gone());
    }

    #[test]
    fn an_ending_task_is_not_refused() {
        let root = Root::live();
        let refused = |pid: Pid| {
            SysError::from_errno("open", format!("/proc/{pid}/pagemap"), libc::EACCES, "")
        };
        assert!(!is_over(&root, me(), &refused(me())));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        while !stat(&root, pid).unwrap().ended() {
            std::thread::yield_now();
        }
        assert!(is_over(&root, pid, &refused(pid)), "a zombie has no memory");
        child.wait().unwrap();
        assert!(is_over(&root, pid, &refused(pid)));
        assert!(!is_over(&root, pid, &SysError::from_errno("open", "maps", libc::EMFILE, "")));
    }

    #[test]
    fn a_child_is_found_and_its_end_is_gone() {
        let root = Root::live();
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        match children(&root, me()) {
            Ok(all) => assert!(all.contains(&pid)),
            Err(e) => println!("skipped: {e}"),
        }
        assert!(all_parents(&root).unwrap().contains(&(pid, me())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(super::stat(&root, pid).unwrap_err().is_gone());
        assert!(crate::maps::maps(&root, pid).unwrap_err().is_gone());
    }

    #[test]
    fn hostile_names_do_not_confuse() {
        let text = "7 (a) R 1\n) x) S 3 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 99 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.start_ticks), ('S', Pid(3), 99));
        assert_eq!(stat.name, "a) R 1\n) x");
    }

    #[test]
    fn lists_are_bounded() {
        assert_eq!(parse_list("0-2,5", 10), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("0-4000000000", 10), None);
        assert_eq!(parse_list("", 10), Some(vec![]));
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "\\PC{0,200}") {
            let _ = parse_stat(&text);
            let _ = parse_status(&text);
            let _ = parse_list(&text, 100);
        }
    }
}
