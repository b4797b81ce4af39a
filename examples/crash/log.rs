//! A persistent log, as log.c: a record is persistent before the log's length covers it.
//!
//!     rustc -O -g log.rs                       correct
//!     BUG=1 rustc -O -g log.rs                 length and record are flushed together
//!     BUG=2 rustc -O -g log.rs                 the last fence is missing
//!     BUG=3 rustc -O -g log.rs                 the length is never flushed
//!     terrace crash check -- ./log

mod pm;
mod terrace_crash;

use pm::{checksum, is_bug, restarted, Cell};
use terrace_crash::CrashRegion;

const RECORDS: usize = 10;
/// Longer than a line.
const WORDS: usize = 13;

#[repr(C)]
struct Record {
    size: Cell,
    data: [Cell; WORDS],
    checksum: Cell,
}

#[repr(C, align(64))]
struct Line(Cell);

#[repr(C, align(64))]
struct Pool {
    length: Line,
    records: [Record; RECORDS],
}

static POOL: Pool = Pool {
    length: Line(Cell::new(0)),
    records: [const {
        Record { size: Cell::new(0), data: [const { Cell::new(0) }; WORDS], checksum: Cell::new(0) }
    }; RECORDS],
};

fn sum_of(record: &Record) -> u64 {
    record.data.iter().fold(record.size.get(), |sum, word| checksum(sum, word.get()))
}

#[inline(never)]
fn append(number: usize) {
    let record = &POOL.records[number];
    record.size.set(number as u64 + 1);
    for (i, word) in record.data.iter().enumerate() {
        word.set((number * 1000 + i) as u64);
    }
    record.checksum.set(sum_of(record));
    pm::flush(record);
    if !is_bug(1) {
        pm::fence();
    }
    POOL.length.0.set(number as u64 + 1);
    if !is_bug(3) {
        pm::flush(&POOL.length);
    }
    if !is_bug(2) || number + 1 < RECORDS {
        pm::fence();
    }
}

fn is_whole() -> bool {
    let length = POOL.length.0.get() as usize;
    let whole = |(i, record): (usize, &Record)| {
        record.size.get() == i as u64 + 1 && record.checksum.get() == sum_of(record)
    };
    length <= RECORDS && POOL.records.iter().take(length).enumerate().all(whole)
}

fn main() {
    let mut region = CrashRegion::default();
    let words = std::mem::size_of::<Pool>() / 8;
    // SAFETY: the pool is made of atomics, and stays.
    unsafe { region.critical_data("pool", (&raw const POOL).cast_mut().cast::<u64>(), words) };
    region.crash_restore();
    if !restarted() {
        region.start_crash();
        (0..RECORDS).for_each(append);
        region.end_crash();
    }
    std::process::exit(i32::from(!is_whole()));
}
