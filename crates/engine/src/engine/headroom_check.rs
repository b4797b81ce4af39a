//! Checks whether demotions for growth paid, and undoes them if they did not
//! (docs/adr/0376-undo-headroom-unless-it-is-seen-to-pay.md,
//! docs/adr/0380-undo-undecided-headroom-only-where-the-share-pays.md).
//!
//! The policy demotes cold pages before it knows how hot the newer pages will be. Once growth has
//! ended, short samples compare the demoted pages with the newer ones, until one side is touched
//! clearly more. These samples may cost as much as the demotions did. Undoing exchanges the demoted
//! pages and newer ones.

use super::{Engine, StepReport};
use terrace_policy::heat::PageSamples;
use terrace_types::{
    Area, Move, Nanos, PageFlags, PageStat, Pid, Plan, Snapshot, Tick, Vpn, VpnRange,
};

/// Base pages of a demoted huge page or run that are sampled at once. A huge page has one accessed
/// bit.
const PART: u64 = 8;

/// Demotions for growth that were not judged yet.
#[derive(Debug, Default)]
pub(super) struct HeadroomCheck {
    /// In order of process and address, each page once.
    demotions: Vec<Move>,
    /// Pages that were there before the first of them, in the same order.
    present_before: Vec<(Pid, VpnRange)>,
    /// CPU time that samples may still take: what the demotions took, less what samples took.
    sampling_budget: Nanos,
    /// When growth was first seen to have ended; `None`: not since pages were demoted last.
    growth_ended: Option<Tick>,
    sample_due: Tick,
    samples_made: u64,
    found: SampledSides,
    /// Processes whose demotions were undone. The engine makes no headroom while one of them runs.
    lost_by: Vec<Pid>,
}

/// What short samples found of demoted pages on a worse tier, and of pages on the best tier that
/// came since.
#[derive(Debug, Clone, Copy, Default)]
struct SampledSides {
    demoted: SampledBlocks,
    newer: SampledBlocks,
}

#[derive(Debug, Clone, Copy, Default)]
struct SampledBlocks {
    pages: u64,
    touched_pages: u64,
    blocks: u64,
    /// Blocks with a touched page.
    touched_blocks: u64,
}

impl SampledBlocks {
    fn add(&mut self, hits: &[u8]) {
        let sampled = |hits: &&u8| **hits != PageSamples::NOT_SAMPLED;
        let pages = hits.iter().filter(sampled).count() as u64;
        let touched = hits.iter().filter(sampled).filter(|hits| **hits > 0).count() as u64;
        self.pages += pages;
        self.touched_pages += touched;
        self.blocks += u64::from(pages > 0);
        self.touched_blocks += u64::from(touched > 0);
    }

    fn touched_share(self) -> f64 {
        self.touched_pages as f64 / self.pages.max(1) as f64
    }
}

/// What samples say of demotions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The newer pages are touched clearly more.
    Pays,
    /// The demoted pages are touched clearly more.
    Loses,
    /// Neither are.
    Undecided,
    /// Most pages of both sides are, so that their bits do not tell how often.
    Saturated,
}

/// What follows from samples of demotions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStep {
    Keep,
    Undo,
    /// Samples begin anew.
    Watch,
    /// No more is sampled, and all stays where it is.
    Leave,
    /// A full sample, after which the policy decides.
    SampleAll,
}

impl NextStep {
    /// `payable`: the ledger can pay for undoing the demotions; `spent`: no sample can follow.
    /// `None`: the samples are too few, and more follow.
    fn after(verdict: Option<Verdict>, payable: bool, spent: bool) -> Option<Self> {
        Some(match verdict {
            None if !spent => return None,
            None => Self::Leave,
            Some(Verdict::Pays) => Self::Keep,
            Some(Verdict::Loses) => Self::Undo,
            Some(Verdict::Saturated) => Self::SampleAll,
            // First touch is right unless something speaks against it.
            Some(Verdict::Undecided) if payable => Self::Undo,
            Some(Verdict::Undecided) if spent => Self::Leave,
            Some(Verdict::Undecided) => Self::Watch,
        })
    }

    /// As journals call it.
    const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep headroom",
            Self::Undo => "undo headroom",
            Self::Watch => "watch headroom",
            Self::Leave | Self::SampleAll => "leave headroom",
        }
    }
}

