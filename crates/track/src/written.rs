//! A tier's write throughput from a counter.

use terrace_types::{BytesPerSec, Nanos, Tick};

/// No sooner again: each socket is interrupted for its counters, and quick scans are as little as
/// 10 ms apart.
const SHORTEST: Nanos = Nanos::millis(20);

/// A counter of bytes written, and what it said last.
pub struct TierWriteCounter {
    total: Box<dyn FnMut() -> Option<u64>>,
    last: Option<(Tick, u64)>,
    rate: Option<BytesPerSec>,
}

impl std::fmt::Debug for TierWriteCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written")
            .field("last", &self.last)
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

impl TierWriteCounter {
    /// `total` gives the bytes written so far, by everybody; none when it cannot be read.
    pub fn new(total: impl FnMut() -> Option<u64> + 'static) -> Self {
        Self { total: Box::new(total), last: None, rate: None }
    }

    /// Bytes a second since the last time it was asked; none at first, and where it cannot be read
    /// any more.
    pub fn rate(&mut self, now: Tick) -> Option<BytesPerSec> {
        if self.last.is_some_and(|(then, _)| now.since(then) < SHORTEST) {
            return self.rate;
        }
        let total = (self.total)();
        self.rate = self.last.zip(total).and_then(|((then, before), total)| {
            let written = total.checked_sub(before)?;
            Some(BytesPerSec((written as f64 / now.since(then).as_secs_f64()) as u64))
        });
        self.last = total.map(|total| (now, total));
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_time_since_the_last_one() {
        let mut counts =
            [Some(1_000), Some(3_000), Some(3_500), None, Some(9_000), Some(8_000)].into_iter();
        let mut written = TierWriteCounter::new(move || counts.next().flatten());
        let ms = |ms: u64| Tick(ms * 1_000_000);
        assert_eq!(written.rate(ms(0)), None, "nothing to compare with");
        assert_eq!(written.rate(ms(100)), Some(BytesPerSec(20_000)));
        assert_eq!(
            written.rate(Tick(119_500_000)),
            Some(BytesPerSec(20_000)),
            "too soon to ask again"
        );
        assert_eq!(written.rate(ms(200)), Some(BytesPerSec(5_000)));
        assert_eq!(written.rate(ms(300)), None, "not read");
        assert_eq!(written.rate(ms(400)), None, "nothing to compare with again");
        assert_eq!(written.rate(ms(500)), None, "a counter that went back says nothing");
    }
}
