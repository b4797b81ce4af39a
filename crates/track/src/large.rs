//! Short looks at the huge pages of one process: how long, and when, is [`terrace_engine::large`].

use terrace_engine::aim::{Aim, Found, Group, Tally};
use terrace_engine::{Ask, PageLooks};
use terrace_sys::{now, sleep, take_turn, ColdRefs, PageTables, SysError};
use terrace_types::{Nanos, Pid, Vpn, VpnRange};

/// Ranges in one call.
const AT_ONCE: usize = ColdRefs::AT_ONCE;

/// Base pages of a huge page that has an accessed bit (x86-64).
pub(crate) const PAGES: u64 = 512;
/// Huge pages that are cleared and read together wait for each other, so that there are no more than are cleared in the length of a
/// look, at so much each (an interrupt to the CPUs of the program among it), and no fewer than so many.
const CLEARING: Nanos = Nanos::micros(3);
const BATCH: usize = 4;
/// Looks by which the length of others is found, at most.
const AIMED: u8 = 8;
/// Looks from this long on are slept through.
const SLEPT: Nanos = Nanos::micros(100);
/// Huge pages looked at in one burst; others have their turn in the next.
const MOST: usize = 1024;
/// A batch that took this much longer than it should have was interrupted, and is looked at again, so often at most.
const INTERRUPTED: Nanos = Nanos::micros(200);
const AGAIN: u32 = 2;

/// The huge pages of one process and what looks found of them.
pub(crate) struct LargePages {
    pid: Pid,
    cold: ColdRefs,
    heads: Vec<Vpn>,
    tallies: Vec<Tally>,
    waited: Nanos,
    batches: u64,
    slept: Nanos,
}

impl LargePages {
    /// Those of `heads` whose turn it is after `turn` others: at most a thousand.
    pub fn of(pid: Pid, heads: &[Vpn], turn: usize) -> Result<Self, SysError> {
        let from = if heads.len() > MOST { turn % heads.len() } else { 0 };
        let mut heads: Vec<Vpn> = heads.iter().cycle().skip(from).take(heads.len().min(MOST)).copied().collect();
        heads.sort_unstable();
        let tallies = vec![Tally::default(); heads.len()];
        Ok(Self {
            pid,
            cold: ColdRefs::open(pid)?,
            heads,
            tallies,
            waited: Nanos::ZERO,
            batches: 0,
            slept: Nanos::ZERO,
        })
    }

    /// How many are looked at.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// How much of the looks was slept through.
    pub fn slept(&self) -> Nanos {
        self.slept
    }

    /// Finds the length of a look by single ones that are not reported: had all of a group found everything touched, they would tell
    /// that all are alike.
    pub fn aim(&mut self, tables: &PageTables, aim: &mut Aim, ask: &Ask) -> Result<(), SysError> {
        for number in 0..AIMED {
            let one = Group { length: aim.length(), looks: 1, sharp: false };
            let mut found = Found::default();
            self.look(tables, one.length, number, &mut found)?;
            aim.learn(one, found, ask);
            if aim.length() == one.length {
                break;
            }
        }
        Ok(())
    }

    /// A group of looks at each, reported.
    pub fn group(&mut self, tables: &PageTables, group: Group, told: &mut Vec<PageLooks>) -> Result<Found, SysError> {
        let mut found = Found::default();
        self.tallies = vec![Tally::default(); self.heads.len()];
        (self.waited, self.batches) = (Nanos::ZERO, 0);
        for number in 0..group.looks {
            self.look(tables, group.length, number, &mut found)?;
        }
        found.tally(group.looks, self.tallies.iter());
        self.report(group.looks, told);
        Ok(found)
    }

    /// Which are first in a batch, and so are looked at longest, changes from look to look.
    fn look(&mut self, tables: &PageTables, length: Nanos, number: u8, found: &mut Found) -> Result<(), SysError> {
        let mut order: Vec<usize> = (0..self.heads.len()).collect();
        order.rotate_left(usize::from(number) % self.heads.len().max(1));
        let together = usize::try_from(length.get() / CLEARING.get()).unwrap_or(BATCH).max(BATCH);
        for batch in order.chunks(together) {
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
        found: &mut Found,
    ) -> Result<(), SysError> {
        let heads: Vec<Vpn> = batch.iter().map(|i| self.heads[*i]).collect();
        let ranges: Vec<VpnRange> = heads.iter().map(|h| VpnRange::new(*h, Vpn(h.0 + PAGES))).collect();
        for attempt in 0..=AGAIN {
            let before = now();
            for part in ranges.chunks(AT_ONCE) {
                self.cold.clear(part)?;
            }
            let after = now();
            let cleared = Nanos((before.0 + after.0) / 2);
            let left = Nanos((cleared.get() + length.get()).saturating_sub(after.0));
            if left >= SLEPT {
                sleep(left);
                self.slept += left;
            } else {
                while now().since(after) < left {
                    std::hint::spin_loop();
                }
            }
            let begun = now();
            let entries = tables.huge_entries(self.pid, &heads);
            let end = now();
            let expected = length + Nanos(CLEARING.get() * batch.len() as u64);
            if end.since(before) > Nanos(4 * expected.get()) + INTERRUPTED && attempt < AGAIN {
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

    /// What so many looks found, neighbours together.
    fn report(&self, looks: u8, told: &mut Vec<PageLooks>) {
        let window = Nanos((self.waited.get() / self.batches.max(1)).max(1));
        let from = told.len();
        for (head, tally) in self.heads.iter().zip(&self.tallies) {
            let hits = [tally.reported(looks); PAGES as usize];
            match told[from..].last_mut().filter(|one| one.range().end == *head) {
                Some(one) => one.hits.extend_from_slice(&hits),
                None => told.push(PageLooks {
                    pid: self.pid,
                    start: *head,
                    windows: looks,
                    window,
                    each: PAGES as u16,
                    at_random: true,
                    hits: hits.to_vec(),
                }),
            }
        }
    }
}
