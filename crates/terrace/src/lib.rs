//! The façade of Terrace: what the command line, C and Python bindings depend on. It puts the
//! rooms together and adds no mechanism of its own.
#![forbid(unsafe_code)]

pub mod allocate;
pub mod allocation_plan;
pub mod crash;
pub mod degrade;
pub mod doctor;
pub mod far_run;
pub mod gpu_profile;
pub mod idle;
mod journal_file;
pub mod lab_files;
pub mod latest;
pub mod manage;
pub mod migratory;
pub mod names;
pub mod output;
pub mod parts;
pub mod predict;
pub mod probe;
pub mod record;
pub mod riscv;
pub mod sharing;
pub mod source_lines;
pub mod stack;
mod stack_text;
pub mod stage;
pub mod system;
pub mod tracker_id;
pub mod usage;
mod written;

pub use terrace_alloc as alloc;
pub use terrace_crash as crash_model;
pub use terrace_device as device;
pub use terrace_engine as engine;
pub use terrace_far as far;
pub use terrace_gpu as gpu;
pub use terrace_lab as lab;
pub use terrace_machine as machine;
pub use terrace_migratory as migratory_machine;
pub use terrace_policy as policy;
pub use terrace_pool as pool;
pub use terrace_report as report;
pub use terrace_sim as sim;
pub use terrace_sys::{outlive_file_size_limit, Interrupt};
pub use terrace_topology as topology;
pub use terrace_trace as trace;
pub use terrace_types as types;
pub use terrace_vertex as vertex;
pub use terrace_workload as workload;

/// Bytes of a base page on this machine.
#[must_use]
pub fn machine_page_size() -> types::Bytes {
    terrace_sys::page_size()
}
