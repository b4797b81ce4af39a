//! Heat by address and time, as a small table of numbers that the page's script draws.
//!
//! Snapshots cut the address space into buckets of their own. Here they are laid over one common
//! list of rows: all ranges that were ever mapped, gaps left out, cut into equal parts.

use crate::chart::time_labels;
use serde_json::{json, Value};
use terrace_engine::journal::{HeatRow, SnapshotEntry};

const MAX_COLUMNS: usize = 200;
const MAX_ROWS: usize = 144;
/// A snapshot's rows beyond this many are not of ours.
const MAX_HEAT_ROWS: usize = 1024;

/// A stretch of addresses of one process without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressStretch {
    pub pid: i32,
    /// First page.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
}

/// Pages of one drawn row, and what it holds in one column.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    pages: f64,
    reads: f64,
    writes: f64,
    hottest: u64,
    fast: f64,
    present: f64,
}

/// The labels of the time axis for the script: those that charts have, each at its share of `end_s`
/// seconds.
pub fn time_axis(end_s: f64) -> Vec<Value> {
    let label = |(at, name): (f64, String)| json!([at / end_s, name]);
    time_labels(end_s).into_iter().map(label).collect()
}

/// What the script draws, or nothing when no heat was recorded. The run ended at `end_ns`.
pub fn data(snapshots: &[&SnapshotEntry], page_size: u64, end_ns: u64) -> Option<Value> {
    let with_heat: Vec<&SnapshotEntry> =
        snapshots.iter().copied().filter(|s| !s.heat.is_empty()).collect();
    let stride = with_heat.len().div_ceil(MAX_COLUMNS).max(1);
    let columns: Vec<&SnapshotEntry> = with_heat.into_iter().step_by(stride).collect();
    let stretches = stretches(&columns);
    let rows = rows(&stretches);
    if rows.is_empty() {
        return None;
    }
    let mut cells = Vec::with_capacity(columns.len());
    for shot in &columns {
        let mut column = vec![Cell::default(); rows.len()];
        for heat in shot.heat.iter().take(MAX_HEAT_ROWS) {
            lay(&mut column, &rows, heat);
        }
        cells.push(column);
    }
    // Row by row, from the lowest address; -1 where nothing was mapped.
    let table = |value: fn(&Cell) -> i64| -> Vec<Vec<i64>> {
        (0..rows.len())
            .map(|row| {
                let one = |column: &Vec<Cell>| match column[row] {
                    cell if cell.pages > 0.0 => value(&cell),
                    _ => -1,
                };
                cells.iter().map(one).collect()
            })
            .collect()
    };
    let last = snapshots.iter().map(|s| s.at_ns).max().unwrap_or(0).max(end_ns);
    let end_s = (last as f64 / 1e9).max(1e-9);
    Some(json!({
        "page_size_bytes": page_size,
        "end_s": end_s,
        "time_labels": time_axis(end_s),
        "times_s": columns.iter().map(|s| round(s.at_ns as f64 / 1e9)).collect::<Vec<_>>(),
        "rows": rows.iter()
            .map(|r| json!([r.pid, format!("{:x}", address(r.start, page_size)), r.end - r.start]))
                .collect::<Vec<_>>(),
        "reads_per_s": table(|c| (c.reads / c.pages) as i64),
        "writes_per_s": table(|c| (c.writes / c.pages) as i64),
        "hottest_per_s": table(|c| c.hottest.min(1 << 53) as i64),
        "fast_permille": table(|c| if c.present > 0.0 {
            (1000.0 * c.fast / c.present) as i64 } else { -1 }),
    }))
}

fn address(page: u64, page_size: u64) -> u128 {
    u128::from(page) * u128::from(page_size)
}

fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn end(heat: &HeatRow) -> u64 {
    heat.start.0.saturating_add(heat.pages)
}

/// Everything ever mapped, merged, gaps left out.
fn stretches(columns: &[&SnapshotEntry]) -> Vec<AddressStretch> {
    let mut all: Vec<AddressStretch> = columns
        .iter()
        .flat_map(|shot| shot.heat.iter().take(MAX_HEAT_ROWS))
        .map(|heat| AddressStretch { pid: heat.pid.0, start: heat.start.0, end: end(heat) })
        .filter(|s| s.end > s.start)
        .collect();
    all.sort_unstable();
    let mut merged: Vec<AddressStretch> = Vec::new();
    for next in all {
        match merged.last_mut() {
            Some(last) if last.pid == next.pid && next.start <= last.end => {
                last.end = last.end.max(next.end);
            }
            _ => merged.push(next),
        }
    }
    merged
}

