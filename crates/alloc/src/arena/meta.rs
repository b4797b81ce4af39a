//! Memory for the allocator's own records, apart from what it hands out: a program that writes past
//! its blocks does not reach them, and they stay on ordinary memory whatever an arena is bound to.
//! Records are reused for records of the same size and never unmapped, so a stale pointer to one (a
//! block freed twice) still points to a record of its kind.

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use terrace_sys::{map_zeroed, ForkSafeLock};

const CHUNK: usize = 1 << 20;
const STEP: usize = 64;
const LISTS: usize = 64;
/// Records are aligned to what divides their size, up to this.
pub(crate) const MAX_ALIGN: usize = 256;
/// Larger records get a mapping of their own, by powers of two.
const SINGLE: usize = STEP * LISTS;

struct Link {
    next: *mut Link,
}

struct Pools {
    at: usize,
    end: usize,
    small: [*mut Link; LISTS],
    large: [*mut Link; 48],
}

struct Meta {
    lock: ForkSafeLock,
    pools: UnsafeCell<Pools>,
}

// SAFETY: `pools` is reached under `lock` alone.
unsafe impl Sync for Meta {}

static META: Meta = Meta {
    lock: ForkSafeLock::new(),
    pools: UnsafeCell::new(Pools {
        at: 0,
        end: 0,
        small: [null_mut(); LISTS],
        large: [null_mut(); 48],
    }),
};

/// Around a fork the lock is held, so that the child finds the pools whole.
pub(crate) fn lock_for_fork() {
    META.lock.lock();
}

/// Ends [`lock_for_fork`], in parent and child alike.
pub(crate) fn unlock_after_fork() {
    META.lock.unlock();
}

/// Space for a record of `bytes`, aligned to 64, and to 128 or 256 where its size is a multiple of
/// that; null when there is no memory. Content is as it was left: zero the first time, else what
/// the last record of this size held.
pub(crate) fn take(bytes: usize) -> *mut u8 {
    let _locked = META.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    let pools = unsafe { &mut *META.pools.get() };
    if bytes > SINGLE {
        let order = bytes.next_power_of_two().trailing_zeros() as usize;
        let list = &mut pools.large[order];
        if !list.is_null() {
            // SAFETY: links in a list are records given back, which nobody else uses.
            return unsafe { pop(list) };
        }
        return map_zeroed(1 << order).map_or(null_mut(), |at| at as *mut u8);
    }
    let list = &mut pools.small[bytes.max(1).div_ceil(STEP) - 1];
    if !list.is_null() {
        // SAFETY: as above.
        return unsafe { pop(list) };
    }
    let rounded = bytes.max(1).next_multiple_of(STEP);
    let align = alignment(rounded);
    if pools.end - pools.at < rounded + align {
        let Ok(chunk) = map_zeroed(CHUNK) else { return null_mut() };
        // Not at the start of a page, for the reason that `space::TABLE_AT` tells.
        pools.at = chunk + 15 * STEP;
        pools.end = chunk + CHUNK;
    }
    let record = pools.at.next_multiple_of(align);
    pools.at = record + rounded;
    record as *mut u8
}

/// What records of so many bytes, a multiple of [`STEP`], are aligned to.
const fn alignment(rounded: usize) -> usize {
    let most = rounded & rounded.wrapping_neg();
    if most < MAX_ALIGN {
        most
    } else {
        MAX_ALIGN
    }
}

/// Gives a record back.
///
/// # Safety
/// `record` came from [`take`] with the same `bytes`, and nobody uses it any more but by the stale
/// pointers that the module speaks of.
pub(crate) unsafe fn give(record: *mut u8, bytes: usize) {
    let _locked = META.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    let pools = unsafe { &mut *META.pools.get() };
    let list = if bytes > SINGLE {
        &mut pools.large[bytes.next_power_of_two().trailing_zeros() as usize]
    } else {
        &mut pools.small[bytes.max(1).div_ceil(STEP) - 1]
    };
    let link = record.cast::<Link>();
    // SAFETY: the record is at least 64 bytes, aligned to 64, and ours again.
    unsafe { link.write(Link { next: *list }) };
    *list = link;
}

/// # Safety
/// `list` is not null and its links are records given back.
unsafe fn pop(list: &mut *mut Link) -> *mut u8 {
    let link = *list;
    // SAFETY: by the contract.
    *list = unsafe { (*link).next };
    link.cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_apart_and_come_back() {
        for bytes in [1, 64, 256, 65, 1216, SINGLE, SINGLE + 1, 3 << 20] {
            let (one, two) = (take(bytes), take(bytes));
            assert!(!one.is_null() && !two.is_null() && one as usize % 64 == 0);
            assert!((one as usize).abs_diff(two as usize) >= bytes);
            assert!(bytes % 256 > 0 || (one as usize | two as usize) % 256 == 0);
            // SAFETY: both are records of `bytes`, taken above and used by this test alone.
            unsafe {
                one.write_bytes(1, bytes);
                two.write_bytes(2, bytes);
                assert_eq!((one.add(bytes - 1).read(), two.read()), (1, 2));
                give(two, bytes);
                give(one, bytes);
            }
        }
    }
}
