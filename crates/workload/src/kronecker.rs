//! Kronecker graphs (Graph500's generator), drawn three levels at a time and built twice from the
//! same random numbers, once to count and once to place, so that no list of edges is ever held.

use crate::memory::WordMemory;
use crate::random::{mix, Lcg};

/// Chances, in hundredths, of the four quadrants of the adjacency matrix.
const QUADRANTS: [u64; 4] = [57, 19, 19, 5];
/// Levels drawn with one random number.
const LEVELS: u32 = 3;

/// A graph of `2^scale` vertices; loops and repeated edges are kept, as Graph500 allows.
#[derive(Debug)]
pub struct Kronecker {
    scale: u32,
    edges: usize,
    seed: u64,
    /// For the top 16 bits of a random number: three bits of row, three bits of column.
    table: Vec<u8>,
}

impl Kronecker {
    /// The largest graph with at least 8 edges a vertex that fits `words` in all
    /// (offsets, neighbours and one word a vertex besides).
    #[must_use]
    pub fn fitting(words: u64, seed: u64) -> Self {
        let need = |scale: u32, degree: u64| (2 + 2 * degree) << scale;
        let scale = (6..31).rev().find(|s| need(*s, 8) <= words).unwrap_or(6);
        let degree = (words >> scale).saturating_sub(2) / 2;
        Self { scale, edges: (degree.clamp(8, 16) as usize) << scale, seed, table: table() }
    }

    /// Vertices.
    #[must_use]
    pub const fn vertices(&self) -> usize {
        1 << self.scale
    }

    /// Undirected edges.
    #[must_use]
    pub const fn edges(&self) -> usize {
        self.edges
    }

    /// Writes offsets at word 0 and neighbours at `neighbours`.
    pub fn build<M: WordMemory + ?Sized>(&self, memory: &M, neighbours: usize) {
        memory.reserve_bytes(self.table.len() as u64);
        if memory.listens() {
            // Twice the size of a first level: what it misses there is a good part of what drawing
            // takes.
            self.build_telling(memory, neighbours, |place| memory.own(place as u64, 1, false));
        } else {
            self.build_telling(memory, neighbours, |_| {});
        }
    }

    /// The same; where the table of chances is read is reported.
    fn build_telling<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        neighbours: usize,
        read: impl Fn(usize),
    ) {
        for vertex in 0..=self.vertices() {
            memory.store(vertex, 0);
        }
        for slot in 0..2 * self.edges {
            memory.store(neighbours + slot, 0);
        }
        self.each_edge(&read, |one, other| {
            memory.add_own(one, 1);
            memory.add_own(other, 1);
        });
        // Offsets become the *ends* of the lists; placing backwards turns them into the starts.
        let mut end = 0;
        for vertex in 0..self.vertices() {
            end += memory.load(vertex);
            memory.store(vertex, end);
        }
        memory.store(self.vertices(), end);
        let place = |from: usize, to: usize| {
            let slot = memory.load(from) - 1;
            memory.store(from, slot);
            memory.store(neighbours + slot as usize, to as u64);
        };
        self.each_edge(&read, |one, other| {
            place(one, other);
            place(other, one);
        });
    }

    fn each_edge(&self, read: impl Fn(usize), mut see: impl FnMut(usize, usize)) {
        let mut random = Lcg::new(self.seed, 0x6b72_6f6e);
        let mask = self.vertices() - 1;
        let odd = mix(self.seed) as usize | 1;
        // Labels are shuffled, so that hubs are not the first vertices.
        let label = |v: usize| {
            let v = (v & mask).wrapping_mul(odd) & mask;
            (v ^ v >> (self.scale / 2 + 1)).wrapping_mul(odd) & mask
        };
        for _ in 0..self.edges {
            let (mut row, mut column) = (0usize, 0usize);
            for _ in 0..self.scale.div_ceil(LEVELS) {
                let place = (random.next() >> 48) as usize;
                read(place);
                let drawn = usize::from(self.table[place]);
                row = row << LEVELS | drawn >> LEVELS;
                column = column << LEVELS | drawn & 7;
            }
            see(label(row), label(column));
        }
    }
}

/// 65,536 entries, each outcome of three levels as often as it is likely.
fn table() -> Vec<u8> {
    let mut table = Vec::with_capacity(1 << 16);
    let mut sum = 0u64;
    for outcome in 0..64usize {
        let quadrant = |level: usize| (outcome >> level & 1) | (outcome >> (level + 3) & 1) << 1;
        sum += (0..3).map(|level| QUADRANTS[quadrant(level)]).product::<u64>();
        table.resize((sum << 16) as usize / 1_000_000, outcome as u8);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn the_table_has_the_likelihoods_of_the_quadrants() {
        let table = table();
        assert_eq!(table.len(), 1 << 16);
        let share = |outcome: u8| table.iter().filter(|o| **o == outcome).count() as f64 / 65_536.0;
        assert!((share(0) - 0.57f64.powi(3)).abs() < 1e-4);
        assert!((share(63) - 0.05f64.powi(3)).abs() < 1e-4);
        assert!((share(7) - 0.19f64.powi(3)).abs() < 1e-4);
    }

    #[test]
    fn every_edge_is_in_both_lists_and_degrees_are_skewed() {
        let graph = Kronecker::fitting(20_000, 3);
        let neighbours = graph.vertices() + 1;
        let memory = Heap::new(neighbours + 2 * graph.edges());
        graph.build(&memory, neighbours);
        let list = |v: usize| {
            (memory.load(v)..memory.load(v + 1))
                .map(|slot| memory.load(neighbours + slot as usize) as usize)
                .collect::<Vec<_>>()
        };
        let mut pairs = std::collections::BTreeMap::new();
        let mut degrees = Vec::new();
        for one in 0..graph.vertices() {
            degrees.push(list(one).len());
            for other in list(one) {
                *pairs.entry((one, other)).or_insert(0) += 1;
            }
        }
        assert_eq!(degrees.iter().sum::<usize>(), 2 * graph.edges());
        assert!(pairs.iter().all(|((a, b), n)| pairs.get(&(*b, *a)) == Some(n)));
        degrees.sort_unstable();
        let top: usize = degrees.iter().rev().take(graph.vertices() / 10).sum();
        assert!(top * 10 > 2 * graph.edges() * 3, "a tenth of the vertices has {top} edge ends");
    }

    #[test]
    fn graphs_fill_what_they_are_given() {
        for words in [2_000u64, 50_000, 26_000_000, 40_000_000] {
            let graph = Kronecker::fitting(words, 1);
            let used = (2 * graph.vertices() + 2 * graph.edges()) as u64;
            assert!(used <= words && used * 10 >= words * 8, "{used} of {words}");
        }
    }
}
