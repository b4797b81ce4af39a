//! Which memory an instruction loads and stores, as words will tell it.

use crate::asm::Address;
use alloc::vec::Vec;
use iced_x86::{
    Code as Op, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register, UsedMemory,
};

/// A load or store, or a piece of one that is no power of two wide.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    pub at: Address,
    /// The address is meant from where FS points.
    pub fs: bool,
    pub log2: u8,
    pub store: bool,
}

impl Access {
    /// Bits 48 to 63 of its word.
    pub fn tag(&self, index: usize) -> u16 {
        u16::from(self.log2) | u16::from(self.store) << 3 | (index as u16 & 0x1ff) << 4
    }
}

/// How an instruction is to be reported.
#[derive(Debug, PartialEq, Eq)]
pub enum How {
    /// Its addresses can be computed by `lea`.
    InLine,
    /// They depend on what vector registers, masks or bit numbers hold.
    Slow,
    /// It cannot be translated, and this is why.
    Not(&'static str),
}

/// What an instruction does to caches or to the order of stores, as
/// `terrace_trace::CacheOperation` numbers it.
pub mod operation {
    pub const WRITE_BACK: u64 = 1;
    pub const FLUSH: u64 = 2;
    pub const FLUSH_WEAK: u64 = 3;
    pub const STORE_FENCE: u64 = 4;
    pub const FENCE: u64 = 5;
    pub const NON_TEMPORAL: u64 = 6;
    pub const WRITE_BACK_ALL: u64 = 7;
}

/// An operation of [`operation`], and the address that it names, if any.
pub type CacheOperation = (u64, Option<(Address, bool)>);

/// The operation on caches that this instruction is, besides its accesses.
pub fn cache_operation(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> Option<CacheOperation> {
    use iced_x86::Mnemonic::*;
    let which = match instruction.mnemonic() {
        Clwb => operation::WRITE_BACK,
        Clflush => operation::FLUSH,
        Clflushopt => operation::FLUSH_WEAK,
        Sfence => return Some((operation::STORE_FENCE, None)),
        Mfence => return Some((operation::FENCE, None)),
        Movnti | Movntdq | Movntps | Movntpd | Movntq | Vmovntdq | Vmovntps | Vmovntpd => {
            operation::NON_TEMPORAL
        }
        // An exchange with memory locks the bus without a prefix.
        Xchg if instruction.op0_kind() == OpKind::Memory => return Some((operation::FENCE, None)),
        _ if instruction.has_lock_prefix() => return Some((operation::FENCE, None)),
        _ => return None,
    };
    let memory = *factory.info(instruction).used_memory().first()?;
    Some((which, Some(address_of(instruction, &memory)?)))
}

/// Number of a general register, if it is one.
pub fn number(register: Register) -> Option<u8> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number() as u8)
}

/// Loads, in order, and then stores, of one instruction. `all` is emptied first. `values`: stores
/// come in pieces that one word holds.
pub fn accesses(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
    values: bool,
    all: &mut Vec<Access>,
) -> How {
    all.clear();
    let mut how = special(instruction);
    if let How::Not(_) = how {
        return how;
    }
    if untold(instruction) {
        return How::InLine;
    }
    let info = factory.info(instruction);
    for stores in [false, true] {
        for memory in info.used_memory() {
            let reported = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => !stores,
                OpAccess::Write | OpAccess::CondWrite => stores,
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => true,
                _ => false,
            };
            if !reported {
                continue;
            }
            let plain = address_of(instruction, memory);
            match (plain, width(memory)) {
                (Some((at, fs)), bytes @ 1..) => {
                    pieces(at, fs, bytes, stores, if values && stores { 3 } else { 6 }, all);
                }
                _ => how = How::Slow,
            }
            if memory.segment() == Register::GS {
                return How::Not("it uses the GS register, which the translator needs");
            }
        }
    }
    how
}

