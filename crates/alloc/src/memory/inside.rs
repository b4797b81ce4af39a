//! Who is inside: one lock a handle; a gate for all handles, so that no fork copies a lock that is
//! held; and a mark on the thread, so that a signal handler which interrupted it is refused instead
//! of waiting for itself.

use super::State;
use crate::error::AllocError;
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Passed through by every call; shut around a fork.
static GATE: RwLock<()> = RwLock::new(());

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static SHUT: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

unsafe extern "C" fn shut() {
    // A handler that forks while its thread is inside would wait for itself: it is let through, as
    // ever.
    if !INSIDE.with(Cell::get) {
        let gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
        SHUT.with(|s| *s.borrow_mut() = Some(gate));
    }
}

unsafe extern "C" fn open() {
    drop(SHUT.with(RefCell::take));
}

/// Has every fork from now on wait until nobody is inside.
pub(super) fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without memory for the note, forks are as they were: safe where one thread allocates.
        let _best_effort = terrace_sys::at_fork(shut, open, open);
    });
}

/// Takes the mark from the thread.
#[derive(Debug)]
struct Mark;

impl Drop for Mark {
    fn drop(&mut self) {
        INSIDE.with(|i| i.set(false));
    }
}

/// The state, while the calling thread is inside. Fields go in this order: the mark last, when both
/// locks are free.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    state: MutexGuard<'a, State>,
    _gate: RwLockReadGuard<'static, ()>,
    _mark: Mark,
}

impl<'a> Inside<'a> {
    pub(super) fn lock(state: &'a Mutex<State>) -> Result<Self, AllocError> {
        if INSIDE.with(|i| i.replace(true)) {
            return Err(AllocError::Reentered);
        }
        let mark = Mark;
        let gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
        // A panic while the lock was held left at worst an object half placed: its pages are its
        // own still.
        Ok(Self {
            state: state.lock().unwrap_or_else(PoisonError::into_inner),
            _gate: gate,
            _mark: mark,
        })
    }
}

impl Deref for Inside<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Inside<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
