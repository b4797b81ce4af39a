//! What a block of x86-64 code says of the accesses it makes: where each instruction stands, and which values their
//! addresses are computed from.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register};

/// Registers whose values are followed.
const REGISTERS: usize = 16;
/// A value older than so many loads does not delay anybody.
const RECENT: u64 = 64;

/// Where a value comes from: registers as the block found them, and a load of the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Origin {
    /// Bit `r`: register `r` as it was at the block's begin.
    registers: u16,
    /// Index of the instruction that loaded it, plus one; the latest if there are several.
    load: u16,
}

impl Origin {
    fn with(self, other: Self) -> Self {
        Self { registers: self.registers | other.registers, load: self.load.max(other.load) }
    }
}

/// One block, analysed once when it is translated.
#[derive(Debug, Default)]
pub struct CodeBlock {
    /// Of each instruction: its address, and where its memory operands' addresses come from.
    instructions: Vec<(u64, Origin)>,
    /// Registers that the block leaves changed.
    changes: Vec<(usize, Origin)>,
}

impl CodeBlock {
    /// Reads `code`, which begins at `pc`; at most `count` instructions.
    pub fn new(pc: u64, code: &[u8], count: usize) -> Self {
        let mut decoder = Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
        let mut factory = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        let mut now: [Origin; REGISTERS] = std::array::from_fn(|r| Origin { registers: 1 << r, load: 0 });
        let mut instructions = Vec::with_capacity(count);
        while decoder.can_decode() && instructions.len() < count {
            decoder.decode_out(&mut instruction);
            let address = follow(&instruction, &mut factory, &mut now, instructions.len() as u16 + 1);
            instructions.push((instruction.ip(), address));
        }
        let changed = |(r, origin): &(usize, Origin)| *origin != Origin { registers: 1 << r, load: 0 };
        let changes = now.into_iter().enumerate().filter(changed).collect();
        Self { instructions, changes }
    }

    /// Address of an instruction; 0 where it is not known.
    #[inline]
    pub fn pc(&self, index: usize) -> u64 {
        self.instructions.get(index).map_or(0, |i| i.0)
    }
}

/// Takes one instruction into account; says where its memory operands' addresses come from.
fn follow(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
    now: &mut [Origin; REGISTERS],
    load: u16,
) -> Origin {
    let info = factory.info(instruction);
    let of = |register: Register| number(register).map_or(Origin::default(), |r| now[r]);
    let (mut address, mut loads) = (Origin::default(), false);
    for memory in info.used_memory() {
        if memory.access() != OpAccess::NoMemAccess {
            address = address.with(of(memory.base())).with(of(memory.index()));
            loads |= reads(memory.access());
        }
    }
    // What is loaded is the value; otherwise it is made of the registers read.
    let mut value = Origin::default();
    for used in info.used_registers() {
        if !loads && reads(used.access()) {
            value = value.with(of(used.register()));
        }
    }
    if loads {
        value.load = load;
    }
    let written: Vec<(usize, bool)> = info
        .used_registers()
        .iter()
        .filter(|used| writes(used.access()))
        .filter_map(|used| number(used.register()).map(|r| (r, reads(used.access()))))
        .collect();
    for (register, read) in written {
        // Pushing and popping move the stack pointer by a constant: it comes from where it came from.
        if register == STACK && instruction.is_stack_instruction() {
            continue;
        }
        now[register] = if read { value.with(now[register]) } else { value };
    }
    address
}

const STACK: usize = 4;

fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

fn reads(access: OpAccess) -> bool {
    use OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite};
    matches!(access, Read | CondRead | ReadWrite | ReadCondWrite)
}

fn writes(access: OpAccess) -> bool {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
}

/// Which loads a thread's registers hold values of. Loads are numbered from 1 in the order the thread makes them.
#[derive(Debug)]
pub struct Values {
    registers: [u64; REGISTERS],
    loads: u64,
    /// Of each instruction of the block being executed: its load.
    of_instruction: Vec<u64>,
}

impl Values {
    pub fn new() -> Self {
        Self { registers: [0; REGISTERS], loads: 0, of_instruction: vec![0; 512] }
    }

    /// How many loads ago the value was loaded that the address of this access was computed from; 0: none, or long ago.
    #[inline]
    pub fn depends(&self, block: &CodeBlock, index: usize) -> u8 {
        let origin = block.instructions.get(index).map_or(Origin::default(), |i| i.1);
        if origin == Origin::default() {
            return 0;
        }
        let latest = latest(&self.registers, &self.of_instruction, origin);
        let ago = self.loads + 1 - latest;
        if latest == 0 || ago > RECENT {
            0
        } else {
            ago.min(15) as u8
        }
    }

