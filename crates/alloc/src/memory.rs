//! The allocator's entry point: allocate, free, commit, ask where memory is.

mod apply;
mod inside;
mod managed;
mod report;

pub use apply::OWN_POLICIES;

use crate::attributes::{Attributes, Binding, Mismatch, NodeSplit, PageSize};
use crate::classes::{Classes, Meaning};
use crate::commit::{self, weigh, Asked, CommitReport, CommitRow, Decided, Scope};
use crate::error::AllocError;
use crate::gpu::{self, CudaError, GpuClass};
use crate::kernel::{AllocatorKernel, NodeRun};
use crate::layout::{self, Nodes, Piece};
use crate::live::LiveKernel;
use crate::space::{Kind, Space};
use inside::Inside;
use managed::Managed;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use terrace_machine::list;
use terrace_sys::{MemPolicy, SysError};
use terrace_types::{Bytes, NodeId};

const HUGE: usize = 2 << 20;
/// Huge pages a node from which on an object's huge pages are spread evenly enough over nodes that
/// serve it together.
const HUGE_A_NODE: usize = 4;
/// Half of what 64-bit Linux lets a process address.
const MAX_BYTES: u64 = 1 << 46;

/// One allocation.
#[derive(Debug)]
struct Object {
    wish: Attributes,
    meaning: Meaning,
    len: usize,
    kind: Kind,
    /// By offset; empty until placed.
    pieces: Vec<Piece>,
    /// Not committed since it was allocated or refused.
    pending: bool,
    /// Every page was seen to be there.
    full: bool,
}

#[derive(Debug, Default)]
struct State {
    space: Space,
    /// By address.
    objects: BTreeMap<usize, Object>,
    /// Managed memory, by address.
    managed: BTreeMap<usize, Managed>,
    /// Ranges with a policy of their own: start to end and the nodes preferred, equal neighbours
    /// joined.
    own: BTreeMap<usize, (usize, Nodes)>,
}

/// Allocates memory by attributes. Its memory is given back when it is dropped.
///
/// Threads may share it. A fork waits for calls under way, so that parent and child go on, each
/// with its own copy. A signal handler that interrupted a call gets [`AllocError::Reentered`].
#[derive(Debug)]
pub struct Memory {
    kernel: Arc<dyn AllocatorKernel>,
    classes: Classes,
    state: Mutex<State>,
    /// Found when they are first asked for.
    gpus: OnceLock<Result<GpuClass, CudaError>>,
}

impl State {
    /// The objects at these addresses, both in ascending order. One walk: thousands of them are not
    /// looked up one by one.
    fn these<'a>(&'a self, addresses: &'a [usize]) -> impl Iterator<Item = (usize, &'a Object)> {
        let first = addresses.first().copied().unwrap_or(usize::MAX);
        let mut wanted = addresses;
        self.objects.range(first..).map(|(address, object)| (*address, object)).filter(
            move |(address, _)| {
                while let [before, rest @ ..] = wanted {
                    if before >= address {
                        break;
                    }
                    wanted = rest;
                }
                match wanted {
                    [this, rest @ ..] if this == address => {
                        wanted = rest;
                        true
                    }
                    _ => false,
                }
            },
        )
    }
}

impl Memory {
    /// On the live machine, with what `variable` (the environment) overrides: see
    /// [`crate::classes`].
    ///
    /// # Errors
    /// When the machine cannot be read or ranked, or a variable says nothing.
    pub fn live(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, AllocError> {
        let kernel = LiveKernel::new();
        let classes = Classes::find(&kernel, variable)?;
        Ok(Self::with(Arc::new(kernel), classes))
    }

    /// On any kernel.
    #[must_use]
    pub fn with(kernel: Arc<dyn AllocatorKernel>, classes: Classes) -> Self {
        inside::watch_forks();
        Self { kernel, classes, state: Mutex::default(), gpus: OnceLock::new() }
    }

    /// The classes of this machine.
    #[must_use]
    pub const fn classes(&self) -> &Classes {
        &self.classes
    }

    fn state(&self) -> Result<Inside<'_>, AllocError> {
        Inside::lock(&self.state)
    }

