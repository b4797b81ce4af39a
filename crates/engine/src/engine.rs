//! The control loop.
//!
//! One step: read the target's mappings again, start the trackers, let an interval pass, ask them
//! what they saw, merge it into the heat map, read where pages are (only when a decision may
//! follow), let the policy decide, keep its moves within the ledger, move, journal, pass requests
//! on.

mod interval;
mod log;
mod moving;
mod prescan;

use crate::account::Account;
use crate::journal::{JournalEntry, JournalSummary, NoteEntry, OutcomeEntry};
use crate::quick_scan::{QuickScans, ShiftDetector};
use crate::trackers::{IntervalSamples, TrackerSet};
use crate::write_schedule::WriteSchedule;
use crate::{
    Clock, Config, EngineParts, Journal, Mapping, MappingKind, Mover, Target, TargetError,
};
use prescan::PrescanState;
use terrace_machine::Machine;
use terrace_policy::heat::{HeatMap, NodeTally, PageSamples};
use terrace_policy::place::Placement;
use terrace_policy::quota::{CpuLedger, TokenBucket};
use terrace_types::{
    Bytes, Decision, Nanos, Pid, Plan, PolicyWork, Request, Seed, Snapshot, ThroughputSource, Tick,
    TierState, VpnRange,
};

/// Pages are located anew where more than this part of them is touched and was not there before,
/// and more than a few.
const NEW: u64 = 64;
const FEW: u64 = 64;

/// What was measured is taken to have been so since the last time, and no longer than this.
const GAIN_STANDS: Nanos = Nanos::secs(1);

/// Why the loop cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// The target ended: the ordinary end.
    #[error("the target has ended")]
    TargetEnded,
    /// The kernel refuses to show the target.
    #[error(transparent)]
    Refused(TargetError),
    /// What the policy cannot do without is not there (any more). Exit status 3.
    #[error(
        "policy {policy} needs {what}, and no tracker here tells it; try --policy first-touch or \
            see terrace doctor"
    )]
    Missing {
        /// Policy.
        policy: &'static str,
        /// What it needs.
        what: &'static str,
    },
}

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

/// What to do in the next interval.
#[derive(Debug, Default)]
struct NextInterval {
    interval: Nanos,
    fine: Vec<(Pid, VpnRange)>,
    relaxed: bool,
    /// That pages cool is no reason to sample.
    ignore_cooling: bool,
    /// A tracker that samples at an interval's end samples at its beginning too, which ends it.
    at_once: bool,
    /// Without trackers; decide only if pages came or memory was taken.
    idle: bool,
    /// Without trackers until free memory stands still; since when.
    warm_up: Option<Tick>,
    /// It was seen to fill memory while quick scans did: a decision follows before the next sample.
    came: bool,
}

/// What is usual in quick scans, and in full samples after a rest.
#[derive(Debug, Default)]
struct UsualFindings {
    quick_scans: ShiftDetector,
    rests: ShiftDetector,
}

/// Idle intervals grow to this: how late new pages on a worse tier may be noticed.
const LONGEST_IDLE: Nanos = Nanos::millis(100);

/// The engine.
pub struct Engine {
    clock: Box<dyn Clock>,
    trackers: TrackerSet,
    target: Box<dyn Target>,
    mover: Box<dyn Mover>,
    journal: Option<Box<dyn Journal>>,
    placement: Placement,
    machine: Machine,
    own_cpu: Box<dyn FnMut(PolicyWork) -> Nanos>,
    /// What the policy did that `own_cpu` was not given yet.
    policy_work: PolicyWork,
    config: Config,
    heat: HeatMap,
    ledger: CpuLedger,
    /// Gains are measured, and so bound what is spent.
    measures: bool,
    /// When gains were last booked.
    gained: Option<Tick>,
    rate: Option<TokenBucket>,
    account: Account,
    started: Tick,
    next: NextInterval,
    quick_scans: QuickScans,
    wont: UsualFindings,
    writes: WriteSchedule,
    prescans: PrescanState,
    /// When pages were located: those that came at least, and all.
    located: [Option<Tick>; 2],
    must_locate: bool,
    /// Touched pages that locating did not find.
    unplaceable: u64,
    /// Pages that were there when they were last located.
    present: u64,
    shifted: bool,
    /// The target was waited for since the last decision.
    waited: bool,
    free_then: Vec<Bytes>,
    /// What the target had in memory then, or less since; not known before it is asked for.
    resident_then: Option<Bytes>,
    /// CPU time that asking once how much memory the target has cost lately.
    asking: Nanos,
    /// Capacity of the smallest tier.
    smallest_tier: Bytes,
    journalled: Option<Tick>,
    headed: bool,
    left_out_said: bool,
    steps: u64,
}

