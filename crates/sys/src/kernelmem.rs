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
    virt: u64,
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
    /// Where the file's notes are, and how long.
    notes: Option<(u64, u64)>,
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
        let got = kcore
            .read_at(&mut head, 0)
            .map_err(|e| SysError::from_io("pread", "/proc/kcore", &e, REMEDY))?;
        let (segments, notes) = parse_segments(&head[..got]).ok_or(SysError::Malformed {
            target: "/proc/kcore".to_owned(),
            what: "no program headers with physical addresses",
            line: 0,
        })?;
        Ok(Self { kcore, flags, segments, notes })
    }

    /// Reads one page of physical memory as 64-bit words. False when the frame is not ordinary
    /// memory.
    pub fn read_frame(&self, pfn: u64, words: &mut [u64; 512]) -> bool {
        self.read_words(pfn, 0, words)
    }

    /// Reads the words of a frame from the `first` on, which are no more than it has left.
    pub fn read_words(&self, pfn: u64, first: u64, words: &mut [u64]) -> bool {
        let physical = (pfn << 12) + first * 8;
        let length = 8 * words.len();
        let Some(s) = self
            .segments
            .iter()
            .find(|s| physical >= s.physical && physical - s.physical + length as u64 <= s.bytes)
        else {
            return false;
        };
        // SAFETY: the words are so many initialised bytes, valid for any bit pattern, borrowed
        // mutably here alone.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), length) };
        let read = self.kcore.read_at(bytes, s.offset + (physical - s.physical));
        read.is_ok_and(|read| read == length)
    }

    /// Reads one of the 512 words of a frame; none when that is not ordinary memory.
    pub fn read_word(&self, pfn: u64, index: u64) -> Option<u64> {
        let physical = (pfn << 12) + index % 512 * 8;
        let s = self
            .segments
            .iter()
            .find(|s| physical >= s.physical && physical - s.physical + 8 <= s.bytes)?;
        let mut word = [0; 8];
        let got = self.kcore.read_at(&mut word, s.offset + (physical - s.physical)).ok()?;
        (got == 8).then(|| u64::from_ne_bytes(word))
    }

    /// Reads kernel memory by its address in the kernel's map of all memory; false when that is not
    /// ordinary memory.
    pub fn read_virtual(&self, at: u64, bytes: &mut [u8]) -> bool {
        let len = bytes.len() as u64;
        let within = |s: &&Segment| at >= s.virt && at - s.virt <= s.bytes.saturating_sub(len);
        let Some(s) = self.segments.iter().find(within) else {
            return false;
        };
        matches!(self.kcore.read_at(bytes, s.offset + (at - s.virt)), Ok(got) if got == bytes.len())
    }

    /// The frame at such an address.
    #[must_use]
    pub fn frame_of(&self, at: u64) -> Option<u64> {
        let s = self.segments.iter().find(|s| at >= s.virt && at - s.virt < s.bytes)?;
        Some((at - s.virt + s.physical) >> 12)
    }

    /// The notes in the file, as they are now; the task in them is the caller's.
    #[must_use]
    pub fn notes(&self) -> Option<Vec<u8>> {
        let (offset, bytes) = self.notes?;
        let mut out = vec![0; usize::try_from(bytes).ok()?.min(MOST_NOTES)];
        let got = self.kcore.read_at(&mut out, offset).ok()?;
        out.truncate(got);
        Some(out)
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

/// Bytes of notes read at most; a task takes some ten thousand.
const MOST_NOTES: usize = 1 << 20;

/// What the notes tell (kernel `fs/proc/kcore.c`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notes {
    /// The reader's own `task_struct`.
    pub own_task: Vec<u8>,
    /// Page tables have five levels.
    pub five_levels: bool,
}

const NT_TASKSTRUCT: u32 = 4;

impl Notes {
    /// Reads them; `None` without a task.
    #[must_use]
    pub fn parse(mut bytes: &[u8]) -> Option<Self> {
        let word = |bytes: &[u8], at: usize| {
            Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let (mut own_task, mut five_levels) = (None, false);
        while let (Some(name), Some(size), Some(kind)) =
            (word(bytes, 0), word(bytes, 4), word(bytes, 8))
        {
            let name_end = 12usize.checked_add(name as usize)?;
            let start = name_end.checked_next_multiple_of(4)?;
            let end = start.checked_add(size as usize)?;
            let (Some(name), Some(content)) = (bytes.get(12..name_end), bytes.get(start..end))
            else {
                break;
            };
            if kind == NT_TASKSTRUCT && name.starts_with(b"CORE") {
                own_task = Some(content.to_vec());
            } else if name.starts_with(b"VMCOREINFO") {
                const FIVE: &[u8] = b"NUMBER(pgtable_l5_enabled)=1";
                five_levels = content.windows(FIVE.len()).any(|w| w == FIVE);
            }
            bytes = bytes.get(end.checked_next_multiple_of(4)?..).unwrap_or_default();
        }
        Some(Self { own_task: own_task?, five_levels })
    }
}

/// Memory, and where the notes are.
type Parts = (Vec<Segment>, Option<(u64, u64)>);

/// Reads ELF64 program headers: the segments that have a physical address, and the notes.
fn parse_segments(head: &[u8]) -> Option<Parts> {
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(head.get(at..at.checked_add(8)?)?.try_into().ok()?))
    };
    let half = |at: usize| -> Option<u16> {
        Some(u16::from_ne_bytes(head.get(at..at.checked_add(2)?)?.try_into().ok()?))
    };
    if head.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = usize::try_from(word(32)?).ok()?;
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    if size < 56 {
        return None;
    }
    let (mut segments, mut notes) = (Vec::new(), None);
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
            segments.push(Segment { virt, physical, bytes, offset });
        } else if kind == 4_u32.to_ne_bytes() {
            notes = Some((offset, bytes));
        }
    }
    (!segments.is_empty()).then_some((segments, notes))
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
        let virt = 0xffff_8880_0000_0000;
        let (found, notes) = parse_segments(&header(1, virt, 4096)).unwrap();
        assert_eq!(found, [Segment { virt, physical: 4096, bytes: 8192, offset: 9 }]);
        assert_eq!(notes, None);
        assert_eq!(parse_segments(&header(1, TEXT_BASE, 4096)), None);
        assert_eq!(parse_segments(&header(4, 0, 4096)), None);
        assert_eq!(parse_segments(&header(1, 0, u64::MAX)), None);
    }

    #[test]
    fn notes_give_the_task_and_the_levels() {
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let mut out = Vec::new();
            for w in [name.len() as u32, content.len() as u32, kind] {
                out.extend(w.to_ne_bytes());
            }
            for part in [name, content] {
                out.extend(part);
                out.resize(out.len().next_multiple_of(4), 0);
            }
            out
        };
        let mut all = note(b"CORE\0", 1, &[9; 7]);
        all.extend(note(b"CORE\0", 4, &[1, 2, 3]));
        assert_eq!(Notes::parse(&all), Some(Notes { own_task: vec![1, 2, 3], five_levels: false }));
        all.extend(note(b"VMCOREINFO\0", 0, b"PAGESIZE=4096\nNUMBER(pgtable_l5_enabled)=1\n"));
        assert_eq!(Notes::parse(&all).map(|n| n.five_levels), Some(true));
        assert_eq!(Notes::parse(&all[..20]), None);
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
            let _ = Notes::parse(&bytes);
            if bytes.len() > 5 {
                bytes[..5].copy_from_slice(b"\x7fELF\x02");
                let _ = parse_segments(&bytes);
            }
        }
    }
}
