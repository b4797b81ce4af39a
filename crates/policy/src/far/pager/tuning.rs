//! The constants that steer the pager, in one place.

crate::tuning! {
    /// Values, each with its unit and its reason, where one was measured. `make ablation` prints
    /// what half and double of each do to simulated programs.
    pub struct PagerTuning:
    /// Faults over which a majority stride is first looked for: Leap's H_size / N_split (Al Maruf
    /// and Chowdhury, USENIX ATC 2020, section 4.1).
    first_window: usize = 8;
    /// Access streams followed for each thread.
    streams: usize = 12;
    /// Steps of a stream's window from which on what it fetches is mapped at once.
    trusted_window: u64 = 16;
    /// A second fault within so many pages of a lone one begins a stream.
    near_pages: i64 = 32;
    /// How many times as many chunks a stream by strides may span as one page by page. Victims are
    /// chunks: with six, what was fetched first of `stride-read` went before it was used, and half
    /// as much again was read; with one, the same took a third longer on a file (ADR 177).
    span: u64 = 4;
    /// Bytes read around a lone miss: what a disk reads in less than twice the time of a page.
    around_bytes: u64 = 64 << 10;
    /// Streams remembered that could not be given all they want.
    stalled: usize = 32;
    /// Neighbours of lone misses observed at a time, and pages that went, of each.
    observed: usize = 64;
    /// Of so many lone misses one leaves a neighbour out while neighbours are fetched.
    left_out_each: u64 = 8;
    /// Of so many lone misses one watches a neighbour while none is fetched.
    watched_each: u64 = 2;
    /// Of so many chunks that go one has a page observed.
    gone_each: u64 = 4;
    /// Misses a whole time of observing from which on neighbours are fetched: three eighths are
    /// missed within one, 1 - exp(-0.47).
    around_rate: f64 = 0.47;
    /// How much sooner than what went for them they are missed, where they are fetched: sorted
    /// lines 6 to 12 times, a graph being built 0.5 to 1.
    around_sooner: f64 = 2.0;
    /// As many misses, or whole times of observing, are remembered; then both count half.
    around_memory: f64 = 32.0;
    /// Times that the clock's hand passes over a chunk, at most.
    credit: u8 = 3;
    /// Trials begun at a time: whoever waits for a page waits for them too.
    trials_at_once: usize = 2;
    /// Trials for each eviction. Four saved no more misses than one, and cost a quarter of the time
    /// where all of main is in use.
    trials_each: usize = 1;
    /// One part in so many of the frames writes may have: a third keeps a device busy, and more
    /// would make reads wait behind them.
    write_part: usize = 3;
    /// From which share of hits on pages written before are mapped for writing, in 65,536ths.
    rewrite_share: i32 = 1 << 15;
    /// One such page in so many is observed meanwhile.
    rewrite_observed: u64 = 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_scaled_by_its_name() {
        for name in PagerTuning::NAMES {
            let mut tuning = PagerTuning::USUAL;
            assert!(tuning.scale(name, 2.0) && tuning != PagerTuning::USUAL, "{name}");
            assert!(tuning.scale(name, 0.5) && tuning == PagerTuning::USUAL, "{name}");
        }
        assert!(!PagerTuning::default().scale("unknown", 2.0));
    }
}
