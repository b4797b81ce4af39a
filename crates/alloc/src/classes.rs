//! Classes of memory on this machine, and which nodes a request means.
//!
//! A class is a tier of the machine model's ranking, each node judged from its *home*: the CPUs
//! that see it best. So four nodes of fast memory beside four groups of CPUs are one class with
//! four indices, wherever one asks from. Nothing is inferred from the memory's name.
//! `TERRACE_CLASSES` (nodes of each class, best first: `4-7;0-3`) states the classes,
//! `TERRACE_MACHINE` names a machine file or preset to rank instead of the live machine,
//! `TERRACE_RANK_BY` the attribute (bandwidth, latency, capacity).

use crate::attributes::{Attributes, ClassId, Index, Mismatch};
use crate::error::AllocError;
use crate::kernel::AllocatorKernel;
use std::cmp::Reverse;
use terrace_machine::{list, parse_list, rank, Link, Machine, RankAttribute, Tier};
use terrace_topology::{load_machine, MachineSource};
use terrace_types::{Bytes, NodeId};

/// States the classes.
pub const CLASSES: &str = "TERRACE_CLASSES";
/// Names the machine to rank.
pub const MACHINE: &str = "TERRACE_MACHINE";
/// Names the attribute to rank by.
pub const RANK_BY: &str = "TERRACE_RANK_BY";

/// One class.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryClass {
    /// Its nodes by number; the index of a node is its position.
    pub nodes: Vec<NodeId>,
    /// What a byte read from it gains, the best class being 1.
    pub read_gain: f64,
    /// What a byte written to it gains, in the same measure.
    pub write_gain: f64,
}

/// The classes of a machine, best first, and what LOCAL means on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Classes {
    /// Classes by rank.
    pub list: Vec<MemoryClass>,
    /// What was missing or overridden; one sentence each.
    pub notes: Vec<String>,
    machine: Machine,
}

/// What a request means here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Meaning {
    /// Nodes of each place asked for, in order; none is in two.
    pub places: Vec<Vec<NodeId>>,
    /// Nodes that will do besides; empty where a mismatch is an error.
    pub fallback: Vec<NodeId>,
    /// What had to be guessed or replaced; one sentence each.
    pub notes: Vec<String>,
}

impl Classes {
    /// Those of the machine that `variable` (the environment) names, or of the live one, on nodes
    /// that `kernel` may use.
    ///
    /// # Errors
    /// A machine that cannot be read or ranked, or a variable that says nothing.
    pub fn find(
        kernel: &dyn AllocatorKernel,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, AllocError> {
        let source = match variable(MACHINE) {
            None => MachineSource::Live,
            // It would be part of what errors say.
            Some(value) if value.contains(char::is_control) => {
                let what =
                    "give a file without control characters in its name, or a preset".to_owned();
                return Err(AllocError::Environment { name: MACHINE, value, what });
            }
            Some(text) => MachineSource::parse_machine(&text),
        };
        let machine = load_machine(&source)?;
        let by = match variable(RANK_BY) {
            None => RankAttribute::default(),
            Some(value) => {
                RankAttribute::from_name(&value).ok_or_else(|| AllocError::Environment {
                    name: RANK_BY,
                    value,
                    what: "give bandwidth, latency or capacity".to_owned(),
                })?
            }
        };
        Self::from_machine(machine, by, &kernel.nodes(), variable(CLASSES).as_deref())
    }

    /// Those of `machine` on the nodes of `usable`, ranked by `by` or as `stated`.
    ///
    /// # Errors
    /// As [`Classes::find`].
    pub fn from_machine(
        machine: Machine,
        by: RankAttribute,
        usable: &[NodeId],
        stated: Option<&str>,
    ) -> Result<Self, AllocError> {
        let mut notes = Vec::new();
        let described: Vec<NodeId> =
            machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO).map(|n| n.id).collect();
        let here: Vec<NodeId> = described.iter().copied().filter(|n| usable.contains(n)).collect();
        if here.is_empty() {
            return Err(AllocError::NoNodes { described: list(&described), usable: list(usable) });
        }
        if here.len() < described.len() {
            let left: Vec<NodeId> =
                described.iter().copied().filter(|n| !here.contains(n)).collect();
            notes.push(format!(
                "Nodes {} may not be used by this process and are in no class.",
                list(&left)
            ));
        }
        let from_home = seen_from_home(&machine);
        let ranking = rank(&from_home, by, Some(initiator(&from_home)?))?;
        let tiers = &ranking.tiers;
        let groups: Vec<Vec<NodeId>> = match stated {
            Some(text) => {
                notes.push(format!("Classes are as {CLASSES} states them."));
                read_classes(text, &here)?
            }
            None => tiers.iter().map(|t| t.nodes.clone()).collect(),
        };
        let mut found: Vec<MemoryClass> = Vec::new();
        for group in groups {
            let mut nodes: Vec<NodeId> = group.into_iter().filter(|n| here.contains(n)).collect();
            nodes.sort_unstable();
            if !nodes.is_empty() {
                found.push(MemoryClass { nodes, read_gain: 1.0, write_gain: 1.0 });
            }
        }
        set_gains(&mut found, tiers, by, stated.is_some());
        Ok(Self { list: found, notes, machine })
    }

