//! `record`: every load and store of a program, by running it under an emulator with the capture
//! plugin or from a translator's code cache, or as its compiler's hooks tell them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use terrace_sys::{has_ended, CaptureArea, CaptureOptions, Ended, Runner, StartError, SysError};
use terrace_trace::capture::{Capture, Filter, Totals};
use terrace_trace::{Header, TraceError, TraceWriter};
use terrace_types::{Bytes, Nanos};

/// Threads that can be recorded at once.
const SLOTS: u32 = 256;
/// Words of a thread's ring: 2 MiB. With a quarter of that, a program that sleeps until half of its
/// ring is free wakes after the recorder has emptied it, and both wait for each other a quarter of
/// the time.
const RING_WORDS: u32 = 1 << 18;
/// Between looks at empty rings; a ring of this size takes a fast program longer to fill.
const PAUSE: Nanos = Nanos::micros(300);
/// After so many looks at nothing a slot's process is looked at: it may have died.
const LOOKS: u32 = 3000;

/// Who tells the loads and stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An emulator that the program runs under.
    Emulator,
    /// A translator that the program runs in (`capture/translator`).
    Translator,
    /// Hooks that the program was compiled with (`capture/hooks/terrace-cc`).
    Hooks,
}

/// What to record.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Who tells.
    pub source: Source,
    /// Name allocations of at least so many bytes; with [`Source::Hooks`] only.
    pub objects: Option<Bytes>,
    /// File to write.
    pub output: PathBuf,
    /// What to leave out.
    pub filter: Filter,
    /// Keep program counters.
    pub pcs: bool,
    /// Keep the values stored.
    pub values: bool,
    /// Begin when this function of the program is entered.
    pub begin_at: Option<String>,
    /// End when this function is entered.
    pub end_at: Option<String>,
}

/// Why a program was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The emulator or the plugin is missing, or what is asked for cannot be had from this source.
    #[error("{0}")]
    Lacking(String),
    /// The program cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The file cannot be made.
    #[error("cannot write {}: {source}; give another file with -o", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The trace cannot be begun.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The kernel refused something.
    #[error(transparent)]
    System(#[from] SysError),
}

/// A recorded run.
#[derive(Debug)]
pub struct Recorded {
    /// How the program ended, to end alike.
    pub ended: Ended,
    /// What was seen and kept.
    pub totals: Totals,
    /// Bytes of the trace.
    pub bytes: u64,
    /// What went wrong meanwhile, one sentence each.
    pub notes: Vec<String>,
}

impl Recorded {
    /// One line for standard error.
    #[must_use]
    pub fn line(&self, output: &Path) -> String {
        let t = &self.totals;
        let each = if t.kept > 0 { self.bytes as f64 / t.kept as f64 } else { 0.0 };
        format!(
            "recorded {} of {} loads and stores ({} loads, {} stores) of {} threads into {}: {} bytes, {each:.2} an access",
            t.kept,
            t.loads + t.stores,
            t.loads,
            t.stores,
            t.threads,
            output.display(),
            self.bytes
        )
    }
}

