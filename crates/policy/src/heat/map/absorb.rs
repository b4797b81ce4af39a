//! What trackers found, merged into the map.

use super::*;

impl HeatMap {
    pub(super) fn absorb_one(&mut self, seen: &RangeObservation, first_exact: bool) -> u64 {
        let exact = seen.exact() && !seen.range.is_empty();
        let weight = if exact { 1.0 } else { self.params.region_weight };
        let interval = seen.interval.as_secs_f64() as f32;
        let Some(samples) = SampleHits::new(seen.hits, seen.sample_count, interval, weight) else {
            return 0;
        };
        if seen.writes_only {
            self.write_interval = interval;
        } else {
            (self.sample_interval, self.sample_count) = (interval, seen.sample_count);
        }
        let known = if exact { self.params.known_sample_count } else { self.params.known_samples };
        let prior = if first_exact { self.params.tuning.first_exact } else { 1.0 };
        self.each_part(
            seen.pid,
            seen.range,
            weight * interval * known,
            prior,
            seen.writes_only,
            |round, part, at| {
                let dirty = exact && samples.hits > 0.0;
                match (seen.writes_only, exact) {
                    (true, _) => round.writes(&samples, part, at, dirty),
                    (false, true) => round.accesses(&samples, part.0, part.1, at),
                    (false, false) => round.sampled(&samples, part.0, part.1, at),
                }
            },
        )
    }

    pub(super) fn absorb_writes(
        &mut self,
        of: &PageWrites,
        sampled_ranges: &[(Pid, VpnRange)],
    ) -> u64 {
        let interval = of.interval.as_secs_f64() as f32;
        let samples = |reported: &PageEvidence| {
            SampleHits::estimated(reported.per_second, reported.over.as_secs_f64() as f32, interval)
        };
        let table: Vec<(Option<SampleHits>, bool)> =
            of.reported.iter().map(|reported| (samples(reported), reported.dirty)).collect();
        if !table.iter().any(|(samples, _)| samples.is_some()) {
            return 0;
        }
        self.write_interval = interval;
        let enough = interval * self.params.known_sample_count;
        let mut updated = 0;
        for (range, sampled_ranges) in parts(sampled_ranges, of.pid, of.range()) {
            self.each_part(of.pid, range, enough, 1.0, true, |round, pages, start| {
                let from = (start.0 - of.start.0) as usize;
                let found = &of.found[from..from + pages.0.len()];
                updated += round.page_writes(&table, found, pages, start, sampled_ranges);
            });
        }
        updated
    }

    pub(super) fn merge_samples(
        &mut self,
        seen: &PageSamples,
        before: &[(Pid, VpnRange)],
        now: Tick,
    ) -> u64 {
        let interval = seen.seconds();
        let by_hits = |hits: u8| {
            SampleHits::new(u16::from(hits), u16::from(seen.sample_count), interval, 1.0)
        };
        let table: Vec<SampleHits> = (0..=seen.sample_count).filter_map(by_hits).collect();
        if table.is_empty() {
            return 0;
        }
        let enough = interval * self.params.known_sample_count;
        self.exact.note(seen.pid, seen.range(), now);
        let mut updated = 0;
        // Parts seen by samples only so far start over; the rest goes on.
        for (range, known) in parts(before, seen.pid, seen.range()) {
            let prior = if known { 1.0 } else { self.params.tuning.first_exact };
            updated += self.each_part(
                seen.pid,
                range,
                enough,
                prior,
                false,
                |round, (pages, evidence), start| {
                    let from = (start.0 - seen.start.0) as usize;
                    let hits = &seen.hits[from..from + pages.len()];
                    round.samples(&table, hits, pages, evidence, start);
                },
            );
        }
        updated
    }

    /// Calls `apply` for the part of each area that lies in `range`; returns the number of pages
    /// updated.
    pub(super) fn each_part(
        &mut self,
        pid: Pid,
        range: VpnRange,
        enough: f32,
        prior: f32,
        writes_only: bool,
        mut apply: impl FnMut(&SampleRound<'_>, EvidencePages<'_>, Vpn),
    ) -> u64 {
        let round = SampleRound {
            curve: &self.curve,
            tuning: &self.params.tuning,
            write_interval: self.write_interval,
            enough,
            needs_access: self.needs_access,
            prior,
            salt: u64::from(self.rounds) << 32 | u64::from(writes_only),
        };
        let first = self.areas.partition_point(|a| (a.pid, a.range().end) <= (pid, range.start));
        let mut updated = 0;
        for (area, evidence) in self.areas.iter_mut().zip(&mut self.evidence).skip(first) {
            let Some(part) = (area.pid == pid).then(|| area.range().intersect(range)).flatten()
            else {
                break;
            };
            let from = (part.start.0 - area.start.0) as usize;
            let to = (part.end.0 - area.start.0) as usize;
            apply(&round, (&mut area.pages[from..to], &mut evidence[from..to]), part.start);
            updated += part.len();
        }
        updated
    }
}
