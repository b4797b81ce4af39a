//! A recording's accesses, column by column.

use std::io::{Read, Seek};
use terrace_terrace::trace::{Block, BlockKind, TraceReader};

/// The columns; rows in the order of the file, which is each thread's order.
#[derive(Debug, Default)]
pub struct Columns {
    address: Vec<u64>,
    gap: Vec<u32>,
    size: Vec<u32>,
    thread: Vec<u32>,
    process: Vec<u32>,
    depends: Vec<u8>,
    store: Vec<u8>,
    time: Vec<u64>,
    /// Damage that was found and left out.
    pub damage: Vec<String>,
    /// What the recording says of itself, as text.
    pub header: String,
}

impl Columns {
    /// Each by name, as bytes in native order.
    pub fn columns(&self) -> Vec<(&'static str, Vec<u8>)> {
        fn bytes<T: Copy, const N: usize>(column: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            column.iter().flat_map(|v| to(*v)).collect()
        }
        vec![
            ("address", bytes(&self.address, u64::to_ne_bytes)),
            ("gap", bytes(&self.gap, u32::to_ne_bytes)),
            ("size", bytes(&self.size, u32::to_ne_bytes)),
            ("thread", bytes(&self.thread, u32::to_ne_bytes)),
            ("process", bytes(&self.process, u32::to_ne_bytes)),
            ("depends", self.depends.clone()),
            ("store", self.store.clone()),
            ("time", bytes(&self.time, u64::to_ne_bytes)),
        ]
    }
}

/// Reads `count` accesses from the one numbered `first` on; blocks before that are stepped over
/// unread.
pub fn read<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    first: u64,
    count: u64,
    times: bool,
) -> Result<Columns, String> {
    let mut out = Columns { header: format!("{:?}", reader.header()), ..Columns::default() };
    out.damage.extend(reader.shortcomings());
    let mut block = Block::new().map_err(|e| e.to_string())?;
    let end = first.saturating_add(count);
    let mut before = 0u64;
    for position in 0..reader.blocks().len() {
        let info = reader.blocks()[position];
        if info.kind != BlockKind::Accesses {
            continue;
        }
        let here = before..before + u64::from(info.count);
        before = here.end;
        if here.end <= first || here.start >= end {
            continue;
        }
        if let Err(error) = reader.read(position, &mut block) {
            out.damage.push(error.to_string());
            continue;
        }
        let from = first.saturating_sub(here.start) as usize;
        let to = (end.min(here.end) - here.start) as usize;
        let rows = from..to.min(block.addresses().len());
        out.address.extend_from_slice(&block.addresses()[rows.clone()]);
        out.gap.extend_from_slice(&block.gaps()[rows.clone()]);
        out.size.extend(rows.clone().map(|i| block.size(i)));
        out.thread.extend(rows.clone().map(|_| info.thread));
        out.process.extend(rows.clone().map(|_| info.process));
        out.depends.extend(block.kinds()[rows.clone()].iter().map(|k| k.depends()));
        out.store.extend(block.kinds()[rows.clone()].iter().map(|k| u8::from(k.is_store())));
        if times {
            let mut all = Vec::new();
            block.times_into(&mut all);
            out.time.extend_from_slice(&all[rows]);
        }
    }
    Ok(out)
}
