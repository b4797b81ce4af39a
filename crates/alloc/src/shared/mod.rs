//! Arenas that several processes share: one creates, others open by name or file descriptor.
//!
//! ```
//! use terrace_alloc::shared::{SharedArena, SharedSpec};
//! use terrace_types::Bytes;
//! let arena = SharedArena::create(&SharedSpec { size: Bytes::mib(1), ..SharedSpec::default() })?;
//! let block = arena.alloc(100, 1)?;
//! let offset = arena.offset(block.as_ptr()).expect("a block of this arena");
//! let same = SharedArena::open_fd(arena.fd().try_clone_to_owned()?)?; // in another process, mostly
//! assert!(same.pointer(offset).is_some_and(|p| p != block));
//! // SAFETY: allocated above and not used any more.
//! unsafe { arena.free(block.as_ptr())? };
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//! file: │ head │ used: 1 bit a grain │ starts: 1 bit a grain │ backed: 1 bit a chunk │ chunks of 64 KiB ...
//! ```
//! A block is a run of grains (64 bytes) whose first has its start bit set. What is in the file are
//! offsets alone, since each process maps it elsewhere; a block is handed from process to process
//! by its offset.
//!
//! # What is promised
//! - A process that dies, however and wherever, harms nobody: the lock comes back
//!   (`sys::RobustLock`), and what its holder was changing is undone or finished by whoever takes
//!   it next, from a note written before the first change. Blocks that it had stay until somebody
//!   frees them.
//! - What was allocated has memory: touching it is never killed for want of space in `/dev/shm`.
//! - A file that is no shared arena, or is cut short, is refused by name. Processes that open one
//!   may write to all of it, so they must trust one another.

mod maps;
mod segment;
#[cfg(test)]
mod tests;

use crate::arena::{ArenaError, ArenaSpec, Devices, FreeError, NodeOps};
use maps::{Freed, Geometry, Head, Maps, CHUNK, GRANULE};
pub use segment::place_segment;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use terrace_sys::{prefer_huge_pages, remove_shared, LockFound, RobustLock, SharedFile, SysError};
use terrace_types::Bytes;

/// Blocks begin at a multiple of this at most, in every process.
pub const MAX_ALIGN: usize = CHUNK;
/// Freed blocks of this many bytes give their memory back at once.
const GIVE_BACK_AT: usize = 1 << 20;
/// Bytes of a name at most.
const MAX_NAME: usize = 200;

/// What a shared arena shall be.
#[derive(Clone)]
pub struct SharedSpec {
    /// Its name, as in `shm_open`, without the slash; `None`: it is opened by descriptor alone.
    pub name: Option<String>,
    /// Bytes for blocks, rounded up to 64 KiB. 1/256 of it is taken at once for the maps, the rest
    /// when it is allocated.
    pub size: Bytes,
    /// Nodes its pages come from, for all who share it; a spill order cannot be.
    pub devices: Devices,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Who speaks for the nodes.
    pub nodes: &'static dyn NodeOps,
}

impl Default for SharedSpec {
    fn default() -> Self {
        let ArenaSpec { devices, nodes, .. } = ArenaSpec::default();
        Self { name: None, size: Bytes::mib(64), devices, huge_pages: false, nodes }
    }
}

impl std::fmt::Debug for SharedSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SharedSpec {{ {:?}, {}, {}, huge {} }}",
            self.name, self.size, self.devices, self.huge_pages
        )
    }
}

/// What cannot be done with a shared arena.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// A name that is none.
    #[error(
        "{name:?} cannot name shared memory; give 1 to {MAX_NAME} bytes without a slash, not \
            beginning with a point"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// A size that holds nothing, or more than can be addressed.
    #[error(
        "a shared arena of {0} cannot be; give its size in bytes, at least one and less than 2^46"
    )]
    Size(Bytes),
    /// A file that is something else.
    #[error("{target} is no shared arena: {what}; open what this version of Terrace created")]
    NotShared {
        /// File.
        target: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The nodes cannot be used so.
    #[error(transparent)]
    Devices(#[from] ArenaError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] SysError),
    /// No run of grains is long enough.
    #[error(
        "no free space for {asked} in one piece in the shared arena, which has {size} of which \
            {used} are used; free some"
    )]
    Full {
        /// What was asked for.
        asked: Bytes,
        /// What it has.
        size: Bytes,
        /// What is allocated.
        used: Bytes,
    },
    /// Not a power of two, or too large for a mapping that lies elsewhere in each process.
    #[error("an alignment must be a power of two, {MAX_ALIGN} at most in a shared arena")]
    Alignment,
    /// What is no block.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// The thread has the lock already.
    #[error(
        "this thread is inside the shared arena already (a signal handler); allocate outside \
        of handlers"
    )]
    Reentered,
    /// A process gave the lock back without putting right what a dead one had left.
    #[error(
        "the shared arena's lock is lost, because a process ended while it put the arena \
        right; create it anew"
    )]
    Lost,
}

