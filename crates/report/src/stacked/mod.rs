//! Stacked memory: what `terrace device hbm --json` prints, with cross-sections and plots.

mod section;

use crate::chart::{legend, marks, Chart};
use crate::markup::{brief, count, escape, page, put, tile};
use section::{cross_sections, Stack};
use serde_json::Value;

/// Designs shown at most.
const MOST: usize = 10_000;
/// Rows of the table of designs at most.
const MAX_ROWS: usize = 500;
/// Cross-sections beside each other at most.
const MAX_SECTIONS: usize = 6;

/// What a study of stacks printed.
#[derive(Debug, Clone, PartialEq)]
pub struct StackedMemory {
    value: Value,
}

/// An axis of a plot of designs.
struct DesignAxis {
    name: &'static str,
    value: fn(&Value) -> Option<f64>,
}

const BANDWIDTH: DesignAxis = DesignAxis {
    name: "GB/s",
    value: |e| Some(e["sustained_bytes_per_s"]["mixed"].as_f64()? / 1e9),
};
const CAPACITY: DesignAxis =
    DesignAxis { name: "GiB", value: |e| Some(e["capacity_bytes"].as_f64()? / GIB) };
const DIES: DesignAxis = DesignAxis { name: "dies", value: |e| e["dies"].as_f64() };
const HOTTEST: DesignAxis = DesignAxis { name: "C", value: hottest_c };
const COST: DesignAxis =
    DesignAxis { name: "dies", value: |e| e["cost"]["relative_cost"].as_f64() };
const HEIGHT: DesignAxis = DesignAxis { name: "um", value: |e| e["height_um"].as_f64() };
const GIB: f64 = 1_073_741_824.0;

impl StackedMemory {
    /// Whether these bytes look like it, before they are parsed.
    pub(crate) fn looks_like(data: &[u8]) -> bool {
        let has = |key: &[u8]| data.windows(key.len()).any(|w| w == key);
        data.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
            && has(b"\"stacked_memory\"")
            && has(b"\"designs\"")
    }

    /// Reads the JSON.
    pub(crate) fn from_json(data: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(data).map_err(|e| e.to_string())?;
        if value["version"] != 1 {
            return Err(format!("version {}, known is 1", value["version"]));
        }
        let designs = value["designs"].as_array().ok_or("no list of designs")?;
        if designs.len() > MOST {
            return Err(format!("{} designs, {MOST} at most", designs.len()));
        }
        Ok(Self { value })
    }

    /// The figures, as they were read.
    pub(crate) fn json(&self) -> Value {
        self.value.clone()
    }

    fn designs(&self) -> impl Iterator<Item = &Value> {
        self.value["designs"].as_array().into_iter().flatten()
    }

    fn name(&self) -> String {
        text(&self.value["stack"])
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let best = self.designs().filter(|d| d["pareto"] == true).count();
        format!(
            "{}: {} designs of stacked memory, {best} that no other beats\n",
            self.name(),
            self.designs().count()
        )
    }

    /// One HTML file.
    pub(crate) fn html(&self) -> String {
        let mut body = String::new();
        let all = self.designs().count();
        put!(
            &mut body,
            "<header><p class=\"over\">Computed from a description · {} design{}</p>\
             <h1>Stacked memory <code>{}</code></h1></header>\n",
            count(all as u64),
            if all == 1 { "" } else { "s" },
            brief(&self.name(), 60)
        );
        let one = self.designs().next().filter(|_| all == 1);
        match one {
            Some(design) => one_design(&mut body, design, &self.name()),
            None => self.sweep(&mut body),
        }
        page(&format!("Stacked memory {}", self.name()), &body)
    }

    fn sweep(&self, body: &mut String) {
        let designs: Vec<&Value> = self.designs().collect();
        body.push_str("<section><h2>Designs compared</h2>\n");
        let groups = groups(&designs);
        let plots = [
            ("What a mix of reads and writes sustains, by capacity", &CAPACITY, &BANDWIDTH),
            ("Hottest die, by dies", &DIES, &HOTTEST),
            ("Height, by dies", &DIES, &HEIGHT),
            ("Cost in planar dies, by capacity", &CAPACITY, &COST),
        ];
        for (title, across, up) in plots {
            plot(body, title, &designs, &groups, across, up);
        }
        let names: Vec<(String, String)> = groups
            .iter()
            .enumerate()
            .map(|(i, name)| (format!("t{}", i % 8), name.clone()))
            .collect();
        if names.len() > 1 {
            body.push_str(&legend(&names));
        }
        body.push_str("</section>\n");
        let best: Vec<&Value> = designs.iter().copied().filter(|d| d["pareto"] == true).collect();
        let shown: Vec<Stack> = best.iter().filter_map(|d| stack(d)).take(MAX_SECTIONS).collect();
        if !shown.is_empty() {
            body.push_str("<section><h2>Cross-sections to scale</h2>\n");
            put!(
                body,
                "<p class=\"small\">The first {} of {} designs that no other beats in bandwidth, \
                 capacity, temperature, energy and cost at once.</p>\n",
                shown.len(),
                best.len()
            );
            cross_sections(body, &shown);
            body.push_str("</section>\n");
        }
        table(body, &designs);
    }
}