    /// The rank of a class id; `None` where there is no such class.
    #[must_use]
    pub fn rank_of(&self, class: ClassId) -> Option<usize> {
        let count = self.list.len() as i64;
        let at = i64::from(class.0);
        let at = if at < 0 { at + count } else { at };
        usize::try_from(at).ok().filter(|at| *at < self.list.len())
    }

    /// The rank of the class that holds `node`.
    #[must_use]
    pub fn rank_of_node(&self, node: NodeId) -> Option<usize> {
        self.list.iter().position(|c| c.nodes.contains(&node))
    }

    /// What `wish` means to the calling thread.
    ///
    /// # Errors
    /// With [`Mismatch::Error`], whatever is not there as asked for; without, only what means
    /// nothing anywhere.
    pub fn meaning(
        &self,
        wish: &Attributes,
        kernel: &dyn AllocatorKernel,
    ) -> Result<Meaning, AllocError> {
        if wish.places.is_empty() {
            return Err(AllocError::NothingAsked);
        }
        let strict = wish.mismatch == Mismatch::Error;
        let mut meaning = Meaning::default();
        for place in &wish.places {
            let rank = match self.rank_of(place.class) {
                Some(rank) => rank,
                None if strict => {
                    return Err(AllocError::NoSuchClass {
                        class: place.class.0,
                        classes: self.list.len(),
                    })
                }
                None => {
                    let nearest = if place.class.0 < 0 { 0 } else { self.list.len() - 1 };
                    meaning.notes.push(format!(
                        "there is no class {} here, class {nearest} is used",
                        place.class.0
                    ));
                    nearest
                }
            };
            let nodes = self.nodes_of(rank, &place.index, strict, kernel, &mut meaning.notes)?;
            let new: Vec<NodeId> = nodes
                .into_iter()
                .filter(|n| !meaning.places.iter().flatten().any(|m| m == n))
                .collect();
            meaning.places.push(new);
        }
        if !strict {
            let asked = |n: &NodeId| meaning.places.iter().flatten().any(|m| m == n);
            meaning.fallback = self
                .list
                .iter()
                .flat_map(|c| c.nodes.iter().copied())
                .filter(|n| !asked(n))
                .collect();
        }
        Ok(meaning)
    }

