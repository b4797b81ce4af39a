//! Accesses page by page, from the accessed bits of the target's own page tables.

use std::collections::BTreeMap;
use terrace_engine::{Ask, Mapping, MappingKind, Observation, PageLooks, TrackError, Tracker, TrackerInfo};
use terrace_sys::{now, sleep, Clear, ClearRefs, CpuMeter, PageMap, PageTables, Root, SysError, TableEntry};
use terrace_types::{BitSource, Bytes, Nanos, Pid, Request, Sees, Tick, VpnRange};

/// Looks in one burst, and in one while relaxed.
const LOOKS: (u8, u8) = (8, 3);
/// Shortest and first window of a burst.
const SHORTEST: Nanos = Nanos::micros(400);
const FIRST: Nanos = Nanos::millis(2);
const SHARPEST: Nanos = Nanos::micros(50);
/// Fruitless scans before it gives up: with their back-off, some ten seconds.
const BLIND: u32 = 6;
/// Share of pages seen in a window, in thousandths, between which its length is left alone.
const AIM: (u64, u64) = (80, 350);
/// Share of pages found accessed in every look, in thousandths, from which some looks are made sharp.
const SATURATED: u64 = 5;
/// Of those pages, the share seen in a sharp look, in thousandths.
const SHARP_AIM: (u64, u64) = (300, 700);

/// Clears accessed bits (`clear_refs` = 1) and reads them back from the page tables
/// ([`PageTables`]): the only source on a stock kernel that sees reads page by page.
///
/// A window that nearly every page is touched in tells nothing about which are hot. So `finish`
/// makes a burst of short looks whose length follows the share of pages found accessed; where
/// pages are touched too rarely for that, one look spans the engine's whole window.
///
/// A page touched in every look of a burst may be touched a little more often than once a look, or a
/// thousand times. Where there are such pages, half of the looks are made so short that they miss a
/// part of them: a few very hot pages among many warm ones (an array of vertices beside its edges).
#[derive(Debug)]
pub struct PageTable {
    root: Root,
    tables: PageTables,
    meter: CpuMeter,
    window: Nanos,
    /// Length of a sharp look, where some are made.
    sharp: Option<Nanos>,
    /// Share of pages found accessed in every look lately, in thousandths.
    saturated: u64,
    /// What clearing and reading took in the last look, beside the window.
    overhead: Nanos,
    ask: Ask,
    watched: BTreeMap<Pid, Watch>,
    /// Accessed bits were cleared at `begin` for one look over the whole window.
    whole: bool,
    cpu: Nanos,
    unknown: u64,
}

/// One process.
#[derive(Debug)]
struct Watch {
    ranges: Vec<VpnRange>,
    clear: ClearRefs,
    cleared: Tick,
    waited: Nanos,
    /// By range, by page: looks that found it present, and those that found it accessed.
    counts: Vec<Vec<Count>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    present: u8,
    hits: u8,
}

impl PageTable {
    /// Opens kernel memory for reading.
    ///
    /// # Errors
    /// As [`PageTables::open`].
    pub fn new(root: Root) -> Result<Self, SysError> {
        let ask = Ask {
            window: Nanos::millis(50),
            fine: Vec::new(),
            reads: true,
            writes: true,
            relaxed: false,
            glance: false,
        };
        Ok(Self {
            tables: PageTables::open(&root)?,
            meter: CpuMeter::new(),
            root,
            window: FIRST,
            sharp: None,
            saturated: 0,
            overhead: Nanos::ZERO,
            ask,
            watched: BTreeMap::new(),
            whole: false,
            cpu: Nanos::ZERO,
            unknown: 0,
        })
    }

    /// Length of one look now.
    #[must_use]
    pub const fn window(&self) -> Nanos {
        self.window
    }

    /// Base pages whose tables were not found at the last `begin`.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Looks that fit three quarters of the engine's window; fewer than two make no burst.
    fn looks(&self) -> u8 {
        if self.ask.glance {
            return 1;
        }
        let most = if self.ask.relaxed { LOOKS.1 } else { LOOKS.0 };
        let one = (self.window + self.overhead).0.max(1);
        most.min(u8::try_from(self.ask.window.0 * 3 / 4 / one).unwrap_or(most))
    }