impl Engine {
    /// Puts the parts together; touches nothing yet.
    #[must_use]
    pub fn new(parts: EngineParts, config: Config) -> Self {
        let started = parts.clock.now();
        let rate = config.limits.rate.map(|r| TokenBucket::new(r.get() as f64, Nanos::secs(1)));
        let idle = parts.placement.needs().idles;
        let trackers = TrackerSet::new(parts.trackers);
        let measures = parts.placement.needs().measures && trackers.sees().pages;
        let interval =
            if idle { Nanos(config.first_interval.get() / 4) } else { config.first_interval };
        Self {
            clock: parts.clock,
            trackers,
            measures,
            target: parts.target,
            mover: parts.mover,
            journal: parts.journal,
            placement: parts.placement,
            machine: parts.machine,
            own_cpu: parts.own_cpu,
            policy_work: PolicyWork::default(),
            heat: HeatMap::new(config.heat),
            ledger: match measures {
                true => CpuLedger::new(config.tracking_share, config.tracking_over),
                false => CpuLedger::with_bursts(config.tracking_share, config.unmeasured_over),
            },
            gained: None,
            rate,
            account: Account::default(),
            started,
            next: NextInterval { interval, idle, ..NextInterval::default() },
            quick_scans: QuickScans::default(),
            wont: UsualFindings::default(),
            writes: WriteSchedule::default(),
            prescans: PrescanState::default(),
            located: [None; 2],
            must_locate: true,
            unplaceable: 0,
            present: 0,
            shifted: false,
            waited: false,
            free_then: Vec::new(),
            resident_then: None,
            asking: Nanos::ZERO,
            smallest_tier: Bytes::ZERO,
            journalled: None,
            headed: false,
            left_out_said: false,
            steps: 0,
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
        if !self.headed {
            if let Ok(tiers) = self.target.tiers() {
                self.head_journal(&tiers, &mut notes);
            }
        }
        for text in self.tracker_accounts() {
            self.write(&JournalEntry::Note(NoteEntry { at_ns, text }), &mut notes);
        }
        self.write(&JournalEntry::End(summary.clone()), &mut notes);
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
        self.account.summary(self.at())
    }

    /// The policy, with its state.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// CPU time used so far.
    fn used_cpu(&mut self) -> Nanos {
        (self.own_cpu)(std::mem::take(&mut self.policy_work))
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
            self.write(&JournalEntry::Note(note), &mut unsaid);
        }
        report
    }

