//! From an object's bytes by group of nodes to address ranges, and from ranges to what the kernel
//! is asked.

use crate::attributes::NodeSplit;
use std::ops::Range;
use std::sync::Arc;
use terrace_types::NodeId;

/// A set of nodes. Thousands of pieces share few of them.
pub(crate) type Nodes = Arc<[NodeId]>;

/// A part of an object, by offset, and the nodes it belongs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub range: Range<usize>,
    /// Empty: nothing is asked of the kernel.
    pub nodes: Nodes,
}

/// Rounds into which an object that is divided among groups is cut, so that threads that share it
/// in equal parts share each memory in equal parts as well. Some rounds begin with the first group,
/// some with the last, by the parity of the ones in their number (the sequence of Thue and Morse):
/// of 2, 4, 8 or 16 threads that walk their parts side by side, half are then in each memory, and
/// none waits idle while all want the other (ADR 0155).
const ROUNDS: usize = 16;
const HUGE: usize = 2 << 20;

/// How a fixed split cuts `len` bytes (whole pages) among places: offsets with the nodes of each,
/// in order of address. `None` for splits that are not fixed.
pub(crate) fn fixed(
    split: &NodeSplit,
    places: &[Vec<NodeId>],
    len: usize,
    page: usize,
) -> Option<Vec<Piece>> {
    // Before anything is listed: a commit asks this of thousands.
    if matches!(split, NodeSplit::Os | NodeSplit::SpillOver) {
        return None;
    }
    let nodes: Vec<NodeId> = places.iter().flatten().copied().collect();
    match split {
        NodeSplit::Os | NodeSplit::SpillOver => None,
        _ if nodes.is_empty() => Some(Vec::new()),
        NodeSplit::Equal => {
            Some(parts(&nodes.iter().map(|n| (*n, 1)).collect::<Vec<_>>(), len, page))
        }
        NodeSplit::Weighted(weights) => {
            // Exact thirds of a place with three nodes: all weights are scaled alike.
            let scale: u64 =
                places.iter().map(|p| p.len().max(1) as u64).product::<u64>().min(1 << 20);
            let of = |(place, w): (&Vec<NodeId>, &u32)| {
                let each = u64::from(*w) * scale / place.len().max(1) as u64;
                place.iter().map(move |n| (*n, each)).collect::<Vec<_>>()
            };
            Some(parts(&places.iter().zip(weights).flat_map(of).collect::<Vec<_>>(), len, page))
        }
        NodeSplit::Chunk(pages) => {
            let step = usize::try_from(*pages)
                .ok()
                .and_then(|p| p.checked_mul(page))
                .unwrap_or(usize::MAX);
            let mut pieces: Vec<Piece> = Vec::new();
            let mut at = 0;
            let alone: Vec<Nodes> = nodes.iter().map(|n| Nodes::from([*n])).collect();
            for nodes in alone.iter().cycle() {
                if at >= len {
                    break;
                }
                let end = at.saturating_add(step).min(len);
                match pieces.last_mut() {
                    Some(last) if last.nodes == *nodes => last.range.end = end,
                    _ => pieces.push(Piece { range: at..end, nodes: nodes.clone() }),
                }
                at = end;
            }
            Some(pieces)
        }
    }
}

/// Contiguous parts in proportion to their weights, cut at pages.
fn parts(weights: &[(NodeId, u64)], len: usize, page: usize) -> Vec<Piece> {
    let all: u128 = weights.iter().map(|w| u128::from(w.1)).sum::<u128>().max(1);
    let pages = (len / page) as u128;
    let mut pieces = Vec::new();
    let mut sum: u128 = 0;
    let mut at = 0;
    for (node, weight) in weights {
        sum += u128::from(*weight);
        let end = (pages * sum / all) as usize * page;
        if end > at {
            pieces.push(Piece { range: at..end, nodes: Nodes::from([*node]) });
        }
        at = end;
    }
    pieces
}

/// Bytes by group, in the order they are preferred, as pieces: one run each, or rounds of all where
/// `mixed`.
pub(crate) fn runs(amounts: &[(Nodes, usize)], mixed: bool, page: usize) -> Vec<Piece> {
    let len: usize = amounts.iter().map(|a| a.1).sum();
    let rounds = if mixed && amounts.len() > 1 { (len / (2 * HUGE)).clamp(1, ROUNDS) } else { 1 };
    let granule = if len >= rounds * amounts.len() * HUGE * 2 { HUGE } else { page };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = 0;
    for round in 1..=rounds {
        let backwards = (round - 1).count_ones() % 2 == 1;
        for turn in 0..amounts.len() {
            let (nodes, amount) = &amounts[if backwards { amounts.len() - 1 - turn } else { turn }];
            let upto = |round: usize| match round {
                r if r == rounds => *amount,
                r => (*amount as u128 * r as u128 / rounds as u128) as usize / granule * granule,
            };
            let size = upto(round) - upto(round - 1);
            if size == 0 {
                continue;
            }
            match pieces.last_mut() {
                Some(last) if last.nodes == *nodes => last.range.end = at + size,
                _ => pieces.push(Piece { range: at..at + size, nodes: nodes.clone() }),
            }
            at += size;
        }
    }
    pieces
}

