//! `record --source perf`: samples of a program's accesses by the processor, or by the lab's unit.

use super::RecordError;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use terrace_engine::{Mapping, MappingKind, SampleRequest, TrackError, Tracker};
use terrace_sys::{maps, now, CommandExit, Root, Runner};
use terrace_trace::{EventKind, SampleTotals, SampleTraceWriter, TraceError};
use terrace_track::{PerfSamples, PerfSettings, ProcessTree};
use terrace_types::{Nanos, Pid, Vpn, VpnRange};

/// Between two looks at the program's processes and mappings.
const WINDOW: Nanos = Nanos::millis(100);
/// Share of a core that sampling may take where no period is set.
const SHARE: f64 = 0.01;

/// What to record.
#[derive(Debug, Clone)]
pub struct SampledRecordSpec {
    /// File to write.
    pub output: PathBuf,
    /// Periods, event.
    pub settings: PerfSettings,
}

/// A recorded run.
#[derive(Debug)]
pub struct SampledRecording {
    /// How the program ended, to end alike.
    pub ended: CommandExit,
    /// Samples.
    pub totals: SampleTotals,
    /// What went wrong meanwhile, one sentence each.
    pub notes: Vec<String>,
}

impl SampledRecording {
    /// One line for standard error.
    #[must_use]
    pub fn line(&self, output: &Path) -> String {
        let SampleTotals { loads, stores, lost } = self.totals;
        format!(
            "recorded {} samples ({loads} loads, {stores} stores) into {}; {lost} were lost",
            loads + stores,
            output.display()
        )
    }
}

/// What is mapped in a process: start, end, protection, flags, offset in the file, name.
type MappedRanges = BTreeSet<(u64, u64, u32, u32, u64, String)>;

/// The recording, and what it knows of mappings.
struct SampledRecorder {
    root: Root,
    writer: SampleTraceWriter<BufWriter<File>>,
    mapped: BTreeMap<Pid, MappedRanges>,
}

impl SampledRecorder {
    /// Events for what was mapped and unmapped since the last look.
    fn look(&mut self, pid: Pid) -> Result<(), TraceError> {
        // A process that ends meanwhile has nothing mapped, and needs no events.
        let Ok(lines) = maps::maps(&self.root, pid) else { return Ok(()) };
        let range = |line: maps::MapLine| {
            const SHARED: u32 = 1;
            const PRIVATE: u32 = 2;
            const ANONYMOUS: u32 = 0x20;
            let protection =
                u32::from(line.read) | u32::from(line.write) << 1 | u32::from(line.exec) << 2;
            let flags = if line.shared { SHARED } else { PRIVATE }
                | if line.inode == 0 { ANONYMOUS } else { 0 };
            (line.start, line.end, protection, flags, line.offset, line.name)
        };
        let present: MappedRanges = lines.into_iter().map(range).collect();
        let before = self.mapped.entry(pid).or_default();
        for (start, end, ..) in before.difference(&present) {
            let what = EventKind::Unmap { start: *start, length: end - start };
            self.writer.event(pid.0, what)?;
        }
        for (start, end, protection, flags, offset, name) in present.difference(before) {
            let what = EventKind::Map {
                start: *start,
                length: end - start,
                protection: *protection,
                flags: *flags,
                name: name.clone(),
            };
            self.writer.mapped(pid.0, what, *offset)?;
        }
        *before = present;
        Ok(())
    }

    /// One window: whether the program has ended.
    fn window(
        &mut self,
        tracker: &mut PerfSamples,
        pids: &[Pid],
        runner: &mut Runner,
    ) -> Result<Option<CommandExit>, WindowError> {
        // The tracker keeps what these processes access, whatever the address.
        let range = VpnRange::new(Vpn(0), Vpn(0));
        let kind = MappingKind::Anonymous;
        let mappings: Vec<Mapping> =
            pids.iter().map(|pid| Mapping { pid: *pid, range, kind, writable: true }).collect();
        let ask = SampleRequest {
            interval: WINDOW,
            fine: Vec::new(),
            reads: true,
            writes: true,
            relaxed: false,
            quick_scan: false,
        };
        pids.iter().try_for_each(|pid| self.look(*pid))?;
        let lost = tracker.losses().lost;
        tracker.begin(&mappings, &ask)?;
        let ended = runner.wait(WINDOW);
        tracker.finish(now())?;
        let mut kept = tracker.take_samples();
        kept.samples.sort_by_key(|kept| kept.whole().time_ns);
        for sample in &kept.samples {
            self.writer.sample(&sample.whole(), sample.operation)?;
        }
        let first = pids.first().map_or(0, |pid| pid.0);
        self.writer.lost(first, tracker.losses().lost - lost + kept.left_out)?;
        Ok(ended)
    }
}

/// Why sampling ended early.
#[derive(Debug, thiserror::Error)]
enum WindowError {
    #[error(transparent)]
    Track(#[from] TrackError),
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Runs `argv` and samples its accesses. Its streams are its own; if sampling fails meanwhile, it
/// runs on.
///
/// # Errors
/// [`RecordError`], only before the program starts; [`RecordError::Lacking`] where nothing samples.
pub fn record_samples(
    spec: &SampledRecordSpec,
    argv: &[OsString],
) -> Result<SampledRecording, RecordError> {
    let root = Root::live();
    let mut tracker = PerfSamples::with_settings(root.clone(), SHARE, spec.settings)
        .map_err(|e| RecordError::Lacking(e.to_string()))?;
    tracker.keep_samples();
    let output = |source| RecordError::Output { path: spec.output.clone(), source };
    let file = BufWriter::new(File::create(&spec.output).map_err(output)?);
    let command = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let nodes = tracker.cpu_nodes().map(|(cpu, node)| (cpu, u32::from(node.0)));
    let notes = vec![format!("sampled by {}", tracker.event_names().join(", "))];
    let writer = SampleTraceWriter::new(file, command, nodes, notes)?;
    let mut recorder = SampledRecorder { root: root.clone(), writer, mapped: BTreeMap::new() };
    let mut runner = Runner::start(argv)?;
    let mut tree = ProcessTree::new(root, runner.pid());
    let mut notes = Vec::new();
    if spec.settings.callers && tracker.is_lab_unit() {
        notes.push("the lab's sampling unit keeps no call chains".to_owned());
    }
    let ended = loop {
        tree.update();
        let pids: Vec<Pid> = tree.pids().collect();
        match recorder.window(&mut tracker, &pids, &mut runner) {
            Ok(Some(ended)) => break ended,
            Ok(None) => {}
            Err(error) => {
                notes.push(format!("sampling ended early: {error}"));
                break runner.wait_to_end();
            }
        }
    };
    notes.extend(tracker.account());
    let totals = match recorder.writer.finish() {
        Ok((_, totals)) => totals,
        Err(error) => {
            notes.push(format!("{}: {error}", spec.output.display()));
            SampleTotals::default()
        }
    };
    Ok(SampledRecording { ended, totals, notes })
}
