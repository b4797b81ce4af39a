//! The mover that arenas and allocations share with `terrace run` and staging ([`terrace_migrate::Bulk`]), by the costs of the machine.

use crate::classes::MACHINE;
use std::sync::OnceLock;
use terrace_machine::MigrationCost;
use terrace_migrate::{Bulk, MoveCosts};
use terrace_topology::{load_machine, Source};

/// For pages of this process, on the machine that `TERRACE_MACHINE` names when the first page moves. A live machine does not say
/// what moving costs; a file that cannot be read says nothing here either ([`crate::Memory`] refuses it): then what is usual holds, by
/// which the number of threads alone is chosen.
pub(crate) fn mover() -> Bulk {
    static COSTS: OnceLock<MoveCosts> = OnceLock::new();
    let named = || {
        let name = std::env::var(MACHINE).ok().filter(|name| !name.contains(char::is_control))?;
        load_machine(&Source::parse_machine(&name)).ok().map(|machine| machine.migration)
    };
    Bulk::new(*COSTS.get_or_init(|| costs(named().unwrap_or_default())))
}

const fn costs(of: MigrationCost) -> MoveCosts {
    MoveCosts { call: of.call, page: of.page, serial_percent: of.serial_percent }
}
