//! Sets of ways in order of use: what caches and translations are made of.
//!
//! A set of up to sixteen ways is a few words. Of each way's tag a byte is kept in a word beside
//! the others', so that a look compares eight of them in a few instructions and reads at most the
//! tags that are probably right; and the order of use is one word of four bits a way, so that
//! nothing is moved when a way is used. Large caches keep sixteen bits of the rest of a tag, so
//! that a set is one line of the host's memory, and are written out wider when a tag does not fit.
//! Sets of more ways are lists.

use crate::ahead::ahead;

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
const WORD: usize = 8;
/// Ways whose order fits a word.
const MAX_PACKED: usize = 16;
/// From so many sets on they are kept small.
const MANY: usize = 128;

/// What is left of a tag behind its byte, and its flag in the lowest bit.
type Narrow = u16;
type Wide = u32;

/// Sets of ways, each of which holds a tag with a flag, or nothing.
#[derive(Debug, Clone)]
pub struct Sets {
    ways: usize,
    /// Where the way used longest ago stands in the order.
    last: u32,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    /// Up to eight ways.
    One(Vec<Set<1, Wide, 8>>),
    /// Up to sixteen.
    Two(Vec<Set<2, Wide, 16>>),
    /// Up to sixteen, of short tags.
    Many(Vec<Line>),
    /// Any number of any tags.
    Lists(Vec<Vec<WayEntry>>),
}

/// A way: its number, its tag, its flag. In a list, the one used last comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WayEntry {
    way: u32,
    tag: Option<(u64, bool)>,
}

/// Where a tag is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetSlot {
    /// The set.
    pub set: usize,
    /// Its way.
    pub way: usize,
}

/// What the use of a tag came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagUse {
    /// It was there.
    Again,
    /// It is there now, in place of this one, if the set was full.
    First(Option<(u64, bool)>),
}

/// What the use of a tag came to, for callers that need no more than the line that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagFetch(u64);

impl TagFetch {
    const HIT: Self = Self(u64::MAX);
    const CLEAN: Self = Self(u64::MAX - 1);

    fn from_use(used: TagUse) -> Self {
        match used {
            TagUse::Again => Self::HIT,
            TagUse::First(Some((tag, true))) => Self(tag),
            TagUse::First(_) => Self::CLEAN,
        }
    }

    /// It was there.
    #[inline(always)]
    #[must_use]
    pub fn hit(self) -> bool {
        self == Self::HIT
    }

    /// What left for it, if its flag was set.
    #[inline(always)]
    #[must_use]
    pub fn left(self) -> Option<u64> {
        (self.0 < Self::CLEAN.0).then_some(self.0)
    }

    /// The same, by another name of what left.
    #[inline(always)]
    pub(crate) fn named(self, name: impl FnOnce(u64) -> u64) -> Self {
        self.left().map_or(self, |tag| Self(name(tag)))
    }
}

/// Bytes of the tags by way, rests of the tags by way, and the ways in order of use, four bits
/// each, the one used last lowest.
#[derive(Debug, Clone, Copy)]
struct Set<const WORDS: usize, R, const WAYS: usize> {
    bytes: [u64; WORDS],
    order: u64,
    rests: [R; WAYS],
}

/// A set that fills a line of the host's caches.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(Set<2, Narrow, 16>);

/// Rests of tags.
trait TagRemainder: Copy + Default + PartialEq + Into<u64> + TryFrom<u64> {
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
fn rest<R: TagRemainder>(tag: u64, flag: bool) -> Option<R> {
    R::try_from(tag >> IN_BYTE << 1 | u64::from(flag)).ok()
}

impl<const WORDS: usize, R: TagRemainder, const WAYS: usize> Set<WORDS, R, WAYS> {
    fn empty(ways: usize) -> Self {
        let order = (0..ways as u64).fold(0, |order, way| order | way << (4 * way));
        Self { bytes: [0; WORDS], order, rests: [R::default(); WAYS] }
    }

