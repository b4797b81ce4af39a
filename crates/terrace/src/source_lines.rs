//! Source lines of places in programs, by binutils' addr2line where that is installed.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use terrace_report::Document;
use terrace_trace::CallFrame;

/// Addresses that one call of addr2line is given: its arguments must fit.
pub(crate) const ADDRESSES: usize = 1000;
/// Bytes of a program file's head in which its segments are described; linkers put them there.
const HEAD_BYTES: u64 = 64 << 10;

/// Names the places of a recording's call paths by function, file and line. A place whose program
/// is not here any more, or has no symbols, keeps its file and byte.
pub fn name_callers(document: &mut Document) {
    let mut files: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for frame in document.call_frames() {
        if !frame.file.is_empty() {
            files.entry(frame.file.clone()).or_default().push(frame.offset);
        }
    }
    let mut names = HashMap::new();
    for (file, mut offsets) in files {
        offsets.sort_unstable();
        offsets.dedup();
        let segments = read_segments(Path::new(&file));
        let known: Vec<(u64, u64)> = offsets
            .iter()
            .filter_map(|offset| Some((*offset, address_of(&segments, *offset)?)))
            .collect();
        for some in known.chunks(ADDRESSES) {
            let addresses: Vec<u64> = some.iter().map(|(_, address)| *address).collect();
            let lines = ask_addr2line(&file, &addresses);
            for ((offset, _), line) in some.iter().zip(lines) {
                if let Some(line) = line {
                    names.insert(CallFrame { file: file.clone(), offset: *offset }, line);
                }
            }
        }
    }
    document.name_callers(&names);
}

/// A loaded part of a program file: first byte in the file, bytes there, first address.
type Segment = (u64, u64, u64);

/// The loaded parts of an ELF file of 64 bits, little-endian (`elf(5)`); none of other files.
fn read_segments(path: &Path) -> Vec<Segment> {
    const LOADED: u64 = 1;
    if !is_regular(path) {
        return Vec::new();
    }
    let mut head = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    if read.is_err() || !head.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        return Vec::new();
    }
    let number = |at: usize, bytes: usize| {
        let bytes = at.checked_add(bytes).and_then(|end| head.get(at..end))?;
        Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let table = || {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        Some((usize::try_from(start).ok()?, size as usize, count as usize))
    };
    let Some((start, size, count)) = table() else { return Vec::new() };
    let segment = |i: usize| {
        let at = start.checked_add(i * size)?;
        let loaded = number(at, 4)? == LOADED;
        loaded.then_some((number(at + 8, 8)?, number(at.checked_add(32)?, 8)?, number(at + 16, 8)?))
    };
    (0..count).filter_map(segment).collect()
}

fn address_of(segments: &[Segment], offset: u64) -> Option<u64> {
    segments.iter().find_map(|(from, bytes, address)| {
        let within = offset.checked_sub(*from)?;
        (within < *bytes).then(|| address.saturating_add(within))
    })
}

/// Whether the addresses in an ELF file begin at zero (e_type 3, ET_DYN).
pub(crate) fn is_position_independent(path: &Path) -> bool {
    if !is_regular(path) {
        return false;
    }
    let mut head = [0; 18];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head[16] == 3
}

/// Whether it is a file by its whole path: a recording may name anything, and a pipe would be
/// waited for.
fn is_regular(path: &Path) -> bool {
    path.is_absolute() && std::fs::metadata(path).is_ok_and(|m| m.is_file())
}

/// The function at each offset, and its line.
pub(crate) fn ask_addr2line(path: &str, offsets: &[u64]) -> Vec<Option<String>> {
    let mut command = Command::new("addr2line");
    command.args(["-a", "-f", "-C", "-i", "-e", path]);
    command.args(offsets.iter().map(|o| format!("{o:#x}")));
    let Ok(output) = command.output() else { return Vec::new() };
    innermost_own_lines(&String::from_utf8_lossy(&output.stdout))
}

/// Parts of paths of Rust's library: as it is compiled, and where its sources are installed.
const LIBRARY_PATHS: [&str; 2] = ["/rustc/", "/rustlib/src/rust/library/"];
/// The modules that programs copy, in which flushes and fences are.
const CALL_MODULES: [&str; 2] = ["/terrace_crash.rs:", "/pm.rs:"];

/// Of each address that `addr2line -a -f -i` names, the innermost function that is neither inlined
/// from a header nor of a library; the outermost, if all are.
fn innermost_own_lines(text: &str) -> Vec<Option<String>> {
    let mut found: Vec<Option<String>> = Vec::new();
    let (mut function, mut is_own) = ("", false);
    for line in text.lines() {
        if line.starts_with("0x") {
            found.push(None);
            (function, is_own) = ("", false);
        } else if function.is_empty() {
            function = line;
        } else {
            // "FILE:LINE", perhaps with "(discriminator N)" behind.
            let path = line.split(" (").next().unwrap_or(line);
            let place = path.rsplit('/').next().unwrap_or(path);
            let of_others = |part: &&str| path.contains(*part);
            if let Some(last) = found.last_mut().filter(|_| function != "??" && !is_own) {
                let known = !place.starts_with('?');
                *last = Some(if known { format!("{function} {place}") } else { function.into() });
                is_own = !place.contains(".h:")
                    && !LIBRARY_PATHS.iter().any(of_others)
                    && !CALL_MODULES.iter().any(of_others);
            }
            function = "";
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_line_of_the_program_itself_is_named() {
        let text = "0x10\ncore::sync::atomic::atomic_store\n\
            /rustc/0f2/library/core/src/sync/atomic.rs:4164 (discriminator 2)\n\
            persist\n/src/pm.rs:30\npush\n/src/list.rs:52\nmain\n/src/list.rs:90\n\
            0x20\nflush\n/src/pm.h:9\n0x30\n??\n??:0\n0x40\nfill\nbtree.c:7\n";
        let expected =
            [Some("push list.rs:52"), Some("flush pm.h:9"), None, Some("fill btree.c:7")];
        let expected = expected.map(|line| line.map(str::to_owned)).to_vec();
        assert_eq!(innermost_own_lines(text), expected);
    }

    #[test]
    fn a_byte_of_this_program_has_an_address() {
        let own = std::env::current_exe().unwrap();
        let segments = read_segments(&own);
        assert!(!segments.is_empty());
        let (from, bytes, address) = segments[0];
        assert_eq!(address_of(&segments, from + bytes - 1), Some(address + bytes - 1));
        assert!(read_segments(Path::new("/etc/passwd")).is_empty());
    }
}
