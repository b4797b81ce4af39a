//! damo's raw text of a DAMON record: snapshots with begin and end of monitoring, and in each the
//! regions with the number of looks that found them accessed. A look is one access here, to a page
//! of the region; the pages of a region take turns, since which of them it was is not known.

use super::{hex, Importer, Line};
use crate::error::TraceError;
use crate::event::{Access, Clock, Header};
use crate::write::TraceWriter;
use std::collections::HashMap;
use std::io::Write;

const PAGE: u64 = 4096;
/// More looks at a region in one snapshot are not believed.
const MOST_LOOKS: u64 = 100_000;

pub fn header() -> Header {
    Header {
        source: "damo".into(),
        clock: Clock::Nanoseconds,
        ns_per_tick: 1.0,
        period: 0,
        notes: vec![
            "each access is one look of DAMON that found a region accessed, on some page of the region".into(),
            "whether it was a load or a store is not known; all are given as loads of a page".into(),
        ],
        ..Header::default()
    }
}

/// The snapshot being read.
#[derive(Debug, Default)]
pub struct Damo {
    time: u64,
    target: u64,
    targets: HashMap<u64, u32>,
    turn: u64,
}

impl<W: Write> Importer<W> for Damo {
    fn line(&mut self, writer: &mut TraceWriter<W>, line: &str) -> Result<Line, TraceError> {
        let line = line.trim();
        if let Some((key, value)) = line.split_once(':').filter(|(key, _)| !key.contains('-')) {
            let value = value.trim();
            match key.trim() {
                // Regions tell of the time up to the end, which comes before them.
                "monitoring_end" => self.time = span(value).unwrap_or(self.time),
                "target_id" => self.target = value.parse().unwrap_or(self.target),
                "base_time_absolute"
                | "monitoring_start"
                | "monitoring_duration"
                | "nr_regions"
                | "intervals" => {}
                _ => return Ok(Line::Unknown),
            }
            return Ok(Line::Known(0));
        }
        let Some((start, end, looks)) = region(line) else { return Ok(Line::Unknown) };
        let next = self.targets.len() as u32;
        let process = *self.targets.entry(self.target).or_insert(next);
        let pages = (end - start).div_ceil(PAGE).max(1);
        for _ in 0..looks {
            let address = start + self.turn % pages * PAGE;
            self.turn = self.turn.wrapping_add(1);
            let access = Access { address, size: PAGE as u32, ..Access::default() };
            writer.access_at(process, process, &access, self.time)?;
        }
        Ok(Line::Known(looks))
    }
}

/// `START-END (SIZE): LOOKS [AGE]`.
fn region(line: &str) -> Option<(u64, u64, u64)> {
    let (range, rest) = line.split_once(|c: char| c.is_whitespace() || c == '(' || c == ':')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let counts = rest.rsplit_once(':').map_or(rest, |(_, counts)| counts);
    let looks = counts.split_whitespace().next()?.parse::<u64>().ok()?;
    (start < end && looks <= MOST_LOOKS).then_some((start, end, looks))
}

/// A time such as `104.599 ms`, `8 m 59.809 s` or a bare number of nanoseconds.
fn span(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if let [number] = words[..] {
        return number.parse().ok();
    }
    let mut total = 0.0;
    for pair in words.chunks(2) {
        let [number, unit] = pair else { return None };
        let scale = match *unit {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total +=
            number.replace(',', "").parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0)?
                * scale;
    }
    Some(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_and_times_are_read() {
        assert_eq!(
            region("563ebaa00000-563ebc99e000(  31.617 MiB):\t7"),
            Some((0x563e_baa0_0000, 0x563e_bc99_e000, 7))
        );
        assert_eq!(region("1000-3000 (8.000 KiB): 2 15"), Some((0x1000, 0x3000, 2)));
        assert_eq!(region("3000-1000 (8.000 KiB): 2"), None);
        assert_eq!(region("nothing"), None);
        assert_eq!(span("104.599 ms"), Some(104_599_000));
        assert_eq!(span("8 m 59.5 s"), Some(539_500_000_000));
        assert_eq!(span("12345"), Some(12_345));
        assert_eq!(span("12 parsecs"), None);
    }
}
