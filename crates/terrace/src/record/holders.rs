//! Which processes still have the recording's shared memory, or are about to, by `/proc`: those
//! between `fork` and their first word, or within `execve`, own no slot yet, and no slot tells that
//! they live on.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// What is ending when the command ends has ended after so many waits.
const WAITS: u32 = 20;
/// How long each is.
const WAIT: Duration = Duration::from_millis(5);

/// Processes other than this one that have the file open or mapped, or are started with its path,
/// and do not end soon. Processes of other users cannot be seen into, and do not count.
pub fn lasting_holders(shared: &Path) -> usize {
    let Ok(file) = fs::metadata(shared) else { return 0 };
    let id = (file.dev(), file.ino());
    let mut left: Vec<u32> = processes().filter(|pid| holds(*pid, id, shared)).collect();
    for _ in 0..WAITS {
        if left.is_empty() {
            break;
        }
        sleep(WAIT);
        left.retain(|pid| holds(*pid, id, shared));
    }
    left.len()
}

fn processes() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |pid| *pid != own)
}

fn holds(pid: u32, id: (u64, u64), shared: &Path) -> bool {
    let is_it =
        |path: &Path| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == id);
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    // Links are followed, which for pipes and sockets opens nothing.
    open.into_iter().any(|entry| is_it(&entry.path())) || maps(pid, id.1) || names(pid, shared)
}

/// Whether a mapping is of a file without a name in any folder, of this number.
fn maps(pid: u32, inode: u64) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/maps")) else { return false };
    let number = inode.to_string();
    text.lines().any(|line| {
        line.contains("/memfd:terrace-capture") && line.split_whitespace().nth(4) == Some(&number)
    })
}

/// Whether a process's arguments name the file, as those of a recorder that just starts do.
fn names(pid: u32, shared: &Path) -> bool {
    let Ok(arguments) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let path = shared.as_os_str().as_bytes();
    let at = arguments.windows(path.len().max(1)).position(|part| part == path);
    at.is_some_and(|at| !arguments.get(at + path.len()).is_some_and(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_has_the_file_counts_and_one_that_ended_does_not() {
        let path = std::env::temp_dir().join(format!("terrace-holders-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        assert_eq!(lasting_holders(&path), 0, "this process does not count");
        // Whoever names it in an argument may have it soon.
        let mut named = Command::new("sh");
        named.args(["-c", "read line", "sh"]).arg(&path).stdin(Stdio::piped());
        let mut named = named.spawn().unwrap();
        assert_eq!(lasting_holders(&path), 1);
        named.kill().unwrap();
        named.wait().unwrap();
        let mut sleeper = Command::new("sleep").arg("30").stdin(Stdio::from(file)).spawn().unwrap();
        assert_eq!(lasting_holders(&path), 1);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(lasting_holders(&path), 0);
        fs::remove_file(path).unwrap();
    }
}
