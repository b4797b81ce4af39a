//! The control loop.
//!
//! One step: read the target's mappings again, start the trackers, let an interval pass, ask them
//! what they saw, merge it into the heat map, read where pages are (only when a decision may
//! follow), let the policy decide, keep its moves within the ledger, move, journal, pass requests
//! on.

mod budget;
mod headroom;
mod headroom_check;
mod interval;
mod located;
mod log;
mod moving;
mod next;
mod prescan;
mod sample_price;
mod stop;

use crate::account::Account;
use crate::journal::{JournalEntry, JournalSummary, NoteEntry, OutcomeEntry};
use crate::quick_scan::{QuickScans, ShiftDetector};
use crate::trackers::{IntervalSamples, TrackerSet};
use crate::write_schedule::WriteSchedule;
use crate::{Clock, Config, EngineParts, Mapping, MappingKind, Mover, Target};
use budget::{Budget, OwnCpu};
use headroom::Headroom;
use headroom_check::HeadroomCheck;
use located::LocatedPages;
use log::JournalLog;
use next::{AfterWarmUp, Cooling, Next, NextInterval, SampleStart};
use prescan::PrescanState;
use sample_price::SampleDebt;
pub use stop::StopReason;
use terrace_machine::Machine;
use terrace_policy::heat::{HeatMap, NodeTally, PageSamples};
use terrace_policy::place::Placement;
use terrace_types::{
    Bytes, Decision, Nanos, Pid, Plan, Request, Seed, Snapshot, ThroughputSource, Tick, TierState,
    VpnRange,
};

/// What one step did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepReport {
    /// When the step ended, since the engine started.
    pub at: Nanos,
    /// Length of the interval.
    pub interval: Nanos,
    /// What was decided.
    pub decisions: Vec<Decision>,
    /// What became of the moves, if any were made.
    pub outcome: Option<OutcomeEntry>,
    /// What the user should be told, each said once.
    pub notes: Vec<String>,
    /// Why no further step can be made.
    pub stop: Option<StopReason>,
}

fn on_nodes<'a>(
    tally: &'a [NodeTally],
    tier: &'a TierState,
) -> impl Iterator<Item = &'a NodeTally> {
    tier.nodes.iter().filter_map(|n| tally.get(usize::from(n.0)))
}

/// What is usual in quick scans, and in full samples after a rest.
#[derive(Debug, Default)]
struct UsualFindings {
    quick_scans: ShiftDetector,
    rests: ShiftDetector,
}

/// Where sampling stands, of accesses and of writes.
#[derive(Debug, Default)]
struct SamplingState {
    prescans: PrescanState,
    quick_scans: QuickScans,
    usual: UsualFindings,
    writes: WriteSchedule,
    debt: SampleDebt,
    /// Made so far.
    spot_checks: u64,
    /// An interval is under way all of which is sampled: it is not to be cut short.
    under_way: bool,
}

/// What happened since the last decision that the next snapshot says, once.
#[derive(Debug, Default)]
struct SinceDecision {
    /// Heat has shifted.
    shifted: bool,
    /// The target was waited for.
    waited: bool,
}

/// The engine.
pub struct Engine {
    clock: Box<dyn Clock>,
    trackers: TrackerSet,
    target: Box<dyn Target>,
    mover: Box<dyn Mover>,
    log: JournalLog,
    placement: Placement,
    machine: Machine,
    config: Config,
    own_cpu: OwnCpu,
    budget: Budget,
    account: Account,
    heat: HeatMap,
    located: LocatedPages,
    headroom: Headroom,
    headroom_check: HeadroomCheck,
    sampling: SamplingState,
    next: NextInterval,
    since_decision: SinceDecision,
    started: Tick,
    steps: u64,
    left_out_said: bool,
}

