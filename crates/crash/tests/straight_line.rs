//! Straight-line programs whose images and rates are computed by hand.
#![allow(clippy::unwrap_used)]

use std::io::Cursor;
use std::ops::ControlFlow;
use terrace_cache::{HierarchySpec, LevelSpec};
use terrace_crash::flushes::region_flushes;
use terrace_crash::study::study;
use terrace_crash::{
    mark, CacheSetup, CrashSchedule, CrashSet, DataObject, FlushPlace, FlushPlan, ObjectKind,
    RegionFile, StudyError, StudyOptions,
};
use terrace_trace::{
    Access, CacheOperation, EventKind, TraceEvent, TraceHeader, TraceReader, TraceWriter,
};

/// A program as a recording.
struct Program {
    writer: TraceWriter<Vec<u8>>,
}

impl Program {
    fn new() -> Self {
        let header = TraceHeader { values: true, pcs: true, ..TraceHeader::default() };
        Self { writer: TraceWriter::new(Vec::new(), &header).unwrap() }
    }

    fn event(mut self, what: EventKind) -> Self {
        let time = self.writer.time(0);
        self.writer.event(&TraceEvent { time, process: 0, thread: 0, what }).unwrap();
        self
    }

    fn store(mut self, address: u64, value: &[u8]) -> Self {
        let size = value.len() as u32;
        let access = Access { address, size, store: true, gap: 1, pc: 0x40_0000, depends: 0 };
        self.writer.store(0, 0, &access, value).unwrap();
        self
    }

    fn load(mut self, address: u64) -> Self {
        let access = Access { address, size: 1, gap: 1, pc: 0x40_0000, ..Access::default() };
        self.writer.access(0, 0, &access).unwrap();
        self
    }

    fn mark(self, id: u32) -> Self {
        self.event(EventKind::Mark { id })
    }

    fn cache(self, operation: CacheOperation, address: u64) -> Self {
        self.event(EventKind::Cache { operation, address, pc: 0x40_0000 })
    }

    fn study(
        self,
        region: &RegionFile,
        setup: CacheSetup,
        schedule: CrashSchedule,
    ) -> Result<CrashSet, StudyError> {
        self.study_with(region, setup, schedule, Vec::new())
    }

    fn study_with(
        self,
        region: &RegionFile,
        setup: CacheSetup,
        schedule: CrashSchedule,
        flushes: Vec<FlushPlan>,
    ) -> Result<CrashSet, StudyError> {
        let bytes = self.writer.finish().unwrap();
        let mut reader = TraceReader::open(Cursor::new(bytes)).unwrap();
        let options = StudyOptions { setup, schedule, most: 1000, flushes };
        study(&mut reader, region, &options, &mut |_| ControlFlow::Continue(()))
    }
}

/// Two objects: eight bytes of ones that share a line with an iteration, and a line of twos.
fn region() -> RegionFile {
    let object = |name: &str, kind, address, bytes| DataObject {
        name: name.into(),
        element_type: "char".into(),
        kind,
        element_bytes: 1,
        address,
        bytes,
    };
    RegionFile {
        objects: vec![
            object("a", ObjectKind::Critical, 0x1000, 8),
            object("it", ObjectKind::Consistent, 0x1008, 4),
            object("b", ObjectKind::Critical, 0x2000, 64),
        ],
        content: [vec![1; 8], vec![0; 4], vec![2; 64]].concat(),
    }
}

/// One line of cache: whatever is stored next drives the last line out.
fn one_line() -> CacheSetup {
    let levels = vec![LevelSpec::new(64, 1, false)];
    CacheSetup::Levels(HierarchySpec { cores: 1, line: 64, levels })
}

fn images(set: &CrashSet) -> Vec<Vec<u8>> {
    let mut cursor = set.images.cursor();
    std::iter::from_fn(|| cursor.advance().map(<[u8]>::to_vec)).collect()
}

const EVERY: CrashSchedule = CrashSchedule::EachStore { period: 1 };

