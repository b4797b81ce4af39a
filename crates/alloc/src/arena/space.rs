//! The addresses that all arenas lie in, and what is found by an address.
//!
//! ```text
//! reservation (one mapping, 16 TiB or what can be had)
//! ├─ zone: bound as a whole to one class's nodes ──► one kernel mapping, however many arenas
//! │   ├─ segment (4 MiB, doubling): belongs to one arena at a time
//! │   │   ├─ slices of 64 KiB: slabs of blocks, or large blocks
//! ```
//! Two tables lead back from an address: slice to [`Slab`], 4 MiB to [`Segment`]. Both are reserved
//! whole and cost memory only where they are used.

mod segment;

use super::error::ArenaError;
use super::meta;
use super::place::{NodeOps, Policy};
use super::sizes::SLICE_SHIFT;
use super::slab::Slab;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::OnceLock;
use terrace_sys::{
    discard_range, map_zeroed, open_range, prefer_huge_pages, reserve_range, ForkSafeLock,
    NodePolicy,
};
use terrace_types::NodeId;

/// Bytes of the smallest segment; all are this times a power of two.
pub(crate) const SEGMENT: usize = 1 << SEGMENT_SHIFT;
const SEGMENT_SHIFT: u32 = 22;
/// Slices of the smallest segment.
pub(crate) const SEGMENT_SLICES: usize = SEGMENT >> SLICE_SHIFT;
/// Segments' sizes: 4 MiB to 4 MiB * 2^23.
const ORDERS: usize = 24;
/// Different sets of devices at most.
pub(crate) const MAX_CLASSES: usize = 256;
/// The slab table begins so far into its pages. A load that has the last 12 bits of its address in
/// common with a store just made waits for it on many processors; the first block of the first
/// arena ends in zeros, and its entry shall not.
const TABLE_AT: usize = 0x528;
/// Memory that all arenas lie in instead of addresses reserved for them: readable and writable, the
/// caller's for ever.
#[derive(Debug, Clone, Copy)]
pub struct ArenaBacking {
    /// First address.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    /// Told the end of what arenas use of it, before they use it. Called with locks held: it must
    /// not allocate here.
    pub opened: fn(usize),
    /// Frees the pages of a range (start, bytes), which reads as zeros afterwards; whether it did.
    /// As for locks, the same.
    pub discard: fn(usize, usize) -> bool,
}

static GROUND: OnceLock<ArenaBacking> = OnceLock::new();

/// Has all arenas lie on `ground`. False when there are arenas, or a ground, already.
pub fn stand_on(ground: ArenaBacking) -> bool {
    SPACE.len.load(Acquire) == 0 && GROUND.set(ground).is_ok()
}

/// What is tried to reserve, largest first; where addresses are limited (`ulimit -v`), no more than
/// a fourth of them, since the rest of the program needs some too.
const RESERVATIONS: [usize; 10] = [
    16 << 40,
    4 << 40,
    1 << 40,
    256 << 30,
    64 << 30,
    8 << 30,
    1 << 30,
    256 << 20,
    64 << 20,
    16 << 20,
];

/// Record of a segment. Its fields belong to the lock of the arena that has it, or, while it is
/// free, to the space's.
pub(crate) struct Segment {
    pub(crate) next: *mut Segment,
    pub(crate) start: usize,
    pub(crate) slices: usize,
    order: usize,
    /// Class whose zone it lies in.
    home: u16,
    /// Class it is bound as.
    pub(crate) class: u16,
    /// [`super::heap::Inner`] that has it.
    pub(crate) owner: AtomicUsize,
    pub(crate) free_slices: usize,
    free: *mut u64,
    dirty: *mut u64,
}

struct Class {
    policy: Policy,
    huge: bool,
    ops: &'static dyn NodeOps,
    zone_at: usize,
    zone_end: usize,
    free: [*mut Segment; ORDERS],
}

struct Locked {
    at: usize,
    end: usize,
    classes: [Option<Class>; MAX_CLASSES],
}

struct Space {
    base: AtomicUsize,
    len: AtomicUsize,
    slabs: AtomicUsize,
    segments: AtomicUsize,
    lock: ForkSafeLock,
    locked: UnsafeCell<Locked>,
}

// SAFETY: `locked` is reached under `lock` alone; raw pointers in it are to records of the pools,
// which no thread owns.
unsafe impl Sync for Space {}

