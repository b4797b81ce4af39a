//! A recording as a page, as text, as JSON.

use super::{RecordingSummary, UseCounts, COLUMNS};
use crate::chart::{byte_marks, legend, marks, Chart, Series};
use crate::markup::{
    brief, bytes, count, embed, escape, name_end, page, pages, percent, put, seconds, tile,
};
use serde_json::{json, Value};
use terrace_trace::TraceClock;
use terrace_types::text::{clip, fold};

/// Objects shown at most.
const MAX_OBJECTS: usize = 40;
/// Shares of accesses that the text names.
const SHARES: [f64; 3] = [0.5, 0.8, 0.95];

impl RecordingSummary {
    /// One HTML file that needs nothing else.
    #[must_use]
    pub fn html(&self) -> String {
        let command = self.header.command.join(" ");
        let mut body = String::new();
        put!(
            &mut body,
            "<header><p class=\"over\">Recording · source {} · {}</p><h1><code>{}</code></h1>\n<p \
                class=\"lead\">{}</p></header>\n",
            brief(&self.header.source, 40),
            escape(&self.time()),
            brief(if command.is_empty() { "(command not recorded)" } else { &command }, 300),
            escape(&self.verdict())
        );
        self.warnings(&mut body);
        self.tiles(&mut body);
        if self.total.all() > 0 {
            if let Some(samples) = &self.samples {
                samples.html(&self.by_page, &mut body);
            }
            self.over_time(&mut body);
            self.heat_map(&mut body);
            self.by_page(&mut body);
            self.working_set(&mut body);
            self.by_object(&mut body);
        }
        self.notes(&mut body);
        page(&format!("Recording of {command}"), &body)
    }

    fn time(&self) -> String {
        match self.header.clock {
            TraceClock::Instructions => format!("{} of nominal time", seconds(self.seconds)),
            TraceClock::Nanoseconds => seconds(self.seconds),
        }
    }

    fn verdict(&self) -> String {
        let all = self.total.all();
        if all == 0 {
            return "No access was recorded.".to_owned();
        }
        format!(
            "{} loads and stores of {} on {}, {} of them stores. Half of all accesses go to {} of \
                it, 95% to {}.",
            count(all),
            threads(self.threads),
            bytes(self.touched()),
            percent(self.total.stores as f64 / all as f64),
            bytes(self.bytes_for(0.5)),
            bytes(self.bytes_for(0.95)),
        )
    }

    fn touched(&self) -> u64 {
        self.total.pages.saturating_mul(self.header.page_size_bytes)
    }

    fn warnings(&self, body: &mut String) {
        for damage in self.damage.iter().take(8) {
            put!(body, "<p class=\"warning\">{}.</p>\n", brief(damage, 300));
        }
        if let Some(missing) = self.header.describe_missing() {
            put!(
                body,
                "<p class=\"warning\">Not all accesses: {missing}. All counts are of those.</p>\n",
            );
        }
    }

    fn tiles(&self, body: &mut String) {
        let all = self.total.all().max(1) as f64;
        body.push_str("<div class=\"tiles\">\n");
        tile(body, &count(self.total.all()), "accesses", &format!("by {}", threads(self.threads)));
        tile(
            body,
            &percent(self.total.loads as f64 / all),
            "loads",
            &format!("{} stores", count(self.total.stores)),
        );
        tile(body, &bytes(self.touched()), "touched", &pages(self.total.pages));
        let share = self.bytes_for(0.8) as f64 / self.touched().max(1) as f64;
        let hot = format!("{} of what was touched", percent(share));
        tile(body, &bytes(self.bytes_for(0.8)), "get 80% of accesses", &hot);
        body.push_str("</div>\n");
    }

    fn column_seconds(&self) -> f64 {
        self.seconds / COLUMNS as f64
    }

