//! Flushes and fences that are missing or idle.

use super::{PersistOrder, PersistStep, PersistentOperation, LINE};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MisuseKind {
    /// A store was not flushed when a later one became persistent.
    MissingFlush,
    /// A store was flushed and no fence follows.
    MissingFence,
    /// A store was never flushed.
    NeverPersisted,
    /// A store to a line between its flush and the fence.
    WrittenBetweenFlushAndFence,
    /// A line is flushed again, without a store between.
    DoubleFlush,
    /// A line without changes is flushed.
    CleanFlush,
}

impl MisuseKind {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MissingFlush => "missing flush: a later store became persistent first",
            Self::MissingFence => "missing fence: flushed, and no fence follows",
            Self::NeverPersisted => "never persisted: stored and never flushed",
            Self::WrittenBetweenFlushAndFence => "written between flush and fence",
            Self::DoubleFlush => "double flush: flushed again without a store between",
            Self::CleanFlush => "flush of a clean line",
        }
    }

    /// Whether data may be lost; else time is.
    #[must_use]
    pub const fn loses_data(self) -> bool {
        !matches!(self, Self::DoubleFlush | Self::CleanFlush)
    }
}

/// One kind of misuse at one instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlushMisuse {
    /// EventKind.
    pub kind: MisuseKind,
    /// The store or flush.
    pub pc: u64,
    /// How often.
    pub count: u64,
    /// An address where it happened first.
    pub address: u64,
    /// The operation's number where it happened first.
    pub operation: usize,
}

/// What `operations` do wrong, worst first, each kind once for each instruction.
#[must_use]
pub fn find_misuse(operations: &[PersistentOperation]) -> Vec<FlushMisuse> {
    let mut found = Found { operations, by_place: BTreeMap::new() };
    let mut order = PersistOrder::default();
    // Stores that were overtaken are found once.
    let mut overtaken: HashMap<usize, ()> = HashMap::new();
    for (number, operation) in operations.iter().enumerate() {
        match order.apply(operation) {
            PersistStep::FlushedTwice => found.add(MisuseKind::DoubleFlush, number),
            PersistStep::FlushedClean => found.add(MisuseKind::CleanFlush, number),
            PersistStep::StoredAfterFlush => {
                found.add(MisuseKind::WrittenBetweenFlushAndFence, number);
            }
            PersistStep::Persist(stores) => {
                let Some(last) = stores.last() else { continue };
                let behind = order.pending().flatten().filter(|store| *store < last);
                for store in behind.copied().collect::<Vec<_>>() {
                    if overtaken.insert(store, ()).is_none() {
                        found.add(MisuseKind::MissingFlush, store);
                    }
                }
            }
            PersistStep::Stored | PersistStep::Flushed => {}
        }
    }
    let waiting = order.waiting_for_fence();
    for store in order.pending().flatten().copied() {
        let flushed = waiting.binary_search(&store).is_ok();
        found.add(
            if flushed { MisuseKind::MissingFence } else { MisuseKind::NeverPersisted },
            store,
        );
    }
    found.by_place.into_values().collect()
}

struct Found<'a> {
    operations: &'a [PersistentOperation],
    by_place: BTreeMap<(MisuseKind, u64), FlushMisuse>,
}

impl Found<'_> {
    fn add(&mut self, kind: MisuseKind, number: usize) {
        let (address, pc) = match &self.operations[number] {
            PersistentOperation::Store { address, pc, .. } => (*address, *pc),
            PersistentOperation::Flush { address, pc, .. } => (address / LINE * LINE, *pc),
            PersistentOperation::Fence { pc } => (0, *pc),
        };
        let new = FlushMisuse { kind, pc, count: 0, address, operation: number };
        self.by_place.entry((kind, pc)).or_insert(new).count += 1;
    }
}
