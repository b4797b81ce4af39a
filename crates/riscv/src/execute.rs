//! A hart: the state of one hardware thread, and what each instruction does to it.

mod blocks;
mod float;
mod integer;

pub use blocks::DecodeCache;

use crate::decode::{Instruction, Op};
use crate::memory::{HartMemory, MemoryFault};
use integer::integer;

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

/// Where a hart is within a block.
#[derive(Debug, Clone, Copy)]
struct Position {
    pc: u64,
    instret: u64,
}

impl Position {
    #[inline(always)]
    fn note_load<O: AccessObserver>(self, observer: &mut O, address: u64, size: u8, value: u64) {
        let Self { pc, instret } = self;
        observer.access(ObservedAccess { pc, address, size, store: false, instret, value });
    }

    #[inline(always)]
    fn note_store<O: AccessObserver>(self, observer: &mut O, address: u64, size: u8) {
        let Self { pc, instret } = self;
        observer.access(ObservedAccess { pc, address, size, store: true, instret, value: 0 });
    }
}

/// How a block ended without a trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockEnd {
    /// The program counter is that of the next block.
    Elsewhere,
    /// So, and what was decoded may be out of date.
    CodeChanged,
}

/// Nobody is shown accesses.
impl AccessObserver for () {
    #[inline(always)]
    fn access(&mut self, _: ObservedAccess) {}
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
    /// Who answers reads of `cycle`, `time` and `instret`.
    pub counters: CounterSource,
    /// Whether instructions on floating-point registers are legal.
    pub has_floats: bool,
    /// Address and value that `lr` saw.
    reservation: Option<(u64, u64)>,
}

/// Who answers reads of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterSource {
    /// The hart: all three count its instructions, and the guest sees no clock of the host.
    Instructions,
    /// Whoever handles the trap as an illegal instruction.
    Trap,
}

impl Hart {
    /// All zeros, about to execute at `pc`.
    #[must_use]
    pub const fn new(pc: u64) -> Self {
        Self {
            x: [0; 32],
            f: [0; 32],
            pc,
            fflags: 0,
            frm: 0,
            instret: 0,
            counters: CounterSource::Instructions,
            has_floats: true,
            reservation: None,
        }
    }

    /// Lets the next `sc` fail, as after a trap.
    pub fn drop_reservation(&mut self) {
        self.reservation = None;
    }

    /// Executes at most `budget` instructions, or until a trap.
    pub fn run<M: HartMemory, O: AccessObserver>(
        &mut self,
        memory: &mut M,
        code: &mut DecodeCache,
        observer: &mut O,
        budget: u64,
    ) -> Trap {
        let end = self.instret.saturating_add(budget);
        while self.instret < end {
            let block = match code.block(self.pc, memory) {
                Ok(block) => block,
                Err(fault) => return Trap::Memory(fault),
            };
            let granted = usize::try_from(end - self.instret).unwrap_or(usize::MAX);
            let part = block.get(..granted).unwrap_or(block);
            match self.run_block(part, memory, observer) {
                Ok(BlockEnd::Elsewhere) => {}
                Ok(BlockEnd::CodeChanged) => code.clear(),
                Err(trap) => return trap,
            }
        }
        Trap::Budget
    }

    #[inline(always)]
    fn set(&mut self, rd: u8, value: u64) {
        self.x[usize::from(rd) & 31] = value;
        self.x[0] = 0;
    }

    #[inline(always)]
    fn load<const N: usize, M: HartMemory, O: AccessObserver>(
        &self,
        i: Instruction,
        at: Position,
        memory: &mut M,
        observer: &mut O,
    ) -> Result<[u8; N], Trap> {
        let address = self.x[usize::from(i.rs1) & 31].wrapping_add(i.immediate as i64 as u64);
        let bytes = memory.load(address)?;
        let mut value = [0; 8];
        value[..N].copy_from_slice(&bytes);
        at.note_load(observer, address, N as u8, u64::from_le_bytes(value));
        Ok(bytes)
    }

