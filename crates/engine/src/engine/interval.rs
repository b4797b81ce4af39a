//! How an interval is spent: in full samples, in a quick scan, or idling.

use super::{stop, Engine, NextInterval, StepReport, StopReason};
use crate::journal::{DecisionEntry, JournalEntry};
use crate::trackers::IntervalSamples;
use crate::{Mapping, SampleRequest};
use terrace_types::{Bytes, Nanos, NodeId, Tick, TierState};

/// Between two readings of free memory while the target fills its own.
const SETTLING: Nanos = Nanos::millis(10);
/// The same at first where it had settled before: what it adds is used soon. What goes on is asked
/// for ever more seldom.
const ADDING: Nanos = Nanos::millis(2);
/// Between two questions how much memory the target has, while quick scans do,
const FILLING: Nanos = Nanos::millis(5);
/// or so many times what one of them costs: half a per cent of a core.
const ASKED: u64 = 200;
/// Quick scans are not made rarer than this where pages were moved, as far as their share of a core
/// allows.
const RAREST: Nanos = Nanos::millis(250);
/// It stands still when less than this part of a tier came or went in that time.
pub(super) const STANDS_STILL: u64 = 512;
/// Others may come and go all the time: full samples follow after so long in any case.
const LONGEST_SETTLING: Nanos = Nanos::secs(1);

