//! Where the phases of a region lie, for crashes of which each phase has as many.

use crate::mark;
use crate::outcome::phase_of;
use crate::points::draw;
use crate::recording::{visit_events, visit_process, AccessView, RecordingVisitor};
use crate::region::{DataObject, RegionFile};
use std::io::{Read, Seek};
use std::ops::ControlFlow;
use terrace_trace::{EventKind, TraceError, TraceReader};

/// Crashes by phase, as a schedule asks for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PhaseDraw {
    /// Crashes of each phase.
    pub count: u32,
    pub seed: u64,
    /// Phases of a program that marks none: equal parts of the iterations, or of the instructions
    /// where there are fewer iterations.
    pub phases: u32,
}

/// Iteration numbers, each with the instruction of the region behind which it holds.
struct IterationTimes<'a> {
    object: &'a DataObject,
    begin: u64,
    end: u64,
    raw: [u8; 8],
    within: bool,
    found: Vec<(u64, i64)>,
}

impl IterationTimes<'_> {
    fn now(&self) -> i64 {
        let whole = i64::from_le_bytes(self.raw);
        if self.object.bytes == 4 {
            i64::from(whole as i32)
        } else {
            whole
        }
    }
}

impl RecordingVisitor for IterationTimes<'_> {
    fn load(&mut self, _: &AccessView<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn store(&mut self, access: &AccessView<'_>) -> ControlFlow<()> {
        if access.time > self.end {
            return ControlFlow::Break(());
        }
        let start = self.object.address;
        let behind = access.address.saturating_add(access.value.len() as u64);
        if !self.within || access.address >= self.object.end() || behind <= start {
            return ControlFlow::Continue(());
        }
        for (address, byte) in (access.address..).zip(access.value) {
            let at = address.checked_sub(start).filter(|at| *at < self.object.bytes);
            if let Some(place) = at.and_then(|at| self.raw.get_mut(at as usize)) {
                *place = *byte;
            }
        }
        let now = self.now();
        if self.found.last().is_none_or(|(_, last)| *last != now) {
            self.found.push((access.time.saturating_sub(self.begin), now));
        }
        ControlFlow::Continue(())
    }

    fn event(&mut self, _: u32, _: u64, what: &EventKind) -> ControlFlow<()> {
        if matches!(what, EventKind::Mark { id: crate::mark::START }) && !self.within {
            self.within = true;
            self.found.push((0, self.now()));
        }
        ControlFlow::Continue(())
    }
}

/// Crashes of which each phase has as many, ascending: after so many instructions of the region.
///
/// # Errors
/// [`TraceError`].
pub(crate) fn phase_points<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    region: &RegionFile,
    (process, begin): (u32, u64),
    instructions: u64,
    how: PhaseDraw,
) -> Result<Vec<u64>, TraceError> {
    let marked = marked_segments(reader, (process, begin), instructions)?;
    if let Some(phases) = marked.iter().map(|s| s.phase + 1).max() {
        return Ok(draw_by_phase(&marked, PhaseDraw { phases, ..how }));
    }
    let mut found = Vec::new();
    if let Some(object) = region.iteration_object() {
        let mut raw = [0; 8];
        let before = region.objects.iter().take_while(|o| !std::ptr::eq(*o, object));
        let first: u64 = before.filter(|o| o.is_restored()).map(|o| o.bytes).sum();
        let content = region.content.get(first as usize..).unwrap_or(&[]);
        raw.iter_mut().zip(content.iter().take(object.bytes as usize)).for_each(|(r, c)| *r = *c);
        let end = begin.saturating_add(instructions);
        let mut times = IterationTimes { object, begin, end, raw, within: false, found };
        visit_process(reader, process, &mut times)?;
        found = times.found;
    }
    Ok(draw_by_phase(&segments(&found, instructions, how.phases), how))
}

/// Instructions of a phase, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PhaseSegment {
    phase: u32,
    first: u64,
    last: u64,
}

