//! How far a move of an arena is, and what became of its pages; the handle of an asynchronous one.

use super::error::MoveError;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Why a page stayed behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StayReason {
    /// In use by the kernel at that moment, three times.
    Busy,
    /// The nodes have no free space.
    NoSpace,
    /// Mapped by other processes too (after a fork, say).
    Shared,
    /// The move was cancelled before.
    Cancelled,
    /// The kernel gave this error number.
    Errno(i32),
}

impl fmt::Display for StayReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("busy"),
            Self::NoSpace => f.write_str("no free space"),
            Self::Shared => f.write_str("shared with other processes"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Errno(errno) => write!(f, "errno {errno}"),
        }
    }
}

/// What became of an arena's pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MoveReport {
    /// Base pages with memory that the arena had.
    pub pages: u64,
    /// On the right nodes before.
    pub already: u64,
    /// Asked to move, and on the right nodes afterwards. In stretches of 256 pages and more of
    /// which a sample showed no page there, the odd page that was there already counts as well.
    pub moved: u64,
    /// Given back by the program while the move went on.
    pub gone: u64,
    /// Still elsewhere, by reason.
    pub stayed: BTreeMap<StayReason, u64>,
}

impl fmt::Display for MoveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} pages moved, {} were there already",
            self.moved, self.pages, self.already
        )?;
        for (why, pages) in &self.stayed {
            write!(f, ", {pages} stayed ({why})")?;
        }
        Ok(())
    }
}

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveProgress {
    /// Base pages looked at so far.
    pub done: u64,
    /// Base pages there are; 0 until they are counted.
    pub total: u64,
    /// Whether it has ended.
    pub ended: bool,
}

/// What the moving thread and those who wait for it share.
#[derive(Debug, Default)]
pub(crate) struct MoveState {
    pub(super) cancel: AtomicBool,
    /// The process that moves is another, before a fork.
    pub(crate) abandoned: AtomicBool,
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) end: Mutex<Option<Result<MoveReport, MoveError>>>,
    pub(super) ended: Condvar,
}

impl MoveState {
    pub(crate) fn cancel(&self) {
        self.cancel.store(true, Relaxed);
    }

    pub(crate) fn wait_for_end(&self) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        while end.is_none() && !self.abandoned.load(Relaxed) {
            end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn result(&self) -> Option<Result<MoveReport, MoveError>> {
        if self.abandoned.load(Relaxed) {
            return Some(Err(MoveError::NoThread("the process that moved it was forked".into())));
        }
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An asynchronous move. Dropping it lets the move go on.
#[derive(Debug, Clone)]
pub struct Moving {
    pub(super) shared: Arc<MoveState>,
}

impl Moving {
    /// The result, if the move has ended.
    #[must_use]
    pub fn poll(&self) -> Option<Result<MoveReport, MoveError>> {
        self.shared.result()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As [`Arena::set_device`].
    pub fn wait(&self) -> Result<MoveReport, MoveError> {
        self.shared.wait_for_end();
        self.shared.result().unwrap_or(Err(MoveError::NoThread("it ended without a word".into())))
    }

    /// As [`Moving::wait`], at most this long.
    #[must_use]
    pub fn wait_for(&self, time: Duration) -> Option<Result<MoveReport, MoveError>> {
        let end = self.shared.end.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.shared.ended.wait_timeout_while(end, time, |end| end.is_none()));
        self.poll()
    }

    /// Asks the move to end after the batch it is at. Pages that moved stay; a strict move brings
    /// them back.
    pub fn cancel(&self) {
        self.shared.cancel();
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> MoveProgress {
        let shared = &self.shared;
        let ended = self.poll().is_some();
        MoveProgress { done: shared.done.load(Relaxed), total: shared.total.load(Relaxed), ended }
    }
}
