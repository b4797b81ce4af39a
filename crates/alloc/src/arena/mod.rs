//! Arenas: heaps whose blocks travel together. After "Heterogeneous Memory and Arena-Based Heap
//! Allocation" (MCHPC'18): data that is worked on together is put on pages together, so that it can
//! be moved to another memory as a whole.
//!
//! ```
//! use terrace_alloc::arena::{self, Arena, ArenaSpec};
//! let arena = Arena::create(&ArenaSpec::default())?;
//! let block = arena.alloc(100)?;
//! assert_eq!(arena::lookup(block.as_ptr()), Some(arena));
//! // SAFETY: allocated above and not used any more.
//! unsafe { arena::free(block.as_ptr())? };
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Words
//! **slice**: 64 KiB, what an arena takes at once. **slab**: one or eight slices cut into blocks of
//! one size. **segment**: 4 MiB or more of addresses, one arena's at a time. **zone**: segments of
//! all arenas with the same devices, one kernel mapping. **cache**: one thread's part of one arena.
//!
//! # Layers, from below
//! [`sizes`], [`bits`] (pure) → [`meta`] (records) → [`space`] (addresses) → [`slab`] (which blocks
//! are free) → [`heap`] (allocating) → this module (arenas) → [`moving`].
//!
//! # What is promised
//! - A block comes from the pages of its arena alone, aligned to 16 at least. Size 0 gives a block
//!   too.
//! - A block may be freed by any thread, by its pointer alone.
//! - Freeing what is not allocated is an error and changes nothing: foreign pointers, pointers into
//!   blocks, and blocks freed twice, as long as nobody was given the block, or wrote to it, in
//!   between.
//! - An arena never holds more than its limit, in steps of 64 KiB; a block size that a thread uses
//!   holds one step.
//! - Records lie apart from blocks, on ordinary memory.
//! - After a fork, parent and child go on, each with its own copy, whatever other threads did; a
//!   move in progress is the parent's.
//! - A signal handler that allocates gets [`ArenaAllocError::Reentered`] where it interrupted the
//!   allocator; it may free.

mod bits;
mod error;
pub mod fake;
mod heap;
mod meta;
mod move_state;
mod moving;
mod place;
pub mod plan;
mod registry;
mod sizes;
mod slab;
mod space;
mod stats;

pub(crate) use bits::{find_run, mask};
pub use error::{ArenaAllocError, ArenaError, FreeError, MoveError};
pub use move_state::{MoveProgress, MoveReport, Moving, StayReason};
pub use moving::Strictness;
pub use place::{Devices, KernelNodes, NodeOps};
pub use space::{stand_on, ArenaBacking};
pub use stats::{ArenaStats, Residency};

use heap::{Inner, Thread};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::*;
use terrace_types::Bytes;

/// What an arena shall be.
#[derive(Clone)]
pub struct ArenaSpec {
    /// What [`Arena::name`] says; need not be unique.
    pub name: String,
    /// Bytes of memory it holds at most, rounded up to 64 KiB; `None`: as much as there is.
    pub limit: Option<Bytes>,
    /// Nodes its pages come from.
    pub devices: Devices,
    /// Ask for transparent huge pages.
    pub huge_pages: bool,
    /// Who speaks for the nodes.
    pub nodes: &'static dyn NodeOps,
}

impl Default for ArenaSpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            limit: None,
            devices: Devices::Anywhere,
            huge_pages: false,
            nodes: &place::KERNEL,
        }
    }
}

impl std::fmt::Debug for ArenaSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Spec {{ {:?}, limit {:?}, {}, huge {} }}",
            self.name, self.limit, self.devices, self.huge_pages
        )
    }
}

/// A handle of an arena. Copies name the same arena; dropping one changes nothing. After
/// [`Arena::destroy`] every call says so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Arena {
    /// Of one arena alone, ever; it also tells where its record is: one word, so that allocating
    /// reads one ([`heap::index_of`]).
    generation: u64,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({}:{})", self.number(), self.generation)
    }
}

