//! The machine model: nodes, tiers, links and costs, and where each figure comes from. Pure:
//! reads text it is given, never the live machine.
#![forbid(unsafe_code)]

mod costs;
mod error;
mod explain;
mod figure;
mod file;
mod hwloc;
mod known;
mod lists;
mod loaded;
mod model;
mod presets;
mod quantity;
mod rank;
mod section;
mod store;
mod survey;
mod tiers;
mod validate;

pub use costs::{CostProfile, DaemonCosts, KernelCosts, KernelMemoryModel, Picos};
pub use error::{MachineConflict, MachineError, TextPosition, XmlProblem};
pub use explain::{explain, explain_with, Finding, Severity, Topic};
pub use file::{with_store, LinkSpread, Spreads, MAX_FILE};
pub use hwloc::{from_hwloc_xml, MAX_XML};
pub use known::{add_known_figures, KnownModels};
pub use lists::{list_numbers, parse_list, parse_mask, CpuListError};
pub use loaded::{LoadLatencyCurve, LoadedPoint};
pub use model::{
    CacheLevel, CoreModel, Energy, Evidence, Figure, Link, Machine, MemoryKind, MigrationCost,
    Node, TlbSpec,
};
pub use presets::{preset, preset_names, preset_or_error, preset_text};
pub use quantity::{format_bytes, format_rate, parse_bytes, parse_rate};
pub use rank::{
    list, rank, Basis, RankAttribute, RankError, Tier, TierRanking, MEASURED_TOLERANCE_PERCENT,
    MODELLED_LINE,
};
pub use store::FarStore;
pub use survey::{CxlDevice, DaxDevice, KernelTier, Surroundings, Survey};
pub use tiers::{render_text, render_text_within, NodeReport, TierReport, TiersReport};
pub use validate::{MAX_BANDWIDTH, MAX_CAPACITY, MAX_CPU, MAX_LATENCY, MAX_NODE};
