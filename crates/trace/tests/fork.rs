//! A forked process whose words come before its parent's.
#![allow(clippy::unwrap_used)]

use terrace_trace::capture::{Capture, Filter};
use terrace_trace::{Block, EventKind, TraceHeader, TraceReader, TraceWriter};

const MESSAGE: u64 = 9 << 60;

fn begins(pid: u64, parent: u64) -> [u64; 5] {
    [MESSAGE | 1 | 4 << 16, pid, pid, 0, parent]
}

fn capture() -> Capture<Vec<u8>> {
    Capture::new(
        TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap(),
        Filter::default(),
        false,
    )
}

/// Process and what happened to it, in the order of the file.
fn events(capture: Capture<Vec<u8>>) -> Vec<(u32, EventKind)> {
    let bytes = capture.finish().unwrap().1;
    let mut reader = TraceReader::open(std::io::Cursor::new(bytes)).unwrap();
    let (mut block, mut all) = (Block::new().unwrap(), Vec::new());
    while reader.next_block(&mut block).unwrap() {
        all.extend(block.events().iter().map(|event| (event.process, event.what.clone())));
    }
    all
}

#[test]
fn it_waits_until_its_parent_is_known() {
    let mut capture = capture();
    assert_eq!(capture.feed(1, &begins(200, 100), false).unwrap(), 0);
    assert_eq!(capture.feed(0, &begins(100, 0), false).unwrap(), 5);
    assert_eq!(capture.feed(1, &begins(200, 100), false).unwrap(), 5);
    let events = events(capture);
    let started = |pid| (u32::from(pid == 200), EventKind::ThreadStart { pid, tid: pid });
    assert_eq!(
        events[..3],
        [started(100), (1, EventKind::Fork { parent: 0 }), started(200)],
        "{events:?}"
    );
}

#[test]
fn a_parent_that_is_never_recorded_is_not_waited_for_for_ever() {
    let mut one = capture();
    let waited =
        (0..1000).take_while(|_| one.feed(1, &begins(200, 100), false).unwrap() == 0).count();
    assert!((1..1000).contains(&waited), "{waited}");
    assert_eq!(events(one)[0], (0, EventKind::ThreadStart { pid: 200, tid: 200 }));
    // Nor is it where nothing else will come.
    assert_eq!(capture().feed(1, &begins(200, 100), true).unwrap(), 5);
}
