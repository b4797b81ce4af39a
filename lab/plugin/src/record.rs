//! Marked spans of guest time and what was counted in them, as JSON.

use std::path::PathBuf;
use terrace_model::{Counters, MemorySystem};

struct Span {
    name: &'static str,
    start_ns: u64,
    start: Vec<Counters>,
    end: Option<(u64, Vec<Counters>)>,
}

/// Records spans, and writes the statistics file.
pub struct SpanRecorder {
    path: Option<PathBuf>,
    spans: Vec<Span>,
}

impl SpanRecorder {
    /// A recorder that writes to `path`, if to anything.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, spans: Vec::new() }
    }

    /// A mark was executed. Marks that are not ours are ignored.
    pub fn mark(&mut self, mark: u32, now_ns: u64, engine: &MemorySystem) -> Result<(), String> {
        let (name, begin) = match mark {
            1 => ("phase", true),
            2 => ("phase", false),
            0x11 => ("job", true),
            0x12 => ("job", false),
            _ => return Ok(()),
        };
        let counts: Vec<Counters> = (0..engine.units.len()).map(|v| engine.counters(v)).collect();
        if begin {
            self.spans.push(Span { name, start_ns: now_ns, start: counts, end: None });
            return Ok(());
        }
        if let Some(span) = self.spans.iter_mut().rev().find(|s| s.name == name && s.end.is_none())
        {
            span.end = Some((now_ns, counts));
        }
        self.write(now_ns)
    }

    /// Write the file.
    pub fn write(&self, now_ns: u64) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        std::fs::write(path, self.json(now_ns))
            .map_err(|e| format!("writing the statistics {}: {e}", path.display()))
    }

    fn json(&self, now_ns: u64) -> String {
        let spans: Vec<String> = self.spans.iter().filter_map(Span::json).collect();
        format!("{{\"clock_ns\":{now_ns},\"phases\":[{}]}}\n", spans.join(","))
    }
}

impl Span {
    fn json(&self) -> Option<String> {
        let (end_ns, end) = self.end.as_ref()?;
        let each: Vec<Counters> = end.iter().zip(&self.start).map(|(e, s)| e.since(s)).collect();
        let nodes = each.first().map_or(0, |c| c.read_misses.len());
        let all = each.iter().fold(Counters::new(nodes), |sum, c| sum.plus(c));
        let by_vcpu: Vec<String> = each.iter().map(|c| format!("{{{}}}", fields(c))).collect();
        Some(format!(
            "{{\"name\":\"{}\",\"start_ns\":{},\"end_ns\":{end_ns},{},\"by_vcpu\":[{}]}}",
            self.name,
            self.start_ns,
            fields(&all),
            by_vcpu.join(",")
        ))
    }
}

fn fields(c: &Counters) -> String {
    format!(
        "\"instructions\":{},\"accesses\":{},\"loads\":{},\"stores\":{},\"l1_misses\":{},\"llc_hits\":{},\
         \"llc_misses\":{:?},\"read_misses\":{:?},\"write_misses\":{:?},\"stream_misses\":{:?},\"writebacks\":{:?},\
         \"read_bytes\":{:?},\"write_bytes\":{:?}",
        c.instructions,
        c.loads + c.stores,
        c.loads,
        c.stores,
        c.l1_misses,
        c.llc_hits,
        c.llc_misses(),
        c.read_misses,
        c.write_misses,
        c.stream_misses,
        c.writebacks,
        c.read_bytes,
        c.write_bytes
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_model::{ModelOptions, ModelParams};

    #[test]
    fn spans_nest_and_unfinished_ones_are_left_out() {
        let machine = terrace_machine::preset("lab-cxl").unwrap();
        let options =
            ModelOptions { vcpus: 2, all_fast: false, memory_mode: false, outstanding: None };
        let mut engine =
            MemorySystem::new(ModelParams::from_machine(&machine, options).unwrap(), 1000).unwrap();
        let mut r = SpanRecorder::new(None);
        assert_eq!(r.mark(0x11, 5, &engine), Ok(()));
        assert_eq!(r.mark(1, 10, &engine), Ok(()));
        engine.units[1].core.execute(7);
        assert_eq!(r.mark(2, 20, &engine), Ok(()));
        let json = r.json(30);
        assert!(
            json.starts_with(
                "{\"clock_ns\":30,\"phases\":[{\"name\":\"phase\",\"start_ns\":10,\"end_ns\":20,\"instructions\":7,"
            ),
            "{json}"
        );
        assert!(!json.contains("job") && json.contains("\"llc_misses\":[0, 0]"));
        assert_eq!(r.mark(0x99, 40, &engine), Ok(()));
    }
}
