//! A target process with memory of every kind, all of it hot and on the slow node: the tool must
//! migrate its private pages and leave all others where they are.

use crate::memory::{
    fill, give_up, FastShare, PageMapping, TargetFiles, NEVER_MOVED, NOT_AS_MEANT, PAGE, SLOW,
};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use terrace_guest::kernel;

/// Exit status: the tool migrated pages that it must leave alone.
const MOVED_WRONGLY: i32 = 97;
const MIB: usize = 1 << 20;
/// How long to watch for wrongly migrated pages after the expected ones were migrated.
const LONGER: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(10);
const MERGED_WITHIN: Duration = Duration::from_secs(3);
/// Distinct contents of the pages offered to KSM, which maps one merged page a few hundred times at
/// most (`max_page_sharing`).
const CONTENTS: usize = 8;

struct Kinds {
    own: PageMapping,
    locked: PageMapping,
    file: PageMapping,
    merged: PageMapping,
    hugetlb: PageMapping,
    shared: PageMapping,
}

/// Runs the case; returns a checksum over all its memory.
pub fn run(reported: &TargetFiles) -> u64 {
    let mut kinds = Kinds::new();
    let pid = kinds.share();
    if reported.managed() {
        kinds.until_moved(reported);
        kinds.check();
    }
    kinds.stop_sharing(pid);
    let Kinds { own, locked, file, merged, hugetlb, shared } = &mut kinds;
    [own, locked, file, merged, hugetlb, shared]
        .into_iter()
        .fold(0, |sum, map| sum.rotate_left(11) ^ map.sum(false))
}

impl Kinds {
    /// All but `shared` is `MADV_DONTFORK`: a forked child would share the other pages too.
    fn new() -> Self {
        let alone = |map: PageMapping| map.advised(libc::MADV_DONTFORK);
        Self {
            own: alone(PageMapping::slow(16 * MIB)).fill(1),
            locked: alone(PageMapping::slow(4 * MIB)).lock().fill(2),
            file: alone(file_half_written(4 * MIB)),
            merged: alone(merged(4 * MIB)),
            hugetlb: alone(
                PageMapping::new(2 * MIB, libc::MAP_PRIVATE | libc::MAP_HUGETLB).placed_slow(),
            )
            .fill(3),
            shared: PageMapping::new(4 * MIB, libc::MAP_SHARED).placed_slow().fill(4),
        }
    }

    /// The last word of the shared mapping: the child exits once it is not 0.
    fn over(&mut self) -> &AtomicU64 {
        let word: *mut u64 = &mut self.shared.words()[4 * MIB / 8 - 1];
        // SAFETY: an aligned word of a mapping that lives as long as `self`; both processes use it
        // atomically only.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Forks a child that reads the shared mapping until `over` is set; returns its pid.
    fn share(&mut self) -> i32 {
        // SAFETY: this process has one thread, so the child may go on using std.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            // SAFETY: no pointers are passed. A parent that gives up never sets `over`: then the
            // kernel kills the child.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            while self.over().load(Ordering::Acquire) == 0 {
                self.shared.touch_once(0..self.shared.pages());
                std::thread::sleep(Duration::from_millis(5));
            }
            // SAFETY: _exit ends the child at once.
            unsafe { libc::_exit(0) };
        }
        pid
    }

    fn stop_sharing(&mut self, pid: i32) {
        self.over().store(1, Ordering::Release);
        // SAFETY: waits for a child of our own and asks for no status.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        self.over().store(0, Ordering::Release);
    }

    /// Touches all mappings until most pages that may be migrated have been, then for `LONGER`.
    fn until_moved(&mut self, reported: &TargetFiles) {
        let until = kernel::now() + PATIENCE.as_nanos() as u64;
        let mut moved = None;
        while moved.is_none_or(|at| kernel::now() < at + LONGER.as_nanos() as u64) {
            self.touch();
            std::thread::sleep(Duration::from_millis(2));
            let (own, written) =
                (self.own.fast(0..self.own.pages()), self.file.fast(self.written()));
            if most(own) && most(written) && moved.is_none() {
                reported.say(crate::memory::MOVING);
                moved = Some(kernel::now());
            }
            if kernel::now() > until {
                let said = format!(
                    "{} of {} own and {} written pages were moved",
                    own.pages, own.of, written.pages
                );
                give_up(NEVER_MOVED, &said);
            }
        }
    }

    fn written(&self) -> std::ops::Range<usize> {
        self.file.pages() / 2..self.file.pages()
    }

    fn touch(&mut self) {
        for map in [&mut self.own, &mut self.locked, &mut self.hugetlb, &mut self.shared] {
            map.stir(0..map.pages());
        }
        let written = self.written();
        self.file.touch_once(0..written.start);
        self.file.stir(written);
        // Reads only: a write would undo the merging (copy-on-write).
        self.merged.touch_once(0..self.merged.pages());
    }

    fn check(&mut self) {
        let unwritten = 0..self.written().start;
        let all = |map: &PageMapping| map.fast(0..map.pages());
        let left_alone = [
            ("locked", all(&self.locked)),
            ("file-backed", self.file.fast(unwritten)),
            ("merged", all(&self.merged)),
            ("hugetlb", all(&self.hugetlb)),
            ("shared", all(&self.shared)),
        ];
        for (kind, fast) in left_alone {
            if fast.pages > 0 {
                give_up(
                    MOVED_WRONGLY,
                    &format!("{} of {} {kind} pages were moved", fast.pages, fast.of),
                );
            }
        }
    }
}

