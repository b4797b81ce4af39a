//! The proof that comes before every result: inside the guest a pointer chase must read the machine
//! file's latency and a sweep its bandwidth, or the lab refuses to report.

use crate::error::{io, LabError, Result};
use crate::fit::sweep_mib;
use crate::job::JobSpec;
use crate::lab::{LabMachine, ProgressSink};
use crate::shape::Shape;
use crate::wire;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;
use terrace_types::Bytes;

/// Allowed deviation of latency, percent.
pub const LATENCY_PERCENT: f64 = 5.0;
/// Allowed deviation of bandwidth, percent.
pub const BANDWIDTH_PERCENT: f64 = 10.0;
/// Memory chased through at least, MiB: far beyond the caches of the lab's own machines, well
/// within their smallest node.
const CHASE_MIB: u64 = 24;
const CHASE_STEPS: u32 = 200_000;
const SWEEP_ROUNDS: u32 = 3;
const FILE: &str = "calibration.json";

/// One figure read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigureReadBack {
    /// Node whose CPUs measured.
    pub initiator: u32,
    /// Node measured.
    pub node: u32,
    /// What: `latency_ns`, `read_bandwidth_bytes_per_s` or `triad_bandwidth_bytes_per_s`.
    pub figure: String,
    /// The machine file's value.
    pub wanted: f64,
    /// The guest's.
    pub got: f64,
}

impl FigureReadBack {
    /// Deviation in percent of the wanted value.
    #[must_use]
    pub fn off_percent(&self) -> f64 {
        (self.got - self.wanted).abs() * 100.0 / self.wanted.max(1e-9)
    }

    fn allowed(&self) -> f64 {
        if self.figure == LATENCY {
            LATENCY_PERCENT
        } else {
            BANDWIDTH_PERCENT
        }
    }
}

const LATENCY: &str = "latency_ns";
const READ: &str = "read_bandwidth_bytes_per_s";
const TRIAD: &str = "triad_bandwidth_bytes_per_s";

/// What one measured wake-up of a machine says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Every figure checked.
    pub readings: Vec<FigureReadBack>,
    /// What a program could get of the fast node.
    pub usable_fast_bytes: u64,
    /// Whether a timing plugin was there; without one nothing is checked.
    pub timed: bool,
}

impl Calibration {
    /// `Err` for the figure that is farthest beyond what is allowed.
    pub fn check(&self, machine: &str) -> Result<()> {
        let excess = |r: &FigureReadBack| r.off_percent() / r.allowed();
        let worst = self.readings.iter().max_by(|a, b| excess(a).total_cmp(&excess(b)));
        match worst {
            Some(r) if self.timed && (excess(r).is_nan() || excess(r) > 1.0) => {
                Err(LabError::Calibration {
                    machine: machine.to_string(),
                    node: r.node,
                    figure: figure_name(&r.figure),
                    wanted: r.wanted,
                    got: r.got,
                    off_percent: r.off_percent(),
                    allowed_percent: r.allowed(),
                })
            }
            _ => Ok(()),
        }
    }
}

fn figure_name(figure: &str) -> &'static str {
    match figure {
        LATENCY => LATENCY,
        READ => READ,
        _ => TRIAD,
    }
}

/// Calibrate a machine, or read back what an earlier calibration of the same saved machine gave;
/// then check.
pub fn ensure(bench: &LabMachine, progress: &dyn ProgressSink) -> Result<Calibration> {
    let path = bench.snapshot().dir().join(FILE);
    let cached =
        fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Calibration>(&bytes).ok());
    let calibration = match cached {
        Some(calibration) => calibration,
        None => {
            progress.step("calibrating: latency and bandwidth of each node");
            let calibration = measure(bench)?;
            fs::write(&path, wire::to_json(&calibration)?).map_err(io("writing", &path))?;
            calibration
        }
    };
    calibration.check(&bench.shape().name)?;
    Ok(calibration)
}

fn measure(bench: &LabMachine) -> Result<Calibration> {
    let shape = bench.shape();
    let mut wanted = plan(shape, bench.last_cache());
    let mut argv = vec!["/init".to_string()];
    argv.extend(wanted.iter().map(|(arg, _)| arg.clone()));
    let mut spec = JobSpec::new(argv);
    spec.limit_wall = Duration::from_secs(900);
    spec.before = crate::policies::plan("first-touch", shape)?.before;
    let result = bench.run(&spec)?;
    let failed = |how: String| LabError::WorkloadFailed {
        policy: "calibration".into(),
        how,
        stderr: String::from_utf8_lossy(&result.stderr).trim().to_string(),
    };
    result.success().map_err(failed)?;
    let text = String::from_utf8_lossy(&result.stdout);
    let figures: Vec<f64> = text.lines().filter_map(|l| l.trim().parse().ok()).collect();
    if figures.len() != wanted.len() {
        return Err(failed(format!(
            "printed {} figures instead of {}",
            figures.len(),
            wanted.len()
        )));
    }
    for ((_, reading), got) in wanted.iter_mut().zip(figures) {
        reading.got = got;
    }
    Ok(Calibration {
        readings: wanted.into_iter().map(|(_, reading)| reading).collect(),
        usable_fast_bytes: result.reply.usable_bytes.get(&shape.fast).copied().unwrap_or(0),
        timed: result.stats.is_some(),
    })
}