impl SampledSides {
    /// `None`: too few pages were sampled, or found touched.
    fn verdict(self, tuning: &crate::EngineTuning) -> Option<Verdict> {
        let Self { demoted, newer } = self;
        let touched = demoted.touched_blocks + newer.touched_blocks;
        let enough = touched >= tuning.check_fewest_touched
            && demoted.blocks.min(newer.blocks) >= tuning.check_fewest_blocks;
        let (demoted, newer) = (demoted.touched_share(), newer.touched_share());
        let factor = tuning.check_colder;
        enough.then_some(if demoted * factor <= newer {
            Verdict::Pays
        } else if newer * factor > demoted && demoted * factor > 1.0 {
            Verdict::Saturated
        } else if newer * factor <= demoted {
            Verdict::Loses
        } else {
            Verdict::Undecided
        })
    }
}

/// Whether one of these ranges, which are in order, has the page.
fn includes(ranges: &[(Pid, VpnRange)], pid: Pid, page: Vpn) -> bool {
    let at = ranges.partition_point(|(of, range)| (*of, range.end) <= (pid, page));
    ranges.get(at).is_some_and(|(of, range)| *of == pid && range.contains(page))
}

impl HeadroomCheck {
    /// Pages were demoted, which took so long. `areas`: pages as they were located last.
    pub fn record_demotions(&mut self, done: Vec<Move>, cost: Nanos, areas: &[Area]) {
        if self.demotions.is_empty() {
            self.present_before = present_ranges(areas);
        }
        self.demotions.extend(done);
        self.demotions.sort_unstable_by_key(|m| (m.pid, m.start));
        let mut end = (Pid(0), Vpn(0));
        self.demotions.retain_mut(|m| {
            let stop = m.range().end.max(if end.0 == m.pid { end.1 } else { Vpn(0) });
            if end.0 == m.pid {
                m.start = m.start.max(end.1);
            }
            m.pages = (stop.0 - m.start.0) as u32;
            end = (m.pid, stop);
            m.pages > 0
        });
        self.sampling_budget += cost;
        self.wait_for_end_of_growth();
    }

    /// Forgets samples made before growth ended.
    fn wait_for_end_of_growth(&mut self) {
        self.growth_ended = None;
        self.found = SampledSides::default();
    }

    pub fn forget_processes(&mut self, died: &[Pid]) {
        self.lost_by.retain(|pid| !died.contains(pid));
        self.demotions.retain(|m| !died.contains(&m.pid));
        if self.demotions.is_empty() {
            self.close();
        }
    }

    /// Ends the check without another move.
    fn close(&mut self) {
        let lost_by = std::mem::take(&mut self.lost_by);
        *self = Self { lost_by, samples_made: self.samples_made, ..Self::default() };
    }

    /// Time until the next sample, if the target does not grow.
    pub fn time_to_sample(&self, now: Tick) -> Nanos {
        self.growth_ended.map_or(Nanos::ZERO, |_| self.sample_due.since(now))
    }

    /// Whether there is something to sample for once growth has ended.
    pub fn is_open(&self) -> bool {
        !self.demotions.is_empty() && self.sampling_budget > Nanos::ZERO
    }

    /// Whether headroom was undone, for a process that still runs.
    pub fn has_lost(&self) -> bool {
        !self.lost_by.is_empty()
    }

    /// Whether to sample now that the target does not grow: `pause` after growth has ended, and
    /// again each time after half as long as that has been.
    fn is_due(&mut self, now: Tick, pause: Nanos) -> bool {
        let ended = *self.growth_ended.get_or_insert_with(|| {
            self.sample_due = now.after(pause);
            now
        });
        let due = now >= self.sample_due;
        if due {
            self.sample_due = now.after(Nanos(now.since(ended).get() / 2).max(pause));
        }
        due
    }

    /// A part of each of so many demoted huge pages or runs, others each time.
    fn parts_to_sample(&self, most: usize) -> Vec<(Pid, VpnRange)> {
        let stride = self.demotions.len().div_ceil(most.max(1)).max(1);
        let first = self.samples_made as usize % stride;
        let turn = self.samples_made / stride as u64;
        let part = |m: &Move| {
            let pages = u64::from(m.pages);
            let start = Vpn(m.start.0 + PART * (turn % pages.div_ceil(PART).max(1)));
            (m.pid, VpnRange::new(start, Vpn(m.range().end.0.min(start.0 + PART))))
        };
        self.demotions.iter().skip(first).step_by(stride).map(part).collect()
    }
}

