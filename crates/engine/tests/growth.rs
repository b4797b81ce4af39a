//! Programs that fill memory while they are managed: how soon that is noticed, and what becomes of
//! what they filled.
#![allow(clippy::unwrap_used)]

mod common;

use common::{engine, pages, read, show, skew, world, world_on, Shared, COLD, FAST, HOT, SECONDS};
use std::cell::RefCell;
use std::rc::Rc;
use terrace_engine::{
    Clock, Config, Mapping, Observation, SampleRequest, TrackError, Tracker, TrackerInfo,
};
use terrace_testkit::{dcpmm, PageTracker, WorldClock, WorldTarget};
use terrace_types::{Bytes, Nanos, NodeId, Request, Tick};

/// Memory that was mapped long ago and is filled only now has no sign but its touches: too little
/// of it to be told by what is free (a sixty-fourth of the tier), and it is what the program uses
/// most from then on.
#[test]
fn what_is_filled_late_is_found_by_its_touches() {
    const LATE: usize = 800;
    let begins = Tick(6 * SECONDS);
    let first = COLD + HOT - LATE;
    let hot = move |i: usize, now: Tick| i >= first && now >= begins;
    let access = move |i: usize, now: Tick| match i >= first && now < begins {
        true => read(0.0),
        false => read(if hot(i, now) { 4_000.0 } else { 80.0 }),
    };
    let w = world(COLD + HOT, Box::new(access), 5);
    w.borrow_mut().untouched = Some((first, begins));
    let (mut engine, _) = engine(&w, "terrace", pages(&w));
    while w.borrow().now() < begins.after(Nanos::millis(600)) {
        show(&engine.run_step());
    }
    let share = w.borrow().fast_share_now();
    assert!(share > 0.85, "{share}");
}

/// The longest time until the best tier serves this share of the accesses, of programs that fill
/// their last `late` pages at these times and use them most from then on.
fn longest_wait(late: usize, rate: f64, share: f64, begins: impl Iterator<Item = Tick>) -> Nanos {
    let first = COLD + HOT - late;
    let waits = begins.map(|begins| {
        let access = move |i: usize, now: Tick| match (i >= first, now < begins) {
            (true, true) => read(0.0),
            (true, false) => read(rate),
            _ => read(80.0),
        };
        let w = world(COLD + HOT, Box::new(access), 5);
        w.borrow_mut().untouched = Some((first, begins));
        let (mut engine, _) = engine(&w, "terrace", pages(&w));
        while w.borrow().now() < begins || w.borrow().fast_share_now() < share {
            show(&engine.run_step());
            assert!(w.borrow().now() < begins.after(Nanos::secs(4)), "not found in 4 s");
        }
        let wait = w.borrow().now().since(begins);
        wait
    });
    waits.max().expect("some times")
}

/// A program that fills memory begins something new: that is seen by what it has, between quick
/// scans too.
#[test]
fn memory_filled_late_is_sampled_at_once() {
    let begins = (0..8).map(|at| Tick(6 * SECONDS).after(Nanos::millis(70 * at)));
    let longest = longest_wait(2_400, 4_000.0, 0.8, begins);
    assert!(longest <= Nanos::millis(400), "{longest}");
}

/// Until heat has settled too: what a program fills before the next sample is let be filled first,
/// and no sample is thrown away for it.
#[test]
fn memory_filled_before_a_sample_is_waited_for_without_one() {
    const LATE: usize = 2_400;
    let first = COLD + HOT - LATE;
    for at in 0..8 {
        let begins = Tick(0).after(Nanos::millis(600 + 40 * at));
        let access = move |i: usize, now: Tick| match i >= first {
            true => read(if now < begins { 0.0 } else { 400.0 }),
            false => read(80.0),
        };
        let w = world(COLD + HOT, Box::new(access), 5);
        w.borrow_mut().untouched = Some((first, begins));
        let (mut engine, journal) = engine(&w, "terrace", late(&w, &Rc::default()));
        while w.borrow().now() < begins.after(Nanos::secs(1)) {
            show(&engine.run_step());
        }
        let thrown = journal.text().matches("still filling its memory").count();
        assert_eq!(thrown, 0, "filled from {begins:?} on");
    }
}