/// Counts of a shared arena at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedStats {
    /// Bytes for blocks.
    pub size: Bytes,
    /// Bytes of blocks that are allocated, in steps of 64.
    pub used: Bytes,
    /// Blocks that are allocated.
    pub blocks: u64,
    /// Bytes that have memory.
    pub backed: Bytes,
    /// How often a process died with the lock in its hand.
    pub recovered: u64,
}

/// A shared arena as this process has it. Dropping it changes nothing for others. Threads may share
/// it.
#[derive(Debug)]
pub struct SharedArena {
    file: SharedFile,
    geometry: Geometry,
}

impl SharedArena {
    /// Makes one. Others see it whole or not at all.
    ///
    /// # Errors
    /// [`SharedError`]: the name is bad or taken, devices that do not exist, no free space for the
    /// maps.
    pub fn create(spec: &SharedSpec) -> Result<Self, SharedError> {
        spec.name.as_deref().map_or(Ok(()), check_name)?;
        spec.devices.check(&spec.nodes.nodes())?;
        if matches!(spec.devices, Devices::Spill(_)) {
            return Err(ArenaError::Devices("a shared arena has no spill order").into());
        }
        let geometry = Geometry::for_size(spec.size.get()).ok_or(SharedError::Size(spec.size))?;
        let file = match spec.name {
            Some(_) => SharedFile::unpublished(geometry.file_len)?,
            None => SharedFile::unnamed(geometry.file_len)?,
        };
        file.take(0..geometry.data_at)?;
        let data = file.as_ptr() as usize + geometry.data_at;
        // Nothing is bound where nothing was asked for: `mbind` may be forbidden.
        for policy in spec.devices.policies().iter().filter(|_| spec.devices != Devices::Anywhere) {
            policy.apply(spec.nodes, data, geometry.data_len).map_err(ArenaError::Bind)?;
        }
        let arena = Self { file, geometry };
        if spec.huge_pages {
            prefer_huge_pages(data, geometry.data_len);
        }
        // SAFETY: the head lies at the start of a mapping that nobody else has yet, with memory
        // behind it.
        unsafe { RobustLock::make(std::ptr::from_ref(&arena.head().lock).cast_mut())? };
        arena.head().begin(geometry.data_len);
        if let Some(name) = &spec.name {
            arena.file.publish(name)?;
        }
        Ok(arena)
    }

    /// Opens the one of that name.
    ///
    /// # Errors
    /// [`SharedError`]: there is none, it is not this user's, or it is no shared arena.
    pub fn open(name: &str) -> Result<Self, SharedError> {
        check_name(name)?;
        Self::of(SharedFile::open(name, size_of::<Head>())?, name)
    }

    /// Opens the one whose descriptor another process handed over (by fork, or through a socket).
    ///
    /// # Errors
    /// As [`SharedArena::open`].
    pub fn open_fd(fd: OwnedFd) -> Result<Self, SharedError> {
        Self::of(SharedFile::of_fd(fd, size_of::<Head>())?, "the descriptor's file")
    }

    fn of(file: SharedFile, target: &str) -> Result<Self, SharedError> {
        let wrong = |what| SharedError::NotShared { target: target.to_owned(), what };
        // SAFETY: the file is as long as a head at least, mapped at a page's start, and all of a
        // head's fields may hold any value and change at any time.
        let head = unsafe { &*file.as_ptr().cast::<Head>() };
        let size = head.size().map_err(wrong)?;
        let geometry = Geometry::for_size(size).ok_or_else(|| wrong("its size means nothing"))?;
        if geometry.file_len > file.len() {
            return Err(wrong("it is cut short"));
        }
        Ok(Self { file, geometry })
    }

    /// Takes a name away: nobody can open it any more, and its memory goes with the last process
    /// that has it.
    ///
    /// # Errors
    /// [`SharedError`]: there is none of that name, or it is not this user's.
    pub fn remove(name: &str) -> Result<(), SharedError> {
        check_name(name)?;
        Ok(remove_shared(name)?)
    }

