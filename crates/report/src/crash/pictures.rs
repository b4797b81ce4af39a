//! Charts of crash tests.

use super::{number, text, StudyFigures, COLOURS, MAX_OBJECTS};
use crate::chart::{legend, marks, Chart, Series};
use crate::markup::{brief, percent, put};
use serde_json::Value;

const HEIGHT: f64 = 240.0;
/// Part of a group's width that its bars take.
const FILLED: f64 = 0.8;
/// Characters of a label below a group of bars.
const LABEL: usize = 14;

/// A bar: how high, what it says, and the interval around it.
struct Bar {
    value: f64,
    title: String,
    interval: Option<(f64, f64)>,
}

/// Bars in groups, each series in its colour.
struct BarGroups {
    groups: Vec<String>,
    series: Vec<String>,
    /// By group, then by series; a series may lack a group.
    bars: Vec<Vec<Option<Bar>>>,
}

fn colour(index: usize) -> String {
    format!("t{}", index % COLOURS)
}

impl BarGroups {
    fn draw(&self, body: &mut String, name: &str, top: f64) {
        let wide = 1.0 / self.groups.len().max(1) as f64;
        let short = |name: &String| name.chars().take(LABEL).collect::<String>();
        let middle = |i: usize| (i as f64 + 0.5) * wide;
        let labels: Vec<(f64, String)> =
            self.groups.iter().enumerate().map(|(i, g)| (middle(i), short(g))).collect();
        let mut chart = Chart::labelled(name, HEIGHT, top, &marks(top, percent), &labels);
        let bar_wide = wide * FILLED / self.series.len().max(1) as f64;
        for (group, bars) in self.bars.iter().enumerate() {
            for (series, bar) in bars.iter().enumerate() {
                let Some(bar) = bar else { continue };
                let from = (group as f64 + (1.0 - FILLED) / 2.0) * wide + series as f64 * bar_wide;
                let to = from + bar_wide * 0.9;
                chart.block((from, to), bar.value, &colour(series), &bar.title);
                if let Some((low, high)) = bar.interval {
                    let at = (from + to) / 2.0;
                    let whisker = Series { class: "whisker".to_owned(), values: vec![low, high] };
                    chart.line(&[at, at], &whisker);
                }
            }
        }
        body.push_str(&chart.finish());
        if self.series.len() > 1 {
            let item = |(i, name): (usize, &String)| (colour(i), name.clone());
            body.push_str(&legend(&self.series.iter().enumerate().map(item).collect::<Vec<_>>()));
        }
    }
}

/// Success by phase: a chart for each program, a series for each input and number of threads.
pub fn success(body: &mut String, studies: &[StudyFigures<'_>]) {
    put!(body, "<section><h2>Restarts that recompute, by phase</h2>\n");
    let mut programs: Vec<&str> = studies.iter().map(|s| s.program.as_str()).collect();
    programs.sort_unstable();
    programs.dedup();
    for program in &programs {
        let own: Vec<&StudyFigures<'_>> =
            studies.iter().filter(|s| s.program == *program).collect();
        let phases = own.iter().map(|s| s.phases.len()).max().unwrap_or(0);
        let bar = |study: &StudyFigures<'_>, phase: usize| {
            let value = study.phases.get(phase)?;
            let share = value["share"].as_f64()?;
            let ends = (value["interval"][0].as_f64(), value["interval"][1].as_f64());
            let (right, all) = (number(&value["successes"]), number(&value["restarts"]));
            Some(Bar {
                value: share,
                title: format!("{}, phase {}: {right} of {all}", study.label, phase + 1),
                interval: ends.0.zip(ends.1),
            })
        };
        let groups = BarGroups {
            groups: (1..=phases).map(|phase| format!("phase {phase}")).collect(),
            series: own.iter().map(|s| s.label.clone()).collect(),
            bars: (0..phases).map(|p| own.iter().map(|s| bar(s, p)).collect()).collect(),
        };
        if programs.len() > 1 {
            put!(body, "<h3>{}</h3>\n", brief(program, 60));
        }
        groups.draw(body, &format!("Success of {program} by phase"), 1.0);
    }
    body.push_str(
        "<p class=\"small under\">Thin lines: Wilson's interval at 95%.</p>\n</section>\n",
    );
}

