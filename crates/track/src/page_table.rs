//! Accesses page by page, from the accessed bits of the target's own page tables.

use crate::large::LargePages;
use crate::spots;
use std::collections::BTreeMap;
use terrace_engine::{
    Mapping, MappingKind, Observation, PageSamples, Prescan, SampleRequest, SpotCheck, TrackError,
    Tracker, TrackerInfo,
};
use terrace_sys::{
    now, sleep, take_turn, task, Clear, ClearRefs, CpuMeter, PageMap, PageTables, Root, SysError,
    TableEntry,
};
use terrace_tracker::huge_pages::{leave_out, stretches, HugePageSampling, PAGES};
use terrace_tracker::sample_length::{
    reads_by_clear, CountHistogram, GroupObservation, PageSampleCount, SampleGroup,
    SampleLengthTuner,
};
use terrace_types::{
    BitSource, Bytes, Nanos, Pid, Request, Tick, TrackerVisibility, Vpn, VpnRange,
};

/// Fruitless scans before it gives up: with their back-off, some ten seconds.
const BLIND: u32 = 6;

/// Bursts in a row without a huge page that could be sampled by itself, after which none is tried
/// any more.
const UNLOOKED: u32 = 3;

/// Pages reported together, as sampled equally long: 0.1 ms of clearing in the lab. Four times as
/// many gave the same on seven programs (docs/adr/0361).
const SEGMENT: usize = 4096;

/// Clears accessed bits (`clear_refs` = 1) and reads them back from the page tables
/// ([`PageTables`]): the only source on a stock kernel that sees reads page by page.
/// How long it samples: [`terrace_tracker::sample_length`].
#[derive(Debug)]
pub struct PageTable {
    root: Root,
    tables: PageTables,
    meter: CpuMeter,
    aim: SampleLengthTuner,
    /// None where huge pages cannot be sampled by themselves.
    large: Option<HugePageSampling>,
    /// Huge pages that had their turn.
    turn: usize,
    /// Bursts in a row in which no huge page could be sampled.
    unsampled: u32,
    ask: SampleRequest,
    observed: BTreeMap<Pid, ObservedProcess>,
    /// Accessed bits were cleared at `begin` for one sample over the whole interval.
    whole: bool,
    cpu: Nanos,
    unknown: u64,
    /// Bits of some pages can be cleared alone, as far as is known.
    spots: bool,
}

/// One process.
#[derive(Debug)]
struct ObservedProcess {
    ranges: Vec<VpnRange>,
    clear: ClearRefs,
    /// From when to when bits were last cleared.
    cleared: (Tick, Tick),
    /// By group of samples.
    found: Vec<FoundAccesses>,
}

/// What one group of samples found of a process.
#[derive(Debug, Default)]
struct FoundAccesses {
    exposure: Exposure,
    /// Pages found present by the last sample.
    present: u64,
    /// By range, by page. Handed on with each report, so that a page costs one byte a group.
    tallies: Vec<Vec<PageSampleCount>>,
    /// Whole huge pages, in order.
    large: Vec<(Vpn, PageSampleCount)>,
}

/// How long pages were sampled, all samples of a group together.
///
/// Bits go one after the other while the kernel walks, and are read one after the other: what is
/// cleared first is sampled longer, by 2 ms of 80,000 pages in the lab.
#[derive(Debug, Clone, Copy, Default)]
struct Exposure {
    /// Of the first page.
    first: Nanos,
    /// Of the last.
    last: Nanos,
}

impl Exposure {
    fn add(&mut self, cleared: (Tick, Tick), read: (Tick, Tick)) {
        self.first += read.0.since(cleared.0);
        self.last += read.1.since(cleared.1);
    }

    /// Of one of `samples`, at the page that so many of so many were cleared before.
    fn at(&self, before: u64, all: u64, samples: u8) -> Nanos {
        let part = before as f64 / all.max(1) as f64;
        let (first, last) = (self.first.get() as f64, self.last.get() as f64);
        let mean = (first + part * (last - first)) / f64::from(samples.max(1));
        Nanos((mean as u64).max(1))
    }
}

