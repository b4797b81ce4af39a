//! The program inside the lab's virtual machine: its init, which takes one job from shared memory,
//! runs it and powers the machine off. Nothing else is in the guest's image. See
//! `docs/adr/0020-pass-jobs-to-the-guest-through-shared-memory.md`.

pub mod calibrate;
pub mod freelists;
pub mod init;
pub mod job;
pub mod kernel;
pub mod mailbox;
pub mod place;
pub mod reclaim;
pub mod span;
pub mod stats;
pub mod wire;