fn hottest_c(e: &Value) -> Option<f64> {
    let dies = e["temperatures"]["dies_c"].as_array()?;
    dies.iter().filter_map(Value::as_f64).reduce(f64::max)
}

/// What colours designs: the first setting that is a name, else nothing.
fn group(design: &Value) -> String {
    let settings = design["settings"].as_array().into_iter().flatten();
    settings
        .filter_map(|s| s[1].as_str())
        .find(|v| v.parse::<f64>().is_err())
        .unwrap_or("designs")
        .chars()
        .take(40)
        .collect()
}

fn groups(designs: &[&Value]) -> Vec<String> {
    let mut all = Vec::new();
    for design in designs {
        let group = group(design);
        if !all.contains(&group) {
            all.push(group);
        }
    }
    all
}

/// Designs as dots; those on the Pareto front are larger.
fn plot(
    body: &mut String,
    title: &str,
    designs: &[&Value],
    groups: &[String],
    across: &DesignAxis,
    up: &DesignAxis,
) {
    let points: Vec<(f64, f64, &Value)> = designs
        .iter()
        .filter_map(|d| {
            Some(((across.value)(&d["evaluation"])?, (up.value)(&d["evaluation"])?, *d))
        })
        .filter(|p| p.0.is_finite() && p.1.is_finite() && p.0 >= 0.0)
        .collect();
    if points.len() < 2 {
        return;
    }
    let right = points.iter().map(|p| p.0).fold(0.0, f64::max) * 1.05;
    let top = points.iter().map(|p| p.1).fold(0.0, f64::max) * 1.1;
    let labels: Vec<(f64, String)> = crate::chart::ticks(right, 6)
        .into_iter()
        .map(|v| (v / right.max(1e-9), format!("{v} {}", across.name)))
        .collect();
    put!(body, "<h3>{}</h3>\n", escape(title));
    let up_marks = marks(top, |v| format!("{v} {}", up.name));
    let mut chart = Chart::labelled(title, 240.0, top, &up_marks, &labels);
    for (x, y, design) in points {
        let index = groups.iter().position(|g| *g == group(design)).unwrap_or(0);
        let class = format!("t{}", index % 8);
        let label = format!("{}: {x:.1} {}, {y:.1} {}", settings(design), across.name, up.name);
        chart.dot(x / right.max(1e-9), y, &class, &label);
    }
    body.push_str(&chart.finish());
}

fn settings(design: &Value) -> String {
    let pair = |s: &Value| format!("{}={}", text(&s[0]), text(&s[1]));
    let all: Vec<String> = design["settings"].as_array().into_iter().flatten().map(pair).collect();
    all.join(" ")
}

fn stack(design: &Value) -> Option<Stack> {
    let e = &design["evaluation"];
    let layers = e["layers"].as_array()?;
    let name = match settings(design) {
        name if name.is_empty() => text(&e["name"]),
        name => name,
    };
    Some(Stack {
        name,
        limit_um: e["height_limit_um"].as_f64(),
        layers: layers
            .iter()
            .take(200)
            .filter_map(|l| {
                let um = l["thickness_um"].as_f64().filter(|t| *t > 0.0 && *t < 1e5)?;
                Some((text(&l["kind"]), um, l["hottest_c"].as_f64()))
            })
            .collect(),
    })
}