#[test]
fn a_line_reaches_memory_when_another_drives_it_out() {
    let program = Program::new()
        .mark(mark::START)
        .store(0x1000, &[9; 4])
        .store(0x2000, &[8; 8])
        .store(0x1004, &[7; 4])
        .mark(mark::END);
    let set = program.study(&region(), one_line(), EVERY).unwrap();
    let begin = region().content;
    // After the first store nothing has left; the second drives out a's line, the third b's.
    let mut second = begin.clone();
    second[..4].fill(9);
    let mut third = second.clone();
    third[12..20].fill(8);
    assert_eq!(images(&set), [begin, second, third]);
    let lost: Vec<Vec<u64>> = set.points.iter().map(|p| p.inconsistent_bytes.clone()).collect();
    assert_eq!(lost, [[4, 0, 0], [0, 0, 8], [4, 0, 0]]);
    assert!(set.points.iter().all(|p| p.dirty_lines == 1));
    // Two lines touched at most.
    let footprint: Vec<u64> = set.points.iter().map(|p| p.footprint_bytes).collect();
    assert_eq!(footprint, [64, 128, 128]);
    // Only what changed is kept: four bytes and eight (a's piece of its line is eight, it's four).
    assert_eq!(set.images.difference_bytes(), 8 + 64);
    assert_eq!((set.loads, set.stores, set.lines_written), (0, 3, 2));
}

#[test]
fn a_store_of_what_is_there_is_consistent() {
    let program = Program::new().mark(mark::START).store(0x2000, &[2; 16]).mark(mark::END);
    let set = program.study(&region(), one_line(), EVERY).unwrap();
    assert_eq!(set.points[0].inconsistent_bytes, [0, 0, 0]);
    assert_eq!((set.points[0].inconsistent_bytes_of_all, set.points[0].dirty_lines), (0, 1));
}

#[test]
fn flushes_bring_a_line_to_memory_and_the_iteration_is_read() {
    for operation in [CacheOperation::WriteBack, CacheOperation::Flush, CacheOperation::FlushWeak] {
        let program = Program::new()
            .mark(mark::START)
            .store(0x1000, &[9; 8])
            .store(0x1008, &3i32.to_le_bytes())
            .cache(operation, 0x1008)
            .store(0x2000, &[8; 4])
            .mark(mark::END);
        let set = program.study(&region(), CacheSetup::Unlimited { line: 64 }, EVERY).unwrap();
        let last = images(&set).pop().unwrap();
        let expected = [vec![9; 8], vec![3, 0, 0, 0], vec![2; 64]].concat();
        assert_eq!(last, expected, "{operation:?}");
        let done: Vec<i64> = set.points.iter().map(|p| p.iterations_done).collect();
        assert_eq!(done, [0, 3, 3]);
        // The value 3 has one byte that differs from 0.
        assert_eq!(set.points[1].inconsistent_bytes, [8, 1, 0]);
        assert_eq!(set.iterations, 3);
    }
}

#[test]
fn a_what_if_flushes_its_object_before_the_iteration() {
    for (period, held) in [(1, 8), (2, 2)] {
        let program = Program::new()
            .mark(mark::START)
            .store(0x2000, &[8; 4])
            .store(0x1008, &1i32.to_le_bytes())
            .cache(CacheOperation::WriteBack, 0x1008)
            .store(0x2000, &[9; 4])
            .mark(mark::END);
        let plan = vec![FlushPlan { object: 2, place: FlushPlace::IterationEnd, period }];
        let endless = CacheSetup::Unlimited { line: 64 };
        let set = program.study_with(&region(), endless, EVERY, plan).unwrap();
        let last = images(&set).pop().unwrap();
        assert_eq!((last[8], &last[12..16]), (1, [held; 4].as_slice()));
        assert_eq!(set.lines_written, 3 - period);
    }
}

/// Two phases of one store each, twice.
fn two_phases() -> Program {
    let step = |program: Program, value| {
        let first = program.mark(mark::PHASE + 1).store(0x2000, &[value; 4]);
        first.mark(mark::PHASE + 2).store(0x2004, &[value; 4])
    };
    step(step(Program::new().mark(mark::START), 8), 9).mark(mark::END)
}

#[test]
fn a_program_marks_its_phases() {
    let endless = CacheSetup::Unlimited { line: 64 };
    let set = two_phases().study(&region(), endless.clone(), EVERY).unwrap();
    let phases: Vec<Option<u32>> = set.points.iter().map(|p| p.marked_phase).collect();
    assert_eq!((phases, set.marked_phases), ([1, 2, 1, 2].map(Some).to_vec(), 2));
    // Each phase has as many crashes, whatever the schedule says of their number.
    let schedule = CrashSchedule::EachPhase { count: 10, seed: 1, phases: 7 };
    let set = two_phases().study(&region(), endless.clone(), schedule).unwrap();
    let first = set.points.iter().filter(|p| p.marked_phase == Some(1)).count();
    assert_eq!((first, set.points.len()), (10, 20));
    // Flushed where the second phase begins, each time or the second time: what the first phase
    // stored.
    for period in [1, 2] {
        let plan = vec![FlushPlan { object: 2, place: FlushPlace::PhaseBegin(2), period }];
        let set = two_phases().study_with(&region(), endless.clone(), EVERY, plan).unwrap();
        assert_eq!(images(&set).pop().unwrap()[12..20], [9, 9, 9, 9, 8, 8, 8, 8]);
        assert_eq!(set.lines_written, 3 - period);
    }
}

