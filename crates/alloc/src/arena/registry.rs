//! Which arenas there are, and what is known of each beyond its memory.

use super::error::ArenaError;
use super::heap::{self, Inner, MAX_ARENAS};
use super::move_state::MoveState;
use super::place::{Devices, NodeOps};
use super::sizes::SLICE;
use super::{meta, space, Arena, ArenaSpec};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Once};
use terrace_sys::ForkSafeLock;

/// What is kept of an arena.
pub(crate) struct Details {
    pub(crate) name: String,
    pub(crate) devices: Devices,
    pub(crate) huge: bool,
    pub(crate) nodes: &'static dyn NodeOps,
    /// The move in progress.
    pub(crate) moving: Option<Arc<MoveState>>,
    generation: u64,
}

struct Table {
    /// By number; records beyond were never used.
    entries: Vec<Option<Details>>,
    free: Vec<usize>,
}

struct Registry {
    lock: ForkSafeLock,
    table: UnsafeCell<Table>,
}

// SAFETY: `table` is reached under `lock` alone.
unsafe impl Sync for Registry {}

static REGISTRY: Registry = Registry {
    lock: ForkSafeLock::new(),
    table: UnsafeCell::new(Table { entries: Vec::new(), free: Vec::new() }),
};

fn locked<T>(act: impl FnOnce(&mut Table) -> T) -> T {
    let _locked = REGISTRY.lock.hold();
    // SAFETY: the lock is held, so this is the only reference.
    act(unsafe { &mut *REGISTRY.table.get() })
}

pub(crate) fn create(spec: &ArenaSpec) -> Result<Arena, ArenaError> {
    spec.devices.check(&spec.nodes.nodes())?;
    let limit = match spec.limit {
        None => usize::MAX / SLICE,
        Some(bytes) if bytes.get() == 0 => return Err(ArenaError::Limit(bytes)),
        Some(bytes) => usize::try_from(bytes.get()).unwrap_or(usize::MAX).div_ceil(SLICE),
    };
    space::ready()?;
    if !heap::ready() {
        return Err(ArenaError::TooMany(0));
    }
    survive_forks();
    let classes = classes(&spec.devices, spec.huge_pages, spec.nodes)?;
    let (name, devices) = (spec.name.clone(), spec.devices.clone());
    locked(|table| {
        let number = match table.free.pop() {
            Some(number) => number,
            None if table.entries.len() >= MAX_ARENAS => {
                return Err(ArenaError::TooMany(MAX_ARENAS))
            }
            None => {
                table.entries.push(None);
                table.entries.len() - 1
            }
        };
        let inner = Inner::by_index(number);
        let generation = inner.start(number, limit, &classes);
        table.entries[number] = Some(Details {
            name,
            devices,
            huge: spec.huge_pages,
            nodes: spec.nodes,
            moving: None,
            generation,
        });
        Ok(Arena { generation })
    })
}

/// Numbers of the classes that devices stand for.
pub(crate) fn classes(
    devices: &Devices,
    huge: bool,
    nodes: &'static dyn NodeOps,
) -> Result<Vec<u16>, ArenaError> {
    devices.policies().into_iter().map(|policy| space::class(policy, huge, nodes)).collect()
}

/// # Safety
/// As [`Arena::destroy`].
pub(crate) unsafe fn destroy(arena: Arena) -> Result<(), ArenaError> {
    let details = locked(|table| {
        let entry = &mut table.entries[arena.number() as usize];
        match entry {
            Some(d) if d.generation == arena.generation => Ok(entry.take()),
            _ => Err(ArenaError::Destroyed),
        }
    })?;
    if let Some(moving) = details.and_then(|d| d.moving) {
        moving.cancel();
        moving.wait_for_end();
    }
    // SAFETY: by the contract; the entry was ours to take, so nobody else ends it.
    unsafe { arena.inner().end(arena.generation) };
    locked(|table| table.free.push(arena.number() as usize));
    Ok(())
}

/// Calls `act` with what is kept of an arena; `None` when it was destroyed.
pub(crate) fn with<T>(arena: Arena, act: impl FnOnce(&mut Details) -> T) -> Option<T> {
    locked(|table| {
        let entry = table.entries.get_mut(arena.number() as usize)?.as_mut()?;
        (entry.generation == arena.generation).then(|| act(entry))
    })
}

pub(crate) fn alive(number: usize) -> Option<Arena> {
    locked(|table| {
        let generation = table.entries.get(number)?.as_ref()?.generation;
        Some(Arena { generation })
    })
}

pub(crate) fn list() -> Vec<Arena> {
    locked(|table| {
        table.entries.iter().flatten().map(|d| Arena { generation: d.generation }).collect()
    })
}

/// From now on a fork finds every lock free in the child: they are all taken before it.
fn survive_forks() {
    static ONCE: Once = Once::new();
    // Without memory for the note a child of a program with threads may wait for ever; nothing else
    // suffers.
    ONCE.call_once(|| {
        let _without_the_note = terrace_sys::at_fork(before_fork, after_fork, in_child);
    });
}

fn used_records() -> usize {
    // SAFETY: called between `before_fork` and what ends it, so the lock is held.
    unsafe { (*REGISTRY.table.get()).entries.len() }
}

unsafe extern "C" fn before_fork() {
    REGISTRY.lock.lock();
    for number in 0..used_records() {
        Inner::by_index(number).lock.lock();
    }
    space::lock_for_fork();
    meta::lock_for_fork();
}

unsafe extern "C" fn after_fork() {
    meta::unlock_after_fork();
    space::unlock_after_fork();
    for number in 0..used_records() {
        Inner::by_index(number).lock.unlock();
    }
    REGISTRY.lock.unlock();
}

unsafe extern "C" fn in_child() {
    // SAFETY: the lock is held since `before_fork`, and the child has one thread.
    for details in unsafe { (*REGISTRY.table.get()).entries.iter_mut().flatten() } {
        // The thread that moved it is the parent's.
        if let Some(moving) = &details.moving {
            moving.abandoned.store(true, Relaxed);
        }
    }
    // SAFETY: as the parent's.
    unsafe { after_fork() };
}
