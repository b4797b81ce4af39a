//! Moving a whole arena: first its addresses are bound to the new devices, so that what is touched
//! from then on comes from there, then the pages that have memory are moved in large batches.

use super::error::{ArenaError, MoveError};
use super::move_state::{MoveReport, MoveState, Moving, StayReason};
use super::place::{Devices, NodeOps, MAX_SPILL};
use super::sizes::SLICE_SHIFT;
use super::{registry, space, Arena};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, PoisonError};
use terrace_migrate::batches;
use terrace_sys::PageStatus;
use terrace_types::{Bytes, Nanos, NodeId, Vpn, VpnRange};

/// What one call may take: a cancel is heard after each, and calls cost about 100 us beside their
/// pages (76-137 us measured on Linux 6.12), which is nothing to this. With the usual costs it is
/// 64 MiB of base pages.
const CALL: Nanos = Nanos::millis(40);
/// Batches of so many pages are sampled before they are looked at page by page, which costs about a
/// tenth of moving them (in the lab, 1 and 4 MiB).
const SAMPLED: usize = 256;
/// Pages of a sample at least.
const SAMPLE: usize = 32;
/// A page that is busy is tried so often.
const ROUNDS: usize = 3;

/// Whether an arena must arrive as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strictness {
    /// All pages or none: if one stays behind, those that moved are brought back and the devices
    /// are as before.
    Strict,
    /// As many pages as can be; the rest stay where they are, and new ones come from the new
    /// devices.
    Partial,
}

/// Claims the arena for a move.
fn claim(arena: Arena) -> Result<(Arc<MoveState>, &'static dyn NodeOps), MoveError> {
    let shared = Arc::new(MoveState::default());
    let mine = shared.clone();
    registry::with(arena, |details| {
        if details.moving.as_ref().is_some_and(|m| !m.abandoned.load(Relaxed)) {
            return Err(MoveError::Moving);
        }
        details.moving = Some(mine);
        Ok(details.nodes)
    })
    .unwrap_or(Err(ArenaError::Destroyed.into()))
    .map(|nodes| (shared, nodes))
}

fn finish(arena: Arena, shared: &MoveState, result: &Result<MoveReport, MoveError>) {
    let _destroyed_meanwhile = registry::with(arena, |details| details.moving = None);
    *shared.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(result.clone());
    shared.ended.notify_all();
}

pub(crate) fn now(
    arena: Arena,
    devices: &Devices,
    strictness: Strictness,
) -> Result<MoveReport, MoveError> {
    let (shared, nodes) = claim(arena)?;
    let result = go(arena, devices, strictness, &shared, nodes);
    finish(arena, &shared, &result);
    result
}

pub(crate) fn start(
    arena: Arena,
    devices: &Devices,
    strictness: Strictness,
) -> Result<Moving, MoveError> {
    let (shared, nodes) = claim(arena)?;
    let (theirs, devices) = (shared.clone(), devices.clone());
    let work = move || {
        let result = go(arena, &devices, strictness, &theirs, nodes);
        finish(arena, &theirs, &result);
    };
    match std::thread::Builder::new().name("terrace-move".into()).spawn(work) {
        Ok(_goes_on_by_itself) => Ok(Moving { shared }),
        Err(e) => {
            let error = MoveError::NoThread(e.to_string());
            finish(arena, &shared, &Err(error.clone()));
            Err(error)
        }
    }
}

/// A stretch of an arena in use, and the nodes its pages shall be on, in the order to be filled.
struct Part {
    pages: VpnRange,
    to: Vec<NodeId>,
}

/// Pages that a strict move has moved, with where they were.
type Undo = Vec<(Vpn, NodeId)>;