impl Arena {
    fn inner(self) -> &'static Inner {
        Inner::by_index(heap::index_of(self.generation))
    }

    /// Makes an arena. It takes no memory until something is allocated.
    ///
    /// # Errors
    /// [`ArenaError`]: devices that do not exist or are refused, no addresses, too many arenas.
    pub fn create(spec: &ArenaSpec) -> Result<Self, ArenaError> {
        registry::create(spec)
    }

    /// A block of at least `size` bytes, aligned to 16. Its content is whatever was there.
    ///
    /// # Errors
    /// [`ArenaAllocError`].
    #[inline(always)]
    pub fn alloc(self, size: usize) -> Result<NonNull<u8>, ArenaAllocError> {
        heap::alloc(self.generation, size)
    }

    /// As [`Arena::alloc`], where a block of that size was freed lately and this is the arena that
    /// the calling thread used last; else `None`, and nothing was done. Makes no call, so `errno`
    /// is as it was: for edges that stand in for `malloc`.
    #[inline(always)]
    #[must_use]
    pub fn alloc_cached(self, size: usize) -> Option<NonNull<u8>> {
        heap::alloc_cached(self.generation, size)
    }

    /// A block of at least `size` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// [`ArenaAllocError`]; [`ArenaAllocError::Alignment`] unless `align` is a power of two.
    pub fn alloc_aligned(self, size: usize, align: usize) -> Result<NonNull<u8>, ArenaAllocError> {
        heap::alloc_with(self.generation, size, align, false)
    }

    /// A block of `count` times `size` bytes, all zero.
    ///
    /// # Errors
    /// [`ArenaAllocError`]; [`ArenaAllocError::TooLarge`] when the product overflows.
    pub fn calloc(self, count: usize, size: usize) -> Result<NonNull<u8>, ArenaAllocError> {
        let bytes = count.checked_mul(size).ok_or(ArenaAllocError::TooLarge)?;
        heap::alloc_with(self.generation, bytes, 1, true)
    }

    /// Number of the arena, for C and for tables; reused after [`Arena::destroy`].
    #[must_use]
    pub fn number(self) -> u32 {
        heap::index_of(self.generation) as u32
    }

    /// The handle as two numbers, for edges that cannot hold it; see [`Arena::from_parts`].
    #[must_use]
    pub fn to_parts(self) -> (u32, u64) {
        (self.number(), self.generation)
    }

    /// The arena that [`Arena::to_parts`] gave these numbers of; `None` when it was destroyed.
    #[must_use]
    pub fn from_parts(number: u32, generation: u64) -> Option<Self> {
        registry::alive(number as usize).filter(|a| a.generation == generation)
    }

    /// Whether it was not destroyed yet.
    #[must_use]
    pub fn is_alive(self) -> bool {
        self.inner().generation.load(Acquire) == self.generation
    }

    /// Its name; `None` after [`Arena::destroy`].
    #[must_use]
    pub fn name(self) -> Option<String> {
        registry::with(self, |d| d.name.clone())
    }

    /// The devices it was last set to; `None` after [`Arena::destroy`].
    #[must_use]
    pub fn devices(self) -> Option<Devices> {
        registry::with(self, |d| d.devices.clone())
    }

    /// Gives the pages of free memory back to the kernel now, which otherwise happens once there is
    /// much of it. Bytes given back; zero of an arena that was destroyed.
    #[must_use]
    pub fn trim(self) -> Bytes {
        stats::trim(self)
    }

    /// Ends the arena: all its blocks are gone, its pages are the kernel's. A move in progress is
    /// cancelled and waited for.
    ///
    /// # Safety
    /// No block of the arena is used any more, and no other thread allocates from it or frees into
    /// it meanwhile.
    ///
    /// # Errors
    /// [`ArenaError::Destroyed`] the second time.
    pub unsafe fn destroy(self) -> Result<(), ArenaError> {
        // SAFETY: handed on.
        unsafe { registry::destroy(self) }
    }

    /// Moves the whole arena to other devices; what is allocated from now on comes from there.
    /// Returns when all pages were tried. Allocating and freeing go on meanwhile.
    ///
    /// # Errors
    /// [`MoveError`].
    pub fn set_device(
        self,
        devices: &Devices,
        strictness: Strictness,
    ) -> Result<MoveReport, MoveError> {
        moving::now(self, devices, strictness)
    }

    /// As [`Arena::set_device`], by a thread of its own.
    ///
    /// # Errors
    /// [`MoveError`], when the move cannot begin.
    pub fn set_device_async(
        self,
        devices: &Devices,
        strictness: Strictness,
    ) -> Result<Moving, MoveError> {
        moving::start(self, devices, strictness)
    }

    /// What it holds, counted now; other threads may go on meanwhile.
    ///
    /// # Errors
    /// [`ArenaError::Destroyed`].
    pub fn stats(self) -> Result<ArenaStats, ArenaError> {
        stats::stats(self)
    }

    /// On which nodes its pages are, asked of the kernel now.
    ///
    /// # Errors
    /// [`ArenaError::Destroyed`], or [`ArenaError::Bind`] when the kernel does not tell.
    pub fn residency(self) -> Result<Residency, ArenaError> {
        stats::residency(self)
    }
}

