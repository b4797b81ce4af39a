//! What a recording of loads and stores comes to: who is accessed, when, how, and how much memory
//! that takes.
//!
//! A trace is read twice, the second time for the heat map, whose rows are known only after the
//! first. Memory grows with the pages that were touched (some 100 bytes each), not with the length
//! of the trace.

mod calls;
mod objects;
mod pages;
mod samples;
mod show;

pub use calls::CallStudy;
use objects::Objects;
use pages::PageUses;
pub use samples::SampleStudy;
use samples::SampleSums;
use std::io::{Read, Seek};
use terrace_trace::{Block, BlockKind, TraceError, TraceHeader, TraceReader};

/// Columns of everything that is shown over time.
pub(crate) const COLUMNS: usize = 192;
/// Powers of two that times between two uses are counted by.
const SPANS: usize = 64;

/// Accesses in one column of time, or to one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UseCounts {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Pages touched.
    pub pages: u64,
}

impl UseCounts {
    /// Loads and stores.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.loads + self.stores
    }

    fn add(&mut self, store: bool) {
        *(if store { &mut self.stores } else { &mut self.loads }) += 1;
    }
}

/// A mapping or an object and what was done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectUses {
    /// Its file, its name, or where it lies.
    pub name: String,
    /// Accesses, and pages of it that were touched.
    pub uses: UseCounts,
}

/// A recording, summed up.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordingSummary {
    /// What the trace says of itself.
    pub header: TraceHeader,
    /// All accesses and pages.
    pub total: UseCounts,
    /// Threads that made accesses.
    pub threads: usize,
    /// From the first access to the last, seconds of the trace's clock; nominal where that counts
    /// instructions.
    pub seconds: f64,
    /// By time, equal parts of `seconds`.
    pub columns: Vec<UseCounts>,
    /// Accesses of each page, most first.
    pub by_page: Vec<u64>,
    /// Mean working set: for a span in seconds, bytes of pages that were touched within it.
    pub working_set: Vec<(f64, f64)>,
    /// Most used first.
    pub objects: Vec<ObjectUses>,
    /// Whether the trace was written to its end and its recorder missed nothing.
    pub complete: bool,
    /// What the samples say besides, if the accesses are samples.
    pub samples: Option<SampleStudy>,
    /// Why it is not complete: damage that was left out, and what the recorder knew to be missing.
    pub damage: Vec<String>,
    /// The heat map's numbers, as the page's script takes them.
    heat: serde_json::Value,
}

/// Time between two uses of a page, counted by powers of two: how many, and their sum, in ticks.
#[derive(Debug, Clone)]
struct ReuseTimes {
    count: [u64; SPANS + 1],
    sum: [f64; SPANS + 1],
}

impl ReuseTimes {
    fn add(&mut self, span: u64) {
        let power = (u64::BITS - span.leading_zeros()) as usize;
        self.count[power] += 1;
        self.sum[power] += span as f64;
    }

    /// Mean pages in a working set of a span of 2^power ticks: each use keeps its page in for as
    /// long as the span, or until the next use (P. J. Denning and S. C. Schwartz, Properties of the
    /// Working-Set Model, CACM 15(3), 1972, eq. 8).
    fn mean(&self, power: usize, whole: f64) -> f64 {
        let shorter: f64 = self.sum[..=power].iter().sum();
        let longer: u64 = self.count[power + 1..].iter().sum();
        (shorter + longer as f64 * 2f64.powi(power as i32)) / whole.max(1.0)
    }
}

/// The span of time, and which column a time falls in.
#[derive(Debug, Clone, Copy)]
struct Clock {
    first: u64,
    ticks: u64,
}

impl Clock {
    fn column(self, time: u64) -> usize {
        let since = time.saturating_sub(self.first).min(self.ticks - 1);
        (u128::from(since) * COLUMNS as u128 / u128::from(self.ticks)) as usize
    }
}

