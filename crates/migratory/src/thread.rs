//! Threads: their context, and the frames in which their children are counted.

use crate::code::{CodeAddress, REGISTERS};

/// Where a thread's children are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameId {
    pub nodelet: u32,
    pub frame: u32,
}

/// What a spawn that became a call returns to.
#[derive(Debug, Clone)]
pub(crate) struct CallFrame {
    pub pc: CodeAddress,
    pub registers: [i64; REGISTERS],
    /// Children that the caller spawned, and where they are counted.
    pub children: Option<FrameId>,
    pub spawned: u64,
}

/// The context of a thread.
#[derive(Debug, Clone)]
pub(crate) struct ThreadContext {
    pub pc: CodeAddress,
    pub registers: [i64; REGISTERS],
    /// The frame that its end is reported to; none: the first thread.
    pub parent: Option<FrameId>,
    /// Children since the last sync: where they are counted.
    pub children: Option<FrameId>,
    /// How many they are.
    pub spawned: u64,
    /// Updates that are not acknowledged.
    pub unacknowledged: u32,
    /// Its time, picoseconds.
    pub now_ps: u64,
    pub calls: Vec<CallFrame>,
}

impl ThreadContext {
    pub fn new(pc: CodeAddress, registers: [i64; REGISTERS], parent: Option<FrameId>) -> Self {
        Self {
            pc,
            registers,
            parent,
            children: None,
            spawned: 0,
            unacknowledged: 0,
            now_ps: 0,
            calls: Vec::new(),
        }
    }

    /// Runs a child's body in place of a thread for it.
    pub fn call(&mut self, entry: CodeAddress) {
        self.calls.push(CallFrame {
            pc: CodeAddress(self.pc.0 + 1),
            registers: self.registers,
            children: self.children.take(),
            spawned: std::mem::take(&mut self.spawned),
        });
        self.pc = entry;
    }

    /// Goes on after a call; `false`: there is none, and the thread ends.
    pub fn go_back(&mut self) -> bool {
        let Some(frame) = self.calls.pop() else { return false };
        self.pc = frame.pc;
        self.registers = frame.registers;
        self.children = frame.children;
        self.spawned = frame.spawned;
        true
    }
}

/// Children of a thread that have ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChildFrame {
    pub ended: u64,
    /// How many the parent waits for, and its slot.
    pub waiting: Option<(u64, u32)>,
}
