//! Headroom on the best tier for memory that comes: made as fast as it comes.

use super::{Engine, StepReport};
use std::collections::VecDeque;
use terrace_types::{Bytes, Move, Nanos, Plan, Snapshot, Tick};

/// How fast memory comes, and what may go down for it.
#[derive(Debug, Default)]
pub(super) struct Headroom {
    /// When it was last asked what the target has in memory.
    asked: Option<Tick>,
    /// The most that it had so far; not known before it is asked.
    peak: Option<Bytes>,
    /// Bytes a second that came between the last two times.
    rate: f64,
    /// What the policy gave, and what is left of it; `None`: not asked since the last decision.
    victims: Option<VecDeque<Move>>,
}

impl Headroom {
    /// More is known of pages, or they are gone, or moved: others may be colder.
    pub fn forget_victims(&mut self) {
        self.victims = None;
    }

    /// Of those processes that are left less may be new.
    pub fn forget_peak(&mut self) {
        self.peak = None;
    }

    /// Bytes a second that will come, by the slower of the last two rates: one burst that is over
    /// says nothing of what comes next. What the target had before and gave back left its space on
    /// either tier, and will be given back again.
    pub fn rate(&mut self, resident: Bytes, now: Tick) -> f64 {
        let since = self.asked.replace(now).map_or(0.0, |then| now.since(then).as_secs_f64());
        let peak = self.peak.unwrap_or(resident);
        self.peak = Some(peak.max(resident));
        let more = resident.saturating_sub(peak).get() as f64;
        let rate = if since > 0.0 { more / since } else { 0.0 };
        rate.min(std::mem::replace(&mut self.rate, rate))
    }

    /// Whether all that the policy gave was taken.
    fn is_used_up(&self) -> bool {
        self.victims.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// The next victims, of so many base pages or a little more.
    fn take(&mut self, wanted: u64) -> Vec<Move> {
        let (mut moves, mut pages) = (Vec::new(), 0);
        let victims = self.victims.get_or_insert_default();
        while pages < wanted {
            let Some(next) = victims.pop_front() else { break };
            pages += u64::from(next.pages);
            moves.push(next);
        }
        moves
    }
}

impl Engine {
    /// Lets `wait` pass and makes headroom meanwhile. Whether the target ended.
    pub(super) fn wait_with_headroom(&mut self, wait: Nanos, report: &mut StepReport) -> bool {
        let until = self.clock.now().after(wait);
        loop {
            let left = until.since(self.clock.now());
            let every = self.located.growth.every(&self.config.tuning);
            if left <= every || !self.can_make_headroom() {
                return left > Nanos::ZERO && self.wait_or_end(left);
            }
            if self.wait_or_end(every) {
                return true;
            }
            self.make_headroom(report);
        }
    }

    /// Whether pages may be demoted for memory that comes, and that can be paid.
    fn can_make_headroom(&mut self) -> bool {
        self.budget.ledger.advance(self.clock.now());
        self.placement.needs().measures
            && self.trackers.sees().pages
            && !self.headroom.is_used_up()
            && self.budget.ledger.beyond_next_sample() > Nanos::ZERO
    }

    /// Demotes as many pages as will come before it is next asked and find no space on the best
    /// tier, as far as that does not put off the next sample.
    pub(super) fn make_headroom(&mut self, report: &mut StepReport) {
        if !self.can_make_headroom() {
            return;
        }
        let (before, now) = (self.own_cpu.used(), self.clock.now());
        let wanted = self.headroom_wanted(now);
        let planned = wanted.and_then(|(pages, snapshot)| self.plan_headroom(pages, snapshot, now));
        let cpu = self.own_cpu.since(before);
        self.spend_between(cpu);
        if let Some((mut plan, snapshot)) = planned {
            let (_, deciding) = self.carry_out(&mut plan, snapshot, u64::MAX, now, report);
            self.spend_between(deciding);
            self.located.due = true;
        }
    }

    /// Base pages that headroom is wanted for; none where it cannot be made.
    fn headroom_wanted(&mut self, now: Tick) -> Option<(u64, Snapshot)> {
        let (before, page) = (self.own_cpu.used(), self.machine.page_size);
        let resident = self.target.resident().ok()?;
        let rate = self.headroom.rate(resident, now);
        let few = self.config.tuning.new_fewest;
        let coming = |every: Nanos| Bytes((rate * every.as_secs_f64()) as u64).pages(page);
        let usual = coming(self.located.growth.every(&self.config.tuning));
        let tiers = if usual > few { self.target.tiers().ok() } else { None };
        // It is asked the more seldom the more that costs.
        self.located.growth.asked(1, self.own_cpu.since(before));
        let tiers = tiers?;
        let free = |rank: usize| tiers.get(rank).map_or(0, |tier| tier.free.pages(page));
        let coming = coming(self.located.growth.every(&self.config.tuning));
        let spendable = self.budget.ledger.beyond_next_sample();
        let each = self.account.move_cost(page, self.config.tuning.move_cost_pages).get();
        let payable = spendable.get().checked_div(each).unwrap_or(u64::MAX);
        let wanted = coming.saturating_sub(free(0)).min(free(1)).min(payable);
        let snapshot = Snapshot {
            page_size: page,
            tiers,
            sees: self.trackers.sees(),
            move_cost: Nanos(each),
            spendable: Some(spendable),
            ..Snapshot::default()
        };
        (wanted > 0).then_some((wanted, snapshot))
    }

    fn plan_headroom(
        &mut self,
        wanted: u64,
        mut snapshot: Snapshot,
        now: Tick,
    ) -> Option<(Plan, Snapshot)> {
        snapshot.areas = self.heat.lend();
        if self.headroom.victims.is_none() {
            let victims = self.placement.headroom(&snapshot, now);
            self.own_cpu.work += victims.work;
            let pages: u64 = victims.moves.iter().map(|m| u64::from(m.pages)).sum();
            let why =
                format!("memory comes: some of {pages} cold pages make space for what follows");
            self.log.write_decision("headroom", why, self.at(), &mut Vec::new());
            self.headroom.victims = Some(victims.moves.into());
        }
        let moves = self.headroom.take(wanted);
        if moves.is_empty() {
            self.heat.give_back(snapshot.areas);
            return None;
        }
        Some((Plan { moves, ..Plan::default() }, snapshot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_will_come_is_foreseen_by_the_slower_of_two_rates() {
        let at = |ms: u64| Tick(ms * 1_000_000);
        let mut headroom = Headroom::default();
        let mut mib_a_second =
            |mib: u64, ms: u64| (headroom.rate(Bytes::mib(mib), at(ms)) / 1_048_576.0).round();
        assert_eq!(mib_a_second(500, 0), 0.0, "what was there did not come");
        assert_eq!(mib_a_second(510, 10), 0.0, "it may be over");
        assert_eq!(mib_a_second(540, 20), 1_000.0);
        assert_eq!(mib_a_second(541, 30), 100.0);
        assert_eq!(mib_a_second(300, 40), 0.0, "it was given back");
        assert_eq!([mib_a_second(400, 50), mib_a_second(500, 60)], [0.0; 2], "it was there");
        assert_eq!([mib_a_second(551, 70), mib_a_second(561, 80)], [0.0, 1_000.0]);
        headroom.forget_peak();
        let of_others = [300, 310, 320].map(|mib| headroom.rate(Bytes::mib(mib), at(mib)));
        assert_eq!(of_others[..2], [0.0; 2]);
        assert!(of_others[2] > 0.0);
    }
}
