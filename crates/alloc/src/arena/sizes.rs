//! Sizes that blocks come in. Pure.

/// Bytes of a slice: what an arena takes and gives back at once.
pub(crate) const SLICE: usize = 1 << SLICE_SHIFT;
/// Logarithm of [`SLICE`].
pub(crate) const SLICE_SHIFT: u32 = 16;
/// Largest block cut from a slab; larger ones are whole slices.
pub(crate) const SMALL_MAX: usize = 64 << 10;
/// Number of classes.
pub(crate) const CLASSES: usize = 44;
/// What every block is aligned to.
pub(crate) const MIN_ALIGN: usize = 16;
/// Blocks up to this size come from slabs of one slice, larger ones from slabs of eight.
const ONE_SLICE_MAX: usize = 8 << 10;

/// Class of requests up to 1 KiB, by sixteenths, so that the common ones cost one load.
const BY_SIXTEEN: [u8; 65] = {
    let mut table = [0_u8; 65];
    let mut at = 0;
    while at < 65 {
        table[at] = computed_class(at * 16) as u8;
        at += 1;
    }
    table
};

const SIZES: [u32; CLASSES] = {
    let mut sizes = [0_u32; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = if class < 8 {
            (class as u32 + 1) * 16
        } else {
            // Four steps to each doubling: at most a fifth of a block is lost.
            let doubling = (class as u32 - 8) / 4;
            let step = (class as u32 - 8) % 4;
            (128 << doubling) + (32 << doubling) * (step + 1)
        };
        class += 1;
    }
    sizes
};

pub(crate) const fn computed_class(size: usize) -> usize {
    if size <= 128 {
        return if size == 0 { 0 } else { (size - 1) / 16 };
    }
    let below = size - 1;
    let log = usize::BITS - 1 - below.leading_zeros();
    let doubling = log as usize - 7;
    8 + doubling * 4 + ((below >> (log - 2)) & 3)
}

/// Requests up to this size find their class in a table.
pub(crate) const TABLED: usize = 1024;

/// Class of a request of at most [`TABLED`] bytes.
#[inline(always)]
pub(crate) fn tabled_class(size: usize) -> usize {
    BY_SIXTEEN[size.div_ceil(16)] as usize
}

/// Class of a request of at most [`SMALL_MAX`] bytes.
#[inline(always)]
pub(crate) fn class_of(size: usize) -> usize {
    if size <= TABLED {
        tabled_class(size)
    } else {
        computed_class(size)
    }
}

/// The least class whose blocks hold `size` bytes and begin at multiples of `align` (a power of
/// two, at most [`SMALL_MAX`]; slabs begin at multiples of it).
pub(crate) fn aligned_class(size: usize, align: usize) -> Option<usize> {
    if size > SMALL_MAX || align > SMALL_MAX {
        return None;
    }
    (class_of(size.max(align))..CLASSES).find(|class| block_size(*class) % align == 0)
}

/// Bytes of a class's blocks.
pub(crate) const fn block_size(class: usize) -> usize {
    SIZES[class] as usize
}

/// Slices of a class's slabs.
pub(crate) const fn slab_slices(class: usize) -> usize {
    if block_size(class) <= ONE_SLICE_MAX {
        1
    } else {
        8
    }
}

/// For [`index_of`]: the inverse of a size's odd part modulo 2^64, and how often 2 divides the
/// size.
pub(crate) const fn divisor(size: usize) -> (u64, u32) {
    let twos = size.trailing_zeros();
    let odd = (size >> twos) as u64;
    // Newton's iteration: each step doubles the bits that are right, from 3.
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    (inverse, twos)
}

/// `offset / size` where that is whole; else a number larger than any index (Granlund and
/// Montgomery, "Division by Invariant Integers using Multiplication", section 9): one
/// multiplication tells both.
#[inline(always)]
pub(crate) fn index_of(offset: usize, (inverse, twos): (u64, u32)) -> usize {
    (offset as u64).wrapping_mul(inverse).rotate_right(twos) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_least_class_that_holds_it() {
        for size in 0..=SMALL_MAX {
            let class = class_of(size);
            assert!(block_size(class) >= size, "{size}");
            assert!(class == 0 || block_size(class - 1) < size, "{size}");
        }
        assert_eq!(block_size(CLASSES - 1), SMALL_MAX);
    }

    #[test]
    fn division_gives_the_index_or_none_for_all_offsets() {
        for class in 0..CLASSES {
            let (size, divisor) = (block_size(class), divisor(block_size(class)));
            for offset in 0..slab_slices(class) * SLICE {
                let index = index_of(offset, divisor);
                if offset % size == 0 {
                    assert_eq!(index, offset / size, "{offset} / {size}");
                } else {
                    assert!(index > 4096, "{offset} / {size}: {index}");
                }
            }
        }
    }

    #[test]
    fn slabs_hold_a_few_blocks_and_no_more_than_their_map() {
        for class in 0..CLASSES {
            let blocks = slab_slices(class) * SLICE / block_size(class);
            assert!((8..=4096).contains(&blocks), "{blocks} of {}", block_size(class));
        }
    }

    #[test]
    fn alignment_finds_a_class_or_none() {
        assert_eq!(aligned_class(100, 64).map(block_size), Some(128));
        assert_eq!(aligned_class(300, 64).map(block_size), Some(320));
        assert_eq!(aligned_class(1, 65536).map(block_size), Some(65536));
        assert_eq!(aligned_class(1, 131_072), None);
        assert_eq!(aligned_class(SMALL_MAX + 1, 16), None);
    }
}
