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
use terrace_policy::heat::{NodeTally, PageSamples, TouchedPages};
use terrace_policy::quota::SamplingPace;
use terrace_types::{
    Area, Bytes, Nanos, NodeId, PageStat, Pid, Snapshot, Tick, TierState, Vpn, VpnRange,
};

/// What the worse tiers have cost since the last sample of all pages.
#[derive(Debug)]
pub(super) struct SampleDebt {
    /// Nanoseconds.
    sum: f64,
    /// Up to then.
    at: Option<Tick>,
    /// Nanoseconds a second, lately.
    rate: f64,
    /// Most of that rate is of pages of which nothing is known but that they were touched.
    by_new: bool,
    /// What such pages were found to cost, as a share of what they would if they were accessed as
    /// often as one touch allows.
    new_share: f64,
}

impl Default for SampleDebt {
    fn default() -> Self {
        Self { sum: 0.0, at: None, rate: 0.0, by_new: false, new_share: 1.0 }
    }
}

impl SampleDebt {
    /// So much a second since it was last told.
    fn add(&mut self, rate: f64, now: Tick) {
        let since = self.at.replace(now).map_or(Nanos::ZERO, |then| now.since(then));
        self.rate = rate;
        self.sum += rate * since.as_secs_f64();
    }

    /// A sample of all pages found that the worse tiers cost so much a second. `least`: share that
    /// new pages are taken to cost at least ([`crate::EngineTuning`]).
    fn found(&mut self, rate: f64, least: f64) {
        if std::mem::take(&mut self.by_new) {
            // Chance is in both: each sample counts for half.
            let right = (rate / self.rate.max(1.0)).clamp(least, 1.0);
            self.new_share = (self.new_share * right).sqrt();
        }
    }

    /// Time until it comes to `price`.
    fn time_to(&self, price: Nanos) -> Nanos {
        let left = (price.get() as f64 - self.sum).max(0.0);
        Nanos((left / self.rate.max(1.0) * 1e9) as u64)
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
                // Long enough was waited: the interval is no longer than its samples.
                self.next.kind = Next::Sample(SampleStart::AtOnce);
                self.next.length = self.next.length.max(self.config.first_interval);
                return Ok(pace);
            }
            let saves = self.placement.saves() && !self.budget.loses();
            if pace.rest > Nanos::ZERO && !saves {
                // The share cannot pay for a sample yet, and no moves save what could. Each
                // measurement of a loss would book it again, and put the sample off.
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
                self.note_cost(mappings, before, report);
            }
        }
    }

    /// Samples some pages once, or each where some cannot be: what the worse tiers cost now, and
    /// what moves gain.
    fn note_cost(&mut self, mappings: &[Mapping], before: Nanos, report: &mut StepReport) {
        self.sampling.spot_checks += 1;
        let turn = self.sampling.spot_checks;
        let tuning = &self.config.tuning;
        let part = |(pid, block)| (pid, part_of(block, tuning.asked_part, turn));
        let displaced = self.placement.displaced().into_iter().step_by(tuning.asked_blocks.max(1));
        let asked: Vec<(Pid, VpnRange)> = displaced.map(part).collect();
        let found = self.trackers.spot_check(mappings, (&asked, turn), &mut report.notes);
        if let Some(found) = found {
            let tiers = self.target.tiers().unwrap_or_default();
            self.gain_by_part(&found.asked, &tiers);
            self.note_debt(&found.spread, found.share, &tiers);
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
        self.gain_by_all(&observed.samples, &tiers);
        self.note_debt(&observed.samples, 1.0, &tiers);
        self.book_check(observed.cpu, (observed.memory, observed.lost), before);
    }

    /// What the worse tiers cost, by samples of this share of the pages.
    fn note_debt(&mut self, samples: &[PageSamples], share: f64, tiers: &[TierState]) {
        let worse = worse_nodes(tiers);
        let known = self.heat.accesses_on(samples, &worse);
        let (new, mut by_new) = (self.heat.samples_of_new(samples), 0.0);
        if !new.is_empty() {
            let cold = |one: &PageSamples| vec![PageStat::default(); one.hits.len()];
            let area =
                |one: &PageSamples| Area { pid: one.pid, start: one.start, pages: cold(one) };
            let mut areas: Vec<Area> = new.iter().map(area).collect();
            if self.target.locate(&mut areas).is_ok() {
                by_new = self.heat.accesses_on_new(&new, &areas, &worse);
            }
        }
        let each = self.placement.each_access().unwrap_or_default() / share;
        let (now, debt) = (self.clock.now(), &mut self.sampling.debt);
        by_new *= debt.new_share;
        debt.add((known + by_new) * each, now);
        debt.by_new = by_new > known;
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
        let some: Vec<PageSamples> =
            self.placement.displaced().into_iter().flat_map(part).collect();
        self.gain_by_part(&some, tiers);
    }

    /// Books what displaced pages save, by samples of some and their neighbours.
    fn gain_by_part(&mut self, some: &[PageSamples], tiers: &[TierState]) {
        if some.is_empty() {
            return;
        }
        let [best, below] = self.heat.touched_by_side(some, &worse_nodes(tiers));
        let areas = self.heat.known_of(some);
        let sampled = Snapshot { tiers: tiers.to_vec(), areas, ..Snapshot::default() };
        if let Some(known) = self.placement.gain_by_some(&sampled) {
            // A few pages sampled once make no loss certain that was not known.
            let least = (known.0 - known.1).min(0.0);
            let gain = corrected(known, [best, below]).unwrap_or(least);
            self.budget.book_gain(gain, least, self.clock.now());
        }
    }
}

