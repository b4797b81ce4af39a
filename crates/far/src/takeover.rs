//! A map over memory that a whole program uses already, and whose parts come and go with the
//! program's mappings.

use crate::error::FarError;
use crate::map::{assemble, no_thread, serve, FarMap, FarOptions, THREAD};
use crate::pager::DiscardedContents;
use crate::service::{Command, Service};
use crate::store::BackingStore;
use std::ops::Range;
use std::sync::mpsc::channel;
use terrace_sys::{
    now, FarArea, PriorityBoost, ReservedMemory, SignalsBlocked, SysError, WakeDescriptor,
};
use terrace_types::Bytes;

/// Whether memory that is attached may have pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupancy {
    /// It was mapped just now, and nobody has touched it.
    Empty,
    /// It may have pages, whose bytes stay.
    Pages,
}

/// What [`FarMap::over`] takes over, each part asked for on the pager's thread.
pub struct Takeover {
    /// The addresses.
    pub ground: ReservedMemory,
    /// What the thread does before anything else: before it can allocate.
    pub first: fn(),
    /// What lies there.
    pub used: Box<dyn FnOnce() -> InUse + Send>,
    /// Memory that it may use.
    pub dram: Bytes,
    /// Makes the store.
    pub store: Box<dyn FnOnce() -> Result<Box<dyn BackingStore>, FarError> + Send>,
}

/// What lies in memory that a map takes over. Offsets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InUse {
    /// What is to be far.
    pub managed: Vec<Range<usize>>,
    /// Of it, what may have pages.
    pub touched: Vec<Range<usize>>,
    /// What is the program's own, and left alone.
    pub others: Vec<Range<usize>>,
    /// What was never used, at the end.
    pub unused: Range<usize>,
}

fn take_over(takeover: Takeover, options: &FarOptions) -> Result<(FarMap, Service), FarError> {
    terrace_sys::own_descriptors()?;
    let bell = WakeDescriptor::of_this_thread()?;
    let store = (takeover.store)()?;
    let ground = takeover.ground;
    let bytes = Bytes(ground.len() as u64);
    let used = (takeover.used)();
    let (map, mut service) =
        assemble(bytes, takeover.dram, store, options, bell, |uffd, geometry| {
            FarArea::take_over(uffd, ground, &used.managed, geometry.chunk_bytes())
        })?;
    for part in used.others {
        service.pager.exclude(part.start as u64..part.end as u64);
    }
    let unused = used.unused.start as u64..used.unused.end as u64;
    service.pager.exclude_until_attached(unused);
    // From here on a page that comes is an event; what is there now came before.
    for part in used.touched {
        for run in ground.present(part)? {
            service.pager.adopt(run.start as u64..run.end as u64);
        }
    }
    Ok((map, service))
}

impl FarMap {
    /// Makes one over memory that is there and in use, for a whole program that knows nothing of
    /// it. The pager's thread has descriptors of its own: the program can neither close them nor
    /// see them. It stays for the rest of the program: its descriptors are that thread's numbers,
    /// which nobody else may close.
    ///
    /// # Errors
    /// As [`FarMap::new`], and what making the store returns.
    pub fn over(takeover: Takeover, options: &FarOptions) -> Result<&'static Self, FarError> {
        let (tell, reported) = channel();
        let (ahead, options) = (options.ahead, options.clone());
        let quiet = SignalsBlocked::new();
        let thread = terrace_sys::spawn_bare(THREAD, move || {
            (takeover.first)();
            let service = match take_over(takeover, &options) {
                Ok((map, service)) => {
                    let _asker_waits = tell.send(Ok(map));
                    service
                }
                Err(error) => {
                    let _asker_waits = tell.send(Err(error));
                    return;
                }
            };
            let _ahead = ahead.then(PriorityBoost::of_ordinary_work);
            serve(service);
        });
        drop(quiet);
        thread?;
        let map = reported.recv().unwrap_or_else(|_| {
            let error = std::io::Error::other("it ended before it began");
            Err(no_thread(&error).into())
        })?;
        Ok(Box::leak(Box::new(map)))
    }

    /// Gives up a range of bytes, whole pages within it: from when this returns it is ordinary
    /// memory, which the pager neither fills nor takes from, and which does not count against the
    /// budget. For the time before the program changes its mapping.
    ///
    /// # Errors
    /// A range beyond the map. What cannot be read back is lost as elsewhere: SIGBUS.
    pub fn detach(&self, range: Range<usize>, contents: DiscardedContents) -> Result<(), FarError> {
        let range = self.within(&range)?;
        let _always = self.ask(|reply| Command::Detach(range, contents, reply));
        Ok(())
    }

    /// Takes over a range of bytes that was mapped anew (private and anonymous) or detached.
    ///
    /// # Errors
    /// A range beyond the map; [`FarError::Partly`] when the kernel asks nobody for faults there:
    /// then it stays as it is.
    pub fn attach(&self, range: Range<usize>, occupancy: Occupancy) -> Result<(), FarError> {
        let range = self.within(&range)?;
        if self.ask(|reply| Command::Attach(range, occupancy, reply)) {
            Ok(())
        } else {
            Err(FarError::Partly { what: "attach" })
        }
    }
}

impl Service {
    /// Takes over a part of the area. From the first step on a page that comes is an event; what is
    /// there by then came before.
    pub(crate) fn attach(
        &mut self,
        range: Range<u64>,
        occupancy: Occupancy,
    ) -> Result<(), SysError> {
        let part = range.start as usize..range.end as usize;
        self.shared.area.attach(&part)?;
        let there = match occupancy {
            Occupancy::Empty => Vec::new(),
            Occupancy::Pages => match self.shared.area.present(part.clone()) {
                Ok(there) => there,
                Err(error) => {
                    self.shared.area.detach(&part);
                    return Err(error);
                }
            },
        };
        self.pager.attach(range);
        for run in there {
            self.pager.adopt(run.start as u64..run.end as u64);
        }
        self.pager.balance(now());
        Ok(())
    }
}
