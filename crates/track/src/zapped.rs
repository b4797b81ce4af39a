//! Accesses to shared memory of this process, page by page and without counters.

use std::sync::Arc;
use terrace_engine::{
    Mapping, Observation, RangeObservation, SampleRequest, TrackError, Tracker, TrackerInfo,
};
use terrace_sys::{now, page_size, Category, CpuMeter, PageMap, Root, SharedFile, SysError, Uffd};
use terrace_types::{
    BitSource, Bytes, Nanos, Pid, Request, Tick, TrackerVisibility, Vpn, VpnRange,
};

/// A page's first access after its entry was taken away, measured on a server under Linux 6.12: the
/// program waits for it, and it is charged here.
const MINOR_FAULT: Nanos = Nanos(1_500);

/// Takes the page-table entries of an interval's memory away and looks at its end which came back.
/// The contents stay in the file. The memory is registered for write-protection by userfaultfd, of
/// which nothing is ever protected: in such memory the kernel maps no neighbours of a page that was
/// touched (`uffd_disable_fault_around`), so that each page that came back was accessed.
#[derive(Debug)]
pub struct ZappedMappings {
    pid: Pid,
    pages: PageMap,
    files: Vec<Arc<SharedFile>>,
    /// Its end would end the registration.
    _registered: Uffd,
    observed: Vec<VpnRange>,
    since: Tick,
    meter: CpuMeter,
    begin_cpu: Nanos,
}

impl ZappedMappings {
    /// Tracks what this process does to `files` through their mappings.
    ///
    /// # Errors
    /// [`TrackError::Stopped`] where the kernel lacks userfaultfd, write-protection of shared
    /// memory, or `PAGEMAP_SCAN` (Linux 6.7).
    pub fn new(root: &Root, files: Vec<Arc<SharedFile>>) -> Result<Self, TrackError> {
        let pid = Pid(i32::try_from(std::process::id()).unwrap_or(i32::MAX));
        let uffd = Uffd::open().map_err(|e| stopped(&e))?;
        files.iter().try_for_each(|file| file.register(&uffd)).map_err(|e| stopped(&e))?;
        let pages = PageMap::open(root, pid).map_err(|e| stopped(&e))?;
        let none = VpnRange::new(Vpn(0), Vpn(0));
        let present = Category::PRESENT;
        pages.scan(none, present, present, |_, _| {}).map_err(|e| stopped(&e))?;
        Ok(Self {
            pid,
            pages,
            files,
            _registered: uffd,
            observed: Vec::new(),
            since: Tick::ZERO,
            meter: CpuMeter::new(),
            begin_cpu: Nanos::ZERO,
        })
    }

    /// Takes the entries of a range away, as far as it lies in the files.
    fn zap(&mut self, range: VpnRange) -> Result<(), SysError> {
        let page = page_size().get();
        for file in &self.files {
            let first = file.as_ptr() as u64 / page;
            let behind = first + (file.len() as u64).div_ceil(page);
            let (start, end) = (range.start.0.max(first), range.end.0.min(behind));
            if start < end {
                let bytes = |vpn: u64| ((vpn - first) * page) as usize;
                file.zap(bytes(start)..bytes(end))?;
                self.observed.push(VpnRange::new(Vpn(start), Vpn(end)));
            }
        }
        Ok(())
    }
}