    /// Its descriptor, which other processes may open.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    fn head(&self) -> &Head {
        // SAFETY: as in `of`; for one that was created here the file has that length as well.
        unsafe { &*self.file.as_ptr().cast::<Head>() }
    }

    fn maps(&self) -> Maps<'_> {
        // SAFETY: the mapping is as long as the geometry says, checked when it was made, and lives
        // as long as `self`.
        unsafe { Maps::from_base(self.file.as_ptr(), &self.geometry, self.head()) }
    }

    /// The maps with the lock held; what a dead process left is put right before.
    fn lock(&self) -> Result<SharedLock<'_>, SharedError> {
        let lock = &self.head().lock;
        match lock.lock() {
            LockFound::Whole => {}
            LockFound::OwnerDied => {
                self.maps().put_right();
                lock.put_right();
            }
            LockFound::OwnedHere => return Err(SharedError::Reentered),
            LockFound::Lost => return Err(SharedError::Lost),
        }
        Ok(SharedLock { lock, maps: self.maps() })
    }

    /// A block of at least `size` bytes at a multiple of `align`, of 64 at least, in every process.
    /// Its content is whatever was there.
    ///
    /// # Errors
    /// [`SharedError`]: no free space in the arena or for its memory, an alignment that cannot be.
    pub fn alloc(&self, size: usize, align: usize) -> Result<NonNull<u8>, SharedError> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(SharedError::Alignment);
        }
        let locked = self.lock()?;
        let full = |maps: &Maps<'_>| SharedError::Full {
            asked: Bytes(size as u64),
            size: Bytes(self.geometry.data_len as u64),
            used: Bytes(maps.used_bytes()),
        };
        let granules = size.max(1).div_ceil(GRANULE);
        let Some(at) = locked.maps.find(granules, align.div_ceil(GRANULE)) else {
            return Err(full(&locked.maps));
        };
        for chunks in locked.maps.without_memory(at, granules) {
            let start = self.geometry.data_at + chunks.start * CHUNK;
            self.file.take(start..start + chunks.len() * CHUNK)?;
            locked.maps.set_backed(&chunks, true);
        }
        locked.maps.put(at, granules);
        // SAFETY: the run lies in the mapping, as `find` found it below the geometry's grains.
        let block = unsafe { self.file.as_ptr().add(self.geometry.data_at + at * GRANULE) };
        NonNull::new(block).ok_or_else(|| full(&locked.maps))
    }

    /// Frees a block that any process allocated.
    ///
    /// # Safety
    /// If it is a block, nobody uses it any more, in any process.
    ///
    /// # Errors
    /// [`SharedError::Free`]; then nothing was changed.
    pub unsafe fn free(&self, block: *mut u8) -> Result<(), SharedError> {
        let offset = self.inside(block).ok_or(FreeError::Foreign)?;
        let locked = self.lock()?;
        let granules = match locked.maps.remove(offset) {
            Freed::Done { granules } => granules,
            Freed::NotAllocated => return Err(FreeError::NotAllocated.into()),
            Freed::Interior => return Err(FreeError::Interior.into()),
        };
        if granules * GRANULE >= GIVE_BACK_AT {
            // Chunks that are the block's alone.
            let chunks = offset.div_ceil(CHUNK)..(offset + granules * GRANULE) / CHUNK;
            locked.maps.set_backed(&chunks, false);
            let start = self.geometry.data_at + chunks.start * CHUNK;
            if self.file.give_back(start..start + chunks.len() * CHUNK).is_err() {
                locked.maps.set_backed(&chunks, true);
            }
        }
        Ok(())
    }

    /// Bytes that a block really has.
    ///
    /// # Errors
    /// [`SharedError::Free`]: what the pointer is instead of a block.
    pub fn usable_size(&self, block: *const u8) -> Result<usize, SharedError> {
        let offset = self.inside(block).ok_or(FreeError::Foreign)?;
        match self.lock()?.maps.length(offset) {
            Freed::Done { granules } => Ok(granules * GRANULE),
            Freed::NotAllocated => Err(FreeError::NotAllocated.into()),
            Freed::Interior => Err(FreeError::Interior.into()),
        }
    }

    /// Offset from the first block's place; `None` outside.
    fn inside(&self, at: *const u8) -> Option<usize> {
        let offset =
            (at as usize).wrapping_sub(self.file.as_ptr() as usize + self.geometry.data_at);
        (offset < self.geometry.data_len).then_some(offset)
    }

    /// What other processes know an address by; `None`: it is not in this arena.
    #[must_use]
    pub fn offset(&self, at: *const u8) -> Option<u64> {
        self.inside(at).map(|offset| offset as u64)
    }

    /// Where an offset is in this process; `None`: beyond the arena.
    #[must_use]
    pub fn pointer(&self, offset: u64) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok().filter(|o| *o < self.geometry.data_len)?;
        // SAFETY: below the geometry's length, which the mapping has.
        NonNull::new(unsafe { self.file.as_ptr().add(self.geometry.data_at + offset) })
    }

    /// Keeps one offset for all to find, as the way into what is shared; `None`: none.
    pub fn set_root(&self, offset: Option<u64>) {
        self.head().set_root(offset);
    }

    /// The offset that was kept last.
    #[must_use]
    pub fn root(&self) -> Option<u64> {
        self.head().root()
    }

    /// What it holds now.
    ///
    /// # Errors
    /// [`SharedError::Reentered`], [`SharedError::Lost`].
    pub fn stats(&self) -> Result<SharedStats, SharedError> {
        let locked = self.lock()?;
        Ok(SharedStats {
            size: Bytes(self.geometry.data_len as u64),
            used: Bytes(locked.maps.used_bytes()),
            blocks: locked.maps.blocks(),
            backed: Bytes(locked.maps.backed_chunks() * CHUNK as u64),
            recovered: self.head().recovered(),
        })
    }
}

/// The lock, given back when dropped.
struct SharedLock<'a> {
    lock: &'a RobustLock,
    maps: Maps<'a>,
}

impl Drop for SharedLock<'_> {
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

fn check_name(name: &str) -> Result<(), SharedError> {
    let fine = (1..=MAX_NAME).contains(&name.len())
        && !name.starts_with('.')
        && !name.contains(['/', '\0']);
    if fine {
        return Ok(());
    }
    Err(SharedError::Name { name: name.chars().take(MAX_NAME).collect() })
}
