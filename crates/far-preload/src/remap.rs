//! `mremap(2)`: the kernel itself moves the pages, so that rights, several mappings and threads
//! that use them meanwhile are as without far memory. Where all of a move is far it goes in pieces,
//! each of which is in memory while it moves.

use crate::layout::Kind;
use crate::raw::{call, fail};
use crate::space::{
    drop_far, grown, hand_out, is_followed, on_ground, open, reserve, reserve_hole, take_in, unmap,
    with, Change, PAGE,
};
use crate::{either, offsets};
use libc::{c_int, c_void, size_t};
use std::ops::Range;
use terrace_far::{DiscardedContents, FarMap, Occupancy};
use terrace_preload::far as threads;

/// What is in memory at a time while far memory moves: little beside what a pager has at least
/// (2 MiB), and enough that the calls for each piece do not count.
const PIECE: usize = 1 << 20;
const FLAGS: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;

/// What `mremap(2)` is asked for, in whole pages.
#[derive(Clone)]
struct Move {
    old: Range<usize>,
    new_len: usize,
    flags: c_int,
    new: usize,
}

impl Move {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// The call itself.
    unsafe fn perform(&self) -> isize {
        let (old, flags) = (&self.old, self.flags as usize);
        let arguments = [old.start, old.len(), self.new_len, flags, self.new, 0];
        // SAFETY: the caller's contract is the call's.
        unsafe { call(libc::SYS_mremap, arguments) }
    }

    /// The errno for what the kernel refuses whatever is mapped (`check_mremap_params` in
    /// `mm/mremap.c`).
    fn is_unsound(&self) -> bool {
        let fixed = self.has(libc::MREMAP_FIXED);
        let stays = self.has(libc::MREMAP_DONTUNMAP);
        let target = self.new..self.new.saturating_add(self.new_len);
        self.flags & !FLAGS != 0
            || ((fixed || stays) && !self.has(libc::MREMAP_MAYMOVE))
            || (stays && self.old.len() != self.new_len)
            || self.old.start % PAGE != 0
            || self.new_len == 0
            || (fixed
                && (self.new % PAGE != 0
                    || (target.start < self.old.end && self.old.start < target.end)))
    }
}

/// `mremap(2)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let start = old as usize;
    let rounded = |len: usize| len.checked_next_multiple_of(PAGE);
    let (Some(old_bytes), Some(new_bytes), true) =
        (rounded(old_len), rounded(new_len), is_followed())
    else {
        let arguments = [start, old_len, new_len, flags as usize, new as usize, 0];
        // SAFETY: handed on.
        return unsafe { call(libc::SYS_mremap, arguments) as *mut c_void };
    };
    let end = start.saturating_add(old_bytes);
    let wanted = Move { old: start..end, new_len: new_bytes, flags, new: new as usize };
    let from = on_ground(start, old_bytes.max(1));
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let to = if fixed { on_ground(new as usize, new_bytes) } else { None };
    if (from.is_none() && to.is_none()) || wanted.is_unsound() {
        // SAFETY: handed on; nothing of the ground, or refused.
        return unsafe { wanted.perform() as *mut c_void };
    }
    let done = {
        let _no_fork = Change::begin();
        // SAFETY: handed on.
        unsafe { moved(wanted, from, to) }
    };
    threads::settle();
    done as *mut c_void
}

/// Whether every page of a range is mapped, outside of the ground.
fn is_mapped(range: &Range<usize>) -> bool {
    // SAFETY: looks at mappings and writes nothing: there are no files behind private memory.
    unsafe {
        call(libc::SYS_msync, [range.start, range.len(), libc::MS_ASYNC as usize, 0, 0, 0]) == 0
    }
}

/// A sound move that the ground has a part in.
unsafe fn moved(mut wanted: Move, from: Option<Range<usize>>, to: Option<Range<usize>>) -> isize {
    let mapped = match &from {
        None => is_mapped(&wanted.old),
        Some(part) => with(|l| l.of_kind(part, Kind::Free)).is_empty(),
    };
    if !mapped {
        return fail(libc::EFAULT);
    }
    let Some(from) = from.filter(|part| *part == wanted.old) else {
        // From elsewhere to the ground, or a mapping that is no more than beside it, or a second
        // one of shared memory.
        // SAFETY: handed on.
        return unsafe {
            move_as_ordinary(&wanted, on_ground(wanted.old.start, wanted.old.len()), to)
        };
    };
    if wanted.new_len < from.len() {
        if !unmap(&(from.start + wanted.new_len..from.end)) {
            return -1;
        }
        wanted.old.end = from.start + wanted.new_len;
    }
    let from = wanted.old.clone();
    let fixed = wanted.has(libc::MREMAP_FIXED);
    if !fixed && !wanted.has(libc::MREMAP_DONTUNMAP) {
        if wanted.new_len == from.len() {
            return from.start as isize;
        }
        if extend(&from, wanted.new_len) {
            return from.start as isize;
        }
        if !wanted.has(libc::MREMAP_MAYMOVE) {
            return fail(libc::ENOMEM);
        }
    }
    let far = with(|l| l.is(&from, Kind::Far));
    if fixed && !(far && to.as_ref().is_some_and(|to| to.len() == wanted.new_len)) {
        // SAFETY: handed on.
        return unsafe { move_as_ordinary(&wanted, Some(from), to) };
    }
    let target = if fixed { to } else { with(|l| l.take(wanted.new_len)) };
    let Some(target) = target else {
        return fail(libc::ENOMEM);
    };
    wanted.new = target.start;
    wanted.flags |= libc::MREMAP_FIXED;
    let done = if far {
        move_far(&wanted, &target)
    } else {
        // SAFETY: handed on.
        unsafe { move_as_ordinary(&wanted, Some(from), Some(target.clone())) }
    };
    if done != -1 {
        grown(target.end);
    }
    done
}

