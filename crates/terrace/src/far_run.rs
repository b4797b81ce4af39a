//! `run --dram --far`: an unmodified program whose heap and large mappings live in far memory.

use crate::allocate;
use crate::manage::{CommandStartError, ManageError};
use crate::parts;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_far::store::FileStore;
use terrace_far::tally::{FarTotals, TallyReader, WORDS};
use terrace_report::{FarHeader, FarSample};
use terrace_sys::{Allowance, CommandExit, Root, Runner, SharedTable, Uffd};
use terrace_types::{Bytes, Nanos};

/// Below this there is no free space for the pager's own buffers.
const LEAST: Bytes = Bytes::mib(4);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct FarSpec {
    /// Memory that may be used, by all processes of the run together.
    pub dram: Bytes,
    /// A folder, `compressed`, or a folder and `+compressed`.
    pub store: OsString,
}

/// A moment of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Since it began.
    pub elapsed: Duration,
    /// Sums so far.
    pub tally: FarTotals,
    /// In memory now.
    pub resident: Bytes,
}

/// A command that ran to its end.
#[derive(Debug)]
pub struct FarFinished {
    /// How long it took, and its sums.
    pub end: Moment,
    /// The most that was in memory.
    pub most: Bytes,
    /// What was asked for.
    pub dram: Bytes,
    /// How it ended.
    pub ended: CommandExit,
}

impl From<&Moment> for FarSample {
    fn from(now: &Moment) -> Self {
        let t = &now.tally;
        Self {
            at_ns: now.elapsed.as_nanos() as u64,
            resident_bytes: now.resident.get(),
            faults: t.faults,
            misses: t.misses,
            hits: t.hits,
            read_bytes: t.read,
            written_bytes: t.written,
            ahead_bytes: t.ahead,
            wasted_bytes: t.wasted,
            lost_bytes: t.lost,
            write_failures: t.write_failures,
            processes: t.processes,
        }
    }
}

/// The journal of a run: lines of JSON, for `terrace report`.
#[derive(Debug)]
pub struct FarJournal {
    file: std::io::BufWriter<std::fs::File>,
}

impl FarJournal {
    /// Makes it, with its first line.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn create(path: &Path, spec: &FarSpec, argv: &[OsString]) -> std::io::Result<Self> {
        let words: Vec<String> = argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        let header = FarHeader::new(
            words.join(" "),
            spec.store.to_string_lossy().into_owned(),
            spec.dram.get(),
        );
        let mut journal = Self { file: std::io::BufWriter::new(std::fs::File::create(path)?) };
        journal.line(&header)?;
        Ok(journal)
    }

    fn line(&mut self, what: &impl serde::Serialize) -> std::io::Result<()> {
        serde_json::to_writer(&mut self.file, what)?;
        self.file.write_all(b"\n")?;
        self.file.flush()
    }

    /// Adds a moment.
    ///
    /// # Errors
    /// A full disk, for example.
    pub fn add(&mut self, now: &Moment) -> std::io::Result<()> {
        self.line(&FarSample::from(now))
    }
}

impl FarFinished {
    /// One line for standard error.
    #[must_use]
    pub fn line(&self) -> String {
        let t = &self.end.tally;
        if t.processes == 0 {
            return format!(
                "far memory: not used: no process held 32 MiB, or half of {}",
                self.dram
            );
        }
        let several =
            if t.processes == 1 { String::new() } else { format!(", {} processes", t.processes) };
        let mut line = format!(
            "far memory: {} faults, {} of them waited for the store and {} found what was fetched \
                ahead; {} read, {} \
             written; prefetch {}; at most {} of {} resident{several}; {:.2} s",
            t.faults,
            t.misses,
            t.hits,
            Bytes(t.read),
            Bytes(t.written),
            accuracy(t),
            self.most,
            self.dram,
            self.end.elapsed.as_secs_f64()
        );
        if t.lost > 0 {
            line += &format!("; {} LOST", Bytes(t.lost));
        }
        if t.write_failures > 0 {
            line += &format!("; {} writes failed, their data stayed in memory", t.write_failures);
        }
        line
    }
}

fn accuracy(t: &FarTotals) -> String {
    t.accuracy().map_or("not used".to_owned(), |a| format!("{:.0}% of use", a * 100.0))
}

/// When lines about a running program appear on its terminal. Each is a line of its own: nobody but
/// the program knows where its cursor is, so that writing over a line, or clearing one, could erase
/// what the program wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineSchedule {
    next: Duration,
}

