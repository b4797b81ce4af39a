//! Pieces of memory in size classes: eight to a doubling, so that at most an eighth of a piece is
//! wasted, cut from blocks of one class each. Empty blocks go back to the allocator.

/// Smallest piece.
const LEAST: usize = 64;
/// Bytes of a block, or one piece where that is more.
const BLOCK: usize = 256 << 10;

/// Where a piece lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    block: u32,
    index: u32,
}

#[derive(Debug)]
struct Block {
    bytes: Box<[u8]>,
    size: usize,
    free: Vec<u32>,
    pieces: u32,
}

/// All classes.
#[derive(Debug, Default)]
pub(super) struct Slab {
    blocks: Vec<Option<Block>>,
    /// Numbers of blocks that are gone.
    gone: Vec<u32>,
    /// By class, blocks that may have a free piece.
    open: std::collections::BTreeMap<usize, Vec<u32>>,
    capacity: usize,
}

/// Bytes that a piece of `len` takes.
pub(super) fn class(len: usize) -> usize {
    let len = len.max(LEAST);
    let step = (len.next_power_of_two() / 16).max(8);
    len.next_multiple_of(step)
}

impl Slab {
    /// Bytes held from the allocator.
    pub const fn capacity_bytes(&self) -> usize {
        self.capacity
    }

    /// Keeps a copy; `None` when that would need more than `limit` bytes.
    pub fn put(&mut self, data: &[u8], limit: usize) -> Option<Place> {
        let size = class(data.len());
        let open = self.open.entry(size).or_default();
        while let Some(&block) = open.last() {
            let found = self.blocks[block as usize].as_mut().filter(|b| b.size == size);
            if let Some((b, index)) = found.and_then(|b| b.free.pop().map(|i| (b, i))) {
                b.bytes[index as usize * size..][..data.len()].copy_from_slice(data);
                return Some(Place { block, index });
            }
            open.pop();
        }
        let pieces = (BLOCK / size).max(1);
        if self.capacity + pieces * size > limit {
            return None;
        }
        self.capacity += pieces * size;
        let made = Block {
            bytes: vec![0; pieces * size].into_boxed_slice(),
            size,
            free: (0..pieces as u32).rev().collect(),
            pieces: pieces as u32,
        };
        let block = self.gone.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() as u32 - 1
        });
        self.blocks[block as usize] = Some(made);
        self.open.entry(size).or_default().push(block);
        self.put(data, limit)
    }

    /// The piece that begins at a place; as long as its class.
    pub fn get(&self, place: Place) -> Option<&[u8]> {
        let b = self.blocks.get(place.block as usize)?.as_ref()?;
        b.bytes.get(place.index as usize * b.size..)?.get(..b.size)
    }

    /// Gives a piece back.
    pub fn free(&mut self, place: Place) {
        let Some(b) = self.blocks[place.block as usize].as_mut() else {
            return;
        };
        b.free.push(place.index);
        let size = b.size;
        if b.free.len() == 1 {
            self.open.entry(size).or_default().push(place.block);
        }
        if b.free.len() as u32 == b.pieces {
            self.capacity -= b.bytes.len();
            self.blocks[place.block as usize] = None;
            self.gone.push(place.block);
            if let Some(open) = self.open.get_mut(&size) {
                open.retain(|n| *n != place.block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Seed;

    #[test]
    fn classes_waste_at_most_an_eighth() {
        for len in 64..70_000 {
            assert!(class(len) >= len && class(len) - len <= len / 8 + 8, "{len}: {}", class(len));
        }
    }

    #[test]
    fn pieces_keep_their_bytes_and_blocks_go_back() {
        let mut slab = Slab::default();
        let mut kept: Vec<(Place, Vec<u8>)> = Vec::new();
        let mut seed = Seed(3);
        for n in 0..20_000_u64 {
            let (r, next) = seed.next();
            seed = next;
            if r % 3 == 0 && !kept.is_empty() {
                let (place, data) = kept.swap_remove((r >> 8) as usize % kept.len());
                assert_eq!(&slab.get(place).unwrap()[..data.len()], data);
                slab.free(place);
            } else if kept.len() < 2000 {
                let data = vec![n as u8; 1 + (r >> 16) as usize % 9000];
                kept.push((slab.put(&data, usize::MAX).unwrap(), data));
            }
        }
        assert!(slab.put(&[1; 300_000], slab.capacity_bytes()).is_none());
        for (place, data) in kept {
            assert_eq!(&slab.get(place).unwrap()[..data.len()], data);
            slab.free(place);
        }
        assert_eq!(slab.capacity_bytes(), 0);
    }
}
