//! What tests over recordings need.

use std::io::Cursor;
use std::sync::Arc;
use terrace_sim::recording::{OpenRecording, RecordingSource};
use terrace_sim::{Recording, SimInput};
use terrace_trace::{TraceHeader, TraceWriter};

/// A recording in memory.
pub fn recording(write: impl FnOnce(&mut TraceWriter<Vec<u8>>)) -> SimInput {
    let header = TraceHeader { dependence: true, ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    write(&mut writer);
    let bytes = writer.finish().unwrap();
    let open: Arc<OpenRecording> =
        Arc::new(move || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn RecordingSource>));
    SimInput::Recording { name: "test".to_owned(), recording: Recording::new(open).unwrap() }
}