/// Ranges of pages that are there, in order.
fn present_ranges(areas: &[Area]) -> Vec<(Pid, VpnRange)> {
    let mut ranges: Vec<(Pid, VpnRange)> = Vec::new();
    for area in areas {
        let mut start = area.start;
        for (page, count) in PageStat::runs(&area.pages) {
            let end = Vpn(start.0 + count);
            if page.flags.has(PageFlags::PRESENT) {
                match ranges.last_mut() {
                    Some((pid, last)) if (*pid, last.end) == (area.pid, start) => last.end = end,
                    _ => ranges.push((area.pid, VpnRange::new(start, end))),
                }
            }
            start = end;
        }
    }
    ranges.sort_unstable_by_key(|(pid, range)| (*pid, range.start));
    ranges
}

impl Engine {
    /// Samples pages demoted for growth and newer ones, if growth has ended and a sample is due,
    /// and undoes the demotions if they are seen not to pay.
    pub(super) fn check_headroom(&mut self, report: &mut StepReport) {
        if !self.headroom_check.is_open() {
            return;
        }
        let tuning = self.config.tuning;
        let every = self.located.growth.every(&tuning);
        if self.headroom.growth_in(every).pages(self.machine.page_size) > tuning.new_fewest {
            return self.headroom_check.wait_for_end_of_growth();
        }
        if !self.headroom_check.is_due(self.clock.now(), tuning.growth_pause) {
            return;
        }
        let before = self.own_cpu.used();
        let sampled = self.sample_headroom(report);
        let cpu = self.own_cpu.since(before).max(sampled.unwrap_or_default());
        self.spend_between(cpu);
        let check = &mut self.headroom_check;
        check.sampling_budget = check.sampling_budget.saturating_sub(cpu);
        if sampled.is_none() {
            return check.close();
        }
        let found = check.found;
        let spent = check.sampling_budget == Nanos::ZERO;
        let payable = self.can_pay_for_undoing();
        let Some(next) = NextStep::after(found.verdict(&tuning), payable, spent) else { return };
        let [demoted, newer] = [found.demoted, found.newer].map(|of| 100.0 * of.touched_share());
        let why = format!(
            "short samples find {demoted:.0}% of the pages touched that were demoted for growth, \
                and {newer:.0}% of those that came to the best tier since"
        );
        self.log.write_decision(next.name(), why, self.at(), &mut report.notes);
        match next {
            NextStep::Keep | NextStep::Leave => {}
            NextStep::Undo => self.undo_headroom(report),
            NextStep::SampleAll => self.headroom.sample_due = true,
            NextStep::Watch => {
                self.headroom_check.found = SampledSides::default();
                return;
            }
        }
        self.headroom_check.close();
    }

    /// Whether the ledger can pay for exchanging the demoted pages and as many newer ones.
    fn can_pay_for_undoing(&self) -> bool {
        let pages: u64 = self.headroom_check.demotions.iter().map(|m| u64::from(m.pages)).sum();
        let cost = Nanos((2 * pages).saturating_mul(self.move_cost().get()));
        cost <= self.budget.ledger.beyond_next_sample()
    }

    /// One short sample. What the trackers spent on it; `None`: it cannot be made.
    fn sample_headroom(&mut self, report: &mut StepReport) -> Option<Nanos> {
        let mappings = self.refresh_mappings(report).ok()?;
        let check = &mut self.headroom_check;
        check.samples_made += 1;
        let asked = check.parts_to_sample(self.config.tuning.check_pages);
        let turn = check.samples_made;
        let found = self.trackers.spot_check(&mappings, (&asked, turn), &mut report.notes)?;
        let unknown = |one: &PageSamples| vec![PageStat::default(); one.hits.len()];
        let area = |one: &PageSamples| Area { pid: one.pid, start: one.start, pages: unknown(one) };
        let all = || found.asked.iter().chain(&found.spread);
        let mut areas: Vec<Area> = all().map(area).collect();
        let tiers = self.target.tiers().ok()?;
        self.target.locate(&mut areas).ok()?;
        let located = Snapshot { tiers, ..Snapshot::default() };
        for (at, (one, area)) in all().zip(&areas).enumerate() {
            let there = |page: &PageStat| page.flags.has(PageFlags::PRESENT);
            let rank = area.pages.first().filter(|page| there(page));
            let on_best = rank.and_then(|page| located.rank_of(page.node())).map(|rank| rank == 0);
            match (at < found.asked.len(), on_best) {
                (true, Some(false)) => check.found.demoted.add(&one.hits),
                (false, Some(true)) if !includes(&check.present_before, one.pid, one.start) => {
                    check.found.newer.add(&one.hits);
                }
                // The policy moved it, or it came where another was before.
                _ => {}
            }
        }
        Some(found.cpu)
    }

