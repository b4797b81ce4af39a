//! `graph-bfs`: breadth-first search on a Kronecker graph (Graph500's, probabilities 0.57, 0.19,
//! 0.19, 0.05), level by level, on all threads, from as many roots as the accesses asked for
//! allow. The graph comes first in memory and the levels, which are hot, last.
//!
//! ```text
//! words: | offsets, n + 1 | neighbours, 2 m | levels, n | found, 2 x threads |
//! ```

use crate::algorithm::{Algorithm, ThreadStep, WorkloadResult, WrongResult};
use crate::kronecker::Kronecker;
use crate::memory::WordMemory;
use crate::pace::{with_kronecker, WorkloadPace};
use crate::random::{mix, Lcg};
use crate::spec::WorkloadSpec;
use terrace_types::Nanos;

/// Vertices a thread takes at a time: chunk `c` belongs to thread `c mod threads`.
const CHUNK: usize = 256;

/// The workload; see the module. An access is one neighbour looked at.
#[derive(Debug)]
pub struct GraphBfs {
    graph: Kronecker,
    threads: usize,
    seed: u64,
    seconds: Option<Nanos>,
    rounds: u64,
    /// Words where neighbours, levels and the found counts begin.
    neighbours: usize,
    levels: usize,
    found: usize,
}

/// One thread of it.
#[derive(Debug)]
pub struct GraphThread {
    index: usize,
    round: u64,
    level: u64,
    /// Levels done in all rounds; its parity says where the counts of this one go.
    turn: usize,
    at: usize,
    waiting: bool,
    found: u64,
    edges: u64,
    digest: u64,
}

impl GraphBfs {
    /// The workload as specified: as many vertices as fit with 8 to 16 edges each.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = spec.size.bytes(spec.fast).0 / 8;
        let graph = Kronecker::fitting(words, spec.seed);
        let (vertices, edges) = (graph.vertices(), graph.edges());
        let threads = spec.threads as usize;
        let (neighbours, levels) = (vertices + 1, vertices + 1 + 2 * edges);
        Self {
            graph,
            threads,
            seed: spec.seed,
            seconds: spec.seconds,
            rounds: (spec.accesses / (2 * edges as u64)).max(1),
            neighbours,
            levels,
            found: levels + vertices,
        }
    }

    /// The round's root: a vertex that has an edge.
    fn root<M: WordMemory + ?Sized>(&self, memory: &M, round: u64) -> usize {
        let mut random = Lcg::new(self.seed ^ 0xb0f5, round);
        loop {
            let vertex = random.below(self.graph.vertices() as u64) as usize;
            if memory.load(vertex) < memory.load(vertex + 1) {
                return vertex;
            }
        }
    }

    /// What the levels hold for a vertex found in this round at this level; rounds need no reset.
    const fn stamp(round: u64, level: u64) -> u64 {
        (round + 1) << 32 | level
    }

    /// Looks at all neighbours of `vertex`, found at `level`.
    #[inline(always)]
    fn expand<M: WordMemory + ?Sized>(&self, memory: &M, thread: &mut GraphThread, vertex: usize) {
        let (from, to) = (memory.load(vertex) as usize, memory.load(vertex + 1) as usize);
        let unseen_below = Self::stamp(thread.round, 0);
        let stamp = Self::stamp(thread.round, thread.level + 1);
        let mut found = 0;
        for slot in from..to {
            let level = self.levels + memory.load(self.neighbours + slot) as usize;
            if memory.load(level) < unseen_below {
                memory.store(level, stamp);
                found += 1;
            }
        }
        thread.found += found;
        thread.edges += (to - from) as u64;
        thread.digest = thread.digest.wrapping_add(mix((vertex as u64) << 20 ^ stamp));
    }

    /// All threads have finished the level: go on to the next, or to the next root.
    fn after_level<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut GraphThread,
        now: Nanos,
    ) -> ThreadStep {
        let slot = self.found + thread.turn % 2 * self.threads;
        let found: u64 = (0..self.threads).map(|t| memory.load(slot + t)).sum();
        (thread.at, thread.found, thread.waiting) = (thread.index * CHUNK, 0, false);
        thread.level += 1;
        thread.turn += 1;
        if found > 0 {
            return ThreadStep::More;
        }
        thread.round += 1;
        thread.level = 0;
        let enough = match self.seconds {
            // All threads must agree, and each has its own clock: rounds only, never mid-round.
            Some(limit) => self.agree(memory, thread, now >= limit),
            None => thread.round == self.rounds,
        };
        if enough {
            ThreadStep::Done
        } else {
            ThreadStep::More
        }
    }

    /// With a time limit, the first thread alone decides, one round ahead.
    fn agree<M: WordMemory + ?Sized>(&self, memory: &M, thread: &GraphThread, over: bool) -> bool {
        let last = self.found + 2 * self.threads;
        if thread.index == 0 && over && memory.load(last) == 0 {
            memory.store(last, thread.round + 1);
        }
        let stop = memory.load(last);
        stop != 0 && thread.round >= stop
    }
}

