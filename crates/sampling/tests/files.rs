//! Files that others recorded, and files that are damaged.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::PathBuf;
use terrace_sampling::{
    sample_type, MemoryLevel, MemoryOperation, PerfDataFile, PerfRecord, RecordCounts,
    SamplePrecision,
};

/// A file of google/perf_data_converter, from the folder of outside data.
fn outside(name: &str) -> Option<Vec<u8>> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/perf").join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            println!("skipped: {}: {error}", path.display());
            None
        }
    }
}

#[test]
fn latencies_and_data_sources_of_an_outside_file() {
    let Some(bytes) = outside("weight_struct.data") else { return };
    let mut file = PerfDataFile::open(Cursor::new(bytes)).unwrap();
    let event = file.events()[0].attributes;
    assert_eq!((event.config, event.config1, event.period), (0x1cd, 0x40, 10_009));
    assert_eq!(event.precision(), SamplePrecision::Requested);
    assert!(event.has(sample_type::WEIGHT_STRUCT) && !event.is_frequency());
    let mut levels: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut latencies, mut first) = (Vec::new(), None);
    let counts = file
        .records(|index, record| {
            if let PerfRecord::Sample(sample) = record {
                assert_eq!((index, sample.source.operation()), (0, MemoryOperation::Load));
                *levels.entry(sample.source.level().name()).or_default() += 1;
                latencies.push(sample.latency_cycles);
                first.get_or_insert((sample.address, sample.latency_cycles, sample.source.0));
            }
        })
        .unwrap();
    assert_eq!((counts.samples, counts.addressed, counts.damaged), (14, 14, 0));
    assert_eq!(first, Some((0xffff_c36a_5ba4_ba40, 71, 0x102_6810_0142)));
    assert_eq!((latencies.iter().min(), latencies.iter().max()), (Some(&70), Some(&249)));
    assert_eq!(levels, BTreeMap::from([("L1", 4), ("LFB", 5), ("L2", 1), ("L3", 4)]));
    assert_eq!(MemoryLevel::LineFillBuffer.name(), "LFB");
    assert!(file.command.first().is_some_and(|word| word.contains("perf")), "{:?}", file.command);
    assert!(
        file.events()[0].name.starts_with("MEM_TRANS_RETIRED.LOAD_LATENCY"),
        "{:?}",
        file.events()[0].name
    );
}

#[test]
fn throttling_of_an_outside_file_is_counted() {
    let Some(bytes) = outside("throttle.data") else { return };
    let mut file = PerfDataFile::open(Cursor::new(bytes)).unwrap();
    let expected = RecordCounts {
        samples: 14_980,
        throttled: 68,
        unthrottled: 64,
        mappings: 1653,
        ..RecordCounts::default()
    };
    // Twice: a file can be read again.
    for _ in 0..2 {
        assert_eq!(file.records(|_, _| {}).unwrap(), expected);
    }
}

/// Every byte of the head of a real file changed, and the file cut everywhere: errors, no panic.
#[test]
fn damaged_files_are_errors_or_counts() {
    let Some(whole) = outside("weight_struct.data") else { return };
    let read = |bytes: Vec<u8>| {
        let mut file = PerfDataFile::open(Cursor::new(bytes)).ok()?;
        file.records(|_, _| {}).ok()
    };
    // Offsets of records and features stay right when only the end is cut.
    for length in (0..4096).chain((4096..whole.len()).step_by(39_973)) {
        if let Some(counts) = read(whole[..length].to_vec()) {
            assert!(counts.samples <= 14, "{length}");
            assert!(counts.cut_off || counts.samples == 14, "{length}: {counts:?}");
        }
    }
    for at in 0..2120 {
        let mut bytes = whole[..1 << 16].to_vec();
        bytes[at] ^= 0xff;
        let _counts = read(bytes);
    }
    assert_eq!(read(whole).map(|counts| counts.samples), Some(14));
}
