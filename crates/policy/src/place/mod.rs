//! Where pages should be. One file a policy; each is
//! `step(&Params, &mut State, &Snapshot, Tick, Seed) -> Plan`.
//!
//! [`Placement`] holds any one of them, built by [`Placement::new`] from its [`PolicyId`]: no
//! registry is filled at start-up, the compiler knows them all.

pub mod access_count;
pub mod autonuma;
pub mod bandwidth_balance;
pub mod first_touch;
pub mod histogram;
pub mod hyplacer;
pub mod latency_balance;
pub mod memos;
pub mod nimble;
pub mod paced;
pub mod partitioned;
pub mod periodic;
pub mod terrace;

mod runs;
pub mod worth;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use terrace_machine::Machine;
use terrace_types::{
    BitSource, Move, Nanos, Pid, Plan, PolicyId, PolicyWork, Seed, Snapshot, Tick,
    TrackerVisibility, Vpn, VpnRange,
};

/// What a policy needs to be shown, beyond which pages are where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyNeeds {
    /// Some heat: it cannot decide without.
    pub heat: bool,
    /// Counts by cell: it cannot decide without, and does not start where nothing tells.
    pub cells: bool,
    /// Writes distinguished from reads: it decides worse without.
    pub writes: bool,
    /// Referenced and dirty bits: it falls back on a named approximation without.
    pub bits: bool,
    /// Where pages are may already tell it that there is nothing to do: ask it before anything is
    /// sampled.
    pub idles: bool,
    /// It measures what its moves gain ([`Plan::measured_gain`]): its costs, moves among them, are
    /// held to their share, and to what was gained.
    pub measures: bool,
}

impl PolicyNeeds {
    /// What is missing for this policy to work at all, as a sentence's object; `None`: nothing.
    #[must_use]
    pub fn missing(&self, sees: &TrackerVisibility) -> Option<&'static str> {
        if self.cells && !sees.cells {
            return Some("counts of accesses by cell (which node's CPUs touched a page)");
        }
        if self.heat && !sees.reads && !sees.writes && sees.bits == BitSource::None {
            return Some("any tracker of accesses");
        }
        None
    }
}

/// A part of a plan that is handed out in parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartialPlan {
    /// Moves in the order they should be made; empty: there are no more.
    pub moves: Vec<Move>,
    /// What the policy did to choose them.
    pub work: PolicyWork,
}

/// Why a parameter of a policy cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such parameter.
    #[error("policy {policy} has no parameter {name:?}; it has: {known}")]
    UnknownParameter {
        /// Policy.
        policy: &'static str,
        /// What was asked for.
        name: String,
        /// The names there are, or `none`.
        known: String,
    },
    /// A value that means nothing.
    #[error("parameter {name} of policy {policy} cannot be {value:?}; {expected}")]
    BadValue {
        /// Policy.
        policy: &'static str,
        /// Parameter.
        name: String,
        /// What was given.
        value: String,
        /// What would do.
        expected: &'static str,
    },
}

/// A policy with its parameters and its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum Placement {
    /// See [`first_touch`].
    FirstTouch,
    /// See [`hyplacer`].
    HyPlacer {
        /// Parameters.
        params: hyplacer::Params,
        /// State.
        state: hyplacer::State,
    },
    /// See [`access_count`].
    AccessCount {
        /// Parameters.
        params: access_count::Params,
        /// State.
        state: access_count::State,
    },
    /// See [`terrace`].
    Terrace {
        /// Parameters.
        params: Box<terrace::Params>,
        /// State.
        state: Box<terrace::State>,
    },
    /// A periodic policy of others: see [`paced`] and the file of each.
    Paced {
        /// Which, with its parameters.
        rule: periodic::Rule,
        /// State.
        state: paced::State,
    },
    /// A policy of a program that embeds Terrace, for the simulator; its state cannot be written.
    #[serde(skip)]
    Custom(CustomPolicy),
}

/// The function of a policy that comes from outside, such as one written in Python.
pub type PolicyFunction = dyn FnMut(&Snapshot, Tick, Seed) -> Plan + Send;

/// A policy that comes from outside: what it needs, and its function. Copies share the function.
#[derive(Clone)]
pub struct CustomPolicy {
    name: &'static str,
    needs: PolicyNeeds,
    function: Arc<Mutex<PolicyFunction>>,
}

