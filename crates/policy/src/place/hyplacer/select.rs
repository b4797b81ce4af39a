//! HyPlacer's page selection (its SelMo): walks a tier from its hand and sorts pages by their bits.

use super::{ClockHand, Params, SocketView};
use crate::place::runs::{units, MoveRuns, MoveUnit};
use std::ops::ControlFlow;
use terrace_types::{
    Area, BitSource, BytesPerSec, MoveReason, NodeId, PageFlags, PageStat, Pid, Snapshot,
    ThroughputSource, TierState, TrackerVisibility, Vpn, VpnRange,
};

/// What a page's bits say, or the rates that stand for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageClass {
    /// Written within one delay.
    Write,
    /// Referenced within one delay and not written.
    Read,
    /// Neither.
    Cold,
    /// Not sampled enough to say.
    Unknown,
}

/// How a page counts, with what the trackers see.
#[must_use]
pub fn class(p: &Params, sees: &TrackerVisibility, page: &PageStat) -> PageClass {
    class_from(p.touched_per_s(), p, sees, page)
}

/// The rate from which a page counts as touched (`rate-bits`, `sample-bits`).
fn touched_from(p: &Params, snap: &Snapshot) -> f64 {
    let reported = snap.interval.as_secs_f64();
    if snap.sees.sampled && reported > 0.0 {
        p.touched_per_s().max(std::f64::consts::LN_2 / reported)
    } else {
        p.touched_per_s()
    }
}

/// [`class`], of a page that is touched at `least` accesses a second.
fn class_from(least: f64, p: &Params, sees: &TrackerVisibility, page: &PageStat) -> PageClass {
    let flags = page.flags;
    let (touched, written) = if sees.bits == BitSource::Exact {
        let written = flags.has(PageFlags::DIRTY);
        (written || flags.has(PageFlags::REFERENCED), written)
    } else if !flags.has(PageFlags::KNOWN) {
        return PageClass::Unknown;
    } else {
        (page.rate() as f64 >= least, page.writes.rate() as f64 >= least)
    };
    match (touched, written && !p.write_blind) {
        (_, true) => PageClass::Write,
        (true, false) => PageClass::Read,
        (false, false) => PageClass::Cold,
    }
}

/// Pages found for promotion.
#[derive(Debug, Default)]
pub(super) struct PromotionCandidates {
    pub writes: MoveRuns,
    pub reads: MoveRuns,
    pub cold: MoveRuns,
    /// Pages sampled.
    pub scanned: u64,
}

/// Pages found for demotion, and what CLOCK passed over.
#[derive(Debug, Default)]
pub(super) struct DemotionCandidates {
    pub cold: MoveRuns,
    pub reads: MoveRuns,
    pub passed: Vec<(Pid, VpnRange)>,
    /// Pages sampled.
    pub scanned: u64,
}

