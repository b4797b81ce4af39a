//! What may be spent: token buckets that are told the time and never ask for it.

mod bucket;
mod tracking;

pub use bucket::TokenBucket;
pub use tracking::{SamplingPace, TrackingQuota};
