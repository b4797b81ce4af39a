//! A range of far memory, for programs.

use crate::command::{Command, ServiceReport, Shared};
use crate::error::FarError;
use crate::geometry::Geometry;
use crate::listeners::{LostBytes, OnCounts, OnLost, StallClock};
use crate::pager::{Advice, Pager, PagerSettings};
use crate::service::{Service, State};
use crate::store::{BackingStore, ExistingFile};
use crate::FarCounts;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use terrace_sys::{
    FarArea, OneShotReply, PriorityBoost, SignalsBlocked, SysError, Uffd, UffdFeatures,
    WakeDescriptor,
};
use terrace_types::Bytes;

/// Settings that few need to change.
#[derive(Clone)]
pub struct FarOptions {
    /// What goes out and comes in as one: a power of two from the page to 2 MiB. Zero, as it is
    /// unless set: chosen by the memory ([`FarOptions::chunk_for`]).
    pub chunk: Bytes,
    /// The most that is fetched ahead of one access stream, within a 16th of the memory; zero:
    /// nothing. 16 MiB.
    pub window: Bytes,
    /// Keep a checksum of all that is written, and hold what is read against it. On.
    pub checksum: bool,
    /// Times that a read is tried before its bytes are lost. 3.
    pub tries: u8,
    /// The pager's thread is scheduled ahead of ordinary work, where this user may ask for that.
    /// On.
    pub ahead: bool,
    /// Whether a thread that waits alone may be woken on the pager's CPU where that is found to be
    /// faster (ADR 176). On.
    pub beside: bool,
    /// Told of bytes that cannot be read back, before the signal; one line on standard error unless
    /// set.
    pub on_lost: Option<OnLost>,
    /// Told of the counts as they change, by the pager's thread; nobody unless set.
    pub on_counts: Option<OnCounts>,
    /// Says for how long programs had to wait for memory so far: while that grows by more than a
    /// tenth of the time, an eighth of the map's memory is given back each second, down to a
    /// fourth, and taken again after ten calm seconds. Nobody unless set; [`stalls`] is this
    /// machine.
    pub stalls: Option<StallClock>,
}

/// This machine's stalls for memory: `/proc/pressure/memory`; `None` where the kernel keeps no such
/// account.
#[must_use]
pub fn stalls() -> Option<StallClock> {
    terrace_sys::memory_stalls(&terrace_sys::Root::live()).ok()?;
    Some(Arc::new(|| terrace_sys::memory_stalls(&terrace_sys::Root::live()).ok()))
}

impl Default for FarOptions {
    fn default() -> Self {
        Self {
            chunk: Bytes::ZERO,
            window: Bytes::mib(16),
            checksum: true,
            tries: 3,
            ahead: true,
            beside: true,
            on_lost: None,
            on_counts: None,
            stalls: None,
        }
    }
}

impl FarOptions {
    /// The chunk of a map with `dram` of memory: as set, or the largest from 64 to 256 KiB that
    /// leaves 32 buffers of a chunk within a 32nd of the memory. Pages are fetched singly within
    /// any of them; larger ones have pages of several pages.
    #[must_use]
    pub const fn chunk_for(&self, dram: Bytes) -> Bytes {
        if self.chunk.0 > 0 {
            return self.chunk;
        }
        PagerSettings::chunk_for(dram)
    }
}

impl std::fmt::Debug for FarOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("chunk", &self.chunk)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

/// What a map did so far, and how it works here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    /// Counts and gauges.
    pub counts: FarCounts,
    /// Memory in which the store keeps data, beside the map's own.
    pub store_memory: Bytes,
    /// Memory for accounts: records of chunks, checksums, where the store has what. It is beside
    /// the map's too.
    pub metadata: Bytes,
    /// What the kernel offers.
    pub features: UffdFeatures,
    /// Ways that are slower here than elsewhere, each with its reason.
    pub remarks: Vec<String>,
}

