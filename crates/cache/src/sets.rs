//! Sets of ways in order of use: what caches and translations are made of.
//!
//! A set of up to sixteen ways is a few words. Of each way's tag a byte is kept in a word beside
//! the others', so that a look compares eight of them in a few instructions and reads at most the
//! tags that are probably right; and the order of use is one word of four bits a way, so that
//! nothing is moved when a way is used. Large caches keep sixteen bits of the rest of a tag, so
//! that a set is one line of the host's memory, and are written out wider when a tag does not fit.
//! Sets of more ways are lists.

mod packed;

use crate::ahead::ahead;
use packed::{rest, Narrow, Set, Wide, WORD};

/// Ways whose order fits a word.
const MAX_PACKED: usize = 16;
/// From so many sets on they are kept small.
const MANY: usize = 128;

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

/// A set that fills a line of the host's caches.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(Set<2, Narrow, 16>);

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
mod tests;
