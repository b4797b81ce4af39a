//! Accesses that come in the same order again and again.

use super::{rest, slot_of};
use crate::event::AccessDescriptor;

/// An access of a [`AccessRow`]: its instruction, and which of the words holds its address.
#[derive(Debug, Clone, Copy)]
pub struct RowAccess {
    pub(super) pc: u64,
    pub(super) word: u16,
    pub(super) slot: u16,
}

impl RowAccess {
    /// `pc` is not 0.
    pub fn new(pc: u64, word: u16) -> Self {
        Self { pc, word, slot: slot_of(pc) as u16 }
    }
}

/// Bytes that a store of an [`AccessRow`] wrote.
#[derive(Debug, Clone, Copy)]
pub struct RowValue {
    /// Which of the words holds them, low ones first.
    pub word: u16,
    /// How many; eight at most.
    pub bytes: u8,
}

/// Accesses of known instructions in a fixed order, but for their addresses. Their sizes are powers
/// of two.
#[derive(Debug)]
pub struct AccessRow {
    pub(super) places: Vec<RowAccess>,
    /// Of each access, its dictionary line but for the predictor.
    pub(super) rests: Vec<u64>,
    /// Of traces with values, what the stores wrote, in order.
    pub(super) values: Vec<RowValue>,
    pub(super) stores: u32,
    /// What is remembered of each instruction is remembered in a place of its own.
    pub(super) apart: bool,
}

impl Default for AccessRow {
    fn default() -> Self {
        Self { places: Vec::new(), rests: Vec::new(), values: Vec::new(), stores: 0, apart: true }
    }
}

impl AccessRow {
    /// Adds an access; the first one's gap is encoded later and must be 0 here.
    pub fn add(&mut self, place: RowAccess, kind: AccessDescriptor, gap: u32) {
        self.apart &= self.places.iter().all(|other| other.slot != place.slot);
        self.places.push(place);
        self.rests.push(rest(kind, gap));
        self.stores += u32::from(kind.is_store());
    }

    /// Adds what the next store wrote, or a piece of it.
    pub fn add_value(&mut self, value: RowValue) {
        self.values.push(value);
    }

    /// Sets how many loads ago the value was loaded that an access's address was computed from; 15
    /// at most.
    pub fn depend(&mut self, at: usize, depends: u8) {
        if let Some(rest) = self.rests.get_mut(at) {
            *rest = *rest & !(0xf0 << 16) | u64::from(depends) << 20;
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.places.len()
    }
}

/// What a word of a compiler's hook says but for its address: which place of the code (not where
/// that is, but enough to predict the address from that place's last), and what kind of access.
#[inline]
pub(super) fn hooked(word: u64) -> (RowAccess, AccessDescriptor) {
    // Sizes as the capture reads them: three bits can say up to 128 bytes, hooks never do.
    let (size, store) = ((word >> 48 & 7).min(6) as u8, word >> 51 & 1 == 1);
    (RowAccess::new(1 + (word >> 52 & 0x7ff), 0), AccessDescriptor(size | u8::from(store) << 3))
}
