//! `npb-is`: integers are ranked, over and over, by counting how often each occurs; at the end they
//! are put in order (RNR-94-007, section 2.2.5). Each of sixteen blocks of keys has counts of its
//! own, as each thread of the original program has, so that results do not depend on the number of
//! threads.
//!
//! ```text
//! words: | keys, n | counts by block, 16 m | ranks, m | sums, 64 | probes, 5 | in order, n |
//! ```

use super::{iterations, must_verify, Random};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use crate::random::mix;
use crate::spec::WorkloadSpec;
use crate::team::{MeetingSums, NumericalKernel};

/// Blocks of keys, each with counts of its own.
const BLOCKS: usize = 16;
/// Parts of the range of keys that are summed by themselves.
const PARTS: usize = 64;
/// Rankings of every class.
const RANKINGS: u64 = 10;
/// Keys for each value that they can have, in classes from W on; in class S there are 32.
const KEYS_A_VALUE: usize = 16;
/// Class S: keys, values that they can have, and the ranks of five of them (NPB 3.4, `is.c`): where
/// they are and what their rank is before it is corrected by the number of the ranking.
const CLASS_S: (usize, usize) = (1 << 16, 1 << 11);
const PROBES: [(usize, u64); 5] =
    [(48_427, 0), (17_148, 18), (23_627, 346), (62_548, 64_917), (4_431, 65_463)];

/// The workload; see the module. The unit of work is one key counted or put in its place.
#[derive(Debug)]
pub struct Is {
    keys: usize,
    values: usize,
    seed: u64,
    rankings: u64,
    verify: bool,
    /// Sum of all keys as they were made, and the first of them, which rankings change.
    sum: u64,
    first: Vec<u64>,
}

/// Stages of a ranking, by its number, and what comes after the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsStage {
    /// Two keys change, and five are remembered.
    Change(u64),
    /// Each block's keys are counted.
    Count(u64),
    /// Counts of all blocks are summed, part by part.
    Sum(u64),
    /// Sums of parts become what comes before each part.
    Join(u64),
    /// Ranks get what comes before their part.
    Rank(u64),
    /// Ranks of the five keys are looked at.
    Probe(u64),
    /// Each block's counts become the places of its keys.
    Start,
    /// Keys go to their places.
    Place,
}

/// What each thread knows: rankings made, and ranks that were wrong in them.
#[derive(Debug, Default)]
pub struct IsThread {
    made: u64,
    wrong: u64,
}

impl Is {
    /// The workload as specified; all its words together have its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        // Keys twice, counts of all blocks, ranks.
        let words = spec.size.bytes(spec.fast).0 as usize / 8;
        let a_value = 2 * KEYS_A_VALUE + BLOCKS + 1;
        let values = (words / a_value).max(PARTS);
        let (keys, values) = if spec.class_s { CLASS_S } else { (values * KEYS_A_VALUE, values) };
        let rankings = iterations(spec, keys, RANKINGS);
        Self {
            keys,
            values,
            seed: spec.seed,
            rankings,
            verify: must_verify(spec),
            sum: 0,
            first: Vec::new(),
        }
    }

    const fn counts(&self, block: usize) -> usize {
        self.keys + block * self.values
    }

    const fn ranks(&self) -> usize {
        self.counts(BLOCKS)
    }

    const fn sums(&self) -> usize {
        self.ranks() + self.values
    }

    const fn probes(&self) -> usize {
        self.sums() + PARTS
    }

    const fn ordered(&self) -> usize {
        self.probes() + PROBES.len()
    }

    fn block(&self, index: usize) -> std::ops::Range<usize> {
        self.keys * index / BLOCKS..self.keys * (index + 1) / BLOCKS
    }

    fn part(&self, index: usize) -> std::ops::Range<usize> {
        self.values * index / PARTS..self.values * (index + 1) / PARTS
    }

    /// Which of the ten rankings, from 1, this one is as.
    const fn turn(ranking: u64) -> u64 {
        (ranking - 1) % RANKINGS + 1
    }

    fn change<M: WordMemory + ?Sized>(&self, memory: &M, ranking: u64) {
        let turn = Self::turn(ranking);
        memory.store(turn as usize, turn);
        memory.store((turn + RANKINGS) as usize, self.values as u64 - turn);
        if self.verify {
            for (probe, (index, _)) in PROBES.iter().enumerate() {
                memory.store(self.probes() + probe, memory.load(*index));
            }
        }
    }

    fn count<M: WordMemory + ?Sized>(&self, memory: &M, block: usize) -> u64 {
        let counts = self.counts(block);
        for value in 0..self.values {
            memory.store(counts + value, 0);
        }
        for index in self.block(block) {
            let count = counts + memory.load(index) as usize;
            memory.store(count, memory.load(count) + 1);
        }
        self.block(block).len() as u64
    }

    /// Keys up to each value, of those from the begin of its part on.
    fn sum<M: WordMemory + ?Sized>(&self, memory: &M, part: usize) {
        let mut sum = 0;
        for value in self.part(part) {
            sum += (0..BLOCKS).map(|block| memory.load(self.counts(block) + value)).sum::<u64>();
            memory.store(self.ranks() + value, sum);
        }
        memory.store(self.sums() + part, sum);
    }

    fn join<M: WordMemory + ?Sized>(&self, memory: &M) {
        let mut before = 0;
        for part in 0..PARTS {
            let sum = memory.load(self.sums() + part);
            memory.store(self.sums() + part, before);
            before += sum;
        }
    }

    fn rank<M: WordMemory + ?Sized>(&self, memory: &M, part: usize) {
        let before = memory.load(self.sums() + part);
        for value in self.part(part) {
            memory.store(self.ranks() + value, memory.load(self.ranks() + value) + before);
        }
    }

    /// How many of the five keys have another rank than the published one.
    fn probe<M: WordMemory + ?Sized>(&self, memory: &M, ranking: u64) -> u64 {
        let turn = Self::turn(ranking);
        let wrong = |(probe, (_, rank)): &(usize, (usize, u64))| {
            let key = memory.load(self.probes() + probe);
            // Keys that are smaller.
            let found = key.checked_sub(1).map(|below| memory.load(self.ranks() + below as usize));
            let published = if *probe <= 2 { rank + turn } else { rank - turn };
            found != Some(published)
        };
        PROBES.iter().copied().enumerate().filter(wrong).count() as u64
    }

    fn start<M: WordMemory + ?Sized>(&self, memory: &M, part: usize) {
        for value in self.part(part) {
            // The place behind the last key of this value; blocks from the last to the first.
            let mut place = memory.load(self.ranks() + value);
            for block in (0..BLOCKS).rev() {
                let count = self.counts(block) + value;
                place -= memory.load(count);
                memory.store(count, place);
            }
        }
    }

    fn place<M: WordMemory + ?Sized>(&self, memory: &M, block: usize) -> u64 {
        let counts = self.counts(block);
        for index in self.block(block) {
            let key = memory.load(index);
            let place = memory.load(counts + key as usize);
            memory.store(counts + key as usize, place + 1);
            memory.store(self.ordered() + place as usize, key);
        }
        self.block(block).len() as u64
    }
}

