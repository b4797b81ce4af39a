//! Inside the guest: a workload, the live trackers, and what `hyplacer` would take each page for.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::rc::Rc;
use terrace_engine::{
    Config, Engine, EngineParts, Mapping, MoveFailure, MoveLimits, MoveOutcome, Mover, Observation,
    SampleRequest, TrackError, Tracker, TrackerInfo,
};
use terrace_machine::{rank, RankAttribute};
use terrace_policy::place::hyplacer::{class, PageClass, Params};
use terrace_policy::place::Placement;
use terrace_sys::{now, own_cpu, Capabilities, Root, Runner};
use terrace_topology::{load_machine, MachineSource};
use terrace_track::{
    Budget, LiveClock, LiveTarget, LiveTrackers, ProcessTree, TierNodes, TrackerChoice,
};
use terrace_types::{Move, Nanos, NodeId, PageFlags, PolicyId, Request, Tick, TrackerVisibility};
use terrace_workload::{mark, RoiMarker};

/// Steps after which the target's memory counts as laid out, if it did not grow in them.
const STEADY: u32 = 3;

/// When the last window began and ended.
#[derive(Default, Clone, Copy)]
struct Window {
    begun: Tick,
    ended: Tick,
}

/// The trackers, with an eye on the clock.
struct Timed {
    trackers: LiveTrackers,
    interval: Rc<RefCell<Window>>,
}

impl Tracker for Timed {
    fn info(&self) -> TrackerInfo {
        self.trackers.info()
    }
    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        self.interval.borrow_mut().begun = now();
        self.trackers.begin(mappings, ask)
    }
    fn finish(&mut self, tick: Tick) -> Result<Observation, TrackError> {
        let seen = self.trackers.finish(tick)?;
        self.interval.borrow_mut().ended = now();
        Ok(seen)
    }
    fn request(&mut self, request: &Request) -> Result<(), TrackError> {
        self.trackers.request(request)
    }
}

/// Moves nothing, so that what is measured stays put.
struct Stay;

impl Mover for Stay {
    fn apply(&mut self, moves: &[Move], _exchange: bool, _limits: &MoveLimits) -> MoveOutcome {
        let pages = moves.iter().map(|m| u64::from(m.pages)).sum();
        MoveOutcome { failed: vec![(MoveFailure::OutOfTime, pages)], ..MoveOutcome::default() }
    }
}

