//! The loader: a static RV64 program from its ELF file to guest memory.
//!
//! Source: System V ABI, chapter 4 and 5 (object files, program loading); the RISC-V ELF psABI.

use crate::memory::{GuestMemory, MemoryFault, PAGE_BYTES, USER_END, WRITE};

/// Where a position-independent program is placed; Linux takes two thirds of the address space,
/// the exact place is free.
const PIE_BASE: u64 = 0x20_0000_0000;
/// Where its dynamic loader is placed, above all that the program's heap can reach.
pub const LOADER_BASE: u64 = 0x30_0000_0000;
/// Program headers that are read; linkers write a dozen.
const MOST_HEADERS: u64 = 256;
/// `EM_RISCV`.
const MACHINE_RISCV: u16 = 243;

/// Why a file cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// Not an ELF file, or one of another kind.
    #[error("not a 64-bit little-endian ELF program: {0}; give a program for riscv64")]
    Format(&'static str),
    /// For another architecture.
    #[error("a program for machine {0}, not RISC-V (243); compile with riscv64-linux-gnu-gcc")]
    Machine(u16),
    /// Dynamically linked, and the loader cannot be read.
    #[error("needs the loader {0}; give a root that has it, or link the program with -static")]
    NeedsLoader(String),
    /// Headers that do not fit the file or each other.
    #[error("damaged: {0}; the file may be cut off")]
    Damaged(&'static str),
    /// The segments do not fit the guest's memory.
    #[error("does not fit: {0}; allow the guest more memory")]
    Memory(#[from] MemoryFault),
}

/// A program in memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedProgram {
    /// First instruction.
    pub entry: u64,
    /// Address of the program headers.
    pub headers: u64,
    /// How many there are.
    pub header_count: u64,
    /// First byte after the last segment, where the heap begins.
    pub end: u64,
    /// Path of the dynamic loader, where the program needs one.
    pub loader: Option<Vec<u8>>,
    /// Where that was loaded.
    pub loader_base: u64,
    /// Segments as mapped: first page, end, protection.
    pub segments: Vec<Segment>,
}

/// A mapped segment, in whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
    /// `READ`, `WRITE`, `EXECUTE` bits of [`crate::memory`].
    pub protection: u8,
}

fn bytes<const N: usize>(file: &[u8], at: u64) -> Result<[u8; N], ElfError> {
    usize::try_from(at)
        .ok()
        .and_then(|at| file.get(at..at.checked_add(N)?)?.try_into().ok())
        .ok_or(ElfError::Damaged("a header lies outside the file"))
}

fn half(file: &[u8], at: u64) -> Result<u16, ElfError> {
    Ok(u16::from_le_bytes(bytes(file, at)?))
}

fn word(file: &[u8], at: u64) -> Result<u32, ElfError> {
    Ok(u32::from_le_bytes(bytes(file, at)?))
}

fn double(file: &[u8], at: u64) -> Result<u64, ElfError> {
    Ok(u64::from_le_bytes(bytes(file, at)?))
}

/// Maps the program's segments.
///
/// # Errors
/// [`ElfError`]; the memory may then hold some of the segments.
pub fn load(file: &[u8], memory: &mut GuestMemory) -> Result<LoadedProgram, ElfError> {
    load_at(file, memory, PIE_BASE)
}

/// The same, with a place for a position-independent file.
///
/// # Errors
/// As [`load`].
pub fn load_at(
    file: &[u8],
    memory: &mut GuestMemory,
    place: u64,
) -> Result<LoadedProgram, ElfError> {
    if !file.starts_with(b"\x7fELF") {
        return Err(ElfError::Format("no ELF magic"));
    }
    if bytes::<2>(file, 4)? != [2, 1] {
        return Err(ElfError::Format("of another class or byte order"));
    }
    let machine = half(file, 18)?;
    if machine != MACHINE_RISCV {
        return Err(ElfError::Machine(machine));
    }
    let base = match half(file, 16)? {
        2 => 0,
        3 => place,
        _ => return Err(ElfError::Format("neither executable nor position-independent")),
    };
    let (table, size, count) = (double(file, 32)?, half(file, 54)?, half(file, 56)?.into());
    if size != 56 || count > MOST_HEADERS {
        return Err(ElfError::Damaged("program headers of an unknown size or too many"));
    }
    let entry = base + checked_address(double(file, 24)?)?;
    let mut program = LoadedProgram { entry, header_count: count, ..LoadedProgram::default() };
    for index in 0..count {
        let at = table.checked_add(index * 56).ok_or(ElfError::Damaged("headers lie too far"))?;
        let (offset, length) = (double(file, at + 8)?, double(file, at + 32)?);
        match word(file, at)? {
            1 => load_segment(file, at, base, memory, &mut program)?,
            3 => {
                let name = contents(file, offset, length)?;
                program.loader =
                    Some(name.iter().copied().take_while(|b| *b != 0).take(4096).collect());
            }
            _ => {}
        }
    }
    // The header table lies in the segment that begins the file.
    for index in 0..count {
        let at = table + index * 56;
        let (offset, length) = (double(file, at + 8)?, double(file, at + 32)?);
        if word(file, at)? == 1 && offset <= table && table - offset < length {
            program.headers = base + checked_address(double(file, at + 16)?)? + (table - offset);
        }
    }
    if program.segments.is_empty() {
        return Err(ElfError::Damaged("nothing to load"));
    }
    Ok(program)
}

