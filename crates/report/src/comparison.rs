//! One workload under several policies: the JSON contract, a table, a chart.

use crate::chart::{tick_labels, time_labels};
use crate::markup::{brief, bytes, count, escape, or_unknown, page, percent, put, seconds};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use terrace_types::text::{fold, TextTable};
use terrace_types::{BaselineId, BaselineKind, Contender, PolicyId};

/// More runs than this are not drawn.
const MAX_RUNS: usize = 200;
/// The baselines that the tables compare with.
const BASE: &str = PolicyId::FirstTouch.name();
const IDEAL: &str = BaselineId::IdealMove.name();
/// A policy counts as faster than first touch where it is so in the digits shown: 1.01 times.
const FASTER: f64 = 1.005;

/// What `terrace lab compare --json` and `terrace sim --json` print.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Comparison {
    /// Machine by name.
    pub machine: String,
    /// The workload or recording.
    pub input: String,
    /// Accesses made, where known.
    #[serde(default)]
    pub accesses: Option<u64>,
    /// What the command itself took.
    #[serde(default)]
    pub wall_seconds: Option<f64>,
    /// One entry a policy, in the order asked.
    pub runs: Vec<PolicyRun>,
    /// Virtual CPUs, in the lab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Proof that the machine is what its file says: what was measured against what was meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calibration: Vec<CalibrationFigure>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// One figure of the calibration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CalibrationFigure {
    /// Node whose CPUs measured.
    pub initiator: u32,
    /// Node measured.
    pub node: u32,
    /// What, with its unit: `latency_ns`, `read_bandwidth_bytes_per_s`.
    pub figure: String,
    /// The machine file's value.
    #[serde(default)]
    pub wanted: Option<f64>,
    /// What was measured.
    #[serde(default)]
    pub got: Option<f64>,
}

/// One policy's run; what is not known is null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PolicyRun {
    /// The policy by name.
    pub policy: String,
    /// Modelled or guest time; null when the run failed.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Share of last-level-cache misses that the fast tier served.
    #[serde(default)]
    pub fast_access_share: Option<f64>,
    /// Pages moved to a better tier.
    #[serde(default)]
    pub promoted_pages: Option<u64>,
    /// Pages moved to a worse tier.
    #[serde(default)]
    pub demoted_pages: Option<u64>,
    /// Bytes copied by moves.
    #[serde(default)]
    pub migrated_bytes: Option<u64>,
    /// Time spent on tracking, deciding and moving.
    #[serde(default)]
    pub overhead_seconds: Option<f64>,
    /// Energy, where modelled.
    #[serde(default)]
    pub energy_joules: Option<f64>,
    /// Largest less smallest of repeated runs.
    #[serde(default)]
    pub seconds_spread: Option<f64>,
    /// How the policy was set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// What did not go as asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Why there is no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

impl PolicyRun {
    /// How much of the best tier programs had, where that was swept.
    fn fast_bytes(&self) -> Option<u64> {
        self.more.get("fast_bytes").and_then(Value::as_u64)
    }

    /// Its policy, with the size that was swept.
    fn label(&self) -> String {
        match self.fast_bytes() {
            Some(fast) => format!("{}, fast {}", self.policy, bytes(fast)),
            None => self.policy.clone(),
        }
    }

    /// The time, if it is one that can be drawn.
    fn time(&self) -> Option<f64> {
        self.seconds.filter(|s| s.is_finite() && *s >= 0.0 && *s < 1e12)
    }

    /// Class of its bar: whose work the policy is.
    fn class(&self) -> &'static str {
        // Options follow the name of a baseline, each after a plus sign. A name that is unknown
        // here is a policy of a later version or of the caller.
        let name = self.policy.split('+').next().unwrap_or_default();
        match name.parse() {
            Ok(Contender::Policy(PolicyId::FirstTouch)) => "base",
            Ok(Contender::Baseline(id)) => match id.kind() {
                BaselineKind::Kernel => "kernel",
                BaselineKind::Hardware => "hardware",
                BaselineKind::Oracle => "bound",
            },
            Ok(Contender::Policy(_) | Contender::FarStore(_) | Contender::Custom(_)) | Err(_) => {
                "ours"
            }
        }
    }

    /// The ends of the whisker; `seconds` is the median, so it lies somewhere between.
    fn spread(&self) -> Option<(f64, f64)> {
        let (time, spread) =
            (self.time()?, self.seconds_spread.filter(|s| s.is_finite() && *s > 0.0)?);
        Some(((time - spread / 2.0).max(0.0), time + spread / 2.0))
    }
}