    /// Exchanges the demoted pages and newer ones, whatever the share has left: what it lacks is
    /// owed.
    fn undo_headroom(&mut self, report: &mut StepReport) {
        let (before, now) = (self.own_cpu.used(), self.clock.now());
        let check = &mut self.headroom_check;
        let demotions = std::mem::take(&mut check.demotions);
        let present_before = std::mem::take(&mut check.present_before);
        check.lost_by = demotions.iter().map(|m| m.pid).collect();
        check.lost_by.dedup();
        self.headroom.give_up();
        let (Ok(tiers), Ok(())) = (self.target.tiers(), self.target.locate(self.heat.areas_mut()))
        else {
            return;
        };
        self.heat.forget_absent();
        let most = self.budget.ledger.most_of_share().get();
        let snapshot = Snapshot {
            page_size: self.machine.page_size,
            tiers,
            sees: self.trackers.sees(),
            spendable: Some(Nanos(most.saturating_mul(self.config.tuning.undo_cost))),
            areas: self.heat.lend(),
            ..Snapshot::default()
        };
        let is_newer = |pid: Pid, page: Vpn| !includes(&present_before, pid, page);
        let undo = self.placement.undo_headroom(&snapshot, &demotions, &is_newer, now);
        self.own_cpu.work += undo.work;
        let newer: Vec<Move> =
            undo.moves.iter().filter(|m| snapshot.rank_of(m.from) == Some(0)).copied().collect();
        let mut plan = Plan { moves: undo.moves, ..Plan::default() };
        let cpu = self.own_cpu.since(before);
        let (_, deciding, _) = self.carry_out(&mut plan, snapshot, u64::MAX, now, report);
        self.placement.forget_displaced(&newer);
        self.spend_between(cpu + deciding);
        self.located.require_locating_new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::{MoveReason, NodeId};

    /// Of so many blocks of each side so many pages in a hundred were touched.
    fn verdict(demoted: u64, newer: u64, blocks: u64) -> Option<Verdict> {
        let of = |percent: u64| {
            let mut of = SampledBlocks::default();
            (0..blocks).for_each(|at| of.add(&[u8::from(at * 100 / blocks < percent); 8]));
            of
        };
        let found = SampledSides { demoted: of(demoted), newer: of(newer) };
        found.verdict(&crate::EngineTuning::USUAL)
    }

    #[test]
    fn a_verdict_takes_one_side_touched_twice_as_often() {
        assert_eq!(verdict(0, 50, 100), Some(Verdict::Pays));
        assert_eq!(verdict(20, 50, 100), Some(Verdict::Pays));
        assert_eq!(verdict(30, 50, 100), Some(Verdict::Undecided));
        assert_eq!(verdict(20, 20, 100), Some(Verdict::Undecided));
        assert_eq!(verdict(50, 30, 100), Some(Verdict::Undecided));
        assert_eq!(verdict(50, 20, 100), Some(Verdict::Loses));
        assert_eq!(verdict(40, 0, 100), Some(Verdict::Loses));
        assert_eq!(verdict(98, 68, 100), Some(Verdict::Saturated));
        assert_eq!(verdict(60, 100, 100), Some(Verdict::Saturated));
        assert_eq!(verdict(98, 30, 100), Some(Verdict::Loses));
        assert_eq!(verdict(0, 0, 100), None, "the target sleeps");
        assert_eq!(verdict(0, 10, 100), None, "too few");
        assert_eq!(verdict(0, 100, 10), None, "too few were sampled");
    }

    #[test]
    fn what_samples_do_not_decide_is_undone_only_where_it_can_be_paid_for() {
        let undecided = |payable, spent| {
            NextStep::after(Some(Verdict::Undecided), payable, spent).map(NextStep::name)
        };
        assert_eq!(undecided(true, false), Some("undo headroom"));
        assert_eq!(undecided(false, false), Some("watch headroom"));
        assert_eq!(undecided(false, true), Some("leave headroom"), "no sample can follow");
        for (payable, spent) in [(false, false), (true, true)] {
            let after = |verdict| NextStep::after(Some(verdict), payable, spent);
            assert_eq!(after(Verdict::Pays), Some(NextStep::Keep));
            assert_eq!(after(Verdict::Loses), Some(NextStep::Undo), "on credit if need be");
            assert_eq!(after(Verdict::Saturated), Some(NextStep::SampleAll));
        }
        assert_eq!(NextStep::after(None, true, false), None, "more samples follow");
        assert_eq!(NextStep::after(None, true, true), Some(NextStep::Leave), "nothing was seen");
    }

    #[test]
    fn pages_that_were_not_sampled_count_for_nothing() {
        let mut of = SampledBlocks::default();
        of.add(&[PageSamples::NOT_SAMPLED; 8]);
        of.add(&[0, 1, 3, PageSamples::NOT_SAMPLED]);
        assert_eq!((of.pages, of.touched_pages, of.blocks, of.touched_blocks), (3, 2, 1, 1));
    }

    #[test]
    fn samples_become_rarer_and_begin_anew_with_growth() {
        let pause = Nanos::millis(5);
        let mut check = HeadroomCheck::default();
        let mut due = |ms: std::ops::Range<u64>| -> Vec<u64> {
            ms.filter(|ms| check.is_due(Tick(ms * 1_000_000), pause)).collect()
        };
        assert_eq!(due(0..60), [5, 10, 15, 23, 35, 53]);
        check.wait_for_end_of_growth();
        let mut due = |ms: u64| check.is_due(Tick(ms * 1_000_000), pause);
        assert_eq!([due(100), due(104), due(105)], [false, false, true]);
        let left = |check: &HeadroomCheck, ms: u64| check.time_to_sample(Tick(ms * 1_000_000));
        assert_eq!([left(&check, 106), left(&check, 112)], [Nanos::millis(4), Nanos::ZERO]);
        check.wait_for_end_of_growth();
        assert_eq!(left(&check, 106), Nanos::ZERO, "it may grow");
    }

    #[test]
    fn runs_that_overlap_have_each_page_once_and_all_parts_get_their_turn() {
        let (from, to, reason) = (NodeId(0), NodeId(1), MoveReason::Cold);
        let run = |pid, start, pages| Move { pid, start: Vpn(start), pages, from, to, reason };
        let mut check = HeadroomCheck::default();
        check.record_demotions(vec![run(Pid(1), 10, 54)], Nanos::millis(1), &[]);
        let more = vec![run(Pid(1), 0, 64), run(Pid(1), 20, 10), run(Pid(2), 5, 20)];
        check.record_demotions(more, Nanos::millis(1), &[]);
        let kept: Vec<(i32, u64, u32)> =
            check.demotions.iter().map(|m| (m.pid.0, m.start.0, m.pages)).collect();
        assert_eq!(kept, [(1, 0, 64), (2, 5, 20)]);
        let mut parts = Vec::new();
        for _ in 0..3 {
            parts.push(check.parts_to_sample(9)[1].1);
            check.samples_made += 1;
        }
        let lengths: Vec<(u64, u64)> = parts.iter().map(|p| (p.start.0, p.len())).collect();
        assert_eq!(lengths, [(5, 8), (13, 8), (21, 4)]);
    }

    #[test]
    fn all_demoted_pages_get_their_turn_and_each_is_kept_once() {
        let (from, to, reason) = (NodeId(0), NodeId(1), MoveReason::Cold);
        let demoted = |at: u64| Move { pid: Pid(1), start: Vpn(at), pages: 512, from, to, reason };
        let page = |at: usize| PageStat {
            flags: if at % 8 < 5 { PageFlags::PRESENT } else { PageFlags::default() },
            ..PageStat::default()
        };
        let areas = [Area { pid: Pid(1), start: Vpn(64), pages: (0..16).map(page).collect() }];
        let mut check = HeadroomCheck::default();
        for from in [30, 0] {
            let moves = (from..100).map(|at| demoted(at * 512)).collect();
            check.record_demotions(moves, Nanos::millis(1), &areas);
        }
        let mut starts = Vec::new();
        for _ in 0..2 {
            let parts = check.parts_to_sample(64);
            assert!(parts.len() <= 64 && parts.iter().all(|(_, part)| part.len() == PART));
            starts.extend(parts.iter().map(|(_, part)| part.start.0));
            check.samples_made += 1;
        }
        starts.sort_unstable();
        assert!(starts.iter().copied().eq((0..100).map(|at| at * 512)), "{starts:?}");
        let before: Vec<u64> =
            (60..90).filter(|at| includes(&check.present_before, Pid(1), Vpn(*at))).collect();
        assert_eq!(before, [64, 65, 66, 67, 68, 72, 73, 74, 75, 76]);
        assert!(!includes(&check.present_before, Pid(2), Vpn(64)));
        check.lost_by = vec![Pid(1), Pid(2)];
        check.forget_processes(&[Pid(1)]);
        assert!(!check.is_open() && check.has_lost());
        check.forget_processes(&[Pid(2)]);
        assert!(!check.has_lost());
    }
}
