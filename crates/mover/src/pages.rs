//! [`MovePages`]: batches, limits, verification, exchange, back-off.

use crate::account::{Account, Fate};
use crate::calls::{CallError, MoveCalls};
use crate::costs::BIGGEST_BATCH;
use crate::units::{cut, Unit};
use std::collections::{BTreeMap, BTreeSet};
use terrace_engine::{MoveFailure, MoveLimits, MoveOutcome, Mover};
use terrace_types::{Bytes, Move, MoveReason, Nanos, NodeId, PageStatus, Pid, Tick, Vpn, VpnRange};

/// Attempts at pages the kernel left behind without saying why.
const ATTEMPTS: u32 = 3;
/// First and longest back-off from a full node.
const BACK_OFF: (Nanos, Nanos) = (Nanos::millis(50), Nanos::secs(2));

/// Moves pages with calls such as `move_pages`.
///
/// One call stays under the limit's `longest_call`: the first is sized by what the machine's file
/// says a page costs; then the cost is measured and the next batch sized by it. (The prototype
/// measured 11 us a page in its lab, 36 us with batches of 512 under plain emulation.) Pages
/// already placed or absent are filtered first, because each one makes the kernel flush the batch
/// it is gathering (`do_pages_move` in `mm/migrate.c`). Every page that the status array does not
/// show in its place is asked for again before it counts as failed.
#[derive(Debug)]
pub struct MovePages<C> {
    calls: C,
    page_size: Bytes,
    /// Measured cost of one base page in a call; `None` before the first.
    page_cost: Option<Nanos>,
    /// That cost is of a small call, which is a bound from above.
    is_bound: bool,
    full: BTreeMap<NodeId, Full>,
}

/// A node that was found full.
#[derive(Debug, Clone, Copy)]
struct Full {
    until: Tick,
    span: Nanos,
}

/// State of one `apply`.
struct Run<'a> {
    moves: &'a [Move],
    limits: &'a MoveLimits,
    account: Account,
    start: Tick,
    gone: BTreeSet<Pid>,
    refused: BTreeSet<Pid>,
}

impl<C: MoveCalls> MovePages<C> {
    /// On any kernel, with base pages of `page_size`.
    #[must_use]
    pub const fn new(calls: C, page_size: Bytes) -> Self {
        Self { calls, page_size, page_cost: None, is_bound: false, full: BTreeMap::new() }
    }

    fn units(&mut self, moves: &[Move]) -> Vec<Unit> {
        let mut hulls: BTreeMap<Pid, VpnRange> = BTreeMap::new();
        for m in moves {
            let range = m.range();
            let hull = hulls.entry(m.pid).or_insert(range);
            *hull = VpnRange::new(hull.start.min(range.start), hull.end.max(range.end));
        }
        let huge: BTreeMap<Pid, Vec<VpnRange>> =
            hulls.into_iter().map(|(pid, hull)| (pid, self.calls.huge(pid, hull))).collect();
        let mut units = Vec::new();
        for (at, m) in moves.iter().enumerate() {
            cut(at as u32, m.range(), huge.get(&m.pid).map_or(&[], Vec::as_slice), &mut units);
        }
        units
    }

    /// Base pages the next call may carry: as many as fit the time. While nothing is measured the
    /// batch asked for, or fewer where the machine's file says that those take too long; more only
    /// once it is seen that they do not: a file may be of another machine, or have what is usual.
    fn batch(&self, limits: &MoveLimits) -> u64 {
        // A quarter of the time is left for what varies between calls.
        let span = Nanos(limits.longest_call.0 * 3 / 4);
        let unmeasured =
            || self.calls.batch(span).unwrap_or(u64::MAX).min(u64::from(limits.batch.max(1)));
        let fits = self.page_cost.map(|cost| (span.0 / cost.0.max(1)).clamp(1, BIGGEST_BATCH));
        match fits {
            Some(fits) if self.is_bound => fits.max(unmeasured()),
            Some(fits) => fits,
            None => unmeasured(),
        }
    }

