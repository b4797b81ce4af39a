//! Whatever is written comes back, and whatever bytes come are survived.

#![allow(clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::prelude::*;
use std::io::Cursor;
use terrace_trace::{
    Access, Block, BlockKind, CacheOperation, EventKind, TraceClock, TraceError, TraceEvent,
    TraceHeader, TraceReader, TraceWriter,
};

/// What a test hands to the writer.
#[derive(Debug, Clone)]
enum Step {
    Access(u32, Access),
    Jump(u32, u64),
    Event(TraceEvent),
}

fn access() -> impl Strategy<Value = Access> {
    let address = prop_oneof![
        4 => 0x7f00_0000_0000u64..0x7f00_0000_4000,
        1 => any::<u64>(),
        1 => Just((1 << 48) - 1),
        1 => Just(0u64),
    ];
    let size = prop_oneof![6 => (0u32..7).prop_map(|s| 1 << s), 1 => any::<u32>()];
    let pc = prop_oneof![3 => (0u64..8).prop_map(|p| p * 4), 1 => any::<u64>()];
    (address, size, any::<bool>(), 0u8..16, prop_oneof![4 => 0u32..4, 1 => any::<u32>()], pc)
        .prop_map(|(address, size, store, depends, gap, pc)| Access {
            address,
            size,
            store,
            depends,
            gap,
            pc,
        })
}

fn what() -> impl Strategy<Value = EventKind> {
    let name = prop_oneof![Just(String::new()), Just("libc.so.6".to_owned()), "\\PC{0,30}"];
    prop_oneof![
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), name.clone()).prop_map(
            |(start, length, protection, flags, name)| EventKind::Map {
                start,
                length,
                protection,
                flags,
                name
            }
        ),
        (any::<u64>(), any::<u64>()).prop_map(|(start, length)| EventKind::Unmap { start, length }),
        any::<[u64; 4]>().prop_map(|[from, old_length, to, length]| EventKind::Remap {
            from,
            old_length,
            to,
            length
        }),
        any::<u64>().prop_map(|end| EventKind::Break { end }),
        any::<(i32, i32)>().prop_map(|(pid, tid)| EventKind::ThreadStart { pid, tid }),
        Just(EventKind::ThreadExit),
        any::<u32>().prop_map(|parent| EventKind::Fork { parent }),
        name.clone().prop_map(|name| EventKind::Exec { name }),
        (any::<u64>(), any::<u64>(), name).prop_map(|(start, length, name)| EventKind::Object {
            start,
            length,
            name
        }),
        any::<u32>().prop_map(|id| EventKind::Mark { id }),
        (1u64..=7, any::<u64>(), any::<u64>()).prop_map(|(code, address, pc)| EventKind::Cache {
            operation: CacheOperation::from_code(code).expect("a code in use"),
            address,
            pc
        }),
        any::<u64>().prop_map(|accesses| EventKind::Lost { accesses }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0u32..3, access()).prop_map(|(thread, access)| Step::Access(thread, access)),
        1 => (0u32..3, prop_oneof![0u64..100, any::<u64>()])
            .prop_map(|(thread, ticks)| Step::Jump(thread, ticks)),
        1 => (any::<u64>(), any::<u32>(), any::<u32>(), what())
            .prop_map(|(time, process, thread,
                what)| Step::Event(TraceEvent { time, process, thread, what })),
    ]
}

fn write(header: &TraceHeader, steps: &[Step]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), header).unwrap();
    for step in steps {
        match step {
            Step::Access(thread, access) => writer.access(7, *thread, access).unwrap(),
            Step::Jump(thread, ticks) => writer.advance(7, *thread, *ticks).unwrap(),
            Step::Event(event) => writer.event(event).unwrap(),
        }
    }
    writer.finish().unwrap()
}

/// Of each thread its accesses with their times, and all events.
type Content = (Vec<Vec<(u64, Access)>>, Vec<TraceEvent>);

