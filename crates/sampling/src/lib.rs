//! Hardware samples of memory accesses: perf's record format, `perf.data` files, the events that
//! processors sample, and statistics of samples. Pure: bytes in, values out; `sys` opens events.
//!
//! The layouts are those of the kernel's `include/uapi/linux/perf_event.h`; files are as in
//! `tools/perf/Documentation/perf.data-file-format.txt`. Bytes are not trusted: a damaged record
//! is an error value, and no length in it can ask for more memory than the record itself.
//!
//! # Interface
//!
//! - [`EventAttributes`] describes an event and so the fields of its records.
//! - [`PerfRecord::decode`] reads one record; [`records`] walks a ring's bytes.
//! - [`encode_sample`], [`encode_lost`] write records, for a sampling unit that is modelled.
//! - [`PerfDataFile`] reads a file of `perf record`.
//! - [`DataSource`] says what served an access.
//! - [`spe_records`] reads records of Arm's SPE.
//! - [`UnitSettings`] and what stands beside it describe the lab's sampling unit.
#![forbid(unsafe_code)]

mod attribute;
mod bytes;
mod encode;
mod events;
mod file;
mod latency;
mod record;
mod source;
mod spe;
mod trust;
mod unit;

pub use attribute::{sample_type, EventAttributes, SamplePrecision};
pub use encode::{encode_lost, encode_sample, RING_SAMPLE_TYPE};
pub use events::{
    sampling_events, CpuModel, CpuVendor, SampleDevice, SamplingEvent, LOAD_LATENCY_LEADER,
    PAGE_FAULTS,
};
pub use file::{PerfDataError, PerfDataFile, RecordCounts, RecordedEvent};
pub use latency::{LatencyByLevel, LevelLatency};
pub use record::{
    records, MappedFile, PerfRecord, PerfSample, RecordDamage, RecordIdentity, TaskChange,
    MOST_RECORD_BYTES, RECORD_HEADER_BYTES,
};
pub use source::{AccessLocality, DataSource, MemoryLevel, MemoryOperation};
pub use spe::{spe_records, SpeDamage, SpeOperation, SpeRecord};
pub use trust::{estimated_error, estimated_pages, sampling_error};
pub use unit::{
    records_at_interrupt, ring_offset, UnitAnswer, UnitEvent, UnitSettings, MOST_UNIT_CPUS,
    RING_HEAD_OFFSET, RING_TAIL_OFFSET, UNIT_ANSWER_WORD, UNIT_ANSWER_WORDS, UNIT_BUFFER_BYTES,
    UNIT_MARK, UNIT_PAGE_BYTES, UNIT_REGION_BYTES, UNIT_RING_BYTES, UNIT_SETTING_WORDS,
};