static SPACE: Space = Space {
    base: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
    slabs: AtomicUsize::new(0),
    segments: AtomicUsize::new(0),
    lock: ForkSafeLock::new(),
    locked: UnsafeCell::new(Locked { at: 0, end: 0, classes: [const { None }; MAX_CLASSES] }),
};

/// Why a segment cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSegment;

/// Reserves the addresses, the first time.
pub(crate) fn ready() -> Result<(), ArenaError> {
    if SPACE.len.load(Acquire) != 0 {
        return Ok(());
    }
    let _locked = SPACE.lock.hold();
    if SPACE.len.load(Relaxed) != 0 {
        return Ok(());
    }
    let mut last = None;
    let (given, own) = match GROUND.get() {
        Some(g) => {
            let base = g.start.next_multiple_of(SEGMENT);
            (Some(base), vec![(g.start + g.len).saturating_sub(base) / SEGMENT * SEGMENT])
        }
        None => {
            let most = terrace_sys::address_limit().map_or(u64::MAX, |limit| limit.0 / 4);
            (None, RESERVATIONS.into_iter().filter(|len| *len as u64 <= most).collect())
        }
    };
    for len in own {
        let all = given.map_or_else(|| reserve_range(len, SEGMENT), Ok).and_then(|base| {
            let slabs =
                map_zeroed(TABLE_AT + (len >> SLICE_SHIFT) * size_of::<usize>())? + TABLE_AT;
            let segments = map_zeroed((len >> SEGMENT_SHIFT) * size_of::<usize>())?;
            Ok((base, slabs, segments))
        });
        match all {
            Ok((base, slabs, segments)) => {
                // SAFETY: the lock is held, so this is the only reference.
                let locked = unsafe { &mut *SPACE.locked.get() };
                locked.at = base;
                locked.end = base + len;
                SPACE.base.store(base, Relaxed);
                SPACE.slabs.store(slabs, Relaxed);
                SPACE.segments.store(segments, Relaxed);
                SPACE.len.store(len, Release);
                return Ok(());
            }
            Err(e) => last = Some(e),
        }
    }
    Err(last.map_or(ArenaError::TooMany(0), ArenaError::NoAddresses))
}

/// Entry of the slab table for an address; `None` outside the reservation.
#[inline(always)]
pub(crate) fn slab_entry(at: usize) -> Option<&'static AtomicPtr<Slab>> {
    let offset = at.wrapping_sub(SPACE.base.load(Relaxed));
    if offset >= SPACE.len.load(Relaxed) {
        return None;
    }
    let table = SPACE.slabs.load(Relaxed) as *const AtomicPtr<Slab>;
    // SAFETY: the table has an entry for each slice of the reservation, zero at first, which is a
    // null pointer; it is never unmapped.
    Some(unsafe { &*table.add(offset >> SLICE_SHIFT) })
}

/// Lets no slice from `start` on lead to a slab any more.
pub(crate) fn clear_slab(start: usize, slices: usize) {
    for slice in 0..slices {
        if let Some(entry) = slab_entry(start + (slice << SLICE_SHIFT)) {
            entry.store(null_mut(), Release);
        }
    }
}

/// The slab that an address belongs to, null where there is none; `None` outside the reservation.
#[inline(always)]
pub(crate) fn slab_of(at: usize) -> Option<*mut Slab> {
    Table::now().slab_of(at)
}

/// Where slabs are found, copied: good for as long as the process lives.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    base: usize,
    len: usize,
    slabs: *const AtomicPtr<Slab>,
}

impl Table {
    /// In which nothing is found.
    pub(crate) const fn empty() -> Self {
        Self { base: 0, len: 0, slabs: std::ptr::null() }
    }

    /// As it is after [`ready`].
    pub(crate) fn now() -> Self {
        Self {
            base: SPACE.base.load(Relaxed),
            len: SPACE.len.load(Acquire),
            slabs: SPACE.slabs.load(Relaxed) as *const AtomicPtr<Slab>,
        }
    }

    /// The slab in whose slices an address lies; null: none there now; `None`: no address of any
    /// arena.
    #[inline(always)]
    pub(crate) fn slab_of(&self, at: usize) -> Option<*mut Slab> {
        let offset = at.wrapping_sub(self.base);
        if offset >= self.len {
            return None;
        }
        // SAFETY: as in `slab_entry`.
        Some(unsafe { (*self.slabs.add(offset >> SLICE_SHIFT)).load(Acquire) })
    }
}