    fn step(&mut self, report: &mut StepReport) -> Result<(), StopReason> {
        self.check()?;
        let start = self.used_cpu();
        let mappings = self.refresh_mappings(report)?;
        let sampling_cpu = self.used_cpu().saturating_sub(start);
        if let Some(since) = self.next.warm_up {
            return self.warm_up(since, sampling_cpu, report);
        }
        if self.prescans() {
            return self.prescan(&mappings, sampling_cpu, report);
        }
        if let Some(every) = self.quick_scan_due() {
            return self.quick_scan(&mappings, every, sampling_cpu, report);
        }
        let idling = self.next.idle;
        let mut observed =
            if idling { self.idle(report) } else { self.sample_interval(&mappings, report) };
        let before = self.used_cpu().saturating_sub(sampling_cpu);
        let now = self.clock.now();
        self.heat.expect_access(self.trackers.sees().reads);
        let tiers = self.target.tiers().map_err(stop)?;
        if idling {
            // What was mapped meanwhile may be filled already; what comes from now on takes memory.
            self.refresh_mappings(report)?;
        }
        // After a rest what is seen may be all new.
        let rested = self.next.relaxed && !observed.samples.is_empty();
        let worse = interval::worse_nodes(&tiers);
        let cooling = !self.next.ignore_cooling;
        self.ledger.advance(now);
        if rested
            && self
                .wont
                .rests
                .surprised_by(&self.heat.foreseen(&observed.samples, &worse), cooling)
                .is_some()
        {
            self.doubt();
        }
        self.heat.absorb(&observed.seen, &observed.samples, &observed.writes, now);
        let writes = WriteSchedule::cost(&observed.writes);
        let sampling_memory = observed.memory;
        let new = self.finds_new(&observed.samples);
        if !new {
            observed.forget_samples();
        }
        let filling = self.shrank(&tiers);
        match writes {
            // What came since is no more than what comes in an interval.
            Some(cost) => self.writes.record_report(cost, now),
            None if new => self.writes.forget(),
            None => {}
        }
        let located = self.locate_if_needed(&tiers, now)?;
        if new {
            self.unplaceable = self.heat.unplaced(&observed.samples);
            observed.forget_samples();
        }
        self.steps += 1;
        if idling && !located {
            self.next.interval = Nanos(self.next.interval.get() * 2).min(LONGEST_IDLE);
            let deciding = self.used_cpu().saturating_sub(before);
            self.account.interval(Nanos::ZERO, deciding, self.heat.memory(), 0);
            self.ledger.book(deciding, true, now);
            return Ok(());
        }
        let tally = self.heat.by_node();
        self.account_for(&tiers, &tally, &observed, report.interval);
        let present: u64 = tally.iter().map(|n| n.pages).sum();
        if idling && self.waited && present > self.present + self.present / NEW {
            // Who fills memory begins something new.
            self.doubt();
        }
        self.present = present;
        let spent = observed.cpu + self.used_cpu().saturating_sub(before);
        let (snapshot, mut plan) = self.decide(tiers, &tally, &observed, (filling, spent), now);
        self.book_gain(&plan, now);
        self.journal_step(&snapshot, &plan, &observed, now, report);
        let deciding = self.used_cpu().saturating_sub(before);
        let planned = !plan.moves.is_empty();
        let (longest, going_on) = self.carry_out(&mut plan, snapshot, present, now, report);
        // What was seen is gone before moves are planned; those are held twice: by the plan, and by
        // what became of it.
        let planning = observed.memory + Bytes(2 * longest);
        let memory = self.heat.memory() + sampling_memory.max(planning);
        let deciding = deciding + going_on;
        self.account.interval(observed.cpu, deciding, memory, observed.lost);
        self.ledger.book(observed.cpu + deciding, observed.thrifty, self.clock.now());
        self.hand_on(&plan, planned, &mut report.notes);
        report.decisions = plan.decisions;
        Ok(())
    }

