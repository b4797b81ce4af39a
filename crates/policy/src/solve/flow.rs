//! Divisible supplies onto columns with space, at the highest count: a transportation problem with
//! many sources and few sinks, solved exactly.
//!
//! Every source starts where its count less the column's price is highest. Such a start is the
//! optimum for the load that it gives; what is too much in one column is then carried to where
//! space is left along the cheapest paths between columns, which keeps it an optimum (successive
//! shortest paths). Good prices leave little to carry: they are found on a thinned copy of the
//! problem, one source in eight with an eighth of the space.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Marks a column in which a source may not lie.
pub(super) const BARRED: i64 = i64::MIN;
/// Sources for which the problem is thinned first.
const MANY: usize = 400;
/// One in so many is kept.
const THIN: usize = 8;

/// Sources with equal columns.
pub(super) struct Supplies<'a> {
    /// What a unit counts: `columns` numbers a source; [`BARRED`] where it may not lie. Whole
    /// numbers, so that paths of equal length are equal and no circle seems cheap by a hair.
    pub counts: &'a [i64],
    /// Units of each source.
    pub units: &'a [u64],
    /// Columns, and the space of each; together at least all units.
    pub capacity: &'a [u64],
}

/// A possible move of a source from one column to another; the cheapest is the greatest.
struct Step {
    cost: i64,
    source: u32,
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Step {}
impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Step {
    fn cmp(&self, other: &Self) -> Ordering {
        other.cost.cmp(&self.cost).then_with(|| other.source.cmp(&self.source))
    }
}

struct State<'a> {
    columns: usize,
    counts: &'a [i64],
    sources: usize,
    /// Units by source and column; one row more for the space that stays empty, which counts
    /// nothing anywhere.
    flow: Vec<u64>,
    /// Too much (above zero) or too little in each column.
    excess: Vec<i128>,
    /// Moves from column `a` to `b` at `a * columns + b`; those whose source has left `a` are
    /// stale.
    steps: Vec<BinaryHeap<Step>>,
}

/// Units by source (rows) and column, and the columns' prices.
pub(super) fn transport(s: &Supplies<'_>, start: Option<&[i64]>) -> (Vec<u64>, Vec<i64>) {
    let columns = s.capacity.len();
    let prices = match start {
        Some(prices) => prices.to_vec(),
        None if s.units.len() > MANY => thinned(s),
        None => vec![0; columns],
    };
    let mut state = State::new(s, &prices);
    state.settle();
    let prices = state.prices(prices);
    state.flow.truncate(s.units.len() * columns);
    (state.flow, prices)
}

/// Prices of a copy with few sources: an eighth of all that are large, and one in eight of the
/// rest.
fn thinned(s: &Supplies<'_>) -> Vec<i64> {
    let columns = s.capacity.len();
    let all: u64 = s.units.iter().sum();
    let large = all / 64;
    let mut counts = Vec::with_capacity(s.counts.len() / THIN);
    let mut units = Vec::with_capacity(s.units.len() / THIN + 64);
    let mut small = 0;
    for (source, row) in s.counts.chunks_exact(columns).enumerate() {
        let n = s.units[source];
        let kept = if n > large {
            n / THIN as u64
        } else {
            small += 1;
            if small % THIN != THIN / 2 {
                continue;
            }
            n
        };
        counts.extend_from_slice(row);
        units.push(kept);
    }
    let needed: u64 = units.iter().sum();
    let mut capacity: Vec<u64> = s.capacity.iter().map(|r| r / THIN as u64).collect();
    if let Some(nowhere) = capacity.last_mut() {
        *nowhere = (*nowhere).max(needed);
    }
    if units.len() * 2 > s.units.len() {
        return vec![0; columns];
    }
    transport(&Supplies { counts: &counts, units: &units, capacity: &capacity }, None).1
}

impl<'a> State<'a> {
    fn new(s: &Supplies<'a>, prices: &[i64]) -> Self {
        let columns = s.capacity.len();
        let sources = s.units.len();
        let mut flow = vec![0; (sources + 1) * columns];
        let mut excess: Vec<i128> = s.capacity.iter().map(|r| -i128::from(*r)).collect();
        let mut lists: Vec<Vec<Step>> = (0..columns * columns).map(|_| Vec::new()).collect();
        let used: u64 = s.units.iter().sum();
        let empty = s.capacity.iter().sum::<u64>().saturating_sub(used);
        let nothing = vec![0; columns];
        let rows = s.counts.chunks_exact(columns).chain(std::iter::once(nothing.as_slice()));
        for (source, row) in rows.enumerate() {
            let units = s.units.get(source).copied().unwrap_or(empty);
            if units == 0 {
                continue;
            }
            let open = (0..columns).filter(|c| row[*c] != BARRED);
            let best = open.max_by_key(|c| (row[*c] - prices[*c], std::cmp::Reverse(*c)));
            let Some(best) = best else { continue };
            flow[source * columns + best] = units;
            excess[best] += i128::from(units);
            for (to, count) in row.iter().enumerate() {
                if to != best && *count != BARRED {
                    lists[best * columns + to]
                        .push(Step { cost: row[best] - count, source: source as u32 });
                }
            }
        }
        let steps = lists.into_iter().map(BinaryHeap::from).collect();
        Self { columns, counts: s.counts, sources, flow, excess, steps }
    }

