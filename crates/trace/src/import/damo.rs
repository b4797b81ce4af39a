//! damo's raw text of a DAMON record: snapshots with begin and end of monitoring, and in each the
//! regions with the number of samples that found them accessed. A sample is one access here, to a
//! page of the region; the pages of a region take turns, since which of them it was is not known.

use super::{hex, ImportedLine, Importer};
use crate::error::TraceError;
use crate::event::{Access, TraceClock, TraceHeader};
use crate::write::TraceWriter;
use std::collections::HashMap;
use std::io::Write;

const PAGE: u64 = 4096;
/// More samples of a region in one snapshot are not believed.
const MAX_SAMPLES: u64 = 100_000;
/// More targets are not believed: a record has one for each process.
const MAX_TARGETS: usize = 4 << 20;

/// The snapshot being read.
#[derive(Debug, Default)]
pub struct Damo {
    time: u64,
    target: u64,
    targets: HashMap<u64, u32>,
    turn: u64,
    /// Which of the numbers behind a region is `nr_accesses`, as the last title says.
    column: usize,
}

impl<W: Write> Importer<W> for Damo {
    fn line(
        &mut self,
        writer: &mut TraceWriter<W>,
        line: &str,
    ) -> Result<ImportedLine, TraceError> {
        let line = line.trim();
        if let Some(title) = line.strip_prefix('#') {
            self.column = column(title).unwrap_or(self.column);
            return Ok(ImportedLine::Remark);
        }
        if let Some((start, end, samples)) = region(line, self.column) {
            return self.region(writer, start, end, samples);
        }
        let Some((key, value)) = line.split_once(':') else { return Ok(ImportedLine::Unknown) };
        let value = value.trim();
        let known = match key.trim() {
            // Regions tell of the time up to the end, which comes before them.
            "monitoring_end" => span(value).map(|time| self.time = time).is_some(),
            "target_id" => value.parse().map(|target| self.target = target).is_ok(),
            "base_time_absolute"
            | "data source"
            | "monitoring_start"
            | "monitoring_duration"
            | "nr_regions"
            | "intervals" => true,
            _ => false,
        };
        Ok(if known { ImportedLine::Remark } else { ImportedLine::Unknown })
    }

    fn header(&self) -> TraceHeader {
        TraceHeader {
            source: "damo".into(),
            clock: TraceClock::Nanoseconds,
            ns_per_tick: 1.0,
            period: 0,
            sampled: true,
            notes: vec![
                "each access is one sample of DAMON that found a region accessed, on some page of \
                 the region"
                    .into(),
                "whether it was a load or a store is not known; all are given as loads of a page"
                    .into(),
            ],
            ..TraceHeader::default()
        }
    }
}

impl Damo {
    fn region<W: Write>(
        &mut self,
        writer: &mut TraceWriter<W>,
        start: u64,
        end: u64,
        samples: u64,
    ) -> Result<ImportedLine, TraceError> {
        let next = self.targets.len();
        if next >= MAX_TARGETS && !self.targets.contains_key(&self.target) {
            return Ok(ImportedLine::Unknown);
        }
        let process = *self.targets.entry(self.target).or_insert(next as u32);
        let pages = (end - start).div_ceil(PAGE).max(1);
        for _ in 0..samples {
            let address = start + self.turn % pages * PAGE;
            self.turn = self.turn.wrapping_add(1);
            let access = Access { address, size: PAGE as u32, ..Access::default() };
            writer.access_at(process, process, &access, self.time)?;
        }
        Ok(ImportedLine::Record(samples))
    }
}

/// Which number behind a region's length is `nr_accesses`, by the title above the regions:
/// `start_addr end_addr length nr_accesses age`.
fn column(title: &str) -> Option<usize> {
    let names = title.split_whitespace().skip_while(|name| *name != "length").skip(1);
    names.into_iter().position(|name| name == "nr_accesses")
}

/// `START-END (LENGTH): NUMBER [NUMBER ...]`, with or without the colon; the number in `column` is
/// how many samples found it accessed. Older versions of damo write the colon and no title.
fn region(line: &str, column: usize) -> Option<(u64, u64, u64)> {
    let (range, rest) = line.split_once(|c: char| c.is_whitespace() || c == '(' || c == ':')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let numbers = rest.rsplit_once([')', ':']).map_or(rest, |(_, numbers)| numbers);
    let samples = numbers.split_whitespace().nth(column)?.replace(',', "").parse::<u64>().ok()?;
    (start < end && samples <= MAX_SAMPLES).then_some((start, end, samples))
}

/// A time such as `104.599 ms`, `8 m 59.809 s` or a bare number of nanoseconds.
fn span(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if let [number] = words[..] {
        return number.replace(',', "").parse().ok();
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
            "d" => 86_400e9,
            _ => return None,
        };
        total +=
            number.replace(',', "").parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0)?
                * scale;
    }
    (!words.is_empty()).then_some(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_and_times_are_read() {
        assert_eq!(
            region("563ebaa00000-563ebc99e000(  31.617 MiB):\t7", 0),
            Some((0x563e_baa0_0000, 0x563e_bc99_e000, 7))
        );
        assert_eq!(region("1000-3000 (8.000 KiB): 2 15", 0), Some((0x1000, 0x3000, 2)));
        assert_eq!(
            region("555500000000-555500400000 (   4.000 MiB)           3     9", 0),
            Some((0x5555_0000_0000, 0x5555_0040_0000, 3))
        );
        assert_eq!(region("1000-3000 ( 8.000 KiB)  15  2", 1), Some((0x1000, 0x3000, 2)));
        assert_eq!(region("1000-3000 ( 8.000 KiB)  15", 1), None);
        assert_eq!(region("3000-1000 (8.000 KiB): 2", 0), None);
        assert_eq!(region("nothing", 0), None);
        assert_eq!(span("104.599 ms"), Some(104_599_000));
        assert_eq!(span("8 m 59.5 s"), Some(539_500_000_000));
        assert_eq!(span("12345"), Some(12_345));
        assert_eq!(span("105,000,000 ns"), Some(105_000_000));
        assert_eq!(span("12 parsecs"), None);
        assert_eq!(span(""), None);
    }

    #[test]
    fn the_title_names_the_column() {
        assert_eq!(column(" start_addr     end_addr        length  nr_accesses   age"), Some(0));
        assert_eq!(column(" start_addr end_addr length age nr_accesses"), Some(1));
        assert_eq!(column(" something else"), None);
    }
}
