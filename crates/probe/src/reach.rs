//! Whether a region was large enough for its figures to be those of memory, not of caches. Pure.
//!
//! Four times the caches are taken to be. Where a limit or a small node allows less, two smaller
//! regions are witnesses: a latency that no longer rises, and is above that of the caches, is
//! memory's (ADR 0213).

use terrace_types::Bytes;

/// Regions of this many times the caches need no witness.
const PLENTY: u64 = 4;
/// The same where nobody tells the sizes of the caches.
const PLENTY_UNTOLD: Bytes = Bytes::mib(64);
/// A latency that rises by less than this share over the last half octave has come to its end.
const FLAT: f64 = 0.06;
/// And one that is so much above that of a region within the caches is not theirs.
const ABOVE: f64 = 1.22;

/// Whether a region needs no witness, `caches` being the last ones together (zero: not reported).
#[must_use]
pub fn plenty(region: Bytes, caches: Bytes) -> bool {
    if caches == Bytes::ZERO {
        region >= PLENTY_UNTOLD
    } else {
        region.get() / PLENTY >= caches.get()
    }
}

/// The regions that are measured besides where one of `region` needs witnesses: half an octave
/// below it, and an eighth of the `last` cache, which then holds it whole, and does even where less
/// of a cache is there than is reported, as in virtual machines.
#[must_use]
pub fn witnesses(region: Bytes, last: Bytes) -> [Bytes; 2] {
    let whole = |bytes: f64| {
        Bytes(bytes as u64 / crate::chase::ELEMENT as u64 * crate::chase::ELEMENT as u64)
    };
    [whole(region.get() as f64 / std::f64::consts::SQRT_2), whole(last.get() as f64 / 8.0)]
}

/// Whether the latency of `region`, of these chases (region, nanoseconds), is memory's; `last` is
/// the last cache of one CPU.
#[must_use]
pub fn reached(chases: &[(Bytes, f64)], region: Bytes, last: Bytes) -> bool {
    let at = |most: Bytes, least: Bytes| {
        let fits = chases.iter().filter(|c| c.0 <= most && c.0 >= least);
        fits.max_by_key(|c| c.0).map(|c| c.1)
    };
    let [before, held] = witnesses(region, last);
    // Both must be more than the cache is said to hold: the level that they show may be its own.
    if last == Bytes::ZERO || before <= last {
        return false;
    }
    // What a plan has anyway lies near: an eighth more or less is the same.
    let near = |b: Bytes| (Bytes(b.get() + b.get() / 8), Bytes(b.get() - b.get() / 8));
    let (most, least) = near(before);
    let (Some(end), Some(before)) = (at(region, region), at(most, least)) else { return false };
    let (most, least) = near(held);
    let Some(held) = at(most, least) else { return false };
    end <= before * (1.0 + FLAT) && end > held * ABOVE
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Latencies where each access to a region larger than the cache of 32 MiB hits it by chance:
    /// 16 ns, and 105 of memory.
    fn by_chance(region: Bytes) -> (Bytes, f64) {
        let hits = ((32 * MIB) as f64 / region.get() as f64).min(1.0);
        (region, 16.0 * hits + 105.0 * (1.0 - hits))
    }

    /// And where the line used longest ago leaves, so that a cycle that does not fit never hits.
    fn in_turn(region: Bytes) -> (Bytes, f64) {
        (region, if region.get() <= 32 * MIB { 16.0 } else { 105.0 })
    }

    fn is_distinct(region: Bytes, latency: impl Fn(Bytes) -> (Bytes, f64)) -> bool {
        let last = Bytes::mib(32);
        let mut chases: Vec<_> = witnesses(region, last).map(&latency).to_vec();
        chases.push(latency(region));
        reached(&chases, region, last)
    }

    #[test]
    fn a_region_that_caches_hold_much_of_is_not_memory() {
        for mib in [24, 33, 45, 64, 100, 127] {
            assert!(
                !is_distinct(Bytes::mib(mib), by_chance),
                "{mib} MiB, a quarter of hits and more"
            );
        }
        for mib in [24, 33, 45] {
            assert!(
                !is_distinct(Bytes::mib(mib), in_turn),
                "{mib} MiB: half an octave below it caches hold all"
            );
        }
        assert!(is_distinct(Bytes::mib(48), in_turn));
        // A virtual machine that is told 32 MiB and has 6; and one that is told too little of what
        // it has.
        let less = |b: Bytes| (b, if b.get() <= 6 * MIB { 16.0 } else { 105.0 });
        assert!(is_distinct(Bytes::mib(48), less));
        let more = |b: Bytes| (b, if b.get() <= 96 * MIB { 16.0 } else { 105.0 });
        assert!(!is_distinct(Bytes::mib(48), more) && !is_distinct(Bytes::mib(100), more));
    }

    #[test]
    fn without_witnesses_nothing_is_claimed() {
        let region = Bytes::mib(100);
        assert!(!reached(&[(region, 105.0)], region, Bytes::mib(32)));
        assert!(
            !reached(&[(region, 105.0), (Bytes::mib(71), 105.0)], region, Bytes::mib(32)),
            "caches as slow, perhaps"
        );
        assert!(!reached(&[(region, 105.0), (Bytes::mib(71), 105.0)], region, Bytes::ZERO));
        assert!(!is_distinct(region, |b| (b, 105.0)), "no rise at all");
    }

    #[test]
    fn what_is_plenty_goes_by_all_caches() {
        assert!(
            plenty(Bytes::mib(128), Bytes::mib(32)) && !plenty(Bytes::mib(127), Bytes::mib(32))
        );
        assert!(plenty(Bytes::mib(64), Bytes::ZERO) && !plenty(Bytes::mib(63), Bytes::ZERO));
    }
}