    fn nodes_of(
        &self,
        rank: usize,
        index: &Index,
        strict: bool,
        kernel: &dyn AllocatorKernel,
        notes: &mut Vec<String>,
    ) -> Result<Vec<NodeId>, AllocError> {
        let class = &self.list[rank];
        match index {
            Index::All => Ok(class.nodes.clone()),
            Index::These(indices) => {
                let mut nodes = Vec::new();
                for index in indices {
                    match class.nodes.get(usize::from(*index)) {
                        Some(node) if !nodes.contains(node) => nodes.push(*node),
                        Some(_) => {}
                        None if strict => {
                            let (class, nodes) = (rank as i16, class.nodes.len());
                            return Err(AllocError::NoSuchIndex { class, index: *index, nodes });
                        }
                        None => notes.push(format!("class {rank} has no index {index}: left out")),
                    }
                }
                if nodes.is_empty() {
                    notes.push(format!("class {rank} is used on all its nodes"));
                    return Ok(class.nodes.clone());
                }
                Ok(nodes)
            }
            Index::Local => self.local(rank, strict, kernel, notes),
        }
    }

    /// Nodes of the class that are near the calling thread. One on another socket is never among
    /// them.
    fn local(
        &self,
        rank: usize,
        strict: bool,
        kernel: &dyn AllocatorKernel,
        notes: &mut Vec<String>,
    ) -> Result<Vec<NodeId>, AllocError> {
        let Some(initiator) = self.initiator(&|n| self.near(rank, n), strict, kernel, notes)?
        else {
            return Ok(self.list[rank].nodes.clone());
        };
        let near = self.near(rank, initiator);
        if !near.is_empty() {
            return Ok(near);
        }
        if strict {
            let nodes = list(&self.list[rank].nodes);
            return Err(AllocError::NotLocal { class: rank as i16, initiator: initiator.0, nodes });
        }
        let other = (0..self.list.len())
            .map(|r| (r, self.near(r, initiator)))
            .find(|(_, near)| !near.is_empty());
        match other {
            Some((other, near)) => {
                notes.push(format!(
                    "class {rank} has no memory near node {initiator}: class {other} is used there"
                ));
                Ok(near)
            }
            None => {
                notes.push(format!(
                    "no memory is near node {initiator}: class {rank} is used on all its nodes"
                ));
                Ok(self.list[rank].nodes.clone())
            }
        }
    }

    /// The node that the calling thread runs on, or several of them that `near` has the same for;
    /// guessed where the thread may run on others too, unless `strict`. `None` for CPUs of no node,
    /// after a note.
    pub(crate) fn initiator(
        &self,
        near: &dyn Fn(NodeId) -> Vec<NodeId>,
        strict: bool,
        kernel: &dyn AllocatorKernel,
        notes: &mut Vec<String>,
    ) -> Result<Option<NodeId>, AllocError> {
        let cpus = kernel.cpus();
        let holds = |n: &&terrace_machine::Node| cpus.iter().any(|c| n.cpus.contains(c));
        let from: Vec<NodeId> = self.machine.nodes.iter().filter(holds).map(|n| n.id).collect();
        let Some(&first) = from.first() else {
            notes.push(
                "the thread's CPUs are on no node of this machine: local means all".to_owned(),
            );
            return Ok(None);
        };
        if from.iter().skip(1).all(|n| near(*n) == near(first)) {
            return Ok(Some(first));
        }
        if strict {
            return Err(AllocError::NotBound { nodes: list(&from) });
        }
        let now =
            kernel.cpu().and_then(|c| self.machine.nodes.iter().find(|n| n.cpus.contains(&c)));
        let guess = now.map_or(first, |n| n.id);
        notes.push(format!(
            "the thread may run on CPUs of nodes {}: local was guessed from node {guess}, where \
                it ran",
            list(&from)
        ));
        Ok(Some(guess))
    }

    /// The one node with CPUs, on machines that have one only.
    pub(crate) fn only_initiator(&self) -> Option<NodeId> {
        let mut with_cpus = self.machine.nodes.iter().filter(|n| !n.cpus.is_empty());
        let first = with_cpus.next()?;
        with_cpus.next().is_none().then_some(first.id)
    }

    /// Whether two nodes are known to be of one socket.
    pub(crate) fn on_one_socket(&self, a: NodeId, b: NodeId) -> bool {
        let package = |n: NodeId| self.machine.node(n).and_then(|n| n.package);
        package(a).is_some() && package(a) == package(b)
    }

