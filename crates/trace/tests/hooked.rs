//! Words of the compiler's hooks: each is an access by itself.
#![allow(clippy::unwrap_used)]

use std::io::Cursor;
use terrace_trace::capture::{Capture, CaptureTotals, Filter};
use terrace_trace::{Block, BlockKind, EventKind, TraceHeader, TraceReader, TraceWriter};

const MESSAGE: u64 = 9 << 60;
const THREAD: [u64; 5] = [MESSAGE | 1 | 4 << 16, 100, 100, 0, 0];
const HOOKS: u64 = MESSAGE | 11;

/// log2 of the bytes, or 8 more for a store, at a place of the code.
fn access(address: u64, kind: u64, place: u64) -> u64 {
    address | kind << 48 | place << 52
}

fn capture(words: &[u64], filter: Filter, values: bool) -> (CaptureTotals, Vec<u8>) {
    let header = TraceHeader { values, ..TraceHeader::default() };
    let mut capture = Capture::new(TraceWriter::new(Vec::new(), &header).unwrap(), filter, values);
    assert_eq!(capture.feed(3, words, true).unwrap(), words.len());
    capture.finish().unwrap()
}

#[test]
fn neighbours_of_eight_bytes_stay_two_and_each_takes_an_instruction() {
    let mut words = THREAD.to_vec();
    words.push(HOOKS);
    words.extend([
        access(0x1000, 3, 5),
        access(0x1008, 3, 5),
        access(0x2000, 14, 6),
        access(0x3001, 8, 0x7ff),
    ]);
    words.extend([MESSAGE | 12 | 4 << 16, 0x1000, 64, 4, u64::from(u32::from_le_bytes(*b"name"))]);
    let (totals, bytes) = capture(&words, Filter::default(), false);
    assert_eq!(
        (totals.loads, totals.stores, totals.kept, totals.instructions, totals.nonsense),
        (2, 2, 4, 4, 0)
    );
    let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
    let (mut block, mut objects, mut seen) = (Block::new().unwrap(), 0, Vec::new());
    while reader.next_block(&mut block).unwrap() {
        let named = |e: &&terrace_trace::TraceEvent| {
            matches!(&e.what,
                EventKind::Object { start: 0x1000, name, .. } if name == "name")
        };
        objects += block.events().iter().filter(named).count();
        if block.info().kind == BlockKind::Accesses {
            seen.extend(
                (0..block.kinds().len())
                    .map(|i| (block.addresses()[i], block.size(i), block.gaps()[i])),
            );
        }
    }
    assert_eq!(
        (objects, seen),
        (1, vec![(0x1000, 8, 1), (0x1008, 8, 1), (0x2000, 64, 1), (0x3001, 1, 1)])
    );
}

#[test]
fn filters_hold_for_them_too() {
    let mut words = THREAD.to_vec();
    words.push(HOOKS);
    words.extend((0..100).map(|i| access(0x1000 + 8 * i, if i % 2 == 0 { 3 } else { 10 }, 1)));
    let filter = |period, sizes, times| Filter { period, sizes, times, ..Filter::default() };
    let kept = |filter| capture(&words, filter, false).0.kept;
    assert_eq!(kept(filter(10, 0..100, 0..u64::MAX)), 10);
    assert_eq!(kept(filter(1, 4..5, 0..u64::MAX)), 50);
    assert_eq!(kept(filter(1, 0..100, 11..21)), 10);
    assert_eq!(kept(Filter { begins_later: true, ..Filter::default() }), 0);
}

/// Found by proptest: a program that says so where values are kept made a block whose values were
/// not all there.
#[test]
fn a_program_cannot_pass_for_one_with_hooks_where_values_are_kept() {
    let mut words = THREAD.to_vec();
    words.extend([HOOKS, access(0x1000, 11, 0), 77]);
    let (totals, bytes) = capture(&words, Filter::default(), true);
    assert_eq!((totals.stores, totals.nonsense), (1, 1));
    let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
    let mut block = Block::new().unwrap();
    while reader.next_block(&mut block).unwrap() {}
}