fn most(fast: FastShare) -> bool {
    fast.pages > fast.of / 2
}

/// A private mapping of a file on the slow node. Its second half is written to, so that those pages
/// are anonymous pages of the process.
fn file_half_written(len: usize) -> PageMapping {
    let path = std::env::temp_dir().join(format!("terrace-case-file-{}", std::process::id()));
    let made =
        File::options().read(true).write(true).create(true).truncate(true).open(&path).and_then(
            |mut file| {
                file.write_all(&vec![5; len])?;
                std::fs::remove_file(&path).map(|()| file)
            },
        );
    let file = made.unwrap_or_else(|e| give_up(NOT_AS_MEANT, &format!("{}: {e}", path.display())));
    let mut map = PageMapping::file(&file, len).placed_slow();
    let half = map.words().len() / 2;
    fill(&mut map.words()[half..], 6);
    map.touch_once(0..map.pages() / 2);
    if map.fast(0..map.pages()).pages > 0 {
        give_up(NOT_AS_MEANT, &format!("the file is not in memory of node {SLOW}"));
    }
    map
}

/// Directory of the KSM settings.
pub const KSM: &str = "/sys/kernel/mm/ksm";

fn merging(on: bool) {
    if let Err(e) = std::fs::write(format!("{KSM}/run"), if on { "1" } else { "0" }) {
        give_up(NOT_AS_MEANT, &format!("{KSM}/run: {e}"));
    }
}

/// Pages of few distinct contents, merged by KSM, which is then stopped, since its scans would take
/// a CPU. The mapping is locked until the pages are merged, so that they are not migrated before
/// that.
fn merged(len: usize) -> PageMapping {
    let mut map = PageMapping::slow(len).lock();
    for (at, word) in map.words().iter_mut().enumerate() {
        *word = ((at * 8 / PAGE) % CONTENTS + 1) as u64;
    }
    let map = map.advised(libc::MADV_MERGEABLE);
    // Counted for this process: `pages_sharing` includes pages of exited processes until the
    // next KSM scan.
    let number = || {
        std::fs::read_to_string("/proc/self/ksm_merging_pages")
            .ok()
            .and_then(|t| t.trim().parse().ok())
    };
    let until = kernel::now() + MERGED_WITHIN.as_nanos() as u64;
    merging(true);
    while number().unwrap_or(0) < map.pages() * 9 / 10 {
        if kernel::now() > until {
            give_up(
                NOT_AS_MEANT,
                &format!("the kernel merged {:?} of {} pages", number(), map.pages()),
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    merging(false);
    if map.fast(0..map.pages()).pages > 0 {
        give_up(NOT_AS_MEANT, "merged pages do not lie on the slow node");
    }
    map.unlock()
}
