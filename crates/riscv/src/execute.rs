//! A hart: the state of one hardware thread, and what each instruction does to it.

mod float;

use crate::decode::{Instruction, Op};
use crate::memory::{GuestMemory, MemoryFault, PAGE_BYTES};
use std::collections::HashMap;

/// Why a hart stopped. The program counter is that of the instruction, which has had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// The instructions granted are used up; the program counter is that of the next one.
    #[error("instruction budget used up")]
    Budget,
    /// `ecall`.
    #[error("environment call")]
    EnvironmentCall,
    /// `ebreak`.
    #[error("breakpoint")]
    Breakpoint,
    /// Not an instruction, or with a reserved operand.
    #[error("illegal instruction")]
    Illegal,
    /// A refused access.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// An atomic access that is not a multiple of its size.
    #[error("misaligned atomic access at {0:#x}")]
    Misaligned(u64),
}

/// Who is shown each load and store of data.
pub trait AccessObserver {
    /// One access of `size` bytes; `instret` counts the hart's instructions before this one.
    fn access(&mut self, access: ObservedAccess);
}

/// A load or store as it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedAccess {
    /// Address of the instruction.
    pub pc: u64,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u8,
    /// Whether it wrote.
    pub store: bool,
    /// Instructions that the hart retired before this one.
    pub instret: u64,
    /// The bytes that a load brings, zero-extended; 0 for a store.
    pub value: u64,
}

/// Nobody is shown accesses.
impl AccessObserver for () {
    #[inline(always)]
    fn access(&mut self, _: ObservedAccess) {}
}

/// Decoded instructions, by page.
#[derive(Debug, Default)]
pub struct DecodeCache {
    pages: Vec<Box<[Instruction; SLOTS]>>,
    index: HashMap<u64, usize>,
}

/// Places in a page where an instruction can begin.
const SLOTS: usize = PAGE_BYTES as usize / 2;
/// Pages of decoded code kept, 24 KiB each; past it, all are decoded anew.
const MOST_CODE_PAGES: usize = 8192;

impl DecodeCache {
    /// Forgets all, after code was changed or unmapped.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.index.clear();
    }

    fn slot(&mut self, page: u64) -> usize {
        if let Some(&slot) = self.index.get(&page) {
            return slot;
        }
        if self.pages.len() >= MOST_CODE_PAGES {
            self.clear();
        }
        self.pages.push(Box::new([Instruction::ILLEGAL; SLOTS]));
        self.index.insert(page, self.pages.len() - 1);
        self.pages.len() - 1
    }
}

/// The state of one hardware thread in user mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hart {
    /// Integer registers; `x[0]` is zero.
    pub x: [u64; 32],
    /// Floating-point registers, narrow numbers NaN-boxed.
    pub f: [u64; 32],
    /// Program counter.
    pub pc: u64,
    /// Accrued exceptions.
    pub fflags: u8,
    /// Rounding mode, three bits.
    pub frm: u8,
    /// Instructions retired.
    pub instret: u64,
    /// Address and value that `lr` saw.
    reservation: Option<(u64, u64)>,
}

impl Hart {
    /// All zeros, about to execute at `pc`.
    #[must_use]
    pub const fn new(pc: u64) -> Self {
        Self { x: [0; 32], f: [0; 32], pc, fflags: 0, frm: 0, instret: 0, reservation: None }
    }

    /// Lets the next `sc` fail, as after a trap.
    pub fn drop_reservation(&mut self) {
        self.reservation = None;
    }

    /// Executes at most `budget` instructions, or until a trap.
    pub fn run<O: AccessObserver>(
        &mut self,
        memory: &mut GuestMemory,
        code: &mut DecodeCache,
        observer: &mut O,
        budget: u64,
    ) -> Trap {
        let end = self.instret.saturating_add(budget);
        loop {
            let page = self.pc / PAGE_BYTES;
            let slot = code.slot(page);
            while self.pc / PAGE_BYTES == page {
                if self.instret >= end {
                    return Trap::Budget;
                }
                let at = (self.pc % PAGE_BYTES) as usize / 2;
                let mut instruction = code.pages[slot][at];
                if instruction.op == Op::Illegal {
                    instruction = match memory.fetch(self.pc) {
                        Ok(word) => Instruction::decode(word),
                        Err(fault) => return Trap::Memory(fault),
                    };
                    code.pages[slot][at] = instruction;
                }
                if let Err(trap) = self.execute(instruction, memory, observer) {
                    return trap;
                }
                self.instret += 1;
                if instruction.op == Op::FenceI {
                    code.clear();
                    break;
                }
            }
        }
    }

