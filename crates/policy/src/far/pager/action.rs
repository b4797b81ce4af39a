//! What the pager asks for, and what is reported to it of a fault.

use super::*;

/// What the pager wants done, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagerAction {
    /// Take a frame for the chunk and read these pages into it; answer with [`Pager::read_done`].
    Read {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// Map pages from the chunk's frame and wake the threads that wait.
    Install {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
        /// Against writing, so that the first write is reported.
        protect: bool,
    },
    /// Map zeros and wake the threads that wait.
    Zeros {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
        /// As in [`PagerAction::Install`].
        protect: bool,
    },
    /// Give the chunk's frame back.
    Release {
        /// Which.
        chunk: ChunkNo,
    },
    /// Allow writing, and wake the writers.
    Unprotect {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// Unmap pages whose bytes the store has, or that are zeros.
    Drop {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// Take a frame and move these pages out of the map into it; answer with [`Pager::extracted`].
    Extract {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
        /// Of them, those that go to the store unless they are zeros.
        dirty: PageMask,
    },
    /// Take a frame, protect these pages and copy them into it; they stay mapped. Answer as for
    /// `ExtractMethod`.
    CopyOut {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// Write pages from the chunk's frame to the store; answer with [`Pager::write_done`].
    Write {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// Wake the threads that wait for these pages, which are there. If they are not, say so with
    /// [`Pager::vanished`].
    Wake {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
        /// Who asked.
        tid: Tid,
    },
    /// These pages are lost: who touches them gets SIGBUS.
    Poison {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
        /// Who asked.
        tid: Tid,
        /// The first time that it is said.
        first: bool,
    },
    /// The store need not keep these pages.
    Forget {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// Lost pages may be filled anew.
    Cure {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// The pager is not asked for these pages any more: faults there are the kernel's matter from
    /// now on. What is mapped stays mapped.
    Detach {
        /// Which.
        chunk: ChunkNo,
        /// Pages.
        mask: PageMask,
    },
    /// The command of this number is done; false: some of it failed.
    Answer {
        /// Number of the command.
        command: u64,
        /// All of it was done.
        ok: bool,
    },
}

impl PagerAction {
    /// The chunk that it concerns, if it is one.
    pub(super) const fn chunk(&self) -> Option<ChunkNo> {
        match self {
            Self::Read { chunk, .. }
            | Self::Install { chunk, .. }
            | Self::Zeros { chunk, .. }
            | Self::Release { chunk }
            | Self::Unprotect { chunk, .. }
            | Self::Drop { chunk, .. }
            | Self::Extract { chunk, .. }
            | Self::CopyOut { chunk, .. }
            | Self::Write { chunk, .. }
            | Self::Wake { chunk, .. }
            | Self::Poison { chunk, .. }
            | Self::Forget { chunk, .. }
            | Self::Cure { chunk, .. }
            | Self::Detach { chunk, .. } => Some(*chunk),
            Self::Answer { .. } => None,
        }
    }
}

/// Somebody touched a page that was not mapped, or not for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFault {
    /// Who; 0 when not known.
    pub tid: Tid,
    /// What.
    pub page: FarPageNo,
    /// To write.
    pub write: bool,
    /// It was mapped, and write-protected.
    pub protected: bool,
}