/// Runs `argv` and records it. The program's streams are its own; if recording fails meanwhile, it
/// runs on.
///
/// # Errors
/// [`RecordError`], only before the program starts.
pub fn record(spec: &Spec, argv: &[OsString]) -> Result<Recorded, RecordError> {
    spec.check()?;
    let (emulator, plugin) = match spec.source {
        Source::Emulator => (emulator()?, plugin()?),
        Source::Translator => (translator()?, PathBuf::new()),
        Source::Hooks => Default::default(),
    };
    let program = if spec.source == Source::Hooks { None } else { Some(Program::find(argv)?) };
    let output = |source| RecordError::Output { path: spec.output.clone(), source };
    let file = BufWriter::with_capacity(1 << 20, File::create(&spec.output).map_err(output)?);
    let filter = Filter { begins_later: spec.begin_at.is_some(), ..spec.filter.clone() };
    let mut writer = TraceWriter::new(file, &spec.header(argv))?;
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        // Begun with the first block, so after the program is started and signals to it are ours to
        // pass on.
        writer = writer.with_thread();
    }
    let capture = Capture::new(writer, filter, spec.values);
    let area = CaptureArea::create(&CaptureOptions {
        slots: SLOTS,
        ring_words: RING_WORDS,
        values: spec.values,
        begin_at: spec.begin_at.clone().unwrap_or_default(),
        end_at: spec.end_at.clone().unwrap_or_default(),
        emulator: emulator.clone(),
        plugin: plugin.clone(),
    })?;
    let mut runner = match program {
        Some(program) if spec.source == Source::Translator => {
            Runner::start(&program.translated(&emulator, &area.path()))?
        }
        Some(program) => Runner::start(&program.under(&emulator, &plugin, &area.path()))?,
        None => Runner::start_with(argv, &spec.environment(&area))?,
    };
    let mut recorder = Recorder::new(area, capture);
    let ended = loop {
        if recorder.take_all() {
            if let Some(ended) = runner.wait(Nanos::ZERO) {
                break ended;
            }
        } else if let Some(ended) = runner.wait(PAUSE) {
            break ended;
        }
    };
    Ok(recorder.finish(ended, spec))
}

impl Spec {
    /// What the hooks cannot give.
    fn check(&self) -> Result<(), RecordError> {
        let lacking = |why: &str| Err(RecordError::Lacking(why.to_owned()));
        match self.source {
            Source::Hooks if self.values => {
                lacking("hooks come before a store and do not know its value; use --source full")
            }
            Source::Hooks if self.pcs => {
                lacking("hooks do not tell where an instruction lies; use --source full")
            }
            Source::Translator if self.values => {
                lacking("the translator tells addresses and not yet values; use --source full")
            }
            Source::Emulator | Source::Translator if self.objects.is_some() => lacking(
                "objects are told by hooks only; compile with terrace-cc and use --source hooks",
            ),
            _ => Ok(()),
        }
    }

    fn header(&self, argv: &[OsString]) -> Header {
        let mut notes = self.filter.notes();
        for (name, what) in [(&self.begin_at, "began at"), (&self.end_at, "ended at")] {
            notes.extend(name.iter().map(|name| format!("recording {what} function {name}")));
        }
        if self.source == Source::Hooks {
            notes.push("instructions are not known: each load or store counts as one".into());
            notes.push("what libraries do is not seen, but for copying and filling memory".into());
        }
        Header {
            source: match self.source {
                Source::Emulator => "full",
                Source::Translator => "translated",
                Source::Hooks => "hooks",
            }
            .into(),
            command: argv.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            period: self.filter.period,
            page_size_bytes: terrace_sys::page_size().0,
            pcs: self.pcs,
            values: self.values,
            dependence: self.source != Source::Hooks,
            notes,
            ..Header::default()
        }
    }

    /// How the program finds the recorder.
    fn environment(&self, area: &CaptureArea) -> Vec<(&'static str, OsString)> {
        let mut set = vec![("TERRACE_HOOKS_AREA", area.path().into_os_string())];
        set.extend(
            self.objects.map(|least| ("TERRACE_HOOKS_OBJECTS", least.0.max(1).to_string().into())),
        );
        set
    }
}

/// The recorder's side of the shared memory.
struct Recorder {
    area: CaptureArea,
    /// Gone once writing has failed.
    capture: Option<Capture<BufWriter<File>>>,
    /// Words of each slot that could not be used yet, and how long nothing came.
    slots: Vec<(Vec<u64>, u32)>,
    /// What was seen and written when writing failed.
    reached: (Totals, u64),
    notes: Vec<String>,
}

impl Recorder {
    fn new(area: CaptureArea, capture: Capture<BufWriter<File>>) -> Self {
        let slots = (0..area.slots()).map(|_| (Vec::new(), 0)).collect();
        Self {
            area,
            capture: Some(capture),
            slots,
            reached: (Totals::default(), 0),
            notes: Vec::new(),
        }
    }

