//! Headroom on the best tier: free space for newly faulted pages, made as fast as the target faults
//! them in (docs/adr/0372-demote-cold-pages-as-fast-as-memory-comes.md), from when that tier is
//! filled for the first time (ADR 0373).

use super::{Engine, Next, NextInterval, SampleStart, StepReport};
use crate::trackers::TrackerSet;
use std::collections::VecDeque;
use terrace_types::{Bytes, Move, Nanos, Pid, Plan, Snapshot, Tick, VpnRange};

/// How fast the target grows, and the pages to demote for that.
#[derive(Debug, Default)]
pub(super) struct Headroom {
    /// Time of the last update of the rate.
    updated: Option<Tick>,
    /// Largest resident memory so far; `None` before the first update.
    peak: Option<Bytes>,
    /// Growth beyond the peak between the last two updates, bytes a second.
    growth_rate: f64,
    /// Pages that the policy chose and the engine has not tried yet; `None`: the policy was not
    /// asked since the last decision.
    victims: Option<VecDeque<Move>>,
    /// When pages were last sampled, and the target's resident memory then.
    sampled: Option<(Tick, Bytes)>,
    /// A sample is needed, to choose pages or because short ones did not tell whether demoting them
    /// pays.
    pub sample_due: bool,
    /// Free memory of the best tier when it was last asked for, less growth since.
    free: Bytes,
    /// Bytes demoted for pages that the target has not faulted in yet.
    reserved: Bytes,
}

impl Headroom {
    /// A new sample, an unmapping or a move may have made other pages the coldest, and moves take
    /// free memory.
    pub fn forget_victims(&mut self) {
        self.victims = None;
        self.free = Bytes::ZERO;
    }

    /// Demotions were undone: nothing is reserved, and no page is to be demoted.
    pub fn give_up(&mut self) {
        self.forget_victims();
        self.reserved = Bytes::ZERO;
    }

    /// All pages of so much memory were sampled, for headroom or otherwise.
    pub fn note_sample(&mut self, resident: Bytes, now: Tick) {
        self.sampled = Some((now, resident));
        self.sample_due = false;
    }

    /// Whether the last sample is older than `memory`.
    fn is_sample_old(&self, now: Tick, memory: Nanos) -> bool {
        self.sampled.is_none_or(|(at, _)| now.since(at) > memory)
    }

    /// How many times as much memory the target has as at the last sample; 1 at least.
    fn grown_since_sample(&self, resident: Bytes) -> f64 {
        let had = self.sampled.map_or(resident, |(_, had)| had);
        (resident.get() as f64 / had.get().max(1) as f64).max(1.0)
    }

    /// A process ended: the peak included its memory.
    pub fn forget_peak(&mut self) {
        self.peak = None;
        self.reserved = Bytes::ZERO;
    }

    /// Bytes demoted for pages that the target has not faulted in yet, of those `free` on the best
    /// tier: promotions or others may have taken some.
    pub fn left(&mut self, free: Bytes) -> Bytes {
        self.reserved = self.reserved.min(free);
        self.reserved
    }

    /// Updates the rate of growth and predicts it, in bytes a second: the slower of the last two
    /// rates, because a burst that has ended predicts nothing. Memory below the peak does not
    /// count: the target had it before, freed the space it took, and will free it again.
    pub fn update_growth_rate(&mut self, resident: Bytes, now: Tick) -> f64 {
        let since = self.updated.replace(now).map_or(0.0, |then| now.since(then).as_secs_f64());
        let peak = self.peak.unwrap_or(resident);
        self.peak = Some(peak.max(resident));
        let more = resident.saturating_sub(peak);
        self.reserved = self.reserved.saturating_sub(more);
        self.free = self.free.saturating_sub(more);
        let rate = if since > 0.0 { more.get() as f64 / since } else { 0.0 };
        rate.min(std::mem::replace(&mut self.growth_rate, rate))
    }

