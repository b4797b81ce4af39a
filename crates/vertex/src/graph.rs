//! Graphs: sorted lists of neighbours, without loops and repeated edges.

use crate::syntax::Direction;
use crate::VertexError;

/// Vertices at most: numbers are 32 bits wide.
pub const MOST_VERTICES: u64 = 1 << 31;

/// An edge of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputEdge {
    /// Where it begins.
    pub from: u32,
    /// Where it ends.
    pub to: u32,
    /// Its weight.
    pub weight: i32,
}

/// Whether an edge also goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orientation {
    /// No.
    Directed,
    /// Yes, with the same weight.
    Undirected,
}

/// Whether a graph keeps the lists of in-neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InEdges {
    /// Yes.
    Kept,
    /// No; an undirected graph has them all the same.
    Dropped,
}

/// Lists of neighbours, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NeighborLists {
    offsets: Vec<u64>,
    neighbors: Vec<u32>,
    weights: Vec<i32>,
}

impl NeighborLists {
    /// Neighbours of a vertex in the order of their numbers; none beyond the last vertex.
    #[must_use]
    pub fn of(&self, vertex: u32) -> &[u32] {
        self.range(vertex).map_or(&[], |range| &self.neighbors[range])
    }

    /// Weights of the edges, in the same order.
    #[must_use]
    pub fn weights_of(&self, vertex: u32) -> &[i32] {
        self.range(vertex).map_or(&[], |range| &self.weights[range])
    }

    /// Where a vertex's list begins, among all lists.
    #[must_use]
    pub fn start(&self, vertex: u32) -> u64 {
        self.offsets.get(vertex as usize).copied().unwrap_or(0)
    }

    fn range(&self, vertex: u32) -> Option<std::ops::Range<usize>> {
        let vertex = vertex as usize;
        Some(*self.offsets.get(vertex)? as usize..*self.offsets.get(vertex + 1)? as usize)
    }

    /// Sorts edges into lists; of repeated edges the least weight stays.
    fn new(vertices: u32, edges: impl Iterator<Item = InputEdge> + Clone) -> Self {
        let count = vertices as usize;
        let mut offsets = vec![0u64; count + 1];
        edges.clone().for_each(|edge| offsets[edge.from as usize + 1] += 1);
        (0..count).for_each(|v| offsets[v + 1] += offsets[v]);
        let mut next = offsets.clone();
        let mut lists = vec![(0u32, 0i32); offsets[count] as usize];
        for edge in edges {
            let slot = &mut next[edge.from as usize];
            lists[*slot as usize] = (edge.to, edge.weight);
            *slot += 1;
        }
        drop(next);
        let (mut neighbors, mut weights) = (Vec::new(), Vec::new());
        let mut begin = 0;
        for vertex in 0..count {
            let end = offsets[vertex + 1] as usize;
            let list = &mut lists[begin..end];
            list.sort_unstable();
            let mut last = None;
            for (to, weight) in list.iter() {
                if last != Some(*to) {
                    neighbors.push(*to);
                    weights.push(*weight);
                }
                last = Some(*to);
            }
            begin = end;
            offsets[vertex + 1] = neighbors.len() as u64;
        }
        neighbors.shrink_to_fit();
        weights.shrink_to_fit();
        Self { offsets, neighbors, weights }
    }
}

/// Input edges that a graph does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOutEdges {
    /// From a vertex to itself.
    pub loops: u64,
    /// The same edge again; of an undirected graph in either direction.
    pub repeated: u64,
}

/// A graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    vertices: u32,
    left_out: LeftOutEdges,
    orientation: Orientation,
    out: NeighborLists,
    /// Of a directed graph whose in-edges are kept.
    inverse: Option<NeighborLists>,
}

impl Graph {
    /// Builds a graph; edges from a vertex to itself are left out.
    ///
    /// # Errors
    /// [`VertexError::Graph`]: no or too many vertices, or an edge beyond the last vertex.
    pub fn new(
        name: &str,
        vertices: u64,
        edges: &[InputEdge],
        orientation: Orientation,
        in_edges: InEdges,
    ) -> Result<Self, VertexError> {
        let bad = |why: String| VertexError::Graph { graph: name.to_owned(), why };
        if vertices == 0 {
            return Err(bad("it has no vertices; give a graph with at least one".to_owned()));
        }
        if vertices > MOST_VERTICES {
            return Err(bad(format!("{vertices} vertices; at most {MOST_VERTICES} are possible")));
        }
        let outside = edges.iter().find(|e| u64::from(e.from.max(e.to)) >= vertices);
        if let Some(InputEdge { from, to, .. }) = outside {
            let last = vertices - 1;
            return Err(bad(format!("edge {from} {to} goes beyond the last vertex, {last}")));
        }
        let vertices = vertices as u32;
        let forward = edges.iter().copied().filter(|edge| edge.from != edge.to);
        let back = |e: InputEdge| InputEdge { from: e.to, to: e.from, weight: e.weight };
        let backward = forward.clone().map(back);
        let (out, inverse) = match (orientation, in_edges) {
            (Orientation::Undirected, _) => {
                (NeighborLists::new(vertices, forward.clone().chain(backward)), None)
            }
            (Orientation::Directed, InEdges::Dropped) => {
                (NeighborLists::new(vertices, forward.clone()), None)
            }
            (Orientation::Directed, InEdges::Kept) => {
                let inverse = NeighborLists::new(vertices, backward);
                (NeighborLists::new(vertices, forward.clone()), Some(inverse))
            }
        };
        let (given, kept) = (forward.count() as u64, out.neighbors.len() as u64);
        let repeated = match orientation {
            Orientation::Directed => given - kept,
            Orientation::Undirected => given - kept / 2,
        };
        let left_out = LeftOutEdges { loops: edges.len() as u64 - given, repeated };
        Ok(Self { vertices, left_out, orientation, out, inverse })
    }

