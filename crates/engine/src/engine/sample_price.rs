//! Between samples of all pages while heat has not settled: what the next one could be worth, and
//! what moves have gained, by one short sample of each page.
//!
//! A sample costs some tens of milliseconds with its decision, and can gain no more than what the
//! worse tiers cost. So it is made once they have cost as much as it does since the last one: who
//! rents until the rent comes to the price, and buys then, pays at most twice what he had to,
//! whatever comes (Karlin et al., "Competitive snoopy caching", Algorithmica 3, 1988).

use super::interval::worse_nodes;
use super::{Engine, Next, SampleStart, StepReport, StopReason};
use crate::{Mapping, SampleRequest};
use terrace_policy::heat::{HeatMap, NodeTally, PageSamples, TouchedPages};
use terrace_policy::place::terrace::{DisplacedSavings, UnsampledNewer};
use terrace_policy::quota::SamplingPace;
use terrace_types::{
    Area, Bytes, Nanos, NodeId, PageStat, Pid, Snapshot, Tick, TierState, Vpn, VpnRange,
};

/// What the worse tiers have cost since the last sample of all pages, and what newer pages saved on
/// the best that such a sample would tell.
#[derive(Debug)]
pub(super) struct SampleDebt {
    /// Nanoseconds.
    sum: f64,
    /// Up to then.
    at: Option<Tick>,
    /// Of the worse tiers, nanoseconds a second, lately.
    rate: f64,
    /// Of newer pages, the same.
    newer: f64,
    /// At least.
    newer_at_least: f64,
    /// Most of that rate is of pages of which nothing is known but that they were touched.
    by_new: bool,
    /// What such pages were found to cost, as a share of what they would if they were accessed as
    /// often as one touch allows.
    new_share: f64,
}

impl Default for SampleDebt {
    fn default() -> Self {
        Self {
            sum: 0.0,
            at: None,
            rate: 0.0,
            newer: 0.0,
            newer_at_least: 0.0,
            by_new: false,
            new_share: 1.0,
        }
    }
}

impl SampleDebt {
    /// So much a second since it was last told.
    fn add(&mut self, (rate, newer): (f64, f64), now: Tick) {
        let since = self.at.replace(now).map_or(Nanos::ZERO, |then| now.since(then));
        (self.rate, self.newer) = (rate, newer);
        self.sum += (rate + newer) * since.as_secs_f64();
    }

    /// A sample of all pages found that the worse tiers cost so much a second. `least`: share that
    /// new pages are taken to cost at least ([`crate::EngineTuning`]).
    fn found(&mut self, rate: f64, least: f64) {
        (self.newer, self.newer_at_least) = (0.0, 0.0);
        if std::mem::take(&mut self.by_new) {
            // Chance is in both: each sample counts for half.
            let right = (rate / self.rate.max(1.0)).clamp(least, 1.0);
            self.new_share = (self.new_share * right).sqrt();
        }
    }

    /// Time until it comes to `price`.
    fn time_to(&self, price: Nanos) -> Nanos {
        let left = (price.get() as f64 - self.sum).max(0.0);
        Nanos((left / (self.rate + self.newer).max(1.0) * 1e9) as u64)
    }
}

