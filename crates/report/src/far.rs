//! A run with far memory, over time: its journal, and the three ways to show it.

use crate::chart::{byte_marks, legend, marks, Chart, Series};
use crate::markup::{brief, bytes, count, escape, page, percent, put, rate, seconds, tile};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use terrace_types::text::{clip, fold, TextTable};

/// Version of the journal.
const VERSION: u32 = 1;
/// Points of a curve at most; more cannot be distinguished.
const MAX_POINTS: usize = 480;

/// First line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarHeader {
    /// Version of the format: 1.
    pub terrace_far_journal: u32,
    /// The command.
    pub command: String,
    /// Where memory is when it is far: a folder, `compressed`, or both.
    pub store: String,
    /// Memory that may be used.
    pub dram_bytes: u64,
}

impl FarHeader {
    /// Of a run.
    #[must_use]
    pub const fn new(command: String, store: String, dram_bytes: u64) -> Self {
        Self { terrace_far_journal: VERSION, command, store, dram_bytes }
    }
}

/// A later line: sums over all processes since the run began, but for what is in memory now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FarSample {
    /// Since it began.
    pub at_ns: u64,
    /// In memory now.
    pub resident_bytes: u64,
    /// Faults reported by the kernel.
    pub faults: u64,
    /// Of them, those that waited for the store.
    pub misses: u64,
    /// Of them, those that found their page fetched ahead, or on its way.
    pub hits: u64,
    /// Read from the store.
    pub read_bytes: u64,
    /// Written to the store.
    pub written_bytes: u64,
    /// Read ahead of need.
    pub ahead_bytes: u64,
    /// Of it, thrown away untouched.
    pub wasted_bytes: u64,
    /// Could not be read back.
    pub lost_bytes: u64,
    /// Writes that failed; their data stayed in memory.
    pub write_failures: u64,
    /// Processes that had far memory.
    pub processes: u64,
}

/// A journal that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarRun {
    /// Its first line.
    pub header: FarHeader,
    /// The others, in order of time.
    pub samples: Vec<FarSample>,
    /// Lines that could not be read, or were out of order.
    pub damaged: u64,
}

/// What happened between two samples, a second.
struct Rates {
    at: f64,
    misses: f64,
    hits: f64,
    others: f64,
    read: f64,
    written: f64,
    useful: f64,
}

impl FarRun {
    /// Whether this may be such a journal.
    #[must_use]
    pub fn looks_like(bytes: &[u8]) -> bool {
        let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        line.len() < 1 << 20 && line.windows(21).any(|w| w == b"\"terrace_far_journal\"")
    }

