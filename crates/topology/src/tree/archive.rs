//! The tar format (POSIX.1-1988 ustar, with the pax and GNU extensions for long names), as little
//! of it as a tree of small text files needs. Archives written here are the same for the same tree:
//! sorted, no owners, no times.

use super::{MemoryTree, MAX_FILE};
use crate::error::TopologyError;
use std::io::{self, Write};

const BLOCK: usize = 512;
/// Most entries that are read.
const MAX_ENTRIES: usize = 400_000;
/// Most bytes of content that are kept.
const MAX_CONTENT: usize = 256 << 20;
/// Longest name or link target.
const MAX_NAME: usize = 4096;

/// Reads an archive. `name` stands in messages.
pub fn read_archive(bytes: &[u8], name: &str) -> Result<MemoryTree, TopologyError> {
    let mut tree = MemoryTree::new();
    let mut at = 0;
    let (mut entries, mut content) = (0, 0);
    let (mut long_name, mut long_link): (Option<String>, Option<String>) = (None, None);
    let damaged = |offset, why| TopologyError::Archive { path: name.to_owned(), offset, why };
    while let Some(header) = bytes.get(at..at + BLOCK) {
        if header.iter().all(|b| *b == 0) {
            break;
        }
        check_sum(header).map_err(|why| damaged(at, why))?;
        let size = octal(&header[124..136]).ok_or_else(|| damaged(at, "size is no number"))?;
        let size = usize::try_from(size).map_err(|_| damaged(at, "size is beyond reason"))?;
        let start = at + BLOCK;
        let kind = header[156];
        // Links and folders have no content, whatever the size field says (POSIX.1-1988).
        let size = if matches!(kind, b'1' | b'2' | b'3' | b'4' | b'5' | b'6') { 0 } else { size };
        let end = start.checked_add(size).filter(|end| *end <= bytes.len());
        let data = &bytes[start..end.ok_or_else(|| damaged(at, "content is cut off"))?];
        match kind {
            b'x' => {
                (long_name, long_link) = pax(data).ok_or_else(|| damaged(at, "bad pax header"))?
            }
            b'L' => long_name = Some(c_string(data)),
            b'K' => long_link = Some(c_string(data)),
            _ => {
                let path = long_name.take().unwrap_or_else(|| header_name(header));
                let target = long_link.take().unwrap_or_else(|| c_string(&header[157..257]));
                if path.len() > MAX_NAME || target.len() > MAX_NAME {
                    return Err(damaged(at, "a name longer than 4096 bytes"));
                }
                match kind {
                    b'0' | 0 | b'7' => {
                        content += size.min(MAX_FILE);
                        tree.file(&path, data);
                    }
                    b'2' => {
                        tree.link(&path, &target);
                    }
                    // A hard link names another entry from the archive's root.
                    b'1' => {
                        tree.link(&path, &format!("/{target}"));
                    }
                    b'5' => {
                        tree.folder(&path);
                    }
                    _ => {}
                }
            }
        }
        entries += 1;
        if entries > MAX_ENTRIES || content > MAX_CONTENT {
            let (limit, unit) = (MAX_ENTRIES, "entries, or 256 MiB of files");
            return Err(TopologyError::TooLarge { path: name.to_owned(), limit, unit });
        }
        at = start + size.div_ceil(BLOCK) * BLOCK;
    }
    if entries == 0 {
        return Err(damaged(0, "no entry"));
    }
    Ok(tree)
}

fn check_sum(header: &[u8]) -> Result<(), &'static str> {
    let stated = octal(&header[148..156]).ok_or("checksum is no number")?;
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, b)| if (148..156).contains(&at) { u64::from(b' ') } else { u64::from(*b) })
        .sum();
    if sum == stated {
        Ok(())
    } else {
        Err("checksum differs")
    }
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let text = text.trim_matches(|c: char| c == ' ' || c == '\0');
    if text.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(text, 8).ok()
}

fn c_string(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end.min(MAX_NAME + 1)]).into_owned()
}

fn header_name(header: &[u8]) -> String {
    let name = c_string(&header[..100]);
    let prefix = c_string(&header[345..500]);
    // Old GNU archives keep other things where ustar has the prefix.
    let ustar = &header[257..263] == b"ustar\0";
    if ustar && !prefix.is_empty() {
        format!("{prefix}/{name}")
    } else {
        name
    }
}

