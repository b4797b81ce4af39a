//! Caches with values held against a plain model in which every line of every cache carries its
//! own bytes, over random programs; and the two ends: no caches, and caches that lose nothing.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::BTreeMap;
use terrace_cache::{HierarchySpec, Inclusion, LevelSpec};
use terrace_crash::{CacheSetup, CachedMemory, DataObject, ObjectKind};
use terrace_trace::CacheOperation;

const LINE: u64 = 16;
const MEMORY: u64 = 40 * LINE;

/// A line in a cache.
#[derive(Debug, Clone)]
struct ModelLine {
    line: u64,
    bytes: Vec<u8>,
    dirty: bool,
}

/// One cache: sets of lines, least recently used first.
#[derive(Debug, Clone)]
struct ModelCache {
    sets: Vec<Vec<ModelLine>>,
    ways: usize,
}

impl ModelCache {
    fn new(bytes: u64, ways: u32) -> Self {
        let sets = bytes / LINE / u64::from(ways);
        Self { sets: vec![Vec::new(); sets as usize], ways: ways as usize }
    }

    fn set(&mut self, line: u64) -> &mut Vec<ModelLine> {
        let count = self.sets.len() as u64;
        &mut self.sets[(line % count) as usize]
    }

    fn find(&mut self, line: u64) -> Option<&mut ModelLine> {
        self.set(line).iter_mut().find(|l| l.line == line)
    }

    fn touch(&mut self, line: u64) -> Option<&mut ModelLine> {
        let set = self.set(line);
        let at = set.iter().position(|l| l.line == line)?;
        let used = set.remove(at);
        set.push(used);
        set.last_mut()
    }

    fn take(&mut self, line: u64) -> Option<ModelLine> {
        let set = self.set(line);
        let at = set.iter().position(|l| l.line == line)?;
        Some(set.remove(at))
    }

    /// Puts a line in; the one that leaves.
    fn put(&mut self, line: ModelLine) -> Option<ModelLine> {
        let ways = self.ways;
        let set = self.set(line.line);
        set.push(line);
        (set.len() > ways).then(|| set.remove(0))
    }
}

/// Private first levels and one shared, inclusive second level.
struct Model {
    first: Vec<ModelCache>,
    second: ModelCache,
    memory: BTreeMap<u64, Vec<u8>>,
    allocate: bool,
}

impl Model {
    fn memory_line(&self, line: u64) -> Vec<u8> {
        self.memory.get(&line).cloned().unwrap_or_else(|| vec![0; LINE as usize])
    }

    /// To the second level if it has the line, else to memory.
    fn write_out(&mut self, line: u64, bytes: Vec<u8>) {
        match self.second.find(line) {
            Some(outer) => (outer.bytes, outer.dirty) = (bytes, true),
            None => {
                self.memory.insert(line, bytes);
            }
        }
    }

    /// Others lose the line, or share it.
    fn ask_others(&mut self, core: usize, line: u64, write: bool) {
        for other in (0..self.first.len()).filter(|other| *other != core) {
            let changed = if write {
                self.first[other].take(line).filter(|l| l.dirty)
            } else {
                let found = self.first[other].find(line).filter(|l| l.dirty);
                found.map(|l| {
                    l.dirty = false;
                    l.clone()
                })
            };
            if let Some(changed) = changed {
                self.write_out(line, changed.bytes);
            }
        }
    }

    fn fill_second(&mut self, line: u64) {
        if self.second.touch(line).is_some() {
            return;
        }
        let bytes = self.memory_line(line);
        let Some(mut left) = self.second.put(ModelLine { line, bytes, dirty: false }) else {
            return;
        };
        for cache in &mut self.first {
            if let Some(inner) = cache.take(left.line).filter(|l| l.dirty) {
                left = inner;
            }
        }
        if left.dirty {
            self.memory.insert(left.line, left.bytes);
        }
    }

    fn fill_first(&mut self, core: usize, line: u64) {
        self.fill_second(line);
        let bytes = self.second.find(line).unwrap().bytes.clone();
        let left = self.first[core].put(ModelLine { line, bytes, dirty: false });
        if let Some(left) = left.filter(|l| l.dirty) {
            self.write_out(left.line, left.bytes);
        }
    }

    fn load(&mut self, core: usize, line: u64) -> Vec<u8> {
        if self.first[core].touch(line).is_none() {
            self.ask_others(core, line, false);
            self.fill_first(core, line);
        }
        self.first[core].find(line).unwrap().bytes.clone()
    }

    fn store(&mut self, core: usize, line: u64, offset: usize, bytes: &[u8]) {
        self.ask_others(core, line, true);
        if self.first[core].touch(line).is_none() {
            if !self.allocate {
                self.fill_second(line);
                let outer = self.second.touch(line).unwrap();
                outer.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
                outer.dirty = true;
                return;
            }
            self.fill_first(core, line);
        }
        let own = self.first[core].touch(line).unwrap();
        own.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        own.dirty = true;
    }

    /// The newest changes to a line, and everybody has them, clean.
    fn write_back(&mut self, line: u64, leave: bool) {
        let inner = self.first.iter_mut().find_map(|c| c.find(line).filter(|l| l.dirty).cloned());
        let newest = inner.or_else(|| self.second.find(line).filter(|l| l.dirty).cloned());
        if let Some(newest) = &newest {
            self.memory.insert(line, newest.bytes.clone());
        }
        for cache in self.first.iter_mut().chain([&mut self.second]) {
            if leave {
                cache.take(line);
            } else if let (Some(held), Some(newest)) = (cache.find(line), &newest) {
                (held.bytes, held.dirty) = (newest.bytes.clone(), false);
            }
        }
    }

