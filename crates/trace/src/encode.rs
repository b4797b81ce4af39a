//! One thread's accesses become a block.
//!
//! Each address is predicted from an earlier one of the block: that of the same instruction where the instruction is
//! known, else the nearest of the last sixteen. What is left over after prediction is mostly constant in loops, and zstd
//! does the rest. Everything about an access but those bytes (how it was predicted, size, direction, dependence, gap) is
//! one byte that names a line of the block's dictionary, for loops repeat few such combinations.

use crate::error::TraceError;
use crate::event::{Access, Kind};
use crate::frame::{section, BLOCK_ACCESSES};
use crate::pack::{put_number, zigzag, Packer};

/// How an address is told, in the two low bits of a predictor; the others hold how many accesses back to look.
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
const MOST_VALUES: usize = 4 << 20;

/// An access whose kind is made already. To make it here would mean to read bytes together that were written one by one a
/// moment ago, which the processor does slowly: it was half the time of recording.
#[derive(Debug)]
pub struct Told {
    address: u64,
    pc: u64,
    size: u32,
    gap: u32,
    kind: Kind,
}

impl Told {
    #[inline(always)]
    pub fn new(access: &Access) -> Self {
        let kind = Kind::new(access.size, access.store, access.depends);
        Self { address: access.address, pc: access.pc, size: access.size, gap: access.gap, kind }
    }
}

/// Address bits of a capture's words.
const ADDRESS: u64 = 0xffff_ffff_ffff;

/// An access of a [`Row`]: its instruction, and which of the words holds its address.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pc: u64,
    word: u16,
    slot: u16,
}

impl Place {
    /// `pc` is not 0.
    pub fn new(pc: u64, word: u16) -> Self {
        Self { pc, word, slot: slot_of(pc) as u16 }
    }
}

/// Accesses of known instructions in a fixed order, but for their addresses. Their sizes are powers of two.
#[derive(Debug, Default)]
pub struct Row {
    places: Vec<Place>,
    /// Of each access, its dictionary line but for the predictor.
    rests: Vec<u64>,
    stores: u32,
}

impl Row {
    /// Adds an access; the first one's gap is told later and must be 0 here.
    pub fn add(&mut self, place: Place, kind: Kind, gap: u32) {
        self.places.push(place);
        self.rests.push(rest(kind, gap));
        self.stores += u32::from(kind.is_store());
    }

    /// Sets how many loads ago the value was loaded that an access's address was computed from; 15 at most.
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

/// A dictionary line but for the predictor.
#[inline]
fn rest(kind: Kind, gap: u32) -> u64 {
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
    stores: u32,
    /// Dictionary lines plus one, and their codes; zero is empty.
    slots: Vec<(u64, u8)>,
    lines: Vec<u64>,
    shapes: Box<[u8; BLOCK_ACCESSES]>,
    escapes: Vec<u8>,
    steps: Steps,
    jumps: Vec<u8>,
    jump_at: u64,
    odd: Vec<u8>,
    odd_at: u64,
    pc_list: Vec<u64>,
    pc_codes: std::collections::HashMap<u64, u16>,
    pcs: [Vec<u8>; 2],
    values: Vec<u8>,
    times: Vec<u8>,
    time_last: u64,
    /// Smallest and largest explicit time.
    pub(crate) time_range: Option<(u64, u64)>,
}

impl BlockBuilder {
    pub fn new() -> Self {
        Self {
            contexts: Box::new([Context::default(); CONTEXTS]),
            recent: [0; TRIED],
            total: 0,
            begin: 0,
            stores: 0,
            slots: vec![(0, 0); SLOTS],
            lines: Vec::new(),
            shapes: Box::new([0; BLOCK_ACCESSES]),
            escapes: Vec::new(),
            steps: Steps::new(),
            jumps: Vec::new(),
            jump_at: 0,
            odd: Vec::new(),
            odd_at: 0,
            pc_list: Vec::new(),
            pc_codes: std::collections::HashMap::new(),
            pcs: Default::default(),
            values: Vec::new(),
            times: Vec::new(),
            time_last: 0,
            time_range: None,
        }
    }

    /// Accesses so far.
    pub fn len(&self) -> usize {
        (self.total - self.begin) as usize
    }

    /// Stores among them.
    pub fn stores(&self) -> u32 {
        self.stores
    }

