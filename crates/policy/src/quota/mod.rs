//! What may be spent: token buckets that are told the time and never ask for it.

mod bucket;
mod ledger;

pub use bucket::TokenBucket;
pub use ledger::{CpuLedger, LedgerTuning, SamplingPace};