/// `guest STEPS CPU_SHARE PROGRAM SPEC`: prints one line a step, and one a mapping.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let [steps, share, program, spec] = arguments else {
        return Err("guest STEPS CPU_SHARE PROGRAM SPEC".into());
    };
    let steps: u32 = steps.parse().map_err(|e| format!("{steps}: {e}"))?;
    let share: f64 = share.parse().map_err(|e| format!("{share}: {e}"))?;
    let machine = load_machine(&MachineSource::Live).map_err(|e| e.to_string())?;
    let tiers: Vec<Vec<NodeId>> = rank(&machine, RankAttribute::Bandwidth, None)
        .map_err(|e| e.to_string())?
        .tiers
        .into_iter()
        .map(|t| t.nodes)
        .collect();
    let root = Root::live();
    let able = Capabilities::probe(&root);
    let budget = Budget::new(share, Nanos((share * 60e9) as u64));
    let trackers =
        LiveTrackers::new(&root, &able, TrackerChoice::Auto, budget).map_err(|e| e.to_string())?;
    println!("trackers {}", trackers.names().join(" "));
    let argv: Vec<OsString> = [program, spec].map(OsString::from).into();
    let runner = Rc::new(RefCell::new(Runner::start(&argv).map_err(|e| e.to_string())?));
    let pid = runner.borrow().pid();
    let sees = trackers.info().sees;
    let interval = Rc::new(RefCell::new(Window::default()));
    let tree = ProcessTree::new(root.clone(), pid);
    let live_tiers = tiers.iter().map(|nodes| TierNodes { nodes: nodes.clone() }).collect();
    let parts = EngineParts {
        clock: Box::new(LiveClock::new(runner.clone())),
        trackers: vec![Box::new(Timed { trackers, interval: interval.clone() })],
        target: Box::new(LiveTarget::new(root, tree, live_tiers).map_err(|e| e.to_string())?),
        mover: Box::new(Stay),
        journal: None,
        placement: Placement::new(PolicyId::HyPlacer, &machine),
        machine: machine.clone(),
        own_cpu: Box::new(|_| own_cpu()),
    };
    let mut engine = Engine::new(parts, Config { tracking_share: share, ..Config::default() });
    await_layout(&mut engine)?;
    let watch = Watch {
        params: Params::for_machine(&machine),
        sees,
        fast: tiers[0].clone(),
        slow: tiers[1..].concat(),
    };
    mark(RoiMarker::Begin);
    let origin = now();
    let mut text = String::new();
    for _ in 0..steps {
        if let Some(stop) = engine.run_step().stop {
            return Err(format!(
                "after {} lines: {stop}; give the workload more accesses",
                text.lines().count()
            ));
        }
        let seen = *interval.borrow();
        watch.keep(&engine, seen.begun.since(origin), seen.ended.since(origin), &mut text);
    }
    mark(RoiMarker::End);
    let spent = engine.summary();
    let overhead =
        (spent.tracking_cpu_ns + spent.deciding_cpu_ns) as f64 / spent.at_ns.max(1) as f64;
    let handle = terrace_sys::open_pidfd(pid).map_err(|e| e.to_string())?;
    let _ended = terrace_sys::signal_process(&handle, 9);
    runner.borrow_mut().wait_to_end();
    print!("delay {}\ncpu_share {overhead}\n{text}", watch.params.delay.get());
    Ok(())
}

/// Steps until the target has stopped growing: its data is laid out and its measured phase runs.
fn await_layout(engine: &mut Engine) -> Result<(), String> {
    let (mut before, mut steady) = (0, 0);
    while steady < STEADY {
        if let Some(stop) = engine.run_step().stop {
            return Err(format!("before the data was laid out: {stop}"));
        }
        let pages = engine.heat().areas().iter().flat_map(|a| &a.pages);
        let present = pages.filter(|p| p.flags.has(PageFlags::PRESENT)).count();
        steady = if present == before && present > 4096 { steady + 1 } else { 0 };
        before = present;
    }
    Ok(())
}

struct Watch {
    params: Params,
    sees: TrackerVisibility,
    fast: Vec<NodeId>,
    slow: Vec<NodeId>,
}

impl Watch {
    /// `step BEGIN END ESTIMATE` and for each mapping `area VPN RUNS`: lengths and classes, capital
    /// on the fast tier.
    fn keep(&self, engine: &Engine, begun: Nanos, ended: Nanos, text: &mut String) {
        let estimate = engine.heat().write_throughput(&self.slow).get();
        let _ = writeln!(text, "step {} {} {estimate}", begun.get(), ended.get());
        for area in engine.heat().areas() {
            let _ = write!(text, "area {:x} ", area.start.0);
            let mut run = ('-', 0_u32);
            for page in &area.pages {
                let letter = match class(&self.params, &self.sees, page) {
                    _ if !page.flags.has(PageFlags::PRESENT) => '-',
                    PageClass::Write => 'w',
                    PageClass::Read => 'r',
                    PageClass::Cold => 'c',
                    PageClass::Unknown => 'u',
                };
                let letter = if self.fast.contains(&page.node()) {
                    letter.to_ascii_uppercase()
                } else {
                    letter
                };
                if letter != run.0 {
                    if run.1 > 0 {
                        let _ = write!(text, "{}{}", run.1, run.0);
                    }
                    run = (letter, 0);
                }
                run.1 += 1;
            }
            let _ = writeln!(text, "{}{}", run.1, run.0);
        }
    }
}