impl ObservedProcess {
    fn begin(&mut self, groups: usize) {
        let tallies = |r: &VpnRange| vec![PageSampleCount::default(); r.len() as usize];
        self.found = (0..groups)
            .map(|_| FoundAccesses {
                tallies: self.ranges.iter().map(tallies).collect(),
                ..FoundAccesses::default()
            })
            .collect();
    }

    /// First pages of those found whole by the last group, and touched so often at least.
    fn huge_pages(&self, hits: u8) -> Vec<Vpn> {
        let found = self.found.last().map_or(&[][..], |found| found.large.as_slice());
        found.iter().filter(|(_, tally)| tally.hits() >= hits).map(|(head, _)| *head).collect()
    }
}

impl PageTable {
    /// Opens kernel memory for reading.
    ///
    /// # Errors
    /// As [`PageTables::open`].
    pub fn new(root: Root) -> Result<Self, SysError> {
        let ask = SampleRequest {
            interval: Nanos::millis(50),
            fine: Vec::new(),
            reads: true,
            writes: true,
            relaxed: false,
            quick_scan: false,
        };
        Ok(Self {
            tables: PageTables::open(&root)?,
            meter: CpuMeter::new(),
            root,
            aim: SampleLengthTuner::default(),
            large: Some(HugePageSampling::default()),
            turn: 0,
            unsampled: 0,
            ask,
            observed: BTreeMap::new(),
            whole: false,
            cpu: Nanos::ZERO,
            unknown: 0,
            spots: true,
        })
    }

    /// Base pages whose tables were not found at the last `begin`.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Opens the processes of these mappings and finds their tables.
    fn find(&mut self, mappings: &[Mapping]) -> Result<(), TrackError> {
        self.observed.clear();
        self.unknown = 0;
        for (pid, ranges) in by_process(mappings) {
            match self.process(pid, ranges) {
                Ok(process) => {
                    self.observed.insert(pid, process);
                }
                Err(e) if task::is_over(&self.root, pid, &e) => self.tables.forget(pid),
                Err(e) => {
                    return Err(TrackError::Stopped {
                        tracker: "page-table",
                        why: e.to_string(),
                        remedy: "run as root",
                    })
                }
            }
        }
        if self.tables.failed_scans() > BLIND {
            return Err(TrackError::Stopped {
                tracker: "page-table",
                why: "the target's page tables are not recognised in kernel memory".to_owned(),
                remedy: "use --tracker damon",
            });
        }
        Ok(())
    }

    /// Pages present, and of those the accessed.
    fn count(&self) -> (u64, u64) {
        let (mut present, mut accessed) = (0, 0);
        for (pid, process) in &self.observed {
            self.tables.walk(*pid, &process.ranges, |_, _, words, huge| {
                let each = huge.unwrap_or(1);
                for entry in words.iter().map(|w| TableEntry(*w)).filter(|e| e.present()) {
                    present += each;
                    accessed += if entry.accessed() { each } else { 0 };
                }
            });
        }
        (present, accessed)
    }

    /// Opens one process anew and finds its tables.
    fn process(&mut self, pid: Pid, ranges: Vec<VpnRange>) -> Result<ObservedProcess, SysError> {
        let pagemap = PageMap::open(&self.root, pid)?;
        let clear = ClearRefs::open(&self.root, pid)?;
        let known = self.tables.resolve(pid, &pagemap, &ranges)?;
        if let Some(largest) = ranges.iter().max_by_key(|r| r.len()) {
            self.tables.verify(pid, &pagemap, *largest)?;
        }
        self.unknown += ranges.iter().map(|r| r.len()).sum::<u64>() - known;
        Ok(ObservedProcess { ranges, clear, cleared: (now(), now()), found: Vec::new() })
    }

    fn clear_all(&mut self) {
        self.observed.retain(|_, process| {
            let before = now();
            let kept = process.clear.clear(Clear::Accessed).is_ok();
            process.cleared = (before, now());
            kept
        });
    }

    /// Whether huge pages do not count where samples of base pages are aimed.
    fn apart(&self) -> bool {
        !self.whole && self.large.is_some_and(|large| large.on())
    }

