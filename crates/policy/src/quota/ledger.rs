use super::TokenBucket;
use std::collections::VecDeque;
use terrace_types::{Nanos, Tick};

/// How the next interval should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingPace {
    /// Time to let pass, untracked, before the next interval.
    pub rest: Nanos,
    /// Trackers should spend as little as they can.
    pub thrifty: bool,
}

/// Keeps what managing costs (tracking, deciding, moving) within a share of one core in any time as
/// long as `over`, and what it spends beyond that within what it was measured to gain.
///
/// Measured gains that were not spent are kept, [`LedgerTuning::reinvested`] of them and
/// [`LedgerTuning::most_gained`] seconds at most, and pay for what the share does not. A loss that
/// is certain is spent like a cost; one that may be chance counts against gains alone. What would
/// overdraw both is not begun, as far as its cost is known beforehand. So after `t` seconds
///
/// `costs + losses <= share (t + over) + reinvested * gains + excess`,
///
/// where the losses are those that were certain and booked (not all are, ADR 0381), the gains are
/// those that were booked, less losses that may be chance (ADR 0382), and the excess is by how much
/// intervals cost more than those before them. Against a program left alone, which has none of
/// these, the first term and the last are lost at most, if the gains were at least half of what
/// they were taken for.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuLedger {
    share: f64,
    over: Nanos,
    /// What was spent of the share, and when, as far back as `over`: an entry for each part of it
    /// ([`LedgerTuning::entries`]) in which something was spent. An entry counts from the end of
    /// its part, so that none is gone before `over` has passed.
    spent: VecDeque<(Tick, f64)>,
    /// Their sum.
    sum: f64,
    now: Tick,
    /// In place of these where gains are not measured.
    bursts: Option<TokenBucket>,
    /// Gains kept; negative: a debt of losses that may be chance.
    gained: f64,
    /// Seconds of CPU an interval costs: in full, and thrifty; zero while not known.
    window_cost: [f64; 2],
    /// The same of a quick scan; none were made while it is zero.
    quick_scan_cost: f64,
    /// Seconds of CPU that moves after the next sample are expected to cost.
    moves_cost: f64,
}

crate::tuning! {
    /// The constants of the ledger, each with its unit and its reason.
    pub struct LedgerTuning:
    /// Part of the share that steady tracking may use. The rest is saved up for bursts.
    steady: f64 = 2.0 / 3.0;
    /// Part of a measured gain that may be spent: what an access saves is known within a factor of
    /// two at best ([`crate::place::worth::AccessWorth`]).
    reinvested: f64 = 0.5;
    /// Seconds of gains that are kept at most: what came later is not given up for what was gained
    /// before.
    most_gained: f64 = 1.0;
    /// Parts of the averaging time: what is spent within one is kept as one entry.
    entries: u64 = 128;
    /// A sample of more pages than a second's share pays for is made at last, after so long.
    longest_rest: Nanos = Nanos::secs(60);
    /// The same where bursts are allowed.
    longest_pause: Nanos = Nanos::secs(5);
}

const TUNING: LedgerTuning = LedgerTuning::USUAL;

impl CpuLedger {
    /// `share` of one core (0.03: three per cent), averaged over `over`.
    #[must_use]
    pub fn new(share: f64, over: Nanos) -> Self {
        let share = if share.is_finite() { share.clamp(0.0, 64.0) } else { 0.0 };
        Self {
            share,
            over,
            spent: VecDeque::new(),
            sum: 0.0,
            now: Tick(0),
            bursts: None,
            gained: 0.0,
            window_cost: [0.0; 2],
            quick_scan_cost: 0.0,
            moves_cost: 0.0,
        }
    }

    /// Expects moves of this cost after the next sample, which then waits until they can be paid
    /// too, or as many of them as cost what the sample does: what it finds is of no use while no
    /// page may move.
    pub fn expect_moves(&mut self, cost: Nanos) {
        self.moves_cost = cost.as_secs_f64();
    }

