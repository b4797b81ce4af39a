//! Runs of alike items: what is known of the 512 base pages of a huge page is mostly alike.

use zerocopy::{Immutable, IntoBytes};

/// Items compared singly before many are compared at once, as few neighbouring base pages are
/// alike. No measured reason.
const SINGLE_COMPARISONS: usize = 8;

/// Returns the number of items at the beginning of `items` that equal the first, zero if there are
/// none. Items with the same bytes must be equal.
#[must_use]
#[inline]
pub fn run_length<T: IntoBytes + Immutable + PartialEq>(items: &[T]) -> usize {
    let few = items.iter().take(SINGLE_COMPARISONS).take_while(|item| **item == items[0]).count();
    if few < SINGLE_COMPARISONS {
        few
    } else {
        long_run_length(items)
    }
}

/// The same where the first [`SINGLE_COMPARISONS`] are known to be equal: steps double while items
/// are equal, and halve where they are not.
fn long_run_length<T: IntoBytes + Immutable>(items: &[T]) -> usize {
    let alike =
        |from: usize, to: usize| items[from..to].as_bytes() == items[from - 1..to - 1].as_bytes();
    let (mut run, mut step) = (SINGLE_COMPARISONS, SINGLE_COMPARISONS);
    while run < items.len() && step > 0 {
        let to = (run + step).min(items.len());
        (run, step) = if alike(run, to) { (to, 2 * step) } else { (run, (to - run) / 2) };
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_the_first_other_item_is() {
        assert_eq!(run_length::<u16>(&[]), 0);
        for length in [1, 2, 7, 8, 9, 31, 512, 1000] {
            let mut items = vec![7u16; length];
            assert_eq!(run_length(&items), length);
            items.extend([7 + 256; 100]);
            assert_eq!(run_length(&items), length, "another upper byte");
            items.extend(vec![7; length]);
            assert_eq!(run_length(&items), length);
        }
    }
}
