//! Instructions of a migratory machine: three-address code over the registers of a thread.

use crate::memory::ArrayId;

/// Registers of a thread: with the program counter about 200 bytes of context.
pub const REGISTERS: usize = 24;

/// A register, below [`REGISTERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(pub u8);

/// An index of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CodeAddress(pub u32);

/// Arithmetic on two words. Overflow wraps; a division by zero gives zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AluOperation {
    /// Sum.
    Add,
    /// Difference.
    Subtract,
    /// Product.
    Multiply,
    /// Quotient, towards zero.
    Divide,
    /// Remainder, with the sign of the dividend.
    Remainder,
    /// Bits in both.
    And,
    /// Bits in either.
    Or,
    /// Bits in one only.
    Xor,
    /// The lesser.
    Minimum,
    /// The greater.
    Maximum,
    /// 1 where equal, else 0.
    Equal,
    /// 1 where not equal, else 0.
    NotEqual,
    /// 1 where less, else 0.
    Less,
    /// 1 where less or equal, else 0.
    LessOrEqual,
}

/// What an update or an atomic does to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpdateOperation {
    /// Replaces it.
    Store,
    /// Adds, wrapping.
    Add,
    /// Keeps bits that are in both.
    And,
    /// Sets bits.
    Or,
    /// Flips bits.
    Xor,
    /// Keeps the lesser.
    Minimum,
    /// Keeps the greater.
    Maximum,
}

/// Where a spawned thread begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpawnTarget {
    /// On the spawning thread's nodelet; without a free slot the spawn becomes a call.
    Here,
    /// On the nodelet whose number is in a register.
    Nodelet(Register),
}

/// An instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadletInstruction {
    /// `d = value`.
    Constant {
        /// Destination.
        d: Register,
        /// The value.
        value: i64,
    },
    /// `d = a`.
    Copy {
        /// Destination.
        d: Register,
        /// Source.
        a: Register,
    },
    /// `d = a op b`.
    Alu {
        /// The operation.
        operation: AluOperation,
        /// Destination.
        d: Register,
        /// Left operand.
        a: Register,
        /// Right operand.
        b: Register,
    },
    /// `d = a op value`.
    AluConstant {
        /// The operation.
        operation: AluOperation,
        /// Destination.
        d: Register,
        /// Left operand.
        a: Register,
        /// Right operand.
        value: i32,
    },
    /// Goes on at `to`.
    Jump {
        /// The next instruction.
        to: CodeAddress,
    },
    /// Goes on at `to` where `a op b` is not zero.
    Branch {
        /// The comparison.
        operation: AluOperation,
        /// Left operand.
        a: Register,
        /// Right operand.
        b: Register,
        /// The next instruction then.
        to: CodeAddress,
    },
    /// Goes on at `to` where the register is zero.
    BranchZero {
        /// The register.
        a: Register,
        /// The next instruction then.
        to: CodeAddress,
    },
    /// `d = array[index]`; migrates to the word.
    Load {
        /// Destination.
        d: Register,
        /// The array.
        array: ArrayId,
        /// Register with the index.
        index: Register,
    },
    /// Updates `array[index]` by `value` where it lies, without a result and without migration.
    Update {
        /// The operation.
        operation: UpdateOperation,
        /// The array.
        array: ArrayId,
        /// Register with the index.
        index: Register,
        /// Register with the operand.
        value: Register,
    },
    /// `d = array[index]`, which is updated by `value` in the same moment; migrates to the word.
    Atomic {
        /// The operation.
        operation: UpdateOperation,
        /// Destination: the old value.
        d: Register,
        /// The array.
        array: ArrayId,
        /// Register with the index.
        index: Register,
        /// Register with the operand.
        value: Register,
    },
    /// A new thread with a copy of the registers begins at `entry`.
    Spawn {
        /// Its first instruction.
        entry: CodeAddress,
        /// Where it begins.
        target: SpawnTarget,
    },
    /// Waits until all threads spawned since the last one have ended.
    Sync,
    /// Ends the thread, or returns from a spawn that became a call.
    End,
}

/// A program: instructions, with the source line of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineCode {
    instructions: Vec<ThreadletInstruction>,
    lines: Vec<u32>,
}

impl MachineCode {
    /// Appends an instruction of a source line; 0: none.
    pub fn push(&mut self, instruction: ThreadletInstruction, line: u32) -> CodeAddress {
        self.instructions.push(instruction);
        self.lines.push(line);
        CodeAddress((self.instructions.len() - 1) as u32)
    }

    /// Where the next instruction will be.
    #[must_use]
    pub fn end(&self) -> CodeAddress {
        CodeAddress(self.instructions.len() as u32)
    }

    /// Sets where a jump, branch or spawn at `at` goes.
    pub fn set_target(&mut self, at: CodeAddress, target: CodeAddress) {
        match self.instructions.get_mut(at.0 as usize) {
            Some(
                ThreadletInstruction::Jump { to }
                | ThreadletInstruction::Branch { to, .. }
                | ThreadletInstruction::BranchZero { to, .. }
                | ThreadletInstruction::Spawn { entry: to, .. },
            ) => *to = target,
            _ => debug_assert!(false, "no target at {at:?}"),
        }
    }

    /// The instructions.
    #[must_use]
    pub fn instructions(&self) -> &[ThreadletInstruction] {
        &self.instructions
    }

    /// The source line of an instruction; 0: none.
    #[must_use]
    pub fn line(&self, at: CodeAddress) -> u32 {
        self.lines.get(at.0 as usize).copied().unwrap_or(0)
    }

    /// Every register is below [`REGISTERS`] and every target an instruction.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let target = |to: &CodeAddress| (to.0 as usize) < self.instructions.len();
        let register = |r: &Register| usize::from(r.0) < REGISTERS;
        self.instructions.iter().all(|instruction| match instruction {
            ThreadletInstruction::Constant { d, .. } => register(d),
            ThreadletInstruction::Copy { d, a }
            | ThreadletInstruction::AluConstant { d, a, .. } => register(d) && register(a),
            ThreadletInstruction::Alu { d, a, b, .. } => register(d) && register(a) && register(b),
            ThreadletInstruction::Jump { to } => target(to),
            ThreadletInstruction::Branch { a, b, to, .. } => {
                register(a) && register(b) && target(to)
            }
            ThreadletInstruction::BranchZero { a, to } => register(a) && target(to),
            ThreadletInstruction::Load { d, index, .. } => register(d) && register(index),
            ThreadletInstruction::Update { index, value, .. } => register(index) && register(value),
            ThreadletInstruction::Atomic { d, index, value, .. } => {
                register(d) && register(index) && register(value)
            }
            ThreadletInstruction::Spawn { entry, target: SpawnTarget::Here } => target(entry),
            ThreadletInstruction::Spawn { entry, target: SpawnTarget::Nodelet(r) } => {
                target(entry) && register(r)
            }
            ThreadletInstruction::Sync | ThreadletInstruction::End => true,
        })
    }
}
