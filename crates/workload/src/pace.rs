//! Instructions that the workloads execute for their accesses, for whoever runs them on modelled
//! cores.

use crate::{HotAccess, HotLayout, WorkloadName, WorkloadSpec};

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
    const fn even(pace: u64) -> Self {
        Self { load: pace, store: pace, heap: pace, own: 0, fill: pace }
    }
}

impl WorkloadSpec {
    /// 1024ths of an instruction for each access to the data: what `terrace-workload`, built for
    /// release on x86-64, executes. Instructions were counted by valgrind's cachegrind at 1 and 3
    /// million accesses; their difference divided by that of the accesses to data that the same
    /// algorithm makes here.
    #[must_use]
    pub const fn roi_pace(&self) -> InstructionPace {
        InstructionPace::even(self.instructions())
    }

    /// 1024ths of an instruction for each access of the region of interest.
    const fn instructions(&self) -> u64 {
        let hundredths = match (self.name, self.layout, self.hot) {
            (WorkloadName::Skew | WorkloadName::Fits, HotLayout::Contiguous, _) => 980,
            (WorkloadName::Skew | WorkloadName::Fits, HotLayout::Scattered, HotAccess::Write) => {
                2110
            }
            (WorkloadName::Skew | WorkloadName::Fits, HotLayout::Scattered, HotAccess::Read) => {
                3760
            }
            (WorkloadName::Shift, _, _) => 890,
            (WorkloadName::Rwsplit, _, _) => 1130,
            (WorkloadName::Scan, _, _) => 1070,
            (WorkloadName::GraphBfs, _, _) => 750,
            (WorkloadName::Stream, _, _) => 235,
            (WorkloadName::Chase, _, _) => 500,
            (WorkloadName::GraphPagerank, _, _) => 539,
            (WorkloadName::NpbBt, _, _) => 4547,
            (WorkloadName::NpbFt, _, _) => 1942,
            (WorkloadName::NpbMg, _, _) => 1298,
            (WorkloadName::NpbCg, _, _) => 580,
            (WorkloadName::NpbIs, _, _) => 474,
            (WorkloadName::NpbLu, _, _) => 4150,
            (WorkloadName::NpbSp, _, _) => 1607,
        };
        hundredths * 1024 / 100
    }

    /// The same of what fills the data before.
    ///
    /// Drawing the edges of a graph takes longer than looking at them: valgrind's callgrind counts
    /// 204.5 million instructions of `Kronecker::build` for `fast=8MiB`, which makes 8.85 million
    /// accesses here: 9.2 of them for 1.51 million zeros that fill it first, 125 for 8.65 million
    /// reads of the table of chances (14.5 each, by line), and the others for drawing and placing.
    /// Of `npb-cg,fast=64MiB` it counts 741.3 million in `Cg::new`, which draws lists of 0.94
    /// million words by 61.2 and goes over them once, and 952.3 in `Cg::prepare`: 13 for each of
    /// 9.27 million loads, which only check, 680.1 to go over the lists again, of which 12.67
    /// million lines are read each time, and the rest for 9.44 million stores. Others are taken to
    /// go at the pace of what follows.
    #[must_use]
    pub const fn preparation_pace(&self) -> InstructionPace {
        match self.name {
            WorkloadName::GraphBfs | WorkloadName::GraphPagerank => InstructionPace {
                own: 145 * 1024 / 10,
                fill: 61 * 1024 / 10,
                ..InstructionPace::even(96 * 1024 / 10)
            },
            WorkloadName::NpbCg => {
                let store = 161 * 1024 / 10;
                InstructionPace {
                    load: 13 * 1024,
                    store,
                    heap: 652 * 1024 / 10,
                    own: 537 * 1024 / 10,
                    fill: store,
                }
            }
            _ => InstructionPace::even(self.instructions()),
        }
    }
}