fn one_design(body: &mut String, design: &Value, name: &str) {
    let e = &design["evaluation"];
    if let Some(why) = design["impossible"].as_str() {
        put!(body, "<p class=\"warning\">{}</p>\n", brief(why, 300));
    }
    for violation in e["violations"].as_array().into_iter().flatten() {
        put!(body, "<p class=\"warning\">{}.</p>\n", brief(&text(violation), 300));
    }
    let number = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
    body.push_str("<div class=\"tiles\">\n");
    let gb = |v: &Value| format!("{:.0} GB/s", number(v) / 1e9);
    let s = &e["sustained_bytes_per_s"];
    tile(
        body,
        &gb(&e["peak_bytes_per_s"]),
        "Peak bandwidth",
        &format!("{} mixed", gb(&s["mixed"])),
    );
    let capacity = number(&e["capacity_bytes"]) / GIB;
    tile(body, &format!("{capacity:.0} GiB"), "Capacity", &format!("{} dies", text(&e["dies"])));
    let idle = number(&e["idle_latency_ns"]);
    tile(body, &format!("{idle:.1} ns"), "Idle latency", "at the stack's pins");
    let hottest = hottest_c(e).unwrap_or(f64::NAN);
    let processor = number(&e["temperatures"]["processor_c"]);
    tile(body, &format!("{hottest:.1} C"), "Hottest die", &format!("processor {processor:.1} C"));
    tile(body, &format!("{:.0} um", number(&e["height_um"])), "Height", "");
    let loss = number(&e["supply"]["vertical_v"]) + number(&e["supply"]["lateral_v"]);
    let allowed = number(&e["supply"]["allowed_v"]) * 1e3;
    tile(body, &format!("{:.1} mV", loss * 1e3), "IR drop", &format!("of {allowed:.0} mV"));
    body.push_str("</div>\n");
    if let Some(stack) = stack(design) {
        body.push_str("<section><h2>Cross-section to scale</h2>\n");
        cross_sections(body, &[stack]);
        body.push_str("</section>\n");
    }
    latency(body, e);
    bars(body, e);
    published(body, &design["published"], name);
}

fn latency(body: &mut String, e: &Value) {
    let points: Vec<(f64, f64)> = e["loaded_latency"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|l| Some((l["load_share"].as_f64()?, l["latency_ns"].as_f64()?)))
        .collect();
    if points.len() < 2 {
        return;
    }
    let top = points.iter().map(|p| p.1).fold(0.0, f64::max) * 1.1;
    let title = "Latency at the pins, by load of single bursts";
    put!(body, "<section><h2>{title}</h2>\n");
    let labels: Vec<(f64, String)> =
        (0..=5).map(|i| (f64::from(i) / 5.0, format!("{}%", i * 20))).collect();
    let mut chart = Chart::labelled(title, 240.0, top, &marks(top, |v| format!("{v} ns")), &labels);
    let series = crate::chart::Series {
        class: "t0".to_owned(),
        values: points.iter().map(|p| p.1).collect(),
    };
    chart.line(&points.iter().map(|p| p.0).collect::<Vec<_>>(), &series);
    for (x, y) in points {
        chart.dot(x, y, "t0", &format!("{y:.1} ns at {:.0}%", x * 100.0));
    }
    body.push_str(&chart.finish());
    body.push_str("</section>\n");
}

fn bars(body: &mut String, e: &Value) {
    body.push_str("<section><h2>Energy of a bit</h2>\n<table class=\"plain meter ours\">\n");
    let parts = ["activation", "array", "tsv", "pin"];
    let rows = [("in whole rows", "stream_pj_per_bit"), ("in single bursts", "random_pj_per_bit")];
    let value = |key: &str, part: &str| e[key][part].as_f64().unwrap_or(0.0);
    let most = rows.iter().flat_map(|r| parts.map(|p| value(r.1, p))).fold(1e-9, f64::max);
    for (name, key) in rows {
        for part in parts {
            let pj = value(key, part);
            put!(
                body,
                "<tr><th>{part}, {name}</th><td class=\"track\"><i style=\"width:{:.1}%\"></i></td>\
                 <td>{pj:.2} pJ</td></tr>\n",
                97.0 * (pj / most).clamp(0.0, 1.0)
            );
        }
    }
    body.push_str("</table>\n</section>\n");
}

fn published(body: &mut String, published: &Value, name: &str) {
    let rows = [
        ("Peak bandwidth, GB/s", "peak_gb_per_s"),
        ("Capacity, GiB", "capacity_gib"),
        ("Height, um", "height_um"),
        ("Energy of a bit, pJ", "pj_per_bit"),
    ];
    let known: Vec<(&str, f64, f64)> = rows
        .iter()
        .filter_map(|(name, key)| {
            Some((*name, published[*key][0].as_f64()?, published[*key][1].as_f64()?))
        })
        .collect();
    if known.is_empty() {
        return;
    }
    put!(body, "<section><h2>Published for {}</h2>\n", brief(name, 60));
    body.push_str("<div class=\"wide\"><table class=\"figures\">\n");
    body.push_str("<tr><th></th><th>published</th><th>model</th><th>error</th></tr>\n");
    for (name, part, model) in known {
        let error = (model / part - 1.0) * 100.0;
        put!(
            body,
            "<tr><th>{name}</th><td>{part:.1}</td><td>{model:.1}</td><td>{error:+.1}%</td></tr>\n"
        );
    }
    body.push_str("</table></div>\n</section>\n");
}