fn read(bytes: &[u8]) -> Content {
    let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
    assert!(reader.damage().is_none() && reader.is_finished());
    let (mut threads, mut events) = (vec![Vec::new(); 3], Vec::new());
    let (mut block, mut times) = (Block::new().unwrap(), Vec::new());
    while reader.next_block(&mut block).unwrap() {
        events.extend_from_slice(block.events());
        if block.info().kind != BlockKind::Accesses {
            continue;
        }
        assert_eq!(block.info().process, 7);
        block.times_into(&mut times);
        assert_eq!(times.len(), block.addresses().len());
        for (i, time) in times.iter().enumerate() {
            let kind = block.kinds()[i];
            let access = Access {
                address: block.addresses()[i],
                size: block.size(i),
                store: kind.is_store(),
                depends: kind.depends(),
                gap: block.gaps()[i],
                pc: block.pcs().get(i).copied().unwrap_or(0),
            };
            assert!((block.info().first_time..=block.info().last_time).contains(time));
            threads[block.info().thread as usize].push((*time, access));
        }
    }
    (threads, events)
}

fn expected(steps: &[Step], keep_pcs: bool) -> Content {
    let (mut threads, mut events, mut now) = (vec![Vec::new(); 3], Vec::new(), [0u64; 3]);
    for step in steps {
        match step {
            Step::Access(thread, access) => {
                let now = &mut now[*thread as usize];
                *now = now.saturating_add(u64::from(access.gap));
                let pc = if keep_pcs { access.pc } else { 0 };
                threads[*thread as usize].push((*now, Access { pc, ..*access }));
            }
            Step::Jump(thread, ticks) => {
                now[*thread as usize] = now[*thread as usize].saturating_add(*ticks);
            }
            Step::Event(event) => events.push(event.clone()),
        }
    }
    (threads, events)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_written_comes_back(steps in vec(step(), 0..400), pcs in any::<bool>()) {
        let header = TraceHeader { pcs, source: "test".into(), ..TraceHeader::default() };
        prop_assert_eq!(read(&write(&header, &steps)), expected(&steps, pcs));
    }

    #[test]
    fn packed_accesses_are_the_same(steps in vec(step(), 0..400), narrow in any::<bool>(),
        waits in any::<bool>()) {
        let steps: Vec<Step> = steps.into_iter()
            .filter(|step| waits || !matches!(step, Step::Jump(..))).map(|step| match step {
            Step::Access(thread, a) if narrow =>
                Step::Access(thread, Access { address: a.address & ((1 << 48) - 1), ..a }),
            other => other,
        }).collect();
        let bytes = write(&TraceHeader { values: false, ..TraceHeader::default() }, &steps);
        let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
        let (mut apart, mut packed) = (Block::new().unwrap(), Block::new().unwrap());
        for position in 0..reader.blocks().len() {
            reader.read(position, &mut apart).unwrap();
            reader.read_packed(position, &mut packed).unwrap();
            prop_assert_eq!(apart.kinds(), packed.kinds());
            prop_assert_eq!(apart.jumps(), packed.jumps());
            prop_assert!(apart.packed().is_empty());
            let fits = apart.addresses().iter().all(|a| a >> 48 == 0) && apart.jumps().iter()
                .all(|jump| jump.0 == 0);
            if !fits {
                prop_assert!(packed.packed().is_empty());
                prop_assert_eq!((apart.addresses(), apart.gaps()),
                    (packed.addresses(), packed.gaps()));
                continue;
            }
            prop_assert_eq!((packed.addresses().len(), packed.gaps().len()), (0, 0));
            let each = apart.addresses().iter().zip(apart.gaps()).zip(apart.kinds());
            let expected: Vec<u64> = each
                .map(|((address, gap), kind)| address | u64::from((*gap)
                    .min(32_767)) << 48 | u64::from(kind.is_store()) << 63)
                .collect();
            prop_assert_eq!(packed.packed(), &expected[..]);
        }
    }

    #[test]
    fn a_file_cut_anywhere_opens_up_to_its_last_whole_block(steps in vec(step(), 1..200),
        at in 0.0f64..1.0) {
        let bytes = write(&TraceHeader::default(), &steps);
        let cut = (bytes.len() as f64 * at) as usize;
        match TraceReader::open(Cursor::new(&bytes[..cut])) {
            Ok(mut reader) => {
                prop_assert!(!reader.is_finished());
                let whole = TraceReader::open(Cursor::new(&bytes)).unwrap().blocks().to_vec();
                let end = |b: &terrace_trace::BlockInfo| b.offset + b.stored_bytes();
                let there = whole.iter().filter(|b| end(b) <= cut as u64).count();
                prop_assert_eq!(reader.blocks(), &whole[..there]);
                let mut block = Block::new().unwrap();
                while reader.next_block(&mut block).unwrap() {}
            }
            Err(e) => prop_assert!(matches!(e, TraceError::NotATrace | TraceError::Header { .. }),
                "{}", e),
        }
    }

    #[test]
    fn a_flipped_bit_is_found_or_harmless(steps in vec(step(), 1..200), at in 0.0f64..1.0,
        bit in 0u8..8) {
        let mut bytes = write(&TraceHeader::default(), &steps);
        let whole = read(&bytes);
        let at = (bytes.len() as f64 * at) as usize;
        bytes[at] ^= 1 << bit;
        let Ok(mut reader) = TraceReader::open(Cursor::new(&bytes)) else { return Ok(()) };
        let mut block = Block::new().unwrap();
        let mut found = reader.damage().is_some() || !reader.is_finished();
        loop {
            match reader.next_block(&mut block) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    prop_assert!(matches!(e, TraceError::Damaged { .. }), "{}", e);
                    found = true;
                }
            }
        }
        prop_assert!(found || read(&bytes) == whole);
    }

    #[test]
    fn damage_behind_right_checksums_is_survived(
        steps in vec(step(), 1..100),
        damage in vec((0.0f64..1.0, any::<u8>()), 1..6),
    ) {
        let mut bytes = write(&TraceHeader::default(), &steps);
        for (at, byte) in damage {
            let at = (bytes.len() as f64 * at) as usize;
            bytes[at] = byte;
        }
        terrace_trace::mend_checksums(&mut bytes);
        let Ok(mut reader) = TraceReader::open(Cursor::new(&bytes)) else { return Ok(()) };
        let mut block = Block::new().unwrap();
        loop {
            match reader.next_block(&mut block) {
                Ok(true) => {
                    terrace_trace::block_lines(&block, 100, &mut String::new());
                    prop_assert_eq!(block.addresses().len(), block.kinds().len());
                }
                Ok(false) => break,
                Err(e) => prop_assert!(matches!(e, TraceError::Damaged { .. }), "{}", e),
            }
        }
    }

    #[test]
    fn times_that_run_backwards_come_back(times in vec(any::<u64>(), 1..300)) {
        let header = TraceHeader { clock: TraceClock::Nanoseconds, ..TraceHeader::default() };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        for time in &times {
            writer.access_at(0, 0, &Access { size: 8, ..Access::default() }, *time).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let mut reader = TraceReader::open(Cursor::new(&bytes)).unwrap();
        let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        prop_assert_eq!((reader.blocks()[0].first_time, reader.blocks()[0].last_time),
            (least, most));
        let mut block = Block::new().unwrap();
        prop_assert!(reader.next_block(&mut block).unwrap());
        prop_assert_eq!(block.explicit_times(), &times);
    }

    #[test]
    fn any_words_of_a_program_are_survived(words in vec(word(), 0..300), values in any::<bool>(),
        cut in 1usize..40) {
        use terrace_trace::capture::{Capture, Filter};
        let writer = TraceWriter::new(Vec::new(), &TraceHeader { values, ..TraceHeader::default() })
            .unwrap();
        let mut capture = Capture::new(writer, Filter::default(), values);
        let mut left = Vec::new();
        for part in words.chunks(cut) {
            left.extend_from_slice(part);
            let used = capture.feed(3, &left, true).unwrap();
            left.drain(..used);
        }
        let (totals, bytes) = capture.finish().unwrap();
        let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
        let (mut block, mut accesses) = (Block::new().unwrap(), 0);
        while reader.next_block(&mut block).unwrap() {
            accesses += block.addresses().len() as u64;
        }
        prop_assert_eq!(accesses, totals.kept);
    }

    #[test]
    fn samples_of_perf_are_read_whichever_fields_are_there(
        command in prop_oneof![
            "[a-z#:. /|()_-]{1,15}",
            prop_oneof![Just("v1.5: x"), Just("io 12 [a] b"), Just("[ET 0]"), Just("#1"), Just("7")]
                .prop_map(str::to_owned),
        ],
        ids in (prop::option::of(0..4_000_000i32), 0..4_000_000i32, prop::option::of(0..512u32)),
        time in 0..1u64 << 40,
        period in prop::option::of(1..1u64 << 30),
        address in 1..u64::MAX,
        direction in prop_oneof![Just("LOAD"), Just("STORE")],
        source in prop_oneof![Just(0), Just(1), Just(2)],
        weight in prop::option::of(0..5000u32),
        pc in prop::option::of(0x1000u64..1 << 48),
        symbol in prop_oneof![
            Just(""),
            Just(" add (/bin/x)"),
            Just(" operator|(A, B)+0x4 (/lib/y)")
        ],
    ) {
        use terrace_trace::import::{import, RecordingFormat};
        let pid = ids.0.map_or(String::new(), |pid| format!("{pid}/"));
        let cpu = ids.2.map_or(String::new(), |cpu| format!("[{cpu:03}] "));
        let period_text = period.map_or(String::new(), |period| format!("{period:>10} "));
        // The event's name tells the direction where the data source is not there.
        let (event, source) = match source {
            0 if direction == "LOAD" => ("cpu/mem-loads/P", String::new()),
            0 => ("cpu/mem-stores/P", String::new()),
            1 => {
                let rest = "LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A";
                ("ibs_op//", format!("68100142 |OP {direction}|{rest}"))
            }
            _ => ("memory", format!("1 |OP {direction}|LVL RAM hit|SNP None|TLB N/A|LCK Yes")),
        };
        let weight = weight.filter(|_| pc.is_some()).map_or(String::new(), |w| format!("{w:>10}"));
        let place = pc.map_or(String::new(), |pc| format!("{pc:>16x}{symbol}"));
        let line = format!(
            "{command:>16} {pid}{} {cpu}{}.{:06}: {period_text}{event}: {address:>16x} {source} \
             {weight} {place}\n",
            ids.1,
            time / 1_000_000,
            time % 1_000_000
        );
        let mut out = Cursor::new(Vec::new());
        let read = import(RecordingFormat::Perf, line.as_bytes(), &mut out)
            .map_err(|e| TestCaseError::fail(format!("{e}: {line}")))?;
        let counts = (read.accesses, read.skipped, read.period);
        prop_assert_eq!(counts, (1, 0, period.unwrap_or(0)), "{}", line);
        let mut reader = TraceReader::open(Cursor::new(out.into_inner())).unwrap();
        let mut block = Block::new().unwrap();
        while reader.next_block(&mut block).unwrap() && block.addresses().is_empty() {}
        prop_assert_eq!(block.addresses(), [address], "{}", line);
        prop_assert_eq!(block.kinds()[0].is_store(), direction == "STORE", "{}", line);
        prop_assert_eq!(block.pcs().to_vec(), vec![pc.unwrap_or(0)], "{}", line);
        prop_assert_eq!(block.info().first_time, time * 1000, "{}", line);
    }

    #[test]
    fn any_text_is_survived_by_the_importers(text in ".{0,400}", lines in vec("[ILSM0-9a-f \
        :,./%-]{0,30}", 0..20)) {
        use terrace_trace::import::{import, RecordingFormat};
        for format in [RecordingFormat::Lackey, RecordingFormat::Perf, RecordingFormat::Damo] {
            for text in [&text, &lines.join("\n")] {
                let _ = import(format, text.as_bytes(), std::io::Cursor::new(Vec::new()));
            }
        }
    }
}

/// Words such as a program sends, and some that none would.
fn word() -> impl Strategy<Value = u64> {
    let message =
        (0u64..12, 0u64..6).prop_map(|(which, length)| 1 << 63 | 1 << 60 | which | length << 16);
    let block = (0u64..5, 0u64..20).prop_map(|(block, length)| 1 << 63 | block | length << 32);
    prop_oneof![
        4 => any::<u64>().prop_map(|w| w & !(1 << 63)),
        2 => message,
        2 => block,
        1 => any::<u64>(),
        2 => 0u64..100,
        1 => Just(1 << 63 | 1 << 60 | 1 | 4 << 16),
    ]
}
