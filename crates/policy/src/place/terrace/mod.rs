//! `terrace`: our default. Needs no tuning.
//!
//! 1. **Value.** A page's value is what it saves a second on the better tier: reads times what a
//!    read saves, writes times what a write saves, both from the machine file's latencies and
//!    bandwidths, by how much of what is touched is swept through and how busy the bus would be
//!    ([`super::worth`]).
//! 2. **Cut.** A histogram of values on either side of a boundary between tiers gives the hot
//!    threshold such that the hot set fits ([`hotness`]): the most valuable pages of the worse side
//!    take first what space there is, then the places of the least valuable pages of the better
//!    side: of many worth much the same, such that lie together. Nothing is demoted but to make
//!    that space, or space for newly faulted pages ([`headroom`]).
//! 3. **Only what pays.** Chance is taken out first: of many alike pages some seem hotter
//!    ([`shrink`]); where chance explains how the pages of a block differ, each is rated by their
//!    mean ([`blocks`]). A pair changes places only if its gain, counted on for as long as heat has
//!    been seen to stay and only as far as earlier predictions came true ([`trust`]), exceeds the
//!    cost of both moves, and by a margin. Even heat (`stream`) beside a full better tier and
//!    all-fast (`fits`) therefore move nothing.
//! 4. **No ping-pong.** A page that moved lately must beat the margin once more ([`recent`]).
//! 5. **Sample page by page** where heat cannot be distinguished but would be worth having
//!    ([`probe`]); slow down where all has settled; sample often again when heat shifts.
//!
//! With more than two tiers, the best boundary with something to gain is served first, one a step.

mod bit_blocks;
mod blocks;
mod bucket_walk;
mod gain;
mod headroom;
mod hotness;
mod migration_cursor;
mod newer;
mod params;
mod probe;
mod recent;
mod repayment;
mod shrink;
mod trust;
mod tuning;

pub use gain::MeasuredGain;
pub use params::Params;
pub use probe::{ProbeTarget, RegionProbe};
pub use recent::RecentMoves;
pub use trust::PredictionTrust;
pub use tuning::TerraceTuning;

use super::runs::free_pages;
use super::worth::{nearest, AccessKnowledge, AccessWorth};
use super::PartialPlan;
use hotness::{ExchangeThreshold, SwapTerms, UnitRater};
use migration_cursor::MigrationCursor;
use serde::{Deserialize, Serialize};
use terrace_types::{
    Decision, Move, Nanos, NodeId, PageStat, Pid, Plan, Request, Seed, Snapshot, Tick, Vpn,
};

/// What it remembers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct State {
    /// Which pages moved lately.
    pub recent: RecentMoves,
    /// Whether predictions came true.
    pub trust: PredictionTrust,
    /// Where to sample page by page.
    pub probe: RegionProbe,
    /// What moves gained.
    #[serde(skip)]
    pub gain: MeasuredGain,
    /// Steps in a row without a move.
    pub steady: u32,
    /// Accesses a second that the worse tier served lately; drifts down with them. Not what they
    /// cost: that depends on the whole program's traffic too.
    pub usual_traffic: f64,
    /// Base pages present at the last step.
    pub present: u64,
    /// Steps in a row that waited for the target to fill its memory.
    pub waits: u32,
    /// Steps in a row that sampled heat, since it shifted, pages moved for it or memory was filled.
    #[serde(default)]
    pub looks: u32,
    /// The exchange that is under way; only from a step to the last [`go_on`] after it.
    #[serde(skip)]
    cursor: Option<MigrationCursor>,
}

impl State {
    /// Whether the worse tiers' traffic has grown so much that heat must have shifted.
    fn shifted(&mut self, tuning: &TerraceTuning, traffic: f64) -> bool {
        let (factor, share) = (tuning.shift_traffic, tuning.traffic_share);
        let shifted = traffic > factor * self.usual_traffic && self.usual_traffic > 0.0;
        self.usual_traffic = if shifted || self.usual_traffic == 0.0 {
            traffic
        } else {
            (1.0 - share) * self.usual_traffic + share * traffic
        };
        shifted
    }

    /// Whether the target has more pages than at the last step: while it still fills its memory,
    /// what is hot now says little.
    fn grew(&mut self, tuning: &TerraceTuning, present: u64) -> bool {
        let before = std::mem::replace(&mut self.present, present);
        before > 0 && present > before + before / tuning.growth_part
    }

