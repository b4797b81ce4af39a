//! Images that memory may hold.

use super::{PersistOrder, PersistStep, PersistentOperation};
use crate::points::draw;
use crate::region::ImageLayout;
use std::collections::HashSet;

/// Which orders of stores are tried. All but the first are pmreorder's (PMDK, pmreorder(1)); they
/// look at the stores that one fence makes persistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReorderEngine {
    /// All that hardware may leave: of each line, any number of its first stores.
    Hardware,
    /// Program order: what is persistent after each fence.
    None,
    /// Each sequence of some of the stores.
    Full,
    /// Some of these sequences, by the seed.
    Partial,
    /// The first store, the first two, and so on.
    Accumulative,
    /// The last store, the last two, and so on.
    ReverseAccumulative,
}

impl ReorderEngine {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Hardware, "hardware"),
        (Self::None, "none"),
        (Self::Full, "full"),
        (Self::Partial, "partial"),
        (Self::Accumulative, "accumulative"),
        (Self::ReverseAccumulative, "reverse-accumulative"),
    ];
}

/// Sequences that the partial engine tries at each fence (pmreorder's default).
const PARTIAL_SEQUENCES: usize = 3;
/// Tries of a sampled moment for each image that is wanted: many draws give known images.
const TRIES: usize = 4;

/// Images, each once, in the order in which they were found.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSet {
    /// The images, and before which operation each may be left.
    pub images: Vec<(usize, Vec<u8>)>,
    /// Sequences of stores that were tried.
    pub sequences: u64,
    /// Sequences that there are.
    pub possible: f64,
}

impl ImageSet {
    /// Sequences tried among those that there are.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        if self.possible > 0.0 {
            self.sequences as f64 / self.possible
        } else {
            1.0
        }
    }
}

/// The images that `operations` may leave of memory whose content was `initial`.
/// `bound`: images at most; where there are more orders, a sample by `seed`.
#[must_use]
pub fn enumerate_images(
    operations: &[PersistentOperation],
    (layout, initial): (&ImageLayout, &[u8]),
    engine: ReorderEngine,
    bound: usize,
    seed: u64,
) -> ImageSet {
    let mut search = Search {
        operations,
        layout,
        now: initial.to_vec(),
        seen: HashSet::new(),
        set: ImageSet { images: Vec::new(), sequences: 0, possible: 0.0 },
        bound,
        random: seed,
    };
    search.keep(0, initial.to_vec());
    let mut order = PersistOrder::default();
    for (number, operation) in operations.iter().enumerate() {
        let commits = match operation {
            PersistentOperation::Fence { .. } => true,
            PersistentOperation::Flush { ordered, .. } => *ordered,
            PersistentOperation::Store { .. } => false,
        };
        // Until something becomes persistent, what may be left only grows.
        if commits {
            search.look(engine, number, &order);
        }
        if let PersistStep::Persist(stores) = order.apply(operation) {
            stores.iter().for_each(|store| search.persist(*store));
            if engine != ReorderEngine::Hardware {
                search.keep(number + 1, search.now.clone());
            }
        }
    }
    search.look(engine, operations.len(), &order);
    search.set
}

struct Search<'a> {
    operations: &'a [PersistentOperation],
    layout: &'a ImageLayout,
    /// What is persistent.
    now: Vec<u8>,
    seen: HashSet<Vec<u8>>,
    set: ImageSet,
    bound: usize,
    random: u64,
}