/// `path` and `linkpath` of a pax header: records `LENGTH KEY=VALUE\n`.
fn pax(mut data: &[u8]) -> Option<(Option<String>, Option<String>)> {
    let (mut path, mut link) = (None, None);
    while !data.is_empty() {
        let space = data.iter().take(20).position(|b| *b == b' ')?;
        let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
        let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|b| *b == b'=')?;
        match &record[..equals] {
            b"path" => path = Some(c_string(&record[equals + 1..])),
            b"linkpath" => link = Some(c_string(&record[equals + 1..])),
            _ => {}
        }
        data = &data[length..];
    }
    Some((path, link))
}

/// Writes an archive, entry by entry.
pub struct Archive<'w> {
    out: &'w mut dyn Write,
}

impl<'w> Archive<'w> {
    /// An archive written to `out`.
    pub fn new(out: &'w mut dyn Write) -> Self {
        Self { out }
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.header(path, "", content.len(), b'0', 0o444)?;
        self.content(content)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.header(path, target, 0, b'2', 0o777)
    }

    /// Ends the archive.
    pub fn finish(self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()
    }

    fn content(&mut self, content: &[u8]) -> io::Result<()> {
        self.out.write_all(content)?;
        let rest = content.len().div_ceil(BLOCK) * BLOCK - content.len();
        self.out.write_all(&[0; BLOCK][..rest])
    }

    fn header(
        &mut self,
        path: &str,
        target: &str,
        size: usize,
        kind: u8,
        mode: u32,
    ) -> io::Result<()> {
        let split = split_name(path);
        if split.is_none() || target.len() > 100 {
            let mut records = pax_record("path", path);
            if !target.is_empty() {
                records += &pax_record("linkpath", target);
            }
            let block = raw_header(("", "pax"), "", records.len(), b'x', 0o444);
            self.out.write_all(&block)?;
            self.content(records.as_bytes())?;
        }
        let short: String = target.chars().take(25).collect();
        let target = if target.len() > 100 { &short } else { target };
        let block = raw_header(split.unwrap_or(("", "long")), target, size, kind, mode);
        self.out.write_all(&block)
    }
}

/// Prefix and name within their fields of 155 and 100 bytes.
fn split_name(path: &str) -> Option<(&str, &str)> {
    if path.len() <= 100 {
        return Some(("", path));
    }
    path.match_indices('/')
        .map(|(at, _)| (&path[..at], &path[at + 1..]))
        .find(|(prefix, name)| prefix.len() <= 155 && name.len() <= 100 && !name.is_empty())
}

fn pax_record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    // The length counts its own digits.
    let mut length = rest.len() + 1;
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}")
}

fn raw_header(
    (prefix, name): (&str, &str),
    target: &str,
    size: usize,
    kind: u8,
    mode: u32,
) -> [u8; BLOCK] {
    let mut block = [0u8; BLOCK];
    let mut put =
        |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(157, target);
    put(257, "ustar\x0000");
    put(345, prefix);
    block[156] = kind;
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{FileKind, FileTree};
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let long = "sys/".to_owned() + &"a/".repeat(80) + "x";
        let very = "y".repeat(300);
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("sys/one", b"1\n").unwrap();
        archive.file(&long, b"").unwrap();
        archive.file(&very, &[7; 1000]).unwrap();
        archive.link("sys/two", "one").unwrap();
        archive.link("sys/far", &long).unwrap();
        archive.finish().unwrap();
        let tree = read_archive(&bytes, "t").unwrap();
        assert_eq!(tree.read("sys/one").unwrap(), b"1\n");
        assert_eq!(tree.read(&long).unwrap(), b"");
        assert_eq!(tree.read(&very).unwrap(), [7; 1000]);
        assert_eq!(tree.entry("sys/two"), FileKind::Link("one".to_owned()));
        assert_eq!(tree.entry("sys/far"), FileKind::Link(long));
        assert_eq!(tree.list("sys").unwrap(), ["a", "far", "one", "two"]);
    }

    #[test]
    fn damage_is_one_clear_line() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("sys/one", &[b'x'; 700]).unwrap();
        archive.finish().unwrap();
        let cut = read_archive(&bytes[..900], "t").unwrap_err().to_string();
        assert!(cut.contains("content is cut off"), "{cut}");
        bytes[3] ^= 1;
        let bad = read_archive(&bytes, "t").unwrap_err().to_string();
        assert!(bad.contains("checksum differs"), "{bad}");
        assert!(read_archive(&[], "t").is_err());
        assert!(read_archive(&[0; 1024], "t").is_err());
    }
}
