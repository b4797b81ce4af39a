//! The mover that arenas and allocations share with `terrace run` and staging
//! ([`terrace_migrate::Bulk`]), and what it and staging go by of a machine's file.

use crate::classes::MACHINE;
use std::sync::OnceLock;
use terrace_machine::Machine;
use terrace_migrate::staging::{Costs, StagingFigures};
use terrace_migrate::{Bulk, MoveCosts};
use terrace_topology::{load_machine, MachineSource};
use terrace_types::{Bytes, Nanos, NodeId};

/// For pages of this process, on the machine that `TERRACE_MACHINE` names when the first page
/// moves. A live machine does not say what moving costs; a file that cannot be read says nothing
/// here either ([`crate::Memory`] refuses it): then what is usual holds, by which the number of
/// threads and the pages of a call alone are chosen.
pub(crate) fn mover() -> Bulk {
    static COSTS: OnceLock<MoveCosts> = OnceLock::new();
    let named = || {
        let name = std::env::var(MACHINE).ok().filter(|name| !name.contains(char::is_control))?;
        load_machine(&MachineSource::parse_machine(&name)).ok().map(|machine| move_costs(&machine))
    };
    Bulk::new(*COSTS.get_or_init(|| named().unwrap_or_default()))
}

/// What moving pages costs on `machine`.
#[must_use]
pub const fn move_costs(machine: &Machine) -> MoveCosts {
    let cost = machine.migration;
    MoveCosts { call: cost.call, page: cost.page, serial_percent: cost.serial_percent }
}

/// What staging from `slow` to `fast` by CPUs of `initiator` can count on. `None` where the machine
/// does not say: measure it with `terrace probe`.
#[must_use]
pub fn stage_costs(
    machine: &Machine,
    initiator: NodeId,
    slow: NodeId,
    fast: NodeId,
) -> Option<Costs> {
    let of = |node: NodeId| {
        let link = machine.link(initiator, node)?;
        Some((link.read_bandwidth?.value, link.read_latency?.value))
    };
    let cache = machine.caches.last().map_or((Bytes::ZERO, Nanos::ZERO), |c| (c.size, c.hit));
    let (misses, moves) = (machine.core.outstanding_misses, move_costs(machine));
    Some(Costs::from(&StagingFigures { slow: of(slow)?, fast: of(fast)?, misses, cache, moves }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset;

    #[test]
    fn a_file_that_says_nothing_of_moving_means_what_is_usual() {
        let silent = Machine {
            migration: terrace_machine::MigrationCost::default(),
            ..preset("lab-cxl").unwrap()
        };
        assert_eq!(move_costs(&silent), MoveCosts::default());
        let reported =
            terrace_machine::MigrationCost { call: Nanos(7), page: Nanos(9), serial_percent: 11 };
        let machine = Machine { migration: reported, ..silent };
        assert_eq!(
            move_costs(&machine),
            MoveCosts { call: Nanos(7), page: Nanos(9), serial_percent: 11 }
        );
        let costs = stage_costs(&machine, NodeId(0), NodeId(1), NodeId(0)).unwrap();
        assert_eq!(costs.moves, move_costs(&machine));
        assert!(stage_costs(&machine, NodeId(0), NodeId(7), NodeId(0)).is_none());
    }
}
