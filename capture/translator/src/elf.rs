//! Loads a program and its interpreter as the kernel would.

use crate::sys;
use alloc::vec::Vec;

/// Where a file's parts were mapped.
pub struct Loaded {
    /// What the file's addresses were moved by.
    pub bias: u64,
    pub entry: u64,
    /// Address, size and number of program headers.
    pub headers: (u64, u64, u64),
    /// The dynamic linker it wants, ending with a zero.
    pub interpreter: Option<Vec<u8>>,
    /// Address, bytes, protection of each part.
    pub parts: Vec<(u64, u64, u64)>,
}

fn word(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes
        .get(at..at + size)
        .map_or(0, |b| b.iter().rev().fold(0, |all, b| all << 8 | u64::from(*b)))
}

/// Bytes of an open file.
fn read_at(file: u64, offset: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut all = alloc::vec![0; bytes];
    let mut got = 0;
    while got < bytes {
        let into = all[got..].as_mut_ptr() as u64;
        // SAFETY: the kernel writes into what is left of `all`.
        let n = unsafe {
            sys::call(sys::PREAD, [file, into, (bytes - got) as u64, offset + got as u64, 0, 0])
        };
        if n <= 0 {
            return None;
        }
        got += n as usize;
    }
    Some(all)
}

/// An open file, closed when it is dropped.
struct File(u64);

impl File {
    fn open(path: &[u8]) -> Option<Self> {
        // SAFETY: paths here end with a zero.
        let file = unsafe { sys::call3(sys::OPEN, path.as_ptr() as u64, 0o2000000, 0) };
        (file >= 0).then_some(Self(file as u64))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { sys::call3(sys::CLOSE, self.0, 0, 0) };
    }
}

/// Whether it is a file for this translator: a 64-bit ELF file for x86-64.
pub fn is_program(path: &[u8]) -> bool {
    let head = File::open(path).and_then(|file| read_at(file.0, 0, 20));
    head.is_some_and(|h| h[..6] == *b"\x7fELF\x02\x01" && h[18..20] == [62, 0])
}

/// Maps the parts of the file of this path, which ends with a zero.
pub fn load(path: &[u8]) -> Result<Loaded, &'static str> {
    const SHORT: &str = "the file is cut off";
    let file = File::open(path).ok_or("it cannot be opened")?;
    let head = read_at(file.0, 0, 64).ok_or(SHORT)?;
    if head[..6] != *b"\x7fELF\x02\x01" || head[18..20] != [62, 0] {
        return Err("it is no 64-bit program for x86-64");
    }
    let (kind, size, count) = (word(&head, 16, 2), word(&head, 54, 2), word(&head, 56, 2));
    let table = read_at(file.0, word(&head, 32, 8), (size * count) as usize).ok_or(SHORT)?;
    let parts =
        || table.chunks_exact(size as usize).filter(|p| word(p, 0, 4) == 1 && word(p, 40, 8) > 0);
    let lowest = parts().map(|p| word(p, 16, 8) & !4095).min().ok_or("it has nothing to load")?;
    let highest =
        parts().map(|p| word(p, 16, 8) + word(p, 40, 8)).max().unwrap_or(0).next_multiple_of(4096);
    let bias = if kind == 3 {
        let align = parts().map(|p| word(p, 48, 8)).max().unwrap_or(4096).max(4096);
        let space = sys::map(0, highest - lowest + align, 0, sys::MAP_NORESERVE)
            .ok_or("there is no space for it")?;
        let at = space.next_multiple_of(align);
        // SAFETY: the ends of what was reserved just now.
        unsafe {
            if at > space {
                sys::call3(sys::MUNMAP, space, at - space, 0);
            }
            if space + align > at {
                sys::call3(sys::MUNMAP, at + highest - lowest, space + align - at, 0);
            }
        }
        at - lowest
    } else {
        if sys::map(lowest, highest - lowest, 0, sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE)
            != Some(lowest)
        {
            return Err("the addresses it wants are taken");
        }
        0
    };
    let mut all = Vec::new();
    for part in parts() {
        all.push(map_part(&file, part, bias).ok_or("a part of it cannot be mapped")?);
    }
    // SAFETY: what lies between the parts was reserved above; nobody uses it.
    unsafe {
        for pair in all.windows(2) {
            let (end, next) = (pair[0].0 + pair[0].1, pair[1].0);
            if end < next {
                sys::call3(sys::MUNMAP, end, next - end, 0);
            }
        }
    }
    let of = |kind: u64| table.chunks_exact(size as usize).find(|p| word(p, 0, 4) == kind);
    let interpreter = of(3).and_then(|p| read_at(file.0, word(p, 8, 8), word(p, 32, 8) as usize));
    let start = word(&head, 32, 8);
    let within = parts().find(|p| word(p, 8, 8) <= start && start < word(p, 8, 8) + word(p, 32, 8));
    let headers =
        of(6).map(|p| word(p, 16, 8)).or(within.map(|p| word(p, 16, 8) + start - word(p, 8, 8)));
    Ok(Loaded {
        bias,
        entry: word(&head, 24, 8) + bias,
        headers: (headers.unwrap_or(0) + bias, size, count),
        interpreter,
        parts: all,
    })
}