    /// Reads the accessed bits into the counts of a group; returns pages found present, and
    /// accessed.
    fn read_all(&mut self, group: usize) -> (u64, u64) {
        let (mut present, mut accessed) = (0, 0);
        let tables = &self.tables;
        let apart = self.apart();
        for (pid, process) in &mut self.observed {
            let before = now();
            let Some(found) = process.found.get_mut(group) else { continue };
            let others = present;
            let large = &mut found.large;
            let first = large.is_empty();
            let mut next = 0;
            let (ranges, tallies) = (&process.ranges, &mut found.tallies);
            tables.walk(*pid, ranges, |of, first_page, words, huge| {
                let at = (first_page.0 - ranges[of].start.0) as usize;
                let Some(span) = huge else {
                    let tallies = &mut tallies[of][at..at + words.len()];
                    for (tally, word) in tallies.iter_mut().zip(words) {
                        note(tally, TableEntry(*word), &mut present, &mut accessed);
                    }
                    return;
                };
                let entry = TableEntry(words[0]);
                let tallies = &mut tallies[of][at..at + span as usize];
                if span == PAGES {
                    if first {
                        large.push((first_page, PageSampleCount::default()));
                    }
                    // One that came or went midway has not as many samples as there were.
                    next += large[next..].iter().take_while(|l| l.0 < first_page).count();
                    if let Some((_, tally)) = large.get_mut(next).filter(|l| l.0 == first_page) {
                        tally.add(entry.accessed());
                        tallies.fill(*tally);
                        if !apart {
                            present += span;
                            accessed += if entry.accessed() { span } else { 0 };
                        }
                        return;
                    }
                }
                for tally in tallies {
                    note(tally, entry, &mut present, &mut accessed);
                }
            });
            found.exposure.add(process.cleared, (before, now()));
            found.present = present - others;
        }
        (present, accessed)
    }

    /// All samples of a burst; how long it slept. Its groups share what is cleared.
    fn burst(&mut self, groups: &[SampleGroup], seen: &mut Observation) -> Nanos {
        let (start, mut slept) = (now(), Nanos::ZERO);
        let mut found = vec![GroupObservation::default(); groups.len()];
        self.observed.values_mut().for_each(|process| process.begin(groups.len()));
        let clears = reads_by_clear(groups);
        for reads in &clears {
            take_turn();
            self.clear_all();
            let cleared = now();
            for (at, length) in reads {
                let before = now();
                sleep(length.saturating_sub(before.since(cleared)));
                slept += now().since(before);
                let (present, accessed) = self.read_all(*at);
                found[*at].present += present;
                found[*at].accessed += accessed;
            }
        }
        for (at, (group, found)) in groups.iter().zip(&mut found).enumerate() {
            found.tally(group.samples, &self.report(at, group.samples, seen));
            let of = self.observed.values().filter_map(|process| process.found.get(at));
            if let Some(large) = self.large.as_mut().filter(|_| !group.sharp) {
                large.consider(*group, of.flat_map(|of| &of.large).map(|l| l.1));
            }
            self.aim.learn(*group, *found, &self.ask);
        }
        self.aim.took(now().since(start).saturating_sub(slept), clears.len() as u8);
        if self.large.is_some_and(|large| large.on()) {
            self.sample_huge_pages(seen);
        }
        slept
    }