    #[inline(always)]
    fn store<const N: usize, M: HartMemory, O: AccessObserver>(
        &self,
        i: Instruction,
        at: Position,
        bytes: [u8; N],
        memory: &mut M,
        observer: &mut O,
    ) -> Result<(), Trap> {
        let address = self.x[usize::from(i.rs1) & 31].wrapping_add(i.immediate as i64 as u64);
        memory.store(address, bytes)?;
        at.note_store(observer, address, N as u8);
        Ok(())
    }

    /// Executes a block from its beginning to its end or to a branch that is taken.
    fn run_block<M: HartMemory, O: AccessObserver>(
        &mut self,
        block: &[Instruction],
        memory: &mut M,
        observer: &mut O,
    ) -> Result<BlockEnd, Trap> {
        let mut at = Position { pc: self.pc, instret: self.instret };
        for &i in block {
            let (a, b) = (self.x[usize::from(i.rs1) & 31], self.x[usize::from(i.rs2) & 31]);
            let immediate = i.immediate as i64 as u64;
            let next = at.pc.wrapping_add(i.length.into());
            // Leaves the block for another place.
            macro_rules! leave {
                ($to:expr) => {{
                    self.pc = $to;
                    self.instret = at.instret + 1;
                    return Ok(BlockEnd::Elsewhere);
                }};
            }
            macro_rules! branch {
                ($taken:expr) => {{
                    if $taken {
                        leave!(at.pc.wrapping_add(immediate));
                    }
                    at = Position { pc: next, instret: at.instret + 1 };
                    continue;
                }};
            }
            macro_rules! attempt {
                ($result:expr) => {
                    match $result {
                        Ok(value) => value,
                        Err(trap) => {
                            (self.pc, self.instret) = (at.pc, at.instret);
                            return Err(trap);
                        }
                    }
                };
            }
            macro_rules! load {
                ($type:ty) => {
                    <$type>::from_le_bytes(attempt!(self.load(i, at, memory, observer)))
                };
            }
            macro_rules! store {
                ($value:expr) => {{
                    attempt!(self.store(i, at, $value.to_le_bytes(), memory, observer));
                    at = Position { pc: next, instret: at.instret + 1 };
                    continue;
                }};
            }
            let value = match i.op {
                Op::Lui => immediate,
                Op::Auipc => at.pc.wrapping_add(immediate),
                Op::Jal => {
                    self.set(i.rd, next);
                    leave!(at.pc.wrapping_add(immediate))
                }
                Op::Jalr => {
                    self.set(i.rd, next);
                    leave!(a.wrapping_add(immediate) & !1)
                }
                Op::Beq => branch!(a == b),
                Op::Bne => branch!(a != b),
                Op::Blt => branch!((a as i64) < b as i64),
                Op::Bge => branch!(a as i64 >= b as i64),
                Op::Bltu => branch!(a < b),
                Op::Bgeu => branch!(a >= b),
                Op::Lb => load!(i8) as u64,
                Op::Lh => load!(i16) as u64,
                Op::Lw => load!(i32) as u64,
                Op::Ld => load!(u64),
                Op::Lbu => load!(u8).into(),
                Op::Lhu => load!(u16).into(),
                Op::Lwu => load!(u32).into(),
                Op::Sb => store!((b as u8)),
                Op::Sh => store!((b as u16)),
                Op::Sw => store!((b as u32)),
                Op::Sd => store!(b),
                Op::Addi => a.wrapping_add(immediate),
                Op::Add => a.wrapping_add(b),
                Op::Andi => a & immediate,
                Op::Slli => a << (immediate & 63),
                Op::Srli => a >> (immediate & 63),
                Op::Addiw => a.wrapping_add(immediate) as i32 as u64,
                Op::Addw => a.wrapping_add(b) as i32 as u64,
                _ => match integer(i.op, a, b, immediate) {
                    Some(value) => value,
                    None => {
                        attempt!(self.execute_rare(i, at, memory, observer));
                        at = Position { pc: next, instret: at.instret + 1 };
                        continue;
                    }
                },
            };
            self.set(i.rd, value);
            at = Position { pc: next, instret: at.instret + 1 };
        }
        (self.pc, self.instret) = (at.pc, at.instret);
        Ok(match block.last() {
            Some(Instruction { op: Op::FenceI, .. }) => BlockEnd::CodeChanged,
            _ => BlockEnd::Elsewhere,
        })
    }

