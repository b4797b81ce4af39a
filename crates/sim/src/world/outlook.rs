//! Whether accesses of a core mostly leave its own caches.

use terrace_model::Counters;

/// Accesses after which it is judged anew whether that is worth it.
const OUTLOOK: u64 = 4096;
/// It is where one access in so many is not served by a core's own caches.
const OFTEN: u64 = 8;

/// How many accesses a core's own caches do not serve.
#[derive(Debug, Clone, Default)]
pub(crate) struct MissOutlook {
    /// Accesses, and those among them, until it was last judged.
    seen: (u64, u64),
    pub far: bool,
}

impl MissOutlook {
    #[inline(always)]
    pub fn update(&mut self, counters: &Counters) {
        let accesses = counters.loads + counters.stores;
        if accesses >= self.seen.0 + OUTLOOK {
            let left = counters.l1_misses - counters.l2_hits;
            self.far = (left - self.seen.1) * OFTEN >= accesses - self.seen.0;
            self.seen = (accesses, left);
        }
    }
}
