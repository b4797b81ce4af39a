//! Carrying out what was decided: binding, moving, reserving, and undoing it where it does not come
//! about.

use super::{has_no_such_node, overlapping, Memory, State};
use crate::attributes::Mismatch;
use crate::commit::{self, CommitRow, Decided};
use crate::error::AllocError;
use crate::kernel::NodeRun;
use crate::layout::{Nodes, Piece};
use std::collections::BTreeMap;
use std::ops::Range;
use terrace_sys::MemPolicy;
use terrace_types::{Bytes, NodeId};

/// Ranges with a policy of their own that are asked of the kernel at most: each may cost it a
/// mapping more, and it gives a process 65,530. Beyond it, pages are made present in the right
/// place instead, which needs no policy.
pub const OWN_POLICIES: usize = 400;
/// Bytes that are made present between two looks at what is free.
const SLICE: usize = 64 << 20;
/// What a slice must leave free, so that others' needs do not meet an empty node.
const MARGIN: u64 = 8 << 20;

/// What applying a decision did.
#[derive(Debug, Default)]
struct Applied {
    moved: Bytes,
    stayed: Bytes,
    populated: Bytes,
    refused: Option<String>,
    notes: Vec<String>,
}

/// Whether `range` has a policy of its own for these nodes.
fn owns(own: &BTreeMap<usize, (usize, Nodes)>, range: &Range<usize>, nodes: &Nodes) -> bool {
    let around = own.range(..=range.start).next_back();
    around.is_some_and(|(_, (end, own))| *end >= range.end && own == nodes)
}

