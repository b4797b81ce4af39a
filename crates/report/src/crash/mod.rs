//! Crash tests: what `terrace crash run --json` prints, one study or several one behind the other,
//! with the pictures of Ren, Wu and Li (MCHPC 2018): success by phase, threads and input (figures 3
//! to 6), inconsistent rates by object (figures 7 to 10), and both over time.

mod pictures;

use crate::markup::{brief, bytes, count, escape, page, percent, put, seconds, tile};
use crate::study::{list, number, text};
use serde_json::Value;

/// Studies of a page, and crashes, objects, phases and call paths of a study, that are shown at
/// most.
const MAX_STUDIES: usize = 64;
const MAX_CRASHES: usize = 2000;
const MAX_OBJECTS: usize = 7;
const MAX_PHASES: usize = 16;
const MAX_PATHS: usize = 20;
/// Colours of the style.
const COLOURS: usize = 8;

/// What crash tests printed.
#[derive(Debug, Clone, PartialEq)]
pub struct CrashStudies {
    values: Vec<Value>,
}

impl CrashStudies {
    /// Whether these bytes look like it, before they are parsed.
    pub(crate) fn looks_like(data: &[u8]) -> bool {
        let has = |key: &[u8]| data.windows(key.len()).any(|w| w == key);
        data.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') && has(b"\"crash_study\"")
    }

    /// Reads one study, or several one behind the other.
    pub(crate) fn from_json(data: &[u8]) -> Result<Self, String> {
        let mut values = Vec::new();
        for value in serde_json::Deserializer::from_slice(data).into_iter::<Value>() {
            let value = value.map_err(|e| e.to_string())?;
            if value["kind"] != "crash_study" {
                return Err(format!("{} among crash studies", value["kind"]));
            }
            if value["version"] != 1 {
                return Err(format!("version {}, known is 1", value["version"]));
            }
            if values.len() == MAX_STUDIES {
                return Err(format!("more than {MAX_STUDIES} studies"));
            }
            values.push(value);
        }
        if values.is_empty() {
            return Err("no study".to_owned());
        }
        Ok(Self { values })
    }

    /// The figures, as they were read; of several studies a list.
    pub(crate) fn json(&self) -> Value {
        match self.values.as_slice() {
            [one] => one.clone(),
            several => Value::Array(several.to_vec()),
        }
    }

    fn studies(&self) -> Vec<StudyFigures<'_>> {
        self.values.iter().map(StudyFigures::new).collect()
    }

    /// For a terminal: a line for each study.
    pub(crate) fn text(&self) -> String {
        let line = |s: &StudyFigures<'_>| {
            format!("{}: {} of {} restarts recompute\n", s.command, s.successes, s.restarts)
        };
        self.studies().iter().map(line).collect()
    }

    /// One HTML file.
    pub(crate) fn html(&self) -> String {
        let studies = self.studies();
        let mut body = String::new();
        let restarts: u64 = studies.iter().map(|s| s.restarts).sum();
        let title = match studies.as_slice() {
            [one] => format!("What survives a crash of {}", one.command),
            several => format!("What survives a crash, {} programs and inputs", several.len()),
        };
        put!(
            &mut body,
            "<header><p class=\"over\">Crash test · {} restart{}</p><h1>{}</h1></header>\n",
            count(restarts),
            if restarts == 1 { "" } else { "s" },
            brief(&title, 120)
        );
        if let [one] = studies.as_slice() {
            if let Some(why) = one.value["ended_early"].as_str() {
                put!(&mut body, "<p class=\"warning\">{}</p>\n", brief(why, 300));
            }
            tiles(&mut body, one);
        }
        pictures::success(&mut body, &studies);
        phase_table(&mut body, &studies);
        pictures::rates(&mut body, &studies);
        for study in &studies {
            pictures::over_time(&mut body, study, studies.len() > 1);
        }
        if let [one] = studies.as_slice() {
            outcomes(&mut body, one);
            call_paths(&mut body, one);
        }
        page(&title, &body)
    }
}

/// What pictures and tables need of a study.
struct StudyFigures<'a> {
    value: &'a Value,
    /// Program and arguments, as it was typed.
    command: String,
    /// The program's name.
    program: String,
    /// Arguments and threads.
    label: String,
    restarts: u64,
    successes: u64,
    /// Names of the objects that have bytes, with their place among all.
    objects: Vec<(usize, String, u64)>,
    phases: Vec<&'a Value>,
}

