//! A vertex program on migratory threads: what `terrace migratory run --json` prints, with the
//! migrations from nodelet to nodelet, the queues over time, and the program's lines with the
//! migrations of each, before and after transformations.

use crate::chart::{legend, marks, Chart, Series};
use crate::markup::{brief, count, escape, page, percent, put, seconds, tile};
use crate::study::{self, list, number, text};
use serde_json::Value;

/// Runs, nodelets, lines and notes that are shown at most.
const MAX_RUNS: usize = 64;
const MAX_NODELETS: usize = 64;
const MAX_LINES: usize = 1000;
const MAX_NOTES: usize = 40;
/// Points of a chart at most.
const MAX_POINTS: usize = 1000;
/// Lines of the chart by nodelet at most: those with most threads.
const MAX_SERIES: usize = 8;
/// Opacity of the cell with most migrations: its figure is read on it in both themes.
const DARKEST: f64 = 0.5;
/// A matrix, pixels, and the space for its labels; it fits a telephone.
const MATRIX: f64 = 288.0;
const LABELS: f64 = 24.0;
/// Cells narrower than this, pixels, have no figure in them.
const FIGURE_WIDTH: f64 = 34.0;

/// What a run of a vertex program printed.
#[derive(Debug, Clone, PartialEq)]
pub struct MigratoryStudy {
    value: Value,
}

impl MigratoryStudy {
    /// Whether these bytes look like it, before they are parsed.
    pub(crate) fn looks_like(data: &[u8]) -> bool {
        study::looks_like(data, "migratory_threads")
    }

    /// Reads the JSON.
    pub(crate) fn from_json(data: &[u8]) -> Result<Self, String> {
        Ok(Self { value: study::read(data)? })
    }

    /// The figures, as they were read.
    pub(crate) fn json(&self) -> Value {
        self.value.clone()
    }

    fn runs(&self) -> Vec<&Value> {
        list(&self.value["runs"]).take(MAX_RUNS).collect()
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let (runs, program) = (self.runs(), text(&self.value["program"]));
        let mut out = format!("{program} on migratory threads: {} runs\n", runs.len());
        if let [first, .., last] = runs.as_slice() {
            out += &format!(
                "{} migrations, then {}\n",
                number(&first["migrations"]),
                number(&last["migrations"])
            );
        }
        out
    }

    /// One HTML file.
    pub(crate) fn html(&self) -> String {
        let program = text(&self.value["program"]);
        let runs = self.runs();
        let mut body = String::new();
        put!(
            &mut body,
            "<header><p class=\"over\">Simulated · {} run{}</p><h1>Migratory threads \
             <code>{}</code> <span class=\"on\">on {}</span></h1><p>{}: {} vertices, {} \
             {}directed edges; layout {}</p></header>\n",
            runs.len(),
            if runs.len() == 1 { "" } else { "s" },
            brief(&program, 60),
            brief(&text(&self.value["machine"]), 80),
            brief(&text(&self.value["graph"]), 120),
            count(number(&self.value["vertices"]) as u64),
            count(self.edges()),
            if self.value["directed"] == Value::Bool(true) { "" } else { "un" },
            brief(&text(&self.value["layout"]), 40)
        );
        if let Some(first) = runs.first() {
            let last = runs.last().copied().unwrap_or(first);
            tiles(&mut body, first, last, runs.len() > 1);
            table(&mut body, &runs);
            let shown = if runs.len() > 1 { vec![*first, last] } else { vec![*first] };
            matrices(&mut body, &shown);
            for run in &shown {
                queues(&mut body, run);
            }
            for run in &shown {
                lines(&mut body, run);
            }
        }
        self.notes(&mut body);
        page(&format!("Migratory threads {program}"), &body)
    }

    /// An undirected edge is counted once.
    fn edges(&self) -> u64 {
        let edges = number(&self.value["edges"]) as u64;
        if self.value["directed"] == Value::Bool(true) {
            edges
        } else {
            edges / 2
        }
    }

