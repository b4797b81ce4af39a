//! What the next interval is for.

use terrace_types::{Nanos, Pid, Plan, Request, Tick, VpnRange};

/// Whether pages that cool are a reason to sample in full again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cooling {
    /// They are.
    Counts,
    /// Nothing could be gained by knowing.
    Ignored,
}

/// When a tracker that samples at an interval's end begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleStart {
    /// So late that it ends with the interval.
    AtEnd,
    /// Now, which ends the interval early.
    AtOnce,
    /// The same, although the target fills memory: headroom needs to know which pages are cold.
    WhileFilling,
}

/// What follows once the target has filled its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterWarmUp {
    /// A full sample: the policy asked for it.
    Sample,
    /// A decision without one: the target was seen to fill memory between quick scans.
    Decide,
}

/// How the next interval is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// In full samples: heat has not settled.
    Sample(SampleStart),
    /// In quick scans and seldom in full samples: heat has settled.
    Settled(Cooling),
    /// Without trackers; decide only if pages came or memory was taken.
    Idle,
    /// Without trackers until free memory stands still.
    WarmUp {
        /// When it began.
        since: Tick,
        /// What follows.
        then: AfterWarmUp,
    },
}

/// The next interval.
#[derive(Debug)]
pub(super) struct NextInterval {
    pub length: Nanos,
    pub kind: Next,
    /// Where trackers should see single pages.
    pub fine: Vec<(Pid, VpnRange)>,
}

impl NextInterval {
    pub fn new(length: Nanos, kind: Next) -> Self {
        Self { length, kind, fine: Vec::new() }
    }

    /// Full samples over an interval of this length.
    pub fn sample(length: Nanos, start: SampleStart) -> Self {
        Self::new(length, Next::Sample(start))
    }

    /// As a plan made at `now` asks for; of this length where it asks for none.
    pub fn requested_by(plan: &Plan, length: Nanos, now: Tick) -> Self {
        let mut next = Self::sample(length, SampleStart::AtEnd);
        let ignored = plan.requests.contains(&Request::IgnoreCooling);
        let cooling = if ignored { Cooling::Ignored } else { Cooling::Counts };
        for request in &plan.requests {
            match request {
                Request::Wait(span) => next.length = (*span).max(Nanos::millis(1)),
                Request::SampleByPage { pid, range } => next.fine.push((*pid, *range)),
                Request::WarmUp => {
                    next.kind = Next::WarmUp { since: now, then: AfterWarmUp::Sample };
                }
                Request::Idle => next.kind = Next::Idle,
                Request::Relax => next.kind = Next::Settled(cooling),
                Request::IgnoreCooling | Request::Clear { .. } | Request::ClearPages { .. } => {}
            }
        }
        next
    }

    /// Whether it is a sample that headroom needs, while the target fills memory.
    pub fn samples_while_filling(&self) -> bool {
        self.kind == Next::Sample(SampleStart::WhileFilling)
    }

    pub fn is_idle(&self) -> bool {
        self.kind == Next::Idle
    }

    /// How cooling counts where heat has settled.
    pub fn settled(&self) -> Option<Cooling> {
        match self.kind {
            Next::Settled(cooling) => Some(cooling),
            _ => None,
        }
    }
}
