//! Region files, which a program writes, and studies of recordings with them: whatever they say,
//! there is an answer and no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use terrace_crash::persist::{
    collect_operations, enumerate_images, find_misuse, ChangedBytes, ObservedSpan, ReorderEngine,
};
use terrace_crash::study::study;
use terrace_crash::{CacheSetup, CrashSchedule, ImageLayout, RegionFile, StudyOptions};
use terrace_trace::{mend_checksums, TraceReader};

fuzz_target!(|data: &[u8]| {
    // The first two bytes say where the recording begins.
    let Some((head, rest)) = data.split_at_checked(2) else { return };
    let at = usize::from(u16::from_le_bytes([head[0], head[1]])).min(rest.len());
    let (region, recording) = rest.split_at(at);
    let Ok(region) = RegionFile::parse(region) else { return };
    let image = region.image(&region.content);
    assert!(image.len() >= region.content.len());
    let mut recording = recording.to_vec();
    mend_checksums(&mut recording);
    let Ok(mut reader) = TraceReader::open(Cursor::new(recording)) else { return };
    let options = StudyOptions {
        setup: CacheSetup::nvc(),
        schedule: CrashSchedule::Uniform { count: 3, seed: 1 },
        most: 3,
        flushes: Vec::new(),
    };
    let _ = study(&mut reader, &region, &options, &mut |_| std::ops::ControlFlow::Continue(()));
    if let Ok(operations) = collect_operations(&mut reader, &region, &ObservedSpan::Region, 1000) {
        find_misuse(&operations);
        let layout = ImageLayout::new(&region.objects);
        let changed = ChangedBytes::new(&operations, &layout);
        let initial = changed.pick(&region.content);
        let memory = (changed.layout(), initial.as_slice());
        let set = enumerate_images(&operations, memory, ReorderEngine::Hardware, 50, 1);
        for (_, image) in &set.images {
            assert_eq!(changed.put_back(image, &region.content).len(), region.content.len());
        }
    }
});
