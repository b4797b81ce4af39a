//! Makes the code of a block: the program's instructions with the telling of their accesses between
//! them.

mod ends;
mod execute;

use crate::access::{number, operation, Access, CacheOperation};
use crate::asm::{Address, Code};
use crate::context::{at, home, RING, SCRATCH};
use crate::glue;
use crate::plan::{Kind, Plan};
use crate::ring::{head, message};
use alloc::vec::Vec;
use iced_x86::{
    Code as Op, Encoder, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind,
    Register,
};

const RCX: u8 = 1;
const RSP: u8 = 4;
const IS_WORD: u64 = 1 << 63;

/// Lies behind code that leaves the cache, which hands its address to the runtime.
#[repr(C, packed)]
#[derive(Debug, Clone, Copy)]
pub struct Link {
    /// Where the program goes on.
    pub pc: u64,
    /// Distance of the jump that can be made to go there directly; or where code goes on after the
    /// runtime's work.
    pub site: u64,
}
const LINK_BYTES: u64 = 16;

/// Where code is entered; its jumps that can be linked: where their distances stand, and where they
/// go to.
pub type Made<'a> = (u64, &'a [(u64, u64)]);

/// Where an instruction of the program is executed.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its first byte in the cache, from the block's begin.
    pub from: usize,
    pub pc: u64,
    /// Words of the block that are written before it.
    pub words: usize,
    /// Registers that hold something else meanwhile; what they held is in `Context::save`.
    pub borrowed: [Option<u8>; 2],
}

/// Makes code; its tables are kept from block to block.
pub struct Maker {
    pub code: Code,
    /// In order of their code.
    pub places: Vec<Place>,
    links: Vec<(u64, u64)>,
    encoder: Encoder,
    words: usize,
    /// Values follow stores.
    values: bool,
}

fn routine(function: unsafe extern "C" fn()) -> u64 {
    function as *const () as u64
}

/// The 64, 32, 16 or 8 bits of a general register.
fn part(register: Register, number: u8) -> Register {
    let first = match register.size() {
        8 => Register::RAX,
        4 => Register::EAX,
        2 => Register::AX,
        _ if number < 4 => Register::AL,
        _ => return Register::SPL + u32::from(number - 4),
    };
    first + u32::from(number)
}

impl Maker {
    pub fn new() -> Self {
        let code = Code { bytes: Vec::new(), base: 0 };
        Self {
            code,
            places: Vec::new(),
            links: Vec::new(),
            encoder: Encoder::new(64),
            words: 0,
            values: crate::keeps_values(),
        }
    }

    /// Makes code to lie at `base`. `before`: words that are reported whenever the block begins.
    pub fn make(
        &mut self,
        plan: &Plan,
        kind: Kind,
        block: u32,
        base: u64,
        before: &[u64],
        factory: &mut InstructionInfoFactory,
    ) -> Result<Made<'_>, &'static str> {
        self.code.bytes.clear();
        self.code.base = base;
        self.places.clear();
        self.links.clear();
        self.words = 0;
        let entry = match kind {
            Kind::Slow => self.slow(plan, factory)?,
            Kind::Repeated => self.repeated(plan, block, before)?,
            Kind::Plain => self.plain(plan, block, before, factory)?,
            Kind::Not(_) | Kind::Absent => self.leave_at_once(plan.pc),
        };
        // What is not linked yet goes through the runtime.
        for k in 0..self.links.len() {
            let (site, pc) = self.links[k];
            let stub = self.code.here();
            let distance = stub.wrapping_sub(site + 4) as u32;
            let at = (site - base) as usize;
            self.code.bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
            self.leave(routine(glue::terrace_exit_link), pc, site);
        }
        self.code.align(16);
        Ok((entry, &self.links))
    }

    /// Code that leaves the cache, with its link behind it.
    fn leave(&mut self, how: u64, pc: u64, site: u64) {
        let link = self.code.here() + 12;
        self.code.point_at(link);
        self.code.jump(None, how);
        self.code.put(&pc.to_le_bytes());
        self.code.put(&site.to_le_bytes());
        debug_assert_eq!(self.code.here(), link + LINK_BYTES);
    }