    fn over_time(&self, body: &mut String) {
        let width = self.column_seconds().max(1e-15);
        // Each column from its begin to its end, as steps.
        let times: Vec<f64> =
            (0..=COLUMNS).flat_map(|c| [c as f64 * width; 2]).skip(1).take(2 * COLUMNS).collect();
        let series = |class: &str, of: &dyn Fn(&UseCounts) -> f64| Series {
            class: class.to_owned(),
            values: self.columns.iter().flat_map(|c| [of(c); 2]).collect(),
        };
        let most = |of: &dyn Fn(&UseCounts) -> f64| self.columns.iter().map(of).fold(0.0, f64::max);
        let rate = |n: u64| n as f64 / width;
        let top = most(&|c| rate(c.all())) * 1.05;
        let mut chart =
            Chart::new("Accesses a second", 200.0, self.seconds, top, &marks(top, short));
        chart.stack(&times, &[series("t0", &|c| rate(c.loads)), series("t1", &|c| rate(c.stores))]);
        put!(
            body,
            "<section><h2>Loads and stores over time</h2>\n<p class=\"small\">Accesses a \
                second{}.</p>\n",
            self.of_clock()
        );
        body.push_str(&chart.finish());
        body.push_str(&legend(&[("t0".into(), "loads".into()), ("t1".into(), "stores".into())]));
        let page = self.header.page_size_bytes as f64;
        let (top, marks) = byte_marks(most(&|c| c.pages as f64 * page), |v| bytes(v as u64));
        let mut chart = Chart::new("Memory touched", 170.0, self.seconds, top, &marks);
        chart.stack(&times, &[series("t0", &|c| c.pages as f64 * page)]);
        put!(
            body,
            "<h3>Memory touched in each {} of it</h3>\n{}</section>\n",
            escape(&span(self.column_seconds())),
            chart.finish()
        );
    }

