//! The run-time library, built by Debian's cross compiler, on processing elements.

mod common;

use common::{compile, next, run_apart, run_with, try_at, ElementsRun, RunOptions};
use std::sync::OnceLock;
use terrace_riscv::memory::{READ, WRITE};
use terrace_types::Nanos;
use terrace_xbgas::clock::CoreOrder;
use terrace_xbgas::element::{ElementFault, ElementSchedule, ElementsEnd, ObjectFile};
use terrace_xbgas::execute::ExtendedTrap;
use terrace_xbgas::lookaside::{ObjectMemory, ObjectPlace};
use terrace_xbgas::message::ElementMessage;
use terrace_xbgas::network::ElementNetwork;
use terrace_xbgas::note::dialect_of_program;
use terrace_xbgas::protocol::{RemoteReply, RequestRefusal};
use terrace_xbgas::transport::{ElementTransport, MessageWait, TransportError};
use terrace_xbgas::Dialect;

/// `single.c` for 2018, compiled once; `None` without a compiler.
fn single() -> Option<&'static [u8]> {
    static FILE: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    FILE.get_or_init(|| compile("single.c", 2018)).as_deref()
}

/// `conform.c` for 2018, compiled once; `None` without a compiler.
fn conform() -> Option<&'static [u8]> {
    static FILE: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    FILE.get_or_init(|| compile("conform.c", 2018)).as_deref()
}

fn run(file: &[u8], words: &[&str], elements: u32) -> ElementsRun {
    run_with(file, words, elements, &RunOptions::of(elements))
}

const BYTES: usize = 16384;

/// The operations of `conform.c` on plain arrays, one for each element.
struct PlainElements {
    src: Vec<Vec<u8>>,
    dest: Vec<Vec<u8>>,
}

impl PlainElements {
    fn move_one(&mut self, width: usize, from: (usize, usize), to: (usize, usize)) {
        let value = self.src[from.0][from.1 * width..][..width].to_vec();
        self.dest[to.0][to.1 * width..][..width].copy_from_slice(&value);
    }

    fn value(&self, element: usize, width: usize, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(&self.src[element][at * width..][..width]);
        u64::from_le_bytes(bytes)
    }

    /// One round; the kind of operation.
    fn operate(&mut self, common: &mut u64) -> u64 {
        let n = self.src.len();
        let kind = next(common) % 11;
        let width = 1 << (next(common) % 4);
        let count = (next(common) % 40) as usize;
        let stride = 1 + (next(common) % 4) as usize;
        let shift = (next(common) % n as u64) as usize;
        let root = (next(common) % n as u64) as usize;
        let mut parts = Vec::new();
        let mut at = 0;
        for _ in 0..n {
            let part = (next(common) % 20) as usize;
            parts.push((at, part));
            at += part + (next(common) % 3) as usize;
        }
        for (pe, &(offset, part)) in parts.iter().enumerate() {
            let other = (pe + shift) % n;
            let strided = (0..count).map(|i| i * stride);
            match kind {
                0 | 2 => strided.for_each(|i| self.move_one(width, (pe, i), (other, i))),
                1 | 3 => strided.for_each(|i| self.move_one(width, (other, i), (pe, i))),
                4 => strided.for_each(|i| self.move_one(width, (root, i), (pe, i))),
                5 => (0..part).for_each(|i| self.move_one(width, (pe, i), (root, offset + i))),
                6 => (0..part).for_each(|i| self.move_one(width, (root, offset + i), (pe, i))),
                7 => (0..n * count).for_each(|i| {
                    self.move_one(width, (i / count, pe * count + i % count), (pe, i));
                }),
                _ if pe == root => strided.for_each(|i| {
                    let values = (0..n).map(|element| self.value(element, width, i));
                    let value = match kind {
                        8 => values.fold(0, u64::wrapping_add),
                        9 => values.fold(0, u64::max),
                        _ => values.fold(0, |a, b| a ^ b),
                    };
                    self.dest[root][i * width..][..width]
                        .copy_from_slice(&value.to_le_bytes()[..width]);
                }),
                _ => {}
            }
        }
        kind
    }
}

