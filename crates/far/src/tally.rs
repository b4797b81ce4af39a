//! What several processes' maps did, in rows that each writes and one reads
//! ([`terrace_sys::SharedTable`]).

use crate::FarCounts;
use std::sync::atomic::{AtomicU64, Ordering::*};
use terrace_sys::{is_running, SharedTable};
use terrace_types::{Bytes, Pid};

/// Words of a row: whose it is, what is in memory, the most that was, and the sums in the order of
/// [`FarTotals::sums`].
pub const WORDS: usize = 16;
const OWNER: usize = 0;
const RESIDENT: usize = 1;
const MOST: usize = 2;
const SUMS: usize = 3;

/// Sums over processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FarTotals {
    /// Faults reported by the kernel.
    pub faults: u64,
    /// Of them, those that waited for the store.
    pub misses: u64,
    /// Of them, those that found their page fetched ahead, or on its way.
    pub hits: u64,
    /// Bytes read from stores.
    pub read: u64,
    /// Bytes written to stores.
    pub written: u64,
    /// Bytes read ahead of need.
    pub ahead: u64,
    /// Of them, bytes thrown away untouched.
    pub wasted: u64,
    /// Bytes lost.
    pub lost: u64,
    /// Writes that failed.
    pub write_failures: u64,
    /// Processes that had far memory.
    pub processes: u64,
}

impl FarTotals {
    fn of(counts: &FarCounts) -> [u64; 9] {
        let c = counts;
        [
            c.faults,
            c.misses,
            c.soft_faults + c.late_hits,
            c.read_bytes,
            c.written_bytes,
            c.prefetched_bytes,
            c.wasted_bytes,
            c.lost_bytes,
            c.write_failures,
        ]
    }

    fn add(&mut self, sums: [u64; 9]) {
        let all = [
            &mut self.faults,
            &mut self.misses,
            &mut self.hits,
            &mut self.read,
            &mut self.written,
            &mut self.ahead,
            &mut self.wasted,
            &mut self.lost,
            &mut self.write_failures,
        ];
        for (to, more) in all.into_iter().zip(sums) {
            *to += more;
        }
    }

    /// Share of what was fetched ahead that was not thrown away untouched; `None` when nothing was.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        (self.ahead > 0).then(|| 1.0 - self.wasted.min(self.ahead) as f64 / self.ahead as f64)
    }
}

/// A row of this process's.
#[derive(Debug)]
pub struct ProcessTally {
    number: usize,
    /// What this process did before it executed another program.
    before: [u64; 9],
}

/// Takes a row for this process. `None`: all are taken, and nothing is reported.
pub fn claim(table: &SharedTable) -> Option<ProcessTally> {
    let me = u64::from(std::process::id());
    let rows = || 0..SharedTable::ROWS;
    let mine = rows().find(|n| table.row(*n)[OWNER].load(Acquire) == me);
    let free = |n: &usize| table.row(*n)[OWNER].compare_exchange(0, me, AcqRel, Relaxed).is_ok();
    let number = mine.or_else(|| rows().find(free))?;
    Some(ProcessTally { number, before: sums(table.row(number)) })
}

fn sums(row: &[AtomicU64]) -> [u64; 9] {
    let mut sums = [0; 9];
    sums.iter_mut().zip(&row[SUMS..]).for_each(|(sum, word)| *sum = word.load(Relaxed));
    sums
}

impl ProcessTally {
    /// Writes the counts.
    pub fn tell(&self, table: &SharedTable, counts: &FarCounts) {
        let row = table.row(self.number);
        row[RESIDENT].store(counts.mapped_bytes, Relaxed);
        row[MOST].fetch_max(counts.mapped_bytes, Relaxed);
        for ((word, sum), before) in row[SUMS..].iter().zip(FarTotals::of(counts)).zip(self.before)
        {
            word.store(before + sum, Relaxed);
        }
    }
}

/// Rows with an owner: among how many processes memory is divided.
#[must_use]
pub fn sharers(table: &SharedTable) -> u64 {
    (0..SharedTable::ROWS).filter(|n| table.row(*n)[OWNER].load(Relaxed) != 0).count() as u64
}

/// Reads all rows, of processes that have ended too.
#[derive(Debug)]
pub struct TallyReader {
    table: SharedTable,
    ended: FarTotals,
    most: Bytes,
}

impl TallyReader {
    /// Reads this table, and is the only one who does.
    #[must_use]
    pub fn new(table: SharedTable) -> Self {
        Self { table, ended: FarTotals::default(), most: Bytes::ZERO }
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &SharedTable {
        &self.table
    }

    /// Sums so far, and bytes in memory now. Rows of processes that have ended are freed.
    pub fn read(&mut self) -> (FarTotals, Bytes) {
        let mut all = FarTotals::default();
        let (mut resident, mut one) = (0, 0);
        for number in 0..SharedTable::ROWS {
            let row = self.table.row(number);
            let owner = row[OWNER].load(Acquire);
            if owner == 0 {
                continue;
            }
            let sums = sums(row);
            one = one.max(row[MOST].load(Relaxed));
            if is_running(Pid(owner as i32)) {
                all.add(sums);
                all.processes += 1;
                resident += row[RESIDENT].load(Relaxed);
                continue;
            }
            self.ended.add(sums);
            self.ended.processes += 1;
            row.iter().skip(1).for_each(|word| word.store(0, Relaxed));
            row[OWNER].store(0, Release);
        }
        self.most = self.most.max(Bytes(resident)).max(Bytes(one));
        let e = &self.ended;
        all.add([
            e.faults,
            e.misses,
            e.hits,
            e.read,
            e.written,
            e.ahead,
            e.wasted,
            e.lost,
            e.write_failures,
        ]);
        all.processes += e.processes;
        (all, Bytes(resident))
    }

    /// The most that was in memory at a time, of those times that were looked at; of one process,
    /// of all times.
    #[must_use]
    pub const fn peak(&self) -> Bytes {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_and_those_of_the_dead_kept() {
        let mut teller = TallyReader::new(SharedTable::create(WORDS).unwrap());
        let row = claim(teller.table()).unwrap();
        let of = |resident| FarCounts {
            faults: 7,
            prefetched_bytes: 100,
            wasted_bytes: 25,
            mapped_bytes: resident,
            ..FarCounts::default()
        };
        row.tell(teller.table(), &of(50));
        row.tell(teller.table(), &of(20));
        let (all, resident) = teller.read();
        assert_eq!(
            (all.faults, all.processes, resident, teller.peak()),
            (7, 1, Bytes(20), Bytes(50))
        );
        assert_eq!((all.accuracy(), FarTotals::default().accuracy()), (Some(0.75), None));
        // As after an exec: the same row, and nothing of what was before is lost.
        let row = claim(teller.table()).unwrap();
        row.tell(teller.table(), &of(20));
        let (all, _) = teller.read();
        assert_eq!((all.faults, all.processes, sharers(teller.table())), (14, 1, 1));
        // A process that cannot be: its row is taken over, and counted once.
        teller.table().row(row.number)[OWNER].store(u64::from(u32::MAX >> 1), Relaxed);
        for _ in 0..2 {
            assert_eq!(teller.read().0, all);
            assert_eq!(sharers(teller.table()), 0);
        }
    }
}
