//! A set of up to sixteen ways in a few words.

use super::{TagFetch, TagUse, WayEntry};

/// A byte of a tag that is there; zero is the byte of an empty way, and of those that the set has
/// not.
const PRESENT: u64 = 0x80;
const BYTES: u64 = 0x0101_0101_0101_0101;
const BYTE_TOPS: u64 = BYTES << 7;
const NIBBLES: u64 = 0x1111_1111_1111_1111;
const NIBBLE_TOPS: u64 = NIBBLES << 3;
/// Bits of a tag that its byte holds.
const IN_BYTE: u32 = 7;
/// Ways of a word of bytes.
pub(super) const WORD: usize = 8;
/// What is left of a tag behind its byte, and its flag in the lowest bit.
pub(super) type Narrow = u16;
pub(super) type Wide = u32;

/// Bytes of the tags by way, rests of the tags by way, and the ways in order of use, four bits
/// each, the one used last lowest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Set<const WORDS: usize, R, const WAYS: usize> {
    pub(super) bytes: [u64; WORDS],
    pub(super) order: u64,
    pub(super) rests: [R; WAYS],
}

/// Rests of tags.
pub(super) trait TagRemainder:
    Copy + Default + PartialEq + Into<u64> + TryFrom<u64>
{
    /// With its flag set, if `flag` is.
    fn marked(self, flag: bool) -> Self;
}
impl TagRemainder for Narrow {
    #[inline(always)]
    fn marked(self, flag: bool) -> Self {
        self | Self::from(flag)
    }
}
impl TagRemainder for Wide {
    #[inline(always)]
    fn marked(self, flag: bool) -> Self {
        self | Self::from(flag)
    }
}

/// The rest of a tag with its flag, if it fits.
#[inline(always)]
pub(super) fn rest<R: TagRemainder>(tag: u64, flag: bool) -> Option<R> {
    R::try_from(tag >> IN_BYTE << 1 | u64::from(flag)).ok()
}

impl<const WORDS: usize, R: TagRemainder, const WAYS: usize> Set<WORDS, R, WAYS> {
    pub(super) fn empty(ways: usize) -> Self {
        let order = (0..ways as u64).fold(0, |order, way| order | way << (4 * way));
        Self { bytes: [0; WORDS], order, rests: [R::default(); WAYS] }
    }

    /// The way that holds `tag`.
    #[inline(always)]
    pub(super) fn seek(&self, tag: u64) -> Option<usize> {
        let byte = tag & (PRESENT - 1) | PRESENT;
        // A byte that is equal leaves zero; every other has its highest bit set, or gets it when
        // 127 is added to the rest of it, and no byte runs over into the next. The bits of several
        // words are put side by side.
        let zeroes = |word: u64| {
            let differs = word ^ (byte * BYTES);
            !(((differs & !BYTE_TOPS) + !BYTE_TOPS) | differs) & BYTE_TOPS
        };
        let mut likely =
            self.bytes.iter().enumerate().fold(0, |all, (at, word)| all | zeroes(*word) >> at);
        while likely != 0 {
            let bit = likely.trailing_zeros() as usize;
            // The first word's bits are the highest of their bytes, the second's those below.
            let way = (bit / 8 + (!bit & 7) * WORD) % WAYS;
            let have: u64 = self.rests[way].into();
            if have >> 1 == tag >> IN_BYTE {
                return Some(way);
            }
            likely &= likely - 1;
        }
        None
    }

    #[inline(always)]
    pub(super) fn byte(&self, way: usize) -> u64 {
        self.bytes[way / WORD % WORDS] >> (way % WORD * 8) & 0xff
    }

    /// The bits of the order below those of `way`, which is in it.
    #[inline(always)]
    pub(super) fn below(&self, way: usize) -> u64 {
        let differs = self.order ^ (way as u64 * NIBBLES);
        // The lowest nibble that seems zero is.
        let at = (differs.wrapping_sub(NIBBLES) & !differs & NIBBLE_TOPS).trailing_zeros() & 60;
        (1 << at) - 1
    }

    /// Makes `way` the one used last.
    #[inline(always)]
    pub(super) fn touch(&mut self, way: usize) {
        let below = self.below(way);
        self.order = self.order & !(below << 4 | 15) | (self.order & below) << 4 | way as u64;
    }

