//! How often writes are asked for.
//!
//! An interval over writes costs the target a fault for each page that it writes
//! ([`WRITE_FAULT`]). It tells what share of a page's accesses are writes; samples of accesses keep
//! that share ([`terrace_policy::heat`]), so that an interval is no more needed at each of them.

use terrace_policy::heat::PageWrites;
use terrace_types::{Nanos, Tick};

/// What one write fault costs the target: 1-3 us measured; the cautious end.
pub const WRITE_FAULT: Nanos = Nanos::micros(2);

/// When writes were last told, and what that cost the target.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WriteSchedule {
    reported: Option<(Tick, Nanos)>,
}

impl WriteSchedule {
    /// What these intervals cost the target in faults; `None` without any.
    pub fn cost(sample_count: &[PageWrites]) -> Option<Nanos> {
        let runs = sample_count.iter().flat_map(PageWrites::runs);
        let dirty: u64 =
            runs.filter(|(_, reported)| reported.dirty).map(|(run, _)| run.len()).sum();
        (!sample_count.is_empty()).then(|| Nanos(WRITE_FAULT.get().saturating_mul(dirty)))
    }

    /// Writes were reported, by intervals that end now and cost the target so much.
    pub fn record_report(&mut self, cost: Nanos, now: Tick) {
        self.reported = Some((now, cost));
    }

    /// What is accessed is not what it was: of that nothing is known.
    pub fn forget(&mut self) {
        self.reported = None;
    }

    /// Whether they are to be asked for: never told, or so long ago that the last interval's faults
    /// are no more than `share` of the time since.
    pub fn due(&self, share: f64, now: Tick) -> bool {
        self.reported
            .is_none_or(|(then, cost)| now.since(then).as_secs_f64() * share >= cost.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_policy::heat::PageEvidence;
    use terrace_types::{Pid, Vpn};

    fn interval(dirty: usize, clean: usize) -> PageWrites {
        let reported = |dirty| PageEvidence { per_second: 1.0, over: Nanos::millis(25), dirty };
        let found = [vec![1; dirty], vec![0; clean]].concat();
        PageWrites {
            pid: Pid(1),
            start: Vpn(8),
            interval: Nanos::millis(2),
            reported: vec![reported(false), reported(true)],
            found,
        }
    }

    #[test]
    fn write_samples_are_spaced_by_their_cost() {
        let mut writes = WriteSchedule::default();
        assert!(writes.due(0.03, Tick(0)));
        assert_eq!(WriteSchedule::cost(&[]), None);
        // 15,000 faults are 30 ms: the share of a second.
        let cost = WriteSchedule::cost(&[interval(10_000, 30_000), interval(5_000, 0)]).unwrap();
        assert_eq!(cost, Nanos::millis(30));
        writes.record_report(cost, Tick(7));
        assert!(!writes.due(0.03, Tick(999_000_000)));
        assert!(writes.due(0.03, Tick(1_000_000_007)));
        writes.forget();
        assert!(writes.due(0.03, Tick(8)));
    }

    #[test]
    fn where_nothing_is_written_they_cost_nothing() {
        let mut writes = WriteSchedule::default();
        writes.record_report(WriteSchedule::cost(&[interval(0, 40_000)]).unwrap(), Tick(7));
        assert!(writes.due(0.03, Tick(7)));
    }
}