impl Engine {
    /// Lets pass what the ledger asks for before the next sample of all pages, and the time until
    /// it is worth its price.
    pub(super) fn rest(
        &mut self,
        mappings: &mut Vec<Mapping>,
        urgent: bool,
        report: &mut StepReport,
    ) -> Result<SamplingPace, StopReason> {
        let since = self.clock.now();
        (self.sampling.debt.at, self.sampling.debt.sum) = (Some(since), 0.0);
        let mut ended = false;
        loop {
            self.budget.ledger.advance(self.clock.now());
            let mut pace = self.budget.ledger.pace(self.next.length, urgent);
            if std::mem::take(&mut self.headroom.sample_due) {
                self.next.kind = Next::Sample(SampleStart::AtOnce);
                pace.rest = Nanos::ZERO;
                return Ok(pace);
            }
            // Where heat has shifted, a quick scan has just told that; and who filled memory was
            // waited for.
            let gated = urgent
                && self.next.kind == Next::Sample(SampleStart::AtEnd)
                && !self.since_decision.shifted
                && self.trackers.sees().pages
                && self.placement.each_access().is_some();
            let price = self.budget.ledger.sample_cost().filter(|_| gated);
            let Some(price) = price.filter(|_| !ended) else {
                if !ended {
                    self.wait_with_headroom(pace.rest, report);
                }
                return Ok(pace);
            };
            let tuning = &self.config.tuning;
            // Once in a long time it is made in any case, so that heat may settle.
            let left = tuning.prescan_longest.saturating_sub(self.clock.now().since(since));
            let due = self.sampling.debt.time_to(price).min(left);
            if pace.rest == Nanos::ZERO && due == Nanos::ZERO {
                // What made it due may be pages that were not there.
                self.located.due |= self.sampling.debt.by_new || self.sampling.debt.newer > 0.0;
                // Long enough was waited: the interval is no longer than its samples.
                self.next.kind = Next::Sample(SampleStart::AtOnce);
                self.next.length = self.next.length.max(self.config.first_interval);
                return Ok(pace);
            }
            let saves = self.placement.saves() && !self.budget.loses();
            // The share cannot pay for a sample yet, and no moves are known to save what could.
            // Each measurement of a loss would book it again, and put the sample off.
            let gains_alone = pace.rest > Nanos::ZERO && !saves;
            if gains_alone && !self.placement.newer_save() {
                ended = self.wait_with_headroom(pace.rest, report);
                // What the worse tiers cost meanwhile is not known.
                self.sampling.debt.at = Some(self.clock.now());
                continue;
            }
            let shortest = tuning.quick_scan_shortest;
            // A shift is waited for no longer than an interval while the share lasts. While it does
            // not, only what moves gain is of use, once it pays for a sample.
            let rarest = match pace.rest {
                Nanos::ZERO => self.config.first_interval,
                _ => {
                    let rarest =
                        self.budget.ledger.quick_scan_interval().max(tuning.quick_scan_rarest);
                    let pays = self.budget.time_to_gain().unwrap_or_default();
                    rarest.min(pays.max(self.config.first_interval))
                }
            };
            let rarest = rarest.max(shortest);
            let wait = due.max(pace.rest).clamp(shortest, rarest);
            ended = self.wait_with_headroom(wait, report);
            if !ended {
                let before = self.own_cpu.used();
                *mappings = self.refresh_mappings(report)?;
                self.note_cost(mappings, gains_alone, before, report);
            }
        }
    }

    /// Samples some pages once, or each where some cannot be: what the worse tiers cost now, and
    /// what moves gain; no loss is booked of `gains_alone`.
    fn note_cost(
        &mut self,
        mappings: &[Mapping],
        gains_alone: bool,
        before: Nanos,
        report: &mut StepReport,
    ) {
        self.sampling.spot_checks += 1;
        let turn = self.sampling.spot_checks;
        let parts = self.config.tuning.asked_part;
        let part = |(pid, block)| (pid, part_of(block, parts, turn));
        let tiers = self.target.tiers().unwrap_or_default();
        let known = self.known_savings(&tiers);
        let asked: Vec<(Pid, VpnRange)> = known.some.iter().copied().map(part).collect();
        let found = self.trackers.spot_check(mappings, (&asked, turn), &mut report.notes);
        if let Some(mut found) = found {
            // Memory that was given back saves nothing there.
            let gone =
                |hits: &mut u8| *hits = if *hits == PageSamples::NOT_SAMPLED { 0 } else { *hits };
            found.asked.iter_mut().flat_map(|one| &mut one.hits).for_each(gone);
            let newer = self.note_debt(&found.spread, found.share, &tiers, known.unsampled);
            self.gain_by_part((&known, newer), (&found.asked, gains_alone), &tiers);
            return self.book_check(found.cpu, (Bytes::ZERO, 0), before);
        }
        let ask = SampleRequest {
            interval: self.config.tuning.quick_scan_shortest,
            fine: Vec::new(),
            reads: true,
            writes: false,
            relaxed: true,
            quick_scan: true,
        };
        self.trackers.begin(mappings, &ask, &mut report.notes);
        let observed = self.trackers.finish(self.clock.now(), &mut report.notes);
        let tiers = self.target.tiers().unwrap_or_default();
        if !gains_alone {
            self.gain_by_all(&observed.samples, &tiers);
        }
        self.note_debt(&observed.samples, 1.0, &tiers, None);
        self.book_check(observed.cpu, (observed.memory, observed.lost), before);
    }