/// Cuts the stretches into rows of about equal size; small stretches get one row or, where
/// there are too many, are joined with their neighbours.
pub fn rows(stretches: &[AddressStretch]) -> Vec<AddressStretch> {
    let total: u128 = stretches.iter().map(|s| u128::from(s.end - s.start)).sum();
    if total == 0 {
        return Vec::new();
    }
    let share = (total / MAX_ROWS as u128).max(1);
    let mut rows: Vec<AddressStretch> = Vec::new();
    for stretch in stretches {
        let pages = u128::from(stretch.end - stretch.start);
        let parts = ((pages + share / 2) / share).max(1);
        for part in 0..parts {
            let at = |part: u128| stretch.start + (pages * part / parts) as u64;
            rows.push(AddressStretch { pid: stretch.pid, start: at(part), end: at(part + 1) });
        }
    }
    // Hundreds of tiny mappings: drop those that would be thinner than a tenth of a row, then
    // all beyond twice the rows wanted.
    if rows.len() > 2 * MAX_ROWS {
        rows.retain(|r| u128::from(r.end - r.start) * 10 >= share);
        rows.truncate(2 * MAX_ROWS);
    }
    rows
}

/// Adds one bucket of heat to the rows it overlaps, in proportion.
fn lay(column: &mut [Cell], rows: &[AddressStretch], heat: &HeatRow) {
    let bucket = AddressStretch { pid: heat.pid.0, start: heat.start.0, end: end(heat) };
    let first = rows.partition_point(|r| (r.pid, r.end) <= (bucket.pid, bucket.start));
    let present: f64 = heat.tier_pages.iter().map(|n| *n as f64).sum();
    let fast = heat.tier_pages.first().map_or(0.0, |n| *n as f64);
    for (cell, row) in column[first..].iter_mut().zip(&rows[first..]) {
        if row.pid != bucket.pid || row.start >= bucket.end {
            break;
        }
        let shared = (row.end.min(bucket.end) - row.start.max(bucket.start)) as f64;
        let part = shared / (bucket.end - bucket.start).max(1) as f64;
        cell.pages += shared;
        cell.reads += heat.reads_per_s as f64 * shared;
        cell.writes += heat.writes_per_s as f64 * shared;
        cell.hottest = cell.hottest.max(heat.hottest_per_s);
        cell.fast += fast * part;
        cell.present += present * part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrace_types::{Pid, Vpn};

    fn heat(start: u64, pages: u64, reads: u64, tiers: &[u64]) -> HeatRow {
        HeatRow {
            pid: Pid(1),
            start: Vpn(start),
            pages,
            reads_per_s: reads,
            tier_pages: tiers.to_vec(),
            ..HeatRow::default()
        }
    }

    fn shot(at_ns: u64, heat: Vec<HeatRow>) -> SnapshotEntry {
        SnapshotEntry { at_ns, heat, ..SnapshotEntry::default() }
    }

    #[test]
    fn buckets_of_different_snapshots_meet_in_the_same_rows() {
        let one = shot(0, vec![heat(0, 144, 10, &[144, 0]), heat(1000, 144, 0, &[0, 144])]);
        let two = shot(1_000_000_000, vec![heat(0, 72, 40, &[0, 72]), heat(72, 72, 0, &[72, 0])]);
        let data = data(&[&one, &two], 4096, 0).expect("there is heat");
        let rows = data["rows"].as_array().expect("rows").len();
        assert_eq!(rows, 144);
        assert_eq!(data["reads_per_s"][0], json!([10, 40]));
        assert_eq!(data["reads_per_s"][71], json!([10, 0]));
        assert_eq!(data["reads_per_s"][143], json!([0, -1]), "not mapped any more");
        assert_eq!(data["fast_permille"][0], json!([1000, 0]));
        assert_eq!(data["times_s"], json!([0.0, 1.0]));
        assert_eq!((&data["end_s"], &data["time_labels"][0]), (&json!(1.0), &json!([0.0, "0 s"])));
        assert_eq!(data["rows"][72], json!([1, format!("{:x}", 1000 * 4096), 2]));
    }

    proptest! {
        #[test]
        fn any_recording_gives_a_bounded_table(
            shots in prop::collection::vec(
                prop::collection::vec((any::<i32>(), any::<u64>(), any::<u64>(), any::<u64>(),
                    any::<Vec<u64>>()), 0..30),
                0..30,
            ),
            page_size: u64,
        ) {
            let shots: Vec<SnapshotEntry> = shots
                .into_iter()
                .map(|rows| {
                    let row = |(pid, start, pages, reads, tiers): (i32, u64, u64, u64,
                        Vec<u64>)| HeatRow {
                        pid: Pid(pid), start: Vpn(start), pages, reads_per_s: reads,
                        writes_per_s: reads,
                        hottest_per_s: reads, tier_pages: tiers,
                    };
                    shot(0, rows.into_iter().map(row).collect())
                })
                .collect();
            let shots: Vec<&SnapshotEntry> = shots.iter().collect();
            if let Some(data) = data(&shots, page_size, 0) {
                prop_assert!(data["rows"].as_array().expect("rows").len() <= 2 * MAX_ROWS);
                prop_assert!(data["times_s"].as_array().expect("times").len() <= MAX_COLUMNS);
            }
        }
    }
}
