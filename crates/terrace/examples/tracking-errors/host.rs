//! On the host: runs the guest's side in the lab, and lays its account beside the plugin's.

use std::collections::HashMap;
use std::path::Path;
use terrace_lab::{JobSpec, Lab, LabMachine, ProgressSink};

const GUEST_SELF: &str = "/usr/bin/tracking-errors";
const GUEST_WORKLOAD: &str = "/usr/bin/terrace-workload";
/// Length of the plugin's windows.
const WINDOW_MS: u64 = 5;

/// What there is to lay side by side.
const CASES: [&str; 6] = [
    "skew,accesses=100G",
    "skew,accesses=100G,layout=scattered",
    "skew,accesses=100G,layout=scattered,hot=read",
    "rwsplit,accesses=100G",
    "scan,accesses=100G",
    "skew,accesses=100G,layout=scattered,hot_size=16MiB",
];

type Failure = String;

struct Stderr;

impl ProgressSink for Stderr {
    fn step(&self, what: &str) {
        eprintln!("{what}");
    }
}

/// What is printed of one workload.
#[derive(Debug, serde::Serialize)]
struct Report {
    workload: String,
    trackers: String,
    steps: usize,
    /// From one decision to the next, mean.
    step_seconds: f64,
    cpu_share: f64,
    /// `[tier][truth][class]` in pages, over all steps: truth cold, read, written; class cold,
    /// read, write, unknown.
    fast: [[u64; 4]; 3],
    slow: [[u64; 4]; 3],
    slow_wrong_share: f64,
    all_wrong_share: f64,
    unknown_share: f64,
    /// Written to the slow node on the bus, by everybody: target, kernel and the trackers
    /// themselves.
    bus_writes_bytes_per_s: f64,
    /// The target's stores to pages on the slow node, a line each: what the estimate is of.
    stored_bytes_per_s: f64,
    estimated_writes_bytes_per_s: f64,
    /// Of single steps, smallest and largest ratio of the estimate to the truth.
    ratio_spread: [f64; 2],
    /// The control rule's side of the 10 MB/s threshold, wrongly taken in so many steps.
    threshold_wrong_steps: usize,
}

/// `[--machine M] [--steps N] [--cpu SHARE] [--json] WORKLOAD...`
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let (mut machine, mut steps, mut share, mut json) =
        ("lab-cxl".to_string(), 20_u32, 0.03_f64, false);
    let mut workloads = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--machine" => machine = value()?.clone(),
            "--steps" => steps = value()?.parse().map_err(|e| format!("--steps: {e}"))?,
            "--cpu" => share = value()?.parse().map_err(|e| format!("--cpu: {e}"))?,
            "--json" => json = true,
            _ => workloads.push(word.clone()),
        }
    }
    if workloads.is_empty() {
        workloads = CASES.map(String::from).into();
    }
    let file = terrace_machine::preset(&machine).ok_or(format!("no preset is called {machine}"))?;
    let lab = Lab::open(&Lab::default_dir()).map_err(|e| e.to_string())?;
    let bench = lab.bench(&file, None, &Stderr).map_err(|e| e.to_string())?;
    let calibration = terrace_lab::calibrate::ensure(&bench, &Stderr).map_err(|e| e.to_string())?;
    for workload in &workloads {
        let spec = format!("{workload},fast={}MiB", calibration.usable_fast_bytes >> 20);
        let report = one(&bench, &spec, steps, share)?;
        if json {
            println!("{}", serde_json::to_string(&report).map_err(|e| e.to_string())?);
        } else {
            show(&report);
        }
    }
    Ok(())
}

fn one(bench: &LabMachine, spec: &str, steps: u32, share: f64) -> Result<Report, Failure> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let workload = bench
        .lab()
        .guest_program("terrace-workload")
        .ok_or("no bin/terrace-workload in the lab")?;
    let argv = [GUEST_SELF, "guest", &steps.to_string(), &share.to_string(), GUEST_WORKLOAD, spec];
    let mut job = JobSpec::new(argv.map(String::from).into());
    // Its loader and libraries at their own paths, itself at a fixed one.
    job.carry(&own).map_err(|e| e.to_string())?;
    job.carry_as(&own, GUEST_SELF);
    job.carry_as(Path::new(&workload), GUEST_WORKLOAD);
    let plain =
        terrace_lab::policies::plan("first-touch", bench.shape()).map_err(|e| e.to_string())?;
    job.before = plain.before;
    job.profile = true;
    job.plugin = vec![
        ("profile_all".into(), "on".into()),
        ("profile_window_ms".into(), WINDOW_MS.to_string()),
    ];
    let result = bench.run(&job).map_err(|e| e.to_string())?;
    result
        .success()
        .map_err(|how| format!("{spec}: {how}: {}", String::from_utf8_lossy(&result.stderr)))?;
    eprintln!("{spec}: {:.0} wall s", result.wall_seconds);
    let intervals = intervals(result.profile.as_deref().unwrap_or_default())?;
    let account = account(&String::from_utf8_lossy(&result.stdout))?;
    Ok(compare(spec, &account, &intervals, bench.shape().slow as usize))
}

