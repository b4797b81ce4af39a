//! When pages were last located, and what says that they must be again.

use super::NextInterval;
use crate::EngineTuning;
use terrace_types::{Bytes, Nanos, Tick, TierState};

/// By how much a tier's free memory may change without being taken for memory that is filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct NegligibleChange {
    /// This part of the tier.
    pub part: u64,
    /// And so much a second.
    pub bytes_per_second: f64,
}

impl NegligibleChange {
    /// Whether a tier's free memory changed by more since it was `then`, so long ago.
    fn exceeded(self, tier: &TierState, then: u64, since: Nanos) -> bool {
        let slow = (self.bytes_per_second * since.as_secs_f64()) as u64;
        tier.free.get().abs_diff(then) > slow.max(tier.capacity.get() / self.part)
    }
}

/// Whether the target's memory grows, by what it has in memory.
#[derive(Debug, Default)]
pub(super) struct GrowthWatch {
    /// What it had when its pages were last located, or less since; not known before it is asked.
    least: Option<Bytes>,
    /// By so much it may grow unnoticed.
    few: Bytes,
    /// CPU time that asking once has cost lately.
    question_cpu: Nanos,
}

impl GrowthWatch {
    /// How often to ask.
    pub fn every(&self, tuning: &EngineTuning) -> Nanos {
        tuning.growth_pause.max(Nanos(self.question_cpu.get().saturating_mul(tuning.growth_cost)))
    }

    /// So many questions cost so much.
    pub fn asked(&mut self, times: u64, cpu: Nanos) {
        self.question_cpu = Nanos(cpu.get() / times.max(1));
    }

    /// Whether the target has more memory than when its pages were last located, or than at any
    /// time since.
    pub fn grew(&mut self, resident: Bytes) -> bool {
        let least = self.least.get_or_insert(resident);
        *least = (*least).min(resident);
        resident.saturating_sub(*least) > self.few
    }

    /// Whether by more than a `part` of that.
    pub fn grew_much(&self, resident: Bytes, part: u64) -> bool {
        self.least.is_some_and(|least| resident.get() > least.get() + least.get() / part)
    }
}

/// Where pages are, as far as that is known.
#[derive(Debug, Default)]
pub(super) struct LocatedPages {
    /// When those that came were located at least.
    new: Option<Tick>,
    /// When all were.
    all: Option<Tick>,
    /// Something happened after which they must be located.
    pub due: bool,
    /// The same, and those that were there may be elsewhere.
    pub all_moved: bool,
    /// Touched pages that locating did not find.
    pub unplaceable: u64,
    /// Pages that were there when they were last located.
    pub present: u64,
    /// Free memory of each tier then, or when the target was last waited for.
    free: Vec<Bytes>,
    /// When that was.
    free_at: Tick,
    pub growth: GrowthWatch,
}

impl LocatedPages {
    /// Whether to locate pages before the next decision: locating costs 0.15 to 0.3 us a page.
    /// `waited`: the target filled memory meanwhile.
    pub fn is_due(
        &self,
        tiers: &[TierState],
        next: &NextInterval,
        waited: bool,
        every: Nanos,
        now: Tick,
    ) -> bool {
        let seldom = Nanos(every.get().saturating_mul(4));
        let every = if next.settled().is_some() || next.is_idle() { seldom } else { every };
        let is = |then: Option<Tick>, every| then.is_none_or(|then| now.since(then) >= every);
        if self.all_moved || is(self.new, every) || is(self.all, seldom) {
            return true;
        }
        if next.is_idle() && !waited {
            // Who has no page on a worse tier has none where none of its memory was taken.
            return self.worse_shrank(tiers);
        }
        let shifted = self.free.len() != tiers.len()
            || tiers
                .iter()
                .zip(&self.free)
                .any(|(t, then)| t.free.get().abs_diff(then.get()) > t.capacity.get() / 64);
        shifted || self.due
    }

    /// Whether all pages must be located, not only those that came: where memory came free, some
    /// of those that were there are gone.
    pub fn all_due(&self, tiers: &[TierState], every: Nanos, now: Tick) -> bool {
        let seldom = Nanos(every.get().saturating_mul(4));
        let freed = |(t, then): (&TierState, &Bytes)| {
            t.free.get().saturating_sub(then.get()) > t.capacity.get() / 64
        };
        self.all_moved
            || self.all.is_none_or(|then| now.since(then) >= seldom)
            || tiers.iter().zip(&self.free).any(freed)
    }

