//! Instructions that the workloads execute for their accesses, for whoever runs them on modelled
//! cores.
//!
//! Each algorithm states its own, as `terrace-workload`, built for release on x86-64, executes
//! them. They were counted by valgrind's cachegrind at 1 and 3 million accesses: the difference of
//! the instructions divided by that of the accesses to data that the same algorithm makes here.

/// 1024ths of an instruction for what a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstructionPace {
    /// A load of the data.
    pub load: u64,
    /// A store to the data.
    pub store: u64,
    /// A word that comes to its own heap.
    pub heap: u64,
    /// A line read of its own heap.
    pub own: u64,
    /// A zero stored where one is: arrays are filled.
    pub fill: u64,
}

impl InstructionPace {
    /// The same for each load and store, in hundredths of an instruction.
    #[must_use]
    pub const fn even(hundredths: u64) -> Self {
        let pace = of_hundredths(hundredths);
        Self { load: pace, store: pace, heap: pace, own: 0, fill: pace }
    }
}

/// 1024ths of an instruction from hundredths.
pub(crate) const fn of_hundredths(hundredths: u64) -> u64 {
    hundredths * 1024 / 100
}

/// Instructions of a workload's two phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadPace {
    /// While its data are written for the first time.
    pub preparation: InstructionPace,
    /// In the region of interest.
    pub roi: InstructionPace,
}

impl WorkloadPace {
    /// The same for each access of both phases, in hundredths of an instruction.
    #[must_use]
    pub const fn even(hundredths: u64) -> Self {
        let pace = InstructionPace::even(hundredths);
        Self { preparation: pace, roi: pace }
    }
}

/// Of programs that build a Kronecker graph first. Drawing the edges of a graph takes longer than
/// looking at them: valgrind's callgrind counts 204.5 million instructions of `Kronecker::build`
/// for `fast=8MiB`, which makes 8.85 million accesses here: 9.2 of them for 1.51 million zeros that
/// fill it first, 125 for 8.65 million reads of the table of chances (14.5 each, by line), and the
/// others for drawing and placing.
pub(crate) const fn with_kronecker(roi_hundredths: u64) -> WorkloadPace {
    let preparation = InstructionPace {
        own: of_hundredths(1450),
        fill: of_hundredths(610),
        ..InstructionPace::even(960)
    };
    WorkloadPace { preparation, roi: InstructionPace::even(roi_hundredths) }
}