/// A target that grows while the best tier is full gets most of its new pages there: the engine
/// demotes as many cold ones from the second update of the growth rate on, 5 ms apart.
#[test]
fn newly_faulted_pages_find_headroom() {
    const LATE: usize = 1_472;
    let first = COLD + HOT - LATE;
    let begins = Tick(0).after(Nanos::millis(700));
    // Some earlier pages are hot, and samples find them before the target grows.
    let access = move |i: usize, _: Tick| match i {
        _ if i >= first => read(10_000.0),
        5_000..6_500 => read(4_000.0),
        _ => read(10.0),
    };
    let w = world(COLD + HOT, Box::new(access), 5);
    w.borrow_mut().untouched = Some((first, begins));
    w.borrow_mut().fault_interval = Nanos::micros(40);
    w.borrow_mut().huge = 64;
    let (mut engine, journal) = engine(&w, "terrace", pages(&w));
    while !w.borrow().is_there(COLD + HOT - 1) {
        show(&engine.run_step());
        let known: u64 = engine.heat().by_node().iter().map(|node| node.pages).sum();
        let sampled = w.borrow().now() > Tick(SECONDS / 2);
        assert!(!sampled || known >= first as u64, "the heat map knows {known} pages only");
    }
    assert!(journal.text().contains("\"headroom\""), "{}", journal.text());
    let on_best = |range: std::ops::Range<usize>| {
        range.filter(|i| w.borrow().node_of(*i) == NodeId(0)).count()
    };
    assert!(on_best(first..COLD + HOT) > LATE * 2 / 3, "{}", on_best(first..COLD + HOT));
    assert!(on_best(5_000..6_500) > 1_400, "hot pages stay: {}", on_best(5_000..6_500));
    let moves = w.borrow().total_moves();
    // An exchange of the 1,500 hot pages takes twice as many moves, headroom half of that.
    assert!(moves <= 3 * LATE as u64 + 600, "{moves} moves");
    while w.borrow().now() < begins.after(Nanos::secs(1)) {
        show(&engine.run_step());
    }
    let share = w.borrow().fast_share_now();
    assert!(share > 0.95, "{share}");
}

/// A program that fills its memory in order, the last of it the hottest. Some of what it filled
/// first is read so seldom that samples of some milliseconds miss most of it.
fn fills_in_order(warm: f64) -> (Shared, terrace_testkit::MemoryJournal) {
    const LATE: usize = 2_000;
    let all = COLD + HOT;
    let access = move |i: usize, _: Tick| match i {
        _ if i >= all - LATE => read(4_000.0),
        0..1_000 => read(warm),
        _ => read(0.02),
    };
    let w = world(all, Box::new(access), 5);
    w.borrow_mut().untouched = Some((1_024, Tick(0).after(Nanos::millis(30))));
    w.borrow_mut().fault_interval = Nanos::micros(40);
    w.borrow_mut().huge = 64;
    let trackers: Vec<Box<dyn Tracker>> = vec![Box::new(PageTracker::as_page_tables(w.clone()))];
    let (mut engine, journal) = engine(&w, "terrace", trackers);
    while !w.borrow().is_there(all - 1) {
        show(&engine.run_step());
    }
    (w, journal)
}

fn on_best(w: &Shared, range: std::ops::Range<usize>) -> usize {
    range.filter(|i| w.borrow().node_of(*i) == NodeId(0)).count()
}

/// A program that fills the best tier for the first time is sampled meanwhile; cold pages make
/// space for what it fills next.
#[test]
fn pages_faulted_once_the_best_tier_is_full_find_headroom() {
    let (w, journal) = fills_in_order(0.02);
    assert!(journal.text().contains("\"headroom\""), "{}", journal.text());
    let late = on_best(&w, COLD + HOT - 2_000..COLD + HOT);
    assert!(late > 2_000 * 2 / 3, "{late} of 2,000");
}

/// Pages that a sample missed and that were accessed since are not demoted.
#[test]
fn pages_accessed_since_bits_were_cleared_get_a_second_chance() {
    let (w, journal) = fills_in_order(60.0);
    assert!(journal.text().contains("\"headroom\""), "{}", journal.text());
    let (warm, cold) = (on_best(&w, 0..1_000), on_best(&w, 1_000..2_000));
    assert!(warm > 900 && cold < 500, "{warm} and {cold} of 1,000 stay");
}