impl CustomPolicy {
    /// A policy that decides by `function`. Runs repeat only if the function gives equal plans for
    /// equal snapshots, times and seeds.
    #[must_use]
    pub fn new(
        needs: PolicyNeeds,
        function: impl FnMut(&Snapshot, Tick, Seed) -> Plan + Send + 'static,
    ) -> Self {
        Self { name: "custom", needs, function: Arc::new(Mutex::new(function)) }
    }

    /// The same under this name, in journals and messages.
    #[must_use]
    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    fn step(&self, snapshot: &Snapshot, now: Tick, seed: Seed) -> Plan {
        let mut function = self.function.lock().unwrap_or_else(PoisonError::into_inner);
        function(snapshot, now, seed)
    }
}

impl std::fmt::Debug for CustomPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CustomPolicy").field("needs", &self.needs).finish_non_exhaustive()
    }
}

impl PartialEq for CustomPolicy {
    /// The same function, not one that does the same.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function, &other.function)
    }
}

impl Placement {
    /// This policy, for this machine.
    #[must_use]
    pub fn new(id: PolicyId, machine: &Machine) -> Self {
        let hyplacer = |write_blind| Self::HyPlacer {
            params: hyplacer::Params { write_blind, ..hyplacer::Params::for_machine(machine) },
            state: hyplacer::State::default(),
        };
        let terrace = |write_blind| Self::Terrace {
            params: Box::new(terrace::Params {
                write_blind,
                ..terrace::Params::for_machine(machine)
            }),
            state: Box::default(),
        };
        let paced = |rule| Self::Paced { rule, state: paced::State::default() };
        match id {
            PolicyId::FirstTouch => Self::FirstTouch,
            PolicyId::HyPlacer => hyplacer(false),
            PolicyId::HyPlacerWriteBlind => hyplacer(true),
            PolicyId::AccessCount => Self::AccessCount {
                params: access_count::Params::for_machine(machine),
                state: access_count::State::default(),
            },
            PolicyId::Terrace => terrace(false),
            PolicyId::TerraceWriteBlind => terrace(true),
            PolicyId::Nimble => paced(periodic::Rule::Nimble(nimble::Params::for_machine(machine))),
            PolicyId::Autonuma => {
                paced(periodic::Rule::Autonuma(autonuma::Params::for_machine(machine)))
            }
            PolicyId::Memos => paced(periodic::Rule::Memos(memos::Params::for_machine(machine))),
            PolicyId::Partitioned => {
                paced(periodic::Rule::Partitioned(partitioned::Params::for_machine(machine)))
            }
            PolicyId::BandwidthBalance => paced(periodic::Rule::BandwidthBalance(
                bandwidth_balance::Params::for_machine(machine),
            )),
            PolicyId::Histogram => {
                paced(periodic::Rule::Histogram(histogram::Params::for_machine(machine)))
            }
            PolicyId::LatencyBalance => {
                paced(periodic::Rule::LatencyBalance(latency_balance::Params::for_machine(machine)))
            }
        }
    }

    /// Whether the pages of a program should be born in the slow tier, as far as whoever starts it
    /// can arrange that.
    #[must_use]
    pub fn starts_slow(&self) -> bool {
        matches!(self, Self::Paced { rule: periodic::Rule::Memos(_), .. })
    }

    /// Whether the program should have huge pages where it can, as the policy's authors ran theirs.
    #[must_use]
    pub fn wants_huge_pages(&self) -> bool {
        matches!(self, Self::Paced { rule: periodic::Rule::Nimble(_), .. })
    }