    fn page(&self) -> usize {
        self.kernel.page_size().get() as usize
    }

    /// `size` bytes (one page at least), zeroed, at a page's address; at a huge page's for 2 MiB
    /// and more, and where a class of several nodes may have them for 8 MiB a node and more
    /// ([`PageSize::Huge`] asks for them below that). Managed memory is not cleared: its driver
    /// promises no zeros.
    ///
    /// # Errors
    /// A wish that means nothing, address space that is used up; with [`Mismatch::Error`] whatever
    /// cannot be as asked.
    pub fn allocate(&self, size: Bytes, wish: Attributes) -> Result<usize, AllocError> {
        match gpu::part(&wish)? {
            None => self.allocate_on_nodes(size, wish, None),
            Some((gpus, others)) => self.allocate_on_gpus(size, wish, gpus, others),
        }
    }

    /// Memory of the kernel's, with something to say of it.
    fn allocate_on_nodes(
        &self,
        size: Bytes,
        wish: Attributes,
        note: Option<String>,
    ) -> Result<usize, AllocError> {
        let mut meaning = self.classes.meaning(&wish, self.kernel.as_ref())?;
        meaning.notes.extend(note);
        check(&wish)?;
        let page = self.page();
        if size.get() > MAX_BYTES {
            return Err(AllocError::TooLarge { size });
        }
        let len = (size.get().max(1) as usize).next_multiple_of(page);
        let huge = match wish.page_size {
            PageSize::Auto => len >= huge_from(&wish.split, &meaning.places),
            PageSize::Base => false,
            PageSize::Huge => true,
        };
        let strict = wish.mismatch == Mismatch::Error;
        let immediate = wish.binding == Binding::Immediate;
        // What needs no weighing lies in a region that is bound as a whole.
        let at_once = match wish.split {
            NodeSplit::Os => Some(meaning.places.concat()),
            NodeSplit::SpillOver if len < HUGE => {
                meaning.places.iter().find(|p| !p.is_empty()).cloned()
            }
            _ => None,
        };
        let at_once = at_once.filter(|_| immediate && !strict);
        let policy = at_once.clone().map_or(MemPolicy::Default, MemPolicy::Prefer);
        let kind = Kind { policy, huge, lifetime: wish.lifetime };
        let mut state = self.state()?;
        if strict {
            self.check_space(&mut state, &meaning, len)?;
        }
        let (range, kind, at_once) = match state.space.take(self.kernel.as_ref(), &kind, len) {
            Ok(range) => (range, kind, at_once),
            // Sandboxes forbid `mbind`, and nodes go away. Who falls back has memory all the same,
            // and is reported.
            Err(error) if (error.is_refusal() || has_no_such_node(&error)) && !strict => {
                let kind = Kind { policy: MemPolicy::Default, ..kind };
                meaning.notes.push(format!("It is where the kernel puts it: {error}."));
                (state.space.take(self.kernel.as_ref(), &kind, len)?, kind, Some(Vec::new()))
            }
            Err(error) => return Err(error.into()),
        };
        let pieces = at_once
            .map_or_else(Vec::new, |nodes| vec![Piece { range: 0..len, nodes: nodes.into() }]);
        let unplaced = immediate && pieces.is_empty();
        // A small one that is cut as it says is not worth a look at what is free.
        let cut = if len < HUGE && !strict {
            layout::fixed(&wish.split, &meaning.places, len, page)
        } else {
            None
        };
        let object = Object { wish, meaning, len, kind, pieces, pending: !immediate, full: false };
        state.objects.insert(range.start, object);
        if unplaced {
            let placed = match cut {
                Some(pieces) => {
                    let decided = Decided { pieces, refused: None };
                    self.apply(&mut state, range.start, decided, &[]).map(|row| vec![row])
                }
                None => self.place(&mut state, &[range.start]).map(|report| report.rows),
            };
            let refused = match placed {
                Ok(rows) => rows.into_iter().find(|r| r.refused).map(|r| self.no_space(&state, &r)),
                Err(error) => Some(error),
            };
            if let Some(error) = refused {
                self.remove(&mut state, range.start)?;
                return Err(error);
            }
        }
        Ok(range.start)
    }

