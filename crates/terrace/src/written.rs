//! Which tier's written bytes the hardware tells: memory controllers matched to nodes by the
//! machine model.

use terrace_machine::{Machine, MemoryKind, Node};
use terrace_sys::{controllers, ControllerTraffic, Root, SysError, TrafficCounter};
use terrace_track::{TierNodes, TierWriteCounter};
use terrace_types::{Bytes, CpuId};

/// Of each tier, what counts the bytes written to it, if anything does; and why not where something
/// could and may not.
pub(crate) fn counters(
    root: &Root,
    machine: &Machine,
    tiers: &[TierNodes],
) -> (Vec<Option<TierWriteCounter>>, Option<SysError>) {
    let mut refused = None;
    let counted = tiers.iter().map(|tier| {
        let (to, sockets) = served(machine, tier)?;
        let opened = open(root, machine, to, &sockets);
        let counters = opened.map_err(|e| refused = Some(e)).ok()??;
        let total = move || {
            counters.iter().map(TrafficCounter::bytes).sum::<Option<f64>>().map(|all| all as u64)
        };
        Some(TierWriteCounter::new(total))
    });
    (counted.collect(), refused)
}

/// Memory that the controllers of these sockets distinguish apart from all other and that is this
/// tier's, all of it. Memory elsewhere (CXL, HBM, a part of a socket whose other part is of another
/// tier) has no counter that is known to be its own.
fn served(machine: &Machine, tier: &TierNodes) -> Option<(ControllerTraffic, Vec<u32>)> {
    let nodes: Vec<&Node> = tier.nodes.iter().filter_map(|id| machine.node(*id)).collect();
    let kind = nodes.first()?.kind;
    let to = match kind {
        MemoryKind::Dram => ControllerTraffic::DramWrites,
        MemoryKind::Pmem => ControllerTraffic::PmemWrites,
        _ => return None,
    };
    let mut sockets: Vec<u32> =
        nodes.iter().map(|n| n.package.filter(|_| n.kind == kind)).collect::<Option<Vec<u32>>>()?;
    sockets.sort_unstable();
    sockets.dedup();
    let alike = |n: &&Node| {
        n.kind == kind
            && n.capacity > Bytes::ZERO
            && n.package.is_some_and(|p| sockets.contains(&p))
    };
    machine.nodes.iter().filter(alike).all(|n| tier.nodes.contains(&n.id)).then_some((to, sockets))
}

/// None where a socket of these has no controller that is shown.
fn open(
    root: &Root,
    machine: &Machine,
    to: ControllerTraffic,
    sockets: &[u32],
) -> Result<Option<Vec<TrafficCounter>>, SysError> {
    let socket_of = |cpu: u32| {
        machine.nodes.iter().find(|n| n.cpus.contains(&CpuId(cpu))).and_then(|n| n.package)
    };
    let (mut counters, mut seen) = (Vec::new(), Vec::new());
    for controller in controllers(root, to) {
        for cpu in controller.cpus.iter().copied() {
            if let Some(socket) = socket_of(cpu).filter(|s| sockets.contains(s)) {
                counters.push(controller.open(cpu)?);
                seen.push(socket);
            }
        }
    }
    Ok(sockets.iter().all(|s| seen.contains(s)).then_some(counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset;
    use terrace_types::NodeId;

    fn tier(nodes: &[u16]) -> TierNodes {
        TierNodes { nodes: nodes.iter().map(|n| NodeId(*n)).collect() }
    }

    #[test]
    fn memory_is_counted_where_its_controllers_count_it_alone() {
        let optane = preset("dram-dcpmm").unwrap();
        assert_eq!(served(&optane, &tier(&[0])), Some((ControllerTraffic::DramWrites, vec![0])));
        assert_eq!(served(&optane, &tier(&[1])), Some((ControllerTraffic::PmemWrites, vec![0])));
        // Behind a link, and half of what one socket's controllers count.
        assert_eq!(served(&preset("ddr-cxl").unwrap(), &tier(&[1])), None);
        let mut clusters = preset("knl-snc4").unwrap();
        for node in &mut clusters.nodes {
            node.package = Some(0);
        }
        assert_eq!(served(&clusters, &tier(&[0])), None);
        assert_eq!(
            served(&clusters, &tier(&[0, 1, 2, 3])),
            Some((ControllerTraffic::DramWrites, vec![0]))
        );
        assert_eq!(served(&optane, &tier(&[])), None);
    }

    #[test]
    fn a_machine_without_such_counters_has_none_and_that_is_no_failure() {
        let (counters, refused) = counters(
            &Root::with_prefix("/nonexistent"),
            &preset("dram-dcpmm").unwrap(),
            &[tier(&[0]), tier(&[1])],
        );
        assert!(counters.len() == 2 && counters.iter().all(Option::is_none) && refused.is_none());
    }
}
