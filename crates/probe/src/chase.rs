//! A chain of pointers through a region in random order: each load waits for the one before it.

use std::ptr::NonNull;
use terrace_types::Seed;

/// Bytes of an element: two cache lines, so that hardware that fetches lines in pairs gains nothing
/// (as in Perarnau et al., "Exploring Data Migration for Future Deep-Memory Many-Core Systems",
/// section III.A).
pub const ELEMENT: usize = 128;

/// Loads between two looks at the clock are a multiple of this.
pub const STEP: usize = 16;

/// Makes one cycle through all elements of a region, in an order drawn from `seed` (Sattolo's
/// algorithm). Gives its elements.
///
/// # Safety
/// `region` is aligned to 8 bytes and valid for writes of `bytes`, which nobody else touches
/// meanwhile.
pub unsafe fn chain(region: NonNull<u8>, bytes: usize, mut seed: Seed) -> usize {
    let count = (bytes / ELEMENT).max(1);
    let at = |i: usize| region.as_ptr().wrapping_add(i * ELEMENT).cast::<usize>();
    // First each element's number, then shuffled in place, so that no other memory is needed.
    for i in 0..count {
        // SAFETY: i < count, so the word lies in the region, which is ours to write.
        unsafe { at(i).write(i) };
    }
    for i in (1..count).rev() {
        let (random, next) = seed.next();
        seed = next;
        // An even choice among fewer than 2^32 but for one part in 2^32.
        let j = ((u128::from(random) * i as u128) >> 64) as usize;
        // SAFETY: j < i < count: both words lie in the region and are different.
        unsafe { std::ptr::swap(at(i), at(j)) };
    }
    for i in 0..count {
        // SAFETY: as above; what is read is a number below `count`, written in the first loop and
        // moved in the second.
        unsafe { at(i).write(at(at(i).read()) as usize) };
    }
    count
}

/// Follows a chain for `loads` loads, rounded up to a multiple of [`STEP`]. Gives where it ends.
///
/// # Safety
/// `start` is an element of a chain made by [`chain`] whose region lives and is not written.
#[inline(never)]
pub unsafe fn follow(start: NonNull<u8>, loads: usize) -> NonNull<u8> {
    let mut p = start.as_ptr().cast::<*mut usize>();
    for _ in 0..loads.div_ceil(STEP) {
        // Unrolled by hand, as a compiler would.
        macro_rules! step {
            ($($x:tt)*) => {
                $(
                    let _ = $x;
                    // SAFETY: every element of the chain holds the address of another.
                    p = unsafe { p.read() }.cast();
                )*
            };
        }
        step!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
    }
    // A chain holds addresses of elements, none of them null.
    NonNull::new(p.cast()).unwrap_or(start)
}

/// Most chains that [`follow_many`] follows at once.
pub const MAX_CHAINS: usize = 32;

/// Follows `starts.len()` chains at once, `loads` loads each: independent misses in flight.
///
/// # Safety
/// As [`follow`], for each start; at most [`MAX_CHAINS`].
pub unsafe fn follow_many(starts: &mut [NonNull<u8>], loads: usize) {
    macro_rules! of {
        ($($n:literal)*) => {
            match starts.len() {
                // SAFETY: as the caller promises.
                $( $n => unsafe { many::<$n>(starts, loads) }, )*
                _ => {}
            }
        };
    }
    of!(1 2 3 4 6 8 10 12 14 16 20 24 28 32);
}

/// Numbers of chains that can be followed at once.
pub const CHAINS: [usize; 14] = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32];

#[inline(never)]
unsafe fn many<const N: usize>(starts: &mut [NonNull<u8>], loads: usize) {
    let mut at: [*mut *mut usize; N] = std::array::from_fn(|i| starts[i].as_ptr().cast());
    for _ in 0..loads {
        for p in &mut at {
            // SAFETY: every element of a chain holds the address of another.
            *p = unsafe { p.read() }.cast();
        }
    }
    for (start, p) in starts.iter_mut().zip(at) {
        *start = NonNull::new(p.cast()).unwrap_or(*start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(elements: usize) -> Vec<[usize; ELEMENT / 8]> {
        vec![[0; ELEMENT / 8]; elements]
    }

    #[test]
    fn a_chain_goes_through_every_element_once() {
        for elements in [1, 2, 3, 100, 1000] {
            let mut memory = region(elements);
            let first = NonNull::new(memory.as_mut_ptr()).unwrap().cast();
            // SAFETY: the vector is that long, aligned and ours.
            let made = unsafe { chain(first, elements * ELEMENT, Seed(7)) };
            assert_eq!(made, elements);
            let mut seen = std::collections::BTreeSet::new();
            let mut at = first;
            for _ in 0..elements {
                seen.insert(at);
                // SAFETY: `at` is an element of the chain, whose vector lives.
                at = unsafe { NonNull::new(at.cast::<*mut u8>().read()).unwrap() };
            }
            assert_eq!((seen.len(), at), (elements, first));
            // SAFETY: as above.
            let end = unsafe { follow(first, elements * STEP) };
            assert_eq!(end, first, "whole rounds end where they began");
        }
    }

    #[test]
    fn chains_side_by_side_go_as_far_as_one() {
        let mut memory = region(64);
        let first = NonNull::new(memory.as_mut_ptr()).unwrap().cast();
        // SAFETY: the vector is that long, aligned and ours; starts are elements of its chain.
        unsafe {
            chain(first, 64 * ELEMENT, Seed(1));
            let mut starts = [first; 4];
            follow_many(&mut starts, 32);
            assert_eq!(starts, [follow(first, 32); 4]);
            let mut none = [first; 5];
            follow_many(&mut none, 32);
            assert_eq!(none, [first; 5], "no such number");
        }
    }
}
