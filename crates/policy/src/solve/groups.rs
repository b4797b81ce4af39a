//! Items that count alike, taken together.

use super::flow;
use super::items::Items;

/// Items that count alike, and may be treated as one.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Items, group after group.
    pub order: Vec<u32>,
    /// Where each group ends in `order`.
    pub ends: Vec<u32>,
}

impl Groups {
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.order[start as usize..*end as usize])
    }

    /// The same without some items.
    pub fn only(&self, keep: impl Fn(u32) -> bool) -> Self {
        let mut left = Self::default();
        for members in self.iter() {
            left.order.extend(members.iter().copied().filter(|m| keep(*m)));
            if left.ends.last().copied().unwrap_or(0) < left.order.len() as u32 {
                left.ends.push(left.order.len() as u32);
            }
        }
        left
    }
}

pub(super) fn group(items: &Items) -> Groups {
    let hash = |item: usize| {
        let seed = if items.list[item].strict { item as u64 + 1 } else { 0 };
        items.row(item).iter().fold(seed, |h, x| {
            let mixed = (h ^ *x as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        })
    };
    let live = items.list.iter().enumerate().filter(|(_, i)| !i.out && i.granules > 0);
    let mut sorted: Vec<(u64, u32)> = live.map(|(item, _)| (hash(item), item as u32)).collect();
    sorted.sort_unstable();
    let mut groups = Groups { order: Vec::with_capacity(sorted.len()), ends: Vec::new() };
    let mut first: Option<(u64, u32)> = None;
    for (hash, item) in sorted {
        let alike = first.is_some_and(|(h, first)| {
            h == hash
                && !items.list[item as usize].strict
                && items.row(first as usize) == items.row(item as usize)
        });
        if !alike {
            if first.is_some() {
                groups.ends.push(groups.order.len() as u32);
            }
            first = Some((hash, item));
        }
        groups.order.push(item);
    }
    if first.is_some() {
        groups.ends.push(groups.order.len() as u32);
    }
    groups
}

/// All grains, given the column of each whole item: the divisible ones at their optimum in what
/// space is left.
pub(super) fn around(
    items: &Items,
    columns: &[Option<usize>],
    groups: &Groups,
    prices: Option<&[i64]>,
) -> Vec<u64> {
    let n = items.columns;
    let mut flow = vec![0; items.list.len() * n];
    let mut capacity = items.capacity.clone();
    for (item, column) in columns.iter().enumerate() {
        let Some(column) = column else { continue };
        let granules = items.list[item].granules;
        flow[item * n + column] = granules;
        capacity[*column] = capacity[*column].saturating_sub(granules);
    }
    let groups = groups.only(|i| !items.list[i as usize].whole);
    if groups.order.is_empty() {
        return flow;
    }
    // What wholes took of nowhere is still there: it has space for all.
    capacity[items.nowhere()] = items.capacity[items.nowhere()];
    let (units, _) = spread(items, &groups, &capacity, prices);
    for (members, units) in groups.iter().zip(units.chunks_exact(n)) {
        share(items, members, units, &mut flow);
    }
    flow
}

/// Divides a group's grains among its members: each column in proportion to size, to the grain.
pub(super) fn share(items: &Items, members: &[u32], units: &[u64], flow: &mut [u64]) {
    let n = items.columns;
    if let [only] = members {
        flow[*only as usize * n..(*only as usize + 1) * n].copy_from_slice(units);
        return;
    }
    let all: u64 = units.iter().sum();
    let part = |size: u64, column: u64| {
        (u128::from(size) * u128::from(column) / u128::from(all.max(1))) as u64
    };
    let mut rest = units.to_vec();
    for member in members {
        let size = items.list[*member as usize].granules;
        for (column, units) in units.iter().enumerate() {
            let given = part(size, *units);
            flow[*member as usize * n + column] = given;
            rest[column] -= given;
        }
    }
    // Less than a grain a member and column is left: given where most is left.
    for member in members {
        let row = &mut flow[*member as usize * n..(*member as usize + 1) * n];
        let mut missing = items.list[*member as usize].granules - row.iter().sum::<u64>();
        while missing > 0 {
            let most = (0..n).max_by_key(|c| (rest[*c], std::cmp::Reverse(*c)));
            let Some(column) = most.filter(|c| rest[*c] > 0) else { break };
            // One grain at a time while it matters, at most the columns' number of times.
            row[column] += 1;
            rest[column] -= 1;
            missing -= 1;
        }
    }
}

/// The divisible optimum of groups in `capacity`.
pub(super) fn spread(
    items: &Items,
    groups: &Groups,
    capacity: &[u64],
    start: Option<&[i64]>,
) -> (Vec<u64>, Vec<i64>) {
    let mut counts = Vec::with_capacity(groups.ends.len() * items.columns);
    let mut units = Vec::with_capacity(groups.ends.len());
    for members in groups.iter() {
        counts.extend_from_slice(items.row(members[0] as usize));
        units.push(members.iter().map(|m| items.list[*m as usize].granules).sum());
    }
    flow::transport(&flow::Supplies { counts: &counts, units: &units, capacity }, start)
}