impl Tracker for ZappedMappings {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "zapped mappings",
            sees: TrackerVisibility {
                reads: true,
                writes: false,
                pages: true,
                cells: false,
                bits: BitSource::Exact,
                sampled: false,
            },
            blind_to: "memory other than shared memory of this process, and other processes' \
                       accesses to it",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], _ask: &SampleRequest) -> Result<(), TrackError> {
        let work = self.meter.start();
        self.observed.clear();
        let own = self.pid;
        for mapping in mappings.iter().filter(|m| m.pid == own) {
            self.zap(mapping.range).map_err(|e| stopped(&e))?;
        }
        self.observed.sort_unstable_by_key(|range| range.start);
        self.since = now();
        self.begin_cpu = work.used(Nanos::ZERO);
        Ok(())
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let work = self.meter.start();
        let interval = now().since(self.since);
        let mut seen = Observation::default();
        let mut accessed_pages = 0;
        for range in std::mem::take(&mut self.observed) {
            let mut tell = |range: VpnRange, hits: u16| {
                if !range.is_empty() {
                    seen.observations.push(RangeObservation {
                        pid: self.pid,
                        range,
                        hits,
                        sample_count: 1,
                        interval,
                        writes_only: false,
                        every_page: true,
                    });
                }
            };
            let mut at = range.start;
            let present = Category::PRESENT;
            let each = |found: VpnRange, _| {
                tell(VpnRange::new(at, found.start), 0);
                tell(found, 1);
                accessed_pages += found.len();
                at = found.end;
            };
            self.pages.scan(range, present, present, each).map_err(|e| stopped(&e))?;
            tell(VpnRange::new(at, range.end), 0);
        }
        let each = std::mem::size_of::<RangeObservation>() as u64;
        seen.memory = Bytes(seen.observations.len() as u64 * each);
        seen.cpu = self.begin_cpu + work.used(Nanos::ZERO) + Nanos(MINOR_FAULT.0 * accessed_pages);
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

fn stopped(why: &SysError) -> TrackError {
    TrackError::Stopped {
        tracker: "zapped mappings",
        why: why.to_string(),
        remedy: "try another tracker, or see terrace doctor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use terrace_engine::MappingKind;

    /// The kernel reads and writes through the mapping as the program would, page faults included.
    #[test]
    fn pages_of_shared_memory_that_were_read_or_written_are_found_and_keep_their_contents() {
        let page = page_size().get();
        const PAGES: u64 = 600;
        let file = Arc::new(SharedFile::unnamed((PAGES * page) as usize).unwrap());
        let mut tracker = match ZappedMappings::new(&Root::live(), vec![file.clone()]) {
            Ok(tracker) => tracker,
            Err(why) => return println!("skipped: {why}"),
        };
        let memory = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem");
        let memory = memory.unwrap();
        let start = file.as_ptr() as u64;
        let write = |at: u64, byte: u8| memory.write_all_at(&[byte], start + at * page).unwrap();
        let read = |at: u64| {
            let mut byte = [0];
            memory.read_exact_at(&mut byte, start + at * page).unwrap();
            byte[0]
        };
        (0..PAGES).for_each(|at| write(at, at as u8));
        let range = VpnRange::new(Vpn(start / page), Vpn(start / page + PAGES));
        let pid = Pid(std::process::id() as i32);
        let mapping = Mapping { pid, range, kind: MappingKind::Shared, writable: true };
        let ask = SampleRequest {
            interval: Nanos(1),
            fine: vec![],
            reads: true,
            writes: true,
            relaxed: false,
            quick_scan: false,
        };
        for accessed in [vec![3, 4, 9, 511, 599], vec![], (0..PAGES).collect()] {
            tracker.begin(&[mapping], &ask).unwrap();
            for at in &accessed {
                assert_eq!(read(*at), *at as u8, "its contents stay");
                if at % 2 == 0 {
                    write(*at, *at as u8);
                }
            }
            let seen = tracker.finish(now()).unwrap();
            let pages = |hits: u16| {
                let of = seen.observations.iter().filter(move |o| o.hits == hits);
                of.flat_map(|o| o.range.start.0..o.range.end.0).map(|vpn| vpn - range.start.0)
            };
            assert_eq!(pages(1).collect::<Vec<_>>(), accessed);
            assert_eq!(pages(0).count() as u64, PAGES - accessed.len() as u64);
            assert!(seen.cpu.0 >= MINOR_FAULT.0 * accessed.len() as u64);
        }
    }
}
