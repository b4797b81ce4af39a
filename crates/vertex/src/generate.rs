//! Graphs drawn at random, and grids.
//!
//! Kronecker and uniform graphs are those of the GAP benchmark suite (Beamer, Asanovic, Patterson,
//! 2015): Mersenne Twister, a seed for each block of 2^18 edges, quadrants 0.57, 0.19, 0.19, 0.05.
//! The vertices keep the numbers that the generator gives them; [`VertexOrder`] changes them.

use crate::graph::{Graph, InEdges, InputEdge, Orientation};
use crate::VertexError;

/// The seed of the GAP benchmark suite.
const GAP_SEED: u32 = 27_491_095;
/// Edges that share a seed there.
const SEED_BLOCK: u64 = 1 << 18;
/// Weights there are 1 to 255.
const HEAVIEST: u32 = 255;

/// Which edges a drawn graph has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphKind {
    /// Kronecker: few vertices have many edges.
    Rmat,
    /// All pairs alike.
    Uniform,
    /// A square grid, each vertex joined to the next in its row and column.
    Grid,
}

/// The numbers of the vertices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VertexOrder {
    /// As generated: of a Kronecker graph small numbers have most edges.
    Natural,
    /// Shuffled.
    Random,
    /// By degree, the least first.
    Degree,
}

/// A graph to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphRecipe {
    /// Which edges.
    pub kind: GraphKind,
    /// 2 to this power are the vertices.
    pub scale: u32,
    /// Edges that are drawn for each vertex.
    pub edges: u32,
    /// Added to the generator's seed.
    pub seed: u32,
    /// Directed or not.
    pub orientation: Orientation,
    /// Whether in-edges are kept.
    pub in_edges: InEdges,
    /// The numbers of the vertices.
    pub order: VertexOrder,
}

impl GraphRecipe {
    /// An undirected graph with 16 edges a vertex.
    #[must_use]
    pub fn new(kind: GraphKind, scale: u32) -> Self {
        Self {
            kind,
            scale,
            edges: 16,
            seed: 0,
            orientation: Orientation::Undirected,
            in_edges: InEdges::Kept,
            order: VertexOrder::Natural,
        }
    }

