//! The constants that steer the heat map, in one place. Sizes of tables and the precision in which
//! rates and spans are kept are where they are used.

crate::tuning! {
    /// Values, each with its unit and its reason, where one was measured. `make ablation` prints
    /// what half and double of each do to simulated programs. None needs to be set by hand.
    pub struct HeatTuning:
    /// Standard deviations, squared, off what was expected from which samples of a page are a
    /// change of its rate, and not chance.
    surprise: f32 = 10.0;
    /// Part of the evidence behind a page's rate that is left after such a change.
    after_surprise: f32 = 0.05;
    /// Part of the evidence from samples of a region that is left for one page of it, once that
    /// page is sampled itself.
    first_exact: f32 = 0.05;
    /// Accesses expected in a sample up to which finding none is no surprise, so that the new rate
    /// is a division. Most pages are such.
    few_expected: f32 = 2.0;
    /// Accesses that samples which found none leave space for: so many are missed one time in
    /// twenty. A page is not written more often than that above its sampled accesses.
    write_margin: f32 = 3.0;
    /// Writes expected in an interval from which the dirty bit is a lower bound of them.
    write_saturated: f32 = 2.0;
    /// Writes in an interval taken for certain where the bit is such a bound. Of further accesses
    /// half are taken for writes.
    write_certain: f32 = 4.0;
    /// A region's rate changed where a sample of it gives so many times the old rate, or less than
    /// one part in so many. No measured reason.
    region_change: f32 = 4.0;
    /// Part of the evidence that is left then. No measured reason.
    region_keeps: f32 = 0.25;
    /// Steps of a span by which evidence fades where heat has shifted: four octaves, so that a
    /// sixteenth is left and the next samples say what is hot.
    shift_steps: u8 = 4 * super::span::LogDuration::STEPS_AN_OCTAVE;
    /// Accesses a sample below which a page is thought to be touched seldom. Samples are as long as
    /// leaves most pages untouched, so that this lies well above the many: were it among them,
    /// those of them thought to be touched seldom would be the underrated ones, and be touched more
    /// often than foreseen.
    seldom: f32 = 0.4;
    /// Times the average of its region that a dirty page's rate may be.
    dirty_most: f32 = 16.0;
    /// Part of a region's accesses that is spread evenly over its pages, whatever dirty bits say.
    dirty_even: f32 = 0.1;
    /// Share of dirty samples below which accesses of a region are spread evenly.
    dirty_least: f32 = 0.005;
    /// Times that chance is counted where dirty bits differ: the spread that it was estimated with
    /// is itself by chance.
    dirty_caution: f32 = 1.5;
    /// Part of what earlier bursts showed of sweeps that still counts.
    sweep_kept: f32 = 0.5;
    /// Squared differences that chance must explain before anything is said of sweeps.
    sweep_least: f32 = 64.0;
}
