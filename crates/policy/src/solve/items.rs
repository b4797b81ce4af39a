//! Objects as the methods want them: parts with a size in grains and what each tier counts.

use super::flow::BARRED;
use super::{Object, PlacementProblem, SolveError, TierSplit};

/// What the most worthy grain counts. Counts are whole numbers: see `flow`.
const SCALE: f64 = (1_u64 << 32) as f64;
/// A fallback tier counts less than the least tier asked for by its count over this, and by one at
/// least.
const FALLBACK: i64 = 1_000_000;
/// Tiers at most, so that sums of counts along a path stay in range.
pub(super) const MAX_TIERS: usize = 64;

/// One part of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub object: usize,
    pub want: Option<usize>,
    pub granules: u64,
    pub whole: bool,
    pub strict: bool,
    /// Strict and refused: no longer part of the problem.
    pub out: bool,
}

/// All parts, and what each counts where. The last column is *nowhere*.
#[derive(Debug, Clone)]
pub(super) struct Items {
    pub list: Vec<Item>,
    /// Columns: tiers, then nowhere.
    pub columns: usize,
    /// What a grain counts, row by row; [`BARRED`] where it may not lie.
    pub counts: Vec<i64>,
    /// Worth of a grain that counts one.
    pub unit: f64,
    /// Space of each column in grains; nowhere has space for all.
    pub capacity: Vec<u64>,
}

impl Items {
    pub fn new(problem: &PlacementProblem) -> Result<Self, SolveError> {
        check(problem)?;
        let granule = problem.granule.get();
        let columns = problem.tiers.len() + 1;
        let worth = |o: &Object, t: &super::SolverTier| {
            o.priority.max(0.0)
                * (o.reads.max(0.0) * t.read_gain + o.writes.max(0.0) * t.write_gain)
        };
        let pairs =
            problem.objects.iter().flat_map(|o| problem.tiers.iter().map(move |t| worth(o, t)));
        let most = pairs.fold(0.0_f64, f64::max);
        let scale = if most > 0.0 { SCALE / most } else { 0.0 };
        let mut list = Vec::with_capacity(problem.objects.len());
        let mut counts = Vec::with_capacity(problem.objects.len() * columns);
        let mut worths = vec![0; columns];
        for (object, o) in problem.objects.iter().enumerate() {
            for (t, slot) in problem.tiers.iter().zip(worths.iter_mut()) {
                *slot = (worth(o, t) * scale).round() as i64;
            }
            let mut add = |want: Option<usize>, bytes: u64, wanted: &[usize]| {
                let granules = bytes.div_ceil(granule);
                list.push(Item {
                    object,
                    want,
                    granules,
                    whole: o.whole,
                    strict: o.strict,
                    out: false,
                });
                row(o, wanted, &worths, &mut counts);
            };
            match &o.split {
                TierSplit::Free | TierSplit::Ordered => add(None, o.size.get(), &o.wanted),
                TierSplit::Fixed(sizes) => {
                    for (tier, size) in o.wanted.iter().zip(sizes) {
                        add(Some(*tier), size.get(), std::slice::from_ref(tier));
                    }
                }
            }
        }
        // Leaving out costs more than any exchange of places, leaving out what is strict more than
        // any of that.
        let loose = -(columns as i64 + 1) * (2 * SCALE as i64 + 1);
        let strict = loose * (columns as i64 + 2) * 2;
        for (item, row) in list.iter().zip(counts.chunks_exact_mut(columns)) {
            row[columns - 1] = if item.strict { strict } else { loose };
        }
        let all: u64 = list.iter().map(|i| i.granules).sum();
        let mut capacity: Vec<u64> =
            problem.tiers.iter().map(|t| t.capacity.get() / granule).collect();
        // More space than there are bytes is no more use, and sums stay small.
        capacity.iter_mut().for_each(|r| *r = (*r).min(all));
        capacity.push(all);
        let unit = if scale > 0.0 { granule as f64 / scale } else { 0.0 };
        Ok(Self { list, columns, counts, unit, capacity })
    }

    pub fn row(&self, item: usize) -> &[i64] {
        &self.counts[item * self.columns..(item + 1) * self.columns]
    }

    /// The column for what lies nowhere.
    pub const fn nowhere(&self) -> usize {
        self.columns - 1
    }
}

/// What a grain of `o` counts in each column, `worth` being what it is worth there.
fn row(o: &Object, wanted: &[usize], worth: &[i64], counts: &mut Vec<i64>) {
    let start = counts.len();
    counts.resize(start + worth.len(), BARRED);
    let row = &mut counts[start..];
    let mut least = i64::MAX;
    for tier in wanted {
        let here = match o.split {
            TierSplit::Ordered if least == i64::MAX => worth[*tier],
            TierSplit::Ordered => worth[*tier].min(less(least)),
            TierSplit::Free | TierSplit::Fixed(_) => worth[*tier],
        };
        least = least.min(here);
        row[*tier] = row[*tier].max(here);
    }
    if o.strict {
        return;
    }
    // A part of a fixed split may fall back on the other tiers of the object, too.
    for tier in o.wanted.iter().chain(&o.fallback) {
        if row[*tier] == BARRED {
            row[*tier] = less(worth[*tier].min(least));
        }
    }
}

/// A little less than `count`.
const fn less(count: i64) -> i64 {
    count - count / FALLBACK - 1
}

fn check(problem: &PlacementProblem) -> Result<(), SolveError> {
    if problem.granule.get() == 0 {
        return Err(SolveError::NoGranule);
    }
    if problem.tiers.len() > MAX_TIERS {
        return Err(SolveError::TooManyTiers { tiers: problem.tiers.len(), most: MAX_TIERS });
    }
    let fine = |gain: f64| gain.is_finite() && gain > 0.0;
    if let Some(tier) = problem.tiers.iter().position(|t| !fine(t.read_gain) || !fine(t.write_gain))
    {
        return Err(SolveError::BadGain { tier });
    }
    let tiers = problem.tiers.len();
    for (object, o) in problem.objects.iter().enumerate() {
        if !(o.priority.is_finite() && o.reads.is_finite() && o.writes.is_finite()) {
            return Err(SolveError::BadWeight { object });
        }
        if o.wanted.is_empty() {
            return Err(SolveError::NothingWanted { object });
        }
        if let Some(&tier) = o.wanted.iter().chain(&o.fallback).find(|t| **t >= tiers) {
            return Err(SolveError::NoSuchTier { object, tier, tiers });
        }
        if let TierSplit::Fixed(sizes) = &o.split {
            let sum = sizes.iter().try_fold(0_u64, |sum, s| sum.checked_add(s.get()));
            if sizes.len() != o.wanted.len() || sum != Some(o.size.get()) {
                return Err(SolveError::BadSplit { object });
            }
        }
    }
    Ok(())
}
