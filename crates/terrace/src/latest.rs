//! Finds the journal or recording in a folder that was written last, for `terrace report` without
//! an argument.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use terrace_report::FarRun;
use terrace_trace::MAGIC;

/// The first key of a journal's first line, which names the file's type.
const JOURNAL: &[u8] = b"{\"terrace_journal\"";

/// What of a file is read to tell its type.
const START_BYTES: u64 = 4096;

/// The ordinary file in `folder` that is a journal (of `run`, `attach`, `sim` or `run --far`) or a
/// recording and was written last; of two written at the same time, the first by name. Files that
/// cannot be read are passed over.
///
/// # Errors
/// `folder` cannot be read.
pub fn latest(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut best: Option<(SystemTime, PathBuf)> = None;
    for entry in std::fs::read_dir(folder)?.filter_map(Result::ok) {
        let path = entry.path();
        // A pipe would block the reader.
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        let Ok(written) = metadata.modified() else { continue };
        if !metadata.is_file() || !starts_as_document(&path) {
            continue;
        }
        let later = best
            .as_ref()
            .is_none_or(|(time, name)| written > *time || written == *time && path < *name);
        if later {
            best = Some((written, path));
        }
    }
    // "./run.jsonl" is no name a person would type.
    Ok(best.map(|(_, path)| path.strip_prefix(".").map(Path::to_owned).unwrap_or(path)))
}

fn starts_as_document(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(START_BYTES).read_to_end(&mut start));
    read.is_ok()
        && (start.starts_with(MAGIC) || start.starts_with(JOURNAL) || FarRun::looks_like(&start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn the_newest_journal_or_recording_is_found_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("terrace-latest-{}", std::process::id()));
        fs::create_dir_all(folder.join("run.jsonl.d")).unwrap();
        assert_eq!(latest(&folder).unwrap(), None);
        let write = |name: &str, bytes: &[u8], seconds: u64| {
            let path = folder.join(name);
            fs::write(&path, bytes).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let old = write("old.jsonl", b"{\"terrace_journal\":1,\"policy\":\"terrace\"}\n", 100);
        write("notes.txt", b"TERR", 900);
        write("page.html", b"<!doctype html>", 900);
        assert_eq!(latest(&folder).unwrap(), Some(old));
        let trace = write("b.trace", MAGIC, 200);
        assert_eq!(latest(&folder).unwrap(), Some(trace));
        let first = write("a.trace", MAGIC, 200);
        assert_eq!(latest(&folder).unwrap(), Some(first));
        assert!(latest(&folder.join("nowhere")).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