fn go(
    arena: Arena,
    devices: &Devices,
    strictness: Strictness,
    shared: &MoveState,
    nodes: &'static dyn NodeOps,
) -> Result<MoveReport, MoveError> {
    devices.check(&nodes.nodes())?;
    let (before, huge) =
        registry::with(arena, |d| (d.devices.clone(), d.huge)).ok_or(ArenaError::Destroyed)?;
    let parts = bind(arena, devices, huge, nodes)?;
    let _destroyed_meanwhile = registry::with(arena, |d| d.devices = devices.clone());
    let runs: Vec<(VpnRange, &[NodeId])> = parts
        .iter()
        .flat_map(|part| nodes.touched(part.pages).into_iter().map(|run| (run, part.to.as_slice())))
        .collect();
    let total = runs.iter().map(|(run, _)| run.len()).sum();
    shared.total.store(total, Relaxed);
    let mut report = MoveReport { pages: total, ..MoveReport::default() };
    let mut undo = Undo::new();
    let interleave = matches!(devices, Devices::Interleave(_));
    for (run, to) in runs {
        for part in batches(run, nodes.batch(CALL)) {
            let pages: Vec<Vpn> = (part.start.0..part.end.0).map(Vpn).collect();
            if shared.cancel.load(Relaxed) {
                *report.stayed.entry(StayReason::Cancelled).or_default() += pages.len() as u64;
                continue;
            }
            let keep = (strictness == Strictness::Strict).then_some(&mut undo);
            batch(nodes, &pages, to, interleave, &mut report, keep);
            shared.done.fetch_add(pages.len() as u64, Relaxed);
        }
    }
    if report.stayed.is_empty() {
        return Ok(report);
    }
    if strictness == Strictness::Strict {
        bring_back(nodes, undo);
        bind(arena, &before, huge, nodes)?;
        let _destroyed_meanwhile = registry::with(arena, |d| d.devices = before);
        return Err(MoveError::Incomplete(Box::new(report)));
    }
    if shared.cancel.load(Relaxed) {
        return Err(MoveError::Cancelled(Box::new(report)));
    }
    Ok(report)
}

/// Binds the arena's segments to the devices, those it gets later too. Returns what is in use.
/// Either all segments are bound anew or none.
fn bind(
    arena: Arena,
    devices: &Devices,
    huge: bool,
    nodes: &'static dyn NodeOps,
) -> Result<Vec<Part>, MoveError> {
    let classes = registry::classes(devices, huge, nodes)?;
    let page = terrace_sys::page_size().get();
    let mut parts = Vec::new();
    let _locked = arena.inner().lock.hold();
    if !arena.is_alive() {
        return Err(ArenaError::Destroyed.into());
    }
    // SAFETY: the lock is held to the end of this function.
    let locked = unsafe { arena.inner().locked() };
    let mut done: Vec<(*mut space::Segment, u16)> = Vec::new();
    let mut spill = SpillSpace::new(devices, nodes);
    let mut segment = locked.segments;
    while !segment.is_null() {
        // SAFETY: segments in the list are this arena's, and its lock is held.
        let this = unsafe { &mut *segment };
        let mut ranges = Vec::new();
        this.used_ranges(&mut ranges);
        let used = ranges.iter().map(|(start, end)| end - start).sum();
        let class = classes[spill.next(used)];
        let old = this.class;
        if let Err(e) = space::rebind(this, class) {
            for (segment, old) in done {
                // SAFETY: as above. A kernel that refuses this as well leaves policies that differ,
                // and no harm.
                let _as_it_was = space::rebind(unsafe { &mut *segment }, old);
            }
            return Err(ArenaError::Bind(e).into());
        }
        done.push((segment, old));
        let to = spill.order();
        parts.extend(ranges.into_iter().map(|(start, end)| Part {
            pages: VpnRange::new(Vpn(start as u64 / page), Vpn(end as u64 / page)),
            to: to.clone(),
        }));
        segment = this.next;
    }
    locked.classes = [0; MAX_SPILL];
    locked.classes[..classes.len()].copy_from_slice(&classes);
    locked.class_count = classes.len();
    Ok(parts)
}

/// Which device of a spill order a segment goes to.
struct SpillSpace {
    nodes: Vec<NodeId>,
    left: Option<Vec<u64>>,
    at: usize,
}

impl SpillSpace {
    fn new(devices: &Devices, nodes: &dyn NodeOps) -> Self {
        let named = devices.nodes().to_vec();
        let left = matches!(devices, Devices::Spill(_)).then(|| {
            named.iter().map(|n| nodes.free_bytes(*n).map_or(u64::MAX, Bytes::get)).collect()
        });
        Self { nodes: named, left, at: 0 }
    }

    /// Index of the class for a segment with `used` bytes.
    fn next(&mut self, used: usize) -> usize {
        let Some(left) = &mut self.left else { return 0 };
        while self.at + 1 < left.len() && left[self.at] < used as u64 {
            self.at += 1;
        }
        left[self.at] = left[self.at].saturating_sub(used as u64);
        self.at
    }

    fn order(&self) -> Vec<NodeId> {
        self.nodes[self.at.min(self.nodes.len())..].to_vec()
    }
}