impl Engine {
    /// Puts the parts together; touches nothing yet.
    #[must_use]
    pub fn new(parts: EngineParts, config: Config) -> Self {
        let needs = parts.placement.needs();
        let trackers = TrackerSet::new(parts.trackers);
        let first = config.first_interval;
        let next = match needs.idles {
            true => NextInterval::new(Nanos(first.get() / 4), Next::Idle),
            false => NextInterval::sample(first, SampleStart::AtEnd),
        };
        Self {
            started: parts.clock.now(),
            clock: parts.clock,
            budget: Budget::new(&config, needs.measures && trackers.sees().pages),
            trackers,
            target: parts.target,
            mover: parts.mover,
            log: JournalLog::new(parts.journal),
            placement: parts.placement,
            machine: parts.machine,
            own_cpu: OwnCpu::new(parts.own_cpu),
            account: Account::default(),
            heat: HeatMap::new(config.heat),
            located: LocatedPages::default(),
            headroom: Headroom::default(),
            headroom_check: HeadroomCheck::default(),
            sampling: SamplingState::default(),
            next,
            since_decision: SinceDecision::default(),
            steps: 0,
            left_out_said: false,
            config,
        }
    }

    /// Whether the policy can work with what the trackers see; `Err` is for exit status 3. To be
    /// asked before the target is started.
    ///
    /// # Errors
    /// [`StopReason::Missing`].
    pub fn check(&self) -> Result<(), StopReason> {
        match self.placement.needs().missing(&self.trackers.sees()) {
            Some(what) => Err(StopReason::Missing { policy: self.placement.name(), what }),
            None => Ok(()),
        }
    }

    /// Steps until the target ends, the loop cannot go on, or `until` says so. Gives the account.
    pub fn run(
        &mut self,
        mut until: impl FnMut(&StepReport) -> bool,
    ) -> (JournalSummary, Option<StopReason>) {
        loop {
            let report = self.run_step();
            let enough = until(&report);
            if report.stop.is_some() || enough {
                return (self.finish(), report.stop);
            }
        }
    }

    /// Writes what trackers say of themselves and the summary to the journal, and gives the latter.
    pub fn finish(&mut self) -> JournalSummary {
        let summary = self.summary();
        let mut notes = Vec::new();
        let at_ns = self.at().get();
        // A program may end before the first step: its journal says so by having none.
        if self.log.wants_header() {
            if let Ok(tiers) = self.target.tiers() {
                self.head_journal(&tiers, &mut notes);
            }
        }
        for text in self.tracker_accounts() {
            self.log.write(&JournalEntry::Note(NoteEntry { at_ns, text }), &mut notes);
        }
        self.log.write(&JournalEntry::End(summary.clone()), &mut notes);
        summary
    }

    /// What became of the trackers' observations, a sentence each.
    #[must_use]
    pub fn tracker_accounts(&self) -> Vec<String> {
        self.trackers.trackers().iter().flat_map(|tracker| tracker.accounts()).collect()
    }

    /// The account so far.
    #[must_use]
    pub fn summary(&self) -> JournalSummary {
        let sees_pages = self.trackers.sees().pages;
        let repaid_pages = self.placement.repaid_pages(self.clock.now()).filter(|_| sees_pages);
        JournalSummary { repaid_pages, ..self.account.summary(self.at()) }
    }

    /// The policy, with its state.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The heat map.
    #[must_use]
    pub fn heat(&self) -> &HeatMap {
        &self.heat
    }

    fn at(&self) -> Nanos {
        self.clock.now().since(self.started)
    }

    /// One step. Never panics on what ports report; when it cannot go on, `stop` says why.
    pub fn run_step(&mut self) -> StepReport {
        let mut report = StepReport::default();
        if let Err(stop) = self.step(&mut report) {
            report.stop = Some(stop);
        }
        report.at = self.at();
        for note in &report.notes {
            let note = NoteEntry { at_ns: report.at.get(), text: note.clone() };
            let mut unsaid = Vec::new();
            self.log.write(&JournalEntry::Note(note), &mut unsaid);
        }
        report
    }