    /// Samples of the huge pages that were touched by themselves; what ordinary samples told of
    /// these is left out.
    fn sample_huge_pages(&mut self, seen: &mut Observation) {
        let Some(mut large) = self.large else { return };
        let (start, mut samples, mut lengths) = (now(), 0, Nanos::ZERO);
        let mut sampled_pages = 0;
        for (pid, process) in &self.observed {
            let heads = process.huge_pages(1);
            if heads.is_empty() {
                continue;
            }
            let reported = LargePages::open(*pid, &heads, self.turn).and_then(|mut pages| {
                let mut reported = Vec::new();
                pages.aim(&self.tables, &mut large.aim, &self.ask)?;
                for group in &large.aim.groups(&self.ask) {
                    let found = pages.group(&self.tables, *group, &mut reported)?;
                    large.aim.learn(*group, found, &self.ask);
                    samples += group.samples;
                    lengths += Nanos(group.length.get() * u64::from(group.samples));
                }
                sampled_pages += pages.len();
                Ok(reported)
            });
            let none = |reported: &[PageSamples]| {
                reported.iter().flat_map(|one| &one.hits).all(|h| *h == PageSamples::NOT_SAMPLED)
            };
            let mut over = false;
            match reported {
                Ok(reported) if reported.is_empty() => {}
                // They went, or the kernel never clears them.
                Ok(reported) if none(&reported) => {
                    self.unsampled += 1;
                    over = self.unsampled >= UNLOOKED;
                }
                Ok(reported) => {
                    self.unsampled = 0;
                    leave_out(&mut seen.samples, *pid, &heads);
                    seen.memory += cached_bytes(&reported);
                    seen.samples.extend(reported);
                }
                // Gone, not permitted, or none such in this kernel: as before there was this.
                Err(e) => over = !e.is_gone(),
            }
            if over {
                self.large = None;
                return;
            }
        }
        large.aim.took(now().since(start).saturating_sub(lengths), samples);
        self.large = Some(large);
        self.turn = self.turn.wrapping_add(sampled_pages);
    }

    /// Reports what a group of samples found, and counts it.
    fn report(&mut self, group: usize, samples: u8, seen: &mut Observation) -> CountHistogram {
        let apart = self.apart();
        let mut all = CountHistogram::default();
        for (pid, process) in &mut self.observed {
            let heads = process.huge_pages(0);
            let Some(found) = process.found.get_mut(group) else { continue };
            let mut counts = CountHistogram::default();
            for (range, tallies) in process.ranges.iter().zip(found.tallies.drain(..)) {
                for (part, each) in stretches(*range, &heads) {
                    let from = (part.start.0 - range.start.0) as usize;
                    let tallies = &tallies[from..from + part.len() as usize];
                    for (part, start) in
                        tallies.chunks(SEGMENT).zip((part.start.0..).step_by(SEGMENT))
                    {
                        let before = counts.present();
                        if each == 1 {
                            counts.extend(part);
                        } else if !apart {
                            part.chunks(PAGES as usize)
                                .for_each(|page| counts.add(page[0], page.len() as u32));
                        }
                        let middle = before.midpoint(counts.present());
                        seen.memory += Bytes(part.len() as u64);
                        seen.samples.push(PageSamples {
                            pid: *pid,
                            start: Vpn(start),
                            sample_count: samples,
                            interval: found.exposure.at(middle, found.present, samples),
                            each,
                            at_random: false,
                            hits: part.iter().map(|t| t.reported(samples)).collect(),
                        });
                    }
                }
            }
            all.merge(&counts);
        }
        all
    }
}

/// Mappings whose pages are sampled.
fn by_process(mappings: &[Mapping]) -> BTreeMap<Pid, Vec<VpnRange>> {
    let mut ranges: BTreeMap<Pid, Vec<VpnRange>> = BTreeMap::new();
    for m in mappings {
        if matches!(m.kind, MappingKind::Anonymous | MappingKind::FilePrivate) {
            ranges.entry(m.pid).or_default().push(m.range);
        }
    }
    ranges
}

/// Counts a page found present, and whether it was accessed.
fn note(tally: &mut PageSampleCount, entry: TableEntry, present: &mut u64, accessed: &mut u64) {
    if entry.present() {
        tally.add(entry.accessed());
        *present += 1;
        *accessed += u64::from(entry.accessed());
    }
}

/// What samples page by page take.
fn cached_bytes(samples: &[PageSamples]) -> Bytes {
    Bytes(samples.iter().map(|one| one.hits.len() as u64).sum())
}

fn midway(from: Tick, to: Tick) -> Tick {
    from.after(Nanos(to.since(from).0 / 2))
}

