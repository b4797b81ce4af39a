//! What became of every page asked for.

use crate::units::{join, Unit};
use std::collections::BTreeMap;
use terrace_engine::{MoveFailure, MoveOutcome};
use terrace_types::{Move, Nanos, NodeId};

/// Fate of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not decided yet.
    Open,
    /// On the node asked for.
    Moved,
    /// Not there, and why.
    Failed(MoveFailure),
}

/// Fates of all units and the cost of the calls.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) units: Vec<Unit>,
    pub(crate) fates: Vec<Fate>,
    tried: Vec<bool>,
    pub(crate) cost: Nanos,
    pub(crate) longest_call: Nanos,
    pub(crate) calls: u64,
    pub(crate) base_pages_moved: u64,
}

impl Account {
    pub(crate) fn new(units: Vec<Unit>) -> Self {
        let count = units.len();
        Self {
            units,
            fates: vec![Fate::Open; count],
            tried: vec![false; count],
            cost: Nanos::ZERO,
            longest_call: Nanos::ZERO,
            calls: 0,
            base_pages_moved: 0,
        }
    }

    pub(crate) fn settle(&mut self, unit: usize, fate: Fate) {
        if fate == Fate::Moved && self.fates[unit] != Fate::Moved {
            self.base_pages_moved += u64::from(self.units[unit].pages);
        }
        self.fates[unit] = fate;
    }

    /// Those still open among `units` end as `why`.
    pub(crate) fn give_up(&mut self, units: &[usize], why: MoveFailure) {
        for &unit in units {
            if self.fates[unit] == Fate::Open {
                self.fates[unit] = Fate::Failed(why);
            }
        }
    }

    pub(crate) fn called(&mut self, units: &[usize], took: Nanos) {
        for &unit in units {
            self.tried[unit] = true;
        }
        self.cost += took;
        self.longest_call = self.longest_call.max(took);
        self.calls += 1;
    }

    /// The account as the engine wants it; what is still open was never tried.
    pub(crate) fn close(self, moves: &[Move]) -> MoveOutcome {
        let mut moved: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut failed: BTreeMap<MoveFailure, u64> = BTreeMap::new();
        let mut tried = 0;
        for (at, unit) in self.units.iter().enumerate() {
            let pages = u64::from(unit.pages);
            tried += if self.tried[at] { pages } else { 0 };
            match self.fates[at] {
                Fate::Moved => *moved.entry(moves[unit.of as usize].to).or_default() += pages,
                Fate::Failed(why) => *failed.entry(why).or_default() += pages,
                Fate::Open => *failed.entry(MoveFailure::OutOfTime).or_default() += pages,
            }
        }
        MoveOutcome {
            tried,
            moved: moved.into_iter().collect(),
            failed: failed.into_iter().collect(),
            done: join(moves, &self.units, |at| self.fates[at] == Fate::Moved),
            cost: self.cost,
            longest_call: self.longest_call,
            calls: self.calls,
        }
    }
}