    /// Reads `rmat:scale=10,edges=16,order=degree`; also `uniform:` and `grid:`. `None`: it is
    /// something else, such as a file.
    ///
    /// # Errors
    /// [`VertexError::Graph`] with what is possible.
    pub fn parse(text: &str) -> Option<Result<Self, VertexError>> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let kind = match name {
            "rmat" => GraphKind::Rmat,
            "uniform" => GraphKind::Uniform,
            "grid" => GraphKind::Grid,
            _ => return None,
        };
        let mut recipe = Self::new(kind, 10);
        for word in rest.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if let Err(why) = recipe.set(key, value) {
                return Some(Err(VertexError::Graph { graph: text.to_owned(), why }));
            }
        }
        Some(Ok(recipe))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |least: u32, most: u32| {
            let number = value.parse().ok().filter(|n| (least..=most).contains(n));
            number.ok_or(format!("{key} = {value:?}; give {least} to {most}"))
        };
        let choice = |choices: [&str; 3]| {
            let found = choices.iter().position(|choice| *choice == value);
            let known = choices.into_iter().filter(|c| !c.is_empty()).collect::<Vec<_>>();
            found.ok_or(format!("{key} = {value:?}; give {}", known.join(" or ")))
        };
        match key {
            "scale" => self.scale = number(0, 28)?,
            "edges" => self.edges = number(0, 1024)?,
            "seed" => self.seed = number(0, u32::MAX)?,
            "directed" => {
                let choices = [Orientation::Undirected, Orientation::Directed];
                self.orientation = choices[choice(["no", "yes", ""])?.min(1)];
            }
            "inverse" => {
                let choices = [InEdges::Dropped, InEdges::Kept];
                self.in_edges = choices[choice(["no", "yes", ""])?.min(1)];
            }
            "order" => {
                let choices = [VertexOrder::Natural, VertexOrder::Random, VertexOrder::Degree];
                self.order = choices[choice(["natural", "random", "degree"])?];
            }
            _ => return Err(format!("key {key:?} is unknown; give {KEYS}")),
        }
        Ok(())
    }

    /// Draws the graph.
    ///
    /// # Errors
    /// [`VertexError::Graph`].
    pub fn draw(&self) -> Result<Graph, VertexError> {
        let vertices = 1u64 << self.scale;
        let name = format!("scale {}", self.scale);
        let mut edges = match self.kind {
            GraphKind::Rmat => self.draw_edges(draw_rmat),
            GraphKind::Uniform => self.draw_edges(|random, scale| {
                let mask = (1u32 << scale) - 1;
                (random.next() & mask, random.next() & mask)
            }),
            GraphKind::Grid => grid(self.scale),
        };
        self.draw_weights(&mut edges);
        let graph = Graph::new(&name, vertices, &edges, self.orientation, self.in_edges)?;
        drop(edges);
        Ok(match self.order {
            VertexOrder::Natural => graph,
            VertexOrder::Degree => graph.renumbered(&graph.numbers_by_degree()),
            VertexOrder::Random => {
                let mut random = MersenneTwister::new(GAP_SEED.wrapping_add(self.seed));
                let mut numbers: Vec<u32> = (0..graph.vertices()).collect();
                for last in (1..numbers.len()).rev() {
                    let below = u64::from(random.next()) * (last as u64 + 1);
                    numbers.swap(last, (below >> 32) as usize);
                }
                graph.renumbered(&numbers)
            }
        })
    }

    fn draw_edges(
        &self,
        mut draw: impl FnMut(&mut MersenneTwister, u32) -> (u32, u32),
    ) -> Vec<InputEdge> {
        let count = u64::from(self.edges) << self.scale;
        let mut edges = Vec::with_capacity(count as usize);
        for block in 0..count.div_ceil(SEED_BLOCK) {
            let seed = GAP_SEED.wrapping_add(self.seed).wrapping_add(block as u32);
            let mut random = MersenneTwister::new(seed);
            for _ in 0..SEED_BLOCK.min(count - block * SEED_BLOCK) {
                let (from, to) = draw(&mut random, self.scale);
                edges.push(InputEdge { from, to, weight: 1 });
            }
        }
        edges
    }

    fn draw_weights(&self, edges: &mut [InputEdge]) {
        for (block, edges) in edges.chunks_mut(SEED_BLOCK as usize).enumerate() {
            let seed = GAP_SEED.wrapping_add(self.seed).wrapping_add(block as u32);
            let mut random = MersenneTwister::new(seed);
            for edge in edges {
                edge.weight = random.below(HEAVIEST) as i32 + 1;
            }
        }
    }
}

const KEYS: &str = "scale, edges, seed, directed, inverse or order";

/// An edge by quadrants. Single precision and one random number a level, as the GAP suite does it:
/// other ways draw other graphs.
fn draw_rmat(random: &mut MersenneTwister, scale: u32) -> (u32, u32) {
    let (mut from, mut to) = (0, 0);
    let (a, b, c) = (0.57f32, 0.19f32, 0.19f32);
    for _ in 0..scale {
        let point = random.next_unit();
        from <<= 1;
        to <<= 1;
        if point < a + b {
            to += u32::from(point > a);
        } else {
            from += 1;
            to += u32::from(point > a + b + c);
        }
    }
    (from, to)
}

/// Right and down, in a grid of 2^(scale / 2) columns, rounded down.
fn grid(scale: u32) -> Vec<InputEdge> {
    let (vertices, columns) = (1u32 << scale, 1u32 << (scale / 2));
    let mut edges = Vec::new();
    for from in 0..vertices {
        if (from + 1) % columns != 0 {
            edges.push(InputEdge { from, to: from + 1, weight: 1 });
        }
        if from + columns < vertices {
            edges.push(InputEdge { from, to: from + columns, weight: 1 });
        }
    }
    edges
}