    /// Opens one process anew and finds its tables.
    fn watch(&mut self, pid: Pid, ranges: Vec<VpnRange>) -> Result<Watch, SysError> {
        let pagemap = PageMap::open(&self.root, pid)?;
        let clear = ClearRefs::open(&self.root, pid)?;
        let known = self.tables.resolve(pid, &pagemap, &ranges)?;
        if let Some(largest) = ranges.iter().max_by_key(|r| r.len()) {
            self.tables.verify(pid, &pagemap, *largest)?;
        }
        self.unknown += ranges.iter().map(|r| r.len()).sum::<u64>() - known;
        let counts = ranges.iter().map(|r| vec![Count::default(); r.len() as usize]).collect();
        Ok(Watch { ranges, clear, cleared: now(), waited: Nanos::ZERO, counts })
    }

    /// Bits go one after the other while the kernel walks, so a window begins midway.
    fn clear_all(&mut self) {
        self.watched.retain(|_, watch| {
            let before = now();
            let kept = watch.clear.clear(Clear::Accessed).is_ok();
            watch.cleared = midway(before, now());
            kept
        });
    }

    /// Reads the accessed bits into the counts; returns pages found present and accessed.
    fn read_all(&mut self) -> (u64, u64) {
        let (mut present, mut accessed) = (0, 0);
        let tables = &self.tables;
        for (pid, watch) in &mut self.watched {
            let before = now();
            for (range, counts) in watch.ranges.iter().zip(&mut watch.counts) {
                tables.walk(*pid, *range, |first, words, huge| {
                    let at = (first.0 - range.start.0) as usize;
                    let mut note = |count: &mut Count, entry: TableEntry| {
                        if entry.present() {
                            count.present += 1;
                            count.hits += u8::from(entry.accessed());
                            present += 1;
                            accessed += u64::from(entry.accessed());
                        }
                    };
                    if let Some(span) = huge {
                        let entry = TableEntry(words[0]);
                        for count in &mut counts[at..at + span as usize] {
                            note(count, entry);
                        }
                    } else {
                        for (count, word) in counts[at..at + words.len()].iter_mut().zip(words) {
                            note(count, TableEntry(*word));
                        }
                    }
                });
            }
            watch.waited += midway(before, now()).since(watch.cleared);
        }
        (present, accessed)
    }

    /// Looks of one length, reported; returns pages found present and accessed.
    fn group(&mut self, length: Nanos, looks: u8, seen: &mut Observation, slept: &mut Nanos) -> (u64, u64) {
        let (mut present, mut accessed) = (0, 0);
        for watch in self.watched.values_mut() {
            watch.waited = Nanos::ZERO;
            watch.counts.iter_mut().for_each(|counts| counts.fill(Count::default()));
        }
        for _ in 0..looks {
            self.clear_all();
            let before = now();
            sleep(length);
            *slept += now().since(before);
            let (p, a) = self.read_all();
            present += p;
            accessed += a;
        }
        self.report(looks, seen);
        (present, accessed)
    }

    /// A burst: sharp looks where they tell something, then the others.
    fn burst(&mut self, looks: u8, seen: &mut Observation) -> Nanos {
        let (start, mut slept) = (now(), Nanos::ZERO);
        if self.ask.glance {
            self.group(self.window, 1, seen, &mut slept);
            return slept;
        }
        let sharp = self.sharp.map_or(0, |_| looks / 2);
        if let Some(length) = self.sharp.filter(|_| sharp > 0) {
            let (present, accessed) = self.group(length, sharp, seen, &mut slept);
            self.aim_sharply(length, accessed * 1000 / present.max(1));
        }
        let (present, accessed) = self.group(self.window, looks - sharp, seen, &mut slept);
        self.overhead = Nanos((now().since(start) - slept).0 / u64::from(looks));
        self.note_saturation(looks - sharp);
        self.aim(present, accessed);
        slept
    }

    fn note_saturation(&mut self, looks: u8) {
        if looks < 3 {
            return;
        }
        let counts = || self.watched.values().flat_map(|w| &w.counts).flatten().filter(|c| c.present == looks);
        let always = counts().filter(|c| c.hits == looks).count() as u64;
        self.saturated = always * 1000 / (counts().count() as u64).max(1);
        self.sharp = match self.sharp {
            _ if self.saturated < SATURATED => None,
            Some(length) => Some(length.min(Nanos(self.window.0 / 2))),
            None => Some(Nanos(self.window.0 / 8).max(SHARPEST)),
        };
    }

