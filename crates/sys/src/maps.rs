//! `/proc/PID/maps` and the flags of `/proc/PID/smaps` (kernel: `fs/proc/task_mmu.c`).

use crate::{Root, SysError, TEXT_LIMIT};
use terrace_types::Pid;

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapLine {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Where in its file the first byte lies.
    pub offset: u64,
    /// Inode of the file behind it; 0: none.
    pub inode: u64,
    /// Name the kernel shows: a path, `[heap]`, or nothing. Line ends come escaped as `\012`.
    pub name: String,
    /// Flags that matter to moving; all false unless taken from smaps.
    pub flags: VmFlags,
}

/// Flags of a mapping, from smaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VmFlags {
    /// Locked in memory (`lo`).
    pub locked: bool,
    /// hugetlbfs (`ht`).
    pub hugetlb: bool,
    /// Device memory or raw page frames (`io`, `pf`).
    pub io: bool,
    /// All of it counts as soft-dirty, whatever its pages say (`sd`): it was mapped, or something
    /// was mapped beside it that it was merged with, since soft-dirty bits were cleared.
    pub soft_dirty: bool,
}

fn malformed(what: &'static str, line: usize) -> SysError {
    SysError::Malformed { target: "maps".to_owned(), what, line }
}

/// A number in digits of this radix, no others and no sign.
fn number(text: &[u8], radix: u32) -> Option<u64> {
    let digit = |of: &u8| char::from(*of).to_digit(radix).map(u64::from);
    let next = |sum: u64, of: &u8| sum.checked_mul(radix.into())?.checked_add(digit(of)?);
    (!text.is_empty()).then_some(())?;
    text.iter().try_fold(0, next)
}

/// Taken apart as bytes: a control loop reads the mappings of its target some ten times a second.
fn map_line(line: &[u8]) -> Option<MapLine> {
    let spaces = |text: &[u8]| text.iter().take_while(|byte| **byte == b' ').count();
    let mut rest = line;
    let mut field = || {
        rest = &rest[spaces(rest)..];
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (head, tail) = rest.split_at(end);
        rest = tail;
        head
    };
    let addresses = field();
    let dash = addresses.iter().position(|byte| *byte == b'-')?;
    let (start, end) = (number(&addresses[..dash], 16)?, number(&addresses[dash + 1..], 16)?);
    let perms = field();
    let offset = number(field(), 16)?;
    field().contains(&b':').then_some(())?;
    let inode = number(field(), 10)?;
    if perms.len() != 4 || start >= end {
        return None;
    }
    Some(MapLine {
        start,
        end,
        read: perms[0] == b'r',
        write: perms[1] == b'w',
        exec: perms[2] == b'x',
        shared: perms[3] == b's',
        offset,
        inode,
        name: String::from_utf8_lossy(&rest[spaces(rest)..]).into_owned(),
        flags: VmFlags::default(),
    })
}

/// Reads the text of a maps file. An unfinished last line is left out.
///
/// # Errors
/// [`SysError::Malformed`] when a line is not in the kernel's format or addresses go backwards.
pub fn parse_maps(bytes: &[u8]) -> Result<Vec<MapLine>, SysError> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    let lines = end.into_iter().flat_map(|end| bytes[..end].split(|byte| *byte == b'\n'));
    let mut maps: Vec<MapLine> = Vec::new();
    for (at, line) in lines.enumerate() {
        let map = map_line(line).ok_or_else(|| malformed("not a mapping", at + 1))?;
        if maps.last().is_some_and(|last| last.end > map.start) {
            return Err(malformed("addresses go backwards", at + 1));
        }
        maps.push(map);
    }
    Ok(maps)
}

