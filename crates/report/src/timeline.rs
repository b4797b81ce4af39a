//! Charts over time: what is where, what is hot, who serves the accesses, what was moved.

use crate::chart::{byte_marks, legend, marks, ticks, Chart, Series};
use crate::markup::{bytes, count, escape, pages, percent, put};
use terrace_engine::journal::{JournalHeader, OutcomeEntry, SnapshotEntry, TierSummary};

/// Points of a curve at most; more cannot be distinguished.
const MAX_POINTS: usize = 480;
/// Tiers drawn at most.
pub const MAX_TIERS: usize = 8;

/// The snapshots that curves go through, thinned out evenly.
#[derive(Debug)]
pub struct Timeline<'a> {
    shots: Vec<&'a SnapshotEntry>,
    times: Vec<f64>,
    last: f64,
    page_size: f64,
    tiers: Vec<String>,
}

/// Name of a tier for legends: its rank, what it is made of, its nodes.
pub fn tier_name(header: &JournalHeader, rank: usize) -> String {
    let place = match rank {
        0 => "fast tier",
        1 if header.tiers.len() == 2 => "slow tier",
        _ => "tier",
    };
    let Some(tier) = header.tiers.get(rank) else {
        return format!("{place} {rank}");
    };
    let nodes: Vec<String> = tier.nodes.iter().take(8).map(ToString::to_string).collect();
    let kind = if tier.kind.is_empty() { String::new() } else { format!("{}, ", tier.kind) };
    let plural = if nodes.len() == 1 { "node" } else { "nodes" };
    let number = if place == "tier" { format!(" {rank}") } else { String::new() };
    format!("{place}{number} ({kind}{plural} {})", nodes.join(", "))
}