    fn notes(&self, body: &mut String) {
        let notes: Vec<String> = list(&self.value["notes"]).take(MAX_NOTES).map(text).collect();
        if notes.is_empty() {
            return;
        }
        body.push_str("<section><h2>Notes</h2>\n");
        for note in notes {
            put!(body, "<p class=\"small\">{}</p>\n", brief(&note, 200));
        }
        body.push_str("</section>\n");
    }
}

/// A count in three or four characters: `17`, `4.2k`, `31k`, `1.5M`.
fn short_count(n: f64) -> String {
    let (scaled, unit) = match n {
        n if n < 1e3 => return format!("{n:.0}"),
        n if n < 999_500.0 => (n / 1e3, "k"),
        n if n < 999.5e6 => (n / 1e6, "M"),
        n => (n / 1e9, "G"),
    };
    if scaled < 9.95 {
        format!("{scaled:.1}{unit}")
    } else {
        format!("{scaled:.0}{unit}")
    }
}

/// What a run is called: its last pass, or "as written".
fn name(run: &Value) -> String {
    let passes: Vec<String> = list(&run["passes"]).take(16).map(text).collect();
    if passes.is_empty() {
        "as written".to_owned()
    } else {
        format!("after {}", passes.join(", "))
    }
}

/// A time in a tile or table, four digits.
fn duration(s: f64) -> String {
    if s > 0.0 && s < 1e-4 {
        format!("{:.1} µs", s * 1e6)
    } else {
        seconds(s)
    }
}

fn tiles(body: &mut String, first: &Value, last: &Value, several: bool) {
    let [before, after] = [first, last].map(|run| number(&run["migrations"]));
    let [slow, fast] = [first, last].map(|run| number(&run["seconds"]));
    body.push_str("<div class=\"tiles\">\n");
    if several {
        let was = format!("{} as written", count(before as u64));
        tile(body, &count(after as u64), "migrations", &was);
        let saved = if before > 0.0 { 1.0 - after / before } else { 0.0 };
        tile(body, &percent(saved), "migrations saved", &name(last));
        let was = format!("{} as written", duration(slow));
        tile(body, &duration(fast), "simulated time", &was);
        let speedup = if fast > 0.0 { format!("{:.2}", slow / fast) } else { "unknown".into() };
        tile(body, &speedup, "speedup", "time as written, of the time after");
    } else {
        tile(body, &count(before as u64), "migrations", "");
        tile(body, &duration(slow), "simulated time", "");
    }
    body.push_str("</div>\n");
}

fn table(body: &mut String, runs: &[&Value]) {
    body.push_str(
        "<section><h2>Runs</h2>\n<div class=\"wide\"><table class=\"figures\">\n<tr>\
         <th>Program</th><th>time</th><th>migrations</th><th>saved</th>\
         <th>remote updates</th><th>spawns</th><th>calls</th><th>spills</th></tr>\n",
    );
    let before = runs.first().map_or(0.0, |run| number(&run["migrations"]));
    for run in runs {
        let migrations = number(&run["migrations"]);
        let saved = if before > 0.0 { percent(1.0 - migrations / before) } else { "0%".into() };
        put!(
            body,
            "<tr><th class=\"name\">{}</th><td>{}</td><td>{}</td><td>{saved}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td></tr>\n",
            brief(&name(run), 90),
            duration(number(&run["seconds"])),
            count(migrations as u64),
            count(number(&run["remote_updates"]) as u64),
            count(number(&run["spawns"]) as u64),
            count(number(&run["calls"]) as u64),
            count(number(&run["spills"]) as u64)
        );
    }
    body.push_str("</table></div>\n");
    if let Some(last) = runs.last() {
        let returned: Vec<String> = list(&last["returned"])
            .take(16)
            .map(|item| format!("{} = {}", text(&item["name"]), text(&item["text"])))
            .collect();
        if !returned.is_empty() {
            put!(body, "<p class=\"small under\">Returned by every run: {}</p>\n", {
                brief(&returned.join(", "), 300)
            });
        }
    }
    body.push_str("</section>\n");
}

