//! What this process may have: CPUs of a thread, and the memory that its cgroups leave it
//! (kernel: `Documentation/admin-guide/cgroup-v2.rst`, `cgroup-v1/memory.rst`).

use crate::{Root, SysError};
use terrace_types::{Bytes, CpuId, Nanos};

/// Makes writing past the limit of a file's size (`ulimit -f`) fail with an error in this process;
/// by default a signal ends it (setrlimit(2)). A program that this process starts has the signal as
/// it was: a handler does not outlive exec, and where the signal was ignored it stays so.
pub fn outlive_file_size_limit() {
    extern "C" fn do_nothing(_: libc::c_int) {}
    let mut old = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; `old` is writable, and zero bytes are a valid sigaction
    // besides. The new action's handler does nothing, so it may interrupt anything.
    unsafe {
        libc::sigaction(libc::SIGXFSZ, std::ptr::null(), old.as_mut_ptr());
        let mut action = old.assume_init();
        if action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGXFSZ, &action, std::ptr::null_mut());
        }
    }
}

/// CPUs in a mask of ours.
const MASK_CPUS: usize = 8192;

/// CPUs on which the calling thread may run, ascending.
///
/// # Errors
/// On machines with more CPUs than the mask names.
pub fn own_cpus() -> Result<Vec<CpuId>, SysError> {
    let mut mask = [0_u64; MASK_CPUS / 64];
    // SAFETY: the mask is writable and as large as stated; 0 means the calling thread.
    let got = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            std::mem::size_of_val(&mask),
            mask.as_mut_ptr(),
        )
    };
    if got < 0 {
        return Err(SysError::last(
            "sched_getaffinity",
            "this thread",
            "tell us of a machine with so many CPUs",
        ));
    }
    // Word by word: most are empty, and this is asked where work is about to begin.
    let of_word = |(word, bits): (usize, &u64)| {
        let bits = *bits;
        (0..64).filter(move |n| bits >> n & 1 == 1).map(move |n| CpuId((word * 64 + n) as u32))
    };
    Ok(mask.iter().enumerate().filter(|(_, bits)| **bits != 0).flat_map(of_word).collect())
}

/// The CPU that the calling thread runs on at this moment.
#[must_use]
pub fn current_cpu() -> Option<CpuId> {
    // SAFETY: takes no argument and touches no memory of ours.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok().map(CpuId)
}

/// What the tightest memory limit of this process's cgroups leaves, reclaimable file pages counted
/// as free; `None` without a limit.
#[must_use]
pub fn cgroup_headroom(root: &Root) -> Option<Bytes> {
    tightest_group(root).map(|(bytes, _)| bytes)
}

/// The same, and the folder of the group that sets it.
pub(crate) fn tightest_group(root: &Root) -> Option<(Bytes, String)> {
    let left = |group: String, second| {
        let left = left(root, &group, if second { &V2 } else { &V1 })?;
        Some((Bytes(left), group))
    };
    groups(root, "memory").into_iter().filter_map(|(group, second)| left(group, second)).min()
}

/// Folders of the control groups that this process is in by this controller, and of those above
/// them, each with whether it is one of version 2. In a container a path may name a group that is
/// not shown: then the mount itself is the group.
fn groups(root: &Root, controller: &str) -> Vec<(String, bool)> {
    let text = root.text("/proc/self/cgroup").unwrap_or_default();
    let mut all = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let folders = match controllers {
            "" => vec!["/sys/fs/cgroup".to_owned(), "/sys/fs/cgroup/unified".to_owned()],
            // A hierarchy of several controllers is mounted by their names, and linked to by each.
            _ if controllers.split(',').any(|c| c == controller) => {
                vec![format!("/sys/fs/cgroup/{controller}")]
            }
            _ => continue,
        };
        for folder in folders {
            let mut at = path.trim_end_matches('/');
            loop {
                all.push((format!("{folder}{at}"), controllers.is_empty()));
                match at.rfind('/') {
                    Some(cut) => at = &at[..cut],
                    None => break,
                }
            }
        }
    }
    all
}

/// CPUs' worth of time that this process's control groups let it have, by the tightest quota
/// (`cpu.max`, `cpu.cfs_quota_us`), in thousandths; `None` without one.
#[must_use]
pub fn cpu_quota(root: &Root) -> Option<u64> {
    let of = |(group, second): (String, bool)| {
        let (quota, period) = if second {
            let text = root.text(&format!("{group}/cpu.max")).ok()?;
            let mut words = text.split_ascii_whitespace();
            // Without a quota the word is `max`.
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?)
        } else {
            // Without one it is -1, which is no number of this kind.
            (
                root.number(&format!("{group}/cpu.cfs_quota_us")).ok()?,
                root.number(&format!("{group}/cpu.cfs_period_us")).ok()?,
            )
        };
        quota_of(quota, period)
    };
    groups(root, "cpu").into_iter().filter_map(of).min()
}