    fn step(&mut self, report: &mut StepReport) -> Result<(), StopReason> {
        self.check()?;
        let start = self.own_cpu.used();
        let mappings = self.refresh_mappings(report)?;
        let refresh_cpu = self.own_cpu.since(start);
        if let Next::WarmUp { since, then } = self.next.kind {
            return self.warm_up((since, then), refresh_cpu, report);
        }
        if self.prescans() {
            return self.prescan(&mappings, refresh_cpu, report);
        }
        if let Some(every) = self.quick_scan_due() {
            return self.quick_scan(&mappings, every, refresh_cpu, report);
        }
        self.full_step(mappings, refresh_cpu, report)
    }

    /// An interval of full samples or without trackers, and the decision that follows.
    fn full_step(
        &mut self,
        mappings: Vec<Mapping>,
        refresh_cpu: Nanos,
        report: &mut StepReport,
    ) -> Result<(), StopReason> {
        let idling = self.next.is_idle();
        let mut observed = if idling {
            let observed = self.idle(report);
            if self.sample_for_headroom() {
                self.spend_between(refresh_cpu);
                return Ok(());
            }
            observed
        } else if let Some(observed) = self.sample_interval(mappings, report)? {
            observed
        } else {
            self.wait_for_memory(refresh_cpu);
            return Ok(());
        };
        let before = self.own_cpu.since(refresh_cpu);
        let now = self.clock.now();
        let tiers = self.target.tiers()?;
        if idling {
            // What was mapped meanwhile may be filled already; what comes from now on takes memory.
            self.refresh_mappings(report)?;
        }
        let sampling_memory = observed.memory;
        let filling = self.located.shrank(&tiers, self.negligible_change(), now);
        let new = self.absorb(&mut observed, &tiers, now);
        let located = self.locate_if_needed(&tiers, now)?;
        if new {
            self.located.unplaceable = self.heat.unplaced(&observed.samples);
            observed.forget_samples();
        }
        self.steps += 1;
        if idling && !located {
            self.next.length =
                Nanos(self.next.length.get() * 2).min(self.config.tuning.idle_longest);
            let deciding = self.own_cpu.since(before);
            self.account.interval(Nanos::ZERO, deciding, self.heat.memory(), 0);
            self.budget.ledger.book(deciding, true, now);
            return Ok(());
        }
        let tally = self.heat.by_node();
        self.account_for(&tiers, &tally, &observed, report.interval);
        let present: u64 = tally.iter().map(|n| n.pages).sum();
        let came = self.located.note_present(present, self.config.tuning.new_part);
        if idling && self.since_decision.waited && came {
            // Who fills memory begins something new.
            self.doubt();
        }
        let spent = observed.cpu + self.own_cpu.since(before);
        let tiers_below = interval::worse_nodes(&tiers);
        let (snapshot, mut plan) = self.decide(tiers, &tally, &observed, (filling, spent), now);
        self.budget.book_gain(plan.measured_gain, plan.measured_gain.min(0.0), now);
        self.budget.ledger.expect_moves(plan.unaffordable);
        self.journal_step(&snapshot, &plan, &observed, now, report);
        let deciding = self.own_cpu.since(before);
        let planned = !plan.moves.is_empty();
        let (longest, going_on, _) = self.carry_out(&mut plan, snapshot, present, now, report);
        // What was seen is gone before moves are planned; those are held twice: by the plan, and by
        // what became of it.
        let planning = observed.memory + Bytes(2 * longest);
        let memory = self.heat.memory() + sampling_memory.max(planning);
        let deciding = deciding + going_on;
        self.account.interval(observed.cpu, deciding, memory, observed.lost);
        self.budget.ledger.book(observed.cpu + deciding, observed.thrifty, self.clock.now());
        self.note_rate(&tally, &tiers_below, planned);
        self.hand_on(&plan, planned, &mut report.notes);
        report.decisions = plan.decisions;
        Ok(())
    }