    /// Gives memory back.
    ///
    /// # Errors
    /// [`AllocError::NotOurs`] for what was not allocated here or was freed before.
    pub fn free(&self, address: usize) -> Result<(), AllocError> {
        let mut state = self.state()?;
        match state.managed.contains_key(&address) {
            true => self.remove_managed(&mut state, address),
            false => self.remove(&mut state, address),
        }
    }

    /// Weighs the allocations of `scope` that are bound on commit, binds what was not touched,
    /// moves what was, and says what each got.
    ///
    /// # Errors
    /// When the kernel cannot be asked. A lack of space is part of the report.
    pub fn commit(&self, scope: Scope) -> Result<CommitReport, AllocError> {
        let mut state = self.state()?;
        let chosen: Vec<usize> = state
            .objects
            .iter()
            .filter(|(_, o)| {
                o.wish.binding == Binding::OnCommit && (o.pending || scope == Scope::All)
            })
            .map(|(address, _)| *address)
            .collect();
        let managed = Self::managed_in(&state, scope == Scope::All);
        if managed.is_empty() {
            return self.place(&mut state, &chosen);
        }
        let on_gpus = self.place_managed(&mut state, &managed)?;
        let mut report = self.place(&mut state, &chosen)?;
        report.add(on_gpus);
        Ok(report)
    }

    /// Where the bytes of an allocation are: those that are there by class, and the rest as it is
    /// bound. Where the kernel does not say, as in a container that forbids `move_pages`, no class
    /// is named, and the row's reason says so.
    ///
    /// # Errors
    /// [`AllocError::NotOurs`]; what the kernel said.
    pub fn describe(&self, address: usize) -> Result<CommitRow, AllocError> {
        let state = self.state()?;
        if let Some(object) = state.managed.get(&address) {
            return Ok(self.describe_managed(address, object));
        }
        let object = state.objects.get(&address).ok_or(AllocError::NotOurs { address })?;
        let mut row = self.row(address, object);
        let runs = match self.kernel.resident(&(address..address + object.len)) {
            // What is not known is said, and does not fail what asks for it.
            Err(error) if error.is_refusal() => {
                row.why = Cow::Owned(format!("where its pages are is not known: {error}"));
                return Ok(row);
            }
            runs => runs?,
        };
        row.got = self.got(address, &object.pieces, &runs);
        row.why = if object.pending {
            Cow::Borrowed("not committed yet")
        } else {
            commit::why(&row, &object.meaning.notes)
        };
        Ok(row)
    }

    /// The address of the allocation that holds `address`.
    #[must_use]
    pub fn lookup(&self, address: usize) -> Option<usize> {
        let state = self.state().ok()?;
        let of_nodes =
            state.objects.range(..=address).next_back().map(|(start, o)| (*start, o.len));
        let managed = state.managed.range(..=address).next_back().map(|(start, o)| (*start, o.len));
        of_nodes
            .into_iter()
            .chain(managed)
            .find(|(start, len)| address < start + len)
            .map(|(start, _)| start)
    }

    /// Bytes that the allocation at `address` has, in whole pages.
    #[must_use]
    pub fn size_of(&self, address: usize) -> Option<Bytes> {
        let state = self.state().ok()?;
        let len = state
            .objects
            .get(&address)
            .map(|o| o.len)
            .or_else(|| state.managed.get(&address).map(|o| o.len));
        len.map(|len| Bytes(len as u64))
    }

    fn remove(&self, state: &mut State, address: usize) -> Result<(), AllocError> {
        let object = state.objects.remove(&address).ok_or(AllocError::NotOurs { address })?;
        let range = address..address + object.len;
        let discarded = self.kernel.discard(&range);
        self.unbind(state, &range)?;
        discarded?;
        state.space.put(&object.kind, range);
        Ok(())
    }

    /// Takes the policies of their own from `range`.
    fn unbind(&self, state: &mut State, range: &Range<usize>) -> Result<(), AllocError> {
        if state.overlaps(range) {
            self.kernel.bind(range, &MemPolicy::Default)?;
            state.set_own(range, None);
        }
        Ok(())
    }