fn quota_of(quota: u64, period: u64) -> Option<u64> {
    quota.saturating_mul(1000).checked_div(period)
}

/// Names of limit, usage, and the line of `memory.stat` for file pages that go first.
struct Files {
    limit: &'static str,
    usage: &'static str,
    cold: &'static str,
}

const V2: Files = Files { limit: "memory.max", usage: "memory.current", cold: "inactive_file " };
const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cold: "total_inactive_file ",
};
/// Version 1 writes "no limit" as a number near the end of the range.
const NO_LIMIT: u64 = 1 << 60;

fn left(root: &Root, group: &str, files: &Files) -> Option<u64> {
    let limit = root.number(&format!("{group}/{}", files.limit)).ok().filter(|l| *l < NO_LIMIT)?;
    let usage = root.number(&format!("{group}/{}", files.usage)).ok()?;
    let stat = root.text(&format!("{group}/memory.stat")).unwrap_or_default();
    let cold = stat
        .lines()
        .find_map(|l| l.strip_prefix(files.cold))
        .and_then(|n| n.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(usage.saturating_sub(cold.unwrap_or(0))))
}

/// `MemAvailable` of `/proc/meminfo`: what could be had without swapping, on all nodes together;
/// what is free where the kernel does not say.
#[must_use]
pub fn memory_available(root: &Root) -> Option<Bytes> {
    let text = root.text("/proc/meminfo").ok()?;
    let line = |key: &str| text.lines().find_map(|l| l.strip_prefix(key));
    let kib = line("MemAvailable:").or_else(|| line("MemFree:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok().map(|kib| Bytes(kib.saturating_mul(1024)))
}

/// For how long some task or other had to wait for memory since the machine started: the `some`
/// line of `/proc/pressure/memory`.
///
/// # Errors
/// The kernel keeps no such account (`CONFIG_PSI`, `psi=1`), or it is not understood.
pub fn memory_stalls(root: &Root) -> Result<Nanos, SysError> {
    const FILE: &str = "/proc/pressure/memory";
    let text = root.text(FILE)?;
    let some = text.lines().find_map(|line| line.strip_prefix("some ")).unwrap_or_default();
    let total = some.split(' ').find_map(|field| field.strip_prefix("total=")?.parse::<u64>().ok());
    total.map(|us| Nanos(us.saturating_mul(1000))).ok_or_else(|| {
        SysError::from_errno("read", FILE, libc::EINVAL, "this kernel tells it in another form")
    })
}

/// For how long each of `cpus` was busy since the machine started, on average (`/proc/stat`,
/// kernel: `fs/proc/stat.c`): all but idle and waiting for devices; the time of guests is part of
/// that of programs. `None` where the kernel does not say.
#[must_use]
pub fn busy_time(root: &Root, cpus: &[CpuId]) -> Option<Nanos> {
    // SAFETY: takes a number and touches no memory of ours.
    let hertz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    let ticks = busy_ticks(&root.text("/proc/stat").ok()?, cpus)?;
    let each = u128::from(ticks) * 1_000_000_000
        / u128::from(hertz.checked_mul(cpus.len() as u64).filter(|all| *all > 0)?);
    u64::try_from(each).ok().map(Nanos)
}

/// Of `/proc/stat`: clock ticks that `cpus` were busy, together.
fn busy_ticks(text: &str, cpus: &[CpuId]) -> Option<u64> {
    let mut sum = 0_u64;
    for cpu in cpus {
        let name = format!("cpu{cpu} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
        // user nice system idle iowait irq softirq steal
        for (index, word) in line.split_ascii_whitespace().take(8).enumerate() {
            let ticks: u64 = word.parse().ok()?;
            if index != 3 && index != 4 {
                sum = sum.checked_add(ticks)?;
            }
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ticks_are_of_the_cpus_asked_for_and_of_none_where_a_line_lacks() {
        let text = "cpu  9 9 9 9\ncpu0 1 2 4 800 900 8 16 32 64 128\ncpu1 1 1 1 1 1\n\
            cpu10 7 0 0 x 0 0 0 0 0 0\nintr 5\n";
        let of =
            |cpus: &[u32]| busy_ticks(text, &cpus.iter().map(|c| CpuId(*c)).collect::<Vec<_>>());
        assert_eq!(of(&[0]), Some(63), "guests are in the first, idle and iowait are not");
        assert_eq!((of(&[0, 1]), of(&[])), (Some(66), Some(0)));
        assert_eq!((of(&[10]), of(&[2])), (None, None), "a bad number, and no line");
        assert_eq!(busy_ticks("cpu0 18446744073709551615 1 0 0\n", &[CpuId(0)]), None);
        // A year of 1,024 busy CPUs, at 100 ticks a second.
        let line = |cpu: u32| format!("cpu{cpu} 3153600000 0 0 0\n");
        let dir = std::env::temp_dir().join(format!("terrace-busy-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("proc")).unwrap();
        std::fs::write(dir.join("proc/stat"), (0..1_024).map(line).collect::<String>()).unwrap();
        let cpus: Vec<CpuId> = (0..1_024).map(CpuId).collect();
        let root = Root::with_prefix(&dir);
        assert!(busy_time(&root, &cpus).is_some_and(|busy| busy > Nanos::secs(86_400)));
        assert_eq!(busy_time(&root, &[]), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn this_machines_cpus_get_busier() {
        let cpus = own_cpus().unwrap();
        let before = busy_time(&Root::live(), &cpus).filter(|busy| *busy > Nanos::ZERO);
        let Some(before) = before else {
            return println!("skipped: this kernel does not say how busy its CPUs are");
        };
        // Two ticks of the clock and some.
        let began = crate::now();
        while crate::now().since(began) < Nanos::millis(50) {
            std::hint::spin_loop();
        }
        let passed = busy_time(&Root::live(), &cpus).unwrap() - before;
        assert!(passed > Nanos::ZERO && passed < Nanos::secs(60), "{passed}");
    }

    #[test]
    fn memory_stalls_are_in_microseconds_or_refused() {
        let dir = std::env::temp_dir().join(format!("terrace-stalls-{}", std::process::id()));
        let reported = |text: &str| {
            std::fs::create_dir_all(dir.join("proc/pressure")).unwrap();
            std::fs::write(dir.join("proc/pressure/memory"), text).unwrap();
            memory_stalls(&Root::with_prefix(&dir))
        };
        let line =
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=25893481\nfull avg10=0.00 total=7\n";
        assert_eq!(reported(line), Ok(Nanos(25_893_481_000)));
        for bad in [
            "",
            "some",
            "full total=7",
            "some total=",
            "some total=-1",
            "some total=99999999999999999999",
        ] {
            assert!(reported(bad).is_err(), "{bad:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(memory_stalls(&Root::with_prefix(&dir)).is_err());
    }

    fn tree(files: &[(&str, &str)]) -> (Root, std::path::PathBuf) {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("terrace-limits-{}-{n}", std::process::id()));
        for (path, text) in files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (Root::with_prefix(&dir), dir)
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let (root, dir) = tree(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/memory.current", "700\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 100\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "700\n"),
        ]);
        assert_eq!(cgroup_headroom(&root), Some(Bytes(400)));
        std::fs::remove_dir_all(dir).unwrap();
        let (root, dir) = tree(&[
            ("proc/self/cgroup", "3:memory,x:/g\n2:cpu:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory/g/memory.limit_in_bytes", "50\n"),
            ("sys/fs/cgroup/memory/g/memory.usage_in_bytes", "80\n"),
        ]);
        assert_eq!(cgroup_headroom(&root), Some(Bytes(0)));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_tightest_quota_of_cpus_counts() {
        let quota = |files: &[(&str, &str)]| {
            let (root, dir) = tree(files);
            let reported = cpu_quota(&root);
            std::fs::remove_dir_all(dir).unwrap();
            reported
        };
        let second = ("proc/self/cgroup", "0::/a/b\n");
        let (outer, inner) = ("sys/fs/cgroup/a/cpu.max", "sys/fs/cgroup/a/b/cpu.max");
        assert_eq!(
            quota(&[second, (outer, "150000 100000\n"), (inner, "max 100000\n")]),
            Some(1500)
        );
        assert_eq!(
            quota(&[second, (outer, "400000 100000\n"), (inner, "5000 10000\n")]),
            Some(500)
        );
        assert_eq!(quota(&[second, (outer, "max 100000\n")]), None);
        for odd in ["", "100000", "100000 0\n", "-5 100000\n", "x y"] {
            assert_eq!(quota(&[second, (outer, odd)]), None, "{odd:?}");
        }
        let first = ("proc/self/cgroup", "4:cpu,cpuacct:/g\n3:memory:/h\n0::/\n");
        let v1 = |quota| {
            [
                first,
                ("sys/fs/cgroup/cpu/g/cpu.cfs_quota_us", quota),
                ("sys/fs/cgroup/cpu/g/cpu.cfs_period_us", "50000\n"),
            ]
        };
        assert_eq!(quota(&v1("125000\n")), Some(2500));
        assert_eq!(quota(&v1("-1\n")), None);
        // In a container the group's path is not shown, and the mount is the group.
        let hidden = ("proc/self/cgroup", "4:cpu:/docker/0123\n");
        let own = [
            hidden,
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(quota(&own), Some(1000));
        assert_eq!(cpu_quota(&Root::with_prefix("/nonexistent")), None);
    }

    #[test]
    fn this_thread_runs_somewhere_it_may() {
        let cpus = own_cpus().unwrap();
        assert!(!cpus.is_empty() && cpus.windows(2).all(|w| w[0] < w[1]));
        assert!(current_cpu().is_some());
        assert!(memory_available(&Root::live()).is_some_and(|b| b > Bytes::mib(1)));
        assert_eq!(cgroup_headroom(&Root::with_prefix("/nonexistent")), None);
    }
}