/// Memory of `bytes` bytes of which at most `dram` are in memory, the rest in a store. All zeros at
/// first.
///
/// Forked children do not have it (touching it is a SIGSEGV there, never zeros or old data). Memory
/// that a device is to write to directly (`O_DIRECT` reads into it) must be pinned while that goes
/// on.
///
/// Dropping it gives everything back and forgets the data, unless it is a file's
/// ([`FarMap::of_file`]).
#[derive(Debug)]
pub struct FarMap {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    geometry: Geometry,
    dram: Mutex<Bytes>,
    frames: Bytes,
    remarks: Vec<String>,
    /// The store keeps what is written to it.
    keeps: bool,
    /// Of the file, where it is one's.
    file_bytes: Option<Bytes>,
}

/// How a file is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileMapMode {
    /// Writing to the memory is a SIGSEGV.
    ReadOnly,
    /// What is written to the memory is written to the file when it goes out, by [`FarMap::flush`],
    /// and when the map is dropped.
    ReadWrite,
}

impl FarMap {
    /// Makes one with the usual options.
    ///
    /// # Errors
    /// [`FarError::Kernel`] where this user may not use userfaultfd, with what to set; sizes that
    /// do not fit together.
    pub fn new(bytes: Bytes, dram: Bytes, store: Box<dyn BackingStore>) -> Result<Self, FarError> {
        Self::with(bytes, dram, store, &FarOptions::default())
    }

