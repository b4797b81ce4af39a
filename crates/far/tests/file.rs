//! Files that are there as far memory, over the real kernel.
// a test may stop at the first surprise, in its helpers too
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use terrace_far::{Advice, FarError, FarMap, FarOptions, FileMapMode};
use terrace_types::Bytes;

const WORDS: usize = 3 << 20;
/// Beyond whole pages, and beyond whole words.
const REST: usize = 1234;

/// A folder of its own for each test, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("terrace-far-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn content() -> Vec<u8> {
    let word = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut all: Vec<u8> = (0..WORDS).flat_map(word).collect();
    all.extend((0..REST).map(|n| n as u8));
    all
}

fn map(path: &Path, access: FileMapMode) -> Option<FarMap> {
    match FarMap::of_file(path, access, Bytes::mib(6), &FarOptions::default()) {
        Ok(map) => Some(map),
        Err(FarError::Kernel(error)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn word(bytes: &[u8], n: usize) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes.iter().skip(8 * n)) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

#[test]
fn a_file_four_times_the_memory_is_read_and_changed() {
    let folder = Folder::new("changed");
    let path = folder.0.join("data");
    let mut expected = content();
    std::fs::write(&path, &expected).unwrap();
    let Some(map) = map(&path, FileMapMode::ReadWrite) else {
        return;
    };
    assert_eq!(
        (map.file_bytes(), map.len()),
        (Some(Bytes(expected.len() as u64)), (8 * WORDS).next_multiple_of(4096) + 4096)
    );
    let words = map.words();
    for (n, w) in words.iter().enumerate() {
        assert_eq!(w.load(Relaxed), word(&expected, n), "word {n}");
    }
    // Every third page is written: one half with zeros, which are data here, and the file's end
    // with more than there is of it.
    let last = expected.len() / 8;
    for n in (0..words.len()).filter(|n| n / 512 % 3 == 1 || *n >= last - 3) {
        let value = if n / 512 % 2 == 0 { 0 } else { !(n as u64) };
        words[n].store(value, Relaxed);
        let end = expected.len().min(8 * n + 8);
        if 8 * n < end {
            expected[8 * n..end].copy_from_slice(&value.to_le_bytes()[..end - 8 * n]);
        }
    }
    map.flush().unwrap();
    assert!(std::fs::read(&path).unwrap() == expected, "after flush");
    words[0].store(77, Relaxed);
    drop(map);
    expected[..8].copy_from_slice(&77_u64.to_le_bytes());
    assert!(
        std::fs::read(&path).unwrap() == expected,
        "what was written last is there when the map is gone"
    );
}

#[test]
fn what_is_read_only_can_be_read_only() {
    let folder = Folder::new("read-only");
    let path = folder.0.join("data");
    let expected = content();
    std::fs::write(&path, &expected).unwrap();
    let mut rights = std::fs::metadata(&path).unwrap().permissions();
    rights.set_readonly(true);
    std::fs::set_permissions(&path, rights).unwrap();
    let Some(map) = map(&path, FileMapMode::ReadOnly) else {
        return;
    };
    for (n, w) in map.words().iter().enumerate().step_by(97) {
        assert_eq!(w.load(Relaxed), word(&expected, n), "word {n}");
    }
    let start = format!("{:x}-", map.as_mut_ptr() as usize);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|l| l.starts_with(&start)).expect("its own mapping");
    assert!(line.contains(" r--p "), "{line}");
    let counts = map.statistics().counts;
    assert_eq!(counts.written_bytes, 0);
    drop(map);
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn what_is_no_file_is_refused_and_says_so() {
    let folder = Folder::new("refused");
    let (empty, cut) = (folder.0.join("empty"), folder.0.join("cut"));
    std::fs::write(&empty, []).unwrap();
    for (path, says) in
        [(&empty, "not empty"), (&folder.0, "file"), (&folder.0.join("none"), "file")]
    {
        let error =
            FarMap::of_file(path, FileMapMode::ReadWrite, Bytes::mib(6), &FarOptions::default())
                .unwrap_err()
                .to_string();
        assert!(error.contains(says) && error.contains(path.to_str().unwrap()), "{error}");
    }
    std::fs::write(&cut, content()).unwrap();
    if let Some(map) = map(&cut, FileMapMode::ReadWrite) {
        let error = map.advise(0..map.len(), Advice::Discard).unwrap_err();
        assert!(matches!(error, FarError::Kept { .. }), "{error}");
    }
}
