//! A probe of a made-up machine: what it writes is what `tiers` and `sim` read, and JSON is the
//! contract's.

use std::collections::BTreeMap;
use terrace_machine::{preset, rank, Evidence, Machine, RankAttribute};
use terrace_probe::kernels::ElementKernel;
use terrace_probe::{Instrument, MeasuredFigure, Situation, Task, TaskOutcome, Trouble};
use terrace_terrace::predict::{predict, Question, TrackerKind};
use terrace_terrace::probe::{probe_with, Depth, ProbeError};
use terrace_terrace::types::{Bytes, BytesPerSec, Nanos, Seed, Tick};

/// Answers with the figures of the machine itself, a little beside them.
struct Fake {
    machine: Machine,
    now: Tick,
    left: usize,
}

impl Instrument for Fake {
    fn measure(&mut self, task: &Task) -> Result<TaskOutcome, Trouble> {
        self.now = self.now.after(Nanos::millis(5));
        self.left = self.left.checked_sub(1).ok_or(Trouble::Interrupted)?;
        let (initiator, target) = task.pair();
        let link = target.and_then(|t| self.machine.link(initiator, t));
        let rate = |figure: Option<terrace_machine::Figure<BytesPerSec>>| {
            figure.map_or(1e9, |f| f.value.get() as f64)
        };
        let value = match task {
            Task::Chase { bytes, .. } if *bytes <= Bytes(32 << 10) => 1.2,
            Task::Chase { bytes, .. } if *bytes <= Bytes(1 << 20) => 4.0,
            Task::Chase { .. } => {
                link.and_then(|l| l.read_latency).map_or(100.0, |f| f.value.get() as f64) * 1.02
            }
            Task::Misses { chains, .. } => 100.0 / f64::from((*chains).min(12)),
            Task::Stream { kernel: ElementKernel::Write, .. } => {
                rate(link.and_then(|l| l.write_bandwidth)) * 0.97
            }
            _ => rate(link.and_then(|l| l.read_bandwidth)) * 0.97,
        };
        let figure =
            MeasuredFigure { value, spread: value * 0.01, runs: 5, disturbed: 1, noisy: false };
        let second = matches!(task, Task::Loaded { .. } | Task::Move { .. }).then_some(figure);
        Ok(TaskOutcome::new(figure, second, "fake"))
    }

    fn now(&mut self) -> Tick {
        self.now
    }

    fn cpu_time_of_others(&mut self) -> Option<Nanos> {
        None
    }
}

fn situation(machine: &Machine) -> Situation {
    Situation {
        cpus: machine.nodes.iter().flat_map(|n| n.cpus.clone()).collect(),
        nodes: machine.nodes.iter().map(|n| n.id).collect(),
        free: machine
            .nodes
            .iter()
            .map(|n| (n.id, Bytes(n.capacity.get() / 10 * 7)))
            .collect::<BTreeMap<_, _>>(),
        memory: Bytes::gib(64),
        bound_by: "memory available".to_owned(),
        last_cache: machine.caches.last().map_or(Bytes::ZERO, |c| c.size),
        machine: machine.clone(),
    }
}

fn probed(name: &str, left: usize) -> terrace_terrace::probe::Probed {
    let machine = preset(name).expect("a preset");
    let mut fake = Fake { machine: machine.clone(), now: Tick(0), left };
    probe_with(&situation(&machine), Depth::Quick, &mut fake, &mut |_| {})
        .expect("it can be measured")
}

