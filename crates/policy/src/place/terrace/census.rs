//! The histogram of page values on both sides of one boundary between tiers, and the cut through it.

use super::params::Params;
use super::recent::Recent;
use super::shrink::Shrink;
use crate::place::runs::{units, Unit};
use crate::place::worth::Worth;
use terrace_types::{Area, Heat, PageFlags, PageStat, Snapshot, Tick, Vpn};

/// Buckets are 6 bits of mantissa wide: 1.6%.
const BUCKET_SHIFT: u32 = 5;
const BUCKETS: usize = 1 << (16 - BUCKET_SHIFT);

/// Nanoseconds a second that a page saves on the better tier.
pub(super) fn value_of(page: &PageStat, worth: &Worth) -> f64 {
    page.reads.rate() as f64 * worth.read_ns + page.writes.rate() as f64 * worth.write_ns
}

fn bucket(value: f64) -> usize {
    (Heat::from_rate(value as u64).0 >> BUCKET_SHIFT) as usize
}

/// The value a bucket begins with.
fn floor_of(bucket: usize) -> f64 {
    Heat((bucket << BUCKET_SHIFT) as u16).rate() as f64
}

/// The value in the middle of a bucket.
fn middle_of(bucket: usize) -> f64 {
    (floor_of(bucket) + floor_of(bucket + 1)) / 2.0
}

/// Which side of the boundary a unit is on, and how it is rated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rated {
    /// On the worse side.
    pub slow: bool,
    pub bucket: usize,
}

/// How units are rated: worth of an access, chance taken out, and damping of those that moved
/// lately.
pub(super) struct Rater<'a> {
    pub params: &'a Params,
    pub worth: Worth,
    recent: &'a Recent,
    now: Tick,
    fast: [bool; 256],
    slow: [bool; 256],
    shrink: Shrink,
}

impl<'a> Rater<'a> {
    /// For the boundary between tier `rank` and the next.
    pub fn new(params: &'a Params, recent: &'a Recent, worth: Worth, snap: &Snapshot, rank: usize, now: Tick) -> Self {
        let mask = |rank: usize| {
            let mut mask = [false; 256];
            for node in snap.tiers.get(rank).map_or(&[][..], |t| &t.nodes) {
                mask[usize::from(node.0 as u8)] = true;
            }
            mask
        };
        let (fast, slow) = (mask(rank), mask(rank + 1));
        let evidence = snap.window.as_secs_f64();
        let none = Shrink::new(std::iter::empty(), worth.unit(), evidence, params.doubt);
        let mut rater = Self { params, worth, recent, now, fast, slow, shrink: none };
        let mut counts = vec![0u64; BUCKETS];
        let (mut values, mut rates) = (0.0, 0.0);
        for area in &snap.areas {
            for unit in units(area).filter(|u| rater.side(u).is_some()) {
                let value = value_of(&unit.stat, &worth);
                counts[bucket(value)] += u64::from(unit.pages);
                values += value;
                rates += unit.stat.rate() as f64;
            }
        }
        let unit = if rates > 0.0 { values / rates } else { worth.unit() };
        let noise = rater.noise(snap, evidence / unit.max(1e-9));
        let seen = counts.iter().enumerate().filter(|(_, n)| **n > 0);
        let seen = seen.map(|(b, n)| (middle_of(b), *n));
        rater.shrink = Shrink::new(seen, unit, evidence / (noise * noise), params.doubt);
        rater
    }

    /// How widely estimates scatter by chance, as a share of what counting would make them: from
    /// the median difference of neighbours, most of which are alike. Between a half and one: never
    /// more than counting explains, and not much less, for looks that saturate hide chance.
    fn noise(&self, snap: &Snapshot, scale: f64) -> f64 {
        const PER_UNIT: f64 = 20.0;
        let mut differences = vec![0u32; 80];
        for area in &snap.areas {
            let mut last: Option<f64> = None;
            for unit in units(area).filter(|u| self.side(u).is_some()) {
                let y = 2.0 * (value_of(&unit.stat, &self.worth) * scale).sqrt();
                if last == Some(y) {
                    continue;
                }
                if let Some(last) = last {
                    let bin = ((y - last).abs() * PER_UNIT) as usize;
                    differences[bin.min(79)] += 1;
                }
                last = Some(y);
            }
        }
        let all: u32 = differences.iter().sum();
        if all < 32 {
            return 1.0;
        }
        let mut below = 0;
        let median = differences.iter().position(|n| {
            below += n;
            below * 2 >= all
        });
        // The median of |N(0, 2)| is 0.954.
        let median = (median.unwrap_or(79) + 1) as f64 / PER_UNIT;
        (median / 0.954).clamp(0.5, 1.0)
    }

    /// Whether it is on the worse side; `None`: it must not move, or nothing is known of it.
    fn side(&self, unit: &Unit) -> Option<bool> {
        let node = usize::from(unit.stat.node);
        let slow = self.slow[node];
        let may = unit.stat.movable() && unit.stat.flags.has(PageFlags::KNOWN);
        (may && (slow || self.fast[node])).then_some(slow)
    }

    /// Its side and its expected value.
    pub fn rate(&self, area: &Area, unit: &Unit) -> Option<Rated> {
        let slow = self.side(unit)?;
        let value = self.shrink.value(value_of(&unit.stat, &self.worth));
        let vpn = Vpn(area.start.0 + unit.index as u64);
        let lately = self.recent.moved_within(area.pid, vpn, self.params.damp, self.now);
        let value = match (lately, slow) {
            (false, _) => value,
            (true, true) => value / self.params.again,
            (true, false) => value * self.params.again,
        };
        Some(Rated { slow, bucket: bucket(value) })
    }
}