    #[inline(always)]
    fn set(&mut self, rd: u8, value: u64) {
        self.x[usize::from(rd) & 31] = value;
        self.x[0] = 0;
    }

    #[inline(always)]
    fn note_load<O: AccessObserver>(&self, observer: &mut O, address: u64, size: u8, value: u64) {
        let (pc, instret) = (self.pc, self.instret);
        observer.access(ObservedAccess { pc, address, size, store: false, instret, value });
    }

    #[inline(always)]
    fn note_store<O: AccessObserver>(&self, observer: &mut O, address: u64, size: u8) {
        let (pc, instret) = (self.pc, self.instret);
        observer.access(ObservedAccess { pc, address, size, store: true, instret, value: 0 });
    }

    #[inline(always)]
    fn load<const N: usize, O: AccessObserver>(
        &self,
        i: Instruction,
        memory: &mut GuestMemory,
        observer: &mut O,
    ) -> Result<[u8; N], Trap> {
        let address = self.x[usize::from(i.rs1) & 31].wrapping_add(i.immediate as i64 as u64);
        let bytes = memory.load(address)?;
        let mut value = [0; 8];
        value[..N].copy_from_slice(&bytes);
        self.note_load(observer, address, N as u8, u64::from_le_bytes(value));
        Ok(bytes)
    }

    #[inline(always)]
    fn store<const N: usize, O: AccessObserver>(
        &self,
        i: Instruction,
        bytes: [u8; N],
        memory: &mut GuestMemory,
        observer: &mut O,
    ) -> Result<(), Trap> {
        let address = self.x[usize::from(i.rs1) & 31].wrapping_add(i.immediate as i64 as u64);
        memory.store(address, bytes)?;
        self.note_store(observer, address, N as u8);
        Ok(())
    }

    /// Executes one instruction, program counter included.
    #[inline(always)]
    fn execute<O: AccessObserver>(
        &mut self,
        i: Instruction,
        memory: &mut GuestMemory,
        observer: &mut O,
    ) -> Result<(), Trap> {
        let (a, b) = (self.x[usize::from(i.rs1) & 31], self.x[usize::from(i.rs2) & 31]);
        let immediate = i.immediate as i64 as u64;
        let mut next = self.pc.wrapping_add(i.length.into());
        let target = self.pc.wrapping_add(immediate);
        let value = match i.op {
            Op::Lui => immediate,
            Op::Auipc => target,
            Op::Jal => std::mem::replace(&mut next, target),
            Op::Jalr => std::mem::replace(&mut next, a.wrapping_add(immediate) & !1),
            Op::Beq | Op::Bne | Op::Blt | Op::Bge | Op::Bltu | Op::Bgeu => {
                let taken = match i.op {
                    Op::Beq => a == b,
                    Op::Bne => a != b,
                    Op::Blt => (a as i64) < b as i64,
                    Op::Bge => a as i64 >= b as i64,
                    Op::Bltu => a < b,
                    _ => a >= b,
                };
                self.pc = if taken { target } else { next };
                return Ok(());
            }
            Op::Lb => i8::from_le_bytes(self.load(i, memory, observer)?) as u64,
            Op::Lh => i16::from_le_bytes(self.load(i, memory, observer)?) as u64,
            Op::Lw => i32::from_le_bytes(self.load(i, memory, observer)?) as u64,
            Op::Ld => u64::from_le_bytes(self.load(i, memory, observer)?),
            Op::Lbu => u8::from_le_bytes(self.load(i, memory, observer)?).into(),
            Op::Lhu => u16::from_le_bytes(self.load(i, memory, observer)?).into(),
            Op::Lwu => u32::from_le_bytes(self.load(i, memory, observer)?).into(),
            Op::Sb | Op::Sh | Op::Sw | Op::Sd => {
                match i.op {
                    Op::Sb => self.store(i, (b as u8).to_le_bytes(), memory, observer)?,
                    Op::Sh => self.store(i, (b as u16).to_le_bytes(), memory, observer)?,
                    Op::Sw => self.store(i, (b as u32).to_le_bytes(), memory, observer)?,
                    _ => self.store(i, b.to_le_bytes(), memory, observer)?,
                }
                self.pc = next;
                return Ok(());
            }
            Op::Addi => a.wrapping_add(immediate),
            Op::Add => a.wrapping_add(b),
            Op::Andi => a & immediate,
            Op::Slli => a << (immediate & 63),
            Op::Srli => a >> (immediate & 63),
            Op::Addiw => a.wrapping_add(immediate) as i32 as u64,
            Op::Addw => a.wrapping_add(b) as i32 as u64,
            Op::Fence | Op::FenceI => {
                self.pc = next;
                return Ok(());
            }
            _ => match integer(i.op, a, b, immediate) {
                Some(value) => value,
                None => {
                    self.execute_rare(i, memory, observer)?;
                    self.pc = next;
                    return Ok(());
                }
            },
        };
        self.set(i.rd, value);
        self.pc = next;
        Ok(())
    }

