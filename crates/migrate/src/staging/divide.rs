//! How a pipeline's threads are divided, and how many buffers there are. Pure.

use super::api::StagingOptions;
use super::blocks::Prospect;
use super::model::Threads;
use super::model::{decide, wanted_slots, NoStagingReason, StagingDecision, StagingWork};
use terrace_types::Bytes;

/// Threads, and either copying threads and buffers, or why there are none. `read_first`: copies
/// store through the caches.
pub(super) fn divided(
    o: &StagingOptions,
    back: bool,
    read_first: bool,
    all: Prospect,
) -> (u32, Result<(u32, u32), NoStagingReason>) {
    let fits = (o.room.get() / (all.largest.max(1) as u64)).min(u64::from(u32::MAX)) as u32;
    match o.threads {
        Threads::InPlace(threads) => (threads, Err(NoStagingReason::Asked)),
        Threads::Fixed { workers, migrators } => {
            let threads = workers + migrators;
            if all.total == 0 || all.blocks == 0 {
                return (threads, Err(NoStagingReason::Nothing));
            }
            if workers == 0 || migrators == 0 {
                return (threads, Err(NoStagingReason::OneThread));
            }
            if fits < 2 {
                let wanted = Bytes(all.largest as u64 * 2);
                return (threads, Err(NoStagingReason::NoSpace { wanted, room: o.room }));
            }
            let slots =
                o.slots.unwrap_or(wanted_slots(workers, migrators, back || o.keep_addresses));
            (threads, Ok((migrators, slots.clamp(2, fits))))
        }
        Threads::Auto(threads) => {
            let work = StagingWork {
                blocks: all.blocks,
                largest: Bytes(all.largest as u64),
                total: Bytes(all.total as u64),
                passes: o.passes,
                compute_ns_per_byte: o.compute_ns_per_byte,
                back,
                threads,
                room: o.room,
                one_tier: o.slow == Some(o.fast),
                read_first,
                stay: o.keep_addresses,
            };
            match decide(o.costs.as_ref(), &work) {
                StagingDecision::Staged(split) => {
                    (threads, Ok((split.migrators, o.slots.unwrap_or(split.slots).clamp(2, fits))))
                }
                StagingDecision::InPlace(why) => (threads, Err(why)),
            }
        }
    }
}