    /// Merges what was observed into the heat map, and forgets samples that are needed no more.
    /// Whether they touched so many new pages that pages must be located again.
    fn absorb(&mut self, observed: &mut IntervalSamples, tiers: &[TierState], now: Tick) -> bool {
        self.heat.expect_access(self.trackers.sees().reads);
        self.budget.ledger.advance(now);
        if let (Some(cooling), false) = (self.next.settled(), observed.samples.is_empty()) {
            // After a rest what is seen may be all new.
            let foreseen = self.heat.foreseen(&observed.samples, &interval::worse_nodes(tiers));
            let cooling = cooling == Cooling::Counts;
            if self
                .sampling
                .usual
                .rests
                .surprised_by(&foreseen, cooling, &self.config.tuning)
                .is_some()
            {
                self.doubt();
            }
        }
        self.heat.absorb(&observed.seen, &observed.samples, &observed.writes, now);
        if !observed.saw_nothing {
            // Where it cannot be told it is taken to have all that it will.
            let resident = self.target.resident().unwrap_or(Bytes(u64::MAX));
            self.headroom.note_sample(resident, now);
        }
        let writes = WriteSchedule::cost(&observed.writes);
        let new = self.finds_new(&observed.samples);
        if !new {
            observed.forget_samples();
        }
        match writes {
            // What came since is no more than what comes in an interval.
            Some(cost) => self.sampling.writes.record_report(cost, now),
            None if new => self.sampling.writes.forget(),
            None => {}
        }
        new
    }

    /// The target's mappings that may be managed, and births and deaths.
    fn refresh_mappings(&mut self, report: &mut StepReport) -> Result<Vec<Mapping>, StopReason> {
        let change = self.target.refresh()?;
        for (pids, what) in [(&change.born, "joined"), (&change.died, "ended")] {
            if let (Some(first), true) = (pids.first(), self.steps > 0) {
                let more = pids.len() - 1;
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                report.notes.push(format!("process {first}{rest} {what}"));
            }
        }
        report.notes.extend(
            change.left_out.iter().map(|(pid, why)| format!("left alone: process {pid}: {why}")),
        );
        self.located.due |= change.mappings_changed;
        if change.mappings_changed {
            self.headroom.forget_victims();
        }
        if !change.died.is_empty() {
            self.headroom.forget_peak();
            self.headroom_check.forget_processes(&change.died);
        }
        // A child shares its parent's pages.
        self.located.all_moved |= !change.born.is_empty();
        let shared = self.config.shared;
        let managed = |m: &&Mapping| match m.kind {
            MappingKind::Anonymous | MappingKind::FilePrivate => true,
            MappingKind::Shared => shared,
            MappingKind::HugeTlb | MappingKind::Pinned => false,
        };
        let mut mappings: Vec<Mapping> =
            self.target.mappings().iter().filter(managed).copied().collect();
        let ranges: Vec<(Pid, VpnRange)> = mappings.iter().map(|m| (m.pid, m.range)).collect();
        self.heat.remap(&ranges);
        if self.heat.left_out() > 0 {
            // Trackers hold memory by the page as well.
            mappings.retain(|m| self.heat.watches(m.pid, m.range.start));
        }
        if self.heat.left_out() > 0 && !self.left_out_said {
            self.left_out_said = true;
            let pages = self.heat.left_out();
            report.notes.push(format!(
                "{pages} pages of reserved address space are not observed: the heat map would not \
                    fit its bound"
            ));
        }
        Ok(mappings)
    }

    /// Whether so many pages are touched that were not there when pages were last located that they
    /// must be located again. A program fills what it has long since mapped without a sign but
    /// these.
    fn finds_new(&mut self, samples: &[PageSamples]) -> bool {
        let tuning = &self.config.tuning;
        self.located.finds_new(self.heat.unplaced(samples), (tuning.new_part, tuning.new_fewest))
    }

    fn locate_if_needed(&mut self, tiers: &[TierState], now: Tick) -> Result<bool, StopReason> {
        let waited = self.since_decision.waited;
        if !self.located.is_due(tiers, &self.next, waited, self.config.locate_every, now) {
            return Ok(false);
        }
        // Where pages came, those that were there are where they were.
        let all = self.located.all_due(tiers, self.config.locate_every, now);
        let areas = self.heat.areas_mut();
        match all {
            true => self.target.locate(areas),
            false => self.target.locate_new(areas),
        }?;
        self.heat.forget_absent();
        let few = self.config.tuning.still_part;
        self.located.located(all, self.target.resident().ok(), tiers, few, now);
        Ok(true)
    }

