//! Spans between marks, and the profile by page.

use crate::Executed;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use terrace_model::System;

/// User addresses end here on x86-64.
const USER_END: u64 = 1 << 47;

#[derive(Debug, Clone, Default)]
struct Totals {
    instructions: u64,
    loads: u64,
    stores: u64,
    read_misses: Vec<u64>,
    write_misses: Vec<u64>,
    streamed: Vec<u64>,
    write_backs: Vec<u64>,
    llc_hits: u64,
    mode_hits: u64,
}

#[derive(Debug, Clone)]
struct Span {
    name: &'static str,
    start_ns: u64,
    start: Vec<Totals>,
    end: Option<(u64, Vec<Totals>)>,
}

/// Records spans and pages, and writes both files.
#[derive(Debug)]
pub struct Recorder {
    cpus: usize,
    stats: Option<PathBuf>,
    profile: Option<PathBuf>,
    spans: Vec<Span>,
    pages: HashMap<u64, [u64; 2]>,
    profiling: bool,
}

impl Recorder {
    /// A recorder for so many vCPUs.
    pub fn new(cpus: usize, stats: Option<PathBuf>, profile: Option<PathBuf>) -> Self {
        Self { cpus, stats, profile, spans: Vec::new(), pages: HashMap::new(), profiling: false }
    }

    /// vCPUs recorded.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// A last-level miss on a virtual address.
    #[inline]
    pub fn touch(&mut self, address: u64, store: bool) {
        if self.profiling && address < USER_END {
            self.pages.entry(address >> 12).or_default()[usize::from(store)] += 1;
        }
    }

    /// A mark was executed.
    pub fn mark(&mut self, mark: u32, now_ns: u64, system: &System, executed: &[Executed]) {
        let totals = totals(system, executed);
        match mark {
            1 => self.begin("phase", now_ns, totals),
            2 => self.end("phase", now_ns, totals),
            17 => self.begin("job", now_ns, totals),
            18 => self.end("job", now_ns, totals),
            _ => {}
        }
    }

    fn begin(&mut self, name: &'static str, start_ns: u64, start: Vec<Totals>) {
        self.profiling |= self.profile.is_some() && name == "phase";
        self.spans.push(Span { name, start_ns, start, end: None });
    }

    fn end(&mut self, name: &'static str, now_ns: u64, totals: Vec<Totals>) {
        if let Some(span) = self.spans.iter_mut().rev().find(|s| s.name == name && s.end.is_none()) {
            span.end = Some((now_ns, totals));
        }
        if name == "phase" {
            self.profiling = false;
        }
        self.write(now_ns);
    }

    /// Writes the files for good.
    pub fn finish(&mut self, now_ns: u64) {
        self.write(now_ns);
    }

    fn write(&self, now_ns: u64) {
        if let Some(path) = &self.stats {
            if let Err(e) = std::fs::write(path, self.json(now_ns)) {
                eprintln!("terrace plugin: statistics {}: {e}", path.display());
            }
        }
        if let Some(path) = &self.profile {
            if let Err(e) = std::fs::write(path, self.pages_text()) {
                eprintln!("terrace plugin: profile {}: {e}", path.display());
            }
        }
    }

    /// One line a page, ascending: virtual page number in hex, load misses, store misses.
    fn pages_text(&self) -> String {
        let mut pages: Vec<_> = self.pages.iter().collect();
        pages.sort_unstable();
        let mut text = String::with_capacity(pages.len() * 20);
        for (page, [loads, stores]) in pages {
            let _ = writeln!(text, "{page:x} {loads} {stores}");
        }
        text
    }

    fn json(&self, now_ns: u64) -> String {
        let spans: Vec<String> = self.spans.iter().filter_map(Span::json).collect();
        format!("{{\"clock_ns\":{now_ns},\"phases\":[{}]}}\n", spans.join(","))
    }
}

impl Span {
    fn json(&self) -> Option<String> {
        let (end_ns, end) = self.end.as_ref()?;
        let by: Vec<Totals> = end.iter().zip(&self.start).map(|(e, s)| e.minus(s)).collect();
        let all = by.iter().fold(Totals::default(), |sum, t| sum.plus(t));
        let each: Vec<String> = by.iter().map(|t| format!("{{{}}}", t.fields())).collect();
        Some(format!(
            "{{\"name\":\"{}\",\"start_ns\":{},\"end_ns\":{end_ns},{},\"by_vcpu\":[{}]}}",
            self.name,
            self.start_ns,
            all.fields(),
            each.join(",")
        ))
    }
}

fn pairwise(a: &[u64], b: &[u64], f: impl Fn(u64, u64) -> u64) -> Vec<u64> {
    let at = |v: &[u64], i: usize| v.get(i).copied().unwrap_or(0);
    (0..a.len().max(b.len())).map(|i| f(at(a, i), at(b, i))).collect()
}

impl Totals {
    fn combine(&self, other: &Self, f: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            instructions: f(self.instructions, other.instructions),
            loads: f(self.loads, other.loads),
            stores: f(self.stores, other.stores),
            read_misses: pairwise(&self.read_misses, &other.read_misses, f),
            write_misses: pairwise(&self.write_misses, &other.write_misses, f),
            streamed: pairwise(&self.streamed, &other.streamed, f),
            write_backs: pairwise(&self.write_backs, &other.write_backs, f),
            llc_hits: f(self.llc_hits, other.llc_hits),
            mode_hits: f(self.mode_hits, other.mode_hits),
        }
    }

    fn minus(&self, other: &Self) -> Self {
        self.combine(other, u64::saturating_sub)
    }

    fn plus(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    fn fields(&self) -> String {
        let misses = pairwise(&self.read_misses, &self.write_misses, |a, b| a + b);
        let read: Vec<u64> = misses.iter().map(|m| m * 64).collect();
        let written: Vec<u64> = self.write_backs.iter().map(|m| m * 64).collect();
        format!(
            "\"instructions\":{},\"loads\":{},\"stores\":{},\"accesses\":{},\"llc_hits\":{},\"llc_misses\":{:?},\
             \"llc_load_misses\":{:?},\"llc_store_misses\":{:?},\"streamed\":{:?},\"writebacks\":{:?},\
             \"read_bytes\":{:?},\"write_bytes\":{:?},\"memory_mode_hits\":{}",
            self.instructions,
            self.loads,
            self.stores,
            self.loads + self.stores,
            self.llc_hits,
            misses,
            self.read_misses,
            self.write_misses,
            self.streamed,
            self.write_backs,
            read,
            written,
            self.mode_hits
        )
    }
}

fn totals(system: &System, executed: &[Executed]) -> Vec<Totals> {
    executed
        .iter()
        .enumerate()
        .map(|(cpu, e)| {
            let c = system.counters(cpu);
            Totals {
                instructions: e.instructions,
                loads: e.loads,
                stores: e.stores,
                read_misses: c.read_misses.clone(),
                write_misses: c.write_misses.clone(),
                streamed: c.streamed.clone(),
                write_backs: c.write_backs.clone(),
                llc_hits: c.llc_hits,
                mode_hits: c.mode_hits,
            }
        })
        .collect()
}
