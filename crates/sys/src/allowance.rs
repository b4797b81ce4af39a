//! What of the machine this process may have: CPUs (affinity), nodes (cpuset) and memory (control groups, limits on the
//! address space, what is free).

use crate::{task, Root, SysError};
use terrace_types::{Bytes, CpuId, NodeId, Pid};

/// What this process may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowance {
    /// CPUs, ascending.
    pub cpus: Vec<CpuId>,
    /// Nodes that it may have memory of, ascending.
    pub nodes: Vec<NodeId>,
    /// Memory it can still have: the least of what is available and what limits leave.
    pub memory: Bytes,
    /// What sets that bound, for people.
    pub bound_by: String,
}

impl Allowance {
    /// Of the calling process.
    #[must_use]
    pub fn own(root: &Root) -> Self {
        let me = Pid(std::process::id() as i32);
        let nodes = task::status(root, me).map(|s| s.mems_allowed).unwrap_or_default();
        let (memory, bound_by) = memory(root);
        Self { cpus: affinity(), nodes, memory, bound_by }
    }
}

/// CPUs the calling thread may run on, ascending.
#[must_use]
pub fn affinity() -> Vec<CpuId> {
    let mut mask = [0_u64; 128];
    // SAFETY: `mask` is that many writable bytes; 0 is the calling thread.
    let got =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0_i64, std::mem::size_of_val(&mask), mask.as_mut_ptr()) };
    let bits = usize::try_from(got).unwrap_or(0) * 8;
    (0..bits).filter(|bit| mask[bit / 64] >> (bit % 64) & 1 == 1).map(|bit| CpuId(bit as u32)).collect()
}

/// Keeps the calling thread on these CPUs.
///
/// # Errors
/// What the kernel said: none of them is online and allowed.
pub fn pin(cpus: &[CpuId]) -> Result<(), SysError> {
    set_affinity(0, cpus)
}

/// Keeps a process's main thread, and what it starts from now on, on these CPUs.
///
/// # Errors
/// What the kernel said.
pub fn pin_process(pid: Pid, cpus: &[CpuId]) -> Result<(), SysError> {
    set_affinity(pid.0, cpus)
}

fn set_affinity(task: i32, cpus: &[CpuId]) -> Result<(), SysError> {
    let mut mask = [0_u64; 128];
    for cpu in cpus {
        if let Some(word) = mask.get_mut(cpu.0 as usize / 64) {
            *word |= 1 << (cpu.0 % 64);
        }
    }
    // SAFETY: `mask` is that many readable bytes and outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            libc::c_long::from(task),
            std::mem::size_of_val(&mask),
            mask.as_ptr(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    Err(SysError::last(
        "sched_setaffinity",
        format!("CPUs {}", list.join(",")),
        "name CPUs that are online and allowed",
    ))
}

/// The least of what is available, what control groups leave, and what the limit on address space leaves; and its name.
fn memory(root: &Root) -> (Bytes, String) {
    let available = root.text("/proc/meminfo").ok().and_then(|t| available(&t));
    let mut bounds: Vec<(Bytes, String)> = Vec::new();
    bounds.extend(available.map(|b| (b, "memory available".to_owned())));
    let groups = root.text("/proc/self/cgroup").unwrap_or_default();
    bounds.extend(group_folders(&groups).iter().filter_map(|folder| group_room(root, folder)));
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a writable rlimit.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } == 0;
    if told && limit.rlim_cur != libc::RLIM_INFINITY {
        let used =
            root.text("/proc/self/statm").ok().and_then(|t| t.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
        let used = Bytes(used.saturating_mul(crate::page_size().get()));
        bounds.push((Bytes(limit.rlim_cur) - used, "limit on address space (ulimit -v)".to_owned()));
    }
    bounds.into_iter().min_by_key(|b| b.0).unwrap_or((Bytes::ZERO, "memory available is not told".to_owned()))
}

/// `MemAvailable`, or what is free where the kernel does not say.
fn available(meminfo: &str) -> Option<Bytes> {
    let line = |key: &str| {
        let text = meminfo.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        text.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    line("MemAvailable").or_else(|| line("MemFree")).map(|kib| Bytes(kib.saturating_mul(1024)))
}

/// Folders whose limits hold for this process, innermost first, from the text of `/proc/self/cgroup`.
fn group_folders(text: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let top = match controllers {
            "" => "/sys/fs/cgroup",
            c if c.split(',').any(|c| c == "memory") => "/sys/fs/cgroup/memory",
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            folders.push(format!("{top}{path}"));
            match path.rfind('/') {
                Some(at) => path = &path[..at],
                None => break,
            }
        }
    }
    folders
}

/// What a group leaves, where it has a limit.
fn group_room(root: &Root, folder: &str) -> Option<(Bytes, String)> {
    let number = |file: &str| root.number(&format!("{folder}/{file}")).ok();
    let (limit, used) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
    };
    // What version 1 says where there is no limit.
    if limit >= 1 << 62 {
        return None;
    }
    // Page cache counts as used and is given up under pressure.
    let stat = root.text(&format!("{folder}/memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some((Bytes(limit.saturating_sub(used.saturating_sub(cache))), format!("limit of control group {folder}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (std::path::PathBuf, Root) {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("terrace-allowance-{}-{number}", std::process::id()));
        for (path, text) in files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (dir.clone(), Root::at(dir))
    }

    #[test]
    fn the_tightest_group_bounds_memory() {
        let (dir, root) = tree(&[
            ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"),
            ("proc/self/cgroup", "1:cpu:/x\n0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "5000000\n"),
            ("sys/fs/cgroup/a/memory.current", "4000000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 500000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        let (bytes, why) = memory(&root);
        assert_eq!(bytes, Bytes(1_500_000));
        assert!(why.ends_with("/sys/fs/cgroup/a"), "{why}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_first_version_of_groups_is_read_too_and_no_limit_is_none() {
        let (dir, root) = tree(&[
            ("proc/meminfo", "MemFree: 8000 kB\n"),
            ("proc/self/cgroup", "5:cpuset,memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n"),
        ]);
        assert_eq!(memory(&root).0, Bytes(8000 << 10));
        std::fs::write(dir.join("sys/fs/cgroup/memory/memory.limit_in_bytes"), "4000001\n").unwrap();
        assert_eq!(memory(&root).0, Bytes(1));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn own_allowance_is_seen_and_a_thread_can_be_pinned() {
        let own = Allowance::own(&Root::live());
        assert!(!own.cpus.is_empty() && own.memory > Bytes::ZERO && !own.bound_by.is_empty());
        let first = own.cpus[0];
        let seen = std::thread::spawn(move || pin(&[first]).map(|()| affinity())).join().unwrap();
        assert_eq!(seen.unwrap(), [first]);
        assert!(std::thread::spawn(|| pin(&[])).join().unwrap().is_err());
    }
}
