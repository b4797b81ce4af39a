//! What a recording lacks is in the file, and every reader finds it; and what programs and files
//! named cannot act on a terminal.
#![allow(clippy::unwrap_used)]

use terrace_trace::capture::{Capture, Filter};
use terrace_trace::{
    mend_checksums, Access, Info, TraceError, TraceHeader, TraceReader, TraceWriter,
};

const MESSAGE: u64 = 9 << 60;

fn open(bytes: &[u8]) -> TraceReader<std::io::Cursor<&[u8]>> {
    TraceReader::open(std::io::Cursor::new(bytes)).unwrap()
}

fn trace(omissions: &[&str]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    for i in 0..100 {
        let access = Access { address: 4096 + 8 * i, size: 8, gap: 1, ..Access::default() };
        writer.access(0, 0, &access).unwrap();
    }
    omissions.iter().for_each(|sentence| writer.omit(sentence));
    writer.finish().unwrap()
}

#[test]
fn every_reader_reports_omissions() {
    let bytes = trace(&["two threads ran unrecorded", "two threads ran unrecorded", "more"]);
    let mut reader = open(&bytes);
    assert!(reader.is_finished() && reader.damage().is_none() && !reader.is_complete());
    assert_eq!(reader.omissions(), ["two threads ran unrecorded", "more"], "each once");
    let info = Info::from_reader(&mut reader).unwrap();
    assert!(!info.complete && info.damage.is_empty());
    assert_eq!(info.notes, reader.shortcomings());
    assert!(info.text().contains("the recording is incomplete: two threads ran unrecorded\n"));
    let bytes = trace(&[]);
    let mut reader = open(&bytes);
    assert!(reader.is_complete() && reader.shortcomings().is_empty());
    assert!(Info::from_reader(&mut reader).unwrap().complete);
}

#[test]
fn a_file_that_ends_early_says_so_wherever_it_ends() {
    let bytes = trace(&["something"]);
    let head = 16 + u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
    for end in head..bytes.len() {
        let mut reader = open(&bytes[..end]);
        assert!(!reader.is_complete(), "cut at {end}");
        assert!(!reader.shortcomings().is_empty(), "cut at {end}");
        assert!(!Info::from_reader(&mut reader).unwrap().complete, "cut at {end}");
    }
    // The sentences themselves are damaged.
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut reader = open(&damaged);
    assert!(matches!(reader.damage(), Some(TraceError::Damaged { .. })) && !reader.is_complete());
    assert_eq!(Info::from_reader(&mut reader).unwrap().accesses, 100);
    // Nonsense with checksums that are right: the sentence and, before it, what says where it lies.
    let sentence = bytes.len() - "something\n".len();
    for at in sentence - 12..bytes.len() {
        let mut nonsense = bytes.clone();
        nonsense[at] = 0xff;
        mend_checksums(&mut nonsense);
        let reader = open(&nonsense);
        assert!(reader.omissions().iter().all(|o| !o.contains('\n')), "byte {at}");
        assert!(at < sentence || !reader.is_complete(), "byte {at}");
    }
}

#[test]
fn sentences_without_end_are_counted_and_cut() {
    let all: Vec<String> = (0..100).map(|i| format!("{i} {}", "long ".repeat(1000))).collect();
    let bytes = trace(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let reader = open(&bytes);
    assert_eq!(reader.omissions().len(), 33);
    assert_eq!(reader.omissions()[32], "68 further omissions are not named");
    assert!(reader.omissions().iter().all(|o| o.len() <= 600));
}

#[test]
fn programs_that_ran_unrecorded_are_named_by_the_recorder_s_words() {
    let writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
    let mut capture = Capture::new(writer, Filter::default(), false);
    let name = b"/bin/su (set-user-ID\n)";
    let mut words = vec![MESSAGE | 1 | 4 << 16, 100, 100, 0, 0, MESSAGE | 13 | 4 << 16, 22];
    words.extend(name.chunks(8).map(|c| {
        let mut word = [0; 8];
        word[..c.len()].copy_from_slice(c);
        u64::from_le_bytes(word)
    }));
    assert_eq!(capture.feed(0, &words, true).unwrap(), words.len());
    let bytes = capture.finish().unwrap().1;
    assert_eq!(open(&bytes).omissions(), ["/bin/su (set-user-ID?) ran unrecorded"]);
}

#[test]
fn nothing_of_a_recording_acts_on_a_terminal() {
    let escape = "\u{1b}[2J\u{202e}x\ny\u{7}";
    let header = TraceHeader {
        source: escape.into(),
        command: vec![escape.into(), "b".into()],
        notes: vec![escape.into()],
        ..TraceHeader::default()
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    writer.omit(escape);
    let bytes = writer.finish().unwrap();
    let text = Info::from_reader(&mut open(&bytes)).unwrap().text();
    let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(bad), "{text:?}");
    assert_eq!(text.lines().count(), 7, "no line of the recording's own: {text:?}");
}