/// Migrations by nodelet: from, then to.
fn matrix_of(run: &Value) -> Vec<Vec<f64>> {
    let rows = list(&run["nodelet_counters"]).take(MAX_NODELETS);
    rows.map(|row| list(&row["migrations_to"]).take(MAX_NODELETS).map(number).collect()).collect()
}

/// From-to matrices beside each other, with one scale.
fn matrices(body: &mut String, runs: &[&Value]) {
    let all: Vec<Vec<Vec<f64>>> = runs.iter().map(|run| matrix_of(run)).collect();
    let most = all.iter().flatten().flatten().copied().fold(0.0, f64::max);
    if all[0].len() < 2 || most <= 0.0 {
        return;
    }
    body.push_str(
        "<section><h2>Migrations from nodelet to nodelet</h2>\n<div class=\"matrices\">\n",
    );
    for (run, cells) in runs.iter().zip(&all) {
        put!(body, "<figure><figcaption>{}</figcaption>\n", brief(&name(run), 60));
        matrix(body, &name(run), cells, most);
        body.push_str("</figure>\n");
    }
    let all_nodelets = list(&runs[0]["nodelet_counters"]).count();
    body.push_str("</div>\n");
    put!(
        body,
        "<p class=\"small under\">Rows: the nodelet that threads leave. Columns: the one that they \
         go to. The darkest cell is {} migrations.</p>\n",
        count(most as u64)
    );
    if all_nodelets > MAX_NODELETS {
        put!(body, "<p class=\"small\">The first {MAX_NODELETS} nodelets of {all_nodelets}.</p>\n");
    }
    body.push_str("</section>\n");
}

fn matrix(body: &mut String, name: &str, cells: &[Vec<f64>], most: f64) {
    let size = (MATRIX - LABELS) / cells.len() as f64;
    put!(
        body,
        "<svg class=\"matrix\" width=\"{MATRIX}\" height=\"{MATRIX}\" role=\"img\" \
         aria-label=\"Migrations {}\">\n",
        escape(name)
    );
    // Labels that do not touch.
    let every = (16.0 / size).ceil().max(1.0) as usize;
    for at in (0..cells.len()).step_by(every) {
        let middle = LABELS + (at as f64 + 0.5) * size;
        put!(
            body,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at}</text><text \
             x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{at}</text>\n",
            LABELS - 7.0,
            LABELS - 6.0,
            middle + 4.0
        );
    }
    for (from, row) in cells.iter().enumerate() {
        for (to, migrations) in row.iter().enumerate().take(cells.len()) {
            let (x, y) = (LABELS + to as f64 * size, LABELS + from as f64 * size);
            put!(
                body,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                 style=\"fill-opacity:{:.3}\"><title>{from} to {to}: {} migrations</title>\
                 </rect>\n",
                (size - 1.0).max(0.5),
                (size - 1.0).max(0.5),
                DARKEST * migrations / most,
                count(*migrations as u64)
            );
            if size >= FIGURE_WIDTH - 2.0 && from != to {
                put!(
                    body,
                    "<text class=\"in\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                    x + size / 2.0,
                    y + size / 2.0 + 4.0,
                    short_count(*migrations)
                );
            }
        }
    }
    body.push_str("</svg>\n");
}

/// A figure of every nodelet over time.
fn over_time(run: &Value, key: &str) -> Vec<Vec<f64>> {
    let rows = list(&run["nodelet_counters"]);
    rows.map(|row| list(&row[key]).take(MAX_POINTS).map(number).collect()).collect()
}

fn sum_at(rows: &[Vec<f64>], at: usize) -> f64 {
    rows.iter().filter_map(|row| row.get(at)).sum()
}

