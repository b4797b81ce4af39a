//! The instructions that end blocks.

use super::{part, routine, Maker, RCX, RSP};
use crate::access::number;
use crate::asm::Address;
use crate::context::{at, home, JUMPS, RING, SCRATCH, TABLE_CODE, TABLE_PCS};
use crate::glue;
use crate::plan::is_syscall;
use iced_x86::{
    Code as Op, FlowControl, Instruction, InstructionInfoFactory, MemoryOperand, OpKind, Register,
};

impl Maker {
    /// The instruction that ends a block.
    pub(super) fn end(
        &mut self,
        instruction: &Instruction,
        raw: &[u8],
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), &'static str> {
        let next = instruction.next_ip();
        if is_syscall(instruction) {
            self.advance();
            self.leave(routine(glue::terrace_exit_call), next, 0);
            return Ok(());
        }
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch => {
                self.advance();
                self.go_to(instruction.near_branch_target());
            }
            FlowControl::ConditionalBranch => {
                self.advance();
                let target = instruction.near_branch_target();
                if instruction.is_jcc_short_or_near() {
                    let condition =
                        raw[raw.len() - if instruction.is_jcc_short() { 2 } else { 5 }] & 15;
                    let site = self.code.jump_to_patch(Some(condition), 0);
                    self.links.push((site, target));
                    self.go_to(next);
                } else {
                    // loop and jrcxz have short distances only.
                    let taken = self.code.short(&raw[..raw.len() - 1]);
                    self.go_to(next);
                    self.code.land(taken);
                    self.go_to(target);
                }
            }
            FlowControl::Call => {
                self.place(instruction.ip(), [None; 2]);
                self.push(next);
                self.advance();
                self.go_to(instruction.near_branch_target());
            }
            FlowControl::Return => {
                if !matches!(instruction.code(), Op::Retnq | Op::Retnq_imm16) {
                    return Err("it returns to a narrow address");
                }
                self.place(instruction.ip(), [None; 2]);
                self.code.put(&[0x41, 0x58 | SCRATCH & 7]);
                if instruction.code() == Op::Retnq_imm16 {
                    let displacement = i64::from(instruction.immediate16());
                    self.code
                        .lea(RSP, Address { base: Some(RSP), displacement, ..Address::default() });
                }
                self.advance();
                self.go_to_scratch();
            }
            FlowControl::IndirectBranch => {
                self.load_target(instruction)?;
                self.advance();
                self.go_to_scratch();
            }
            FlowControl::IndirectCall => {
                self.load_target(instruction)?;
                self.code.store_gs(at!(target), SCRATCH);
                self.place(instruction.ip(), [None; 2]);
                self.push(next);
                self.code.load_gs(SCRATCH, at!(target));
                self.advance();
                self.go_to_scratch();
            }
            // Traps: the kernel says where they were, and a handler may go on behind them.
            FlowControl::Interrupt | FlowControl::Exception => {
                self.execute(instruction, raw, factory)?;
                self.place(next, [None; 2]);
                self.advance();
                self.go_to(next);
            }
            _ => return Err("it is a jump that is not known here"),
        }
        Ok(())
    }

    /// The return address of a call, which is the program's own.
    fn push(&mut self, value: u64) {
        if let Ok(short) = i32::try_from(value) {
            self.code.put(&[0x68]);
            self.code.put(&short.to_le_bytes());
        } else {
            self.code.constant(SCRATCH, value);
            self.code.put(&[0x41, 0x50 | SCRATCH & 7]);
        }
    }

    /// Where an indirect jump goes, into the scratch register.
    fn load_target(&mut self, instruction: &Instruction) -> Result<(), &'static str> {
        let stolen = |r: Register| number(r).filter(|n| *n == RING || *n == SCRATCH);
        if instruction.op0_kind() == OpKind::Register {
            match (stolen(instruction.op0_register()), number(instruction.op0_register())) {
                (Some(n), _) => self.code.load_gs(SCRATCH, home(n)),
                (None, Some(n)) => self.code.copy(SCRATCH, n),
                _ => return Err("it jumps to no register"),
            }
            return Ok(());
        }
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let scratch = Register::RAX + u32::from(SCRATCH);
        let mut memory = MemoryOperand::new(
            base,
            index,
            instruction.memory_index_scale(),
            instruction.memory_displacement64() as i64,
            8,
            false,
            instruction.segment_prefix(),
        );
        let mut borrowed = None;
        if instruction.is_ip_rel_memory_operand() {
            self.code.constant(SCRATCH, instruction.ip_rel_memory_address());
            (memory.base, memory.displacement, memory.displ_size) = (scratch, 0, 0);
        } else {
            match (stolen(base), stolen(index)) {
                (Some(b), Some(i)) => {
                    let other = 3;
                    borrowed = Some(other);
                    self.code.store_gs(at!(save), other);
                    self.code.load_gs(other, home(i));
                    self.code.load_gs(SCRATCH, home(b));
                    (memory.base, memory.index) = (scratch, Register::RAX + u32::from(other));
                }
                (Some(b), None) => {
                    self.code.load_gs(SCRATCH, home(b));
                    memory.base = part(base, SCRATCH);
                }
                (None, Some(i)) => {
                    self.code.load_gs(SCRATCH, home(i));
                    memory.index = part(index, SCRATCH);
                }
                (None, None) => {}
            }
            if memory.base == Register::None && memory.index == Register::None {
                memory.displ_size = 8;
            } else {
                memory.displ_size = if memory.displacement == 0 { 0 } else { 8 };
            }
        }
        self.place(instruction.ip(), [borrowed, None]);
        let load = Instruction::with2(Op::Mov_r64_rm64, scratch, memory)
            .map_err(|_| "its operand is not known here")?;
        self.encode(&load)?;
        if let Some(other) = borrowed {
            self.code.load_gs(other, at!(save));
        }
        Ok(())
    }

    /// A jump to the program's address in the scratch register, by the thread's table; no flag is
    /// changed.
    fn go_to_scratch(&mut self) {
        const { assert!(JUMPS == 1 << 16) };
        self.code.store_gs(at!(save_rcx), RCX);
        self.code.put(&[0x41, 0x0f, 0xb7, 0xc8 | SCRATCH & 7]); // movzx ecx, scratch's low 16 bits
        self.code.load_gs_indexed(RCX, RCX, TABLE_PCS as i32);
        self.code
            .lea(RCX, Address { base: Some(RCX), index: Some((SCRATCH, 1)), ..Address::default() });
        let hit = self.code.short(&[0xe3]);
        self.code.load_gs(RCX, at!(save_rcx));
        self.code.jump(None, routine(glue::terrace_exit_indirect));
        self.code.land(hit);
        self.code.put(&[0x41, 0x0f, 0xb7, 0xc8 | SCRATCH & 7]);
        self.code.load_gs_indexed(SCRATCH, RCX, TABLE_CODE as i32);
        self.code.load_gs(RCX, at!(save_rcx));
        self.code.put(&[0x41, 0xff, 0xe0 | SCRATCH & 7]);
    }
}
