//! While nothing was moved: whether a full sample promises anything.

use super::{Engine, Next, NextInterval, SampleStart, StepReport, StopReason};
use crate::{Mapping, Prescan, TouchEvenness};
use terrace_types::{Bytes, Nanos, Tick};

/// Where the full sample stands that prescans come before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PrescanState {
    /// Not thought of yet.
    #[default]
    Ahead,
    /// Waiting.
    Waits(PrescanWait),
    /// It is due, or was made.
    Over,
}

/// Waiting for the next prescan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PrescanWait {
    since: Tick,
    /// Time before the next prescan.
    pause: Nanos,
    /// Time after `since` from which a full sample is made in any case.
    longest: Nanos,
}

impl Engine {
    /// Whether to prescan before a full sample: while nothing was moved, where pages can be sampled
    /// one by one, by a policy that checks only what may be worth it. Pages touched alike may still
    /// be written and read apart, where that matters.
    pub(super) fn prescans(&self) -> bool {
        let needs = self.placement.needs();
        let able = needs.idles && !needs.writes && self.trackers.sees().pages;
        let samples =
            matches!(self.next.kind, Next::Sample(_)) && !self.next.samples_while_filling();
        // Once pages were demoted, for headroom, they may be hot: only a full sample tells.
        let unmoved = !self.account.moved();
        able && samples && unmoved && self.sampling.prescans != PrescanState::Over
    }

    /// Waits and prescans. A full sample follows unless touches are spread evenly, so that none
    /// could pay; at last it follows in any case, late where memory is swept.
    pub(super) fn prescan(
        &mut self,
        mappings: &[Mapping],
        sampling_cpu: Nanos,
        report: &mut StepReport,
    ) -> Result<(), StopReason> {
        let begun = self.clock.now();
        let tuning = self.config.tuning;
        let pages: u64 = self.heat.by_node().iter().map(|n| n.pages).sum();
        let wait = match self.sampling.prescans {
            PrescanState::Waits(wait) => wait,
            _ => PrescanWait {
                since: begun,
                pause: Nanos(pages * tuning.prescan_page.get() * tuning.prescan_share),
                longest: tuning.prescan_longest,
            },
        };
        let pause = wait.pause;
        let left = wait.longest.saturating_sub(begun.since(wait.since));
        self.clock.wait(pause.min(left));
        let prescan =
            if pause < left { self.trackers.prescan(mappings, &mut report.notes) } else { None };
        let before = self.own_cpu.since(sampling_cpu);
        let now = self.clock.now();
        report.interval = now.since(begun);
        let verdict = prescan.as_ref().and_then(Prescan::verdict);
        if verdict == Some(TouchEvenness::Even) {
            let longer = |time: Nanos| Nanos(time.get().saturating_mul(tuning.prescan_longer));
            let (pause, longest) = match prescan.as_ref().filter(|prescan| prescan.sweeps()) {
                Some(prescan) => {
                    let cost = Nanos(prescan.cpu.get() * tuning.prescan_share);
                    let pause = longer(pause).min(tuning.prescan_swept).max(longer(cost));
                    (pause, longer(tuning.prescan_longest))
                }
                None => (longer(pause), tuning.prescan_longest),
            };
            self.sampling.prescans = PrescanState::Waits(PrescanWait { pause, longest, ..wait });
        } else {
            self.sampling.prescans = PrescanState::Over;
            self.next = NextInterval::sample(tuning.prescan_sample, SampleStart::AtOnce);
        }
        // A byte a page while it lasted.
        let (cpu, present) = prescan.as_ref().map_or((Nanos::ZERO, 0), |s| (s.cpu, s.present));
        // Pages may have come since they were last located.
        self.account.managed(Bytes(present.saturating_mul(self.machine.page_size.get())));
        if let (Some(prescan), Some(verdict)) = (prescan, verdict) {
            self.tell(verdict, &prescan, now);
        }
        let deciding = self.own_cpu.since(before);
        self.account.interval(cpu, deciding, self.heat.memory() + Bytes(present), 0);
        self.budget.ledger.book(cpu + deciding, true, now);
        Ok(())
    }

    fn tell(&mut self, verdict: TouchEvenness, prescan: &Prescan, now: Tick) {
        let [first, second] = prescan.touched;
        let later: Vec<String> =
            prescan.later.iter().map(|(at, touched)| format!(", {touched} within {at}")).collect();
        let (name, what) = match verdict {
            TouchEvenness::Even => ("even", "no full sample could pay now"),
            TouchEvenness::Uneven => ("sample", "more than by chance"),
            TouchEvenness::Unclear => ("sample", "that says too little"),
        };
        let why = format!(
            "of {} pages {first} and {second} were touched in two short samples, {} in both{}: \
                {what}",
            prescan.present,
            prescan.both,
            later.concat()
        );
        self.log.write_decision(name, why, now.since(self.started), &mut Vec::new());
    }
}
