//! Decoded code: straight runs of instructions, found by the address that they begin at.

use crate::decode::{Instruction, Op};
use crate::memory::{HartMemory, MemoryFault, PAGE_BYTES};
use std::collections::{BTreeSet, HashMap};

/// Instructions of a block at most. Fewer cost look-ups in long loops; more decode what is jumped
/// over.
const MOST_INSTRUCTIONS: usize = 64;
/// Blocks kept, 800 bytes each at most; past it, all are decoded anew.
const MOST_BLOCKS: usize = 1 << 18;
/// Entries of the table in front of the map; the loops of large programs fit.
const RECENT: usize = 1 << 13;
/// `ebreak`.
const EBREAK: u32 = 0x0010_0073;
/// What no block begins at.
const NOWHERE: u64 = u64::MAX;

/// Decoded instructions, by block: straight runs that are left at the end or by a branch.
#[derive(Debug, Default)]
pub struct DecodeCache {
    blocks: Vec<Box<[Instruction]>>,
    index: HashMap<u64, u32>,
    /// Address and number of a block, by the low bits of the address.
    recent: Vec<(u64, u32)>,
    /// Where blocks end by `ebreak` instead of what is there.
    breakpoints: BTreeSet<u64>,
}

impl DecodeCache {
    /// Forgets all, after code was changed or unmapped.
    pub fn clear(&mut self) {
        if !self.blocks.is_empty() {
            self.blocks.clear();
            self.index.clear();
            self.recent.fill((NOWHERE, 0));
        }
    }

    /// Where the hart traps with [`Trap::Breakpoint`](super::Trap::Breakpoint) before what is there
    /// is executed. Memory keeps its bytes.
    #[must_use]
    pub fn breakpoints(&self) -> &BTreeSet<u64> {
        &self.breakpoints
    }

    /// Sets all breakpoints; those that there were.
    pub fn set_breakpoints(&mut self, at: BTreeSet<u64>) -> BTreeSet<u64> {
        self.clear();
        std::mem::replace(&mut self.breakpoints, at)
    }

    /// The block at a program counter, which is never empty.
    #[inline(always)]
    pub(super) fn block<M: HartMemory>(
        &mut self,
        pc: u64,
        memory: &mut M,
    ) -> Result<&[Instruction], MemoryFault> {
        let at = memory.code_address(pc)?;
        let number = match self.recent.get(at as usize / 2 % RECENT) {
            Some((address, number)) if *address == at => *number,
            _ => self.find(pc, at, memory)?,
        };
        Ok(self.blocks.get(number as usize).map_or(&[], |block| &**block))
    }

    #[cold]
    fn find<M: HartMemory>(
        &mut self,
        pc: u64,
        at: u64,
        memory: &mut M,
    ) -> Result<u32, MemoryFault> {
        if self.blocks.len() >= MOST_BLOCKS {
            self.clear();
        }
        self.recent.resize(RECENT, (NOWHERE, 0));
        let number = match self.index.get(&at) {
            Some(&number) => number,
            None => {
                let (block, kept) = decode_block(pc, memory, &self.breakpoints)?;
                let number = self.blocks.len() as u32;
                self.blocks.push(block.into_boxed_slice());
                if !kept {
                    return Ok(number);
                }
                self.index.insert(at, number);
                number
            }
        };
        self.recent[at as usize / 2 % RECENT] = (at, number);
        Ok(number)
    }
}

/// Decodes a block, and tells whether it may be kept: an instruction that lies in two pages is a
/// block of its own, decoded each time, since either page may be mapped anew.
fn decode_block<M: HartMemory>(
    pc: u64,
    memory: &mut M,
    breakpoints: &BTreeSet<u64>,
) -> Result<(Vec<Instruction>, bool), MemoryFault> {
    if breakpoints.contains(&pc) {
        return Ok((vec![Instruction::decode(EBREAK)], true));
    }
    let mut block = Vec::new();
    let mut at = pc;
    while block.len() < MOST_INSTRUCTIONS && at / PAGE_BYTES == pc / PAGE_BYTES {
        let word = match memory.fetch(at) {
            Ok(word) => word,
            Err(_) if !block.is_empty() => break,
            Err(fault) => return Err(fault),
        };
        let instruction = Instruction::decode(word);
        let next = at.wrapping_add(instruction.length.into());
        if next.wrapping_sub(1) / PAGE_BYTES != pc / PAGE_BYTES {
            if block.is_empty() {
                return Ok((vec![instruction], false));
            }
            break;
        }
        block.push(instruction);
        if ends_block(instruction.op) {
            break;
        }
        at = next;
        if breakpoints.contains(&at) {
            break;
        }
    }
    Ok((block, true))
}

/// Whether what follows is elsewhere, or may be different afterwards.
const fn ends_block(op: Op) -> bool {
    matches!(op, Op::Jal | Op::Jalr | Op::Illegal | Op::Ecall | Op::Ebreak | Op::FenceI)
}
