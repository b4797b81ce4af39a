//! What a file says besides its records: command line, names of events, nodes of CPUs. All of it is
//! optional, so damage here leaves it out.

use super::{read_span, PerfDataFile};
use crate::bytes::ByteCursor;
use std::io::{Read, Seek};

/// Features by their bit (`enum` in `tools/perf/util/header.h`).
mod feature {
    pub const COMMAND_LINE: u32 = 11;
    pub const EVENT_DESCRIPTIONS: u32 = 12;
    pub const NUMA_TOPOLOGY: u32 = 14;
}

/// Bytes of one feature that are believed.
const MOST_BYTES: u64 = 4 << 20;
/// Words of a command line, and CPUs of a node, that are kept.
const MOST_WORDS: u32 = 4096;
const MOST_CPUS: u32 = 1 << 16;

/// Reads the features whose bits are set; their table lies at `table`.
pub fn read<R: Read + Seek>(file: &mut PerfDataFile<R>, bits: &[u64; 4], table: u64) {
    let set = (0..256u32).filter(|bit| bits[*bit as usize / 64] >> (bit % 64) & 1 != 0);
    for (position, bit) in set.enumerate() {
        let known = [feature::COMMAND_LINE, feature::EVENT_DESCRIPTIONS, feature::NUMA_TOPOLOGY];
        if !known.contains(&bit) {
            continue;
        }
        let entry = table.saturating_add(16 * position as u64);
        let Ok(span) = read_span(&mut file.input, entry, 16, 16) else { return };
        let mut span = ByteCursor(&span);
        let (Some(at), Some(size)) = (span.u64(), span.u64()) else { return };
        let Ok(bytes) = read_span(&mut file.input, at, size, MOST_BYTES) else { continue };
        let mut fields = ByteCursor(&bytes);
        match bit {
            feature::COMMAND_LINE => {
                file.command = command_line(&mut fields).unwrap_or_default();
            }
            feature::EVENT_DESCRIPTIONS => {
                if let Some(names) = event_names(&mut fields) {
                    let named = file.events.iter_mut().zip(names);
                    named.for_each(|(event, name)| event.name = name);
                }
            }
            _ => {
                let nodes = &mut file.cpu_nodes;
                // What was read before damage holds.
                let _ends = cpu_nodes(&mut fields, |cpu, node| {
                    nodes.insert(cpu, node);
                });
            }
        }
    }
}

/// A string with its length before it, filled up with zero bytes.
fn string(fields: &mut ByteCursor<'_>) -> Option<String> {
    let length = fields.u32()?;
    Some(ByteCursor(fields.take(length as usize)?).string())
}

fn command_line(fields: &mut ByteCursor<'_>) -> Option<Vec<String>> {
    let count = fields.u32()?.min(MOST_WORDS);
    (0..count).map(|_| string(fields)).collect()
}

fn event_names(fields: &mut ByteCursor<'_>) -> Option<Vec<String>> {
    let (count, size) = (fields.u32()?, fields.u32()?);
    let mut names = Vec::new();
    for _ in 0..count.min(MOST_WORDS) {
        fields.take(size as usize)?;
        let ids = fields.u32()?;
        names.push(string(fields)?);
        fields.words(u64::from(ids))?;
    }
    Some(names)
}

fn cpu_nodes(fields: &mut ByteCursor<'_>, mut each: impl FnMut(u32, u16)) -> Option<()> {
    let count = fields.u32()?.min(MOST_WORDS);
    for _ in 0..count {
        let node = u16::try_from(fields.u32()?).ok()?;
        let (_total, _free) = (fields.u64()?, fields.u64()?);
        for range in string(fields)?.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse::<u32>().ok()?);
            (first..=last.min(MOST_CPUS)).for_each(|cpu: u32| each(cpu, node));
        }
    }
    Some(())
}
