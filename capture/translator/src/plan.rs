//! What a block of the program's code consists of, before code is made for it.

use crate::access::{accesses, cache_operation, Access, CacheOperation, How};
use crate::sys;
use alloc::vec::Vec;
use iced_x86::{
    Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
};

/// Instructions of a block at most, and bytes that are read for them.
const MOST: usize = 64;
const WINDOW: usize = 1024;
/// Words that a block's accesses may take at most.
const MOST_WORDS: usize = 160;
/// The same where values follow.
const MOST_WORDS_WITH_VALUES: usize = 100;

/// An instruction and what is said of it.
pub struct Step {
    pub instruction: Instruction,
    /// Where its bytes lie in [`Plan::bytes`].
    pub at: usize,
    /// Where its accesses lie in [`Plan::accesses`].
    pub reported: core::ops::Range<usize>,
    /// The number of a mark, if it is one.
    pub mark: Option<u8>,
    /// What it does to caches.
    pub cache: Option<CacheOperation>,
}

/// How a block is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// One instruction with a repetition prefix.
    Repeated,
    /// One instruction whose addresses the runtime computes.
    Slow,
    /// What stands there cannot be translated.
    Not(&'static str),
    /// Nothing is there.
    Absent,
}

/// A block's instructions.
#[derive(Default)]
pub struct Plan {
    pub pc: u64,
    pub bytes: Vec<u8>,
    pub steps: Vec<Step>,
    pub accesses: Vec<Access>,
    /// Arithmetic flags are overwritten before anybody reads them.
    pub flags_dead: bool,
    some: Vec<Access>,
}

const ARITHMETIC: u32 = 0x3f;

impl Plan {
    /// Where the block ends.
    pub fn end(&self) -> u64 {
        self.steps.last().map_or(self.pc, |s| s.instruction.next_ip())
    }

    /// Reads the code at `pc`. A block ends before the addresses `borders`, other than its own.
    pub fn read(
        &mut self,
        pc: u64,
        borders: [u64; 2],
        factory: &mut InstructionInfoFactory,
    ) -> Kind {
        self.pc = pc;
        self.steps.clear();
        self.accesses.clear();
        self.bytes.resize(WINDOW, 0);
        let got = sys::read_memory(pc, &mut self.bytes);
        self.bytes.truncate(got);
        if got == 0 {
            return Kind::Absent;
        }
        let mut decoder = Decoder::with_ip(64, &self.bytes, pc, DecoderOptions::NONE);
        let values = crate::keeps_values();
        let most_words = if values { MOST_WORDS_WITH_VALUES } else { MOST_WORDS };
        let mut pending = ARITHMETIC;
        self.flags_dead = false;
        while decoder.can_decode() && self.steps.len() < MOST {
            let at = decoder.position();
            let instruction = decoder.decode();
            let first = self.steps.is_empty();
            let ip = instruction.ip();
            if instruction.is_invalid()
                && decoder.last_error() == iced_x86::DecoderError::NoMoreBytes
            {
                return if first { Kind::Absent } else { Kind::Plain };
            }
            if !first && borders.contains(&ip) {
                break;
            }
            let repeated = is_repeated(&instruction);
            let how = match repeated {
                Some(Err(why)) => How::Not(why),
                Some(Ok(())) => {
                    // Of one step: what all of them touch is known to the processor only.
                    let mut once = instruction;
                    once.set_has_rep_prefix(false);
                    once.set_has_repne_prefix(false);
                    accesses(&once, factory, values, &mut self.some)
                }
                _ => accesses(&instruction, factory, values, &mut self.some),
            };
            let alone = repeated.is_some() || how != How::InLine;
            if alone && !first {
                break;
            }
            let from = self.accesses.len();
            if from + self.some.len() > most_words {
                break;
            }
            self.accesses.append(&mut self.some);
            if pending & instruction.rflags_read() != 0 {
                pending = u32::MAX;
            } else if pending <= ARITHMETIC && !may_leave_flags(&instruction) {
                pending &= !instruction.rflags_modified();
                self.flags_dead |= pending == 0;
            }
            let mark = mark_of(&self.bytes[at..at + instruction.len()]);
            let flow = instruction.flow_control();
            let cache = if values { cache_operation(&instruction, factory) } else { None };
            let reported = from..self.accesses.len();
            self.steps.push(Step { instruction, at, reported, mark, cache });
            match how {
                How::Not(why) => return Kind::Not(why),
                How::Slow => return Kind::Slow,
                How::InLine if repeated.is_some() => return Kind::Repeated,
                How::InLine => {}
            }
            if flow != FlowControl::Next {
                break;
            }
        }
        Kind::Plain
    }
}

/// Whether it is a string instruction that repeats, and why it cannot be translated if so.
fn is_repeated(instruction: &Instruction) -> Option<Result<(), &'static str>> {
    if !instruction.is_string_instruction() {
        return None;
    }
    use Mnemonic::*;
    let known = matches!(
        instruction.mnemonic(),
        Movsb
            | Movsw
            | Movsd
            | Movsq
            | Stosb
            | Stosw
            | Stosd
            | Stosq
            | Lodsb
            | Lodsw
            | Lodsd
            | Lodsq
            | Cmpsb
            | Cmpsw
            | Cmpsd
            | Cmpsq
            | Scasb
            | Scasw
            | Scasd
            | Scasq
    );
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let narrow = (0..instruction.op_count()).any(|i| {
        use iced_x86::OpKind::*;
        matches!(instruction.op_kind(i), MemorySegESI | MemorySegSI | MemoryESEDI | MemoryESDI)
    });
    if !known {
        Some(Err("it talks to a port"))
    } else if narrow {
        Some(Err("it is a string instruction with narrow addresses"))
    } else if repeats {
        Some(Ok(()))
    } else {
        None
    }
}

/// Shifts by a count of 0 leave all flags as they are.
fn may_leave_flags(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(instruction.mnemonic(), Shl | Shr | Sar | Sal | Rol | Ror | Rcl | Rcr | Shld | Shrd)
}

/// As the plugin has it: a no-op of seven bytes that carries a number.
fn mark_of(code: &[u8]) -> Option<u8> {
    match *code {
        [0x0f, 0x1f, 0x80, id, 0xa0, 0x44, 0x7e] => Some(id).filter(|id| *id != 0),
        _ => None,
    }
}

/// Whether an instruction asks the kernel for something.
pub fn is_syscall(instruction: &Instruction) -> bool {
    instruction.code() == Op::Syscall
}
