//! What samples say besides addresses: latency by data source, who accessed, how often the sampler
//! interrupted, and how far all of it can be trusted.

use super::calls::CallStudy;
use super::show::span;
use crate::chart::{marks, Chart};
use crate::markup::{count, escape, percent, put};
use serde_json::{json, Value};
use std::collections::{BTreeMap, HashMap};
use terrace_sampling::{estimated_error, estimated_pages, LatencyByLevel, LevelLatency};
use terrace_trace::{Block, EventKind, SampleDetail, TraceEvent, TraceHeader};

/// Threads that are shown one by one at most.
const MAX_THREADS: usize = 24;
/// Times between interrupts that are kept.
const MAX_INTERVALS: usize = 1 << 20;
/// Bars of the histogram of those times.
const INTERVAL_BARS: usize = 40;
/// Bars of the histogram of pages by samples; the last stands for all above (the paper's figure 7
/// looks for pages above 50).
const PAGE_BARS: usize = 64;

/// Samples of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ThreadSamples {
    /// Every second sample, so that the halves can be compared.
    halves: [u64; 2],
    stores: u64,
}

/// Sums over a sampled recording.
#[derive(Debug, Default)]
pub struct SampleSums {
    levels: LatencyByLevel,
    threads: BTreeMap<u32, ThreadSamples>,
    names: HashMap<u32, i32>,
    cpus: BTreeMap<u32, u64>,
    nodes: HashMap<u32, u32>,
    interrupted: HashMap<u32, u64>,
    intervals: Vec<u64>,
    interrupts: u64,
    lost: u64,
    samples: u64,
    calls: CallStudy,
}

/// What samples say besides addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleStudy {
    /// Samples by what served them; empty where none says.
    pub levels: Vec<LevelLatency>,
    /// Samples by thread, as the kernel numbers it, most first.
    pub threads: Vec<(i64, u64)>,
    /// Samples by node of the CPU that made them, where the recording says; by node.
    pub nodes: Vec<(u32, u64)>,
    /// Times between two interrupts of one thread, ascending, seconds.
    pub intervals: Vec<f64>,
    /// Interrupts that emptied the sampler's buffer.
    pub interrupts: u64,
    /// Samples that were lost.
    pub lost: u64,
    /// Estimate of D, the relative error of a thread's share of the samples; `None`: too few.
    pub error: Option<f64>,
    /// Samples by the calls that led to them, where the recording has those.
    pub calls: CallStudy,
}

impl SampleSums {
    pub fn take_event(&mut self, event: &TraceEvent) {
        match event.what {
            EventKind::CallPath { samples, ref frames } => self.calls.add(samples, frames),
            EventKind::Lost { accesses } => self.lost = self.lost.saturating_add(accesses),
            EventKind::ThreadStart { tid, .. } => {
                self.names.insert(event.thread, tid);
            }
            EventKind::CpuNode { cpu, node } => {
                self.nodes.insert(cpu, node);
            }
            EventKind::SampleInterrupt { .. } => {
                self.interrupts += 1;
                let before = self.interrupted.insert(event.thread, event.time);
                if let Some(before) = before.filter(|_| self.intervals.len() < MAX_INTERVALS) {
                    self.intervals.push(event.time.abs_diff(before));
                }
            }
            _ => {}
        }
    }

    pub fn take_block(&mut self, block: &Block) {
        let thread = self.threads.entry(block.info().thread).or_default();
        for i in 0..u64::from(block.info().count) {
            thread.halves[((self.samples + i) % 2) as usize] += 1;
        }
        thread.stores += u64::from(block.info().stores);
        self.samples += u64::from(block.info().count);
        for detail in block.details() {
            self.levels.add(detail.source, detail.latency_cycles);
            if detail.cpu != SampleDetail::UNKNOWN_CPU {
                *self.cpus.entry(detail.cpu).or_default() += 1;
            }
        }
    }

    pub fn finish(mut self, header: &TraceHeader) -> SampleStudy {
        self.intervals.sort_unstable();
        let tick = header.ns_per_tick / 1e9;
        let halves = |i: usize| self.threads.values().map(|t| t.halves[i]).collect::<Vec<_>>();
        let error = estimated_error(&halves(0), &halves(1));
        let all = |thread: &ThreadSamples| thread.halves[0] + thread.halves[1];
        let name = |id: u32| self.names.get(&id).map_or(i64::from(id), |tid| i64::from(*tid));
        let mut threads: Vec<(i64, u64)> =
            self.threads.iter().map(|(id, thread)| (name(*id), all(thread))).collect();
        threads.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
        let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
        for (cpu, samples) in &self.cpus {
            if let Some(node) = self.nodes.get(cpu) {
                *nodes.entry(*node).or_default() += samples;
            }
        }
        SampleStudy {
            levels: if self.levels.is_silent() { Vec::new() } else { self.levels.levels() },
            threads,
            nodes: nodes.into_iter().collect(),
            intervals: self.intervals.iter().map(|ticks| *ticks as f64 * tick).collect(),
            interrupts: self.interrupts,
            lost: self.lost,
            error,
            calls: self.calls.finish(),
        }
    }
}

