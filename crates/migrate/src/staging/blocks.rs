//! Blocks as they are asked for.

use super::api::StageError;
use std::ops::Range;

/// A block: its address and its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) data: *mut u8,
    pub(super) bytes: usize,
}

/// Blocks as (offset, length) in bytes, none beyond the data and no two with an element in common.
pub(super) fn checked<T>(
    length: usize,
    blocks: impl IntoIterator<Item = Range<usize>>,
) -> Result<Vec<(usize, usize)>, StageError> {
    let size = std::mem::size_of::<T>();
    let mut all = Vec::new();
    for (block, range) in blocks.into_iter().enumerate() {
        let Range { start, end } = range;
        if end > length || start > end {
            return Err(StageError::OutOfBounds { block, start, end, length });
        }
        all.push((start * size, (end - start) * size));
    }
    let mut order: Vec<usize> = (0..all.len()).filter(|b| all[*b].1 > 0).collect();
    order.sort_unstable_by_key(|b| all[*b].0);
    for pair in order.windows(2) {
        if all[pair[0]].0 + all[pair[0]].1 > all[pair[1]].0 {
            let (first, second) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
            return Err(StageError::Overlap { first, second });
        }
    }
    Ok(all)
}