    #[inline(always)]
    pub(super) fn entry_of(&self, way: usize) -> Option<(u64, bool)> {
        let (byte, rest): (u64, u64) = (self.byte(way), self.rests[way % WAYS].into());
        (byte != 0).then_some((rest >> 1 << IN_BYTE | byte & (PRESENT - 1), rest & 1 == 1))
    }

    /// Uses `tag`: whether it was there, or what had to go for it; `None`: it does not fit.
    #[inline(always)]
    pub(super) fn access(&mut self, last: u32, tag: u64, flag: bool) -> Option<TagUse> {
        if let Some(way) = self.seek(tag) {
            self.touch(way);
            self.mark(way, flag);
            return Some(TagUse::Again);
        }
        let (_, old) = self.replace(last, tag, rest(tag, flag)?);
        Some(TagUse::First(old))
    }

    #[inline(always)]
    pub(super) fn find_flag(&mut self, tag: u64) -> Option<(usize, bool)> {
        let way = self.seek(tag)?;
        self.touch(way);
        let rest: u64 = self.rests[way % WAYS].into();
        Some((way, rest & 1 == 1))
    }

    #[inline(always)]
    pub(super) fn mark_tag(&mut self, tag: u64) -> bool {
        let way = self.seek(tag);
        way.map(|way| self.mark(way, true)).is_some()
    }

    /// As [`Self::access`].
    #[inline(always)]
    pub(super) fn fetch(&mut self, last: u32, tag: u64, flag: bool) -> Option<TagFetch> {
        if let Some(way) = self.seek(tag) {
            self.touch(way);
            self.mark(way, flag);
            return Some(TagFetch::HIT);
        }
        let rest = rest(tag, flag)?;
        let way = (self.order >> last & 15) as usize;
        self.order = (self.order & !(15 << last)) << 4 | way as u64;
        let old: u64 = std::mem::replace(&mut self.rests[way % WAYS], rest).into();
        let byte = self.byte(way);
        self.put_byte(way, tag & (PRESENT - 1) | PRESENT);
        // What an empty way held last is of no interest.
        let left = old & 1 == 1 && byte != 0;
        Some(if left {
            TagFetch(old >> 1 << IN_BYTE | byte & (PRESENT - 1))
        } else {
            TagFetch::CLEAN
        })
    }

    /// Puts a tag in place of what was used longest ago: its way, and what it held.
    #[inline(always)]
    pub(super) fn replace(&mut self, last: u32, tag: u64, rest: R) -> (usize, Option<(u64, bool)>) {
        let way = (self.order >> last & 15) as usize;
        self.order = (self.order & !(15 << last)) << 4 | way as u64;
        let old = self.entry_of(way);
        self.put_byte(way, tag & (PRESENT - 1) | PRESENT);
        self.rests[way % WAYS] = rest;
        (way, old)
    }

    #[inline(always)]
    pub(super) fn put_byte(&mut self, way: usize, byte: u64) {
        // The whole word: the host would have to wait for a byte alone where the word is read soon.
        let at = way % WORD * 8;
        let word = &mut self.bytes[way / WORD % WORDS];
        *word = *word & !(0xff << at) | byte << at;
    }

    /// Empties a way, which becomes the one used longest ago.
    pub(super) fn forget(&mut self, last: u32, way: usize) {
        let below = self.below(way);
        let above = self.order & !(below << 4 | 15);
        self.order = self.order & below | above >> 4 | (way as u64) << last;
        self.put_byte(way, 0);
    }

    #[inline(always)]
    pub(super) fn mark(&mut self, way: usize, flag: bool) {
        self.rests[way % WAYS] = self.rests[way % WAYS].marked(flag);
    }

    pub(super) fn put_flag(&mut self, way: usize, flag: bool) {
        let (tag, _) = self.entry_of(way).unwrap_or_default();
        if let Some(rest) = rest(tag, flag) {
            self.rests[way % WAYS] = rest;
        }
    }

    /// As a list.
    pub(super) fn list(&self, ways: usize) -> Vec<WayEntry> {
        let way = |at: usize| (self.order >> (4 * at) & 15) as usize;
        (0..ways)
            .map(way)
            .map(|way| WayEntry { way: way as u32, tag: self.entry_of(way) })
            .collect()
    }
}

impl Set<2, Narrow, 16> {
    pub(super) fn widened(&self) -> Set<2, Wide, 16> {
        Set { bytes: self.bytes, order: self.order, rests: self.rests.map(Wide::from) }
    }
}
