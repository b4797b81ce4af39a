//! A far-memory map over memory that a whole program already uses; ranges are attached and detached
//! as the program changes its mappings.

use crate::command::{Command, Occupancy};
use crate::error::FarError;
use crate::map::{assemble, no_thread, serve, FarMap, FarOptions, THREAD};
use crate::pager::DiscardedContents;
use crate::service::Service;
use crate::store::BackingStore;
use std::ops::Range;
use std::sync::mpsc::channel;
use terrace_sys::{
    now, FarArea, PriorityBoost, ReservedMemory, SignalsBlocked, SysError, WakeDescriptor,
};
use terrace_types::Bytes;

/// What [`FarMap::over`] takes over. All functions in it are called on the pager's thread.
pub struct Takeover {
    /// The address range.
    pub ground: ReservedMemory,
    /// Called first on the pager's thread, before it allocates memory.
    pub first: fn(),
    /// Returns which parts of the address range are in use.
    pub used: Box<dyn FnOnce() -> InUse + Send>,
    /// Budget of local memory (DRAM) for the map.
    pub dram: Bytes,
    /// Makes the store.
    pub store: Box<dyn FnOnce() -> Result<Box<dyn BackingStore>, FarError> + Send>,
}

/// Which parts of the memory that a map takes over are in use, as byte offsets from its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InUse {
    /// Ranges to be managed as far memory.
    pub managed: Vec<Range<usize>>,
    /// Parts of `managed` in which pages may be present.
    pub touched: Vec<Range<usize>>,
    /// Ranges that stay ordinary memory of the program.
    pub others: Vec<Range<usize>>,
    /// The range at the end that was never used.
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
    // From here on a missing page raises a userfaultfd event; pages now present are adopted.
    for part in used.touched {
        for run in ground.present(part)? {
            service.pager.adopt(run.start as u64..run.end as u64);
        }
    }
    Ok((map, service))
}

impl FarMap {
    /// Makes a map over memory in use, for a whole program that is not aware of it. The pager's
    /// thread has a file descriptor table of its own: the program can neither see nor close its
    /// descriptors. The map exists until the program exits, since its descriptors are numbers in
    /// that table, which no other thread may close.
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

    /// Stops managing the whole pages within a range of bytes. Once this returns they are ordinary
    /// memory, which the pager neither populates nor evicts, and which does not count against the
    /// budget. To be called before the program changes the mapping.
    ///
    /// # Errors
    /// A range beyond the map. Access to bytes that cannot be read back raises SIGBUS as elsewhere.
    pub fn detach(&self, range: Range<usize>, contents: DiscardedContents) -> Result<(), FarError> {
        let range = self.within(&range)?;
        let _always = self.ask(|reply| Command::Detach(range, contents, reply));
        Ok(())
    }

    /// Takes over a range of bytes that was mapped anew (private and anonymous) or detached.
    ///
    /// # Errors
    /// A range beyond the map; [`FarError::Partly`] if the kernel does not report faults in it over
    /// userfaultfd: then it stays ordinary memory.
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
    /// Takes over a part of the area. Once it is registered, a missing page raises an event; pages
    /// present at that time are adopted.
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