    /// Takes what there is; whether there was anything.
    fn take_all(&mut self) -> bool {
        let mut any = false;
        for slot in 0..self.area.slots() {
            match self.take(slot) {
                Ok(some) => any |= some,
                Err(error) => {
                    self.notes.push(format!("recording stopped early: {error}"));
                    self.area.stop();
                    if let Some(capture) = self.capture.take() {
                        self.reached = (capture.totals(), capture.written());
                    }
                }
            }
        }
        any
    }

    fn take(&mut self, slot: u32) -> Result<bool, TraceError> {
        let (words, idle) = &mut self.slots[slot as usize];
        let before = words.len();
        let Some(taken) = self.area.take(slot, words) else { return Ok(false) };
        let came = words.len() > before;
        *idle = if came { 0 } else { *idle + 1 };
        // A process that died by a signal, or by another thread's exit, did not say so in all its
        // slots.
        let died = !came && !taken.ended && *idle % LOOKS == 0 && has_ended(taken.pid);
        if let Some(capture) = &mut self.capture {
            if !words.is_empty() {
                let used = capture.feed(slot, words, (taken.ended || died) && !came)?;
                words.drain(..used);
            }
        } else {
            words.clear();
        }
        if (taken.ended && !came) || died {
            // What is left is a message that was cut off.
            words.clear();
            self.area.free(slot);
            if let Some(capture) = &mut self.capture {
                capture.close(slot)?;
            }
        }
        Ok(came)
    }

    fn finish(mut self, ended: Ended, spec: &Spec) -> Recorded {
        // Whoever the program left behind goes on, unrecorded.
        self.area.stop();
        while self.take_all() {}
        let unplaced = self.area.unplaced();
        if unplaced > 0 {
            self.notes.push(format!(
                "{unplaced} processes had threads beyond {SLOTS} at once, which were not recorded"
            ));
        }
        let escaped = self.area.escaped();
        if escaped > 0 {
            self.notes.push(format!(
                "{escaped} threads met code that the translator cannot run and went on unrecorded: what is recorded is not \
                 whole; use --source full"
            ));
        }
        let (mut totals, mut bytes) = self.reached;
        if let Some(capture) = self.capture.take() {
            (totals, bytes) = (capture.totals(), capture.written());
            let done = capture.finish().and_then(|(all, mut file)| {
                totals = all;
                file.flush().map_err(|source| TraceError::Write { offset: bytes, source })
            });
            match done {
                Ok(()) => bytes = std::fs::metadata(&spec.output).map_or(bytes, |m| m.len()),
                Err(error) => self.notes.push(format!("recording stopped early: {error}")),
            }
        }
        if let (Some(name), 0) = (&spec.begin_at, totals.begun) {
            self.notes.push(format!(
                "function {name} was not entered, or the program has no symbols: nothing was kept"
            ));
        }
        if spec.source == Source::Hooks && totals.threads == 0 {
            self.notes
                .push("the program has no hooks: compile and link it with terrace-cc, or use --source full".into());
        }
        if totals.nonsense > 0 {
            self.notes.push(format!(
                "{} words from the program made no sense and were left out",
                totals.nonsense
            ));
        }
        Recorded { ended, totals, bytes, notes: self.notes }
    }
}

/// A program as it will be started.
struct Program {
    /// The name it is to find as its own.
    name: Option<OsString>,
    words: Vec<OsString>,
}

