//! The constants that steer the engine, in one place.
//!
//! What half and double of each do to programs' times is measured by `make ablation`
//! (`crates/sim/examples/ablation.rs`), which is what sets them. None needs to be set by hand.

use terrace_types::Nanos;

terrace_policy::tuning! {
    /// Values, each with its unit and its reason.
    pub struct EngineTuning:
    /// Idle intervals grow to this: how late new pages on a worse tier may be noticed.
    idle_longest: Nanos = Nanos::millis(100);
    /// Warm-up: between two readings of free memory while the target fills its own.
    warm_up_pause: Nanos = Nanos::millis(10);
    /// The same at first where the target had settled before: what it adds is used soon.
    warm_up_first: Nanos = Nanos::millis(2);
    /// Longest warm-up: other programs may come and go all the time.
    warm_up_longest: Nanos = Nanos::secs(1);
    /// Memory stands still when less than this part of a tier came or went.
    still_part: u64 = 512;
    /// A program fills its memory while at least this part of its time goes into first touches, by
    /// what entering the kernel for each costs (zeroing takes two to four times as long as that
    /// again). One that spends less does something else, and allocates meanwhile. No measured
    /// reason.
    filling_part: u64 = 16;
    /// Between two questions how much memory the target has.
    growth_pause: Nanos = Nanos::millis(5);
    /// Or so many times what a question costs: half a per cent of a core.
    growth_cost: u64 = 200;
    /// What a sample of all pages is taken to cost for each page, before any was made. A sample of
    /// 41,000 pages costs 12 to 21 ms with its decision in the lab.
    sample_page_cost: Nanos = Nanos(400);
    /// Pages are located anew where more than this part of them is touched and was not there.
    new_part: u64 = 64;
    /// And more pages than this.
    new_fewest: u64 = 64;
    /// Prescan: CPU time for each page. Clearing twice, 21 ns each, and reading a few times, 6 ns
    /// (measured in the lab).
    prescan_page: Nanos = Nanos(60);
    /// The first prescan is made when it is this part of the time that passed: while most of a
    /// program's accesses may be slow ones, each millisecond counts.
    prescan_share: u64 = 5;
    /// Where pages are touched evenly, the next follows after so many times as long: a fortieth of
    /// the time.
    prescan_longer: u64 = 8;
    /// Interval of the full sample after a prescan: eight first samples in three quarters of it.
    prescan_sample: Nanos = Nanos::millis(22);
    /// A full sample, some ten times as dear, is made after so long in any case; where memory is
    /// swept, after `prescan_longer` times as long.
    prescan_longest: Nanos = Nanos::secs(1);
    /// Longest pause between prescans where memory is swept, unless they cost more than a fortieth
    /// of it: something else may begin. No measured reason.
    prescan_swept: Nanos = Nanos::millis(500);
    /// Quick scans are not made rarer where pages were moved, as far as their share allows.
    quick_scan_rarest: Nanos = Nanos::millis(250);
    /// Nor closer together.
    quick_scan_shortest: Nanos = Nanos::millis(50);
    /// A surprise is confirmed by another quick scan after so long: any one may fall on pages that
    /// a program that goes through its memory in order did not touch lately.
    quick_scan_confirm: Nanos = Nanos::millis(10);
    /// Heat came: more pages of the worse tiers were touched than this factor times those foreseen.
    shift_came: f64 = 1.3;
    /// Heat went: fewer pages of all were touched than this part of those foreseen.
    shift_went: f64 = 0.5;
    /// Each by more than so many standard deviations of a count.
    shift_deviations: f64 = 4.0;
    /// And by more than so many pages.
    shift_pages: f64 = 32.0;
    /// Taken for usual at most before it is known how far off forecasts usually are.
    shift_first: f64 = 1.75;
    /// Share of one sample in what is usual.
    shift_share: f64 = 0.25;
    /// Where more than this part of a program's pages was promoted at once, rates that were known
    /// count for little: it goes on at another pace.
    pace_part: u64 = 16;
    /// A measured gain is taken to have lasted since the last time, and no longer than this.
    gain_lasts: Nanos = Nanos::secs(1);
    /// Least share of what new pages could cost that they are taken to, so that it can grow again.
    /// No measured reason.
    new_least_share: f64 = 0.01;
    /// A spot check samples one in so many of the blocks with displaced pages. No measured reason.
    asked_blocks: usize = 4;
    /// It samples one of so many parts of such a block: the cost of clearing accessed bits grows
    /// with the pages sampled. No measured reason.
    asked_part: u64 = 8;
    /// Undoing demotions for headroom may cost so many times what the share allows in its averaging
    /// time, which all demotions in that time cost at most: an exchange is two moves, in calls so
    /// small that each is half as dear again (20.5 ms for 5,638 pages, after 47.3 ms for 18,816
    /// demoted; `scan`, simulated).
    undo_cost: u64 = 3;
    /// Headroom pays if the pages that came since are touched so many times as often as the demoted
    /// ones, by which the policy chose them (`TerraceTuning::headroom_colder`), and is undone if
    /// these are touched so many times as often as those.
    check_colder: f64 = 2.0;
    /// Blocks found touched before that is judged. No measured reason.
    check_fewest_touched: u64 = 24;
    /// And blocks sampled of each side. No measured reason.
    check_fewest_blocks: u64 = 16;
    /// Demoted huge pages, or runs of base pages, that one sample includes, beside some hundred
    /// blocks of all pages: half of a best tier of 128 MiB in runs of 64 base pages. The more, the
    /// sooner is it seen that demoting them did not pay.
    check_pages: usize = 256;
    /// Pages that must have moved before their cost is known: a full batch.
    move_cost_pages: u64 = 512;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_scaled_by_its_name() {
        let usual = EngineTuning::default();
        for name in EngineTuning::NAMES {
            let mut tuning = usual;
            assert!(tuning.scale(name, 2.0) && tuning != usual, "{name}");
            assert!(tuning.scale(name, 0.5) && tuning == usual, "{name}");
        }
        assert!(!EngineTuning::default().scale("unknown", 2.0));
    }
}