/// Frees a block of any arena.
///
/// # Safety
/// If `block` is allocated, nobody uses it any more.
///
/// # Errors
/// [`FreeError`]; then nothing was changed.
#[inline(always)]
pub unsafe fn free(block: *mut u8) -> Result<(), FreeError> {
    // SAFETY: handed on.
    unsafe { heap::free(block) }
}

/// As [`free`], where that is a matter of noting the block in the calling thread's cache used last;
/// false: nothing was done. Makes no call, so `errno` is as it was.
///
/// # Safety
/// As [`free`].
#[inline(always)]
#[must_use]
pub unsafe fn free_cached(block: *mut u8) -> bool {
    // SAFETY: handed on.
    unsafe { heap::free_cached(block) }
}

/// Bytes that a block really has.
///
/// # Errors
/// [`FreeError`]: what the pointer is instead of a block.
#[inline(always)]
pub fn usable_size(block: *const u8) -> Result<usize, FreeError> {
    heap::usable(block as usize)
}

/// A block could not get another size; it is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReallocError {
    /// It is no block.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// There is no memory for it.
    #[error(transparent)]
    Alloc(#[from] ArenaAllocError),
}

/// Gives a block another size, in its own arena; it may move, and keeps its content up to the
/// lesser size.
///
/// # Safety
/// `block` is allocated and the caller's alone; it is gone when the result is another pointer.
///
/// # Errors
/// [`ReallocError`]; then the block is as it was.
pub unsafe fn realloc(block: *mut u8, size: usize) -> Result<NonNull<u8>, ReallocError> {
    let has = usable_size(block)?;
    let arena = lookup(block).ok_or(FreeError::Foreign)?;
    if let Some(same) = NonNull::new(block) {
        // Worth copying only when half of it would be free.
        let fits = size <= has && (size > has / 2 || has <= 64);
        if has <= sizes::SMALL_MAX && fits {
            return Ok(same);
        }
        // SAFETY: by the contract.
        let resized = || unsafe { heap::resize_large(arena.inner(), block as usize, size) };
        if size > sizes::SMALL_MAX && resized() {
            return Ok(same);
        }
    }
    let new = arena.alloc(size)?;
    // SAFETY: both are blocks of the lesser size at least, apart from each other, and the caller's
    // alone.
    unsafe {
        new.as_ptr().copy_from_nonoverlapping(block, has.min(size));
        free(block)?;
    }
    Ok(new)
}

/// The arena that an address lies in, whether a block is there or not; `None`: in none.
#[must_use]
pub fn lookup(address: *const u8) -> Option<Arena> {
    let inner = heap::inner_of(address as usize)?;
    let generation = inner.generation.load(Acquire);
    (generation != 0).then_some(Arena { generation })
}

/// All arenas, by number.
#[must_use]
pub fn list() -> Vec<Arena> {
    registry::list()
}

/// Sets the calling thread's default arena; `None`: it has none of its own.
pub fn set_thread_default(arena: Option<Arena>) {
    let here = Thread::begin();
    if here.is_null() {
        return;
    }
    // SAFETY: the calling thread's own state.
    unsafe { (*here).default.set(arena.map_or((0, 0), Arena::to_parts)) };
}

/// The calling thread's default arena; `None` when it has none, or it was destroyed.
#[must_use]
pub fn thread_default() -> Option<Arena> {
    let here = Thread::here();
    if here.is_null() {
        return None;
    }
    // SAFETY: the calling thread's own state.
    let (number, generation) = unsafe { (*here).default.get() };
    if generation == 0 {
        return None;
    }
    let inner = Inner::by_index(number as usize);
    (inner.generation.load(Acquire) == generation).then_some(Arena { generation })
}
