//! Instructions whose addresses depend on more than general registers: gathers and scatters, bit
//! strings, `xlat`, and those that save or restore the processor's state.

use crate::access::{number, pieces, width, Access};
use crate::asm::Address;
use crate::cache::{border_words, CACHE};
use crate::context::{Context, RAX, RDX};
use alloc::vec::Vec;
use core::arch::x86_64::__cpuid_count;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
    UsedMemory,
};

/// Tells the block of one instruction at the program's counter, and its accesses.
pub fn report(context: &mut Context) {
    let mut bytes = [0; 16];
    let got = crate::sys::read_memory(context.rip, &mut bytes);
    let instruction =
        Decoder::with_ip(64, &bytes[..got], context.rip, DecoderOptions::NONE).decode();
    if matches!(instruction.mnemonic(), iced_x86::Mnemonic::Popf | iced_x86::Mnemonic::Popfq) {
        let flags = crate::sys::read_word(context.registers[crate::context::RSP]).unwrap_or(0);
        if flags & crate::signal::WATCHED_FLAGS != 0 {
            crate::leave::leave(context, crate::signal::WATCHED_WHY);
        }
    }
    let (number, border) =
        CACHE.about(context.rip).map_or((0, 0), |(number, _, border)| (number, border));
    border_words(border).iter().for_each(|w| context.put(*w));
    context.put(1 << 63 | u64::from(number) | 1 << 32);
    let mut factory = InstructionInfoFactory::new();
    let mut all = Vec::new();
    for stores in [false, true] {
        for memory in factory.info(&instruction).used_memory() {
            let reported = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => !stores,
                OpAccess::Write | OpAccess::CondWrite => stores,
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => true,
                _ => false,
            };
            if reported {
                add(context, &instruction, memory, stores, &mut all);
            }
        }
    }
    for access in &all {
        let address = access.at.displacement as u64 & 0xffff_ffff_ffff;
        context.put(address | u64::from(access.tag(0)) << 48);
        if access.store && crate::keeps_values() {
            // The instruction comes after this: what is there before it is all that can be read.
            context.put(value_at(address, 1 << access.log2));
        }
    }
}

/// Up to eight bytes of the program's memory; zero where they cannot be read.
fn value_at(address: u64, bytes: usize) -> u64 {
    let mut value = [0; 8];
    let _ = crate::sys::read_memory(address, &mut value[..bytes.min(8)]);
    u64::from_le_bytes(value)
}

fn add(
    context: &Context,
    instruction: &Instruction,
    memory: &UsedMemory,
    store: bool,
    all: &mut Vec<Access>,
) {
    let mut put = |address: u64, bytes: usize| {
        pieces(
            Address { displacement: address as i64, ..Address::default() },
            false,
            bytes,
            store,
            if store && crate::keeps_values() { 3 } else { 6 },
            all,
        );
    };
    if memory.index().is_vector_register() {
        let element = memory.memory_size().size().max(1);
        for lane in 0..lanes(instruction, memory) {
            if taken(context, instruction, lane, element) {
                let index = |r, lane, size| value(context, r, lane, size);
                if let Some(address) = memory.virtual_address(lane, index) {
                    put(address, element);
                }
            }
        }
        return;
    }
    let Some(mut address) =
        memory.virtual_address(0, |r, lane, size| value(context, r, lane, size))
    else {
        return;
    };
    // A bit string: the bit's number says how far from the operand its word lies.
    if matches!(instruction.op1_kind(), OpKind::Register)
        && instruction.op0_kind() == OpKind::Memory
    {
        use iced_x86::Mnemonic::{Bt, Btc, Btr, Bts};
        if matches!(instruction.mnemonic(), Bt | Btc | Btr | Bts) {
            let bits = width(memory) as i64 * 8;
            let bit = value(context, instruction.op1_register(), 0, 0).unwrap_or(0) as i64;
            let bit = bit << (64 - bits) >> (64 - bits);
            address = address.wrapping_add_signed(bit.div_euclid(bits) * bits / 8);
        }
    }
    let bytes = width(memory);
    put(address, if bytes == 0 { state_bytes(context, instruction) } else { bytes });
}