    /// The way that holds `tag`.
    #[inline(always)]
    fn seek(&self, tag: u64) -> Option<usize> {
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
    fn byte(&self, way: usize) -> u64 {
        self.bytes[way / WORD % WORDS] >> (way % WORD * 8) & 0xff
    }

    /// The bits of the order below those of `way`, which is in it.
    #[inline(always)]
    fn below(&self, way: usize) -> u64 {
        let differs = self.order ^ (way as u64 * NIBBLES);
        // The lowest nibble that seems zero is.
        let at = (differs.wrapping_sub(NIBBLES) & !differs & NIBBLE_TOPS).trailing_zeros() & 60;
        (1 << at) - 1
    }

    /// Makes `way` the one used last.
    #[inline(always)]
    fn touch(&mut self, way: usize) {
        let below = self.below(way);
        self.order = self.order & !(below << 4 | 15) | (self.order & below) << 4 | way as u64;
    }

    #[inline(always)]
    fn entry_of(&self, way: usize) -> Option<(u64, bool)> {
        let (byte, rest): (u64, u64) = (self.byte(way), self.rests[way % WAYS].into());
        (byte != 0).then_some((rest >> 1 << IN_BYTE | byte & (PRESENT - 1), rest & 1 == 1))
    }

    /// Uses `tag`: whether it was there, or what had to go for it; `None`: it does not fit.
    #[inline(always)]
    fn access(&mut self, last: u32, tag: u64, flag: bool) -> Option<TagUse> {
        if let Some(way) = self.seek(tag) {
            self.touch(way);
            self.mark(way, flag);
            return Some(TagUse::Again);
        }
        let (_, old) = self.replace(last, tag, rest(tag, flag)?);
        Some(TagUse::First(old))
    }

    #[inline(always)]
    fn find_flag(&mut self, tag: u64) -> Option<(usize, bool)> {
        let way = self.seek(tag)?;
        self.touch(way);
        let rest: u64 = self.rests[way % WAYS].into();
        Some((way, rest & 1 == 1))
    }

    #[inline(always)]
    fn mark_tag(&mut self, tag: u64) -> bool {
        let way = self.seek(tag);
        way.map(|way| self.mark(way, true)).is_some()
    }

    /// As [`Self::access`].
    #[inline(always)]
    fn fetch(&mut self, last: u32, tag: u64, flag: bool) -> Option<TagFetch> {
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
    fn replace(&mut self, last: u32, tag: u64, rest: R) -> (usize, Option<(u64, bool)>) {
        let way = (self.order >> last & 15) as usize;
        self.order = (self.order & !(15 << last)) << 4 | way as u64;
        let old = self.entry_of(way);
        self.put_byte(way, tag & (PRESENT - 1) | PRESENT);
        self.rests[way % WAYS] = rest;
        (way, old)
    }

    #[inline(always)]
    fn put_byte(&mut self, way: usize, byte: u64) {
        // The whole word: the host would have to wait for a byte alone where the word is read soon.
        let at = way % WORD * 8;
        let word = &mut self.bytes[way / WORD % WORDS];
        *word = *word & !(0xff << at) | byte << at;
    }

    /// Empties a way, which becomes the one used longest ago.
    fn forget(&mut self, last: u32, way: usize) {
        let below = self.below(way);
        let above = self.order & !(below << 4 | 15);
        self.order = self.order & below | above >> 4 | (way as u64) << last;
        self.put_byte(way, 0);
    }

    #[inline(always)]
    fn mark(&mut self, way: usize, flag: bool) {
        self.rests[way % WAYS] = self.rests[way % WAYS].marked(flag);
    }

    fn put_flag(&mut self, way: usize, flag: bool) {
        let (tag, _) = self.entry_of(way).unwrap_or_default();
        if let Some(rest) = rest(tag, flag) {
            self.rests[way % WAYS] = rest;
        }
    }

    /// As a list.
    fn list(&self, ways: usize) -> Vec<WayEntry> {
        let way = |at: usize| (self.order >> (4 * at) & 15) as usize;
        (0..ways)
            .map(way)
            .map(|way| WayEntry { way: way as u32, tag: self.entry_of(way) })
            .collect()
    }
}

/// Does the same with a set of whichever form. They are distinguished by comparisons, the common
/// ones first: a jump by a table is more to do.
macro_rules! with {
    ($form:expr, $at:expr, $set:ident => $packed:expr, $list:ident => $listed:expr) => {
        if let Form::One(sets) = $form {
            sets.get($at).map(|$set| $packed)
        } else if let Form::Many(sets) = $form {
            sets.get($at).map(|Line($set)| $packed)
        } else {
            match $form {
                Form::Two(sets) => sets.get($at).map(|$set| $packed),
                Form::Lists(sets) => sets.get($at).map(|$list| $listed),
                Form::One(_) | Form::Many(_) => None,
            }
        }
    };
    (mut $form:expr, $at:expr, $set:ident => $packed:expr, $list:ident => $listed:expr) => {
        if let Form::One(sets) = $form {
            sets.get_mut($at).map(|$set| $packed)
        } else if let Form::Many(sets) = $form {
            sets.get_mut($at).map(|Line($set)| $packed)
        } else {
            match $form {
                Form::Two(sets) => sets.get_mut($at).map(|$set| $packed),
                Form::Lists(sets) => sets.get_mut($at).map(|$list| $listed),
                Form::One(_) | Form::Many(_) => None,
            }
        }
    };
}

impl Sets {
    /// `sets` empty sets of `ways` ways.
    #[must_use]
    pub fn new(sets: usize, ways: usize) -> Self {
        let form = match ways {
            0 => Form::Lists(vec![Vec::new(); sets]),
            _ if ways <= WORD => Form::One(vec![Set::empty(ways); sets]),
            _ if ways <= MAX_PACKED && sets >= MANY => {
                Form::Many(vec![Line(Set::empty(ways)); sets])
            }
            _ if ways <= MAX_PACKED => Form::Two(vec![Set::empty(ways); sets]),
            _ => Form::Lists(vec![
                (0..ways as u32).map(|way| WayEntry { way, tag: None }).collect();
                sets
            ]),
        };
        Self { ways, last: 4 * (ways.clamp(1, MAX_PACKED) as u32 - 1), form }
    }

    /// Ways of a set.
    #[must_use]
    pub fn ways(&self) -> usize {
        self.ways
    }

    /// The host fetches what it will need of a set, which may be none.
    #[inline(always)]
    pub fn ahead(&self, set: usize) {
        match &self.form {
            Form::One(sets) => ahead(sets, set),
            Form::Two(sets) => ahead(sets, set),
            Form::Many(sets) => ahead(sets, set),
            Form::Lists(sets) => ahead(sets, set),
        }
    }

    /// The slot that holds `tag`; nothing is changed.
    #[inline(always)]
    #[must_use]
    pub fn peek(&self, set: usize, tag: u64) -> Option<SetSlot> {
        let way = with!(&self.form, set, s => s.seek(tag), list => seek(list, tag)
            .map(|at| list[at].way as usize))??;
        Some(SetSlot { set, way })
    }

    /// The slot that holds `tag`, which becomes the one used last of its set.
    #[inline(always)]
    pub fn find(&mut self, set: usize, tag: u64) -> Option<SetSlot> {
        let way = with!(mut &mut self.form, set, s => {
            let way = s.seek(tag);
            if let Some(way) = way {
                s.touch(way);
            }
            way
        }, list => {
            let at = seek(list, tag);
            at.map(|at| {
                list[..=at].rotate_right(1);
                list[0].way as usize
            })
        })??;
        Some(SetSlot { set, way })
    }

    /// As [`Sets::find`]: the way, and its flag.
    #[inline(always)]
    pub fn find_flag(&mut self, set: usize, tag: u64) -> Option<(usize, bool)> {
        if let Form::One(sets) = &mut self.form {
            return sets.get_mut(set)?.find_flag(tag);
        }
        if let Form::Many(sets) = &mut self.form {
            return sets.get_mut(set)?.0.find_flag(tag);
        }
        let slot = self.find(set, tag)?;
        Some((slot.way, self.flag(slot)))
    }

    /// Sets the flag of `tag` without using it; whether it is there.
    #[inline(always)]
    pub fn mark_tag(&mut self, set: usize, tag: u64) -> bool {
        if let Form::One(sets) = &mut self.form {
            return sets.get_mut(set).is_some_and(|s| s.mark_tag(tag));
        }
        if let Form::Many(sets) = &mut self.form {
            return sets.get_mut(set).is_some_and(|s| s.0.mark_tag(tag));
        }
        let slot = self.peek(set, tag);
        slot.map(|slot| self.mark(slot, true)).is_some()
    }

    /// Lets `tag` in, which must not be there, in place of what was used longest ago: its slot, and
    /// what that held. Without a set of this number nothing happens.
    #[inline(always)]
    pub fn replace(
        &mut self,
        set: usize,
        tag: u64,
        flag: bool,
    ) -> Option<(SetSlot, Option<(u64, bool)>)> {
        let last = self.last;
        // `None` within: the tag does not fit.
        let done = with!(mut &mut self.form, set, s => rest(tag, flag)
            .map(|rest| s.replace(last, tag, rest)), list => {
            list.pop().map(|mut held| {
                let old = held.tag.replace((tag, flag));
                list.insert(0, held);
                (held.way as usize, old)
            })
        })?;
        match done {
            Some((way, old)) => Some((SetSlot { set, way }, old)),
            None => self.replace_in_wider(set, tag, flag),
        }
    }

    /// Uses `tag`: [`Sets::find`], and [`Sets::mark`] with `flag`, or [`Sets::replace`]. Without a
    /// set of this number nothing is ever there.
    #[inline(always)]
    pub fn access(&mut self, set: usize, tag: u64, flag: bool) -> TagUse {
        let last = self.last;
        // Told apart by comparisons, which are foreseen; a jump by a table is more to do.
        if let Form::One(sets) = &mut self.form {
            if let Some(used) = sets.get_mut(set).and_then(|s| s.access(last, tag, flag)) {
                return used;
            }
        } else if let Form::Many(sets) = &mut self.form {
            if let Some(used) = sets.get_mut(set).and_then(|s| s.0.access(last, tag, flag)) {
                return used;
            }
        }
        self.access_slowly(set, tag, flag)
    }

    /// As [`Sets::access`].
    #[inline(always)]
    pub fn fetch(&mut self, set: usize, tag: u64, flag: bool) -> TagFetch {
        let last = self.last;
        if let Form::One(sets) = &mut self.form {
            if let Some(fetched) = sets.get_mut(set).and_then(|s| s.fetch(last, tag, flag)) {
                return fetched;
            }
        } else if let Form::Many(sets) = &mut self.form {
            if let Some(fetched) = sets.get_mut(set).and_then(|s| s.0.fetch(last, tag, flag)) {
                return fetched;
            }
        }
        TagFetch::from_use(self.access_slowly(set, tag, flag))
    }

    #[inline(never)]
    fn access_slowly(&mut self, set: usize, tag: u64, flag: bool) -> TagUse {
        if let Some(slot) = self.find(set, tag) {
            self.mark(slot, flag);
            return TagUse::Again;
        }
        TagUse::First(self.replace(set, tag, flag).and_then(|(_, old)| old))
    }

    #[cold]
    #[inline(never)]
    fn replace_in_wider(
        &mut self,
        set: usize,
        tag: u64,
        flag: bool,
    ) -> Option<(SetSlot, Option<(u64, bool)>)> {
        let ways = self.ways;
        self.form = match &self.form {
            Form::One(sets) => Form::Lists(sets.iter().map(|s| s.list(ways)).collect()),
            Form::Two(sets) => Form::Lists(sets.iter().map(|s| s.list(ways)).collect()),
            Form::Many(sets) => Form::Two(sets.iter().map(|s| s.0.widened()).collect()),
            // It fits everything; without ways it fits nothing.
            Form::Lists(_) => return None,
        };
        self.replace(set, tag, flag)
    }

    /// What a set holds that was used longest ago: what the next [`Sets::replace`] puts out.
    #[inline(always)]
    #[must_use]
    pub fn oldest(&self, set: usize) -> Option<(u64, bool)> {
        let last = self.last;
        with!(&self.form, set, s => s.entry_of((s.order >> last & 15) as usize), list => list.last()
            .and_then(|h| h.tag))?
    }

    /// The slot of a set that was used last; `None` without such a set.
    #[must_use]
    pub fn latest(&self, set: usize) -> Option<SetSlot> {
        let way = with!(&self.form, set, s => Some((s.order & 15) as usize), list => list.first()
            .map(|h| h.way as usize))??;
        Some(SetSlot { set, way })
    }

    /// The flag of what is in a slot.
    #[inline(always)]
    #[must_use]
    pub fn flag(&self, slot: SetSlot) -> bool {
        let held = with!(&self.form, slot.set, s => s.entry_of(slot.way), list => {
            list.iter().find(|h| h.way as usize == slot.way).and_then(|h| h.tag)
        });
        held.flatten().is_some_and(|(_, flag)| flag)
    }

    /// Sets the flag of what is in a slot, if `flag` is.
    #[inline(always)]
    pub fn mark(&mut self, slot: SetSlot, flag: bool) {
        with!(mut &mut self.form, slot.set, s => s.mark(slot.way, flag), list =>
            put_flag(list, slot.way, |old| old | flag));
    }

    /// Gives what is in a slot this flag.
    pub fn put_flag(&mut self, slot: SetSlot, flag: bool) {
        with!(mut &mut self.form, slot.set, s => s.put_flag(slot.way, flag), list =>
            put_flag(list, slot.way, |_| flag));
    }

    /// Empties the slot of `tag`, if it is there. What is left of the set keeps its order.
    pub fn forget(&mut self, set: usize, tag: u64) {
        let Some(SetSlot { way, .. }) = self.peek(set, tag) else { return };
        let last = self.last;
        with!(mut &mut self.form, set, s => s.forget(last, way), list => {
            if let Some(at) = seek(list, tag) {
                list[at].tag = None;
                list[at..].rotate_left(1);
            }
        });
    }

    /// Empties all.
    pub fn clear(&mut self) {
        match &mut self.form {
            Form::One(sets) => sets.iter_mut().for_each(|s| s.bytes = Default::default()),
            Form::Two(sets) => sets.iter_mut().for_each(|s| s.bytes = Default::default()),
            Form::Many(sets) => sets.iter_mut().for_each(|s| s.0.bytes = Default::default()),
            Form::Lists(sets) => sets.iter_mut().flatten().for_each(|held| held.tag = None),
        }
    }
}

impl Set<2, Narrow, 16> {
    fn widened(&self) -> Set<2, Wide, 16> {
        Set { bytes: self.bytes, order: self.order, rests: self.rests.map(Wide::from) }
    }
}

fn put_flag(list: &mut [WayEntry], way: usize, flag: impl Fn(bool) -> bool) {
    let held =
        list.iter_mut().find(|held| held.way as usize == way).and_then(|held| held.tag.as_mut());
    if let Some((_, old)) = held {
        *old = flag(*old);
    }
}

fn seek(list: &[WayEntry], tag: u64) -> Option<usize> {
    list.iter().position(|held| held.tag.is_some_and(|(have, _)| have == tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of tags a set, the one used last first.
    #[test]
    fn agrees_with_lists() {
        for (ways, count) in [
            (1, 5),
            (2, 5),
            (3, 5),
            (7, 5),
            (8, 700),
            (9, 5),
            (11, 600),
            (12, 5),
            (16, 513),
            (17, 5),
            (33, 5),
        ] {
            let mut sets = Sets::new(count, ways);
            let mut lists: Vec<Vec<(u64, bool)>> = vec![Vec::new(); count];
            let mut x = 88_172_645_463_325_252u64 + ways as u64;
            for step in 0..60_000u64 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                // Tags whose bytes are often the same although they are not; towards the end, wider
                // and wider ones.
                let (set, number, flag) =
                    (x as usize % count % 7, (x >> 20) % (ways as u64 * 2), x >> 63 == 1);
                let wide =
                    if step < 30_000 || number % 5 > 0 { 8 } else { (step / 1000).min(55) as u32 };
                let tag = if number % 3 == 0 { number << wide } else { number };
                let list = &mut lists[set];
                let known = list.iter().position(|held| held.0 == tag);
                match x >> 40 & 15 {
                    0 => {
                        sets.forget(set, tag);
                        known.map(|at| list.remove(at));
                    }
                    1 => assert_eq!(
                        sets.peek(set, tag).map(|s| sets.flag(s)),
                        known.map(|at| list[at].1)
                    ),
                    3 => {
                        assert_eq!(sets.mark_tag(set, tag), known.is_some());
                        known.into_iter().for_each(|at| list[at].1 = true);
                    }
                    4 => {
                        let found = sets.find_flag(set, tag);
                        assert_eq!(found.map(|f| f.1), known.map(|at| list[at].1));
                        assert_eq!(found.map(|f| f.0), sets.peek(set, tag).map(|s| s.way));
                        known.into_iter().for_each(|at| list[..=at].rotate_right(1));
                    }
                    2 if step % 1000 == 0 => {
                        sets.clear();
                        lists.iter_mut().for_each(Vec::clear);
                    }
                    _ => match sets.find(set, tag) {
                        Some(slot) => {
                            let old = list.remove(known.expect("found but not in the list"));
                            assert_eq!((sets.flag(slot), sets.latest(set)), (old.1, Some(slot)));
                            sets.put_flag(slot, flag);
                            list.insert(0, (tag, flag));
                        }
                        None => {
                            assert_eq!(known, None, "{ways} ways, step {step}");
                            let before = sets.oldest(set);
                            let (slot, old) = sets.replace(set, tag, flag).unwrap();
                            assert_eq!(
                                before,
                                if list.len() == ways { list.last().copied() } else { None }
                            );
                            let gone = if list.len() == ways { list.pop() } else { None };
                            assert_eq!((old, slot.set, sets.flag(slot)), (gone, set, flag));
                            list.insert(0, (tag, flag));
                        }
                    },
                }
            }
        }
    }

    #[test]
    fn to_use_is_to_find_or_to_replace() {
        for (ways, count) in [(4, 3), (11, 600), (16, 2), (20, 3)] {
            let (mut one, mut two) = (Sets::new(count, ways), Sets::new(count, ways));
            let mut three = one.clone();
            let mut x = 7_046_029_254_386_353_131u64;
            for step in 0..40_000u64 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let (set, flag) = (x as usize % 2, x >> 63 == 1);
                let tag =
                    ((x >> 20) % (ways as u64 * 2)) << if x & 64 == 0 { 0 } else { step / 1000 };
                let used = match two.find(set, tag) {
                    Some(slot) => {
                        two.mark(slot, flag);
                        TagUse::Again
                    }
                    None => TagUse::First(two.replace(set, tag, flag).unwrap().1),
                };
                assert_eq!(one.access(set, tag, flag), used);
                assert_eq!(three.fetch(set, tag, flag), TagFetch::from_use(used));
                if step % 97 == 0 {
                    [&mut one, &mut two, &mut three]
                        .into_iter()
                        .for_each(|sets| sets.forget(set, tag));
                }
            }
        }
    }

    #[test]
    fn without_ways_or_sets_there_is_nothing() {
        for mut sets in [Sets::new(1, 0), Sets::new(0, 4)] {
            assert_eq!(
                (sets.find(0, 8), sets.replace(0, 8, true), sets.peek(7, 8)),
                (None, None, None)
            );
            sets.forget(0, 8);
            sets.ahead(0);
            sets.ahead(100);
        }
    }

    #[test]
    fn a_set_of_a_large_cache_is_a_line_of_the_host() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
    }
}