/// Moves pages to the first of the nodes with space, or, interleaved, each to its own.
fn batch(
    nodes: &dyn NodeOps,
    pages: &[Vpn],
    to: &[NodeId],
    interleave: bool,
    report: &mut MoveReport,
    mut undo: Option<&mut Undo>,
) {
    // Devices::Anywhere: nothing to move, wherever it is.
    if to.is_empty() {
        report.already += pages.len() as u64;
        return;
    }
    let right = |page: Vpn, node: NodeId| {
        if interleave {
            to[page.0 as usize % to.len()] == node
        } else {
            to.contains(&node)
        }
    };
    let mut open: Vec<Vpn> = Vec::with_capacity(pages.len());
    let mut from: BTreeMap<Vpn, NodeId> = BTreeMap::new();
    if undo.is_none() && !interleave && pages.len() >= SAMPLED && all_elsewhere(nodes, pages, right)
    {
        open.extend_from_slice(pages);
    } else {
        match nodes.locate(pages) {
            Err(_) => open.extend_from_slice(pages),
            Ok(found) => {
                for (page, status) in pages.iter().zip(found) {
                    match status {
                        PageStatus::On(node) if right(*page, node) => report.already += 1,
                        PageStatus::On(node) => {
                            open.push(*page);
                            if undo.is_some() {
                                from.insert(*page, node);
                            }
                        }
                        PageStatus::Error(_) | PageStatus::Untouched => report.gone += 1,
                    }
                }
            }
        }
    }
    let mut why: BTreeMap<Vpn, StayReason> = BTreeMap::new();
    for (at, target) in to.iter().enumerate() {
        let mine = |page: &Vpn| !interleave || page.0 as usize % to.len() == at;
        for _round in 0..ROUNDS {
            let asked: Vec<Vpn> = open.iter().copied().filter(mine).collect();
            if asked.is_empty() {
                break;
            }
            let call = nodes.move_to(&asked, *target);
            let mut again = false;
            for (page, status) in asked.iter().zip(&call.pages) {
                match status {
                    PageStatus::On(node) if right(*page, *node) => {
                        report.moved += 1;
                        why.remove(page);
                        if let (Some(undo), Some(node)) = (undo.as_deref_mut(), from.get(page)) {
                            undo.push((*page, *node));
                        }
                        continue;
                    }
                    PageStatus::Error(errno) if *errno == ENOENT || *errno == EFAULT => {
                        report.gone += 1;
                        why.remove(page);
                        continue;
                    }
                    PageStatus::Error(errno) => {
                        let reason = reason(*errno);
                        again |= reason == StayReason::Busy;
                        why.insert(*page, reason);
                    }
                    PageStatus::On(_) => _ = why.insert(*page, reason(call.errno)),
                    PageStatus::Untouched => {
                        again |= call.errno == 0;
                        why.insert(*page, reason(call.errno));
                    }
                }
            }
            // Those with no reason have arrived or are gone.
            open.retain(|page| !mine(page) || why.contains_key(page));
            if !again {
                break;
            }
        }
    }
    for reason in why.into_values() {
        *report.stayed.entry(reason).or_default() += 1;
    }
}

const ENOENT: i32 = 2;
const EFAULT: i32 = 14;

/// What the kernel means (`move_pages(2)`): EBUSY 16, ENOMEM 12, EACCES 13. 0: it said nothing, and
/// the page did not move: the node was full when the copy was to be made.
fn reason(errno: i32) -> StayReason {
    match errno {
        16 | 11 => StayReason::Busy,
        12 | 0 => StayReason::NoSpace,
        13 => StayReason::Shared,
        other => StayReason::Errno(other),
    }
}

/// Whether no page is where it should be, by a sample of one in 64, and [`SAMPLE`] at least; then
/// looking at all would only cost.
fn all_elsewhere(nodes: &dyn NodeOps, pages: &[Vpn], right: impl Fn(Vpn, NodeId) -> bool) -> bool {
    let step = (pages.len() / SAMPLE).clamp(1, 64);
    let sample: Vec<Vpn> = pages.iter().copied().step_by(step).collect();
    nodes.locate(&sample).is_ok_and(|found| {
        sample
            .iter()
            .zip(found)
            .all(|(page, status)| matches!(status, PageStatus::On(n) if !right(*page, n)))
    })
}

fn bring_back(nodes: &dyn NodeOps, undo: Undo) {
    let mut by_node: BTreeMap<NodeId, Vec<Vpn>> = BTreeMap::new();
    for (page, node) in undo {
        by_node.entry(node).or_default().push(page);
    }
    for (node, pages) in by_node {
        for batch in pages.chunks(nodes.batch(CALL) as usize) {
            // What cannot go back stays where it is: the report says that the move failed.
            let _best_effort = nodes.move_to(batch, node);
        }
    }
}

/// Bytes of slices, for statistics.
pub(crate) fn bytes_of(slices: usize) -> Bytes {
    Bytes((slices as u64) << SLICE_SHIFT)
}