    pub(crate) fn memo(&self) -> Vec<(&'static str, String)> {
        let lifetime = self.trust.lifetime.map_or("unknown".to_owned(), |l| l.to_string());
        vec![
            ("trust", format!("{:.2}", self.trust.share)),
            ("lifetime", lifetime),
            ("settled_steps", self.steady.to_string()),
        ]
    }
}

/// Decides.
pub fn step(p: &Params, s: &mut State, snap: &Snapshot, now: Tick, seed: Seed) -> Plan {
    let (mut plan, tuning) = (Plan::default(), &p.tuning);
    s.cursor = None;
    if snap.tiers.len() < 2 {
        plan.decisions
            .push(plain("idle", "there is one tier only: nothing could be gained".to_owned()));
        plan.requests = vec![Request::Idle, Request::Wait(tuning.idle_wait)];
        return plan;
    }
    let pages = PagePass::from_snapshot(snap);
    plan.work.scanned_pages += snap.page_count();
    // Of a machine that stays so for good, of where pages are it does not.
    let nothing = if !tiers_differ(p, snap) {
        let why = "each tier serves some CPU as well as the best does: nothing could be gained";
        Some((why, tuning.idle_wait))
    } else if !pages.matter_below(p, snap) {
        Some((
            "all pages are on the best tier that they can be on: nothing could be gained",
            retry(p),
        ))
    } else {
        None
    };
    if let Some((what, wait)) = nothing {
        plan.decisions.push(plain("idle", what.to_owned()));
        plan.requests = vec![Request::Idle, Request::Wait(wait)];
        (s.steady, s.looks, s.present) = (0, 0, pages.present);
        return plan;
    }
    // What it grew by until it was waited for is no reason to wait again.
    let grew = s.grew(tuning, pages.present) && snap.sees.pages;
    if grew && s.waits == 0 {
        // More memory is another phase of the program: how long heat stayed in the last one says
        // nothing.
        (s.steady, s.trust) = (0, PredictionTrust::default());
    }
    let grew = grew && (snap.filling || s.waits == 0 && !snap.waited);
    s.waits = if grew { s.waits + 1 } else { 0 };
    if grew && s.waits <= tuning.max_waits {
        s.looks = 0;
        plan.decisions.push(plain("wait", "the target is still filling its memory".to_owned()));
        plan.requests = vec![Request::WarmUp, Request::Wait(retry(p))];
        return plan;
    }
    if snap.sees.pages && snap.interval == Nanos::ZERO {
        plan.decisions.push(plain("hold", "nothing was sampled yet".to_owned()));
        plan.requests = vec![Request::Wait(retry(p))];
        return plan;
    }
    s.recent.fit(snap.page_count());
    s.recent.age(p.damp, now);
    let worths = worths(p, snap, &pages.touches);
    if snap.sees.pages {
        plan.work.scanned_pages += if s.gain.expects_newer() { snap.page_count() } else { 0 };
        plan.measured_gain = s.gain.measure(snap, &worths, now);
    }
    s.looks = if snap.shifted { 1 } else { s.looks.saturating_add(1) };
    let looked = |times: u32| snap.sees.pages && s.looks >= times;
    let to_move = pages.enough(p, snap, tuning.moves_a_page) || looked(tuning.looks_to_move);
    let to_rest = looked(tuning.looks_to_rest);
    s.trust.review(p, snap, &worths[0].relative(), now);
    if snap.shifted {
        s.trust.shifted(tuning, now);
    }
    let (mut slow, mut limited) = (SlowSide::default(), false);
    for (rank, worth) in worths.iter().enumerate() {
        let seen = boundary(p, s, snap, rank, *worth, (now, to_move), &mut plan);
        slow.add(&seen, rank);
        limited = seen.limited;
        if limited || !plan.moves.is_empty() {
            break;
        }
    }
    let moved = !plan.moves.is_empty();
    let enough = moved || to_rest || pages.enough(p, snap, tuning.rests_a_page);
    let shifted = s.shifted(tuning, slow.value / worths[slow.rank].unit().max(1e-6));
    if moved {
        s.looks = 0;
    }
    if moved || limited || shifted || snap.shifted {
        s.steady = 0;
        s.probe.shifted();
    } else {
        s.steady = s.steady.saturating_add(1);
    }
    if !moved {
        let why = if limited {
            "what pays costs more than may be spent now".to_owned()
        } else {
            slow.why(snap.interval, enough)
        };
        plan.decisions.push(plain("hold", why));
    }
    let matters = slow.value >= tuning.little_ns_per_s;
    let flags = (moved || limited, enough && matters);
    // Where pages are sampled one by one anyway, there is nothing to sample closer.
    if !snap.sees.pages {
        let worth = &worths[slow.rank];
        let sample = s.probe.advance(p, snap, worth, flags, slow.rank, (now, seed));
        if let Some(what) = sample {
            plan.decisions.push(plain(what, probe_why(what, slow.value)));
        }
        plan.requests.extend(s.probe.requests(snap));
    }
    if limited {
        // The next sample tells what may be spent on.
        plan.requests.push(Request::Wait(retry(p)));
        return plan;
    }
    pace(p, s, snap, enough.then_some(matters), &mut plan);
    // Samples must repay what moves must, and can gain what the worse side costs at most.
    let lifetime = s.trust.lifetime_at(p, now).as_secs_f64();
    if plan.requests.contains(&Request::Relax)
        && slow.value * lifetime < p.repay * sample_cost_ns(p, snap)
    {
        plan.requests.push(Request::IgnoreCooling);
    }
    plan
}

