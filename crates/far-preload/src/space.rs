//! Changes of the ground: each brings the kernel's mappings, the pager and the account
//! ([`Layout`]) from one state to the next, in an order in which no other thread loses a byte.
//!
//! | from, to | first | then |
//! |---|---|---|
//! | far, unmapped | the pager gives it up and forgets its bytes | a mapping without rights replaces it |
//! | far, another mapping | the same | the mapping replaces it |
//! | far, ordinary | the pager brings its bytes into memory and gives it up | |
//! | free, far | fresh anonymous memory replaces the mapping without rights | the pager takes it over |

use crate::layout::{Kind, Layout};
use crate::raw::{call, errno};
use crate::{consider, either, offsets, MAPS_TOP, OFF, ON, ORDINARY, RUN, STATE};
use libc::c_int;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use terrace_far::{Advice, DiscardedContents, FarMap, Occupancy};
use terrace_preload::far as threads;
use terrace_sys::ForkSafeLock;
use terrace_types::Nanos;

pub(crate) const PAGE: usize = 4096;
const FRESH: c_int =
    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;

struct Account {
    lock: ForkSafeLock,
    layout: UnsafeCell<Layout>,
}

// SAFETY: `layout` is reached under `lock` alone.
unsafe impl Sync for Account {}

static ACCOUNT: Account =
    Account { lock: ForkSafeLock::new(), layout: UnsafeCell::new(Layout::new()) };
/// Threads that are changing the ground.
static CHANGES: AtomicUsize = AtomicUsize::new(0);
/// The thread that forks, which alone may change the ground meanwhile; 0: nobody forks.
static FORKER: AtomicUsize = AtomicUsize::new(0);
static UNFOLLOWED: AtomicBool = AtomicBool::new(false);

/// What the account says. Short, and never while waiting for anything.
pub(crate) fn with<T>(act: impl FnOnce(&mut Layout) -> T) -> T {
    let _held = ACCOUNT.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    act(unsafe { &mut *ACCOUNT.layout.get() })
}

/// While it lives the calling thread may change the ground, and nobody forks.
pub(crate) struct Change(());

