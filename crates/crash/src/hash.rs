//! Hashing of line and page numbers, which come from the program and need no secret key: a
//! collision costs time only, and the program could waste that itself.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Multiplies by 2^64 over the golden ratio (Knuth, volume 3, section 6.4), and folds.
#[derive(Debug, Clone, Copy, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

pub type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;
pub type NumberSet = HashSet<u64, BuildHasherDefault<NumberHasher>>;
