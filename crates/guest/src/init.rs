//! What the guest does between the kernel's hand-over and the first look into the mailbox.

use crate::kernel;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Seed credited to the random generator: fixed, so that two boots are alike.
const SEED: [u32; 16] = [
    0x7e44_ace1,
    0x1f83_d9ab,
    0x5be0_cd19,
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x428a_2f98,
    0x7137_4491,
    0xb5c0_fbcf,
    0xe9b5_dba5,
    0x3956_c25b,
    0x59f1_11f1,
    0x923f_82a4,
];
const MS_MOVE: libc::c_ulong = 8192;
/// Not `MPOL_BIND`: where a program fills the slow node too, the kernel would end it for the
/// agent's next page.
const MPOL_PREFERRED: i32 = 1;

/// What the kernel command line told the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootArgs {
    /// Node on which the guest's own files and memory live, so that they take nothing from the fast
    /// one.
    pub slow_node: u32,
    /// Guest milliseconds of rest before the guest says that it is ready.
    pub settle_ms: u64,
}

impl BootArgs {
    /// Read `terrace.slow=N` and `terrace.settle=MS`; what is absent has its default.
    pub fn parse(cmdline: &str) -> Self {
        let mut args = BootArgs { slow_node: 0, settle_ms: 2000 };
        for word in cmdline.split_whitespace() {
            if let Some(n) = word.strip_prefix("terrace.slow=").and_then(|v| v.parse().ok()) {
                args.slow_node = n;
            } else if let Some(n) =
                word.strip_prefix("terrace.settle=").and_then(|v| v.parse().ok())
            {
                args.settle_ms = n;
            }
        }
        args
    }
}

/// Mount everything, move to a root that lives on the slow node, seed, settle.
pub fn boot() -> io::Result<BootArgs> {
    for dir in ["/proc", "/sys", "/dev", "/new"] {
        fs::create_dir_all(dir)?;
    }
    kernel::mount("proc", "/proc", "proc", 0, "")?;
    kernel::mount("sysfs", "/sys", "sysfs", 0, "")?;
    kernel::mount("devtmpfs", "/dev", "devtmpfs", 0, "")?;
    let args = BootArgs::parse(&fs::read_to_string("/proc/cmdline")?);
    kernel::set_mempolicy(MPOL_PREFERRED, &[args.slow_node])?;
    new_root(args.slow_node)?;
    optional_mounts();
    kernel::seed_random(&File::open("/dev/urandom")?, SEED)?;
    // The same addresses in every run, so that a profile of one run names the pages of the next.
    fs::write("/proc/sys/kernel/randomize_va_space", "0")?;
    fs::write("/proc/sys/kernel/printk", "1")?;
    for (path, text) in [
        ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("/etc/group", "root:x:0:\n"),
        ("/etc/hosts", "127.0.0.1 localhost\n"),
    ] {
        fs::write(path, text)?;
    }
    settle(Duration::from_millis(args.settle_ms));
    Ok(args)
}

/// Rest for `rest`, then until the processors have: what the kernel put off while booting (tests of
/// its own ciphers, tables of symbols) would run beside the first job and take its time.
fn settle(rest: Duration) {
    const WINDOW: Duration = Duration::from_millis(500);
    const WINDOWS: usize = 60;
    std::thread::sleep(rest);
    let look = || fs::read_to_string("/proc/stat").ok().as_deref().and_then(processor_ticks);
    for _ in 0..WINDOWS {
        let Some(busy) = look() else { return };
        std::thread::sleep(WINDOW);
        if look().is_some_and(|now| now <= busy + 1) {
            return;
        }
    }
}

/// Ticks (10 ms) in which a processor was busy, by the first line of `/proc/stat`.
fn processor_ticks(stat: &str) -> Option<u64> {
    let numbers: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map_while(|w| w.parse().ok())
        .take(8)
        .collect();
    let idle = numbers.get(3)?.saturating_add(*numbers.get(4)?);
    let all = numbers.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    Some(all.saturating_sub(idle))
}

/// A root file system whose pages lie on one node while there is space, with this program in it.
fn new_root(node: u32) -> io::Result<()> {
    kernel::mount("tmpfs", "/new", "tmpfs", 0, &format!("mode=755,size=90%,mpol=prefer:{node}"))?;
    for dir in ["proc", "sys", "dev", "tmp", "run/terrace", "etc", "root", "var/tmp", "work"] {
        fs::create_dir_all(Path::new("/new").join(dir))?;
    }
    fs::copy("/init", "/new/init")?;
    for dir in ["proc", "sys", "dev"] {
        kernel::mount(&format!("/{dir}"), &format!("/new/{dir}"), "", MS_MOVE, "")?;
    }
    std::env::set_current_dir("/new")?;
    kernel::mount(".", "/", "", MS_MOVE, "")?;
    kernel::chroot(".")?;
    std::env::set_current_dir("/")
}

/// Mounts that a stock kernel has; one that lacks them still runs jobs.
fn optional_mounts() {
    for (kind, at) in [
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
        ("cgroup2", "/sys/fs/cgroup"),
        ("devpts", "/dev/pts"),
        ("tmpfs", "/dev/shm"),
    ] {
        let _ = fs::create_dir_all(at);
        let _ = kernel::mount(kind, at, kind, 0, "");
    }
    for (link, to) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "fd/0"),
        ("/dev/stdout", "fd/1"),
        ("/dev/stderr", "fd/2"),
    ] {
        let _ = std::os::unix::fs::symlink(to, link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_processors_are_distinguished_from_idle_ones() {
        assert_eq!(processor_ticks("cpu  10 1 20 700 30 2 3 0 0 0\ncpu0 5 0"), Some(36));
        assert_eq!(processor_ticks("cpu  10 1 20"), None);
        assert_eq!(processor_ticks("intr 1 2 3 4 5"), None);
        assert_eq!(processor_ticks(""), None);
    }

    #[test]
    fn boot_args_have_defaults_and_survive_nonsense() {
        assert_eq!(BootArgs::parse("quiet"), BootArgs { slow_node: 0, settle_ms: 2000 });
        assert_eq!(
            BootArgs::parse("terrace.slow=1 terrace.settle=50 x=y"),
            BootArgs { slow_node: 1, settle_ms: 50 }
        );
        assert_eq!(BootArgs::parse("terrace.slow=-1"), BootArgs { slow_node: 0, settle_ms: 2000 });
    }
}