    /// What is neither integer arithmetic nor control flow.
    #[inline(never)]
    fn execute_rare<O: AccessObserver>(
        &mut self,
        i: Instruction,
        memory: &mut GuestMemory,
        observer: &mut O,
    ) -> Result<(), Trap> {
        match i.op {
            Op::Ecall => Err(Trap::EnvironmentCall),
            Op::Ebreak => Err(Trap::Breakpoint),
            Op::Illegal => Err(Trap::Illegal),
            Op::Csrrw | Op::Csrrs | Op::Csrrc | Op::Csrrwi | Op::Csrrsi | Op::Csrrci => self.csr(i),
            Op::Flw => {
                let low = u32::from_le_bytes(self.load(i, memory, observer)?);
                self.f[usize::from(i.rd)] = u64::from(low) | !0 << 32;
                Ok(())
            }
            Op::Fld => {
                self.f[usize::from(i.rd)] = u64::from_le_bytes(self.load(i, memory, observer)?);
                Ok(())
            }
            Op::Fsw => {
                let low = self.f[usize::from(i.rs2)] as u32;
                self.store(i, low.to_le_bytes(), memory, observer)
            }
            Op::Fsd => {
                let bits = self.f[usize::from(i.rs2)];
                self.store(i, bits.to_le_bytes(), memory, observer)
            }
            _ if i.op as u8 >= Op::FmaddS as u8 => self.float(i),
            _ => self.atomic(i, memory, observer),
        }
    }

    fn csr(&mut self, i: Instruction) -> Result<(), Trap> {
        let old = match i.immediate {
            1 => u64::from(self.fflags),
            2 => u64::from(self.frm),
            3 => u64::from(self.frm << 5 | self.fflags),
            // cycle, time and instret all count instructions: the guest sees no clock of the host.
            0xc00..=0xc02 => self.instret,
            _ => return Err(Trap::Illegal),
        };
        let register = matches!(i.op, Op::Csrrw | Op::Csrrs | Op::Csrrc);
        let operand = if register { self.x[usize::from(i.rs1)] } else { i.rs1.into() };
        let new = match i.op {
            Op::Csrrw | Op::Csrrwi => Some(operand),
            _ if i.rs1 == 0 => None,
            Op::Csrrs | Op::Csrrsi => Some(old | operand),
            _ => Some(old & !operand),
        };
        if let Some(new) = new {
            match i.immediate {
                1 => self.fflags = new as u8 & 31,
                2 => self.frm = new as u8 & 7,
                3 => (self.fflags, self.frm) = (new as u8 & 31, (new >> 5) as u8 & 7),
                _ => return Err(Trap::Illegal),
            }
        }
        self.set(i.rd, old);
        Ok(())
    }

