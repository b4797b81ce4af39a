//! Keeps what a node has left at the wanted figure while the command runs. Pure: is given a
//! reading, says how to load from then on.
//!
//! A reading is what the command's CPUs could read of the node at that moment, and what the load
//! took meanwhile. The rule goes by the second: what is left too much the load shall take besides,
//! what is left too little it shall take less, times a factor that follows from what earlier
//! changes did. How a load of so many bytes a second is made of threads and additions follows from
//! the time of an addition, which is known. So nothing of the machine is assumed but that who takes
//! more leaves less, and a bus that becomes another one (a virtual machine's, when its neighbours
//! do something else) is one reading more.

use super::loader::CHUNK_BYTES;
use super::search::MAX_ADDS;
use super::Knobs;
use std::collections::VecDeque;
use terrace_types::{BytesPerSec, Nanos};

/// What was seen once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadReading {
    /// What the command's CPUs read.
    pub left: BytesPerSec,
    /// What the load read in the same time.
    pub load: BytesPerSec,
}

/// A mean that is nearer is left alone.
const NEAR: f64 = 0.03;
/// And one that is off by less than so many of its standard errors: it may be chance.
const SURE: f64 = 3.0;
/// Readings that means are of, the newest ones: of few, what changed just now is seen; of many,
/// what is off by little.
const NEWEST: [usize; 7] = [2, 3, 5, 10, 20, 40, 80];
/// What is taken for the scatter of a reading before any was seen, and the least that it is taken
/// for.
const SCATTER: (f64, f64) = (0.05, 0.012);
/// How much a difference between two readings teaches of scatter.
const LEARNT: f64 = 0.03;
/// The load becomes so many times as strong or as weak at most by one change.
const STEP: f64 = 3.0;
/// Bytes a second that the load takes besides for each one that is left too much; bounds of what
/// changes teach.
const FACTOR: (f64, f64) = (0.4, 4.0);
/// How much one change teaches: little, for the bus may have been another one meanwhile.
const TRUST: f64 = 0.25;

/// The rule and what it remembers.
#[derive(Debug, Clone)]
pub struct LoadController {
    wanted: f64,
    /// Threads that there are.
    most: u32,
    /// Nanoseconds of an addition.
    add: f64,
    now: Knobs,
    /// Since the load was changed last: left, load.
    recent: VecDeque<(f64, f64)>,
    /// Variance of a reading where nothing changes, as a share of what is wanted, squared.
    variance: f64,
    /// What was seen before that change.
    before: Option<(f64, f64)>,
    factor: f64,
    /// So many threads were too few, and took so much without additions.
    too_few: (u32, f64),
    changes: u32,
}

impl LoadController {
    /// Begins with `now`, of `most` threads at most; an addition takes a loading thread `add`
    /// nanoseconds.
    #[must_use]
    pub fn new(wanted: BytesPerSec, now: Knobs, most: u32, add: f64) -> Self {
        let wanted = wanted.get().max(1) as f64;
        let add = add.max(1e-3);
        Self {
            wanted,
            most,
            add,
            now,
            recent: VecDeque::new(),
            variance: SCATTER.0 * SCATTER.0,
            before: None,
            factor: 1.0,
            too_few: (0, 0.0),
            changes: 0,
        }
    }

    /// How it loads now.
    #[must_use]
    pub const fn now(&self) -> Knobs {
        self.now
    }

    /// How often it changed.
    #[must_use]
    pub const fn changes(&self) -> u32 {
        self.changes
    }

    /// Until the next reading, where one takes the command's CPUs for `reading`: so that all of
    /// them take a 150th of its time; a 50th where they scatter, so that many are needed, and a
    /// 30th while too few were seen since the last change.
    #[must_use]
    pub fn pause(&self, reading: Nanos) -> Nanos {
        let times = match (self.recent.len(), self.scatter()) {
            (0..5, _) => 30,
            (_, scatter) if scatter > SCATTER.0 => 50,
            _ => 150,
        };
        Nanos(reading.get().saturating_mul(times)).clamp(Nanos::millis(2), Nanos::millis(250))
    }

    fn scatter(&self) -> f64 {
        self.variance.sqrt().max(SCATTER.1)
    }