/// Which instructions belong to which of the phases that the program marks; none where it marks
/// none. What comes before the first mark belongs to the first phase.
fn marked_segments<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    (process, begin): (u32, u64),
    instructions: u64,
) -> Result<Vec<PhaseSegment>, TraceError> {
    let mut marks: Vec<(u64, u32)> = Vec::new();
    visit_events(reader, |event| {
        let EventKind::Mark { id } = event.what else { return };
        let at = event.time.checked_sub(begin).filter(|at| *at <= instructions);
        let phase = mark::phase(id).filter(|_| event.process == process);
        marks.extend(at.zip(phase));
    })?;
    marks.sort_by_key(|(at, _)| *at);
    let ends = marks.iter().skip(1).map(|(at, _)| at.saturating_sub(1)).chain([instructions]);
    let segment = |((at, phase), last): (&(u64, u32), u64)| PhaseSegment {
        phase: phase - 1,
        first: (*at).max(1),
        last,
    };
    let mut segments: Vec<PhaseSegment> = marks.iter().zip(ends).map(segment).collect();
    if let Some((first, _)) = marks.first() {
        segments.push(PhaseSegment { phase: 0, first: 1, last: first.saturating_sub(1) });
    }
    Ok(segments)
}

/// Which instructions belong to which phase. `found`: iterations done, ascending in time.
fn segments(found: &[(u64, i64)], instructions: u64, phases: u32) -> Vec<PhaseSegment> {
    let phases = phases.max(1);
    let all = found.last().map_or(0, |(_, done)| *done);
    if all < i64::from(phases) {
        let bound = |part: u32| {
            (u128::from(instructions) * u128::from(part)).div_ceil(u128::from(phases)) as u64
        };
        let part = |phase| PhaseSegment { phase, first: bound(phase) + 1, last: bound(phase + 1) };
        return (0..phases).map(part).collect();
    }
    let ends = found.iter().skip(1).map(|(time, _)| time.saturating_sub(1));
    let pairs = found.iter().zip(ends.chain([instructions]));
    pairs
        .map(|((time, done), last)| PhaseSegment {
            phase: phase_of(done.saturating_add(1), all, phases),
            first: (*time).max(1),
            last,
        })
        .collect()
}

/// Draws from each phase's instructions, with repetition; a phase without any has none.
fn draw_by_phase(segments: &[PhaseSegment], how: PhaseDraw) -> Vec<u64> {
    let (mut state, mut points) = (how.seed, Vec::new());
    for phase in 0..how.phases.max(1) {
        let own: Vec<_> =
            segments.iter().filter(|s| s.phase == phase && s.first <= s.last).collect();
        let length: u64 = own.iter().map(|s| s.last - s.first + 1).sum();
        for _ in 0..how.count {
            let scaled = (u128::from(draw(&mut state)) * u128::from(length)) >> 64;
            let mut at = scaled as u64;
            for segment in &own {
                let here = segment.last - segment.first + 1;
                if at < here {
                    points.push(segment.first + at);
                    break;
                }
                at -= here;
            }
        }
    }
    points.sort_unstable();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_as_many_crashes_whatever_its_length() {
        // Iterations 1 to 4 end after 10, 20, 30 and 900 of 1000 instructions.
        let found = [(0, 0), (10, 1), (20, 2), (30, 3), (900, 4)];
        let how = PhaseDraw { count: 50, seed: 3, phases: 2 };
        let points = draw_by_phase(&segments(&found, 1000, 2), how);
        let first = points.iter().filter(|at| (1..=19).contains(*at)).count();
        let second = points.iter().filter(|at| (20..=1000).contains(*at)).count();
        assert_eq!((first, second), (50, 50));
        // Fewer iterations than phases: equal parts of the instructions.
        let points = draw_by_phase(&segments(&found[..2], 1000, 4), PhaseDraw { phases: 4, ..how });
        let quarter = |at: &u64| (at - 1) * 4 / 1000;
        for phase in 0..4 {
            assert_eq!(points.iter().filter(|at| quarter(at) == phase).count(), 50, "{phase}");
        }
        // A region of one instruction.
        let how = PhaseDraw { count: 2, seed: 1, phases: 1 };
        assert_eq!(draw_by_phase(&segments(&[], 1, 1), how), [1, 1]);
    }
}