    /// Whether free memory of a worse tier shrank since pages were last located.
    fn worse_shrank(&self, tiers: &[TierState]) -> bool {
        let few = self.growth.few.get();
        let mut worse = tiers.iter().zip(&self.free).skip(1);
        self.free.len() != tiers.len()
            || worse.any(|(t, then)| then.get().saturating_sub(t.free.get()) > few)
    }

    /// Pages were located: all, or those that came.
    pub fn located(
        &mut self,
        all: bool,
        resident: Option<Bytes>,
        tiers: &[TierState],
        part: u64,
        now: Tick,
    ) {
        self.new = Some(now);
        if all {
            self.all = Some(now);
            self.all_moved = false;
        }
        self.due = false;
        self.growth.least = resident;
        let smallest = tiers.iter().map(|t| t.capacity).min().unwrap_or_default();
        self.growth.few = Bytes(smallest.get() / part);
        self.note_free(tiers, now);
    }

    /// Pages moved or came: they must be located before the next decision, while idle too.
    pub fn require_locating_new(&mut self) {
        self.new = None;
    }

    pub fn note_free(&mut self, tiers: &[TierState], now: Tick) {
        self.free = tiers.iter().map(|t| t.free).collect();
        self.free_at = now;
    }

    /// Whether many of these `unplaced` pages are new: more than a `part` of those that are there,
    /// and more than a few.
    pub fn finds_new(&mut self, unplaced: u64, (part, few): (u64, u64)) -> bool {
        let new = unplaced.saturating_sub(self.unplaceable);
        let many = new > (self.present / part).max(few);
        self.due |= many;
        many
    }

    /// So many pages are there; whether more than a `part` more than before.
    pub fn note_present(&mut self, present: u64, part: u64) -> bool {
        let before = std::mem::replace(&mut self.present, present);
        present > before + before / part
    }

    /// Whether free memory shrank since pages were last located or the target was last waited for.
    pub fn shrank(&self, tiers: &[TierState], negligible: NegligibleChange, now: Tick) -> bool {
        let since = now.since(self.free_at);
        let less = |(t, then): (&TierState, &Bytes)| {
            negligible.exceeded(t, then.get().max(t.free.get()), since)
        };
        tiers.iter().zip(&self.free).any(less)
    }

    /// Whether free memory stands still since it was last noted; notes it.
    pub fn stands_still(
        &mut self,
        tiers: &[TierState],
        negligible: NegligibleChange,
        now: Tick,
    ) -> bool {
        let since = now.since(self.free_at);
        let stands = tiers.len() == self.free.len()
            && !tiers
                .iter()
                .zip(&self.free)
                .any(|(t, then)| negligible.exceeded(t, then.get(), since));
        self.note_free(tiers, now);
        stands
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::ThroughputSource;

    const MIB: u64 = 1 << 20;

    fn tier(free_mib: u64) -> Vec<TierState> {
        let (capacity, free) = (Bytes(512 * MIB), Bytes(free_mib * MIB));
        vec![TierState {
            nodes: Vec::new(),
            capacity,
            free,
            unused: free,
            write_throughput: None,
            throughput_source: ThroughputSource::Unknown,
        }]
    }

    #[test]
    fn who_allocates_on_the_way_does_not_fill_memory() {
        let negligible = NegligibleChange { part: 512, bytes_per_second: 100e6 };
        let at = |ms: u64| Tick(ms * 1_000_000);
        let mut located = LocatedPages::default();
        located.note_free(&tier(100), at(0));
        assert!(!located.shrank(&tier(99), negligible, at(1)), "a small part of the tier");
        assert!(located.shrank(&tier(95), negligible, at(10)));
        assert!(!located.shrank(&tier(95), negligible, at(100)), "5 MiB in 0.1 s");
        assert!(!located.shrank(&tier(120), negligible, at(10)), "what comes free fills nothing");
        assert!(!located.stands_still(&tier(95), negligible, at(10)));
        assert!(located.stands_still(&tier(90), negligible, at(110)), "since it was last noted");
        assert!(!located.stands_still(&tier(120), negligible, at(120)), "it came free");
    }
}