/// Threads and queues over time: all nodelets together, then threads by nodelet.
fn queues(body: &mut String, run: &Value) {
    let step = number(&run["sample_seconds"]);
    let threads = over_time(run, "threads_over_time");
    let points = threads.iter().map(Vec::len).max().unwrap_or(0);
    if points < 2 || step <= 0.0 {
        return;
    }
    let runnable = over_time(run, "runnable_over_time");
    let waiting = over_time(run, "arrivals_over_time");
    let leaving = over_time(run, "departures_over_time");
    let sums = |rows: &[Vec<f64>]| (0..points).map(|at| sum_at(rows, at)).collect::<Vec<f64>>();
    let can_run = sums(&runnable);
    let blocked: Vec<f64> =
        sums(&threads).iter().zip(&can_run).map(|(all, run)| (all - run).max(0.0)).collect();
    let parts = [
        ("t0", "in a slot, can run", can_run),
        ("t5", "in a slot, wait", blocked),
        ("t1", "wait for the migration engine", sums(&leaving)),
        ("t4", "wait for a slot", sums(&waiting)),
    ];
    let top = (0..points)
        .map(|at| parts.iter().map(|(.., values)| values[at]).sum::<f64>())
        .fold(0.0, f64::max);
    let times: Vec<f64> = (0..points).map(|at| (at as f64 + 0.5) * step).collect();
    let (end, name) = (step * points as f64, name(run));
    put!(body, "<section><h2>Threads and queues, {}</h2>\n", brief(&name, 90));
    let title = format!("Threads of all nodelets by state, {name}");
    let mut chart = Chart::new(&title, 220.0, end, top * 1.1, &marks(top * 1.1, whole));
    let series: Vec<Series> = parts
        .iter()
        .map(|(class, _, values)| Series { class: (*class).to_owned(), values: values.clone() })
        .collect();
    chart.stack(&times, &series);
    body.push_str(&chart.finish());
    let keys: Vec<(String, String)> =
        parts.iter().map(|(class, name, _)| ((*class).into(), (*name).into())).collect();
    body.push_str(&legend(&keys));
    by_nodelet(body, &name, &threads, &times, end);
    body.push_str("</section>\n");
}

fn whole(value: f64) -> String {
    short_count(value)
}

/// Occupied slots of the nodelets with most threads.
fn by_nodelet(body: &mut String, name: &str, threads: &[Vec<f64>], times: &[f64], end: f64) {
    let mut busiest: Vec<(usize, f64)> =
        threads.iter().enumerate().map(|(at, row)| (at, row.iter().sum())).collect();
    busiest.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    busiest.truncate(MAX_SERIES);
    busiest.sort_by_key(|(at, _)| *at);
    let of = |at: usize| threads[at].iter().copied();
    let top = busiest.iter().flat_map(|(at, _)| of(*at)).fold(0.0, f64::max) * 1.1;
    let which = if threads.len() > MAX_SERIES { "the busiest nodelets" } else { "each nodelet" };
    put!(body, "<h3>Occupied thread slots of {which}</h3>\n");
    let title = format!("Occupied thread slots by nodelet, {name}");
    let mut chart = Chart::new(&title, 200.0, end, top, &marks(top, whole));
    for (line, (at, _)) in busiest.iter().enumerate() {
        chart.line(times, &Series { class: format!("t{line}"), values: of(*at).collect() });
    }
    body.push_str(&chart.finish());
    let keys: Vec<(String, String)> = busiest
        .iter()
        .enumerate()
        .map(|(line, (at, _))| (format!("t{line}"), format!("nodelet {at}")))
        .collect();
    body.push_str(&legend(&keys));
}