/// Whether a tier's free memory does not stand still, compared with what it was.
pub(super) fn differs(tier: &TierState, then: u64) -> bool {
    tier.free.get().abs_diff(then) > tier.capacity.get() / STANDS_STILL
}

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
        let able = self.next.relaxed && !self.must_locate && self.trackers.sees().pages;
        if !able {
            self.quick_scans.over();
            return None;
        }
        self.ledger.advance(self.clock.now());
        let whole = self.next.interval + self.ledger.pace(self.next.interval, false).rest;
        // The longer a policy is content to wait, the longer a shift may go unnoticed; the longer
        // still where nothing was ever worth moving.
        let (part, rarest) =
            if self.account.moved() { (8, RAREST) } else { (4, Nanos(RAREST.get() * 2)) };
        let every = self
            .ledger
            .quick_scan_interval()
            .max(Nanos(self.next.interval.get() / part).min(rarest));
        self.quick_scans.next(self.clock.now(), whole, every)
    }

    /// What was known of heat counts for little from now on.
    pub(super) fn doubt(&mut self) {
        self.heat.doubt();
        self.writes.forget();
        self.shifted = true;
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
        let observed = self.sample(mappings, ask, report);
        let before = self.used_cpu().saturating_sub(looked);
        let tiers = self.target.tiers().map_err(stop)?;
        let now = self.clock.now();
        let why = self.wont.quick_scans.surprised_by(
            &self.heat.foreseen(&observed.samples, &worse_nodes(&tiers)),
            !self.next.ignore_cooling,
        );
        let confirmed = self.quick_scans.confirmed(why.is_some());
        if self.finds_new(&observed.samples) || self.must_locate {
            // It fills memory: what to do with that is decided as soon as it has done so.
            self.quick_scans.over();
            self.free_then = tiers.iter().map(|t| t.free).collect();
            self.next = NextInterval { warm_up: Some(now), came: true, ..NextInterval::default() };
        } else if let Some(why) = why.filter(|_| confirmed) {
            self.doubt();
            self.next = NextInterval {
                interval: quarter(self.config.first_interval),
                ..NextInterval::default()
            };
            let entry = DecisionEntry {
                at_ns: now.since(self.started).get(),
                name: "sample again".to_owned(),
                why,
                gain_ns_per_s: 0,
                cost_ns: 0,
                state: Default::default(),
            };
            self.write(&JournalEntry::Decision(entry), &mut report.notes);
        }
        let deciding = self.used_cpu().saturating_sub(before);
        self.account.interval(
            observed.cpu,
            deciding,
            self.heat.memory() + observed.memory,
            observed.lost,
        );
        self.ledger.charge_quick_scan(observed.cpu + deciding, now);
        Ok(())
    }

    pub(super) fn sample_interval(
        &mut self,
        mappings: &[Mapping],
        report: &mut StepReport,
    ) -> IntervalSamples {
        if self.next.relaxed && self.trackers.sees().pages {
            // Quick scans took the time that would be rested through.
            self.quick_scans.over();
            self.next.interval = self.next.interval.min(self.config.first_interval);
            return self.sample(mappings, self.ask(true), report);
        }
        self.ledger.advance(self.clock.now());
        let pace = self.ledger.pace(self.next.interval, !self.next.relaxed);
        if pace.rest > Nanos::ZERO {
            self.clock.wait(pace.rest);
        }
        let ask = self.ask(self.next.relaxed || pace.thrifty);
        self.sample(mappings, ask, report)
    }

    pub(super) fn ask(&self, relaxed: bool) -> SampleRequest {
        let needs = self.placement.needs();
        let pages = self.trackers.sees().pages;
        // Where bits stand for themselves, and where regions are sampled, each interval counts.
        let due =
            needs.bits || !pages || self.writes.due(self.config.tracking_share, self.clock.now());
        SampleRequest {
            interval: self.next.interval,
            fine: self.next.fine.clone(),
            reads: needs.heat || needs.cells,
            // Without samples of every page, write bits are what tells pages apart.
            writes: needs.heat && (needs.writes && due || !pages) || needs.cells,
            relaxed,
            quick_scan: false,
        }
    }

    pub(super) fn sample(
        &mut self,
        mappings: &[Mapping],
        ask: SampleRequest,
        report: &mut StepReport,
    ) -> IntervalSamples {
        let begun = self.clock.now();
        self.trackers.begin(mappings, &ask, &mut report.notes);
        let lead = self.trackers.lead();
        if !(self.next.at_once && lead > Nanos::ZERO) {
            let wait = ask.interval.saturating_sub(lead);
            if ask.quick_scan && self.ledger.left_seconds() > 0.0 {
                self.wait_for_filling(wait);
            } else {
                self.clock.wait(wait);
            }
        }
        let mut observed = self.trackers.finish(self.clock.now(), &mut report.notes);
        observed.thrifty = ask.relaxed;
        report.interval = self.clock.now().since(begun);
        observed
    }

    /// Lets `wait` pass, or less where the target grows meanwhile: a program that fills memory
    /// begins something new, and where its pages are must be asked again.
    fn wait_for_filling(&mut self, wait: Nanos) {
        let before = self.used_cpu();
        let until = self.clock.now().after(wait);
        let every = FILLING.max(Nanos(self.asking.get().saturating_mul(ASKED)));
        let (mut filling, mut asked) = (false, 0u64);
        while !filling && self.clock.now() < until {
            let begun = self.clock.now();
            let left = until.since(begun);
            let part = left.min(every);
            self.clock.wait(part);
            // The wait ends early with the target: there is nothing left to wait for.
            if self.clock.now().since(begun) < Nanos(part.get() / 2) {
                break;
            }
            if left > every {
                filling = self.grew();
                asked += 1;
            }
        }
        self.must_locate |= filling;
        let cpu = self.used_cpu().saturating_sub(before);
        self.asking = Nanos(cpu.get() / asked.max(1));
        self.account.between(cpu);
        self.ledger.spend(cpu, self.clock.now());
    }

    /// Whether the target has more memory than when its pages were last located, or than at any
    /// time since.
    fn grew(&mut self) -> bool {
        let Ok(resident) = self.target.resident() else { return false };
        let least = self.resident_then.get_or_insert(resident);
        *least = (*least).min(resident);
        resident.saturating_sub(*least) > Bytes(self.smallest_tier.get() / STANDS_STILL)
    }

    /// Lets a short time pass, and checks only whether free memory stands still.
    pub(super) fn warm_up(
        &mut self,
        since: Tick,
        looked: Nanos,
        report: &mut StepReport,
    ) -> Result<(), StopReason> {
        let begun = self.clock.now();
        let seldom = Nanos(begun.since(since).get() / 2).max(ADDING);
        self.clock.wait(if self.next.came {
            seldom.min(SETTLING)
        } else {
            // Of a long time a part more is little.
            Nanos(begun.since(since).get() / 4).max(SETTLING)
        });
        let now = self.clock.now();
        report.interval = now.since(begun);
        let before = self.used_cpu().saturating_sub(looked);
        let tiers = self.target.tiers().map_err(stop)?;
        let moving = tiers.len() != self.free_then.len()
            || tiers.iter().zip(&self.free_then).any(|(t, then)| differs(t, then.get()));
        self.free_then = tiers.iter().map(|t| t.free).collect();
        if !moving || now.since(since) >= LONGEST_SETTLING {
            self.must_locate = true;
            self.waited = true;
            // Long enough was waited.
            self.next = match self.next.came {
                true => NextInterval { idle: true, ..NextInterval::default() },
                false => NextInterval {
                    interval: self.next.interval,
                    at_once: true,
                    ..NextInterval::default()
                },
            };
        }
        let deciding = self.used_cpu().saturating_sub(before);
        self.account.interval(Nanos::ZERO, deciding, self.heat.memory(), 0);
        self.ledger.book(deciding, true, now);
        Ok(())
    }

    /// Lets an interval pass without trackers.
    pub(super) fn idle(&mut self, report: &mut StepReport) -> IntervalSamples {
        let begun = self.clock.now();
        self.clock.wait(self.next.interval);
        report.interval = self.clock.now().since(begun);
        IntervalSamples { thrifty: true, saw_nothing: true, ..IntervalSamples::default() }
    }
}