    /// Where nothing measures gains: bursts are allowed while there may be something to gain. A
    /// third of what the share brings in `over` is kept for them, and steady tracking may use the
    /// other two thirds, so that no such time costs more than the share.
    #[must_use]
    pub fn with_bursts(share: f64, over: Nanos) -> Self {
        let bursts = TokenBucket::new(share * TUNING.steady, Nanos(over.get() / 2));
        Self { bursts: Some(bursts), ..Self::new(share, over) }
    }

    /// Books what an interval and its decision cost. `thrifty` as [`SamplingPace`] had it.
    pub fn book(&mut self, cpu: Nanos, thrifty: bool, now: Tick) {
        self.spend(cpu, now);
        learn(&mut self.window_cost[usize::from(thrifty)], cpu);
    }

    /// Books what a quick scan cost.
    pub fn charge_quick_scan(&mut self, cpu: Nanos, now: Tick) {
        self.spend(cpu, now);
        learn(&mut self.quick_scan_cost, cpu);
    }

    /// Books what something else cost, which says nothing of what intervals or quick scans will.
    pub fn spend(&mut self, cpu: Nanos, now: Tick) {
        self.advance(now);
        self.take(cpu.as_secs_f64());
    }

    /// Lets time pass.
    pub fn advance(&mut self, now: Tick) {
        self.now = now;
        if let Some(bursts) = &mut self.bursts {
            return bursts.advance(now);
        }
        while let Some((_, cost)) =
            self.spent.front().copied().filter(|(at, _)| now.since(*at) >= self.over)
        {
            self.sum -= cost;
            self.spent.pop_front();
        }
        if self.spent.is_empty() {
            self.sum = 0.0;
        }
    }

    /// Books what placement was measured to save the program, seconds; negative: to cost it. A loss
    /// beyond `least`, which is zero at most, may be chance, as gains may: it reduces the gains
    /// kept, to a debt of at most what the share allows in its averaging time. Later gains repay
    /// that first.
    pub fn gain(&mut self, seconds: f64, least: f64) {
        let lost = (-seconds.max(least)).max(0.0);
        if lost > 0.0 {
            self.take(lost);
        }
        let gained = self.gained + TUNING.reinvested * (seconds + lost);
        self.gained = gained.clamp(-self.share * self.over.as_secs_f64(), TUNING.most_gained);
    }

    /// Of the share first; gains are for what it does not pay.
    fn take(&mut self, seconds: f64) {
        if let Some(bursts) = &mut self.bursts {
            return bursts.spend(seconds);
        }
        let over = (seconds - self.of_share().max(0.0)).clamp(0.0, self.gained.max(0.0));
        self.gained -= over;
        let cost = seconds - over;
        self.sum += cost;
        let part = (self.over.get() / TUNING.entries).max(1);
        let end = Tick(self.now.0.div_ceil(part).saturating_mul(part));
        match self.spent.back_mut() {
            Some((at, all)) if *at == end => *all += cost,
            _ => self.spent.push_back((end, cost)),
        }
    }

    /// What the share allows in its averaging time.
    #[must_use]
    pub fn most_of_share(&self) -> Nanos {
        Nanos((self.share * self.over.as_secs_f64() * 1e9) as u64)
    }

    /// What the share still allows; negative when overdrawn.
    fn of_share(&self) -> f64 {
        if let Some(bursts) = &self.bursts {
            return bursts.level();
        }
        self.share * self.over.as_secs_f64() - self.sum
    }

    /// Time until the share allows `cost`, or all that it ever does.
    fn time_until(&self, cost: f64) -> Nanos {
        let mut left = self.of_share();
        let cost = cost.min(self.share * self.over.as_secs_f64());
        let mut paid = self.spent.iter();
        let mut wait = Nanos::ZERO;
        while left < cost {
            let Some((at, back)) = paid.next() else { break };
            left += back;
            wait = at.after(self.over).since(self.now);
        }
        wait
    }