/// Whether any access could cost less on one tier than on the next, however busy their buses.
/// Between sockets alike it could not: who accesses is not known, and one CPU's near memory is
/// another's far one.
fn tiers_differ(p: &Params, snap: &Snapshot) -> bool {
    let worth = |pair: &[terrace_types::TierState]| {
        p.worth_between(&pair[0].nodes, &pair[1].nodes, &AccessKnowledge::BUSY).unit()
    };
    snap.tiers.windows(2).any(|pair| worth(pair) > 0.0)
}

/// What one pass over all pages tells.
struct PagePass {
    /// Base pages present and movable.
    present: u64,
    /// Those of them on tiers below the best.
    below: u64,
    touches: AccessKnowledge,
    /// Accesses a second that were seen.
    seen: f64,
}

impl PagePass {
    fn from_snapshot(snap: &Snapshot) -> Self {
        let mut is_below = [false; 256];
        for node in snap.tiers.iter().skip(1).flat_map(|t| &t.nodes) {
            is_below[usize::from(node.0 as u8)] = true;
        }
        let (mut present, mut below) = (0u64, 0u64);
        let (mut reads, mut writes) = (0.0, 0.0);
        for area in &snap.areas {
            for (page, count) in PageStat::runs(&area.pages).filter(|(page, _)| page.movable()) {
                present += count;
                below += if is_below[usize::from(page.node)] { count } else { 0 };
                reads += f64::from(page.reads.per_second()) * count as f64;
                writes += f64::from(page.writes.per_second()) * count as f64;
            }
        }
        let seen = reads + writes;
        // Samples of regions tell a lower bound, as if nobody waited for a bus.
        let reads = if snap.sees.pages { reads } else { f64::INFINITY };
        Self {
            present,
            below,
            touches: AccessKnowledge::new(reads, writes, snap.swept, super::runs::page_size(snap)),
            seen,
        }
    }

    /// Whether enough was seen to move anything, or to let it be; chance is computed with apart.
    fn enough(&self, p: &Params, snap: &Snapshot, a_page: f64) -> bool {
        let seen = self.seen * snap.interval.as_secs_f64();
        let least = match snap.sees.sampled {
            true => p.tuning.least_samples,
            false => a_page * self.present as f64,
        };
        snap.interval >= p.least_evidence || (snap.sees.sampled || snap.sees.pages) && seen >= least
    }

    /// Whether the tiers below the best hold enough to be worth a sample: more than the largest
    /// cache, where what is accessed often enough to matter would stay, or more than a small part.
    fn matter_below(&self, p: &Params, snap: &Snapshot) -> bool {
        let cache = p.machine.caches.iter().map(|c| c.size.get()).max().unwrap_or(0);
        self.below * p.tuning.below_part > self.present
            || self.below * super::runs::page_size(snap).get() > cache
    }
}

