//! Blocks of a recording, decoded once for all who simulate it at the same time.
//!
//! Who asks first decodes; whoever else comes to the same block soon finds it. Those who run side
//! by side wait for each other where one is [`AHEAD`] blocks in front, so that few blocks are held;
//! whoever is far behind (another run that began later) does not hold anybody up, and decodes for
//! itself what has been let go. What is simulated never depends on any of it.

use crate::event::{WordAccess, KEPT};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use terrace_trace::{AccessDescriptor, Block};

/// Blocks that one may be in front of another.
const AHEAD: u64 = 16;
/// Whoever is further behind than this goes alone.
const TOGETHER: u64 = 2 * AHEAD;
/// Blocks that are held at most, and while only one is there.
const MAX_CACHED: usize = 2 * AHEAD as usize;
const MAX_CACHED_ALONE: usize = 4;
/// Columns whose memory is kept for others.
const SPARE: usize = 4;

/// A block's columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Columns {
    pub process: u32,
    /// In what `words` tell addresses: the process, or, where they do so by numbers, this block.
    pub space: u64,
    pub first_time: u64,
    pub last_time: u64,
    /// First words of its accesses as [`WordAccess`] has them, where the recording has them or, if
    /// its addresses are too wide, by the GiBs' numbers in `gibs`.
    pub words: Vec<u64>,
    /// The GiBs that it touches, in the order in which it does: what tells one in `words`, and its
    /// number in the recording.
    pub gibs: Vec<(u64, u64)>,
    /// Of each access, the index of the first that depends on it; zero where there is none. Empty:
    /// there are none at all.
    pub dependents: Vec<u16>,
    /// Where the thread waited: before which access, and the times before and after.
    pub waits: Vec<(usize, u64, u64)>,
}

impl Columns {
    /// The block's columns, in the memory of others that are no longer needed.
    pub(crate) fn from_block(block: &mut Block, memory: Self) -> Self {
        let mut times = Vec::new();
        if block.jumps().iter().any(|j| j.0 > 0) {
            block.times_into(&mut times);
        }
        let wait = |(at, _): &(u32, u64)| {
            let at = *at as usize;
            Some((at, *times.get(at.checked_sub(1)?)?, *times.get(at)?))
        };
        let waits: Vec<(usize, u64, u64)> = block.jumps().iter().filter_map(wait).collect();
        let info = *block.info();
        let Self { mut words, mut dependents, .. } = memory;
        find_dependents(block.kinds(), &mut dependents);
        let wide = block.addresses().iter().fold(0, |all, address| all | address) >> 48 > 0;
        let (mut names, mut gibs) = (Gibs::default(), Gibs::default());
        if block.packed().len() < block.kinds().len() {
            // The thread waited in between, or addresses are wider than a word has space for.
            words.clear();
            let accesses = block.addresses().iter().zip(block.kinds()).zip(block.gaps());
            words.extend(accesses.map(|((address, kind), gap)| {
                let (gib, rest) = (address >> KEPT, address & ((1 << KEPT) - 1));
                let gib = if wide { names.number(gib) } else { gib };
                WordAccess::new(gib << KEPT | rest, kind.is_store(), u64::from(*gap), 0).words()[0]
            }));
        } else {
            block.exchange_packed(&mut words);
        }
        for word in &words {
            gibs.number(WordAccess::from_words([*word, 0]).address() >> KEPT);
        }
        let named =
            |gib: u64| if wide { names.list.get(gib as usize).copied().unwrap_or(0) } else { gib };
        Self {
            process: info.process,
            space: if wide { 1 << 63 | info.offset } else { u64::from(info.process) },
            first_time: info.first_time,
            last_time: info.last_time,
            words,
            gibs: gibs.list.into_iter().map(|gib| (gib, named(gib))).collect(),
            dependents,
            waits,
        }
    }
}

/// Puts into `dependents`, for each access, the index of the first whose address depends on what it
/// loaded.
fn find_dependents(kinds: &[AccessDescriptor], dependents: &mut Vec<u16>) {
    /// As far back as a dependence reaches.
    const LOADS: usize = 16;
    dependents.clear();
    if kinds.iter().fold(0, |all, kind| all | kind.depends()) == 0 {
        return;
    }
    // One more than there are accesses: what depends on nothing is written there.
    dependents.resize(kinds.len() + 1, 0);
    let (mut loads, mut count) = ([0u16; LOADS], 0usize);
    for (at, kind) in kinds.iter().enumerate() {
        // No branch, for none could be foreseen: all is written always, and counted where it is
        // true.
        let back = usize::from(kind.depends());
        let on = usize::from(loads[count.wrapping_sub(back) % LOADS]);
        let on = if back.wrapping_sub(1) < count { on } else { kinds.len() };
        if let Some(first) = dependents.get_mut(on) {
            *first = if *first == 0 { at as u16 } else { *first };
        }
        loads[count % LOADS] = at as u16;
        count += usize::from(!kind.is_store());
    }
}

/// GiBs that are found without the list of them.
const NEAR: usize = 64;

/// Numbers for GiBs, in the order in which they come.
struct Gibs {
    list: Vec<u64>,
    near: [(u64, u64); NEAR],
}

impl Default for Gibs {
    fn default() -> Self {
        Self { list: Vec::new(), near: [(u64::MAX, 0); NEAR] }
    }
}