fn segment_entry(at: usize) -> Option<&'static AtomicPtr<Segment>> {
    let offset = at.wrapping_sub(SPACE.base.load(Relaxed));
    if offset >= SPACE.len.load(Relaxed) {
        return None;
    }
    let table = SPACE.segments.load(Relaxed) as *const AtomicPtr<Segment>;
    // SAFETY: as for slabs, with an entry for each 4 MiB.
    Some(unsafe { &*table.add(offset >> SEGMENT_SHIFT) })
}

/// Record of the segment that an address lies in. Records are never unmapped.
pub(crate) fn segment_of(at: usize) -> Option<&'static AtomicUsize> {
    let segment = segment_entry(at)?.load(Acquire);
    // SAFETY: entries are null or point to records of the pool, which live for ever; `owner` is
    // atomic.
    (!segment.is_null()).then(|| unsafe { &(*segment).owner })
}

/// Around a fork the lock is held.
pub(crate) fn lock_for_fork() {
    SPACE.lock.lock();
}

/// Ends [`lock_for_fork`], in parent and child alike.
pub(crate) fn unlock_after_fork() {
    SPACE.lock.unlock();
}

fn same_ops(one: &'static dyn NodeOps, other: &'static dyn NodeOps) -> bool {
    std::ptr::addr_eq(std::ptr::from_ref(one), std::ptr::from_ref(other))
}

/// The number of the class with this policy, made where there is none; its first zone is bound, so
/// that a refusal shows now.
pub(crate) fn class(
    policy: Policy,
    huge: bool,
    ops: &'static dyn NodeOps,
) -> Result<u16, ArenaError> {
    ready()?;
    let _locked = SPACE.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    let locked = unsafe { &mut *SPACE.locked.get() };
    for (number, class) in locked.classes.iter_mut().enumerate() {
        if let Some(class) = class {
            if class.policy == policy && class.huge == huge && same_ops(class.ops, ops) {
                return Ok(number as u16);
            }
            continue;
        }
        let mut new =
            Class { policy, huge, ops, zone_at: 0, zone_end: 0, free: [null_mut(); ORDERS] };
        zone(&mut new, &mut locked.at, locked.end, SEGMENT)?;
        *class = Some(new);
        return Ok(number as u16);
    }
    Err(ArenaError::TooManyClasses(MAX_CLASSES))
}

/// A new zone for a class, with space for `least` bytes.
fn zone(class: &mut Class, at: &mut usize, end: usize, least: usize) -> Result<(), ArenaError> {
    let len = (SPACE.len.load(Relaxed) / MAX_CLASSES).max(least).next_multiple_of(SEGMENT);
    let start = *at;
    if end - start < len {
        return Err(ArenaError::TooManyClasses(MAX_CLASSES));
    }
    if class.policy.mode != NodePolicy::Default {
        class.policy.apply(class.ops, start, len).map_err(ArenaError::Bind)?;
    }
    if class.huge {
        prefer_huge_pages(start, len);
    }
    *at = start + len;
    class.zone_at = start;
    class.zone_end = start + len;
    Ok(())
}

/// A segment of a class with space for a run of `slices` at a multiple of `align` bytes, at least
/// of `order`, for the arena `owner`.
pub(crate) fn segment(
    class: u16,
    slices: usize,
    align: usize,
    order: usize,
    owner: usize,
) -> Result<*mut Segment, NoSegment> {
    let slack = if align > SEGMENT { align >> SLICE_SHIFT } else { 0 };
    let units = slices.checked_add(slack).ok_or(NoSegment)?.div_ceil(SEGMENT_SLICES);
    let order = order.max(units.next_power_of_two().trailing_zeros() as usize);
    if order >= ORDERS {
        return Err(NoSegment);
    }
    let _locked = SPACE.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    let locked = unsafe { &mut *SPACE.locked.get() };
    let Some(of) = locked.classes[usize::from(class)].as_mut() else { return Err(NoSegment) };
    let mut found = of.free[order];
    if found.is_null() {
        let len = SEGMENT << order;
        if of.zone_end - of.zone_at < len {
            zone(of, &mut locked.at, locked.end, len).map_err(|_| NoSegment)?;
        }
        found = record(of.zone_at, order, class)?;
        let opened = match GROUND.get() {
            Some(g) => {
                (g.opened)(of.zone_at + len);
                true
            }
            // SAFETY: the range lies in the reservation and belongs to this zone alone.
            None => unsafe { open_range(of.zone_at, len) }.is_ok(),
        };
        if !opened {
            // SAFETY: `record` made it just now and nobody knows of it.
            unsafe { forget(found) };
            return Err(NoSegment);
        }
        of.zone_at += len;
    } else {
        // SAFETY: records in free lists are whole and belong to the lock that is held.
        of.free[order] = unsafe { (*found).next };
    }
    // SAFETY: the record is ours alone until it is in the tables.
    unsafe {
        (*found).next = null_mut();
        (*found).owner.store(owner, Release);
        let mut at = (*found).start;
        while at < (*found).start + (SEGMENT << order) {
            if let Some(entry) = segment_entry(at) {
                entry.store(found, Release);
            }
            at += SEGMENT;
        }
    }
    Ok(found)
}

