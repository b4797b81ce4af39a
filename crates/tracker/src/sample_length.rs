//! How long to sample: for trackers that clear accessed bits, wait and read them back, live and
//! simulated alike.
//!
//! An interval that nearly every page is touched in tells nothing about which are hot. So such a
//! tracker makes a burst of short samples whose length follows the share of pages found accessed;
//! where pages are touched too rarely for that, one sample spans the engine's whole interval.
//!
//! A page touched in every sample of a burst may be touched a little more often than once a sample,
//! or a thousand times. So half of the samples are sharp: so short that they miss a part of such
//! pages, a few very hot ones among many warm ones (an array of vertices beside its edges). Where
//! clearing bits is what is dear, a sharp sample is the beginning of an ordinary one, which is read
//! twice (docs/adr/0361); else they are made where there are such pages, more than chance explains.

use terrace_engine::{PageSamples, SampleRequest};
use terrace_types::Nanos;

/// Samples in one burst, sharp and ordinary, and in one while relaxed. Two bursts of four cost what
/// one of eight does, and the second often finds that what the first saw is over (docs/adr/0358).
const SAMPLES_PER_GROUP: (u8, u8) = (4, 3);
/// Fewest while heat has not settled.
const FEWEST: u8 = 4;
/// The first sample of a burst at base pages.
const FIRST: Nanos = Nanos::millis(2);

/// How long samples may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SampleLengths {
    first: Nanos,
    shortest: Nanos,
    longest: Nanos,
    /// The shortest sharp sample.
    sharpest: Nanos,
    /// An ordinary sample begins with a sharp one: bits are cleared for both at once, so that there
    /// is always one.
    shared: bool,
}

/// Of base pages: clearing and reading the bits of tens of thousands takes a millisecond.
const BASE: SampleLengths = SampleLengths {
    first: FIRST,
    shortest: Nanos::micros(400),
    longest: Nanos(u64::MAX),
    sharpest: Nanos::micros(50),
    shared: true,
};
/// Of huge pages by themselves, some dozens: [`crate::huge_pages`].
const HUGE: SampleLengths = SampleLengths {
    first: Nanos::micros(20),
    shortest: Nanos::micros(5),
    // what is touched less than once in eight of them is cold: 6 times a second a base page
    longest: Nanos::micros(40),
    sharpest: Nanos::micros(3),
    shared: false,
};
/// Share of pages seen in a sample, in thousandths, between which its length is left alone.
const AIM: (u64, u64) = (80, 600);
/// The share that a length is set for where it was found above them.
const AIMED_SHARE: f64 = 0.3;
/// Of a share above this little is known but that it is large.
const LARGEST_SHARE: f64 = 0.98;
/// Share of pages found accessed in every sample, in thousandths, from which some samples are made
/// sharp.
const SATURATED: u64 = 5;
/// Of those pages, the share seen in a sharp sample, in thousandths.
const SHARP_AIM: (u64, u64) = (300, 700);

/// Samples of one length, made one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleGroup {
    /// Length of each.
    pub length: Nanos,
    /// How many.
    pub samples: u8,
    /// Meant for the pages that are found accessed in all others.
    pub sharp: bool,
}

/// What follows each clearing of bits where groups share it: which of them are read, and how long
/// after, shortest first. Clearing takes several times as long as reading (26 and 5 ns a page in
/// the lab).
#[must_use]
pub fn reads_by_clear(groups: &[SampleGroup]) -> Vec<Vec<(usize, Nanos)>> {
    let clears = groups.iter().map(|group| group.samples).max().unwrap_or(0);
    let reads = |number: u8| {
        let groups = groups.iter().enumerate().filter(|(_, group)| group.samples > number);
        let mut reads: Vec<(usize, Nanos)> = groups.map(|(at, group)| (at, group.length)).collect();
        reads.sort_by_key(|(_, length)| *length);
        reads
    };
    (0..clears).map(reads).collect()
}

/// What a group of samples found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupObservation {
    /// Pages present, counted in each sample.
    pub present: u64,
    /// Pages accessed, counted in each sample.
    pub accessed: u64,
    /// Pages present in all samples, and accessed in all of them.
    pub throughout: u64,
    /// See `throughout`.
    pub always: u64,
    /// Of those, pages accessed in all samples but one.
    pub nearly: u64,
}

/// What the samples of one group found of one page: how often it was present, and how often
/// accessed. In one byte, for there is one for every page observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageSampleCount(u8);

impl PageSampleCount {
    /// Samples that are counted at most; a group has fewer.
    pub const MAX_SAMPLES: u8 = 15;

    /// A sample that found the page present, and accessed or not.
    #[inline]
    pub fn add(&mut self, accessed: bool) {
        if self.present() < Self::MAX_SAMPLES {
            self.0 += 16 + u8::from(accessed);
        }
    }