impl Algorithm for GraphBfs {
    type Thread = GraphThread;

    fn words(&self) -> usize {
        self.found + 2 * self.threads + 1
    }

    fn pace(&self) -> WorkloadPace {
        with_kronecker(750)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        self.graph.build(memory, self.neighbours);
        for word in self.levels..self.words() {
            memory.store(word, 0);
        }
    }

    fn thread(&self, index: u32) -> GraphThread {
        let index = index as usize;
        GraphThread {
            index,
            round: 0,
            level: 0,
            turn: 0,
            at: index * CHUNK,
            waiting: false,
            found: 0,
            edges: 0,
            digest: 0,
        }
    }

    fn step<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        thread: &mut GraphThread,
        now: Nanos,
    ) -> ThreadStep {
        if thread.waiting {
            return self.after_level(memory, thread, now);
        }
        let here = Self::stamp(thread.round, thread.level);
        let root = if thread.level == 0 { Some(self.root(memory, thread.round)) } else { None };
        let before = thread.edges;
        while thread.at < self.graph.vertices() && thread.edges - before < 16_384 {
            for vertex in thread.at..(thread.at + CHUNK).min(self.graph.vertices()) {
                let level = memory.load(self.levels + vertex);
                if root == Some(vertex) {
                    memory.store(self.levels + vertex, here);
                    self.expand(memory, thread, vertex);
                } else if level == here && root.is_none() {
                    self.expand(memory, thread, vertex);
                }
            }
            thread.at += CHUNK * self.threads;
        }
        if thread.at < self.graph.vertices() {
            return ThreadStep::More;
        }
        let slot = self.found + thread.turn % 2 * self.threads;
        memory.store(slot + thread.index, thread.found);
        thread.waiting = true;
        ThreadStep::Meet
    }

    /// Graph500's checks on the last search: the root has level 0; the ends of an edge differ by
    /// one level at most; every vertex found has a neighbour one level nearer the root.
    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        threads: &[GraphThread],
    ) -> Result<WorkloadResult, WrongResult> {
        let wrong = |what: String| WrongResult { workload: "graph-bfs", what };
        let round = threads.iter().map(|t| t.round).max().unwrap_or(1).saturating_sub(1);
        let level = |vertex: usize| {
            let word = memory.load(self.levels + vertex);
            (word >= Self::stamp(round, 0)).then_some(word & 0xffff_ffff)
        };
        let root = self.root(memory, round);
        if level(root) != Some(0) {
            return Err(wrong(format!("root {root} has level {:?}", level(root))));
        }
        for vertex in 0..self.graph.vertices() {
            let own = level(vertex);
            let mut nearer = vertex == root || own.is_none();
            for slot in memory.load(vertex)..memory.load(vertex + 1) {
                let other = level(memory.load(self.neighbours + slot as usize) as usize);
                let (Some(a), Some(b)) = (own, other) else {
                    if own == other {
                        continue;
                    }
                    return Err(wrong(format!("vertex {vertex} has a neighbour not reached")));
                };
                if a.abs_diff(b) > 1 {
                    return Err(wrong(format!("an edge of {vertex} spans levels {a} and {b}")));
                }
                nearer |= b + 1 == a;
            }
            if !nearer {
                return Err(wrong(format!("vertex {vertex} was reached from nowhere")));
            }
        }
        let checksum = threads.iter().fold(0u64, |sum, t| sum.wrapping_add(t.digest));
        Ok(WorkloadResult { accesses: threads.iter().map(|t| t.edges).sum(), checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn a_false_level_is_found() {
        let spec = WorkloadSpec::parse("graph-bfs,fast=256KiB,accesses=1").expect("valid");
        let mut bfs = GraphBfs::new(&spec);
        let memory = Heap::new(bfs.words());
        bfs.prepare(&memory);
        let threads = crate::drive::take_turns(&bfs, 2, &memory);
        assert!(bfs.finish(&memory, &threads).is_ok());
        let found = (0..bfs.graph.vertices())
            .find(|v| memory.load(bfs.levels + v) & 0xff == 2)
            .expect("some vertex is two steps from the root");
        memory.store(bfs.levels + found, GraphBfs::stamp(0, 9));
        assert!(bfs.finish(&memory, &threads).is_err());
    }
}
