//! One pass over a recording: caches with values, crashes, their images and rates.

use crate::flushes::{FlushPlan, PlannedFlushes};
use crate::images::ImageChain;
use crate::mark;
use crate::memory::{CacheSetup, CachedMemory, LostData};
use crate::phases::{phase_points, PhaseDraw};
use crate::points::{uniform_points, CrashSchedule};
use crate::recording::{visit_process, AccessView, RecordingVisitor};
use crate::region::{DataObject, RegionFile};
use crate::span::{find_region, RegionSpan};
use crate::stack::CallStack;
use serde::Serialize;
use std::io::{Read, Seek};
use std::ops::ControlFlow;
use std::path::PathBuf;
use terrace_cache::HierarchyError;
use terrace_trace::{CacheOperation, EventKind, TraceError, TraceReader};

/// How to study a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StudyOptions {
    /// The caches.
    pub setup: CacheSetup,
    /// The crashes.
    pub schedule: CrashSchedule,
    /// Crashes at most; the rest of a schedule is dropped.
    pub most: usize,
    /// What the program is taken to flush besides.
    pub flushes: Vec<FlushPlan>,
}

/// Why there is nothing to study.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The recording cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The caches cannot be built.
    #[error(transparent)]
    Caches(#[from] HierarchyError),
    /// No mapping of the file that is to be persistent.
    #[error(
        "the program never maps {} shared and writable; name the file that it maps",
        file.display()
    )]
    NotMapped {
        /// Which.
        file: PathBuf,
    },
    /// What lies where changes.
    #[error("the program maps {} {count} times; check one that maps it once", file.display())]
    SeveralMappings {
        /// Which.
        file: PathBuf,
        /// How often.
        count: usize,
    },
    /// No mark of the begin.
    #[error("the program never calls start_crash(), so there is no region to crash in")]
    NoRegion,
    /// Begin and end are one.
    #[error("the region between start_crash() and end_crash() has no load or store")]
    EmptyRegion,
    /// Values are missing.
    #[error("the recording has no values; record with --values")]
    NoValues,
    /// There is no moment at which something could be flushed.
    #[error("the program names no iteration; give an int to consistent_data() and flush it")]
    NoIteration,
    /// More operations than can be looked at one by one.
    #[error(
        "the region has more than {most} operations on persistent memory; check a shorter one"
    )]
    TooLong {
        /// How many can.
        most: usize,
    },
    /// Somebody asked to stop.
    #[error("stopped while the caches were simulated")]
    Stopped,
    /// An object's memory was given back.
    #[error("the memory of {object} is unmapped within the region, at instruction {time}")]
    FreedObject {
        /// Which.
        object: String,
        /// When, in instructions from the region's begin.
        time: u64,
    },
}

/// One crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CrashPoint {
    /// When, in instructions from the region's begin.
    pub instruction: u64,
    /// The thread that executed last, as the recording numbers it.
    pub thread: u32,
    /// The address of the last load or store, then of the calls around it, innermost first.
    pub call_path: Vec<u64>,
    /// The last iteration that was done, as cores see it.
    pub iterations_done: i64,
    /// The phase that the program marked last, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked_phase: Option<u32>,
    /// Bytes of each object that differ between caches and memory.
    pub inconsistent_bytes: Vec<u64>,
    /// The same of all memory.
    pub inconsistent_bytes_of_all: u64,
    /// Dirty lines of all memory.
    pub dirty_lines: u64,
    /// Memory used so far: lines touched, times their bytes.
    pub footprint_bytes: u64,
}

/// All crashes of a study.
#[derive(Debug)]
pub struct CrashSet {
    /// In order of time.
    pub points: Vec<CrashPoint>,
    /// An image for each.
    pub images: ImageChain,
    /// Threads that loaded or stored up to the region's end.
    pub threads: usize,
    /// Instructions of the region.
    pub instructions: u64,
    /// Loads of the region.
    pub loads: u64,
    /// Stores of the region.
    pub stores: u64,
    /// Lines written to memory within the region.
    pub lines_written: u64,
    /// Iterations done at the region's end.
    pub iterations: i64,
    /// The highest of the phases that the program marks; 0 where it marks none.
    pub marked_phases: u32,
    /// Whether the end was seen; else the program ended within the region.
    pub ended: bool,
}

/// Called with how much is done, from 0 to 1; breaks a study off.
pub type StudyProgress<'a> = dyn FnMut(f64) -> ControlFlow<()> + 'a;

