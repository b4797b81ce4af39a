//! Arbitrary bytes as a ring of perf records with arbitrary fields, as records of Arm's SPE, and as
//! a `perf.data` file: no panic, and what is imported is a whole trace.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use terrace_sampling::{records, spe_records, EventAttributes, PerfDataFile, PerfRecord};
use terrace_trace::import::import_perf_data;
use terrace_trace::{Info, TraceReader};

fuzz_target!(|data: &[u8]| {
    if let Some((attributes, ring)) = data.split_at_checked(128) {
        if let Some(event) = EventAttributes::decode(attributes) {
            for record in records(ring, &event).flatten() {
                if let PerfRecord::Sample(sample) = record {
                    assert!(sample.callers().count() <= ring.len() / 8);
                }
            }
        }
    }
    assert!(spe_records(data).count() <= data.len());
    if let Ok(mut file) = PerfDataFile::open(Cursor::new(data)) {
        let _counts = file.records(|_, _| {});
    }
    let mut out = Cursor::new(Vec::new());
    if let Ok(read) = import_perf_data(Cursor::new(data), &mut out) {
        let mut reader =
            TraceReader::open(Cursor::new(out.get_ref())).expect("what was written can be read");
        let info = Info::from_reader(&mut reader).expect("memory can be read");
        assert!(info.damage.is_empty() && info.accesses == read.accesses);
    }
});
