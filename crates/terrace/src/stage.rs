//! Staging with the figures of a machine file. The pipeline itself is [`terrace_migrate::staging`], re-exported here.

use terrace_machine::Machine;
pub use terrace_migrate::staging::*;
use terrace_types::{Bytes, Nanos, NodeId};

/// What staging from `slow` to `fast` by CPUs of `initiator` can count on. `None` where the machine does not say: measure it
/// with `terrace probe`.
#[must_use]
pub fn costs(machine: &Machine, initiator: NodeId, slow: NodeId, fast: NodeId) -> Option<Costs> {
    let of = |node: NodeId| {
        let link = machine.link(initiator, node)?;
        Some((link.read_bandwidth?.value, link.read_latency?.value))
    };
    let cache = machine.caches.last().map_or((Bytes::ZERO, Nanos::ZERO), |c| (c.size, c.hit));
    let figures = Figures { slow: of(slow)?, fast: of(fast)?, misses: machine.core.outstanding_misses, cache };
    Some(Costs::from(&figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset;
    use terrace_types::BytesPerSec;

    #[test]
    fn a_preset_tells_what_staging_can_count_on() {
        let machine = preset("lab-cxl").expect("a preset");
        let costs = costs(&machine, NodeId(0), NodeId(1), NodeId(0)).expect("its figures are known");
        assert_eq!((costs.slow, costs.fast), (BytesPerSec::gb(20), BytesPerSec::gb(100)));
        // Sixteen lines of a stream in 300 ns.
        let thread = 16.0 * 64.0 / 300.0;
        assert!((costs.slow_thread.get() as f64 / 1e9 - thread).abs() < 0.01, "{costs:?}");
        assert!(super::costs(&machine, NodeId(0), NodeId(7), NodeId(0)).is_none());
    }
}
