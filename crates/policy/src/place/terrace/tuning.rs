//! The constants that steer `terrace`, in one place: what [`super::Params`] lets a user set is
//! apart. Sizes of tables and of blocks are where they are used.

use terrace_types::Nanos;

crate::tuning! {
    /// Values, each with its unit and its reason, where one was measured. `make ablation` prints
    /// what half and double of each do to simulated programs. None needs to be set by hand.
    pub struct TerraceTuning:
    /// Nanoseconds taken for the latency gained where the machine tells none.
    unknown_gap_ns: f64 = 100.0;
    /// Writes worth so many times as much as reads are distinguished.
    writes_matter: f64 = 1.1;
    /// Nanoseconds. A plan that saves less over its horizon is not worth a step: chance alone
    /// brings such.
    least_profit: f64 = 2e6;
    /// Nor is one that saves less than this share of what the worse side costs, where every page is
    /// sampled.
    least_share_by_page: f64 = 0.03;
    /// The same where pages are known by samples of regions: what chance gives one region it gives
    /// all its pages. (Even heat of 150 writes a second a page, stock trackers: with 0.03 for both
    /// 540 pages moved in 15 s, mean of six seeds.)
    least_share_by_region: f64 = 0.04;
    /// Base pages that are moved at once at least where what pays costs more than may be spent:
    /// fewer are not worth a call.
    fewest_promoted: u64 = 256;
    /// Where accesses are counted by sampling: samples that nothing is moved on less of. How long
    /// was sampled says nothing there, since one in so many accesses for a second is a few
    /// milliseconds of all.
    least_samples: f64 = 1024.0;
    /// Where every page is sampled: accesses a page that are enough as well, however short the
    /// time, to move what is worth it by then. A core with ten misses in flight makes as many in a
    /// millisecond as one with two in five, and each sample costs it as much.
    moves_a_page: f64 = 2.0;
    /// And to believe that nothing is worth moving: what is hot shows sooner than that nothing is.
    rests_a_page: f64 = 4.0;
    /// Samples of all pages, one after the other, that are enough to move something however short
    /// they were: heat that two of them show was not only passing (ADR 0358), and chance is
    /// computed with apart.
    looks_to_move: u32 = 2;
    /// And to believe that nothing is worth moving: twice as many, as accesses a page are.
    looks_to_rest: u32 = 4;
    /// Fewest base pages of a block by which chance is told from difference: the variance of 32 is
    /// known within a quarter. No measured reason.
    alike_fewest: u32 = 32;
    /// Standard deviations by which the variance of a block's pages may exceed what chance makes of
    /// it: one block of alike pages in some hundreds is then rated page by page.
    alike_deviations: f64 = 3.0;
    /// Between two steps on a machine whose nodes are alike: where pages are need not be asked
    /// again and again, and who attached for some seconds wants them kept.
    idle_wait: Nanos = Nanos::secs(1);
    /// What the worse side may cost without being worth a closer sample, nanoseconds a second:
    /// samples cost as much.
    little_ns_per_s: f64 = 1e7;
    /// How many times as much exchanges must repay where regions are sampled: gains are not
    /// measured there, and nothing bounds what they may lose.
    unmeasured: f64 = 2.5;
    /// Steps without a move after which heat counts as settled. Each costs a sample of every page
    /// while the program runs: on `skew,accesses=64M` in the lab eight instead of three took
    /// 1.808 s, not 1.752 s, and moved no more.
    steady_after: u32 = 3;
    /// The same where every page is sampled: one such step says as much as several of samples.
    steady_after_by_page: u32 = 1;
    /// Steps in a row that wait for a target to fill its memory: one that grows for minutes is
    /// managed all the same.
    max_waits: u32 = 3;
    /// Part of its pages that a target must have got since the last step to count as filling its
    /// memory: what is hot now says little then. No measured reason.
    growth_part: u64 = 64;
    /// Heat has shifted where the worse tiers' traffic is more than so many times what it usually
    /// is. No measured reason.
    shift_traffic: f64 = 1.2;
    /// Share of one step in what is usual traffic. No measured reason.
    traffic_share: f64 = 0.2;
    /// Part of an interval after which it is tried again where too little is known, or the target
    /// is waited for, or more would pay than may be spent. No measured reason.
    retry_part: u64 = 4;
    /// Part of the pages that the tiers below the best hold, to be worth a sample. No measured
    /// reason.
    below_part: u64 = 512;
    /// Shortest time that a gain is counted on for, seconds. No measured reason.
    shortest_horizon: f64 = 0.2;
    /// Longest such time where regions are sampled: chance alone makes some seem worth moving, the
    /// more so the longer that is counted on.
    longest_horizon_by_region: Nanos = Nanos::secs(20);
    /// Of what has lasted no end is seen beyond so long; no gain is counted on for longer.
    longest_lifetime: Nanos = Nanos::secs(60);
    /// Part of the time that heat stays after which a settled program is sampled again, where every
    /// page is seen and nothing was ever worth moving: full samples have little to refine.
    rests_unmoved: u64 = 2;
    /// The same where something was moved: the engine's quick scans notice shifts in between.
    rests_by_page: u64 = 4;
    /// The same where regions are sampled: nothing else notices shifts.
    rests_by_region: u64 = 16;
    /// Part of an interval that is sampled at once after a step without a move, where every page is
    /// seen and heat has not settled. No measured reason.
    unsettled_part: u64 = 2;

    /// A page is demoted for newly faulted pages only if the mean page of the best tier is worth so
    /// many times as much. No measured reason.
    headroom_colder: f64 = 2.0;

    /// A sample of all pages, with the decision after it, costs what moving this part of them both
    /// ways does: 0.4 us a page sampled, 4.6 us a pair moved (`lab-cxl`).
    sample_cost_divisor: u64 = 16;
    /// Pages of a batch of promotions that are found afterwards.
    found_samples: usize = 64;
    /// Trust in predictions is multiplied by so much after one that came true, and
    /// divided by it after one that did not. No measured reason.
    trust_step: f64 = 2.0;
    /// Batches of promotions remembered.
    trust_batches: usize = 16;
    /// By then the heat map shows what became of a batch.
    trust_first_age: Nanos = Nanos::millis(400);
    /// A batch is alive while it is worth this share of what it was. No measured reason.
    trust_alive: f64 = 0.5;
    /// Least share of a predicted gain that is counted on. No measured reason.
    trust_least: f64 = 1.0 / 16.0;
    /// Seconds. Trust that was lost comes back twofold in so long: a policy that moves nothing
    /// learns nothing.
    trust_recovers: f64 = 1.0;
    /// Share that is counted on at least where heat has shifted: earlier predictions say little of
    /// those to come.
    trust_after_shift: f64 = 0.5;

    /// Pages that neighbours are compared over, in blocks of so many.
    noise_block: usize = 64;
    /// Pages of all blocks compared, at least: a sample is enough for a median.
    noise_pages: usize = 8192;
    /// Least share of counting's spread that chance is taken to have: samples that saturate hide
    /// chance.
    noise_least: f64 = 0.5;
    /// Fewer pages compared, by neighbours or in a probe, say nothing.
    few_compared: usize = 32;
    /// How many times as much is doubted where pages are known by samples of regions.
    shared_chance: f64 = 1.3;
    /// Share of an exchange's gain that may be given up so that its victims are pages that lie
    /// together.
    victims_alike: f64 = 0.05;
    /// How far an estimate may be from the truth, in standard deviations.
    shrink_reach: f64 = 5.0;
    /// Rounds of expectation and maximisation. Fewer leave what is alike spread out, and what
    /// differs closer together than it is; both err towards moving less.
    shrink_rounds: usize = 60;
    /// Blocks of 64 pages that tell what displaced pages save between samples of all pages. No
    /// measured reason.
    gain_blocks: usize = 64;

    /// Ranges in a probe.
    probe_ranges: u64 = 16;
    /// Base pages in each range of a probe.
    probe_pages: u64 = 128;
    /// Intervals that a probe runs for.
    probe_intervals: u32 = 2;
    /// Idle intervals after which sampling everything ends.
    probe_patience: u32 = 4;
    /// Evidence that a probe is taken to give at most, seconds.
    probe_evidence: f64 = 0.05;
    /// Time until the next probe after heat was found even for the first time.
    probe_first_pause: Nanos = Nanos::secs(2);
    /// And so many times as long from probe to probe. No measured reason.
    probe_longer: u64 = 2;
    /// Time until the next probe at most.
    probe_longest_pause: Nanos = Nanos::secs(120);
    /// Pages of a probe are compared by two of their values, chance taken out. This share of them
    /// exceeds the higher one. No measured reason.
    probe_hot: f64 = 0.02;
    /// This share of them does not reach the lower one. No measured reason.
    probe_cold: f64 = 0.25;
    /// Pages differ where the higher value is more than so many times the lower one. No measured
    /// reason.
    probe_ratio: f64 = 1.5;

    /// Base pages observed for each run of a part of an exchange: 24 bytes a run, held twice (by
    /// the plan, and by what became of it), are two bytes a page, of which a sample took one and
    /// has given it back by then.
    pages_a_run: u64 = 24;
    /// Runs that a part may have in any case.
    least_runs: u64 = 256;
    /// Part of its runs that a part must have left for another round: few make small calls.
    runs_left_part: usize = 4;
    /// Base pages demoted in a row, at most, before as many are promoted: 16 MiB of 4 KiB pages.
    /// Small calls of `move_pages` are dear, for each waits until all CPUs have emptied their lists
    /// of pages: in the lab an exchange of 20,800 pages took 92 ms in 56 calls, 64 ms in 42 and
    /// 66 ms in 17. The mover cuts large ones by time.
    chunk: u64 = 4096;
    /// No more than this part of an exchange that may be ended by what it costs, as long as that is
    /// no less than [`Self::small_chunk`].
    chunk_part: u64 = 4;
    /// Base pages that fill a call.
    small_chunk: u64 = 512;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_scaled_by_its_name() {
        for name in TerraceTuning::NAMES {
            let mut tuning = TerraceTuning::USUAL;
            assert!(tuning.scale(name, 2.0) && tuning != TerraceTuning::USUAL, "{name}");
            assert!(tuning.scale(name, 0.5) && tuning == TerraceTuning::USUAL, "{name}");
        }
        assert!(!TerraceTuning::default().scale("unknown", 2.0));
    }
}