fn map_part(file: &File, part: &[u8], bias: u64) -> Option<(u64, u64, u64)> {
    let flags = word(part, 4, 4);
    let protection = flags >> 2 & 1 | flags & 2 | (flags & 1) << 2;
    let (offset, address) = (word(part, 8, 8), word(part, 16, 8) + bias);
    let (in_file, in_memory) = (word(part, 32, 8), word(part, 40, 8));
    let start = address & !4095;
    let end = (address + in_memory).next_multiple_of(4096);
    let file_end = address + in_file;
    let fixed = sys::MAP_PRIVATE | sys::MAP_FIXED;
    // SAFETY: within what `load` reserved.
    unsafe {
        let mut mapped = start;
        if in_file > 0 {
            let from = offset & !4095;
            if sys::call(sys::MMAP, [start, file_end - start, protection, fixed, file.0, from]) < 0
            {
                return None;
            }
            mapped = file_end.next_multiple_of(4096);
        }
        if mapped < end {
            let flags = fixed | sys::MAP_ANONYMOUS;
            if sys::call(sys::MMAP, [mapped, end - mapped, protection, flags, u64::MAX, 0]) < 0 {
                return None;
            }
        }
        // What follows the file's bytes on their last page is zero.
        if in_memory > in_file && protection & 2 != 0 && file_end < mapped {
            core::ptr::write_bytes(file_end as *mut u8, 0, (mapped - file_end) as usize);
        }
    }
    Some((start, end - start, protection))
}

/// The address of a function by the file's own table of symbols, before it is moved.
pub fn symbol(path: &[u8], name: &[u8]) -> Option<u64> {
    let file = File::open(path)?;
    let head = read_at(file.0, 0, 64)?;
    let (at, size, count) = (word(&head, 40, 8), word(&head, 58, 2), word(&head, 60, 2));
    let sections = read_at(file.0, at, (size * count) as usize)?;
    let section = |i: usize| sections.chunks_exact(size as usize).nth(i);
    let table = sections.chunks_exact(size as usize).find(|s| word(s, 4, 4) == 2)?;
    let texts = section(word(table, 40, 4) as usize)?;
    let symbols = read_at(file.0, word(table, 24, 8), word(table, 32, 8) as usize)?;
    let texts = read_at(file.0, word(texts, 24, 8), word(texts, 32, 8) as usize)?;
    symbols.chunks_exact(24).find_map(|s| {
        let text = texts.get(word(s, 0, 4) as usize..)?;
        let is = text.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0));
        (is && s[4] & 15 == 2 && word(s, 8, 8) != 0).then(|| word(s, 8, 8))
    })
}

/// The first line of a file, without its end, as far as it fits 256 bytes.
pub fn first_line(path: &[u8]) -> Option<Vec<u8>> {
    let file = File::open(path)?;
    let mut head = alloc::vec![0u8; 256];
    // SAFETY: the kernel writes into `head`.
    let got = unsafe { sys::call3(sys::READ, file.0, head.as_mut_ptr() as u64, 256) };
    head.truncate(got.max(0) as usize);
    let end = head.iter().position(|b| *b == b'\n').unwrap_or(head.len());
    head.truncate(end);
    Some(head)
}