/// What the worse side of the busiest boundary serves.
#[derive(Debug, Default)]
struct SlowSide {
    value: f64,
    rank: usize,
    known: u64,
    apart: Option<(f64, f64)>,
}

/// What one boundary showed.
struct TierBoundary {
    /// More would pay than may be spent now.
    limited: bool,
    slow_value: f64,
    known: u64,
    /// Its hottest page on the worse side and its coldest on the better, by expected value.
    apart: Option<(f64, f64)>,
}

impl SlowSide {
    fn add(&mut self, seen: &TierBoundary, rank: usize) {
        if seen.slow_value > self.value {
            (self.value, self.rank, self.apart) = (seen.slow_value, rank, seen.apart);
        }
        self.known = self.known.max(seen.known);
    }

    fn why(&self, evidence: Nanos, enough: bool) -> String {
        if self.known == 0 || !enough {
            return format!("{} pages known after {evidence} sampled; too early", self.known);
        }
        format!(
            "no pair of pages pays: the worse tier's traffic costs {:.1} ms a second, spread \
                evenly or too dear to move{}",
            self.value / 1e6,
            self.apart.map_or(String::new(), |(hot, cold)| format!(
                " (its hottest page is worth {hot:.0} ns a second, the better tier's coldest \
                    {cold:.0}; {evidence} sampled)"
            ))
        )
    }
}

fn boundary(
    p: &Params,
    s: &mut State,
    snap: &Snapshot,
    rank: usize,
    worth: AccessWorth,
    (now, enough): (Tick, bool),
    plan: &mut Plan,
) -> TierBoundary {
    let tuning = &p.tuning;
    // Of regions chance alone makes some seem worth moving, the more so the longer that is counted
    // on.
    let (lifetime, longest) = match snap.sees.pages {
        true => (s.trust.lifetime_at(p, now), tuning.longest_lifetime),
        false => {
            let known = s.trust.lifetime.unwrap_or(p.first_lifetime);
            (known, tuning.longest_horizon_by_region)
        }
    };
    let counted = lifetime.as_secs_f64().clamp(tuning.shortest_horizon, longest.as_secs_f64());
    let horizon = counted * s.trust.counted_on(tuning, now);
    let (rater, hotness) = UnitRater::new(p, &s.recent, worth, snap, rank, now);
    plan.work.rated_pages += snap.page_count();
    if rater.is_damped() {
        plan.work.scanned_pages += snap.page_count();
    }
    let mut seen = TierBoundary {
        limited: false,
        slow_value: hotness.slow_value,
        known: hotness.known,
        apart: hotness.extremes(),
    };
    // Pages of a probe are known less well than the rest until it is over.
    let probing = matches!(s.probe.sample, ProbeTarget::Probe { .. });
    if !enough || probing {
        return seen;
    }
    let size = |rank: usize| snap.tiers[rank].capacity.pages(super::runs::page_size(snap));
    let reserve = (size(rank) as f64 * p.reserve) as u64;
    let free = free_pages(snap, rank);
    let space = free.saturating_sub(reserve);
    let headroom = if rank == 0 { snap.headroom.pages(super::runs::page_size(snap)) } else { 0 };
    let mut terms = SwapTerms {
        space,
        headroom: headroom.min(space),
        next_growth: snap.next_growth.as_secs_f64(),
        horizon,
        page_cost: p.page_cost_ns(snap.move_cost),
        lifetime: lifetime.as_secs_f64(),
        most: snap.page_count(),
        spendable: f64::INFINITY,
        pairs: true,
        by_page: snap.sees.pages,
        repay: p.repay * if snap.sees.pages { 1.0 } else { tuning.unmeasured },
    };
    let share = match snap.sees.pages {
        true => tuning.least_share_by_page,
        false => tuning.least_share_by_region,
    };
    let least = (tuning.least_profit / horizon).max(share * hotness.slow_value);
    // What fills space pays for no pair, nor the other way round. Regions do not tell which pages
    // would.
    let filling = match snap.sees.pages {
        true => hotness.cut(&rater, &SwapTerms { pairs: false, ..terms }),
        false => ExchangeThreshold::default(),
    };
    let mut cut = hotness.cut(&rater, &terms);
    if cut.gain - filling.gain - (cut.cost - filling.cost) / horizon < least {
        (terms.pairs, cut) = (false, filling);
        let profit = cut.gain * terms.lifetime - cut.cost;
        if cut.promote == 0 || profit < tuning.least_profit {
            return seen;
        }
    }
    let whole_cost = cut.cost;
    if let Some(left) = snap.spendable.map(|left| left.get() as f64).filter(|l| *l < cut.cost) {
        // The hottest first: what they gain pays for the others.
        let whole = cut.promote;
        cut = hotness.cut(&rater, &SwapTerms { spendable: left, ..terms });
        plan.unaffordable = Nanos(whole_cost as u64);
        seen.limited = true;
        if cut.promote < whole.min(tuning.fewest_promoted) {
            return seen;
        }
    }
    let below = free_pages(snap, rank + 1);
    // What the reserve lacks is made up for first: the kernel keeps some of what comes free for
    // each CPU, where promotions do not find it.
    let room = (below, reserve.saturating_sub(free));
    let cursor = MigrationCursor::new(tuning, rater, snap, &cut, rank, room);
    let (promoted, demoted) = (cursor.promotes(), cursor.demotes());
    let saving = cut.gain / cut.promote as f64;
    s.gain.predict_saving(saving);
    // In accesses: what one is worth changes with the program's traffic, and says nothing of how
    // long heat stays.
    let value = saving / worth.unit().max(f64::MIN_POSITIVE);
    // Who fills space chose none as hotter than another.
    s.trust.begin(tuning, if terms.pairs { promoted } else { 0 }, value, now);
    s.cursor = Some(cursor);
    let part = go_on(p, s, snap, now);
    plan.moves = part.moves;
    plan.work += part.work;
    if plan.moves.is_empty() {
        return seen;
    }
    plan.unaffordable = Nanos((whole_cost - cut.cost) as u64);
    plan.decisions.push(Decision {
        name: if demoted > 0 { "exchange" } else { "promote" }.to_owned(),
        why: format!(
            "{promoted} pages up, {demoted} down: saves {:.1} ms a second for {:.1} ms once, \
                counted on for {:.1} s; hot from {:.0} ns a second a page, {} sampled",
            cut.gain / 1e6,
            cut.cost / 1e6,
            horizon,
            cut.hot_from(),
            snap.interval,
        ),
        gain_ns_per_s: cut.gain as u64,
        cost_ns: cut.cost as u64,
    });
    seen
}