impl Memory {
    /// Binds neighbours that belong on the same nodes by one call: what [`Memory::bind`] then finds
    /// done.
    pub(super) fn bind_together(
        &self,
        state: &mut State,
        chosen: &[usize],
        decided: &[Decided],
    ) -> Result<(), AllocError> {
        let mut together: Vec<(Range<usize>, &Nodes)> = Vec::new();
        for ((address, object), decided) in state.these(chosen).zip(decided) {
            let strict = object.wish.mismatch == Mismatch::Error;
            for piece in decided.pieces.iter().filter(|p| !strict && !p.nodes.is_empty()) {
                let part = address + piece.range.start..address + piece.range.end;
                match together.last_mut() {
                    Some((last, nodes)) if last.end == part.start && **nodes == piece.nodes => {
                        last.end = part.end
                    }
                    _ => together.push((part, &piece.nodes)),
                }
            }
        }
        for (part, nodes) in together {
            if !state.owns(&part, nodes) && state.may_own(&part, nodes) {
                match self.kernel.bind(&part, &MemPolicy::Prefer(nodes.to_vec())) {
                    Ok(()) => state.set_own(&part, Some(nodes.clone())),
                    // Each of them will say so.
                    Err(error) if has_no_such_node(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Takes note of decisions that nothing is left to be done for: nothing of the object was
    /// touched, and all of it has the policy that it should have. A row for each of those; the
    /// pieces of the others stay where they are.
    pub(super) fn apply_bound(
        &self,
        state: &mut State,
        chosen: &[usize],
        decided: &mut [Decided],
        runs: &[NodeRun],
    ) -> Vec<Option<CommitRow>> {
        let own = &state.own;
        let mut objects = state.objects.range_mut(chosen.first().copied().unwrap_or(usize::MAX)..);
        let rows = chosen.iter().zip(decided).map(|(address, decided)| {
            let (_, object) = objects.find(|(at, _)| *at == address)?;
            let range = *address..*address + object.len;
            let untouched = overlapping(runs, &range).next().is_none();
            let bound = |p: &Piece| {
                !p.nodes.is_empty()
                    && owns(own, &(address + p.range.start..address + p.range.end), &p.nodes)
            };
            let strict = object.wish.mismatch == Mismatch::Error;
            if strict
                || !untouched
                || decided.refused.is_some()
                || !decided.pieces.iter().all(bound)
            {
                return None;
            }
            (object.pending, object.full) = (false, false);
            object.pieces = std::mem::take(&mut decided.pieces);
            let mut row = self.row(*address, object);
            row.got = self.got(*address, &object.pieces, &[]);
            row.why = commit::why(&row, &object.meaning.notes);
            Some(row)
        });
        rows.collect()
    }

    /// Carries one decision out.
    pub(super) fn apply(
        &self,
        state: &mut State,
        address: usize,
        decided: Decided,
        runs: &[NodeRun],
    ) -> Result<CommitRow, AllocError> {
        let start = self.kernel.now();
        let Some(object) = state.objects.get(&address) else {
            return Err(AllocError::NotOurs { address });
        };
        let range = address..address + object.len;
        let strict = object.wish.mismatch == Mismatch::Error;
        let refused = decided.refused.map(str::to_owned);
        let pieces = decided.pieces;
        let mut applied = Applied { refused, ..Applied::default() };
        if applied.refused.is_none() {
            self.bind(state, address, &pieces, strict, &mut applied)?;
            self.carry(address, &pieces, runs, &mut applied);
            if strict {
                self.reserve(&range, &pieces, &mut applied)?;
            }
        }
        if applied.refused.is_some() {
            // What was there stays; what was made present for it, and its policies, go.
            if applied.populated > Bytes::ZERO {
                self.give_back(&range, runs)?;
            }
            self.unbind(state, &range)?;
        }
        let refused = applied.refused.is_some();
        let pieces = if refused { Vec::new() } else { pieces };
        let changed = applied.moved + applied.stayed + applied.populated > Bytes::ZERO;
        let now_there = if changed { self.kernel.resident(&range) } else { Ok(Vec::new()) };
        let Some(object) = state.objects.get_mut(&address) else {
            return Err(AllocError::NotOurs { address });
        };
        object.pending = refused;
        object.full = !refused && (strict || applied.populated.get() == object.len as u64);
        let got =
            now_there.map(|there| self.got(address, &pieces, if changed { &there } else { runs }));
        object.pieces = pieces;
        let mut row = self.row(address, object);
        row.got = got?;
        row.refused = refused;
        (row.moved, row.stayed, row.populated) = (applied.moved, applied.stayed, applied.populated);
        let mut notes = object.meaning.notes.clone();
        notes.extend(applied.refused.map(|why| format!("refused: {why}")));
        notes.extend(applied.notes);
        row.why = commit::why(&row, &notes);
        row.cost = self.kernel.now().since(start);
        Ok(row)
    }

    /// Sets policies for what is not there yet; where they would be too many, makes pages present
    /// instead.
    fn bind(
        &self,
        state: &mut State,
        address: usize,
        pieces: &[Piece],
        strict: bool,
        applied: &mut Applied,
    ) -> Result<(), AllocError> {
        let mut without: BTreeMap<&[NodeId], Vec<Range<usize>>> = BTreeMap::new();
        for piece in pieces {
            let part = address + piece.range.start..address + piece.range.end;
            // Pages that were left out are the kernel's, also where they had a policy before.
            if piece.nodes.is_empty() {
                self.unbind(state, &part)?;
                continue;
            }
            // Strict objects are made present in a moment and need no policy of their own.
            if !strict && state.owns(&part, &piece.nodes) {
                continue;
            }
            if !strict && state.may_own(&part, &piece.nodes) {
                match self.kernel.bind(&part, &MemPolicy::Prefer(piece.nodes.to_vec())) {
                    Ok(()) => state.set_own(&part, Some(piece.nodes.clone())),
                    Err(error) if has_no_such_node(&error) => {
                        self.unbind(state, &part)?;
                        applied.notes.push(format!(
                            "{} are where the kernel puts them: {error}",
                            Bytes(part.len() as u64)
                        ));
                    }
                    Err(error) => return Err(error.into()),
                }
                continue;
            }
            self.unbind(state, &part)?;
            if !strict {
                without.entry(&piece.nodes).or_default().push(part);
            }
        }
        let mut left = Bytes::ZERO;
        for (nodes, parts) in without {
            let bytes = Bytes(parts.iter().map(|p| p.len() as u64).sum());
            match self.populate(&parts, nodes)? {
                true => applied.populated += bytes,
                false => left += bytes,
            }
        }
        if applied.populated > Bytes::ZERO {
            applied.notes.push(format!(
                "{} were made present at once: {OWN_POLICIES} ranges have policies of their own \
                    already",
                applied.populated
            ));
        }
        if left > Bytes::ZERO {
            applied.notes.push(format!(
                "{left} are left to the kernel: there was no free space to make them present at \
                    once"
            ));
        }
        Ok(())
    }

    /// Makes pages present, slice by slice, looking at what is free before each. False where it was
    /// not enough.
    fn populate(&self, parts: &[Range<usize>], nodes: &[NodeId]) -> Result<bool, AllocError> {
        let policy = MemPolicy::Prefer(nodes.to_vec());
        // What may be made present before the next look.
        let mut sure = 0;
        for part in parts {
            let mut at = part.start;
            while at < part.end {
                let end = at.saturating_add(SLICE).min(part.end);
                let mut needed = (end - at) as u64;
                if needed > sure {
                    sure = self.sure(nodes);
                }
                if needed > sure {
                    // Perhaps much of it is there already.
                    needed -= self
                        .kernel
                        .resident(&(at..end))?
                        .iter()
                        .map(|r| r.range.len() as u64)
                        .sum::<u64>();
                }
                if needed > sure {
                    return Ok(false);
                }
                sure -= needed;
                self.kernel.populate(&(at..end), &policy)?;
                at = end;
            }
        }
        Ok(true)
    }

    /// What can be had on these nodes now, within a slice and less a margin of the group's limit.
    fn sure(&self, nodes: &[NodeId]) -> u64 {
        let free_memory = self.kernel.free_memory();
        let free: u64 =
            free_memory.iter().filter(|(n, _)| nodes.contains(n)).map(|(_, b)| b.get()).sum();
        let left = self.kernel.headroom().map_or(u64::MAX, |h| h.get().saturating_sub(MARGIN));
        free.min(left).min(SLICE as u64)
    }

    /// Moves what is there and lies elsewhere than it belongs.
    fn carry(&self, address: usize, pieces: &[Piece], runs: &[NodeRun], applied: &mut Applied) {
        let mut by_target: BTreeMap<NodeId, Vec<Range<usize>>> = BTreeMap::new();
        for piece in pieces.iter().filter(|p| !p.nodes.is_empty()) {
            let part = address + piece.range.start..address + piece.range.end;
            let wrong = overlapping(runs, &part).filter(|r| !piece.nodes.contains(&r.node));
            for (turn, run) in wrong.enumerate() {
                by_target.entry(piece.nodes[turn % piece.nodes.len()]).or_default().push(run.range);
            }
        }
        for (to, parts) in by_target {
            let moved = self.kernel.move_to(&parts, to);
            applied.moved += moved.moved;
            applied.stayed += moved.stayed;
        }
    }

    /// Makes a strict object's pages present where they belong; refuses it where that does not come
    /// about.
    fn reserve(
        &self,
        range: &Range<usize>,
        pieces: &[Piece],
        applied: &mut Applied,
    ) -> Result<(), AllocError> {
        let before: usize = self.kernel.resident(range)?.iter().map(|r| r.range.len()).sum();
        applied.populated += Bytes((range.len() - before) as u64);
        for piece in pieces {
            let part = range.start + piece.range.start..range.start + piece.range.end;
            if piece.nodes.is_empty()
                || !self.populate(std::slice::from_ref(&part), &piece.nodes)?
            {
                applied.refused =
                    Some("others took the memory while it was being reserved".to_owned());
                return Ok(());
            }
        }
        let after = self.kernel.resident(range)?;
        let mut missing = range.len() - after.iter().map(|r| r.range.len()).sum::<usize>();
        for piece in pieces {
            let part = range.start + piece.range.start..range.start + piece.range.end;
            missing += overlapping(&after, &part)
                .filter(|r| !piece.nodes.contains(&r.node))
                .map(|r| r.range.len())
                .sum::<usize>();
        }
        if missing > 0 {
            let missing = Bytes(missing as u64);
            applied.refused =
                Some(format!("{missing} came to lie in other memory while it was being reserved"));
        }
        Ok(())
    }

    /// Gives back the pages of `range` that are not among `runs`.
    fn give_back(&self, range: &Range<usize>, runs: &[NodeRun]) -> Result<(), AllocError> {
        let mut at = range.start;
        for run in overlapping(runs, range) {
            if run.range.start > at {
                self.kernel.discard(&(at..run.range.start))?;
            }
            at = run.range.end;
        }
        if at < range.end {
            self.kernel.discard(&(at..range.end))?;
        }
        Ok(())
    }
}

impl State {
    pub(super) fn overlaps(&self, range: &Range<usize>) -> bool {
        self.own.range(..range.end).next_back().is_some_and(|(_, (end, _))| *end > range.start)
    }

    /// Whether all of `range` prefers these nodes already.
    fn owns(&self, range: &Range<usize>, nodes: &Nodes) -> bool {
        owns(&self.own, range, nodes)
    }

    /// Whether `range` may have a policy of its own for these nodes: within the number there may
    /// be, or beside its like.
    fn may_own(&self, range: &Range<usize>, nodes: &Nodes) -> bool {
        // Cutting one range out of another makes two more.
        if self.own.len() + 2 <= OWN_POLICIES {
            return true;
        }
        let before = self.own.range(..range.start).next_back();
        before.is_some_and(|(_, (end, n))| *end == range.start && n == nodes)
            && !self.overlaps(range)
    }

    pub(super) fn set_own(&mut self, range: &Range<usize>, nodes: Option<Nodes>) {
        let touching: Vec<usize> = {
            let before = self.own.range(..range.start).next_back().map(|(s, _)| *s);
            before.into_iter().chain(self.own.range(range.clone()).map(|(s, _)| *s)).collect()
        };
        for start in touching {
            let Some((end, old)) = self.own.remove(&start) else { continue };
            if start < range.start {
                self.own.insert(start, (end.min(range.start), old.clone()));
            }
            if end > range.end {
                self.own.insert(range.end, (end, old));
            }
        }
        let Some(nodes) = nodes else { return };
        let mut joined = range.clone();
        if let Some((&start, (end, n))) = self.own.range(..range.start).next_back() {
            if *end == range.start && *n == nodes {
                joined.start = start;
            }
        }
        if let Some((end, n)) = self.own.get(&range.end) {
            if *n == nodes {
                joined.end = *end;
            }
        }
        if joined.end > range.end {
            self.own.remove(&range.end);
        }
        self.own.insert(joined.start, (joined.end, nodes));
    }
}
