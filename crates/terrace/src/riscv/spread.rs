//! Elements in processes of their own that reach each other through shared memory: a program
//! starts itself once for each element, and ends all when one dies.

use super::apart::run_apart;
use super::elements::{ElementOptions, ElementsEnd, ElementsRun};
use super::{RiscvError, RiscvProgram};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use terrace_sys::{end_with_parent, make_rings, RingEndpoint, SharedFile};
use terrace_types::Pid;
use terrace_xbgas::transport::RingTransport;

/// Elements at most: each has a ring for each other.
pub const MOST_SPREAD_ELEMENTS: u32 = 256;
/// Tells an element's process where the rings are and which element it is.
const VARIABLE: &str = "TERRACE_XBGAS_RINGS";
/// How often processes are looked at: what an element's death costs the others.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long the others may take when one has ended, which tells them that the run is over. An
/// element itself waits 10 s for the others.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes for the status and the line by which an element's process ended; a line has one or two
/// hundred.
const LAST_WORDS: usize = 512;

/// Which element of a spread run this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpreadPlace {
    /// The process that started all, which has the rings.
    parent: Pid,
    /// Its descriptor of them.
    rings: i32,
    /// Its descriptor of the elements' last words.
    words: i32,
    /// The element.
    pub element: u32,
    /// Elements that there are.
    pub count: u32,
}

impl SpreadPlace {
    /// As [`start_elements`] passed it to this process; `None` where it did not start it.
    #[must_use]
    pub fn of_environment() -> Option<Self> {
        Self::parse(&std::env::var(VARIABLE).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(':').map(|word| word.parse::<i32>().ok());
        let mut next = || numbers.next().flatten().filter(|number| *number >= 0);
        let (parent, rings, words) = (Pid(next()?), next()?, next()?);
        let (element, count) = (next()? as u32, next()? as u32);
        (element < count && numbers.next().is_none()).then_some(Self {
            parent,
            rings,
            words,
            element,
            count,
        })
    }

    fn text(&self) -> String {
        let Self { parent, rings, words, element, count } = self;
        format!("{}:{rings}:{words}:{element}:{count}", parent.0)
    }

    /// A file of the process that started this one.
    fn open(&self, descriptor: i32) -> Result<File, RiscvError> {
        let path = PathBuf::from(format!("/proc/{}/fd/{descriptor}", self.parent));
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        opened.map_err(|source| RiscvError::Read { path, source })
    }

    /// Leaves word of why this element ended the run, for when element 0 cannot say it.
    fn leave_words(&self, status: u8, line: &str) {
        let mut words = vec![status];
        words.extend(line.bytes().take(LAST_WORDS - 2));
        let at = self.element as usize * LAST_WORDS;
        // Without them the run ends by a line that says less.
        let _ = self.open(self.words).and_then(|file| {
            let write = |source| RiscvError::Output { path: "last words".into(), source };
            file.write_all_at(&words, at as u64).map_err(write)
        });
    }
}

/// Runs this process's element. The process ends when the one that started it does.
///
/// # Errors
/// [`RiscvError`], before the program starts, or when the other elements go silent.
pub fn run_spread_element(
    program: &RiscvProgram,
    options: &ElementOptions,
    place: &SpreadPlace,
) -> Result<ElementsRun, RiscvError> {
    end_with_parent(place.parent)?;
    let endpoint = RingEndpoint::open(place.open(place.rings)?.into(), place.element, place.count)?;
    let run = run_apart(program, options, RingTransport::new(endpoint));
    match &run {
        Ok(run) if !matches!(run.end, ElementsEnd::Reported { .. }) => {
            if let (status, Some(line)) = run.status() {
                place.leave_words(status, &line);
            }
        }
        Ok(_) => {}
        Err(error) => place.leave_words(1, &format!("element {}: {error}", place.element)),
    }
    run
}

/// Starts a process for each element, by a program that calls [`run_spread_element`] and lets
/// element 0 say how the run ended; the status to end with, and a line where a process died.
/// No process is left afterwards.
///
/// # Errors
/// [`RiscvError::Read`] where the program cannot be started, [`RiscvError::System`] without memory.
pub fn start_elements(
    terrace: &Path,
    words: &[OsString],
    count: u32,
) -> Result<(u8, Option<String>), RiscvError> {
    let memory = make_rings(count)?;
    let last_words = SharedFile::unnamed(count as usize * LAST_WORDS)?;
    let (parent, rings) = (Pid(std::process::id() as i32), memory.fd().as_raw_fd());
    let last = last_words.fd().as_raw_fd();
    let mut children = Vec::new();
    for element in 0..count {
        let place = SpreadPlace { parent, rings, words: last, element, count };
        match Command::new(terrace).args(words).env(VARIABLE, place.text()).spawn() {
            Ok(child) => children.push(child),
            Err(source) => {
                end_all(&mut children);
                return Err(RiscvError::Read { path: terrace.into(), source });
            }
        }
    }
    let ended = wait_for_all(&mut children, |element| read_words(&last_words, element));
    end_all(&mut children);
    Ok(ended)
}

/// The status and the line that an element left; `None` where it left none.
fn read_words(words: &SharedFile, element: usize) -> Option<LastWords> {
    let file = File::from(words.fd().try_clone_to_owned().ok()?);
    let mut bytes = [0; LAST_WORDS];
    file.read_exact_at(&mut bytes, (element * LAST_WORDS) as u64).ok()?;
    let [status, line @ ..] = bytes;
    let length = line.iter().position(|byte| *byte == 0)?;
    let line = String::from_utf8_lossy(&line[..length]).into_owned();
    (!line.is_empty()).then_some(LastWords { status, line })
}

/// By what an element ended the run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastWords {
    status: u8,
    line: String,
}