/// The measurements and what they should read: latency over every link, bandwidth of every node
/// from its initiator.
fn plan(shape: &Shape, last_cache: Bytes) -> Vec<(String, FigureReadBack)> {
    // A chain that is longer than the cache finds nothing of itself there: it is gone through in
    // the order it was made.
    let chase = CHASE_MIB.max(last_cache.get().div_ceil(1 << 20) * 3 / 2);
    let mut out = Vec::new();
    let cpus_of = |node: u32| {
        shape.nodes.iter().find(|n| n.id == node).map(|n| n.cpus.clone()).unwrap_or_default()
    };
    let reading = |initiator, node, figure: &str, wanted| FigureReadBack {
        initiator,
        node,
        figure: figure.into(),
        wanted,
        got: 0.0,
    };
    for link in &shape.links {
        let Some(cpu) = cpus_of(link.initiator).first().copied() else { continue };
        let arg = format!("chase:{}:{chase}:{CHASE_STEPS}:{cpu}", link.target);
        out.push((arg, reading(link.initiator, link.target, LATENCY, link.read_latency_ns as f64)));
    }
    for node in &shape.nodes {
        let Some(link) = shape.link_to(node.id) else { continue };
        let cpus: Vec<String> = cpus_of(node.initiator).iter().map(u32::to_string).collect();
        let mib = sweep_mib(cpus.len(), last_cache);
        let tail = format!("{}:{mib}:{SWEEP_ROUNDS}:{}", node.id, cpus.join(","));
        let read = link.read_bandwidth as f64;
        // A triad brings three lines in for one that it writes back.
        let triad = 4.0 / (3.0 / read + 1.0 / link.write_bandwidth as f64);
        out.push((format!("read:{tail}"), reading(node.initiator, node.id, READ, read)));
        out.push((format!("triad:{tail}"), reading(node.initiator, node.id, TRIAD, triad)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::calibration_bytes;

    fn with(figure: &str, wanted: f64, got: f64) -> Calibration {
        let readings =
            vec![FigureReadBack { initiator: 0, node: 1, figure: figure.into(), wanted, got }];
        Calibration { readings, usable_fast_bytes: 0, timed: true }
    }

    #[test]
    fn what_is_too_far_off_is_refused_by_name() {
        assert!(with(LATENCY, 300.0, 314.0).check("m").is_ok());
        let e = with(LATENCY, 300.0, 320.0).check("m").unwrap_err().to_string();
        assert!(e.contains("latency_ns of node 1 should be 300.0, is 320.0"), "{e}");
        assert!(with(READ, 1e11, 0.91e11).check("m").is_ok());
        assert!(with(TRIAD, 1e11, 0.89e11).check("m").is_err());
        assert!(with(LATENCY, 300.0, f64::NAN).check("m").is_err());
    }

    #[test]
    fn large_caches_take_more_memory_to_see_past() {
        let shape =
            Shape::from_machine(&terrace_machine::preset("lab-cxl").unwrap(), None).unwrap();
        let sizes = |cache| -> Vec<String> {
            plan(&shape, cache)
                .iter()
                .map(|(arg, _)| arg.split(':').nth(2).unwrap().to_owned())
                .collect()
        };
        assert_eq!(sizes(Bytes::mib(4)), ["24"; 6], "as ever on the lab's own machines");
        assert_eq!(sizes(Bytes::mib(16)), ["24", "24", "64", "64", "64", "64"]);
        assert_eq!(sizes(Bytes::mib(32)), ["48", "48", "128", "128", "128", "128"]);
        assert_eq!(
            (
                calibration_bytes(&shape, 1, Bytes::mib(4)),
                calibration_bytes(&shape, 1, Bytes::mib(16))
            ),
            (None, Some(Bytes::mib(64)))
        );
    }

    #[test]
    fn every_link_and_node_is_measured() {
        let shape =
            |m: &str| Shape::from_machine(&terrace_machine::preset(m).unwrap(), Some(2)).unwrap();
        let plan = |m: &str| plan(&shape(m), Bytes::mib(4));
        assert_eq!(plan("lab-cxl").len(), 2 + 4);
        assert_eq!(plan("lab-numa").len(), 4 + 4);
        assert!(plan("lab-hbm").iter().all(|(arg, _)| !arg.ends_with(':')));
    }
}