    /// Nodes of a class whose home is `initiator`; else those at home on its socket.
    fn near(&self, rank: usize, initiator: NodeId) -> Vec<NodeId> {
        let nodes = || self.list[rank].nodes.iter().copied();
        let own: Vec<NodeId> =
            nodes().filter(|n| homes(&self.machine, *n).contains(&initiator)).collect();
        if !own.is_empty() {
            return own;
        }
        let package = |n: NodeId| self.machine.node(n).and_then(|n| n.package);
        let Some(socket) = package(initiator) else { return Vec::new() };
        let beside =
            |n: &NodeId| homes(&self.machine, *n).iter().any(|h| package(*h) == Some(socket));
        nodes().filter(beside).collect()
    }
}

/// Better first: read bandwidth, then read latency, then distance; what is not known comes last.
fn view(link: Option<&Link>) -> (Reverse<u64>, u64, u32) {
    let bandwidth =
        link.and_then(|l| l.read_bandwidth.or(l.write_bandwidth)).map_or(0, |f| f.value.get());
    let latency =
        link.and_then(|l| l.read_latency.or(l.write_latency)).map_or(u64::MAX, |f| f.value.get());
    (Reverse(bandwidth), latency, link.and_then(|l| l.distance).unwrap_or(u32::MAX))
}

/// The nodes whose CPUs see `target` best; itself where it has CPUs.
fn homes(machine: &Machine, target: NodeId) -> Vec<NodeId> {
    if machine.node(target).is_some_and(|n| !n.cpus.is_empty()) {
        return vec![target];
    }
    let with_cpus = || machine.nodes.iter().filter(|n| !n.cpus.is_empty()).map(|n| n.id);
    let best = with_cpus().map(|i| view(machine.link(i, target))).min();
    with_cpus().filter(|i| Some(view(machine.link(*i, target))) == best).collect()
}

fn initiator(machine: &Machine) -> Result<NodeId, AllocError> {
    let lowest = machine.nodes.iter().find(|n| !n.cpus.is_empty()).map(|n| n.id);
    lowest.ok_or_else(|| {
        AllocError::Rank(terrace_machine::RankError::NoCpus { machine: machine.name.clone() })
    })
}

/// The machine with one initiator, from which each node looks as it does from its home.
fn seen_from_home(machine: &Machine) -> Machine {
    let mut seen = machine.clone();
    let Ok(one) = initiator(machine) else { return seen };
    seen.links.clear();
    for node in machine.nodes.iter().filter(|n| n.capacity > Bytes::ZERO) {
        let home = homes(machine, node.id).first().and_then(|h| machine.link(*h, node.id));
        seen.links.extend(home.map(|link| Link { initiator: one, ..*link }));
    }
    seen
}

/// `4-7;0-3`: nodes of each class.
fn read_classes(text: &str, here: &[NodeId]) -> Result<Vec<Vec<NodeId>>, AllocError> {
    let fail = |what: String| AllocError::Environment {
        name: CLASSES,
        value: text.chars().take(80).collect(),
        what,
    };
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    for part in text.split(';') {
        let ids = parse_list(part.trim(), 1 << 10)
            .map_err(|_| fail("give nodes by class, as in 4-7;0-3".to_owned()))?;
        let nodes: Vec<NodeId> =
            ids.into_iter().filter_map(|n| u16::try_from(n).ok()).map(NodeId).collect();
        if let Some(node) = nodes.iter().find(|n| !here.contains(n)) {
            return Err(fail(format!(
                "node {node} has no memory for this process; it may use {}",
                list(here)
            )));
        }
        if let Some(node) = nodes.iter().find(|n| groups.iter().flatten().any(|g| g == *n)) {
            return Err(fail(format!("node {node} is in two classes")));
        }
        if nodes.is_empty() {
            return Err(fail("a class without nodes".to_owned()));
        }
        groups.push(nodes);
    }
    Ok(groups)
}