/// Counts of base pages by value on both sides.
pub(super) struct Census {
    fast: Vec<u32>,
    slow: Vec<u32>,
    /// Value of all accesses that the worse side serves, nanoseconds a second.
    pub slow_value: f64,
    /// Units rated.
    pub known: u64,
}

/// Which pages change sides: those at or above `promote_from` go up (of that bucket itself only
/// `promote_rest`), those at or below `demote_to` go down (of it only `demote_rest`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Cut {
    pub promote: u64,
    pub demote: u64,
    pub promote_from: usize,
    pub promote_rest: u64,
    pub demote_to: usize,
    pub demote_rest: u64,
    /// Predicted, nanoseconds a second.
    pub gain: f64,
    /// Once, nanoseconds.
    pub cost: f64,
}

impl Cut {
    /// Value from which a page counts as hot, nanoseconds a second.
    pub fn hot_from(&self) -> f64 {
        floor_of(self.promote_from)
    }
}

/// What a swap must pay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Base pages free on the better side.
    pub room: u64,
    /// Seconds that a gain is counted on for.
    pub horizon: f64,
    /// Base pages to promote at most.
    pub most: u64,
}

impl Census {
    pub fn take(rater: &Rater<'_>, snap: &Snapshot) -> Self {
        let mut census = Self { fast: vec![0; BUCKETS], slow: vec![0; BUCKETS], slow_value: 0.0, known: 0 };
        for area in &snap.areas {
            for unit in units(area) {
                let Some(rated) = rater.rate(area, &unit) else {
                    continue;
                };
                census.known += 1;
                let side = if rated.slow { &mut census.slow } else { &mut census.fast };
                side[rated.bucket] = side[rated.bucket].saturating_add(unit.pages);
                if rated.slow {
                    let value = value_of(&unit.stat, &rater.worth);
                    census.slow_value += value * f64::from(unit.pages);
                }
            }
        }
        census
    }

    /// Pairs the most valuable pages of the worse side with room, then with the least valuable
    /// pages of the better side, while each pair pays and cannot be chance.
    pub fn cut(&self, rater: &Rater<'_>, terms: &Terms) -> Cut {
        let mut cut = Cut::default();
        let (mut up, mut down) = (Falling::new(&self.slow), Rising::new(&self.fast));
        let page = rater.params.page_cost_ns();
        let mut room = terms.room;
        while let Some(hot) = up.peek() {
            if cut.promote >= terms.most {
                break;
            }
            let most = terms.most - cut.promote;
            let victim = if room > 0 { None } else { down.peek() };
            let cold = match (room > 0, victim) {
                (true, _) => 0.0,
                (false, Some(bucket)) => floor_of(bucket + 1),
                (false, None) => break,
            };
            let (hot_value, cost) = (floor_of(hot), if room > 0 { page } else { 2.0 * page });
            let gain = hot_value - cold;
            let beats = hot_value > cold * rater.params.margin && hot_value > 0.0;
            if !beats || gain * terms.horizon < cost {
                break;
            }
            let n = if room > 0 {
                let n = up.take(room.min(most));
                room -= n;
                n
            } else {
                let n = up.left().min(down.left()).min(most);
                up.take(n);
                down.take(n);
                cut.demote += n;
                cut.demote_to = down.at;
                cut.demote_rest = down.taken_here;
                n
            };
            cut.promote += n;
            cut.promote_from = up.at;
            cut.promote_rest = up.taken_here;
            cut.gain += gain * n as f64;
            cut.cost += cost * n as f64;
        }
        cut
    }
}

/// Walks a histogram from its most valuable bucket down.
struct Falling<'a> {
    counts: &'a [u32],
    at: usize,
    taken_here: u64,
}

impl<'a> Falling<'a> {
    fn new(counts: &'a [u32]) -> Self {
        Self { counts, at: counts.len() - 1, taken_here: 0 }
    }

    fn peek(&mut self) -> Option<usize> {
        while self.left() == 0 {
            self.at = self.at.checked_sub(1)?;
            self.taken_here = 0;
        }
        Some(self.at)
    }

    fn left(&self) -> u64 {
        u64::from(self.counts[self.at]) - self.taken_here
    }

    fn take(&mut self, n: u64) -> u64 {
        let n = n.min(self.left());
        self.taken_here += n;
        n
    }
}

/// Walks a histogram from its least valuable bucket up.
struct Rising<'a> {
    counts: &'a [u32],
    at: usize,
    taken_here: u64,
}

impl<'a> Rising<'a> {
    fn new(counts: &'a [u32]) -> Self {
        Self { counts, at: 0, taken_here: 0 }
    }

    fn peek(&mut self) -> Option<usize> {
        while self.left() == 0 {
            if self.at + 1 >= self.counts.len() {
                return None;
            }
            self.at += 1;
            self.taken_here = 0;
        }
        Some(self.at)
    }

    fn left(&self) -> u64 {
        u64::from(self.counts[self.at]) - self.taken_here
    }

    fn take(&mut self, n: u64) -> u64 {
        let n = n.min(self.left());
        self.taken_here += n;
        n
    }
}