impl<'a> StudyFigures<'a> {
    fn new(value: &'a Value) -> Self {
        let words: Vec<String> = list(&value["command"]).map(text).collect();
        let program = words.first().and_then(|w| w.rsplit('/').next()).unwrap_or("").to_owned();
        let threads = match value["threads"].as_u64() {
            Some(1) => "1 thread".to_owned(),
            Some(n) => format!("{n} threads"),
            None => "threads unknown".to_owned(),
        };
        let first = words.get(1).map_or(String::new(), |input| format!("{input}, "));
        let objects = list(&value["objects"])
            .enumerate()
            .map(|(i, o)| (i, text(&o["name"]), o["bytes"].as_u64().unwrap_or(0)))
            .filter(|(_, _, bytes)| *bytes > 0)
            .collect();
        Self {
            value,
            command: words.join(" "),
            program,
            label: first + &threads,
            restarts: value["total"]["restarts"].as_u64().unwrap_or(0),
            successes: value["total"]["successes"].as_u64().unwrap_or(0),
            objects,
            phases: list(&value["phases"]).take(MAX_PHASES).collect(),
        }
    }

    fn crashes(&self) -> Vec<&'a Value> {
        let all: Vec<&Value> = list(&self.value["results"]).collect();
        let stride = all.len().div_ceil(MAX_CRASHES).max(1);
        all.into_iter().step_by(stride).collect()
    }
}

fn tiles(body: &mut String, study: &StudyFigures<'_>) {
    let v = study.value;
    let share = study.successes as f64 / study.restarts.max(1) as f64;
    body.push_str("<div class=\"tiles\">\n");
    let of = format!("{} of {}", count(study.successes), count(study.restarts));
    tile(body, &percent(share), "Restarts that recompute", &of);
    let more = list(&v["results"]).filter(|r| number(&r["more_iterations"]) > 0.0).count();
    tile(body, &count(more as u64), "With more iterations", "among those that recompute");
    let millions = format!("{:.1} M", number(&v["instructions"]) / 1e6);
    tile(body, &millions, "Instructions", "between start_crash and end_crash");
    let size = |key: &str| bytes(v[key].as_u64().unwrap_or(0));
    let all = format!("all images as differences: {}", size("difference_bytes"));
    tile(body, &size("image_bytes"), "An image", &all);
    let spent = |key: &str| seconds(number(&v[key]));
    let run = format!("a run without a crash: {}", spent("reference_seconds"));
    tile(body, &spent("recording_seconds"), "Recording", &run);
    let caches = format!("finding what memory held: {}", spent("caches_seconds"));
    tile(body, &spent("restarts_seconds"), "Restarts", &caches);
    body.push_str("</div>\n");
}

