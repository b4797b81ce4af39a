//! One workload under several policies: the JSON contract, a table, a chart.

use crate::chart::{ticks, WIDTH};
use crate::markup::{brief, bytes, count, escape, or_unknown, page, percent, put, seconds};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// More runs than this are not drawn.
const MAX_RUNS: usize = 200;

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
    pub calibration: Vec<Calibration>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// One figure of the calibration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Calibration {
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
    /// The time, if it is one that can be drawn.
    fn time(&self) -> Option<f64> {
        self.seconds.filter(|s| s.is_finite() && *s >= 0.0 && *s < 1e12)
    }

    /// Class of its bar: whose work the policy is.
    fn class(&self) -> &'static str {
        match self.policy.split(':').next() {
            Some("kernel") => "kernel",
            Some("bound") => "bound",
            Some("hardware") => "hardware",
            _ if self.policy == "first-touch" => "base",
            _ => "ours",
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

    /// A table for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{} on {}\n\n", clean(&self.input), clean(&self.machine));
        let (base, ideal) = (self.time_of("first-touch"), self.time_of("bound:ideal-move"));
        let width =
            self.runs.iter().map(|r| r.policy.chars().count()).max().unwrap_or(6).clamp(6, 40);
        put!(
            &mut out,
            "{:<width$}  {:>9}  {:>11}  {:>8}  {:>11}  {:>17}  {:>9}\n",
            "policy",
            "seconds",
            "first-touch",
            "of ideal",
            "fast access",
            "moved up / down",
            "overhead"
        );
        for run in &self.runs {
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
            put!(
                &mut out,
                "{:<width$}  {:>9}  {:>11}  {:>8}  {:>11}  {:>17}  {:>9}\n",
                clean(&run.policy),
                run.time().map_or_else(|| "failed".to_owned(), |t| format!("{t:.3}")),
                ratio(base),
                ratio(ideal),
                run.fast_access_share.map_or_else(|| "-".to_owned(), percent),
                moved,
                run.overhead_seconds.map_or_else(|| "-".to_owned(), seconds),
            );
            for more in run.warnings.iter().take(8).chain(&run.error) {
                put!(&mut out, "    {}\n", clean(more));
            }
        }
        out
    }

    /// One HTML file.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = String::new();
        put!(
            &mut body,
            "<header><p class=\"over\">One workload, {} policies</p><h1>{} <span class=\"on\">on {}</span></h1>\n\
             <p class=\"lead\">{}</p></header>\n",
            self.runs.len(),
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
             <span><i class=\"key bound\"></i>bound: knows more than a policy can</span></div>\n</section>\n",
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
            "<section><h2>Calibration</h2>\n<p class=\"small\">Measured inside the machine, against what its file \
             says.</p>\n<div class=\"wide\"><table class=\"figures\">\n<tr><th>figure</th><th>memory of node</th>\
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

    /// The main finding in one sentence.
    fn verdict(&self) -> String {
        let best = self
            .runs
            .iter()
            .filter(|r| matches!(r.class(), "ours" | "kernel"))
            .filter_map(|r| r.time().map(|t| (r, t)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((run, time)) = best else {
            return "No policy finished.".to_owned();
        };
        let mut text = format!("Fastest policy: {} with {}", run.policy, seconds(time));
        if let Some(base) = self.time_of("first-touch").filter(|_| time > 0.0) {
            let ratio = base / time;
            if ratio >= 1.0 {
                text.push_str(&format!(", {ratio:.2} times as fast as first touch"));
            } else {
                text.push_str(&format!(", {:.2} times the time of first touch", 1.0 / ratio));
            }
        }
        if let Some(ideal) = self.time_of("bound:ideal-move").filter(|i| *i > 0.0) {
            text.push_str(&format!(", and {:.2} times the time of the ideal move", time / ideal));
        }
        text.push('.');
        text
    }

    fn bars(&self) -> String {
        const ROW: f64 = 34.0;
        const NAMES: f64 = 232.0;
        const TOP: f64 = 26.0;
        let most = self.runs.iter().filter_map(PolicyRun::time).fold(0.0, f64::max);
        let span = WIDTH - NAMES - 90.0;
        let x = |t: f64| NAMES + if most > 0.0 { span * t / most } else { 0.0 };
        let height = TOP + ROW * self.runs.len() as f64 + 28.0;
        let mut svg = format!(
            "<svg class=\"chart bars\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Seconds by policy\">\n"
        );
        for tick in ticks(most, 6) {
            put!(
                &mut svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick} s</text>\n",
                height - 26.0,
                height - 8.0,
                x = x(tick)
            );
        }
        let rows = || self.runs.iter().enumerate().map(|(i, run)| (run, TOP + ROW * i as f64));
        for (run, y) in rows() {
            Self::bar(&mut svg, run, y, x, span);
        }
        let lines =
            [("first-touch", "first touch", "end"), ("bound:ideal-move", "ideal move", "start")];
        for (policy, name, anchor) in lines {
            if let Some(time) = self.time_of(policy) {
                put!(
                    &mut svg,
                    "<line class=\"level\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
                     <text class=\"note\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{name}</text>\n",
                    TOP - 4.0,
                    height - 26.0,
                    TOP - 10.0,
                    x = x(time)
                );
            }
        }
        for (run, y) in rows() {
            Self::value(&mut svg, run, y, x);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn bar(svg: &mut String, run: &PolicyRun, y: f64, x: impl Fn(f64) -> f64, span: f64) {
        let (start, middle) = (x(0.0), y + 21.0);
        put!(
            svg,
            "<text class=\"name {}\" x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\n",
            run.class(),
            start - 10.0,
            brief(&run.policy, 34)
        );
        let Some(time) = run.time() else {
            let why = run.error.as_deref().unwrap_or("no time recorded");
            put!(
                svg,
                "<text class=\"failed\" x=\"{:.1}\" y=\"{middle:.1}\">failed: {}</text>\n",
                start + 6.0,
                brief(why, (span / 7.0) as usize)
            );
            return;
        };
        put!(
            svg,
            "<rect class=\"bar {}\" x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"20\" rx=\"3\"/>\n",
            run.class(),
            y + 6.0,
            (x(time) - start).max(1.0)
        );
        if let Some((low, high)) = run.spread() {
            put!(
                svg,
                "<path class=\"spread\" d=\"M{a:.1},{m:.1}H{b:.1}M{a:.1},{t:.1}V{u:.1}M{b:.1},{t:.1}V{u:.1}\"/>\n",
                a = x(low),
                b = x(high),
                m = y + 16.0,
                t = y + 11.0,
                u = y + 21.0
            );
        }
    }

    /// What a bar's length says; drawn after the lines, which would go through it.
    fn value(svg: &mut String, run: &PolicyRun, y: f64, x: impl Fn(f64) -> f64) {
        let Some(time) = run.time() else { return };
        let edge = run.spread().map_or(time, |(_, high)| high.max(time));
        put!(
            svg,
            "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            x(edge) + 8.0,
            y + 21.0,
            seconds(time)
        );
    }

    fn table(&self) -> String {
        let (base, ideal) = (self.time_of("first-touch"), self.time_of("bound:ideal-move"));
        let mut html = "<section><h2>All figures</h2>\n<div class=\"wide\"><table class=\"figures\">\n\
             <tr><th>policy</th><th>seconds</th><th>against<br>first touch</th><th>against<br>ideal move</th>\
             <th>misses served<br>by the fast tier</th><th>pages<br>moved up</th><th>pages<br>moved down</th>\
             <th>copied</th><th>overhead</th></tr>\n"
            .to_owned();
        for run in &self.runs {
            let ratio = |to: Option<f64>| match (run.time(), to) {
                (Some(t), Some(to)) if to > 0.0 => format!("{:.2} ×", t / to),
                _ => "–".to_owned(),
            };
            let cell = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
            put!(
                &mut html,
                "<tr><th class=\"{}\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{}</td></tr>\n",
                run.class(),
                brief(&run.policy, 60),
                run.time().map_or_else(|| "failed".to_owned(), |t| format!("{t:.3}")),
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
            "<p class=\"small\">Accesses: {}. The comparison itself took {}. “–” means not known.</p></section>\n",
            or_unknown(self.accesses.map(count)),
            or_unknown(self.wall_seconds.map(seconds))
        );
        html
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
