//! Which object lies in which tier: the solver behind the allocation library's `commit`.
//!
//! # The objective
//! An object is a request for memory with a priority, expected reads and writes a byte, a size and
//! the tiers it asked for. A byte of object `i` in tier `t` is worth
//!
//! ```text
//! worth(i, t) = priority_i * (reads_i * read_gain_t + writes_i * write_gain_t)
//! ```
//!
//! and the solver maximises the sum of that over all bytes, subject to every tier's capacity. The
//! gains are the caller's (a tier's bandwidth over the best tier's, say) and above zero. What a
//! byte *counts* is its worth, but
//!
//! - in a tier that was not asked for (fallback) no more than in the least of those asked for, less
//!   a millionth, so that nobody is given better memory than asked for at somebody else's cost, and
//!   asking is preferred to falling back;
//! - with [`TierSplit::Ordered`], in each tier of the list less than in those before it, by a
//!   millionth at least: the order is the wish;
//! - nowhere, nothing. Leaving a byte out is taken only where all tiers that may hold it are full:
//!   it costs 2 x (largest worth of any byte) x (number of tiers + 2). That is more
//!   than any exchange of places gains, but of whole objects a smaller one worth much may be placed
//!   before a larger one worth little.
//!
//! # The rules
//! - *Whole* objects lie in one tier; the others are divisible at the grain (a page).
//! - Objects of equal worth everywhere and equal wishes share evenly: of each divisible one the
//!   same fraction lies in each tier, to the page.
//! - *Strict* objects lie in the tiers they asked for, completely, or are refused. As many of their
//!   bytes as possible are placed before anything else is weighed; then the least worthy are
//!   refused first.
//! - [`TierSplit::Fixed`] states how many bytes belong in each tier; each such part is then placed
//!   by the rules above.
//!
//! # The method, and how exact it is
//! Without whole and strict objects this is a transportation problem, and the result is its exact
//! optimum: objects go where worth less the tier's price is highest, and shortest paths between
//! tiers mend what does not fit (`flow`). Prices come from a thinned copy of the problem. Whole
//! objects that the optimum would split (about one a tier) are rounded by price, and the divisible
//! ones are solved again around them (`round`). With few objects a branch and bound makes that
//! exact as well (`exact`). [`Solution::bound`] is the optimum without wholeness: no placement
//! counts for more, so the distance is known in each case. Worths are weighed in steps of 2^-32 of
//! the greatest one. Nothing here reads a clock: the work is bounded by counts.

mod exact;
mod flow;
mod groups;
mod items;
mod round;

use terrace_types::Bytes;

/// A tier, or one node of it: a place with space.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SolverTier {
    /// Bytes that may be placed here.
    pub capacity: Bytes,
    /// What a byte read from here gains, relative to other tiers; above zero.
    pub read_gain: f64,
    /// What a byte written to here gains, relative to other tiers; above zero.
    pub write_gain: f64,
}

/// How an object's bytes are divided among the tiers it asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TierSplit {
    /// As the objective likes it.
    Free,
    /// As much as possible in the first, then the next: spill-over.
    Ordered,
    /// These bytes in each tier of `wanted`, in its order; they add up to the size.
    Fixed(Vec<Bytes>),
}

/// A request for memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Weight against other objects; zero and below count as nothing.
    pub priority: f64,
    /// Expected reads of each byte, in any unit that is the same for all objects.
    pub reads: f64,
    /// Expected writes of each byte, in the same unit.
    pub writes: f64,
    /// Bytes asked for; counted in whole grains.
    pub size: Bytes,
    /// Tiers asked for, by position in [`PlacementProblem::tiers`], the preferred first.
    pub wanted: Vec<usize>,
    /// Tiers that will do where those are full. Not used when `strict`.
    pub fallback: Vec<usize>,
    /// How it is divided.
    pub split: TierSplit,
    /// Completely in `wanted`, or refused.
    pub strict: bool,
    /// In one tier (each part of a fixed split for itself).
    pub whole: bool,
}

/// Objects, tiers and the unit of placement.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementProblem {
    /// Bytes that are placed together: a page.
    pub granule: Bytes,
    /// The places.
    pub tiers: Vec<SolverTier>,
    /// The requests.
    pub objects: Vec<Object>,
}