/// What promotions save less what demotions cost, corrected by how many pages on the best tier and
/// below it were found touched. Only downwards: pages that were chosen for their heat had more of
/// it by chance, and those chosen for being cold less. `None` where demoted pages known as never
/// accessed now are, because nothing tells how often.
fn corrected((saved, lost): (f64, f64), [best, below]: [TouchedPages; 2]) -> Option<f64> {
    let pace = below.pace().max(1.0);
    pace.is_finite().then(|| saved * best.pace().min(1.0) - lost * pace)
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
        let of = |known, best, below| corrected(known, [best, below]).map(f64::round);
        assert_eq!(of((100.0, 20.0), as_known, as_known), Some(80.0));
        let (more, half) = (touched(20.0, 10.0), touched(5.0, 10.0));
        assert_eq!(of((100.0, 20.0), more, half), Some(80.0), "not upwards");
        assert_eq!(of((100.0, 20.0), half, as_known), Some(30.0));
        assert_eq!(of((100.0, 20.0), as_known, more), Some(60.0));
        assert_eq!(of((100.0, 20.0), touched(0.0, 10.0), as_known), Some(-20.0), "a loss");
        assert_eq!(of((100.0, 0.0), as_known, touched(0.0, 0.0)), Some(100.0));
        assert_eq!(of((100.0, 0.0), as_known, touched(60.0, 0.0)), None, "nothing tells how often");
    }

    #[test]
    fn a_sample_is_due_once_what_was_lost_comes_to_its_price() {
        let at = |ms: u64| Tick(ms * 1_000_000);
        let price = Nanos::millis(30);
        let mut debt = SampleDebt { at: Some(at(0)), ..SampleDebt::default() };
        assert!(debt.time_to(price) > Nanos::secs(3_600), "nothing is known to be lost");
        // 10 ms a second for half a second, and then 250.
        debt.add(1e7, at(500));
        assert_eq!(debt.time_to(price), Nanos::millis(2_500));
        debt.add(2.5e8, at(560));
        assert_eq!(debt.time_to(price), Nanos::millis(40));
        debt.add(2.5e8, at(600));
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
