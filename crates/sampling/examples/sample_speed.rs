//! How fast samples are read from a `perf.data` file: `cargo run --release -p terrace-sampling
//! --example sample_speed [FILE]`. Without a file one of 4 million samples is made in memory.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek};
use std::time::Instant;
use terrace_sampling::{
    encode_sample, PerfDataError, PerfDataFile, PerfRecord, PerfSample, RING_SAMPLE_TYPE,
};

const SAMPLES: u64 = 4_000_000;
/// Bytes of a file's header, of the first version of an event and of where its numbers lie.
const HEADER_BYTES: u64 = 104;
const ATTRIBUTE_BYTES: u64 = 64 + 16;

fn made() -> Vec<u8> {
    let mut records = Vec::new();
    for i in 0..SAMPLES {
        let sample = PerfSample {
            time_ns: i * 100,
            address: i * 4096 + 8,
            tid: (i % 16) as i32,
            latency_cycles: 300,
            ..PerfSample::default()
        };
        encode_sample(&sample, &mut records);
    }
    let mut attribute = [0u64; ATTRIBUTE_BYTES as usize / 8];
    attribute[3] = RING_SAMPLE_TYPE;
    let data = HEADER_BYTES + ATTRIBUTE_BYTES;
    let mut words = vec![HEADER_BYTES, ATTRIBUTE_BYTES, HEADER_BYTES, ATTRIBUTE_BYTES];
    words.extend([data, records.len() as u64]);
    words.extend([0; 6]);
    words.extend(attribute);
    let mut file = b"PERFILE2".to_vec();
    words.iter().for_each(|word| file.extend_from_slice(&word.to_le_bytes()));
    file.extend(records);
    file
}

fn measure(input: impl Read + Seek) -> Result<(), PerfDataError> {
    let begin = Instant::now();
    let (mut cycles, mut pages) = (0u64, 0u64);
    let counts = PerfDataFile::open(input)?.records(|_, record| {
        if let PerfRecord::Sample(sample) = record {
            cycles += u64::from(sample.latency_cycles);
            pages ^= sample.address >> 12;
        }
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let rate = counts.samples as f64 / seconds / 1e6;
    println!("{} samples in {seconds:.3} s: {rate:.1} M a second", counts.samples);
    println!("checks: {cycles} cycles, {pages:x}, {counts:?}");
    Ok(())
}

fn main() -> Result<(), PerfDataError> {
    match std::env::args_os().nth(1) {
        Some(path) => measure(BufReader::new(File::open(path)?)),
        None => measure(Cursor::new(made())),
    }
}
