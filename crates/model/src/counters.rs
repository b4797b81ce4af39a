//! What one vCPU did, counted.

/// Counts of one vCPU, by node where they concern memory. Only ever grow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    /// Instructions executed.
    pub instructions: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Accesses that missed the first-level cache.
    pub l1_misses: u64,
    /// Dirty lines that left the first-level cache.
    pub l1_writebacks: u64,
    /// Of the misses, accesses that the middle level served, where there is one.
    pub l2_hits: u64,
    /// Dirty lines that left the middle level.
    pub l2_writebacks: u64,
    /// Accesses that the last level served.
    pub llc_hits: u64,
    /// Last-level misses that loads caused, by node.
    pub read_misses: Vec<u64>,
    /// Last-level misses that stores caused, by node.
    pub write_misses: Vec<u64>,
    /// Of all misses, those that belonged to a sequential stream, by node.
    pub stream_misses: Vec<u64>,
    /// Dirty lines written back, by node.
    pub writebacks: Vec<u64>,
    /// Bytes read on the node's bus, whole blocks.
    pub read_bytes: Vec<u64>,
    /// Bytes written on the node's bus, whole blocks.
    pub write_bytes: Vec<u64>,
}

impl Counters {
    /// All zero, for a machine of this many nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        let zero = || vec![0; nodes];
        Self {
            read_misses: zero(),
            write_misses: zero(),
            stream_misses: zero(),
            writebacks: zero(),
            read_bytes: zero(),
            write_bytes: zero(),
            ..Self::default()
        }
    }

    /// Last-level misses by node.
    #[must_use]
    pub fn llc_misses(&self) -> Vec<u64> {
        self.read_misses.iter().zip(&self.write_misses).map(|(r, w)| r + w).collect()
    }

    fn combine(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let all = |a: &[u64], b: &[u64]| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
        Self {
            instructions: f(self.instructions, other.instructions),
            loads: f(self.loads, other.loads),
            stores: f(self.stores, other.stores),
            l1_misses: f(self.l1_misses, other.l1_misses),
            l1_writebacks: f(self.l1_writebacks, other.l1_writebacks),
            l2_hits: f(self.l2_hits, other.l2_hits),
            l2_writebacks: f(self.l2_writebacks, other.l2_writebacks),
            llc_hits: f(self.llc_hits, other.llc_hits),
            read_misses: all(&self.read_misses, &other.read_misses),
            write_misses: all(&self.write_misses, &other.write_misses),
            stream_misses: all(&self.stream_misses, &other.stream_misses),
            writebacks: all(&self.writebacks, &other.writebacks),
            read_bytes: all(&self.read_bytes, &other.read_bytes),
            write_bytes: all(&self.write_bytes, &other.write_bytes),
        }
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combine(earlier, u64::saturating_sub)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_and_sums_are_inverse() {
        let mut a = Counters::new(2);
        a.loads = 3;
        a.read_misses[1] = 2;
        let mut b = a.clone();
        b.loads = 10;
        b.write_misses[1] = 5;
        let d = b.since(&a);
        assert_eq!((d.loads, d.llc_misses()), (7, vec![0, 5]));
        assert_eq!(a.plus(&d), b);
    }
}
