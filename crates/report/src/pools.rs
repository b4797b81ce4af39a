//! Hosts that share pools of memory: what `terrace sim --system --json` prints, with a picture of
//! the system under load.

use crate::chart::{legend, marks, Chart, Series};
use crate::markup::{brief, bytes, count, escape, page, put, seconds};
use crate::study::{self, list, number, text};
use serde_json::Value;
use std::collections::BTreeMap;

/// Runs, hosts and queues of a run that are shown at most.
const MAX_RUNS: usize = 400;
const MAX_HOSTS: usize = 64;
const MAX_QUEUES: usize = 1000;
/// Rows of a table at most.
const MAX_ROWS: usize = 1000;
/// Lines of the chart over time at most: the busiest queues.
const MAX_LINES: usize = 6;
/// Points of a line at most.
const MAX_POINTS: usize = 1000;
/// The picture, pixels: it fits a telephone.
const WIDTH: f64 = 330.0;
const ROW: f64 = 17.0;
/// Pixels for names on either side.
const NAMES: f64 = 74.0;
/// Width of the line of the busiest link, pixels.
const THICKEST: f64 = 7.0;

/// What a simulation of hosts and pools printed.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedPools {
    value: Value,
}

/// One direction of a link, or a switch.
struct QueueFigures {
    name: String,
    bytes: f64,
    wait_ns: f64,
    /// Its cells of the table.
    latency_cells: String,
    bandwidth: Option<f64>,
    over_time: Vec<f64>,
}

impl SharedPools {
    /// Whether these bytes look like it, before they are parsed.
    pub(crate) fn looks_like(data: &[u8]) -> bool {
        study::looks_like(data, "shared_pools")
    }

    /// Reads the JSON.
    pub(crate) fn from_json(data: &[u8]) -> Result<Self, String> {
        Ok(Self { value: study::read(data)? })
    }

    /// The figures, as they were read.
    pub(crate) fn json(&self) -> Value {
        self.value.clone()
    }

    fn runs(&self) -> impl Iterator<Item = &Value> {
        self.value["runs"].as_array().into_iter().flatten().take(MAX_RUNS)
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let runs = self.runs().count();
        format!("{}: {runs} runs of hosts that share pools\n", text(&self.value["system"]))
    }

    /// One HTML file.
    pub(crate) fn html(&self) -> String {
        let name = text(&self.value["system"]);
        let mut body = String::new();
        let runs = self.runs().count();
        let inputs: Vec<String> = list(&self.value["inputs"]).take(8).map(text).collect();
        put!(
            &mut body,
            "<header><p class=\"over\">Simulated · {} run{}</p><h1>Shared memory pools \
             <code>{}</code></h1><p>{}</p></header>\n",
            count(runs as u64),
            if runs == 1 { "" } else { "s" },
            brief(&name, 60),
            brief(&inputs.join(", "), 200)
        );
        table(&mut body, self.runs());
        if let Some(last) = self.runs().last() {
            let queues = queues(last);
            picture(&mut body, last, &queues);
            over_time(&mut body, last, &queues);
            queue_table(&mut body, last, &queues);
            station_table(&mut body, last);
            latency_table(&mut body, last, &self.value["pools"]);
        }
        page(&format!("Shared memory pools {name}"), &body)
    }
}

/// Modelled time in which messages passed, seconds. Hosts tell only the time of what is measured.
fn span_s(run: &Value, queues: &[QueueFigures]) -> f64 {
    let measured = list(&run["hosts"]).map(|host| number(&host["seconds"])).fold(0.0, f64::max);
    let points = queues.iter().map(|queue| queue.over_time.len()).max().unwrap_or(0);
    measured.max(points as f64 * number(&run["point_seconds"])).max(1e-12)
}

