//! What is known of each chunk, kept only where there is something to know: a map may be far larger
//! than what is used of it.

use super::ChunkState;
use crate::far::geometry::ChunkNo;
use std::ops::{Index, IndexMut};

/// Chunks recorded together.
const TOGETHER: usize = 1024;

/// Records by number of the chunk.
#[derive(Debug)]
pub(super) struct ChunkTable {
    parts: Vec<Option<Box<[ChunkState]>>>,
    /// Parts there are.
    kept: usize,
    /// Of those that were never touched.
    untouched: ChunkState,
}

impl ChunkTable {
    pub fn new(count: u32) -> Self {
        let parts = (0..(count as usize).div_ceil(TOGETHER)).map(|_| None).collect();
        Self { parts, kept: 0, untouched: ChunkState::default() }
    }

    /// Memory for the records.
    pub fn bytes(&self) -> usize {
        self.kept * TOGETHER * std::mem::size_of::<ChunkState>()
            + self.parts.len() * std::mem::size_of::<Option<Box<[ChunkState]>>>()
    }

    /// Those that may have been touched, with their numbers.
    pub fn known(&self) -> impl Iterator<Item = (ChunkNo, &ChunkState)> {
        let parts =
            self.parts.iter().enumerate().filter_map(|(n, p)| Some((n * TOGETHER, p.as_ref()?)));
        parts.flat_map(|(first, chunks)| {
            chunks.iter().enumerate().map(move |(n, u)| ((first + n) as ChunkNo, u))
        })
    }
}

impl Index<usize> for ChunkTable {
    type Output = ChunkState;

    fn index(&self, chunk: usize) -> &ChunkState {
        self.parts[chunk / TOGETHER]
            .as_ref()
            .map_or(&self.untouched, |part| &part[chunk % TOGETHER])
    }
}

impl IndexMut<usize> for ChunkTable {
    fn index_mut(&mut self, chunk: usize) -> &mut ChunkState {
        let (parts, kept) = (&mut self.parts, &mut self.kept);
        let part = parts[chunk / TOGETHER].get_or_insert_with(|| {
            *kept += 1;
            vec![ChunkState::default(); TOGETHER].into_boxed_slice()
        });
        &mut part[chunk % TOGETHER]
    }
}