impl LineSchedule {
    /// What ends sooner needs no line.
    const FIRST: Duration = Duration::from_secs(2);
    /// Seldom enough to leave most of the terminal to the program.
    const EVERY: Duration = Duration::from_secs(10);

    /// A line is due at this time since the start; then none is for a while.
    pub fn is_due(&mut self, elapsed: Duration) -> bool {
        let due = elapsed >= self.next;
        if due {
            self.next = elapsed + Self::EVERY;
        }
        due
    }
}

impl Default for LineSchedule {
    fn default() -> Self {
        Self { next: Self::FIRST }
    }
}

/// The line of a moment, with rates since an earlier one.
#[must_use]
pub fn live(now: &Moment, before: &Moment) -> String {
    let span = (now.elapsed - before.elapsed).as_secs_f64().max(1e-3);
    let rate = |now: u64, before: u64| Bytes(((now - before) as f64 / span) as u64);
    let (t, b) = (&now.tally, &before.tally);
    format!(
        "far memory: {} resident; {:.0} faults/s, {:.0} hits/s; {}/s read, {}/s written; prefetch \
            {}",
        now.resident,
        (t.faults - b.faults) as f64 / span,
        (t.hits - b.hits) as f64 / span,
        rate(t.read, b.read),
        rate(t.written, b.written),
        accuracy(t)
    )
}

/// Reads a size such as `2G`, `512M`, `1.5GiB` or a number of bytes.
#[must_use]
pub fn size(text: &str) -> Option<Bytes> {
    let binary = text.strip_suffix(['K', 'M', 'G', 'T']).map(|_| format!("{text}iB"));
    let plain = || text.parse().ok().map(Bytes);
    terrace_machine::parse_bytes(binary.as_deref().unwrap_or(text)).or_else(plain)
}

/// Reads a size, or a share of the memory that this process can still have: `50%`.
#[must_use]
pub fn dram(text: &str) -> Option<Bytes> {
    let Some(percent) = text.strip_suffix('%') else {
        return size(text);
    };
    let percent = percent.parse::<u64>().ok().filter(|p| (1..=100).contains(p))?;
    Some(Bytes(Allowance::current(&Root::live()).memory.get() / 100 * percent))
}

/// Holds what is asked for against this machine.
fn check(spec: &FarSpec) -> Result<(), ManageError> {
    if spec.dram < LEAST {
        return Err(ManageError::Usage(format!("--dram {}: give at least {LEAST}", spec.dram)));
    }
    let uffd = Uffd::open().map_err(|e| ManageError::Lacking(e.to_string()))?;
    let able = uffd.features();
    if !able.kernel_faults {
        let why = "userfaultfd for this user sees faults of the program's own code only, and its \
            system calls into absent \
                   pages would fail: `sysctl vm.unprivileged_userfaultfd=1`, give this user \
                   /dev/userfaultfd, or run as root";
        return Err(ManageError::Lacking(why.to_owned()));
    }
    if !able.write_protect {
        return Err(ManageError::Lacking(
            "userfaultfd cannot write-protect: Linux 5.7 or later is needed".to_owned(),
        ));
    }
    match folder(&spec.store) {
        Some(folder) => {
            let made = FileStore::sparse(&[&folder], Bytes::mib(2));
            made.map(drop)
                .map_err(|e| ManageError::Usage(format!("--far {}: {e}", folder.display())))
        }
        None => Ok(()),
    }
}

/// The folder of a store, if it has one.
fn folder(store: &OsString) -> Option<PathBuf> {
    let bytes = store.as_bytes();
    if bytes == b"compressed" {
        return None;
    }
    let name = bytes.strip_suffix(b"+compressed").unwrap_or(bytes);
    Some(Path::new(std::ffi::OsStr::from_bytes(name)).to_owned())
}

fn environment(
    spec: &FarSpec,
    table: &SharedTable,
) -> Result<Vec<(&'static str, OsString)>, ManageError> {
    let preload = allocate::preload(parts::FAR_PRELOAD)?;
    let store = match folder(&spec.store) {
        None => spec.store.clone(),
        Some(folder) => {
            let reported =
                |e: std::io::Error| ManageError::Usage(format!("--far {}: {e}", folder.display()));
            let mut store = std::path::absolute(&folder).map_err(reported)?.into_os_string();
            if spec.store.as_bytes().ends_with(b"+compressed") {
                store.push("+compressed");
            }
            store
        }
    };
    let mut all = vec![
        ("LD_PRELOAD", preload),
        ("TERRACE_FAR_DRAM", spec.dram.0.to_string().into()),
        ("TERRACE_FAR_STORE", store),
    ];
    if let Some(path) = table.path() {
        all.push(("TERRACE_FAR_TALLY", path.into_os_string()));
    }
    Ok(all)
}