fn table(body: &mut String, designs: &[&Value]) {
    body.push_str(
        "<section><h2>All designs</h2>\n<div class=\"wide tall\"><table class=\"figures\">\n",
    );
    body.push_str(
        "<tr><th>Design</th><th>GB/s</th><th>GiB</th><th>ns</th><th>pJ/bit</th><th>hottest C</th>\
         <th>um</th><th>cost</th><th>limits</th></tr>\n",
    );
    for design in designs.iter().take(MAX_ROWS) {
        let e = &design["evaluation"];
        let name = brief(&settings(design), 60);
        if let Some(why) = design["impossible"].as_str() {
            put!(
                body,
                "<tr><th>{name}</th><td colspan=\"8\" class=\"dim\">{}</td></tr>\n",
                brief(why, 120)
            );
            continue;
        }
        let number = |v: &Value, digits: usize| {
            v.as_f64().map_or("unknown".to_owned(), |v| format!("{v:.digits$}"))
        };
        let pj: f64 = ["activation", "array", "tsv", "pin"]
            .iter()
            .filter_map(|p| e["stream_pj_per_bit"][*p].as_f64())
            .sum();
        let held = e["violations"].as_array().is_none_or(Vec::is_empty);
        put!(
            body,
            "<tr><th{}>{name}</th><td>{:.0}</td><td>{:.0}</td><td>{}</td><td>{pj:.2}</td>\
             <td>{:.1}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            if design["pareto"] == true { " class=\"ours\"" } else { "" },
            (BANDWIDTH.value)(e).unwrap_or(f64::NAN),
            (CAPACITY.value)(e).unwrap_or(f64::NAN),
            number(&e["idle_latency_ns"], 1),
            hottest_c(e).unwrap_or(f64::NAN),
            number(&e["height_um"], 0),
            number(&e["cost"]["relative_cost"], 1),
            if held { "held" } else { "not held" }
        );
    }
    body.push_str("</table></div>\n");
    body.push_str(
        "<p class=\"small under\">Coloured: no other design beats it at once in all of \
                   bandwidth, capacity, temperature, energy and cost.</p>\n",
    );
    if designs.len() > MAX_ROWS {
        put!(body, "<p class=\"small\">The first {MAX_ROWS} of {}.</p>\n", designs.len());
    }
    body.push_str("</section>\n");
}

/// A value as text, quotes off, bounded.
fn text(value: &Value) -> String {
    let all = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    all.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn design(name: &str, dies: u64, hot: f64) -> Value {
        json!({
            "settings": [["dies", dies.to_string()], ["bonding", name]],
            "pareto": dies == 8,
            "evaluation": {
                "name": name, "dies": dies, "capacity_bytes": dies << 30,
                "sustained_bytes_per_s": {"mixed": 2e11}, "height_um": 700.0,
                "height_limit_um": 720.0, "idle_latency_ns": 30.0,
                "temperatures": {"dies_c": [hot, hot - 4.0], "processor_c": 70.0},
                "cost": {"relative_cost": 10.0}, "violations": [],
                "stream_pj_per_bit": {"activation": 0.1, "array": 1.5, "tsv": 0.3, "pin": 0.6},
                "layers": [
                    {"kind": "base", "thickness_um": 60.0, "hottest_c": hot},
                    {"kind": "bond", "thickness_um": 30.0, "hottest_c": null},
                    {"kind": "die", "thickness_um": 50.0, "hottest_c": hot - 4.0},
                ],
            },
        })
    }

    fn html(value: &Value) -> String {
        crate::read(value.to_string().as_bytes()).map(|d| d.to_html()).unwrap_or_default()
    }

    fn study(designs: &[Value]) -> Value {
        json!({"version": 1, "kind": "stacked_memory", "stack": "x", "designs": designs})
    }

    #[test]
    fn a_sweep_has_plots_cross_sections_and_a_table() {
        let page = html(&study(&[design("microbump", 8, 60.0), design("hybrid", 16, 50.0)]));
        assert_eq!(page.matches("<svg").count(), 5, "four plots and the stack on the front");
        assert!(page.contains("dies=8 bonding=microbump") && page.contains("1: 56.0 C"));
    }

    #[test]
    fn hostile_text_and_numbers_stay_text() {
        let mut bad = design("<script>alert(1)</script>", 8, f64::MAX);
        bad["evaluation"]["layers"][0]["thickness_um"] = json!(-5.0);
        bad["evaluation"]["layers"][1]["kind"] = json!("\"><b>");
        for value in
            [study(&[bad.clone()]), study(&[bad.clone(), bad]), study(&[json!(7), json!({})])]
        {
            let page = html(&value);
            assert!(page.contains("</html>") && !page.contains("alert(1)<"), "{page}");
            assert!(!page.contains("\"><b>") && !page.contains("x=\"NaN"), "{page}");
        }
    }

    #[test]
    fn another_version_is_refused() {
        let mut later = study(&[]);
        later["version"] = json!(2);
        let refused = crate::read(later.to_string().as_bytes());
        assert!(refused.is_err_and(|e| e.to_string().contains("version 2")));
    }
}
