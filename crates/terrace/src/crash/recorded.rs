//! The one run of the program that is recorded, with the values it stores.

use super::mapped::create_run_folder;
use super::reference::ReferenceRun;
use super::workspace::Workspace;
use super::{describe_end, CrashError};
use crate::record::{record, CaptureMethod, RecordSpec};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_crash::RegionFile;
use terrace_sim::recording::RecordingSource;
use terrace_sim::Recording;
use terrace_sys::CommandExit;
use terrace_trace::capture::Filter;
use terrace_trace::TraceReader;
use terrace_types::Nanos;

/// What was recorded.
#[derive(Debug)]
pub struct RecordedRun {
    recording: PathBuf,
    region: PathBuf,
    /// The folder in which the program ran.
    pub folder: PathBuf,
    /// How long it took.
    pub wall: Nanos,
    /// What the recording lacks, one sentence each.
    pub notes: Vec<String>,
}

impl RecordedRun {
    /// Runs the program in a folder of its own and records it.
    pub fn make(reference: &ReferenceRun, workspace: &Workspace) -> Result<Self, CrashError> {
        let (region, recording) = (workspace.path("region"), workspace.path("recording.trace"));
        let folder = create_run_folder(workspace, "recorded", reference.own.as_ref())?;
        let output = workspace.create_file("recorded-output")?;
        let begun = terrace_sys::now();
        let recorded = record(
            &RecordSpec {
                source: CaptureMethod::Translator,
                objects: None,
                output: recording.clone(),
                filter: Filter::default(),
                pcs: true,
                values: true,
                begin_at: None,
                end_at: None,
                environment: vec![("TERRACE_CRASH_REGION", region.clone().into_os_string())],
                program_output: Some(Arc::new(output)),
                directory: Some(folder.clone()),
            },
            &reference.argv,
        )?;
        let wall = terrace_sys::now().since(begun);
        if recorded.ended != CommandExit::Code(0) {
            return Err(CrashError::Reference {
                how: format!("{} while it is recorded", describe_end(recorded.ended)),
                last_line: workspace.last_line("recorded-output"),
            });
        }
        let run = Self { recording, region, folder, wall, notes: recorded.notes };
        let is_whole = match run.open() {
            Ok(reader) => reader.is_finished(),
            // Not even its header was written, and the recorder said why.
            Err(_) if !run.notes.is_empty() => false,
            Err(error) => return Err(error),
        };
        if !is_whole {
            return Err(CrashError::CutShort { why: run.notes.join("; ") });
        }
        Ok(run)
    }

    /// The recording, from its begin.
    pub fn open(&self) -> Result<TraceReader<BufReader<File>>, CrashError> {
        let path = || self.recording.clone();
        let file = File::open(&self.recording)
            .map_err(|source| CrashError::Work { path: path(), source })?;
        Ok(TraceReader::open(BufReader::new(file))?)
    }

    /// The recording as the simulator takes it.
    pub fn simulated(&self) -> Result<Recording, CrashError> {
        let path = self.recording.clone();
        let open = move || {
            let file = File::open(&path)?;
            Ok(Box::new(BufReader::new(file)) as Box<dyn RecordingSource>)
        };
        Ok(Recording::new(Arc::new(open))?)
    }

    /// What the program said at the region's begin.
    pub fn region(&self) -> Result<RegionFile, CrashError> {
        match std::fs::read(&self.region) {
            Ok(bytes) => Ok(RegionFile::parse(&bytes)?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(CrashError::NoRegion),
            Err(source) => Err(CrashError::Work { path: self.region.clone(), source }),
        }
    }
}