impl Comparison {
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(bytes).map_err(|e| brief(&e.to_string(), 200))?;
        if read.runs.is_empty() {
            return Err("it holds no run".to_owned());
        }
        if read.runs.len() > MAX_RUNS {
            return Err(format!("it holds more than {MAX_RUNS} runs"));
        }
        Ok(read)
    }

    /// The figures, as the contract has them.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    fn time_of(&self, policy: &str) -> Option<f64> {
        self.runs.iter().find(|r| r.policy == policy).and_then(PolicyRun::time)
    }

    /// The time of `policy` with as much fast memory as `run` had.
    fn time_beside(&self, run: &PolicyRun, policy: &str) -> Option<f64> {
        let alike = |r: &&PolicyRun| r.policy == policy && r.fast_bytes() == run.fast_bytes();
        self.runs.iter().find(alike).and_then(PolicyRun::time)
    }

    fn is_swept(&self) -> bool {
        self.runs.iter().any(|r| r.fast_bytes().is_some())
    }

    /// A table for a terminal of so many columns.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let mut out = format!("{} on {}\n", clean(&self.input), clean(&self.machine));
        put!(&mut out, "{}\n\n", fold(&clean(&self.verdict()), columns));
        let heads = [
            "policy",
            "seconds",
            "first-touch",
            "of ideal",
            "fast access",
            "moved up / down",
            "overhead",
        ];
        let mut table = TextTable::new(1, &heads);
        for run in &self.runs {
            let (base, ideal) = self.compared(run);
            let ratio = |to: Option<f64>| match (run.time(), to) {
                (Some(t), Some(to)) if to > 0.0 => format!("{:.2} x", t / to),
                _ => "-".to_owned(),
            };
            let moved = match (run.promoted_pages, run.demoted_pages) {
                (None, None) => "-".to_owned(),
                (up, down) => {
                    let side = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), count);
                    format!("{} / {}", side(up), side(down))
                }
            };
            table.row([
                run.label(),
                run.time().map_or_else(|| "failed".to_owned(), digits),
                ratio(base),
                ratio(ideal),
                run.fast_access_share.map_or_else(|| "-".to_owned(), percent),
                moved,
                run.overhead_seconds.map_or_else(|| "-".to_owned(), seconds),
            ]);
            for more in run.warnings.iter().take(8).chain(&run.error) {
                table.remark(&clean(more));
            }
        }
        out.push_str(&table.text(columns));
        out
    }

    /// One HTML file.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = String::new();
        put!(
            &mut body,
            "<header><p class=\"over\">One workload, {} {}</p><h1>{} <span class=\"on\">on \
                {}</span></h1>\n\
             <p class=\"lead\">{}</p></header>\n",
            self.runs.len(),
            if self.is_swept() { "runs" } else { "policies" },
            brief(&self.input, 200),
            brief(&self.machine, 80),
            escape(&self.verdict())
        );
        body.push_str("<section><h2>Seconds, less is better</h2>\n");
        body.push_str(&self.bars());
        body.push_str(
            "<div class=\"legend\"><span><i class=\"key ours\"></i>user-space policy</span>\
             <span><i class=\"key kernel\"></i>the kernel by itself</span>\
             <span><i class=\"key base\"></i>first touch: moves nothing</span>\
             <span><i class=\"key bound\"></i>bound: knows more than a policy \
             can</span></div>\n</section>\n",
        );
        body.push_str(&self.table());
        self.setting(&mut body);
        page(&format!("{} on {}", self.input, self.machine), &body)
    }

    /// How policies were set, and the calibration.
    fn setting(&self, body: &mut String) {
        let set = || self.runs.iter().filter(|run| !run.settings.is_empty());
        if set().next().is_some() {
            body.push_str("<section><h2>Settings</h2>\n<table class=\"plain\">\n");
            for run in set() {
                let pairs: Vec<String> = run
                    .settings
                    .iter()
                    .take(40)
                    .map(|(k, v)| format!("{} = {}", brief(k, 80), brief(v, 80)))
                    .collect();
                put!(
                    body,
                    "<tr><th>{}</th><td>{}</td></tr>\n",
                    brief(&run.policy, 60),
                    pairs.join("<br>")
                );
            }
            body.push_str("</table></section>\n");
        }
        if self.calibration.is_empty() {
            return;
        }
        body.push_str(
            "<section><h2>Calibration</h2>\n<p class=\"small\">Measured inside the machine, \
                against what its file \
             says.</p>\n<div class=\"wide\"><table \
             class=\"figures\">\n<tr><th>figure</th><th>memory of node</th>\
             <th>from CPUs of node</th><th>meant</th><th>measured</th><th>off by</th></tr>\n",
        );
        for reading in self.calibration.iter().take(64) {
            let (name, unit) = split_unit(&reading.figure);
            let off = reading.wanted.zip(reading.got).filter(|(wanted, _)| *wanted > 0.0);
            let show = |n: Option<f64>| n.map_or_else(|| "–".to_owned(), |n| in_unit(n, unit));
            put!(
                body,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                brief(&name, 40),
                reading.node,
                reading.initiator,
                show(reading.wanted),
                show(reading.got),
                off.map_or_else(
                    || "–".to_owned(),
                    |(wanted, got)| percent((got - wanted) / wanted)
                ),
            );
        }
        body.push_str("</table></div></section>\n");
    }

    /// What a run is compared with: first touch and the ideal move.
    fn compared(&self, run: &PolicyRun) -> (Option<f64>, Option<f64>) {
        (self.time_beside(run, BASE), self.time_beside(run, IDEAL))
    }

    /// The main finding in one sentence.
    fn verdict(&self) -> String {
        let of_policies = self.runs.iter().filter(|r| matches!(r.class(), "ours" | "kernel"));
        let timed: Vec<(&PolicyRun, f64)> =
            of_policies.filter_map(|r| r.time().map(|t| (r, t))).collect();
        // Of a sweep: the run that gains most over first touch with as much fast memory.
        let base = |run: &PolicyRun| self.compared(run).0.filter(|base| *base > 0.0);
        let rank = |(run, time): &(&PolicyRun, f64)| match base(run).filter(|_| self.is_swept()) {
            Some(base) => time / base,
            None => *time,
        };
        let Some((run, time)) = timed.into_iter().min_by(|a, b| rank(a).total_cmp(&rank(b))) else {
            return match self.time_of(BASE) {
                Some(time) => format!("First touch took {}; no policy finished.", seconds(time)),
                None => "No policy finished.".to_owned(),
            };
        };
        let name = run.label();
        let mut text = match base(run) {
            Some(base) if time * FASTER >= base => format!(
                "No policy is faster than first touch ({}): the best, {name}, takes {:.2} times \
                    its time",
                seconds(base),
                time / base
            ),
            Some(base) if time > 0.0 => format!(
                "Fastest policy: {name} with {}, {:.2} times as fast as first touch",
                seconds(time),
                base / time
            ),
            _ => format!("Fastest policy: {name} with {}", seconds(time)),
        };
        if let Some(ideal) = self.compared(run).1.filter(|i| *i > 0.0) {
            text.push_str(&format!(", and {:.2} times the time of the ideal move", time / ideal));
        }
        text.push('.');
        text
    }

    /// A row a run: name, bar, figure; behind all of them the axis and the levels to compare with.
    fn bars(&self) -> String {
        let most = self.runs.iter().filter_map(PolicyRun::time).fold(0.0, f64::max);
        let share = |t: f64| if most > 0.0 { 100.0 * (t / most).clamp(0.0, 1.0) } else { 0.0 };
        let mut html =
            "<div class=\"bars\" role=\"img\" aria-label=\"Seconds by policy\">\n".to_owned();
        for run in &self.runs {
            Self::bar(&mut html, run, share);
        }
        html.push_str("<div class=\"behind\">\n");
        let times = time_labels(most);
        for (time, _) in &times {
            put!(&mut html, "<i class=\"grid\" style=\"left:{:.2}%\"></i>", share(*time));
        }
        let labels: Vec<(f64, &str)> =
            times.iter().map(|(t, name)| (share(*t) / 100.0, name.as_str())).collect();
        html.push_str(&tick_labels(&labels));
        if !self.is_swept() {
            for (policy, name) in [(BASE, "first touch"), (IDEAL, "ideal move")] {
                let Some(at) = self.time_of(policy).map(share) else { continue };
                let side = if at > 50.0 { "left" } else { "right" };
                put!(
                    &mut html,
                    "<i class=\"level {policy}\" style=\"left:{at:.2}%\"></i>\
                     <span class=\"note {policy} {side}\" style=\"left:{at:.2}%\">{name}</span>\n",
                    policy = policy.replace(':', "-")
                );
            }
        }
        html.push_str("</div></div>\n");
        html
    }

    fn bar(html: &mut String, run: &PolicyRun, share: impl Fn(f64) -> f64) {
        put!(
            html,
            "<div class=\"row\"><span class=\"name {}\">{}</span><div class=\"track\">",
            run.class(),
            brief(&run.label(), 48)
        );
        let Some(time) = run.time() else {
            let why = run.error.as_deref().unwrap_or("no time recorded");
            put!(html, "<span class=\"failed\">failed: {}</span></div></div>\n", brief(why, 100));
            return;
        };
        put!(html, "<i class=\"bar {}\" style=\"width:{:.2}%\"></i>", run.class(), share(time));
        if let Some((low, high)) = run.spread() {
            let (low, high) = (share(low), share(high));
            put!(
                html,
                "<i class=\"spread\" style=\"left:{low:.2}%;width:{:.2}%\"></i>",
                high - low
            );
        }
        let edge = run.spread().map_or(time, |(_, high)| high.max(time));
        put!(
            html,
            "<span class=\"value\" style=\"left:{:.2}%\">{}</span></div></div>\n",
            share(edge),
            seconds(time)
        );
    }

    fn table(&self) -> String {
        let mut html = "<section><h2>All figures</h2>\n<div class=\"wide\"><table \
            class=\"figures\">\n\
             <tr><th>policy</th><th>seconds</th><th>against<br>first \
             touch</th><th>against<br>ideal move</th>\
             <th>misses served<br>by the fast tier</th><th>pages<br>moved \
             up</th><th>pages<br>moved down</th>\
             <th>copied</th><th>overhead</th></tr>\n"
            .to_owned();
        for run in &self.runs {
            let (base, ideal) = self.compared(run);
            let ratio = |to: Option<f64>| match (run.time(), to) {
                (Some(t), Some(to)) if to > 0.0 => format!("{:.2} ×", t / to),
                _ => "–".to_owned(),
            };
            let cell = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
            put!(
                &mut html,
                "<tr><th \
                    class=\"{}\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{}</td></tr>\n",
                run.class(),
                brief(&run.label(), 60),
                run.time().map_or_else(|| "failed".to_owned(), digits),
                ratio(base),
                ratio(ideal),
                cell(run.fast_access_share.map(percent)),
                cell(run.promoted_pages.map(count)),
                cell(run.demoted_pages.map(count)),
                cell(run.migrated_bytes.map(bytes)),
                cell(run.overhead_seconds.map(seconds)),
            );
            for more in run.warnings.iter().take(8).chain(&run.error) {
                put!(
                    &mut html,
                    "<tr class=\"under\"><td colspan=\"9\">{}</td></tr>\n",
                    brief(more, 400)
                );
            }
        }
        html.push_str("</table></div>\n");
        put!(
            &mut html,
            "<p class=\"small\">Accesses: {}. The comparison itself took {}. “–” means not \
                known.</p></section>\n",
            or_unknown(self.accesses.map(count)),
            or_unknown(self.wall_seconds.map(seconds))
        );
        html
    }
}

/// Seconds with three digits that matter at least.
fn digits(seconds: f64) -> String {
    if seconds >= 0.1 || seconds == 0.0 {
        format!("{seconds:.3}")
    } else {
        format!("{seconds:.5}")
    }
}

/// `read_bandwidth_bytes_per_s` as `read bandwidth` and its unit.
fn split_unit(figure: &str) -> (String, &'static str) {
    for unit in ["_bytes_per_s", "_ns"] {
        if let Some(name) = figure.strip_suffix(unit) {
            return (name.replace('_', " "), unit);
        }
    }
    (figure.replace('_', " "), "")
}

fn in_unit(value: f64, unit: &str) -> String {
    match unit {
        _ if !value.is_finite() => "unknown".to_owned(),
        "_ns" => format!("{value:.1} ns"),
        "_bytes_per_s" => format!("{:.2} GB/s", value / 1e9),
        _ => format!("{value}"),
    }
}

/// Without control characters, which would reach a terminal.
fn clean(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}
