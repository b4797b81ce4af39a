//! Staging with the figures of a machine file. The pipeline itself is [`terrace_migrate::staging`],
//! re-exported here.
//!
//! ```no_run
//! use terrace_terrace::machine::preset;
//! use terrace_terrace::stage::{costs, stage_update, StagingOptions, Threads};
//! use terrace_terrace::types::NodeId;
//!
//! # fn stencil(_: &mut [f64]) {}
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # const BLOCK: usize = 1 << 18;
//! let (mut data, machine) = (vec![1.0; 1 << 24], preset("lab-cxl").ok_or("no such preset")?);
//! let mut options = StagingOptions::new(NodeId(0), Threads::Auto(12)); // buffers on node 0, twelve threads
//! options.slow = Some(NodeId(1)); // the data lies on node 1
//! options.passes = 10.0; // the kernel goes over a block ten times
//! options.costs = costs(&machine, NodeId(0), NodeId(1), NodeId(0)); // from a machine file
//! let length = data.len();
//! let blocks = (0..length).step_by(BLOCK).map(|at| at..(at + BLOCK).min(length));
//! let report = stage_update(&mut data, blocks, &options, |_number, block| stencil(block))?;
//! println!("{:?}", report.mode);
//! # Ok(())
//! # }
//! ```

pub use terrace_alloc::stage_costs as costs;
pub use terrace_migrate::staging::*;

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset;
    use terrace_types::{BytesPerSec, NodeId};

    #[test]
    fn a_preset_states_what_staging_can_use() {
        let machine = preset("lab-cxl").expect("a preset");
        let costs =
            costs(&machine, NodeId(0), NodeId(1), NodeId(0)).expect("its figures are known");
        assert_eq!((costs.slow, costs.fast), (BytesPerSec::gb(20), BytesPerSec::gb(100)));
        // Sixteen lines of a stream in 300 ns.
        let thread = 16.0 * 64.0 / 300.0;
        assert!((costs.slow_thread.get() as f64 / 1e9 - thread).abs() < 0.01, "{costs:?}");
        assert!(super::costs(&machine, NodeId(0), NodeId(7), NodeId(0)).is_none());
    }
}
