//! Traces kept for ever: one of version 1, and damaged copies of it. And what damage, disks and
//! hostile input do.

#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use terrace_sampling::DataSource;
use terrace_trace::import::{import, import_perf_data, ImportError, Imported, RecordingFormat};
use terrace_trace::{
    block_lines, Access, Block, BlockKind, CallFrame, EventKind, Info, SampleDetail, TraceClock,
    TraceError, TraceEvent, TraceHeader, TraceReader, TraceWriter,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats").join(name)
}

fn open(bytes: &[u8]) -> Result<TraceReader<Cursor<&[u8]>>, TraceError> {
    TraceReader::open(Cursor::new(bytes))
}

/// A small trace with all that version 1 can hold, two threads and two blocks of accesses of one of
/// them.
fn everything() -> Vec<u8> {
    let header = TraceHeader {
        source: "test".into(),
        command: vec!["./solver".into(), "in put".into()],
        pcs: true,
        values: true,
        dependence: true,
        notes: vec!["made by a test".into()],
        ..TraceHeader::default()
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let whats = [
        EventKind::ThreadStart { pid: 100, tid: 100 },
        EventKind::Map {
            start: 0x7f00_0000_0000,
            length: 1 << 20,
            protection: 3,
            flags: 0x22,
            name: String::new(),
        },
        EventKind::Map {
            start: 0x40_0000,
            length: 8192,
            protection: 5,
            flags: 2,
            name: "/bin/solver".into(),
        },
        EventKind::Unmap { start: 0x7f00_0010_0000, length: 4096 },
        EventKind::Remap { from: 1 << 30, old_length: 4096, to: 2 << 30, length: 8192 },
        EventKind::Break { end: 0x60_0000 },
        EventKind::Fork { parent: 0 },
        EventKind::Exec { name: "other".into() },
        EventKind::Object { start: 0x7f00_0000_0000, length: 4096, name: "matrix".into() },
        EventKind::Mark { id: 1 },
        EventKind::Lost { accesses: 3 },
        EventKind::ThreadExit,
    ];
    for (i, what) in whats.into_iter().enumerate() {
        writer.event(&TraceEvent { time: i as u64, process: 0, thread: 0, what }).unwrap();
    }
    for i in 0..40_000u64 {
        let access = Access {
            address: 0x7f00_0000_0000 + i * 8 % 4096 + (i % 3) * 65_536,
            size: if i % 100 == 0 { 10 } else { 8 },
            store: i % 4 == 0,
            depends: (i % 16) as u8,
            gap: 1 + (i % 5) as u32,
            pc: 0x40_0000 + i % 7 * 4,
        };
        if access.store {
            writer.store(0, 0, &access, &vec![(i % 8) as u8; access.size as usize]).unwrap();
        } else {
            writer.access(0, 0, &access).unwrap();
        }
    }
    writer.advance(0, 1, 1000).unwrap();
    for i in 0..100 {
        writer
            .access(
                0,
                1,
                &Access { address: 1 << 47 | i << 12, size: 1, gap: 2, ..Access::default() },
            )
            .unwrap();
        writer.advance(0, 1, i).unwrap();
    }
    writer.finish().unwrap()
}

/// Writes the traces kept in `fixtures/formats`; run by hand, only ever once for a version.
#[test]
fn write_the_trace_fixtures() {
    let Some(folder) = std::env::var_os("WRITE_TRACE_FIXTURES") else {
        println!("skipped: WRITE_TRACE_FIXTURES names no folder to write to");
        return;
    };
    let folder = Path::new(&folder);
    let whole = everything();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    put("v1/trace.trace", &whole);
    put("corrupt/trace-cut-off.trace", &whole[..whole.len() * 3 / 4]);
    let blocks = open(&whole).unwrap().blocks().to_vec();
    let mut flipped = whole.clone();
    flipped[blocks[1].offset as usize + 500] ^= 0x10;
    put("corrupt/trace-bit-flipped.trace", &flipped);
    let mut later = whole.clone();
    later[7] = 99;
    put("corrupt/trace-v99.trace", &later);
    put("corrupt/trace-not-one.trace", b"TERRTRA\x01 is not how a trace begins");
    put("corrupt/trace-empty.trace", b"");
}

#[test]
fn traces_of_version_1_are_read_for_ever() {
    let bytes = std::fs::read(fixture("v1/trace.trace")).unwrap();
    let mut reader = open(&bytes).unwrap();
    assert_eq!(reader.header().command, ["./solver", "in put"]);
    let info = Info::from_reader(&mut reader).unwrap();
    assert_eq!(
        (info.accesses, info.loads, info.stores, info.threads, info.events),
        (40_100, 30_100, 10_000, 2, 12)
    );
    assert!(info.complete && info.damage.is_empty());
    // The content to the byte, as text.
    let text = |bytes: &[u8]| {
        let mut reader = open(bytes).unwrap();
        let (mut block, mut text) = (Block::new().unwrap(), String::new());
        while reader.next_block(&mut block).unwrap() {
            block_lines(&block, u64::MAX, &mut text);
        }
        text
    };
    assert_eq!(text(&bytes), text(&everything()));
}

/// Samples with their details, and the events that only samples have.
fn samples_with_call_paths() -> Vec<u8> {
    let header = TraceHeader {
        source: "perf".into(),
        command: vec!["./solver".into()],
        clock: TraceClock::Nanoseconds,
        ns_per_tick: 1.0,
        sampled: true,
        details: true,
        period: 199,
        ..TraceHeader::default()
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let event = |writer: &mut TraceWriter<Vec<u8>>, time, what| {
        writer.event(&TraceEvent { time, process: 0, thread: 0, what }).unwrap();
    };
    for (cpu, node) in [(0, 0), (1, 1)] {
        event(&mut writer, 0, EventKind::CpuNode { cpu, node });
    }
    for i in 0..200u64 {
        let detail = SampleDetail {
            latency_cycles: 70 + i as u32 % 180,
            source: DataSource(0x102_6810_0142),
            cpu: i as u32 % 2,
        };
        let access = Access { address: 0x7f00_0000_0000 + i * 4096, size: 8, ..Access::default() };
        writer.sample(0, i as u32 % 2, &access, i * 10, &detail).unwrap();
    }
    event(&mut writer, 2000, EventKind::SampleInterrupt { samples: 200 });
    let frame = |file: &str, offset| CallFrame { file: file.into(), offset };
    let paths = [
        (150, vec![frame("/bin/solver", 0x1234), frame("/bin/solver", 0x2345), frame("", 0x40)]),
        (50, vec![frame("/lib/libm.so.6", 0x99)]),
    ];
    for (samples, frames) in paths {
        event(&mut writer, 2000, EventKind::CallPath { samples, frames });
    }
    writer.finish().unwrap()
}

/// Writes the recording of samples kept in `fixtures/formats/v1`; run by hand, once.
#[test]
fn write_the_fixture_of_samples() {
    let Some(path) = std::env::var_os("WRITE_SAMPLES_FIXTURE") else {
        println!("skipped: WRITE_SAMPLES_FIXTURE names no file to write");
        return;
    };
    std::fs::write(path, samples_with_call_paths()).unwrap();
}

#[test]
fn samples_and_call_paths_of_version_1_are_read_for_ever() {
    let bytes = std::fs::read(fixture("v1/samples.trace")).unwrap();
    let read = |bytes: &[u8]| {
        let mut reader = open(bytes).unwrap();
        let (mut block, mut details, mut events) = (Block::new().unwrap(), vec![], vec![]);
        while reader.next_block(&mut block).unwrap() {
            details.extend_from_slice(block.details());
            events.extend(block.events().iter().map(|event| event.what.clone()));
        }
        (details, events)
    };
    let (details, events) = read(&bytes);
    let paths: Vec<(u64, usize, &str, u64)> = events
        .iter()
        .filter_map(|what| match what {
            EventKind::CallPath { samples, frames } => {
                Some((*samples, frames.len(), frames[0].file.as_str(), frames[0].offset))
            }
            _ => None,
        })
        .collect();
    assert_eq!(paths, [(150, 3, "/bin/solver", 0x1234), (50, 1, "/lib/libm.so.6", 0x99)]);
    assert_eq!((details.len(), events.len()), (200, 5));
    let expected = SampleDetail { latency_cycles: 70, source: DataSource(0x102_6810_0142), cpu: 0 };
    assert_eq!(details[0], expected);
    assert_eq!((details, events), read(&samples_with_call_paths()));
}

#[test]
fn damaged_traces_open_as_far_as_they_are_whole() {
    let file = |name: &str| std::fs::read(fixture(&format!("corrupt/{name}"))).unwrap();
    let cut = file("trace-cut-off.trace");
    let mut reader = open(&cut).unwrap();
    assert!(matches!(reader.damage(), Some(TraceError::Damaged { .. })) && !reader.is_finished());
    let info = Info::from_reader(&mut reader).unwrap();
    assert!(info.accesses == 32_768 && !info.complete && info.damage.len() == 1, "{info:?}");

    let flipped = file("trace-bit-flipped.trace");
    let mut reader = open(&flipped).unwrap();
    let info = Info::from_reader(&mut reader).unwrap();
    // The damaged block is left out, those behind it are not.
    assert!(info.complete && info.accesses == 40_100 - 32_768, "{info:?}");
    assert!(info.damage[0].contains("checksum does not match"), "{info:?}");

    assert!(matches!(
        open(&file("trace-v99.trace")),
        Err(TraceError::Version { found: 99, known: 1 })
    ));
    assert!(matches!(open(&file("trace-not-one.trace")), Err(TraceError::NotATrace)));
    assert!(matches!(open(&file("trace-empty.trace")), Err(TraceError::NotATrace)));
}

#[test]
fn every_error_is_one_line() {
    let whole = everything();
    for end in [0, 5, 9, 20, 100] {
        let said = open(&whole[..end]).map(|_| ()).unwrap_err().to_string();
        assert!(!said.contains('\n') && !said.is_empty(), "{said}");
    }
}

#[test]
fn no_accesses_and_no_stores_are_traces_too() {
    let empty = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap().finish().unwrap();
    let info = Info::from_reader(&mut open(&empty).unwrap()).unwrap();
    assert_eq!(
        (info.accesses, info.bytes_per_access, info.seconds, info.complete),
        (0, None, 0.0, true)
    );
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    writer.access(0, 0, &Access { address: u64::MAX, size: 8, ..Access::default() }).unwrap();
    let loads = writer.finish().unwrap();
    let info = Info::from_reader(&mut open(&loads).unwrap()).unwrap();
    assert_eq!((info.loads, info.stores, info.pages), (1, 0, 1));
}

#[test]
fn threads_and_times_are_found_without_reading_the_rest() {
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    for i in 0..200_000u64 {
        let thread = (i / 1000 % 3) as u32;
        writer
            .access(0, thread, &Access { address: i * 64, size: 8, gap: 10, ..Access::default() })
            .unwrap();
    }
    let bytes = writer.finish().unwrap();
    let mut reader = open(&bytes).unwrap();
    let all: Vec<usize> = reader.select(Some(1), 0, u64::MAX).collect();
    let some: Vec<usize> = reader.select(Some(1), 400_000, 410_000).collect();
    assert!(!some.is_empty() && some.len() < all.len() && some.iter().all(|i| all.contains(i)));
    let (mut block, mut times) = (Block::new().unwrap(), Vec::new());
    reader.read(some[0], &mut block).unwrap();
    block.times_into(&mut times);
    assert!(block.info().thread == 1 && times.iter().any(|t| (400_000..410_000).contains(t)));
    // A thread's blocks follow each other without a gap.
    let mut now = 0;
    for i in all {
        assert_eq!(reader.blocks()[i].first_time, now);
        now = reader.blocks()[i].last_time;
    }
}

#[test]
fn more_threads_than_stay_open_come_back_whole() {
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    for round in 0..5u64 {
        for thread in 0..200u32 {
            let access = Access {
                address: u64::from(thread) << 20 | round << 6,
                size: 8,
                gap: 1,
                ..Access::default()
            };
            writer.access(0, thread, &access).unwrap();
        }
    }
    let bytes = writer.finish().unwrap();
    let mut reader = open(&bytes).unwrap();
    let mut block = Block::new().unwrap();
    let mut rounds = vec![0u64; 200];
    while reader.next_block(&mut block).unwrap() {
        for address in block.addresses() {
            let seen = &mut rounds[(address >> 20) as usize];
            assert_eq!(address >> 6 & 0xff, *seen);
            *seen += 1;
        }
    }
    assert_eq!(rounds, [5; 200]);
}

/// A disk with space for so many bytes.
struct Disk(Vec<u8>, usize);

impl Write for &mut Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let space = self.1 - self.0.len();
        if space == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.len().min(space);
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_and_what_was_written_can_be_read() {
    for space in [10, 300, 1000, 40_000, 100_000] {
        let mut disk = Disk(Vec::new(), space);
        let mut failed = false;
        match TraceWriter::new(&mut disk, &TraceHeader::default()) {
            Err(TraceError::Write { .. }) => continue,
            Err(other) => panic!("{other}"),
            Ok(mut writer) => {
                // At random: nothing of them can be packed.
                let mut address = 0x9e37_79b9_7f4a_7c15u64;
                for _ in 0..200_000 {
                    address ^= address << 13;
                    address ^= address >> 7;
                    address ^= address << 17;
                    let access = Access { address, size: 8, ..Access::default() };
                    failed |= matches!(writer.access(0, 0, &access), Err(TraceError::Write { .. }));
                }
                failed |= writer.finish().is_err();
            }
        }
        assert!(failed, "room for {space}");
        let mut reader = open(&disk.0).unwrap();
        assert!(!reader.is_finished());
        assert!(Info::from_reader(&mut reader).unwrap().accesses % 32_768 == 0);
    }
}

#[test]
fn lackey_perf_and_damo_are_read() {
    let read = |format, text: &str| {
        let (read, out) = imported(format, text);
        let read = read.unwrap();
        let mut reader = open(&out).unwrap();
        let (mut block, mut lines) = (Block::new().unwrap(), String::new());
        while reader.next_block(&mut block).unwrap() {
            block_lines(&block, u64::MAX, &mut lines);
        }
        assert_eq!(
            reader.header().clock == TraceClock::Nanoseconds,
            format != RecordingFormat::Lackey
        );
        (read.accesses, read.skipped, lines)
    };
    let lackey = "==7== Lackey\nprogram's line\nI  04016b80,3\n L 1ffefffe78,8\nI  04016b83,5\nI  \
        04016b88,5\n M 0421c7cc,4\n";
    let (accesses, skipped, lines) = read(RecordingFormat::Lackey, lackey);
    assert_eq!((accesses, skipped), (3, 1));
    assert_eq!(
        lines,
        "1 0:0 load 0x1ffefffe78 8 pc=0x4016b80\n3 0:0 load 0x421c7cc 4 pc=0x4016b88\n\
         3 0:0 store 0x421c7cc 4 pc=0x4016b88\n"
    );
    let perf = "prog 10/11 [000] 5.000001: 1 cpu/mem-loads/P: 7f00 4010 main\n\
                prog 10/12 [001] 4.000001: 1 cpu/mem-stores/P: 7f40 4014 main\nnoise\n";
    let (accesses, skipped, lines) = read(RecordingFormat::Perf, perf);
    assert_eq!((accesses, skipped), (2, 1));
    assert!(lines.contains("5000001000 0:0 load 0x7f00 8 pc=0x4010 cpu=0\n"), "{lines}");
    assert!(lines.contains("4000001000 0:1 store 0x7f40 8 pc=0x4014 cpu=1\n"), "{lines}");
    let damo = "base_time_absolute: 8 m 59.809 s\n\nmonitoring_start:    0 ns\nmonitoring_end:   \
        100.000 ms\n\
                monitoring_duration:   100.000 ms\ntarget_id: 7\nnr_regions: 2\n\
                1000-4000(  12.000 KiB):\t0\n10000-12000(   8.000 KiB):\t3\n";
    let (accesses, skipped, lines) = read(RecordingFormat::Damo, damo);
    assert_eq!((accesses, skipped), (3, 0));
    assert_eq!(lines.lines().next(), Some("100000000 0:0 load 0x10000 4096"));
}

/// What an import says, and what it wrote.
fn imported(format: RecordingFormat, text: &str) -> (Result<Imported, ImportError>, Vec<u8>) {
    let mut out = Cursor::new(Vec::new());
    let read = import(format, text.as_bytes(), &mut out);
    (read, out.into_inner())
}

#[test]
fn a_file_that_is_not_understood_is_refused_with_its_first_such_line() {
    let (foreign, _) = imported(RecordingFormat::Lackey, "\nhello\x1b\nworld\n");
    let error = foreign.unwrap_err().to_string();
    assert!(
        error.contains("0 of 2 lines") && error.contains("line 2 is not: hello\\u{1b}"),
        "{error}"
    );
    assert!(error.contains("--trace-mem=yes"), "{error}");
    for format in [RecordingFormat::Lackey, RecordingFormat::Perf, RecordingFormat::Damo] {
        assert!(matches!(imported(format, "\n\n").0, Err(ImportError::Empty { .. })));
    }
    // Most lines must be understood: half of them are enough, less are not.
    let good = " L 10,4\n".repeat(3);
    assert_eq!(
        imported(RecordingFormat::Lackey, &format!("{good}a\nb\nc\n")).0.unwrap().skipped,
        3
    );
    let worse = imported(RecordingFormat::Lackey, &format!("{good}a\nb\nc\nd\n")).0;
    assert!(matches!(worse, Err(ImportError::Foreign { lines: 7, understood: 3, first: 4, .. })));
    // Titles alone are no recording, as where damo prints regions in its other form.
    let titles = "monitoring_start: 0 ns\nmonitoring_end: 50 ms\ntarget_id: 0\nnr_regions: 1\n";
    assert!(matches!(
        imported(RecordingFormat::Damo, titles).0,
        Err(ImportError::NoRecords { lines: 4, .. })
    ));
    let other = format!("{titles}0   addr 85.541 TiB (12.707 GiB ) access 0 %   age 1.500 s\n");
    assert!(matches!(imported(RecordingFormat::Damo, &other).0, Err(ImportError::Foreign { .. })));
    // No sample without a time: their order would be a guess.
    let untimed =
        imported(RecordingFormat::Perf, "  9/9  cpu/mem-loads/P:  7ff3de2ba010  562c6d17b183\n").0;
    assert!(untimed.unwrap_err().to_string().contains("-F comm,pid,tid,time"));
    // What is longer than any line is one line that is not understood, not many.
    let long = format!("{good} L {}\n", "10,4 L ".repeat(30_000));
    assert_eq!(imported(RecordingFormat::Lackey, &long).0.unwrap().skipped, 1);
}

#[test]
fn samples_carry_their_period_and_say_that_they_are_samples() {
    let line = |period: &str, source: &str| {
        format!("        x  7/8  1.5: {period} ibs_op//:  7f00 {source} 4010 f+0x1 (/a)\n")
    };
    let store = "5080042 |OP STORE|LVL L1 hit|SNP N/A|TLB L1 or L2 hit|LCK No|BLK  N/A   0 ";
    let na = "1 |OP N/A|LVL N/A|SNP N/A|TLB N/A|LCK N/A|BLK  N/A   0 ";
    let text = line("100", store) + &line("300", store) + &line("401", na);
    let (read, out) = imported(RecordingFormat::Perf, &text);
    assert_eq!(read.unwrap().period, 267);
    let info = Info::from_reader(&mut open(&out).unwrap()).unwrap();
    assert_eq!((info.loads, info.stores, info.period, info.sampled), (1, 2, 267, true));
    assert!(info.text().contains("samples, one for about 267 events"), "{}", info.text());
    let notes = info.notes.join("; ");
    assert!(
        notes.contains("ibs_op//") && notes.contains("of 1 samples it is not known"),
        "{notes}"
    );
    // A mean over some of them would say nothing of the others.
    let (read, _) = imported(RecordingFormat::Perf, &(text.clone() + &line("", store)));
    assert_eq!(read.unwrap().period, 0);
    let (_, out) = imported(RecordingFormat::Perf, &line("", store));
    let text = Info::from_reader(&mut open(&out).unwrap()).unwrap().text();
    assert!(text.contains("at a rate that is not known"), "{text}");
}

#[test]
fn the_first_frame_of_a_call_chain_is_the_instruction() {
    let text = "prog 10/11 5.000001: 1 cpu/mem-stores/P: 7f00\n\t    4014 inner+0x4 (/a)\n\t    \
                4fff main+0x9 (/a)\n\nprog 10/11 5.5: 1 cpu/mem-loads/P: 7f08\n\t    5014 g \
                (/a)\n\n4fff x\n";
    let (read, out) = imported(RecordingFormat::Perf, text);
    let read = read.unwrap();
    assert_eq!((read.accesses, read.skipped, read.first_skipped_line), (2, 1, Some(8)));
    let mut reader = open(&out).unwrap();
    let (mut block, mut lines) = (Block::new().unwrap(), String::new());
    while reader.next_block(&mut block).unwrap() {
        block_lines(&block, u64::MAX, &mut lines);
    }
    assert!(lines.contains("store 0x7f00 8 pc=0x4014\n"), "{lines}");
    assert!(lines.contains("load 0x7f08 8 pc=0x5014\n"), "{lines}");
}

#[test]
fn damo_reads_the_column_that_its_title_names() {
    let text =
        "base_time_absolute: 2 m 3.500 s\ndata source: tracepoint\n\nmonitoring_start: 0 ns\n\
                monitoring_end: 50 ms\nmonitoring_duration: 50 ms\ntarget_id: 0\nnr_regions: 2\n\
                # start_addr     end_addr        length  nr_accesses   age\n\
                555500000000-555500400000 (   4.000 MiB)           3     9\n\
                7ffd00000000-7ffd00010000 (  64.000 KiB)          10     0\n";
    let (read, out) = imported(RecordingFormat::Damo, text);
    let read = read.unwrap();
    assert_eq!((read.accesses, read.skipped, read.sampled), (13, 0, true));
    let blocks = open(&out).unwrap().blocks().to_vec();
    assert!(blocks.iter().all(|b| (b.first_time, b.last_time) == (50_000_000, 50_000_000)));
    let turned = text.replace("nr_accesses   age", "age   nr_accesses");
    assert_eq!(imported(RecordingFormat::Damo, &turned).0.unwrap().accesses, 9);
}

#[test]
fn an_event_block_stands_before_the_accesses_that_follow_it() {
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    for i in 0..100_000u64 {
        if i % 10_000 == 0 {
            let what = EventKind::Map {
                start: i << 12,
                length: 4096,
                protection: 3,
                flags: 2,
                name: String::new(),
            };
            writer.event(&TraceEvent { time: i, process: 0, thread: 0, what }).unwrap();
        }
        writer
            .access(
                0,
                0,
                &Access {
                    address: (i / 10_000 * 10_000) << 12,
                    size: 8,
                    gap: 1,
                    ..Access::default()
                },
            )
            .unwrap();
    }
    let bytes = writer.finish().unwrap();
    let mut reader = open(&bytes).unwrap();
    let (mut block, mut mapped) = (Block::new().unwrap(), Vec::new());
    while reader.next_block(&mut block).unwrap() {
        for event in block.events() {
            if let EventKind::Map { start, .. } = event.what {
                mapped.push(start);
            }
        }
        if block.info().kind == BlockKind::Accesses {
            assert!(block.addresses().iter().all(|a| mapped.contains(a)));
        }
    }
    assert_eq!(mapped.len(), 10);
}

/// A `perf.data` file from the folder of outside data.
fn outside(name: &str) -> Option<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/perf").join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            println!("skipped: {}: {error}", path.display());
            None
        }
    }
}