    /// Samples that found it present.
    #[must_use]
    pub const fn present(self) -> u8 {
        self.0 / 16
    }

    /// Samples that found it accessed.
    #[must_use]
    pub const fn hits(self) -> u8 {
        self.0 % 16
    }

    /// Its hits as trackers report them: a page that came or went midway was not sampled
    /// throughout.
    #[must_use]
    pub const fn reported(self, samples: u8) -> u8 {
        if self.present() == samples {
            self.hits()
        } else {
            PageSamples::NOT_SAMPLED
        }
    }
}

/// How many pages have each count: one addition a page, whatever is asked of them later.
#[derive(Debug, Clone)]
pub struct CountHistogram([u32; 256]);

impl Default for CountHistogram {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl<'a> Extend<&'a PageSampleCount> for CountHistogram {
    fn extend<T: IntoIterator<Item = &'a PageSampleCount>>(&mut self, tallies: T) {
        for tally in tallies {
            self.0[usize::from(tally.0)] += 1;
        }
    }
}

impl CountHistogram {
    /// Adds so many pages of one count.
    pub fn add(&mut self, tally: PageSampleCount, pages: u32) {
        self.0[usize::from(tally.0)] += pages;
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, n)| *sum += n);
    }

    /// Pages found present in some sample.
    #[must_use]
    pub fn present(&self) -> u64 {
        self.0[16..].iter().map(|n| u64::from(*n)).sum()
    }
}

impl GroupObservation {
    /// Counts the pages present in all of a group's samples.
    pub fn tally(&mut self, samples: u8, counts: &CountHistogram) {
        for hits in 0..=samples.min(PageSampleCount::MAX_SAMPLES) {
            let count = 16 * usize::from(samples) + usize::from(hits);
            let pages = counts.0.get(count).map_or(0, |n| u64::from(*n));
            self.throughout += pages;
            self.always += if hits == samples { pages } else { 0 };
            self.nearly += if hits + 1 == samples { pages } else { 0 };
        }
    }
}

/// Lengths of samples, learned from what they found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleLengthTuner {
    lengths: SampleLengths,
    length: Nanos,
    sharp: Option<Nanos>,
    /// Share of pages found accessed in every sample lately, in thousandths.
    saturated: u64,
    /// What a sample takes beside its length.
    overhead: Nanos,
}

impl Default for SampleLengthTuner {
    fn default() -> Self {
        Self::within(BASE)
    }
}

impl SampleLengthTuner {
    const fn within(lengths: SampleLengths) -> Self {
        Self { lengths, length: lengths.first, sharp: None, saturated: 0, overhead: Nanos::ZERO }
    }

    /// For samples of huge pages by themselves.
    #[must_use]
    pub const fn at_huge_pages() -> Self {
        Self::within(HUGE)
    }

    /// Length of an ordinary sample now.
    #[must_use]
    pub const fn length(&self) -> Nanos {
        self.length
    }

    /// Length of a sample in this interval. While heat has not settled, at least [`FEWEST`] samples
    /// are made, however rarely pages were touched before: one long sample does not distinguish hot
    /// from warm.
    fn fitting(&self, ask: &SampleRequest) -> Nanos {
        if ask.relaxed {
            return self.length;
        }
        let share = Nanos(ask.interval.get() * 3 / 4 / u64::from(FEWEST));
        self.length.min(share.saturating_sub(self.overhead).max(self.lengths.shortest))
    }

    /// The samples to make at the end of the interval, in three quarters of it; none: one sample
    /// over the whole interval, begun with it.
    #[must_use]
    pub fn groups(&self, ask: &SampleRequest) -> Vec<SampleGroup> {
        if ask.quick_scan {
            return vec![SampleGroup { length: self.length, samples: 1, sharp: false }];
        }
        let length = self.fitting(ask);
        let most = if ask.relaxed { SAMPLES_PER_GROUP.1 } else { SAMPLES_PER_GROUP.0 };
        let one = (length + self.overhead).get().max(1);
        let samples = most.min(u8::try_from(ask.interval.get() * 3 / 4 / one).unwrap_or(most));
        if samples < 2 {
            return Vec::new();
        }
        let sharp = self.sharp.or(self.lengths.shared.then(|| self.sharper_than(length)));
        let sharp = sharp.map(|length| SampleGroup { length, samples: samples / 2, sharp: true });
        let rest = samples - sharp.map_or(0, |s| s.samples);
        sharp.into_iter().chain([SampleGroup { length, samples: rest, sharp: false }]).collect()
    }

    /// The first sharp sample beside ordinary ones of this length.
    fn sharper_than(&self, length: Nanos) -> Nanos {
        Nanos(length.get() / 8).max(self.lengths.sharpest)
    }

