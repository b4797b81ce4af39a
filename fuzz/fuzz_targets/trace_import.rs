//! Arbitrary bytes as the recordings of other tools: what is made of them is a whole trace.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use terrace_trace::import::{import, RecordingFormat};
use terrace_trace::{Info, TraceReader};

fuzz_target!(|data: &[u8]| {
    for format in [RecordingFormat::Lackey, RecordingFormat::Perf, RecordingFormat::Damo] {
        let mut out = Cursor::new(Vec::new());
        if let Ok(read) = import(format, data, &mut out) {
            let mut reader =
                TraceReader::open(Cursor::new(out.get_ref())).expect("what was written can be \
                    read");
            let info = Info::from_reader(&mut reader).expect("memory can be read");
            assert!(info.complete && info.damage.is_empty() && info.accesses == read.accesses);
        }
    }
});
