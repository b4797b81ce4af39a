//! What a block of x86-64 code says of the accesses it makes: where each instruction stands, and
//! which values their addresses are computed from.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register};

/// Registers whose values are followed.
pub const REGISTERS: usize = 16;
/// A value older than so many loads does not delay anybody.
const RECENT: u64 = 64;
/// Instructions of a block at most, as QEMU has it.
const MAX_INSTRUCTIONS: usize = 512;

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

/// An origin as it is looked up for every access: up to two registers (`NONE` holds no load), a
/// load (0 is none), and the rare further registers as bits.
#[derive(Debug, Clone, Copy)]
pub struct AddressOrigin {
    pub registers: [u8; 2],
    pub load: u16,
    pub more: u16,
}

/// Number of a register that never holds anything.
const NONE: u8 = REGISTERS as u8;

impl From<Origin> for AddressOrigin {
    fn from(origin: Origin) -> Self {
        let mut left = origin.registers;
        let registers = [0, 1].map(|_| {
            let next = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            if next < 16 {
                next as u8
            } else {
                NONE
            }
        });
        Self { registers, load: origin.load, more: left }
    }
}

/// An instruction: its address, and where its memory operands' addresses come from.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    pub pc: u64,
    pub address: AddressOrigin,
}

/// Where a block lies in [`CapturedCode`].
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockSpan {
    site: u32,
    sites: u16,
    changes: u16,
    change: u32,
}

/// All blocks known, each analysed once when it is translated.
#[derive(Debug, Default)]
pub struct CapturedCode {
    /// By number.
    blocks: Vec<Option<BlockSpan>>,
    sites: Vec<Site>,
    /// Registers that blocks leave changed.
    changes: Vec<(u8, AddressOrigin)>,
}

impl CapturedCode {
    /// Where the block of this number lies, if it is known.
    #[inline]
    pub fn get(&self, number: usize) -> Option<BlockSpan> {
        self.blocks.get(number).copied().flatten()
    }

    /// Reads the `code` of a block, which begins at `pc`; at most `count` instructions, 512 at
    /// most.
    pub fn add(&mut self, number: usize, pc: u64, code: &[u8], count: usize) -> BlockSpan {
        let mut decoder = Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
        let mut factory = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        let mut now: [Origin; REGISTERS] =
            std::array::from_fn(|r| Origin { registers: 1 << r, load: 0 });
        let mut span = BlockSpan {
            site: self.sites.len() as u32,
            change: self.changes.len() as u32,
            sites: 0,
            changes: 0,
        };
        while decoder.can_decode() && usize::from(span.sites) < count.min(MAX_INSTRUCTIONS) {
            decoder.decode_out(&mut instruction);
            span.sites += 1;
            let address = follow(&instruction, &mut factory, &mut now, span.sites);
            self.sites.push(Site { pc: instruction.ip(), address: address.into() });
        }
        for (register, origin) in now.into_iter().enumerate() {
            if origin != (Origin { registers: 1 << register, load: 0 }) {
                self.changes.push((register as u8, origin.into()));
                span.changes += 1;
            }
        }
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        self.blocks[number] = Some(span);
        span
    }

    /// Registers that a block leaves changed, all from what they held before it.
    pub fn changes(&self, span: BlockSpan) -> &[(u8, AddressOrigin)] {
        let start = span.change as usize;
        &self.changes[start..start + usize::from(span.changes)]
    }

