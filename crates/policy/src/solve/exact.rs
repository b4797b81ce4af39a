//! Branch and bound over the whole objects of a small problem.

use super::flow::{transport, Supplies, BARRED};
use super::groups::{around, group};
use super::items::Items;

/// Items of a problem that is searched.
const SMALL: usize = 20;
/// Nodes looked at; beyond them the best so far stands, and is not called exact.
const NODES: usize = 600;

/// Whether `items` are few enough to be searched.
pub(super) fn is_small(items: &Items) -> bool {
    items.list.iter().filter(|i| !i.out).count() <= SMALL
}

/// The best placement, and whether that is certain. `start` is a placement to begin with.
pub(super) fn search(items: &Items, start: Vec<u64>) -> (Vec<u64>, bool) {
    let n = items.columns;
    let mut best = score(items, &start);
    let mut best_flow = start;
    let mut open: Vec<Vec<Option<usize>>> = vec![vec![None; items.list.len()]];
    let groups = group(items);
    let mut looked = 0;
    while let Some(fixed) = open.pop() {
        looked += 1;
        if looked > NODES {
            return (best_flow, false);
        }
        let Some(flow) = relax(items, &fixed) else { continue };
        if score(items, &flow) <= best {
            continue;
        }
        let row = |item: usize| &flow[item * n..(item + 1) * n];
        let split = |item: &usize| {
            let i = items.list[*item];
            i.whole && fixed[*item].is_none() && row(*item).iter().filter(|u| **u > 0).count() > 1
        };
        let widest =
            (0..items.list.len()).filter(split).max_by_key(|item| items.list[*item].granules);
        match widest {
            None => {
                let lies = |item: usize| row(item).iter().position(|u| *u > 0);
                let columns: Vec<Option<usize>> = (0..items.list.len())
                    .map(|i| if items.list[i].whole { lies(i) } else { None })
                    .collect();
                // The same again with the divisible ones sharing evenly.
                let flow = around(items, &columns, &groups, None);
                let found = score(items, &flow);
                if found > best {
                    best = found;
                    best_flow = flow;
                }
            }
            Some(item) => {
                let mut columns: Vec<usize> =
                    (0..n).filter(|c| items.row(item)[*c] != BARRED).collect();
                // The last pushed is looked at first: where most of it lies.
                columns.sort_by_key(|c| row(item)[*c]);
                for column in columns {
                    let mut next = fixed.clone();
                    next[item] = Some(column);
                    open.push(next);
                }
            }
        }
    }
    (best_flow, true)
}

/// What a flow counts, nowhere included.
fn score(items: &Items, flow: &[u64]) -> i128 {
    let pairs = flow.iter().zip(&items.counts).filter(|(units, _)| **units > 0);
    pairs.map(|(units, count)| i128::from(*units) * i128::from(*count)).sum()
}

/// The divisible optimum with some items fixed; `None` where they do not fit.
fn relax(items: &Items, fixed: &[Option<usize>]) -> Option<Vec<u64>> {
    let n = items.columns;
    let mut capacity = items.capacity.clone();
    let mut counts = Vec::new();
    let mut units = Vec::new();
    let mut loose = Vec::new();
    let mut flow = vec![0; items.list.len() * n];
    for (item, i) in items.list.iter().enumerate().filter(|(_, i)| !i.out && i.granules > 0) {
        match fixed[item] {
            Some(column) => {
                capacity[column] = capacity[column].checked_sub(i.granules)?;
                flow[item * n + column] = i.granules;
            }
            None => {
                counts.extend_from_slice(items.row(item));
                units.push(i.granules);
                loose.push(item);
            }
        }
    }
    let (found, _) =
        transport(&Supplies { counts: &counts, units: &units, capacity: &capacity }, None);
    for (item, row) in loose.into_iter().zip(found.chunks_exact(n)) {
        flow[item * n..(item + 1) * n].copy_from_slice(row);
    }
    Some(flow)
}
