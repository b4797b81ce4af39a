//! Ctrl-C and its like as a question that may be asked, so that long work can end in order.

use std::sync::atomic::{AtomicBool, Ordering};

static SEEN: AtomicBool = AtomicBool::new(false);

/// Signals that ask a program to end.
const ASKING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

extern "C" fn note(_signal: i32) {
    SEEN.store(true, Ordering::Relaxed);
}

/// While this lives, the first of SIGINT, SIGTERM and SIGHUP does not end the process but is noted;
/// the second ends it.
#[derive(Debug)]
pub struct Interrupt {
    before: [libc::sigaction; ASKING.len()],
}

impl Interrupt {
    /// Begins to note. Signals that were ignored stay ignored.
    #[must_use]
    pub fn catch() -> Self {
        SEEN.store(false, Ordering::Relaxed);
        let before = ASKING.map(|signal| {
            let mut old = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: a null new action only asks; `old` is writable, and zero bytes are a valid
            // sigaction besides.
            let old = unsafe {
                libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr());
                old.assume_init()
            };
            if old.sa_sigaction != libc::SIG_IGN {
                // SAFETY: zero bytes are a valid sigaction: no flags, an empty mask.
                let mut new = unsafe { std::mem::zeroed::<libc::sigaction>() };
                new.sa_sigaction = note as extern "C" fn(i32) as libc::sighandler_t;
                new.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
                // SAFETY: `new` is a whole action whose handler stores to one atomic, which is
                // async-signal-safe.
                unsafe { libc::sigaction(signal, &new, std::ptr::null_mut()) };
            }
            old
        });
        Self { before }
    }

    /// Whether one has come.
    #[must_use]
    pub fn seen(&self) -> bool {
        SEEN.load(Ordering::Relaxed)
    }

    /// The same as a flag that other threads may watch.
    #[must_use]
    pub fn flag(&self) -> &'static AtomicBool {
        &SEEN
    }
}

/// Signals to the process reach other threads than the calling one from now on.
pub fn block_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the whole set, which pthread_sigmask then reads; a null
    // pointer asks for no old mask.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for (signal, old) in ASKING.into_iter().zip(&self.before) {
            // SAFETY: `old` is the action that was in force when this was made.
            unsafe { libc::sigaction(signal, old, std::ptr::null_mut()) };
        }
    }
}