/// MT19937 (Matsumoto and Nishimura, 1998).
#[derive(Debug, Clone)]
struct MersenneTwister {
    state: Vec<u32>,
    next: usize,
}

impl MersenneTwister {
    const WORDS: usize = 624;

    fn new(seed: u32) -> Self {
        let mut state = vec![seed; Self::WORDS];
        for i in 1..Self::WORDS {
            let last = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: Self::WORDS }
    }

    fn next(&mut self) -> u32 {
        if self.next == Self::WORDS {
            for i in 0..Self::WORDS {
                let after = self.state[(i + 1) % Self::WORDS];
                let y = (self.state[i] & 0x8000_0000) | (after & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % Self::WORDS] ^ (y >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// 0 to below 1, as C++'s library makes a float of it.
    fn next_unit(&mut self) -> f32 {
        let unit = self.next() as f32 / 4_294_967_296.0;
        if unit < 1.0 {
            unit
        } else {
            1.0 - f32::EPSILON / 2.0
        }
    }

    /// 0 to below `limit`, all alike: numbers in the last, incomplete part are drawn again.
    fn below(&mut self, limit: u32) -> u32 {
        let rest = u32::MAX % limit;
        loop {
            let drawn = self.next();
            if rest == limit - 1 || drawn < u32::MAX - rest {
                return drawn % limit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::Direction;

    #[test]
    fn the_twister_is_that_of_the_standard() {
        // C++ [rand.predef]: the 10,000th number of a default-seeded mt19937.
        let mut random = MersenneTwister::new(5489);
        assert_eq!((0..10_000).map(|_| random.next()).last(), Some(4_123_659_995));
    }

    #[test]
    fn recipes_are_read_and_wrong_ones_say_what_is_possible() {
        let recipe = GraphRecipe::parse("rmat:scale=6,edges=8,directed=yes,order=degree");
        let recipe = recipe.unwrap().unwrap();
        assert_eq!((recipe.scale, recipe.edges), (6, 8));
        assert_eq!(recipe.orientation, Orientation::Directed);
        assert_eq!(GraphRecipe::parse("graph.el"), None);
        for (text, expected) in [
            ("rmat:scale=99", "scale = \"99\"; give 0 to 28"),
            ("grid:colour=1", "key \"colour\" is unknown"),
            ("uniform:order=up", "give natural or random or degree"),
            ("uniform:directed=maybe", "give no or yes"),
        ] {
            let error = GraphRecipe::parse(text).unwrap().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn orders_change_numbers_only() {
        let draw = |order| {
            let recipe = GraphRecipe { order, ..GraphRecipe::new(GraphKind::Rmat, 7) };
            recipe.draw().unwrap()
        };
        let degrees = |graph: &Graph| {
            let lists = graph.lists(Direction::Out).unwrap();
            (0..graph.vertices()).map(|v| lists.of(v).len()).collect::<Vec<_>>()
        };
        let mut natural = degrees(&draw(VertexOrder::Natural));
        let mut random = degrees(&draw(VertexOrder::Random));
        let by_degree = degrees(&draw(VertexOrder::Degree));
        assert_ne!(natural, random);
        natural.sort_unstable();
        random.sort_unstable();
        assert_eq!((&natural, &natural), (&random, &by_degree));
    }

    #[test]
    fn a_grid_has_two_edges_a_vertex_but_at_its_rim() {
        let grid = GraphRecipe::new(GraphKind::Grid, 4).draw().unwrap();
        assert_eq!((grid.vertices(), grid.edges()), (16, 48));
        assert!(grid.has_edge(0, 1) && grid.has_edge(0, 4) && !grid.has_edge(3, 4));
        assert_eq!(GraphRecipe::new(GraphKind::Grid, 0).draw().unwrap().edges(), 0);
    }
}