    /// Whether the policy was asked and none of its pages are left.
    fn is_used_up(&self) -> bool {
        self.victims.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// Growth in so much time, at the last rate.
    pub fn growth_in(&self, time: Nanos) -> Bytes {
        Bytes((self.growth_rate * time.as_secs_f64()) as u64)
    }

    /// Removes the next victims: `wanted` base pages, or up to one move more. Skips those that were
    /// accessed since their bits were last cleared: CLOCK's second chance.
    fn take_victims(&mut self, wanted: u64, trackers: &mut TrackerSet) -> Vec<Move> {
        let (mut moves, mut pages) = (Vec::new(), 0);
        let victims = self.victims.get_or_insert_default();
        while pages < wanted && !victims.is_empty() {
            let (mut next, mut sum) = (Vec::new(), pages);
            while sum < wanted {
                let Some(one) = victims.pop_front() else { break };
                sum += u64::from(one.pages);
                next.push(one);
            }
            let ranges: Vec<(Pid, VpnRange)> = next.iter().map(|m| (m.pid, m.range())).collect();
            let accessed = trackers.accessed(&ranges).unwrap_or_default();
            for (at, one) in next.into_iter().enumerate() {
                if accessed.get(at) != Some(&true) {
                    pages += u64::from(one.pages);
                    moves.push(one);
                }
            }
        }
        moves
    }
}

impl Engine {
    /// Waits, and makes or checks headroom while waiting. Returns whether the target ended.
    pub(super) fn wait_with_headroom(&mut self, wait: Nanos, report: &mut StepReport) -> bool {
        let until = self.clock.now().after(wait);
        loop {
            let left = until.since(self.clock.now());
            let able = self.can_make_headroom();
            let every = self.located.growth.every(&self.config.tuning);
            // Where no headroom can be made, growth matters to samples alone.
            let to_sample = self.headroom_check.time_to_sample(self.clock.now());
            let every =
                if able { every } else { every.max(to_sample.min(self.config.first_interval)) };
            if left <= every || !able && !self.headroom_check.is_open() {
                return left > Nanos::ZERO && self.wait_or_end(left);
            }
            if self.wait_or_end(every) {
                return true;
            }
            match able {
                true => self.make_headroom(report),
                false => self.watch_growth(),
            }
            if !self.sampling.under_way {
                self.check_headroom(report);
            }
            let able = matches!(self.next.kind, Next::Idle | Next::Sample(SampleStart::AtEnd));
            if self.headroom.sample_due && able && !self.sampling.under_way {
                return false;
            }
        }
    }

    /// Asks only whether the target still grows.
    fn watch_growth(&mut self) {
        let before = self.own_cpu.used();
        if let Ok(resident) = self.target.resident() {
            self.headroom.update_growth_rate(resident, self.clock.now());
        }
        let cpu = self.own_cpu.since(before);
        self.located.growth.asked(1, cpu);
        self.spend_between(cpu);
    }

    /// Samples all pages next if headroom needs that.
    pub(super) fn sample_for_headroom(&mut self) -> bool {
        let due = std::mem::take(&mut self.headroom.sample_due);
        if due {
            let length = self.config.tuning.prescan_sample;
            self.next = NextInterval::sample(length, SampleStart::WhileFilling);
        }
        due
    }

    /// Whether the policy chooses pages for headroom and the ledger can pay for moving them.
    fn can_make_headroom(&mut self) -> bool {
        self.budget.ledger.advance(self.clock.now());
        let needs = self.placement.needs();
        // Where writes matter, a page is not known to be cold before they are.
        needs.measures
            && (!needs.writes || self.heat.knows_writes())
            && self.trackers.sees().pages
            && !self.headroom.is_used_up()
            && !self.headroom_check.has_lost()
            && self.budget.ledger.beyond_next_sample() > Nanos::ZERO
    }

    /// What moving a base page costs, as measured or as the machine file has it.
    pub(super) fn move_cost(&self) -> Nanos {
        let fewest = self.config.tuning.move_cost_pages;
        match self.account.move_cost(self.machine.page_size, fewest) {
            Nanos::ZERO => Nanos(self.machine.migration.page_of_a_call() as u64),
            measured => measured,
        }
    }

