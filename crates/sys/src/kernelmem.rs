//! Kernel memory by frame number, read only: `/proc/kcore` for contents and `/proc/kpageflags`
//! for what a frame is (kernel: `fs/proc/kcore.c`, `fs/proc/page.c`). Used for one purpose:
//! reading the page tables of a target, whose accessed bits no other stock interface shows.

use crate::{Root, SysError};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Flags of one frame (`include/uapi/linux/kernel-page-flags.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Frame(pub u64);

impl Frame {
    /// Part of a KSM page.
    #[must_use]
    pub const fn ksm(self) -> bool {
        self.0 >> 21 & 1 == 1
    }

    /// Part of a transparent huge page.
    #[must_use]
    pub const fn thp(self) -> bool {
        self.0 >> 22 & 1 == 1
    }

    /// Holds a page table.
    #[must_use]
    pub const fn page_table(self) -> bool {
        self.0 >> 26 & 1 == 1
    }
}

/// One run of physical memory in the kcore file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    physical: u64,
    bytes: u64,
    offset: u64,
}

/// Open kcore and kpageflags.
#[derive(Debug)]
pub struct KernelMemory {
    kcore: File,
    flags: File,
    segments: Vec<Segment>,
}

const REMEDY: &str = "run as root on a kernel with CONFIG_PROC_KCORE that is not locked down";
/// Addresses of the kernel's own text: its segment repeats memory that others hold.
const TEXT_BASE: u64 = 0xffff_ffff_8000_0000;

impl KernelMemory {
    /// Opens both files.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] without CAP_SYS_RAWIO or under lockdown, [`SysError::Absent`]
    /// on a kernel without kcore.
    pub fn open(root: &Root) -> Result<Self, SysError> {
        let open = |path: &str| {
            std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_CLOEXEC)
                .open(root.path(path))
                .map_err(|e| SysError::from_io("open", path, &e, REMEDY))
        };
        let kcore = open("/proc/kcore")?;
        let flags = open("/proc/kpageflags")?;
        let mut head = vec![0_u8; 1 << 16];
        let got = kcore.read_at(&mut head, 0).map_err(|e| SysError::from_io("pread", "/proc/kcore", &e, REMEDY))?;
        let segments = parse_segments(&head[..got]).ok_or(SysError::Malformed {
            target: "/proc/kcore".to_owned(),
            what: "no program headers with physical addresses",
            line: 0,
        })?;
        Ok(Self { kcore, flags, segments })
    }

    /// Reads one page of physical memory as 64-bit words. False when the frame is not ordinary
    /// memory.
    pub fn read_frame(&self, pfn: u64, words: &mut [u64; 512]) -> bool {
        let physical = pfn << 12;
        let Some(s) = self.segments.iter().find(|s| physical >= s.physical && physical - s.physical + 4096 <= s.bytes)
        else {
            return false;
        };
        // SAFETY: 512 words are 4096 initialised bytes, valid for any bit pattern, borrowed
        // mutably here alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), 4096) };
        matches!(self.kcore.read_at(bytes, s.offset + (physical - s.physical)), Ok(4096))
    }

    /// Flags of the frames from `first`; shorter at the end of memory.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn frames(&self, first: u64, count: usize) -> Result<Vec<Frame>, SysError> {
        let mut bytes = vec![0_u8; count * 8];
        let got = self
            .flags
            .read_at(&mut bytes, first.saturating_mul(8))
            .map_err(|e| SysError::from_io("pread", "/proc/kpageflags", &e, REMEDY))?;
        let whole = bytes[..got].chunks_exact(8);
        Ok(whole.map(|c| Frame(u64::from_ne_bytes(c.try_into().unwrap_or_default()))).collect())
    }
}

/// Reads ELF64 program headers: the segments that have a physical address.
fn parse_segments(head: &[u8]) -> Option<Vec<Segment>> {
    let word =
        |at: usize| -> Option<u64> { Some(u64::from_ne_bytes(head.get(at..at.checked_add(8)?)?.try_into().ok()?)) };
    let half =
        |at: usize| -> Option<u16> { Some(u16::from_ne_bytes(head.get(at..at.checked_add(2)?)?.try_into().ok()?)) };
    if head.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = usize::try_from(word(32)?).ok()?;
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    if size < 56 {
        return None;
    }
    let mut segments = Vec::new();
    for at in 0..count {
        let base = table.checked_add(at.checked_mul(size)?)?;
        let Some(kind) = head.get(base..base.checked_add(4)?) else {
            break;
        };
        let (Some(offset), Some(virt), Some(physical), Some(bytes)) =
            (word(base + 8), word(base + 16), word(base + 24), word(base + 32))
        else {
            break;
        };
        if kind == 1_u32.to_ne_bytes() && physical != u64::MAX && virt < TEXT_BASE {
            segments.push(Segment { physical, bytes, offset });
        }
    }
    (!segments.is_empty()).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: u32, virt: u64, physical: u64) -> Vec<u8> {
        let mut head = vec![0_u8; 64 + 56];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        head[32..40].copy_from_slice(&64_u64.to_ne_bytes());
        head[54..56].copy_from_slice(&56_u16.to_ne_bytes());
        head[56..58].copy_from_slice(&1_u16.to_ne_bytes());
        head[64..68].copy_from_slice(&kind.to_ne_bytes());
        for (at, value) in [(72, 9_u64), (80, virt), (88, physical), (96, 8192)] {
            head[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        head
    }

    #[test]
    fn physical_segments_are_found() {
        let found = parse_segments(&header(1, 0xffff_8880_0000_0000, 4096)).unwrap();
        assert_eq!(found, [Segment { physical: 4096, bytes: 8192, offset: 9 }]);
        assert_eq!(parse_segments(&header(1, TEXT_BASE, 4096)), None);
        assert_eq!(parse_segments(&header(4, 0, 4096)), None);
        assert_eq!(parse_segments(&header(1, 0, u64::MAX)), None);
    }

    #[test]
    fn live_kcore_reads_or_says_why() {
        match KernelMemory::open(&Root::live()) {
            Ok(memory) => assert!(!memory.frames(0, 16).unwrap().is_empty()),
            Err(e) => println!("skipped: {e}"),
        }
    }

    proptest! {
        #[test]
        fn any_header_is_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_segments(&bytes);
            if bytes.len() > 5 {
                bytes[..5].copy_from_slice(b"\x7fELF\x02");
                let _ = parse_segments(&bytes);
            }
        }
    }
}