#[test]
fn flushes_of_a_region_are_the_programs_own_and_those_planned() {
    let program = two_phases().writer.finish().unwrap();
    let mut reader = TraceReader::open(Cursor::new(program)).unwrap();
    let plan = [FlushPlan { object: 2, place: FlushPlace::PhaseBegin(1), period: 2 }];
    let found = region_flushes(&mut reader, &region(), &plan, 64).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].thread, found[0].time, &found[0].addresses[..]), (0, 2, &[0x2000][..]));
    let program = Program::new().mark(mark::START).cache(CacheOperation::WriteBack, 0x1008);
    let program = program.store(0x1008, &[1]).mark(mark::END).writer.finish().unwrap();
    let mut reader = TraceReader::open(Cursor::new(program)).unwrap();
    let plan = [FlushPlan { object: 2, place: FlushPlace::IterationEnd, period: 1 }];
    let found = region_flushes(&mut reader, &region(), &plan, 64).unwrap();
    assert_eq!((found.len(), &found[0].addresses[..]), (1, &[0x2000, 0x1008][..]));
}

#[test]
fn a_crash_after_so_many_instructions_sees_what_was_executed_by_then() {
    // Stores at instructions 1, 2 and 3; by a seed, crashes fall after each of them.
    let program = Program::new()
        .mark(mark::START)
        .store(0x2000, &[3])
        .store(0x2000, &[4])
        .store(0x2000, &[5])
        .mark(mark::END);
    let schedule = CrashSchedule::Uniform { count: 64, seed: 1 };
    let set = program.study(&region(), CacheSetup::Uncached { line: 64 }, schedule).unwrap();
    assert_eq!(set.instructions, 3);
    let mut seen = [0; 3];
    for (point, image) in set.points.iter().zip(images(&set)) {
        assert_eq!(u64::from(image[12]), point.instruction + 2);
        seen[point.instruction as usize - 1] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    assert_eq!(seen.iter().sum::<i32>(), 64);
}

#[test]
fn a_study_is_broken_off_between_blocks() {
    let mut program = Program::new().mark(mark::START);
    for _ in 0..100_000 {
        program = program.store(0x2000, &[3]);
    }
    let program = program.mark(mark::END).writer.finish().unwrap();
    let mut reader = TraceReader::open(Cursor::new(program)).unwrap();
    let (setup, schedule, most) = (one_line(), CrashSchedule::EachFence, usize::MAX);
    let options = StudyOptions { setup, schedule, most, flushes: Vec::new() };
    let mut progress = Vec::new();
    let error = study(&mut reader, &region(), &options, &mut |done| {
        progress.push(done);
        if progress.len() < 2 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    assert!(matches!(error, Err(StudyError::Stopped)));
    assert!(0.0 < progress[0] && progress[0] < progress[1] && progress[1] < 1.0, "{progress:?}");
}

#[test]
fn what_cannot_be_studied_is_said() {
    let all = || Program::new().store(0x1000, &[1]);
    let error = all().study(&region(), one_line(), EVERY).unwrap_err();
    assert!(matches!(error, StudyError::NoRegion), "{error}");
    let empty = all().mark(mark::START).mark(mark::END);
    let error = empty.study(&region(), one_line(), EVERY).unwrap_err();
    assert!(matches!(error, StudyError::EmptyRegion), "{error}");
    let freed = all()
        .mark(mark::START)
        .load(0x1000)
        .event(EventKind::Unmap { start: 0x2000, length: 0x1000 })
        .load(0x1000)
        .mark(mark::END);
    let error = freed.study(&region(), one_line(), EVERY).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the memory of b is unmapped within the region, at instruction 1"
    );
    let endless = all().mark(mark::START).store(0x1000, &[4]);
    assert!(!endless.study(&region(), one_line(), EVERY).unwrap().ended);
    let one = Program::new().mark(mark::START).load(0x1000).mark(mark::END);
    let schedule = CrashSchedule::Uniform { count: 5, seed: 3 };
    let set = one.study(&region(), one_line(), schedule).unwrap();
    assert_eq!((set.points.len(), set.instructions), (5, 1));
}