impl Search<'_> {
    fn keep(&mut self, number: usize, image: Vec<u8>) {
        if self.set.images.len() < self.bound && self.seen.insert(image.clone()) {
            self.set.images.push((number, image));
        }
    }

    fn store_into(&self, store: usize, image: &mut [u8]) {
        let Some(PersistentOperation::Store { address, value, .. }) = self.operations.get(store)
        else {
            return;
        };
        self.layout.put(*address, value, image);
    }

    fn persist(&mut self, store: usize) {
        let mut now = std::mem::take(&mut self.now);
        self.store_into(store, &mut now);
        self.now = now;
    }

    /// Keeps the image after these stores.
    fn try_sequence(&mut self, number: usize, stores: &[usize]) {
        let mut image = self.now.clone();
        stores.iter().for_each(|store| self.store_into(*store, &mut image));
        self.set.sequences += 1;
        self.keep(number, image);
    }

    /// What may be left just before the operation of this number.
    fn look(&mut self, engine: ReorderEngine, number: usize, order: &PersistOrder) {
        if engine == ReorderEngine::Hardware {
            let lines: Vec<&[usize]> = order.pending().collect();
            return self.try_prefixes(number, &lines);
        }
        let waiting = order.waiting_for_fence();
        if waiting.is_empty() {
            return;
        }
        match engine {
            ReorderEngine::Hardware | ReorderEngine::None => {}
            ReorderEngine::Full => {
                self.set.possible += sequences_of(waiting.len());
                let mut taken = Vec::new();
                self.try_all(number, &waiting, &mut taken);
            }
            ReorderEngine::Partial => {
                self.set.possible += sequences_of(waiting.len());
                let mut drawn = HashSet::new();
                for _ in 0..PARTIAL_SEQUENCES {
                    let sequence = self.draw_sequence(&waiting);
                    if drawn.insert(sequence.clone()) {
                        self.try_sequence(number, &sequence);
                    }
                }
            }
            ReorderEngine::Accumulative => {
                self.set.possible += waiting.len() as f64;
                for end in 1..=waiting.len() {
                    self.try_sequence(number, &waiting[..end]);
                }
            }
            ReorderEngine::ReverseAccumulative => {
                self.set.possible += waiting.len() as f64;
                let backwards: Vec<usize> = waiting.into_iter().rev().collect();
                for end in 1..=backwards.len() {
                    self.try_sequence(number, &backwards[..end]);
                }
            }
        }
    }

    /// Each sequence of some of `stores`, the empty one first.
    fn try_all(&mut self, number: usize, stores: &[usize], taken: &mut Vec<usize>) {
        if self.set.sequences >= self.bound as u64 {
            return;
        }
        self.try_sequence(number, taken);
        for store in stores {
            if !taken.contains(store) {
                taken.push(*store);
                self.try_all(number, stores, taken);
                taken.pop();
            }
        }
    }

    fn draw_sequence(&mut self, stores: &[usize]) -> Vec<usize> {
        let mut rest = stores.to_vec();
        let count = (draw(&mut self.random) % (rest.len() as u64 + 1)) as usize;
        let mut sequence = Vec::new();
        for _ in 0..count {
            let at = (draw(&mut self.random) % rest.len() as u64) as usize;
            sequence.push(rest.swap_remove(at));
        }
        sequence
    }

    /// Of each line, any number of its first stores.
    fn try_prefixes(&mut self, number: usize, lines: &[&[usize]]) {
        let possible: f64 = lines.iter().map(|l| l.len() as f64 + 1.0).product();
        self.set.possible += possible;
        let left = self.bound.saturating_sub(self.set.images.len());
        let take = |counts: &[usize]| -> Vec<usize> {
            let parts = lines.iter().zip(counts).flat_map(|(line, count)| &line[..*count]);
            parts.copied().collect()
        };
        let mut counts = vec![0; lines.len()];
        if possible > left as f64 {
            // None and all, then what chance says.
            self.try_sequence(number, &[]);
            let mut drawn = HashSet::from([counts.clone()]);
            counts = lines.iter().map(|l| l.len()).collect();
            self.try_sequence(number, &take(&counts));
            drawn.insert(counts.clone());
            for _ in 0..left.saturating_mul(TRIES) {
                if self.set.images.len() >= self.bound {
                    return;
                }
                for (count, line) in counts.iter_mut().zip(lines) {
                    *count = (draw(&mut self.random) % (line.len() as u64 + 1)) as usize;
                }
                if drawn.insert(counts.clone()) {
                    self.try_sequence(number, &take(&counts));
                }
            }
            return;
        }
        loop {
            self.try_sequence(number, &take(&counts));
            // The next number in the base that each line's length gives.
            let Some(at) = (0..lines.len()).find(|i| counts[*i] < lines[*i].len()) else { return };
            counts[at] += 1;
            counts[..at].fill(0);
        }
    }
}

/// Sequences of some of `count` things: the sum of `count! / k!`.
fn sequences_of(count: usize) -> f64 {
    (0..=count)
        .scan(1.0, |term, k| {
            let now = *term;
            *term *= (count - k.min(count)) as f64;
            Some(now)
        })
        .sum()
}