    fn count(&self, source: usize, column: usize) -> i64 {
        if source == self.sources {
            0
        } else {
            self.counts[source * self.columns + column]
        }
    }

    /// The cheapest move from `a` to `b` there is.
    fn cheapest(&mut self, a: usize, b: usize) -> Option<(i64, usize)> {
        let columns = self.columns;
        let heap = &mut self.steps[a * columns + b];
        while let Some(step) = heap.peek() {
            if self.flow[step.source as usize * columns + a] > 0 {
                return Some((step.cost, step.source as usize));
            }
            heap.pop();
        }
        None
    }

    /// Carries what is too much to where space is, always along the cheapest path.
    fn settle(&mut self) {
        let n = self.columns;
        let mut far = vec![0; n];
        let mut from = vec![0; n];
        let mut path = Vec::with_capacity(n);
        let mut costs = vec![None; n * n];
        let mut dirty: Vec<bool> = vec![true; n];
        loop {
            for a in (0..n).filter(|a| dirty[*a]) {
                for b in (0..n).filter(|b| *b != a) {
                    costs[a * n + b] = self.cheapest(a, b);
                }
            }
            dirty.fill(false);
            if !self.path(&costs, &mut far, &mut from, &mut path) {
                return;
            }
            let (first, last) = (path[0], path[path.len() - 1]);
            let mut units = self.excess[first].min(-self.excess[last]);
            for hop in path.windows(2) {
                let Some((_, source)) = costs[hop[0] * n + hop[1]] else { return };
                units = units.min(i128::from(self.flow[source * n + hop[0]]));
            }
            let units = u64::try_from(units).unwrap_or(0);
            if units == 0 {
                return;
            }
            self.excess[first] -= i128::from(units);
            self.excess[last] += i128::from(units);
            for hop in path.windows(2) {
                let Some((_, source)) = costs[hop[0] * n + hop[1]] else { return };
                self.carry(source, hop[0], hop[1], units);
                dirty[hop[0]] = true;
                dirty[hop[1]] = true;
            }
        }
    }

    fn carry(&mut self, source: usize, from: usize, to: usize, units: u64) {
        let n = self.columns;
        self.flow[source * n + from] -= units;
        let new = self.flow[source * n + to] == 0;
        self.flow[source * n + to] += units;
        if !new {
            return;
        }
        let here = self.count(source, to);
        for next in (0..n).filter(|c| *c != to) {
            let there = self.count(source, next);
            if there != BARRED {
                self.steps[to * n + next].push(Step { cost: here - there, source: source as u32 });
            }
        }
    }

    /// The cheapest path from a column with too much to one with too little, into `path`; false
    /// where there is none.
    fn path(
        &self,
        costs: &[Option<(i64, usize)>],
        far: &mut [i64],
        from: &mut [usize],
        path: &mut Vec<usize>,
    ) -> bool {
        let n = self.columns;
        far.fill(i64::MAX);
        from.fill(usize::MAX);
        for (column, excess) in self.excess.iter().enumerate() {
            if *excess > 0 {
                far[column] = 0;
            }
        }
        if far.iter().all(|f| *f == i64::MAX) {
            return false;
        }
        // Paths without circles have n - 1 hops.
        for _ in 1..n {
            let mut better = false;
            for a in 0..n {
                if far[a] == i64::MAX {
                    continue;
                }
                for b in (0..n).filter(|b| *b != a) {
                    let Some((cost, _)) = costs[a * n + b] else { continue };
                    let length = far[a] + cost;
                    if length < far[b] {
                        far[b] = length;
                        from[b] = a;
                        better = true;
                    }
                }
            }
            if !better {
                break;
            }
        }
        let lacking = |c: &usize| self.excess[*c] < 0 && far[*c] < i64::MAX;
        let Some(last) = (0..n).filter(lacking).min_by_key(|c| far[*c]) else { return false };
        path.clear();
        path.push(last);
        let mut at = last;
        while from[at] != usize::MAX && path.len() <= n {
            at = from[at];
            path.push(at);
        }
        path.reverse();
        self.excess[path[0]] > 0
    }

    /// Prices under which every source lies where its count less the price is highest.
    fn prices(&mut self, start: Vec<i64>) -> Vec<i64> {
        let n = self.columns;
        let mut prices = start;
        for _ in 0..n {
            let mut changed = false;
            for a in 0..n {
                for b in (0..n).filter(|b| *b != a) {
                    let Some((cost, _)) = self.cheapest(a, b) else { continue };
                    if prices[a] > prices[b] + cost {
                        prices[a] = prices[b] + cost;
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        prices
    }
}
