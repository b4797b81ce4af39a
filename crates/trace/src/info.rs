//! What a trace is about, in few figures.

use crate::decode::Block;
use crate::error::TraceError;
use crate::event::{EventKind, TraceEvent};
use crate::frame::BlockKind;
use crate::read::TraceReader;
use crate::text::printable;
use serde::Serialize;
use std::collections::HashSet;
use std::io::{Read, Seek};
use terrace_sampling::{LatencyByLevel, LevelLatency};

/// `serde` asks for a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn lost_accesses(event: &TraceEvent) -> u64 {
    match event.what {
        EventKind::Lost { accesses } => accesses.min(u64::from(u32::MAX)),
        _ => 0,
    }
}

/// The figures of `terrace trace info`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    /// Accesses in the trace.
    pub accesses: u64,
    /// Loads among them.
    pub loads: u64,
    /// Stores among them.
    pub stores: u64,
    /// Pages touched, of the size the trace states.
    pub pages: u64,
    /// Threads that made accesses.
    pub threads: u64,
    /// Bytes of the file for each access; null without any.
    pub bytes_per_access: Option<f64>,
    /// From the earliest time to the latest, as the trace's clock has it. Where that counts
    /// instructions, nominal.
    pub seconds: f64,
    /// Mappings, threads, marks and other events.
    pub events: u64,
    /// How it was recorded.
    pub source: String,
    /// What was recorded.
    pub command: Vec<String>,
    /// One access in so many was kept; of samples, events a sample: see
    /// [`crate::TraceHeader::period`].
    pub period: u64,
    /// Whether the accesses are samples.
    pub sampled: bool,
    /// Samples by what served them, with latencies; empty where the trace does not say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<LevelLatency>,
    /// Accesses that the recorder could not keep.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Whether it was written to its end and the recorder missed nothing; see `damage` too.
    pub complete: bool,
    /// Damage that was found and left out.
    pub damage: Vec<String>,
    /// What the trace says of itself besides; behind that, what the recorder knew to be missing.
    pub notes: Vec<String>,
    /// What of the accesses is missing by design, for people.
    #[serde(skip)]
    missing: Option<String>,
}

impl Info {
    /// Reads all of a trace.
    ///
    /// # Errors
    /// [`TraceError::Read`]; damaged blocks are left out and named in `damage`.
    pub fn from_reader<R: Read + Seek>(reader: &mut TraceReader<R>) -> Result<Self, TraceError> {
        let header = reader.header().clone();
        let page_shift = header.page_size_bytes.max(1).ilog2();
        let mut damage: Vec<String> =
            reader.damage().map(ToString::to_string).into_iter().collect();
        let (mut pages, mut threads) = (HashSet::new(), HashSet::new());
        let (mut accesses, mut stores, mut events) = (0, 0, 0);
        let (mut first, mut last) = (u64::MAX, 0);
        let (mut levels, mut lost) = (LatencyByLevel::default(), 0u64);
        let mut block = Block::new().map_err(|source| TraceError::Read { offset: 0, source })?;
        reader.rewind_to(0);
        loop {
            match reader.next_block(&mut block) {
                Ok(false) => break,
                Ok(true) => {}
                Err(error @ TraceError::Damaged { .. }) => {
                    damage.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            }
            let info = block.info();
            if info.kind != BlockKind::Accesses {
                events += block.events().len() as u64;
                lost = lost.saturating_add(block.events().iter().map(lost_accesses).sum());
                continue;
            }
            accesses += u64::from(info.count);
            stores += u64::from(info.stores);
            (first, last) = (first.min(info.first_time), last.max(info.last_time));
            threads.insert(info.thread);
            let details = block.details().iter();
            details.for_each(|detail| levels.add(detail.source, detail.latency_cycles));
            // Neighbours in time are mostly neighbours in space: asking the set is what costs.
            let mut before = u64::MAX;
            for (i, address) in block.addresses().iter().enumerate() {
                let end = address.saturating_add(u64::from(block.size(i).max(1)) - 1) >> page_shift;
                let start = address >> page_shift;
                if start != before || end != before {
                    // An access longer than a page is damage or an importer's guess: its ends
                    // count.
                    pages.extend([start, end]);
                    before = end;
                }
            }
        }
        let file_bytes = reader.length();
        let mut notes = header.notes.clone();
        // Damage is among the shortcomings too, and has its own list.
        notes.extend(reader.shortcomings().into_iter().filter(|s| !damage.contains(s)));
        Ok(Self {
            accesses,
            loads: accesses - stores,
            stores,
            pages: pages.len() as u64,
            threads: threads.len() as u64,
            bytes_per_access: (accesses > 0).then(|| file_bytes as f64 / accesses as f64),
            seconds: last.saturating_sub(first.min(last)) as f64 * header.ns_per_tick / 1e9,
            events,
            missing: header.describe_missing(),
            period: header.period,
            sampled: header.sampled || header.period == 0,
            source: header.source,
            command: header.command,
            levels: if levels.is_silent() { Vec::new() } else { levels.levels() },
            lost,
            file_bytes,
            complete: reader.is_complete(),
            damage,
            notes,
        })
    }

    /// For people. What programs and files named is made fit for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let (source, command) = (printable(&self.source), printable(&self.command.join(" ")));
        let mut text = format!("recorded by {source}: {command}\n");
        if let Some(missing) = &self.missing {
            text += &format!("not all accesses: {missing}\n");
        }
        text +=
            &format!("{} accesses: {} loads, {} stores\n", self.accesses, self.loads, self.stores);
        text +=
            &format!("{} pages, {} threads, {} events\n", self.pages, self.threads, self.events);
        text += &format!("{:.6} seconds of the trace's clock\n", self.seconds);
        for level in &self.levels {
            text += &format!("{}: {} samples", level.name(), level.samples);
            if level.with_latency > 0 {
                text += &format!(
                    ", latency {} to {} cycles, mean {}",
                    level.least_cycles, level.most_cycles, level.mean_cycles
                );
            }
            text += "\n";
        }
        if self.lost > 0 {
            text += &format!("{} accesses were lost\n", self.lost);
        }
        text += &format!("{} bytes", self.file_bytes);
        if let Some(each) = self.bytes_per_access {
            text += &format!(", {each:.3} an access");
        }
        text += "\n";
        for line in self.damage.iter().chain(&self.notes) {
            text += &format!("{}\n", printable(line));
        }
        text
    }
}