fn queues(run: &Value) -> Vec<QueueFigures> {
    let one = |queue: &Value| QueueFigures {
        name: text(&queue["queue"]),
        bytes: number(&queue["bytes"]),
        wait_ns: number(&queue["mean_wait_ns"]),
        latency_cells: latency_cells(&queue["latency_ns"]),
        bandwidth: queue["bandwidth_bytes_per_s"].as_f64().filter(|b| *b > 0.0),
        over_time: list(&queue["bytes_over_time"]).take(MAX_POINTS).map(number).collect(),
    };
    list(&run["queues"]).take(MAX_QUEUES).map(one).collect()
}

fn table<'a>(body: &mut String, runs: impl Iterator<Item = &'a Value>) {
    body.push_str(
        "<section><h2>Hosts</h2>\n<div class=\"wide tall\"><table class=\"figures\">\n\
         <tr><th>Host</th><th>policy</th><th>pools</th><th>local</th><th>seconds</th><th>IPC</th>\
         <th>remote</th><th>wait ns</th></tr>\n",
    );
    let mut rows = 0;
    for run in runs {
        for host in list(&run["hosts"]).take(MAX_HOSTS) {
            rows += 1;
            if rows > MAX_ROWS {
                continue;
            }
            let pools: Vec<&Value> = list(&host["pools"]).collect();
            let all: f64 = pools.iter().map(|p| number(&p["accesses"])).sum();
            let shared = pools.get(1..).unwrap_or_default();
            let remote: f64 = shared.iter().map(|p| number(&p["accesses"])).sum();
            let read: f64 = shared.iter().map(|p| number(&p["read_bytes"])).sum();
            let wait: f64 =
                shared.iter().map(|p| number(&p["mean_wait_ns"]) * number(&p["read_bytes"])).sum();
            let local = match run["local_bytes"].as_u64() {
                Some(size) => bytes(size),
                None => "as it has".to_owned(),
            };
            put!(
                body,
                "<tr><th>{}</th><td>{}</td><td>{}</td><td>{local}</td><td>{}</td><td>{:.3}</td>\
                 <td>{:.1}%</td><td>{:.0}</td></tr>\n",
                brief(&text(&host["host"]), 24),
                brief(&text(&host["policy"]), 24),
                number(&run["pool_count"]),
                seconds(number(&host["seconds"])),
                number(&host["ipc"]),
                100.0 * remote / all.max(1.0),
                wait / read.max(1.0)
            );
        }
    }
    body.push_str("</table></div>\n");
    if rows > MAX_ROWS {
        put!(body, "<p class=\"small\">The first {MAX_ROWS} of {rows}.</p>\n");
    }
    body.push_str("</section>\n");
}

/// Ends of a link by its queue's name.
fn ends(name: &str) -> Option<(&str, &str)> {
    name.split_once(" > ")
}

/// Hosts to the left, pools to the right, switches between; a link is as wide as it is used.
fn picture(body: &mut String, run: &Value, queues: &[QueueFigures]) {
    let mut links: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for (a, b, bytes) in queues.iter().filter_map(|q| ends(&q.name).map(|(a, b)| (a, b, q.bytes))) {
        *links.entry(if a < b { (a, b) } else { (b, a) }).or_default() += bytes;
    }
    let hosts: Vec<String> =
        list(&run["hosts"]).take(MAX_HOSTS).map(|h| text(&h["host"])).collect();
    let places = place(&hosts, &links);
    let (Some(rows), true) = (places.values().map(|p| p.1).reduce(f64::max), links.len() > 1)
    else {
        return;
    };
    let most = links.values().copied().fold(1.0, f64::max);
    let span = span_s(run, queues);
    body.push_str("<section><h2>The system under load</h2>\n");
    put!(
        body,
        "<svg class=\"system\" width=\"{WIDTH}\" height=\"{:.0}\" role=\"img\" \
         aria-label=\"Links by their use\">\n",
        rows + ROW
    );
    for ((a, b), bytes) in &links {
        let (Some(from), Some(to)) = (places.get(a), places.get(b)) else { continue };
        put!(
            body,
            "<path class=\"link\" style=\"stroke-width:{:.1}px\" d=\"M{:.1} {:.1}L{:.1} \
             {:.1}\"><title>{} - {}: {:.2} GB/s</title></path>\n",
            0.8 + (THICKEST - 0.8) * bytes / most,
            from.0,
            from.1,
            to.0,
            to.1,
            escape(a),
            escape(b),
            bytes / span / 1e9
        );
    }
    for (name, (x, y)) in &places {
        let (anchor, at) = match *x {
            x if x <= NAMES => ("end", x - 6.0),
            x if x >= WIDTH - NAMES => ("start", x + 6.0),
            x => ("middle", x),
        };
        let lift = if anchor == "middle" { -7.0 } else { 4.0 };
        put!(
            body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"{anchor}\">{}</text>\n",
            y + lift,
            brief(name, 10)
        );
    }
    put!(
        body,
        "</svg>\n<p class=\"small under\">The last run. The widest link moved {:.2} GB/s in both \
         directions together.</p>\n</section>\n",
        most / span / 1e9
    );
}

