//! Weighing requests together, and what is reported of it.
//!
//! The objective and its rules are those of [`terrace_policy::solve`]; a byte's gain is its
//! class's. Nodes that no request tells apart are one place with the space of all; nodes that a
//! split names (equal, chunks, weighted) stand alone.

use crate::attributes::{Attributes, Mismatch, NodeSplit};
use crate::classes::{Meaning, MemoryClass};
use crate::error::AllocError;
use crate::layout::{self, Nodes, Piece};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use terrace_policy::solve::{self, PlacedObject, PlacementProblem, SolverTier};
use terrace_types::{Bytes, Nanos, NodeId};

/// Objects below this lie in one class unless asked otherwise.
pub const WHOLE_BELOW: Bytes = Bytes::mib(2);

/// Which allocations a commit weighs. Immediate ones are never among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Those since the last commit.
    #[default]
    Epoch,
    /// All that are bound on commit.
    All,
}

/// What became of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct CommitRow {
    /// Name it was given; may be empty.
    pub name: String,
    /// Its address.
    pub address: usize,
    /// Bytes, in whole pages.
    pub size: Bytes,
    /// Classes asked for, the preferred first.
    pub wanted: Vec<usize>,
    /// Bytes by class, ascending; what is in no class is not among them.
    pub got: Vec<(usize, Bytes)>,
    /// Strict, and without space: it is not bound, and is weighed again in the next commit.
    pub refused: bool,
    /// Why it is so, one sentence or more.
    pub why: Cow<'static, str>,
    /// Bytes that were touched before and were moved.
    pub moved: Bytes,
    /// Bytes that should have moved and that the kernel left.
    pub stayed: Bytes,
    /// Bytes that were made present now, as a reservation or to spare the kernel mappings.
    pub populated: Bytes,
    /// What binding, moving and populating took.
    pub cost: Nanos,
}

impl CommitRow {
    /// Of an object that nothing was done with yet.
    pub(crate) const fn new(name: String, address: usize, len: usize, wanted: Vec<usize>) -> Self {
        Self {
            name,
            address,
            size: Bytes(len as u64),
            wanted,
            got: Vec::new(),
            refused: false,
            why: Cow::Borrowed(""),
            moved: Bytes::ZERO,
            stayed: Bytes::ZERO,
            populated: Bytes::ZERO,
            cost: Nanos::ZERO,
        }
    }
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CommitReport {
    /// One row an object, in the order of their addresses.
    pub rows: Vec<CommitRow>,
    /// The objective: what was reached.
    pub value: f64,
    /// No placement reaches more.
    pub bound: f64,
    /// What weighing took.
    pub decided_in: Nanos,
    /// What binding and moving took.
    pub applied_in: Nanos,
}

impl CommitReport {
    /// Bytes that were moved.
    #[must_use]
    pub fn moved(&self) -> Bytes {
        self.rows.iter().map(|r| r.moved).sum()
    }

    /// Takes up what was done besides, of other objects.
    pub(crate) fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.rows.sort_by_key(|r| r.address);
        self.value += other.value;
        self.bound += other.bound;
        self.decided_in = Nanos(self.decided_in.get() + other.decided_in.get());
        self.applied_in = Nanos(self.applied_in.get() + other.applied_in.get());
    }

    /// Objects that were refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.rows.iter().filter(|r| r.refused).count()
    }
}

/// A request as it is weighed.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub wish: &'a Attributes,
    pub meaning: &'a Meaning,
    /// Bytes, whole pages.
    pub len: usize,
    /// Bytes that are not there yet: what it will take of a memory limit.
    pub untouched: u64,
}

/// What was decided for one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Decided {
    pub pieces: Vec<Piece>,
    /// Why it was refused.
    pub refused: Option<&'static str>,
}

pub(crate) struct Weighed {
    pub decided: Vec<Decided>,
    pub value: f64,
    pub bound: f64,
}

const BY_TIER: &str = "its classes are full of what is worth more";
const BY_SIZE: &str = "its classes have less memory than it takes, even were they its own";
const BY_LIMIT: &str = "the memory limit of the process's group leaves less";