    /// Input edges that were left out.
    #[must_use]
    pub fn left_out(&self) -> LeftOutEdges {
        self.left_out
    }

    /// Vertices.
    #[must_use]
    pub fn vertices(&self) -> u32 {
        self.vertices
    }

    /// Edges; an undirected edge counts twice.
    #[must_use]
    pub fn edges(&self) -> u64 {
        self.out.neighbors.len() as u64
    }

    /// Whether edges go back too.
    #[must_use]
    pub fn orientation(&self) -> Orientation {
        self.orientation
    }

    /// The lists of a direction; `None` where in-edges were dropped.
    #[must_use]
    pub fn lists(&self, direction: Direction) -> Option<&NeighborLists> {
        match (direction, self.orientation) {
            (Direction::Out, _) | (Direction::In, Orientation::Undirected) => Some(&self.out),
            (Direction::In, Orientation::Directed) => self.inverse.as_ref(),
        }
    }

    /// Whether there is an edge.
    #[must_use]
    pub fn has_edge(&self, from: u32, to: u32) -> bool {
        self.out.of(from).binary_search(&to).is_ok()
    }

    /// The same graph with other numbers: vertex `v` becomes `numbers[v]`, a permutation.
    #[must_use]
    pub fn renumbered(&self, numbers: &[u32]) -> Self {
        let renumber = |lists: &NeighborLists| {
            let edges = (0..self.vertices).flat_map(|vertex| {
                let from = numbers[vertex as usize];
                let pairs = lists.of(vertex).iter().zip(lists.weights_of(vertex));
                pairs.map(move |(to, weight)| (from, *to, *weight))
            });
            let edges = edges.map(|(from, to, weight)| InputEdge {
                from,
                to: numbers[to as usize],
                weight,
            });
            NeighborLists::new(self.vertices, edges)
        };
        Self {
            vertices: self.vertices,
            left_out: self.left_out,
            orientation: self.orientation,
            out: renumber(&self.out),
            inverse: self.inverse.as_ref().map(renumber),
        }
    }

    /// Numbers for [`Self::renumbered`] by degree, both directions together: the least first.
    #[must_use]
    pub fn numbers_by_degree(&self) -> Vec<u32> {
        let degree = |vertex: &u32| {
            let inverse = self.inverse.as_ref().map_or(0, |lists| lists.of(*vertex).len());
            self.out.of(*vertex).len() + inverse
        };
        let mut order: Vec<u32> = (0..self.vertices).collect();
        order.sort_by_key(degree);
        let mut numbers = vec![0; order.len()];
        for (number, vertex) in order.into_iter().enumerate() {
            numbers[vertex as usize] = number as u32;
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: u32, to: u32, weight: i32) -> InputEdge {
        InputEdge { from, to, weight }
    }

    #[test]
    fn loops_and_repeated_edges_are_left_out_and_the_least_weight_stays() {
        let edges = [edge(0, 1, 7), edge(2, 2, 1), edge(1, 0, 3), edge(0, 1, 5), edge(2, 0, 4)];
        let directed = Graph::new("g", 3, &edges, Orientation::Directed, InEdges::Kept).unwrap();
        assert_eq!(directed.edges(), 3);
        assert_eq!(directed.left_out(), LeftOutEdges { loops: 1, repeated: 1 });
        assert_eq!(directed.lists(Direction::Out).unwrap().weights_of(0), [5]);
        assert_eq!(directed.lists(Direction::In).unwrap().of(0), [1, 2]);
        let both = Graph::new("g", 3, &edges, Orientation::Undirected, InEdges::Dropped).unwrap();
        assert_eq!(both.edges(), 4);
        assert_eq!(both.left_out(), LeftOutEdges { loops: 1, repeated: 2 });
        assert_eq!(both.lists(Direction::In).unwrap().of(0), [1, 2]);
        assert_eq!(both.lists(Direction::Out).unwrap().weights_of(1), [3]);
        assert!(both.has_edge(0, 2) && !both.has_edge(1, 2));
    }

    #[test]
    fn graphs_that_cannot_be_are_refused_in_one_line() {
        let new = |vertices, edges: &[InputEdge]| {
            Graph::new("g", vertices, edges, Orientation::Directed, InEdges::Kept)
        };
        assert!(new(0, &[]).unwrap_err().to_string().contains("no vertices"));
        let beyond = new(2, &[edge(0, 2, 1)]).unwrap_err().to_string();
        assert_eq!(beyond, "graph g: edge 0 2 goes beyond the last vertex, 1");
        assert!(new(MOST_VERTICES + 1, &[]).is_err());
        assert_eq!(new(3, &[]).unwrap().edges(), 0);
    }

    #[test]
    fn renumbered_graphs_have_the_same_edges() {
        let edges = [edge(0, 1, 2), edge(0, 2, 3), edge(3, 0, 4)];
        let graph = Graph::new("g", 4, &edges, Orientation::Directed, InEdges::Kept).unwrap();
        let numbers = graph.numbers_by_degree();
        assert_eq!(numbers[0], 3);
        let other = graph.renumbered(&numbers);
        for edge in edges {
            let [from, to] = [edge.from, edge.to].map(|v| numbers[v as usize]);
            assert!(other.has_edge(from, to));
            assert!(other.lists(Direction::In).unwrap().of(to).contains(&from));
        }
        assert_eq!(other.edges(), 3);
    }
}
