//! `graph-pagerank`: PageRank by power iteration on the graph of `graph-bfs`, each vertex gathering
//! from its neighbours. The graph is read in order, the shares of rank at random; both vectors of
//! ranks are written once an iteration. Damping 0.85 (Page et al., "The PageRank Citation Ranking",
//! 1999, section 2.6: a tenth to a fifth of the rank comes from nowhere).
//!
//! ```text
//! words: | offsets, n + 1 | neighbours, 2 m | ranks, n | shares, n |
//! ```

use crate::algorithm::WrongResult;
use crate::kronecker::Kronecker;
use crate::memory::WordMemory;
use crate::pace::{with_kronecker, WorkloadPace};
use crate::spec::WorkloadSpec;
use crate::team::{digest, get, set, MeetingSums, NumericalKernel};

/// Vertices a unit.
const VERTICES: usize = 64;
/// Share of a vertex's rank that goes to its neighbours.
const DAMPING: f64 = 0.85;

/// The workload; see the module. The unit of work is one neighbour gathered from.
#[derive(Debug)]
pub struct PageRank {
    graph: Kronecker,
    rounds: u64,
    neighbours: usize,
    ranks: usize,
    shares: usize,
}

/// Stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageRankStage {
    /// What each vertex gives each neighbour; sums the rank of those without any.
    Share,
    /// New ranks; sums them.
    Gather,
}

/// What each thread knows.
#[derive(Debug, Default)]
pub struct PageRankThread {
    rounds: u64,
    /// Rank that comes to every vertex.
    base: f64,
    /// Of all ranks.
    sum: f64,
}

impl PageRank {
    /// The workload as specified: as many vertices as fit with 8 to 16 edges each.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = spec.size.bytes(spec.fast).0 / 8;
        let graph = Kronecker::fitting(words, spec.seed);
        let (vertices, ends) = (graph.vertices(), 2 * graph.edges());
        let (neighbours, ranks) = (vertices + 1, vertices + 1 + ends);
        let rounds = match spec.seconds {
            Some(_) => u64::MAX,
            None => (spec.accesses / ends as u64).max(1),
        };
        Self { graph, rounds, neighbours, ranks, shares: ranks + vertices }
    }
}

impl NumericalKernel for PageRank {
    type Stage = PageRankStage;
    type Own = PageRankThread;

    fn words(&self) -> usize {
        self.shares + self.graph.vertices()
    }

    fn pace(&self) -> WorkloadPace {
        with_kronecker(539)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        self.graph.build(memory, self.neighbours);
        let vertices = self.graph.vertices();
        for vertex in 0..vertices {
            set(memory, self.ranks + vertex, 1.0 / vertices as f64);
            set(memory, self.shares + vertex, 0.0);
        }
    }

    fn begin(&self) -> (PageRankStage, PageRankThread) {
        (PageRankStage::Share, PageRankThread::default())
    }

    fn units(&self, _: PageRankStage) -> usize {
        self.graph.vertices() / VERTICES
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut PageRankThread,
        stage: PageRankStage,
        unit: usize,
        sums: &mut [f64; 2],
    ) -> u64 {
        let mut gathered = 0;
        for vertex in unit * VERTICES..(unit + 1) * VERTICES {
            let (from, to) = (memory.load(vertex) as usize, memory.load(vertex + 1) as usize);
            match stage {
                PageRankStage::Share => {
                    let rank = get(memory, self.ranks + vertex);
                    if from == to {
                        sums[0] += rank;
                    } else {
                        set(memory, self.shares + vertex, rank / (to - from) as f64);
                    }
                }
                PageRankStage::Gather => {
                    let mut sum = 0.0;
                    for slot in from..to {
                        sum +=
                            get(memory, self.shares + memory.load(self.neighbours + slot) as usize);
                    }
                    let rank = own.base + DAMPING * sum;
                    set(memory, self.ranks + vertex, rank);
                    sums[0] += rank;
                    gathered += (to - from) as u64;
                }
            }
        }
        gathered
    }

    fn next(
        &self,
        own: &mut PageRankThread,
        stage: PageRankStage,
        met: MeetingSums,
    ) -> Option<PageRankStage> {
        match stage {
            PageRankStage::Share => {
                own.base = (1.0 - DAMPING + DAMPING * met.sums[0]) / self.graph.vertices() as f64;
                Some(PageRankStage::Gather)
            }
            PageRankStage::Gather => {
                own.sum = met.sums[0];
                own.rounds += 1;
                (!met.over && own.rounds < self.rounds).then_some(PageRankStage::Share)
            }
        }
    }

    /// Rank is neither made nor lost; the digest is of the sum of squares and of each 64th vertex's
    /// rank.
    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &PageRankThread,
    ) -> Result<u64, WrongResult> {
        let ranks: Vec<f64> =
            (0..self.graph.vertices()).map(|v| get(memory, self.ranks + v)).collect();
        let sum: f64 = ranks.iter().sum();
        if (sum - 1.0).abs() > 1e-9 || (own.sum - 1.0).abs() > 1e-9 {
            return Err(WrongResult {
                workload: "graph-pagerank",
                what: format!("all ranks add up to {sum}"),
            });
        }
        Ok(digest_of(&ranks))
    }
}

/// What stands for all ranks.
fn digest_of(ranks: &[f64]) -> u64 {
    let squares: f64 = ranks.iter().map(|r| r * r).sum();
    let some = ranks.iter().step_by(VERTICES).copied();
    digest(&std::iter::once(squares).chain(some).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::run_serially;
    use crate::memory::Heap;

    /// The same by pushing along a list of edges: another order of the same additions.
    fn plain(spec: &WorkloadSpec) -> u64 {
        let own = PageRank::new(spec);
        let (vertices, memory) = (own.graph.vertices(), Heap::new(own.words()));
        own.graph.build(&memory, own.neighbours);
        let mut edges = Vec::new();
        for v in 0..vertices {
            for slot in memory.load(v)..memory.load(v + 1) {
                edges.push((v, memory.load(own.neighbours + slot as usize) as usize));
            }
        }
        let mut degree = vec![0.0; vertices];
        edges.iter().for_each(|(from, _)| degree[*from] += 1.0);
        let mut ranks = vec![1.0 / vertices as f64; vertices];
        for _ in 0..own.rounds {
            let lost: f64 = (0..vertices).filter(|v| degree[*v] == 0.0).map(|v| ranks[v]).sum();
            let mut next = vec![(0.15 + 0.85 * lost) / vertices as f64; vertices];
            edges.iter().for_each(|(from, to)| next[*to] += 0.85 * ranks[*from] / degree[*from]);
            ranks = next;
        }
        digest_of(&ranks)
    }

    #[test]
    fn ranks_are_those_of_a_plain_computation() {
        for text in [
            "graph-pagerank,fast=256KiB,accesses=300k",
            "graph-pagerank,fast=128KiB,accesses=90k,seed=5",
        ] {
            let spec = WorkloadSpec::parse(text).expect("valid");
            assert_eq!(
                run_serially(&spec, Heap::new).expect("verified").checksum,
                plain(&spec),
                "{text}"
            );
        }
    }
}
