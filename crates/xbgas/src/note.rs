//! The note in a program that says which encoding its extended instructions have. `xbgas.h` of the
//! run-time library writes one in each object file.
//!
//! Source of the layout: System V ABI, chapter 5 (note section).

use crate::decode::Dialect;

/// The note's name, with its zero.
const NAME: &[u8] = b"xBGAS\0";
/// The note's type.
const KIND: u32 = 1;
/// `PT_NOTE`.
const NOTE_SEGMENT: u32 = 4;
/// Bytes of a program header.
const HEADER: usize = 56;

/// Why a program's notes tell no dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// A number that is no dialect's.
    #[error("the program's note names dialect {0}; there are 2018, 20 and 2024")]
    Unknown(u32),
    /// Object files of different dialects.
    #[error("the program is made of files for dialects {0} and {1}; compile all with one")]
    Mixed(u32, u32),
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

fn offset(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?)).ok()
}

/// The numbers that a program's notes name. What is cut off or no ELF file has none; the loader
/// says what is wrong with it.
fn numbers(file: &[u8]) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    let (table, count) = (offset(file, 32)?, half(file, 56)?);
    for index in 0..count {
        let at = table.checked_add(index * HEADER)?;
        if word(file, at)? != NOTE_SEGMENT {
            continue;
        }
        let (start, length) = (offset(file, at + 8)?, offset(file, at + 32)?);
        let mut notes = file.get(start..start.checked_add(length)?)?;
        while let (Some(name), Some(size), Some(kind)) =
            (word(notes, 0), word(notes, 4), word(notes, 8))
        {
            let value_at = 12 + (name as usize).next_multiple_of(4);
            if kind == KIND && notes.get(12..12 + name as usize) == Some(NAME) && size == 4 {
                found.push(word(notes, value_at)?);
            }
            notes = notes.get(value_at + (size as usize).next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
    Some(found)
}

/// The dialect that a program's notes name; `None` where none does.
///
/// # Errors
/// [`NoteError`].
pub fn dialect_of_program(file: &[u8]) -> Result<Option<Dialect>, NoteError> {
    let numbers = numbers(file).unwrap_or_default();
    let Some(&first) = numbers.first() else { return Ok(None) };
    if let Some(&other) = numbers.iter().find(|number| **number != first) {
        return Err(NoteError::Mixed(first, other));
    }
    match first {
        2018 => Ok(Some(Dialect::V2018)),
        20 => Ok(Some(Dialect::V2_0)),
        2024 => Ok(Some(Dialect::Rev)),
        other => Err(NoteError::Unknown(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one program header, and notes of these names and values.
    fn file(notes: &[(&[u8], u32)]) -> Vec<u8> {
        let mut segment = Vec::new();
        for (name, value) in notes {
            for field in [name.len() as u32, 4, KIND] {
                segment.extend(field.to_le_bytes());
            }
            segment.extend(*name);
            segment.resize(segment.len().next_multiple_of(4), 0);
            segment.extend(value.to_le_bytes());
        }
        let mut file = vec![0; 64 + HEADER];
        file[32] = 64;
        file[56] = 1;
        file[64] = NOTE_SEGMENT as u8;
        file[64 + 8] = (64 + HEADER) as u8;
        file[64 + 32..64 + 40].copy_from_slice(&(segment.len() as u64).to_le_bytes());
        file.extend(segment);
        file
    }

    #[test]
    fn notes_name_the_dialect_and_have_to_agree() {
        let of = |notes: &[(&[u8], u32)]| dialect_of_program(&file(notes));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(b"GNU\0", 20)]), Ok(None));
        assert_eq!(of(&[(b"GNU\0", 7), (NAME, 20), (NAME, 20)]), Ok(Some(Dialect::V2_0)));
        assert_eq!(of(&[(NAME, 2018)]), Ok(Some(Dialect::V2018)));
        assert_eq!(of(&[(NAME, 2024)]), Ok(Some(Dialect::Rev)));
        assert_eq!(of(&[(NAME, 21)]), Err(NoteError::Unknown(21)));
        assert_eq!(of(&[(NAME, 20), (NAME, 2018)]), Err(NoteError::Mixed(20, 2018)));
    }

    #[test]
    fn what_is_cut_off_has_no_note() {
        let whole = file(&[(b"GNU\0", 7), (NAME, 20)]);
        for length in 0..whole.len() {
            assert_eq!(dialect_of_program(&whole[..length]), Ok(None), "{length}");
        }
        let mut huge = whole;
        huge[64 + 8..64 + 16].fill(0xff);
        assert_eq!(dialect_of_program(&huge), Ok(None));
    }
}