/// Bytes of an access; 0 where only the processor's state tells.
pub fn width(memory: &UsedMemory) -> usize {
    let size = memory.memory_size();
    if size.is_broadcast() {
        size.element_size()
    } else {
        size.size()
    }
}

/// Cuts what is no power of two wide, or wider than `1 << widest` bytes, into pieces.
pub fn pieces(
    at: Address,
    fs: bool,
    bytes: usize,
    store: bool,
    widest: u32,
    all: &mut Vec<Access>,
) {
    let mut done = 0;
    while done < bytes {
        let log2 = (bytes - done).ilog2().min(widest);
        let at = Address { displacement: at.displacement.wrapping_add(done as i64), ..at };
        all.push(Access { at, fs, log2: log2 as u8, store });
        done += 1 << log2;
    }
}

fn address_of(instruction: &Instruction, memory: &UsedMemory) -> Option<(Address, bool)> {
    let mut displacement = memory.displacement() as i64;
    let fs = memory.segment() == Register::FS;
    let base = match memory.base() {
        Register::None => None,
        Register::RIP | Register::EIP => {
            displacement = instruction.memory_displacement64() as i64;
            None
        }
        other => Some(number(other).filter(|_| other.size() >= 4)?),
    };
    let index = match memory.index() {
        Register::None => None,
        other => Some((number(other).filter(|_| other.size() >= 4)?, memory.scale() as u8)),
    };
    let narrow = memory.base().size() == 4 || memory.index().size() == 4;
    // The address of what is popped into memory is computed after the stack pointer has moved.
    if instruction.code() == Op::Pop_rm64 && memory.access() == OpAccess::Write && base == Some(4) {
        displacement += 8;
    }
    Some((Address { base, index, displacement, narrow }, fs))
}

/// What only looks like an access.
fn untold(instruction: &Instruction) -> bool {
    use Op::*;
    matches!(
        instruction.code(),
        Clflush_m8
            | Clflushopt_m8
            | Clwb_m8
            | Prefetchw_m8
            | Prefetchwt1_m8
            | Prefetch_m8
            | Prefetchnta_m8
            | Prefetcht0_m8
            | Prefetcht1_m8
            | Prefetcht2_m8
    )
}

fn special(instruction: &Instruction) -> How {
    use Op::*;
    match instruction.code() {
        INVALID => How::Not("it is no instruction that is known here"),
        Bt_rm16_r16 | Bt_rm32_r32 | Bt_rm64_r64 | Bts_rm16_r16 | Bts_rm32_r32 | Bts_rm64_r64
        | Btr_rm16_r16 | Btr_rm32_r32 | Btr_rm64_r64 | Btc_rm16_r16 | Btc_rm32_r32
        | Btc_rm64_r64
            if instruction.op0_kind() == iced_x86::OpKind::Memory =>
        {
            How::Slow
        }
        Wrgsbase_r32 | Wrgsbase_r64 | Rdgsbase_r32 | Rdgsbase_r64 | Swapgs => {
            How::Not("it uses the GS register, which the translator needs")
        }
        // The runtime looks which flags they set.
        Popfq | Popfw => How::Slow,
        Xbegin_rel16 | Xbegin_rel32 => How::Not("it begins a transaction"),
        Int_imm8 => How::Not("it makes a system call of 32-bit programs"),
        Enterq_imm16_imm8 if instruction.immediate8_2nd() != 0 => {
            How::Not("it enters a nested frame")
        }
        _ if instruction.is_jmp_far()
            || instruction.is_jmp_far_indirect()
            || instruction.is_call_far()
            || instruction.is_call_far_indirect()
            || matches!(
                instruction.code(),
                Retfq | Retfd | Retfq_imm16 | Retfd_imm16 | Iretq | Iretd | Sysenter
            ) =>
        {
            How::Not("it changes the code segment")
        }
        _ => How::InLine,
    }
}
