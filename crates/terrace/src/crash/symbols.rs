//! Source lines of a recording's addresses, by binutils' addr2line where that is installed.

use super::CrashError;
use crate::source_lines::{ask_addr2line, is_position_independent, ADDRESSES};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek};
use std::path::Path;
use terrace_crash::recording::visit_events;
use terrace_trace::{EventKind, TraceReader};

/// Where files are mapped.
#[derive(Debug, Clone, Default)]
pub struct SourceLines {
    /// First byte, byte behind the last, and path.
    files: Vec<(u64, u64, String)>,
}

impl SourceLines {
    /// From a recording's mappings.
    pub fn read<R: Read + Seek>(reader: &mut TraceReader<R>) -> Result<Self, CrashError> {
        let mut spans: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        visit_events(reader, |event| {
            if let EventKind::Map { start, length, name, .. } = &event.what {
                // Others have no file: anonymous memory, the stack, the kernel's own.
                if !name.is_empty() && !name.starts_with('[') {
                    let end = start.saturating_add(*length);
                    let span = spans.entry(name.clone()).or_insert((*start, end));
                    *span = (span.0.min(*start), span.1.max(end));
                }
            }
        })?;
        let mut files: Vec<(u64, u64, String)> =
            spans.into_iter().map(|(name, (start, end))| (start, end, name)).collect();
        files.sort_unstable();
        Ok(Self { files })
    }

    /// Function, file and line of each address; where there are none, the file and the address in
    /// it.
    #[must_use]
    pub fn name(&self, addresses: &[u64]) -> HashMap<u64, String> {
        let mut names = HashMap::new();
        for (start, end, path) in &self.files {
            let mut own: Vec<u64> =
                addresses.iter().copied().filter(|a| (*start..*end).contains(a)).collect();
            own.sort_unstable();
            own.dedup();
            let base = if is_position_independent(Path::new(path)) { *start } else { 0 };
            let file = path.rsplit('/').next().unwrap_or(path);
            for some in own.chunks(ADDRESSES) {
                let offsets: Vec<u64> = some.iter().map(|a| a.saturating_sub(base)).collect();
                let lines = ask_addr2line(path, &offsets);
                for (i, address) in some.iter().enumerate() {
                    let plain = || format!("{file}+{:#x}", offsets[i]);
                    let line = lines.get(i).cloned().flatten();
                    names.insert(*address, line.unwrap_or_else(plain));
                }
            }
        }
        names
    }
}