    /// What is neither integer arithmetic nor control flow.
    #[inline(never)]
    fn execute_rare<M: HartMemory, O: AccessObserver>(
        &mut self,
        i: Instruction,
        at: Position,
        memory: &mut M,
        observer: &mut O,
    ) -> Result<(), Trap> {
        if !self.has_floats && i.op.uses_floats() {
            return Err(Trap::Illegal);
        }
        match i.op {
            Op::Ecall => Err(Trap::EnvironmentCall),
            Op::Ebreak => Err(Trap::Breakpoint),
            Op::Illegal => Err(Trap::Illegal),
            Op::Fence | Op::FenceI => Ok(()),
            Op::Csrrw | Op::Csrrs | Op::Csrrc | Op::Csrrwi | Op::Csrrsi | Op::Csrrci => {
                self.csr(i, at.instret)
            }
            Op::Flw => {
                let low = u32::from_le_bytes(self.load(i, at, memory, observer)?);
                self.f[usize::from(i.rd)] = u64::from(low) | !0 << 32;
                Ok(())
            }
            Op::Fld => {
                self.f[usize::from(i.rd)] = u64::from_le_bytes(self.load(i, at, memory, observer)?);
                Ok(())
            }
            Op::Fsw => {
                let low = self.f[usize::from(i.rs2)] as u32;
                self.store(i, at, low.to_le_bytes(), memory, observer)
            }
            Op::Fsd => {
                let bits = self.f[usize::from(i.rs2)];
                self.store(i, at, bits.to_le_bytes(), memory, observer)
            }
            _ if i.op as u8 >= Op::FmaddS as u8 => self.float(i),
            _ => self.atomic(i, at, memory, observer),
        }
    }

    fn csr(&mut self, i: Instruction, instret: u64) -> Result<(), Trap> {
        let old = match i.immediate {
            1..=3 if !self.has_floats => return Err(Trap::Illegal),
            1 => u64::from(self.fflags),
            2 => u64::from(self.frm),
            3 => u64::from(self.frm << 5 | self.fflags),
            0xc00..=0xc02 if self.counters == CounterSource::Instructions => instret,
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

    fn atomic<M: HartMemory, O: AccessObserver>(
        &mut self,
        i: Instruction,
        at: Position,
        memory: &mut M,
        observer: &mut O,
    ) -> Result<(), Trap> {
        let address = self.x[usize::from(i.rs1)];
        let wide = i.rounding == 3;
        let size = if wide { 8 } else { 4 };
        if address % size != 0 {
            return Err(Trap::Misaligned(address));
        }
        let read = |memory: &mut M| -> Result<u64, Trap> {
            Ok(if wide {
                u64::from_le_bytes(memory.load(address)?)
            } else {
                i32::from_le_bytes(memory.load(address)?) as u64
            })
        };
        let write = |memory: &mut M, value: u64| -> Result<(), Trap> {
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
                at.note_store(observer, address, size as u8);
            }
            self.set(i.rd, u64::from(!succeeds));
            return Ok(());
        }
        let old = read(memory)?;
        if matches!(i.op, Op::LrW | Op::LrD) {
            self.reservation = Some((address, old));
            at.note_load(observer, address, size as u8, old);
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
        at.note_load(observer, address, size as u8, old);
        at.note_store(observer, address, size as u8);
        self.set(i.rd, old);
        Ok(())
    }
}