/// Refuses addresses outside user memory, so that sums of them cannot overflow.
fn checked_address(address: u64) -> Result<u64, ElfError> {
    if address < USER_END - LOADER_BASE {
        Ok(address)
    } else {
        Err(ElfError::Damaged("an address outside user memory"))
    }
}

fn contents(file: &[u8], offset: u64, length: u64) -> Result<&[u8], ElfError> {
    let range = usize::try_from(offset).ok().zip(usize::try_from(length).ok());
    range
        .and_then(|(offset, length)| file.get(offset..offset.checked_add(length)?))
        .ok_or(ElfError::Damaged("a segment lies outside the file"))
}

fn load_segment(
    file: &[u8],
    at: u64,
    base: u64,
    memory: &mut GuestMemory,
    program: &mut LoadedProgram,
) -> Result<(), ElfError> {
    let flags = word(file, at + 4)?;
    let (offset, address) = (double(file, at + 8)?, checked_address(double(file, at + 16)?)?);
    let (in_file, in_memory) = (double(file, at + 32)?, checked_address(double(file, at + 40)?)?);
    if in_file > in_memory {
        return Err(ElfError::Damaged("a segment is larger in the file than in memory"));
    }
    let address = base + address;
    let start = address / PAGE_BYTES * PAGE_BYTES;
    let end = (address + in_memory).next_multiple_of(PAGE_BYTES);
    if start < PAGE_BYTES || start == end || end > USER_END || !memory.is_free(start, end) {
        return Err(ElfError::Damaged("a segment is empty, at address zero or over another"));
    }
    let bit = |from: u32, to: u8| if flags & from != 0 { to } else { 0 };
    let protection = bit(4, crate::memory::READ) | bit(2, WRITE) | bit(1, crate::memory::EXECUTE);
    memory.map(start, end, WRITE);
    memory.write(address, contents(file, offset, in_file)?)?;
    memory.protect(start, end, protection);
    program.end = program.end.max(address + in_memory);
    program.segments.push(Segment { start, end, protection });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of one segment with one instruction.
    fn sample() -> Vec<u8> {
        let mut file = vec![0; 0x100];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let mut put = |at: usize, value: u64, size: usize| {
            file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        for (at, value, size) in [(16, 2, 2), (18, 243, 2), (24, 0x100f0, 8), (32, 64, 8)] {
            put(at, value, size);
        }
        for (at, value, size) in [(54, 56, 2), (56, 1, 2), (64, 1, 4), (68, 5, 4)] {
            put(at, value, size);
        }
        for (at, value) in [(80, 0x10000), (96, 0x100), (104, 0x2000)] {
            put(at, value, 8);
        }
        put(0xf0, 0x73, 4);
        file
    }

    #[test]
    fn a_program_is_loaded_and_each_cut_or_changed_byte_is_survived() {
        let file = sample();
        let mut memory = GuestMemory::new(1 << 20);
        let program = load(&file, &mut memory).unwrap();
        assert_eq!((program.entry, program.headers, program.end), (0x100f0, 0x10040, 0x12000));
        assert_eq!(memory.fetch(0x100f0), Ok(0x73));
        assert!(memory.store(0x10000, [0]).is_err());
        for length in 0..file.len() {
            assert!(load(&file[..length], &mut GuestMemory::new(1 << 20)).is_err(), "{length}");
        }
        for at in 0..file.len() {
            for value in [0, 1, 3, 0x7f, 0x80, 0xff] {
                let mut changed = file.clone();
                changed[at] = value;
                // Whatever the result, it does not panic nor map beyond user memory.
                if let Ok(program) = load(&changed, &mut GuestMemory::new(1 << 20)) {
                    assert!(program.end <= USER_END, "{at} {value}");
                }
            }
        }
        let mut other = file;
        other[18] = 62;
        assert_eq!(load(&other, &mut GuestMemory::new(1 << 20)), Err(ElfError::Machine(62)));
    }
}
