//! Accesses page by page, from the accessed bits of the target's own page tables.

use crate::large::LargePages;
use std::collections::BTreeMap;
use terrace_engine::{
    Mapping, MappingKind, Observation, PageSamples, Prescan, SampleRequest, TrackError, Tracker,
    TrackerInfo,
};
use terrace_sys::{
    now, sleep, take_turn, task, Clear, ClearRefs, CpuMeter, PageMap, PageTables, Root, SysError,
    TableEntry,
};
use terrace_tracker::huge_pages::{by_bit, HugePageSampling, SetAsideSamples, PAGES};
use terrace_tracker::sample_length::{
    GroupObservation, PageSampleCount, SampleGroup, SampleLengthTuner,
};
use terrace_types::{
    BitSource, Bytes, Nanos, Pid, Request, Tick, TrackerVisibility, Vpn, VpnRange,
};

/// Fruitless scans before it gives up: with their back-off, some ten seconds.
const BLIND: u32 = 6;

/// Bursts in a row without a huge page that could be sampled by itself, after which none is tried
/// any more.
const UNLOOKED: u32 = 3;

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
}

/// One process.
#[derive(Debug)]
struct ObservedProcess {
    ranges: Vec<VpnRange>,
    clear: ClearRefs,
    cleared: Tick,
    waited: Nanos,
    /// By range, by page. Handed on with each report, so that a page costs one byte at a time.
    tallies: Vec<Vec<PageSampleCount>>,
    /// Whole huge pages, in order.
    large: Vec<(Vpn, PageSampleCount)>,
}

impl ObservedProcess {
    fn begin(&mut self) {
        self.waited = Nanos::ZERO;
        self.large.clear();
        self.tallies = self
            .ranges
            .iter()
            .map(|r| vec![PageSampleCount::default(); r.len() as usize])
            .collect();
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
        })
    }

    /// Base pages whose tables were not found at the last `begin`.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Opens the processes of these mappings and finds their tables.
    fn find(&mut self, mappings: &[Mapping]) -> Result<(), TrackError> {
        let mut ranges: BTreeMap<Pid, Vec<VpnRange>> = BTreeMap::new();
        for m in mappings {
            if matches!(m.kind, MappingKind::Anonymous | MappingKind::FilePrivate) {
                ranges.entry(m.pid).or_default().push(m.range);
            }
        }
        self.observed.clear();
        self.unknown = 0;
        for (pid, ranges) in ranges {
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
            for range in &process.ranges {
                self.tables.walk(*pid, *range, |_, words, huge| {
                    let each = huge.unwrap_or(1);
                    for entry in words.iter().map(|w| TableEntry(*w)).filter(|e| e.present()) {
                        present += each;
                        accessed += if entry.accessed() { each } else { 0 };
                    }
                });
            }
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
        Ok(ObservedProcess {
            ranges,
            clear,
            cleared: now(),
            waited: Nanos::ZERO,
            tallies: Vec::new(),
            large: Vec::new(),
        })
    }

    /// Bits go one after the other while the kernel walks, so an interval begins midway.
    fn clear_all(&mut self) {
        self.observed.retain(|_, process| {
            let before = now();
            let kept = process.clear.clear(Clear::Accessed).is_ok();
            process.cleared = midway(before, now());
            kept
        });
    }

    /// Reads the accessed bits into the counts; returns pages found present and accessed.
    fn read_all(&mut self) -> (u64, u64) {
        let (mut present, mut accessed) = (0, 0);
        let tables = &self.tables;
        let apart = !self.whole && self.large.is_some_and(|large| large.on());
        for (pid, process) in &mut self.observed {
            let before = now();
            let large = &mut process.large;
            let first = large.is_empty();
            let mut next = 0;
            for (range, tallies) in process.ranges.iter().zip(&mut process.tallies) {
                tables.walk(*pid, *range, |first_page, words, huge| {
                    let at = (first_page.0 - range.start.0) as usize;
                    let mut note = |tally: &mut PageSampleCount, entry: TableEntry| {
                        if entry.present() {
                            tally.add(entry.accessed());
                            present += 1;
                            accessed += u64::from(entry.accessed());
                        }
                    };
                    if let Some(span) = huge {
                        let entry = TableEntry(words[0]);
                        if span == PAGES {
                            if first {
                                large.push((first_page, PageSampleCount::default()));
                            }
                            // One that came or went midway has not as many samples as there were.
                            next += large[next..].iter().take_while(|l| l.0 < first_page).count();
                            if let Some((_, tally)) =
                                large.get_mut(next).filter(|l| l.0 == first_page)
                            {
                                tally.add(entry.accessed());
                            }
                            if apart {
                                return;
                            }
                        }
                        for tally in &mut tallies[at..at + span as usize] {
                            note(tally, entry);
                        }
                    } else {
                        for (tally, word) in tallies[at..at + words.len()].iter_mut().zip(words) {
                            note(tally, TableEntry(*word));
                        }
                    }
                });
            }
            process.waited += midway(before, now()).since(process.cleared);
        }
        (present, accessed)
    }

    /// Samples of one length, reported.
    fn group(
        &mut self,
        group: SampleGroup,
        seen: &mut Observation,
        slept: &mut Nanos,
    ) -> GroupObservation {
        let mut found = GroupObservation::default();
        self.observed.values_mut().for_each(ObservedProcess::begin);
        for _ in 0..group.samples {
            take_turn();
            self.clear_all();
            let before = now();
            sleep(group.length);
            *slept += now().since(before);
            let (present, accessed) = self.read_all();
            found.present += present;
            found.accessed += accessed;
        }
        found.tally(group.samples, self.observed.values().flat_map(|w| &w.tallies).flatten());
        if let Some(large) = self.large.as_mut().filter(|_| !group.sharp) {
            large.consider(group, self.observed.values().flat_map(|w| &w.large).map(|l| l.1));
        }
        self.report(group.samples, seen);
        found
    }

    /// All samples of a burst; how long it slept.
    fn burst(&mut self, groups: Vec<SampleGroup>, seen: &mut Observation) -> Nanos {
        let (start, mut slept, mut samples) = (now(), Nanos::ZERO, 0);
        for group in groups {
            let found = self.group(group, seen, &mut slept);
            self.aim.learn(group, found, &self.ask);
            samples += group.samples;
        }
        self.aim.took(now().since(start).saturating_sub(slept), samples);
        if self.large.is_some_and(|large| large.on()) {
            self.sample_huge_pages(seen);
        }
        slept
    }

    /// Samples of huge pages by themselves; what ordinary samples told of them is left out.
    fn sample_huge_pages(&mut self, seen: &mut Observation) {
        let Some(mut large) = self.large else { return };
        let (start, mut samples, mut lengths) = (now(), 0, Nanos::ZERO);
        let mut sampled_pages = 0;
        for (pid, process) in self.observed.iter().filter(|(_, process)| !process.large.is_empty())
        {
            let heads: Vec<Vpn> = process.large.iter().map(|l| l.0).collect();
            let before = cached_bytes(&seen.samples);
            let aside = SetAsideSamples::take(&mut seen.samples, *pid);
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
                Ok(reported) if reported.is_empty() => aside.put_back(&mut seen.samples),
                // They went, or the kernel never clears them.
                Ok(reported) if none(&reported) => {
                    self.unsampled += 1;
                    over = self.unsampled >= UNLOOKED;
                    aside.put_back(&mut seen.samples);
                }
                Ok(reported) => {
                    self.unsampled = 0;
                    seen.samples.extend(reported);
                }
                // Gone, not permitted, or none such in this kernel: as before there was this.
                Err(e) => {
                    over = !e.is_gone();
                    aside.put_back(&mut seen.samples);
                }
            }
            seen.memory =
                Bytes((seen.memory.get() + cached_bytes(&seen.samples)).saturating_sub(before));
            if over {
                self.large = None;
                return;
            }
        }
        large.aim.took(now().since(start).saturating_sub(lengths), samples);
        self.large = Some(large);
        self.turn = self.turn.wrapping_add(sampled_pages);
    }

    fn report(&mut self, samples: u8, seen: &mut Observation) {
        for (pid, process) in &mut self.observed {
            let interval = Nanos((process.waited.0 / u64::from(samples.max(1))).max(1));
            for (range, tallies) in process.ranges.iter().zip(process.tallies.drain(..)) {
                let hits: Vec<u8> = tallies.into_iter().map(|t| t.reported(samples)).collect();
                seen.memory += Bytes(hits.len() as u64);
                let all = PageSamples {
                    pid: *pid,
                    start: range.start,
                    sample_count: samples,
                    interval,
                    each: 1,
                    at_random: false,
                    hits,
                };
                let heads: Vec<Vpn> = process.large.iter().map(|l| l.0).collect();
                seen.samples.extend(by_bit(all, &heads));
            }
        }
    }
}