/// A program that fills memory in order and then reads what it filled first gets it back on the
/// best tier soon, although headroom has spent the share.
#[test]
fn headroom_is_undone_where_the_demoted_pages_become_hot() {
    for (huge, share) in [(64, 0.003), (0, 0.01)] {
        let (fast_share, journal) = reads_after_filling(only(0..3_500), (huge, share));
        assert!(journal.text().contains("\"undo headroom\""), "{}", journal.text());
        assert!(fast_share > 0.9, "{fast_share} of the accesses go to the best tier");
    }
}

/// One that reads what it filled last keeps the space.
#[test]
fn headroom_is_kept_where_the_pages_in_its_place_are_hot() {
    let (fast_share, journal) = reads_after_filling(only(5_000..COLD + HOT), (64, 0.003));
    assert!(journal.text().contains("\"keep headroom\""), "{}", journal.text());
    // First touch would have put none of them there.
    assert!(fast_share > 0.5, "{fast_share} of the accesses go to the best tier");
}

/// One that reads all it filled alike gets back what was demoted where the share pays for that;
/// elsewhere all stays where it is until what was filled first is read alone.
#[test]
fn headroom_whose_sides_are_read_alike_is_undone_where_the_share_pays() {
    let alike = Nanos::millis(150);
    let rate = move |page: usize, since: Nanos| match page {
        _ if since < alike => 8.0,
        0..3_500 => 300.0,
        _ => 0.5,
    };
    for (huge, share, pays) in [(64, 0.003, false), (64, 0.1, true), (0, 0.01, true)] {
        let (fast_share, journal) = reads_after_filling(rate, (huge, share));
        let text = journal.text();
        let line = |name: &str| text.lines().find(|line| line.contains(name));
        assert_eq!(line("\"watch headroom\"").is_some(), !pays, "{share}");
        let (_, at) = line("\"undo headroom\"").unwrap().split_once("\"at_ns\":").unwrap();
        let at = Tick(at.split_once(',').unwrap().0.parse().unwrap());
        assert_eq!(at >= filled().after(alike), !pays, "{share}: {at:?}");
        assert!(fast_share > 0.9, "{fast_share}");
    }
}

/// A program grows by less than was demoted for it, and reads all alike: the best tier has space,
/// and the demoted pages lose more than the share. They come back all the same.
#[test]
fn losses_do_not_put_off_the_sample_that_ends_them() {
    let all = FAST as usize + 1_024;
    let begins = Tick(0).after(Nanos::millis(30));
    let reads = begins.after(Nanos::millis(140));
    for tracking_share in [0.005, 0.007, 0.01] {
        let access = move |_, now: Tick| read(if now < reads { 0.02 } else { 60.0 });
        let w = world(all, Box::new(access), 5);
        w.borrow_mut().untouched = Some((1_024, begins));
        w.borrow_mut().fault_interval = Nanos::micros(40);
        w.borrow_mut().end_at(Tick(20 * SECONDS));
        let trackers: Vec<Box<dyn Tracker>> =
            vec![Box::new(PageTracker::as_page_tables(w.clone()))];
        let config = Config { tracking_share, ..Config::default() };
        let target = WorldTarget::new(w.clone());
        let (mut engine, journal) = common::engine_with(&w, target, "terrace", trackers, config);
        engine.run(|report| {
            show(report);
            false
        });
        assert!(journal.text().contains("\"headroom\""), "{tracking_share}");
        let on_best = on_best(&w, 0..all);
        assert!(on_best > FAST as usize * 31 / 32, "{tracking_share}: {on_best}");
    }
}

/// These pages alone are read, 300 times a second.
fn only(hot: std::ops::Range<usize>) -> impl Fn(usize, Nanos) -> f64 + 'static {
    move |page, _| if hot.contains(&page) { 300.0 } else { 0.5 }
}

/// When a program of [`reads_after_filling`] has its last page.
fn filled() -> Tick {
    Tick(0).after(Nanos::millis(30)).after(Nanos(40_000 * (COLD + HOT - 1_024) as u64))
}