impl RecordingSummary {
    /// Reads all of a trace, twice.
    ///
    /// # Errors
    /// [`TraceError::Read`]; damaged blocks are left out and named in `damage`.
    pub fn from_reader<R: Read + Seek>(reader: &mut TraceReader<R>) -> Result<Self, TraceError> {
        let header = reader.header().clone();
        let shift = header.page_size_bytes.max(1).ilog2();
        let accesses = reader.blocks().iter().filter(|b| b.kind == BlockKind::Accesses);
        let (first, last) = accesses.fold((u64::MAX, 0), |(first, last), b| {
            (first.min(b.first_time), last.max(b.last_time))
        });
        let clock = Clock { first, ticks: last.saturating_sub(first).max(1) };
        let mut damage = reader.shortcomings();
        let mut pages = PageUses::default();
        let mut objects = Objects::default();
        let mut columns = vec![UseCounts::default(); COLUMNS];
        let mut reuse = ReuseTimes { count: [0; SPANS + 1], sum: [0.0; SPANS + 1] };
        let (mut total, mut threads) = (UseCounts::default(), std::collections::HashSet::new());
        let mut times = Vec::new();
        let mut samples = SampleSums::default();
        each_block(reader, Some(&mut damage), |block| {
            if block.info().kind == BlockKind::Events {
                block.events().iter().for_each(|event| objects.take(event));
                block.events().iter().for_each(|event| samples.take_event(event));
                return;
            }
            block.times_into(&mut times);
            let process = block.info().process;
            threads.insert(block.info().thread);
            samples.take_block(block);
            for ((address, kind), time) in block.addresses().iter().zip(block.kinds()).zip(&times) {
                let column = clock.column(*time);
                let page = pages.find(process, address >> shift);
                if page.uses.all() > 0 {
                    reuse.add(time.abs_diff(page.last));
                }
                page.last = *time;
                page.uses.add(kind.is_store());
                page.columns[column / 64] |= 1 << (column % 64);
                objects.count(process, *address, page, kind.is_store());
                total.add(kind.is_store());
                columns[column].add(kind.is_store());
            }
        })?;
        for page in pages.all() {
            // Its last use keeps it in to the end.
            reuse.add(last.saturating_sub(page.last));
            let touched = columns.iter_mut().enumerate();
            touched.for_each(|(c, column)| column.pages += page.columns[c / 64] >> (c % 64) & 1);
        }
        total.pages = pages.all().len() as u64;
        let heat = Self::heat(reader, &mut pages, clock, shift)?;
        let mut by_page: Vec<u64> =
            pages.all().iter().map(|p| p.uses.all()).filter(|n| *n > 0).collect();
        by_page.sort_unstable_by(|a, b| b.cmp(a));
        let tick = header.ns_per_tick / 1e9;
        let powers = 0..=(u64::BITS - clock.ticks.leading_zeros()) as usize;
        let page_bytes = header.page_size_bytes as f64;
        let curve = powers
            .map(|p| (2f64.powi(p as i32) * tick, reuse.mean(p, clock.ticks as f64) * page_bytes));
        Ok(Self {
            total,
            threads: threads.len(),
            seconds: if total.all() > 0 { clock.ticks as f64 * tick } else { 0.0 },
            columns,
            by_page,
            working_set: if total.all() > 0 { curve.collect() } else { Vec::new() },
            objects: objects.finish(),
            samples: header.sampled.then(|| samples.finish(&header)),
            complete: reader.is_complete(),
            damage,
            heat,
            header,
        })
    }

    /// Loads and stores to a page, by address and time.
    fn heat<R: Read + Seek>(
        reader: &mut TraceReader<R>,
        pages: &mut PageUses,
        clock: Clock,
        shift: u32,
    ) -> Result<serde_json::Value, TraceError> {
        let rows = pages.rows();
        let mut cells = vec![UseCounts::default(); rows.len() * COLUMNS];
        let mut times = Vec::new();
        each_block(reader, None, |block| {
            if block.info().kind != BlockKind::Accesses {
                return;
            }
            block.times_into(&mut times);
            let process = block.info().process;
            for ((address, kind), time) in block.addresses().iter().zip(block.kinds()).zip(&times) {
                let row = pages.find(process, address >> shift).row as usize;
                if let Some(cell) = cells.get_mut(row * COLUMNS + clock.column(*time)) {
                    cell.add(kind.is_store());
                }
            }
        })?;
        let column_s = clock.ticks as f64 * reader.header().ns_per_tick / 1e9 / COLUMNS as f64;
        let table = |of: fn(&UseCounts) -> u64| -> Vec<Vec<i64>> {
            let rate = |cell: &UseCounts, pages: u64| {
                (of(cell) as f64 / pages.max(1) as f64 / column_s) as i64
            };
            let row = |(cells, row): (&[UseCounts], &crate::heatmap::AddressStretch)| {
                cells.iter().map(|cell| rate(cell, row.end - row.start)).collect()
            };
            cells.chunks(COLUMNS).zip(&rows).map(row).collect()
        };
        let page = |row: &crate::heatmap::AddressStretch| {
            serde_json::json!([
                row.pid,
                format!("{:x}", u128::from(row.start) << shift),
                row.end - row.start
            ])
        };
        Ok(serde_json::json!({
            "page_size_bytes": 1u64 << shift,
            "end_s": column_s * COLUMNS as f64,
            "time_labels": crate::heatmap::time_axis(column_s * COLUMNS as f64),
            "times_s": (0..COLUMNS).map(|c| c as f64 * column_s).collect::<Vec<_>>(),
            "rows": rows.iter().map(page).collect::<Vec<_>>(),
            "reads_per_s": table(|c| c.loads),
            "writes_per_s": table(|c| c.stores),
        }))
    }

    /// How many bytes of the most used pages get this share of all accesses.
    #[must_use]
    pub fn bytes_for(&self, share: f64) -> u64 {
        let wanted = self.total.all() as f64 * share;
        let mut sum = 0.0;
        let enough = |n: &u64| {
            sum += *n as f64;
            sum >= wanted
        };
        let pages = self.by_page.iter().position(enough).map_or(self.by_page.len(), |at| at + 1);
        (pages as u64).saturating_mul(self.header.page_size_bytes)
    }
}

/// Goes through all blocks that can be read; damage is reported where it is wanted.
fn each_block<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    mut damage: Option<&mut Vec<String>>,
    mut each: impl FnMut(&Block),
) -> Result<(), TraceError> {
    let mut block = Block::new().map_err(|source| TraceError::Read { offset: 0, source })?;
    reader.rewind_to(0);
    loop {
        match reader.next_block(&mut block) {
            Ok(false) => return Ok(()),
            Ok(true) => each(&block),
            Err(error @ TraceError::Damaged { .. }) => {
                if let Some(damage) = &mut damage {
                    damage.push(error.to_string());
                }
            }
            Err(error) => return Err(error),
        }
    }
}
