//! Where threads begin.

use std::sync::mpsc::{sync_channel, SyncSender};
use std::thread::{Builder, Scope};
use terrace_sys::{own_cpus, pin, SysError};
use terrace_types::CpuId;

/// Begins threads on CPUs in turn: the thread that begins them goes there first, since a new thread
/// has the CPUs of the one that began it. A thread that pins itself must run first, and the kernel
/// may have put it behind one that works already.
///
/// A new thread waits until the caller has left its CPU for the next. If it worked at once it would
/// keep the caller from the CPU that both are on for a slice of time (EEVDF's, 3 ms with twelve
/// CPUs), and the others would begin so much later.
#[derive(Debug)]
pub(super) struct Places<'a> {
    cpus: &'a [CpuId],
    /// Those of the calling thread, which it gets back.
    before: Vec<CpuId>,
    /// What threads wait for that were begun and may not work yet: the last one, or all of them.
    gates: Vec<SyncSender<()>>,
    /// All wait until the last one was begun.
    together: bool,
}

impl<'a> Places<'a> {
    /// On `cpus`, in turn; none: anywhere.
    pub(super) fn new(cpus: &'a [CpuId]) -> Self {
        let before = if cpus.is_empty() { Vec::new() } else { own_cpus().unwrap_or_default() };
        // What could not be given back is not taken.
        Self {
            cpus: if before.is_empty() { &[] } else { cpus },
            before,
            gates: Vec::new(),
            together: false,
        }
    }

    /// The same, and none works before all were begun, when this is dropped: for threads that would
    /// hold up the beginning of others.
    pub(super) fn together(cpus: &'a [CpuId]) -> Self {
        let mut places = Self::new(cpus);
        places.together = true;
        places
    }

    /// Begins the thread of this number.
    pub(super) fn begin<'s>(
        &mut self,
        scope: &'s Scope<'s, '_>,
        index: u32,
        work: impl FnOnce() + Send + 's,
    ) -> Result<(), SysError> {
        if let Some(cpu) = self.cpus.get(index as usize % self.cpus.len().max(1)) {
            if pin(&[*cpu]).is_err() {
                self.give_back();
            }
        }
        let (gate, opened) = sync_channel(1);
        // One that is dropped is open: so the thread before may go on.
        if !self.together {
            self.gates.clear();
        }
        if self.together || !self.cpus.is_empty() {
            self.gates.push(gate);
        }
        let work = move || {
            let _either_way = opened.recv();
            work();
        };
        let failed = |e: std::io::Error| {
            let remedy =
                "ask for fewer threads, or raise the limit of processes (ulimit -u, pids.max)";
            SysError::from_errno(
                "clone",
                format!("thread {index}"),
                e.raw_os_error().unwrap_or(0),
                remedy,
            )
        };
        Builder::new()
            .name("terrace-stage".to_owned())
            .spawn_scoped(scope, work)
            .map(drop)
            .map_err(failed)
    }

    /// A CPU that may not be used any more cannot be given back: the thread stays where it is,
    /// slower at worst.
    fn give_back(&self) {
        if !self.before.is_empty() {
            let _stays = pin(&self.before);
        }
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.give_back();
        self.gates.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_begin_where_they_shall_and_the_caller_goes_back() {
        let mine = own_cpus().unwrap();
        let mut places = Places::new(&mine);
        let begun = |places: &mut Places<'_>, index: u32| {
            let there = std::sync::Mutex::new(Vec::new());
            std::thread::scope(|s| {
                places.begin(s, index, || *there.lock().unwrap() = own_cpus().unwrap()).unwrap();
                places.gates.clear();
            });
            there.into_inner().unwrap()
        };
        for index in 0..mine.len() as u32 + 1 {
            assert_eq!(begun(&mut places, index), [mine[index as usize % mine.len()]]);
        }
        drop(places);
        assert_eq!(own_cpus().unwrap(), mine);
        // One that there is not: wherever the caller may run.
        let nowhere = [CpuId(8000)];
        let mut places = Places::new(&nowhere);
        assert_eq!(begun(&mut places, 0), mine);
        drop(places);
        assert_eq!(begun(&mut Places::new(&[]), 3), mine);
        // Each waits until the caller is gone from its CPU, and the last until all have begun.
        let begun = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|s| {
            let mut places = Places::new(&mine[..1]);
            for index in 0..3 {
                let begun = &begun;
                places.begin(s, index, move || begun.lock().unwrap().push(index)).unwrap();
            }
            // They are on this CPU too, and would run now if they could.
            (0..1000).for_each(|_| std::thread::yield_now());
            assert!(!begun.lock().unwrap().contains(&2));
        });
        assert_eq!(begun.lock().unwrap().len(), 3);
    }
}