/// Up to `number` pages of the slow tier, by class. The walk ends when write-intensive pages alone
/// are enough, or after one lap. Unknown pages count as cold. Changes no bits.
pub(super) fn promote(
    p: &Params,
    view: &SocketView,
    snap: &Snapshot,
    hand: &mut ClockHand,
    number: u64,
    cold_too: bool,
) -> PromotionCandidates {
    let mut found = PromotionCandidates::default();
    let Some(to) = view.fast.first().copied() else {
        return found;
    };
    let least = touched_from(p, snap);
    let (next, scanned) = lap(snap, &view.slow, *hand, |area, unit| {
        let (runs, why) = match class_from(least, p, &snap.sees, &unit.stat) {
            PageClass::Write => (&mut found.writes, MoveReason::WriteIntensive),
            PageClass::Read => (&mut found.reads, MoveReason::ReadIntensive),
            PageClass::Cold | PageClass::Unknown if cold_too => {
                (&mut found.cold, MoveReason::FillFreeMemory)
            }
            PageClass::Cold | PageClass::Unknown => return ControlFlow::Continue(()),
        };
        if runs.pages + u64::from(unit.pages) <= number {
            runs.push(area.pid, area.start, unit, to, why);
        }
        if found.writes.pages >= number {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    (*hand, found.scanned) = (next, scanned);
    found
}

/// Up to `number` cold pages of the fast tier by CLOCK; read-intensive ones apart, for SWITCH.
pub(super) fn demote(
    p: &Params,
    view: &SocketView,
    snap: &Snapshot,
    hand: &mut ClockHand,
    number: u64,
) -> DemotionCandidates {
    let mut victims = DemotionCandidates::default();
    let Some(to) = view.slow.first().copied() else {
        return victims;
    };
    if number == 0 {
        return victims;
    }
    let least = touched_from(p, snap);
    let (next, scanned) = lap(snap, &view.fast, *hand, |area, unit| {
        let (runs, why) = match class_from(least, p, &snap.sees, &unit.stat) {
            PageClass::Cold => (&mut victims.cold, MoveReason::Cold),
            PageClass::Read => (&mut victims.reads, MoveReason::Cold),
            PageClass::Write | PageClass::Unknown => {
                pass_over(&mut victims.passed, area, unit);
                return ControlFlow::Continue(());
            }
        };
        if runs.pages + u64::from(unit.pages) <= number {
            runs.push(area.pid, area.start, unit, to, why);
        } else {
            pass_over(&mut victims.passed, area, unit);
        }
        if victims.cold.pages >= number {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    (*hand, victims.scanned) = (next, scanned);
    victims
}

fn pass_over(passed: &mut Vec<(Pid, VpnRange)>, area: &Area, unit: &MoveUnit) {
    let start = Vpn(area.start.0 + unit.index as u64);
    let end = Vpn(start.0 + u64::from(unit.pages));
    match passed.last_mut() {
        Some((pid, range)) if *pid == area.pid && range.end == start => range.end = end,
        _ => passed.push((area.pid, VpnRange::new(start, end))),
    }
}

/// One lap over the movable units on `nodes`, from `hand`, across all processes, until `visit`
/// breaks. Gives the hand for the next lap, just after the last unit visited, and how many units
/// were sampled, those on other nodes included.
fn lap(
    snap: &Snapshot,
    nodes: &[NodeId],
    hand: ClockHand,
    mut visit: impl FnMut(&Area, &MoveUnit) -> ControlFlow<()>,
) -> (ClockHand, u64) {
    let start = hand.unwrap_or((Pid(i32::MIN), Vpn(0)));
    let (mut next, mut scanned) = (hand, 0);
    for second in [false, true] {
        for area in &snap.areas {
            let end = (area.pid, area.range().end);
            if !second && end <= start || second && (area.pid, area.start) >= start {
                continue;
            }
            for unit in units(area) {
                let at = (area.pid, Vpn(area.start.0 + unit.index as u64));
                scanned += 1;
                if (at >= start) == second
                    || !unit.stat.movable()
                    || !nodes.contains(&unit.stat.node())
                {
                    continue;
                }
                next = Some((area.pid, Vpn(at.1 .0 + u64::from(unit.pages))));
                if visit(area, &unit).is_break() {
                    return (next, scanned);
                }
            }
        }
    }
    (next, scanned)
}

/// Whether no page of ours that can move is on `nodes`.
pub(super) fn none_on(snap: &Snapshot, nodes: &[NodeId]) -> bool {
    !snap.areas.iter().flat_map(|a| &a.pages).any(|p| p.movable() && nodes.contains(&p.node()))
}

/// The figure that the control rule compares with its threshold.
pub(super) fn throughput(
    p: &Params,
    snap: &Snapshot,
    tier: &TierState,
    mine: &[NodeId],
    alone: bool,
) -> (Option<BytesPerSec>, ThroughputSource) {
    if alone && !p.write_blind && tier.write_throughput.is_some() {
        return (tier.write_throughput, tier.throughput_source);
    }
    let seen = if p.write_blind { snap.sees.reads || snap.sees.writes } else { snap.sees.writes };
    if !seen {
        return (None, ThroughputSource::Unknown);
    }
    let on = snap
        .areas
        .iter()
        .flat_map(|a| &a.pages)
        .filter(|page| page.flags.has(PageFlags::PRESENT) && mine.contains(&page.node()));
    let rate = on.fold(0u64, |n, page| {
        n.saturating_add(if p.write_blind { page.rate() } else { page.writes.rate() })
    });
    (Some(BytesPerSec(rate.saturating_mul(64))), ThroughputSource::Estimated)
}