/// What samples page by page take.
fn cached_bytes(samples: &[PageSamples]) -> u64 {
    samples.iter().map(|one| one.hits.len() as u64).sum()
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
            self.observed.values_mut().for_each(ObservedProcess::begin);
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
            let (present, accessed) = self.read_all();
            self.report(1, &mut seen);
            let found = GroupObservation { present, accessed, ..GroupObservation::default() };
            self.aim.learn(
                SampleGroup { length: self.ask.interval, samples: 1, sharp: false },
                found,
                &self.ask,
            );
        } else {
            slept = self.burst(self.aim.groups(&self.ask), &mut seen);
        }
        seen.cpu = self.cpu + work.used(slept);
        self.cpu = Nanos::ZERO;
        Ok(seen)
    }

    fn prescan(&mut self, mappings: &[Mapping]) -> Result<Option<Prescan>, TrackError> {
        let (work, mut slept) = (self.meter.start(), Nanos::ZERO);
        self.find(mappings)?;
        self.observed.values_mut().for_each(ObservedProcess::begin);
        let (mut prescan, mut since) = (Prescan::default(), now());
        for touched in &mut prescan.touched {
            let before = now();
            self.clear_all();
            since = midway(before, now());
            let before = now();
            sleep(Prescan::SAMPLE_LENGTH);
            slept += now().since(before);
            (prescan.present, *touched) = self.read_all();
        }
        let tallies = self.observed.values().flat_map(|w| &w.tallies).flatten();
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
        self.observed.values_mut().for_each(|w| w.tallies.clear());
        prescan.cpu = work.used(slept);
        Ok(Some(prescan))
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(seen.samples.iter().map(|l| l.range().len()).sum::<u64>(), 250);
        drop(memory);
    }
}