    fn write_back_all(&mut self) {
        (0..MEMORY / LINE).for_each(|line| self.write_back(line, true));
    }
}

#[derive(Debug, Clone)]
enum Action {
    Load { core: usize, at: u64, size: u64 },
    Store { core: usize, at: u64, bytes: Vec<u8> },
    Operate { core: usize, at: u64, operation: CacheOperation },
}

fn action() -> impl Strategy<Value = Action> {
    let core = 0..3usize;
    prop_oneof![
        6 => (core.clone(), 0..MEMORY - 8, 1..9u64)
            .prop_map(|(core, at, size)| Action::Load { core, at, size }),
        8 => (core.clone(), 0..MEMORY - 8, proptest::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(core, at, bytes)| Action::Store { core, at, bytes }),
        1 => (core, 0..MEMORY, prop_oneof![
            4 => Just(CacheOperation::WriteBack),
            4 => Just(CacheOperation::Flush),
            1 => Just(CacheOperation::WriteBackAll),
            1 => Just(CacheOperation::Fence),
        ])
        .prop_map(|(core, at, operation)| Action::Operate { core, at, operation }),
    ]
}

fn everything() -> DataObject {
    DataObject {
        name: "all".into(),
        element_type: "char".into(),
        kind: ObjectKind::Critical,
        element_bytes: 1,
        address: 0,
        bytes: MEMORY,
    }
}

fn apply(memory: &mut CachedMemory, action: &Action) {
    match action {
        Action::Load { core, at, size } => memory.load(*core, *at, *size as u32),
        Action::Store { core, at, bytes } => memory.store(*core, *at, bytes),
        Action::Operate { core, at, operation } => memory.operate(*core, *operation, *at),
    }
}

fn apply_to_model(model: &mut Model, action: &Action) {
    match action {
        Action::Load { core, at, size } => {
            for line in at / LINE..=(at + size - 1) / LINE {
                model.load(*core, line);
            }
        }
        Action::Store { core, at, bytes } => {
            let cut = ((LINE - at % LINE) as usize).min(bytes.len());
            model.store(*core, at / LINE, (at % LINE) as usize, &bytes[..cut]);
            if cut < bytes.len() {
                model.store(*core, at / LINE + 1, 0, &bytes[cut..]);
            }
        }
        Action::Operate { at, operation, .. } => match operation {
            CacheOperation::WriteBack => model.write_back(at / LINE, false),
            CacheOperation::Flush => model.write_back(at / LINE, true),
            CacheOperation::WriteBackAll => model.write_back_all(),
            _ => {}
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn memory_holds_what_a_plain_model_says(
        allocate in any::<bool>(),
        actions in proptest::collection::vec(action(), 1..250),
    ) {
        let mut first = LevelSpec::new(4 * LINE, 2, false);
        first.write.allocate = allocate;
        let mut second = LevelSpec::new(16 * LINE, 4, true);
        second.inclusion = Inclusion::Inclusive;
        let spec = HierarchySpec { cores: 3, line: LINE, levels: vec![first, second] };
        let mut memory = CachedMemory::new(&CacheSetup::Levels(spec)).unwrap();
        let mut model = Model {
            first: vec![ModelCache::new(4 * LINE, 2); 3],
            second: ModelCache::new(16 * LINE, 4),
            memory: BTreeMap::new(),
            allocate,
        };
        let mut plain = vec![0; MEMORY as usize];
        let object = [everything()];
        for (step, action) in actions.iter().enumerate() {
            apply(&mut memory, action);
            apply_to_model(&mut model, action);
            if let Action::Store { at, bytes, .. } = action {
                plain[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            let mut ours = vec![0; MEMORY as usize];
            memory.read_persistent(0, &mut ours);
            let theirs: Vec<u8> = (0..MEMORY / LINE).flat_map(|l| model.memory_line(l)).collect();
            prop_assert_eq!(&ours, &theirs, "after step {}", step);
            let differ = plain.iter().zip(&theirs).filter(|(a, b)| a != b).count() as u64;
            let (all, each) = memory.lost(&object);
            prop_assert_eq!((all.inconsistent_bytes, each[0]), (differ, differ));
            let mut coherent = vec![0; MEMORY as usize];
            memory.read_coherent(0, &mut coherent);
            prop_assert_eq!(&coherent, &plain);
        }
    }

    #[test]
    fn without_caches_memory_is_coherent_and_with_endless_ones_it_never_changes(
        actions in proptest::collection::vec(action(), 1..100),
    ) {
        let mut uncached = CachedMemory::new(&CacheSetup::Uncached { line: LINE }).unwrap();
        let mut endless = CachedMemory::new(&CacheSetup::Unlimited { line: LINE }).unwrap();
        let initial: Vec<u8> = (0..MEMORY).map(|i| i as u8).collect();
        let mut plain = initial.clone();
        uncached.preset(0, &initial);
        endless.preset(0, &initial);
        for action in &actions {
            apply(&mut uncached, action);
            if let Action::Store { at, bytes, .. } = action {
                plain[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            if !matches!(action, Action::Operate { .. }) {
                apply(&mut endless, action);
            }
        }
        let mut held = vec![0; MEMORY as usize];
        uncached.read_persistent(0, &mut held);
        prop_assert_eq!(&held, &plain);
        endless.read_persistent(0, &mut held);
        prop_assert_eq!(&held, &initial);
        endless.operate(0, CacheOperation::WriteBackAll, 0);
        endless.read_persistent(0, &mut held);
        prop_assert_eq!(&held, &plain);
    }
}