    /// Time from quick scan to quick scan that half of the steady share pays for.
    #[must_use]
    pub fn quick_scan_interval(&self) -> Nanos {
        self.sustainable(self.quick_scan_cost, TUNING.steady / 2.0)
    }

    /// How often something may be done for a part of the share.
    fn sustainable(&self, cost: f64, part: f64) -> Nanos {
        let every = if self.share > 0.0 { cost / (self.share * part) } else { f64::INFINITY };
        Nanos((every * 1e9) as u64).min(TUNING.longest_rest)
    }

    /// How the next interval of length `interval` should run. `urgent`: heat has not settled, or a
    /// gain is predicted.
    #[must_use]
    pub fn pace(&self, interval: Nanos, urgent: bool) -> SamplingPace {
        if self.share <= 0.0 {
            return SamplingPace { rest: TUNING.longest_rest, thrifty: true };
        }
        let [full, thrifty] = self.window_cost;
        let enough = if self.bursts.is_some() { 0.0 } else { self.with_moves(full) };
        if urgent && self.left_seconds() > enough {
            return SamplingPace { rest: Nanos::ZERO, thrifty: false };
        }
        let known = thrifty > 0.0 || self.bursts.is_some();
        let cost = if known { thrifty } else { full };
        let affordable = match self.bursts {
            Some(_) => Nanos::ZERO,
            None => self.time_until((self.with_moves(cost) - self.gained.max(0.0)).max(0.0)),
        };
        // Quick scans have the other half.
        let part = if self.quick_scan_cost > 0.0 { TUNING.steady / 2.0 } else { TUNING.steady };
        let waits = !urgent || self.bursts.is_some();
        let steady = if waits { self.sustainable(cost, part) } else { Nanos::ZERO };
        let rest = affordable.max(steady.saturating_sub(interval));
        let longest =
            if self.bursts.is_some() { TUNING.longest_pause } else { TUNING.longest_rest };
        SamplingPace { rest: rest.min(longest), thrifty: true }
    }

    /// What a sample of this cost takes with the moves that are expected after it: at most as much
    /// again, and no more than half of the share in all, so that it is not put off for good by the
    /// checks that go on meanwhile.
    fn with_moves(&self, cost: f64) -> f64 {
        cost + self.moves_cost.min(self.most_with(cost))
    }

    /// The most that is put by for moves after a sample of this cost.
    fn most_with(&self, cost: f64) -> f64 {
        let half = self.share * self.over.as_secs_f64() / 2.0;
        cost.min((half - cost).max(0.0))
    }

    /// What a full sample has cost lately, with its decision; `None` before the first.
    #[must_use]
    pub fn sample_cost(&self) -> Option<Nanos> {
        let [full, _] = self.window_cost;
        (full > 0.0).then_some(Nanos((full * 1e9) as u64))
    }

    /// CPU time that may still be spent; negative when overdrawn.
    #[must_use]
    pub fn left_seconds(&self) -> f64 {
        self.of_share() + self.gained.max(0.0)
    }

    /// Time until gains of so many seconds a second pay for the next sample; the longest rest where
    /// there are none.
    #[must_use]
    pub fn time_to_gain(&self, gain: f64) -> Nanos {
        let [full, thrifty] = self.window_cost;
        let cost = if thrifty > 0.0 { thrifty } else { full };
        let lacking = (self.with_moves(cost) - self.left_seconds()).max(0.0);
        let time = if gain > 0.0 { lacking / (TUNING.reinvested * gain) } else { f64::INFINITY };
        Nanos((time * 1e9) as u64).min(TUNING.longest_rest)
    }

    /// CPU time that moves may take without delaying the next sample, or moves after it that cost
    /// as much again: what it finds is of no use while no page may move.
    #[must_use]
    pub fn beyond_next_sample(&self) -> Nanos {
        let [full, thrifty] = self.window_cost;
        let cost = full.max(thrifty);
        self.for_moves(Nanos(((cost + self.most_with(cost)) * 1e9) as u64))
    }