    /// Makes one.
    ///
    /// # Errors
    /// As [`FarMap::new`].
    pub fn with(
        bytes: Bytes,
        dram: Bytes,
        store: Box<dyn BackingStore>,
        options: &FarOptions,
    ) -> Result<Self, FarError> {
        let made =
            assemble(bytes, dram, store, options, WakeDescriptor::new()?, |uffd, geometry| {
                FarArea::map(uffd, geometry.bytes() as usize, geometry.chunk_bytes())
            });
        let (mut map, service) = made?;
        let ahead = options.ahead;
        let quiet = SignalsBlocked::new();
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
            let _ahead = ahead.then(PriorityBoost::of_ordinary_work);
            serve(service);
        });
        drop(quiet);
        map.thread = Some(thread.map_err(|e| no_thread(&e))?);
        Ok(map)
    }

    /// Makes one of a file that is there: its bytes, and zeros to the end of the last page. The
    /// file keeps its length. No checksums are kept, for the file's bytes had none; a file that is
    /// cut off meanwhile is bytes lost, as everywhere here.
    ///
    /// Unlike a mapping of the kernel's, what was written and not flushed is lost with the process.
    ///
    /// # Errors
    /// As [`FarMap::new`]; no such file, no permission, an empty file, or one that is no ordinary
    /// file.
    pub fn of_file(
        path: &Path,
        access: FileMapMode,
        dram: Bytes,
        options: &FarOptions,
    ) -> Result<Self, FarError> {
        let store = ExistingFile::open(path, access == FileMapMode::ReadWrite)?;
        let bytes = store.holds();
        let mut map = Self::with(bytes, dram, Box::new(store), options)?;
        if access == FileMapMode::ReadOnly {
            map.shared.area.write_protected_for_good()?;
        }
        map.file_bytes = Some(bytes);
        Ok(map)
    }

    /// Bytes of the file that this is a map of, if it is one.
    #[must_use]
    pub const fn file_bytes(&self) -> Option<Bytes> {
        self.file_bytes
    }

    /// The least memory that a map made with `dram` and chunks of `chunk` can later be given.
    #[must_use]
    pub const fn least(dram: Bytes, chunk: Bytes) -> Bytes {
        PagerSettings::least(dram, chunk)
    }

    /// Brings everything into memory, beyond what it may use, and evicts nothing until
    /// [`FarMap::let_go`]: before a fork, whose child finds in memory whatever was there.
    ///
    /// # Errors
    /// [`FarError::Partly`] when something could not be read back.
    pub fn gather(&self) -> Result<(), FarError> {
        if self.ask(Command::Gather) {
            Ok(())
        } else {
            Err(FarError::Partly { what: "gather" })
        }
    }

    /// Ends [`FarMap::gather`].
    pub fn let_go(&self) {
        self.send(Command::Budget(self.dram() - self.frames));
    }

    /// Bytes, rounded up to whole pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.area.len()
    }

    /// Whether it is empty: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.area.is_empty()
    }

    /// The memory as words that any thread may read and write.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        self.shared.area.words()
    }

    /// First byte, for those who need a pointer; valid while the map lives.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.shared.area.as_ptr()
    }

    /// Writes everything that the store does not have to it, and waits for that. It stays in
    /// memory.
    ///
    /// # Errors
    /// [`FarError::Partly`] when the store failed; nothing is lost.
    pub fn flush(&self) -> Result<(), FarError> {
        if self.ask(Command::Flush) {
            Ok(())
        } else {
            Err(FarError::Partly { what: "flush" })
        }
    }

    /// Fetches a range of bytes, as far as there is space without evicting anything; returns once
    /// it is on its way.
    ///
    /// # Errors
    /// A range beyond the map.
    pub fn prefetch(&self, range: Range<usize>) -> Result<(), FarError> {
        self.advise(range, Advice::WillNeed)
    }

    /// Says what is to become of a range of bytes; whole pages within it for [`Advice::Cold`] and
    /// [`Advice::Discard`].
    ///
    /// # Errors
    /// A range beyond the map; [`FarError::Partly`] when the store failed.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), FarError> {
        let range = self.within(&range)?;
        if self.keeps && advice == Advice::Discard {
            return Err(FarError::Kept { what: "discard" });
        }
        if self.ask(|reply| Command::Advise(range, advice, reply)) {
            Ok(())
        } else {
            Err(FarError::Partly { what: "advise" })
        }
    }

    /// Brings a range into memory and keeps it there, or no longer. Chunks that it touches are
    /// pinned whole.
    ///
    /// # Errors
    /// A range beyond the map; more than half of the memory pinned.
    pub fn pin(&self, range: Range<usize>, on: bool) -> Result<(), FarError> {
        let asked = Bytes(range.len() as u64);
        let range = self.within(&range)?;
        if self.ask(|reply| Command::Pin(range, on, reply)) {
            Ok(())
        } else {
            Err(FarError::Pinned { asked, budget: self.dram() })
        }
    }

    /// Memory that it may use now.
    #[must_use]
    pub fn dram(&self) -> Bytes {
        *self.dram.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the memory that it may use, while it runs.
    ///
    /// # Errors
    /// [`FarError::TooLittle`].
    pub fn set_dram(&self, dram: Bytes) -> Result<(), FarError> {
        let chunk = Bytes(self.geometry.chunk_bytes() as u64);
        let least = self.frames + Bytes(16 * chunk.0);
        if dram < least {
            return Err(FarError::TooLittle { dram, chunk, least });
        }
        *self.dram.lock().unwrap_or_else(PoisonError::into_inner) = dram;
        self.send(Command::Budget(dram - self.frames));
        Ok(())
    }

    /// What happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let reported = *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let features = self.shared.area.uffd().features();
        let ServiceReport { counts, store_memory, metadata } = reported;
        Statistics { counts, store_memory, metadata, features, remarks: self.remarks.clone() }
    }

    pub(crate) fn within(&self, range: &Range<usize>) -> Result<Range<u64>, FarError> {
        if range.start > range.end || range.end > self.len() {
            let (start, end) = (range.start as u64, range.end as u64);
            return Err(FarError::Range { start, end, bytes: Bytes(self.len() as u64) });
        }
        Ok(range.start as u64..range.end as u64)
    }

    fn send(&self, command: Command) {
        // The thread ends only when asked to by `drop`, or takes the process with it.
        let _there = self.commands.send(command);
        self.shared.bell.ring();
    }

    pub(crate) fn ask(&self, command: impl FnOnce(Arc<OneShotReply>) -> Command) -> bool {
        let answer = Arc::new(OneShotReply::default());
        self.send(command(Arc::clone(&answer)));
        answer.wait()
    }
}

