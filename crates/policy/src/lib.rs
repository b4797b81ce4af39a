//! Deciding, and nothing else: how hot each page is ([`heat`]), where pages should be ([`place`]),
//! how much may be spent on finding out and moving ([`quota`]), which of a program's objects lies
//! in which tier ([`solve`]), and what of a range larger than memory is in memory ([`far`]).
//!
//! Pure: a policy is `step(&Params, &mut State, &Snapshot, Tick, Seed) -> Plan`. No clock, no
//! I/O, no global, no unsafe. What was tried in simulation is what runs live.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod far;
pub mod heat;
pub mod place;
pub mod quota;
pub mod solve;
pub mod tuning;
