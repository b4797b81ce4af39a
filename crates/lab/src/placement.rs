//! The best static placement by a profile: pages ranked by what the fast node would save. Pure.
//!
//! All pages have one size and the fast node has space for so many, so the best set is simply the
//! first of the ranking; how many fit is known in the guest alone, which therefore gets the
//! ranking.

use crate::error::{LabError, Result};
use crate::shape::{LinkShape, Shape};

const LINE_BYTES: f64 = 64.0;
const PAGE_SHIFT: u32 = 12;

/// What a miss of each kind costs more on the slow node than on the fast, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MissGain {
    load: f64,
    store: f64,
}

impl MissGain {
    fn between(fast: &LinkShape, slow: &LinkShape) -> Self {
        let transfer = |rate: u64| LINE_BYTES * 1e9 / rate.max(1) as f64;
        let load = slow.read_latency_ns as f64 - fast.read_latency_ns as f64
            + transfer(slow.read_bandwidth)
            - transfer(fast.read_bandwidth);
        // A store that misses fetches the line and later writes it back.
        let write_back = transfer(slow.write_bandwidth) - transfer(fast.write_bandwidth);
        MissGain { load, store: load + write_back }
    }
}

/// Pages by what they would gain in the fast node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRanking {
    /// Addresses, most worth moving first; pages that would gain nothing are left out.
    pub pages: Vec<u64>,
    /// Whether the whole program was profiled, for it marks no phase.
    pub whole_program: bool,
}

/// Ranks the pages of a profile of the plugin's (lab/plugin/README.md).
///
/// # Errors
/// [`LabError::Machine`] for a damaged profile, and for machines without figures.
pub fn rank(profile: &[u8], shape: &Shape) -> Result<PageRanking> {
    let broken = |why: String| LabError::Machine { name: shape.name.clone(), why };
    let (fast, slow) = (shape.link_to(shape.fast), shape.link_to(shape.slow));
    let (Some(fast), Some(slow)) = (fast, slow) else {
        return Err(broken("no figures for its nodes".into()));
    };
    let gain = MissGain::between(fast, slow);
    let text =
        std::str::from_utf8(profile).map_err(|e| broken(format!("the plugin's profile: {e}")))?;
    let (text, whole_program) = match text.strip_prefix("job\n") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let mut pages = Vec::new();
    for line in text.lines() {
        let (page, loads, stores) =
            parse(line).ok_or_else(|| broken(format!("the plugin's profile has line '{line}'")))?;
        let saved = loads as f64 * gain.load + stores as f64 * gain.store;
        if saved > 0.0 {
            pages.push((saved, page << PAGE_SHIFT));
        }
    }
    pages.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let pages = pages.into_iter().map(|(_, address)| address).collect();
    Ok(PageRanking { pages, whole_program })
}

/// "PAGE LOADS STORES": virtual page number in hex, misses in decimal.
fn parse(line: &str) -> Option<(u64, u64, u64)> {
    let mut words = line.split_whitespace();
    let page =
        u64::from_str_radix(words.next()?, 16).ok().filter(|p| *p < 1 << (64 - PAGE_SHIFT))?;
    let counts = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some((page, counts.0, counts.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(name: &str) -> Shape {
        Shape::from_machine(&terrace_machine::preset(name).unwrap(), None).unwrap()
    }

    #[test]
    fn the_hottest_come_first_and_the_untouched_not_at_all() {
        let got = rank(b"10 5 0\n11 0 0\n12 50 0\n13 5 5\n", &shape("lab-cxl")).unwrap();
        assert_eq!((got.pages, got.whole_program), (vec![0x12000, 0x13000, 0x10000], false));
        let whole = rank(b"job\n10 5 0\n", &shape("lab-cxl")).unwrap();
        assert_eq!((whole.pages, whole.whole_program), (vec![0x10000], true));
    }

    #[test]
    fn stores_weigh_more_where_writing_is_slow() {
        let got = rank(b"10 11 0\n11 0 10\n", &shape("lab-dcpmm")).unwrap();
        let gain = MissGain::between(
            shape("lab-dcpmm").link_to(0).unwrap(),
            shape("lab-dcpmm").link_to(1).unwrap(),
        );
        assert!(gain.store > gain.load);
        assert_eq!(got.pages.len(), 2);
    }

    #[test]
    fn bandwidth_alone_is_a_gain() {
        assert_eq!(rank(b"10 1 0\n", &shape("lab-hbm")).unwrap().pages, [0x10000]);
    }

    #[test]
    fn damaged_profiles_are_refused() {
        for bad in [
            &b"zz 1 1\n"[..],
            b"10 1\n",
            b"10 1 1 1\n",
            b"10 -1 1\n",
            b"\xff\xff",
            b"fffffffffffffff 1 1\n",
        ] {
            assert!(rank(bad, &shape("lab-cxl")).is_err(), "{bad:?}");
        }
        assert_eq!(rank(b"", &shape("lab-cxl")).unwrap().pages, Vec::<u64>::new());
    }
}
