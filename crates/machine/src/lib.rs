//! The machine model: nodes, tiers, links and costs, and where each figure comes from. Pure:
//! reads text it is given, never the live machine.
#![forbid(unsafe_code)]

mod model;

pub use model::{
    CacheLevel, CoreModel, Evidence, Figure, Kind, Link, Machine, MigrationCost, Node,
};
