//! From the divisible optimum to a placement: strict objects that do not fit are refused, whole
//! ones are rounded, the divisible ones are solved again around them and share evenly.

use super::flow::BARRED;
use super::groups::{around, group, share, spread, Groups};
use super::items::Items;
use super::{exact, ObjectPart, PlacedObject, PlacementProblem, Solution};
use terrace_types::Bytes;

/// Strict objects that are refused one by one before the rest is refused together.
const ONE_BY_ONE: usize = 32;
/// Looks for whole objects that fit into space left over.
const LOOKS: usize = 4;

/// The divisible optimum.
struct Relaxed {
    groups: Groups,
    /// Grains by group and column.
    flow: Vec<u64>,
    prices: Vec<i64>,
    value: f64,
}

pub(super) fn place(problem: &PlacementProblem, mut items: Items) -> Solution {
    let mut refusals = 0;
    loop {
        let relaxed = relax(&items);
        let (mut flow, rounded) = round(&items, &relaxed);
        let mut exact = !rounded;
        if rounded && exact::is_small(&items) {
            (flow, exact) = exact::search(&items, flow);
        }
        let mut lacking = lacking(&items, &flow);
        if lacking.is_empty() {
            // With strict objects refused, which ones were is a choice that was not weighed in all
            // ways.
            exact &= refusals == 0;
            readmit(&mut items, &mut flow);
            let value = value(&items, &flow);
            return Solution {
                placed: report(problem, &items, &flow),
                value,
                bound: relaxed.value.max(value),
                exact,
            };
        }
        refusals += 1;
        if refusals < ONE_BY_ONE {
            lacking.truncate(1);
        }
        for item in items.list.iter_mut().filter(|i| lacking.contains(&i.object)) {
            item.out = true;
        }
    }
}

/// What a flow of items counts, nowhere left out.
fn value(items: &Items, flow: &[u64]) -> f64 {
    let n = items.columns;
    let rows = flow.chunks_exact(n).zip(items.counts.chunks_exact(n));
    rows.map(|(units, counts)| row_value(units, counts)).sum::<f64>() * items.unit
}

fn row_value(units: &[u64], counts: &[i64]) -> f64 {
    let columns = units.len() - 1;
    let pairs = units.iter().zip(counts).take(columns).filter(|(units, _)| **units > 0);
    pairs.map(|(units, count)| *units as f64 * *count as f64).sum()
}

/// Strict objects of which something lies nowhere, the least worthy first.
fn lacking(items: &Items, flow: &[u64]) -> Vec<usize> {
    let mut found: Vec<(i64, usize)> = Vec::new();
    for (item, i) in items.list.iter().enumerate().filter(|(_, i)| i.strict && !i.out) {
        if flow[item * items.columns + items.nowhere()] > 0
            && found.last().is_none_or(|(_, o)| *o != i.object)
        {
            found.push((best(items, item), i.object));
        }
    }
    // Of equals, the later one goes.
    found.sort_by_key(|(worth, object)| (*worth, std::cmp::Reverse(*object)));
    found.into_iter().map(|(_, object)| object).collect()
}

/// What a grain of `item` counts at best.
fn best(items: &Items, item: usize) -> i64 {
    items.row(item)[..items.nowhere()].iter().copied().max().unwrap_or(BARRED)
}

fn relax(items: &Items) -> Relaxed {
    let groups = group(items);
    let (flow, prices) = spread(items, &groups, &items.capacity, None);
    let n = items.columns;
    let rows = groups.iter().zip(flow.chunks_exact(n));
    let value =
        rows.map(|(members, units)| row_value(units, items.row(members[0] as usize))).sum::<f64>()
            * items.unit;
    Relaxed { groups, flow, prices, value }
}

/// Grains by item and column, and whether a whole object had to be put elsewhere than the optimum
/// has it.
fn round(items: &Items, relaxed: &Relaxed) -> (Vec<u64>, bool) {
    let n = items.columns;
    let whole = |item: &u32| items.list[*item as usize].whole;
    if !relaxed.groups.order.iter().any(whole) {
        let mut flow = vec![0; items.list.len() * n];
        for (members, units) in relaxed.groups.iter().zip(relaxed.flow.chunks_exact(n)) {
            share(items, members, units, &mut flow);
        }
        return (flow, false);
    }
    let mut columns: Vec<Option<usize>> = vec![None; items.list.len()];
    let mut used = vec![0; n];
    let mut left: Vec<u32> = Vec::new();
    for (members, units) in relaxed.groups.iter().zip(relaxed.flow.chunks_exact(n)) {
        if let [only] = members {
            let at = units
                .iter()
                .position(|u| *u > 0)
                .filter(|c| units[*c] == items.list[*only as usize].granules);
            match at {
                _ if !whole(only) => {}
                Some(column) => {
                    used[column] += units[column];
                    columns[*only as usize] = Some(column);
                }
                None => left.push(*only),
            }
            continue;
        }
        let mut rest = units.to_vec();
        let mut wholes: Vec<u32> = members.iter().copied().filter(whole).collect();
        wholes.sort_by_key(|i| std::cmp::Reverse(items.list[*i as usize].granules));
        for item in wholes {
            let granules = items.list[item as usize].granules;
            let roomy = (0..n)
                .filter(|c| rest[*c] >= granules)
                .max_by_key(|c| (rest[*c], std::cmp::Reverse(*c)));
            match roomy {
                Some(column) => {
                    rest[column] -= granules;
                    used[column] += granules;
                    columns[item as usize] = Some(column);
                }
                None => left.push(item),
            }
        }
    }
    let rounded = !left.is_empty();
    // Those that count most choose first.
    let weight = |i: &u32| {
        i128::from(best(items, *i as usize)) * i128::from(items.list[*i as usize].granules)
    };
    left.sort_by_key(|i| (std::cmp::Reverse(weight(i)), *i));
    for item in left {
        let granules = items.list[item as usize].granules;
        let row = items.row(item as usize);
        let worth = |c: &usize| row[*c] - relaxed.prices[*c];
        let fits = |c: &usize| {
            items.capacity[*c] - used[*c].min(items.capacity[*c]) >= granules && row[*c] != BARRED
        };
        let column = (0..n).filter(fits).max_by_key(|c| (worth(c), std::cmp::Reverse(*c)));
        let column = column.unwrap_or(items.nowhere());
        used[column] += granules;
        columns[item as usize] = Some(column);
    }
    let mut flow = around(items, &columns, &relaxed.groups, Some(&relaxed.prices));
    let moved = fill(items, &mut flow);
    (flow, rounded || moved)
}