impl Drop for FarMap {
    fn drop(&mut self) {
        if self.keeps {
            // Who wants to know whether that works calls `flush`.
            let _written = self.flush();
        }
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _served = thread.join();
        }
    }
}

/// Serves until asked to stop. Should that fail, or this program have a fault, the process ends: a
/// thread that waits for a page would wait for ever, or, were the userfaultfd closed, read zeros in
/// place of data.
pub(crate) fn serve(service: Service) {
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| service.run()));
    let why = match ended {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "its pager failed; the lines above say where".to_owned(),
    };
    eprintln!("far memory: cannot go on, and must not let the program read wrong data: {why}");
    std::process::abort();
}

pub(crate) const THREAD: &str = "terrace-far";

pub(crate) fn no_thread(error: &std::io::Error) -> SysError {
    SysError::from_io("clone", "the pager's thread", error, "raise the limit on threads")
}

/// Puts a map and its service together; nobody serves yet.
pub(crate) fn assemble(
    bytes: Bytes,
    dram: Bytes,
    store: Box<dyn BackingStore>,
    options: &FarOptions,
    bell: WakeDescriptor,
    area: impl FnOnce(Uffd, Geometry) -> Result<FarArea, SysError>,
) -> Result<(FarMap, Service), FarError> {
    let chunk = options.chunk_for(dram);
    let page_shift = terrace_sys::page_size().0.trailing_zeros();
    let geometry =
        Geometry::new(bytes, chunk, page_shift).ok_or(FarError::Shape { bytes, chunk })?;
    let settings = PagerSettings {
        window: options.window,
        tries: options.tries,
        stored: store.holds(),
        ..PagerSettings::new(dram, chunk)
    };
    let least = FarMap::least(dram, chunk);
    if dram < least {
        return Err(FarError::TooLittle { dram, chunk, least });
    }
    let uffd = Uffd::open()?;
    let keeps = store.holds() > Bytes::ZERO;
    let mut remarks: Vec<String> = store.remark().into_iter().collect();
    remarks.extend(slower(uffd.features()));
    let area = area(uffd, geometry)?;
    let free = area.frames(settings.frames + settings.standby, geometry.chunk_bytes())?;
    let frame_bytes = dram - settings.budget;
    let pager = Pager::new(geometry, settings);
    let counts = Mutex::new(ServiceReport { counts: pager.counts(), ..ServiceReport::default() });
    let shared = Arc::new(Shared { area, bell, counts });
    let (commands, receiver) = channel();
    let service = Service {
        shared: Arc::clone(&shared),
        pager,
        store,
        free: Vec::new(),
        bare: free,
        commands: receiver,
        on_lost: options.on_lost.clone().unwrap_or_else(|| Arc::new(say_lost)),
        on_counts: options.on_counts.clone(),
        stalls: options.stalls.clone(),
        set: settings.budget,
        frame_bytes,
        // What a file had before was never summed up.
        sums: (options.checksum && !keeps).then(|| vec![0; geometry.pages() as usize]),
        state: State::of(options.beside),
    };
    let map = FarMap {
        shared,
        commands,
        thread: None,
        geometry,
        dram: Mutex::new(dram),
        frames: frame_bytes,
        remarks,
        keeps,
        file_bytes: None,
    };
    Ok((map, service))
}

/// What is slower, or missing, for want of these features.
fn slower(features: UffdFeatures) -> Vec<String> {
    let all = [
        (
            !features.move_pages,
            "no UFFDIO_MOVE (Linux 6.8): victims are copied; pin what devices write to",
        ),
        (!features.poison, "no UFFDIO_POISON (Linux 6.6): lost pages raise SIGBUS by a signal"),
        (
            !features.thread_id,
            "events do not name threads: access streams of several threads are taken for one",
        ),
        (
            !features.kernel_faults,
            "system calls into absent pages fail (EFAULT): vm.unprivileged_userfaultfd=1 helps",
        ),
    ];
    all.into_iter().filter(|(missing, _)| *missing).map(|(_, what)| what.to_owned()).collect()
}

fn say_lost(lost: &LostBytes) {
    eprintln!("{lost}");
}