    /// Which policy it is; `None`: one that comes from outside.
    #[must_use]
    pub fn id(&self) -> Option<PolicyId> {
        Some(match self {
            Self::FirstTouch => PolicyId::FirstTouch,
            Self::HyPlacer { params, .. } if params.write_blind => PolicyId::HyPlacerWriteBlind,
            Self::HyPlacer { .. } => PolicyId::HyPlacer,
            Self::AccessCount { .. } => PolicyId::AccessCount,
            Self::Terrace { params, .. } if params.write_blind => PolicyId::TerraceWriteBlind,
            Self::Terrace { .. } => PolicyId::Terrace,
            Self::Paced { rule, .. } => rule.id(),
            Self::Custom(_) => return None,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Custom(custom) => custom.name,
            _ => self.id().map_or("custom", PolicyId::name),
        }
    }

    /// What it needs to be shown.
    #[must_use]
    pub fn needs(&self) -> PolicyNeeds {
        match self {
            Self::FirstTouch => PolicyNeeds::default(),
            Self::HyPlacer { params, .. } => PolicyNeeds {
                heat: true,
                writes: !params.write_blind,
                bits: true,
                ..PolicyNeeds::default()
            },
            Self::AccessCount { .. } => PolicyNeeds { cells: true, ..PolicyNeeds::default() },
            Self::Terrace { params, .. } => PolicyNeeds {
                heat: true,
                writes: params.writes_matter(),
                idles: true,
                measures: true,
                ..PolicyNeeds::default()
            },
            Self::Paced { rule, .. } => rule.needs(),
            Self::Custom(custom) => custom.needs,
        }
    }

    /// Decides.
    pub fn step(&mut self, snapshot: &Snapshot, now: Tick, seed: Seed) -> Plan {
        match self {
            Self::FirstTouch => first_touch::step(),
            Self::HyPlacer { params, state } => hyplacer::step(params, state, snapshot, now, seed),
            Self::AccessCount { params, state } => {
                access_count::step(params, state, snapshot, now, seed)
            }
            Self::Terrace { params, state } => terrace::step(params, state, snapshot, now, seed),
            Self::Paced { rule, state } => rule.step(state, snapshot, now, seed),
            Self::Custom(custom) => {
                let mut plan = custom.step(snapshot, now, seed);
                // A function that counts nothing is taken to rate every page once.
                if plan.work == PolicyWork::default() {
                    plan.work.rated_pages = snapshot.page_count();
                }
                plan
            }
        }
    }

    /// The next moves of what the last step decided, once those before are made and the snapshot
    /// shows them: a policy may hand out a long plan in parts. Empty: no more.
    pub fn go_on(&mut self, snapshot: &Snapshot, now: Tick) -> PartialPlan {
        match self {
            Self::Terrace { params, state } => terrace::go_on(params, state, snapshot, now),
            Self::FirstTouch
            | Self::HyPlacer { .. }
            | Self::AccessCount { .. }
            | Self::Paced { .. }
            | Self::Custom(_) => PartialPlan::default(),
        }
    }

    /// Pages of the best tier to demote, in this order, while the target grows and that tier is
    /// full. Empty: no page is cold enough, or the policy makes no headroom.
    pub fn headroom(&mut self, snapshot: &Snapshot) -> PartialPlan {
        match self {
            Self::Terrace { params, state } => terrace::headroom(params, state, snapshot),
            Self::FirstTouch
            | Self::HyPlacer { .. }
            | Self::AccessCount { .. }
            | Self::Paced { .. }
            | Self::Custom(_) => PartialPlan::default(),
        }
    }

    /// Plans moves that promote the pages demoted by [`Placement::headroom`] again and demote newer
    /// pages in their place.
    pub fn undo_headroom(
        &mut self,
        snapshot: &Snapshot,
        demoted: &[Move],
        is_newer: &dyn Fn(Pid, Vpn) -> bool,
        now: Tick,
    ) -> PartialPlan {
        match self {
            Self::Terrace { params, state } => {
                terrace::undo_headroom(params, state, snapshot, demoted, is_newer, now)
            }
            Self::FirstTouch
            | Self::HyPlacer { .. }
            | Self::AccessCount { .. }
            | Self::Paced { .. }
            | Self::Custom(_) => PartialPlan::default(),
        }
    }

    /// These moves took pages where first touch would have put them: no gain or loss is measured of
    /// them.
    pub fn forget_displaced(&mut self, moves: &[Move]) {
        if let Self::Terrace { state, .. } = self {
            state.gain.forget(moves);
        }
    }

    /// Moves that were made of what it planned on this snapshot, and how long they took. Samples of
    /// regions measure no gain of them, so that nothing is kept of them there.
    pub fn moved(&mut self, done: &[Move], snapshot: &Snapshot, cost: Nanos) {
        match self {
            Self::Terrace { state, .. } if snapshot.sees.pages => {
                state.gain.moved(done, snapshot, cost);
            }
            _ => {}
        }
    }

    /// Returns the number of promoted base pages that have saved, by `now`, the cost of their
    /// moves and of the demotions that made space for them. `None`: the policy does not measure it.
    #[must_use]
    pub fn repaid_pages(&self, now: Tick) -> Option<u64> {
        match self {
            Self::Terrace { state, .. } => Some(state.gain.repaid_pages(now)),
            _ => None,
        }
    }

    /// Ranges that hold pages which its moves displaced, some of many: to be sampled for
    /// [`Self::gain_by_some`]. None where it does not measure gains, or moved nothing.
    pub fn displaced(&mut self) -> Vec<(Pid, VpnRange)> {
        match self {
            Self::Terrace { params, state } => state.gain.some_blocks(&params.tuning),
            _ => Vec::new(),
        }
    }

    /// Whether pages should be located before the next demotions for growth: it tells newer pages
    /// from those that were there before the first of these.
    #[must_use]
    pub fn notes_older(&self, snapshot: &Snapshot) -> bool {
        matches!(self, Self::Terrace { state, .. } if state.gain.notes_older(snapshot))
    }

    /// Whether moves that were made save anything, as far as is known.
    #[must_use]
    pub fn saves(&self) -> bool {
        matches!(self, Self::Terrace { state, .. } if state.gain.saves())
    }

    /// What one access saves on the best tier, nanoseconds; `None` while that is not known.
    #[must_use]
    pub fn each_access(&self) -> Option<f64> {
        match self {
            Self::Terrace { state, .. } => state.gain.each_access(),
            _ => None,
        }
    }

    /// What its promotions save the program now and its demotions cost it, nanoseconds a second, by
    /// the ranges that were sampled; `None` where that says nothing.
    #[must_use]
    pub fn gain_by_some(&self, sampled: &Snapshot) -> Option<(f64, f64)> {
        match self {
            Self::Terrace { state, .. } => state.gain.by_some(sampled),
            _ => None,
        }
    }

    /// Its parameters by name, as a person would write them.
    #[must_use]
    pub fn params(&self) -> BTreeMap<String, String> {
        let pairs = match self {
            Self::FirstTouch => Vec::new(),
            Self::HyPlacer { params, .. } => params.named(),
            Self::AccessCount { params, .. } => params.named(),
            Self::Terrace { params, .. } => params.named(),
            Self::Paced { rule, .. } => rule.params(),
            Self::Custom(_) => Vec::new(),
        };
        pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }

    /// Sets one parameter by name.
    ///
    /// # Errors
    /// [`PolicyError::UnknownParameter`], [`PolicyError::BadValue`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), PolicyError> {
        let policy = self.name();
        let known = self.params().into_keys().collect::<Vec<_>>().join(", ");
        let outcome = match self {
            Self::FirstTouch | Self::Custom(_) => Err(SetError::Unknown),
            Self::HyPlacer { params, .. } => params.set(name, value),
            Self::AccessCount { params, .. } => params.set(name, value),
            Self::Terrace { params, .. } => params.set(name, value),
            Self::Paced { rule, .. } => rule.set(name, value),
        };
        outcome.map_err(|e| match e {
            SetError::Unknown => PolicyError::UnknownParameter {
                policy,
                name: name.to_owned(),
                known: if known.is_empty() { "none".to_owned() } else { known },
            },
            SetError::Bad(expected) => PolicyError::BadValue {
                policy,
                name: name.to_owned(),
                value: value.to_owned(),
                expected,
            },
        })
    }

    /// What of its state is worth a line in the journal.
    #[must_use]
    pub fn memo(&self) -> BTreeMap<String, String> {
        let pairs = match self {
            Self::FirstTouch | Self::AccessCount { .. } | Self::Paced { .. } | Self::Custom(_) => {
                Vec::new()
            }
            Self::HyPlacer { state, .. } => state.memo(),
            Self::Terrace { state, .. } => state.memo(),
        };
        pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }
}

/// Why a parameter was not set; the policy's name is added by [`Placement::set`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetError {
    Unknown,
    Bad(&'static str),
}

/// Parses a number within bounds.
pub(crate) fn number(
    value: &str,
    least: f64,
    most: f64,
    expected: &'static str,
) -> Result<f64, SetError> {
    match value.trim().parse::<f64>() {
        Ok(n) if n >= least && n <= most => Ok(n),
        _ => Err(SetError::Bad(expected)),
    }
}
