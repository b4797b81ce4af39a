//! What lies where: mappings and named objects of each process, as a trace's events tell them.

use super::pages::PageUse;
use super::{ObjectUses, UseCounts};
use std::collections::{BTreeMap, HashMap};
use terrace_trace::{EventKind, TraceEvent};

/// Names that are kept apart at most; the rest are counted together.
const MAX_NAMES: usize = 4096;
const OTHERS: &str = "others";
const UNKNOWN: &str = "unknown";
/// Behind the name of a file whose zeroed data (`.bss`) a mapping is.
const ZEROED: &str = ", zeroed data";

/// Ranges that do not overlap, by first byte: end, and place in the list of names.
type Ranges = BTreeMap<u64, (u64, u32)>;

#[derive(Debug, Clone, Default)]
struct Space {
    mapped: Ranges,
    named: Ranges,
    heap: Option<(u64, u64)>,
    /// The program has made an access since it was loaded.
    accessed: bool,
}

#[derive(Debug, Default)]
pub struct Objects {
    spaces: HashMap<u32, Space>,
    names: HashMap<String, u32>,
    list: Vec<ObjectUses>,
    /// Counts changes, so that pages know when to ask again.
    epoch: u32,
}

impl Objects {
    pub fn take(&mut self, event: &TraceEvent) {
        self.epoch += 1;
        if let EventKind::Fork { parent } = event.what {
            let copy = self.spaces.get(&parent).cloned().unwrap_or_default();
            self.spaces.insert(event.process, copy);
            return;
        }
        let name = match &event.what {
            EventKind::Map { start, length, name, .. } if name.is_empty() => {
                Some(self.anonymous(event.process, *start, *length))
            }
            EventKind::Map { name, .. } => Some(name.clone()),
            EventKind::Object { name, .. } if !name.is_empty() => Some(name.clone()),
            EventKind::Break { .. } => Some("[heap]".to_owned()),
            _ => None,
        };
        let number = name.map(|name| self.number(name));
        let space = self.spaces.entry(event.process).or_default();
        match (&event.what, number) {
            (EventKind::Map { start, length, .. }, Some(number)) => {
                lay(&mut space.mapped, *start, *length, Some(number))
            }
            (EventKind::Object { start, length, .. }, number) => {
                lay(&mut space.named, *start, *length, number)
            }
            (EventKind::Unmap { start, length }, _) => {
                lay(&mut space.mapped, *start, *length, None);
                lay(&mut space.named, *start, *length, None);
            }
            (EventKind::Remap { from, old_length, to, length }, _) => {
                let number = at(&space.mapped, *from);
                lay(&mut space.mapped, *from, *old_length, None);
                lay(&mut space.mapped, *to, *length, number);
            }
            (EventKind::Break { end }, Some(number)) => {
                let (start, before) = space.heap.unwrap_or((*end, *end));
                space.heap = Some((start, *end));
                let (low, high) = (before.min(*end), before.max(*end));
                lay(&mut space.mapped, low, high - low, (*end > before).then_some(number));
            }
            (EventKind::Exec { .. }, _) => *space = Space::default(),
            _ => {}
        }
    }

    /// The name of an anonymous mapping. A file's zeroed data is known by how it is mapped: the
    /// dynamic loader maps a library's whole span from the file and then puts anonymous pages over
    /// its end; the kernel does so behind a program's last segment, before the program's first
    /// access. Any other mapping that happens to follow a file's is not part of it.
    fn anonymous(&self, process: u32, start: u64, length: u64) -> String {
        let space = self.spaces.get(&process);
        let covered = space.and_then(|s| at(&s.mapped, start));
        let follows = || {
            let loaded = space.filter(|s| !s.accessed)?;
            at(&loaded.mapped, start.checked_sub(1)?)
        };
        match covered.or_else(follows).map(|number| self.list[number as usize].name.as_str()) {
            Some(file) if file.starts_with('/') && !file.ends_with(ZEROED) => {
                format!("{file}{ZEROED}")
            }
            Some(file) if file.ends_with(ZEROED) => file.to_owned(),
            _ => format!("anonymous {start:#x}, {} KiB", length >> 10),
        }
    }

    fn number(&mut self, name: String) -> u32 {
        let name = if self.list.len() < MAX_NAMES { name } else { OTHERS.to_owned() };
        if let Some(number) = self.names.get(&name) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(ObjectUses { name: name.clone(), uses: UseCounts::default() });
        self.names.insert(name, number);
        number
    }

    /// Counts an access for the object that its page belongs to: the one the page's first access
    /// lies in since anything changed.
    pub fn count(&mut self, process: u32, address: u64, page: &mut PageUse, store: bool) {
        if page.epoch != self.epoch {
            let space = self.spaces.entry(process).or_default();
            space.accessed = true;
            let found = at(&space.named, address).or_else(|| at(&space.mapped, address));
            let object = found.unwrap_or_else(|| self.number(UNKNOWN.to_owned()));
            if page.epoch == u32::MAX || page.object != object {
                self.list[object as usize].uses.pages += 1;
            }
            (page.object, page.epoch) = (object, self.epoch);
        }
        self.list[page.object as usize].uses.add(store);
    }

