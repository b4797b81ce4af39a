//! Staging with the figures of a machine file. The pipeline itself is [`terrace_migrate::staging`], re-exported here.

use terrace_machine::Machine;
pub use terrace_migrate::staging::*;
use terrace_types::{Bytes, BytesPerSec, NodeId};

/// Bytes of a line that a miss brings.
const LINE: f64 = 64.0;

/// What staging from `slow` to `fast` by CPUs of `initiator` can count on. `None` where the machine does not say: measure it
/// with `terrace probe`.
///
/// A machine file has what all CPUs do together. One thread does what its misses in flight allow at the node's latency,
/// and never more than all together.
#[must_use]
pub fn costs(machine: &Machine, initiator: NodeId, slow: NodeId, fast: NodeId) -> Option<Costs> {
    let of = |node: NodeId| {
        let link = machine.link(initiator, node)?;
        let (all, latency) = (link.read_bandwidth?.value, link.read_latency?.value);
        let flight = f64::from(machine.core.outstanding_misses) * LINE;
        let one = BytesPerSec((flight / latency.get().max(1) as f64 * 1e9) as u64);
        Some((all, one.min(all)))
    };
    let ((slow, slow_thread), (fast, fast_thread)) = (of(slow)?, of(fast)?);
    let last = machine.caches.last();
    let cache = last.map_or(Bytes::ZERO, |c| c.size);
    // A hit of no stated time is taken as a quarter of the fast node's latency.
    let hit = last.map(|c| c.hit.get() as f64).filter(|ns| *ns > 0.0);
    let flight = f64::from(machine.core.outstanding_misses) * LINE;
    let cached = hit.map_or(fast_thread.get() as f64 * 4.0, |ns| flight / ns * 1e9);
    let cache_thread = BytesPerSec(cached as u64).max(fast_thread);
    Some(Costs { slow, slow_thread, fast, fast_thread, copy_thread: slow_thread, cache, cache_thread })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset;

    #[test]
    fn a_preset_tells_what_staging_can_count_on() {
        let machine = preset("lab-cxl").expect("a preset");
        let costs = costs(&machine, NodeId(0), NodeId(1), NodeId(0)).expect("its figures are known");
        assert_eq!((costs.slow, costs.fast), (BytesPerSec::gb(20), BytesPerSec::gb(100)));
        // Ten misses of 64 bytes in 300 ns.
        let thread = f64::from(machine.core.outstanding_misses) * 64.0 / 300.0;
        assert!((costs.slow_thread.get() as f64 / 1e9 - thread).abs() < 0.01, "{costs:?}");
        assert!(super::costs(&machine, NodeId(0), NodeId(7), NodeId(0)).is_none());
    }
}
