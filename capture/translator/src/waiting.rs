//! Signals of a thread that came and were not delivered yet.

use core::sync::atomic::{AtomicU32, Ordering};

/// A signal that waits to be delivered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitingSignal {
    pub number: u64,
    pub info: [u64; 16],
    /// Error code, trap number, faulting address.
    pub fault: [u64; 3],
}

/// A thread's signals that came and were not delivered yet, and its stack for handlers.
#[repr(C)]
pub struct Waiting {
    pub count: AtomicU32,
    pub held: [WaitingSignal; 4],
    /// What the program has blocked, while something waits.
    pub mask: u64,
    /// The program's alternate stack: address, bytes; 0 bytes where there is none.
    pub alternate: [u64; 2],
}

impl Waiting {
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }
}