    fn learn(&mut self, pages: u64, took: Nanos) {
        let now = Nanos((took.0 / pages.max(1)).max(1));
        // A small call is mostly its fixed cost (76-137 us measured): a bound from above.
        let small = pages < 64;
        self.page_cost = Some(match self.page_cost {
            Some(old) if small => old.min(now),
            Some(old) if old > now && !self.is_bound => Nanos((old.0 * 3 + now.0) / 4),
            _ => now,
        });
        self.is_bound = small && (self.is_bound || self.page_cost == Some(now));
    }

    /// Waits for the rate and says whether there is time left.
    fn may_go_on(&mut self, run: &Run<'_>) -> bool {
        let mut spent = self.calls.now().since(run.start);
        if let Some(rate) = run.limits.rate {
            let bytes = Bytes(run.account.base_pages_moved * self.page_size.get());
            let Some(due) = rate.time_for(bytes) else {
                return false;
            };
            if due > run.limits.total {
                return false;
            }
            if due > spent {
                self.calls.wait(due - spent);
                spent = self.calls.now().since(run.start);
            }
        }
        spent < run.limits.total
    }

    fn is_full(&mut self, node: NodeId) -> bool {
        let now = self.calls.now();
        self.full.get(&node).is_some_and(|f| now < f.until)
    }

    fn found_full(&mut self, node: NodeId) {
        let now = self.calls.now();
        let span = self.full.get(&node).map_or(BACK_OFF.0, |f| (f.span + f.span).min(BACK_OFF.1));
        self.full.insert(node, Full { until: now.after(span), span });
    }

    /// Leaves out what needs no call, or cannot be helped by one. All units share pid and target.
    fn filter(&mut self, run: &mut Run<'_>, units: &[usize], pid: Pid, to: NodeId) -> Vec<usize> {
        if run.gone.contains(&pid) {
            run.account.give_up(units, MoveFailure::Gone);
            return Vec::new();
        }
        if run.refused.contains(&pid) {
            run.account.give_up(units, MoveFailure::NotAllowed);
            return Vec::new();
        }
        let pages: Vec<Vpn> = units.iter().map(|&u| run.account.units[u].start).collect();
        match self.calls.query(pid, &pages) {
            Ok(status) => {
                let mut left = Vec::with_capacity(units.len());
                for (&unit, status) in units.iter().zip(status) {
                    match status {
                        PageStatus::On(node) if node == to => {
                            run.account.settle(unit, Fate::Failed(MoveFailure::AlreadyThere));
                        }
                        PageStatus::On(_) | PageStatus::Untouched => left.push(unit),
                        PageStatus::Error(e) => {
                            run.account.settle(unit, Fate::Failed(page_failure(e)));
                        }
                    }
                }
                left
            }
            Err(e) => {
                let gone = e == CallError::Gone;
                let why = if gone { MoveFailure::Gone } else { MoveFailure::NotAllowed };
                run.note(pid, e);
                run.account.give_up(units, why);
                Vec::new()
            }
        }
    }

    /// Moves units of one process to one node in one go; their fates are settled on return.
    fn batch_to(&mut self, run: &mut Run<'_>, units: &[usize], pid: Pid, to: NodeId) {
        let mut left = self.filter(run, units, pid, to);
        for _ in 0..ATTEMPTS {
            if left.is_empty() {
                return;
            }
            if self.is_full(to) {
                run.account.give_up(&left, MoveFailure::NodeFull);
                return;
            }
            let before = left.len();
            let refused = self.one_call(run, &mut left, pid, to);
            if let Some(why) = refused {
                run.account.give_up(&left, why);
                return;
            }
            if left.len() == before {
                break;
            }
        }
        run.account.give_up(&left, MoveFailure::Busy);
    }