/// Elements of a gather or scatter: as many as the smaller of its indices and values has.
fn lanes(instruction: &Instruction, memory: &UsedMemory) -> usize {
    let indices = memory.index().size() / memory.vsib_size().max(4) as usize;
    let element = memory.memory_size().size().max(1);
    let values = (0..instruction.op_count())
        .filter(|i| {
            instruction.op_kind(*i) == OpKind::Register
                && instruction.op_register(*i).is_vector_register()
        })
        .map(|i| instruction.op_register(i).size() / element);
    values.min().map_or(indices, |v| v.min(indices))
}

/// Whether the mask has this element taken.
fn taken(context: &Context, instruction: &Instruction, lane: usize, element: usize) -> bool {
    if instruction.op_mask() != Register::None {
        let bits = value(context, instruction.op_mask(), 0, 0).unwrap_or(u64::MAX);
        return bits >> lane & 1 == 1;
    }
    // AVX2: the sign of the element of the third operand.
    let bits = value(context, instruction.op2_register(), lane, element).unwrap_or(u64::MAX);
    bits >> (element * 8 - 1) & 1 == 1
}

/// What a register holds: of vector registers, an element.
fn value(context: &Context, register: Register, lane: usize, size: usize) -> Option<u64> {
    if let Some(n) = number(register) {
        let all = context.registers[usize::from(n)];
        return Some(match register.size() {
            8 => all,
            4 => all & 0xffff_ffff,
            2 => all & 0xffff,
            _ => all & 0xff,
        });
    }
    if register.is_segment_register() {
        return Some(if register == Register::FS { context.fs_base } else { 0 });
    }
    if register.is_k() {
        let at = context.xsave + component(5)? + 8 * register.number() as u64;
        // SAFETY: within the area that was saved on the way here.
        return Some(unsafe { *(at as *const u64) });
    }
    if register.is_vector_register() {
        let (n, byte) = (register.number() as u64, (lane * size) as u64);
        let offset = match (n, byte) {
            (16.., _) => component(7)? + (n - 16) * 64 + byte,
            (_, 0..=15) => 160 + n * 16 + byte,
            (_, 16..=31) => component(2)? + n * 16 + byte - 16,
            _ => component(6)? + n * 32 + byte - 32,
        };
        // SAFETY: as above; elements are 4 or 8 bytes and aligned.
        let all = unsafe { core::ptr::read_unaligned((context.xsave + offset) as *const u64) };
        return Some(if size == 4 { i64::from(all as i32) as u64 } else { all });
    }
    None
}

/// Where a part of the processor's state lies in what is saved.
fn component(which: u32) -> Option<u64> {
    let found = __cpuid_count(0xd, which);
    (found.eax > 0).then_some(u64::from(found.ebx))
}

/// Bytes that an instruction of the `xsave` family touches at most: the state asked for.
fn state_bytes(context: &Context, instruction: &Instruction) -> usize {
    use iced_x86::Mnemonic::{
        Xrstor, Xrstor64, Xsave, Xsave64, Xsavec, Xsavec64, Xsaveopt, Xsaveopt64,
    };
    let compact = matches!(instruction.mnemonic(), Xsavec | Xsavec64);
    if !compact
        && !matches!(
            instruction.mnemonic(),
            Xrstor | Xrstor64 | Xsave | Xsave64 | Xsaveopt | Xsaveopt64
        )
    {
        return 0;
    }
    let asked = context.registers[RAX] & 0xffff_ffff | context.registers[RDX] << 32;
    let asked = asked & crate::signal::features();
    let mut end = 576u64;
    for which in 2..63 {
        if asked >> which & 1 == 1 {
            let found = __cpuid_count(0xd, which);
            end = if compact {
                let aligned = if found.ecx & 2 != 0 { end.next_multiple_of(64) } else { end };
                aligned + u64::from(found.eax)
            } else {
                end.max(u64::from(found.ebx) + u64::from(found.eax))
            };
        }
    }
    end as usize
}