impl<'a> Timeline<'a> {
    /// Of all snapshots; `end_ns` is when the run ended.
    pub fn new(header: &JournalHeader, all: &[&'a SnapshotEntry], end_ns: u64) -> Self {
        let stride = all.len().div_ceil(MAX_POINTS).max(1);
        let mut shots: Vec<_> = all.iter().copied().step_by(stride).collect();
        if let (Some(last), true) = (all.last().copied(), all.len() % stride != 1 && stride > 1) {
            shots.push(last);
        }
        let times: Vec<f64> = shots.iter().map(|s| s.at_ns as f64 / 1e9).collect();
        let last = times.iter().copied().fold(end_ns as f64 / 1e9, f64::max);
        let ranks = all.iter().map(|s| s.tiers.len()).max().unwrap_or(0).max(header.tiers.len());
        let tiers = (0..ranks.min(MAX_TIERS)).map(|rank| tier_name(header, rank)).collect();
        Self { shots, times, last, page_size: header.page_size_bytes as f64, tiers }
    }

    fn series(&self, rank: usize, class: &str, value: impl Fn(&TierSummary) -> f64) -> Series {
        let of = |shot: &&SnapshotEntry| shot.tiers.get(rank).map_or(0.0, &value);
        Series { class: class.to_owned(), values: self.shots.iter().map(of).collect() }
    }

    /// One panel a tier: pages of the target, what others hold, and how much there is.
    pub fn occupancy(&self) -> String {
        let mut html = String::new();
        for (rank, name) in self.tiers.iter().enumerate() {
            let target =
                self.series(rank, &format!("t{rank}"), |t| t.pages as f64 * self.page_size);
            let other = self.series(rank, "other", |t| {
                let used = t.capacity_bytes.saturating_sub(t.free_bytes) as f64;
                (used - t.pages as f64 * self.page_size).max(0.0)
            });
            let capacity = self.series(rank, "", |t| t.capacity_bytes as f64);
            let most = |s: &Series| s.values.iter().copied().fold(0.0, f64::max);
            let (top, marks) = byte_marks(most(&capacity).max(most(&target)), |v| bytes(v as u64));
            let mut chart = Chart::new(name, 170.0, self.last, top, &marks);
            chart.stack(&self.times, &[target, other]);
            if most(&capacity) > 0.0 {
                let label = format!("memory for user pages: {}", bytes(most(&capacity) as u64));
                chart.level(most(&capacity), "", &label);
            }
            put!(&mut html, "<h3>{}</h3>\n{}", escape(name), chart.finish());
            html.push_str(&legend(&[
                (format!("t{rank}"), "pages of the program".to_owned()),
                ("other".to_owned(), "used by others".to_owned()),
            ]));
        }
        html
    }

    /// Hot pages, stacked by tier.
    pub fn hot_pages(&self) -> String {
        let series: Vec<Series> = (0..self.tiers.len())
            .map(|rank| self.series(rank, &format!("t{rank}"), |t| t.hot_pages as f64))
            .collect();
        let most = (0..self.times.len())
            .map(|i| series.iter().map(|s| s.values[i]).sum::<f64>())
            .fold(0.0, f64::max);
        if most == 0.0 {
            return "<p class=\"small\">No page was ever seen hot.</p>\n".to_owned();
        }
        let top = most * 1.05;
        let marks = marks(top, |v| count(v as u64));
        let mut chart = Chart::new("Hot pages by tier", 220.0, self.last, top, &marks);
        chart.stack(&self.times, &series);
        format!("{}{}", chart.finish(), self.legend())
    }

    fn legend(&self) -> String {
        let items: Vec<_> = self
            .tiers
            .iter()
            .enumerate()
            .map(|(r, name)| (format!("t{r}"), name.clone()))
            .collect();
        legend(&items)
    }

    /// Estimated share of accesses that the fast tier serves.
    pub fn fast_share(&self) -> String {
        let share = |s: &&SnapshotEntry| s.fast_access_share.unwrap_or(f64::NAN);
        let values: Vec<f64> = self.shots.iter().map(share).collect();
        if values.iter().all(|v| !v.is_finite()) {
            return "<p class=\"small\">No access was seen, so no share is known.</p>\n".to_owned();
        }
        let mut chart =
            Chart::new("Share in the fast tier", 200.0, self.last, 1.0, &marks(1.0, percent));
        chart.line(&self.times, &Series { class: "t0".to_owned(), values });
        chart.finish()
    }

    /// Pages moved by each step: up above, down below.
    pub fn moves(&self, outcomes: &[&OutcomeEntry]) -> String {
        let most =
            outcomes.iter().map(|o| o.promoted_pages.max(o.demoted_pages)).max().unwrap_or(0);
        if most == 0 {
            return "<p class=\"small\">No page was moved.</p>\n".to_owned();
        }
        let most = most as f64;
        let label = |v: f64| count(v as u64);
        let above = ticks(most, 2).into_iter().map(|v| (most + v, label(v)));
        let below = ticks(most, 2).into_iter().skip(1).map(|v| (most - v, label(v)));
        let marks: Vec<_> = above.chain(below).collect();
        let name = "Pages moved by each step";
        let mut chart = Chart::new(name, 220.0, self.last, 2.0 * most, &marks);
        // Of steps that fall on the same few pixels the largest is drawn.
        for slot in slots(outcomes, self.last) {
            let title =
                format!("{:.2} s: {} up, {} down", slot.time, pages(slot.up), pages(slot.down));
            if slot.up > 0 {
                let to = most + (slot.up as f64).min(most);
                chart.bar(slot.time, most, to, "up", &title);
            }
            if slot.down > 0 {
                let to = most - (slot.down as f64).min(most);
                chart.bar(slot.time, most, to, "down", &title);
            }
        }
        let names = [("up", "to a better tier"), ("down", "to a worse tier")];
        let names = names.map(|(class, name)| (class.to_owned(), name.to_owned()));
        format!("{}{}", chart.finish(), legend(&names))
    }
}

struct Slot {
    time: f64,
    up: u64,
    down: u64,
}

fn slots(outcomes: &[&OutcomeEntry], last: f64) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    let width = last.max(1e-9) / 280.0;
    for outcome in outcomes {
        let time = outcome.at_ns as f64 / 1e9;
        let index = (time / width) as u64;
        match slots.last_mut().filter(|s| (s.time / width) as u64 == index) {
            Some(slot) => {
                slot.up = slot.up.max(outcome.promoted_pages);
                slot.down = slot.down.max(outcome.demoted_pages);
            }
            None => {
                slots.push(Slot { time, up: outcome.promoted_pages, down: outcome.demoted_pages })
            }
        }
    }
    slots
}