    /// Whether the block must be closed before the next access.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() >= BLOCK_ACCESSES || self.values.len() >= MOST_VALUES
    }

    /// Adds an access.
    #[inline]
    pub fn push(&mut self, access: &Told) {
        let kind = access.kind;
        self.stores += u32::from(kind.is_store());
        if kind.size().is_none() {
            let at = self.len() as u64;
            put_number(&mut self.odd, at - self.odd_at);
            put_number(&mut self.odd, u64::from(access.size));
            self.odd_at = at;
        }
        let rest = rest(kind, access.gap);
        if access.pc == 0 {
            let (class, back, step) = self.nearest(access.address);
            let line = u64::from(self.steps.tell(class, back, step, access.address)) | rest;
            let code = self.code(line);
            self.shape(code, line);
        } else {
            self.push_known(slot_of(access.pc), access.pc, access.address, rest);
        }
        self.total += 1;
        self.recent[(self.total % TRIED as u64) as usize] = access.address;
    }

    /// Adds a row, for which there must be room. `first` is the gap of its first access.
    #[inline]
    pub fn push_row(&mut self, words: &[u64], row: &Row, first: u32) {
        self.stores += row.stores;
        let mut gap = u64::from(first) << 24;
        for (place, rest) in row.places.iter().zip(&row.rests) {
            let address = words.get(usize::from(place.word)).copied().unwrap_or(0) & ADDRESS;
            let rest = rest | gap;
            gap = 0;
            if !self.push_usual(place, address, rest) {
                self.push_known(usize::from(place.slot) % CONTEXTS, place.pc, address, rest);
            }
            self.total += 1;
        }
        let last = row.places.iter().rev().take(TRIED);
        for (back, place) in last.enumerate() {
            let address = words.get(usize::from(place.word)).copied().unwrap_or(0) & ADDRESS;
            self.recent[((self.total - back as u64) % TRIED as u64) as usize] = address;
        }
    }

    /// Adds an access that is told like the last one of its instruction, if it is: what `push_known` does, for what is
    /// nearly always so in a loop.
    #[inline(always)]
    fn push_usual(&mut self, place: &Place, address: u64, rest: u64) -> bool {
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
                self.steps.near[self.steps.used[0] % BLOCK_ACCESSES] = step as u8;
                self.steps.used[0] += 1;
            }
            class::MIDDLE if !near && step == i64::from(step as i16) => {
                self.steps.middle[self.steps.used[1] % BLOCK_ACCESSES] = step as u16;
                self.steps.used[1] += 1;
            }
            _ => return false,
        }
        context.narrower = 0;
        context.step = step;
        (context.address, context.position) = (address, here);
        self.shapes[(self.total - self.begin) as usize % BLOCK_ACCESSES] = context.code;
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
        let line = u64::from(self.steps.tell(chosen, back, step, address)) | rest;
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
        if self.lines.len() >= usize::from(ESCAPE) {
            return ESCAPE;
        }
        let code = self.lines.len() as u8;
        self.slots[slot] = (line + 1, code);
        self.lines.push(line);
        code
    }

    #[inline]
    fn shape(&mut self, code: u8, line: u64) {
        self.shapes[self.len() % BLOCK_ACCESSES] = code;
        if code == ESCAPE {
            self.escapes.extend_from_slice(&line.to_le_bytes()[..LINE]);
        }
    }

    /// Adds the program counter of the access just added.
    pub fn push_pc(&mut self, pc: u64) {
        let next = self.pc_list.len() as u16;
        let code = *self.pc_codes.entry(pc).or_insert(next);
        if code == next {
            self.pc_list.push(pc);
        }
        self.pcs[0].push(code as u8);
        self.pcs[1].push((code >> 8) as u8);
    }

    /// Adds the value of the store just added.
    pub fn push_value(&mut self, value: &[u8]) {
        self.values.extend_from_slice(value);
    }

    /// Adds the time of the access just added.
    pub fn push_time(&mut self, time: u64) {
        put_number(&mut self.times, zigzag(time.wrapping_sub(self.time_last) as i64));
        self.time_last = time;
        let (low, high) = self.time_range.unwrap_or((time, time));
        self.time_range = Some((low.min(time), high.max(time)));
    }

    /// Time goes on by `ticks` before the next access.
    pub fn push_jump(&mut self, ticks: u64) {
        let at = self.len() as u64;
        put_number(&mut self.jumps, at - self.jump_at);
        put_number(&mut self.jumps, ticks);
        self.jump_at = at;
    }

    /// Packs the block and begins the next.
    pub fn pack(&mut self, packer: &mut Packer) -> Result<(), TraceError> {
        packer.begin();
        packer.section(section::SHAPES, &self.shapes[..self.len()])?;
        let lines: Vec<u8> = self.lines.iter().flat_map(|line| line.to_le_bytes().into_iter().take(LINE)).collect();
        packer.section(section::DICTIONARY, &lines)?;
        packer.section(section::ESCAPES, &self.escapes)?;
        self.steps.pack(packer)?;
        packer.section(section::JUMPS, &self.jumps)?;
        packer.section(section::ODD, &self.odd)?;
        let mut list = Vec::new();
        let mut last = 0u64;
        for pc in &self.pc_list {
            put_number(&mut list, zigzag(pc.wrapping_sub(last) as i64));
            last = *pc;
        }
        packer.section(section::PC_LIST, &list)?;
        for (i, plane) in self.pcs.iter().enumerate() {
            packer.section(section::PCS + i as u8, plane)?;
        }
        packer.section(section::VALUES, &self.values)?;
        packer.section(section::TIMES, &self.times)?;
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.begin = self.total;
        self.stores = 0;
        self.slots.fill((0, 0));
        self.lines.clear();
        self.pc_list.clear();
        self.pc_codes.clear();
        let flat = [&mut self.escapes, &mut self.jumps, &mut self.odd, &mut self.values, &mut self.times];
        self.pcs.iter_mut().chain(flat).for_each(Vec::clear);
        self.steps.used = [0; 4];
        (self.jump_at, self.odd_at, self.time_last) = (0, 0, 0);
        self.time_range = None;
    }
}

