//! Figures 5, 6 and 7: the NAS kernels in the sizes of the paper's table III.

use crate::machine::{Scale, CORES};
use crate::managed::{run, Outcome};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use terrace_sim::{SimInput, SimSetup};
use terrace_types::Bytes;
use terrace_workload::WorkloadSpec;

/// The kernels.
pub const NAMES: [&str; 4] = ["BT", "FT", "MG", "CG"];
/// The paper's solutions, in the order of its figures, and ours.
pub const POLICIES: [&str; 7] =
    ["default", "memm", "autonuma", "memos", "nimble", "hyplacer", "terrace"];
/// Bytes of a base page.
const PAGE: f64 = 4096.0;

/// Sizes as shares of the fast tier (table III over 32 GB), small, medium, large; iterations; and
/// units of work of one iteration a byte of data, as the kernels count them.
const KERNELS: [(&str, [f64; 3], f64, f64); 4] = [
    ("BT", [0.89, 1.22, 1.68], 8.0, 6.0 / 168.0),
    ("FT", [0.63, 1.25, 2.5], 8.0, 4.0 / 40.0),
    ("MG", [0.83, 2.32, 4.09], 3.0, 4.0 / 26.3),
    ("CG", [0.56, 1.24, 4.69], 24.0, 1.0 / 16.8),
];

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    pub kernel: String,
    pub size: String,
    pub policy: String,
    /// Data over the fast tier.
    pub share: f64,
    /// Of the scaled machine, and what they stand for on the real one.
    pub seconds: f64,
    pub real_seconds: f64,
    /// How many times faster than first touch.
    pub speedup: f64,
    /// Share of last-level misses served by DRAM.
    pub fast_share: f64,
    /// Bytes read and written at each tier, times the scale.
    pub read_gb: [f64; 2],
    pub written_gb: [f64; 2],
    /// Reads over writes of lines at memory, and of the program's accesses.
    pub line_mix: f64,
    pub access_mix: f64,
    /// Pages moved up and down, as shares of the fast tier.
    pub moved: [f64; 2],
}

fn spec(scale: Scale, kernel: &str, size: usize) -> Result<WorkloadSpec, String> {
    let row = KERNELS
        .iter()
        .find(|k| k.0 == kernel)
        .ok_or(format!("{kernel}: no kernel; there are BT, FT, MG, CG"))?;
    let fast = (32u64 << 30) / scale.size;
    let bytes = row.1[size] * fast as f64;
    // Half an iteration more, so that rounding of sizes does not take one away.
    let accesses = (row.2 + 0.5) * bytes * row.3;
    let text = format!(
        "npb-{},threads={CORES},fast={fast},size={},accesses={}",
        kernel.to_lowercase(),
        row.1[size],
        accesses as u64
    );
    WorkloadSpec::parse(&text).map_err(|e| e.to_string())
}

/// Kernels in these sizes under these policies, on `workers` threads.
pub fn runs(
    scale: Scale,
    (kernels, sizes, policies): (&[String], &[&str], &[String]),
    workers: usize,
    journals: Option<&Path>,
) -> Result<Vec<Run>, String> {
    let mut tasks = Vec::new();
    for kernel in kernels {
        for size in sizes {
            let index =
                ["S", "M", "L"].iter().position(|s| s == size).ok_or("sizes are S, M, L")?;
            let mut plan = SimSetup::from_machine(
                &scale.machine()?,
                SimInput::Workload(spec(scale, kernel, index)?),
            )
            .map_err(|e| e.to_string())?;
            plan.quantum = scale.quantum();
            tasks.extend(
                policies
                    .iter()
                    .map(|p| (kernel.clone(), (*size).to_owned(), p.clone(), plan.clone())),
            );
        }
    }
    let outcomes = each(&tasks, workers, |(kernel, size, policy, plan)| {
        let started = std::time::Instant::now();
        let journal = journals.map(|folder| folder.join(format!("{kernel}-{size}-{policy}.jsonl")));
        let outcome = run(plan, policy, scale, journal.as_deref())
            .map_err(|why| format!("{kernel} {size} {policy}: {why}"));
        eprintln!("{kernel} {size} {policy}: {:.1} s", started.elapsed().as_secs_f64());
        outcome
    })?;
    let base = |kernel: &str, size: &str| {
        let at = tasks.iter().position(|t| t.0 == kernel && t.1 == size && t.2 == "default");
        at.map_or(1.0, |i| outcomes[i].span.as_secs_f64())
    };
    let words = |plan: &SimSetup| match &plan.input {
        SimInput::Workload(spec) => spec.size.bytes(spec.fast),
        SimInput::Recording { .. } => Bytes::ZERO,
    };
    let result =
        |((kernel, size, policy, plan), o): (&(String, String, String, SimSetup), &Outcome)| {
            let c = &o.counters;
            let fast = plan.usable(0) as f64;
            let sum = |v: &[u64]| v.iter().sum::<u64>() as f64;
            let gb = |v: &[u64]| [0, 1].map(|n| v[n] as f64 * scale.size as f64 / 1e9);
            let misses = c.llc_misses();
            Run {
                kernel: kernel.clone(),
                size: size.clone(),
                policy: policy.clone(),
                share: words(plan).get() as f64 / fast,
                seconds: o.span.as_secs_f64(),
                real_seconds: o.span.as_secs_f64() * scale.clock as f64,
                speedup: base(kernel, size) / o.span.as_secs_f64(),
                fast_share: misses[0] as f64 / sum(&misses).max(1.0),
                read_gb: gb(&c.read_bytes),
                written_gb: gb(&c.write_bytes),
                line_mix: sum(&misses) / sum(&c.writebacks).max(1.0),
                access_mix: c.loads as f64 / c.stores.max(1) as f64,
                moved: [o.moved.0, o.moved.1].map(|pages| pages as f64 * PAGE / fast),
            }
        };
    Ok(tasks.iter().zip(&outcomes).map(result).collect())
}