/// Where one part of an object lies. Objects have one part, those of fixed splits one for each tier
/// they asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectPart {
    /// The tier that a fixed split asks for here.
    pub want: Option<usize>,
    /// Bytes for which there is no free space in any tier that may hold them.
    pub nowhere: Bytes,
    // Nearly all parts lie in one tier: thousands of them need no memory of their own.
    first: Option<(usize, Bytes)>,
    more: Vec<(usize, Bytes)>,
}

impl ObjectPart {
    /// Tiers and bytes, by ascending tier; whole grains. What is missing of the size lies nowhere.
    pub fn got(&self) -> impl Iterator<Item = (usize, Bytes)> + '_ {
        self.first.iter().chain(&self.more).copied()
    }
}

/// Where one object lies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlacedObject {
    /// Strict, and without space: nothing of it is placed.
    pub refused: bool,
    first: ObjectPart,
    more: Vec<ObjectPart>,
    count: usize,
}

impl PlacedObject {
    /// Its parts.
    pub fn parts(&self) -> impl Iterator<Item = &ObjectPart> {
        std::iter::once(&self.first).chain(&self.more).take(self.count)
    }

    fn push(&mut self, part: ObjectPart) {
        match self.count {
            0 => self.first = part,
            _ => self.more.push(part),
        }
        self.count += 1;
    }

    /// Bytes in `tier`.
    #[must_use]
    pub fn bytes_in(&self, tier: usize) -> Bytes {
        self.parts().flat_map(ObjectPart::got).filter(|(t, _)| *t == tier).map(|(_, b)| b).sum()
    }

    /// Bytes for which there is no free space.
    #[must_use]
    pub fn nowhere(&self) -> Bytes {
        self.parts().map(|p| p.nowhere).sum()
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// One entry an object, in order.
    pub placed: Vec<PlacedObject>,
    /// What the placement counts, in bytes times worth.
    pub value: f64,
    /// No placement counts for more, whole objects divided or not (strict ones that were refused
    /// are left out).
    pub bound: f64,
    /// Whether no better placement exists: nothing had to be rounded, or all ways of rounding were
    /// weighed.
    pub exact: bool,
}

/// Why a problem cannot be posed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SolveError {
    /// There is no unit of placement.
    #[error("the granule is zero bytes; give the page size")]
    NoGranule,
    /// More than the arithmetic has space for.
    #[error(
        "{tiers} tiers are more than the {most} that are weighed; treat nodes of like figures \
        as one"
    )]
    TooManyTiers {
        /// How many there are.
        tiers: usize,
        /// How many there may be.
        most: usize,
    },
    /// A gain that orders nothing.
    #[error(
        "tier {tier} has a gain that is not a number above zero; give gains relative to the \
        best tier"
    )]
    BadGain {
        /// Position of the tier.
        tier: usize,
    },
    /// A weight that weighs nothing.
    #[error(
        "object {object} has a priority, reads or writes that are not a finite number; leave it at \
        1 when unsure"
    )]
    BadWeight {
        /// Position of the object.
        object: usize,
    },
    /// No such tier.
    #[error("object {object} names tier {tier} of {tiers}; tiers count from 0")]
    NoSuchTier {
        /// Position of the object.
        object: usize,
        /// What it names.
        tier: usize,
        /// How many there are.
        tiers: usize,
    },
    /// Nothing is asked for.
    #[error("object {object} asks for no tier; name at least one")]
    NothingWanted {
        /// Position of the object.
        object: usize,
    },
    /// The parts are not the whole.
    #[error(
        "object {object} has a fixed split that does not add up to its size; give one size for \
            each tier asked for"
    )]
    BadSplit {
        /// Position of the object.
        object: usize,
    },
}

/// Places all objects. See the module for what is maximised.
///
/// # Errors
/// [`SolveError`] for a problem that cannot be posed; a lack of space is part of the answer.
pub fn solve(problem: &PlacementProblem) -> Result<Solution, SolveError> {
    let items = items::Items::new(problem)?;
    Ok(round::place(problem, items))
}

#[cfg(test)]
mod tests;
