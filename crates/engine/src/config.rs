//! What an engine is made of, and how it is set.

use crate::{Clock, EngineTuning, Journal, MoveLimits, Mover, Target, Tracker};
use terrace_machine::Machine;
use terrace_policy::heat::HeatParams;
use terrace_policy::place::Placement;
use terrace_types::{Nanos, PolicyWork, Seed};

/// The parts: five ports, a policy and the machine it runs on.
pub struct EngineParts {
    /// Gives time.
    pub clock: Box<dyn Clock>,
    /// See accesses; all that work are used together.
    pub trackers: Vec<Box<dyn Tracker>>,
    /// What is managed.
    pub target: Box<dyn Target>,
    /// Moves pages.
    pub mover: Box<dyn Mover>,
    /// Takes the journal, if one is kept.
    pub journal: Option<Box<dyn Journal>>,
    /// Decides.
    pub placement: Placement,
    /// The machine, for the journal's header.
    pub machine: Machine,
    /// CPU time this thread has used so far: how deciding is accounted. It is given what the policy
    /// did since it was last called. Live it reads the scheduler's account; simulated the work is
    /// charged.
    pub own_cpu: Box<dyn FnMut(PolicyWork) -> Nanos>,
}

/// Settings. The defaults are the ones to use.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The command managed, for the journal.
    pub command: String,
    /// Bounds on moving.
    pub limits: MoveLimits,
    /// Share of one core that tracking, deciding and moving may use (0.03).
    pub tracking_share: f64,
    /// Averaged over this long, moving included, where the policy measures what it gains and every
    /// page is sampled (4 s: one sample of all pages and the exchange that follows it).
    pub tracking_over: Nanos,
    /// Averaged over this long, without moving, elsewhere (2 minutes).
    pub unmeasured_over: Nanos,
    /// The heat map's parameters.
    pub heat: HeatParams,
    /// Length of an interval before a policy asks for another (100 ms).
    pub first_interval: Nanos,
    /// Pages are located at least this often while heat has not settled (1 s).
    pub locate_every: Nanos,
    /// Snapshots without a decision are journalled at most this often (200 ms).
    pub journal_every: Nanos,
    /// Move pages of shared mappings too.
    pub shared: bool,
    /// For policies that sample.
    pub seed: Seed,
    /// What steers the engine otherwise.
    pub tuning: EngineTuning,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            command: String::new(),
            limits: MoveLimits {
                longest_call: Nanos::millis(20),
                rate: None,
                batch: 512,
                total: Nanos::secs(2),
            },
            tracking_share: 0.03,
            tracking_over: Nanos::secs(4),
            unmeasured_over: Nanos::secs(120),
            heat: HeatParams::default(),
            first_interval: Nanos::millis(100),
            locate_every: Nanos::secs(1),
            journal_every: Nanos::millis(200),
            shared: false,
            seed: Seed(1),
            tuning: EngineTuning::default(),
        }
    }
}
