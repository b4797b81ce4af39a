//! Arbitrary words as a program's ring: what a program can do to its recorder. Taken a path at a
//! time they give the same trace as one by one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use terrace_trace::capture::{Capture, Filter, CaptureTotals};
use terrace_trace::{TraceHeader, Info, TraceReader, TraceWriter};

fuzz_target!(|data: &[u8]| {
    let (options, data) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    let values = options & 1 != 0;
    let header = TraceHeader { values, pcs: options & 2 != 0, ..TraceHeader::default() };
    let filter = Filter { period: u64::from(options >> 2 & 3) + 1, ..Filter::default() };
    let one_by_one = run(&header, &filter, values, data, false);
    let Some((totals, bytes)) = run(&header, &filter, values, data, true) else { return };
    assert_eq!(one_by_one, Some((totals, bytes.clone())));
    let mut reader = TraceReader::open(Cursor::new(bytes)).expect("what was written can be read");
    let info = Info::from_reader(&mut reader).expect("all of it");
    assert!(
        info.complete && info.damage.is_empty() && info.accesses == totals.kept,
        "{info:?} {totals:?}"
    );
});

fn run(
    header: &TraceHeader,
    filter: &Filter,
    values: bool,
    data: &[u8],
    by_path: bool,
) -> Option<(CaptureTotals, Vec<u8>)> {
    let writer = TraceWriter::new(Vec::new(), header).ok()?;
    let mut capture = Capture::new(writer, filter.clone(), values);
    if !by_path {
        capture = capture.without_paths();
    }
    let words: Vec<u64> = data
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    // Two slots take turns; what was not used comes again.
    let mut left = [Vec::new(), Vec::new()];
    for (i, part) in words.chunks(16).enumerate() {
        let mine = &mut left[i % 2];
        mine.extend_from_slice(part);
        let used = capture.feed((i % 2) as u32, mine, false).unwrap_or(mine.len());
        assert!(used <= mine.len());
        mine.drain(..used);
    }
    capture.finish().ok()
}