/// Weighs requests given what is free by node and what the group's limit leaves.
pub(crate) fn weigh(
    classes: &[MemoryClass],
    asked: &[Asked<'_>],
    free_memory: &BTreeMap<NodeId, u64>,
    headroom: Option<Bytes>,
    page: usize,
) -> Result<Weighed, AllocError> {
    let cuts: Vec<Option<Vec<Piece>>> = asked
        .iter()
        .map(|a| layout::fixed(&a.wish.split, &a.meaning.places, a.len, page))
        .collect();
    let groups = groups(classes, asked, &cuts);
    let tiers = groups
        .iter()
        .map(|(rank, nodes)| {
            let class = &classes[*rank];
            let capacity = nodes
                .iter()
                .map(|n| free_memory.get(n).copied().unwrap_or(0) / page as u64 * page as u64)
                .sum();
            SolverTier {
                capacity: Bytes(capacity),
                read_gain: class.read_gain,
                write_gain: class.write_gain,
            }
        })
        .collect();
    let of_node: BTreeMap<NodeId, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(at, (_, nodes))| nodes.iter().map(move |n| (*n, at)))
        .collect();
    let over_limit = over_limit(classes, asked, headroom);
    let mut objects = Vec::with_capacity(asked.len());
    let mut positions = Vec::with_capacity(asked.len());
    for (at, (a, cut)) in asked.iter().zip(&cuts).enumerate() {
        if over_limit.contains(&at) {
            continue;
        }
        positions.push(at);
        objects.push(object(a, cut.as_deref(), &of_node));
    }
    let problem = PlacementProblem { granule: Bytes(page as u64), tiers, objects };
    let solution = solve::solve(&problem)?;
    let mut decided: Vec<Decided> =
        vec![Decided { pieces: Vec::new(), refused: Some(BY_LIMIT) }; asked.len()];
    for ((at, placed), object) in positions.iter().zip(&solution.placed).zip(&problem.objects) {
        decided[*at] = match placed.refused {
            true => {
                let fits = fits_alone(object, &problem.tiers);
                Decided { pieces: Vec::new(), refused: Some(if fits { BY_TIER } else { BY_SIZE }) }
            }
            false => {
                let pieces =
                    pieces(&asked[*at], cuts[*at].as_deref(), placed, object, &groups, page);
                Decided { pieces, refused: None }
            }
        };
    }
    Ok(Weighed { decided, value: solution.value, bound: solution.bound })
}

/// Whether the tiers it asks for hold it if nothing else does.
fn fits_alone(object: &solve::Object, tiers: &[SolverTier]) -> bool {
    let free = |t: &usize| tiers.get(*t).map_or(Bytes::ZERO, |tier| tier.capacity);
    match &object.split {
        solve::TierSplit::Fixed(sizes) => {
            sizes.iter().zip(&object.wanted).all(|(size, t)| *size <= free(t))
        }
        _ => object.wanted.iter().map(free).sum::<Bytes>() >= object.size,
    }
}

/// Nodes that no request tells apart, with the rank of their class, best class first.
fn groups(
    classes: &[MemoryClass],
    asked: &[Asked<'_>],
    cuts: &[Option<Vec<Piece>>],
) -> Vec<(usize, Nodes)> {
    let mut sets: BTreeSet<&[NodeId]> = BTreeSet::new();
    let mut alone: BTreeSet<NodeId> = BTreeSet::new();
    for (a, cut) in asked.iter().zip(cuts) {
        match cut {
            Some(_) => alone.extend(a.meaning.places.iter().flatten()),
            None => sets.extend(a.meaning.places.iter().map(Vec::as_slice)),
        }
    }
    let mut found: Vec<(usize, Vec<bool>, Vec<NodeId>)> = Vec::new();
    for (rank, class) in classes.iter().enumerate() {
        for node in &class.nodes {
            let signature: Vec<bool> = sets.iter().map(|s| s.contains(node)).collect();
            let alike = found
                .iter_mut()
                .find(|(r, s, n)| *r == rank && *s == signature && !alone.contains(&n[0]));
            match alike {
                Some((_, _, nodes)) if !alone.contains(node) => nodes.push(*node),
                _ => found.push((rank, signature, vec![*node])),
            }
        }
    }
    found.into_iter().map(|(rank, _, nodes)| (rank, nodes.into())).collect()
}

fn object(
    a: &Asked<'_>,
    cut: Option<&[Piece]>,
    of_node: &BTreeMap<NodeId, usize>,
) -> solve::Object {
    let mut wanted: Vec<usize> = Vec::with_capacity(a.meaning.places.len());
    let place = |list: &mut Vec<usize>, nodes: &[NodeId]| {
        for group in nodes.iter().filter_map(|n| of_node.get(n)) {
            if !list.contains(group) {
                list.push(*group);
            }
        }
    };
    let split = match cut {
        Some(cut) => {
            let mut sizes: Vec<Bytes> = Vec::new();
            for piece in cut {
                place(&mut wanted, &piece.nodes);
                let at = wanted
                    .iter()
                    .position(|w| piece.nodes.first().and_then(|n| of_node.get(n)) == Some(w));
                sizes.resize(wanted.len(), Bytes::ZERO);
                if let Some(slot) = at.and_then(|at| sizes.get_mut(at)) {
                    *slot += Bytes(piece.range.len() as u64);
                }
            }
            solve::TierSplit::Fixed(sizes)
        }
        None => {
            a.meaning.places.iter().for_each(|p| place(&mut wanted, p));
            match a.wish.split {
                NodeSplit::SpillOver => solve::TierSplit::Ordered,
                _ => solve::TierSplit::Free,
            }
        }
    };
    let mut fallback: Vec<usize> = Vec::new();
    place(&mut fallback, &a.meaning.fallback);
    fallback.retain(|f| !wanted.contains(f));
    let whole = cut.is_none() && a.wish.whole.unwrap_or((a.len as u64) < WHOLE_BELOW.get());
    solve::Object {
        priority: f64::from(a.wish.priority),
        reads: a.wish.reads,
        writes: a.wish.writes,
        size: Bytes(a.len as u64),
        wanted,
        fallback,
        split,
        strict: a.wish.mismatch == Mismatch::Error,
        whole,
    }
}

/// Strict requests beyond what the group's limit leaves, the most worthy kept.
fn over_limit(
    classes: &[MemoryClass],
    asked: &[Asked<'_>],
    headroom: Option<Bytes>,
) -> BTreeSet<usize> {
    let Some(mut left) = headroom.map(Bytes::get) else { return BTreeSet::new() };
    let best = classes.first();
    let worth = |a: &Asked<'_>| {
        let gain = best.map_or(0.0, |c| a.wish.reads * c.read_gain + a.wish.writes * c.write_gain);
        f64::from(a.wish.priority) * gain
    };
    let mut strict: Vec<usize> =
        (0..asked.len()).filter(|at| asked[*at].wish.mismatch == Mismatch::Error).collect();
    strict.sort_by(|a, b| worth(&asked[*b]).total_cmp(&worth(&asked[*a])).then(a.cmp(b)));
    strict.retain(|at| match left.checked_sub(asked[*at].untouched) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    });
    strict.into_iter().collect()
}