fn phase_table(body: &mut String, studies: &[StudyFigures<'_>]) {
    body.push_str(
        "<section><h2>Phases</h2>\n<div class=\"wide tall\"><table class=\"figures\">\n\
         <tr><th>Program</th><th>phase</th><th>restarts</th><th>success</th><th>95% interval</th>\
         <th>more iterations</th><th>inconsistent</th></tr>\n",
    );
    for study in studies {
        for phase in &study.phases {
            let share = phase["share"].as_f64().map_or("none".to_owned(), percent);
            let interval = match (phase["interval"][0].as_f64(), phase["interval"][1].as_f64()) {
                (Some(low), Some(high)) => format!("{} to {}", percent(low), percent(high)),
                _ => "none".to_owned(),
            };
            let more = phase["mean_more_iterations"].as_f64();
            put!(
                body,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{share}</td><td>{interval}</td>\
                 <td>{}</td><td>{}</td></tr>\n",
                brief(&format!("{} {}", study.program, study.label), 40),
                number(&phase["phase"]),
                number(&phase["restarts"]),
                more.map_or("none".to_owned(), |m| format!("{m:.1}")),
                percent(number(&phase["inconsistent_rate_of_all"]))
            );
        }
    }
    let marked = studies.iter().filter(|study| study.value["marked_phases"] == true).count();
    let phases = match studies.len() - marked {
        0 => "Phases are those that the programs mark.",
        _ if marked == 0 => "Phases are equal parts of the iterations.",
        _ => "Phases are those that a program marks, or else equal parts of its iterations.",
    };
    put!(
        body,
        "</table></div>\n<p class=\"small under\">{phases} Inconsistent: of all memory, the mean \
         at the phase's crashes.</p>\n</section>\n"
    );
}

fn outcomes(body: &mut String, study: &StudyFigures<'_>) {
    let all: Vec<(&String, f64)> = study.value["outcomes"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|o| (o.0, number(o.1)))
        .collect();
    let most = all.iter().map(|o| o.1).fold(1.0, f64::max);
    body.push_str("<section><h2>Outcomes</h2>\n<table class=\"plain meter ours\">\n");
    for (name, restarts) in all.into_iter().take(16) {
        put!(
            body,
            "<tr><th>{}</th><td class=\"track\"><i style=\"width:{:.1}%\"></i></td>\
             <td class=\"nowrap\">{restarts}</td></tr>\n",
            brief(name, 60),
            97.0 * restarts / most
        );
    }
    body.push_str("</table>\n</section>\n");
}

fn call_paths(body: &mut String, study: &StudyFigures<'_>) {
    let failures = |path: &Value| number(&path["restarts"]) - number(&path["successes"]);
    let paths: Vec<&Value> =
        list(&study.value["call_paths"]).filter(|p| failures(p) > 0.0).take(MAX_PATHS).collect();
    if paths.is_empty() {
        return;
    }
    body.push_str(
        "<section><h2>Call paths that fail most</h2>\n<div class=\"wide tall\">\
         <table class=\"figures\">\n\
         <tr><th>Innermost call first</th><th>failed</th><th>restarts</th></tr>\n",
    );
    for path in paths {
        let calls: Vec<String> = list(&path["call_path"]).map(text).collect();
        put!(
            body,
            "<tr><th class=\"name\">{}</th><td>{}</td><td>{}</td></tr>\n",
            escape(&calls.join(" < ").chars().take(300).collect::<String>()),
            failures(path),
            number(&path["restarts"])
        );
    }
    body.push_str("</table></div>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn study(input: &str, threads: u64, share: f64) -> Value {
        let phase = |phase: u64| {
            json!({ "phase": phase, "restarts": 10, "successes": (share * 10.0) as u64,
                    "share": share, "interval": [0.1, 0.9], "mean_more_iterations": 1.5,
                    "inconsistent_rates": [0.25, 0.0, 0.0], "inconsistent_rate_of_all": 0.02 })
        };
        let crash = |crash: u64| {
            json!({ "crash": crash, "instruction": crash * 100, "outcome": "wrong",
                    "inconsistent_bytes": [crash, 0, 4], "inconsistent_bytes_of_all": crash,
                    "footprint_bytes": 640 })
        };
        json!({
            "version": 1, "kind": "crash_study", "threads": threads,
            "command": ["./bin/solve", input],
            "objects": [{ "name": "x<y>", "bytes": 64 }, { "name": "none", "bytes": 0 },
                        { "name": "done", "bytes": 4 }],
            "instructions": 1000, "total": { "successes": 5, "restarts": 20 },
            "phases": [phase(1), phase(2)], "results": [crash(1), crash(9)],
            "outcomes": { "wrong": 15, "recomputed": 5 },
            "call_paths": [{ "call_path": ["f a.c:3", "main"], "successes": 1, "restarts": 4 }],
        })
    }

    fn html(bytes: &str) -> String {
        crate::read(bytes.as_bytes()).map(|d| d.to_html()).unwrap_or_else(|e| e.to_string())
    }

    #[test]
    fn one_study_has_its_phases_objects_and_call_paths() {
        let page = html(&study("S", 4, 0.25).to_string());
        for part in [
            "solve S",
            "25%",
            "x&lt;y&gt;",
            "f a.c:3 &lt; main",
            "10% to 90%",
            "4 threads",
            "1.5",
            "Inconsistent rate",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("x<y>") && !page.contains("NaN"));
    }

    #[test]
    fn studies_one_behind_the_other_are_one_page() {
        let several = format!("{}\n{}", study("S", 1, 0.5), study("A", 8, 0.0));
        let document = crate::read(several.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(document.to_text(80).lines().count(), 2);
        assert_eq!(document.to_json().as_array().map(Vec::len), Some(2));
        let page = document.to_html();
        assert!(page.contains("S, 1 thread") && page.contains("A, 8 threads"), "{page}");
    }

    #[test]
    fn what_is_damaged_is_said_and_nothing_else_is_taken() {
        let good = study("S", 1, 0.5).to_string();
        assert!(html(&good[..good.len() - 9]).contains("not the JSON of a crash test"));
        let newer = good.replace("\"version\":1", "\"version\":2");
        assert!(html(&newer).contains("version 2, known is 1"));
        // Any value may be missing or of another type.
        let bare = html(r#"{"version":1,"kind":"crash_study","phases":[{}],"results":[3,{}]}"#);
        assert!(bare.contains("threads unknown") && !bare.contains("NaN"), "{bare}");
    }
}