    /// How long they take in all, where groups share what is cleared.
    #[must_use]
    pub fn lead(&self, ask: &SampleRequest) -> Nanos {
        let clears = reads_by_clear(&self.groups(ask));
        let longest = clears.iter().filter_map(|reads| reads.last());
        longest.map(|(_, length)| *length + self.overhead).sum()
    }

    /// So many samples took so long, their lengths left out.
    pub fn took(&mut self, beside: Nanos, samples: u8) {
        self.overhead = Nanos(beside.get() / u64::from(samples.max(1)));
    }

    /// Learns from a group, or from one sample over a whole interval.
    pub fn learn(&mut self, group: SampleGroup, found: GroupObservation, ask: &SampleRequest) {
        let share = found.accessed * 1000 / found.present.max(1);
        if group.sharp {
            self.aim_sharply(group.length, share);
            return;
        }
        if found.present == 0 || ask.quick_scan && share <= AIM.1 {
            return;
        }
        if group.samples > 1 {
            // Of pages that are touched in most samples, more miss one by chance than none.
            let always = if found.always > found.nearly { found.always } else { 0 };
            self.saturated = always * 1000 / found.throughout.max(1);
            self.sharp = match self.sharp {
                _ if self.saturated < SATURATED => None,
                Some(length) => Some(length.min(Nanos(self.length.get() / 2))),
                None => Some(self.sharper_than(self.length)),
            };
        }
        if share > AIM.1 {
            // Touches taken as a Poisson stream that is the same for all pages: where pages differ,
            // as they do, fewer are left out than that tells, and the next samples go on.
            let untouched = |share: f64| -(1.0 - share.min(LARGEST_SHARE)).ln();
            let part = untouched(AIMED_SHARE) / untouched(share as f64 / 1000.0);
            let length = group.length.min(self.length).get() as f64 * part;
            self.length = Nanos(length as u64).max(self.lengths.shortest);
        } else if share < AIM.0 {
            self.length = Nanos(self.length.get() * 2)
                .min(ask.interval.max(self.lengths.shortest))
                .min(self.lengths.longest);
        } else {
            self.length = self.length.min(group.length);
        }
    }