/// Where each vertex is: columns by the links between it and a host, rows evenly.
fn place<'a>(
    hosts: &[String],
    links: &BTreeMap<(&'a str, &'a str), f64>,
) -> BTreeMap<&'a str, (f64, f64)> {
    let mut levels: BTreeMap<&str, usize> = BTreeMap::new();
    let names = links.keys().flat_map(|(a, b)| [*a, *b]);
    levels.extend(names.filter(|name| hosts.iter().any(|h| h == name)).map(|name| (name, 0)));
    // A tree is no deeper than it has links.
    for level in 1..=links.len() {
        let near = |name: &&str| levels.get(*name) == Some(&(level - 1));
        let found: Vec<&str> = links
            .keys()
            .flat_map(|(a, b)| [(*a, *b), (*b, *a)])
            .filter(|(a, b)| near(a) && !levels.contains_key(b))
            .map(|(_, b)| b)
            .collect();
        if found.is_empty() {
            break;
        }
        levels.extend(found.into_iter().map(|name| (name, level)));
    }
    let deepest = levels.values().copied().max().unwrap_or(0).max(1);
    let mut columns: Vec<Vec<&str>> = vec![Vec::new(); deepest + 1];
    for (name, level) in &levels {
        columns[*level].push(name);
    }
    let tallest = columns.iter().map(Vec::len).max().unwrap_or(1) as f64 * ROW;
    let mut places = BTreeMap::new();
    for (level, column) in columns.iter().enumerate() {
        let x = NAMES + (WIDTH - 2.0 * NAMES) * level as f64 / deepest as f64;
        for (row, name) in column.iter().enumerate() {
            let y = ROW + tallest * (row as f64 + 0.5) / column.len() as f64;
            places.insert(*name, (x, y));
        }
    }
    places
}

