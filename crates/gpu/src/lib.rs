//! Which GPU memory for which array of a kernel: kernels and their variants, measurements,
//! features, learned models, advice.
//!
//! A kernel's source is read ([`source`]) and its accesses are analysed ([`analysis`]); features
//! of an array ([`features`]) go to a model ([`model`]) that was trained on measurements
//! ([`dataset`]) of benchmark kernels ([`benchmark`]) in all legal placements ([`placement`],
//! [`variant`]). [`managed`] advises on unified memory. [`measure`] is the only part that needs a
//! GPU.
#![forbid(unsafe_code)]

pub mod advise;
pub mod analysis;
pub mod benchmark;
pub mod counters;
pub mod data;
pub mod dataset;
pub mod evaluate;
pub mod features;
mod kernel_array;
pub mod learn;
pub mod managed;
pub mod measure;
pub mod model;
pub mod placement;
pub mod source;
pub mod variant;