    fn aim_sharply(&mut self, length: Nanos, share: u64) {
        let of_saturated = share * 1000 / self.saturated.max(1);
        self.sharp = Some(match of_saturated {
            more if more > SHARP_AIM.1 => Nanos(length.get() / 4).max(self.lengths.sharpest),
            less if less < SHARP_AIM.0 => Nanos(length.get() * 2),
            _ => length,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(interval: Nanos, relaxed: bool, quick_scan: bool) -> SampleRequest {
        SampleRequest {
            interval,
            fine: Vec::new(),
            reads: true,
            writes: false,
            relaxed,
            quick_scan,
        }
    }

    fn found(share: u64, always: u64) -> GroupObservation {
        GroupObservation {
            present: 8_000,
            accessed: 8 * share,
            throughout: 1_000,
            always,
            nearly: 10,
        }
    }

    #[test]
    fn a_tally_holds_both_counts_and_pages_that_came_midway() {
        let mut tally = PageSampleCount::default();
        for sample in 0..8 {
            tally.add(sample % 4 == 0);
        }
        assert_eq!((tally.present(), tally.hits(), tally.reported(8)), (8, 2, 2));
        assert_eq!(tally.reported(7), PageSamples::NOT_SAMPLED);
        let mut always = PageSampleCount::default();
        (0..40).for_each(|_| always.add(true));
        assert_eq!(
            (always.present(), always.hits()),
            (PageSampleCount::MAX_SAMPLES, PageSampleCount::MAX_SAMPLES)
        );
        assert!(SAMPLES_PER_GROUP.0 < PageSampleCount::MAX_SAMPLES);
        let mut found = GroupObservation::default();
        let mut counts = CountHistogram::default();
        counts.extend(&[tally, always, PageSampleCount::default()]);
        found.tally(8, &counts);
        assert_eq!((found.throughout, found.always, found.nearly), (1, 0, 0));
        found.tally(PageSampleCount::MAX_SAMPLES, &counts);
        assert_eq!((found.throughout, found.always, counts.present()), (2, 1, 2));
    }

    #[test]
    fn sharp_and_ordinary_samples_share_what_is_cleared() {
        let group = |us, samples| SampleGroup { length: Nanos::micros(us), samples, sharp: false };
        let (sharp, ordinary) = ((0, Nanos::micros(50)), (1, Nanos::micros(400)));
        assert_eq!(
            reads_by_clear(&[group(50, 1), group(400, 2)]),
            [vec![sharp, ordinary], vec![ordinary]]
        );
        let longer_first = reads_by_clear(&[group(400, 1), group(50, 1)]);
        assert_eq!(longer_first, [[(1, Nanos::micros(50)), (0, Nanos::micros(400))]]);
        assert!(reads_by_clear(&[]).is_empty());
    }

    #[test]
    fn samples_grow_until_part_of_the_pages_is_unseen() {
        let (mut aim, full) = (SampleLengthTuner::default(), ask(Nanos::millis(100), false, false));
        let group = SampleGroup { length: FIRST, samples: 2, sharp: false };
        let sharp = SampleGroup { length: Nanos::micros(250), samples: 2, sharp: true };
        assert_eq!(aim.groups(&full), [sharp, group]);
        let mut quick = aim;
        quick.learn(
            SampleGroup { samples: 1, ..group },
            found(650, 0),
            &ask(Nanos::ZERO, true, true),
        );
        aim.learn(group, found(650, 0), &full);
        // 2 ms times ln(0.7) / ln(0.35).
        assert_eq!(aim.length(), Nanos(679_495));
        assert_eq!(quick.length(), aim.length(), "a quick scan tells that as well");
        quick.learn(
            SampleGroup { samples: 1, ..group },
            found(10, 0),
            &ask(Nanos::ZERO, true, true),
        );
        assert_eq!(quick.length(), aim.length(), "but not that it was too short");
        for _ in 0..9 {
            aim.learn(group, found(10, 0), &full);
        }
        assert_eq!(aim.length(), full.interval);
        assert!(
            aim.groups(&ask(Nanos::millis(100), true, false)).is_empty(),
            "one sample spans the interval"
        );
        let several = aim.groups(&full);
        assert!(
            several.iter().all(|g| g.samples == 2 && g.length < Nanos::millis(19)),
            "while heat has not settled, several"
        );
        assert_eq!(
            aim.groups(&ask(Nanos::millis(100), true, true)).len(),
            1,
            "a quick scan is one sample all the same"
        );
    }

    #[test]
    fn samples_of_huge_pages_stay_short() {
        let (mut aim, full) =
            (SampleLengthTuner::at_huge_pages(), ask(Nanos::millis(100), false, false));
        let group = |aim: &SampleLengthTuner| aim.groups(&full)[0];
        assert_eq!(group(&aim), SampleGroup { length: HUGE.first, samples: 4, sharp: false });
        (0..9).for_each(|_| aim.learn(group(&aim), found(900, 0), &full));
        assert_eq!(aim.length(), HUGE.shortest);
        (0..19).for_each(|_| aim.learn(group(&aim), found(10, 0), &full));
        assert_eq!(aim.length(), HUGE.longest);
        aim.learn(group(&aim), found(100, 40), &full);
        assert_eq!(group(&aim), SampleGroup { length: Nanos::micros(5), samples: 2, sharp: true });
    }

    #[test]
    fn sharp_samples_miss_a_part_of_the_pages_that_are_always_hit() {
        let (mut aim, full) = (SampleLengthTuner::default(), ask(Nanos::millis(100), false, false));
        aim.learn(SampleGroup { length: FIRST, samples: 4, sharp: false }, found(100, 40), &full);
        let sharp = SampleGroup { length: Nanos::micros(250), samples: 2, sharp: true };
        assert_eq!(
            aim.groups(&full),
            [sharp, SampleGroup { length: FIRST, samples: 2, sharp: false }]
        );
        aim.learn(sharp, found(39, 0), &full);
        assert_eq!(aim.groups(&full)[0].length, Nanos(62_500));
        aim.learn(SampleGroup { length: FIRST, samples: 2, sharp: false }, found(100, 0), &full);
        assert_eq!(aim.groups(&full)[0], sharp, "where there are none, as at first");
    }

    #[test]
    fn huge_pages_hit_always_by_chance_get_no_sharp_samples() {
        let (mut aim, full) =
            (SampleLengthTuner::at_huge_pages(), ask(Nanos::millis(100), false, false));
        let group = SampleGroup { length: HUGE.first, samples: 4, sharp: false };
        // A third of the pages, each touched in a sample with a chance of 0.75.
        aim.learn(group, GroupObservation { nearly: 89, ..found(250, 33) }, &full);
        assert_eq!(aim.groups(&full), [group]);
    }

    #[test]
    fn a_burst_leads_the_end_of_its_interval() {
        let mut aim = SampleLengthTuner::default();
        aim.took(Nanos::millis(4), 2);
        // Twice 2 ms and what comes beside: a sharp sample is the beginning of an ordinary one.
        assert_eq!(aim.lead(&ask(Nanos::millis(100), false, false)), Nanos::millis(8));
        assert_eq!(aim.lead(&ask(Nanos::millis(1), true, false)), Nanos::ZERO);
    }
}
