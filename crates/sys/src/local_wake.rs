//! Waking a thread on the caller's own CPU.
//!
//! The kernel wakes a thread on an idle CPU if there is one that it may run on
//! (`select_idle_sibling`, `kernel/sched/fair.c`). There is no call that asks for the caller's
//! instead (`WF_CURRENT_CPU` is for seccomp's notifications alone), so the thread is kept on that
//! CPU for the moment of waking, and made one that does not preempt whoever wakes it
//! (`SCHED_BATCH`, `wakeup_preempt_fair`): it goes on once both are as before.

use crate::{Root, SysError};
use terrace_types::{CpuId, Tid};

/// Words of a mask: 8192 CPUs, as the kernel has at most.
const WORDS: usize = 128;

/// The CPUs that a thread of this process may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadCpus {
    words: [u64; WORDS],
    /// Bytes of it that the kernel uses.
    bytes: usize,
}

impl ThreadCpus {
    /// Of a thread; of the caller's for 0.
    ///
    /// # Errors
    /// It has ended.
    pub fn read(tid: Tid) -> Result<Self, SysError> {
        let mut words = [0; WORDS];
        // SAFETY: the words are writable and as many as stated.
        let got = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                tid.0,
                std::mem::size_of_val(&words),
                words.as_mut_ptr(),
            )
        };
        let bytes = usize::try_from(got).ok().filter(|b| (8..=WORDS * 8).contains(b));
        bytes.map(|bytes| Self { words, bytes }).ok_or_else(|| {
            SysError::last(
                "sched_getaffinity",
                format!("thread {}", tid.0),
                "it has ended, or the kernel is older",
            )
        })
    }

    /// Lets a thread run on these alone.
    ///
    /// # Errors
    /// It has ended; none of them is online and allowed; a filter of system calls forbids it.
    pub fn set(&self, tid: Tid) -> Result<(), SysError> {
        // SAFETY: that many bytes of the words are readable.
        let status = unsafe {
            libc::syscall(libc::SYS_sched_setaffinity, tid.0, self.bytes, self.words.as_ptr())
        };
        if status != 0 {
            return Err(SysError::last(
                "sched_setaffinity",
                format!("thread {}", tid.0),
                "see `taskset -p`",
            ));
        }
        Ok(())
    }

    /// Whether this CPU is one of them.
    #[must_use]
    pub fn has(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.0 as usize / 64).is_some_and(|w| w >> (cpu.0 % 64) & 1 == 1)
    }

    /// How many they are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// One CPU, of those here and there.
    #[must_use]
    pub fn shared_with(&self, other: &Self) -> Option<CpuId> {
        let both = self.words.iter().zip(&other.words).map(|(a, b)| a & b);
        both.enumerate()
            .find(|(_, w)| *w != 0)
            .map(|(n, w)| CpuId(n as u32 * 64 + w.trailing_zeros()))
    }

    /// All that the kernel has space for: of a thread, those that its group allows, now and later.
    fn all(&self) -> Self {
        let mut words = [0; WORDS];
        words[..self.bytes / 8].fill(u64::MAX);
        Self { words, bytes: self.bytes }
    }

    /// This CPU alone.
    #[must_use]
    pub fn only(&self, cpu: CpuId) -> Self {
        let mut words = [0; WORDS];
        if let Some(word) = words.get_mut(cpu.0 as usize / 64) {
            *word = 1 << (cpu.0 % 64);
        }
        Self { words, bytes: self.bytes }
    }
}

/// Wakes threads of this process on the caller's CPU.
#[derive(Debug)]
pub struct LocalWaker {
    /// `/proc/loadavg`, whose last word is the last process or thread number given away.
    births: std::fs::File,
    /// CPUs of the machine.
    online: u32,
    /// The last number given away as of some wakes ago, and how many of those.
    born: Option<i32>,
    wakes: u32,
}