fn end_all(children: &mut [Child]) {
    // All first: they end beside each other.
    for child in &mut *children {
        // It has ended already, or ends now; either is what is wanted.
        let _ = child.kill();
    }
    for child in children {
        let _ = child.wait();
    }
}

fn code(end: ExitStatus) -> u8 {
    end.code().unwrap_or(1) as u8
}

fn wait_for_all(
    children: &mut [Child],
    words_of: impl Fn(usize) -> Option<LastWords>,
) -> (u8, Option<String>) {
    let mut first_end: Option<(usize, Instant)> = None;
    loop {
        let mut ends: Vec<Option<ExitStatus>> = Vec::new();
        for (element, child) in children.iter_mut().enumerate() {
            match child.try_wait() {
                Ok(end) => ends.push(end),
                // As where this process was started with SIGCHLD ignored.
                Err(error) => {
                    let line = format!("element {element}: cannot wait for its process: {error}");
                    return (1, Some(line));
                }
            }
        }
        if let Some(first) = ends.iter().position(Option::is_some) {
            let (first, began) = *first_end.get_or_insert_with(|| (first, Instant::now()));
            let late = began.elapsed() > PATIENCE;
            let words = if late { (0..ends.len()).find_map(&words_of) } else { None };
            if let Some(ended) = end_of(&ends, first, late, words) {
                return ended;
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// How the run ended by how its processes did, and by what one of them left; `None` where it goes
/// on.
fn end_of(
    ends: &[Option<ExitStatus>],
    first: usize,
    late: bool,
    words: Option<LastWords>,
) -> Option<(u8, Option<String>)> {
    let killed = ends.iter().enumerate().find_map(|(n, end)| Some((n, end.as_ref()?.signal()?)));
    if let Some((element, signal)) = killed {
        let line = format!("element {element}: its process died by signal {signal}");
        return Some((128 + signal as u8, Some(line)));
    }
    let stuck = ends.iter().position(Option::is_none);
    match (ends.first().copied().flatten(), stuck) {
        // Element 0 says why itself, be it before or after the program started.
        (Some(end), _) if stuck.is_none() || late || code(end) != 0 => Some((code(end), None)),
        (None, Some(stuck)) if late => {
            let LastWords { status, line } = words.unwrap_or_else(|| {
                let status = ends[first].map_or(1, code);
                let line = format!("element {first}: its process ended with status {status}");
                LastWords { status: 1, line }
            });
            let line = format!(
                "{line}; the process of element {stuck} did not end within {} s; all were ended",
                PATIENCE.as_secs()
            );
            Some((status, Some(line)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_text_and_others_are_none() {
        let place = SpreadPlace { parent: Pid(17), rings: 3, words: 5, element: 2, count: 4 };
        assert_eq!(SpreadPlace::parse(&place.text()), Some(place));
        for wrong in ["", "17:3:5:2", "17:3:5:4:4", "17:3:5:2:4:5", "17:3:5:-1:4", "17:x:5:2:4"] {
            assert_eq!(SpreadPlace::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_run_ends_by_element_0_by_a_dead_process_or_late() {
        let exit = |code: i32| Some(ExitStatus::from_raw(code << 8));
        let end = |ends: &[Option<ExitStatus>], first, late| end_of(ends, first, late, None);
        assert_eq!(end(&[exit(0), exit(0)], 0, false), Some((0, None)));
        assert_eq!(end(&[exit(3), None], 0, false), Some((3, None)));
        assert_eq!(end(&[exit(0), None], 0, false), None);
        assert_eq!(end(&[None, exit(0), exit(1)], 2, false), None);
        let (status, line) = end(&[None, exit(0), exit(1)], 2, true).unwrap();
        let line = line.unwrap();
        assert!(status == 1 && line.contains("element 2: ") && line.contains("of element 0 did"));
        let dead = Some(ExitStatus::from_raw(9));
        let (status, line) = end(&[None, dead], 1, false).unwrap();
        let line = line.unwrap();
        assert!(status == 137 && line == "element 1: its process died by signal 9", "{line}");
    }

    #[test]
    fn what_an_element_left_is_said_where_element_0_hangs() {
        let words = SharedFile::unnamed(3 * LAST_WORDS).unwrap();
        assert_eq!((0..3).find_map(|element| read_words(&words, element)), None);
        let (parent, fd) = (Pid(std::process::id() as i32), words.fd().as_raw_fd());
        let place = SpreadPlace { parent, rings: fd, words: fd, element: 2, count: 3 };
        place.leave_words(139, &format!("element 2, at 0x1: {}", "x".repeat(LAST_WORDS)));
        assert_eq!(read_words(&words, 1), None);
        let left = read_words(&words, 2).unwrap();
        assert_eq!((left.status, left.line.len()), (139, LAST_WORDS - 2));
        let ends = [None, None, Some(ExitStatus::from_raw(0))];
        let (status, line) = end_of(&ends, 2, true, Some(left)).unwrap();
        let line = line.unwrap();
        assert!(status == 139 && line.starts_with("element 2, at 0x1: x"), "{line}");
        assert!(line.contains("x; the process of element 0 did not end"), "{line}");
    }
}