impl Tracker for PageTable {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "page-table",
            sees: TrackerVisibility {
                reads: true,
                pages: true,
                bits: BitSource::Approximate,
                ..TrackerVisibility::default()
            },
            blind_to:
                "reads as distinct from writes; accesses served by a translation cached before \
                    the sample",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        let work = self.meter.start();
        self.ask = ask.clone();
        self.find(mappings)?;
        self.whole = self.aim.groups(&self.ask).is_empty();
        if self.whole {
            self.observed.values_mut().for_each(|process| process.begin(1));
            self.clear_all();
        }
        self.cpu = work.used(Nanos::ZERO);
        Ok(())
    }

    fn lead(&self) -> Nanos {
        self.aim.lead(&self.ask)
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let work = self.meter.start();
        let mut seen = Observation::default();
        let mut slept = Nanos::ZERO;
        if self.whole {
            let (present, accessed) = self.read_all(0);
            self.report(0, 1, &mut seen);
            let found = GroupObservation { present, accessed, ..GroupObservation::default() };
            self.aim.learn(
                SampleGroup { length: self.ask.interval, samples: 1, sharp: false },
                found,
                &self.ask,
            );
        } else {
            slept = self.burst(&self.aim.groups(&self.ask), &mut seen);
        }
        seen.cpu = self.cpu + work.used(slept);
        self.cpu = Nanos::ZERO;
        Ok(seen)
    }

    fn prescan(&mut self, mappings: &[Mapping]) -> Result<Option<Prescan>, TrackError> {
        let (work, mut slept) = (self.meter.start(), Nanos::ZERO);
        self.find(mappings)?;
        self.observed.values_mut().for_each(|process| process.begin(1));
        let (mut prescan, mut since) = (Prescan::default(), now());
        for touched in &mut prescan.touched {
            let before = now();
            self.clear_all();
            since = midway(before, now());
            let before = now();
            sleep(Prescan::SAMPLE_LENGTH);
            slept += now().since(before);
            (prescan.present, *touched) = self.read_all(0);
        }
        let found = self.observed.values().flat_map(|w| &w.found);
        let tallies = found.flat_map(|found| &found.tallies).flatten();
        prescan.both = tallies.filter(|t| t.hits() == 2).count() as u64;
        for at in Prescan::LATER {
            if prescan.verdict().is_some() {
                break;
            }
            let before = now();
            sleep(at.saturating_sub(before.since(since)));
            let begun = now();
            slept += begun.since(before);
            let (_, touched) = self.count();
            prescan.later.push((midway(begun, now()).since(since), touched));
        }
        self.observed.values_mut().for_each(|w| w.found.clear());
        prescan.cpu = work.used(slept);
        Ok(Some(prescan))
    }

    fn spot_check(
        &mut self,
        mappings: &[Mapping],
        asked: &[(Pid, VpnRange)],
        turn: u64,
    ) -> Result<Option<SpotCheck>, TrackError> {
        if !self.spots {
            return Ok(None);
        }
        let work = self.meter.start();
        let ranges = by_process(mappings);
        if !ranges.iter().all(|(pid, ranges)| self.tables.look_up(*pid, ranges)) {
            self.find(mappings)?;
        }
        let mut processes: Vec<(Pid, &[VpnRange])> = Vec::new();
        processes.extend(ranges.iter().map(|(pid, ranges)| (*pid, ranges.as_slice())));
        let length = self.aim.length().min(Prescan::SAMPLE_LENGTH);
        let checked = spots::check(&self.tables, &processes, (asked, turn), length);
        // Not permitted, or no such advice in this kernel: not again.
        self.spots = checked.is_ok();
        let checked = checked.ok().flatten();
        Ok(checked.map(|(found, slept)| SpotCheck { cpu: work.used(slept), ..found }))
    }

    fn accessed(&mut self, ranges: &[(Pid, VpnRange)]) -> Option<Vec<bool>> {
        let accessed = |(pid, range): &(Pid, VpnRange)| {
            let mut any = false;
            self.tables.walk(*pid, &[*range], |_, _, words, _| {
                any |= words.iter().any(|word| TableEntry(*word).accessed());
            });
            any
        };
        Some(ranges.iter().map(accessed).collect())
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cleared_first_are_sampled_longest() {
        let at = |us: u64| Tick(us * 1_000);
        let mut exposure = Exposure::default();
        // Cleared within 2 ms and read within 0.4, twice, the second time half a millisecond later.
        exposure.add((at(0), at(2_000)), (at(2_100), at(2_500)));
        exposure.add((at(10_000), at(12_000)), (at(12_600), at(13_000)));
        let of = |page| exposure.at(page, 1_000, 2);
        assert_eq!(
            [of(0), of(500), of(1_000)],
            [Nanos::micros(2_350), Nanos::micros(1_550), Nanos::micros(750)]
        );
        assert_eq!(Exposure::default().at(0, 0, 0), Nanos(1), "nothing is there");
    }

    #[test]
    fn own_accesses_are_seen_or_the_reason_is_given() {
        let mut tracker = match PageTable::new(Root::live()) {
            Ok(tracker) => tracker,
            Err(e) => return println!("skipped: {e}"),
        };
        let memory = vec![1_u8; 256 * 4096];
        let first = memory.as_ptr() as u64 / 4096 + 1;
        let range = VpnRange::new(Vpn(first), Vpn(first + 250));
        let pid = Pid(std::process::id() as i32);
        let mapping = Mapping { pid, range, kind: MappingKind::Anonymous, writable: true };
        let ask = tracker.ask.clone();
        tracker.begin(&[mapping], &ask).unwrap();
        let seen = tracker.finish(now()).unwrap();
        // Sharp samples and ordinary ones.
        assert_eq!(seen.samples.iter().map(|l| l.range().len()).sum::<u64>(), 2 * 250);
        assert!(seen.samples.iter().all(|l| l.range().intersect(range) == Some(l.range())));
        drop(memory);
    }

    #[test]
    fn a_spot_check_tells_what_is_accessed_from_what_is_not() {
        let mut tracker = match PageTable::new(Root::live()) {
            Ok(tracker) => tracker,
            Err(e) => return println!("skipped: {e}"),
        };
        const PAGES: usize = 16_384;
        let memory = vec![1_u8; (PAGES + 512) * 4096];
        let first = (memory.as_ptr() as u64 / 4096 + 1).next_multiple_of(512);
        let skipped = (first * 4096 - memory.as_ptr() as u64) as usize;
        let all = VpnRange::new(Vpn(first), Vpn(first + PAGES as u64));
        let half = Vpn(first + PAGES as u64 / 2);
        let pid = Pid(std::process::id() as i32);
        let mapping = Mapping { pid, range: all, kind: MappingKind::Anonymous, writable: true };
        let asked = [Vpn(first), half].map(|at| (pid, VpnRange::new(at, Vpn(at.0 + 64))));
        let ended = std::sync::atomic::AtomicBool::new(false);
        let (touched, found) = std::thread::scope(|scope| {
            let touch = || {
                let mut sum = 0_u64;
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    for page in 0..PAGES / 2 {
                        let byte = std::hint::black_box(&memory)[skipped + page * 4096];
                        sum += u64::from(byte);
                    }
                }
                sum
            };
            let touched = scope.spawn(touch);
            sleep(Nanos::millis(20));
            let found = tracker.spot_check(&[mapping], &asked, 3);
            sleep(Nanos::millis(20));
            let accessed = tracker.accessed(&asked);
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            (touched.join().unwrap(), found.map(|found| (found, accessed)))
        });
        assert!(touched > 0 && memory.iter().all(|byte| *byte == 1));
        let (Some(found), accessed) = found.unwrap() else {
            return println!("skipped: bits of some pages cannot be cleared alone here");
        };
        assert_eq!(accessed, Some(vec![true, false]), "since the bits were cleared");
        assert!(found.share > 0.01 && found.share < 0.2, "{}", found.share);
        let hits = |of: &[PageSamples], below: bool| -> (usize, usize) {
            let those = of.iter().filter(|one| (one.start < half) == below);
            let all: Vec<u8> = those.flat_map(|one| one.hits.clone()).collect();
            (all.iter().filter(|hits| **hits == 1).count(), all.len())
        };
        for of in [&found.spread, &found.asked] {
            let [(hot, of_hot), (cold, of_cold)] = [true, false].map(|below| hits(of, below));
            assert!(of_hot >= 64 && of_cold >= 64, "{of_hot} {of_cold}");
            assert!(hot * 2 > of_hot && cold * 10 < of_cold, "{hot}/{of_hot}, {cold}/{of_cold}");
        }
    }
}