/// Gains by bandwidth where it is known for all classes and asked for, else by latency, else by
/// rank alone (1, 1/2, ...).
fn set_gains(classes: &mut [MemoryClass], tiers: &[Tier], by: RankAttribute, stated: bool) {
    let tier = |class: &MemoryClass| {
        tiers.iter().find(|t| t.nodes.iter().any(|n| class.nodes.contains(n)))
    };
    let rate = |class: &MemoryClass| {
        let t = tier(class)?;
        let read = t.read_bandwidth.or(t.write_bandwidth)?.value.get();
        let write = t.write_bandwidth.or(t.read_bandwidth)?.value.get();
        (read > 0 && write > 0).then_some((read as f64, write as f64))
    };
    let speed = |class: &MemoryClass| {
        let t = tier(class)?;
        let read = t.read_latency.or(t.write_latency)?.value.get();
        let write = t.write_latency.or(t.read_latency)?.value.get();
        (read > 0 && write > 0).then_some((1.0 / read as f64, 1.0 / write as f64))
    };
    let all = |f: &dyn Fn(&MemoryClass) -> Option<(f64, f64)>| {
        classes.iter().map(f).collect::<Option<Vec<_>>>()
    };
    let known = match by {
        // A stated order is the person's: figures may contradict it.
        _ if stated => None,
        RankAttribute::Bandwidth => all(&rate).or_else(|| all(&speed)),
        RankAttribute::Latency => all(&speed).or_else(|| all(&rate)),
        RankAttribute::Capacity => None,
    };
    let gains: Vec<(f64, f64)> = match known {
        Some(figures) => {
            let best = figures.iter().fold(0.0_f64, |m, (r, w)| m.max(*r).max(*w));
            figures.into_iter().map(|(r, w)| (r / best, w / best)).collect()
        }
        None => (0..classes.len()).map(|rank| 1.0 / (1.0 + rank as f64)).map(|g| (g, g)).collect(),
    };
    for (class, (read, write)) in classes.iter_mut().zip(gains) {
        class.read_gain = read;
        class.write_gain = write;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::ClassPlacement;
    use crate::fake::FakeKernel;
    use terrace_machine::preset;

    fn classes(name: &str) -> (Classes, FakeKernel) {
        let machine = preset(name).unwrap();
        let kernel = FakeKernel::from_machine(&machine);
        let usable = kernel.nodes();
        (Classes::from_machine(machine, RankAttribute::Bandwidth, &usable, None).unwrap(), kernel)
    }

    fn nodes(class: &MemoryClass) -> Vec<u16> {
        class.nodes.iter().map(|n| n.0).collect()
    }

    fn local(class: i16, mismatch: Mismatch) -> Attributes {
        let places = vec![ClassPlacement { class: ClassId(class), index: Index::Local }];
        Attributes { places, mismatch, ..Attributes::default() }
    }

    #[test]
    fn four_clusters_of_two_memories_are_two_classes() {
        let (found, kernel) = classes("knl-snc4");
        assert_eq!(
            found.list.iter().map(nodes).collect::<Vec<_>>(),
            [vec![4, 5, 6, 7], vec![0, 1, 2, 3]]
        );
        assert!(found.list[0].read_gain > found.list[1].read_gain);
        // Bound to cluster 2, LOCAL is its own fast memory; unbound it is an error, or a guess that
        // is reported.
        kernel.run_on(found.machine.node(NodeId(2)).unwrap().cpus.clone());
        let near = found.meaning(&local(0, Mismatch::Error), &kernel).unwrap();
        assert_eq!(near.places, [[NodeId(6)]]);
        assert!(near.fallback.is_empty() && near.notes.is_empty());
        kernel.run_on(found.machine.nodes.iter().flat_map(|n| n.cpus.clone()).collect());
        assert!(matches!(
            found.meaning(&local(0, Mismatch::Error), &kernel),
            Err(AllocError::NotBound { .. })
        ));
        let guess = found.meaning(&local(0, Mismatch::Fallback), &kernel).unwrap();
        assert_eq!(guess.places[0].len(), 1);
        assert!(guess.notes[0].contains("guessed"), "{:?}", guess.notes);
    }

    #[test]
    fn memory_on_another_socket_is_never_chosen_silently() {
        let text = r#"
            name = "lopsided"
            [[node]]
            id = 0
            cpus = "0-3"
            capacity = "1 GiB"
            package = 0
            [[node]]
            id = 1
            cpus = "4-7"
            capacity = "1 GiB"
            package = 1
            [[node]]
            id = 2
            capacity = "4 GiB"
            [[link]]
            initiator = 0
            target = 0
            bandwidth = "100 GB/s"
            [[link]]
            initiator = 1
            target = 1
            bandwidth = "100 GB/s"
            [[link]]
            initiator = 0
            target = 2
            bandwidth = "20 GB/s"
        "#;
        let machine = Machine::from_toml(text, "lopsided").unwrap();
        let kernel = FakeKernel::from_machine(&machine);
        let found = Classes::from_machine(machine, RankAttribute::Bandwidth, &kernel.nodes(), None)
            .unwrap();
        assert_eq!(found.list.iter().map(nodes).collect::<Vec<_>>(), [vec![0, 1], vec![2]]);
        kernel.run_on(found.machine.node(NodeId(1)).unwrap().cpus.clone());
        assert!(matches!(
            found.meaning(&local(1, Mismatch::Error), &kernel),
            Err(AllocError::NotLocal { .. })
        ));
        let reported = found.meaning(&local(1, Mismatch::Fallback), &kernel).unwrap();
        assert_eq!(reported.places, [[NodeId(1)]]);
        assert!(reported.notes[0].contains("no memory near node 1"), "{:?}", reported.notes);
    }

    #[test]
    fn classes_can_be_stated_and_nonsense_is_named() {
        let machine = preset("knl-snc4").unwrap();
        let usable: Vec<NodeId> = (0..8).map(NodeId).collect();
        let with = |text| {
            Classes::from_machine(machine.clone(), RankAttribute::Bandwidth, &usable, Some(text))
        };
        let found = with("0-3; 4,5;6-7").unwrap();
        assert_eq!(
            found.list.iter().map(nodes).collect::<Vec<_>>(),
            [vec![0, 1, 2, 3], vec![4, 5], vec![6, 7]]
        );
        assert!(found.list[0].read_gain > found.list[2].read_gain);
        for bad in ["", ";", "x", "0-3;3", "9", "0-999999999999", "0;;1"] {
            assert!(matches!(with(bad), Err(AllocError::Environment { .. })), "{bad}");
        }
        let none =
            Classes::from_machine(machine.clone(), RankAttribute::Bandwidth, &[NodeId(99)], None);
        assert!(matches!(none, Err(AllocError::NoNodes { .. })));
    }

    #[test]
    fn a_missing_class_is_an_error_or_the_nearest() {
        let (found, kernel) = classes("lab-cxl");
        assert_eq!(found.rank_of(ClassId::SLOWEST), Some(found.list.len() - 1));
        let mut wish = Attributes::in_class(ClassId(7));
        let reported = found.meaning(&wish, &kernel).unwrap();
        assert_eq!(reported.places[0], found.list[found.list.len() - 1].nodes);
        assert!(reported.notes[0].contains("no class 7"));
        wish.mismatch = Mismatch::Error;
        assert!(matches!(
            found.meaning(&wish, &kernel),
            Err(AllocError::NoSuchClass { class: 7, .. })
        ));
        wish.places[0] = ClassPlacement { class: ClassId(0), index: Index::These(vec![9]) };
        assert!(matches!(
            found.meaning(&wish, &kernel),
            Err(AllocError::NoSuchIndex { index: 9, .. })
        ));
        wish.places.clear();
        assert!(matches!(found.meaning(&wish, &kernel), Err(AllocError::NothingAsked)));
    }
}
