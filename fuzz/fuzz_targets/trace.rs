//! Arbitrary bytes as a trace. Checksums are mended first: they would refuse nearly everything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use terrace_report::RecordingSummary;
use terrace_trace::{block_lines, mend_checksums, Block, Info, TraceError, TraceReader};

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    mend_checksums(&mut bytes);
    let mut reader = match TraceReader::open(Cursor::new(&bytes)) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    let Ok(mut block) = Block::new() else { return };
    loop {
        match reader.next_block(&mut block) {
            Ok(false) => break,
            Ok(true) => {
                let count = block.addresses().len();
                assert!(count == block.kinds().len() && count == block.gaps().len());
                let mut times = Vec::new();
                block.times_into(&mut times);
                assert_eq!(times.len(), count);
                block_lines(&block, 1000, &mut String::new());
            }
            Err(error) => assert!(matches!(error, TraceError::Damaged { .. })),
        }
    }
    assert!(Info::from_reader(&mut reader).is_ok());
    if let Ok(recording) = RecordingSummary::from_reader(&mut reader) {
        recording.html();
        recording.text(80);
    }
});
