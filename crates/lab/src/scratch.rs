//! Folders of one run, which are gone when it is over; those of runs that were killed go when the
//! next one begins.

use crate::error::{io, Result};
use crate::wire;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A folder of somebody whose processes cannot be seen from here (another host, another container)
/// is left behind when it is older than this: twice the longest limit of a run, a day.
const LEFT_AFTER: Duration = Duration::from_secs(2 * 86_400);
/// In a folder that its run was asked to keep.
const KEPT: &str = "kept";

/// A folder for this process alone, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ScratchFolder {
    path: PathBuf,
    keep: bool,
}

impl ScratchFolder {
    /// A fresh one below `parent`, named `PREFIX` and by this process.
    pub(crate) fn create(parent: &Path, prefix: &str) -> Result<Self> {
        let path = parent.join(name(prefix, std::process::id(), unique(), whose()));
        fs::create_dir_all(&path).map_err(io("creating", &path))?;
        Ok(ScratchFolder { path, keep: false })
    }

    /// Leave it where it is.
    pub(crate) fn keep(&mut self) {
        self.keep = fs::write(self.path.join(KEPT), "").is_ok();
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if !self.keep {
            // It may have been renamed, and what cannot be removed only takes space.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes what runs that were killed left below `parent` under this prefix.
pub(crate) fn remove_left_behind(parent: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some((process, owner)) = file.to_str().and_then(|name| parse(name, prefix)) else {
            continue;
        };
        let path = entry.path();
        let left = if owner == whose() {
            !Path::new("/proc").join(process.to_string()).exists()
        } else {
            let changed = entry.metadata().and_then(|m| m.modified()).ok();
            let age = changed.and_then(|at| SystemTime::now().duration_since(at).ok());
            age.is_some_and(|age| age > LEFT_AFTER)
        };
        if left && !path.join(KEPT).exists() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// A number that no other call of this process gets.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn name(prefix: &str, process: u32, number: u64, owner: u32) -> String {
    format!("{prefix}{process}-{number}-{owner:08x}")
}

/// Process and owner of a name that [`name`] made.
fn parse(name: &str, prefix: &str) -> Option<(u32, u32)> {
    let mut words = name.strip_prefix(prefix)?.split('-');
    let process = words.next()?.parse().ok()?;
    let _number: u64 = words.next()?.parse().ok()?;
    let owner = words.next().filter(|word| word.len() == 8)?;
    let owner = u32::from_str_radix(owner, 16).ok()?;
    words.next().is_none().then_some((process, owner))
}

/// Whose process numbers ours are: a sum over this boot of this machine and the process namespace.
/// A folder may be shared by hosts and by containers.
fn whose() -> u32 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let sum = wire::checksum(&[boot, namespace.into_os_string().into_encoded_bytes()].concat());
    (sum ^ sum >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_processes_that_are_gone_are_removed() {
        let parent = std::env::temp_dir().join(format!("terrace-scratch-{}", std::process::id()));
        let mine = ScratchFolder::create(&parent, "run-").unwrap();
        // No process has this number: the kernel's largest is 4,194,304.
        let dead = 4_194_305;
        let left = parent.join(name("run-", dead, 0, whose()));
        let elsewhere = parent.join(name("run-", dead, 0, !whose()));
        let kept = parent.join(name("run-", dead, 1, whose()));
        let other = parent.join("run-notes");
        for folder in [&left, &elsewhere, &kept, &other] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(kept.join(KEPT), "").unwrap();
        remove_left_behind(&parent, "run-");
        assert!(!left.exists());
        assert!(mine.path().exists() && elsewhere.exists() && kept.exists() && other.exists());
        let path = mine.path().to_path_buf();
        drop(mine);
        assert!(!path.exists());
        let _ = fs::remove_dir_all(parent);
    }
}
