//! Bandwidth of one node as a calendar: each bucket of time can serve so much and no more.

/// Length of a bucket in picoseconds.
const BUCKET_PS: u64 = 500_000;
/// Buckets kept: 256 of 0.5 us reach 128 us, several quanta of the lab.
const BUCKETS: usize = 256;

/// The calendar. Requests may come out of time order, as long as they stay within 64 us.
#[derive(Debug, Clone)]
pub struct Calendar {
    /// Number of the bucket a slot stands for, and picoseconds of service used in it.
    slots: Vec<(u64, u64)>,
    latest: u64,
}

impl Calendar {
    /// An empty calendar.
    #[must_use]
    pub fn new() -> Self {
        Self { slots: vec![(u64::MAX, 0); BUCKETS], latest: 0 }
    }

    /// Takes `cost` picoseconds of service at `at` or as soon after as there is room; returns when it is done.
    #[inline]
    pub fn serve(&mut self, at: u64, cost: u64) -> u64 {
        let mut bucket = at / BUCKET_PS;
        let mut left = cost;
        // A request far behind the latest (a core that slept) cannot find its bucket any more: serve it there.
        if bucket + (BUCKETS as u64) / 2 < self.latest {
            return at + cost;
        }
        loop {
            let slot = &mut self.slots[(bucket % BUCKETS as u64) as usize];
            if slot.0 != bucket {
                if slot.0 != u64::MAX && slot.0 > bucket {
                    return at + cost;
                }
                *slot = (bucket, 0);
            }
            self.latest = self.latest.max(bucket);
            let room = BUCKET_PS - slot.1;
            if room >= left {
                slot.1 += left;
                let queued = bucket * BUCKET_PS + slot.1;
                // In an uncrowded bucket service starts at once; in a full one, behind what is there.
                return if bucket * BUCKET_PS <= at && slot.1 < BUCKET_PS / 2 {
                    at + cost
                } else {
                    queued.max(at + cost)
                };
            }
            left -= room;
            slot.1 = BUCKET_PS;
            bucket += 1;
        }
    }
}

impl Default for Calendar {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_node_serves_at_once() {
        let mut c = Calendar::new();
        assert_eq!(c.serve(1_000_000, 3_200), 1_003_200);
    }

    #[test]
    fn a_saturated_node_serves_at_its_rate() {
        let mut c = Calendar::new();
        let mut done = 0;
        for _ in 0..1_000 {
            done = c.serve(0, 3_200);
        }
        assert!((3_100_000..=3_300_000).contains(&done), "1000 lines of 3.2 ns took {done} ps");
    }

    #[test]
    fn two_cores_in_one_quantum_share_without_queueing_behind_each_other() {
        let mut c = Calendar::new();
        for i in 0..100 {
            c.serve(i * 100_000, 3_200);
        }
        let late_start = c.serve(50_000, 3_200);
        assert!(late_start <= 60_000, "the second core waited until {late_start}");
    }
}