    /// Demotes as many pages as the target will fault in until the next call and the best tier has
    /// no space for. Leaves what the next sample costs in the ledger.
    pub(super) fn make_headroom(&mut self, report: &mut StepReport) {
        if !self.can_make_headroom() {
            return;
        }
        let (before, now) = (self.own_cpu.used(), self.clock.now());
        let wanted = self.headroom_wanted(now);
        let planned = wanted.and_then(|(pages, snapshot)| {
            self.locate_older(&snapshot, report);
            self.plan_headroom(pages, snapshot)
        });
        let cpu = self.own_cpu.since(before);
        self.spend_between(cpu);
        if let Some((mut plan, snapshot)) = planned {
            let (_, deciding, done) = self.carry_out(&mut plan, snapshot, u64::MAX, now, report);
            let demoted: u64 = done.iter().map(|m| u64::from(m.pages)).sum();
            self.headroom.reserved += Bytes(demoted * self.machine.page_size.get());
            let cost = Nanos(demoted.saturating_mul(self.move_cost().get()));
            self.headroom_check.record_demotions(done, cost, self.heat.areas());
            self.spend_between(deciding);
            self.located.require_locating_new();
        }
    }

    /// Number of base pages to demote, with the tiers as they are; `None`: demote nothing.
    fn headroom_wanted(&mut self, now: Tick) -> Option<(u64, Snapshot)> {
        let (before, page) = (self.own_cpu.used(), self.machine.page_size);
        let resident = self.target.resident().ok()?;
        let rate = self.headroom.update_growth_rate(resident, now);
        let tuning = &self.config.tuning;
        let pages = |over: Nanos| Bytes((rate * over.as_secs_f64()) as u64).pages(page);
        // The dearer this, the rarer the next updates: `growth.every` bounds its share. Reading the
        // tiers below is booked, and bounded by the ledger alone.
        self.located.growth.asked(1, self.own_cpu.since(before));
        let every = self.located.growth.every(tuning);
        if pages(every) <= tuning.new_fewest {
            return None;
        }
        let untracked = matches!(self.next.kind, Next::Idle | Next::WarmUp { .. });
        let is_old = self.headroom.is_sample_old(now, self.config.heat.memory);
        // Of most pages nothing is known once there are twice as many.
        let grown = self.headroom.grown_since_sample(resident);
        let needs_sample = untracked && (is_old || grown > 2.0);
        let sample_time = if needs_sample { tuning.prescan_sample } else { Nanos::ZERO };
        let coming = pages(every + sample_time);
        if self.headroom.free.pages(page) > 2 * coming {
            return None;
        }
        let tiers = self.target.tiers().ok()?;
        let free = |rank: usize| tiers.get(rank).map_or(0, |tier| tier.free.pages(page));
        self.headroom.free = tiers.first()?.free;
        if coming <= free(0) || free(1) == 0 {
            return None;
        }
        let spendable = self.budget.ledger.beyond_next_sample();
        if needs_sample {
            let present = resident.pages(page);
            let usual = Nanos(present.saturating_mul(tuning.sample_page_cost.get()));
            let cost = self.budget.ledger.sample_cost().unwrap_or(usual).get() as f64 * grown;
            self.headroom.sample_due = 2.0 * cost <= spendable.get() as f64;
            if is_old || self.headroom.sample_due {
                return None;
            }
        }
        let coming = match self.account.moved() {
            true => coming,
            // Demote all cold pages: the next allocation may be as large as the tier.
            false => tiers.first()?.capacity.pages(page),
        };
        let each = self.move_cost().get();
        let payable = spendable.get() / each.max(1);
        let wanted = coming.saturating_sub(free(0)).min(free(1)).min(payable);
        let snapshot = Snapshot {
            page_size: page,
            tiers,
            sees: self.trackers.sees(),
            move_cost: Nanos(each),
            spendable: Some(spendable),
            gets_huge_pages: self.target.gets_huge_pages(),
            ..Snapshot::default()
        };
        (wanted > 0).then_some((wanted, snapshot))
    }

