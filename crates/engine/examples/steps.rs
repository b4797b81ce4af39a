//! Steps of the engine alone, at the size of the lab's `skew`: to be run under an instruction
//! counter.
//!
//! usage: steps [PAGES] [STEPS]
//!
//! Each page is sampled eight times a step, as the live page-table tracker does, and a quarter of
//! them, scattered, is hot. Prints the pages and steps, so that a counter's total can be divided by
//! them: `valgrind --tool=callgrind steps 41000 5`.
#![allow(clippy::unwrap_used)] // an example that fails may panic

use std::cell::Cell;
use std::rc::Rc;
use terrace_engine::{
    Clock, Config, Engine, EngineParts, Mapping, MappingKind, MoveLimits, MoveOutcome, Mover,
    Observation, PageSamples, SampleRequest, Target, TargetChange, TargetError, TrackError,
    Tracker, TrackerInfo,
};
use terrace_machine::Machine;
use terrace_policy::place::Placement;
use terrace_types::{
    Area, BitSource, Bytes, Move, Nanos, NodeId, PageFlags, Pid, PolicyId, Request, Tick,
    TierState, TrackerVisibility, Vpn, VpnRange,
};

#[derive(Clone)]
struct Time(Rc<Cell<u64>>);

impl Clock for Time {
    fn now(&self) -> Tick {
        Tick(self.0.get())
    }
    fn wait(&mut self, span: Nanos) {
        self.0.set(self.0.get() + span.get());
    }
}

struct PageSampler {
    pages: u64,
    seed: u64,
}

impl Tracker for PageSampler {
    fn info(&self) -> TrackerInfo {
        let sees = TrackerVisibility {
            reads: true,
            pages: true,
            bits: BitSource::Approximate,
            ..TrackerVisibility::default()
        };
        TrackerInfo { name: "page samples", sees, blind_to: "nothing" }
    }
    fn begin(&mut self, _: &[Mapping], _: &SampleRequest) -> Result<(), TrackError> {
        Ok(())
    }
    fn finish(&mut self, _: Tick) -> Result<Observation, TrackError> {
        let mut hits = Vec::with_capacity(self.pages as usize);
        for page in 0..self.pages {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let hot = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0;
            hits.push(((self.seed >> 40) % if hot { 9 } else { 3 }) as u8);
        }
        let samples = PageSamples {
            pid: Pid(1),
            start: Vpn(0),
            sample_count: 8,
            interval: Nanos::micros(1_100),
            each: 1,
            at_random: false,
            hits,
        };
        Ok(Observation { samples: vec![samples], ..Observation::default() })
    }
    fn request(&mut self, _: &Request) -> Result<(), TrackError> {
        Ok(())
    }
}

struct All {
    mappings: Vec<Mapping>,
    fast: u64,
}

impl Target for All {
    fn refresh(&mut self) -> Result<TargetChange, TargetError> {
        Ok(TargetChange::default())
    }
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }
    fn locate(&mut self, areas: &mut [Area]) -> Result<(), TargetError> {
        for (at, page) in areas.iter_mut().flat_map(|a| &mut a.pages).enumerate() {
            page.node = u8::from(at as u64 >= self.fast);
            page.flags = page.flags.with(PageFlags::PRESENT);
        }
        Ok(())
    }
    fn tiers(&mut self) -> Result<Vec<TierState>, TargetError> {
        let tier = |node: u16, pages: u64, free: u64| TierState {
            nodes: vec![NodeId(node)],
            capacity: Bytes(pages * 4096),
            free: Bytes(free * 4096),
            unused: Bytes(free * 4096),
            write_throughput: None,
            throughput_source: terrace_types::ThroughputSource::Unknown,
        };
        Ok(vec![tier(0, self.fast, 0), tier(1, 1 << 18, 1 << 17)])
    }
}

struct Done;

impl Mover for Done {
    fn apply(&mut self, moves: &[Move], _: bool, _: &MoveLimits) -> MoveOutcome {
        MoveOutcome { done: moves.to_vec(), ..MoveOutcome::default() }
    }
}

fn main() {
    let number = |at: usize, or: u64| std::env::args().nth(at).map_or(or, |a| a.parse().unwrap());
    let (pages, steps) = (number(1, 41_000), number(2, 5));
    let machine: Machine = terrace_machine::preset("lab-cxl").unwrap();
    let range = VpnRange::new(Vpn(0), Vpn(pages));
    let mapping = Mapping { pid: Pid(1), range, kind: MappingKind::Anonymous, writable: true };
    let parts = EngineParts {
        clock: Box::new(Time(Rc::new(Cell::new(0)))),
        trackers: vec![Box::new(PageSampler { pages, seed: 7 })],
        target: Box::new(All { mappings: vec![mapping], fast: pages * 3 / 4 }),
        mover: Box::new(Done),
        journal: None,
        placement: Placement::new(PolicyId::Terrace, &machine),
        machine,
        own_cpu: Box::new(|_| Nanos::ZERO),
    };
    let mut engine = Engine::new(parts, Config::default());
    for _ in 0..steps {
        let report = engine.run_step();
        for d in report.decisions {
            println!("{} {}: {}", report.at, d.name, d.why);
        }
    }
    println!("{pages} pages, {steps} steps");
}
