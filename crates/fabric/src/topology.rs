//! Endpoints, switches and links: a tree, checked, with the route between any two endpoints.

use crate::{FabricError, PS_PER_NS};
use std::collections::HashMap;
use terrace_types::{BytesPerSec, Nanos};

/// Parts of a fabric at most. 64 hosts, as many pools and their switches take a few hundred; the
/// check of all pairs takes the square of it.
pub const MAX_VERTICES: usize = 4096;
/// The largest latency of one link or switch: a second. It keeps sums of times within `u64`.
pub const MAX_LATENCY: Nanos = Nanos(1_000_000_000);

/// An endpoint or switch: its index in the list that [`FabricTopology::new`] was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VertexId(pub u32);

/// What a vertex does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VertexKind {
    /// Sends and receives; forwards nothing.
    Endpoint,
    /// Forwards.
    Switch {
        /// From the last byte in to the first byte out, without queues.
        latency: Nanos,
        /// All its ports together; `None`: no limit but that of its links.
        bandwidth: Option<BytesPerSec>,
    },
}

/// An endpoint or switch, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VertexDescription {
    /// Its name, unique in the fabric.
    pub name: String,
    /// What it does.
    pub kind: VertexKind,
}

/// A link, both directions of which carry messages at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkDescription {
    /// The names of the vertices at its ends.
    pub ends: [String; 2],
    /// Propagation in one direction.
    pub latency: Nanos,
    /// Of each direction; `None`: no limit.
    pub bandwidth: Option<BytesPerSec>,
}

impl LinkDescription {
    fn name(&self) -> String {
        format!("{} - {}", self.ends[0], self.ends[1])
    }
}

/// One queue with a server: a direction of a link, or a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StationFigures {
    pub latency_ps: u64,
    pub bandwidth: Option<BytesPerSec>,
}

/// A checked fabric.
#[derive(Debug, Clone)]
pub struct FabricTopology {
    vertices: Vec<VertexDescription>,
    links: Vec<LinkDescription>,
    ids: HashMap<String, VertexId>,
    /// Of each vertex but the root: the vertex towards the root, and the link to it.
    parents: Vec<Option<ParentLink>>,
    depths: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct ParentLink {
    vertex: usize,
    link: usize,
    /// The direction of the link towards the root: 0 from its first end to its second.
    up: usize,
}

impl FabricTopology {
    /// Checks that `links` join `vertices` to one tree.
    ///
    /// # Errors
    /// [`FabricError`]: a duplicate or unknown name, a cycle, a gap, a figure out of range.
    pub fn new(
        vertices: Vec<VertexDescription>,
        links: Vec<LinkDescription>,
    ) -> Result<Self, FabricError> {
        if vertices.is_empty() || vertices.len() > MAX_VERTICES {
            return Err(FabricError::Size { count: vertices.len(), most: MAX_VERTICES });
        }
        let mut ids = HashMap::new();
        for (index, vertex) in vertices.iter().enumerate() {
            if let VertexKind::Switch { latency, bandwidth } = vertex.kind {
                check_figures(&vertex.name, latency, bandwidth)?;
            }
            if ids.insert(vertex.name.clone(), VertexId(index as u32)).is_some() {
                return Err(FabricError::DuplicateName { name: vertex.name.clone() });
            }
        }
        let ends = check_links(&vertices, &links, &ids)?;
        let (parents, depths) = find_parents(vertices.len(), &ends);
        if let Some(index) = (1..vertices.len()).find(|index| parents[*index].is_none()) {
            return Err(FabricError::Gap {
                from: vertices[0].name.clone(),
                name: vertices[index].name.clone(),
            });
        }
        Ok(Self { vertices, links, ids, parents, depths })
    }

    /// A vertex by its name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<VertexId> {
        self.ids.get(name).copied()
    }

    /// The name of a vertex; `?` where there is no such vertex.
    #[must_use]
    pub fn name(&self, id: VertexId) -> &str {
        self.vertices.get(id.0 as usize).map_or("?", |vertex| &vertex.name)
    }

