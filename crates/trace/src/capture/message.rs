//! Messages among a program's words: which there are, and what those say that tell of mappings.

use crate::event::EventKind;

pub const THREAD: u64 = 1;
pub const BLOCK: u64 = 2;
pub const SYSCALL: u64 = 3;
pub const JUMP: u64 = 4;
pub const MAP: u64 = 5;
pub const EXEC: u64 = 6;
pub const MARK: u64 = 7;
pub const BEGIN: u64 = 8;
pub const END: u64 = 9;
pub const EXIT: u64 = 10;
pub const HOOKS: u64 = 11;
pub const OBJECT: u64 = 12;
/// A program runs unrecorded from here on; the text says which and why.
pub const UNRECORDED: u64 = 13;
/// An operation on caches, the address it names and the instruction's.
pub const CACHE: u64 = 14;

mod syscall {
    pub const MMAP: u64 = 9;
    pub const MUNMAP: u64 = 11;
    pub const BRK: u64 = 12;
    pub const MREMAP: u64 = 25;
}

/// The event that a system call means.
pub fn mapping(
    number: u64,
    result: u64,
    [a, b, c, d]: [u64; 4],
    text: &[u64],
) -> Option<EventKind> {
    let failed = result > u64::MAX - 4096;
    match number {
        _ if failed => None,
        syscall::MMAP => {
            let name = words_as_text(text);
            Some(EventKind::Map {
                start: result,
                length: b,
                protection: c as u32,
                flags: d as u32,
                name,
            })
        }
        syscall::MUNMAP => Some(EventKind::Unmap { start: a, length: b }),
        syscall::BRK => Some(EventKind::Break { end: result }),
        syscall::MREMAP => Some(EventKind::Remap { from: a, old_length: b, to: result, length: c }),
        _ => None,
    }
}

/// Text behind its length; what is no text is replaced.
pub fn words_as_text(words: &[u64]) -> String {
    let Some((length, rest)) = words.split_first() else { return String::new() };
    let bytes: Vec<u8> = rest.iter().flat_map(|w| w.to_le_bytes()).take(*length as usize).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
