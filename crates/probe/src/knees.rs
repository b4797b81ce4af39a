//! Where the latency of a growing region rises: each level before a rise is a cache, the last one
//! is memory. Pure.

use serde::{Deserialize, Serialize};
use terrace_types::Bytes;

/// A level of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurveLevel {
    /// Largest region that is served at this level's latency.
    pub bytes: Bytes,
    /// Its latency: median of its points.
    pub ns: f64,
    /// Points on it.
    pub points: u32,
}

/// A point belongs to a level while it is at most this factor above the level's median.
const SAME: f64 = 1.22;
/// A rise ends where the next octave adds less than this share.
const FLAT: f64 = 0.12;

/// Levels of a curve of (region, latency), by ascending size. The last level is what lies behind
/// all caches; it need not be flat, for translations get dearer with size.
#[must_use]
pub fn levels(curve: &[(Bytes, f64)]) -> Vec<CurveLevel> {
    let curve = monotone(curve);
    let mut levels = Vec::new();
    let mut at = 0;
    while at < curve.len() {
        let mut end = at + 1;
        while end < curve.len() && curve[end].1 <= median(&curve[at..end]) * SAME {
            end += 1;
        }
        levels.push(CurveLevel {
            bytes: curve[end - 1].0,
            ns: median(&curve[at..end]),
            points: (end - at) as u32,
        });
        // Up the rise to where it is flat again.
        at = end;
        while at + 1 < curve.len() && steepness(curve[at], curve[at + 1]) > FLAT {
            at += 1;
        }
    }
    // One point between two levels is a slope, unless it is the first or the last.
    let last = levels.len().saturating_sub(1);
    let mut index = 0;
    levels.retain(|level| {
        let keep = level.points > 1 || index == 0 || index == last;
        index += 1;
        keep
    });
    levels
}

/// Growth of latency per doubling of size, as a share.
fn steepness(a: (Bytes, f64), b: (Bytes, f64)) -> f64 {
    let octaves = (b.0.get() as f64 / a.0.get().max(1) as f64).log2().max(1e-9);
    (b.1 / a.1).ln() / octaves
}

/// Disturbances only lengthen: a point above any later, larger region's is brought down to it.
fn monotone(curve: &[(Bytes, f64)]) -> Vec<(Bytes, f64)> {
    let mut curve: Vec<(Bytes, f64)> =
        curve.iter().copied().filter(|p| p.1.is_finite() && p.1 > 0.0).collect();
    curve.sort_by_key(|p| p.0);
    let mut least = f64::INFINITY;
    for point in curve.iter_mut().rev() {
        least = least.min(point.1);
        point.1 = least;
    }
    curve
}

fn median(points: &[(Bytes, f64)]) -> f64 {
    let mut values: Vec<f64> = points.iter().map(|p| p.1).collect();
    values.sort_by(f64::total_cmp);
    crate::stats::quantile(&values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Caches of 32 KiB, 1 MiB and 32 MiB over memory, two points an octave; above a cache of size
    /// c, a region of s hits it with chance c / s.
    fn machine(noise: impl Fn(usize) -> f64) -> Vec<(Bytes, f64)> {
        let caches = [(32 << 10, 1.1), (1 << 20, 4.0), (32 << 20, 16.0)];
        let memory = 105.0;
        (0..36)
            .map(|k| {
                let bytes = (4096.0 * 2f64.powf(f64::from(k) / 2.0)) as u64;
                let mut ns = memory;
                for (size, hit) in caches.iter().rev() {
                    let share = (*size as f64 / bytes as f64).min(1.0);
                    // Random replacement would hit with this chance; recency hits less just above
                    // the size.
                    let share = if share >= 1.0 { 1.0 } else { share * share };
                    ns = hit * share + ns * (1.0 - share);
                }
                (Bytes(bytes), ns * noise(k as usize))
            })
            .collect()
    }

    fn sizes(levels: &[CurveLevel]) -> Vec<u64> {
        levels.iter().map(|l| l.bytes.get() >> 10).collect()
    }

    #[test]
    fn knees_name_the_caches() {
        let found = levels(&machine(|_| 1.0));
        assert_eq!(sizes(&found)[..3], [32, 1 << 10, 32 << 10], "{found:?}");
        assert_eq!(found.len(), 4);
        assert!((found[1].ns - 4.0).abs() < 0.8 && found[3].ns > 95.0, "{found:?}");
    }

    #[test]
    fn a_disturbed_point_makes_no_cache() {
        let found =
            levels(&machine(|k| if k == 9 || k == 20 { 3.0 } else { 1.0 + 0.01 * (k % 3) as f64 }));
        assert_eq!(sizes(&found)[..3], [32, 1 << 10, 32 << 10], "{found:?}");
    }

    #[test]
    fn no_caches_and_no_points() {
        let flat: Vec<_> = (12..24).map(|k| (Bytes(1 << k), 80.0)).collect();
        let found = levels(&flat);
        assert_eq!((found.len(), found[0].bytes), (1, Bytes(1 << 23)));
        assert!(levels(&[]).is_empty());
        assert!(levels(&[(Bytes(4096), f64::NAN)]).is_empty());
    }
}
