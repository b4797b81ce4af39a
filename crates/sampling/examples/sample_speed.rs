//! How fast samples are read from a `perf.data` file: `cargo run --release -p terrace-sampling
//! --example sample_speed [FILE [SAMPLES]]`. Without a file one of 4 million samples is made in
//! memory. With SAMPLES the records of FILE are repeated, in a temporary file, until there are as
//! many.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::path::Path;
use std::time::Instant;
use terrace_sampling::{
    encode_sample, PerfDataError, PerfDataFile, PerfRecord, PerfSample, RecordCounts,
    RING_SAMPLE_TYPE,
};

const SAMPLES: u64 = 4_000_000;
/// Bytes of a file's header, of the first version of an event and of where its numbers lie.
const HEADER_BYTES: u64 = 104;
const ATTRIBUTE_BYTES: u64 = 64 + 16;
/// Where a header says at which byte the records begin, and how many bytes they have.
const DATA_AT: usize = 40;
const DATA_SIZE_AT: usize = 48;
/// The temporary file's records at most: few samples among much else would fill the disk.
const MOST_BYTES: u64 = 2 << 30;

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

/// Writes `whole` with its records so many times, without what lies behind them.
fn repeat(whole: &[u8], times: u64, to: &Path) -> io::Result<()> {
    let word = |at: usize| {
        let bytes = whole.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (begin, size) = (word(DATA_AT) as usize, word(DATA_SIZE_AT));
    let damaged = || io::Error::other("its header names records that are not there");
    let records = whole.get(begin..).and_then(|rest| rest.get(..size as usize));
    let records = records.ok_or_else(damaged)?;
    if size.saturating_mul(times) > MOST_BYTES {
        return Err(io::Error::other("it has few samples; name fewer, or another file"));
    }
    let mut out = BufWriter::new(File::create(to)?);
    out.write_all(&whole[..DATA_SIZE_AT])?;
    out.write_all(&(size * times).to_le_bytes())?;
    out.write_all(&whole[DATA_SIZE_AT + 8..begin])?;
    (0..times).try_for_each(|_| out.write_all(records))?;
    out.flush()
}

fn read(input: impl Read + Seek) -> Result<(RecordCounts, u64), PerfDataError> {
    let mut check = 0u64;
    let counts = PerfDataFile::open(input)?.records(|_, record| {
        if let PerfRecord::Sample(sample) = record {
            check = check.wrapping_mul(31).wrapping_add(sample.address ^ sample.time_ns);
        }
    })?;
    Ok((counts, check))
}

fn measure(input: impl Read + Seek) -> Result<(), PerfDataError> {
    let begin = Instant::now();
    let (counts, check) = read(input)?;
    let seconds = begin.elapsed().as_secs_f64();
    let rate = counts.samples as f64 / seconds / 1e6;
    println!("{} samples in {seconds:.3} s: {rate:.1} M a second", counts.samples);
    println!("check {check:x}, {counts:?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [] => measure(Cursor::new(made()))?,
        [path] => measure(BufReader::new(File::open(path)?))?,
        [path, samples, ..] => {
            let whole = std::fs::read(path)?;
            let each = read(Cursor::new(&whole))?.0.samples.max(1);
            let name = format!("terrace-sample-speed-{}.data", std::process::id());
            let large = std::env::temp_dir().join(name);
            let done = repeat(&whole, samples.parse::<u64>()?.div_ceil(each), &large)
                .map_err(PerfDataError::from)
                .and_then(|()| measure(BufReader::new(File::open(&large)?)));
            std::fs::remove_file(&large)?;
            done?;
        }
    }
    Ok(())
}