    /// An instruction of a block.
    #[inline]
    pub fn site(&self, span: BlockSpan, index: usize) -> Option<&Site> {
        if index < usize::from(span.sites) {
            self.sites.get(span.site as usize + index)
        } else {
            None
        }
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
        // Pushing and popping move the stack pointer by a constant: it comes from where it came
        // from.
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

/// How many loads ago each register's value was loaded, as a block finds them: 0 is the load just
/// before, [`OLD`] a value that comes from no load, or from one so long ago that it delays nobody.
pub type RegisterAges = [u8; REGISTERS];

/// See [`RegisterAges`].
pub const OLD: u8 = RECENT as u8;

/// Which loads a thread's registers hold values of.
#[derive(Debug)]
pub struct Values {
    ages: RegisterAges,
    /// Loads of the thread, and those before the block being executed.
    loads: u64,
    entered: u64,
    /// By instruction of the block being executed: its load, counted through all blocks from 1.
    /// What other blocks left here is smaller than `entered`.
    of_instruction: Box<[u64; 1024]>,
}

impl Values {
    pub fn new() -> Self {
        Self { ages: [OLD; REGISTERS], loads: 0, entered: 0, of_instruction: Box::new([0; 1024]) }
    }

    /// How many loads ago the latest was made that a value comes from, as in [`RegisterAges`].
    #[inline]
    fn latest(&self, source: AddressOrigin) -> u8 {
        let register = |r: u8| self.ages.get(usize::from(r)).copied().unwrap_or(OLD);
        let [a, b] = source.registers;
        let mut age = register(a).min(register(b));
        let mut left = source.more;
        while left != 0 {
            age = age.min(register(left.trailing_zeros() as u8));
            left &= left - 1;
        }
        let here = self.loads - self.entered;
        let mut latest = if age < OLD { here + u64::from(age) } else { RECENT };
        let load = self.of_instruction[usize::from(source.load) % 1024];
        if load > self.entered {
            latest = latest.min(self.loads - load);
        }
        latest.min(RECENT) as u8
    }

    /// Address of an instruction, 0 where it is not known; and how many loads ago the value was
    /// loaded that the address of its access was computed from, 0 for none or long ago.
    #[inline]
    pub fn site(&self, code: &CapturedCode, span: BlockSpan, index: usize) -> (u64, u8) {
        let Some(site) = code.site(span, index) else { return (0, 0) };
        (site.pc, depends(self.latest(site.address)))
    }

    /// An instruction loads.
    #[inline]
    pub fn load(&mut self, index: usize) {
        self.loads += 1;
        self.of_instruction[(index + 1) % 1024] = self.loads;
    }

    /// The block has been executed.
    #[inline]
    pub fn leave(&mut self, code: &CapturedCode, span: BlockSpan) {
        let mut after = grown(self.ages, self.loads - self.entered);
        // All from what the registers held before.
        for (register, source) in code.changes(span) {
            after[usize::from(*register) % REGISTERS] = self.latest(*source);
        }
        self.ages = after;
        self.entered = self.loads;
    }

    /// The ages between two blocks.
    pub fn ages(&self) -> &RegisterAges {
        &self.ages
    }

    /// Several blocks with so many loads have been executed, which left the registers so.
    pub fn pass(&mut self, ages: RegisterAges, loads: u64) {
        self.ages = ages;
        self.loads += loads;
        self.entered = self.loads;
    }
}

/// Ages so many loads later.
#[inline]
pub fn grown(ages: RegisterAges, loads: u64) -> RegisterAges {
    let more = loads.min(RECENT) as u8;
    ages.map(|age| (age + more).min(OLD))
}

/// The dependence of an access whose address comes from a load of this age.
#[inline]
pub fn depends(age: u8) -> u8 {
    if age >= OLD {
        0
    } else {
        (age + 1).min(15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(pc: u64, code: &[u8], count: usize) -> (CapturedCode, BlockSpan) {
        let mut all = CapturedCode::default();
        let span = all.add(3, pc, code, count);
        (all, span)
    }

    /// Executes a block whose instructions of these indices load, and says what each of those
    /// depends on.
    fn run(
        values: &mut Values,
        (code, span): &(CapturedCode, BlockSpan),
        loads: &[usize],
    ) -> Vec<u8> {
        let found = loads.iter().map(|i| {
            let depends = values.site(code, *span, *i).1;
            values.load(*i);
            depends
        });
        let found = found.collect();
        values.leave(code, *span);
        found
    }

    #[test]
    fn a_pointer_chase_depends_on_the_load_before() {
        // mov rax, [rax]; dec rcx; jnz
        let chase = block(0x1000, &[0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf8], 3);
        let mut values = Values::new();
        assert_eq!(run(&mut values, &chase, &[0]), [0]);
        assert_eq!(run(&mut values, &chase, &[0]), [1]);
        assert_eq!(run(&mut values, &chase, &[0]), [1]);
        let pc = |index| values.site(&chase.0, chase.1, index).0;
        assert_eq!((pc(1), pc(2), pc(3)), (0x1003, 0x1006, 0));
    }

    #[test]
    fn a_gather_depends_on_its_index_only() {
        // movsxd rax, [rsi+rdx*4]; movsd xmm0, [rdi+rax*8]; inc rdx; jmp
        let code =
            [0x48, 0x63, 0x04, 0x96, 0xf2, 0x0f, 0x10, 0x04, 0xc7, 0x48, 0xff, 0xc2, 0xeb, 0xf2];
        let made = block(0, &code, 4);
        let mut values = Values::new();
        for _ in 0..3 {
            assert_eq!(run(&mut values, &made, &[0, 1]), [0, 1]);
        }
    }

    #[test]
    fn what_is_computed_from_a_loaded_value_depends_on_it_and_a_cleared_register_does_not() {
        // mov rbx, [rdi]; lea rcx, [rbx+rbx*2]; mov rdx, [r8]; mov rsi, [rcx]; xor ecx, ecx; mov
        // rsi, [rcx]
        let code = [
            0x48, 0x8b, 0x1f, 0x48, 0x8d, 0x0c, 0x5b, 0x49, 0x8b, 0x10, 0x48, 0x8b, 0x31, 0x31,
            0xc9, 0x48, 0x8b, 0x31,
        ];
        let made = block(0, &code, 6);
        assert_eq!(run(&mut Values::new(), &made, &[0, 2, 3, 5]), [0, 0, 2, 0]);
    }

    #[test]
    fn pushing_and_popping_does_not_make_the_stack_depend() {
        // pop rax; pop rbx; mov rcx, [rsp]; mov rdx, [rax]
        let code = [0x58, 0x5b, 0x48, 0x8b, 0x0c, 0x24, 0x48, 0x8b, 0x10];
        let made = block(0, &code, 4);
        assert_eq!(run(&mut Values::new(), &made, &[0, 1, 2, 3]), [0, 0, 0, 3]);
    }

    #[test]
    fn values_grow_old() {
        let chase = block(0, &[0x48, 0x8b, 0x03], 1); // mov rax, [rbx]
        let other = block(0, &[0x48, 0x8b, 0x16], 1); // mov rdx, [rsi]
        let use_it = block(0, &[0x48, 0x8b, 0x08], 1); // mov rcx, [rax]
        let mut values = Values::new();
        run(&mut values, &chase, &[0]);
        for _ in 0..20 {
            run(&mut values, &other, &[0]);
        }
        assert_eq!(values.site(&use_it.0, use_it.1, 0).1, 15);
        for _ in 0..60 {
            run(&mut values, &other, &[0]);
        }
        assert_eq!(values.site(&use_it.0, use_it.1, 0).1, 0);
    }

    #[test]
    fn code_that_is_none_is_survived() {
        let made = block(u64::MAX - 2, &[0xff; 40], 512);
        let mut values = Values::new();
        assert_eq!(values.site(&made.0, made.1, 511).1, 0);
        values.load(usize::MAX - 1);
        values.leave(&made.0, made.1);
    }
}
