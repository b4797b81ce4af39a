//! One short sample of some pages, whose bits alone are cleared: [`terrace_tracker::spots`] says
//! which.

use terrace_engine::{PageSamples, SpotCheck};
use terrace_sys::{now, sleep, ColdRefs, PageTables, SysError, TableEntry};
use terrace_tracker::huge_pages::PAGES;
use terrace_tracker::spots::spread;
use terrace_types::{Nanos, Pid, Tick, VpnRange};

/// Parts of a process's memory that have a table of an entry a page each, and huge pages, in order
/// of addresses.
#[derive(Debug, Default)]
struct Leaves(Vec<(VpnRange, TableEntry)>);

impl Leaves {
    /// As tables are now.
    fn within(tables: &PageTables, pid: Pid, ranges: &[VpnRange]) -> Self {
        let mut leaves = Vec::new();
        tables.each_leaf(pid, ranges, |_, part, entry| leaves.push((part, entry)));
        Self(leaves)
    }

    /// The one that all pages of a block lie in.
    fn of(&self, block: &VpnRange) -> Option<(VpnRange, TableEntry)> {
        let at = self.0.partition_point(|(part, _)| part.end <= block.start);
        let (part, entry) = self.0.get(at)?;
        (part.start <= block.start && block.end <= part.end).then_some((*part, *entry))
    }

    /// What is cleared for a block: a huge page is, whole, for else it would be split.
    fn cleared_for(&self, block: &VpnRange) -> Option<VpnRange> {
        match self.of(block)? {
            (part, entry) if entry.huge() => (part.len() == PAGES).then_some(part),
            _ => Some(*block),
        }
    }
}

/// A block of pages to sample.
struct Block<'a> {
    pid: Pid,
    range: VpnRange,
    /// One of those that stand for all.
    spread: bool,
    /// All that is observed of its process.
    within: &'a [VpnRange],
    /// When its bits were cleared, if they could be.
    cleared: Option<Tick>,
}

/// Samples some pages of these processes for `length`: a few of all, others at each turn, and those
/// asked for. Blocks are left out of which a part, or of whose neighbours, is not mapped any more.
/// Tells how long it slept; `None` where there are too few pages, or too few could be sampled.
pub(crate) fn check(
    tables: &PageTables,
    processes: &[(Pid, &[VpnRange])],
    (asked, turn): (&[(Pid, VpnRange)], u64),
    length: Nanos,
) -> Result<Option<(SpotCheck, Nanos)>, SysError> {
    let mut parts = Vec::new();
    let leaves_of = |(pid, within): &(Pid, &[VpnRange])| {
        let leaves = Leaves::within(tables, *pid, within);
        parts.extend(leaves.0.iter().map(|(part, _)| (*pid, *part)));
        leaves
    };
    let leaves: Vec<Leaves> = processes.iter().map(leaves_of).collect();
    let Some((spread, share)) = spread(&parts, turn) else { return Ok(None) };
    let mut blocks = Vec::new();
    for ((pid, within), leaves) in processes.iter().zip(&leaves) {
        let block = |range, spread| Block { pid: *pid, range, spread, within, cleared: None };
        let of = |(of, range): &(Pid, VpnRange)| (of == pid).then_some(*range);
        let mut own: Vec<Block<'_>> =
            spread.iter().filter_map(of).map(|range| block(range, true)).collect();
        for range in asked.iter().filter_map(of) {
            let parts = within.iter().filter_map(|part| part.intersect(range));
            own.extend(parts.map(|range| block(range, false)));
        }
        if !own.is_empty() {
            clear(*pid, leaves, &mut own)?;
        }
        blocks.append(&mut own);
    }
    let before = now();
    sleep(length);
    let slept = now().since(before);
    let (mut found, mut sampled, mut chosen) = (SpotCheck::default(), 0, 0);
    for of in blocks.chunk_by(|a, b| a.pid == b.pid) {
        // As tables are now: one that was given back meanwhile holds something else.
        let leaves = Leaves::within(tables, of[0].pid, of[0].within);
        for block in of {
            chosen += if block.spread { block.range.len() } else { 0 };
            match read(tables, &leaves, block) {
                Some(samples) if block.spread => {
                    sampled += block.range.len();
                    found.spread.push(samples);
                }
                Some(samples) => found.asked.push(samples),
                None => {}
            }
        }
    }
    found.share = share * sampled as f64 / chosen.max(1) as f64;
    Ok((2 * sampled > chosen).then_some((found, slept)))
}

/// Clears the bits of a process's blocks, as many as can be, and notes when.
fn clear(pid: Pid, leaves: &Leaves, blocks: &mut [Block<'_>]) -> Result<(), SysError> {
    let cold = match ColdRefs::open(pid) {
        Err(e) if e.is_gone() => return Ok(()),
        opened => opened?,
    };
    let whole = |(at, block): (usize, &Block<'_>)| Some((at, leaves.cleared_for(&block.range)?));
    let parts: Vec<(usize, VpnRange)> = blocks.iter().enumerate().filter_map(whole).collect();
    for parts in parts.chunks(ColdRefs::AT_ONCE) {
        let before = now();
        let ranges: Vec<VpnRange> = parts.iter().map(|(_, range)| *range).collect();
        match cold.clear(&ranges) {
            Ok(true) => {
                let at = Some(before.after(Nanos(now().since(before).0 / 2)));
                parts.iter().for_each(|(block, _)| blocks[*block].cleared = at);
            }
            Ok(false) => {}
            Err(e) if e.is_gone() => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What is found of a block; `None` where its bits were not cleared, or its table is gone.
fn read(tables: &PageTables, leaves: &Leaves, block: &Block<'_>) -> Option<PageSamples> {
    let cleared = block.cleared?;
    let (_, table) = leaves.of(&block.range)?;
    let mut words = vec![table.0; block.range.len() as usize];
    if !table.huge() && !tables.read_entries(table, block.range, &mut words) {
        return None;
    }
    let hit = |entry: TableEntry| match entry.present() {
        true => u8::from(entry.accessed()),
        false => PageSamples::NOT_SAMPLED,
    };
    Some(PageSamples {
        pid: block.pid,
        start: block.range.start,
        sample_count: 1,
        interval: now().since(cleared).max(Nanos(1)),
        each: if table.huge() { PAGES as u16 } else { 1 },
        at_random: false,
        hits: words.iter().map(|word| hit(TableEntry(*word))).collect(),
    })
}
