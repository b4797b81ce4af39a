//! What can go wrong with arenas, by situation.

use std::fmt;
use terrace_sys::SysError;
use terrace_types::{Bytes, NodeId};

/// An arena could not be made, or what is asked of it cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// The address ranges for arenas could not be had.
    #[error("no addresses for arenas: {0}")]
    NoAddresses(SysError),
    /// As many arenas as there can be.
    #[error("{0} arenas exist, and no more can; destroy some first")]
    TooMany(usize),
    /// Arenas differ in devices in more ways than are kept apart.
    #[error(
        "arenas have {0} different sets of devices, and no more are kept apart; use fewer sets"
    )]
    TooManyClasses(usize),
    /// No device was named, or one more often than once.
    #[error("devices of an arena: {0}; give each node once")]
    Devices(&'static str),
    /// A node that this machine or process does not have.
    #[error("node {0} has no memory here; see terrace tiers")]
    NoNode(NodeId),
    /// The kernel refused to bind addresses to the nodes.
    #[error("an arena on the nodes asked for cannot be had: {0}")]
    Bind(SysError),
    /// A limit that holds nothing.
    #[error("a limit of {0} holds nothing; an arena takes memory in steps of 64 KiB")]
    Limit(Bytes),
    /// The arena was destroyed before.
    #[error("arena was destroyed before; its handle names nothing")]
    Destroyed,
}

/// A block could not be had. Small, so that it costs nothing on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArenaAllocError {
    /// More bytes than addresses.
    #[error("no block can have that many bytes")]
    TooLarge,
    /// Not a power of two.
    #[error("an alignment must be a power of two")]
    Alignment,
    /// The arena's size limit is reached.
    #[error("the arena is at its size limit; raise it or free something")]
    Limit,
    /// The addresses for arenas are used up, or the kernel refuses more mappings.
    #[error(
        "the addresses for arenas are used up; destroy arenas, or raise ulimit -v and \
        vm.max_map_count"
    )]
    NoAddresses,
    /// The arena was destroyed.
    #[error("arena was destroyed before; its handle names nothing")]
    Destroyed,
    /// The thread is inside the allocator already: a signal handler that allocates.
    #[error(
        "this thread is inside the allocator already (a signal handler); allocate outside of \
        handlers"
    )]
    Reentered,
}

/// A pointer that cannot be freed; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// Not from any arena.
    #[error("not a pointer of any arena")]
    Foreign,
    /// In an arena's range, but nothing is allocated there: freed before, or never handed out.
    #[error("nothing is allocated there: freed twice, or never handed out")]
    NotAllocated,
    /// Inside a block.
    #[error("points into a block and not at its start")]
    Interior,
}

/// Why an arena was not moved, or not as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// Nothing was begun.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The arena is moving already.
    #[error("the arena is moving already; wait for that move or cancel it")]
    Moving,
    /// Strict, and pages stayed behind: all that moved was brought back.
    #[error("{0}; it was to be all or nothing, so what moved was brought back")]
    Incomplete(Box<super::MoveReport>),
    /// Cancelled on the way; pages lie on old and new devices.
    #[error("cancelled: {0}")]
    Cancelled(Box<super::MoveReport>),
    /// No thread could be started for an asynchronous move.
    #[error("no thread for the move: {0}; wait for other threads or move synchronously")]
    NoThread(String),
}

/// A list of nodes in words.
pub(crate) struct Nodes<'a>(pub(crate) &'a [NodeId]);

impl fmt::Display for Nodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, node) in self.0.iter().enumerate() {
            write!(f, "{}{node}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}