/// Pages seen, those seen once, those seen twice, and how many there are at least.
fn pages_seen(by_page: &[u64]) -> (u64, u64) {
    let with = |n: u64| by_page.iter().filter(|uses| **uses == n).count() as u64;
    let seen = by_page.len() as u64;
    (seen, estimated_pages(seen, with(1), with(2)))
}

impl SampleStudy {
    /// Sections of the page; `by_page` are the samples of each page.
    pub fn html(&self, by_page: &[u64], body: &mut String) {
        self.trust(by_page, body);
        self.latencies(body);
        self.who(body);
        self.calls.html(body);
        self.between_interrupts(body);
        pages_by_samples(by_page, body);
    }

    fn trust(&self, by_page: &[u64], body: &mut String) {
        let (seen, pages) = pages_seen(by_page);
        put!(
            body,
            "<section><h2>How far the sample can be trusted</h2>\n<table class=\"plain\">\n\
             <tr><th>error of a thread's share, D, estimated from halves of the \
             sample</th><td>{}</td></tr>\n\
             <tr><th>pages seen</th><td>{} of at least {} accessed ({})</td></tr>\n\
             <tr><th>samples lost</th><td>{}</td></tr>\n</table></section>\n",
            self.error.map_or("not known".to_owned(), percent),
            count(seen),
            count(pages),
            percent(seen as f64 / pages.max(1) as f64),
            count(self.lost),
        );
    }

    fn latencies(&self, body: &mut String) {
        if self.levels.is_empty() {
            return;
        }
        body.push_str(
            "<section><h2>Latency by data source</h2>\n<div class=\"wide\"><table class=\"figures \
                meter ours\">\n\
             <tr><th>served by</th><th>samples</th><th>shortest, \
             cycles</th><th>mean</th><th>longest</th>\
             <th>of all samples</th><th></th></tr>\n",
        );
        let all = self.levels.iter().map(|l| l.samples).sum::<u64>().max(1) as f64;
        for level in &self.levels {
            let share = level.samples as f64 / all;
            let cycles = |n: u32| match level.with_latency {
                0 => "–".to_owned(),
                _ => count(u64::from(n)),
            };
            put!(
                body,
                "<tr><th \
                    class=\"name\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td class=\"track\"><i style=\"width:{:.1}%\"></i></td></tr>\n",
                escape(&level.name()),
                count(level.samples),
                cycles(level.least_cycles),
                cycles(level.mean_cycles),
                cycles(level.most_cycles),
                percent(share),
                100.0 * share
            );
        }
        body.push_str("</table></div></section>\n");
    }

    fn who(&self, body: &mut String) {
        let all = self.threads.iter().map(|(_, n)| n).sum::<u64>().max(1) as f64;
        body.push_str(
            "<section><h2>Who accesses</h2>\n<div class=\"wide\"><table class=\"figures meter \
                ours\">\n\
             <tr><th>thread or node</th><th>samples</th><th>of all samples</th><th></th></tr>\n",
        );
        let threads = self.threads.iter().take(MAX_THREADS);
        let threads = threads.map(|(tid, n)| (format!("thread {tid}"), *n));
        let nodes = self.nodes.iter().map(|(node, n)| (format!("CPUs of node {node}"), *n));
        for (name, samples) in threads.chain(nodes) {
            let share = samples as f64 / all;
            put!(
                body,
                "<tr><th class=\"name\">{}</th><td>{}</td><td>{}</td>\
                 <td class=\"track\"><i style=\"width:{:.1}%\"></i></td></tr>\n",
                escape(&name),
                count(samples),
                percent(share),
                100.0 * share
            );
        }
        body.push_str("</table></div>\n");
        if self.threads.len() > MAX_THREADS {
            let more = count((self.threads.len() - MAX_THREADS) as u64);
            put!(body, "<p class=\"small under\">And {more} more threads.</p>\n");
        }
        body.push_str("</section>\n");
    }

