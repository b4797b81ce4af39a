//! How an interval is spent: in full samples, in a quick scan, or idling.

use super::located::NegligibleChange;
use super::{
    AfterWarmUp, Cooling, Engine, Next, NextInterval, SampleStart, StepReport, StopReason,
};
use crate::trackers::IntervalSamples;
use crate::{Mapping, SampleRequest};
use terrace_types::{Nanos, NodeId, Tick, TierState};

/// Nodes of all tiers but the best.
pub(super) fn worse_nodes(tiers: &[TierState]) -> Vec<NodeId> {
    tiers.iter().skip(1).flat_map(|t| t.nodes.iter().copied()).collect()
}

const fn quarter(interval: Nanos) -> Nanos {
    Nanos(interval.get() / 4)
}

impl Engine {
    /// Time to the next quick scan, where quick scans do for now: heat has settled, every page can
    /// be sampled, and where pages are is known.
    pub(super) fn quick_scan_due(&mut self) -> Option<Nanos> {
        let settled = self.next.settled().is_some();
        if !(settled && !self.located.due && self.trackers.sees().pages) {
            self.sampling.quick_scans.over();
            return None;
        }
        self.budget.ledger.advance(self.clock.now());
        let whole = self.next.length + self.budget.ledger.pace(self.next.length, false).rest;
        // The longer a policy is content to wait, the longer a shift may go unnoticed; the longer
        // still where nothing was ever worth moving.
        let rarest = self.config.tuning.quick_scan_rarest;
        let (part, rarest) =
            if self.account.moved() { (8, rarest) } else { (4, Nanos(rarest.get() * 2)) };
        let paid = self.budget.ledger.quick_scan_interval();
        let every = paid.max(Nanos(self.next.length.get() / part).min(rarest));
        self.sampling.quick_scans.next(self.clock.now(), whole, every, &self.config.tuning)
    }

    /// What was known of heat counts for little from now on.
    pub(super) fn doubt(&mut self) {
        self.heat.doubt();
        self.budget.ledger.expect_moves(Nanos::ZERO);
        self.sampling.writes.forget();
        self.since_decision.shifted = true;
    }

    pub(super) fn quick_scan(
        &mut self,
        mappings: &[Mapping],
        interval: Nanos,
        looked: Nanos,
        report: &mut StepReport,
    ) -> Result<(), StopReason> {
        let ask = SampleRequest {
            interval,
            fine: Vec::new(),
            reads: true,
            writes: false,
            relaxed: true,
            quick_scan: true,
        };
        let Some(observed) = self.sample(mappings, ask, report) else { return Ok(()) };
        let before = self.own_cpu.since(looked);
        let tiers = self.target.tiers()?;
        let now = self.clock.now();
        self.gain_by_all(&observed.samples, &tiers);
        let why = self.sampling.usual.quick_scans.surprised_by(
            &self.heat.foreseen(&observed.samples, &worse_nodes(&tiers)),
            self.next.settled() != Some(Cooling::Ignored),
            &self.config.tuning,
        );
        let confirmed = self.sampling.quick_scans.confirmed(why.is_some());
        if self.finds_new(&observed.samples) || self.located.due {
            // It fills memory: what to do with that is decided as soon as it has done so.
            self.sampling.quick_scans.over();
            self.located.note_free(&tiers, now);
            let warm_up = Next::WarmUp { since: now, then: AfterWarmUp::Decide };
            self.next = NextInterval::new(Nanos::ZERO, warm_up);
        } else if let Some(why) = why.filter(|_| confirmed) {
            self.doubt();
            let length = quarter(self.config.first_interval);
            self.next = NextInterval::sample(length, SampleStart::AtEnd);
            let at = now.since(self.started);
            self.log.write_decision("sample again", why, at, &mut report.notes);
        }
        let deciding = self.own_cpu.since(before);
        self.account.interval(
            observed.cpu,
            deciding,
            self.heat.memory() + observed.memory,
            observed.lost,
        );
        self.budget.ledger.charge_quick_scan(observed.cpu + deciding, now);
        Ok(())
    }