/// Studies a recording with values. `region`: what the program said at `start_crash()`.
///
/// # Errors
/// [`StudyError`].
pub fn study<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    region: &RegionFile,
    options: &StudyOptions,
    progress: &mut StudyProgress<'_>,
) -> Result<CrashSet, StudyError> {
    if !reader.header().values {
        return Err(StudyError::NoValues);
    }
    let span = find_region(reader)?.ok_or(StudyError::NoRegion)?;
    let last = reader.blocks().iter().filter(|b| b.process == span.process).map(|b| b.last_time);
    let end = span.end.or_else(|| last.max()).unwrap_or(span.begin);
    let instructions = end.saturating_sub(span.begin);
    if instructions == 0 {
        return Err(StudyError::EmptyRegion);
    }
    let due = match &options.schedule {
        CrashSchedule::Uniform { count, seed } => uniform_points(*count, *seed, instructions),
        CrashSchedule::EachPhase { count, seed, phases } => {
            let how = PhaseDraw { count: *count, seed: *seed, phases: *phases };
            phase_points(reader, region, (span.process, span.begin), instructions, how)?
        }
        _ => Vec::new(),
    };
    let memory = CachedMemory::new(&options.setup)?;
    let mut pass = Pass {
        region,
        options,
        span,
        end,
        due,
        next_due: 0,
        images: ImageChain::new(&region.objects, &memory),
        memory,
        threads: Vec::new(),
        current: 0,
        points: Vec::new(),
        place: Place::Before,
        last: (0, 0),
        iterations: 0,
        marked_phase: None,
        marked_phases: 0,
        loads: 0,
        stores: 0,
        lines_before: 0,
        flushes: PlannedFlushes::new(region, &options.flushes, options.setup.line_bytes()),
        freed: None,
        progress,
        stopped: false,
    };
    visit_process(reader, span.process, &mut pass)?;
    pass.finish(instructions)
}

/// Where the pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    Within,
    Behind,
}

/// A pass over a recording.
struct Pass<'a> {
    region: &'a RegionFile,
    options: &'a StudyOptions,
    span: RegionSpan,
    end: u64,
    due: Vec<u64>,
    next_due: usize,
    memory: CachedMemory,
    images: ImageChain,
    /// Threads in the order in which they appear: each has the core of its place.
    threads: Vec<(u32, CallStack)>,
    /// The place of the thread seen last.
    current: usize,
    points: Vec<CrashPoint>,
    place: Place,
    /// Thread and address of the last instruction that loaded or stored.
    last: (u32, u64),
    iterations: i64,
    /// The phase that was marked last, and the highest.
    marked_phase: Option<u32>,
    marked_phases: u32,
    loads: u64,
    stores: u64,
    lines_before: u64,
    flushes: PlannedFlushes<'a>,
    freed: Option<(String, u64)>,
    progress: &'a mut StudyProgress<'a>,
    /// It was broken off.
    stopped: bool,
}

impl Pass<'_> {
    /// The place of a thread, which is its core.
    #[inline]
    fn place_of(&mut self, thread: u32) -> usize {
        if self.threads.get(self.current).is_some_and(|(number, _)| *number == thread) {
            return self.current;
        }
        let known = self.threads.iter().position(|(number, _)| *number == thread);
        self.current = known.unwrap_or_else(|| {
            self.threads.push((thread, CallStack::default()));
            self.threads.len() - 1
        });
        self.current
    }

    /// The region begins: what the program said of its objects holds now.
    fn begin(&mut self) {
        self.place = Place::Within;
        let mut at = 0;
        for object in self.region.objects.iter().filter(|o| o.is_restored()) {
            let end = at + object.bytes as usize;
            self.memory.preset(object.address, &self.region.content[at..end]);
            at = end;
        }
        self.memory.watch(&self.region.objects);
        self.images = ImageChain::new(&self.region.objects, &self.memory);
        self.iterations = self.read_iterations();
        self.lines_before = self.memory.lines_written();
    }

    fn read_iterations(&self) -> i64 {
        let Some(object) = self.region.iteration_object() else { return 0 };
        let mut raw = [0; 8];
        self.memory.read_coherent(object.address, &mut raw[..object.bytes as usize]);
        let whole = i64::from_le_bytes(raw);
        if object.bytes == 4 {
            i64::from(whole as i32)
        } else {
            whole
        }
    }

    /// Crashes that are due before something that happens at `time`.
    #[inline]
    fn crash_before(&mut self, time: u64) {
        while self
            .due
            .get(self.next_due)
            .is_some_and(|due| self.span.begin.saturating_add(*due) < time)
        {
            let instruction = self.due[self.next_due];
            self.next_due += 1;
            self.crash(instruction);
        }
    }

    fn crash(&mut self, instruction: u64) {
        if self.points.len() >= self.options.most {
            return;
        }
        let written = self.memory.take_written();
        self.images.push(&self.memory, &written);
        let (all, each): (LostData, _) = self.memory.lost(&self.region.objects);
        let (thread, pc) = self.last;
        let mut call_path = vec![pc];
        let stack = self.threads.iter().find(|(number, _)| *number == thread);
        call_path.extend(stack.map(|(_, stack)| stack.calls()).unwrap_or_default());
        self.points.push(CrashPoint {
            instruction,
            thread,
            call_path,
            iterations_done: self.read_iterations(),
            marked_phase: self.marked_phase,
            inconsistent_bytes: each,
            inconsistent_bytes_of_all: all.inconsistent_bytes,
            dirty_lines: all.dirty_lines,
            footprint_bytes: self.memory.footprint_bytes(),
        });
    }

    /// A crash now, where the schedule follows what the program does.
    fn crash_now(&mut self, time: u64) {
        self.crash(time.saturating_sub(self.span.begin));
    }

    /// What-ifs flush their objects before an event.
    fn apply_flush_plans(&mut self, core: usize, what: &EventKind) {
        let line_bytes = self.memory.line_bytes();
        for line in self.flushes.lines_before(what) {
            self.memory.operate(core, CacheOperation::WriteBack, line * line_bytes);
        }
    }

    fn check_freed(&mut self, what: &EventKind, time: u64) {
        let (start, length) = match what {
            EventKind::Unmap { start, length } => (*start, *length),
            EventKind::Remap { from, old_length, .. } => (*from, *old_length),
            _ => return,
        };
        let end = start.saturating_add(length);
        let gone = |o: &&DataObject| o.bytes > 0 && o.address < end && start < o.end();
        if let Some(object) = self.region.objects.iter().find(gone) {
            self.freed = Some((object.name.clone(), time.saturating_sub(self.span.begin)));
        }
    }

    fn finish(mut self, instructions: u64) -> Result<CrashSet, StudyError> {
        if self.stopped {
            return Err(StudyError::Stopped);
        }
        if let Some((object, time)) = self.freed {
            return Err(StudyError::FreedObject { object, time });
        }
        if self.place == Place::Within {
            self.crash_before(u64::MAX);
            self.iterations = self.read_iterations();
        }
        if self.loads + self.stores == 0 {
            return Err(StudyError::EmptyRegion);
        }
        Ok(CrashSet {
            points: self.points,
            images: self.images,
            threads: self.threads.len(),
            instructions,
            loads: self.loads,
            stores: self.stores,
            lines_written: self.memory.lines_written() - self.lines_before,
            iterations: self.iterations,
            marked_phases: self.marked_phases,
            ended: self.span.end.is_some(),
        })
    }
}

