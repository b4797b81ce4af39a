//! Elements in processes of their own that reach each other through shared memory: a program
//! starts itself once for each element, and ends all when one dies.

use super::elements::{prepare, write_back, ElementOptions, ElementsRun, PreparedElements};
use super::{RiscvError, RiscvProgram};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use terrace_sys::{end_with_parent, make_rings, RingEndpoint};
use terrace_types::Pid;
use terrace_xbgas::element::DistributedElement;
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

/// Which element of a spread run this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpreadPlace {
    /// The process that started all, which has the rings.
    parent: Pid,
    /// Its descriptor of them.
    rings: i32,
    /// The element.
    pub element: u32,
    /// Elements that there are.
    pub count: u32,
}

impl SpreadPlace {
    /// As [`start_elements`] told this process; `None` where it did not start it.
    #[must_use]
    pub fn of_environment() -> Option<Self> {
        Self::parse(&std::env::var(VARIABLE).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(':').map(|word| word.parse::<i32>().ok());
        let mut next = || numbers.next().flatten().filter(|number| *number >= 0);
        let (parent, rings) = (Pid(next()?), next()?);
        let (element, count) = (next()? as u32, next()? as u32);
        (element < count && numbers.next().is_none()).then_some(Self {
            parent,
            rings,
            element,
            count,
        })
    }

    fn text(&self) -> String {
        format!("{}:{}:{}:{}", self.parent.0, self.rings, self.element, self.count)
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
    let options = ElementOptions { count: place.count, ..options.clone() };
    let prepared = prepare(program, &options, place.element..place.element + 1)?;
    let PreparedElements { mut processes, mut setup, .. } = prepared;
    for file in setup.files.iter_mut().filter(|file| file.element != place.element) {
        file.bytes = Vec::new();
    }
    let path = PathBuf::from(format!("/proc/{}/fd/{}", place.parent, place.rings));
    let read = |source| RiscvError::Read { path: path.clone(), source };
    let rings = OpenOptions::new().read(true).write(true).open(&path).map_err(read)?;
    let endpoint = RingEndpoint::open(rings.into(), place.element, place.count)?;
    let started = Instant::now();
    let transport = RingTransport::new(endpoint);
    let mut element = DistributedElement::new(processes.remove(0), &setup, transport);
    let run = element.run()?;
    let elapsed_s = started.elapsed().as_secs_f64();
    if place.element == 0 {
        write_back(|file| element.file_bytes(file), &options.objects)?;
    }
    Ok(ElementsRun { end: run.end, elements: run.statistics, elapsed_s, recorded: None })
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
    let (parent, rings) = (Pid(std::process::id() as i32), memory.fd().as_raw_fd());
    let mut children = Vec::new();
    for element in 0..count {
        let place = SpreadPlace { parent, rings, element, count };
        match Command::new(terrace).args(words).env(VARIABLE, place.text()).spawn() {
            Ok(child) => children.push(child),
            Err(source) => {
                end_all(&mut children);
                return Err(RiscvError::Read { path: terrace.into(), source });
            }
        }
    }
    let ended = wait_for_all(&mut children);
    end_all(&mut children);
    Ok(ended)
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

fn wait_for_all(children: &mut [Child]) -> (u8, Option<String>) {
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
            if let Some(ended) = end_of(&ends, first, began.elapsed() > PATIENCE) {
                return ended;
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// How the run ended by how its processes did; `None` where it goes on.
fn end_of(ends: &[Option<ExitStatus>], first: usize, late: bool) -> Option<(u8, Option<String>)> {
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
            let status = ends[first].map_or(1, code);
            let line = format!(
                "element {first}: its process ended with status {status}, and that of element \
                 {stuck} did not within {} s; all were ended",
                PATIENCE.as_secs()
            );
            Some((1, Some(line)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_text_and_others_are_none() {
        let place = SpreadPlace { parent: Pid(17), rings: 3, element: 2, count: 4 };
        assert_eq!(SpreadPlace::parse(&place.text()), Some(place));
        for wrong in ["", "17:3:2", "17:3:4:4", "17:3:2:4:5", "17:3:-1:4", "17:x:2:4"] {
            assert_eq!(SpreadPlace::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_run_ends_by_element_0_by_a_dead_process_or_late() {
        let exit = |code: i32| Some(ExitStatus::from_raw(code << 8));
        assert_eq!(end_of(&[exit(0), exit(0)], 0, false), Some((0, None)));
        assert_eq!(end_of(&[exit(3), None], 0, false), Some((3, None)));
        assert_eq!(end_of(&[exit(0), None], 0, false), None);
        assert_eq!(end_of(&[None, exit(0), exit(1)], 2, false), None);
        let (status, line) = end_of(&[None, exit(0), exit(1)], 2, true).unwrap();
        let line = line.unwrap();
        assert!(status == 1 && line.contains("element 2: ") && line.contains("of element 0 did"));
        let dead = Some(ExitStatus::from_raw(9));
        let (status, line) = end_of(&[None, dead], 1, false).unwrap();
        let line = line.unwrap();
        assert!(status == 137 && line == "element 1: its process died by signal 9", "{line}");
    }
}