    /// Takes a reading. Knobs to set where they change.
    pub fn observe(&mut self, reading: LoadReading) -> Option<Knobs> {
        let new = (reading.left.get() as f64, reading.load.get() as f64);
        if let Some(last) = self.recent.back() {
            // Two readings with the same load: half of the square is the variance of each, unless
            // the bus changed between.
            let apart = ((new.0 - last.0) / self.wanted).clamp(-0.5, 0.5);
            self.variance += LEARNT * (apart * apart / 2.0 - self.variance);
        }
        if self.recent.len() == NEWEST[NEWEST.len() - 1] {
            self.recent.pop_front();
        }
        self.recent.push_back(new);
        let (seen, sure) = self.surest()?;
        if sure <= 1.0 {
            return None;
        }
        self.learn(seen);
        // What is hardly more than chance is hardly followed.
        let follow = 1.0 - 1.0 / (sure * sure);
        let next = self.knobs((self.wanted + (seen.0 - self.wanted) * follow, seen.1));
        self.before = Some(seen);
        if next == self.now {
            return None;
        }
        self.now = next;
        self.changes += 1;
        self.recent.clear();
        Some(next)
    }

    /// The mean of the newest readings that is most surely off, and by how many times as much as is
    /// let be.
    fn surest(&self) -> Option<((f64, f64), f64)> {
        let means = NEWEST.iter().filter(|n| **n <= self.recent.len()).map(|n| {
            let newest = self.recent.iter().rev().take(*n);
            let sum = newest.fold((0.0, 0.0), |sum, r| (sum.0 + r.0, sum.1 + r.1));
            let mean = (sum.0 / *n as f64, sum.1 / *n as f64);
            let let_be = NEAR.max(SURE * self.scatter() / (*n as f64).sqrt());
            (mean, (mean.0 / self.wanted - 1.0).abs() / let_be)
        });
        means.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What the last change did to what is left. Where the node itself changed meanwhile it teaches
    /// nonsense, within bounds and for a step.
    fn learn(&mut self, (left, load): (f64, f64)) {
        let Some((left_before, load_before)) = self.before else { return };
        let (given, taken) = (left_before - left, load - load_before);
        if taken.abs() > 0.03 * load.max(load_before) && given * taken > 0.0 {
            let seen = (taken / given).clamp(FACTOR.0, FACTOR.1);
            self.factor *= (seen / self.factor).powf(TRUST);
        }
    }

    /// The load that leaves what is wanted, if it was `seen` that so much was left with so much
    /// load.
    fn knobs(&mut self, (left, load): (f64, f64)) -> Knobs {
        // Nanoseconds of 64 lines by a thread that takes so much.
        let span = |rate: f64| CHUNK_BYTES as f64 / rate.max(1.0) * 1e9;
        let threads = f64::from(self.now.threads);
        let besides = (left - self.wanted) * self.factor;
        if self.now.threads == 0 {
            // Nothing is known of what a thread takes: as if reading took no time.
            let adds = if besides > 0.0 { span(besides) / self.add } else { return self.now };
            return Knobs { threads: 1, adds: bounded(adds), ..self.now };
        }
        if load < 1.0 {
            // It did not come to work at all: nothing follows from that.
            return self.now;
        }
        let aim = (load + besides).clamp(load / STEP, load * STEP);
        // Of a thread without additions.
        let all = span(load / threads);
        let reading = (all - f64::from(self.now.adds) * self.add).max(all / 1e4);
        let full = CHUNK_BYTES as f64 / reading * 1e9;
        let needed = (aim / full).ceil().clamp(1.0, f64::from(self.most)) as u32;
        if needed > self.now.threads {
            self.too_few = (self.now.threads, load);
        }
        // One fewer only where these have something to spare: else they would come and go. What a
        // thread would take is not what it gets where it meets others.
        let spare = |most: f64| aim * 1.1 < most;
        let fewer = needed < self.now.threads
            && spare(full * (threads - 1.0))
            && (needed > self.too_few.0 || spare(self.too_few.1));
        let threads = if needed > self.now.threads || fewer { needed } else { self.now.threads };
        let adds = (span(aim / f64::from(threads)) - reading) / self.add;
        Knobs { threads, adds: bounded(adds), ..self.now }
    }
}

fn bounded(adds: f64) -> u32 {
    adds.clamp(0.0, f64::from(MAX_ADDS)) as u32
}

/// What is left is reported by means over so long: what is read in a third of a millisecond
/// scatters where nobody changes anything.
pub const WINDOW: Nanos = Nanos::millis(250);

/// What was left over the time that the command ran.
#[derive(Debug, Clone, Default)]
pub struct LoadTally {
    /// What was left, and how long it stands for.
    readings: Vec<(f64, Nanos)>,
}

/// What a [`LoadTally`] comes to.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LoadSummary {
    /// Readings.
    pub readings: u32,
    /// Time they stand for.
    pub span_ns: u64,
    /// Share of it in which what was left was within 10% of what was wanted, by means over
    /// [`WINDOW`].
    pub share_within: f64,
    /// The same by single readings, each of a third of a millisecond or so.
    pub readings_within: f64,
    /// Median of what was left, by time.
    pub median_bytes_per_s: u64,
    /// Its quartiles.
    pub quartiles_bytes_per_s: [u64; 2],
}

