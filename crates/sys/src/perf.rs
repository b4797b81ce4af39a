//! Tracepoints through `perf_event_open`, read from a shared ring (kernel: `kernel/events/core.c`,
//! `include/uapi/linux/perf_event.h`). Lost records are counted.

use crate::{Root, SysError};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_types::Pid;

/// A tracepoint: its number and where its fields lie in a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tracepoint {
    /// Number, as `perf_event_open` wants it.
    pub id: u64,
    fields: Vec<(String, usize, usize)>,
}

impl Tracepoint {
    /// Reads the format of `system/event` from tracefs.
    ///
    /// # Errors
    /// [`SysError::Absent`] when tracefs is not mounted or the kernel has no such event.
    pub fn find(root: &Root, system: &str, event: &str) -> Result<Self, SysError> {
        let at = |base: &str| format!("{base}/events/{system}/{event}/format");
        let text = root
            .text(&at("/sys/kernel/tracing"))
            .or_else(|_| root.text(&at("/sys/kernel/debug/tracing")))
            .map_err(|e| SysError::Absent {
                call: "open",
                target: at("/sys/kernel/tracing"),
                errno: e.errno(),
                remedy: "mount -t tracefs nodev /sys/kernel/tracing",
            })?;
        Self::parse(&text).ok_or(SysError::Malformed {
            target: at("/sys/kernel/tracing"),
            what: "no event number",
            line: 0,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut point = Self::default();
        let mut id = None;
        for line in text.lines() {
            let line = line.trim();
            if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if let Some(rest) = line.strip_prefix("field:") {
                let mut parts = rest.split(';');
                let name = parts.next()?.rsplit([' ', '*']).next()?.to_owned();
                let number = |part: Option<&str>| -> Option<usize> {
                    part?.rsplit(':').next()?.trim().parse().ok()
                };
                let (offset, size) = (number(parts.next())?, number(parts.next())?);
                point.fields.push((name, offset, size));
            }
        }
        point.id = id?;
        Some(point)
    }

    /// Where field `name` lies: offset and size in bytes.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<(usize, usize)> {
        self.fields.iter().find(|f| f.0 == name).map(|f| (f.1, f.2))
    }

    /// The unsigned value at `(offset, size)` of a record.
    #[must_use]
    pub fn value(record: &[u8], (offset, size): (usize, usize)) -> Option<u64> {
        let bytes = record.get(offset..offset.checked_add(size)?)?;
        match size {
            8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
            4 => Some(u64::from(u32::from_ne_bytes(bytes.try_into().ok()?))),
            2 => Some(u64::from(u16::from_ne_bytes(bytes.try_into().ok()?))),
            1 => bytes.first().map(|b| u64::from(*b)),
            _ => None,
        }
    }
}

/// `struct perf_event_attr` up to version 5 of its size.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PerfAttr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch: u64,
    pub regs_user: u64,
    pub stack_user: u32,
    pub clockid: i32,
    pub regs_intr: u64,
    pub aux_watermark: u32,
    pub max_stack: u16,
    pub reserved: u16,
}

const TYPE_TRACEPOINT: u32 = 2;
const SAMPLE_RAW: u64 = 1 << 10;
const FLAG_CLOEXEC: u64 = 8;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

const FORMAT_TIMES: u64 = 1 | 2;

/// Opens an event of `task` (-1: of all) on `cpu` (-1: on any), in the group of `leader` if there
/// is one.
pub(crate) fn open_event(
    mut attr: PerfAttr,
    task: i32,
    cpu: i32,
    leader: Option<&OwnedFd>,
    target: &dyn Fn() -> String,
    remedy: &'static str,
) -> Result<OwnedFd, SysError> {
    attr.size = std::mem::size_of::<PerfAttr>() as u32;
    // SAFETY: `attr` has the size it states and outlives the call; the rest are numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_mut(&mut attr),
            libc::c_long::from(task),
            libc::c_long::from(cpu),
            leader.map_or(-1_i64, |fd| i64::from(fd.as_raw_fd())),
            FLAG_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(SysError::last("perf_event_open", target(), remedy));
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A counter of all that happens on `cpu`'s socket: event `config` of the device of type `kind`.
/// Reading gives its count and for how long it was enabled and ran.
pub(crate) fn open_counter(
    kind: u32,
    config: u64,
    cpu: u32,
    target: String,
) -> Result<OwnedFd, SysError> {
    let attr = PerfAttr { kind, config, read_format: FORMAT_TIMES, ..PerfAttr::default() };
    let remedy = "run as root, or grant CAP_PERFMON";
    open_event(attr, -1, cpu as i32, None, &|| target.clone(), remedy)
}

/// An event's ring, mapped.
#[derive(Debug)]
pub(crate) struct MappedRing {
    fd: OwnedFd,
    base: *mut u8,
    page: usize,
    data: usize,
}

// SAFETY: the mapping belongs to the value alone, and its words that the kernel shares are read and
// written as atomics.
unsafe impl Send for MappedRing {}

impl MappedRing {
    /// Maps the ring of `fd`, of `pages` (rounded up to a power of two).
    pub(crate) fn new(
        fd: OwnedFd,
        pages: usize,
        target: &dyn Fn() -> String,
    ) -> Result<Self, SysError> {
        let page = crate::page_size().get() as usize;
        let data = pages.max(1).next_power_of_two() * page;
        // SAFETY: a fresh mapping of the descriptor at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page + data,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let remedy = "raise kernel.perf_event_mlock_kb or run as root";
            return Err(SysError::last("mmap", target(), remedy));
        }
        Ok(Self { fd, base: base.cast(), page, data })
    }

    pub(crate) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Bytes mapped.
    pub(crate) const fn bytes(&self) -> usize {
        self.page + self.data
    }

    /// Appends the bytes of all waiting records to `out` and frees their space.
    pub(crate) fn take(&mut self, out: &mut Vec<u8>) {
        // SAFETY: the mapping has a control page and `data` bytes, and lives as long as `self`,
        // which is borrowed exclusively.
        unsafe { take_records(self.base, self.base.add(self.page), self.data, out) };
    }
}

