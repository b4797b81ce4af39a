//! A run under the engine with the paper's parameters, scaled.

use crate::machine::Scale;
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;
use terrace_engine::{
    Config, Engine, EngineParts, Journal, JournalError, MoveLimits, StopReason, Tracker,
};
use terrace_model::Counters;
use terrace_policy::heat::HeatParams;
use terrace_policy::place::periodic::Rule;
use terrace_policy::place::Placement;
use terrace_sim::ports::{
    own_cpu, PageTableScan, Shared, SimClock, SimMover, SimTarget, SoftDirtyScan,
};
use terrace_sim::world::World;
use terrace_sim::{FirstTouchPlacement, MachineMode, SimSetup};
use terrace_types::{BytesPerSec, Nanos, PolicyId, UnknownPolicyError};

/// A span that no run reaches.
const FOR_EVER: Nanos = Nanos(u64::MAX / 2000);

/// What a run gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Length of the measured phase.
    pub span: Nanos,
    /// What was counted in it.
    pub counters: Counters,
    /// Base pages moved up and down.
    pub moved: (u64, u64),
}

/// A journal's file.
struct JournalFile(BufWriter<File>);

impl JournalFile {
    fn create(path: &Path) -> Result<Box<dyn Journal>, String> {
        let file = File::create(path)
            .map_err(|e| format!("{}: {e}; give a folder that exists", path.display()))?;
        Ok(Box::new(Self(BufWriter::new(file))))
    }
}

impl Journal for JournalFile {
    fn append(&mut self, line: &str) -> Result<(), JournalError> {
        writeln!(self.0, "{line}").map_err(|e| JournalError::Write(e.to_string()))
    }
}

/// Runs `policy`; `default` is first touch, `memm` memory mode.
pub fn run(
    plan: &SimSetup,
    policy: &str,
    scale: Scale,
    journal: Option<&Path>,
) -> Result<Outcome, String> {
    let reported = |e: &dyn std::fmt::Display| e.to_string();
    let (mut world, moved) = match policy {
        "default" | "memm" => {
            let mode = if policy == "memm" { MachineMode::MemoryMode } else { MachineMode::Plain };
            let mut world =
                plan.world(mode, FirstTouchPlacement::Nearest).map_err(|e| reported(&e))?;
            world.pass(FOR_EVER);
            (world, (0, 0))
        }
        _ => managed(plan, policy, scale, journal)?,
    };
    world.finish().map_err(|e| reported(&e))?;
    let (span, counters) = world.measured.result().ok_or("the measured phase did not end")?;
    Ok(Outcome { span, counters, moved })
}

fn managed(
    plan: &SimSetup,
    policy: &str,
    scale: Scale,
    journal: Option<&Path>,
) -> Result<(World, (u64, u64)), String> {
    let id: PolicyId = policy.parse().map_err(|e: UnknownPolicyError| e.to_string())?;
    let placement = scaled(Placement::new(id, &plan.machine), scale);
    // A huge page would be half of the scaled fast tier: all policies have base pages here, nimble
    // too.
    let first_touch_placement = if placement.starts_slow() {
        FirstTouchPlacement::Slow
    } else {
        FirstTouchPlacement::Nearest
    };
    let world: Shared = Rc::new(RefCell::new(
        plan.world(MachineMode::Plain, first_touch_placement).map_err(|e| e.to_string())?,
    ));
    let config = config(scale);
    let trackers: Vec<Box<dyn Tracker>> = vec![
        Box::new(PageTableScan::new(world.clone())),
        Box::new(SoftDirtyScan::new(world.clone(), config.tracking_share)),
    ];
    let parts = EngineParts {
        clock: Box::new(SimClock(world.clone())),
        trackers,
        target: Box::new(SimTarget::new(world.clone(), plan.ids.clone(), &plan.tiers)),
        mover: Box::new(SimMover::new(world.clone(), plan.ids.clone(), plan.machine.migration)),
        journal: journal.map(JournalFile::create).transpose()?,
        placement,
        machine: plan.machine.clone(),
        own_cpu: own_cpu(&world),
    };
    let mut engine = Engine::new(parts, config);
    let (summary, stop) = engine.run(|_| false);
    if let Some(stop @ StopReason::Missing { .. }) = stop {
        return Err(stop.to_string());
    }
    drop(engine);
    let mut world =
        Rc::try_unwrap(world).map_err(|_| "the engine still holds the world")?.into_inner();
    world.pass(FOR_EVER);
    Ok((world, (summary.promoted_pages, summary.demoted_pages)))
}

fn config(scale: Scale) -> Config {
    let plain = Config::default();
    let limits = plain.limits;
    let limits = MoveLimits {
        longest_call: scale.span(limits.longest_call),
        total: scale.span(limits.total),
        ..limits
    };
    let heat = HeatParams {
        memory: scale.span(plain.heat.memory),
        exact_for: scale.span(plain.heat.exact_for),
        ..plain.heat
    };
    Config {
        limits,
        heat,
        tracking_share: scale.budget as f64 / 100.0,
        unmeasured_over: scale.span(plain.unmeasured_over),
        first_interval: scale.span(plain.first_interval),
        locate_every: scale.span(plain.locate_every),
        ..plain
    }
}

/// The policy with its spans, limits and thresholds scaled.
fn scaled(placement: Placement, s: Scale) -> Placement {
    match placement {
        Placement::HyPlacer { mut params, state } => {
            params.delay = s.span(params.delay);
            params.round_pages = s.pages(params.round_pages);
            params.slow_write_threshold = s.rate(params.slow_write_threshold);
            Placement::HyPlacer { params, state }
        }
        Placement::Terrace { mut params, state } => {
            for span in [
                &mut params.interval,
                &mut params.longest_interval,
                &mut params.least_evidence,
                &mut params.damp,
                &mut params.first_lifetime,
            ] {
                *span = s.span(*span);
            }
            Placement::Terrace { params, state }
        }
        Placement::Paced { rule, state } => {
            let rule = match rule {
                Rule::Memos(mut p) => {
                    (p.period, p.round_pages) = (s.span(p.period), s.pages(p.round_pages));
                    Rule::Memos(p)
                }
                Rule::Nimble(mut p) => {
                    (p.period, p.round_pages) = (s.span(p.period), s.pages(p.round_pages));
                    Rule::Nimble(p)
                }
                Rule::Partitioned(mut p) => {
                    (p.period, p.round_pages) = (s.span(p.period), s.pages(p.round_pages));
                    Rule::Partitioned(p)
                }
                Rule::Autonuma(mut p) => {
                    (p.period, p.hot_threshold) = (s.span(p.period), s.span(p.hot_threshold));
                    p.promote = s.rate(BytesPerSec(p.promote.get()));
                    Rule::Autonuma(p)
                }
                other => other,
            };
            Placement::Paced { rule, state }
        }
        other => other,
    }
}
