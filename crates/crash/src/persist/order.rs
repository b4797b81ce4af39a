//! Which stores are persistent when.

use super::{PersistentOperation, LINE};
use std::collections::BTreeMap;

/// What an operation did to stores that were not persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersistStep {
    /// These stores, by the number of their operation, become persistent now, in program order.
    Persist(Vec<usize>),
    /// A store joined those that are not persistent.
    Stored,
    /// A flush of a line with such stores, none of which was flushed before.
    Flushed,
    /// A flush of a line all of whose stores are flushed already and wait for a fence.
    FlushedTwice,
    /// A flush of a line without such stores.
    FlushedClean,
    /// A store to a line whose flush waits for a fence.
    StoredAfterFlush,
}

/// A line's stores that are not persistent, and how many of them the next fence makes so.
#[derive(Debug, Clone, Default)]
struct PendingLine {
    stores: Vec<usize>,
    flushed: usize,
}

/// Follows operations one by one.
#[derive(Debug, Clone, Default)]
pub struct PersistOrder {
    lines: BTreeMap<u64, PendingLine>,
    operations: usize,
}

impl PersistOrder {
    /// The next operation of the program.
    pub fn apply(&mut self, operation: &PersistentOperation) -> PersistStep {
        let number = self.operations;
        self.operations += 1;
        match operation {
            PersistentOperation::Store { address, non_temporal, .. } => {
                let line = self.lines.entry(address / LINE).or_default();
                let waits = line.flushed > 0 && !non_temporal;
                line.stores.push(number);
                if *non_temporal {
                    // Stores to one line become persistent in order: those before it, too.
                    line.flushed = line.stores.len();
                }
                if waits {
                    PersistStep::StoredAfterFlush
                } else {
                    PersistStep::Stored
                }
            }
            PersistentOperation::Flush { address, ordered, .. } => {
                let key = address / LINE;
                let Some(line) = self.lines.get_mut(&key) else {
                    return PersistStep::FlushedClean;
                };
                if *ordered {
                    let line = self.lines.remove(&key).unwrap_or_default();
                    return PersistStep::Persist(line.stores);
                }
                let all = line.stores.len();
                if std::mem::replace(&mut line.flushed, all) == all {
                    PersistStep::FlushedTwice
                } else {
                    PersistStep::Flushed
                }
            }
            PersistentOperation::Fence { .. } => {
                let mut done = Vec::new();
                self.lines.retain(|_, line| {
                    done.extend(line.stores.drain(..line.flushed));
                    line.flushed = 0;
                    !line.stores.is_empty()
                });
                done.sort_unstable();
                PersistStep::Persist(done)
            }
        }
    }

    /// Stores that are not persistent, by line, in program order.
    pub fn pending(&self) -> impl Iterator<Item = &[usize]> {
        self.lines.values().map(|line| line.stores.as_slice())
    }

    /// Of those, the ones that the next fence makes persistent, in program order.
    #[must_use]
    pub fn waiting_for_fence(&self) -> Vec<usize> {
        let flushed = self.lines.values().flat_map(|line| &line.stores[..line.flushed]);
        let mut all: Vec<usize> = flushed.copied().collect();
        all.sort_unstable();
        all
    }
}
