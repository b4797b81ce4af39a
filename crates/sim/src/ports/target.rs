//! The simulated process: its mappings, where its pages are, the tiers.

use super::{Shared, PID};
use crate::costs::EngineInput;
use crate::memory::{ABSENT, PART_OF_HUGE};
use terrace_engine::{Mapping, MappingKind, Target, TargetChange, TargetError};
use terrace_types::{
    Area, Bytes, NodeId, PageFlags, PageStat, ThroughputSource, TierState, VpnRange,
};

/// A base page.
const PAGE: u64 = 4096;
const PLACE: PageFlags = PageFlags(
    PageFlags::PRESENT.0
        | PageFlags::HUGE_HEAD.0
        | PageFlags::HUGE_TAIL.0
        | PageFlags::PINNED.0
        | PageFlags::SHARED.0,
);

/// The process of a world.
#[derive(Debug)]
pub struct SimTarget {
    world: Shared,
    /// Nodes by tier, best first: index and id.
    tiers: Vec<Vec<(usize, NodeId)>>,
    ids: Vec<NodeId>,
    mappings: Vec<Mapping>,
}

impl SimTarget {
    /// The process of `world` on a machine with nodes `ids` and these tiers (indexes of nodes),
    /// best first.
    #[must_use]
    pub fn new(world: Shared, ids: Vec<NodeId>, tiers: &[Vec<usize>]) -> Self {
        let tiers = tiers.iter().map(|t| t.iter().map(|n| (*n, ids[*n])).collect()).collect();
        Self { world, tiers, ids, mappings: Vec::new() }
    }

    /// Those that `which` chooses, at the cost of as many.
    fn locate_those(&self, areas: &mut [Area], which: impl Fn(&PageStat) -> bool) {
        let mut world = self.world.borrow_mut();
        world.show(EngineInput { located: true, ..EngineInput::default() });
        let those =
            areas.iter().flat_map(|a| (a.start.0..).zip(&a.pages)).filter(|(_, page)| which(page));
        let those: Vec<u64> = those.map(|(vpn, _)| vpn).collect();
        let costs = world.costs;
        world.visit(those.iter().copied(), costs.look_up_frames());
        world.visit(those, costs.note_frames());
        let mut hint = 0;
        for area in areas {
            for (vpn, stat) in (area.start.0..).zip(&mut area.pages) {
                if !which(stat) {
                    continue;
                }
                stat.flags = stat.flags.without(PLACE);
                let Some(index) = world.memory.index(vpn, &mut hint).filter(|_| area.pid == PID)
                else {
                    continue;
                };
                let page = world.memory.pages[index];
                if page.frame == ABSENT {
                    continue;
                }
                stat.node = self.ids[page.node as usize].0 as u8;
                stat.flags = stat.flags.with(PageFlags::PRESENT).with(
                    match (page.bits & PART_OF_HUGE, page.part) {
                        (0, _) => PageFlags::default(),
                        (_, 0) => PageFlags::HUGE_HEAD,
                        _ => PageFlags::HUGE_TAIL,
                    },
                );
            }
        }
    }
}

impl Target for SimTarget {
    fn refresh(&mut self) -> Result<TargetChange, TargetError> {
        let world = self.world.borrow();
        if world.ended() {
            return Err(TargetError::Ended);
        }
        let of = |range: VpnRange| Mapping {
            pid: PID,
            range,
            kind: MappingKind::Anonymous,
            writable: true,
        };
        let mappings: Vec<Mapping> = world.memory.mappings().map(of).collect();
        let mappings_changed = mappings != self.mappings;
        self.mappings = mappings;
        Ok(TargetChange { mappings_changed, ..TargetChange::default() })
    }

    fn gets_huge_pages(&self) -> bool {
        self.world.borrow().memory.huge
    }

    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn locate(&mut self, areas: &mut [Area]) -> Result<(), TargetError> {
        self.locate_those(areas, |_| true);
        Ok(())
    }

    fn locate_new(&mut self, areas: &mut [Area]) -> Result<(), TargetError> {
        self.locate_those(areas, |page| !page.flags.has(PageFlags::PRESENT));
        Ok(())
    }

    fn tiers(&mut self) -> Result<Vec<TierState>, TargetError> {
        let world = self.world.borrow();
        let state = |nodes: &Vec<(usize, NodeId)>| {
            let pools = || nodes.iter().map(|(n, _)| &world.memory.pools[*n]);
            TierState {
                nodes: nodes.iter().map(|n| n.1).collect(),
                capacity: Bytes(pools().map(|p| p.capacity()).sum::<u64>() * PAGE),
                free: Bytes(pools().map(|p| p.spare()).sum::<u64>() * PAGE),
                unused: Bytes(pools().map(|p| p.unused()).sum::<u64>() * PAGE),
                write_throughput: None,
                throughput_source: ThroughputSource::Unknown,
            }
        };
        Ok(self.tiers.iter().map(state).collect())
    }
}
