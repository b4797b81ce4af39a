//! `hyplacer`: the control rule and page selection of HyPlacer (section 4 of its paper).
//!
//! Each step, [`control`] samples two figures. Is the slow tier written to faster than a
//! threshold? Is the fast tier over its limit?
//!
//! | slow tier's writes | fast tier below its limit | at or over it |
//! |---|---|---|
//! | over the threshold | `PROMOTE_INT`: intensive pages, up to the limit | `SWITCH`: equal numbers both ways |
//! | below | `PROMOTE`: any pages, cold ones too | `DEMOTE`: what is over the limit |
//!
//! Before anything is promoted, `CLEAR` zeroes the bits of all pages on the slow tier and one delay
//! passes; pages referenced since are read-intensive, pages written since write-intensive, all
//! others cold. Promotion changes no bits. `DEMOTE` is CLOCK over the fast tier: it clears the bits
//! of pages it passes over. A hand (process, address) for each tier remembers where the last
//! selection stopped, across all bound processes. One instance a socket.
//!
//! Write-intensive pages come before read-intensive, those before cold. Where `SWITCH` finds no
//! cold page to give up for a write-intensive one it gives up a read-intensive one: the paper
//! "keeps as many write-intensive pages as possible in DRAM", though its table II speaks of cold
//! pages only.
//!
//! # Where a stock kernel gives no bits
//! Each adaptation has a name, and decisions say which applied:
//! * `rate-bits`: a page counts as referenced (dirty) when its estimated rate makes an access (a
//!   write) within one delay more likely than not, `rate x delay >= ln 2`; unknown pages are
//!   neither intensive nor victims.
//! * `sample-bits`: where accesses are sampled, the time sampled is a small part of the delay. A
//!   page counts as referenced (dirty) when its rate makes an access (a write) within that time
//!   more likely than not, so that pages without a sample are cold.
//! * `no-clear`: nothing can be cleared, so CLOCK forgets by the heat map's decay instead; `CLEAR`
//!   is still passed on to trackers that can restart (soft-dirty).
//! * `estimated-writes`: the slow tier's write throughput is page heat times 64 bytes.
//! * `no-throughput`: nothing tells it; it is taken as below the threshold.
//! * `wait-writes`: while the first interval over writes is under way nothing is decided: the slow
//!   tier's writes would be taken for none. Samples tell of writes from the first interval on.

mod params;
mod select;

pub use params::{Params, SocketNodes};
pub use select::{class, PageClass};

use crate::place::runs::{free_pages, interleave, page_size, MoveRuns};
use select::{demote, promote};
use serde::{Deserialize, Serialize};
use terrace_types::{
    BitSource, BytesPerSec, Decision, Nanos, NodeId, Pid, Plan, PolicyWork, Request, Seed,
    Snapshot, ThroughputSource, Tick, TrackerVisibility, Vpn,
};

/// What control asks selection for (the paper's table II).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SelectMode {
    /// Cold pages out of the fast tier.
    Demote,
    /// Any pages into the fast tier.
    Promote,
    /// Intensive pages into the fast tier.
    PromoteInt,
    /// Intensive against cold, equal numbers.
    Switch,
}

impl SelectMode {
    /// As the paper writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Demote => "DEMOTE",
            Self::Promote => "PROMOTE",
            Self::PromoteInt => "PROMOTE_INT",
            Self::Switch => "SWITCH",
        }
    }
}

/// Where the next selection starts.
pub type ClockHand = Option<(Pid, Vpn)>;

/// One socket's state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SocketState {
    /// Hand over the fast tier.
    pub fast_hand: ClockHand,
    /// Hand over the slow tier.
    pub slow_hand: ClockHand,
    /// Decided, and waiting for the delay after CLEAR.
    pub pending: Option<SelectMode>,
}

/// State of all instances.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// One a socket.
    pub instances: Vec<SocketState>,
}

impl State {
    pub(crate) fn memo(&self) -> Vec<(&'static str, String)> {
        let hand = |h: &ClockHand| h.map_or("start".into(), |(p, v)| format!("{p}:{:x}", v.0));
        let all = |f: fn(&SocketState) -> &ClockHand| {
            self.instances.iter().map(|i| hand(f(i))).collect::<Vec<_>>().join(" ")
        };
        vec![("fast_hand", all(|i| &i.fast_hand)), ("slow_hand", all(|i| &i.slow_hand))]
    }
}

/// What one instance sees of its socket's two tiers. Pages, where not said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SocketView {
    pub fast: Vec<NodeId>,
    pub slow: Vec<NodeId>,
    pub capacity: u64,
    pub used: u64,
    pub slow_free: u64,
    pub limit: u64,
    pub writes: Option<BytesPerSec>,
    pub source: ThroughputSource,
}