/// The busiest queues over time, bytes a second.
fn over_time(body: &mut String, run: &Value, queues: &[QueueFigures]) {
    let point = number(&run["point_seconds"]);
    let mut busiest: Vec<&QueueFigures> =
        queues.iter().filter(|q| ends(&q.name).is_some() && q.over_time.len() > 1).collect();
    busiest.sort_by(|a, b| b.bytes.total_cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    busiest.truncate(MAX_LINES);
    let Some(points) = busiest.iter().map(|q| q.over_time.len()).max() else { return };
    if point <= 0.0 {
        return;
    }
    let rate = |bytes: &f64| bytes / point / 1e9;
    let top = busiest.iter().flat_map(|q| &q.over_time).map(rate).fold(0.0, f64::max) * 1.1;
    let title = "Use of the busiest links over time";
    put!(body, "<section><h2>{title}</h2>\n");
    let labels = marks(top, |v| format!("{v} GB/s"));
    let mut chart = Chart::new(title, 240.0, point * points as f64, top, &labels);
    for (index, queue) in busiest.iter().enumerate() {
        let times: Vec<f64> =
            (0..queue.over_time.len()).map(|at| (at as f64 + 0.5) * point).collect();
        let values = queue.over_time.iter().map(rate).collect();
        chart.line(&times, &Series { class: format!("t{}", index % 8), values });
    }
    body.push_str(&chart.finish());
    let names: Vec<(String, String)> = busiest
        .iter()
        .enumerate()
        .map(|(i, q)| (format!("t{}", i % 8), q.name.chars().take(40).collect()))
        .collect();
    body.push_str(&legend(&names));
    body.push_str("</section>\n");
}

fn queue_table(body: &mut String, run: &Value, queues: &[QueueFigures]) {
    let (point, span) = (number(&run["point_seconds"]), span_s(run, queues));
    let mut sorted: Vec<&QueueFigures> = queues.iter().filter(|q| q.bytes > 0.0).collect();
    sorted.sort_by(|a, b| b.bytes.total_cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    if sorted.is_empty() {
        body.push_str("<p class=\"small\">No host used a pool.</p>\n");
        return;
    }
    body.push_str(
        "<section><h2>Links and switches</h2>\n<div class=\"wide tall\"><table \
         class=\"figures\">\n<tr><th>Queue</th><th>GB</th><th>mean GB/s</th><th>mean used</th>\
         <th>most used</th><th>wait ns</th><th>half within</th>\
         <th>90%</th><th>99%</th><th>most</th></tr>\n",
    );
    for queue in sorted.iter().take(MAX_ROWS) {
        let part = |bytes: f64, seconds: f64| match queue.bandwidth {
            Some(bandwidth) if seconds > 0.0 => {
                format!("{:.0}%", 100.0 * bytes / seconds / bandwidth)
            }
            _ => "no limit".to_owned(),
        };
        let peak = queue.over_time.iter().copied().fold(0.0, f64::max);
        put!(
            body,
            "<tr><th>{}</th><td>{:.3}</td><td>{:.2}</td><td>{}</td><td>{}</td>\
             <td>{:.0}</td>{}</tr>\n",
            brief(&queue.name, 40),
            queue.bytes / 1e9,
            queue.bytes / span / 1e9,
            part(queue.bytes, span),
            part(peak, point),
            queue.wait_ns,
            queue.latency_cells
        );
    }
    body.push_str("</table></div>\n</section>\n");
}

/// Banks of pools, checks of access, the manager.
fn station_table(body: &mut String, run: &Value) {
    let mut used = list(&run["stations"]).filter(|s| number(&s["requests"]) > 0.0).peekable();
    if used.peek().is_none() {
        return;
    }
    body.push_str(
        "<section><h2>Banks, checks and the manager</h2>\n<div class=\"wide tall\"><table \
         class=\"figures\">\n<tr><th>Station</th><th>requests</th><th>wait ns</th>\
         <th>half within</th><th>90%</th><th>99%</th><th>most</th></tr>\n",
    );
    for station in used.take(MAX_ROWS) {
        put!(
            body,
            "<tr><th>{}</th><td>{}</td><td>{:.0}</td>{}</tr>\n",
            brief(&text(&station["station"]), 40),
            count(number(&station["requests"]) as u64),
            number(&station["mean_wait_ns"]),
            latency_cells(&station["latency_ns"])
        );
    }
    body.push_str("</table></div>\n</section>\n");
}

/// Cells of a distribution: half within, 90%, 99%, most.
fn latency_cells(latency: &Value) -> String {
    let cell = |part| format!("<td>{:.0}</td>", number(&latency[part]));
    ["p50", "p90", "p99", "max"].map(cell).concat()
}

/// How long misses to each pool took, by host.
fn latency_table(body: &mut String, run: &Value, names: &Value) {
    body.push_str(
        "<section><h2>Latency of misses to pools, ns</h2>\n<div class=\"wide tall\"><table \
         class=\"figures\">\n<tr><th>Host</th><th>pool</th><th>half within</th><th>90%</th>\
         <th>99%</th><th>most</th></tr>\n",
    );
    let mut rows = 0;
    for host in list(&run["hosts"]).take(MAX_HOSTS) {
        for (pool, of) in list(&host["pools"]).enumerate().skip(1) {
            let latency = &of["latency_ns"];
            if number(&latency["max"]) == 0.0 || rows == MAX_ROWS {
                continue;
            }
            rows += 1;
            put!(
                body,
                "<tr><th>{}</th><td>{}</td>{}</tr>\n",
                brief(&text(&host["host"]), 24),
                brief(&text(&names[pool]), 24),
                latency_cells(latency)
            );
        }
    }
    body.push_str("</table></div>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(host: &str) -> Value {
        let queue = |name: String, bytes: u64| {
            json!({"queue": name, "messages": 3, "bytes": bytes, "bandwidth_bytes_per_s": 1e9,
                   "bytes_over_time": [1, 2, bytes]})
        };
        let pool = json!({"frames": 5, "accesses": 7, "read_bytes": 448, "write_bytes": 0,
                          "mean_wait_ns": 12.0,
                          "latency_ns": {"p50": 340, "p90": 352, "p99": 431, "max": 617}});
        json!({
            "version": 1, "kind": "shared_pools", "system": "x", "inputs": ["a"],
            "pools": ["local", "pool0"],
            "runs": [{
                "pool_count": 1, "local_bytes": 1 << 29, "point_seconds": 1e-5,
                "hosts": [{"host": host, "policy": "alternate", "seconds": 0.5, "ipc": 0.25,
                           "pools": [pool.clone(), pool]}],
                "queues": [queue(format!("{host} > switch"), 100),
                           queue("switch > pool0".into(), 90),
                           queue("pool0 > switch".into(), 300),
                           queue(format!("switch > {host}"), 9)],
                "stations": [{"station": "pool0 banks", "requests": 7, "mean_wait_ns": 77.2,
                              "latency_ns": {"p50": 300, "p90": 380, "p99": 390, "max": 391}}],
            }],
        })
    }

    fn html(value: &Value) -> String {
        crate::read(value.to_string().as_bytes()).map(|d| d.to_html()).unwrap_or_default()
    }

    #[test]
    fn a_page_has_hosts_a_picture_and_links() {
        let page = html(&answer("node0"));
        assert!(page.contains("512 MiB") && page.contains("50.0%"), "{page}");
        assert_eq!(page.matches("class=\"link\"").count(), 2);
        assert!(page.contains("pool0 &gt; switch") && page.contains("12</td>"));
        assert_eq!(page.matches("<svg").count(), 2);
        let banks = "<th>pool0 banks</th><td>7</td><td>77</td><td>300</td><td>380</td>";
        assert!(page.contains(banks), "{page}");
        assert!(page.contains("<td>pool0</td><td>340</td><td>352</td><td>431</td><td>617</td>"));
    }

    #[test]
    fn marks_of_the_axis_are_short() {
        let mut value = answer("node0");
        value["runs"][0]["queues"][0]["bytes_over_time"] = json!([0, 6000]);
        let page = html(&value);
        assert!(page.contains(">0.6 GB/s<") && !page.contains("0.60000"), "{page}");
    }

    #[test]
    fn hostile_answers_stay_text() {
        let mut bad = answer("<script>alert(1)</script>");
        bad["runs"][0]["queues"][0]["bytes"] = json!(-5);
        bad["runs"][0]["stations"][0]["station"] = json!("<b>");
        bad["runs"][0]["hosts"][0]["pools"][1]["latency_ns"]["p50"] = json!(-1);
        bad["runs"][0]["queues"][1]["queue"] = json!(7);
        bad["runs"][0]["queues"][2]["bytes_over_time"] = json!("x");
        for value in [bad.clone(), json!({"version": 1, "kind": "shared_pools", "runs": [7, {}]})] {
            let page = html(&value);
            assert!(page.contains("</html>") && !page.contains("alert(1)<"), "{page}");
            assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        }
        bad["version"] = json!(2);
        let refused = crate::read(bad.to_string().as_bytes());
        assert!(refused.is_err_and(|e| e.to_string().contains("version 2")));
    }
}
