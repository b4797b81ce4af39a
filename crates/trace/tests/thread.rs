//! A trace written by a thread of its own is the same file, and what fails there is reported.
#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};
use terrace_trace::{
    Access, Block, EventKind, Info, TraceError, TraceEvent, TraceHeader, TraceReader, TraceWriter,
};

/// A disk with space for so many bytes; writing more fails, or panics.
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    space: usize,
    panics: bool,
}

impl Disk {
    fn new(space: usize) -> (Arc<Mutex<Vec<u8>>>, Self) {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        (bytes.clone(), Self { bytes, space, panics: false })
    }
}

impl Write for Disk {
    fn write(&mut self, new: &[u8]) -> std::io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        let taken = new.len().min(self.space - bytes.len());
        bytes.extend_from_slice(&new[..taken]);
        drop(bytes);
        assert!(taken > 0 || !self.panics, "this disk breaks on purpose");
        if taken == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Addresses that do not compress.
fn access(i: u64) -> Access {
    let z = (i ^ i << 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let address = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    Access { address, size: 8, gap: 1, pc: 4 * (i % 50), ..Access::default() }
}

fn write(mut writer: TraceWriter<Disk>) -> Result<Disk, TraceError> {
    for i in 0..400_000u64 {
        let thread = (i / 7000 % 3) as u32;
        writer.access(1, thread, &access(i))?;
        if i % 90_000 == 0 {
            writer.event(&TraceEvent {
                time: i,
                process: 1,
                thread,
                what: EventKind::Mark { id: i as u32 },
            })?;
        }
        if i == 200_000 {
            let before = writer.written();
            writer.flush()?;
            assert!(writer.written() > before);
        }
    }
    writer.flush_thread(1)?;
    writer.finish()
}

#[test]
fn the_file_is_the_same() {
    let header = TraceHeader { pcs: true, ..TraceHeader::default() };
    let [here, behind] = [false, true].map(|thread| {
        let (bytes, disk) = Disk::new(usize::MAX);
        let writer = TraceWriter::new(disk, &header).unwrap();
        write(if thread { writer.with_thread() } else { writer }).unwrap();
        let bytes = bytes.lock().unwrap().clone();
        bytes
    });
    assert!(here.len() > 1_000_000 && here == behind);
}

#[test]
fn a_full_disk_is_reported_and_written_blocks_can_be_read() {
    for space in [300, 1000, 40_000, 300_000, 3_000_000] {
        let (bytes, disk) = Disk::new(space);
        let mut writer = TraceWriter::new(disk, &TraceHeader::default()).unwrap().with_thread();
        let mut errors = Vec::new();
        for i in 0..1_000_000 {
            errors.extend(writer.access(0, 0, &access(i)).err());
        }
        errors.extend(writer.finish().err());
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        assert!(
            matches!(errors[0], TraceError::Write { .. }) && first.contains("no storage space"),
            "{first}"
        );
        let bytes = bytes.lock().unwrap().clone();
        let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
        assert!(!reader.is_finished());
        let read = Info::from_reader(&mut reader).unwrap().accesses;
        assert!(read % 32_768 == 0 && (read > 0 || space < 300_000), "room for {space}");
    }
}

#[test]
fn flushing_reports_a_full_disk_too() {
    let (_, disk) = Disk::new(1000);
    let mut writer = TraceWriter::new(disk, &TraceHeader::default()).unwrap().with_thread();
    for i in 0..1000 {
        writer.access(0, 0, &access(i)).unwrap();
    }
    assert!(matches!(writer.flush(), Err(TraceError::Write { .. })));
    assert!(matches!(writer.flush(), Err(TraceError::Write { .. })));
    assert!(writer.finish().is_err());
}

#[test]
fn a_thread_that_dies_is_an_error() {
    let (_, disk) = Disk::new(1000);
    let mut writer = TraceWriter::new(Disk { panics: true, ..disk }, &TraceHeader::default())
        .unwrap()
        .with_thread();
    let mut failed = false;
    for i in 0..1_000_000 {
        failed |= writer.access(0, 0, &access(i)).is_err();
    }
    assert!(failed);
    assert!(writer.finish().is_err());
}

#[test]
fn a_writer_that_is_dropped_writes_what_it_was_given() {
    let (bytes, disk) = Disk::new(usize::MAX);
    let mut writer = TraceWriter::new(disk, &TraceHeader::default()).unwrap().with_thread();
    for i in 0..100_000 {
        writer.access(0, 0, &access(i)).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    let bytes = bytes.lock().unwrap().clone();
    let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
    let (mut block, mut accesses) = (Block::new().unwrap(), 0);
    while reader.next_block(&mut block).unwrap() {
        accesses += block.addresses().len();
    }
    assert_eq!((accesses, reader.is_finished()), (100_000, false));
}