/// One window of the plugin's.
struct Truth {
    /// From the first window's begin, nanoseconds.
    start: u64,
    written: Vec<u64>,
    /// Page, and stores to it.
    pages: Vec<(u64, u64)>,
}

fn intervals(profile: &[u8]) -> Result<Vec<Truth>, Failure> {
    let text = std::str::from_utf8(profile).map_err(|e| e.to_string())?;
    let mut out: Vec<Truth> = Vec::new();
    let mut first = None;
    for line in text.lines() {
        let bad = || format!("the plugin's profile has line '{line}'");
        let mut words = line.split(' ');
        if let Some(rest) = line.strip_prefix("window ") {
            let mut numbers = rest.split(' ').map(str::parse::<u64>);
            let start = numbers.next().and_then(Result::ok).ok_or_else(bad)?;
            let written = numbers.collect::<Result<_, _>>().map_err(|_| bad())?;
            let first = *first.get_or_insert(start);
            out.push(Truth { start: start - first, written, pages: Vec::new() });
            continue;
        }
        let page = words.next().and_then(|w| u64::from_str_radix(w, 16).ok()).ok_or_else(bad)?;
        let stores: u64 = words.nth(1).and_then(|w| w.parse().ok()).ok_or_else(bad)?;
        out.last_mut().ok_or_else(bad)?.pages.push((page, stores));
    }
    Ok(out)
}

/// What the guest told.
#[derive(Default)]
struct Account {
    trackers: String,
    delay: u64,
    cpu_share: f64,
    steps: Vec<Step>,
}

struct Step {
    begun: u64,
    ended: u64,
    estimate: f64,
    /// First page and its class, page by page.
    areas: Vec<(u64, Vec<u8>)>,
}

fn account(text: &str) -> Result<Account, Failure> {
    let mut all = Account::default();
    for line in text.lines() {
        let bad = || format!("the guest said '{}'", line.chars().take(60).collect::<String>());
        let (what, rest) = line.split_once(' ').ok_or_else(bad)?;
        match what {
            "trackers" => all.trackers = rest.to_string(),
            "delay" => all.delay = rest.parse().map_err(|_| bad())?,
            "cpu_share" => all.cpu_share = rest.parse().map_err(|_| bad())?,
            "step" => {
                let n: Vec<f64> = rest.split(' ').map_while(|w| w.parse().ok()).collect();
                let [begun, ended, estimate] = n[..] else { return Err(bad()) };
                all.steps.push(Step {
                    begun: begun as u64,
                    ended: ended as u64,
                    estimate,
                    areas: Vec::new(),
                });
            }
            "area" => {
                let (start, runs) = rest.split_once(' ').ok_or_else(bad)?;
                let start = u64::from_str_radix(start, 16).map_err(|_| bad())?;
                let mut classes = Vec::new();
                let mut count = 0;
                for byte in runs.bytes() {
                    if byte.is_ascii_digit() {
                        count = count * 10 + usize::from(byte - b'0');
                    } else {
                        classes.extend(std::iter::repeat_n(byte, count));
                        count = 0;
                    }
                }
                all.steps.last_mut().ok_or_else(bad)?.areas.push((start, classes));
            }
            _ => return Err(bad()),
        }
    }
    Ok(all)
}