/// Reads the text of an smaps file: the mappings with their flags.
///
/// # Errors
/// As [`parse_maps`].
pub fn parse_smaps(bytes: &[u8]) -> Result<Vec<MapLine>, SysError> {
    let text = String::from_utf8_lossy(bytes);
    let mut maps: Vec<MapLine> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(words) = line.strip_prefix("VmFlags:") {
            let map = maps.last_mut().ok_or_else(|| malformed("flags of no mapping", at + 1))?;
            for word in words.split_ascii_whitespace() {
                match word {
                    "lo" => map.flags.locked = true,
                    "ht" => map.flags.hugetlb = true,
                    "io" | "pf" => map.flags.io = true,
                    "sd" => map.flags.soft_dirty = true,
                    _ => {}
                }
            }
        } else if let Some(map) = map_line(line.as_bytes()) {
            if maps.last().is_some_and(|last| last.end > map.start) {
                return Err(malformed("addresses go backwards", at + 1));
            }
            maps.push(map);
        }
    }
    Ok(maps)
}

/// Mappings of a process, in address order.
///
/// # Errors
/// [`SysError::Gone`] once it has ended; otherwise what the kernel said.
pub fn maps(root: &Root, pid: Pid) -> Result<Vec<MapLine>, SysError> {
    parse_maps(&crate::task::read_of(root, pid, "maps", TEXT_LIMIT)?)
}

/// Mappings with flags; walks all page tables of the process, so ask rarely.
///
/// # Errors
/// As [`maps`].
pub fn smaps(root: &Root, pid: Pid) -> Result<Vec<MapLine>, SysError> {
    parse_smaps(&crate::task::read_of(root, pid, "smaps", TEXT_LIMIT)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn own_mappings_are_read() {
        let own = maps(&Root::live(), Pid(std::process::id() as i32)).unwrap();
        let here = own_mappings_are_read as *const () as u64;
        let code = own.iter().find(|m| m.start <= here && here < m.end).unwrap();
        assert!(code.exec && !code.write && code.inode != 0);
        assert!(own.iter().any(|m| m.name == "[stack]" && m.write && m.inode == 0));
        let flagged = smaps(&Root::live(), Pid(std::process::id() as i32)).unwrap();
        assert!(flagged.len() >= own.len() / 2);
    }

    #[test]
    fn names_with_spaces_and_escapes_survive() {
        let text = b"1000-3000 rw-s 00000000 fe:00 12   /a b\\012c (deleted)\n4000-5000 rw";
        let maps = parse_maps(text).unwrap();
        assert_eq!(maps.len(), 1);
        assert_eq!(maps[0].name, "/a b\\012c (deleted)");
        assert!(maps[0].shared);
    }

    #[test]
    fn damage_is_an_error_with_its_line() {
        let twice = b"1000-3000 rw-p 0 0:0 0\n2000-4000 rw-p 0 0:0 0\n";
        assert!(matches!(parse_maps(twice), Err(SysError::Malformed { line: 2, .. })));
        assert!(parse_maps(b"nonsense\n").is_err() && parse_maps(b"\n").is_err());
        assert!(
            parse_maps(b"").unwrap().is_empty() && parse_maps(b"unfinished").unwrap().is_empty()
        );
        assert!(parse_maps(b"1000-+3000 rw-p 0 0:0 0\n").is_err(), "a sign");
        assert!(parse_smaps(b"VmFlags: lo\n").is_err());
    }

    #[test]
    fn flags_belong_to_the_mapping_above() {
        let text = b"1000-2000 rw-p 0 0:0 0 [heap]\nSize: 4 kB\nVmFlags: rd wr lo mg\n\
                     3000-4000 rw-p 0 0:0 0\nVmFlags: rd ht io\n";
        let maps = parse_smaps(text).unwrap();
        assert!(maps[0].flags.locked && !maps[0].flags.hugetlb);
        assert!(maps[1].flags.hugetlb && maps[1].flags.io && !maps[1].flags.locked);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_maps(&bytes);
            let _ = parse_smaps(&bytes);
        }

        #[test]
        fn nearly_right_lines_are_survived(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "1000-2000", " ", "rw-p", "0", "00:00", "\n", "ffffffffffffffff", "-", "[heap]",
                    "VmFlags:", "lo", "sd", "\\012", "é",
                ]), 0..60)
        ) {
            let text = parts.concat();
            let _ = parse_maps(text.as_bytes());
            let _ = parse_smaps(text.as_bytes());
        }
    }
}