    /// The PEBS paper's figure 6.
    fn between_interrupts(&self, body: &mut String) {
        let Some(bars) = bars(&self.intervals) else { return };
        let most = bars.iter().map(|(_, n)| *n).max().unwrap_or(0) as f64 * 1.05;
        let wide = 1.0 / bars.len() as f64;
        let labels: Vec<(f64, String)> = bars
            .iter()
            .step_by(8)
            .enumerate()
            .map(|(i, (from, _))| (i as f64 * 8.0 * wide, span(*from)))
            .collect();
        let mut chart = Chart::labelled(
            "Interrupts by time since the one before",
            190.0,
            most,
            &marks(most, |n| count(n as u64)),
            &labels,
        );
        for (i, (from, n)) in bars.iter().enumerate().filter(|(_, (_, n))| *n > 0) {
            let at = i as f64 * wide;
            let title = format!("{} from {}", count(*n), span(*from));
            chart.block((at + 0.08 * wide, at + 0.92 * wide), *n as f64, "t0", &title);
        }
        put!(
            body,
            "<section><h2>Time between interrupts</h2>\n<p class=\"small\">How long after one \
                interrupt of a thread the \
             next followed, of {} in all. Two peaks are two phases that miss at two \
             rates.</p>\n{}</section>\n",
            count(self.interrupts),
            chart.finish()
        );
    }

    /// Lines for a terminal.
    pub fn text(&self, by_page: &[u64], columns: usize, out: &mut String) {
        for level in &self.levels {
            put!(out, "{:>12}: {} samples", level.name(), count(level.samples));
            if level.with_latency > 0 {
                put!(
                    out,
                    ", {} to {} cycles, mean {}",
                    level.least_cycles,
                    level.most_cycles,
                    level.mean_cycles
                );
            }
            out.push('\n');
        }
        let (seen, pages) = pages_seen(by_page);
        put!(out, "{} of at least {} pages seen", count(seen), count(pages));
        if let Some(error) = self.error {
            put!(out, "; error of a thread's share about {}", percent(error));
        }
        put!(out, "; {} samples lost\n", count(self.lost));
        self.calls.text(columns, out);
    }

    /// Figures.
    pub fn json(&self, by_page: &[u64]) -> Value {
        let (seen, pages) = pages_seen(by_page);
        json!({
            "levels": self.levels,
            "threads": self.threads.iter().map(|(t, n)| json!({ "tid": t, "samples": n }))
                .collect::<Vec<_>>(),
            "nodes": self.nodes.iter().map(|(t, n)| json!({ "node": t, "samples": n }))
                .collect::<Vec<_>>(),
            "interrupts": self.interrupts,
            "lost": self.lost,
            "error": self.error,
            "pages_seen": seen,
            "pages_estimated": pages,
            "calls": self.calls.json(),
        })
    }
}

/// Counts of equal parts of the span up to the 99th percentile, each with where it begins; `None`
/// without times.
fn bars(sorted: &[f64]) -> Option<Vec<(f64, u64)>> {
    let top = sorted.get(sorted.len().checked_sub(1)? * 99 / 100).copied()?;
    let each = top.max(1e-12) / INTERVAL_BARS as f64;
    let mut bars: Vec<(f64, u64)> = (0..INTERVAL_BARS).map(|i| (i as f64 * each, 0)).collect();
    for interval in sorted.iter().filter(|interval| **interval <= top) {
        bars[((interval / each) as usize).min(INTERVAL_BARS - 1)].1 += 1;
    }
    Some(bars)
}

/// The PEBS paper's figure 7.
fn pages_by_samples(by_page: &[u64], body: &mut String) {
    let mut pages = vec![0u64; PAGE_BARS];
    for uses in by_page {
        pages[(*uses as usize).clamp(1, PAGE_BARS) - 1] += 1;
    }
    let most = pages.iter().copied().max().unwrap_or(0) as f64 * 1.05;
    let wide = 1.0 / PAGE_BARS as f64;
    let labels: Vec<(f64, String)> =
        (0..PAGE_BARS).step_by(7).map(|i| ((i as f64 + 0.5) * wide, (i + 1).to_string())).collect();
    let mut chart = Chart::labelled(
        "Pages by samples",
        190.0,
        most,
        &marks(most, |n| count(n as u64)),
        &labels,
    );
    for (i, n) in pages.iter().enumerate().filter(|(_, n)| **n > 0) {
        let at = i as f64 * wide;
        let or_more = if i + 1 == PAGE_BARS { " or more" } else { "" };
        let title = format!("{} pages with {}{or_more} samples", count(*n), i + 1);
        chart.block((at + 0.08 * wide, at + 0.92 * wide), *n as f64, "t0", &title);
    }
    put!(
        body,
        "<section><h2>Pages by how often they were sampled</h2>\n<p class=\"small\">The last bar \
            stands for {PAGE_BARS} samples \
         and more. A group far to the right is worth moving.</p>\n{}</section>\n",
        chart.finish()
    );
}
