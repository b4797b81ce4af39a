//! Rings of programs with very many threads.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use terrace_sampling::{
    encode_lost, encode_sample, records, EventAttributes, PerfRecord, PerfSample, RING_SAMPLE_TYPE,
};

/// Ten thousand threads, whose samples come in turn and with losses between: each sample is its
/// thread's, and what is lost is counted.
#[test]
fn samples_of_ten_thousand_threads_keep_their_threads() {
    const THREADS: i32 = 10_000;
    const EACH: u64 = 3;
    let mut ring = Vec::new();
    for turn in 0..EACH {
        for tid in 0..THREADS {
            let address = turn << 40 | (tid as u64) << 12;
            let sample = PerfSample { pid: tid % 7, tid, address, ..PerfSample::default() };
            encode_sample(&sample, &mut ring);
            if tid % 1000 == 0 {
                encode_lost(2, &mut ring);
            }
        }
    }
    let event = EventAttributes { sample_type: RING_SAMPLE_TYPE, ..EventAttributes::default() };
    let (mut by_thread, mut lost) = (BTreeMap::<i32, u64>::new(), 0);
    for record in records(&ring, &event) {
        match record.unwrap() {
            PerfRecord::Sample(sample) => {
                assert_eq!(sample.address >> 12 & 0xfff_ffff, sample.tid as u64);
                assert_eq!(sample.pid, sample.tid % 7);
                *by_thread.entry(sample.tid).or_default() += 1;
            }
            PerfRecord::Lost(count, _) => lost += count,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((by_thread.len(), lost), (THREADS as usize, EACH * 2 * 10));
    assert!(by_thread.values().all(|samples| *samples == EACH));
}