/// Runs a command with its memory far; `each` is given how it goes, some times a second.
///
/// # Errors
/// [`CommandStartError`]: asked for wrongly, this machine lacks what it takes
/// ([`ManageError::Lacking`]), or the command cannot be started.
pub fn run(
    spec: &FarSpec,
    argv: &[OsString],
    mut each: impl FnMut(&Moment),
) -> Result<FarFinished, CommandStartError> {
    check(spec).map_err(CommandStartError::Before)?;
    let table = SharedTable::create(WORDS);
    let table =
        table.map_err(|e| CommandStartError::Before(ManageError::Refused(e.to_string())))?;
    let environment = environment(spec, &table).map_err(CommandStartError::Before)?;
    let mut teller = TallyReader::new(table);
    let begun = Instant::now();
    let mut runner = Runner::start_with(argv, &environment).map_err(CommandStartError::Start)?;
    loop {
        let ended = runner.wait(Nanos::millis(200));
        let (tally, resident) = teller.read();
        let moment = Moment { elapsed: begun.elapsed(), tally, resident };
        match ended {
            Some(ended) => {
                return Ok(FarFinished { end: moment, most: teller.peak(), dram: spec.dram, ended })
            }
            None => each(&moment),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert!(dram("50%")
            .is_some_and(|half| half > Bytes::ZERO && half <= dram("100%").unwrap_or_default()));
        assert_eq!(
            (dram("2G"), dram("0%"), dram("101%"), dram("%")),
            (Some(Bytes::gib(2)), None, None, None)
        );
        assert_eq!(size("2G"), Some(Bytes::gib(2)));
        assert_eq!((size("1.5GiB"), size("4096")), (Some(Bytes::mib(1536)), Some(Bytes(4096))));
        assert_eq!((size("much"), size("-1G")), (None, None));
    }

    #[test]
    fn stores_name_their_folder_or_none() {
        assert_eq!(folder(&"compressed".into()), None);
        assert_eq!(folder(&"/a/b+compressed".into()), Some("/a/b".into()));
        assert_eq!(folder(&"x".into()), Some("x".into()));
    }

    #[test]
    fn too_little_memory_and_a_folder_that_is_not_there_are_said() {
        let spec = |dram, store: &str| FarSpec { dram, store: store.into() };
        assert!(matches!(check(&spec(Bytes::mib(1), "compressed")),
                Err(ManageError::Usage(w)) if w.contains("at least")));
        match check(&spec(Bytes::mib(64), "/no/such/folder")) {
            Err(ManageError::Usage(why)) => assert!(why.contains("/no/such/folder"), "{why}"),
            Err(ManageError::Lacking(why)) => println!("skipped: {why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_come_seldom_and_erase_nothing() {
        let mut schedule = LineSchedule::default();
        let due: Vec<u64> = (0..600)
            .map(|n| n * 50)
            .filter(|ms| schedule.is_due(Duration::from_millis(*ms)))
            .collect();
        assert_eq!(due, [2_000, 12_000, 22_000]);
        let now = Moment {
            elapsed: Duration::from_secs(2),
            tally: FarTotals::default(),
            resident: Bytes::mib(3),
        };
        let line = live(&now, &now);
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }

    #[test]
    fn the_lines_say_what_was_done() {
        let tally = FarTotals {
            faults: 300,
            hits: 20,
            read: 3 << 20,
            ahead: 100,
            wasted: 10,
            processes: 2,
            ..FarTotals::default()
        };
        let end = Moment { elapsed: Duration::from_secs(2), tally, resident: Bytes::mib(5) };
        let zero =
            Moment { elapsed: Duration::ZERO, tally: FarTotals::default(), resident: Bytes::ZERO };
        let line = live(&end, &zero);
        assert!(line.contains("150 faults/s") && line.contains("1.5 MiB/s read"), "{line}");
        let done = FarFinished {
            end,
            most: Bytes::mib(6),
            dram: Bytes::mib(8),
            ended: CommandExit::Code(0),
        };
        let line = done.line();
        assert!(
            line.contains("300 faults")
                && line.contains("90% of use")
                && line.contains("2 processes"),
            "{line}"
        );
        assert!(line.contains("at most 6 MiB of 8 MiB") && !line.contains("LOST"), "{line}");
        let none = FarFinished { end: zero, ..done };
        assert!(none.line().contains("not used"), "{}", none.line());
    }
}
