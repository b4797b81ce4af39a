//! Events that sample memory accesses, each with a ring (kernel: `kernel/events/core.c`,
//! `include/uapi/linux/perf_event.h`). What the records mean is for their reader to know.

use crate::perf::{open_event, take_records, MappedRing, PerfAttr};
use crate::{Root, SysError, UnitMemory, WakeDescriptor};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use terrace_types::{Nanos, Tid};

const FLAG_DISABLED: u64 = 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const FLAG_WATERMARK: u64 = 1 << 14;
/// Of the call chain only the program's part (`exclude_callchain_kernel`).
const FLAG_EXCLUDE_KERNEL_CALLERS: u64 = 1 << 21;
const PRECISE_SHIFT: u32 = 15;
/// `_IO('$', n)` and `_IOW('$', 4, u64)`.
const IOC_ENABLE: u64 = 0x2400;
const IOC_DISABLE: u64 = 0x2401;
const IOC_PERIOD: u64 = 0x4008_2404;

/// What to sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleEvent {
    /// Number of the counter device (`PERF_TYPE_*`, or `type` of the device in sysfs).
    pub device: u32,
    /// Event.
    pub config: u64,
    /// More of the event; latency threshold on Intel.
    pub config1: u64,
    /// More of the event.
    pub config2: u64,
    /// Event that must lead the group (Intel's `mem-loads-aux`).
    pub leader: Option<u64>,
    /// `precise_ip`, 0 to 3.
    pub precise: u8,
    /// Fields of a sample (`enum perf_event_sample_format`).
    pub sample_type: u64,
    /// Accesses by the kernel are sampled too.
    pub kernel: bool,
}

/// Whose accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledTask {
    /// One thread's, on whatever CPU.
    Thread(Tid),
    /// Everybody's on one CPU.
    Cpu(u32),
}

/// One event's ring. It samples nothing until [`SampleRing::enable`].
#[derive(Debug)]
pub struct SampleRing {
    source: RingSource,
}

/// Who writes a ring.
#[derive(Debug)]
enum RingSource {
    /// The kernel.
    Kernel { ring: MappedRing, leader: Option<OwnedFd> },
    /// The lab's sampling unit: where the ring begins, and bytes of its header and its records.
    Unit { memory: Arc<UnitMemory>, offset: usize, header: usize, data: usize },
}

/// `kernel.perf_event_paranoid`; `None`: this kernel has no perf events.
#[must_use]
pub fn perf_paranoia(root: &Root) -> Option<i64> {
    root.text("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

impl SampleRing {
    /// Opens a ring of `pages` (rounded up to a power of two) for every `period`th event; whoever
    /// waits is woken when it is half full.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] by `kernel.perf_event_paranoid`, [`SysError::Gone`] for no such
    /// thread, [`SysError::Absent`] where no hardware counts this event.
    pub fn open(
        event: &SampleEvent,
        task: SampledTask,
        period: u64,
        pages: usize,
    ) -> Result<Self, SysError> {
        let remedy = "run as root, or grant CAP_PERFMON, or lower kernel.perf_event_paranoid";
        let target = || match task {
            SampledTask::Thread(tid) => format!("event {:#x} of thread {tid}", event.config),
            SampledTask::Cpu(cpu) => format!("event {:#x} of CPU {cpu}", event.config),
        };
        let (tid, cpu) = match task {
            SampledTask::Thread(tid) => (tid.0, -1),
            SampledTask::Cpu(cpu) => (-1, i32::try_from(cpu).unwrap_or(i32::MAX)),
        };
        let whose = if event.kernel { 0 } else { FLAG_EXCLUDE_KERNEL } | FLAG_EXCLUDE_HYPERVISOR;
        let leader = match event.leader {
            Some(config) => {
                let flags = FLAG_DISABLED | whose;
                let attr = PerfAttr { kind: event.device, config, flags, ..PerfAttr::default() };
                Some(open_event(attr, tid, cpu, None, &target, remedy)?)
            }
            None => None,
        };
        let disabled = if leader.is_some() { 0 } else { FLAG_DISABLED };
        let bytes = pages.max(1).next_power_of_two() * crate::page_size().get() as usize;
        let attr = PerfAttr {
            kind: event.device,
            config: event.config,
            config1: event.config1,
            config2: event.config2,
            sample_period: period.max(1),
            sample_type: event.sample_type,
            flags: disabled
                | whose
                | FLAG_WATERMARK
                | FLAG_EXCLUDE_KERNEL_CALLERS
                | u64::from(event.precise & 3) << PRECISE_SHIFT,
            wakeup: u32::try_from(bytes / 2).unwrap_or(u32::MAX),
            ..PerfAttr::default()
        };
        let fd = open_event(attr, tid, cpu, leader.as_ref(), &target, remedy)?;
        let ring = MappedRing::new(fd, pages, &target)?;
        Ok(Self { source: RingSource::Kernel { ring, leader } })
    }

    /// A ring of the lab's sampling unit: `offset` bytes from the start of its memory, a header and
    /// `data` bytes of records, a power of two. The unit as a whole is given what to sample, so
    /// this ring can neither be enabled nor given a period by itself. `None` if it does not lie in
    /// the memory.
    #[must_use]
    pub fn of_unit(
        memory: Arc<UnitMemory>,
        offset: usize,
        header: usize,
        data: usize,
    ) -> Option<Self> {
        memory.ring_at(offset, header, data).filter(|_| data.is_power_of_two())?;
        Some(Self { source: RingSource::Unit { memory, offset, header, data } })
    }

    /// Samples from now on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enable(&self) -> Result<(), SysError> {
        self.control(IOC_ENABLE, 0)
    }

    /// Samples no more until it is enabled again.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn disable(&self) -> Result<(), SysError> {
        self.control(IOC_DISABLE, 0)
    }

    /// Another period, from the next sample on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_period(&self, period: u64) -> Result<(), SysError> {
        let period = period.max(1);
        self.control(IOC_PERIOD, std::ptr::from_ref(&period) as u64)
    }

    /// Appends the bytes of all waiting records to `out` and frees their space.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        match &mut self.source {
            RingSource::Kernel { ring, .. } => ring.take(out),
            RingSource::Unit { memory, offset, header, data } => {
                if let Some(start) = memory.ring_at(*offset, *header, *data) {
                    // SAFETY: header and records lie in the mapping, which this value keeps alive;
                    // it is borrowed exclusively; the unit writes beyond the head only.
                    unsafe { take_records(start, start.add(*header), *data, out) };
                }
            }
        }
    }

    /// Bytes that the ring holds.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match &self.source {
            RingSource::Kernel { ring, .. } => ring.bytes(),
            RingSource::Unit { header, data, .. } => *header + *data,
        }
    }

    fn control(&self, request: u64, argument: u64) -> Result<(), SysError> {
        let RingSource::Kernel { ring, leader } = &self.source else { return Ok(()) };
        let leads = leader.as_ref().filter(|_| request != IOC_PERIOD);
        let fd = leads.unwrap_or_else(|| ring.fd());
        // SAFETY: the descriptor is ours and open; the argument is a number, or points to a value
        // that outlives the call.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
        if done < 0 {
            return Err(SysError::last("ioctl", "a sampling event", "see terrace doctor"));
        }
        Ok(())
    }
}