/// Appends the bytes of all waiting records of a ring to `out` and frees their space.
///
/// # Safety
/// `header` points to the aligned control page of a ring, and `data` to its records, of `size`
/// bytes, a power of two. Both stay mapped during the call, nobody else takes records, and whoever
/// writes them leaves alone what lies between tail and head.
pub(crate) unsafe fn take_records(header: *mut u8, data: *mut u8, size: usize, out: &mut Vec<u8>) {
    // SAFETY: both words lie in the control page, are 8-byte aligned, and are shared with the
    // writer, which is why they are atomics.
    let (head_at, tail_at) = unsafe {
        (&*header.add(DATA_HEAD).cast::<AtomicU64>(), &*header.add(DATA_TAIL).cast::<AtomicU64>())
    };
    let head = head_at.load(Ordering::Acquire);
    let tail = tail_at.load(Ordering::Relaxed);
    // Never more than the ring holds, whatever the words say.
    let bytes = (head.wrapping_sub(tail)).min(size as u64) as usize;
    let from = tail as usize & (size - 1);
    let first = bytes.min(size - from);
    for (at, count) in [(from, first), (0, bytes - first)] {
        // SAFETY: `at + count` is at most `size`, so the bytes lie in the data area; the writer
        // does not write between tail and head until the tail is moved below.
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(data.add(at), count) });
    }
    tail_at.store(head, Ordering::Release);
}

impl Drop for MappedRing {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.page + self.data) };
    }
}

/// Records of one tracepoint made by one task.
#[derive(Debug)]
pub struct PerfRing {
    ring: MappedRing,
    lost: u64,
}

impl PerfRing {
    /// Opens a ring of `pages` (rounded up to a power of two) for records that `task` makes.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] without CAP_PERFMON, [`SysError::Gone`] for no such task.
    pub fn open(point: &Tracepoint, task: Pid, pages: usize) -> Result<Self, SysError> {
        let remedy = "run as root, or grant CAP_PERFMON, or sysctl kernel.perf_event_paranoid=-1";
        let target = || format!("tracepoint {} of task {task}", point.id);
        let attr = PerfAttr {
            kind: TYPE_TRACEPOINT,
            config: point.id,
            sample_period: 1,
            sample_type: SAMPLE_RAW,
            ..PerfAttr::default()
        };
        let fd = open_event(attr, task.0, -1, None, &target, remedy)?;
        Ok(Self { ring: MappedRing::new(fd, pages, &target)?, lost: 0 })
    }

    /// Records lost so far because the ring was full.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes the ring holds.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Hands every waiting record to `each` and frees its space.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        let mut bytes = Vec::new();
        self.ring.take(&mut bytes);
        let mut rest = &bytes[..];
        while let Some(header) = rest.first_chunk::<8>() {
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            let Some(record) = rest.get(8..size) else { break };
            match kind {
                RECORD_SAMPLE => {
                    let length = Tracepoint::value(record, (0, 4)).unwrap_or(0) as usize;
                    if let Some(raw) = record.get(4..4 + length) {
                        each(raw);
                    }
                }
                RECORD_LOST => self.lost += Tracepoint::value(record, (8, 8)).unwrap_or(0),
                _ => {}
            }
            rest = &rest[size..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: damos_before_apply\nID: 512\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;\nprint fmt: \"x\"\n";

    #[test]
    fn formats_tell_where_fields_lie() {
        let point = Tracepoint::parse(FORMAT).unwrap();
        assert_eq!(point.id, 512);
        assert_eq!(point.field("start"), Some((24, 8)));
        assert_eq!(point.field("nr_accesses"), Some((40, 4)));
        assert_eq!(point.field("end"), None);
        assert_eq!(Tracepoint::parse("field:x"), None);
        let mut record = [0_u8; 48];
        record[24] = 7;
        assert_eq!(Tracepoint::value(&record, (24, 8)), Some(7));
        assert_eq!(Tracepoint::value(&record, (44, 8)), None);
        assert_eq!(std::mem::size_of::<PerfAttr>(), 112);
    }

    #[test]
    fn a_ring_opens_or_says_why() {
        let point = match Tracepoint::find(&Root::live(), "sched", "sched_switch") {
            Ok(point) => point,
            Err(e) => return println!("skipped: {e}"),
        };
        match PerfRing::open(&point, Pid(0), 8) {
            Ok(mut ring) => {
                crate::sleep(terrace_types::Nanos::millis(5));
                let mut seen = 0;
                ring.drain(|_| seen += 1);
                assert!(seen > 0 || ring.lost() == 0);
            }
            Err(e) => println!("skipped: {e}"),
        }
    }
}
