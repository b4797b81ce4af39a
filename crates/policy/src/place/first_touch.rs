//! `first-touch`: pages stay where the kernel put them when they were first touched. Moves nothing,
//! asks for nothing; what everything else is measured against.

use terrace_types::Plan;

/// Nothing.
#[must_use]
pub fn step() -> Plan {
    Plan::default()
}
