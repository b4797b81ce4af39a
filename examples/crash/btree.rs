//! A persistent B-tree of two levels, as btree.c. Leaves are not sorted; eight bytes say which of
//! their places count, so that one store adds a key. A full leaf is split into two new ones, and
//! one store of eight bytes switches to a new root.
//!
//!     rustc -O -g btree.rs                     correct
//!     BUG=1 rustc -O -g btree.rs               the key counts before it is persistent
//!     BUG=2 rustc -O -g btree.rs               a split's new leaf is not flushed
//!     BUG=3 rustc -O -g btree.rs               the new root is not flushed
//!     terrace crash check -- ./btree

mod pm;
mod terrace_crash;

use pm::{is_bug, persist, restarted, Cell};
use terrace_crash::CrashRegion;

/// A leaf is a line.
const PLACES: usize = 7;
const FULL: u64 = (1 << PLACES) - 1;
const LEAVES: usize = 24;
const ROOTS: usize = 24;
const FANOUT: usize = 14;
const KEYS: u64 = 20;

#[repr(C, align(64))]
struct Leaf {
    /// A bit for each place.
    used: Cell,
    keys: [Cell; PLACES],
}

#[repr(C)]
struct Entry {
    leaf: Cell,
    /// The least key that belongs there; of the first, 0.
    least: Cell,
}

#[repr(C, align(64))]
struct Root {
    count: Cell,
    entries: [Entry; FANOUT],
}

#[repr(C, align(64))]
struct Pool {
    root: Cell,
    leaves: [Leaf; LEAVES],
    roots: [Root; ROOTS],
}

static POOL: Pool = Pool {
    root: Cell::new(0),
    leaves: [const { Leaf { used: Cell::new(0), keys: [const { Cell::new(0) }; PLACES] } }; LEAVES],
    roots: [const {
        let entries = [const { Entry { leaf: Cell::new(0), least: Cell::new(0) } }; FANOUT];
        Root { count: Cell::new(0), entries }
    }; ROOTS],
};

/// The next leaf and root to use: volatile, what a restart would find out by a walk.
struct Free {
    leaf: usize,
    root: usize,
}

impl Leaf {
    fn holds(&self, place: usize) -> bool {
        self.used.get() >> place & 1 == 1
    }
}

impl Root {
    /// The entries, as far as they can be.
    fn entries(&self) -> &[Entry] {
        &self.entries[..(self.count.get() as usize).min(FANOUT)]
    }

    fn place_of(&self, key: u64) -> usize {
        self.entries().iter().rposition(|e| e.least.get() <= key).unwrap_or(0)
    }
}

#[inline(never)]
fn fill(leaf: &Leaf, keys: &[u64], is_second: bool) {
    leaf.keys.iter().zip(keys).for_each(|(cell, key)| cell.set(*key));
    leaf.used.set((1 << keys.len()) - 1);
    if !(is_bug(2) && is_second) {
        pm::flush(leaf);
    }
}

#[inline(never)]
fn split(at: usize, free: &mut Free) {
    let old = &POOL.roots[POOL.root.get() as usize];
    let new = &POOL.roots[free.root];
    let (first, second) = (free.leaf, free.leaf + 1);
    let mut keys: Vec<u64> =
        POOL.leaves[old.entries[at].leaf.get() as usize].keys.iter().map(Cell::get).collect();
    keys.sort_unstable();
    let (low, high) = keys.split_at(PLACES / 2);
    fill(&POOL.leaves[first], low, false);
    fill(&POOL.leaves[second], high, true);
    let mut entries: Vec<(u64, u64)> =
        old.entries().iter().map(|e| (e.leaf.get(), e.least.get())).collect();
    entries[at].0 = first as u64;
    entries.insert(at + 1, (second as u64, high[0]));
    for (entry, (leaf, least)) in new.entries.iter().zip(&entries) {
        entry.leaf.set(*leaf);
        entry.least.set(*least);
    }
    new.count.set(entries.len() as u64);
    if !is_bug(3) {
        pm::flush(&new.count);
        // The lines of the entries behind the first line of the root.
        new.entries().iter().skip(3).step_by(4).for_each(|entry| pm::flush(&entry.least));
    }
    pm::fence();
    POOL.root.set(free.root as u64);
    persist(&POOL.root);
    free.leaf += 2;
    free.root += 1;
}

#[inline(never)]
fn insert(key: u64, free: &mut Free) {
    let root = &POOL.roots[POOL.root.get() as usize];
    let at = root.place_of(key);
    let leaf = &POOL.leaves[root.entries[at].leaf.get() as usize];
    if leaf.used.get() == FULL {
        split(at, free);
        return insert(key, free);
    }
    let place = leaf.used.get().trailing_ones() as usize;
    let used = leaf.used.get() | 1 << place;
    if is_bug(1) {
        leaf.used.set(used);
        persist(leaf);
        leaf.keys[place].set(key);
    } else {
        // One line: its stores become persistent in order.
        leaf.keys[place].set(key);
        leaf.used.set(used);
    }
    persist(leaf);
}

fn key_of(i: u64) -> u64 {
    i * 37 % 101 + 1
}

/// The keys are the first so many of those inserted, each in the leaf where it is looked for.
fn is_whole() -> bool {
    let Some(root) = POOL.roots.get(POOL.root.get() as usize) else { return false };
    if !(1..=FANOUT as u64).contains(&root.count.get()) {
        return false;
    }
    let mut found: Vec<u64> = Vec::new();
    for (i, entry) in root.entries().iter().enumerate() {
        let Some(leaf) = POOL.leaves.get(entry.leaf.get() as usize) else { return false };
        let places = (0..PLACES).filter(|place| leaf.holds(*place));
        let keys: Vec<u64> = places.map(|place| leaf.keys[place].get()).collect();
        if keys.iter().any(|key| root.place_of(*key) != i) {
            return false;
        }
        found.extend(keys);
    }
    let lost = (0..found.len() as u64).map(key_of).find(|key| !found.contains(key));
    if let Some(key) = lost {
        println!("key {key} is lost");
    }
    lost.is_none() && found.len() as u64 <= KEYS
}

fn main() {
    let mut region = CrashRegion::default();
    let words = std::mem::size_of::<Pool>() / 8;
    // SAFETY: the pool is made of atomics, and stays.
    unsafe { region.critical_data("pool", (&raw const POOL).cast_mut().cast::<u64>(), words) };
    POOL.roots[0].count.set(1);
    region.crash_restore();
    if !restarted() {
        let mut free = Free { leaf: 1, root: 1 };
        region.start_crash();
        (0..KEYS).for_each(|i| insert(key_of(i), &mut free));
        region.end_crash();
    }
    std::process::exit(i32::from(!is_whole()));
}
