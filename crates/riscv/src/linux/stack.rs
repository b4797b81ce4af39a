//! The first stack: arguments, environment and the auxiliary vector.

use crate::elf::LoadedProgram;
use crate::memory::{GuestMemory, MemoryFault, PAGE_BYTES};

/// `AT_HWCAP` bits of RISC-V, one for each letter of "IMAFDC".
fn capabilities() -> u64 {
    "imafdc".bytes().map(|letter| 1 << (letter - b'a')).sum()
}

/// Writes the stack below `top`; gives the stack pointer.
pub fn build(
    memory: &mut GuestMemory,
    top: u64,
    program: &LoadedProgram,
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
    random: [u8; 16],
) -> Result<u64, MemoryFault> {
    let mut at = top - 16;
    memory.write(at, &random)?;
    let random_at = at;
    let mut place = |text: &Vec<u8>| -> Result<u64, MemoryFault> {
        at = at.wrapping_sub(text.len() as u64 + 1);
        memory.write(at, text)?;
        Ok(at)
    };
    let arguments = arguments.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
    let environment = environment.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
    let auxiliary = [
        (3, program.headers),
        (4, 56),
        (5, program.header_count),
        (6, PAGE_BYTES),
        (7, program.loader_base),
        (9, program.entry),
        (11, 1000),
        (12, 1000),
        (13, 1000),
        (14, 1000),
        (16, capabilities()),
        (17, 100),
        (23, 0),
        (25, random_at),
        (31, arguments.first().copied().unwrap_or(random_at)),
        (0, 0),
    ];
    let mut words = vec![arguments.len() as u64];
    words.extend(arguments);
    words.push(0);
    words.extend(environment);
    words.push(0);
    words.extend(auxiliary.iter().flat_map(|&(key, value)| [key, value]));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let pointer = (at - bytes.len() as u64) & !15;
    memory.write(pointer, &bytes)?;
    Ok(pointer)
}