impl RecordingVisitor for Pass<'_> {
    fn load(&mut self, access: &AccessView<'_>) -> ControlFlow<()> {
        let core = self.place_of(access.thread);
        if self.place == Place::Within {
            self.crash_before(access.time);
            self.loads += 1;
            self.last = (access.thread, access.pc);
        }
        if access.size == 8 {
            self.threads[core].1.load(access.address);
        }
        self.memory.load(core, access.address, access.size);
        ControlFlow::Continue(())
    }

    fn store(&mut self, access: &AccessView<'_>) -> ControlFlow<()> {
        let core = self.place_of(access.thread);
        if self.place == Place::Within {
            self.crash_before(access.time);
            self.stores += 1;
            self.last = (access.thread, access.pc);
        }
        if let Ok(value) = access.value.try_into() {
            let stack = &mut self.threads[core].1;
            stack.store(access.pc, access.address, u64::from_le_bytes(value));
        }
        self.memory.store(core, access.address, access.value);
        if self.place == Place::Within {
            match &self.options.schedule {
                CrashSchedule::EachStore { period } if self.stores % period.max(&1) == 0 => {
                    self.crash_now(access.time);
                }
                CrashSchedule::EachIteration => {
                    let now = self.read_iterations();
                    if std::mem::replace(&mut self.iterations, now) != now {
                        self.crash_now(access.time);
                    }
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }

    fn reached(&mut self, time: u64) -> ControlFlow<()> {
        let length = (self.end - self.span.begin).max(1) as f64;
        let flow = (self.progress)((time.saturating_sub(self.span.begin) as f64 / length).min(1.0));
        self.stopped |= flow.is_break();
        flow
    }

    fn event(&mut self, thread: u32, time: u64, what: &EventKind) -> ControlFlow<()> {
        match what {
            EventKind::Mark { id: mark::START } if self.place == Place::Before => self.begin(),
            EventKind::Mark { id: mark::END } if self.place == Place::Within => {
                self.crash_before(u64::MAX);
                self.iterations = self.read_iterations();
                self.place = Place::Behind;
                return ControlFlow::Break(());
            }
            EventKind::Mark { id } if self.place == Place::Within => {
                let Some(phase) = mark::phase(*id) else { return ControlFlow::Continue(()) };
                self.crash_before(time);
                let core = self.place_of(thread);
                self.apply_flush_plans(core, what);
                self.marked_phase = Some(phase);
                self.marked_phases = self.marked_phases.max(phase);
            }
            EventKind::Cache { operation, address, .. } => {
                use CacheOperation::{Fence, StoreFence};
                if self.place == Place::Within {
                    // An operation at the time of a crash belongs to the instruction before it.
                    self.crash_before(time);
                    let fence = matches!(operation, Fence | StoreFence);
                    if fence && self.options.schedule == CrashSchedule::EachFence {
                        self.crash_now(time);
                    }
                }
                let core = self.place_of(thread);
                if self.place == Place::Within {
                    self.apply_flush_plans(core, what);
                }
                self.memory.operate(core, *operation, *address);
            }
            other if self.place == Place::Within => {
                self.check_freed(other, time);
                if self.freed.is_some() {
                    return ControlFlow::Break(());
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