    /// The target's mappings that may be managed, and births and deaths.
    fn refresh_mappings(&mut self, report: &mut StepReport) -> Result<Vec<Mapping>, StopReason> {
        let change = self.target.refresh().map_err(stop)?;
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
        self.must_locate |= change.mappings_changed || !change.born.is_empty();
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

    /// Locating costs 0.15 to 0.3 us a page: only where something may have changed.
    fn locate_if_needed(&mut self, tiers: &[TierState], now: Tick) -> Result<bool, StopReason> {
        let seldom = Nanos(self.config.locate_every.get().saturating_mul(4));
        let every =
            if self.next.relaxed || self.next.idle { seldom } else { self.config.locate_every };
        let [came, all] = self.located;
        let old = came.is_none_or(|then| now.since(then) >= every)
            || all.is_none_or(|then| now.since(then) >= seldom);
        let shifted = self.free_then.len() != tiers.len()
            || tiers
                .iter()
                .zip(&self.free_then)
                .any(|(t, then)| t.free.get().abs_diff(then.get()) > t.capacity.get() / 64);
        // Who has no page on a worse tier has none where none of its memory was taken.
        let idling = self.next.idle && !self.waited && self.located[1].is_some();
        let due = if idling { self.worse_shrank(tiers) } else { shifted || self.must_locate };
        if !(old || due) {
            return Ok(false);
        }
        if self.next.idle && self.waited {
            // Pages came, and those that were there are where they were.
            self.target.locate_new(self.heat.areas_mut()).map_err(stop)?;
        } else {
            self.target.locate(self.heat.areas_mut()).map_err(stop)?;
            self.located[1] = Some(now);
        }
        self.located[0] = Some(now);
        self.must_locate = false;
        self.resident_then = self.target.resident().ok();
        self.smallest_tier = tiers.iter().map(|t| t.capacity).min().unwrap_or_default();
        self.free_then = tiers.iter().map(|t| t.free).collect();
        Ok(true)
    }

    /// Whether free memory of a worse tier shrank since pages were last located.
    fn worse_shrank(&self, tiers: &[TierState]) -> bool {
        let few = self.smallest_tier.get() / interval::STANDS_STILL;
        let mut worse = tiers.iter().zip(&self.free_then).skip(1);
        self.free_then.len() != tiers.len()
            || worse.any(|(t, then)| then.get().saturating_sub(t.free.get()) > few)
    }

    /// Whether so many pages are touched that were not there when pages were last located that they
    /// must be located again. A program fills what it has long since mapped without a sign but
    /// these.
    fn finds_new(&mut self, samples: &[PageSamples]) -> bool {
        let new = self.heat.unplaced(samples).saturating_sub(self.unplaceable);
        let many = new > (self.present / NEW).max(FEW);
        self.must_locate |= many;
        many
    }

    /// Whether free memory shrank since pages were last located or the target was last waited for.
    fn shrank(&self, tiers: &[TierState]) -> bool {
        let less =
            |(t, then): (&TierState, &Bytes)| interval::differs(t, then.get().max(t.free.get()));
        tiers.iter().zip(&self.free_then).any(less)
    }

    fn decide(
        &mut self,
        tiers: Vec<TierState>,
        tally: &[NodeTally],
        observed: &IntervalSamples,
        (filling, spent): (bool, Nanos),
        now: Tick,
    ) -> (Snapshot, Plan) {
        let sees = self.trackers.sees();
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
            shifted: std::mem::take(&mut self.shifted),
            filling,
            waited: std::mem::take(&mut self.waited),
            swept: self.heat.swept(),
            at_least: self.heat.at_least(),
            saturated: self.heat.saturated(),
            move_cost: self.account.move_cost(self.machine.page_size),
            spendable: self.measures.then(|| self.ledger.for_moves(spent)),
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
        let plan = self.placement.step(&snapshot, now, seed);
        self.policy_work += plan.work;
        (snapshot, plan)
    }

    /// Books what moves were measured to save since that was last booked.
    fn book_gain(&mut self, plan: &Plan, now: Tick) {
        if plan.measured_gain == 0.0 {
            return;
        }
        let since = self.gained.replace(now).map_or(Nanos::ZERO, |then| now.since(then));
        self.ledger.gain(plan.measured_gain / 1e9 * since.min(GAIN_STANDS).as_secs_f64());
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
        for wont in [&mut self.wont.quick_scans, &mut self.wont.rests] {
            if moved {
                wont.moved();
            } else if plan.requests.contains(&Request::Relax) {
                wont.mark_steady();
            }
        }
        self.next =
            NextInterval { interval: self.config.first_interval, ..NextInterval::default() };
        for request in &plan.requests {
            match request {
                Request::Clear { nodes } => self.heat.clear_bits(Some(nodes)),
                Request::ClearPages { pid, range } => self.heat.clear_pages(*pid, *range),
                Request::Wait(span) => {
                    self.next.interval = (*span).max(Nanos::millis(1));
                    continue;
                }
                Request::SampleByPage { pid, range } => self.next.fine.push((*pid, *range)),
                // `Ask` says it for each interval; a tracker need not remember it.
                Request::WarmUp => {
                    self.next.warm_up = Some(self.clock.now());
                    continue;
                }
                Request::Idle => {
                    self.next.idle = true;
                    continue;
                }
                Request::Relax => {
                    self.next.relaxed = true;
                    continue;
                }
                Request::IgnoreCooling => {
                    self.next.ignore_cooling = true;
                    continue;
                }
            }
            self.trackers.request(request, notes);
        }
    }
}

fn stop(error: TargetError) -> StopReason {
    match error {
        TargetError::Ended => StopReason::TargetEnded,
        refused => StopReason::Refused(refused),
    }
}
