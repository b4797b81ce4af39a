//! One thread's accesses become a block.
//!
//! Each address is predicted from an earlier one of the block: that of the same instruction where
//! the instruction is known, else the nearest of the last sixteen. What is left over after
//! prediction is mostly constant in loops, and zstd does the rest. Everything about an access but
//! those bytes (how it was predicted, size, direction, dependence, gap) is one byte that names a
//! line of the block's dictionary, for loops repeat few such combinations.

mod columns;
mod row;
mod row_encoder;

pub use columns::ColumnEncoder;
pub use row::{AccessRow, RowAccess, RowValue};

use crate::event::{Access, AccessDescriptor, SampleDetail};
use crate::frame::BLOCK_ACCESSES;
use crate::pack::{put_number, zigzag};
use row_encoder::RowEncoder;

/// How an address is encoded, in the two low bits of a predictor; the others hold how many accesses
/// back to look.
pub(crate) mod class {
    /// One byte to add to the address looked at.
    pub const NEAR: u16 = 0;
    /// Two bytes to add.
    pub const MIDDLE: u16 = 1;
    /// Four bytes to add: a large step that this instruction also made the last time.
    pub const FAR: u16 = 2;
    /// All eight bytes; looks nowhere.
    pub const WHOLE: u16 = 3;
}

/// Code of accesses that the dictionary has no line for.
pub(crate) const ESCAPE: u8 = 255;
/// Bytes of a dictionary line.
pub(crate) const LINE: usize = 7;

const CONTEXTS: usize = 4096;
const SLOTS: usize = 1024;
/// How far back an access of the same instruction may lie, unless it always lies exactly there.
const NEARBY: u64 = 63;
const FARTHEST: u64 = 16_383;
/// How many accesses back are tried where the instruction is not known.
const TRIED: usize = 16;
/// So many times must a narrower class do before it is taken.
const PATIENCE: u8 = 8;
/// A block is closed early when its values grow beyond this.
const MAX_VALUES: usize = 4 << 20;

/// An access whose kind is made already. To make it here would mean to read bytes together that
/// were written one by one a moment ago, which the processor does slowly: it was half the time of
/// recording.
#[derive(Debug)]
pub struct EncodedAccess {
    address: u64,
    pc: u64,
    size: u32,
    gap: u32,
    kind: AccessDescriptor,
}

impl EncodedAccess {
    #[inline(always)]
    pub fn new(access: &Access) -> Self {
        let kind = AccessDescriptor::new(access.size, access.store, access.depends);
        Self { address: access.address, pc: access.pc, size: access.size, gap: access.gap, kind }
    }
}

/// Address bits of a capture's words.
const ADDRESS: u64 = 0xffff_ffff_ffff;

/// A dictionary line but for the predictor.
#[inline]
fn rest(kind: AccessDescriptor, gap: u32) -> u64 {
    u64::from(kind.0) << 16 | u64::from(gap) << 24
}

