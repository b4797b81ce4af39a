//! Runs of set bits in a map of slices. Pure.

/// First bit of the first run of `count` set bits below `len` that begins at a multiple of `align`
/// counted from `origin` (what bit 0 counts as).
pub(crate) fn find_run(
    word: impl Fn(usize) -> u64,
    len: usize,
    count: usize,
    align: usize,
    origin: usize,
) -> Option<usize> {
    if count == 0 || count > len {
        return None;
    }
    let mut at = 0;
    while at + count <= len {
        at = next(&word, at, len, true)?;
        let start = (origin + at).next_multiple_of(align) - origin;
        if start + count > len {
            return None;
        }
        if start > at {
            at = start;
            if word(at / 64) >> (at % 64) & 1 == 0 {
                continue;
            }
        }
        let end = next(&word, start, start + count, false).unwrap_or(start + count);
        if end == start + count {
            return Some(start);
        }
        at = end;
    }
    None
}

/// The next bit from `at` below `len` that is `set`.
fn next(word: &impl Fn(usize) -> u64, mut at: usize, len: usize, set: bool) -> Option<usize> {
    while at < len {
        let bits = if set { word(at / 64) } else { !word(at / 64) } >> (at % 64);
        if bits != 0 {
            let found = at + bits.trailing_zeros() as usize;
            return (found < len).then_some(found);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// The part of word `index` that bits `[start, end)` fall in.
pub(crate) fn mask(index: usize, start: usize, end: usize) -> u64 {
    let low = start.max(index * 64);
    let high = end.min(index * 64 + 64);
    if low >= high {
        return 0;
    }
    let ones = if high - low == 64 { u64::MAX } else { (1 << (high - low)) - 1 };
    ones << (low % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bit_search_agrees_with_a_linear_scan(words in prop::collection::vec(any::<u64>(),
            1..4), more in any::<u64>(),
                                     count in 1_usize..100, align in 0_u32..5,
                                     origin in 0_usize..40) {
            // Mostly ones, so that long runs occur.
            let words: Vec<u64> = words.iter().map(|w| w | more | more.rotate_left(17)).collect();
            let len = words.len() * 64;
            let align = 1 << align;
            let set = |bit: usize| words[bit / 64] >> (bit % 64) & 1 == 1;
            let slow = (0..len)
                .find(|s| (origin + s) % align == 0 && s + count <= len && (*s..s + count)
                    .all(set));
            prop_assert_eq!(find_run(|w| words[w], len, count, align, origin), slow);
        }

        #[test]
        fn masks_cover_their_range(start in 0_usize..200, more in 0_usize..200) {
            for bit in 0..448 {
                let expected = (start..start + more).contains(&bit);
                prop_assert_eq!(mask(bit / 64, start, start + more) >> (bit % 64) & 1 == 1,
                    expected);
            }
        }
    }
}