impl SocketView {
    fn free_space(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Decides for every socket.
pub fn step(p: &Params, s: &mut State, snap: &Snapshot, _now: Tick, _seed: Seed) -> Plan {
    // Bits that the hardware keeps, and counters, tell from the first moment on.
    let counted = snap.tiers.iter().any(|t| t.throughput_source == ThroughputSource::Hardware);
    let reported = snap.interval > Nanos::ZERO
        && (p.write_blind || snap.tiers.iter().skip(1).all(|t| t.write_throughput.is_some()));
    if snap.sees.pages
        && snap.sees.writes
        && snap.sees.bits != BitSource::Exact
        && !snap.sees.sampled
        && !counted
        && !reported
    {
        let mut plan = hold("writes are not reported yet [wait-writes]".to_owned());
        plan.requests.push(Request::Wait(p.delay));
        return plan;
    }
    let views = views(p, snap);
    s.instances.resize_with(views.len(), SocketState::default);
    let mut plan = Plan { exchange: true, ..Plan::default() };
    let mut moving = false;
    for (view, instance) in views.iter().zip(&mut s.instances) {
        let part = one(p, instance, view, snap);
        if !part.moves.is_empty() {
            moving = true;
            plan.exchange &= part.exchange;
        }
        plan.moves.extend(part.moves);
        plan.requests.extend(part.requests);
        plan.decisions.extend(part.decisions);
        plan.work += part.work;
    }
    plan.exchange &= moving;
    if views.is_empty() {
        let why = "no socket has memory of two tiers; nothing to do".to_owned();
        plan.decisions.push(decision("hold", why));
    }
    plan.requests.push(Request::Wait(p.delay));
    plan
}

/// The control rule.
fn control(p: &Params, view: &SocketView) -> SelectMode {
    let threshold = p.slow_write_threshold;
    let written = view.writes.is_some_and(|w| w > threshold);
    match (written, view.used >= view.limit) {
        (true, true) => SelectMode::Switch,
        (true, false) => SelectMode::PromoteInt,
        (false, false) => SelectMode::Promote,
        (false, true) => SelectMode::Demote,
    }
}

fn one(p: &Params, s: &mut SocketState, view: &SocketView, snap: &Snapshot) -> Plan {
    let pending = s.pending.take();
    let mode = pending.unwrap_or_else(|| control(p, view));
    let why = reason(p, view, &snap.sees);
    if mode == SelectMode::Demote {
        return act_demote(p, s, view, snap, &why);
    }
    if select::none_on(snap, &view.slow) {
        return hold(format!("{why}; nothing of ours is on the slow tier"));
    }
    if mode == SelectMode::Promote && view.free_space() == 0 {
        return hold(format!("{why}; no free space up to the limit"));
    }
    if pending.is_none() {
        s.pending = Some(mode);
        let why =
            format!("{why}; slow tier's bits are cleared, {} follows in {}", mode.name(), p.delay);
        return Plan {
            requests: vec![Request::Clear { nodes: view.slow.clone() }],
            decisions: vec![decision("CLEAR", why)],
            ..Plan::default()
        };
    }
    if mode == SelectMode::Switch {
        act_switch(p, s, view, snap, &why)
    } else {
        act_promote(p, s, view, snap, mode, &why)
    }
}

fn act_demote(
    p: &Params,
    s: &mut SocketState,
    view: &SocketView,
    snap: &Snapshot,
    why: &str,
) -> Plan {
    let number = view.used.saturating_sub(view.limit).min(p.round_pages).min(view.slow_free);
    if number == 0 {
        return hold(format!("{why}; nothing is over the limit"));
    }
    let mut chosen = demote(p, view, snap, &mut s.fast_hand, number);
    chosen.passed.extend(chosen.reads.split_off(0));
    let why = format!("{why}; {} of {number} pages found cold", chosen.cold.pages);
    Plan {
        moves: chosen.cold.moves,
        requests: clears(snap, chosen.passed),
        decisions: vec![decision(SelectMode::Demote.name(), why)],
        exchange: false,
        work: scanned(chosen.scanned),
        ..Plan::default()
    }
}

fn act_promote(
    p: &Params,
    s: &mut SocketState,
    view: &SocketView,
    snap: &Snapshot,
    mode: SelectMode,
    why: &str,
) -> Plan {
    let number = view.free_space().min(p.round_pages);
    let found = promote(p, view, snap, &mut s.slow_hand, number, mode == SelectMode::Promote);
    let (w, r, c) = (found.writes.pages, found.reads.pages, found.cold.pages);
    let scanned_pages = found.scanned;
    let mut moves = MoveRuns::default();
    for part in [found.writes, found.reads, found.cold] {
        moves.append(part);
    }
    moves.truncate(number);
    let why = format!(
        "{why}; space for {number} pages, found {w} write-intensive, {r} read-intensive, {c} cold"
    );
    Plan {
        moves: moves.moves,
        decisions: vec![decision(mode.name(), why)],
        work: scanned(scanned_pages),
        ..Plan::default()
    }
}

/// Equal numbers both ways: write-intensive pages against cold, then read-intensive ones; then
/// read-intensive pages against cold ones.
fn act_switch(
    p: &Params,
    s: &mut SocketState,
    view: &SocketView,
    snap: &Snapshot,
    why: &str,
) -> Plan {
    let number = p.round_pages;
    let mut found = promote(p, view, snap, &mut s.slow_hand, number, false);
    let wanted = (found.writes.pages + found.reads.pages).min(number);
    let victims = demote(p, view, snap, &mut s.fast_hand, wanted);
    let (w, r) = (found.writes.pages, found.reads.pages);
    let scanned_pages = found.scanned + victims.scanned;
    let (c, read_victims) = (victims.cold.pages, victims.reads.pages);
    let for_writes = w.min(c + read_victims).min(number);
    let cold_for_writes = c.min(for_writes);
    let for_reads = r.min(c - cold_for_writes).min(number - for_writes);
    found.writes.truncate(for_writes);
    found.reads.truncate(for_reads);
    let mut into = found.writes;
    into.append(found.reads);
    let mut passed = victims.passed;
    let mut out = victims.cold;
    out.truncate(cold_for_writes + for_reads);
    let mut read_victims = victims.reads;
    passed.extend(read_victims.split_off(for_writes - cold_for_writes));
    out.append(read_victims);
    let why = format!(
        "{why}; found {w} write-intensive and {r} read-intensive pages against {c} cold ones, {} \
            each way",
        into.pages
    );
    let chunk = 512;
    let free_space = free_pages(snap, 0).min(chunk);
    Plan {
        exchange: true,
        moves: interleave(out.moves, into.moves, free_space, chunk),
        requests: clears(snap, passed),
        decisions: vec![decision(SelectMode::Switch.name(), why)],
        work: scanned(scanned_pages),
        ..Plan::default()
    }
}

fn scanned(pages: u64) -> PolicyWork {
    PolicyWork { scanned_pages: pages, ..PolicyWork::default() }
}

fn clears(snap: &Snapshot, passed: Vec<(Pid, terrace_types::VpnRange)>) -> Vec<Request> {
    if snap.sees.bits != BitSource::Exact {
        return Vec::new();
    }
    passed.into_iter().map(|(pid, range)| Request::ClearPages { pid, range }).collect()
}

fn reason(p: &Params, view: &SocketView, sees: &TrackerVisibility) -> String {
    let rate = match (view.writes, view.source) {
        (Some(rate), ThroughputSource::Hardware) => format!("{rate} (hardware)"),
        (Some(rate), _) => format!("{rate} (estimated-writes)"),
        (None, _) => "unknown, taken as below (no-throughput)".to_owned(),
    };
    let what = if p.write_blind { "accesses" } else { "writes" };
    let adapted = match (sees.bits, sees.sampled) {
        (BitSource::Exact, _) => "",
        (_, true) => " [sample-bits, no-clear]",
        (_, false) => " [rate-bits, no-clear]",
    };
    format!(
        "slow tier's {what} {rate} against {}, fast tier {} of limit {} pages{adapted}",
        p.slow_write_threshold, view.used, view.limit
    )
}

fn decision(name: &str, why: String) -> Decision {
    Decision { name: name.to_owned(), why, gain_ns_per_s: 0, cost_ns: 0 }
}

fn hold(why: String) -> Plan {
    Plan { decisions: vec![decision("hold", why)], ..Plan::default() }
}

/// One view a socket. Free memory is known by tier only: with several sockets each has its share
/// by capacity, and its write throughput is estimated from heat.
fn views(p: &Params, snap: &Snapshot) -> Vec<SocketView> {
    let (Some(fast), Some(slow)) = (snap.tiers.first(), snap.tiers.get(1)) else {
        return Vec::new();
    };
    let mut views = Vec::new();
    for socket in &p.sockets {
        let of = |tier: &terrace_types::TierState| -> Vec<NodeId> {
            tier.nodes.iter().copied().filter(|n| socket.has(*n)).collect()
        };
        let (mine_fast, mine_slow) = (of(fast), of(slow));
        if mine_fast.is_empty() || mine_slow.is_empty() {
            continue;
        }
        let alone = mine_fast.len() == fast.nodes.len() && mine_slow.len() == slow.nodes.len();
        let share = |tier: &terrace_types::TierState, mine: &[NodeId]| {
            let all: u64 = tier.nodes.iter().map(|n| p.capacity_of(*n)).sum();
            let own: u64 = mine.iter().map(|n| p.capacity_of(*n)).sum();
            if alone || all == 0 {
                1.0
            } else {
                own as f64 / all as f64
            }
        };
        let part = |bytes: terrace_types::Bytes, share: f64| {
            (bytes.pages(page_size(snap)) as f64 * share) as u64
        };
        let (fast_share, slow_share) = (share(fast, &mine_fast), share(slow, &mine_slow));
        let capacity = part(fast.capacity, fast_share);
        let (writes, source) = select::throughput(p, snap, slow, &mine_slow, alone);
        views.push(SocketView {
            capacity,
            used: capacity.saturating_sub(part(fast.unused, fast_share)),
            slow_free: part(slow.free, slow_share),
            limit: (capacity as f64 * p.fast_limit) as u64,
            fast: mine_fast,
            slow: mine_slow,
            writes,
            source,
        });
    }
    views
}