/// The next moves of the exchange that the last step decided on, from the same sample: the engine
/// asks for them once those before are made and the snapshot shows it. Empty when there are none.
pub fn go_on(p: &Params, s: &mut State, snap: &Snapshot, now: Tick) -> PartialPlan {
    let Some(mut cursor) = s.cursor.take() else {
        return PartialPlan::default();
    };
    let part = cursor.part(p, &s.recent, snap);
    for m in &part.moves {
        for vpn in m.start.0..m.range().end.0 {
            s.recent.note(m.pid, Vpn(vpn), now);
        }
        if snap.rank_of(m.to) < snap.rank_of(m.from) {
            s.trust.promoted(&p.tuning, m);
        }
    }
    s.cursor = (!part.moves.is_empty()).then_some(cursor);
    part
}

/// Pages of the best tier to demote, in this order, while the target grows. Drops what is left of
/// an exchange, because its pages were chosen from an earlier snapshot.
pub fn headroom(p: &Params, s: &mut State, snap: &Snapshot) -> PartialPlan {
    s.cursor = None;
    if snap.tiers.len() < 2 || !snap.sees.pages {
        return PartialPlan::default();
    }
    let pages = PagePass::from_snapshot(snap);
    let worth = worths(p, snap, &pages.touches)[0];
    let mut plan = headroom::headroom(p, snap, &worth);
    if !plan.moves.is_empty() {
        plan.work.scanned_pages += s.gain.expect_newer(snap);
    }
    plan
}

/// Plans the moves that undo demotions for growth. Drops the rest of an unfinished exchange,
/// because its pages were chosen from an earlier snapshot.
pub fn undo_headroom(
    p: &Params,
    s: &mut State,
    snap: &Snapshot,
    demoted: &[Move],
    is_newer: &dyn Fn(Pid, Vpn) -> bool,
    now: Tick,
) -> PartialPlan {
    s.cursor = None;
    let plan = headroom::undo(p, snap, demoted, is_newer);
    for m in &plan.moves {
        (m.start.0..m.range().end.0).for_each(|vpn| s.recent.note(m.pid, Vpn(vpn), now));
    }
    plan
}

