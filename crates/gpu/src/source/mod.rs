//! Kernels as source: the arrays of a kernel, how it accesses them, and its variants.
//!
//! The source is CUDA C with all arrays in global memory. A variant is made by rewriting the
//! accesses of one array; tiles in shared memory are alternatives that the source itself has under
//! `#ifdef TILE_array`.

pub(crate) mod lex;
mod preprocess;
mod rewrite;
mod signature;

pub use crate::kernel_array::KernelArray;
pub use preprocess::{preprocess, Definitions};
pub use rewrite::{rewrite_kernel, PlacedArray, VariantSource};
pub(crate) use signature::TokenText;
pub use signature::{find_kernels, KernelScalar, KernelSignature, SourceError};