    /// What a second is.
    fn of_clock(&self) -> &'static str {
        match self.header.clock {
            TraceClock::Instructions => {
                " of nominal time, which counts instructions, a quarter of a nanosecond each"
            }
            TraceClock::Nanoseconds => "",
        }
    }

    fn heat_map(&self, body: &mut String) {
        put!(
            body,
            "<section><h2>Accesses by address and time</h2>\n<p class=\"small\">Each row is a \
                stretch of addresses, lowest at the \
             bottom, gaps left out. Above: accesses a second to a page, averaged over the row. \
             Below: how many of them are \
             stores.</p>\n<div id=\"heat\" class=\"heat\"><noscript><p class=\"warning\">The heat \
             map is drawn by a script \
             inside this file, and scripts are off.</p></noscript></div>\n\
             <script type=\"application/json\" id=\"heat-data\">{}</script>\n</section>\n",
            embed(&self.heat)
        );
    }

    fn by_page(&self, body: &mut String) {
        put!(
            body,
            "<section><h2>How accesses spread over pages</h2>\n<p class=\"small\">Pages in the \
                order of their use: the share of all \
             accesses that the most used ones get. A fast memory of a size can serve at most that \
             share, were nothing ever \
             moved.</p>\n"
        );
        let points = 240.min(self.by_page.len());
        let mut sums = Vec::with_capacity(self.by_page.len() + 1);
        sums.push(0u64);
        self.by_page.iter().for_each(|n| sums.push(sums.last().copied().unwrap_or(0) + n));
        let at = |i: usize| i * self.by_page.len() / points.max(1);
        let times: Vec<f64> =
            (0..=points).map(|i| at(i) as f64 / self.by_page.len().max(1) as f64).collect();
        let all = self.total.all().max(1) as f64;
        let values = (0..=points).map(|i| sums[at(i)] as f64 / all).collect();
        let touched = self.touched();
        let whole = (touched as f64).max(1.0);
        let sizes: Vec<(f64, String)> = byte_marks(whole, |v| bytes(v as u64))
            .1
            .into_iter()
            .filter(|(size, _)| *size <= whole)
            .map(|(size, name)| (size / whole, name))
            .collect();
        let mut chart = Chart::labelled(
            "Share of accesses by memory",
            220.0,
            1.0,
            &marks(1.0, percent),
            &sizes,
        );
        chart.line(&times, &Series { class: "t0".into(), values });
        body.push_str(&chart.finish());
        self.histogram(body);
        body.push_str("</section>\n");
    }

    /// Pages by how often they were used, in powers of two.
    fn histogram(&self, body: &mut String) {
        let mut powers: Vec<u64> = Vec::new();
        for n in &self.by_page {
            let power = n.ilog2() as usize;
            powers.resize(powers.len().max(power + 1), 0);
            powers[power] += 1;
        }
        let most = powers.iter().copied().max().unwrap_or(0) as f64 * 1.05;
        let wide = 1.0 / powers.len().max(1) as f64;
        let ticks: Vec<(f64, String)> = (0..powers.len())
            .step_by(powers.len().div_ceil(12).max(1))
            .map(|p| ((p as f64 + 0.5) * wide, short(2f64.powi(p as i32))))
            .collect();
        let marks = marks(most, short);
        let mut chart = Chart::labelled("Pages by accesses", 190.0, most, &marks, &ticks);
        for (power, n) in powers.iter().enumerate().filter(|(_, n)| **n > 0) {
            let from = 2f64.powi(power as i32);
            let title = format!(
                "{} with {} to {} accesses",
                pages(*n),
                short(from),
                short(2.0 * from - 1.0)
            );
            let at = power as f64 * wide;
            chart.block((at + 0.08 * wide, at + 0.92 * wide), *n as f64, "t0", &title);
        }
        put!(
            body,
            "<h3>Pages by how many accesses each had, from the figure below its bar to twice \
                that</h3>\n{}",
            chart.finish()
        );
    }

    fn working_set(&self, body: &mut String) {
        body.push_str(
            "<section><h2>Working set</h2>\n<p class=\"small\">How much memory is touched within \
                a span of time, on average over the \
             whole recording (Denning and Schwartz 1972). Where it is flat, a fast memory of that \
             size holds what the program \
             needs for as long.</p>\n",
        );
        // Below a page nothing happens.
        let page = self.header.page_size_bytes as f64;
        let start =
            self.working_set.iter().position(|(_, b)| *b > page).unwrap_or(0).saturating_sub(1);
        let curve = &self.working_set[start..];
        let last = curve.len().saturating_sub(1).max(1) as f64;
        let times: Vec<f64> = (0..curve.len()).map(|i| i as f64 / last).collect();
        let ticks: Vec<(f64, String)> = (0..curve.len())
            .step_by(curve.len().div_ceil(8).max(1))
            .map(|i| (i as f64 / last, span(curve[i].0)))
            .collect();
        let most = curve.iter().map(|(_, b)| *b).fold(0.0, f64::max);
        let (top, marks) = byte_marks(most, |v| bytes(v as u64));
        let mut chart = Chart::labelled("Working set by span", 220.0, top, &marks, &ticks);
        chart.line(
            &times,
            &Series { class: "t0".into(), values: curve.iter().map(|(_, b)| *b).collect() },
        );
        body.push_str(&chart.finish());
        body.push_str("</section>\n");
    }

    fn by_object(&self, body: &mut String) {
        body.push_str(
            "<section><h2>By object</h2>\n<p class=\"small\">Mappings, and what the program \
                named, by accesses. A page belongs to one \
             of them at a time.</p>\n<div class=\"wide\"><table class=\"figures meter \
             ours\">\n<tr><th>object</th><th>touched</th>\
             <th>loads</th><th>stores</th><th>of all accesses</th><th></th></tr>\n",
        );
        let all = self.total.all().max(1) as f64;
        for object in self.objects.iter().take(MAX_OBJECTS) {
            let share = object.uses.all() as f64 / all;
            put!(
                body,
                "<tr><th class=\"name\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td \
                    class=\"track\"><i style=\"width:{:.1}%\"></i></td></tr>\n",
                escape(&name_end(&object.name, 60)),
                bytes(object.uses.pages.saturating_mul(self.header.page_size_bytes)),
                count(object.uses.loads),
                count(object.uses.stores),
                percent(share),
                100.0 * share
            );
        }
        body.push_str("</table></div>\n");
        if self.objects.len() > MAX_OBJECTS {
            put!(
                body,
                "<p class=\"small under\">And {} more.</p>\n",
                count((self.objects.len() - MAX_OBJECTS) as u64)
            );
        }
        body.push_str("</section>\n");
    }

    fn notes(&self, body: &mut String) {
        if self.header.notes.is_empty() {
            return;
        }
        body.push_str(
            "<section><h2>What the recording says of itself</h2>\n<table class=\"plain\">\n",
        );
        for note in self.header.notes.iter().take(40) {
            put!(body, "<tr><td>{}</td></tr>\n", brief(note, 300));
        }
        body.push_str("</table></section>\n");
    }

    /// For a terminal of so many columns: one screen.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let clean = |text: &str| {
            text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect::<String>()
        };
        let mut out = format!(
            "{}\n{}\n\n{}\n",
            clip(&clean(&self.header.command.join(" ")), columns),
            self.time(),
            fold(&self.verdict(), columns)
        );
        for share in SHARES {
            put!(
                &mut out,
                "{} of accesses go to {}\n",
                percent(share),
                bytes(self.bytes_for(share))
            );
        }
        let all = self.total.all().max(1) as f64;
        for object in self.objects.iter().take(12) {
            let touched = bytes(object.uses.pages.saturating_mul(self.header.page_size_bytes));
            put!(
                &mut out,
                "{:>5} {touched:>10}  {}\n",
                percent(object.uses.all() as f64 / all),
                clean(&name_end(&object.name, columns.saturating_sub(20)))
            );
        }
        if let Some(samples) = &self.samples {
            samples.text(&self.by_page, columns, &mut out);
        }
        for note in self.damage.iter().chain(&self.header.notes) {
            put!(&mut out, "{}\n", fold(&format!("note: {}", clean(note)), columns));
        }
        out
    }

    /// The figures.
    #[must_use]
    pub fn json(&self) -> Value {
        let uses =
            |u: &UseCounts| json!({ "loads": u.loads, "stores": u.stores, "pages": u.pages });
        json!({
            "command": self.header.command,
            "source": self.header.source,
            "accesses": self.total.all(),
            "loads": self.total.loads,
            "stores": self.total.stores,
            "pages": self.total.pages,
            "page_size_bytes": self.header.page_size_bytes,
            "threads": self.threads,
            "seconds": self.seconds,
            "complete": self.complete,
            "damage": self.damage,
            "bytes_for_share": SHARES.map(|s| json!([s, self.bytes_for(s)])),
            "columns": self.columns.iter().map(uses).collect::<Vec<_>>(),
            "working_set": self.working_set.iter().map(|(s, b)| json!([s, b])).collect::<Vec<_>>(),
            "objects": self.objects.iter().map(|o| json!({ "name": o.name, "uses": uses(&o.uses) }))
                .collect::<Vec<_>>(),
            "samples": self.samples.as_ref().map(|s| s.json(&self.by_page)),
            "notes": self.header.notes,
        })
    }
}

fn threads(n: usize) -> String {
    format!("{} thread{}", count(n as u64), if n == 1 { "" } else { "s" })
}

/// `1500000` as `1.5M`.
fn short(n: f64) -> String {
    let (value, unit) = match n {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e4 => (n / 1e3, "k"),
        n => (n, ""),
    };
    if value >= 10.0 || value.fract().abs() < 0.05 {
        format!("{value:.0}{unit}")
    } else {
        format!("{value:.1}{unit}")
    }
}

/// A span of time with one or two digits.
pub(super) fn span(s: f64) -> String {
    let (value, unit) = match s {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    if value >= 10.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}