/// Wakes after which the last number given away is read anew: what it bounds is also told by how it
/// is scheduled.
const READ_AGAIN: u32 = 64;

impl LocalWaker {
    /// Ready to wake.
    ///
    /// # Errors
    /// No `/proc`, or a container's own files in its place: then nobody can tell who was started
    /// meanwhile.
    pub fn new() -> Result<Self, SysError> {
        let reported =
            |e: &std::io::Error| SysError::from_io("open", "/proc/loadavg", e, "mount /proc");
        let births = std::fs::File::open("/proc/loadavg").map_err(|e| reported(&e))?;
        if !is_of_proc(&births) {
            return Err(reported(&std::io::ErrorKind::Unsupported.into()));
        }
        // SAFETY: takes a number.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        Ok(Self { births, online: u32::try_from(online).unwrap_or(u32::MAX), born: None, wakes: 0 })
    }

    /// Does `wake`, which wakes thread `tid` of this process, so that it goes on at CPU `home`, on
    /// which the caller is kept. Where that cannot be, it is woken as always, and the second value
    /// is false.
    ///
    /// The thread may run on `home` alone, and is `SCHED_BATCH`, from just before `wake` until just
    /// after it, some microseconds. Who asks for either at that moment is told so, and what
    /// somebody else sets then is undone. Should the thread run within, because the caller was
    /// preempted all the same, and start threads or processes, they are amended afterwards. One
    /// that is scheduled otherwise than by default is woken as always.
    ///
    /// The kernel does not tell a thread that was never bound from one that was bound to all that
    /// its group allows. One that has all CPUs of the machine is not bound afterwards; one with
    /// fewer is, to those: it does not follow its group to others.
    pub fn wake<T>(&mut self, tid: Tid, home: CpuId, wake: impl FnOnce() -> T) -> (T, bool) {
        let Some(cpus) = ThreadCpus::read(tid).ok().filter(|cpus| cpus.has(home)) else {
            return (wake(), false);
        };
        if cpus.count() == 1 {
            return (wake(), true);
        }
        if self.born.is_none() || self.wakes >= READ_AGAIN {
            (self.born, self.wakes) = (self.last_born(), 0);
        }
        let Some(born) = self.born else {
            return (wake(), false);
        };
        self.wakes += 1;
        let switched = switches();
        let cpus = if cpus.count() >= self.online { cpus.all() } else { cpus };
        let only = cpus.only(home);
        if !schedule(tid, libc::SCHED_OTHER, libc::SCHED_BATCH) {
            return (wake(), false);
        }
        if only.set(tid).is_err() {
            schedule(tid, libc::SCHED_BATCH, libc::SCHED_OTHER);
            return (wake(), false);
        }
        let result = wake();
        // Fails when the thread has ended.
        let _ended = cpus.set(tid);
        schedule(tid, libc::SCHED_BATCH, libc::SCHED_OTHER);
        if switches() != switched {
            let last = self.last_born().unwrap_or(born);
            amend(&Root::live(), tid, |id| is_between(born, id, last), &only, &cpus);
        }
        (result, true)
    }

    /// The last process or thread number given away.
    fn last_born(&self) -> Option<i32> {
        use std::os::unix::fs::FileExt as _;
        let mut text = [0; 64];
        let len = self.births.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..len]).ok()?.trim_end().rsplit_once(' ')?.1.parse().ok()
    }
}

/// Whether a number was given away after the one and up to the other: they begin anew after the
/// highest.
fn is_between(after: i32, id: i32, last: i32) -> bool {
    if after <= last {
        id > after && id <= last
    } else {
        id > after || id <= last
    }
}

/// Whether a file is the kernel's own: some containers have others in their place.
fn is_of_proc(file: &std::fs::File) -> bool {
    use std::os::fd::AsRawFd as _;
    // SAFETY: all bit patterns of the struct are valid.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, `about` is writable.
    let reported = unsafe { libc::fstatfs(file.as_raw_fd(), &mut about) } == 0;
    reported && about.f_type == libc::PROC_SUPER_MAGIC
}

