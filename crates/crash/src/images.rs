//! Memory at each of many crashes: the objects' content at the first, and what changed from each
//! to the next.

use crate::memory::CachedMemory;
use crate::region::DataObject;

/// What memory was given between two crashes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ImageDifference {
    /// Offset into the image and bytes, ascending.
    pieces: Vec<(u64, u32)>,
    /// The pieces' content, one behind the other.
    content: Vec<u8>,
}

/// Images of the restored objects, one behind the other in the order of their calls, one image a
/// crash, in order of time. Memory use grows with what memory was given, not with the number of
/// images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageChain {
    objects: Vec<DataObject>,
    base: Vec<u8>,
    now: Vec<u8>,
    differences: Vec<ImageDifference>,
}

impl ImageChain {
    /// Begins with what memory holds of the objects now.
    #[must_use]
    pub fn new(objects: &[DataObject], memory: &CachedMemory) -> Self {
        let objects: Vec<DataObject> =
            objects.iter().filter(|o| o.is_restored()).cloned().collect();
        let bytes: u64 = objects.iter().map(|o| o.bytes).sum();
        let mut base = vec![0; bytes as usize];
        let mut at = 0;
        for object in &objects {
            let end = at + object.bytes as usize;
            memory.read_persistent(object.address, &mut base[at..end]);
            at = end;
        }
        Self { now: base.clone(), objects, base, differences: Vec::new() }
    }

    /// Adds the image of a crash now. `written`: the lines that memory was given since the last
    /// ([`CachedMemory::take_written`]).
    pub fn push(&mut self, memory: &CachedMemory, written: &[u64]) {
        let line_bytes = memory.line_bytes();
        let mut difference = ImageDifference::default();
        let mut start = 0;
        let mut buffer = vec![0; line_bytes as usize];
        for object in &self.objects {
            let (first, last) = (object.address / line_bytes, object.end().div_ceil(line_bytes));
            let from = written.partition_point(|line| *line < first);
            for line in written[from..].iter().take_while(|line| **line < last) {
                let low = (line * line_bytes).max(object.address);
                let high = (line + 1).saturating_mul(line_bytes).min(object.end());
                if low >= high {
                    continue;
                }
                let piece = &mut buffer[..(high - low) as usize];
                memory.read_persistent(low, piece);
                let offset = start + (low - object.address);
                let known = &mut self.now[offset as usize..offset as usize + piece.len()];
                if known != piece {
                    known.copy_from_slice(piece);
                    difference.pieces.push((offset, piece.len() as u32));
                    difference.content.extend_from_slice(piece);
                }
            }
            start += object.bytes;
        }
        self.differences.push(difference);
    }

    /// Images in the chain.
    #[must_use]
    pub fn len(&self) -> usize {
        self.differences.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    /// Bytes of an image.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.base.len() as u64
    }

    /// Bytes that the differences hold.
    #[must_use]
    pub fn difference_bytes(&self) -> u64 {
        self.differences.iter().map(|d| d.content.len() as u64).sum()
    }

    /// Goes through the images in order.
    #[must_use]
    pub fn cursor(&self) -> ImageCursor<'_> {
        ImageCursor { chain: self, next: 0, content: self.base.clone() }
    }
}

/// One image of an [`ImageChain`] at a time.
#[derive(Debug)]
pub struct ImageCursor<'a> {
    chain: &'a ImageChain,
    next: usize,
    content: Vec<u8>,
}

impl ImageCursor<'_> {
    /// The next image; `None` after the last.
    pub fn advance(&mut self) -> Option<&[u8]> {
        let difference = self.chain.differences.get(self.next)?;
        self.next += 1;
        let mut from = 0;
        for (offset, bytes) in &difference.pieces {
            let (offset, bytes) = (*offset as usize, *bytes as usize);
            self.content[offset..offset + bytes]
                .copy_from_slice(&difference.content[from..from + bytes]);
            from += bytes;
        }
        Some(&self.content)
    }
}
