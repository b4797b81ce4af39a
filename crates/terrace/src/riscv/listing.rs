//! A program's executable segments as text.

use super::{read_program, RiscvError};
use std::io::Write;
use std::path::Path;
use terrace_riscv::decode::{Instruction, Op};
use terrace_riscv::elf;
use terrace_riscv::memory::{GuestMemory, EXECUTE};
use terrace_xbgas::{Dialect, ExtendedInstruction};

/// Bytes of memory for a program's segments.
const MAX_SEGMENTS: u64 = 1 << 30;

/// Writes one line for each instruction: address, bits, mnemonic and operands. Words of zeros are
/// padding and left out; other words that are no instruction of the base or the dialect print as
/// data.
///
/// # Errors
/// [`RiscvError`]: the file cannot be read, is no program, or the listing cannot be written.
pub fn disassemble(
    path: &Path,
    dialect: Option<Dialect>,
    output: &mut dyn Write,
) -> Result<(), RiscvError> {
    let file =
        read_program(path).map_err(|source| RiscvError::Read { path: path.to_owned(), source })?;
    let mut memory = GuestMemory::new(MAX_SEGMENTS);
    let program = elf::load(&file, &mut memory)
        .map_err(|source| RiscvError::Program { path: path.to_owned(), source })?;
    for segment in program.segments.iter().filter(|s| s.protection & EXECUTE != 0) {
        let mut pc = segment.start;
        while pc < segment.end {
            // Past the limit of memory there is nothing of the file.
            let Ok(word) = memory.fetch(pc) else { break };
            let instruction = Instruction::decode(word);
            let length = u64::from(instruction.length);
            if word as u16 != 0 {
                let text = describe(instruction, word, pc, dialect);
                let digits = usize::from(instruction.length) * 2;
                writeln!(output, "{pc:8x}:\t{word:0digits$x}\t{text}")
                    .map_err(|source| RiscvError::Output { path: "the listing".into(), source })?;
            }
            pc += length;
        }
    }
    Ok(())
}

fn describe(instruction: Instruction, word: u32, pc: u64, dialect: Option<Dialect>) -> String {
    if instruction.op == Op::Illegal {
        if let Some(extended) = dialect.and_then(|d| ExtendedInstruction::decode(d, word)) {
            return extended.to_string();
        }
    }
    instruction.print(pc, word)
}