fn record(start: usize, order: usize, class: u16) -> Result<*mut Segment, NoSegment> {
    let slices = SEGMENT_SLICES << order;
    let map = slices / 8;
    let (record, free, dirty) =
        (meta::take(size_of::<Segment>()), meta::take(map), meta::take(map));
    if record.is_null() || free.is_null() || dirty.is_null() {
        return Err(NoSegment);
    }
    let segment = Segment {
        next: null_mut(),
        start,
        slices,
        order,
        home: class,
        class,
        owner: AtomicUsize::new(0),
        free_slices: slices,
        free: free.cast(),
        dirty: dirty.cast(),
    };
    // SAFETY: all three are fresh records of the sizes written.
    unsafe {
        free.write_bytes(0xff, map);
        dirty.write_bytes(0, map);
        record.cast::<Segment>().write(segment);
    }
    Ok(record.cast())
}

/// # Safety
/// Nobody knows of the segment.
unsafe fn forget(segment: *mut Segment) {
    // SAFETY: the records were taken with these sizes, and by the contract nobody uses them.
    unsafe {
        let map = (*segment).slices / 8;
        meta::give((*segment).free.cast(), map);
        meta::give((*segment).dirty.cast(), map);
        meta::give(segment.cast(), size_of::<Segment>());
    }
}

/// Gives a segment back to its class, its pages to the kernel.
///
/// # Safety
/// It belongs to the caller's arena, and nothing in it is used any more.
pub(crate) unsafe fn give_segment(segment: *mut Segment) {
    // SAFETY: by the contract the record and what it describes are the caller's alone.
    let this = unsafe { &mut *segment };
    this.owner.store(0, Release);
    this.purge_all();
    let _locked = SPACE.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    let locked = unsafe { &mut *SPACE.locked.get() };
    if let Some(home) = locked.classes[usize::from(this.home)].as_mut() {
        if this.class != this.home {
            // A refusal leaves it bound as it was, and then it is not for this class any more.
            if home.policy.apply(home.ops, this.start, this.slices << SLICE_SHIFT).is_err() {
                return;
            }
            this.class = this.home;
        }
        this.next = home.free[this.order];
        home.free[this.order] = segment;
    }
}

/// Binds a segment as another class is; pages that are there stay.
pub(crate) fn rebind(segment: &mut Segment, class: u16) -> Result<(), terrace_sys::SysError> {
    if segment.class == class {
        return Ok(());
    }
    let (policy, ops) = {
        let _locked = SPACE.lock.hold();
        // SAFETY: the lock is held, so this is the only reference.
        let locked = unsafe { &*SPACE.locked.get() };
        match &locked.classes[usize::from(class)] {
            Some(c) => (c.policy, c.ops),
            None => return Ok(()),
        }
    };
    policy.apply(ops, segment.start, segment.slices << SLICE_SHIFT)?;
    segment.class = class;
    Ok(())
}

/// Nodes of a class and who speaks for them.
pub(crate) fn class_node(class: u16) -> Option<(NodeId, &'static dyn NodeOps)> {
    let _locked = SPACE.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    let locked = unsafe { &*SPACE.locked.get() };
    let class = locked.classes[usize::from(class)].as_ref()?;
    let first = class.policy.nodes.iter().next()?;
    Some((first, class.ops))
}
