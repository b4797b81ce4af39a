//! Memory on a node with pages of a kind, held from one measurement to the next.

use super::LiveMachine;
use crate::task::{PageKind, Trouble};
use crate::team;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_sys::{AnonymousMapping, MappingPages, Root, SysError};
use terrace_types::{Bytes, CpuId, NodeId};

/// What was mapped last.
#[derive(Debug)]
pub(super) struct ProbeMapping {
    pub(super) mapping: AnonymousMapping,
    node: NodeId,
    pages: PageKind,
    /// Bytes from its start that hold a chain; 0: none.
    pub(super) chained: usize,
    /// Chains were here: what they left are no doubles to compute with.
    pub(super) was_chained: bool,
}

pub(super) fn pages_of(kind: PageKind) -> MappingPages {
    match kind {
        PageKind::Base => MappingPages::Base,
        PageKind::Huge => MappingPages::Huge,
    }
}

/// Memory that is touched between two looks at whether to stop: the first touch of memory that a
/// host must find too takes seconds a GiB.
const PIECE: usize = 16 << 20;

/// Memory of `node`, touched by a thread on `cpu`. Asked for huge pages, it has them or none of it
/// is given.
pub(super) fn fresh(
    cpu: CpuId,
    node: NodeId,
    pages: PageKind,
    bytes: Bytes,
    stop: &AtomicBool,
) -> Result<AnonymousMapping, Trouble> {
    let mapping = AnonymousMapping::new(bytes, pages_of(pages))?;
    mapping.bind(node)?;
    let pieces = || {
        for start in (0..mapping.len()).step_by(PIECE) {
            if stop.load(Ordering::Relaxed) {
                return Err(Trouble::Interrupted);
            }
            mapping.prefault(start..(start + PIECE).min(mapping.len()))?;
        }
        mapping.fill();
        Ok(())
    };
    team::on(cpu, pieces)?.unwrap_or(Ok(()))?;
    if pages == PageKind::Huge
        && mapping.huge_bytes(&Root::live()).get() * 10 < mapping.len() as u64 * 9
    {
        return Err(Trouble::NoHugePages);
    }
    Ok(mapping)
}

/// Touches all of it from `cpu`.
pub(super) fn touch(cpu: CpuId, mapping: &AnonymousMapping) -> Result<(), SysError> {
    team::on(cpu, || mapping.prefault(0..mapping.len()))?.unwrap_or(Ok(()))
}

impl LiveMachine<'_> {
    /// At least `bytes` of memory, kept from the last measurement where it is of the kind asked
    /// for.
    pub(super) fn hold(
        &mut self,
        cpu: CpuId,
        node: NodeId,
        pages: PageKind,
        bytes: Bytes,
    ) -> Result<&mut ProbeMapping, Trouble> {
        let fits = |h: &ProbeMapping| {
            h.node == node && h.pages == pages && h.mapping.len() as u64 >= bytes.get()
        };
        if !self.held.as_ref().is_some_and(fits) {
            // First gives back what is held: both at once may be more than there is.
            self.held = None;
            // Sizes grow; a little more now spares touching it all again.
            let space = self.situation.space(node);
            let wanted = bytes.max(Bytes::mib(16));
            let wanted = if wanted <= space { wanted } else { bytes };
            let mapping = fresh(cpu, node, pages, wanted, self.stop)?;
            self.held = Some(ProbeMapping { mapping, node, pages, chained: 0, was_chained: false });
        }
        self.held.as_mut().ok_or(Trouble::Interrupted)
    }

    /// Memory with huge pages where they are to be had.
    pub(super) fn hold_best(
        &mut self,
        cpu: CpuId,
        node: NodeId,
        bytes: Bytes,
    ) -> Result<&mut ProbeMapping, Trouble> {
        match self.hold(cpu, node, PageKind::Huge, bytes).map(|_| ()) {
            Err(Trouble::NoHugePages) => self.hold(cpu, node, PageKind::Base, bytes),
            Err(other) => Err(other),
            Ok(()) => self.hold(cpu, node, PageKind::Huge, bytes),
        }
    }
}

impl ProbeMapping {
    /// Doubles all over again, where chains were.
    pub(super) fn filled(&mut self, cpu: CpuId) -> Result<(), SysError> {
        self.chained = 0;
        if std::mem::take(&mut self.was_chained) {
            let mapping = &self.mapping;
            team::on(cpu, || mapping.fill())?;
        }
        Ok(())
    }

    /// How its pages are called.
    pub(super) fn how(&self) -> &'static str {
        match self.pages {
            PageKind::Base => "base pages",
            PageKind::Huge => "huge pages",
        }
    }
}
