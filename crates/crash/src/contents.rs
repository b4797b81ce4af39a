//! Contents of memory by line: what cores read, and of lines that are dirty, what memory holds
//! instead.

use crate::hash::NumberMap;

/// Lines of a block: one bit each in a word.
const BLOCK_LINES: u32 = 64;
const BLOCK_SHIFT: u32 = BLOCK_LINES.trailing_zeros();
/// Blocks that are found without hashing, by the lowest bits of their numbers: a loop over some
/// arrays stays within few blocks for thousands of accesses. A kilobyte; what half or twice as many
/// would do was not measured, and changes no result.
const RECENT: usize = 64;

/// Lines next to one another, one bit each, and what cores read there.
#[derive(Debug, Default)]
struct LineBlock {
    /// Lines read from memory or stored to.
    touched: u64,
    /// Lines of which memory holds something older.
    behind: u64,
    /// Nothing was ever written here where there are none: it reads as zero.
    bytes: Option<Box<[u8]>>,
}

/// Cuts bytes at multiples of `step`: address, offset and length of each part.
pub fn parts(address: u64, length: usize, step: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= length {
            return None;
        }
        let at = address.wrapping_add(done as u64);
        let count = ((step - at % step) as usize).min(length - done);
        let part = (at, done, count);
        done += count;
        Some(part)
    })
}

/// Where a line's block is in [`MemoryContents`], and the line in it.
#[derive(Debug, Clone, Copy)]
pub struct LineSlot {
    block: u32,
    bit: u64,
}

/// What cores read and what memory holds. What was never written reads as zero.
#[derive(Debug)]
pub struct MemoryContents {
    line_shift: u32,
    index: NumberMap<u32>,
    blocks: Vec<LineBlock>,
    /// Numbers of blocks used lately, and their places.
    recent: [(u64, u32); RECENT],
    /// What memory holds of lines behind: which, and their bytes one after the other.
    kept: NumberMap<u32>,
    kept_bytes: Vec<u8>,
    free: Vec<u32>,
}

impl MemoryContents {
    /// Nothing yet, in lines of two to the power of `line_shift` bytes.
    pub fn new(line_shift: u32) -> Self {
        Self {
            line_shift,
            index: NumberMap::default(),
            blocks: Vec::new(),
            recent: [(u64::MAX, 0); RECENT],
            kept: NumberMap::default(),
            kept_bytes: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Bytes of a line.
    pub fn line_bytes(&self) -> u64 {
        1 << self.line_shift
    }

    fn block_bytes(&self) -> u64 {
        u64::from(BLOCK_LINES) << self.line_shift
    }

    #[inline]
    fn slot(&mut self, line: u64) -> LineSlot {
        let (number, bit) = (line >> BLOCK_SHIFT, 1 << (line % u64::from(BLOCK_LINES)));
        let recent = &mut self.recent[number as usize % RECENT];
        if recent.0 != number {
            let (next, blocks) = (self.blocks.len() as u32, &mut self.blocks);
            let block = *self.index.entry(number).or_insert_with(|| {
                blocks.push(LineBlock::default());
                next
            });
            *recent = (number, block);
        }
        LineSlot { block: recent.1, bit }
    }

    fn find(&self, line: u64) -> Option<&LineBlock> {
        let block = *self.index.get(&(line >> BLOCK_SHIFT))?;
        self.blocks.get(block as usize)
    }

    /// A line is used: it counts to the footprint.
    #[inline]
    pub fn touch(&mut self, line: u64) -> LineSlot {
        let slot = self.slot(line);
        self.blocks[slot.block as usize].touched |= slot.bit;
        slot
    }

    /// Lines used so far, times their bytes.
    pub fn touched_bytes(&self) -> u64 {
        let lines: u64 = self.blocks.iter().map(|b| u64::from(b.touched.count_ones())).sum();
        lines << self.line_shift
    }

    /// Whether memory holds something older than cores read.
    #[inline]
    pub fn is_behind(&self, slot: LineSlot) -> bool {
        self.blocks[slot.block as usize].behind & slot.bit != 0
    }

    /// The same of a line by its number, for a caller that does not use its contents.
    pub fn has_older(&self, line: u64) -> bool {
        self.kept.contains_key(&line)
    }

    /// Memory keeps what cores read of this line now.
    pub fn keep(&mut self, line: u64, slot: LineSlot) {
        let bytes = 1usize << self.line_shift;
        let block = &mut self.blocks[slot.block as usize];
        block.behind |= slot.bit;
        let (free, kept_bytes) = (&mut self.free, &mut self.kept_bytes);
        let at = *self.kept.entry(line).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                let at = kept_bytes.len() >> self.line_shift;
                kept_bytes.resize(kept_bytes.len() + bytes, 0);
                at as u32
            })
        });
        let kept = &mut self.kept_bytes[(at as usize) << self.line_shift..][..bytes];
        let from = ((line % u64::from(BLOCK_LINES)) as usize) << self.line_shift;
        match &block.bytes {
            Some(now) => kept.copy_from_slice(&now[from..from + bytes]),
            None => kept.fill(0),
        }
    }

    /// Memory is given what cores read of a line.
    pub fn settle(&mut self, line: u64) {
        let slot = self.slot(line);
        self.blocks[slot.block as usize].behind &= !slot.bit;
        self.free.extend(self.kept.remove(&line));
    }

    /// Writes what cores read.
    #[inline]
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let block_bytes = self.block_bytes();
        for (at, from, count) in parts(address, bytes.len(), block_bytes) {
            let slot = self.slot(at >> self.line_shift);
            let block = &mut self.blocks[slot.block as usize].bytes;
            let all = block.get_or_insert_with(|| vec![0; block_bytes as usize].into());
            let place = (at % block_bytes) as usize;
            all[place..place + count].copy_from_slice(&bytes[from..from + count]);
        }
    }

    /// What cores read.
    pub fn read_coherent(&self, address: u64, out: &mut [u8]) {
        for (at, from, count) in parts(address, out.len(), self.block_bytes()) {
            let out = &mut out[from..from + count];
            let place = (at % self.block_bytes()) as usize;
            match self.find(at >> self.line_shift).and_then(|b| b.bytes.as_ref()) {
                Some(all) => out.copy_from_slice(&all[place..place + count]),
                None => out.fill(0),
            }
        }
    }

    fn kept_of(&self, line: u64) -> Option<&[u8]> {
        let at = *self.kept.get(&line)? as usize;
        self.kept_bytes.get(at << self.line_shift..(at + 1) << self.line_shift)
    }

    /// What memory holds.
    pub fn read_persistent(&self, address: u64, out: &mut [u8]) {
        for (at, from, count) in parts(address, out.len(), self.line_bytes()) {
            let out = &mut out[from..from + count];
            let start = (at % self.line_bytes()) as usize;
            match self.kept_of(at >> self.line_shift) {
                Some(kept) => out.copy_from_slice(&kept[start..start + count]),
                None => self.read_coherent(at, out),
            }
        }
    }

    /// Lines of which memory holds something older, in no order.
    pub fn lines_behind(&self) -> impl Iterator<Item = u64> + '_ {
        self.kept.keys().copied()
    }

    /// The same with what memory holds.
    pub fn contents_behind(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.kept.iter().map(|(line, at)| {
            let from = (*at as usize) << self.line_shift;
            (*line, &self.kept_bytes[from..from + (1usize << self.line_shift)])
        })
    }

    /// How many there are.
    pub fn count_behind(&self) -> u64 {
        self.kept.len() as u64
    }
}
