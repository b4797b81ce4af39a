//! Stacked DRAM: bandwidth, latency, capacity, energy, temperature, height and risk of a stack of
//! dies, from its description.
//!
//! From the bottom up: [`design`] what a stack is; [`fields`] its keys with units and ranges;
//! [`file`](mod@file) stack files; [`presets`]; [`materials`] constants with their sources. The
//! models, one file each: [`tsv`] vertical connections; [`timing`] and [`banks`] closed forms,
//! [`cycle`] the cycle model; [`solver`] heat in three dimensions, [`heat`] a stack beside a hot
//! processor; [`refresh`] what refresh takes by temperature; [`energy`] power; [`supply`] voltage
//! drop and switching noise; [`height`]; [`reliability`]; [`cost`] yield and cost. [`evaluate`]
//! puts them together and closes the loop of power, temperature and refresh; [`sweep`] tries many
//! designs; [`node`] makes a machine file.
//!
//! "The paper" in comments is A. Farmahini-Farahani et al., "Challenges of High-Capacity DRAM
//! Stacks and Potential Directions", MCHPC 2018.

pub mod banks;
pub mod choices;
pub mod cost;
pub mod cycle;
pub mod design;
pub mod energy;
pub mod error;
pub mod evaluate;
pub mod fields;
pub mod file;
pub mod heat;
pub mod height;
pub mod materials;
pub mod node;
pub mod presets;
pub mod refresh;
pub mod reliability;
pub mod solver;
pub mod supply;
pub mod sweep;
pub mod timing;
pub mod tsv;

pub use design::StackDesign;
pub use error::StackError;
pub use evaluate::{evaluate, StackEvaluation, StackLoad};
