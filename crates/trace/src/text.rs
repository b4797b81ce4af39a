//! A trace as lines of text, one an access or event.

use crate::decode::Block;
use crate::event::{EventKind, SampleDetail, TraceEvent};
use crate::frame::BlockKind;
use std::fmt::Write;
use terrace_sampling::DataSource;

/// Appends a block's lines: `TIME PROCESS:THREAD load|store ADDRESS SIZE [dN] [pc=ADDRESS]
/// [latency=CYCLES] [level=LEVEL] [cpu=CPU] [=VALUE]` for accesses, where `dN` says that the
/// address was computed from the value loaded N loads before; `TIME PROCESS:THREAD WORD ...` for
/// events. Stops after `most` lines and says how many it wrote.
pub fn block_lines(block: &Block, most: u64, out: &mut String) -> u64 {
    let info = block.info();
    if info.kind != BlockKind::Accesses {
        let events = block.events().iter().take(usize::try_from(most).unwrap_or(usize::MAX));
        return events.map(|event| event_line(event, out)).count() as u64;
    }
    let mut times = Vec::new();
    block.times_into(&mut times);
    let mut values = block.values();
    let lines = block.addresses().iter().zip(block.kinds()).zip(&times).enumerate();
    let mut written = 0;
    for (i, ((address, kind), time)) in lines.take(usize::try_from(most).unwrap_or(usize::MAX)) {
        let size = block.size(i);
        let word = if kind.is_store() { "store" } else { "load" };
        // Writing to a string does not fail.
        let _ = write!(out, "{time} {}:{} {word} {address:#x} {size}", info.process, info.thread);
        if kind.depends() > 0 {
            let _ = write!(out, " d{}", kind.depends());
        }
        if let Some(pc) = block.pcs().get(i) {
            let _ = write!(out, " pc={pc:#x}");
        }
        if let Some(detail) = block.details().get(i) {
            detail_words(detail, out);
        }
        if kind.is_store() && !block.values().is_empty() {
            let (value, rest) = values.split_at(values.len().min(size as usize));
            values = rest;
            out.push_str(" =");
            value.iter().for_each(|byte| {
                let _ = write!(out, "{byte:02x}");
            });
        }
        out.push('\n');
        written += 1;
    }
    written
}

/// A text from a program or a file, fit for a terminal: control characters, and those that change
/// the direction of writing, become question marks.
#[must_use]
pub fn printable(text: &str) -> String {
    let directs = |c: char| {
        matches!(c,
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if c.is_control() || directs(c) { '?' } else { c }).collect()
}

fn detail_words(detail: &SampleDetail, out: &mut String) {
    if detail.latency_cycles > 0 {
        let _ = write!(out, " latency={}", detail.latency_cycles);
    }
    if detail.source != DataSource::default() {
        let _ = write!(out, " level={}", detail.source.level().name().replace(' ', "-"));
    }
    if detail.cpu != SampleDetail::UNKNOWN_CPU {
        let _ = write!(out, " cpu={}", detail.cpu);
    }
}

fn event_line(event: &TraceEvent, out: &mut String) {
    let _ = write!(out, "{} {}:{} ", event.time, event.process, event.thread);
    let _ = match &event.what {
        EventKind::Map { start, length, protection, flags, name } => {
            write!(
                out,
                "map {start:#x} {length} protection={protection} flags={flags:#x} {}",
                printable(name)
            )
        }
        EventKind::Unmap { start, length } => write!(out, "unmap {start:#x} {length}"),
        EventKind::Remap { from, old_length, to, length } => {
            write!(out, "remap {from:#x} {old_length} to {to:#x} {length}")
        }
        EventKind::Break { end } => write!(out, "break {end:#x}"),
        EventKind::ThreadStart { pid, tid } => write!(out, "thread-start pid={pid} tid={tid}"),
        EventKind::ThreadExit => write!(out, "thread-exit"),
        EventKind::Fork { parent } => write!(out, "fork-of {parent}"),
        EventKind::Exec { name } => write!(out, "exec {}", printable(name)),
        EventKind::Object { start, length, name } => {
            write!(out, "object {start:#x} {length} {}", printable(name))
        }
        EventKind::Mark { id } => write!(out, "mark {id}"),
        EventKind::Cache { operation, address, pc } => {
            write!(out, "{} {address:#x} pc={pc:#x}", operation.name())
        }
        EventKind::Lost { accesses } => write!(out, "lost {accesses}"),
        EventKind::SampleInterrupt { samples } => write!(out, "sample-interrupt {samples}"),
        EventKind::CallPath { samples, frames } => {
            let path = frames.iter().map(ToString::to_string).collect::<Vec<_>>().join(" < ");
            write!(out, "call-path {samples} {}", printable(&path))
        }
        EventKind::CpuNode { cpu, node } => write!(out, "cpu-node {cpu} {node}"),
    };
    out.push('\n');
}