    /// Those that were used, the most used first.
    pub fn finish(self) -> Vec<ObjectUses> {
        let mut used: Vec<ObjectUses> =
            self.list.into_iter().filter(|o| o.uses.all() > 0).collect();
        used.sort_by(|a, b| b.uses.all().cmp(&a.uses.all()).then_with(|| a.name.cmp(&b.name)));
        used
    }
}

/// What lies at an address.
fn at(ranges: &Ranges, address: u64) -> Option<u32> {
    let (_, (end, number)) = ranges.range(..=address).next_back()?;
    (address < *end).then_some(*number)
}

/// Puts a range over what was there, or takes away what was.
fn lay(ranges: &mut Ranges, start: u64, length: u64, number: Option<u32>) {
    let end = start.saturating_add(length);
    if start == end {
        return;
    }
    let before = ranges.range(..start).next_back().map(|(s, (e, n))| (*s, *e, *n));
    if let Some((s, e, n)) = before.filter(|(_, e, _)| *e > start) {
        ranges.insert(s, (start, n));
        if e > end {
            ranges.insert(end, (e, n));
        }
    }
    while let Some((s, (e, n))) = ranges.range(start..end).next().map(|(s, v)| (*s, *v)) {
        ranges.remove(&s);
        if e > end {
            ranges.insert(end, (e, n));
        }
    }
    if let Some(number) = number {
        ranges.insert(start, (end, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_and_cut_each_other() {
        let mut ranges = Ranges::new();
        lay(&mut ranges, 0, 100, Some(1));
        lay(&mut ranges, 40, 20, Some(2));
        lay(&mut ranges, 90, 20, None);
        let seen: Vec<Option<u32>> =
            [0, 39, 40, 59, 60, 89, 90, 105].map(|a| at(&ranges, a)).to_vec();
        assert_eq!(seen, [Some(1), Some(1), Some(2), Some(2), Some(1), Some(1), None, None]);
        lay(&mut ranges, 0, u64::MAX, Some(3));
        assert_eq!(ranges.len(), 1);
    }

    #[test]
    fn a_mapping_behind_a_file_is_its_zeroed_data_only_if_it_was_loaded_as_such() {
        let mut objects = Objects::default();
        let map = |start, length, name: &str| EventKind::Map {
            start,
            length,
            protection: 3,
            flags: 2,
            name: name.into(),
        };
        let event = |what| TraceEvent { time: 0, process: 0, thread: 0, what };
        // The kernel maps the program and its zeroed data.
        objects.take(&event(map(0x40_0000, 0x2000, "/bin/prog")));
        objects.take(&event(map(0x40_2000, 0x1000, "")));
        let mut pages = super::super::pages::PageUses::default();
        let mut count = |objects: &mut Objects, address: u64| {
            objects.count(0, address, pages.find(0, address >> 12), true);
        };
        count(&mut objects, 0x40_2000);
        // The loader maps a library's whole span, then zeroed data over its end.
        objects.take(&event(map(0x70_0000, 0x4000, "/lib/small.so")));
        objects.take(&event(map(0x70_3000, 0x1000, "")));
        // Five MiB that the program asks for come to lie behind it.
        objects.take(&event(map(0x70_4000, 0x50_0000, "")));
        [0x70_0000, 0x70_3000, 0x70_4000, 0x90_0000]
            .iter()
            .for_each(|address| count(&mut objects, *address));
        let mut found: Vec<(String, u64)> =
            objects.finish().into_iter().map(|o| (o.name, o.uses.pages)).collect();
        found.sort();
        let expected = [
            ("/bin/prog, zeroed data", 1),
            ("/lib/small.so", 1),
            ("/lib/small.so, zeroed data", 1),
            ("anonymous 0x704000, 5120 KiB", 2),
        ];
        assert_eq!(found, expected.map(|(name, n)| (name.to_owned(), n)));
    }

    #[test]
    fn names_follow_forks_moves_and_the_heap() {
        let mut objects = Objects::default();
        let mut take =
            |process, what| objects.take(&TraceEvent { time: 0, process, thread: 0, what });
        take(
            0,
            EventKind::Map {
                start: 4096,
                length: 4096,
                protection: 3,
                flags: 2,
                name: "/lib".into(),
            },
        );
        take(0, EventKind::Break { end: 0x10_0000 });
        take(0, EventKind::Break { end: 0x20_0000 });
        take(0, EventKind::Object { start: 0x18_0000, length: 0x1000, name: "main+0x10".into() });
        take(1, EventKind::Fork { parent: 0 });
        take(1, EventKind::Remap { from: 4096, old_length: 4096, to: 0x40_0000, length: 8192 });
        let mut pages = super::super::pages::PageUses::default();
        let uses =
            [(0, 4100), (0, 0x18_0010), (0, 0x18_2000), (1, 0x40_1000), (1, 0x18_0010), (1, 4100)];
        for (process, address) in uses {
            objects.count(process, address, pages.find(process, address >> 12), true);
        }
        let found: Vec<(String, u64)> =
            objects.finish().into_iter().map(|o| (o.name, o.uses.stores)).collect();
        let expected = [("/lib", 2), ("main+0x10", 2), ("[heap]", 1), ("unknown", 1)];
        assert_eq!(found, expected.map(|(name, n)| (name.to_owned(), n)));
    }
}