    /// One call and its verification. `left` keeps the units whose fate is open; the reason is
    /// given when it holds for all of them.
    fn one_call(
        &mut self,
        run: &mut Run<'_>,
        left: &mut Vec<usize>,
        pid: Pid,
        to: NodeId,
    ) -> Option<MoveFailure> {
        let pages: Vec<Vpn> = left.iter().map(|&u| run.account.units[u].start).collect();
        let base = run.base_pages(left);
        let before = self.calls.now();
        let call = self.calls.move_to(pid, &pages, base, to);
        let took = self.calls.now().since(before);
        run.account.called(left, took);
        self.learn(base, took);
        let mut doubtful = Vec::new();
        for (&unit, status) in left.iter().zip(&call.pages) {
            match *status {
                PageStatus::On(node) if node == to => run.account.settle(unit, Fate::Moved),
                other => doubtful.push((unit, other)),
            }
        }
        *left = self.verify(run, &doubtful, pid, to);
        if run.gone.contains(&pid) {
            return Some(MoveFailure::Gone);
        }
        match call.errno {
            0 => None,
            libc_errno::ENOMEM => {
                self.found_full(to);
                Some(MoveFailure::NodeFull)
            }
            e => {
                let error = match e {
                    libc_errno::ESRCH => CallError::Gone,
                    libc_errno::EPERM | libc_errno::EACCES => CallError::NotPermitted,
                    _ => CallError::Other,
                };
                run.note(pid, error);
                Some(call_failure(e))
            }
        }
    }

    /// Asks where the doubtful pages are: the kernel leaves the status of whole batches unwritten
    /// when one page of them fails. Returns those whose fate is still open.
    fn verify(
        &mut self,
        run: &mut Run<'_>,
        doubtful: &[(usize, PageStatus)],
        pid: Pid,
        to: NodeId,
    ) -> Vec<usize> {
        if doubtful.is_empty() {
            return Vec::new();
        }
        let pages: Vec<Vpn> = doubtful.iter().map(|d| run.account.units[d.0].start).collect();
        let found = match self.calls.query(pid, &pages) {
            Ok(found) => found,
            Err(e) => {
                run.note(pid, e);
                vec![PageStatus::Untouched; pages.len()]
            }
        };
        let mut open = Vec::new();
        let mut full = false;
        for (&(unit, said), found) in doubtful.iter().zip(found) {
            match (found, said) {
                (PageStatus::On(node), _) if node == to => run.account.settle(unit, Fate::Moved),
                (found, PageStatus::Error(e)) => {
                    full |= e == libc_errno::ENOMEM;
                    // One that could not be moved while its memory was taken down is there no more.
                    let why = match found {
                        PageStatus::Error(now) if page_failure(now) == MoveFailure::NotPresent => {
                            MoveFailure::NotPresent
                        }
                        _ => page_failure(e),
                    };
                    run.account.settle(unit, Fate::Failed(why));
                }
                (PageStatus::Error(e), _) => {
                    run.account.settle(unit, Fate::Failed(page_failure(e)));
                }
                _ => open.push(unit),
            }
        }
        if full {
            self.found_full(to);
        }
        open
    }

    /// All units in order, neighbours with the same process and target in batches. Where time
    /// ends, space that was made is filled first: pages that went down for nothing are a loss. And
    /// so no more go down once most of what was to go up last did not: the space went to others, or
    /// the pages are no more.
    fn in_order(&mut self, run: &mut Run<'_>, units: &[usize]) {
        let (mut at, mut before, mut unfilled, mut over) = (0, None, 0, false);
        let (mut made, mut asked, mut risen) = (0, 0, 0);
        let last_up = units.iter().rposition(|unit| !run.is_down(*unit));
        while at < units.len() {
            over = over || !self.may_go_on(run);
            let down = run.is_down(units[at]);
            if down && asked > 0 {
                if 2 * risen < made.min(asked) {
                    return;
                }
                (made, asked, risen) = (0, 0, 0);
            }
            let most = match (down, over) {
                (true, true) => 0,
                (true, false) if last_up > Some(at) => self.fitting(run, unfilled),
                (false, true) => unfilled,
                (_, false) => u64::MAX,
            };
            let batch = run.take(units, at, self.batch(run.limits).min(most));
            if run.base_pages(&units[at..at + batch]) > most {
                over = true;
                if !down || unfilled == 0 {
                    return;
                }
                at += batch;
                continue;
            }
            let (pid, to) = run.key(units[at]);
            if before.replace(to) != Some(to) && down {
                self.calls.turn();
            }
            self.batch_to(run, &units[at..at + batch], pid, to);
            let freed = self.made_space(run, &units[at..at + batch]);
            if down {
                (made, unfilled) = (made + freed, unfilled + freed);
            } else {
                asked += run.base_pages(&units[at..at + batch]);
                risen += freed;
                unfilled = unfilled.saturating_sub(freed);
            }
            at += batch;
        }
    }