    /// An instruction loads.
    #[inline]
    pub fn load(&mut self, index: usize) {
        self.loads += 1;
        self.of_instruction[index % 512] = self.loads;
    }

    /// The block has been executed.
    #[inline]
    pub fn leave(&mut self, block: &CodeBlock) {
        let before = self.registers;
        for (register, origin) in &block.changes {
            self.registers[*register] = latest(&before, &self.of_instruction, *origin);
        }
    }
}

/// Number of the latest load that a value comes from; 0 for none.
#[inline]
fn latest(registers: &[u64; REGISTERS], of_instruction: &[u64], origin: Origin) -> u64 {
    let mut latest = match origin.load {
        0 => 0,
        load => of_instruction[usize::from(load - 1) % 512],
    };
    let mut left = origin.registers;
    while left != 0 {
        latest = latest.max(registers[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes a block whose instructions of these indices load, and says what each of those depends on.
    fn run(values: &mut Values, block: &CodeBlock, loads: &[usize]) -> Vec<u8> {
        let found = loads.iter().map(|i| {
            let depends = values.depends(block, *i);
            values.load(*i);
            depends
        });
        let found = found.collect();
        values.leave(block);
        found
    }

    #[test]
    fn a_pointer_chase_depends_on_the_load_before() {
        // mov rax, [rax]; dec rcx; jnz
        let block = CodeBlock::new(0x1000, &[0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf8], 3);
        let mut values = Values::new();
        assert_eq!(run(&mut values, &block, &[0]), [0]);
        assert_eq!(run(&mut values, &block, &[0]), [1]);
        assert_eq!(run(&mut values, &block, &[0]), [1]);
        assert_eq!((block.pc(1), block.pc(2), block.pc(3)), (0x1003, 0x1006, 0));
    }

    #[test]
    fn a_gather_depends_on_its_index_only() {
        // movsxd rax, [rsi+rdx*4]; movsd xmm0, [rdi+rax*8]; inc rdx; jmp
        let code = [0x48, 0x63, 0x04, 0x96, 0xf2, 0x0f, 0x10, 0x04, 0xc7, 0x48, 0xff, 0xc2, 0xeb, 0xf2];
        let block = CodeBlock::new(0, &code, 4);
        let mut values = Values::new();
        for _ in 0..3 {
            assert_eq!(run(&mut values, &block, &[0, 1]), [0, 1]);
        }
    }

    #[test]
    fn what_is_computed_from_a_loaded_value_depends_on_it_and_a_cleared_register_does_not() {
        // mov rbx, [rdi]; lea rcx, [rbx+rbx*2]; mov rdx, [r8]; mov rsi, [rcx]; xor ecx, ecx; mov rsi, [rcx]
        let code = [
            0x48, 0x8b, 0x1f, 0x48, 0x8d, 0x0c, 0x5b, 0x49, 0x8b, 0x10, 0x48, 0x8b, 0x31, 0x31, 0xc9, 0x48, 0x8b, 0x31,
        ];
        let block = CodeBlock::new(0, &code, 6);
        assert_eq!(run(&mut Values::new(), &block, &[0, 2, 3, 5]), [0, 0, 2, 0]);
    }

    #[test]
    fn pushing_and_popping_does_not_make_the_stack_depend() {
        // pop rax; pop rbx; mov rcx, [rsp]; mov rdx, [rax]
        let code = [0x58, 0x5b, 0x48, 0x8b, 0x0c, 0x24, 0x48, 0x8b, 0x10];
        let block = CodeBlock::new(0, &code, 4);
        assert_eq!(run(&mut Values::new(), &block, &[0, 1, 2, 3]), [0, 0, 0, 3]);
    }

    #[test]
    fn values_grow_old() {
        let chase = CodeBlock::new(0, &[0x48, 0x8b, 0x03], 1); // mov rax, [rbx]
        let other = CodeBlock::new(0, &[0x48, 0x8b, 0x16], 1); // mov rdx, [rsi]
        let use_it = CodeBlock::new(0, &[0x48, 0x8b, 0x08], 1); // mov rcx, [rax]
        let mut values = Values::new();
        run(&mut values, &chase, &[0]);
        for _ in 0..20 {
            run(&mut values, &other, &[0]);
        }
        assert_eq!(values.depends(&use_it, 0), 15);
        for _ in 0..60 {
            run(&mut values, &other, &[0]);
        }
        assert_eq!(values.depends(&use_it, 0), 0);
    }

    #[test]
    fn code_that_is_none_is_survived() {
        let block = CodeBlock::new(u64::MAX - 2, &[0xff; 40], 512);
        let mut values = Values::new();
        assert_eq!(values.depends(&block, 511), 0);
        values.load(usize::MAX);
        values.leave(&block);
    }
}