    /// What the worse tiers cost, by samples of this share of the pages. Returns what pages save at
    /// least that came to the best tier since pages were located, nanoseconds a second.
    fn note_debt(
        &mut self,
        samples: &[PageSamples],
        share: f64,
        tiers: &[TierState],
        unsampled: Option<UnsampledNewer>,
    ) -> f64 {
        let worse = worse_nodes(tiers);
        let known = self.heat.accesses_on(samples, &worse);
        let (new, mut by_new) = (self.heat.samples_of_new(samples), 0.0);
        let (mut newer, mut newer_at_least) = (0.0, 0.0);
        if !new.is_empty() {
            let cold = |one: &PageSamples| vec![PageStat::default(); one.hits.len()];
            let area =
                |one: &PageSamples| Area { pid: one.pid, start: one.start, pages: cold(one) };
            let mut areas: Vec<Area> = new.iter().map(area).collect();
            if self.target.locate(&mut areas).is_ok() {
                by_new = self.heat.accesses_on_new(&new, &areas, &worse);
                if let (Some(unsampled), Some(best)) = (unsampled, tiers.first()) {
                    let (touches, touched) = HeatMap::touches_on_new(&new, &areas, &best.nodes);
                    let pages = self.heat.count_new(samples) as f64;
                    let part = unsampled.share(touched / share, pages / share);
                    newer = self.heat.accesses_on_new(&new, &areas, &best.nodes) * part;
                    newer_at_least = touches * part;
                }
            }
        }
        let each = self.placement.each_access().unwrap_or_default() / share;
        let (now, debt) = (self.clock.now(), &mut self.sampling.debt);
        by_new *= debt.new_share;
        debt.add(((known + by_new) * each, newer * debt.new_share * each), now);
        debt.by_new = by_new > known;
        let newer = newer_at_least * debt.new_share * each;
        // Chance is in each, and what came just now saved nothing before.
        newer.min(std::mem::replace(&mut debt.newer_at_least, newer))
    }

    /// What the worse tiers cost by a sample of all pages; it stays so unless something moves.
    pub(super) fn note_rate(&mut self, tally: &[NodeTally], worse: &[NodeId], moves: bool) {
        let on = |node: &NodeId| tally.get(usize::from(node.0)).map(|of| of.accesses);
        let accesses: f64 = worse.iter().filter_map(on).sum();
        let rate = accesses * self.placement.each_access().unwrap_or_default();
        self.sampling.debt.found(rate, self.config.tuning.new_least_share);
        if !moves {
            self.sampling.debt.rate = rate;
        }
    }

    /// Books what a check cost: the trackers' CPU time, and their memory and records lost.
    fn book_check(&mut self, cpu: Nanos, (memory, lost): (Bytes, u64), before: Nanos) {
        let deciding = self.own_cpu.since(before).saturating_sub(cpu);
        self.account.interval(cpu, deciding, self.heat.memory() + memory, lost);
        self.budget.ledger.charge_quick_scan(cpu + deciding, self.clock.now());
    }

    /// What displaced pages save, by what is known of them.
    fn known_savings(&mut self, tiers: &[TierState]) -> DisplacedSavings {
        let areas = self.heat.lend();
        let page_size = self.machine.page_size;
        let snapshot = Snapshot { page_size, tiers: tiers.to_vec(), areas, ..Snapshot::default() };
        let known = self.placement.displaced(&snapshot);
        self.heat.give_back(snapshot.areas);
        self.own_cpu.work += known.work;
        known
    }

    /// Books what displaced pages save, by samples of all pages.
    pub(super) fn gain_by_all(&mut self, samples: &[PageSamples], tiers: &[TierState]) {
        let part = |(pid, range): (Pid, VpnRange)| {
            let of = samples.iter().filter(move |one| one.pid == pid);
            of.filter_map(move |one| {
                let both = one.range().intersect(range)?;
                let from = (both.start.0 - one.start.0) as usize;
                let hits = one.hits[from..from + both.len() as usize].to_vec();
                Some(PageSamples { start: both.start, hits, ..*one })
            })
        };
        let known = self.known_savings(tiers);
        let some: Vec<PageSamples> = known.some.iter().copied().flat_map(part).collect();
        self.gain_by_part((&known, 0.0), (&some, false), tiers);
    }

    /// Books what displaced pages save, by what is known of them and samples of some and their
    /// neighbours, and what newer ones do of which nothing is known.
    fn gain_by_part(
        &mut self,
        (known, newer): (&DisplacedSavings, f64),
        (some, gains_alone): (&[PageSamples], bool),
        tiers: &[TierState],
    ) {
        if some.is_empty() && newer <= 0.0 {
            return;
        }
        let sides = self.heat.touched_by_side(some, &worse_nodes(tiers));
        // A few pages sampled once make no loss certain that was not known.
        let least = (known.saved - known.lost).min(0.0);
        let (gain, now) = (corrected(known, sides) + newer, self.clock.now());
        match gains_alone && gain <= 0.0 {
            true => self.budget.skip(now),
            false => self.budget.book_gain(gain, least, now),
        }
    }
}

