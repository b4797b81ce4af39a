//! A block's accesses as columns, before they are packed.

use super::{class, RowValue, LINE};
use crate::error::TraceError;
use crate::event::SampleDetail;
use crate::frame::{section, BLOCK_ACCESSES};
use crate::pack::{put_number, zigzag, Packer};
use std::collections::HashMap;

/// See the module. Its buffers, of some 500 KiB, are used again and again.
#[derive(Debug)]
pub struct ColumnEncoder {
    /// Accesses, set when the block is complete, and stores among them.
    pub count: usize,
    pub stores: u32,
    pub lines: Vec<u64>,
    pub shapes: Box<[u8; BLOCK_ACCESSES]>,
    pub escapes: Vec<u8>,
    pub steps: Steps,
    pub jumps: Vec<u8>,
    pub jump_at: u64,
    pub odd: Vec<u8>,
    pub odd_at: u64,
    pub pc_list: Vec<u64>,
    pub pc_codes: HashMap<u64, u16>,
    pub pcs: [Vec<u8>; 2],
    pub values: Vec<u8>,
    pub times: Vec<u8>,
    pub time_last: u64,
    pub details: DetailColumns,
    /// Smallest and largest explicit time.
    pub time_range: Option<(u64, u64)>,
}

impl Default for ColumnEncoder {
    fn default() -> Self {
        Self {
            count: 0,
            stores: 0,
            lines: Vec::new(),
            shapes: Box::new([0; BLOCK_ACCESSES]),
            escapes: Vec::new(),
            steps: Steps::new(),
            jumps: Vec::new(),
            jump_at: 0,
            odd: Vec::new(),
            odd_at: 0,
            pc_list: Vec::new(),
            pc_codes: HashMap::new(),
            pcs: Default::default(),
            values: Vec::new(),
            times: Vec::new(),
            time_last: 0,
            details: DetailColumns::default(),
            time_range: None,
        }
    }
}

impl ColumnEncoder {
    /// The code of a program counter.
    pub fn pc_code(&mut self, pc: u64) -> u16 {
        let next = self.pc_list.len() as u16;
        let code = *self.pc_codes.entry(pc).or_insert(next);
        if code == next {
            self.pc_list.push(pc);
        }
        code
    }

    /// Adds an access's program counter.
    #[inline(always)]
    pub fn push_pc(&mut self, code: u16) {
        self.pcs[0].push(code as u8);
        self.pcs[1].push((code >> 8) as u8);
    }

    /// Adds what the stores of a row wrote.
    #[inline]
    pub fn push_values(&mut self, words: &[u64], values: &[RowValue]) {
        for value in values {
            let word = words.get(usize::from(value.word)).copied().unwrap_or(0).to_le_bytes();
            match value.bytes {
                8 => self.values.extend_from_slice(&word),
                bytes => self.values.extend_from_slice(&word[..usize::from(bytes).min(8)]),
            }
        }
    }

    /// Packs them.
    pub fn pack(&mut self, packer: &mut Packer) -> Result<(), TraceError> {
        packer.begin();
        packer.section(section::SHAPES, &self.shapes[..self.count])?;
        let lines: Vec<u8> =
            self.lines.iter().flat_map(|line| line.to_le_bytes().into_iter().take(LINE)).collect();
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
        self.details.pack(packer)
    }

    /// Empties them.
    pub fn clear(&mut self) {
        (self.count, self.stores) = (0, 0);
        self.lines.clear();
        self.pc_list.clear();
        self.pc_codes.clear();
        let flat =
            [&mut self.escapes, &mut self.jumps, &mut self.odd, &mut self.values, &mut self.times];
        self.pcs.iter_mut().chain(flat).for_each(Vec::clear);
        self.steps.used = [0; 4];
        (self.jump_at, self.odd_at, self.time_last) = (0, 0, 0);
        self.time_range = None;
        self.details.clear();
    }
}

/// What a sampler knows of each access, as columns.
#[derive(Debug, Default)]
pub struct DetailColumns {
    latencies: Vec<u8>,
    source_list: Vec<u8>,
    source_codes: HashMap<u64, u64>,
    sources: Vec<u8>,
    cpus: Vec<u8>,
}

impl DetailColumns {
    /// Adds those of one access.
    pub fn push(&mut self, detail: &SampleDetail) {
        put_number(&mut self.latencies, u64::from(detail.latency_cycles));
        let next = self.source_codes.len() as u64;
        let code = *self.source_codes.entry(detail.source.0).or_insert(next);
        if code == next {
            self.source_list.extend_from_slice(&detail.source.0.to_le_bytes());
        }
        put_number(&mut self.sources, code);
        put_number(&mut self.cpus, u64::from(detail.cpu.wrapping_add(1)));
    }

    fn pack(&self, packer: &mut Packer) -> Result<(), TraceError> {
        packer.section(section::LATENCIES, &self.latencies)?;
        packer.section(section::SOURCE_LIST, &self.source_list)?;
        packer.section(section::SOURCES, &self.sources)?;
        packer.section(section::CPUS, &self.cpus)
    }

    fn clear(&mut self) {
        [&mut self.latencies, &mut self.source_list, &mut self.sources, &mut self.cpus]
            .into_iter()
            .for_each(Vec::clear);
        self.source_codes.clear();
    }
}

/// Steps and whole addresses as they come, a list a class; they become byte planes when the block
/// is packed.
#[derive(Debug)]
pub struct Steps {
    pub near: Box<[u8; BLOCK_ACCESSES]>,
    pub middle: Box<[u16; BLOCK_ACCESSES]>,
    far: Box<[u32; BLOCK_ACCESSES]>,
    pub whole: Box<[u64; BLOCK_ACCESSES]>,
    /// How many of each class.
    pub used: [usize; 4],
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

    /// Adds one; the predictor that tells it. A block never has more than there is space for.
    #[inline]
    pub fn tell(&mut self, class: u16, back: usize, step: i64, address: u64) -> u16 {
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