impl Change {
    /// Waits while another thread forks.
    pub(crate) fn begin() -> Self {
        loop {
            CHANGES.fetch_add(1, SeqCst);
            let forker = FORKER.load(SeqCst);
            if forker == 0 || forker == threads::this_thread() {
                return Self(());
            }
            CHANGES.fetch_sub(1, SeqCst);
            terrace_sys::sleep(Nanos::micros(50));
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        CHANGES.fetch_sub(1, SeqCst);
    }
}

/// From here to [`end_fork`] no other thread changes the ground.
pub(crate) fn begin_fork() {
    FORKER.store(threads::this_thread(), SeqCst);
    while CHANGES.load(SeqCst) != 0 {
        terrace_sys::sleep(Nanos::micros(20));
    }
}

/// In the parent.
pub(crate) fn end_fork() {
    FORKER.store(0, SeqCst);
}

/// In the child, where threads that waited for the end of the fork are not any more.
pub(crate) fn begin_as_child() {
    CHANGES.store(0, SeqCst);
    FORKER.store(0, SeqCst);
}

/// In a child whose fork called no handlers: other threads may have held locks of the C library's
/// heap then, so that nothing may be allocated here. All of its memory is ordinary, and the kernel
/// alone follows its calls.
pub(crate) fn follow_no_more() {
    // What is free here is so for the kernel too, from now on.
    let unmap = |part: Range<usize>| {
        // SAFETY: mappings without rights, which nobody uses.
        unsafe { call(libc::SYS_munmap, [part.start, part.len(), 0, 0, 0, 0]) };
    };
    with(|l| l.each_free(unmap));
    STATE.store(ORDINARY, SeqCst);
    UNFOLLOWED.store(true, SeqCst);
}

/// Whether the calling thread's calls are followed at all.
pub(crate) fn is_followed() -> bool {
    STATE.load(Relaxed) != OFF && !UNFOLLOWED.load(Relaxed) && !threads::is_aside()
}

/// The part of a range, rounded up to whole pages, that lies on the ground.
pub(crate) fn on_ground(start: usize, len: usize) -> Option<Range<usize>> {
    if !is_followed() {
        return None;
    }
    let ground = RUN.get()?.ground;
    let end = start.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    let part = start.max(ground.start())..end.min(ground.start() + ground.len());
    (part.start < part.end).then_some(part)
}

/// The parts of a range that do not lie on the ground.
pub(crate) fn beside(start: usize, len: usize, part: &Range<usize>) -> [Range<usize>; 2] {
    let end = start + len.next_multiple_of(PAGE);
    [start..part.start.max(start), part.end.min(end)..end]
}

/// `madvise(2)` itself.
pub(crate) fn real_advise(start: usize, len: usize, advice: c_int) -> c_int {
    // SAFETY: the program's own call, or by callers pages that nothing uses.
    unsafe { call(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) as c_int }
}

/// `mmap(2)` itself, without a file.
fn anonymous(part: &Range<usize>, rights: c_int) -> bool {
    let arguments = [part.start, part.len(), rights as usize, FRESH as usize, usize::MAX, 0];
    // SAFETY: by callers the part is of the ground, and what was there is given up.
    unsafe { call(libc::SYS_mmap, arguments) != -1 }
}

/// Puts a mapping without rights in place of whatever is there, which is not dumped.
pub(crate) fn reserve(part: &Range<usize>) -> bool {
    let done = anonymous(part, libc::PROT_NONE);
    if done {
        let before = errno();
        real_advise(part.start, part.len(), libc::MADV_DONTDUMP);
        crate::raw::fail(before);
    }
    done
}

/// As [`reserve`], where the kernel has just unmapped something. Should somebody else have got
/// these addresses meanwhile, they stay theirs.
pub(crate) fn reserve_hole(part: &Range<usize>) {
    let before = errno();
    let flags = FRESH & !libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
    let arguments = [part.start, part.len(), 0, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping where there is none, or nothing.
    let done = unsafe { call(libc::SYS_mmap, arguments) } == part.start as isize;
    if done {
        real_advise(part.start, part.len(), libc::MADV_DONTDUMP);
    }
    let kind = if done { Kind::Free } else { Kind::Ordinary };
    with(|l| l.set(part.clone(), kind));
    crate::raw::fail(before);
}

/// Puts fresh zeros in place of whatever is there: far, if there is a pager.
pub(crate) fn open(part: &Range<usize>, rights: c_int) -> bool {
    let fresh = || {
        let done = anonymous(part, rights);
        if done {
            real_advise(part.start, part.len(), libc::MADV_NOHUGEPAGE);
        }
        done
    };
    let attached = |map: &FarMap| {
        if !fresh() {
            return false;
        }
        take_in(map, part, Occupancy::Empty);
        true
    };
    either(fresh, attached)
}

/// Children forked from now on have a part of the ground, or have it not.
pub(crate) fn inherit_part(part: &Range<usize>, yes: bool) {
    let advice = if yes { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    real_advise(part.start, part.len(), advice);
}

/// Has the pager take over memory of the ground; where it cannot, that is ordinary.
pub(crate) fn take_in(map: &FarMap, part: &Range<usize>, occupancy: Occupancy) {
    inherit_part(part, false);
    let kind = if map.attach(offsets(part.start, part.len()), occupancy).is_ok() {
        Kind::Far
    } else {
        inherit_part(part, true);
        Kind::Ordinary
    };
    with(|l| l.set(part.clone(), kind));
}

/// Has the pager give up a part and forget its bytes, so that another mapping can come there.
pub(crate) fn drop_far(part: &Range<usize>) {
    let _within_the_ground = either(
        || Ok(()),
        |map| map.detach(offsets(part.start, part.len()), DiscardedContents::Drop),
    );
}

/// Makes what is far of a part ordinary memory, with all its bytes.
pub(crate) fn hand_out(part: &Range<usize>) {
    for piece in with(|l| l.of_kind(part, Kind::Far)) {
        let _within_the_ground = either(
            || Ok(()),
            |map| map.detach(offsets(piece.start, piece.len()), DiscardedContents::Keep),
        );
        inherit_part(&piece, true);
        with(|l| l.set(piece, Kind::Ordinary));
    }
}

/// Unmaps a part of the ground.
pub(crate) fn unmap(part: &Range<usize>) -> bool {
    drop_far(part);
    let done = reserve(part);
    if done {
        with(|l| l.set(part.clone(), Kind::Free));
    }
    done
}

/// Frees the pages of a part that is far: zeros from now on.
pub(crate) fn discard(part: &Range<usize>) -> bool {
    either(
        || real_advise(part.start, part.len(), libc::MADV_DONTNEED) == 0,
        |map| map.advise(offsets(part.start, part.len()), Advice::Discard).is_ok(),
    )
}

/// Mappings reach to `end`.
pub(crate) fn grown(end: usize) {
    if RUN.get().is_some_and(|run| end > run.middle) {
        MAPS_TOP.fetch_max(end, SeqCst);
        consider();
    }
}

/// Children forked from now on have what is far, or have it not.
pub(crate) fn inherit(yes: bool) {
    let Some(run) = RUN.get().filter(|_| STATE.load(SeqCst) == ON) else { return };
    let whole = run.ground.start()..run.ground.start() + run.ground.len();
    for part in with(|l| l.of_kind(&whole, Kind::Far)) {
        inherit_part(&part, yes);
    }
}