    pub(super) fn sample_interval(
        &mut self,
        mut mappings: Vec<Mapping>,
        report: &mut StepReport,
    ) -> Result<Option<IntervalSamples>, StopReason> {
        let settled = self.next.settled().is_some();
        if settled && self.trackers.sees().pages {
            // Quick scans took the time that would be rested through.
            self.sampling.quick_scans.over();
            self.next.length = self.next.length.min(self.config.first_interval);
            return Ok(self.sample(&mappings, self.ask(true), report));
        }
        let pace = self.rest(&mut mappings, !settled, report)?;
        let ask = self.ask(settled || pace.thrifty);
        Ok(self.sample(&mappings, ask, report))
    }

    /// Whether the target got much memory since its pages were last located, and was not waited for
    /// yet: the policy would let it fill that first, and the sample would be for nothing.
    fn fills_memory(&mut self) -> bool {
        let part = self.config.tuning.new_part;
        self.placement.needs().idles
            && self.next.settled().is_none()
            && !self.since_decision.waited
            && !self.next.samples_while_filling()
            && self.target.resident().is_ok_and(|now| self.located.growth.grew_much(now, part))
    }

    pub(super) fn ask(&self, relaxed: bool) -> SampleRequest {
        let needs = self.placement.needs();
        let pages = self.trackers.sees().pages;
        // Where bits stand for themselves, and where regions are sampled, each interval counts.
        let due = needs.bits
            || !pages
            || self.sampling.writes.due(self.config.tracking_share, self.clock.now());
        SampleRequest {
            interval: self.next.length,
            fine: self.next.fine.clone(),
            reads: needs.heat || needs.cells,
            // Without samples of every page, write bits are what tells pages apart.
            writes: needs.heat && (needs.writes && due || !pages) || needs.cells,
            relaxed,
            quick_scan: false,
        }
    }

    /// `None`: the target fills memory, and trackers that sample at the end were not asked.
    pub(super) fn sample(
        &mut self,
        mappings: &[Mapping],
        ask: SampleRequest,
        report: &mut StepReport,
    ) -> Option<IntervalSamples> {
        let (begun, before) = (self.clock.now(), self.own_cpu.used());
        self.trackers.begin(mappings, &ask, &mut report.notes);
        let to_begin = self.own_cpu.since(before);
        let lead = self.trackers.lead();
        let at_once = self.next.kind == Next::Sample(SampleStart::AtOnce)
            || self.next.samples_while_filling();
        if !at_once || lead == Nanos::ZERO {
            let wait = ask.interval.saturating_sub(lead);
            if ask.quick_scan && self.budget.ledger.left_seconds() > 0.0 {
                self.wait_for_filling(wait);
            } else {
                // With a lead, sampling begins after the wait.
                self.sampling.under_way = lead == Nanos::ZERO;
                self.wait_with_headroom(wait, report);
                self.sampling.under_way = false;
            }
        }
        report.interval = self.clock.now().since(begun);
        if lead > Nanos::ZERO && !ask.quick_scan && self.fills_memory() {
            self.spend_between(to_begin);
            return None;
        }
        let mut observed = self.trackers.finish(self.clock.now(), &mut report.notes);
        observed.thrifty = ask.relaxed;
        report.interval = self.clock.now().since(begun);
        Some(observed)
    }

    /// Lets `wait` pass. Whether the target ended meanwhile: then it ends early, and there is
    /// nothing left to wait for.
    pub(super) fn wait_or_end(&mut self, wait: Nanos) -> bool {
        let begun = self.clock.now();
        self.clock.wait(wait);
        self.clock.now().since(begun) < Nanos(wait.get() / 2)
    }

