//! Source lines of a recording's addresses, by binutils' addr2line where that is installed.

use super::CrashError;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Command;
use terrace_crash::recording::visit_events;
use terrace_trace::{EventKind, TraceReader};

/// Addresses that one call of addr2line is given: its arguments must fit.
const ADDRESSES: usize = 1000;

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

/// Whether the addresses in an ELF file begin at zero (e_type 3, ET_DYN).
fn is_position_independent(path: &Path) -> bool {
    let mut head = [0; 18];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head[16] == 3
}

/// The function at each offset, and its line.
fn ask_addr2line(path: &str, offsets: &[u64]) -> Vec<Option<String>> {
    let mut command = Command::new("addr2line");
    command.args(["-a", "-f", "-C", "-i", "-e", path]);
    command.args(offsets.iter().map(|o| format!("{o:#x}")));
    let Ok(output) = command.output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<Option<String>> = Vec::new();
    let mut function = "";
    for line in text.lines() {
        if line.starts_with("0x") {
            found.push(None);
            function = "";
        } else if function.is_empty() {
            function = line;
        } else {
            // "FILE:LINE", perhaps with "(discriminator N)" behind.
            let place = line.split(" (").next().unwrap_or(line);
            let place = place.rsplit('/').next().unwrap_or(place);
            // The innermost that is not inlined from a header.
            let better = |last: &Option<String>| last.as_ref().is_none_or(|l| l.contains(".h:"));
            if let Some(last) = found.last_mut().filter(|last| function != "??" && better(last)) {
                let known = !place.starts_with('?');
                *last = Some(if known { format!("{function} {place}") } else { function.into() });
            }
            function = "";
        }
    }
    found
}