    fn atomic<O: AccessObserver>(
        &mut self,
        i: Instruction,
        memory: &mut GuestMemory,
        observer: &mut O,
    ) -> Result<(), Trap> {
        let address = self.x[usize::from(i.rs1)];
        let wide = i.rounding == 3;
        let size = if wide { 8 } else { 4 };
        if address % size != 0 {
            return Err(Trap::Misaligned(address));
        }
        let read = |memory: &mut GuestMemory| -> Result<u64, Trap> {
            Ok(if wide {
                u64::from_le_bytes(memory.load(address)?)
            } else {
                i32::from_le_bytes(memory.load(address)?) as u64
            })
        };
        let write = |memory: &mut GuestMemory, value: u64| -> Result<(), Trap> {
            if wide {
                memory.store(address, value.to_le_bytes())?;
            } else {
                memory.store(address, (value as u32).to_le_bytes())?;
            }
            Ok(())
        };
        let operand = self.x[usize::from(i.rs2)];
        let operand = if wide { operand } else { operand as i32 as u64 };
        if matches!(i.op, Op::ScW | Op::ScD) {
            let seen = self.reservation.take();
            let succeeds = match seen {
                Some((reserved, value)) => reserved == address && read(memory)? == value,
                None => false,
            };
            if succeeds {
                write(memory, operand)?;
                self.note_store(observer, address, size as u8);
            }
            self.set(i.rd, u64::from(!succeeds));
            return Ok(());
        }
        let old = read(memory)?;
        if matches!(i.op, Op::LrW | Op::LrD) {
            self.reservation = Some((address, old));
            self.note_load(observer, address, size as u8, old);
            self.set(i.rd, old);
            return Ok(());
        }
        let new = match i.op {
            Op::AmoswapW | Op::AmoswapD => operand,
            Op::AmoaddW | Op::AmoaddD => old.wrapping_add(operand),
            Op::AmoxorW | Op::AmoxorD => old ^ operand,
            Op::AmoorW | Op::AmoorD => old | operand,
            Op::AmoandW | Op::AmoandD => old & operand,
            Op::AmominW | Op::AmominD => (old as i64).min(operand as i64) as u64,
            Op::AmomaxW | Op::AmomaxD => (old as i64).max(operand as i64) as u64,
            // Sign-extended words keep their unsigned order.
            Op::AmominuW | Op::AmominuD => old.min(operand),
            Op::AmomaxuW | Op::AmomaxuD => old.max(operand),
            _ => return Err(Trap::Illegal),
        };
        write(memory, new)?;
        self.note_load(observer, address, size as u8, old);
        self.note_store(observer, address, size as u8);
        self.set(i.rd, old);
        Ok(())
    }
}

/// Word arithmetic: the low halves, the result sign-extended.
#[inline(always)]
fn word(a: u64, b: u64, operation: impl Fn(i32, i32) -> i32) -> u64 {
    operation(a as i32, b as i32) as u64
}

