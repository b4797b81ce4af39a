//! What tests over recordings need.

use std::io::Cursor;
use std::sync::Arc;
use terrace_sim::recording::{Open, Source};
use terrace_sim::{Input, Recording};
use terrace_trace::{Header, TraceWriter};

/// A recording in memory.
pub fn recording(write: impl FnOnce(&mut TraceWriter<Vec<u8>>)) -> Input {
    let header = Header { dependence: true, ..Header::default() };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    write(&mut writer);
    let bytes = writer.finish().unwrap();
    let open: Arc<Open> =
        Arc::new(move || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn Source>));
    Input::Recording { name: "test".to_owned(), recording: Recording::new(open).unwrap() }
}