/// The node of a tier nearest to each node a page may be on.
struct NearestNodes<'a> {
    params: &'a Params,
    tier: &'a [NodeId],
}

impl<'a> NearestNodes<'a> {
    fn new(params: &'a Params, tier: &'a [NodeId]) -> Self {
        Self { params, tier }
    }

    fn of(&self, from: NodeId) -> Option<NodeId> {
        match self.tier {
            [only] => Some(*only),
            tier => nearest(&self.params.machine, from, tier),
        }
    }
}

fn worths(p: &Params, snap: &Snapshot, touches: &AccessKnowledge) -> Vec<AccessWorth> {
    let pair = |pair: &[terrace_types::TierState]| {
        let worth = p.worth_between(&pair[0].nodes, &pair[1].nodes, touches);
        if p.write_blind {
            worth.write_blind()
        } else {
            worth
        }
    };
    snap.tiers.windows(2).map(pair).collect()
}

/// How soon to come back: at once while things move or are sampled closely, then less and less
/// often, but some times in the time that heat was seen to stay (fewer where the engine quick
/// scans, or where nothing was ever moved). Groups that lie close need evidence to
/// part, so the first intervals without a move are still short ones where pages are known by
/// samples. `matters`: whether what the worse side serves is worth sampling; none while too little
/// is known.
fn pace(p: &Params, s: &State, snap: &Snapshot, matters: Option<bool>, plan: &mut Plan) {
    let (enough, tuning) = (matters.is_some(), &p.tuning);
    let patience = match snap.sees.pages {
        true => tuning.steady_after_by_page,
        false => tuning.steady_after,
    };
    let lifetime = s.trust.lifetime.unwrap_or(p.first_lifetime);
    // Where every page is seen, the engine's quick scans notice shifts in between; where nothing
    // was ever worth moving either, full samples have little to refine.
    let part = match (snap.sees.pages, s.recent.ever()) {
        (true, false) => tuning.rests_unmoved,
        (true, true) => tuning.rests_by_page,
        (false, _) => tuning.rests_by_region,
    };
    let longest = Nanos(lifetime.get() / part).max(p.interval).min(p.longest_interval);
    if !enough && snap.sees.pages {
        plan.requests.push(Request::Wait(retry(p)));
        return;
    }
    if !enough || s.probe.busy() || s.steady < patience {
        let moved = !plan.moves.is_empty();
        let part = if snap.sees.pages && !moved { tuning.unsettled_part } else { 1 };
        let interval = Nanos(p.interval.get() / part);
        plan.requests.push(Request::Wait(interval));
        return;
    }
    let doubled = Nanos(p.interval.get() << (s.steady - patience + 1).min(10));
    let wait = if matters == Some(true) { doubled.min(longest) } else { longest };
    plan.requests.push(Request::Relax);
    plan.requests.push(Request::Wait(wait));
}

/// What a sample of all pages costs, with the decision after it.
fn sample_cost_ns(p: &Params, snap: &Snapshot) -> f64 {
    let part = p.tuning.sample_cost_divisor as f64;
    2.0 * p.page_cost_ns(snap.move_cost) * snap.page_count() as f64 / part
}

/// How soon to try again.
fn retry(p: &Params) -> Nanos {
    Nanos(p.interval.get() / p.tuning.retry_part)
}

fn plain(name: &str, why: String) -> Decision {
    Decision { name: name.to_owned(), why, gain_ns_per_s: 0, cost_ns: 0 }
}

fn probe_why(what: &str, slow_value: f64) -> String {
    let ms = slow_value / 1e6;
    match what {
        "probe" => format!(
            "the worse tier's traffic costs {ms:.1} ms a second and seems even: a \
            few ranges are sampled page by page"
        ),
        "sample by page" => "pages that lie together differ: all are sampled page by \
            page"
            .to_owned(),
        _ => "pages that lie together are alike: heat is even".to_owned(),
    }
}

#[cfg(test)]
mod tests;