impl Context {
    /// How to tell the step from this instruction's last address. Its usual class, unless the step does not fit or a
    /// narrower one has done for a while: to change costs more than a byte.
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

/// Steps and whole addresses as they come, a list a class; they become byte planes when the block is packed.
#[derive(Debug)]
struct Steps {
    near: Box<[u8; BLOCK_ACCESSES]>,
    middle: Box<[u16; BLOCK_ACCESSES]>,
    far: Box<[u32; BLOCK_ACCESSES]>,
    whole: Box<[u64; BLOCK_ACCESSES]>,
    /// How many of each class.
    used: [usize; 4],
    plane: Vec<u8>,
}

impl Steps {
    fn new() -> Self {
        Self {
            near: Box::new([0; BLOCK_ACCESSES]),
            middle: Box::new([0; BLOCK_ACCESSES]),
            far: Box::new([0; BLOCK_ACCESSES]),
            whole: Box::new([0; BLOCK_ACCESSES]),
            used: [0; 4],
            plane: Vec::new(),
        }
    }

    /// Adds one; the predictor that tells it. A block never has more than there is room for.
    #[inline]
    fn tell(&mut self, class: u16, back: usize, step: i64, address: u64) -> u16 {
        let used = &mut self.used[usize::from(class & 3)];
        let at = *used % BLOCK_ACCESSES;
        *used += 1;
        match class {
            class::NEAR => self.near[at] = step as u8,
            class::MIDDLE => self.middle[at] = step as u16,
            class::FAR => self.far[at] = step as u32,
            _ => {
                self.whole[at] = address;
                return class::WHOLE;
            }
        }
        (back as u16) << 2 | class
    }

    fn pack(&mut self, packer: &mut Packer) -> Result<(), TraceError> {
        let [near, middle, far, whole] = self.used;
        packer.section(section::NEAR, &self.near[..near])?;
        let plane = &mut self.plane;
        for i in 0..2 {
            plane.clear();
            plane.extend(self.middle[..middle].iter().map(|step| (step >> (8 * i)) as u8));
            packer.section(section::MIDDLE + i, plane)?;
        }
        for i in 0..4 {
            plane.clear();
            plane.extend(self.far[..far].iter().map(|step| (step >> (8 * i)) as u8));
            packer.section(section::FAR + i, plane)?;
        }
        for i in 0..8 {
            plane.clear();
            plane.extend(self.whole[..whole].iter().map(|step| (step >> (8 * i)) as u8));
            packer.section(section::WHOLE + i, plane)?;
        }
        Ok(())
    }
}