/// What promoted and newer pages save less what demoted ones cost, corrected by how many pages on
/// the best tier and below it were found touched. Only downwards: pages that were chosen for their
/// heat had more of it by chance, and those chosen for being cold less. A touch does not tell how
/// often demoted pages are accessed: of those not expected to be touched, each that is may be as
/// hot as one of the others, and as large a part of those expected to be.
fn corrected(known: &DisplacedSavings, [best, below]: [TouchedPages; 2]) -> f64 {
    let untouched = (below.pages - below.expected).max(0.5);
    let unexpected = ((below.found - below.expected).max(0.0) / untouched).min(1.0);
    let lost = known.lost + unexpected * known.lost_if_hot;
    let pace = below.pace().max(1.0);
    let by_pace = if pace.is_finite() { known.lost * pace } else { 0.0 };
    known.saved * best.pace().min(1.0) - lost.max(by_pace)
}

/// One of so many parts of a block of pages, another at each turn.
fn part_of(block: VpnRange, parts: u64, turn: u64) -> VpnRange {
    let length = (block.len() / parts.max(1)).max(1);
    let first = Vpn(block.start.0 + turn % parts.max(1) * length);
    VpnRange::new(first, Vpn(first.0 + length)).intersect(block).unwrap_or(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: f64 = crate::EngineTuning::USUAL.new_least_share;

    #[test]
    fn a_gain_is_corrected_downwards() {
        let touched = |found, expected| TouchedPages { found, expected, pages: 1_000.0 };
        let as_known = touched(10.0, 10.0);
        let of = |(saved, lost), best, below| {
            let lost_if_hot = saved;
            let known = DisplacedSavings { saved, lost, lost_if_hot, ..Default::default() };
            corrected(&known, [best, below]).round()
        };
        assert_eq!(of((100.0, 20.0), as_known, as_known), 80.0);
        let (more, half) = (touched(20.0, 10.0), touched(5.0, 10.0));
        assert_eq!(of((100.0, 20.0), more, half), 80.0, "not upwards");
        assert_eq!(of((100.0, 20.0), half, as_known), 30.0);
        assert_eq!(of((100.0, 20.0), as_known, more), 60.0);
        assert_eq!(of((100.0, 20.0), touched(0.0, 10.0), as_known), -20.0, "a loss");
        assert_eq!(of((100.0, 0.0), as_known, touched(0.0, 0.0)), 100.0);
        assert_eq!(of((100.0, 0.0), as_known, touched(60.0, 0.0)), 94.0, "each may be hot");
        assert_eq!(of((100.0, 10.0), touched(999.0, 999.0), touched(580.0, 300.0)), 50.0);
        assert_eq!(of((0.0, 10.0), as_known, touched(60.0, 0.0)), -10.0);
    }

    #[test]
    fn a_sample_is_due_once_what_was_lost_comes_to_its_price() {
        let at = |ms: u64| Tick(ms * 1_000_000);
        let price = Nanos::millis(30);
        let mut debt = SampleDebt { at: Some(at(0)), ..SampleDebt::default() };
        assert!(debt.time_to(price) > Nanos::secs(3_600), "nothing is known to be lost");
        // 10 ms a second for half a second, and then 250.
        debt.add((1e7, 0.0), at(500));
        assert_eq!(debt.time_to(price), Nanos::millis(2_500));
        debt.add((2.5e8, 0.0), at(560));
        assert_eq!(debt.time_to(price), Nanos::millis(40));
        debt.add((1e8, 1.5e8), at(600));
        assert_eq!(debt.time_to(price), Nanos::ZERO);
    }

    #[test]
    fn what_new_pages_cost_is_learned_from_samples() {
        let mut debt = SampleDebt { rate: 1e9, by_new: true, ..SampleDebt::default() };
        debt.found(1e7, LEAST);
        assert!((debt.new_share - 0.1).abs() < 1e-9, "a hundredth, of which half is believed");
        debt.found(1e5, LEAST);
        assert!((debt.new_share - 0.1).abs() < 1e-9, "that was not foreseen by new pages");
        for _ in 0..8 {
            (debt.rate, debt.by_new) = (1e8, true);
            debt.found(5e8, LEAST);
        }
        assert!(debt.new_share > 0.98, "more than foreseen: {}", debt.new_share);
        (debt.rate, debt.by_new) = (1e9, true);
        debt.found(0.0, LEAST);
        assert!(debt.new_share > 0.09, "one sample that found nothing is not the last word");
    }
}