    /// Reads one; what is damaged is left out and counted.
    ///
    /// # Errors
    /// Why its first line cannot be read.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut lines = bytes.split(|b| *b == b'\n');
        let header: FarHeader = serde_json::from_slice(lines.next().unwrap_or_default())
            .map_err(|e| format!("line 1: {e}"))?;
        if header.terrace_far_journal != VERSION {
            return Err(format!(
                "it is of version {}, and this reads version {VERSION}",
                header.terrace_far_journal
            ));
        }
        let mut run = Self { header, samples: Vec::new(), damaged: 0 };
        for line in lines.filter(|l| !l.is_empty()) {
            let last = run.samples.last().map_or(0, |s| s.at_ns);
            match serde_json::from_slice::<FarSample>(line) {
                Ok(sample) if sample.at_ns >= last => run.samples.push(sample),
                _ => run.damaged += 1,
            }
        }
        Ok(run)
    }

    fn last(&self) -> FarSample {
        self.samples.last().copied().unwrap_or_default()
    }

    fn peak_resident(&self) -> u64 {
        self.samples.iter().map(|s| s.resident_bytes).max().unwrap_or(0)
    }

    /// Thinned out evenly, the last kept.
    fn points(&self) -> Vec<FarSample> {
        let stride = self.samples.len().div_ceil(MAX_POINTS).max(1);
        let mut points: Vec<FarSample> = self.samples.iter().copied().step_by(stride).collect();
        if points.last() != self.samples.last() {
            points.extend(self.samples.last());
        }
        points
    }

    fn rates(points: &[FarSample]) -> Vec<Rates> {
        let between = |pair: &[FarSample]| {
            let (a, b) = (pair[0], pair[1]);
            let span = (b.at_ns - a.at_ns) as f64 / 1e9;
            let each =
                |of: fn(&FarSample) -> u64| of(&b).saturating_sub(of(&a)) as f64 / span.max(1e-9);
            let (misses, hits) = (each(|s| s.misses), each(|s| s.hits));
            let (ahead, wasted) = (each(|s| s.ahead_bytes), each(|s| s.wasted_bytes));
            Rates {
                at: b.at_ns as f64 / 1e9,
                misses,
                hits,
                others: (each(|s| s.faults) - misses - hits).max(0.0),
                read: each(|s| s.read_bytes),
                written: each(|s| s.written_bytes),
                useful: if ahead > 0.0 { (1.0 - wasted / ahead).clamp(0.0, 1.0) } else { f64::NAN },
            }
        };
        points.windows(2).filter(|pair| pair[1].at_ns > pair[0].at_ns).map(between).collect()
    }

    fn verdict(&self) -> String {
        let s = self.last();
        if s.processes == 0 {
            return "No process had far memory: none was large enough.".to_owned();
        }
        let waited = percent(s.misses as f64 / s.faults.max(1) as f64);
        format!(
            "{} faults, of which {waited} waited for the store. At most {} of {} were in memory; \
                {} were read and {} written.",
            count(s.faults),
            bytes(self.peak_resident()),
            bytes(self.header.dram_bytes),
            bytes(s.read_bytes),
            bytes(s.written_bytes)
        )
    }

    /// One HTML file that needs nothing else.
    #[must_use]
    pub fn html(&self) -> String {
        let (h, s) = (&self.header, self.last());
        let mut body = String::new();
        put!(
            &mut body,
            "<header><p class=\"over\">Far memory · {} in memory, the rest in {} · \
                {}</p><h1><code>{}</code></h1>\n<p class=\"lead\">{}</p></header>\n",
            escape(&bytes(h.dram_bytes)),
            brief(&h.store, 60),
            escape(&seconds(s.at_ns as f64 / 1e9)),
            brief(if h.command.is_empty() { "(command not recorded)" } else { &h.command }, 300),
            escape(&self.verdict())
        );
        self.warnings(&mut body);
        body.push_str("<div class=\"tiles\">\n");
        tile(
            &mut body,
            &count(s.faults),
            "faults",
            &format!("{} waited for the store", count(s.misses)),
        );
        tile(&mut body, &count(s.hits), "found fetched ahead", "or on their way");
        tile(
            &mut body,
            &bytes(s.read_bytes),
            "read",
            &format!("{} ahead of need", bytes(s.ahead_bytes)),
        );
        tile(
            &mut body,
            &bytes(s.written_bytes),
            "written",
            &if s.processes == 1 {
                "by one process".to_owned()
            } else {
                format!("by {} processes", count(s.processes))
            },
        );
        body.push_str("</div>\n");
        if self.samples.len() > 1 {
            self.charts(&mut body);
        }
        page(&format!("far memory: {}", h.command), &body)
    }

    fn warnings(&self, body: &mut String) {
        let s = self.last();
        let mut warn = |text: String| put!(body, "<p class=\"warning\">{}</p>\n", escape(&text));
        if self.damaged > 0 {
            warn(format!("{} lines of the journal could not be read.", count(self.damaged)));
        }
        if s.lost_bytes > 0 {
            warn(format!(
                "{} could not be read back: who touched them got SIGBUS.",
                bytes(s.lost_bytes)
            ));
        }
        if s.write_failures > 0 {
            warn(format!(
                "{} writes failed; their data stayed in memory.",
                count(s.write_failures)
            ));
        }
    }

    fn charts(&self, body: &mut String) {
        let points = self.points();
        let rates = Self::rates(&points);
        let end = self.last().at_ns as f64 / 1e9;
        let times: Vec<f64> = rates.iter().map(|r| r.at).collect();
        let series = |class: &str, of: fn(&Rates) -> f64| Series {
            class: class.to_owned(),
            values: rates.iter().map(of).collect(),
        };
        let most = |of: fn(&Rates) -> f64| rates.iter().map(of).fold(0.0, f64::max);
        let key = |class: &str, name: &str| (class.to_owned(), name.to_owned());

        body.push_str("<section><h2>In memory</h2>\n");
        let dram = self.header.dram_bytes as f64;
        let (top, labels) = byte_marks(dram.max(self.peak_resident() as f64), |v| bytes(v as u64));
        // Space for the name of the level.
        let mut chart = Chart::new("In memory", 200.0, end, top * 1.15, &labels);
        let resident = points.iter().map(|s| s.resident_bytes as f64).collect();
        let at: Vec<f64> = points.iter().map(|s| s.at_ns as f64 / 1e9).collect();
        chart.stack(&at, &[Series { class: "t0".to_owned(), values: resident }]);
        chart.level(dram, "", &format!("may be: {}", bytes(self.header.dram_bytes)));
        put!(body, "{}</section>\n", chart.finish());

        body.push_str("<section><h2>Faults a second</h2>\n");
        let top = most(|r| r.misses + r.hits + r.others).max(1.0) * 1.05;
        let mut chart =
            Chart::new("Faults a second", 220.0, end, top, &marks(top, |v| count(v as u64)));
        chart.stack(
            &times,
            &[series("t1", |r| r.misses), series("t0", |r| r.hits), series("other", |r| r.others)],
        );
        body.push_str(&chart.finish());
        body.push_str(&legend(&[
            key("t1", "waited for the store"),
            key("t0", "found fetched ahead, or on its way"),
            key("other", "first touches and first writes"),
        ]));
        body.push_str("</section>\n<section><h2>To and from the store</h2>\n");
        let top = most(|r| r.read).max(most(|r| r.written)).max(1.0) * 1.05;
        let label = |v: f64| if v < 1.0 { "0".to_owned() } else { rate(v as u64) };
        let labels = marks(top, label);
        let mut chart =
            Chart::new("Bytes a second to and from the store", 220.0, end, top, &labels);
        chart.line(&times, &series("t0", |r| r.read));
        chart.line(&times, &series("t1", |r| r.written));
        body.push_str(&chart.finish());
        body.push_str(&legend(&[key("t0", "read"), key("t1", "written")]));
        body.push_str("</section>\n<section><h2>Fetched ahead, and of use</h2>\n");
        if rates.iter().all(|r| !r.useful.is_finite()) {
            body.push_str("<p class=\"small\">Nothing was fetched ahead.</p>\n");
        } else {
            let mut chart = Chart::new(
                "Share of what was fetched ahead that was used",
                180.0,
                end,
                1.0,
                &marks(1.0, percent),
            );
            chart.line(&times, &series("t0", |r| r.useful));
            body.push_str(&chart.finish());
        }
        body.push_str("</section>\n");
    }

    /// For a terminal, at most 80 columns.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let command: String = self.header.command.chars().take(200).collect();
        let command = command.replace(|c: char| c.is_control(), " ");
        let mut out = clip(&format!("far memory: {command}"), columns);
        put!(&mut out, "\n{}\n", fold(&self.verdict(), columns));
        let heads = ["at", "resident", "faults/s", "misses/s", "read", "written"];
        let mut table = TextTable::new(0, &heads);
        let points = self.points();
        let rates = Self::rates(&points);
        let step = rates.len().div_ceil(16).max(1);
        for r in rates.iter().step_by(step) {
            let now = points
                .iter()
                .find(|p| p.at_ns as f64 / 1e9 >= r.at)
                .map_or(0, |p| p.resident_bytes);
            table.row([
                seconds(r.at),
                bytes(now),
                format!("{:.0}", r.misses + r.hits + r.others),
                format!("{:.0}", r.misses),
                rate(r.read as u64),
                rate(r.written as u64),
            ]);
        }
        out.push_str(&table.text(columns));
        out
    }

    /// The figures.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "command": self.header.command, "store": self.header.store,
            "dram_bytes": self.header.dram_bytes,
            "most_resident_bytes": self.peak_resident(), "damaged_lines": self.damaged,
            "end": self.last(), "samples": self.samples,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(samples: &[FarSample]) -> String {
        let header = FarHeader::new("sort <big>".to_owned(), "/ssd".to_owned(), 64 << 20);
        let lines = samples.iter().map(|s| serde_json::to_string(s).unwrap_or_default());
        std::iter::once(serde_json::to_string(&header).unwrap_or_default())
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn sample(second: u64) -> FarSample {
        FarSample {
            at_ns: second * 1_000_000_000,
            resident_bytes: (second * 10) << 20,
            faults: second * 1000,
            misses: second * 300,
            hits: second * 500,
            read_bytes: (second * 80) << 20,
            ahead_bytes: (second * 60) << 20,
            wasted_bytes: (second * 6) << 20,
            processes: 1,
            ..FarSample::default()
        }
    }

    #[test]
    fn a_journal_is_shown_in_three_ways() {
        let text = journal(&[sample(0), sample(1), sample(2), sample(4)]);
        assert!(FarRun::looks_like(text.as_bytes()));
        let run = FarRun::read(text.as_bytes()).unwrap();
        assert_eq!((run.samples.len(), run.damaged, run.peak_resident()), (4, 0, 40 << 20));
        let html = run.html();
        for part in [
            "In memory",
            "sort &lt;big&gt;",
            "Faults a second",
            "may be: 64 MiB",
            "30% waited for the store",
        ] {
            assert!(html.contains(part), "{part}");
        }
        let rates = FarRun::rates(&run.points());
        let shown: Vec<_> =
            rates.iter().map(|r| (r.at, r.misses, r.hits, r.others, r.useful)).collect();
        assert_eq!(
            shown,
            [
                (1.0, 300.0, 500.0, 200.0, 0.9),
                (2.0, 300.0, 500.0, 200.0, 0.9),
                (4.0, 300.0, 500.0, 200.0, 0.9)
            ]
        );
        let text = run.text(80);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.contains("4,000 faults"), "{text}");
        assert_eq!(run.json()["end"]["misses"], 1200);
    }

    #[test]
    fn what_is_damaged_is_left_out_and_said() {
        let mut text = journal(&[sample(3), sample(2), sample(5)]);
        text.push_str("\n{\"at_ns\":9e99}\nrubbish\n{\"at_ns\":6000000000,\"faults\":1}");
        let run = FarRun::read(text.as_bytes()).unwrap();
        assert_eq!((run.samples.len(), run.damaged), (3, 3));
        // Sums that go backwards give no rates below nothing.
        assert!(FarRun::rates(&run.points()).iter().all(|r| r.misses >= 0.0 && r.others >= 0.0));
        assert!(run.html().contains("3 lines of the journal could not be read"));
        assert!(FarRun::read(
            b"{\"terrace_far_journal\":2,\"command\":\"\",\"store\":\"\",\"dram_bytes\":1}"
        )
        .is_err());
        assert!(FarRun::read(b"").is_err());
        let alone = FarRun::read(journal(&[]).as_bytes()).unwrap();
        assert!(alone.html().contains("No process") && alone.text(80).contains("No process"));
    }
}