    fn decide(
        &mut self,
        tiers: Vec<TierState>,
        tally: &[NodeTally],
        observed: &IntervalSamples,
        (filling, spent): (bool, Nanos),
        now: Tick,
    ) -> (Snapshot, Plan) {
        self.headroom.forget_victims();
        let sees = self.trackers.sees();
        let since = std::mem::take(&mut self.since_decision);
        let tuning = &self.config.tuning;
        // While writes are about to be told for the first time, which pages are not written is not
        // known.
        let knows_writes = self.heat.knows_writes();
        let too_early = observed.writes_to_come && !knows_writes;
        let mut snapshot = Snapshot {
            interval: if too_early { Nanos::ZERO } else { self.heat.evidence() },
            page_size: self.machine.page_size,
            tiers,
            by_cell: observed.by_cell.clone(),
            sees,
            shifted: since.shifted,
            filling,
            waited: since.waited,
            swept: self.heat.swept(),
            at_least: self.heat.at_least(),
            saturated: self.heat.saturated(),
            move_cost: self.account.move_cost(self.machine.page_size, tuning.move_cost_pages),
            spendable: self.budget.spendable(spent),
            ..Snapshot::default()
        };
        for tier in snapshot.tiers.iter_mut().filter(|t| t.write_throughput.is_none()) {
            // No writes seen where none were searched for are not none.
            if sees.writes && knows_writes {
                let writes = on_nodes(tally, tier).map(|n| n.writes).sum();
                tier.write_throughput = Some(self.heat.written(writes));
                tier.throughput_source = ThroughputSource::Estimated;
            }
        }
        snapshot.areas = self.heat.lend();
        let seed = Seed(self.config.seed.0.wrapping_add(self.steps.wrapping_mul(0x9e37_79b9)));
        let free = snapshot.tiers.first().map_or(Bytes::ZERO, |best| best.free);
        snapshot.headroom = self.headroom.left(free);
        // A table that doubles each time it is full does so again after as long as it took so far.
        snapshot.next_growth = now.since(self.started);
        let plan = self.placement.step(&snapshot, now, seed);
        self.own_cpu.work += plan.work;
        (snapshot, plan)
    }

    fn account_for(
        &mut self,
        tiers: &[TierState],
        tally: &[NodeTally],
        observed: &IntervalSamples,
        interval: Nanos,
    ) {
        let present: u64 = tally.iter().map(|n| n.pages).sum();
        self.account.managed(Bytes(present.saturating_mul(self.machine.page_size.get())));
        let accesses = |tiers: &[TierState]| -> f64 {
            tiers.iter().flat_map(|t| on_nodes(tally, t)).map(|n| n.accesses).sum()
        };
        let (fast, all) = (accesses(&tiers[..tiers.len().min(1)]), accesses(tiers));
        // Lower bounds say nothing of shares.
        let bounds = self.heat.saturated() || self.heat.at_least();
        let seen = !observed.saw_nothing && !bounds;
        self.account.share((seen && all > 0.0).then(|| fast / all), interval);
    }

    /// Passes a plan's requests on, and sets the next interval by them.
    fn hand_on(&mut self, plan: &Plan, moved: bool, notes: &mut Vec<String>) {
        let usual = &mut self.sampling.usual;
        for detector in [&mut usual.quick_scans, &mut usual.rests] {
            if moved {
                detector.moved();
            } else if plan.requests.contains(&Request::Relax) {
                detector.mark_steady();
            }
        }
        let now = self.clock.now();
        self.next = NextInterval::requested_by(plan, self.config.first_interval, now);
        for request in &plan.requests {
            match request {
                Request::Clear { nodes } => self.heat.clear_bits(Some(nodes)),
                Request::ClearPages { pid, range } => self.heat.clear_pages(*pid, *range),
                Request::SampleByPage { .. } => {}
                // `SampleRequest` says it for each interval; a tracker need not remember it.
                _ => continue,
            }
            self.trackers.request(request, notes);
        }
    }
}
