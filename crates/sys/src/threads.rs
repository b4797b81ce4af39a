//! What an allocator needs of threads: a lock that allocates nothing, a word when a thread ends,
//! and one before and after a fork.

use crate::SysError;
use std::sync::atomic::{AtomicU32, Ordering};

/// A mutual exclusion that never allocates and whose state may be set by hand after a fork.
/// 0: free, 1: held, 2: held and waited for.
#[derive(Debug, Default)]
pub struct ForkSafeLock(AtomicU32);

impl ForkSafeLock {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits until the lock is free and takes it. Not to be taken twice by one thread.
    pub fn lock(&self) {
        for _ in 0..100 {
            if self.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.0.swap(2, Ordering::Acquire) != 0 {
            futex(&self.0, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 2);
        }
    }

    /// Gives the lock back.
    pub fn unlock(&self) {
        if self.0.swap(0, Ordering::Release) == 2 {
            futex(&self.0, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
    }

    /// Takes the lock for as long as what is returned lives.
    pub fn hold(&self) -> LockGuard<'_> {
        self.lock();
        LockGuard(self)
    }
}

/// A lock taken; dropping it gives it back.
#[derive(Debug)]
pub struct LockGuard<'a>(&'a ForkSafeLock);

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// A yes or no that one thread waits for and another gives. Unlike the standard library's channels
/// it touches no record of the waiting thread, which may lie in memory that the giver must not wait
/// for.
#[derive(Debug, Default)]
pub struct OneShotReply(AtomicU32);

impl OneShotReply {
    /// Gives it.
    pub fn give(&self, yes: bool) {
        self.0.store(1 + u32::from(yes), Ordering::Release);
        futex(&self.0, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX as u32);
    }

    /// Waits for it.
    #[must_use]
    pub fn wait(&self) -> bool {
        loop {
            match self.0.load(Ordering::Acquire) {
                0 => futex(&self.0, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0),
                given => return given == 2,
            }
        }
    }
}

fn futex(word: &AtomicU32, what: i32, value: u32) {
    // SAFETY: `word` outlives the call, no timeout is given, and every outcome (woken, changed
    // meanwhile, interrupted) is answered by the caller's loop.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            what,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

/// The calling thread's name, as the kernel has it: up to 15 bytes, then zeros.
#[must_use]
pub fn thread_name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes 16 bytes at most.
    let _unnamed_if_refused = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Calls a function at the end of each thread that asked for it.
#[derive(Debug, Clone, Copy)]
pub struct ThreadEnd(libc::pthread_key_t);

impl ThreadEnd {
    /// `called` gets the value that the thread last passed to [`ThreadEnd::arm`].
    ///
    /// # Errors
    /// When the process has no key left (1,024 of them).
    pub fn new(called: unsafe extern "C" fn(*mut libc::c_void)) -> Result<Self, SysError> {
        let mut key = 0;
        // SAFETY: `key` is writable; `called` is a function and lives as long as the program.
        let errno = unsafe { libc::pthread_key_create(&mut key, Some(called)) };
        if errno == 0 {
            return Ok(Self(key));
        }
        Err(SysError::from_errno(
            "pthread_key_create",
            "this process",
            errno,
            "use fewer thread-specific keys",
        ))
    }

    /// The calling thread's end shall be reported, with `value` (an address, not 0). Whether it
    /// will be.
    #[must_use]
    pub fn arm(self, value: usize) -> bool {
        // SAFETY: the key was made by `new` and is never deleted; the value is only handed on.
        unsafe { libc::pthread_setspecific(self.0, value as *const libc::c_void) == 0 }
    }
}

/// Starts a thread on which nothing of the standard library runs before `run` does: the library's
/// own beginning of a thread asks the C library for memory, which may be somebody else's to give.
/// Nobody can wait for its end.
///
/// # Errors
/// When the system has no thread left.
pub fn spawn_bare(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), SysError> {
    struct Start {
        name: [u8; 16],
        run: Box<dyn FnOnce() + Send>,
    }
    extern "C" fn begin(start: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the box that `spawn_bare` gave up, once.
        let start = unsafe { Box::from_raw(start.cast::<Start>()) };
        // SAFETY: the name ends with zero.
        let _unnamed_if_refused =
            unsafe { libc::prctl(libc::PR_SET_NAME, start.name.as_ptr().cast::<libc::c_char>()) };
        (start.run)();
        std::ptr::null_mut()
    }
    /// As the standard library's threads have.
    const STACK_BYTES: usize = 2 << 20;

    let mut start = Start { name: [0; 16], run: Box::new(run) };
    let len = name.len().min(15);
    start.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    let start = Box::into_raw(Box::new(start));
    // SAFETY: all zeros is space for attributes, which the next call sets.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    let mut thread = 0;
    // SAFETY: the attributes live across the calls; `begin` takes over the box, unless there is no
    // thread.
    let errno = unsafe {
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let errno = libc::pthread_create(&mut thread, &attributes, begin, start.cast());
        libc::pthread_attr_destroy(&mut attributes);
        errno
    };
    if errno == 0 {
        return Ok(());
    }
    // SAFETY: no thread has it.
    drop(unsafe { Box::from_raw(start) });
    Err(SysError::from_errno(
        "clone",
        format!("thread {name}"),
        errno,
        "raise the limit on threads",
    ))
}

/// Has functions called around every fork: before it, after it in the parent, after it in the
/// child.
///
/// # Errors
/// When there is no memory for the note.
pub fn at_fork(
    before: unsafe extern "C" fn(),
    in_parent: unsafe extern "C" fn(),
    in_child: unsafe extern "C" fn(),
) -> Result<(), SysError> {
    // SAFETY: the functions live as long as the program.
    let errno = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    if errno == 0 {
        return Ok(());
    }
    Err(SysError::from_errno("pthread_atfork", "this process", errno, "free some memory first"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn one_holder_at_a_time() {
        static LOCK: ForkSafeLock = ForkSafeLock::new();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let add = || {
            for _ in 0..20_000 {
                let _held = LOCK.hold();
                // Not one atomic step: a second holder would lose counts.
                let seen = COUNT.load(Ordering::Relaxed);
                COUNT.store(seen + 1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|s| (0..4).for_each(|_| drop(s.spawn(add))));
        assert_eq!(COUNT.load(Ordering::Relaxed), 80_000);
    }

    #[test]
    fn an_answer_is_waited_for() {
        for yes in [true, false] {
            let answer = OneShotReply::default();
            std::thread::scope(|s| {
                let waits = s.spawn(|| answer.wait());
                answer.give(yes);
                assert_eq!((waits.join().unwrap(), answer.wait()), (yes, yes));
            });
        }
    }

    #[test]
    fn the_end_of_a_thread_is_reported() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        unsafe extern "C" fn ended(value: *mut libc::c_void) {
            TOLD.store(value as usize, Ordering::SeqCst);
        }
        let key = ThreadEnd::new(ended).unwrap();
        std::thread::spawn(move || assert!(key.arm(77))).join().unwrap();
        assert_eq!(TOLD.load(Ordering::SeqCst), 77);
    }
}