/// Inconsistent rates by object: a chart for each study, a series for each phase.
pub fn rates(body: &mut String, studies: &[StudyFigures<'_>]) {
    put!(body, "<section><h2>Inconsistent rate by object</h2>\n");
    for study in studies {
        let rate = |phase: &Value, object: Option<usize>| match object {
            Some(object) => phase["inconsistent_rates"][object].as_f64(),
            None => phase["inconsistent_rate_of_all"].as_f64(),
        };
        let mut columns: Vec<(Option<usize>, String)> = study
            .objects
            .iter()
            .take(MAX_OBJECTS)
            .map(|(i, name, _)| (Some(*i), name.clone()))
            .collect();
        columns.push((None, "all memory".to_owned()));
        let bars = columns.iter().map(|(object, name)| {
            let bar = |(number, phase): (usize, &&Value)| {
                let value = rate(phase, *object)?;
                let title = format!("{name}, phase {}: {}", number + 1, percent(value));
                Some(Bar { value, title, interval: None })
            };
            study.phases.iter().enumerate().map(bar).collect()
        });
        let bars: Vec<Vec<Option<Bar>>> = bars.collect();
        let most = bars.iter().flatten().flatten().map(|b| b.value).fold(0.01, f64::max);
        if studies.len() > 1 {
            put!(body, "<h3>{}</h3>\n", brief(&format!("{} {}", study.program, study.label), 60));
        }
        let groups = BarGroups {
            groups: columns.into_iter().map(|c| c.1).collect(),
            series: (1..=study.phases.len()).map(|p| format!("phase {p}")).collect(),
            bars,
        };
        groups.draw(body, &format!("Inconsistent rates of {}", study.command), most * 1.05);
    }
    body.push_str(
        "<p class=\"small under\">Bytes that differ between caches and memory, of the object's \
         bytes; of all memory, of its footprint. Means over the phase's crashes.</p>\n</section>\n",
    );
}

/// Rates of the objects over the region's instructions, and each crash with what became of it.
pub fn over_time(body: &mut String, study: &StudyFigures<'_>, named: bool) {
    let crashes = study.crashes();
    let instructions = number(&study.value["instructions"]).max(1.0);
    if crashes.len() < 2 {
        return;
    }
    let name = if named { format!(": {} {}", study.program, study.label) } else { String::new() };
    put!(body, "<section><h2>Inconsistent rate over time{}</h2>\n", brief(&name, 60));
    let at: Vec<f64> = crashes.iter().map(|c| number(&c["instruction"]) / instructions).collect();
    let labels: Vec<(f64, String)> =
        (0..=5).map(|i| (f64::from(i) / 5.0, format!("{}%", i * 20))).collect();
    let objects: Vec<(String, Vec<f64>)> = study
        .objects
        .iter()
        .take(MAX_OBJECTS)
        .map(|(i, name, bytes)| {
            let rate = |c: &&Value| number(&c["inconsistent_bytes"][*i]) / *bytes as f64;
            (name.clone(), crashes.iter().map(rate).collect())
        })
        .collect();
    let most = objects.iter().flat_map(|o| &o.1).copied().fold(0.01, f64::max).min(1.0) * 1.05;
    let title = "Inconsistent rate of each object over time";
    let mut chart = Chart::labelled(title, HEIGHT, most, &marks(most, percent), &labels);
    for (i, (_, values)) in objects.iter().enumerate() {
        chart.line(&at, &Series { class: colour(i), values: values.clone() });
    }
    body.push_str(&chart.finish());
    let items: Vec<(String, String)> =
        objects.iter().enumerate().map(|(i, o)| (colour(i), o.0.clone())).collect();
    body.push_str(&legend(&items));
    body.push_str("<p class=\"small under\">Across: the region's instructions.</p>\n");
    each_crash(body, &crashes, &at, &labels);
    body.push_str("</section>\n");
}

/// Each crash at its time and its inconsistent rate of all memory, coloured by what became of it.
fn each_crash(body: &mut String, crashes: &[&Value], at: &[f64], labels: &[(f64, String)]) {
    let rate = |c: &&Value| {
        number(&c["inconsistent_bytes_of_all"]) / number(&c["footprint_bytes"]).max(1.0)
    };
    let most = crashes.iter().map(rate).fold(0.01, f64::max).min(1.0) * 1.05;
    let title = "What became of each crash, by time and inconsistent rate of all memory";
    put!(body, "<h3>{title}</h3>\n");
    let mut chart = Chart::labelled(title, HEIGHT, most, &marks(most, percent), labels);
    let known = ["recomputed", "wrong", "crashed", "hung", "refused"];
    let mut seen = [false; 5];
    for (crash, at) in crashes.iter().zip(at) {
        let outcome = text(&crash["outcome"]);
        let Some(class) = known.iter().position(|k| *k == outcome) else { continue };
        seen[class] = true;
        let more = match number(&crash["more_iterations"]) {
            0.0 => String::new(),
            more => format!(" with {more} iterations more"),
        };
        let title = format!(
            "crash {}, {} iterations done: {outcome}{more}, {} of all memory inconsistent",
            number(&crash["crash"]),
            text(&crash["iterations_done"]),
            percent(rate(crash))
        );
        chart.dot(*at, rate(crash), &colour(class), &title);
    }
    body.push_str(&chart.finish());
    let shown = known.iter().zip(seen).enumerate().filter(|(_, (_, seen))| *seen);
    let items: Vec<(String, String)> =
        shown.map(|(i, (name, _))| (colour(i), (*name).to_owned())).collect();
    body.push_str(&legend(&items));
}