    fn aim_sharply(&mut self, length: Nanos, share: u64) {
        let of_saturated = share * 1000 / self.saturated.max(1);
        self.sharp = Some(match of_saturated {
            more if more > SHARP_AIM.1 => Nanos(length.0 / 2).max(SHARPEST),
            less if less < SHARP_AIM.0 => Nanos(length.0 * 2),
            _ => length,
        });
    }

    /// Lengthens or shortens the window by the share of pages seen in the last looks.
    fn aim(&mut self, present: u64, accessed: u64) {
        let share = accessed * 1000 / present.max(1);
        if present > 0 && share > AIM.1 {
            self.window = Nanos(self.window.0 / 2).max(SHORTEST);
        } else if present > 0 && share < AIM.0 {
            self.window = Nanos(self.window.0 * 2).min(self.ask.window);
        }
    }

    fn report(&self, looks: u8, seen: &mut Observation) {
        for (pid, watch) in &self.watched {
            let window = Nanos((watch.waited.0 / u64::from(looks.max(1))).max(1));
            for (range, counts) in watch.ranges.iter().zip(&watch.counts) {
                // A page that came or went midway was not looked at throughout.
                let whole = |c: &Count| if c.present == looks { c.hits } else { PageLooks::NOT_LOOKED };
                let hits: Vec<u8> = counts.iter().map(whole).collect();
                seen.memory += Bytes(hits.len() as u64);
                seen.looks.push(PageLooks { pid: *pid, start: range.start, windows: looks, window, hits });
            }
        }
    }

    fn memory(&self) -> u64 {
        let pages = self.watched.values().flat_map(|w| &w.counts).map(Vec::len).sum::<usize>();
        pages as u64 * 2
    }
}

fn midway(from: Tick, to: Tick) -> Tick {
    from.after(Nanos(to.since(from).0 / 2))
}

impl Tracker for PageTable {
    fn info(&self) -> TrackerInfo {
        TrackerInfo {
            name: "page-table",
            sees: Sees { reads: true, pages: true, bits: BitSource::Approximate, ..Sees::default() },
            blind_to: "reads told from writes; accesses served by a translation cached before the look",
        }
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &Ask) -> Result<(), TrackError> {
        let work = self.meter.start();
        self.ask = ask.clone();
        let mut ranges: BTreeMap<Pid, Vec<VpnRange>> = BTreeMap::new();
        for m in mappings {
            if matches!(m.kind, MappingKind::Anonymous | MappingKind::FilePrivate) {
                ranges.entry(m.pid).or_default().push(m.range);
            }
        }
        self.watched.clear();
        self.unknown = 0;
        for (pid, ranges) in ranges {
            match self.watch(pid, ranges) {
                Ok(watch) => {
                    self.watched.insert(pid, watch);
                }
                Err(e) if e.is_gone() => self.tables.forget(pid),
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
                remedy: "use --trackers damon",
            });
        }
        self.whole = self.looks() < 2 && !self.ask.glance;
        if self.whole {
            self.clear_all();
        }
        self.cpu = work.used(Nanos::ZERO);
        Ok(())
    }

    fn lead(&self) -> Nanos {
        if self.whole {
            Nanos::ZERO
        } else {
            Nanos((self.window + self.overhead).0 * u64::from(self.looks()))
        }
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        let work = self.meter.start();
        let mut seen = Observation { memory: Bytes(self.memory()), ..Observation::default() };
        let mut slept = Nanos::ZERO;
        if self.whole {
            let (present, accessed) = self.read_all();
            self.report(1, &mut seen);
            self.aim(present, accessed);
        } else {
            slept = self.burst(self.looks(), &mut seen);
        }
        seen.cpu = self.cpu + work.used(slept);
        self.cpu = Nanos::ZERO;
        Ok(seen)
    }

    fn request(&mut self, _request: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Vpn;

    #[test]
    fn own_accesses_are_seen_or_it_says_why() {
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
        assert_eq!(seen.looks.iter().map(|l| l.range().len()).sum::<u64>(), 250);
        drop(memory);
    }
}