fn compare(spec: &str, account: &Account, intervals: &[Truth], slow_node: usize) -> Report {
    const THRESHOLD: f64 = 10e6;
    const LINE: u64 = 64;
    let mut tables = [[[0_u64; 4]; 3]; 2];
    let (mut bus_sum, mut stored_sum, mut estimate_sum) = (0.0, 0.0, 0.0);
    let (mut spread, mut wrong_side) = ([f64::MAX, 0.0_f64], 0);
    for step in &account.steps {
        let from = step.ended.saturating_sub(account.delay);
        let middle = |w: &&Truth| (from..step.ended).contains(&(w.start + WINDOW_MS * 500_000));
        let mut touched: HashMap<u64, u64> = HashMap::new();
        let mut written = 0;
        let mut count = 0;
        for interval in intervals.iter().filter(middle) {
            count += 1;
            written += interval.written.get(slow_node).copied().unwrap_or(0);
            for (page, stores) in &interval.pages {
                *touched.entry(*page).or_default() += stores;
            }
        }
        let seconds = f64::from(count.max(1)) * WINDOW_MS as f64 / 1e3;
        let mut stores = 0;
        for (start, classes) in &step.areas {
            for (at, class) in classes.iter().enumerate() {
                let column = match class.to_ascii_lowercase() {
                    b'c' => 0,
                    b'r' => 1,
                    b'w' => 2,
                    b'u' => 3,
                    _ => continue,
                };
                let truth = touched.get(&(start + at as u64));
                let row = match truth {
                    None => 0,
                    Some(0) => 1,
                    Some(_) => 2,
                };
                let slow = class.is_ascii_lowercase();
                stores += truth.copied().filter(|_| slow).unwrap_or(0);
                tables[usize::from(slow)][row][column] += 1;
            }
        }
        let stored = (stores * LINE) as f64 / seconds;
        bus_sum += written as f64 / seconds;
        stored_sum += stored;
        estimate_sum += step.estimate;
        let ratio = step.estimate / stored.max(1.0);
        spread = [spread[0].min(ratio), spread[1].max(ratio)];
        wrong_side += usize::from((stored > THRESHOLD) != (step.estimate > THRESHOLD));
    }
    let [fast, slow] = tables;
    let both = || fast.iter().chain(&slow);
    let count = account.steps.len();
    let span = account
        .steps
        .last()
        .map_or(0, |s| s.ended)
        .saturating_sub(account.steps.first().map_or(0, |s| s.begun));
    let n = count.max(1) as f64;
    Report {
        workload: spec.into(),
        trackers: account.trackers.clone(),
        steps: count,
        step_seconds: span as f64 / 1e9 / n,
        cpu_share: account.cpu_share,
        fast,
        slow,
        slow_wrong_share: wrong(&slow),
        all_wrong_share: wrong(&[fast, slow].concat()),
        unknown_share: both().map(|r| r[3]).sum::<u64>() as f64
            / both().flatten().sum::<u64>().max(1) as f64,
        bus_writes_bytes_per_s: bus_sum / n,
        stored_bytes_per_s: stored_sum / n,
        estimated_writes_bytes_per_s: estimate_sum / n,
        ratio_spread: spread,
        threshold_wrong_steps: wrong_side,
    }
}

/// Share of pages, the unknown left out, whose class is not the truth.
fn wrong(rows: &[[u64; 4]]) -> f64 {
    let (mut right, mut all) = (0, 0);
    for (at, row) in rows.iter().enumerate() {
        right += row[at % 3];
        all += row[..3].iter().sum::<u64>();
    }
    (all - right) as f64 / (all as f64).max(1.0)
}

fn show(r: &Report) {
    println!("{} [{}]", r.workload, r.trackers);
    println!(
        "  {} steps of {:.0} ms, {:.1}% of a core; {:.1}% of pages unknown",
        r.steps,
        r.step_seconds * 1e3,
        r.cpu_share * 100.0,
        r.unknown_share * 100.0
    );
    for (tier, table, share) in
        [("slow", &r.slow, r.slow_wrong_share), ("fast", &r.fast, wrong(&r.fast))]
    {
        println!("  {tier} tier: {:.1}% of pages classed wrongly; pages a step:", share * 100.0);
        println!(
            "    {:>12} {:>10} {:>10} {:>10} {:>10}",
            "in truth", "cold", "read", "write", "unknown"
        );
        for (name, row) in ["untouched", "read", "written"].iter().zip(table) {
            let mean = row.map(|n| n / r.steps.max(1) as u64);
            println!(
                "    {name:>12} {:>10} {:>10} {:>10} {:>10}",
                mean[0], mean[1], mean[2], mean[3]
            );
        }
    }
    println!(
        "  slow tier's writes: {:.1} MB/s on the bus, {:.1} stored by the target, estimated \
            {:.1}: {:.3} of what it stored \
         ({:.3} to {:.3}); {} of {} steps on the wrong side of 10 MB/s",
        r.bus_writes_bytes_per_s / 1e6,
        r.stored_bytes_per_s / 1e6,
        r.estimated_writes_bytes_per_s / 1e6,
        r.estimated_writes_bytes_per_s / r.stored_bytes_per_s.max(1.0),
        r.ratio_spread[0],
        r.ratio_spread[1],
        r.threshold_wrong_steps,
        r.steps
    );
}