/// How often the calling thread gave its CPU up.
fn switches() -> i64 {
    // SAFETY: all bit patterns of the struct are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw + usage.ru_nivcsw
}

/// How a thread is scheduled, and the kernel's flag about what it starts; negative when it has
/// ended.
fn scheduled(tid: Tid) -> libc::c_int {
    // SAFETY: takes a number.
    unsafe { libc::sched_getscheduler(tid.0) }
}

/// Has a thread scheduled in another way; whether it was in the first.
fn schedule(tid: Tid, from: libc::c_int, to: libc::c_int) -> bool {
    let now = scheduled(tid);
    // The flag that its children are to be scheduled by default comes and goes with the policy.
    let flag = now & libc::SCHED_RESET_ON_FORK;
    if now < 0 || now & !flag != from {
        return false;
    }
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` is readable; neither policy has priorities, and nice levels stay.
    unsafe { libc::sched_setscheduler(tid.0, to | flag, &none) == 0 }
}

/// Gives `cpus`, and the usual way of scheduling, to those threads and children of thread `tid`
/// that were born meanwhile and have inherited `only` and `SCHED_BATCH`. "Meanwhile" reaches back
/// some wakes: what a program itself started in them, bound to this very CPU and made `SCHED_BATCH`
/// is taken for such.
fn amend(root: &Root, tid: Tid, born: impl Fn(i32) -> bool, only: &ThreadCpus, cpus: &ThreadCpus) {
    let me = std::process::id();
    let threads = root.list(&format!("/proc/{me}/task")).unwrap_or_default();
    let children = root.text(&format!("/proc/{me}/task/{}/children", tid.0)).unwrap_or_default();
    let all = threads.iter().map(String::as_str).chain(children.split_whitespace());
    for other in all.filter_map(|word| word.parse().ok()).filter(|id| born(*id)).map(Tid) {
        if scheduled(other) & !libc::SCHED_RESET_ON_FORK == libc::SCHED_BATCH
            && ThreadCpus::read(other).is_ok_and(|has| has == *only)
        {
            let _ended = cpus.set(other);
            schedule(other, libc::SCHED_BATCH, libc::SCHED_OTHER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OneShotReply;
    use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
    use std::sync::Arc;

    fn own_tid() -> Tid {
        // SAFETY: takes nothing.
        Tid(unsafe { libc::gettid() })
    }

    #[test]
    fn a_thread_woken_here_goes_on_here_and_may_run_where_it_might_before() {
        let mine = ThreadCpus::read(Tid(0)).unwrap();
        let Some(home) = crate::current_cpu().filter(|_| mine.count() > 1) else {
            return println!("skipped: this process has one CPU");
        };
        mine.only(home).set(Tid(0)).unwrap();
        let (go, tid) = (Arc::new(OneShotReply::default()), Arc::new(AtomicI32::new(0)));
        let (its_go, its_tid) = (Arc::clone(&go), Arc::clone(&tid));
        let end = Arc::new(OneShotReply::default());
        let (its_end, all) = (Arc::clone(&end), mine.clone());
        let thread = std::thread::spawn(move || {
            all.set(Tid(0)).unwrap();
            its_tid.store(own_tid().0, Relaxed);
            its_go.wait() && its_end.wait()
        });
        while tid.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        crate::sleep(terrace_types::Nanos::millis(20));
        let tid = Tid(tid.load(Relaxed));
        assert_eq!(ThreadCpus::read(tid).unwrap(), mine);
        let (during, here) = LocalWaker::new().unwrap().wake(tid, home, || {
            let during = ThreadCpus::read(tid).unwrap();
            go.give(true);
            during
        });
        assert_eq!((during.count(), during.has(home), here), (1, true, true));
        assert_eq!(ThreadCpus::read(tid).unwrap(), mine);
        end.give(true);
        assert!(thread.join().unwrap());
        mine.set(Tid(0)).unwrap();
        assert!(ThreadCpus::read(tid).is_err(), "it has ended");
        assert_eq!(
            LocalWaker::new().unwrap().wake(tid, home, || 7),
            (7, false),
            "one that has ended"
        );
    }

    #[test]
    fn its_cpus_are_put_back_and_those_of_what_it_started_too() {
        let mine = ThreadCpus::read(Tid(0)).unwrap();
        let Some(home) = crate::current_cpu().filter(|_| mine.count() > 1) else {
            return println!("skipped: this process has one CPU");
        };
        let only = mine.only(home);
        only.set(Tid(0)).unwrap();
        let nearby = LocalWaker::new().unwrap();
        let before = nearby.last_born().unwrap();
        // One that the program pins itself, shortly before.
        let end_of_pinned = Arc::new(OneShotReply::default());
        let (its_end, (tell, reported)) = (Arc::clone(&end_of_pinned), std::sync::mpsc::channel());
        let pinned = std::thread::spawn(move || {
            tell.send(own_tid()).unwrap();
            its_end.wait()
        });
        let of_pinned = reported.recv().unwrap();
        // The others inherit one CPU and how it is scheduled, as in the window between waking and
        // giving back.
        assert!(schedule(own_tid(), libc::SCHED_OTHER, libc::SCHED_BATCH));
        let end = Arc::new(OneShotReply::default());
        let (its_end, (tell, reported)) = (Arc::clone(&end), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            tell.send(own_tid()).unwrap();
            its_end.wait()
        });
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let (other, of_child) = (reported.recv().unwrap(), Tid(child.id() as i32));
        assert_eq!(
            [other, of_child].map(|t| ThreadCpus::read(t).unwrap()),
            [only.clone(), only.clone()]
        );
        assert!(schedule(own_tid(), libc::SCHED_BATCH, libc::SCHED_OTHER));
        mine.set(Tid(0)).unwrap();
        let last = nearby.last_born().unwrap();
        let counts = || [other, of_child, of_pinned].map(|t| ThreadCpus::read(t).unwrap().count());
        amend(&Root::live(), own_tid(), |id| is_between(last, id, last), &only, &mine);
        let not_born = counts();
        amend(&Root::live(), own_tid(), |id| is_between(before, id, last), &only, &mine);
        let found = (counts(), [other, of_child].map(scheduled));
        child.kill().unwrap();
        child.wait().unwrap();
        end.give(true);
        thread.join().unwrap();
        end_of_pinned.give(true);
        pinned.join().unwrap();
        assert_eq!(not_born, [1; 3], "born at another time");
        let all = mine.count();
        assert_eq!(
            found,
            ([all, all, 1], [libc::SCHED_OTHER; 2]),
            "of the thread, of the child, of the pinned"
        );
    }

    #[test]
    fn numbers_begin_anew_after_the_highest() {
        assert!(
            is_between(5, 6, 8)
                && is_between(5, 8, 8)
                && !is_between(5, 5, 8)
                && !is_between(5, 9, 8)
        );
        assert!(
            is_between(32_000, 32_767, 300)
                && is_between(32_000, 300, 300)
                && !is_between(32_000, 301, 300)
        );
        assert!(!is_between(7, 7, 7) && !is_between(7, 8, 7));
    }

    #[test]
    fn masks_know_their_cpus() {
        let mine = ThreadCpus::read(Tid(0)).unwrap();
        let one = mine.only(CpuId(70));
        assert!(
            one.has(CpuId(70))
                && !one.has(CpuId(6))
                && !one.has(CpuId(100_000))
                && one.count() == 1
        );
        assert_eq!(one.shared_with(&one), Some(CpuId(70)));
        assert_eq!(one.shared_with(&one.only(CpuId(3))), None);
    }
}