#[test]
fn a_file_of_perf_keeps_latencies_and_data_sources() {
    let Some(bytes) = outside("weight_struct.data") else { return };
    let mut out = Cursor::new(Vec::new());
    let read = import_perf_data(Cursor::new(bytes), &mut out).unwrap();
    assert_eq!((read.accesses, read.skipped, read.period, read.lost), (14, 0, 10_009, 0));
    let mut reader = TraceReader::open(Cursor::new(out.get_ref())).unwrap();
    let info = Info::from_reader(&mut reader).unwrap();
    let levels: Vec<(String, u64)> = info.levels.iter().map(|l| (l.name(), l.samples)).collect();
    let expected = [("L1", 4), ("LFB", 5), ("L2", 1), ("L3", 4)];
    assert_eq!(levels, expected.map(|(name, n)| (name.to_owned(), n)));
    let least = info.levels.iter().map(|l| l.least_cycles).min();
    let most = info.levels.iter().map(|l| l.most_cycles).max();
    assert_eq!((least, most, info.loads, info.sampled), (Some(70), Some(249), 14, true));
    assert!(info.complete && info.text().contains("LFB: 5 samples, latency "), "{}", info.text());
    assert!(info.command.join(" ").contains("perf"), "{:?}", info.command);
    let mut block = Block::new().unwrap();
    let mut text = String::new();
    reader.rewind_to(0);
    while reader.next_block(&mut block).unwrap() {
        block_lines(&block, u64::MAX, &mut text);
    }
    let first = text.lines().find(|line| line.contains("load 0xffffc36a5ba4ba40")).unwrap();
    assert!(first.contains("latency=71 level=L1 cpu="), "{first}");
}