    /// What may be spent on moves after an interval that cost `interval`, not booked yet.
    #[must_use]
    pub fn for_moves(&self, interval: Nanos) -> Nanos {
        let left = self.left_seconds() - interval.as_secs_f64();
        Nanos((left.max(0.0) * 1e9) as u64)
    }
}

fn learn(known: &mut f64, cpu: Nanos) {
    let cost = cpu.as_secs_f64();
    *known = if *known == 0.0 { cost } else { 0.7 * *known + 0.3 * cost };
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_testkit::Rng;

    const SECOND: u64 = 1_000_000_000;

    /// Urgent intervals of 100 ms at `cost`, with `gain` seconds a second measured meanwhile; CPU
    /// seconds used in each second.
    fn spent(seconds: usize, cost: Nanos, gain: impl Fn(f64) -> f64) -> Vec<f64> {
        spent_by_chance(seconds, cost, |t| (gain(t), gain(t).min(0.0)))
    }

    /// The same with the least that is certain of each gain.
    fn spent_by_chance(seconds: usize, cost: Nanos, gain: impl Fn(f64) -> (f64, f64)) -> Vec<f64> {
        let mut ledger = CpuLedger::new(0.03, Nanos::secs(1));
        let (mut now, interval) = (Tick(0), Nanos::millis(100));
        let mut each = vec![0.0; seconds];
        loop {
            let pace = ledger.pace(interval, true);
            let then = now;
            now = now.after(pace.rest).after(interval);
            let Some(of) = each.get_mut((now.0 / SECOND) as usize) else { return each };
            let cpu = if pace.thrifty { Nanos(cost.get() / 2) } else { cost };
            *of += cpu.as_secs_f64();
            ledger.book(cpu, pace.thrifty, now);
            let passed = now.since(then).as_secs_f64();
            let (gained, least) = gain(now.0 as f64 / 1e9);
            ledger.gain(gained * passed, least * passed);
        }
    }

    #[test]
    fn no_second_costs_more_than_the_share_and_what_was_saved_of_it() {
        for ms in [5, 9, 14] {
            let each = spent(60, Nanos::millis(ms), |_| 0.0);
            let all: f64 = each.iter().sum();
            assert!(all <= 0.03 * 61.0 + 0.001, "{ms} ms: {all}");
            assert!(all > 0.03 * 60.0 * 0.75, "{ms} ms: {all} is too little");
            let most = each.iter().fold(0.0f64, |most, s| most.max(*s));
            assert!(most <= 0.03 + 1e-9, "{ms} ms: {most} in a second");
        }
    }

    #[test]
    fn what_was_gained_may_be_spent_and_no_more() {
        // A tenth of a second a second for three seconds, and nothing from then on.
        let gain = |t: f64| if t < 3.0 { 0.1 } else { 0.0 };
        let each = spent(60, Nanos::millis(14), gain);
        let all: f64 = each.iter().sum();
        let most = 0.03 * 61.0 + TUNING.reinvested * 0.3 + 0.014;
        assert!(all <= most && all > 0.03 * 60.0 * 0.9, "{all} of {most}");
        assert!(each[2] > 0.05, "{each:?}");
        assert!(each[10..].iter().all(|s| *s < 0.045), "{each:?}");
    }

    #[test]
    fn losses_by_chance_count_against_gains_by_chance() {
        // A tenth of a second a second more or less than `mean`, none of it certain.
        let all = |mean: f64, least: f64| {
            let rng = std::cell::RefCell::new(Rng(1));
            let gain = |_| mean + 0.1 * (rng.borrow_mut().unit() - 0.5).signum();
            let each = spent_by_chance(60, Nanos::millis(14), |t| (gain(t).max(least), 0.0));
            each.iter().sum::<f64>()
        };
        let none: f64 = spent(60, Nanos::millis(14), |_| 0.0).iter().sum();
        let (chance, upwards) = (all(0.0, -1.0), all(0.0, 0.0));
        assert!(chance - none < 0.7 * (upwards - none), "{none}, {chance}, {upwards}");
        let gains = all(0.05, -1.0);
        assert!(gains - none > 0.8 * (upwards - none), "as much gained: {gains}, {upwards}");
    }

    #[test]
    fn a_loss_by_chance_is_a_debt_of_gains_alone() {
        let mut ledger = CpuLedger::new(0.03, Nanos::secs(1));
        for (gain, least, left_ms) in [
            (-1.0, 0.0, 30.0),
            (0.06, 0.0, 30.0),
            (0.02, 0.0, 40.0),
            (-0.02, 0.0, 30.0),
            (-0.02, -0.01, 20.0),
            (0.02, 0.0, 25.0),
        ] {
            ledger.gain(gain, least);
            let left = ledger.left_seconds() * 1e3;
            assert!((left - left_ms).abs() < 1e-6, "{left} ms after {gain}, {least} at least");
        }
    }

    #[test]
    fn what_is_spent_beyond_the_next_sample_leaves_its_cost_and_moves_after_it() {
        let mut ledger = CpuLedger::new(0.03, Nanos::secs(1));
        assert_eq!(ledger.beyond_next_sample(), Nanos::millis(30), "none was made yet");
        ledger.book(Nanos::millis(10), false, Tick(0));
        let ms = |ledger: &CpuLedger| ledger.beyond_next_sample().as_secs_f64() * 1e3;
        // Of 20 ms left the sample takes 10, and moves what half of the share has beyond that.
        assert!((ms(&ledger) - 5.0).abs() < 1e-3, "{}", ms(&ledger));
        ledger.spend(ledger.beyond_next_sample(), Tick(0));
        assert!(ledger.beyond_next_sample() < Nanos::micros(1));
        assert!(ledger.left_seconds() > 0.0149);
        ledger.spend(Nanos::millis(20), Tick(0));
        assert_eq!(ledger.beyond_next_sample(), Nanos::ZERO, "overdrawn");
    }

    #[test]
    fn gains_pay_for_the_next_sample_in_time() {
        let mut ledger = CpuLedger::new(0.03, Nanos::secs(1));
        ledger.book(Nanos::millis(20), true, Tick(0));
        ledger.spend(Nanos::millis(25), Tick(0));
        // 15 ms overdrawn, and 20 for the sample, of which half of 100 ms a second pays.
        assert_eq!(ledger.time_to_gain(0.1).get() / 1_000_000, 700);
        assert_eq!(ledger.time_to_gain(0.0), TUNING.longest_rest);
        ledger.gain(0.2, 0.0);
        assert_eq!(ledger.time_to_gain(0.1), Nanos::ZERO);
        assert_eq!(ledger.for_moves(Nanos::millis(5)).get() / 1_000_000, 80);
    }

    #[test]
    fn a_sample_waits_until_moves_after_it_can_be_paid_too() {
        let (mut ledger, interval) = (CpuLedger::new(0.03, Nanos::secs(1)), Nanos::millis(100));
        ledger.book(Nanos::millis(10), false, Tick(0));
        ledger.spend(Nanos::millis(8), Tick(0));
        // 12 ms are left, and a sample costs 10.
        for (moves_ms, gained, waits) in [
            (0, 0.0, false),
            (1, 0.0, false),
            (5, 0.0, true),
            (1_000, 0.0, true),
            (1_000, 0.02, false),
        ] {
            ledger.expect_moves(Nanos::millis(moves_ms));
            ledger.gain(gained, 0.0);
            let pace = ledger.pace(interval, true);
            assert_eq!(pace.rest > Nanos::ZERO, waits, "{moves_ms} ms of moves, {gained} gained");
        }
        ledger.spend(Nanos::millis(10), Tick(0));
        // 12 ms are left again, 15 are needed, half of the share, and half of 100 ms a second is
        // gained.
        assert_eq!(ledger.time_to_gain(0.1).get() / 1_000_000, 60);
        ledger.advance(Tick(SECOND - 1));
        assert!(ledger.pace(interval, true).rest.get() <= 2, "the share comes back");
    }

    #[test]
    fn what_was_spent_comes_back_though_small_costs_go_on() {
        let mut ledger = CpuLedger::new(0.007, Nanos::secs(4));
        let at = |ms: u64| Tick(ms * 1_000_000);
        ledger.spend(Nanos::millis(27), at(20));
        let mut left_after = |until: u64| {
            for ms in (until - 200..=until).step_by(5) {
                ledger.spend(Nanos::micros(1), at(ms));
            }
            ledger.left_seconds()
        };
        let before: Vec<f64> = (1..=20).map(|part| left_after(200 * part + 10)).collect();
        assert!(before.iter().all(|left| *left < 0.001), "{before:?}");
        let left = left_after(4_210);
        assert!((left - 0.028).abs() < 0.001, "{left} of 0.028");
        assert!(ledger.spent.len() <= TUNING.entries as usize + 1, "{}", ledger.spent.len());
    }

    #[test]
    fn a_loss_is_paid_for_like_a_cost() {
        let all = |gain: f64| spent(60, Nanos::millis(9), move |_| gain).iter().sum::<f64>();
        let (none, some) = (all(0.0), all(-0.01));
        assert!(some < none - 0.01 * 60.0 * 0.7, "{some} after a loss, {none} without");
    }

    #[test]
    fn settled_tracking_keeps_to_its_part() {
        let mut ledger = CpuLedger::new(0.03, Nanos::secs(1));
        let (mut now, mut cpu) = (Tick(0), Nanos::ZERO);
        while now < Tick(300 * SECOND) {
            let interval = Nanos::millis(100);
            let pace = ledger.pace(interval, false);
            now = now.after(interval).after(pace.rest);
            ledger.book(Nanos::millis(9), true, now);
            cpu += Nanos::millis(9);
        }
        let share = cpu.as_secs_f64() / Nanos(now.0).as_secs_f64();
        assert!(share < 0.021, "{share}");
    }

    #[test]
    fn bursts_while_urgent_then_the_share() {
        let mut ledger = CpuLedger::with_bursts(0.03, Nanos::secs(60));
        let interval = Nanos::millis(100);
        let (mut now, mut bursts) = (Tick(0), 0);
        while !ledger.pace(interval, true).thrifty {
            bursts += 1;
            now = now.after(interval);
            ledger.book(Nanos::millis(50), false, now);
        }
        assert!((11..20).contains(&bursts), "{bursts}");
    }

    #[test]
    fn a_share_of_nothing_rests() {
        for share in [0.0, f64::NAN, -1.0] {
            let mut ledger = CpuLedger::new(share, Nanos::secs(1));
            ledger.book(Nanos::millis(1), false, Tick(0));
            assert_eq!(ledger.pace(Nanos::millis(100), true).rest, TUNING.longest_rest, "{share}");
        }
    }

    #[test]
    fn a_look_that_the_share_never_pays_is_made_once_nothing_else_is_owed() {
        let mut ledger = CpuLedger::new(0.03, Nanos::secs(1));
        ledger.book(Nanos::millis(90), true, Tick(SECOND));
        let pace = ledger.pace(Nanos::millis(100), true);
        assert_eq!((pace.rest, pace.thrifty), (Nanos::secs(1), true));
        // A second's share three times over is paid in three seconds.
        ledger.book(Nanos::millis(90), true, Tick(2 * SECOND));
        assert_eq!(ledger.pace(Nanos::millis(100), true).rest, Nanos::secs(1));
    }
}