/// Where a program counter's context is.
#[inline]
fn slot_of(pc: u64) -> usize {
    (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % CONTEXTS
}

/// What is remembered of an instruction.
#[derive(Debug, Clone, Copy, Default)]
struct Context {
    pc: u64,
    /// Its last access: address, and position counted through all blocks, from 1.
    address: u64,
    position: u64,
    /// Its last dictionary line and that line's code, which hold in the block they were made in.
    line: u64,
    step: i64,
    back: u16,
    class: u8,
    narrower: u8,
    code: u8,
    /// The program counter's code, in the block that began behind so many accesses, plus one.
    pc_code: u16,
    pc_block: u64,
}

/// Builds blocks of one thread.
#[derive(Debug)]
pub struct BlockBuilder {
    contexts: Box<[Context; CONTEXTS]>,
    /// The last addresses, the latest at `total % TRIED`.
    recent: [u64; TRIED],
    /// Accesses through all blocks, and when this block began.
    total: u64,
    begin: u64,
    /// Dictionary lines plus one, and their codes; zero is empty.
    slots: Vec<(u64, u8)>,
    columns: ColumnEncoder,
    again: Box<RowEncoder>,
    /// Program counters are kept.
    pcs: bool,
}

impl BlockBuilder {
    /// `pcs`: program counters are kept.
    pub fn new(pcs: bool) -> Self {
        Self {
            pcs,
            contexts: Box::new([Context::default(); CONTEXTS]),
            recent: [0; TRIED],
            total: 0,
            begin: 0,
            slots: vec![(0, 0); SLOTS],
            columns: ColumnEncoder::default(),
            again: Box::new(RowEncoder::new()),
        }
    }

    /// Accesses so far.
    pub fn len(&self) -> usize {
        (self.total - self.begin) as usize
    }

    /// Whether the block must be closed before the next access.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() >= BLOCK_ACCESSES || self.columns.values.len() >= MAX_VALUES
    }

    /// Adds an access.
    #[inline]
    pub fn push(&mut self, access: &EncodedAccess) {
        let kind = access.kind;
        self.columns.stores += u32::from(kind.is_store());
        if kind.size().is_none() {
            let at = self.len() as u64;
            put_number(&mut self.columns.odd, at - self.columns.odd_at);
            put_number(&mut self.columns.odd, u64::from(access.size));
            self.columns.odd_at = at;
        }
        let rest = rest(kind, access.gap);
        if access.pc == 0 {
            let (class, back, step) = self.nearest(access.address);
            let line = u64::from(self.columns.steps.tell(class, back, step, access.address)) | rest;
            let code = self.code(line);
            self.shape(code, line);
            if self.pcs {
                let code = self.columns.pc_code(0);
                self.columns.push_pc(code);
            }
        } else {
            let slot = slot_of(access.pc);
            self.push_known(slot, access.pc, access.address, rest);
            self.push_pc(slot);
        }
        self.total += 1;
        self.recent[(self.total % TRIED as u64) as usize] = access.address;
    }

    /// Adds a row, for which there must be space. `first` is the gap of its first access.
    #[inline]
    pub fn push_row(&mut self, words: &[u64], row: &AccessRow, first: u32) {
        self.columns.stores += row.stores;
        let mut gap = u64::from(first) << 24;
        for (place, rest) in row.places.iter().zip(&row.rests) {
            let address = words.get(usize::from(place.word)).copied().unwrap_or(0) & ADDRESS;
            let rest = rest | gap;
            gap = 0;
            if !self.push_usual(place, address, rest) {
                self.push_known(usize::from(place.slot) % CONTEXTS, place.pc, address, rest);
            }
            self.push_pc(usize::from(place.slot) % CONTEXTS);
            self.total += 1;
        }
        self.columns.push_values(words, &row.values);
        let last = row.places.iter().rev().take(TRIED);
        for (back, place) in last.enumerate() {
            let address = words.get(usize::from(place.word)).copied().unwrap_or(0) & ADDRESS;
            self.recent[((self.total - back as u64) % TRIED as u64) as usize] = address;
        }
    }

    /// Adds accesses as compilers' hooks tell them, as many as `words` begin with and there is
    /// space for; how many. `first` is the gap of the first one, all others have 1.
    #[inline]
    pub fn push_hooked(&mut self, words: &[u64], first: u32) -> usize {
        let space = BLOCK_ACCESSES - self.len().min(BLOCK_ACCESSES);
        let (mut gap, mut stores, mut done) = (first, 0, 0);
        for word in words.iter().take(space).take_while(|word| **word >> 63 == 0) {
            let (place, kind) = row::hooked(*word);
            let rest = rest(kind, gap);
            stores += u32::from(kind.is_store());
            if !self.push_usual(&place, word & ADDRESS, rest) {
                self.push_known(usize::from(place.slot) % CONTEXTS, place.pc, word & ADDRESS, rest);
            }
            self.push_pc(usize::from(place.slot) % CONTEXTS);
            self.total += 1;
            self.recent[(self.total % TRIED as u64) as usize] = word & ADDRESS;
            gap = 1;
            done += 1;
        }
        self.columns.stores += stores;
        done
    }

    /// Stores so far.
    pub fn stores(&self) -> u32 {
        self.columns.stores
    }

    /// Adds an access that is encoded like the last one of its instruction, if it is: what
    /// `push_known` does, for what is nearly always so in a loop.
    #[inline(always)]
    fn push_usual(&mut self, place: &RowAccess, address: u64, rest: u64) -> bool {
        let context = &mut self.contexts[usize::from(place.slot) % CONTEXTS];
        let here = self.total + 1;
        let step = address.wrapping_sub(context.address) as i64;
        let usual = context.pc == place.pc
            && context.position > self.begin
            && here - context.position == u64::from(context.back)
            && context.line ^ rest == context.line & 0xffff
            && context.code != ESCAPE;
        if !usual {
            return false;
        }
        let near = step == i64::from(step as i8);
        match context.line as u16 & 3 {
            class::NEAR if near => {
                self.columns.steps.near[self.columns.steps.used[0] % BLOCK_ACCESSES] = step as u8;
                self.columns.steps.used[0] += 1;
                context.narrower = 0;
            }
            class::MIDDLE
                if step == i64::from(step as i16) && (!near || context.narrower + 1 < PATIENCE) =>
            {
                self.columns.steps.middle[self.columns.steps.used[1] % BLOCK_ACCESSES] =
                    step as u16;
                self.columns.steps.used[1] += 1;
                context.narrower = if near { context.narrower + 1 } else { 0 };
            }
            _ => return false,
        }
        context.step = step;
        (context.address, context.position) = (address, here);
        self.columns.shapes[(self.total - self.begin) as usize % BLOCK_ACCESSES] = context.code;
        true
    }

    /// Adds an access of a known instruction: predicted from that one's last access in this block.
    #[inline]
    fn push_known(&mut self, slot: usize, pc: u64, address: u64, rest: u64) {
        let context = &mut self.contexts[slot];
        if context.pc != pc {
            *context = Context { pc, ..Context::default() };
        }
        let here = self.total + 1;
        let here_before = context.position > self.begin;
        let (mut chosen, mut back, mut step) = (class::WHOLE, 0, 0);
        if here_before {
            let distance = here - context.position;
            let usual = u64::from(context.back) == distance;
            context.back = distance.min(FARTHEST) as u16;
            if distance <= NEARBY || (distance <= FARTHEST && usual) {
                back = distance as usize;
                step = address.wrapping_sub(context.address) as i64;
                chosen = context.choose(step);
            }
        }
        context.step = step;
        (context.address, context.position) = (address, here);
        let (old_line, old_code) = (context.line, context.code);
        let line = u64::from(self.columns.steps.tell(chosen, back, step, address)) | rest;
        if here_before && line == old_line {
            self.shape(old_code, line);
            return;
        }
        let code = self.code(line);
        let context = &mut self.contexts[slot];
        (context.line, context.code) = (line, code);
        self.shape(code, line);
    }

    /// Class, distance and step from the nearest of the last addresses.
    fn nearest(&self, address: u64) -> (u16, usize, i64) {
        let near = (1..=TRIED.min(self.len())).min_by_key(|back| self.ago(*back).abs_diff(address));
        let found = near.map(|back| (back, address.wrapping_sub(self.ago(back)) as i64));
        match found {
            Some((back, step)) if i8::try_from(step).is_ok() => (class::NEAR, back, step),
            Some((back, step)) if i16::try_from(step).is_ok() => (class::MIDDLE, back, step),
            _ => (class::WHOLE, 0, 0),
        }
    }

    /// The address so many accesses ago.
    fn ago(&self, back: usize) -> u64 {
        self.recent[((self.total + 1 - back as u64) % TRIED as u64) as usize]
    }

    /// The code of a dictionary line, or [`ESCAPE`].
    fn code(&mut self, line: u64) -> u8 {
        let mut slot = (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % SLOTS;
        loop {
            let (have, code) = self.slots[slot];
            if have == line + 1 {
                return code;
            }
            if have == 0 {
                break;
            }
            slot = (slot + 1) % SLOTS;
        }
        if self.columns.lines.len() >= usize::from(ESCAPE) {
            return ESCAPE;
        }
        let code = self.columns.lines.len() as u8;
        self.slots[slot] = (line + 1, code);
        self.columns.lines.push(line);
        code
    }

    #[inline]
    fn shape(&mut self, code: u8, line: u64) {
        self.columns.shapes[self.len() % BLOCK_ACCESSES] = code;
        if code == ESCAPE {
            self.columns.escapes.extend_from_slice(&line.to_le_bytes()[..LINE]);
        }
    }

    /// Adds the program counter, where they are kept, of the access that was encoded with this
    /// context.
    #[inline(always)]
    fn push_pc(&mut self, slot: usize) {
        if !self.pcs {
            return;
        }
        let context = &mut self.contexts[slot];
        if context.pc_block != self.begin + 1 {
            context.pc_block = self.begin + 1;
            context.pc_code = self.columns.pc_code(context.pc);
        }
        self.columns.push_pc(context.pc_code);
    }

    /// Adds what a sampler knows of the access just added.
    pub fn push_detail(&mut self, detail: &SampleDetail) {
        self.columns.details.push(detail);
    }

    /// Adds the value of the store just added.
    pub fn push_value(&mut self, value: &[u8]) {
        self.columns.values.extend_from_slice(value);
    }

    /// Adds the time of the access just added.
    pub fn push_time(&mut self, time: u64) {
        put_number(
            &mut self.columns.times,
            zigzag(time.wrapping_sub(self.columns.time_last) as i64),
        );
        self.columns.time_last = time;
        let (low, high) = self.columns.time_range.unwrap_or((time, time));
        self.columns.time_range = Some((low.min(time), high.max(time)));
    }

    /// Time goes on by `ticks` before the next access.
    pub fn push_jump(&mut self, ticks: u64) {
        let at = self.len() as u64;
        put_number(&mut self.columns.jumps, at - self.columns.jump_at);
        put_number(&mut self.columns.jumps, ticks);
        self.columns.jump_at = at;
    }

    /// Ends the block, in exchange for columns that are empty.
    pub fn take(&mut self, mut empty: Box<ColumnEncoder>) -> Box<ColumnEncoder> {
        self.columns.count = self.len();
        self.begin = self.total;
        self.slots.fill((0, 0));
        std::mem::swap(&mut self.columns, &mut empty);
        empty
    }
}

impl Context {
    /// How to tell the step from this instruction's last address. Its usual class, unless the step
    /// does not fit or a narrower one has done for a while: to change costs more than a byte.
    #[inline]
    fn choose(&mut self, step: i64) -> u16 {
        let natural = if i8::try_from(step).is_ok() {
            class::NEAR
        } else if i16::try_from(step).is_ok() {
            class::MIDDLE
        } else if step == self.step && i32::try_from(step).is_ok() {
            return class::FAR;
        } else {
            class::WHOLE
        };
        let usual = u16::from(self.class);
        if natural >= usual {
            (self.class, self.narrower) = (natural as u8, 0);
            return natural;
        }
        self.narrower += 1;
        if self.narrower >= PATIENCE {
            (self.class, self.narrower) = (natural as u8, 0);
            return natural;
        }
        usual
    }
}