    /// Lets `wait` pass, or less where the target grows meanwhile: a program that fills memory
    /// begins something new, and where its pages are must be asked again.
    fn wait_for_filling(&mut self, wait: Nanos) {
        let before = self.own_cpu.used();
        let until = self.clock.now().after(wait);
        let every = self.located.growth.every(&self.config.tuning);
        let (mut filling, mut asked) = (false, 0u64);
        while !filling && self.clock.now() < until {
            let left = until.since(self.clock.now());
            if self.wait_or_end(left.min(every)) {
                break;
            }
            if left > every {
                if let Ok(resident) = self.target.resident() {
                    self.headroom.update_growth_rate(resident, self.clock.now());
                    filling = self.located.growth.grew(resident);
                }
                asked += 1;
            }
        }
        self.located.due |= filling;
        let cpu = self.own_cpu.since(before);
        self.located.growth.asked(asked, cpu);
        self.spend_between(cpu);
    }

    /// Books what was spent besides samples and decisions.
    pub(super) fn spend_between(&mut self, cpu: Nanos) {
        self.account.between(cpu);
        self.budget.ledger.spend(cpu, self.clock.now());
    }

    /// Waits for the target to fill its memory before the next sample; `looked`: what asking for
    /// its mappings cost.
    pub(super) fn wait_for_memory(&mut self, looked: Nanos) {
        self.spend_between(looked);
        self.budget.ledger.expect_moves(Nanos::ZERO);
        self.next.kind = Next::WarmUp { since: self.clock.now(), then: AfterWarmUp::Sample };
    }

    /// Lets a short time pass, and checks only whether free memory stands still.
    pub(super) fn warm_up(
        &mut self,
        (since, then): (Tick, AfterWarmUp),
        looked: Nanos,
        report: &mut StepReport,
    ) -> Result<(), StopReason> {
        let begun = self.clock.now();
        let (passed, tuning) = (begun.since(since).get(), &self.config.tuning);
        self.clock.wait(match then {
            AfterWarmUp::Decide => {
                Nanos(passed / 2).clamp(tuning.warm_up_first, tuning.warm_up_pause)
            }
            // Of a long time a part more is little.
            AfterWarmUp::Sample => Nanos(passed / 4).max(tuning.warm_up_pause),
        });
        let now = self.clock.now();
        report.interval = now.since(begun);
        let before = self.own_cpu.since(looked);
        let tiers = self.target.tiers()?;
        let still = self.located.stands_still(&tiers, self.negligible_change(), now);
        if still || now.since(since) >= self.config.tuning.warm_up_longest {
            self.located.due = true;
            self.since_decision.waited = true;
            // Long enough was waited.
            self.next = match then {
                AfterWarmUp::Decide => NextInterval::new(Nanos::ZERO, Next::Idle),
                AfterWarmUp::Sample => NextInterval::sample(self.next.length, SampleStart::AtOnce),
            };
        }
        let deciding = self.own_cpu.since(before);
        self.account.interval(Nanos::ZERO, deciding, self.heat.memory(), 0);
        self.budget.ledger.book(deciding, true, now);
        if !still {
            self.make_headroom(report);
            self.sample_for_headroom();
        }
        Ok(())
    }

    /// Changes of free memory that are no sign that the target fills its memory.
    pub(super) fn negligible_change(&self) -> NegligibleChange {
        let tuning = &self.config.tuning;
        let each = self.machine.kernel.first_touch.0.max(1) as f64 * 1e-12;
        let bytes = self.machine.page_size.get() as f64;
        NegligibleChange {
            part: tuning.still_part,
            bytes_per_second: bytes / (each * tuning.filling_part as f64),
        }
    }

    /// Lets an interval pass without trackers, or less where headroom needs a sample.
    pub(super) fn idle(&mut self, report: &mut StepReport) -> IntervalSamples {
        let begun = self.clock.now();
        self.wait_with_headroom(self.next.length, report);
        report.interval = self.clock.now().since(begun);
        IntervalSamples { thrifty: true, saw_nothing: true, ..IntervalSamples::default() }
    }
}
