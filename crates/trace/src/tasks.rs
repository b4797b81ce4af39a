//! Numbers of processes and threads in a trace, from the kernel's.

use crate::error::TraceError;
use crate::event::{EventKind, TraceEvent};
use crate::write::TraceWriter;
use std::collections::HashMap;
use std::io::Write;

/// Numbers in the order in which tasks appear.
#[derive(Debug, Default)]
pub struct TaskNumbers {
    processes: HashMap<i32, u32>,
    threads: HashMap<i32, u32>,
}

impl TaskNumbers {
    /// The numbers of a process and a thread of it; the thread's begin is an event of the trace.
    pub fn find<W: Write>(
        &mut self,
        writer: &mut TraceWriter<W>,
        (pid, tid): (i32, i32),
        time: u64,
    ) -> Result<(u32, u32), TraceError> {
        let next = self.processes.len() as u32;
        let process = *self.processes.entry(pid).or_insert(next);
        let next = self.threads.len() as u32;
        let thread = *self.threads.entry(tid).or_insert(next);
        if thread == next {
            let what = EventKind::ThreadStart { pid, tid };
            writer.event(&TraceEvent { time, process, thread, what })?;
        }
        Ok((process, thread))
    }

    /// The number of a process that has appeared.
    pub fn process(&self, pid: i32) -> Option<u32> {
        self.processes.get(&pid).copied()
    }

    /// The thread has ended: the kernel may give its number to another.
    pub fn forget_thread(&mut self, tid: i32) {
        self.threads.remove(&tid);
    }
}