impl NumericalKernel for Is {
    type Stage = IsStage;
    type Own = IsThread;

    fn words(&self) -> usize {
        self.ordered() + self.keys
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(474)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        let mut random = Random::new(self.seed);
        let quarter = (self.values / 4) as f64;
        for index in 0..self.keys {
            let sum = random.draw() + random.draw() + random.draw() + random.draw();
            memory.store(index, (quarter * sum) as u64);
        }
        for word in self.keys..self.words() {
            memory.store(word, 0);
        }
        self.sum = (0..self.keys).map(|index| memory.load(index)).sum();
        self.first = (0..=2 * RANKINGS).map(|index| memory.load(index as usize)).collect();
    }

    fn begin(&self) -> (IsStage, IsThread) {
        (IsStage::Change(1), IsThread::default())
    }

    fn units(&self, stage: IsStage) -> usize {
        match stage {
            IsStage::Change(_) | IsStage::Join(_) | IsStage::Probe(_) => 1,
            IsStage::Count(_) | IsStage::Place => BLOCKS,
            IsStage::Sum(_) | IsStage::Rank(_) | IsStage::Start => PARTS,
        }
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        _: &mut IsThread,
        stage: IsStage,
        unit: usize,
        sums: &mut [f64; 2],
    ) -> u64 {
        match stage {
            IsStage::Change(ranking) => self.change(memory, ranking),
            IsStage::Count(_) => return self.count(memory, unit),
            IsStage::Sum(_) => self.sum(memory, unit),
            IsStage::Join(_) => self.join(memory),
            IsStage::Rank(_) => self.rank(memory, unit),
            IsStage::Probe(ranking) => sums[0] += self.probe(memory, ranking) as f64,
            IsStage::Start => self.start(memory, unit),
            IsStage::Place => return self.place(memory, unit),
        }
        0
    }

    fn next(&self, own: &mut IsThread, stage: IsStage, met: MeetingSums) -> Option<IsStage> {
        Some(match stage {
            IsStage::Change(ranking) => IsStage::Count(ranking),
            IsStage::Count(ranking) => IsStage::Sum(ranking),
            IsStage::Sum(ranking) => IsStage::Join(ranking),
            IsStage::Join(ranking) => IsStage::Rank(ranking),
            IsStage::Rank(ranking) if self.verify => IsStage::Probe(ranking),
            IsStage::Rank(ranking) | IsStage::Probe(ranking) => {
                own.made = ranking;
                if stage == IsStage::Probe(ranking) {
                    own.wrong += met.sums[0] as u64;
                }
                if met.over || ranking >= self.rankings {
                    IsStage::Start
                } else {
                    IsStage::Change(ranking + 1)
                }
            }
            IsStage::Start => IsStage::Place,
            IsStage::Place => return None,
        })
    }

    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &IsThread,
    ) -> Result<u64, WrongResult> {
        let wrong = |what: String| Err(WrongResult { workload: "npb-is", what });
        if own.wrong > 0 {
            return wrong(format!("{} of {} ranks are wrong", own.wrong, 5 * own.made));
        }
        let (mut last, mut sum, mut digest) = (0, 0u64, 0);
        for place in 0..self.keys {
            let key = memory.load(self.ordered() + place);
            if key < last || key >= self.values as u64 {
                return wrong(format!("key {key} comes after {last} in order"));
            }
            (last, sum) = (key, sum + key);
            digest = mix(digest ^ key);
        }
        // Each turn puts two keys, which add up to the number of values, in place of two others.
        let changed = own.made.min(RANKINGS);
        let gone = |turn: u64| self.first[turn as usize] + self.first[(turn + RANKINGS) as usize];
        let gone: u64 = (1..=changed).map(gone).sum();
        if sum + gone != self.sum + changed * self.values as u64 {
            return wrong(format!("the keys in order add up to {sum}"));
        }
        Ok(digest)
    }
}