    /// Locates pages before the first of them is demoted for newer ones: what such demotions gain
    /// is told by the pages that come from now on.
    fn locate_older(&mut self, snapshot: &Snapshot, report: &mut StepReport) {
        let first = self.headroom.victims.is_none() && self.placement.notes_older(snapshot);
        if first && self.refresh_mappings(report).is_ok() {
            // Those that cannot be located count as newer.
            let _ = self.target.locate_new(self.heat.areas_mut());
        }
    }

    fn plan_headroom(&mut self, wanted: u64, mut snapshot: Snapshot) -> Option<(Plan, Snapshot)> {
        snapshot.areas = self.heat.lend();
        if self.headroom.victims.is_none() {
            let victims = self.placement.headroom(&snapshot);
            self.own_cpu.work += victims.work;
            let pages: u64 = victims.moves.iter().map(|m| u64::from(m.pages)).sum();
            if pages > 0 {
                let why = format!(
                    "the target grows beyond its peak: up to {pages} cold pages are demoted for it"
                );
                self.log.write_decision("headroom", why, self.at(), &mut Vec::new());
            }
            self.headroom.victims = Some(victims.moves.into());
        }
        let moves = self.headroom.take_victims(wanted, &mut self.trackers);
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
    fn growth_is_predicted_by_the_slower_of_the_last_two_rates() {
        let at = |ms: u64| Tick(ms * 1_000_000);
        let mut headroom = Headroom::default();
        let mut mib_a_second = |mib: u64, ms: u64| {
            (headroom.update_growth_rate(Bytes::mib(mib), at(ms)) / 1_048_576.0).round()
        };
        assert_eq!(mib_a_second(500, 0), 0.0, "the first update knows no growth");
        assert_eq!(mib_a_second(510, 10), 0.0, "one burst predicts nothing");
        assert_eq!(mib_a_second(540, 20), 1_000.0);
        assert_eq!(mib_a_second(541, 30), 100.0);
        assert_eq!(mib_a_second(300, 40), 0.0, "memory was freed");
        assert_eq!([mib_a_second(400, 50), mib_a_second(500, 60)], [0.0; 2], "below the peak");
        assert_eq!([mib_a_second(551, 70), mib_a_second(561, 80)], [0.0, 1_000.0]);
        headroom.forget_peak();
        let after_an_end =
            [300, 310, 320].map(|mib| headroom.update_growth_rate(Bytes::mib(mib), at(mib)));
        assert_eq!(after_an_end[..2], [0.0; 2]);
        assert!(after_an_end[2] > 0.0);
    }

    #[test]
    fn a_sample_is_needed_again_once_most_pages_are_new() {
        let at = |ms: u64| Tick(ms * 1_000_000);
        let mut headroom = Headroom::default();
        let is_old = |headroom: &Headroom, ms| headroom.is_sample_old(at(ms), Nanos::secs(1));
        assert!(is_old(&headroom, 0), "none was made");
        assert_eq!(headroom.grown_since_sample(Bytes::mib(100)), 1.0);
        headroom.note_sample(Bytes::mib(100), at(10));
        assert_eq!(headroom.grown_since_sample(Bytes::mib(250)), 2.5);
        assert_eq!(headroom.grown_since_sample(Bytes::mib(50)), 1.0, "it shrank");
        assert!(!is_old(&headroom, 1_010) && is_old(&headroom, 1_011));
    }

    #[test]
    fn freed_space_is_reserved_for_growth_until_it_is_taken() {
        let mut headroom = Headroom { reserved: Bytes::mib(10), ..Headroom::default() };
        headroom.update_growth_rate(Bytes::mib(100), Tick(0));
        headroom.update_growth_rate(Bytes::mib(104), Tick(5_000_000));
        assert_eq!(headroom.left(Bytes::mib(20)), Bytes::mib(6), "4 MiB came");
        let taken = [1, 20].map(|free| headroom.left(Bytes::mib(free)));
        assert_eq!(taken, [Bytes::mib(1); 2], "others took the rest");
    }
}
