//! Writes records, for a sampling unit that is modelled: what reads a processor's ring then reads
//! the model's.

use crate::attribute::sample_type as has;
use crate::record::{kind, PerfSample, RECORD_HEADER_BYTES};

/// Fields of the samples that [`encode_sample`] writes.
pub const RING_SAMPLE_TYPE: u64 = has::IP
    | has::TID
    | has::TIME
    | has::ADDR
    | has::CPU
    | has::PERIOD
    | has::WEIGHT
    | has::DATA_SRC;

/// `PERF_RECORD_MISC_USER`.
const MISC_USER: u16 = 2;
const SAMPLE_WORDS: usize = 8;
const LOST_WORDS: usize = 2;

fn record<const WORDS: usize>(kind: u32, words: [u64; WORDS], out: &mut Vec<u8>) {
    let bytes = (RECORD_HEADER_BYTES + 8 * WORDS) as u16;
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&MISC_USER.to_le_bytes());
    out.extend_from_slice(&bytes.to_le_bytes());
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// Appends a sample with the fields of [`RING_SAMPLE_TYPE`].
pub fn encode_sample(sample: &PerfSample<'_>, out: &mut Vec<u8>) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let words: [u64; SAMPLE_WORDS] = [
        sample.instruction,
        pair(sample.pid as u32, sample.tid as u32),
        sample.time_ns,
        sample.address,
        pair(sample.cpu.unwrap_or(0), 0),
        sample.period,
        u64::from(sample.latency_cycles),
        sample.source.0,
    ];
    record(kind::SAMPLE, words, out);
}

/// Appends that so many records found the ring full. The event must not identify all records.
pub fn encode_lost(lost: u64, out: &mut Vec<u8>) {
    record::<LOST_WORDS>(kind::LOST, [0, lost], out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        records, AccessLocality, DataSource, EventAttributes, MemoryLevel, MemoryOperation,
    };
    use crate::{PerfRecord, RecordIdentity};

    #[test]
    fn what_is_written_is_read() {
        let sample = PerfSample {
            instruction: 0x40_1000,
            pid: 7,
            tid: 8,
            time_ns: 99,
            address: 0x7fff_0000_1234,
            cpu: Some(3),
            period: 199,
            latency_cycles: 300,
            source: DataSource::new(
                MemoryOperation::Load,
                MemoryLevel::Ram,
                AccessLocality::Remote,
            ),
            ..PerfSample::default()
        };
        let mut ring = Vec::new();
        encode_sample(&sample, &mut ring);
        encode_lost(5, &mut ring);
        encode_sample(&PerfSample { tid: 9, ..sample }, &mut ring);
        let event = EventAttributes { sample_type: RING_SAMPLE_TYPE, ..EventAttributes::default() };
        let read: Vec<PerfRecord<'_>> = records(&ring, &event).map(Result::unwrap).collect();
        assert_eq!(
            read,
            [
                PerfRecord::Sample(sample),
                PerfRecord::Lost(5, RecordIdentity::default()),
                PerfRecord::Sample(PerfSample { tid: 9, ..sample })
            ]
        );
        // Cut at every byte: never a panic, and the last item says that it is cut.
        for end in 0..ring.len() {
            let last = records(&ring[..end], &event).last();
            let whole = [0, 72, 96, 168].contains(&end);
            assert_eq!(last.is_none_or(|record| record.is_ok()), whole, "{end}");
        }
    }
}
