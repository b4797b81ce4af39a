//! Blocks of neighbouring pages of which some are marked, a bit each.

use terrace_types::{Pid, VpnRange};

/// Pages of a block, a bit each.
pub(super) const BLOCK: u64 = u64::BITS as u64;

/// A process, and the address of a block of pages in units of blocks.
pub(super) type BlockId = (Pid, u64);

/// The blocks that a range has pages of, and which of their pages.
pub(super) fn blocks_in(range: VpnRange) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, end) = (range.start.0, range.end.0);
    std::iter::from_fn(move || {
        let block = at / BLOCK;
        let next = ((block + 1) * BLOCK).min(end);
        let some = (at < end).then(|| (u64::MAX >> (BLOCK - (next - at))) << (at % BLOCK));
        at = next;
        some.map(|bits| (block, bits))
    })
}