fn pieces(
    a: &Asked<'_>,
    cut: Option<&[Piece]>,
    placed: &PlacedObject,
    object: &solve::Object,
    groups: &[(usize, Nodes)],
    page: usize,
) -> Vec<Piece> {
    let amount = |group: usize, bytes: Bytes| (groups[group].1.clone(), bytes.get() as usize);
    if let Some(cut) = cut {
        let mut pieces = cut.to_vec();
        for part in placed.parts() {
            let Some(node) = part.want.and_then(|w| groups[w].1.first()) else { continue };
            let elsewhere = part.got().filter(|(t, _)| Some(*t) != part.want);
            let mut instead: Vec<(Nodes, usize)> = elsewhere.map(|(t, b)| amount(t, b)).collect();
            instead.push((Nodes::from([]), part.nowhere.get() as usize));
            layout::displace(&mut pieces, *node, &instead);
        }
        return pieces;
    }
    let Some(part) = placed.parts().next() else { return Vec::new() };
    // Nearly all of them: whole, in one group.
    let mut only = part.got();
    if let (Some((group, _)), None, Bytes::ZERO) = (only.next(), only.next(), part.nowhere) {
        return vec![Piece { range: 0..a.len, nodes: groups[group].1.clone() }];
    }
    let order: Vec<usize> = object.wanted.iter().chain(&object.fallback).copied().collect();
    let mut got: Vec<(usize, Bytes)> = part.got().collect();
    got.sort_by_key(|(t, _)| order.iter().position(|o| o == t));
    let mut amounts: Vec<(Nodes, usize)> = got.into_iter().map(|(t, b)| amount(t, b)).collect();
    if part.nowhere > Bytes::ZERO {
        amounts.push((Nodes::from([]), part.nowhere.get() as usize));
    }
    layout::runs(&amounts, a.wish.split == NodeSplit::Os, page)
}

/// One or more sentences on what an object got.
pub(crate) fn why(row: &CommitRow, notes: &[String]) -> Cow<'static, str> {
    const AS_ASKED: &str = "all is where it was asked for";
    let asked: u64 =
        row.got.iter().filter(|(c, _)| row.wanted.contains(c)).map(|(_, b)| b.get()).sum();
    let placed: u64 = row.got.iter().map(|(_, b)| b.get()).sum();
    if notes.is_empty() && !row.refused && asked == row.size.get() && row.stayed == Bytes::ZERO {
        return Cow::Borrowed(AS_ASKED);
    }
    let mut reported: Vec<String> = notes.to_vec();
    if !row.refused {
        if asked == row.size.get() {
            reported.push(AS_ASKED.to_owned());
        } else {
            let elsewhere = Bytes(placed - asked);
            if elsewhere > Bytes::ZERO {
                reported.push(format!("what was asked for is full: {elsewhere} in other classes"));
            }
        }
        if placed < row.size.get() {
            reported.push(format!(
                "{} have no free space in any class and are left to the kernel",
                Bytes(row.size.get() - placed)
            ));
        }
        if row.stayed > Bytes::ZERO {
            reported.push(format!("the kernel left {} where they were", row.stayed));
        }
    }
    Cow::Owned(reported.join("; "))
}
