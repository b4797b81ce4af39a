//! Machine files: TOML with the unit beside each figure. The format is described in
//! `docs/machine-file.md`.

mod read;
mod store;
mod write;

pub use store::with_store;
pub use write::{LinkSpread, Spreads};

/// Largest machine file that is read, in bytes: 256 nodes with all links fit ten times over.
pub const MAX_FILE: usize = 16 << 20;