impl Gibs {
    #[inline(always)]
    fn number(&mut self, gib: u64) -> u64 {
        let (known, number) = self.near[gib as usize % NEAR];
        if known == gib {
            number
        } else {
            self.look_up(gib)
        }
    }

    #[inline(never)]
    fn look_up(&mut self, gib: u64) -> u64 {
        let known = self.list.iter().position(|have| *have == gib);
        let number = known.unwrap_or_else(|| {
            self.list.push(gib);
            self.list.len() - 1
        }) as u64;
        self.near[gib as usize % NEAR] = (gib, number);
        number
    }
}

type CachedBlock = Arc<OnceLock<Result<Arc<Columns>, String>>>;

/// What all who simulate a recording share.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cached: VecDeque<(usize, CachedBlock)>,
    /// Blocks that each has taken; `None`: it has left.
    members: Vec<Option<u64>>,
    /// Memory of columns that were let go.
    spare: Vec<Columns>,
    /// Blocks that were decoded.
    decoded: u64,
}

/// One of those; it counts from its first block on.
#[derive(Debug)]
pub(crate) struct Member {
    sharing: Arc<Sharing>,
    index: Option<usize>,
}

impl Sharing {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves nothing half done here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn member(self: &Arc<Self>) -> Member {
        Member { sharing: self.clone(), index: None }
    }

    /// Blocks that were decoded so far.
    pub(crate) fn decoded(&self) -> u64 {
        self.state().decoded
    }
}

impl Member {
    /// Counts from now on; gives its place among the members.
    fn join(&mut self) -> usize {
        let sharing = &self.sharing;
        *self.index.get_or_insert_with(|| {
            let mut state = sharing.state();
            state.members.push(Some(0));
            state.members.len() - 1
        })
    }

    /// The block at `position` of the recording.
    pub(crate) fn block(
        &mut self,
        position: usize,
        decode: impl FnOnce(Columns) -> Result<Columns, String>,
    ) -> Result<Arc<Columns>, String> {
        let index = self.join();
        let mut state = self.sharing.state();
        let mine = state.members[index].unwrap_or(0);
        let blocked = |state: &State| {
            let beside = |taken: &u64| *taken + TOGETHER > mine;
            state.members.iter().flatten().filter(|t| beside(t)).any(|taken| taken + AHEAD < mine)
        };
        while blocked(&state) {
            state = self.sharing.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.members[index] = Some(mine + 1);
        self.sharing.moved.notify_all();
        let found =
            state.cached.iter().find(|(at, _)| *at == position).map(|(_, slot)| slot.clone());
        let slot = found.unwrap_or_else(|| {
            let slot = CachedBlock::default();
            let most = if state.members.iter().flatten().count() > 1 {
                MAX_CACHED
            } else {
                MAX_CACHED_ALONE
            };
            while state.cached.len() >= most {
                let gone = state
                    .cached
                    .pop_front()
                    .and_then(|(_, slot)| Arc::into_inner(slot)?.into_inner()?.ok());
                let memory = gone.and_then(Arc::into_inner).filter(|_| state.spare.len() < SPARE);
                state.spare.extend(memory);
            }
            state.cached.push_back((position, slot.clone()));
            state.decoded += 1;
            slot
        });
        let memory = if slot.get().is_none() { state.spare.pop() } else { None };
        drop(state);
        slot.get_or_init(|| decode(memory.unwrap_or_default()).map(Arc::new)).clone()
    }
}

impl Member {
    /// Takes columns back for their memory, if nobody else has them.
    pub(crate) fn recycle(&self, columns: Arc<Columns>) {
        if let Some(columns) = Arc::into_inner(columns) {
            let mut state = self.sharing.state();
            if state.spare.len() < SPARE {
                state.spare.push(columns);
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let Some(index) = self.index else { return };
        let mut state = self.sharing.state();
        state.members[index] = None;
        if state.members.iter().all(Option::is_none) {
            state.members.clear();
            state.cached.clear();
            state.spare.clear();
        }
        self.sharing.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(position: usize) -> Columns {
        Columns { first_time: position as u64, ..Columns::default() }
    }

    #[test]
    fn each_block_is_decoded_once_for_those_side_by_side() {
        let sharing = Arc::new(Sharing::default());
        let mut members: Vec<Member> = (0..3).map(|_| sharing.member()).collect();
        assert_eq!(members.iter_mut().map(Member::join).collect::<Vec<_>>(), [0, 1, 2]);
        std::thread::scope(|scope| {
            for mut member in members {
                scope.spawn(move || {
                    for position in 0..200 {
                        let block = member.block(position, |_| Ok(columns(position))).unwrap();
                        assert_eq!(block.first_time, position as u64);
                    }
                });
            }
        });
        assert_eq!(sharing.decoded(), 200);
    }

    #[test]
    fn a_late_reader_neither_waits_nor_blocks_others() {
        let sharing = Arc::new(Sharing::default());
        let mut first = sharing.member();
        let mut pass =
            |from: usize| (from..from + 100).for_each(|p| drop(first.block(p, |_| Ok(columns(p)))));
        pass(0);
        let mut second = sharing.member();
        assert_eq!(second.join(), 1);
        pass(100);
        assert!(second.block(0, |_| Err("damaged".to_owned())).is_err());
        assert_eq!(sharing.decoded(), 201);
    }
}