/// Waits until `stop` rings or one of `rings` is half full, at most `limit`; whether `stop` rang.
/// Rings of the lab's unit wake nobody.
#[must_use]
pub fn wait_for_records<'a>(
    rings: impl Iterator<Item = &'a SampleRing>,
    stop: &WakeDescriptor,
    limit: Nanos,
) -> bool {
    let poll =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let of_kernel = rings.filter_map(|ring| match &ring.source {
        RingSource::Kernel { ring, .. } => Some(poll(ring.fd().as_fd())),
        RingSource::Unit { .. } => None,
    });
    let mut polls: Vec<libc::pollfd> =
        std::iter::once(poll(stop.as_fd())).chain(of_kernel).collect();
    let span = libc::timespec {
        tv_sec: (limit.0 / 1_000_000_000) as i64,
        tv_nsec: (limit.0 % 1_000_000_000) as i64,
    };
    // SAFETY: `polls` is a slice of that length and lives across the call, as does `span`; no
    // signal mask is given.
    unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as _, &span, std::ptr::null()) };
    polls[0].revents != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page faults are counted by the kernel itself, so they sample on any machine; with addresses.
    #[test]
    fn page_faults_of_this_thread_come_with_their_addresses() {
        const SOFTWARE: u32 = 1;
        const PAGE_FAULTS: u64 = 2;
        const ADDRESS: u64 = 8;
        let event = SampleEvent {
            device: SOFTWARE,
            config: PAGE_FAULTS,
            sample_type: ADDRESS,
            ..SampleEvent::default()
        };
        // SAFETY: gettid takes no argument and cannot fail.
        let tid = Tid(unsafe { libc::syscall(libc::SYS_gettid) } as i32);
        let mut ring = match SampleRing::open(&event, SampledTask::Thread(tid), 1, 64) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        let page = crate::page_size().get() as usize;
        let touched = 100;
        // A mapping of its own: the allocator may give memory that was touched before.
        let length = touched * page;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let (start, end) = (memory as u64, memory as u64 + length as u64);
        ring.enable().unwrap();
        for i in 0..touched {
            // SAFETY: the page lies within the mapping, which nobody else knows.
            unsafe { memory.cast::<u8>().add(i * page).write_volatile(1) };
        }
        ring.disable().unwrap();
        // SAFETY: the mapping is this test's, and nothing refers to it any more.
        assert_eq!(unsafe { libc::munmap(memory, length) }, 0);
        let mut bytes = Vec::new();
        ring.take(&mut bytes);
        let inside = bytes
            .chunks_exact(16)
            .map(|record| u64::from_ne_bytes(record[8..].try_into().unwrap()))
            .filter(|address| (start..end).contains(address))
            .count();
        // Huge pages may take several at a time.
        assert!(inside > 0, "{} bytes", bytes.len());
        bytes.clear();
        ring.take(&mut bytes);
        assert!(bytes.is_empty(), "taken once");
        ring.set_period(1000).unwrap();
    }

    #[test]
    fn an_event_that_nothing_counts_says_so() {
        let event = SampleEvent { device: 4711, sample_type: 8, ..SampleEvent::default() };
        let error = SampleRing::open(&event, SampledTask::Cpu(0), 1, 1).unwrap_err();
        assert!(error.to_string().starts_with("perf_event_open on event 0x0 of CPU 0"), "{error}");
    }
}
