//! Where the region lies in a recording.

use crate::mark;
use crate::recording::visit_events;
use std::io::{Read, Seek};
use terrace_trace::{EventKind, TraceError, TraceReader};

/// Where the region lies in the recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionSpan {
    pub(crate) process: u32,
    pub(crate) begin: u64,
    pub(crate) end: Option<u64>,
}

impl RegionSpan {
    /// Whether a time is within the region.
    pub(crate) fn contains(&self, time: u64) -> bool {
        self.begin <= time && self.end.is_none_or(|end| time <= end)
    }
}

/// The region's span; none where the program never begins it.
pub(crate) fn find_region<R: Read + Seek>(
    reader: &mut TraceReader<R>,
) -> Result<Option<RegionSpan>, TraceError> {
    let mut span: Option<RegionSpan> = None;
    visit_events(reader, |event| {
        let EventKind::Mark { id } = event.what else { return };
        match (&mut span, id) {
            (None, mark::START) => {
                span = Some(RegionSpan { process: event.process, begin: event.time, end: None });
            }
            (Some(span), mark::END) if span.process == event.process && span.end.is_none() => {
                span.end = Some(event.time);
            }
            _ => {}
        }
    })?;
    Ok(span)
}