    /// The endpoints, in the order of the list.
    pub fn endpoints(&self) -> impl Iterator<Item = VertexId> + '_ {
        (0..self.vertices.len() as u32).map(VertexId).filter(|id| self.is_endpoint(*id))
    }

    fn is_endpoint(&self, id: VertexId) -> bool {
        matches!(self.vertices.get(id.0 as usize), Some(v) if v.kind == VertexKind::Endpoint)
    }

    /// Queues of the fabric: two for each link (first the direction from its first end to its
    /// second), then one for each vertex, of which those of endpoints stay empty.
    #[must_use]
    pub fn station_count(&self) -> usize {
        2 * self.links.len() + self.vertices.len()
    }

    /// What a queue belongs to, for people: `a > b` for a direction of a link, or a vertex's name.
    #[must_use]
    pub fn station_name(&self, station: usize) -> String {
        match self.links.get(station / 2) {
            Some(link) => {
                let direction = station % 2;
                format!("{} > {}", link.ends[direction], link.ends[1 - direction])
            }
            None => {
                let vertex = station.wrapping_sub(2 * self.links.len());
                self.name(VertexId(vertex as u32)).to_owned()
            }
        }
    }

    /// What a queue serves; `None`: no limit.
    #[must_use]
    pub fn station_bandwidth(&self, station: usize) -> Option<BytesPerSec> {
        (station < self.station_count()).then(|| self.station(station).bandwidth).flatten()
    }

    /// What a message takes from one end of a queue's link, or switch, to the other without waits,
    /// picoseconds.
    #[must_use]
    pub fn station_latency_ps(&self, station: usize) -> u64 {
        self.station(station).latency_ps
    }

    pub(crate) fn station(&self, station: usize) -> StationFigures {
        if let Some(link) = self.links.get(station / 2) {
            let latency_ps = link.latency.get() * PS_PER_NS;
            return StationFigures { latency_ps, bandwidth: link.bandwidth };
        }
        match self.vertices.get(station - 2 * self.links.len()).map(|vertex| vertex.kind) {
            Some(VertexKind::Switch { latency, bandwidth }) => {
                StationFigures { latency_ps: latency.get() * PS_PER_NS, bandwidth }
            }
            _ => StationFigures { latency_ps: 0, bandwidth: None },
        }
    }

    /// The queues that a message passes, in order; empty where sender and receiver are the same.
    ///
    /// # Errors
    /// [`FabricError::NoRoute`] where an end is no endpoint, or another endpoint is in between.
    pub fn route(&self, from: VertexId, to: VertexId) -> Result<Vec<usize>, FabricError> {
        let no_route = || FabricError::NoRoute {
            from: self.name(from).to_owned(),
            to: self.name(to).to_owned(),
        };
        if !self.is_endpoint(from) || !self.is_endpoint(to) {
            return Err(no_route());
        }
        let (mut a, mut b) = (from.0 as usize, to.0 as usize);
        // From the sender up to where the ways meet; from the receiver up, to be reversed.
        let (mut rise, mut fall) = (Vec::new(), Vec::new());
        let switches = 2 * self.links.len();
        while a != b {
            let climbs_a = self.depths[a] >= self.depths[b];
            let Some(parent) = self.parents[if climbs_a { a } else { b }] else {
                return Err(no_route());
            };
            if climbs_a {
                rise.push(2 * parent.link + parent.up);
                rise.push(switches + parent.vertex);
                a = parent.vertex;
            } else {
                fall.push(2 * parent.link + 1 - parent.up);
                fall.push(switches + parent.vertex);
                b = parent.vertex;
            }
        }
        // The vertex where the ways meet is on both of them.
        if !rise.is_empty() {
            fall.pop();
        }
        rise.extend(fall.into_iter().rev());
        rise.retain(|station| *station != switches + from.0 as usize);
        if rise.last() == Some(&(switches + to.0 as usize)) {
            rise.pop();
        }
        let passes_endpoint =
            |s: &usize| *s >= switches && self.is_endpoint(VertexId((*s - switches) as u32));
        if rise.iter().any(passes_endpoint) {
            return Err(no_route());
        }
        Ok(rise)
    }

    /// The first switch on the way from `from` to `to`; `None`: they are joined by a link.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub fn first_switch(
        &self,
        from: VertexId,
        to: VertexId,
    ) -> Result<Option<VertexId>, FabricError> {
        let switches = 2 * self.links.len();
        let first = self.route(from, to)?.into_iter().find(|station| *station >= switches);
        Ok(first.map(|station| VertexId((station - switches) as u32)))
    }

    /// Picoseconds from `from` to `to` without queues and without the time that bytes take.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub fn latency_ps(&self, from: VertexId, to: VertexId) -> Result<u64, FabricError> {
        Ok(self.route(from, to)?.into_iter().map(|s| self.station(s).latency_ps).sum())
    }

    /// The least bandwidth on the way from `from` to `to`; `None`: no limit.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub fn route_bandwidth(
        &self,
        from: VertexId,
        to: VertexId,
    ) -> Result<Option<BytesPerSec>, FabricError> {
        Ok(self.route(from, to)?.into_iter().filter_map(|s| self.station(s).bandwidth).min())
    }

    /// The least latency of all pairs of endpoints between which there is a route, picoseconds:
    /// nothing that one endpoint does reaches another any sooner. `None`: there is no such pair.
    #[must_use]
    pub fn least_latency_ps(&self) -> Option<u64> {
        let ends: Vec<VertexId> = self.endpoints().collect();
        let pairs =
            ends.iter().enumerate().flat_map(|(i, a)| ends[i + 1..].iter().map(|b| (*a, *b)));
        pairs.filter_map(|(a, b)| self.latency_ps(a, b).ok()).min()
    }
}