/// Makes a far mapping longer in place, if the addresses behind it are free.
fn extend(old: &Range<usize>, new_len: usize) -> bool {
    let more = old.end..old.start.saturating_add(new_len);
    let inside = on_ground(more.start, more.len()).is_some_and(|part| part == more);
    let last = old.end - PAGE..old.end;
    if !inside || !with(|l| l.is(&last, Kind::Far) && l.take_at(more.clone())) {
        return false;
    }
    let opened = rights_at(last.start).is_some_and(|rights| open(&more, rights));
    if opened {
        grown(more.end);
    } else {
        reserve(&more);
        with(|l| l.set(more, Kind::Free));
    }
    opened
}

/// The rights of a mapping. It may be missing from what the kernel shows while other threads change
/// theirs (a mapping is merged with one that was shown already), so that it is looked for again.
fn rights_at(address: usize) -> Option<c_int> {
    const ATTEMPTS: usize = 16;
    let own = terrace_types::Pid(std::process::id() as i32);
    let line = (0..ATTEMPTS).find_map(|_| {
        let maps = terrace_sys::maps::maps(&terrace_sys::Root::live(), own).ok()?;
        maps.into_iter().find(|m| (m.start..m.end).contains(&(address as u64)))
    })?;
    let right = |has: bool, right: c_int| if has { right } else { 0 };
    Some(
        right(line.read, libc::PROT_READ)
            | right(line.write, libc::PROT_WRITE)
            | right(line.exec, libc::PROT_EXEC),
    )
}

/// Moves far memory to a part of the ground, where it is far again.
fn move_far(wanted: &Move, target: &Range<usize>) -> isize {
    drop_far(target);
    with(|l| l.set(target.clone(), Kind::Far));
    let (old, stays) = (&wanted.old, wanted.has(libc::MREMAP_DONTUNMAP));
    let whole = || {
        // The old addresses stay mapped until `reserve` replaces them: nobody else gets them.
        let flags = wanted.flags | libc::MREMAP_DONTUNMAP;
        let one = Move { new_len: old.len(), flags, ..wanted.clone() };
        // SAFETY: the program's own call; what was at the target is given up.
        unsafe { one.perform() != -1 }
    };
    let in_pieces = |map: &FarMap| {
        for at in (0..old.len()).step_by(PIECE) {
            let piece = at..(at + PIECE).min(old.len());
            if !move_piece(map, wanted, target.start, &piece) {
                let errno = crate::raw::errno();
                let back = Move { old: target.clone(), new: old.start, ..wanted.clone() };
                // What has moved goes back.
                for at in (0..at).step_by(PIECE) {
                    move_piece(map, &back, old.start, &(at..(at + PIECE).min(old.len())));
                }
                fail(errno);
                return false;
            }
        }
        true
    };
    let more = target.start + old.len()..target.end;
    let grows = !more.is_empty();
    let rights = if grows { rights_at(old.end - PAGE) } else { None };
    let opened = !grows || rights.is_some_and(|rights| open(&more, rights));
    if !opened || !either(whole, in_pieces) {
        let before = crate::raw::errno();
        reserve(target);
        with(|l| l.set(target.clone(), Kind::Free));
        return fail(if opened { before } else { libc::ENOMEM });
    }
    if !stays {
        reserve(old);
        with(|l| l.set(old.clone(), Kind::Free));
    }
    target.start as isize
}

/// Moves a piece (offsets in what moves) with the pager's knowledge.
fn move_piece(map: &FarMap, wanted: &Move, target: usize, piece: &Range<usize>) -> bool {
    let old = wanted.old.start + piece.start..wanted.old.start + piece.end;
    let new = target + piece.start..target + piece.end;
    let _within_the_ground = map.detach(offsets(old.start, old.len()), DiscardedContents::Keep);
    let flags = wanted.flags | libc::MREMAP_DONTUNMAP;
    let one = Move { old: old.clone(), new_len: new.len(), new: new.start, flags };
    // SAFETY: a part of the program's own call.
    if unsafe { one.perform() } == -1 {
        let before = crate::raw::errno();
        take_in(map, &old, Occupancy::Pages);
        fail(before);
        return false;
    }
    take_in(map, &new, Occupancy::Pages);
    if wanted.has(libc::MREMAP_DONTUNMAP) {
        take_in(map, &old, Occupancy::Empty);
    }
    true
}

/// Lets the kernel move ordinary memory from or to the ground.
unsafe fn move_as_ordinary(
    wanted: &Move,
    from: Option<Range<usize>>,
    to: Option<Range<usize>>,
) -> isize {
    if let Some(from) = &from {
        hand_out(from);
    }
    if let Some(to) = &to {
        drop_far(to);
    }
    // SAFETY: handed on; the pager has no part in either range any more.
    let done = unsafe { wanted.perform() };
    let errno = crate::raw::errno();
    if let Some(to) = to {
        let kind = if done == -1 {
            reserve(&to);
            Kind::Free
        } else {
            Kind::Ordinary
        };
        with(|l| l.set(to, kind));
    }
    let gone = done != -1 && !wanted.has(libc::MREMAP_DONTUNMAP) && !wanted.old.is_empty();
    if let Some(from) = from.filter(|_| gone) {
        reserve_hole(&from);
    }
    if done == -1 {
        return fail(errno);
    }
    done
}