    /// Base pages that may still go down so that there is time to fill their space, and what is
    /// `unfilled` before. The first call of a run is made whatever it should cost: what is known of
    /// that may be wrong, and only a call shows it.
    fn fitting(&mut self, run: &Run<'_>, unfilled: u64) -> u64 {
        if run.account.calls == 0 {
            return u64::MAX;
        }
        let spent = self.calls.now().since(run.start);
        let left = run.limits.total.saturating_sub(spent);
        match self.page_cost.filter(|_| !self.is_bound) {
            Some(cost) => (left.0 / cost.0.max(1)).saturating_sub(unfilled) / 2,
            None => u64::MAX,
        }
    }

    /// A node that was found full before may be tried again once pages have left it; gives how
    /// many.
    fn made_space(&mut self, run: &Run<'_>, units: &[usize]) -> u64 {
        let freed = run.moved_pages(units);
        if freed > 0 {
            for &unit in units {
                self.full.remove(&run.moves[run.account.units[unit].of as usize].from);
            }
        }
        freed
    }

    /// Rounds of one batch down and as many pages up; what finds no free space goes back down no
    /// more pages than came up, so both tiers keep their occupancy.
    fn exchange(&mut self, run: &mut Run<'_>, down: &[usize], up: &[usize]) {
        let (mut d, mut u) = (0, 0);
        while d < down.len() && u < up.len() {
            if !self.may_go_on(run) {
                return;
            }
            let most = self.batch(run.limits);
            let taken = run.take(&down[d..], 0, most);
            let (pid, to) = run.key(down[d]);
            let batch = &down[d..d + taken];
            self.calls.turn();
            self.batch_to(run, batch, pid, to);
            let freed = self.made_space(run, batch);
            d += taken;
            let mut debt = freed;
            while debt > 0 && u < up.len() {
                let taken = run.take(&up[u..], 0, debt.min(most));
                let (pid, to) = run.key(up[u]);
                let batch = &up[u..u + taken];
                self.batch_to(run, batch, pid, to);
                debt = debt.saturating_sub(run.moved_pages(batch));
                u += taken;
                if self.is_full(to) || !self.may_go_on(run) {
                    break;
                }
            }
            let risen = run.moved_pages(&up[..u]);
            let sunk = run.moved_pages(&down[..d]);
            self.put_back(run, batch, sunk.saturating_sub(risen));
        }
    }

    /// Brings back up to `pages` of the pages just demoted.
    fn put_back(&mut self, run: &mut Run<'_>, units: &[usize], pages: u64) {
        let mut left = pages;
        let mut back = Vec::new();
        for &unit in units.iter().rev() {
            let size = u64::from(run.account.units[unit].pages);
            if run.account.fates[unit] == Fate::Moved && size <= left {
                left -= size;
                back.push(unit);
            }
        }
        if back.is_empty() {
            return;
        }
        let m = run.moves[run.account.units[back[0]].of as usize];
        let pages: Vec<Vpn> = back.iter().map(|&u| run.account.units[u].start).collect();
        let before = self.calls.now();
        let call = self.calls.move_to(m.pid, &pages, run.base_pages(&back), m.from);
        run.account.called(&back, self.calls.now().since(before));
        for (&unit, status) in back.iter().zip(call.pages) {
            if status == PageStatus::On(m.from) {
                run.account.base_pages_moved += u64::from(run.account.units[unit].pages);
                run.account.fates[unit] = Fate::Failed(MoveFailure::NodeFull);
            }
        }
    }
}