/// Takes from the pieces' own nodes what did not fit there: of each node's pieces, from the end,
/// `missing` bytes go to the groups of `instead`, in order.
pub(crate) fn displace(pieces: &mut Vec<Piece>, node: NodeId, instead: &[(Nodes, usize)]) {
    let mut given: Vec<(Nodes, usize)> = instead.iter().filter(|i| i.1 > 0).cloned().collect();
    let mut at = pieces.len();
    while at > 0 && !given.is_empty() {
        at -= 1;
        if *pieces[at].nodes != [node] {
            continue;
        }
        let mut cut = Vec::new();
        let range = pieces[at].range.clone();
        let mut end = range.end;
        while end > range.start {
            let Some((nodes, left)) = given.last_mut() else { break };
            let size = (*left).min(end - range.start);
            cut.push(Piece { range: end - size..end, nodes: nodes.clone() });
            end -= size;
            *left -= size;
            if *left == 0 {
                given.pop();
            }
        }
        if end > range.start {
            cut.push(Piece { range: range.start..end, nodes: Nodes::from([node]) });
        }
        cut.reverse();
        pieces.splice(at..=at, cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = 4096;

    fn shown(pieces: &[Piece]) -> Vec<(usize, usize, u16)> {
        pieces.iter().map(|p| (p.range.start / P, p.range.end / P, p.nodes[0].0)).collect()
    }

    #[test]
    fn fixed_splits_cut_where_they_say() {
        let places = vec![vec![NodeId(4), NodeId(5)], vec![NodeId(0)]];
        let cut = |split| shown(&fixed(&split, &places, 12 * P, P).unwrap());
        assert_eq!(cut(NodeSplit::Equal), [(0, 4, 4), (4, 8, 5), (8, 12, 0)]);
        assert_eq!(cut(NodeSplit::Weighted(vec![1, 2])), [(0, 2, 4), (2, 4, 5), (4, 12, 0)]);
        assert_eq!(cut(NodeSplit::Chunk(5)), [(0, 5, 4), (5, 10, 5), (10, 12, 0)]);
        assert_eq!(cut(NodeSplit::Chunk(u64::MAX)), [(0, 12, 4)]);
        assert!(fixed(&NodeSplit::Os, &places, 12 * P, P).is_none());
    }

    #[test]
    fn a_divided_object_alternates_and_loses_no_byte() {
        let amounts =
            vec![(Nodes::from([NodeId(1)]), 64 << 20), (Nodes::from([NodeId(0)]), 128 << 20)];
        let pieces = runs(&amounts, true, P);
        assert_eq!(pieces.len(), 22);
        assert!(pieces.windows(2).all(|w| w[0].range.end == w[1].range.start));
        let on = |n: u16| {
            pieces.iter().filter(|p| *p.nodes == [NodeId(n)]).map(|p| p.range.len()).sum::<usize>()
        };
        assert_eq!((on(1), on(0)), (64 << 20, 128 << 20));
        assert_eq!(runs(&amounts, false, P).len(), 2);
    }

    #[test]
    fn threads_side_by_side_are_in_both_memories() {
        let half = 64 << 20;
        let pieces =
            runs(&[(Nodes::from([NodeId(1)]), half), (Nodes::from([NodeId(0)]), half)], true, P);
        let node = |at: usize| pieces.iter().find(|p| p.range.contains(&at)).unwrap().nodes[0].0;
        for threads in [2, 4, 8, 16] {
            let part = 2 * half / threads;
            for at in (0..part).step_by(1 << 20) {
                let fast: usize = (0..threads).map(|t| usize::from(node(t * part + at))).sum();
                assert_eq!(fast, threads / 2, "{threads} threads, {at} into their parts");
            }
        }
    }

    #[test]
    fn what_does_not_fit_goes_elsewhere_from_the_end() {
        let places = vec![vec![NodeId(1), NodeId(2)]];
        let mut pieces = fixed(&NodeSplit::Chunk(2), &places, 8 * P, P).unwrap();
        displace(
            &mut pieces,
            NodeId(1),
            &[(Nodes::from([NodeId(2)]), P), (Nodes::from([NodeId(0)]), 2 * P)],
        );
        assert_eq!(shown(&pieces), [(0, 1, 1), (1, 2, 2), (2, 4, 2), (4, 6, 0), (6, 8, 2)]);
    }
}
