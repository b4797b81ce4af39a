//! A recording's operations on persistent memory.

use super::{PersistentMapping, PersistentOperation, LINE};
use crate::mark;
use crate::recording::{visit_process, AccessView, RecordingVisitor};
use crate::region::{ImageLayout, RegionFile};
use crate::span::find_region;
use crate::study::StudyError;
use std::io::{Read, Seek};
use std::ops::ControlFlow;
use terrace_trace::{CacheOperation, EventKind, TraceReader};

/// Which part of a recording is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedSpan {
    /// From `start_crash()` to `end_crash()`.
    Region,
    /// From where a file is mapped to where it is unmapped, or to the process's end.
    Mapping(PersistentMapping),
}

/// What a part of a recording does to the objects that images contain, in the order of time; at
/// most `most` operations.
///
/// # Errors
/// [`StudyError`]; [`StudyError::TooLong`] where there are more.
pub fn collect_operations<R: Read + Seek>(
    reader: &mut TraceReader<R>,
    region: &RegionFile,
    span: &ObservedSpan,
    most: usize,
) -> Result<Vec<PersistentOperation>, StudyError> {
    if !reader.header().values {
        return Err(StudyError::NoValues);
    }
    let (process, mapping) = match span {
        ObservedSpan::Region => (find_region(reader)?.ok_or(StudyError::NoRegion)?.process, None),
        ObservedSpan::Mapping(mapped) => (mapped.process, Some(*mapped)),
    };
    let mut collector = Collector {
        layout: ImageLayout::new(&region.objects),
        mapping,
        most,
        within: false,
        too_long: false,
        last_store: 0,
        operations: Vec::new(),
    };
    visit_process(reader, process, &mut collector)?;
    if collector.too_long {
        return Err(StudyError::TooLong { most });
    }
    Ok(collector.operations)
}

struct Collector {
    layout: ImageLayout,
    /// Instead of marks.
    mapping: Option<PersistentMapping>,
    most: usize,
    within: bool,
    too_long: bool,
    /// Where the operations of the last store begin.
    last_store: usize,
    operations: Vec<PersistentOperation>,
}

impl Collector {
    fn push(&mut self, operation: PersistentOperation) -> ControlFlow<()> {
        if self.operations.len() >= self.most {
            self.too_long = true;
            return ControlFlow::Break(());
        }
        self.operations.push(operation);
        ControlFlow::Continue(())
    }

    fn operate(&mut self, operation: CacheOperation, address: u64, pc: u64) -> ControlFlow<()> {
        let line = address / LINE * LINE;
        let ordered = match operation {
            CacheOperation::StoreFence | CacheOperation::Fence => {
                // A fence right behind another changes nothing.
                if matches!(self.operations.last(), Some(PersistentOperation::Fence { .. }) | None)
                {
                    return ControlFlow::Continue(());
                }
                return self.push(PersistentOperation::Fence { pc });
            }
            CacheOperation::NonTemporal => {
                for operation in &mut self.operations[self.last_store..] {
                    if let PersistentOperation::Store { non_temporal, .. } = operation {
                        *non_temporal = true;
                    }
                }
                return ControlFlow::Continue(());
            }
            CacheOperation::WriteBackAll => {
                // WBINVD waits for its write-backs: all lines, in order.
                let mut order = super::PersistOrder::default();
                self.operations.iter().for_each(|o| drop(order.apply(o)));
                let first = |stores: &[usize]| match self.operations.get(*stores.first()?)? {
                    PersistentOperation::Store { address, .. } => Some(address / LINE * LINE),
                    _ => None,
                };
                let lines: Vec<u64> = order.pending().filter_map(first).collect();
                for address in lines {
                    self.push(PersistentOperation::Flush { address, ordered: true, pc })?;
                }
                return ControlFlow::Continue(());
            }
            CacheOperation::Flush => true,
            CacheOperation::WriteBack | CacheOperation::FlushWeak => false,
        };
        if !self.layout.overlaps(line, line + LINE) {
            return ControlFlow::Continue(());
        }
        self.push(PersistentOperation::Flush { address, ordered, pc })
    }
}

impl RecordingVisitor for Collector {
    fn load(&mut self, _: &AccessView<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn store(&mut self, access: &AccessView<'_>) -> ControlFlow<()> {
        let end = access.address.saturating_add(access.value.len() as u64);
        self.last_store = self.operations.len();
        if !self.within || !self.layout.overlaps(access.address, end) {
            return ControlFlow::Continue(());
        }
        for part in PersistentOperation::stores(access.address, access.value, false, access.pc) {
            self.push(part)?;
        }
        ControlFlow::Continue(())
    }

    fn event(&mut self, _: u32, _: u64, what: &EventKind) -> ControlFlow<()> {
        match (what, self.mapping) {
            (EventKind::Mark { id: mark::START }, None) => self.within = true,
            (EventKind::Mark { id: mark::END }, None) if self.within => {
                return ControlFlow::Break(())
            }
            (EventKind::Map { start, .. }, Some(mapped)) if *start == mapped.address => {
                self.within = true;
            }
            (EventKind::Unmap { start, length }, Some(mapped))
                if self.within && mapped.overlaps(*start, *length) =>
            {
                return ControlFlow::Break(())
            }
            (EventKind::Cache { operation, address, pc }, _) if self.within => {
                return self.operate(*operation, *address, *pc);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
