//! An array of a kernel, as its source declares and uses it.

use std::ops::Range;

/// An array of a kernel: a parameter that is a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelArray {
    /// Its name.
    pub name: String,
    /// Type of its elements in the source.
    pub element: String,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// Whether the kernel writes it.
    pub written: bool,
    /// Whether it is used other than by `name[index]`.
    pub escapes: bool,
    /// Whether its elements' addresses are taken, as atomic functions need.
    pub atomic: bool,
    /// Whether the source has a tile in shared memory for it (`TILE_name`).
    pub has_tile: bool,
    pub(crate) declaration: Range<usize>,
}