impl LoadTally {
    /// So much was left, `after` the reading before or the begin.
    pub fn add(&mut self, left: BytesPerSec, after: Nanos) {
        self.readings.push((left.get() as f64, after));
    }

    /// Of all readings; none without any.
    #[must_use]
    pub fn summarize(&self, wanted: BytesPerSec, promised: f64) -> Option<LoadSummary> {
        let mut sorted = self.readings.clone();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let span: Nanos = sorted.iter().map(|r| r.1).sum();
        let at = |share: f64| {
            let mut left = share * span.get() as f64;
            let found = sorted.iter().find(|r| {
                left -= r.1.get() as f64;
                left <= 0.0
            });
            found.or(sorted.last()).map_or(0, |r| r.0 as u64)
        };
        let within = |left: f64| (left / wanted.get().max(1) as f64 - 1.0).abs() <= promised;
        let good: Nanos = sorted.iter().filter(|r| within(r.0)).map(|r| r.1).sum();
        (!sorted.is_empty()).then(|| LoadSummary {
            readings: sorted.len() as u32,
            span_ns: span.get(),
            share_within: self.windows_within(&within),
            readings_within: good.get() as f64 / span.get().max(1) as f64,
            median_bytes_per_s: at(0.5),
            quartiles_bytes_per_s: [at(0.25), at(0.75)],
        })
    }