impl Program {
    /// Finds the program as the shell would, and the interpreter of a script as the kernel would.
    fn find(argv: &[OsString]) -> Result<Self, StartError> {
        let (name, arguments) = argv.split_first().ok_or(StartError::Empty)?;
        let path = look_up(name)
            .ok_or_else(|| StartError::NotFound(name.to_string_lossy().into_owned()))?;
        let refused = |errno| StartError::NotExecutable {
            program: name.to_string_lossy().into_owned(),
            errno,
        };
        let usable =
            path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        if !usable {
            return Err(refused(13));
        }
        let mut head = Vec::new();
        let read = File::open(&path).and_then(|f| f.take(256).read_to_end(&mut head));
        read.map_err(|e| refused(e.raw_os_error().unwrap_or(13)))?;
        if let Some(rest) = head.strip_prefix(b"#!") {
            let line = rest.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
            let (interpreter, option) = match line.iter().position(|b| b.is_ascii_whitespace()) {
                Some(at) => (&line[..at], line[at..].trim_ascii()),
                None => (line, &b""[..]),
            };
            let mut words = vec![OsString::from_vec(interpreter.to_vec())];
            words.extend((!option.is_empty()).then(|| OsStr::from_bytes(option).to_owned()));
            words.push(path.into_os_string());
            words.extend_from_slice(arguments);
            return Ok(Self { name: None, words });
        }
        // 64-bit little-endian ELF for x86-64.
        if head.get(..6) != Some(b"\x7fELF\x02\x01") || head.get(18..20) != Some(&[62, 0]) {
            return Err(refused(8));
        }
        let mut words = vec![path.into_os_string()];
        words.extend_from_slice(arguments);
        Ok(Self { name: Some(name.clone()), words })
    }

    fn under(self, emulator: &Path, plugin: &Path, area: &Path) -> Vec<OsString> {
        let mut option = plugin.as_os_str().to_owned();
        option.push(",area=");
        option.push(area);
        let mut words: Vec<OsString> = vec![emulator.into(), "-plugin".into(), option];
        if let Some(name) = self.name {
            words.extend(["-0".into(), name]);
        }
        words.extend(self.words);
        words
    }

    fn translated(self, translator: &Path, area: &Path) -> Vec<OsString> {
        let name = self.name.unwrap_or_else(|| self.words[0].clone());
        let mut words: Vec<OsString> = vec![translator.into(), area.into(), name];
        words.extend(self.words);
        words
    }
}

fn look_up(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).exists().then(|| name.into());
    }
    let path = std::env::var_os("PATH")?;
    let usable = |p: &PathBuf| {
        p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(usable);
    found
}

/// The emulator, if it is there and takes plugins.
fn emulator() -> Result<PathBuf, RecordError> {
    const NAME: &str = "qemu-x86_64";
    let lacking = |why: &str| {
        let try_this =
            "run scripts/setup.sh --capture, or on Debian 12: sudo apt-get install --no-install-recommends qemu-user";
        RecordError::Lacking(format!(
            "record --source full needs {NAME} of QEMU 7.2 with plugins, {why}; {try_this}"
        ))
    };
    let path = look_up(OsStr::new(NAME)).ok_or_else(|| lacking("which is not installed"))?;
    let help = std::process::Command::new(&path).arg("-h").output();
    let takes_plugins = help.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("-plugin"));
    if takes_plugins {
        Ok(path)
    } else {
        Err(lacking("and the one installed takes none"))
    }
}

/// The plugin: `TERRACE_CAPTURE_PLUGIN`, beside this program, or where scripts/setup.sh puts it.
fn plugin() -> Result<PathBuf, RecordError> {
    installed("terrace-capture.so", "TERRACE_CAPTURE_PLUGIN", "full needs its plugin")
}

/// The translator: `TERRACE_TRANSLATOR`, or found as the plugin is.
fn translator() -> Result<PathBuf, RecordError> {
    installed("terrace-translate", "TERRACE_TRANSLATOR", "translated needs its translator")
}

fn installed(name: &str, variable: &str, what: &str) -> Result<PathBuf, RecordError> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join(name)));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let cache = cache.map(|folder| folder.join("terrace").join(name));
    let found = [named, beside, cache].into_iter().flatten().find(|p| p.is_file());
    found.and_then(|p| p.canonicalize().ok()).ok_or_else(|| {
        let try_this = format!("run scripts/setup.sh --capture, or set {variable}");
        RecordError::Lacking(format!(
            "record --source {what}, {name}, which is not built; {try_this}"
        ))
    })
}