    /// Weighs, binds and moves the objects at these addresses (ascending).
    fn place(&self, state: &mut State, chosen: &[usize]) -> Result<CommitReport, AllocError> {
        let start = self.kernel.now();
        let runs = self.resident(state, chosen)?;
        let mut free_memory: BTreeMap<NodeId, u64> =
            self.kernel.free_memory().into_iter().map(|(n, b)| (n, b.get())).collect();
        for run in &runs {
            // What these objects hold already can be had by them.
            *free_memory.entry(run.node).or_default() += run.range.len() as u64;
        }
        self.less_promises(state, chosen, &mut free_memory)?;
        let asked: Vec<Asked<'_>> = state
            .these(chosen)
            .map(|(address, o)| {
                let there: usize =
                    overlapping(&runs, &(address..address + o.len)).map(|r| r.range.len()).sum();
                Asked {
                    wish: &o.wish,
                    meaning: &o.meaning,
                    len: o.len,
                    untouched: (o.len - there) as u64,
                }
            })
            .collect();
        let weighed =
            weigh(&self.classes.list, &asked, &free_memory, self.kernel.headroom(), self.page())?;
        drop(asked);
        let decided_at = self.kernel.now();
        let mut report = CommitReport {
            value: weighed.value,
            bound: weighed.bound,
            decided_in: decided_at.since(start),
            rows: Vec::with_capacity(chosen.len()),
            ..CommitReport::default()
        };
        self.bind_together(state, chosen, &weighed.decided)?;
        let mut decided = weighed.decided;
        let done = self.apply_bound(state, chosen, &mut decided, &runs);
        for ((address, decided), done) in chosen.iter().zip(decided).zip(done) {
            let row = match done {
                Some(row) => row,
                None => self.apply(state, *address, decided, &runs)?,
            };
            report.rows.push(row);
        }
        report.applied_in = self.kernel.now().since(decided_at);
        Ok(report)
    }
}

/// The parts of `runs` (ascending) that lie in `part`.
fn overlapping<'a>(runs: &'a [NodeRun], part: &Range<usize>) -> impl Iterator<Item = NodeRun> + 'a {
    let part = part.clone();
    let first = runs.partition_point(|r| r.range.end <= part.start);
    let within = runs[first..].iter().take_while({
        let end = part.end;
        move |r| r.range.start < end
    });
    within.map(move |r| NodeRun {
        range: r.range.start.max(part.start)..r.range.end.min(part.end),
        node: r.node,
    })
}

/// None of the nodes that were to be bound is there any more: `mbind` has no other word for it than
/// EINVAL.
fn has_no_such_node(error: &SysError) -> bool {
    const EINVAL: i32 = 22;
    matches!(error, SysError::Failed { call: "mbind", errno: EINVAL, .. })
}

/// Bytes from which on an object is in huge pages unasked. Where several nodes serve a class each
/// huge page is on one of them, with whoever touched it first: four vectors of 2.2 MB that four
/// clusters share lay on two nodes then, and a CG solve waited for these (docs/adr/0192).
fn huge_from(split: &NodeSplit, places: &[Vec<NodeId>]) -> usize {
    let nodes = places.iter().map(Vec::len).max().unwrap_or(0);
    // The others say of each byte on which node it lies.
    let first_touch = matches!(split, NodeSplit::Os | NodeSplit::SpillOver);
    if first_touch && nodes > 1 {
        nodes * HUGE_A_NODE * HUGE
    } else {
        HUGE
    }
}

fn check(wish: &Attributes) -> Result<(), AllocError> {
    let fine = |x: f64| x.is_finite() && x >= 0.0;
    if !fine(wish.reads) || !fine(wish.writes) {
        return Err(AllocError::BadIntensity);
    }
    let bad = |what| Err(AllocError::BadSplit { what });
    match &wish.split {
        NodeSplit::Chunk(0) => bad("a chunk has no pages; give one or more"),
        NodeSplit::Weighted(w) if w.len() != wish.places.len() => {
            bad("give one weight for each class asked for")
        }
        NodeSplit::Weighted(w) if w.iter().all(|w| *w == 0) => bad("all weights are zero"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