/// What was cut off is neither a recording without such samples nor a whole one.
#[test]
fn a_file_of_perf_that_was_cut_off_says_so() {
    let Some(bytes) = outside("weight_struct.data") else { return };
    let part = |percent: usize| Cursor::new(bytes[..bytes.len() * percent / 100].to_vec());
    let error = import_perf_data(part(40), Cursor::new(Vec::new())).unwrap_err();
    assert!(matches!(error, ImportError::CutOff { samples: 0 }), "{error}");
    let mut out = Cursor::new(Vec::new());
    let read = import_perf_data(part(90), &mut out).unwrap();
    assert!(read.accesses == 14 && read.cut_off, "{read:?}");
    let mut reader = TraceReader::open(Cursor::new(out.get_ref())).unwrap();
    let text = Info::from_reader(&mut reader).unwrap().text();
    assert!(text.contains("it was cut off"), "{text}");
}

#[test]
fn a_file_of_perf_without_addresses_says_so() {
    let Some(bytes) = outside("throttle.data") else { return };
    let error = import_perf_data(Cursor::new(bytes), Cursor::new(Vec::new())).unwrap_err();
    let expected = "none of 14980 samples has a data address";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn details_of_samples_are_kept_and_damage_in_them_is_found() {
    let header =
        TraceHeader { clock: TraceClock::Nanoseconds, details: true, ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let detail = |i: u64| SampleDetail {
        latency_cycles: (i * 37 % 1000) as u32,
        source: DataSource(i % 5 * 0x102_6810_0142),
        cpu: if i % 7 == 0 { SampleDetail::UNKNOWN_CPU } else { i as u32 % 7 },
    };
    for i in 0..40_000 {
        let access = Access { address: i * 64, size: 8, ..Access::default() };
        writer.sample(0, 0, &access, i * 10, &detail(i)).unwrap();
    }
    let interrupt = EventKind::SampleInterrupt { samples: 42 };
    writer.event(&TraceEvent { time: 9, process: 0, thread: 0, what: interrupt.clone() }).unwrap();
    let bytes = writer.finish().unwrap();
    let mut reader = open(&bytes).unwrap();
    let mut block = Block::new().unwrap();
    let (mut kept, mut events) = (Vec::new(), Vec::new());
    while reader.next_block(&mut block).unwrap() {
        kept.extend_from_slice(block.details());
        events.extend(block.events().iter().map(|event| event.what.clone()));
    }
    assert_eq!(kept, (0..40_000).map(detail).collect::<Vec<_>>());
    assert_eq!(events, [interrupt]);
    let plain = TraceHeader { clock: TraceClock::Nanoseconds, ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &plain).unwrap();
    let refused = writer.sample(0, 0, &Access::default(), 1, &detail(1));
    assert!(matches!(refused, Err(TraceError::Unfit(_))));
}