fn check_figures(
    name: &str,
    latency: Nanos,
    bandwidth: Option<BytesPerSec>,
) -> Result<(), FabricError> {
    if latency > MAX_LATENCY {
        return Err(FabricError::Latency {
            name: name.to_owned(),
            latency_ns: latency.get(),
            most_ns: MAX_LATENCY.get(),
        });
    }
    match bandwidth {
        Some(bandwidth) if bandwidth.get() == 0 => {
            Err(FabricError::NoBandwidth { name: name.to_owned() })
        }
        _ => Ok(()),
    }
}

/// The indexes of the vertices that each link joins. Links close no cycle: sets of vertices that
/// are joined already are kept by a representative.
fn check_links(
    vertices: &[VertexDescription],
    links: &[LinkDescription],
    ids: &HashMap<String, VertexId>,
) -> Result<Vec<[usize; 2]>, FabricError> {
    let mut sets: Vec<usize> = (0..vertices.len()).collect();
    let mut ends = Vec::with_capacity(links.len().min(vertices.len()));
    for link in links {
        check_figures(&link.name(), link.latency, link.bandwidth)?;
        let mut joined = [0; 2];
        for (end, name) in joined.iter_mut().zip(&link.ends) {
            let unknown = || FabricError::UnknownEnd { link: link.name(), name: name.clone() };
            *end = ids.get(name).ok_or_else(unknown)?.0 as usize;
        }
        let [a, b] = joined.map(|end| find_set(&mut sets, end));
        if a == b {
            return Err(FabricError::Cycle { link: link.name() });
        }
        sets[a] = b;
        ends.push(joined);
    }
    Ok(ends)
}

fn find_set(sets: &mut [usize], mut at: usize) -> usize {
    while sets[at] != at {
        sets[at] = sets[sets[at]];
        at = sets[at];
    }
    at
}

/// Walks the tree from vertex 0.
fn find_parents(count: usize, ends: &[[usize; 2]]) -> (Vec<Option<ParentLink>>, Vec<u32>) {
    let mut neighbours: Vec<Vec<(usize, usize)>> = vec![Vec::new(); count];
    for (link, [a, b]) in ends.iter().enumerate() {
        neighbours[*a].push((*b, link));
        neighbours[*b].push((*a, link));
    }
    let (mut parents, mut depths) = (vec![None; count], vec![0; count]);
    let mut todo = vec![0];
    while let Some(vertex) = todo.pop() {
        for (child, link) in &neighbours[vertex] {
            if *child == 0 || parents[*child].is_some() {
                continue;
            }
            let up = usize::from(ends[*link][1] == *child);
            parents[*child] = Some(ParentLink { vertex, link: *link, up });
            depths[*child] = depths[vertex] + 1;
            todo.push(*child);
        }
    }
    (parents, depths)
}
