//! What of the machine this process may have: CPUs (affinity), nodes (cpuset) and memory (control
//! groups, limits on the address space, what is free).

use crate::limits::{memory_available, own_cpus, tightest_group};
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
    pub fn current(root: &Root) -> Self {
        let me = Pid(std::process::id() as i32);
        let nodes = task::status(root, me).map(|s| s.mems_allowed).unwrap_or_default();
        let (memory, bound_by) = memory(root);
        Self { cpus: own_cpus().unwrap_or_default(), nodes, memory, bound_by }
    }
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

/// CPUs as the kernel takes them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mask([u64; 128]);

impl Mask {
    /// All there are, and will be.
    pub const ALL: Self = Self([u64::MAX; 128]);

    pub fn from_cpus(cpus: &[CpuId]) -> Self {
        let mut mask = [0_u64; 128];
        for cpu in cpus {
            if let Some(word) = mask.get_mut(cpu.0 as usize / 64) {
                *word |= 1 << (cpu.0 % 64);
            }
        }
        Self(mask)
    }

    /// Sets the calling thread's; whether the kernel took it. One system call and nothing else.
    pub fn set(&self) -> bool {
        self.set_of(0)
    }

    fn set_of(&self, task: i32) -> bool {
        // SAFETY: the mask is that many readable bytes and outlives the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_setaffinity,
                libc::c_long::from(task),
                std::mem::size_of_val(&self.0),
                self.0.as_ptr(),
            )
        };
        result == 0
    }
}

fn set_affinity(task: i32, cpus: &[CpuId]) -> Result<(), SysError> {
    if Mask::from_cpus(cpus).set_of(task) {
        return Ok(());
    }
    let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    Err(SysError::last(
        "sched_setaffinity",
        format!("CPUs {}", list.join(",")),
        "name CPUs that are online and allowed",
    ))
}

/// The least of what is available, what control groups leave, and what the limit on address space
/// leaves; and its name.
fn memory(root: &Root) -> (Bytes, String) {
    let mut bounds: Vec<(Bytes, String)> = Vec::new();
    bounds.extend(memory_available(root).map(|bytes| (bytes, "memory available".to_owned())));
    bounds.extend(
        tightest_group(root)
            .map(|(bytes, folder)| (bytes, format!("limit of control group {folder}"))),
    );
    if let Some(limit) = address_limit() {
        let used = root
            .text("/proc/self/statm")
            .ok()
            .and_then(|t| t.split(' ').next()?.parse::<u64>().ok())
            .unwrap_or(0);
        let used = Bytes(used.saturating_mul(crate::page_size().get()));
        bounds.push((limit - used, "limit on address space (ulimit -v)".to_owned()));
    }
    bounds
        .into_iter()
        .min_by_key(|b| b.0)
        .unwrap_or((Bytes::ZERO, "memory available is not reported".to_owned()))
}

/// The limit on this process's address space (`RLIMIT_AS`, `ulimit -v`), if there is one.
#[must_use]
pub fn address_limit() -> Option<Bytes> {
    soft_limit(libc::RLIMIT_AS)
}

/// Whether this process may lock so many bytes in memory (`RLIMIT_MEMLOCK`), were none locked.
#[must_use]
pub fn may_lock(bytes: usize) -> bool {
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    root || soft_limit(libc::RLIMIT_MEMLOCK).is_none_or(|limit| bytes as u64 <= limit.0)
}

fn soft_limit(resource: libc::__rlimit_resource_t) -> Option<Bytes> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a writable rlimit.
    let done = unsafe { libc::getrlimit(resource, &mut limit) } == 0;
    (done && limit.rlim_cur != libc::RLIM_INFINITY).then_some(Bytes(limit.rlim_cur))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (std::path::PathBuf, Root) {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("terrace-allowance-{}-{number}", std::process::id()));
        for (path, text) in files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (dir.clone(), Root::with_prefix(dir))
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
        std::fs::write(dir.join("sys/fs/cgroup/memory/memory.limit_in_bytes"), "4000001\n")
            .unwrap();
        assert_eq!(memory(&root).0, Bytes(1));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn own_allowance_is_seen_and_a_thread_can_be_pinned() {
        let own = Allowance::current(&Root::live());
        assert!(!own.cpus.is_empty() && own.memory > Bytes::ZERO && !own.bound_by.is_empty());
        let first = own.cpus[0];
        let seen =
            std::thread::spawn(move || pin(&[first]).map(|()| own_cpus().unwrap())).join().unwrap();
        assert_eq!(seen.unwrap(), [first]);
        assert!(std::thread::spawn(|| pin(&[])).join().unwrap().is_err());
    }
}
