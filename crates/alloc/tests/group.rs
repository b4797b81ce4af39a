//! A memory limit that shrinks under a program: a control group of our own, where this user may
//! make one.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_alloc::attributes::{Attributes, Binding, Mismatch};
use terrace_alloc::commit::Scope;
use terrace_alloc::error::AllocError;
use terrace_alloc::memory::Memory;
use terrace_types::Bytes;

/// A group for one child; taken away again when dropped.
struct Group {
    folder: PathBuf,
    limit: &'static str,
}

impl Group {
    /// With a limit on memory, in version 2 or 1; or why not.
    fn make(limit: u64) -> Result<Self, String> {
        let v2 = Path::new("/sys/fs/cgroup");
        let has_memory = |file: &Path| {
            fs::read_to_string(file).is_ok_and(|t| t.split_whitespace().any(|c| c == "memory"))
        };
        let (root, limit_file) = if has_memory(&v2.join("cgroup.subtree_control")) {
            (v2.to_path_buf(), "memory.max")
        } else if v2.join("memory/memory.limit_in_bytes").exists() {
            (v2.join("memory"), "memory.limit_in_bytes")
        } else {
            return Err("no control group here has memory for those below it".into());
        };
        let folder = root.join(format!("terrace-test-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let group = Self { folder, limit: limit_file };
        group.set(limit).map_err(|e| format!("{}: {e}", group.folder.display()))?;
        Ok(group)
    }

    fn set(&self, limit: u64) -> std::io::Result<()> {
        fs::write(self.folder.join(self.limit), limit.to_string())
    }

    fn join(&self) -> std::io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What an ended child was charged for is given back a moment later.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Runs `work` in a child of the group, which is killed after four minutes; how the child ended.
fn in_the_group(group: &Group, work: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `work` and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sets a timer.
        unsafe { libc::alarm(240) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            group.join().unwrap();
            work();
        }));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = -1;
    // SAFETY: waits for the child started above; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

fn fill(at: usize, len: usize, with: u8) {
    // SAFETY: allocated by the caller just now, of so many bytes.
    unsafe { (at as *mut u8).write_bytes(with, len) };
}

fn holds(at: usize, len: usize, with: u8) -> bool {
    // SAFETY: as in `fill`, which wrote all of it.
    unsafe { std::slice::from_raw_parts(at as *const u8, len) }.iter().all(|b| *b == with)
}

fn strict(name: &str, binding: Binding) -> Attributes {
    Attributes { mismatch: Mismatch::Error, binding, name: name.into(), ..Attributes::default() }
}

#[test]
fn a_limit_that_shrinks_refuses_and_never_kills() {
    if let Err(error) = Memory::live(&|_| None) {
        return println!("skipped: {error}");
    }
    let group = match Group::make(256 << 20) {
        Ok(group) => group,
        Err(why) => return println!("skipped: a control group of our own: {why}"),
    };
    let ended = in_the_group(&group, || {
        let memory = Memory::live(&|_| None).unwrap();
        let kept = memory.allocate(Bytes::mib(64), strict("kept", Binding::Immediate)).unwrap();
        fill(kept, 64 << 20, 7);
        group.set(128 << 20).unwrap();

        let refused =
            memory.allocate(Bytes::mib(96), strict("late", Binding::Immediate)).unwrap_err();
        assert!(
            matches!(&refused, AllocError::NoSpace { limit, free, .. } if limit.contains("group")
                && free.get() <= 64 << 20),
            "{refused}"
        );
        let large =
            memory.allocate(Bytes::mib(96), strict("large", Binding::OnCommit)).unwrap_or(0);
        assert_eq!(large, 0, "what cannot be had is refused when it is asked for");
        let small = memory.allocate(Bytes::mib(16), strict("small", Binding::OnCommit)).unwrap();
        let other = memory.allocate(Bytes::mib(24), strict("other", Binding::OnCommit)).unwrap();
        group.set(100 << 20).unwrap();
        let report = memory.commit(Scope::Epoch).unwrap();
        assert_eq!(report.rows.len(), 2);
        assert_eq!(report.refused(), 1, "64 and 40 do not fit into 100 less a margin: {report:?}");
        for (at, len) in [(small, 16 << 20), (other, 24 << 20)] {
            let row = report.rows.iter().find(|r| r.address == at).unwrap();
            match row.refused {
                true => assert!(row.why.contains("group"), "{}", row.why),
                false => fill(at, len, 9),
            }
        }
        assert!(holds(kept, 64 << 20, 7));
        // What is freed is space again.
        memory.free(kept).unwrap();
        let again = memory.allocate(Bytes::mib(40), strict("again", Binding::Immediate)).unwrap();
        fill(again, 40 << 20, 3);
        assert_eq!(memory.commit(Scope::Epoch).unwrap().refused(), 0);
    });
    assert_eq!(ended, 0, "the child was killed or failed");
}