/// The program's text, with the migrations and remote updates of each line.
fn lines(body: &mut String, run: &Value) {
    let lines: Vec<&Value> = list(&run["lines"]).take(MAX_LINES).collect();
    if lines.is_empty() {
        return;
    }
    let most = lines.iter().map(|line| number(&line["migrations"])).fold(1.0, f64::max);
    put!(body, "<section><h2>The program {}</h2>\n", brief(&name(run), 90));
    body.push_str(
        "<div class=\"wide\"><table class=\"figures code\">\n<tr><th>Line</th><th>migrations</th>\
         <th>remote updates</th><th></th></tr>\n",
    );
    let figure = |value: &Value| match number(value) as u64 {
        0 => String::new(),
        n => count(n),
    };
    for (index, line) in lines.iter().enumerate() {
        let share = number(&line["migrations"]) / most;
        put!(
            body,
            "<tr><td>{}</td><td class=\"share\" style=\"background-size:{:.1}% 100%\">{}</td>\
             <td>{}</td><th><code>{}</code></th></tr>\n",
            index + 1,
            share * 100.0,
            figure(&line["migrations"]),
            figure(&line["remote_updates"]),
            brief(&text(&line["text"]), 160)
        );
    }
    body.push_str("</table></div>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(line: &str) -> Value {
        let nodelet = |to: [u64; 2]| {
            json!({"migrations_to": to, "threads_over_time": [1, 2, 1.5],
                   "runnable_over_time": [0.5, 1, 1], "arrivals_over_time": [0, 3, 0],
                   "departures_over_time": [0, 1, 0]})
        };
        let run = |passes: &[&str], migrations: u64| {
            json!({"passes": passes, "seconds": 0.002, "migrations": migrations,
                   "remote_updates": 7, "spawns": 3, "calls": 0, "spills": 0,
                   "sample_seconds": 0.0005,
                   "returned": [{"name": "total", "value": 9, "text": "9"}],
                   "nodelet_counters": [nodelet([0, migrations]), nodelet([12_345, 0])],
                   "lines": [{"text": line, "migrations": migrations, "remote_updates": 0}]})
        };
        json!({"version": 1, "kind": "migratory_threads", "program": "triangles", "graph": "g",
               "vertices": 64, "edges": 200, "directed": false, "machine": "emu-chick",
               "nodelets": 2, "layout": "striped", "notes": ["picked"],
               "runs": [run(&[], 4000), run(&["remote"], 1000)]})
    }

    fn html(value: &Value) -> String {
        crate::read(value.to_string().as_bytes()).map(|d| d.to_html()).unwrap_or_default()
    }

    #[test]
    fn a_page_has_matrix_queues_and_lines_before_and_after() {
        let page = html(&answer("for u in v.neighbors {"));
        assert!(page.contains("75%") && page.contains("100 undirected edges"), "{page}");
        assert_eq!(page.matches("class=\"matrix\"").count(), 2);
        assert!(page.contains("0 to 1: 4,000 migrations") && page.contains(">12k<"));
        // Two charts a run.
        assert_eq!(page.matches("class=\"chart\"").count(), 4);
        assert_eq!(page.matches("for u in v.neighbors {").count(), 2);
        assert!(page.contains("total = 9") && page.contains("picked"));
        let said = crate::read(answer("x").to_string().as_bytes()).map(|d| d.to_text(80));
        assert!(said.is_ok_and(|said| said.contains("4000 migrations, then 1000")));
    }

    #[test]
    fn hostile_answers_stay_text() {
        let mut bad = answer("<script>alert(1)</script>");
        bad["runs"][0]["nodelet_counters"][0]["migrations_to"] = json!([1]);
        bad["runs"][0]["nodelet_counters"][1] = json!(7);
        bad["runs"][1]["sample_seconds"] = json!(-1);
        bad["runs"][1]["lines"] = json!("x");
        let runs = |runs: Value| json!({"version": 1, "kind": "migratory_threads", "runs": runs});
        for value in [bad.clone(), runs(json!([7, {}])), runs(json!([]))] {
            let page = html(&value);
            assert!(page.contains("</html>") && !page.contains("alert(1)<"), "{page}");
            assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        }
        bad["version"] = json!(2);
        let refused = crate::read(bad.to_string().as_bytes());
        assert!(refused.is_err_and(|e| e.to_string().contains("version 2")));
    }

    #[test]
    fn counts_are_short() {
        let shown = [0.0, 999.0, 4_249.0, 31_000.0, 999_499.0, 1.5e6, 2e9].map(short_count);
        assert_eq!(shown, ["0", "999", "4.2k", "31k", "999k", "1.5M", "2.0G"]);
    }
}
