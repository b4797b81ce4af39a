//! Memory by what it is for: arenas whose pages lie on the nodes asked for and move together.
//! Unsafe code is allowed in this crate; each block carries its proof.

pub mod arena;
