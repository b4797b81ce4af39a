//! What is known of each unit, kept only where there is something to know: a map may be far larger than what is used of it.

use super::Unit;
use crate::geometry::UnitNo;
use std::ops::{Index, IndexMut};

/// Units recorded together.
const TOGETHER: usize = 1024;

/// Records by number of the unit.
#[derive(Debug)]
pub(super) struct Units {
    parts: Vec<Option<Box<[Unit]>>>,
    /// Of those that were never touched.
    untouched: Unit,
}

impl Units {
    pub fn new(count: u32) -> Self {
        let parts = (0..(count as usize).div_ceil(TOGETHER)).map(|_| None).collect();
        Self { parts, untouched: Unit::default() }
    }

    /// Those that may have been touched, with their numbers.
    pub fn known(&self) -> impl Iterator<Item = (UnitNo, &Unit)> {
        let parts = self.parts.iter().enumerate().filter_map(|(n, p)| Some((n * TOGETHER, p.as_ref()?)));
        parts.flat_map(|(first, units)| units.iter().enumerate().map(move |(n, u)| ((first + n) as UnitNo, u)))
    }
}

impl Index<usize> for Units {
    type Output = Unit;

    fn index(&self, unit: usize) -> &Unit {
        self.parts[unit / TOGETHER].as_ref().map_or(&self.untouched, |part| &part[unit % TOGETHER])
    }
}

impl IndexMut<usize> for Units {
    fn index_mut(&mut self, unit: usize) -> &mut Unit {
        let part =
            self.parts[unit / TOGETHER].get_or_insert_with(|| vec![Unit::default(); TOGETHER].into_boxed_slice());
        &mut part[unit % TOGETHER]
    }
}
