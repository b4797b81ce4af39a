//! Buffers are touched by the threads that will use them, while the others are begun. Both take
//! time that nothing can be hidden behind (a new thread the first 0.1 ms of a program's, a huge
//! page the zeroing), and each would wait for the other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use terrace_sys::{now, SysError};
use terrace_types::Tick;

/// What a thread touches at once: a huge page.
const PART: usize = 2 << 20;

/// Memory that is being touched.
#[derive(Debug)]
pub(super) struct Touch {
    bytes: usize,
    /// What begins here was not taken yet.
    next: AtomicUsize,
    /// Bytes that were touched.
    there: AtomicUsize,
    /// When the last of them was.
    last: AtomicU64,
}

impl Touch {
    /// Of so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            next: AtomicUsize::new(0),
            there: AtomicUsize::new(0),
            last: AtomicU64::new(now().0),
        }
    }

    /// Takes part until all is touched, by `touch` and by others who are here, and says when that
    /// was. Who comes later does not wait. `failed` hears of a part that could not be touched
    /// before anybody goes on.
    pub(super) fn help(
        &self,
        touch: impl Fn(std::ops::Range<usize>) -> Result<(), SysError>,
        failed: impl Fn(SysError),
    ) -> Tick {
        loop {
            let at = self.next.fetch_add(PART, Ordering::Relaxed);
            if at >= self.bytes {
                break;
            }
            let end = (at + PART).min(self.bytes);
            touch(at..end).unwrap_or_else(&failed);
            self.last.fetch_max(now().0, Ordering::Relaxed);
            self.there.fetch_add(end - at, Ordering::Release);
        }
        let mut spins = 0_u32;
        while self.there.load(Ordering::Acquire) < self.bytes {
            // No longer than a part takes; yet there may be fewer CPUs than threads.
            spins = spins.saturating_add(1);
            if spins < 2_000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        Tick(self.last.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_byte_is_touched_once_and_nobody_goes_on_before() {
        for bytes in [0, 1, PART, 5 * PART + 4096] {
            let (touch, done) = (Touch::new(bytes), Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let note = |part: std::ops::Range<usize>| {
                            std::thread::yield_now();
                            done.lock().unwrap().push(part);
                            Ok(())
                        };
                        touch.help(note, |_| {});
                        let all: usize =
                            done.lock().unwrap().iter().map(ExactSizeIterator::len).sum();
                        assert_eq!(all, bytes);
                    });
                }
            });
            let mut parts = done.into_inner().unwrap();
            parts.sort_by_key(|part| part.start);
            assert!(parts.windows(2).all(|w| w[0].end == w[1].start), "{parts:?}");
        }
    }

    #[test]
    fn a_part_that_fails_is_heard_of_before_anybody_goes_on() {
        let (touch, heard) = (Touch::new(3 * PART), Mutex::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let fails = |part: std::ops::Range<usize>| match part.start {
                        0 => {
                            Err(SysError::from_errno("madvise", "fresh memory", 12, "free memory"))
                        }
                        _ => Ok(()),
                    };
                    touch.help(fails, |_| *heard.lock().unwrap() += 1);
                    assert_eq!(*heard.lock().unwrap(), 1);
                });
            }
        });
    }
}