fn expected(seed: u64, rounds: usize, elements: usize) -> Vec<String> {
    let fill = |element: usize| {
        let mut own = seed ^ (element as u64 + 1) << 32;
        (0..BYTES).map(|_| next(&mut own) as u8).collect()
    };
    let mut plain = PlainElements {
        src: (0..elements).map(fill).collect(),
        dest: vec![vec![0; BYTES]; elements],
    };
    let mut printed = vec![String::new(); elements];
    let mut common = seed;
    for round in 0..rounds {
        let kind = plain.operate(&mut common);
        for (text, dest) in printed.iter_mut().zip(&plain.dest) {
            let hash = dest.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
            *text += &format!("{round} {kind} {hash:016x}\n");
        }
        std::mem::swap(&mut plain.src, &mut plain.dest);
    }
    printed
}

#[test]
fn random_operations_agree_with_plain_arrays() {
    let Some(first) = conform() else { return };
    // The revision differs from 2.0 in no instruction that the library uses.
    let second = compile("conform.c", 20).unwrap();
    assert_eq!(dialect_of_program(first), Ok(Some(Dialect::V2018)));
    assert_eq!(dialect_of_program(&second), Ok(Some(Dialect::V2_0)));
    for (file, dialect) in
        [(first, Dialect::V2018), (&second[..], Dialect::V2_0), (&second[..], Dialect::Rev)]
    {
        for (elements, seed, quantum) in
            [(1, 11_u64, 10_000), (2, 12, 37), (4, 13, 300), (8, 14, 50), (16, 15, 10_000)]
        {
            if dialect != Dialect::V2018 && elements != 4 {
                continue;
            }
            let mut options = RunOptions::of(elements);
            options.setup.schedule = ElementSchedule { quantum, seed };
            options.setup.dialect = dialect;
            let words = [seed.to_string(), "20".to_owned()];
            let words = [words[0].as_str(), words[1].as_str()];
            let run = run_with(file, &words, elements, &options);
            assert_eq!(run.end, ElementsEnd::Exit(0), "seed {seed}: {:?}", run.printed);
            let plain = expected(seed, 20, elements as usize);
            for (element, (printed, plain)) in run.printed.iter().zip(&plain).enumerate() {
                assert_eq!(printed, plain, "element {element} of {elements}, seed {seed}");
            }
            let remote: u64 = run.statistics.iter().map(|s| s.remote_loads).sum();
            assert_eq!(remote > 0, elements > 1);
        }
    }
}

#[test]
fn single_functions_do_what_their_header_says() {
    let Some(file) = single() else { return };
    for elements in [1, 2, 4, 8] {
        let hello = run(file, &["hello"], elements);
        assert_eq!(hello.end, ElementsEnd::Exit(0));
        for (element, printed) in hello.printed.iter().enumerate() {
            assert_eq!(*printed, format!("hello from {element} of {elements}\n"));
        }
        let figure = run(file, &["figure"], elements);
        let sum: u32 = (0..elements).map(|element| 100 + element).sum();
        assert_eq!(figure.printed, vec![format!("{sum}\n"); elements as usize]);
        // Element 0 reaches itself, too, and that is no remote access.
        assert_eq!(figure.statistics[0].remote_loads, u64::from(elements) - 1);
    }
    let symmetric = run(file, &["symmetric"], 2);
    let expected = "0x1000000000 0x1000001000 0x1000003000\n1 0 1 1\n1 1 0 0\n";
    assert_eq!(symmetric.printed, [expected, expected]);
    let accesses = run(file, &["accesses"], 1);
    assert_eq!(accesses.printed, ["-2 254 -2 65534 -2\nffffffffffff1235\n77\n"]);
}