/// Runs each task on one of `workers` threads; results in the order of the tasks.
pub fn each<T: Sync, R: Send>(
    tasks: &[T],
    workers: usize,
    run: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let (next, done) = (Mutex::new(0..tasks.len()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| loop {
                let Some(at) = next.lock().ok().and_then(|mut n| n.next()) else { return };
                let outcome = run(&tasks[at]);
                if let Ok(mut done) = done.lock() {
                    done.push((at, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}

/// The tables of a figure.
pub fn tell(out: &mut String, figure: u32, runs: &[Run], policies: &[String]) {
    let _ = writeln!(out, "## Figure {figure}: speedup over first touch (ADM-default)\n");
    let policies: Vec<&str> =
        policies.iter().map(String::as_str).filter(|p| *p != "default").collect();
    let _ = writeln!(out, "| | size / DRAM | {} |", policies.join(" | "));
    let _ = writeln!(out, "|---|---|{}", "---|".repeat(policies.len()));
    let mut means: Vec<(String, Vec<Vec<f64>>)> = Vec::new();
    for base in runs.iter().filter(|r| r.policy == "default") {
        let of = |p: &str| {
            let same = |r: &&Run| r.kernel == base.kernel && r.size == base.size && r.policy == p;
            runs.iter().find(same).map_or(f64::NAN, |r| r.speedup)
        };
        let row: Vec<f64> = policies.iter().map(|p| of(p)).collect();
        let cells: Vec<String> = row.iter().map(|v| format!("{v:.2}")).collect();
        let _ = writeln!(
            out,
            "| {} {} | {:.2} | {} |",
            base.kernel,
            base.size,
            base.share,
            cells.join(" | ")
        );
        match means.iter_mut().find(|m| m.0 == base.size) {
            Some(mean) => mean.1.push(row),
            None => means.push((base.size.clone(), vec![row])),
        }
    }
    for (size, rows) in means {
        let mean =
            |i: usize| (rows.iter().map(|r| r[i].ln()).sum::<f64>() / rows.len() as f64).exp();
        let cells: Vec<String> = (0..policies.len()).map(|i| format!("{:.2}", mean(i))).collect();
        let _ = writeln!(out, "| geometric mean {size} | | {} |", cells.join(" | "));
    }
    let _ = writeln!(
        out,
        "\n## Figure {}: traffic, which energy follows\n",
        if figure == 5 { "6" } else { "7, too" }
    );
    let _ = writeln!(
        out,
        "| | policy | seconds | DRAM serves | DRAM GB r/w | DCPMM GB r/w | moved up/down |"
    );
    let _ = writeln!(out, "|---|---|---|---|---|---|---|");
    for r in runs {
        let _ = writeln!(
            out,
            "| {} {} | {} | {:.0} | {:.0}% | {:.0} / {:.0} | {:.0} / {:.0} | {:.2} / {:.2} |",
            r.kernel,
            r.size,
            r.policy,
            r.real_seconds,
            100.0 * r.fast_share,
            r.read_gb[0],
            r.written_gb[0],
            r.read_gb[1],
            r.written_gb[1],
            r.moved[0],
            r.moved[1]
        );
    }
    let _ = writeln!(
        out,
        "\n## Reads to writes, under first touch\n\n| | accesses | lines at \
        memory |\n|---|---|---|"
    );
    for r in runs.iter().filter(|r| r.policy == "default") {
        let _ =
            writeln!(out, "| {} {} | {:.1} | {:.1} |", r.kernel, r.size, r.access_mix, r.line_mix);
    }
    let _ = writeln!(out);
}
