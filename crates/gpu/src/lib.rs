//! Which GPU memory for which array of a kernel: kernels and their variants, measurements,
//! features, learned models, advice.
#![forbid(unsafe_code)]

pub mod benchmark;
pub mod measure;
pub mod placement;
pub mod source;
pub mod variant;