#[test]
fn an_element_that_fails_ends_all() {
    let Some(file) = single() else { return };
    let fault = |name: &str| match run(file, &[name], 4).end {
        ElementsEnd::Fault { element: 1, thread: 0, pc, fault } if pc != 0 => fault,
        other => panic!("{name}: {other:?}"),
    };
    let reserved = ExtendedTrap::ReservedRegister { name: "eld", register: 9 };
    assert_eq!(fault("reserved"), ElementFault::Extended(reserved));
    assert_eq!(fault("object"), ElementFault::UnknownObject(99));
    assert_eq!(fault("nobody"), ElementFault::UnknownObject(u64::MAX));
    assert!(matches!(fault("bulk"), ElementFault::Illegal(_)));
    for (name, address) in [("unmapped", 0x40), ("truncated", 0x10_1000_0000)] {
        match fault(name) {
            ElementFault::Refused { element: 0, refusal: RequestRefusal::Memory(fault) } => {
                assert_eq!(fault.address, address);
            }
            other => panic!("{other:?}"),
        }
    }
    let end = run(file, &["exits"], 4).end;
    let expected = ElementsEnd::Stranded { waiting: vec![0, 2, 3], exited: Some((1, 3)) };
    assert_eq!(end, expected);
    let end = run(file, &["aborts"], 4).end;
    assert!(matches!(end, ElementsEnd::Signal { element: 1, signal: 6, .. }), "{end:?}");
}

#[test]
fn wrong_calls_of_the_library_end_all_and_say_which() {
    let Some(file) = single() else { return };
    for (name, what) in [
        ("heaps", "xbrtime_barrier: symmetric heaps differ"),
        ("counts", "xbrtime_long_gather: the counts are not nelems altogether"),
        ("atomic", "xbrtime_long_atomic_add: no such element"),
    ] {
        let run = run(file, &[name], 4);
        let ElementsEnd::Signal { element, signal: 6, .. } = run.end else {
            panic!("{name}: {:?}", run.end);
        };
        assert!(run.printed[element as usize].starts_with(what), "{name}: {:?}", run.printed);
    }
}

#[test]
fn every_function_of_every_type_agrees_with_its_own_reckoning() {
    let in_time = |options: RunOptions| {
        options.in_time("lab-cxl", CoreOrder::OutOfOrder, ElementNetwork::preset(Nanos(100)))
    };
    for (number, dialect, elements) in [
        (2018, Dialect::V2018, &[1, 2, 4, 8, 16][..]),
        (20, Dialect::V2_0, &[4]),
        (2024, Dialect::Rev, &[3]),
    ] {
        let Some(file) = compile("types.c", number) else { return };
        for &elements in elements {
            let mut options = RunOptions::of(elements);
            options.setup.dialect = dialect;
            options.setup.schedule = ElementSchedule { quantum: 40 * u64::from(elements), seed: 3 };
            let options = if elements == 4 { in_time(options) } else { options };
            let run = run_with(&file, &["5"], elements, &options);
            assert_eq!(run.end, ElementsEnd::Exit(0), "{elements}: {:?}", run.printed);
            for text in &run.printed {
                let checked = text.trim_end().strip_prefix("0 wrong of ");
                let checked: u32 = checked.and_then(|n| n.parse().ok()).expect(text);
                assert!(checked > 2500, "{text}");
            }
        }
    }
}

#[test]
fn objects_are_files_and_parts_of_memory() {
    let Some(program) = single() else { return };
    let read_write = READ | WRITE;
    let place =
        |memory, base, length, permissions| ObjectPlace { memory, base, length, permissions };
    let with = |name: &str, object, place| {
        let mut options = RunOptions::of(2);
        options.setup.files =
            vec![ObjectFile { bytes: 41_u64.to_le_bytes().repeat(2), element: 0 }];
        options.setup.objects.set(object, place);
        run_with(program, &[name], 2, &options)
    };
    let file = ObjectMemory::File(0);
    let run = with("file", 100, place(file, 0, 16, read_write));
    assert_eq!(run.printed, ["42\n", "42\n"]);
    assert_eq!(run.files, [[41_u64, 42].map(u64::to_le_bytes).concat()]);
    let end = |length, permissions| with("file", 100, place(file, 0, length, permissions)).end;
    let expect_fault = |end: ElementsEnd, expected: ElementFault| match end {
        ElementsEnd::Fault { element: 1, fault, .. } => assert_eq!(fault, expected),
        other => panic!("{other:?}"),
    };
    expect_fault(end(16, READ), ElementFault::Forbidden { object: 100, stored: true });
    expect_fault(
        end(15, read_write),
        ElementFault::Outside { object: 100, length: 15, address: 15 },
    );
    // The word that all know is where element 0's program has it.
    let word = symbol(program, "static_word");
    let part = place(ObjectMemory::Element(0), word, 8, READ);
    assert_eq!(with("part", 200, part).printed, ["40\n", "40\n"]);
    let outside = ElementFault::Outside { object: 200, length: 8, address: 11 };
    expect_fault(with("outside", 200, part).end, outside);
}