    fn leave_at_once(&mut self, pc: u64) -> u64 {
        self.code.align(16);
        let entry = self.code.here();
        // As long as what invalidation writes over.
        self.code.put(&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]);
        self.leave(routine(glue::terrace_exit_stop), pc, 0);
        entry
    }

    /// The way out for want of space, and the look whether there is some. The first instruction is
    /// of eight bytes or more: invalidation writes a jump over it.
    fn enter(&mut self, pc: u64, flags_dead: bool) -> u64 {
        let out = self.code.here();
        if !flags_dead {
            self.code.copy(RCX, SCRATCH);
        }
        self.leave(routine(glue::terrace_exit_refill), pc, 0);
        self.code.align(16);
        let entry = self.code.here();
        if flags_dead {
            self.code.compare_gs(RING, at!(limit));
            self.code.jump(Some(7), out); // ja
        } else {
            self.code.load_gs(SCRATCH, at!(minus_limit));
            self.code.lea(
                SCRATCH,
                Address { base: Some(SCRATCH), index: Some((RING, 1)), ..Address::default() },
            );
            // The uppermost byte is 0 where the limit is reached, and 255 otherwise.
            // xchg r14, rcx; bswap rcx; movzx ecx, cl
            self.code.put(&[0x4c, 0x87, 0xf1, 0x48, 0x0f, 0xc9, 0x0f, 0xb6, 0xc9]);
            let distance = out.wrapping_sub(self.code.here() + 2) as i64;
            debug_assert!(distance >= -128);
            self.code.put(&[0xe3, distance as u8]); // jrcxz
            self.code.copy(RCX, SCRATCH);
        }
        entry
    }

    /// A word that is always the same.
    fn report(&mut self, word: u64) {
        self.code.store_constant(8 * self.words as i32, word);
        self.words += 1;
    }

    fn report_begin(&mut self, block: u32, count: usize, before: &[u64]) {
        before.iter().for_each(|w| self.report(*w));
        self.report(IS_WORD | u64::from(block) | (count as u64) << 32);
    }

    /// The ring's register goes past the words written.
    fn advance(&mut self) {
        if self.words > 0 {
            let displacement = 8 * self.words as i64;
            self.code.lea(RING, Address { base: Some(RING), displacement, ..Address::default() });
        }
    }

    fn plain(
        &mut self,
        plan: &Plan,
        block: u32,
        before: &[u64],
        factory: &mut InstructionInfoFactory,
    ) -> Result<u64, &'static str> {
        let entry = self.enter(plan.pc, plan.flags_dead);
        self.report_begin(block, plan.steps.len(), before);
        for (index, step) in plan.steps.iter().enumerate() {
            if let Some(id) = step.mark {
                self.report_mark(id, step.instruction.ip());
            }
            let instruction = &step.instruction;
            let accesses = &plan.accesses[step.reported.clone()];
            let begun = self.words;
            for access in accesses {
                self.report_access(access, index);
            }
            if let Some(operation) = step.cache {
                self.report_cache(operation, instruction.ip());
            }
            let raw = &plan.bytes[step.at..step.at + instruction.len()];
            let ends = instruction.flow_control() != FlowControl::Next;
            if ends {
                self.report_return_address(accesses, begun, instruction.next_ip());
                self.end(instruction, raw, factory)?;
            } else {
                self.execute(instruction, raw, factory)?;
                self.report_values(accesses, begun);
                if index + 1 == plan.steps.len() {
                    self.advance();
                    self.go_to(instruction.next_ip());
                }
            }
        }
        Ok(entry)
    }

    /// A jump to the code for `pc`.
    fn go_to(&mut self, pc: u64) {
        let site = self.code.jump_to_patch(None, 0);
        self.links.push((site, pc));
    }

    fn place(&mut self, pc: u64, borrowed: [Option<u8>; 2]) {
        let (from, words) = (self.code.bytes.len(), self.words);
        self.places.push(Place { from, pc, words, borrowed });
    }

    /// The word of a load or store.
    fn report_access(&mut self, access: &Access, index: usize) {
        let tag = access.tag(index);
        let displacement = 8 * self.words as i32;
        self.words += 1;
        let Access { at: address, fs, .. } = *access;
        if address.base.is_none() && address.index.is_none() && !fs {
            let value = address.displacement as u64 & 0xffff_ffff_ffff | u64::from(tag) << 48;
            self.code.constant(SCRATCH, value);
            self.code.store_word(displacement, SCRATCH);
            if self.values && access.store {
                self.code.constant(SCRATCH, address.displacement as u64);
                self.keep_address();
            }
            return;
        }
        self.compute(address, fs);
        self.code.store_word(displacement, SCRATCH);
        self.code.store_tag(displacement, tag);
        if self.values && access.store {
            self.keep_address();
        }
    }

    /// The word of a store's value holds its address until the instruction is executed, which may
    /// change the registers that the address comes from.
    fn keep_address(&mut self) {
        self.code.store_word(8 * self.words as i32, SCRATCH);
        self.words += 1;
    }

    /// The values of these accesses' stores, whose words begin with the one of this number.
    fn report_values(&mut self, accesses: &[Access], begun: usize) {
        if !self.values {
            return;
        }
        let mut word = begun;
        for access in accesses {
            word += 1;
            if access.store {
                self.code.load_word(SCRATCH, 8 * word as i32);
                self.code.load_value(access.log2);
                self.code.store_word(8 * word as i32, SCRATCH);
                word += 1;
            }
        }
    }

    /// The value that a call stores, which is known before.
    fn report_return_address(&mut self, accesses: &[Access], begun: usize, next: u64) {
        let loads = accesses.iter().take_while(|a| !a.store).count();
        if self.values && loads < accesses.len() {
            self.code.store_constant(8 * (begun + loads + 1) as i32, next);
        }
    }

    /// A mark. Those of `terrace_crash.h` that stand for flushes carry an address in `rax`.
    fn report_mark(&mut self, id: u8, pc: u64) {
        let which = match id {
            0xc4 => operation::WRITE_BACK,
            0xc5 => operation::FLUSH,
            0xc6 => operation::WRITE_BACK_ALL,
            _ => {
                self.report(head(message::MARK, 1));
                self.report(u64::from(id));
                return;
            }
        };
        if self.values {
            let address = Address { base: Some(0), ..Address::default() };
            self.report_cache((which, Some((address, false))), pc);
        }
    }

    /// An operation on caches, the address that it names and its own.
    fn report_cache(&mut self, (which, address): CacheOperation, pc: u64) {
        self.report(head(message::CACHE, 3));
        self.report(which);
        match address {
            Some((address, fs)) => {
                if address.base.is_none() && address.index.is_none() && !fs {
                    self.code.constant(SCRATCH, address.displacement as u64);
                } else {
                    self.compute(address, fs);
                }
                self.code.store_word(8 * self.words as i32, SCRATCH);
                self.words += 1;
            }
            None => self.report(0),
        }
        self.report(pc);
    }

    /// An address into the scratch register, by means that leave the flags alone.
    fn compute(&mut self, address: Address, fs: bool) {
        let stolen = |r: u8| r == RING || r == SCRATCH;
        let Address { base, index, displacement, .. } = address;
        let kept = [base.filter(|r| stolen(*r)), index.map(|i| i.0).filter(|r| stolen(*r))];
        match (kept, fs) {
            ([None, None], false) => self.code.lea(SCRATCH, address),
            ([Some(r), None], false) => {
                self.code.load_gs(SCRATCH, home(r));
                self.code.lea(SCRATCH, Address { base: Some(SCRATCH), ..address });
            }
            ([None, Some(r)], false) => {
                self.code.load_gs(SCRATCH, home(r));
                self.code
                    .lea(SCRATCH, Address { index: index.map(|(_, s)| (SCRATCH, s)), ..address });
            }
            ([None, None], true) => {
                self.code.load_gs(SCRATCH, at!(fs_base));
                let plus = |base, index, displacement| Address {
                    base,
                    index,
                    displacement,
                    narrow: false,
                };
                let first = base.map(|b| (b, 1)).or(index);
                self.code.lea(SCRATCH, plus(Some(SCRATCH), first, displacement));
                if base.is_some() && index.is_some() {
                    self.code.lea(SCRATCH, plus(Some(SCRATCH), index, 0));
                }
            }
            // Two of them are in memory: another register is borrowed.
            _ => {
                let free = |r: &u8| {
                    *r != RSP && base != Some(*r) && index.map(|i| i.0) != Some(*r) && !stolen(*r)
                };
                let other = (0..16).find(free).unwrap_or(RCX);
                self.code.store_gs(at!(save), other);
                let mut sum = Address { base: None, index: None, displacement, narrow: false };
                if let Some((r, scale)) = index {
                    let r = if stolen(r) {
                        self.code.load_gs(SCRATCH, home(r));
                        SCRATCH
                    } else {
                        r
                    };
                    sum.index = Some((r, scale));
                    self.code.lea(SCRATCH, sum);
                } else {
                    self.code.constant(SCRATCH, displacement as u64);
                }
                let add = |code: &mut Code, r| {
                    code.lea(
                        SCRATCH,
                        Address { base: Some(SCRATCH), index: Some((r, 1)), ..Address::default() },
                    );
                };
                match base {
                    // The stack pointer can be a base only, but then it is none that is in memory.
                    Some(RSP) => self.code.lea(
                        SCRATCH,
                        Address {
                            base: Some(RSP),
                            index: Some((SCRATCH, 1)),
                            ..Address::default()
                        },
                    ),
                    Some(r) if stolen(r) => {
                        self.code.load_gs(other, home(r));
                        add(&mut self.code, other);
                    }
                    Some(r) => add(&mut self.code, r),
                    None => {}
                }
                if fs {
                    self.code.load_gs(other, at!(fs_base));
                    add(&mut self.code, other);
                }
                self.code.load_gs(other, at!(save));
            }
        }
    }

    /// An instruction before which the runtime tells its accesses.
    fn slow(
        &mut self,
        plan: &Plan,
        factory: &mut InstructionInfoFactory,
    ) -> Result<u64, &'static str> {
        let step = &plan.steps[0];
        let entry = self.enter(plan.pc, false);
        let site = self.code.here() + 12 + LINK_BYTES;
        self.leave(routine(glue::terrace_exit_slow), plan.pc, site);
        let raw = &plan.bytes[step.at..step.at + step.instruction.len()];
        self.execute(&step.instruction, raw, factory)?;
        self.go_to(step.instruction.next_ip());
        Ok(entry)
    }
}

/// Puts another register in the place of one.
fn replace(instruction: &mut Instruction, old: u8, new: u8) {
    for i in 0..instruction.op_count() {
        let register = instruction.op_register(i);
        if instruction.op_kind(i) == OpKind::Register && number(register) == Some(old) {
            instruction.set_op_register(i, part(register, new));
        }
    }
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    if number(base) == Some(old) {
        instruction.set_memory_base(part(base, new));
    }
    if number(index) == Some(old) {
        instruction.set_memory_index(part(index, new));
    }
}