/// Fills memory in order, in huge pages of so many base pages (0: in base pages), managed for this
/// `tracking_share`, and then reads a page as often a second as `rate` says, by the time since, for
/// 0.3 s.
fn reads_after_filling(
    rate: impl Fn(usize, Nanos) -> f64 + 'static,
    (huge, tracking_share): (usize, f64),
) -> (f64, terrace_testkit::MemoryJournal) {
    let all = COLD + HOT;
    let filled = filled();
    let access = move |i: usize, now: Tick| match now >= filled {
        true => read(rate(i, now.since(filled))),
        false => read(0.5),
    };
    let w = world(all, Box::new(access), 5);
    w.borrow_mut().untouched = Some((1_024, Tick(0).after(Nanos::millis(30))));
    w.borrow_mut().fault_interval = Nanos::micros(40);
    w.borrow_mut().huge = huge;
    let trackers: Vec<Box<dyn Tracker>> = vec![Box::new(PageTracker::as_page_tables(w.clone()))];
    // What the share allows is less than undoing the demotions costs.
    let config = Config { tracking_share, ..Config::default() };
    let target = WorldTarget::new(w.clone());
    let (mut engine, journal) = common::engine_with(&w, target, "terrace", trackers, config);
    while w.borrow().now() < filled.after(Nanos::millis(300)) {
        show(&engine.run_step());
    }
    assert!(journal.text().contains("\"headroom\""), "{}", journal.text());
    let share = w.borrow().fast_share_now();
    (share, journal)
}

/// Samples at an interval's end, as page tables are read; and how long it was let wait for that.
struct Late {
    inner: PageTracker,
    world: Shared,
    begun: Tick,
    asked: Option<(Vec<Mapping>, SampleRequest)>,
    waits: Rc<RefCell<Vec<Nanos>>>,
}

impl Tracker for Late {
    fn info(&self) -> TrackerInfo {
        self.inner.info()
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        self.begun = self.world.borrow().now();
        self.asked = Some((mappings.to_vec(), ask.clone()));
        Ok(())
    }

    fn lead(&self) -> Nanos {
        Nanos::millis(2)
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        self.waits.borrow_mut().push(now.since(self.begun));
        let (mappings, ask) = self.asked.take().unwrap();
        self.inner.begin(&mappings, &ask)?;
        WorldClock(self.world.clone()).wait(self.lead());
        let now = self.world.borrow().now();
        self.inner.finish(now)
    }

    fn request(&mut self, request: &Request) -> Result<(), TrackError> {
        self.inner.request(request)
    }
}

/// The trackers; how long they were let wait before each sample comes to `waits`.
fn late(w: &Shared, waits: &Rc<RefCell<Vec<Nanos>>>) -> Vec<Box<dyn Tracker>> {
    let inner = PageTracker::new(w.clone());
    let waits = waits.clone();
    vec![Box::new(Late { inner, world: w.clone(), begun: Tick(0), asked: None, waits })]
}

/// What was waited for while memory was filled is not waited for again: the samples after it begin
/// at once.
#[test]
fn samples_begin_once_memory_is_filled() {
    let w = world_on(dcpmm(Bytes::mib(24), Bytes::gib(1)), COLD + HOT, skew(4_000.0, 80.0), 5);
    w.borrow_mut().untouched = Some((3_000, Tick(0).after(Nanos::millis(40))));
    let waits = Rc::default();
    let (mut engine, _) = engine(&w, "terrace", late(&w, &waits));
    let mut waited_for = false;
    while waits.borrow().is_empty() {
        let report = engine.run_step();
        show(&report);
        waited_for |= report.decisions.iter().any(|d| d.name == "wait");
        assert!(w.borrow().now() < Tick(SECONDS), "never sampled");
    }
    assert!(waited_for, "the target was never seen to fill its memory");
    assert_eq!(*waits.borrow(), [Nanos::ZERO]);
}

/// Where touches are spread evenly no sample books what came while the target was waited for: the
/// prescan that found so does.
#[test]
fn what_is_filled_while_it_is_waited_for_counts_as_managed() {
    let all = COLD + HOT;
    let w = world(all, Box::new(|_, _| read(200.0)), 31);
    w.borrow_mut().untouched = Some((3_000, Tick(u64::MAX)));
    let trackers: Vec<Box<dyn Tracker>> = vec![Box::new(PageTracker::as_page_tables(w.clone()))];
    let (mut engine, journal) = engine(&w, "terrace", trackers);
    let mut waited = false;
    let (summary, _) = engine.run(|report| {
        waited |= report.decisions.iter().any(|d| d.name == "wait");
        w.borrow_mut().untouched = (!waited).then_some((5_000, Tick(u64::MAX)));
        report.at >= Nanos::millis(500)
    });
    let text = journal.text();
    assert!(waited && text.contains("\"even\"") && !text.contains("\"sample\""), "{text}");
    assert_eq!(summary.managed_bytes, all as u64 * 4096);
}