#[test]
fn bulk_transfers_of_the_revision_move_strided_elements() {
    let Some(file) = compile("single.c", 2024) else { return };
    let network = ElementNetwork::preset(Nanos(100));
    let mut options = RunOptions::of(3);
    options.setup.dialect = Dialect::Rev;
    for options in [options.clone(), options.in_time("lab-cxl", CoreOrder::InOrder, network)] {
        let run = run_with(&file, &["bulk"], 3, &options);
        assert_eq!(run.end, ElementsEnd::Exit(0));
        assert_eq!(run.printed, ["200 0 214 14 0\n", "0 0 14 114 0\n", "100 0 114 214 0\n"]);
    }
}

/// The address of a symbol, from the symbol table of a 64-bit ELF file.
fn symbol(file: &[u8], name: &str) -> u64 {
    let number = |at: usize, bytes: usize| {
        file[at..at + bytes].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    let section = |index: u64| (number(40, 8) + index * 64) as usize;
    for index in 0..number(60, 2) {
        let at = section(index);
        if number(at + 4, 4) != 2 {
            continue;
        }
        let (start, length) = (number(at + 24, 8), number(at + 32, 8));
        let names = number(section(number(at + 40, 4)) + 24, 8);
        for entry in (start..start + length).step_by(24) {
            let text = &file[(names + number(entry as usize, 4)) as usize..];
            if text.starts_with(name.as_bytes()) && text[name.len()] == 0 {
                return number(entry as usize + 8, 8);
            }
        }
    }
    panic!("no symbol {name}")
}

#[test]
fn permissions_and_dialects_are_checked() {
    let Some(file) = single() else { return };
    let mut options = RunOptions::of(2);
    options.setup.objects.set(2, ObjectPlace { permissions: READ, ..ObjectPlace::element(1) });
    let end = run_with(file, &["figure"], 2, &options).end;
    let forbidden = ElementFault::Forbidden { object: 2, stored: true };
    assert!(matches!(&end, ElementsEnd::Fault { fault, .. } if *fault == forbidden), "{end:?}");
    // In another dialect eaddie is a store, through a register that cannot extend an address.
    let mut options = RunOptions::of(2);
    options.setup.dialect = Dialect::V2_0;
    let end = run_with(file, &["figure"], 2, &options).end;
    assert!(matches!(end, ElementsEnd::Fault { .. }), "{end:?}");
}

#[test]
fn a_schedule_repeats_and_results_do_not_depend_on_it() {
    let Some(file) = conform() else { return };
    let run = |quantum, seed| {
        let mut options = RunOptions::of(4);
        options.setup.schedule = ElementSchedule { quantum, seed };
        run_with(file, &["99", "10"], 4, &options)
    };
    let (first, again, other) = (run(100, 5), run(100, 5), run(1, 6));
    assert_eq!(first.statistics, again.statistics);
    assert_eq!(first.printed, other.printed);
    assert_ne!(first.statistics, other.statistics);
}

#[test]
fn results_do_not_depend_on_time_and_time_repeats() {
    let Some(file) = conform() else { return };
    let network = ElementNetwork::preset(Nanos(100));
    for (elements, order) in
        [(1, CoreOrder::OutOfOrder), (3, CoreOrder::InOrder), (8, CoreOrder::OutOfOrder)]
    {
        let options = RunOptions::of(elements).in_time("lab-cxl", order, network);
        let run = || run_with(file, &["21", "12"], elements, &options);
        let (first, again) = (run(), run());
        assert_eq!(first.end, ElementsEnd::Exit(0));
        assert_eq!(first.printed, expected(21, 12, elements as usize), "{elements} {order:?}");
        assert_eq!(first.statistics, again.statistics);
        for (element, statistics) in first.statistics.iter().enumerate() {
            let time = statistics.time.expect("it has a clock");
            assert!(time.local_ps() > 0, "{element}");
            // An element alone misses its look-aside buffer once, which takes 80 ns.
            assert_eq!(time.remote_ps > 80_000, elements > 1, "{element}");
        }
    }
}

#[test]
fn elements_apart_agree_with_plain_arrays_and_end_together() {
    let (Some(file), Some(single)) = (conform(), single()) else { return };
    for (elements, seed, quantum) in [(1, 31_u64, 10_000), (2, 32, 300), (4, 33, 10_000)] {
        let mut options = RunOptions::of(elements);
        options.setup.schedule = ElementSchedule { quantum, seed };
        let run = run_apart(file, &[&seed.to_string(), "10"], elements, &options);
        let plain = expected(seed, 10, elements as usize);
        for (element, ((end, printed), plain)) in run.iter().zip(&plain).enumerate() {
            assert_eq!(end.end.status(), (0, None), "element {element}");
            assert_eq!(printed, plain, "element {element} of {elements}, seed {seed}");
        }
        // Element 0 knows what all did.
        for statistics in &run[0].0.statistics {
            assert_eq!(statistics.remote_loads > 0, elements > 1);
        }
    }
    // All end with the same line, which names the one at fault.
    for (name, elements, status, what) in [
        ("object", 4, 139, "element 1, thread 0, at 0x"),
        ("aborts", 2, 134, "element 1, thread 0, ended by signal 6"),
        ("truncated", 2, 139, "element 0 refuses: "),
        ("exits", 4, 3, "element 1 exited with status 3 while 3 others wait"),
    ] {
        let run = run_apart(single, &[name], elements, &RunOptions::of(elements));
        let (first, line) = run[0].0.end.status();
        let line = line.expect("a line");
        assert!(first == status && line.contains(what), "{name}: {first} {line}");
        assert!(run.iter().all(|(end, _)| end.end.status() == (first, Some(line.clone()))));
    }
}

/// Element 0 of two. The other answers each request with three bytes.
#[derive(Debug, Default)]
struct ShortReplies {
    asked: bool,
    /// What is sent to the other at the end.
    sent: std::rc::Rc<std::cell::RefCell<Vec<ElementMessage>>>,
}

impl ElementTransport for ShortReplies {
    fn element(&self) -> u32 {
        0
    }

    fn elements(&self) -> u32 {
        2
    }

    fn send(&mut self, _: u32, message: &ElementMessage) {
        match message {
            ElementMessage::Request { .. } => self.asked = true,
            other => self.sent.borrow_mut().push(other.clone()),
        }
    }

    fn receive(&mut self, _: MessageWait) -> Result<Option<(u32, ElementMessage)>, TransportError> {
        let reply = ElementMessage::Reply(Ok(RemoteReply::Bytes(vec![0; 3])));
        Ok(std::mem::take(&mut self.asked).then_some((1, reply)))
    }
}

#[test]
fn a_reply_that_does_not_fit_its_request_ends_all() {
    let Some(file) = single() else { return };
    let transport = ShortReplies::default();
    let sent = transport.sent.clone();
    let (end, _) = try_at(file, &["figure"], &RunOptions::of(2), transport);
    assert_eq!(end, Err(TransportError::WrongReply(1)));
    let line = Some(TransportError::WrongReply(1).to_string());
    let last = [ElementMessage::End { status: 1, line }, ElementMessage::Leave];
    assert!(sent.borrow().ends_with(&last), "{sent:?}");
}
