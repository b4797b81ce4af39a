//! Short samples of the huge pages of one process: how long, and when, is
//! [`terrace_tracker::huge_pages`].

use terrace_engine::{PageSamples, SampleRequest};
use terrace_sys::{now, take_turn, ColdRefs, PageTables, SysError};
use terrace_tracker::huge_pages::{at_once, order, together, AIMED, PAGES};
use terrace_tracker::sample_length::{
    CountHistogram, GroupObservation, PageSampleCount, SampleGroup, SampleLengthTuner,
};
use terrace_types::{Nanos, Pid, Vpn, VpnRange};

/// Ranges in one call.
const AT_ONCE: usize = ColdRefs::AT_ONCE;

/// Huge pages sampled in one burst; others have their turn in the next.
const MAX_HUGE_PAGES: usize = 512;
/// A batch that took this much longer than it should have was interrupted, and is sampled again,
/// so often at most.
const INTERRUPTED: Nanos = Nanos::micros(200);
const AGAIN: u32 = 2;

/// The huge pages of one process and what samples found of them.
pub(crate) struct LargePages {
    pid: Pid,
    cold: ColdRefs,
    heads: Vec<Vpn>,
    tallies: Vec<PageSampleCount>,
    waited: Nanos,
    batches: u64,
}

impl LargePages {
    /// Those of `heads` whose turn it is after `turn` others: at most 512.
    pub fn open(pid: Pid, heads: &[Vpn], turn: usize) -> Result<Self, SysError> {
        let from = if heads.len() > MAX_HUGE_PAGES { turn % heads.len() } else { 0 };
        let mut heads: Vec<Vpn> = heads
            .iter()
            .cycle()
            .skip(from)
            .take(heads.len().min(MAX_HUGE_PAGES))
            .copied()
            .collect();
        heads.sort_unstable();
        let tallies = vec![PageSampleCount::default(); heads.len()];
        Ok(Self {
            pid,
            cold: ColdRefs::open(pid)?,
            heads,
            tallies,
            waited: Nanos::ZERO,
            batches: 0,
        })
    }

    /// How many are sampled.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Finds the length of a sample by single ones that are not reported: had all of a group found
    /// everything touched, they would tell that all are alike.
    pub fn aim(
        &mut self,
        tables: &PageTables,
        aim: &mut SampleLengthTuner,
        ask: &SampleRequest,
    ) -> Result<(), SysError> {
        for number in 0..AIMED {
            let one = SampleGroup { length: aim.length(), samples: 1, sharp: false };
            let mut found = GroupObservation::default();
            self.sample(tables, one.length, number, &mut found)?;
            aim.learn(one, found, ask);
            if aim.length() == one.length {
                break;
            }
        }
        Ok(())
    }

    /// A group of samples of each, reported.
    pub fn group(
        &mut self,
        tables: &PageTables,
        group: SampleGroup,
        reported: &mut Vec<PageSamples>,
    ) -> Result<GroupObservation, SysError> {
        let mut found = GroupObservation::default();
        self.tallies = vec![PageSampleCount::default(); self.heads.len()];
        (self.waited, self.batches) = (Nanos::ZERO, 0);
        for number in 0..group.samples {
            self.sample(tables, group.length, number, &mut found)?;
        }
        let mut counts = CountHistogram::default();
        counts.extend(&self.tallies);
        found.tally(group.samples, &counts);
        let interval = Nanos((self.waited.get() / self.batches.max(1)).max(1));
        reported.extend(together(self.pid, &self.heads, &self.tallies, group.samples, interval));
        Ok(found)
    }

    /// Which are first in a batch, and so are sampled longest, changes from sample to sample.
    fn sample(
        &mut self,
        tables: &PageTables,
        length: Nanos,
        number: u8,
        found: &mut GroupObservation,
    ) -> Result<(), SysError> {
        for batch in order(self.heads.len(), number).chunks(at_once(length)) {
            take_turn();
            self.batch(tables, length, batch, found)?;
        }
        Ok(())
    }

    fn batch(
        &mut self,
        tables: &PageTables,
        length: Nanos,
        batch: &[usize],
        found: &mut GroupObservation,
    ) -> Result<(), SysError> {
        let heads: Vec<Vpn> = batch.iter().map(|i| self.heads[*i]).collect();
        let ranges: Vec<VpnRange> =
            heads.iter().map(|h| VpnRange::new(*h, Vpn(h.0 + PAGES))).collect();
        for attempt in 0..=AGAIN {
            let before = now();
            let mut whole = true;
            for part in ranges.chunks(AT_ONCE) {
                whole &= self.cold.clear(part)?;
            }
            if !whole {
                // Not sampled: what was not cleared would seem hot.
                return Ok(());
            }
            let after = now();
            let cleared = Nanos((before.0 + after.0) / 2);
            // Too short to sleep.
            while now().0 < cleared.get() + length.get() {
                std::hint::spin_loop();
            }
            let begun = now();
            let entries = tables.huge_entries(self.pid, &heads);
            let end = now();
            if end.since(before) > Nanos(4 * length.get()) + INTERRUPTED && attempt < AGAIN {
                continue;
            }
            self.waited += Nanos(((begun.0 + end.0) / 2).saturating_sub(cleared.get()));
            self.batches += 1;
            for (i, entry) in batch.iter().zip(&entries) {
                if let Some(entry) = entry {
                    self.tallies[*i].add(entry.accessed());
                    found.present += 1;
                    found.accessed += u64::from(entry.accessed());
                }
            }
            break;
        }
        Ok(())
    }
}