/// Integer arithmetic of I, M, Zba and Zbb; `None` for other operations.
#[inline(always)]
fn integer(op: Op, a: u64, b: u64, immediate: u64) -> Option<u64> {
    let (sa, sb) = (a as i64, b as i64);
    let amount = immediate as u32;
    Some(match op {
        Op::Slti => u64::from(sa < immediate as i64),
        Op::Sltiu => u64::from(a < immediate),
        Op::Xori => a ^ immediate,
        Op::Ori => a | immediate,
        Op::Srai => (sa >> (amount & 63)) as u64,
        Op::Slliw => word(a, b, |a, _| a.wrapping_shl(amount)),
        Op::Srliw => word(a, b, |a, _| (a as u32).wrapping_shr(amount) as i32),
        Op::Sraiw => word(a, b, |a, _| a.wrapping_shr(amount)),
        Op::Sub => a.wrapping_sub(b),
        Op::Sll => a << (b & 63),
        Op::Slt => u64::from(sa < sb),
        Op::Sltu => u64::from(a < b),
        Op::Xor => a ^ b,
        Op::Srl => a >> (b & 63),
        Op::Sra => (sa >> (b & 63)) as u64,
        Op::Or => a | b,
        Op::And => a & b,
        Op::Subw => word(a, b, i32::wrapping_sub),
        Op::Sllw => word(a, b, |a, b| a.wrapping_shl(b as u32)),
        Op::Srlw => word(a, b, |a, b| (a as u32).wrapping_shr(b as u32) as i32),
        Op::Sraw => word(a, b, |a, b| a.wrapping_shr(b as u32)),
        Op::Mul => a.wrapping_mul(b),
        Op::Mulh => ((i128::from(sa) * i128::from(sb)) >> 64) as u64,
        Op::Mulhsu => ((i128::from(sa) * i128::from(b)) >> 64) as u64,
        Op::Mulhu => ((u128::from(a) * u128::from(b)) >> 64) as u64,
        Op::Div if b == 0 => u64::MAX,
        Op::Div => sa.wrapping_div(sb) as u64,
        Op::Divu => a.checked_div(b).unwrap_or(u64::MAX),
        Op::Rem if b == 0 => a,
        Op::Rem => sa.wrapping_rem(sb) as u64,
        Op::Remu => a.checked_rem(b).unwrap_or(a),
        Op::Mulw => word(a, b, i32::wrapping_mul),
        Op::Divw => word(a, b, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) }),
        Op::Divuw => word(a, b, |a, b| (a as u32).checked_div(b as u32).map_or(-1, |q| q as i32)),
        Op::Remw => word(a, b, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        Op::Remuw => word(a, b, |a, b| (a as u32).checked_rem(b as u32).map_or(a, |r| r as i32)),
        _ => return bit_manipulation(op, a, b, amount),
    })
}

/// Zba and Zbb.
fn bit_manipulation(op: Op, a: u64, b: u64, amount: u32) -> Option<u64> {
    let low = u64::from(a as u32);
    let shifted_add = |base: u64, shift: u32| (base << shift).wrapping_add(b);
    Some(match op {
        Op::Xnor => !(a ^ b),
        Op::Orn => a | !b,
        Op::Andn => a & !b,
        Op::Sh1add => shifted_add(a, 1),
        Op::Sh2add => shifted_add(a, 2),
        Op::Sh3add => shifted_add(a, 3),
        Op::Sh1addUw => shifted_add(low, 1),
        Op::Sh2addUw => shifted_add(low, 2),
        Op::Sh3addUw => shifted_add(low, 3),
        Op::AddUw => low.wrapping_add(b),
        Op::SlliUw => low << (amount & 63),
        Op::Min => (a as i64).min(b as i64) as u64,
        Op::Max => (a as i64).max(b as i64) as u64,
        Op::Minu => a.min(b),
        Op::Maxu => a.max(b),
        Op::Rol => a.rotate_left(b as u32 & 63),
        Op::Ror => a.rotate_right(b as u32 & 63),
        Op::Rori => a.rotate_right(amount & 63),
        Op::Rolw => word(a, b, |a, b| a.rotate_left(b as u32 & 31)),
        Op::Rorw => word(a, b, |a, b| a.rotate_right(b as u32 & 31)),
        Op::Roriw => word(a, b, |a, _| a.rotate_right(amount & 31)),
        Op::Clz => a.leading_zeros().into(),
        Op::Ctz => a.trailing_zeros().into(),
        Op::Cpop => a.count_ones().into(),
        Op::Clzw => (a as u32).leading_zeros().into(),
        Op::Ctzw => (a as u32).trailing_zeros().into(),
        Op::Cpopw => (a as u32).count_ones().into(),
        Op::SextB => a as i8 as u64,
        Op::SextH => a as i16 as u64,
        Op::ZextH => a & 0xffff,
        Op::Rev8 => a.swap_bytes(),
        Op::OrcB => u64::from_le_bytes(a.to_le_bytes().map(|byte| if byte == 0 { 0 } else { 255 })),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_words_stay_within_words() {
        assert_eq!(integer(Op::Ctzw, 1 << 43, 0, 0), Some(32));
        assert_eq!(integer(Op::Ctzw, 1 << 43 | 8, 0, 0), Some(3));
        assert_eq!(integer(Op::Clzw, 1 << 43 | 1, 0, 0), Some(31));
    }
}