    /// Share of the time in windows whose mean is `within`. What is left at the end belongs to the
    /// last one.
    fn windows_within(&self, within: &dyn Fn(f64) -> bool) -> f64 {
        let mut windows: Vec<(f64, f64)> = Vec::new();
        let mut open = true;
        for (left, span) in &self.readings {
            let span = span.get() as f64;
            if open {
                windows.push((0.0, 0.0));
            }
            if let Some(last) = windows.last_mut() {
                *last = (last.0 + left * span, last.1 + span);
                open = last.1 >= WINDOW.get() as f64;
            }
        }
        if let (Some(rest), false) = (windows.last().copied(), open) {
            if windows.len() > 1 {
                windows.pop();
                if let Some(last) = windows.last_mut() {
                    *last = (last.0 + rest.0, last.1 + rest.1);
                }
            }
        }
        let all: f64 = windows.iter().map(|w| w.1).sum();
        let good: f64 = windows
            .iter()
            .filter(|w| within(w.0 / w.1.max(1.0)))
            .map(|w| w.1)
            .fold(0.0, |a, b| a + b);
        good / all.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::{Bytes, Seed};

    /// How those who read at once share what there is.
    #[derive(Clone, Copy)]
    enum Sharing {
        /// Each an equal part, and who wants less leaves the rest to the others.
        Equal,
        /// In proportion to what each wants.
        Proportion,
        /// Each has a bus of its own, and slows the other by a part of what it takes: threads of
        /// one core, say.
        Apart(f64),
    }

    /// A node that loading threads and one reader use.
    struct Bus {
        sharing: Sharing,
        capacity: f64,
        own: f64,
        each: f64,
        add: f64,
        noise: f64,
        seed: Seed,
    }

    impl Bus {
        fn new(sharing: Sharing, noise: f64, seed: u64) -> Self {
            Self {
                sharing,
                capacity: 30.0,
                own: 25.0,
                each: 20.0,
                add: 1.3,
                noise,
                seed: Seed(seed),
            }
        }

        /// What is left, and what the load takes, GB/s.
        fn truth(&self, knobs: Knobs) -> (f64, f64) {
            let threads = f64::from(knobs.threads);
            let span = CHUNK_BYTES as f64 / self.each + f64::from(knobs.adds) * self.add;
            let load = threads * CHUNK_BYTES as f64 / span;
            match self.sharing {
                Sharing::Proportion => {
                    let over = ((load + self.own) / self.capacity).max(1.0);
                    (self.own / over, load / over)
                }
                Sharing::Equal => {
                    let part = self.capacity / (threads + 1.0);
                    let (mine, theirs) =
                        (self.own.min(self.capacity - load), load.min(self.capacity - self.own));
                    (mine.max(part.min(self.own)), theirs.max((part * threads).min(load)))
                }
                Sharing::Apart(part) => {
                    (self.own * (1.0 - part * load / self.each / threads.max(1.0)), load)
                }
            }
        }

        fn reading(&mut self, knobs: Knobs) -> LoadReading {
            let (left, load) = self.truth(knobs);
            let mut off = || {
                let (random, seed) = self.seed.next();
                self.seed = seed;
                1.0 + self.noise * (random as f64 / u64::MAX as f64 - 0.5) * 2.0
            };
            let gb = |rate: f64| BytesPerSec((rate * 1e9) as u64);
            LoadReading { left: gb(left * off()), load: gb(load * off()) }
        }
    }

    fn control(wanted: f64, knobs: (u32, u32), most: u32) -> LoadController {
        let knobs = Knobs { threads: knobs.0, adds: knobs.1, region: Bytes::mib(64) };
        LoadController::new(BytesPerSec((wanted * 1e9) as u64), knobs, most, 1.3)
    }

    /// Of so many readings the share at which the node really had what was wanted, within a tenth.
    fn share(control: &mut LoadController, bus: &mut Bus, wanted: f64, readings: u32) -> f64 {
        let mut good = 0;
        for _ in 0..readings {
            good += u32::from((bus.truth(control.now()).0 / wanted - 1.0).abs() <= 0.1);
            control.observe(bus.reading(control.now()));
        }
        f64::from(good) / f64::from(readings)
    }

    const ALL: [Sharing; 3] = [Sharing::Equal, Sharing::Proportion, Sharing::Apart(0.7)];

    #[test]
    fn what_the_load_takes_need_not_be_what_the_command_lacks() {
        // Three bytes a second less for each one taken, and a fifth.
        for (each, part) in [(8.0, 0.95), (30.0, 0.25)] {
            for seed in 0..20 {
                let mut bus = Bus { each, ..Bus::new(Sharing::Apart(part), 0.04, seed) };
                let mut control = control(20.0, (1, 0), 1);
                share(&mut control, &mut bus, 20.0, 60);
                let held = share(&mut control, &mut bus, 20.0, 200);
                assert!(held >= 0.95, "{part}, seed {seed}: {held} {control:?}");
            }
        }
    }

    #[test]
    fn from_any_load_it_comes_to_what_is_wanted_and_stays() {
        for (number, sharing) in ALL.into_iter().enumerate() {
            for seed in 0..20 {
                for (wanted, most) in [(16.0, 1), (20.0, 1), (23.0, 1), (16.0, 6), (12.0, 6)] {
                    let mut bus = Bus::new(sharing, 0.05, seed);
                    if bus.truth(Knobs { threads: most, adds: 0, region: Bytes::ZERO }).0 > wanted {
                        continue;
                    }
                    for knobs in [(1, 0), (1, 40), (1, 4000), (0, 0), (most, 0)] {
                        let mut control = control(wanted, knobs, most);
                        share(&mut control, &mut bus, wanted, 60);
                        let held = share(&mut control, &mut bus, wanted, 200);
                        assert!(
                            held >= 0.95,
                            "bus {number}, seed {seed}, {wanted} by {most} from {knobs:?}: {held}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn readings_that_scatter_are_not_followed() {
        // As on a virtual machine, where a reading is within a tenth of what it is of a third of
        // the time.
        for (number, sharing) in ALL.into_iter().enumerate() {
            for seed in 0..20 {
                let mut bus = Bus::new(sharing, 0.35, seed);
                let mut control = control(18.0, (1, 0), 2);
                share(&mut control, &mut bus, 18.0, 200);
                let changes = control.changes();
                let held = share(&mut control, &mut bus, 18.0, 1000);
                let changes = control.changes() - changes;
                assert!(
                    held >= 0.95 && changes < 40,
                    "bus {number}, seed {seed}: {held}, {changes} changes"
                );
            }
        }
    }

    #[test]
    fn what_is_right_is_left_alone() {
        for sharing in ALL {
            let mut bus = Bus::new(sharing, 0.0, 0);
            let knobs = Knobs { threads: 1, adds: 150, region: Bytes::mib(64) };
            let wanted = bus.truth(knobs).0;
            let mut control = control(wanted, (1, 150), 4);
            assert_eq!(share(&mut control, &mut bus, wanted, 100), 1.0);
            assert_eq!(control.changes(), 0);
        }
    }

    #[test]
    fn a_bus_of_two_states_is_followed() {
        for (number, sharing) in ALL.into_iter().enumerate() {
            for seed in 0..20 {
                let mut bus = Bus::new(sharing, 0.04, seed);
                let mut control = control(16.0, (1, 0), 4);
                share(&mut control, &mut bus, 16.0, 60);
                let mut good = 0.0;
                for flip in 0..8 {
                    let by = if flip % 2 == 0 { 1.0 / 1.45 } else { 1.45 };
                    (bus.capacity, bus.own, bus.each) =
                        (bus.capacity * by, bus.own * by, bus.each * by);
                    good += share(&mut control, &mut bus, 16.0, 80) / 8.0;
                }
                assert!(good > 0.85, "bus {number}, seed {seed}: {good}");
            }
        }
    }

    #[test]
    fn out_of_reach_it_does_all_it_can_and_comes_back() {
        // A node that has less than is wanted without any load, then one of which all loading
        // threads leave more.
        let mut bus = Bus { own: 10.0, ..Bus::new(Sharing::Equal, 0.02, 3) };
        let mut control = control(16.0, (2, 0), 2);
        share(&mut control, &mut bus, 16.0, 60);
        assert!(
            bus.truth(control.now()).0 > 9.9 && bus.truth(control.now()).1 < 0.5,
            "{control:?}"
        );
        bus.own = 25.0;
        bus.capacity = 60.0;
        share(&mut control, &mut bus, 16.0, 60);
        assert_eq!((control.now().threads, control.now().adds), (2, 0));
        let changes = control.changes();
        assert_eq!(share(&mut control, &mut bus, 16.0, 60), 0.0);
        assert_eq!(control.changes(), changes, "and stays there");
        bus.capacity = 30.0;
        share(&mut control, &mut bus, 16.0, 40);
        assert!(share(&mut control, &mut bus, 16.0, 100) > 0.95);
    }

    #[test]
    fn a_load_that_does_not_come_to_work_changes_nothing() {
        let mut control = control(16.0, (1, 100), 2);
        for _ in 0..20 {
            let none = LoadReading { left: BytesPerSec::gb(25), load: BytesPerSec(0) };
            assert_eq!(control.observe(none), None);
        }
    }

    #[test]
    fn a_tally_goes_by_time() {
        let mut tally = LoadTally::default();
        assert_eq!(tally.summarize(BytesPerSec::gb(10), 0.1), None);
        for (gb, ms) in [(10, 600), (20, 200), (9, 200)] {
            tally.add(BytesPerSec::gb(gb), Nanos::millis(ms));
        }
        let held = tally.summarize(BytesPerSec::gb(10), 0.1).unwrap();
        // The second window is 20 for 200 ms and 9 for 200.
        assert_eq!((held.readings, held.span_ns, held.readings_within), (3, 1_000_000_000, 0.8));
        assert!((held.share_within - 0.6).abs() < 1e-9, "{held:?}");
        let scattered = |ms| {
            let mut tally = LoadTally::default();
            (0..40).for_each(|i| tally.add(BytesPerSec::gb([8, 12][i % 2]), Nanos::millis(ms)));
            tally.summarize(BytesPerSec::gb(10), 0.1).unwrap()
        };
        assert_eq!((scattered(10).share_within, scattered(10).readings_within), (1.0, 0.0));
        assert_eq!(scattered(300).share_within, 0.0, "a reading a window");
        tally = LoadTally::default();
        tally.add(BytesPerSec::gb(10), Nanos::millis(60));
        let held = tally.summarize(BytesPerSec::gb(10), 0.1).unwrap();
        assert_eq!(held.share_within, 1.0);
        assert_eq!(held.median_bytes_per_s, 10_000_000_000);
        assert_eq!(held.quartiles_bytes_per_s, [10_000_000_000, 10_000_000_000]);
    }
}