#[test]
fn the_machine_file_is_read_back_within_what_was_measured_and_simulated() {
    for name in ["lab-cxl", "lab-hbm", "lab-dcpmm", "lab-numa", "lab-snc4"] {
        let reported = preset(name).expect("a preset");
        let probed = probed(name, usize::MAX);
        let text = probed.machine_file();
        let back = Machine::from_toml(&text, "back.toml").unwrap_or_else(|e| panic!("{name}: {e}"));
        for link in &back.links {
            let was = reported.link(link.initiator, link.target).expect("a link of the preset");
            let latency = link.read_latency.expect("measured");
            if latency.evidence != Evidence::Measured {
                // A node too small to be measured keeps what was reported, and that is reported.
                let why = format!("Node {} is left out", link.target);
                assert!(back.notes.iter().any(|n| n.starts_with(&why)), "{name}: {:?}", back.notes);
                continue;
            }
            let off =
                latency.value.get() as f64 / was.read_latency.expect("told").value.get() as f64;
            assert!((0.95..1.05).contains(&off), "{name}: {off}");
            let read = link.read_bandwidth.expect("measured");
            let off =
                read.value.get() as f64 / was.read_bandwidth.expect("told").value.get() as f64;
            assert!(
                (0.9..1.1).contains(&off) && read.evidence == Evidence::Measured,
                "{name}: {off}"
            );
        }
        let order = |m: &Machine| {
            rank(m, RankAttribute::Bandwidth, None).expect("tiers").tiers[0].nodes.clone()
        };
        assert_eq!(order(&back), order(&reported), "{name}");
    }
    let machine = Machine::from_toml(&probed("lab-cxl", usize::MAX).machine_file(), "m")
        .expect("a machine file");
    let question = Question {
        machine,
        policies: vec![terrace_types::PolicyId::FirstTouch.into()],
        input: "workload:skew,accesses=200k".to_owned(),
        sweep: Vec::new(),
        seed: Seed(1),
        tracker: TrackerKind::NAMED[0].1,
        journals: false,
        custom: None,
    };
    let answer = predict(&question).expect("the simulator takes it");
    assert_eq!(answer.runs.len(), 1);
}

#[test]
fn json_has_the_contracts_keys_and_a_spread_beside_each_figure() {
    let json = probed("lab-cxl", usize::MAX).json().expect("tiers");
    for key in [
        "machine",
        "source",
        "nodes",
        "tiers",
        "initiator",
        "measurements",
        "notes",
        "probe_seconds",
    ] {
        assert!(!json[key].is_null(), "{key}");
    }
    assert!(json["partial"].is_null());
    let tier = &json["tiers"][0];
    for key in ["read_bandwidth_bytes_per_s", "write_bandwidth_bytes_per_s", "read_latency_ns"] {
        assert_eq!(tier["evidence"][key], "measured", "{tier}");
        let (figure, spread) =
            (tier[key].as_f64().expect("a figure"), tier[format!("{key}_spread")].as_f64());
        assert!((spread.expect("a spread") / figure - 0.01).abs() < 0.002, "{key}");
    }
    for m in json["measurements"].as_array().expect("a list") {
        let figure =
            ["latency_ns", "bandwidth_bytes_per_s"].into_iter().find(|k| m[*k].is_number());
        let figure = figure.unwrap_or_else(|| panic!("{m}"));
        assert!(
            m[format!("{figure}_spread")].is_number() && m["runs"] == 5 && m["noisy"] == false,
            "{m}"
        );
    }
    let html = terrace_terrace::report::read(json.to_string().as_bytes())
        .expect("the report reads it")
        .to_html();
    assert!(html.contains("Latency by size of the region"));
}

#[test]
fn an_interrupted_probe_is_marked_wherever_it_is_shown() {
    let probed = probed("lab-cxl", 4);
    assert!(probed.machine_file().starts_with("# PARTIAL: interrupted after 4 of"));
    let back = Machine::from_toml(&probed.machine_file(), "m").expect("still a machine file");
    assert!(back.notes[0].starts_with("PARTIAL"));
    assert!(probed.json().expect("tiers")["partial"]
        .as_str()
        .expect("why")
        .starts_with("interrupted"));
    assert!(probed.text().expect("tiers").contains("PARTIAL"));
}

#[test]
fn where_nothing_may_be_measured_that_is_said() {
    let machine = preset("lab-cxl").expect("a preset");
    let nothing = Situation {
        memory: Bytes::mib(5),
        bound_by: "limit of control group /x".into(),
        ..situation(&machine)
    };
    let mut fake = Fake { machine, now: Tick(0), left: 9 };
    let error = probe_with(&nothing, Depth::Quick, &mut fake, &mut |_| {}).expect_err("no memory");
    assert!(
        matches!(&error, ProbeError::Nothing(why) if why.contains("control group /x")),
        "{error}"
    );
    assert_eq!(fake.left, 9, "nothing was tried");
}