impl Run<'_> {
    /// Whether it goes down to free space.
    fn is_down(&self, unit: usize) -> bool {
        self.moves[self.account.units[unit].of as usize].reason == MoveReason::Cold
    }

    fn key(&self, unit: usize) -> (Pid, NodeId) {
        let m = &self.moves[self.account.units[unit].of as usize];
        (m.pid, m.to)
    }

    /// How many units from `at` on share process and target and hold at most `pages` base pages
    /// (at least one unit).
    fn take(&self, units: &[usize], at: usize, pages: u64) -> usize {
        let key = self.key(units[at]);
        let from = self.moves[self.account.units[units[at]].of as usize].from;
        let mut sum = 0;
        let mut count = 0;
        for &unit in &units[at..] {
            let m = &self.moves[self.account.units[unit].of as usize];
            sum += u64::from(self.account.units[unit].pages);
            if count > 0 && (sum > pages || self.key(unit) != key || m.from != from) {
                break;
            }
            count += 1;
        }
        count
    }

    fn base_pages(&self, units: &[usize]) -> u64 {
        units.iter().map(|u| u64::from(self.account.units[*u].pages)).sum()
    }

    fn moved_pages(&self, units: &[usize]) -> u64 {
        let moved = units.iter().filter(|u| self.account.fates[**u] == Fate::Moved);
        moved.map(|u| u64::from(self.account.units[*u].pages)).sum()
    }

    fn note(&mut self, pid: Pid, error: CallError) {
        match error {
            CallError::Gone => self.gone.insert(pid),
            CallError::NotPermitted => self.refused.insert(pid),
            CallError::Other => false,
        };
    }
}

impl<C: MoveCalls> Mover for MovePages<C> {
    fn apply(&mut self, moves: &[Move], exchange: bool, limits: &MoveLimits) -> MoveOutcome {
        let units = self.units(moves);
        let all: Vec<usize> = (0..units.len()).collect();
        let mut run = Run {
            moves,
            limits,
            account: Account::new(units),
            start: self.calls.now(),
            gone: BTreeSet::new(),
            refused: BTreeSet::new(),
        };
        let (down, up): (Vec<usize>, Vec<usize>) = all.iter().partition(|u| run.is_down(**u));
        if exchange && !down.is_empty() && !up.is_empty() {
            self.exchange(&mut run, &down, &up);
        } else {
            self.in_order(&mut run, &all);
        }
        run.account.close(moves)
    }
}

/// Error numbers of the kernel's per-page answers.
mod libc_errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const ESRCH: i32 = 3;
    pub(super) const EIO: i32 = 5;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EFAULT: i32 = 14;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const ENODEV: i32 = 19;
}

/// What an error number in the status array means.
const fn page_failure(errno: i32) -> MoveFailure {
    match errno {
        libc_errno::ENOENT | libc_errno::EFAULT => MoveFailure::NotPresent,
        libc_errno::ENOMEM => MoveFailure::NodeFull,
        libc_errno::EBUSY | libc_errno::EIO | libc_errno::EAGAIN => MoveFailure::Busy,
        libc_errno::EACCES => MoveFailure::Shared,
        libc_errno::EPERM | libc_errno::ENODEV => MoveFailure::NotAllowed,
        libc_errno::ESRCH => MoveFailure::Gone,
        _ => MoveFailure::Other,
    }
}

/// What an error number of the whole call means.
const fn call_failure(errno: i32) -> MoveFailure {
    match errno {
        // The target node is outside the task's cpuset, or the call is refused altogether.
        libc_errno::EACCES | libc_errno::EPERM | libc_errno::ENODEV => MoveFailure::NotAllowed,
        other => page_failure(other),
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