/// Space left in each column.
fn left_over(items: &Items, flow: &[u64]) -> Vec<u64> {
    let mut capacity = items.capacity.clone();
    for row in flow.chunks_exact(items.columns) {
        capacity
            .iter_mut()
            .zip(row)
            .for_each(|(capacity, units)| *capacity = capacity.saturating_sub(*units));
    }
    capacity
}

/// Moves whole items into space left over where they count more. Whether any was moved.
fn fill(items: &Items, flow: &mut [u64]) -> bool {
    let n = items.columns;
    let mut capacity = left_over(items, flow);
    let mut any = false;
    for _ in 0..LOOKS {
        let most = capacity[..n - 1].iter().copied().max().unwrap_or(0);
        let mut found: Vec<(i128, u32, usize)> = Vec::new();
        for (item, i) in items.list.iter().enumerate() {
            if !i.whole || i.out || i.granules == 0 || i.granules > most {
                continue;
            }
            let row = items.row(item);
            let Some(at) = flow[item * n..(item + 1) * n].iter().position(|u| *u > 0) else {
                continue;
            };
            for to in (0..n - 1).filter(|c| row[*c] > row[at] && capacity[*c] >= i.granules) {
                found.push((
                    i128::from(row[to] - row[at]) * i128::from(i.granules),
                    item as u32,
                    to,
                ));
            }
        }
        found.sort_unstable_by_key(|(gain, item, to)| (std::cmp::Reverse(*gain), *item, *to));
        let mut moved = false;
        for (_, item, to) in found {
            let item = item as usize;
            let granules = items.list[item].granules;
            let row = items.row(item);
            let Some(at) = flow[item * n..(item + 1) * n].iter().position(|u| *u > 0) else {
                continue;
            };
            if capacity[to] < granules || row[to] <= row[at] {
                continue;
            }
            flow[item * n + at] = 0;
            flow[item * n + to] = granules;
            capacity[at] += granules;
            capacity[to] -= granules;
            moved = true;
        }
        if !moved {
            break;
        }
        any = true;
    }
    any
}

/// Takes refused objects back in that fit into what is left over, the worthiest first.
fn readmit(items: &mut Items, flow: &mut [u64]) {
    let n = items.columns;
    let mut refused: Vec<(i64, usize)> = Vec::new();
    for (item, i) in items.list.iter().enumerate().filter(|(_, i)| i.out) {
        if refused.last().is_none_or(|(_, o)| *o != i.object) {
            refused.push((best(items, item), i.object));
        }
    }
    refused.sort_by_key(|(worth, object)| (std::cmp::Reverse(*worth), *object));
    let mut capacity = left_over(items, flow);
    for (_, object) in refused {
        let parts: Vec<usize> =
            (0..items.list.len()).filter(|i| items.list[*i].object == object).collect();
        let mut trial = capacity.clone();
        let mut given: Vec<(usize, u64)> = Vec::new();
        let fits = parts.iter().all(|item| {
            let i = items.list[*item];
            let row = items.row(*item);
            let mut order: Vec<usize> = (0..n - 1).filter(|c| row[*c] != BARRED).collect();
            order.sort_by_key(|c| (std::cmp::Reverse(row[*c]), *c));
            let mut missing = i.granules;
            for column in order {
                let take = trial[column].min(missing);
                if take == 0 || (i.whole && take < i.granules) {
                    continue;
                }
                trial[column] -= take;
                missing -= take;
                given.push((*item * n + column, take));
            }
            missing == 0
        });
        if fits {
            capacity = trial;
            given.into_iter().for_each(|(slot, units)| flow[slot] = units);
            parts.into_iter().for_each(|item| items.list[item].out = false);
        }
    }
}

fn report(problem: &PlacementProblem, items: &Items, flow: &[u64]) -> Vec<PlacedObject> {
    let n = items.columns;
    let granule = problem.granule.get();
    let bytes = |units: u64| Bytes(units.saturating_mul(granule));
    let mut placed = vec![PlacedObject::default(); problem.objects.len()];
    for (item, row) in items.list.iter().zip(flow.chunks_exact(n)) {
        let at = &mut placed[item.object];
        at.refused |= item.out;
        let mut part = ObjectPart { want: item.want, ..ObjectPart::default() };
        if item.out {
            part.nowhere = bytes(item.granules);
        } else {
            part.nowhere = bytes(row[n - 1]);
            let mut got = row[..n - 1]
                .iter()
                .enumerate()
                .filter(|(_, u)| **u > 0)
                .map(|(t, u)| (t, bytes(*u)));
            part.first = got.next();
            part.more = got.collect();
        }
        at.push(part);
    }
    placed
}
