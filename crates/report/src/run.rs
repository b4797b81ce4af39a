//! The report of one managed run.

use crate::heatmap;
use crate::markup::{
    brief, bytes, count, embed, escape, or_unknown, page, pages, percent, put, rate, tile, time,
};
use crate::steps::{failures, reason, steps, table};
use crate::timeline::{tier_name, Timeline, MAX_TIERS};
use serde_json::{json, Value};
use terrace_engine::journal::{
    JournalEntry, JournalSummary, OutcomeEntry, ParsedJournal, SnapshotEntry, TierHeader,
};
use terrace_engine::MoveFailure;
use terrace_types::text::fold;

/// What a journal comes to, in figures.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalFigures {
    /// The run's own account, or what could be added up when it has none.
    pub summary: JournalSummary,
    /// Whether the journal ends with its account; if not the run was killed or the file cut.
    pub complete: bool,
    /// Fast share where it was first and last seen.
    pub share_first_last: Option<(f64, f64)>,
    /// Tracking, deciding and moving as a share of one core over the run: what `--cpu` bounds.
    pub core_share: Option<f64>,
    /// Memory for tracking as a share of what is managed.
    pub memory_share: Option<f64>,
    /// Pages that did not move, by reason, most first.
    pub failed: Vec<(MoveFailure, u64)>,
}

/// A journal's entries, sorted by kind.
struct Parts<'a> {
    snapshots: Vec<&'a SnapshotEntry>,
    outcomes: Vec<&'a OutcomeEntry>,
    notes: Vec<(u64, &'a str)>,
}

impl<'a> Parts<'a> {
    fn from_journal(reading: &'a ParsedJournal) -> Self {
        let mut parts = Self { snapshots: Vec::new(), outcomes: Vec::new(), notes: Vec::new() };
        for entry in &reading.entries {
            match entry {
                JournalEntry::Snapshot(snapshot) => parts.snapshots.push(snapshot),
                JournalEntry::Outcome(outcome) => parts.outcomes.push(outcome),
                JournalEntry::Note(note) => parts.notes.push((note.at_ns, &note.text)),
                JournalEntry::Decision(_) | JournalEntry::End(_) | JournalEntry::Unknown => {}
            }
        }
        parts
    }
}

impl JournalFigures {
    fn from_parts(reading: &ParsedJournal, parts: &Parts<'_>) -> Self {
        let ending = reading.entries.iter().rev().find_map(|e| match e {
            JournalEntry::End(summary) => Some(summary.clone()),
            _ => None,
        });
        let complete = ending.is_some();
        let summary = ending.unwrap_or_else(|| add_up(reading, parts));
        let mut shares = parts.snapshots.iter().filter_map(|s| s.fast_access_share);
        let first = shares.next();
        let last = shares.next_back().or(first);
        let costs = [summary.tracking_cpu_ns, summary.deciding_cpu_ns, summary.moving_ns];
        let cpu = costs.into_iter().fold(0, u64::saturating_add);
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let failed = if summary.failed.is_empty() {
            failures(parts.outcomes.iter().flat_map(|o| &o.failed))
        } else {
            failures(summary.failed.iter())
        };
        Self {
            complete,
            share_first_last: first.zip(last),
            core_share: share(cpu, summary.at_ns),
            memory_share: share(summary.peak_memory_bytes, summary.managed_bytes),
            failed,
            summary,
        }
    }
}

/// For a journal without its last line.
fn add_up(reading: &ParsedJournal, parts: &Parts<'_>) -> JournalSummary {
    let sum = |of: fn(&OutcomeEntry) -> u64| {
        parts.outcomes.iter().fold(0u64, |sum, o| sum.saturating_add(of(o)))
    };
    let moved = sum(|o| o.promoted_pages.saturating_add(o.demoted_pages));
    let last = |e: &JournalEntry| match e {
        JournalEntry::Snapshot(e) => e.at_ns,
        JournalEntry::Decision(e) => e.at_ns,
        JournalEntry::Outcome(e) => e.at_ns,
        JournalEntry::Note(e) => e.at_ns,
        JournalEntry::End(_) | JournalEntry::Unknown => 0,
    };
    JournalSummary {
        at_ns: reading.entries.iter().map(last).max().unwrap_or(0),
        steps: parts.snapshots.len() as u64,
        promoted_pages: sum(|o| o.promoted_pages),
        demoted_pages: sum(|o| o.demoted_pages),
        sideways_pages: sum(|o| o.sideways_pages),
        migrated_bytes: moved.saturating_mul(reading.header.page_size_bytes),
        moving_ns: sum(|o| o.cost_ns),
        tracking_cpu_ns: parts
            .snapshots
            .iter()
            .fold(0u64, |sum, s| sum.saturating_add(s.tracking_cpu_ns)),
        ..JournalSummary::default()
    }
}

/// One HTML file.
pub fn html(reading: &ParsedJournal) -> String {
    let parts = Parts::from_journal(reading);
    let figures = JournalFigures::from_parts(reading, &parts);
    let header = &reading.header;
    let timeline = Timeline::new(header, &parts.snapshots, figures.summary.at_ns);
    let mut body = String::new();
    put!(
        &mut body,
        "<header><p class=\"over\">Policy {} · machine {} · {}</p><h1><code>{}</code></h1>\n<p \
            class=\"lead\">{}</p></header>\n",
        brief(&header.policy, 60),
        brief(if header.machine.is_empty() { "not named" } else { &header.machine }, 60),
        escape(&time(figures.summary.at_ns)),
        brief(
            if header.command.is_empty() { "(command not recorded)" } else { &header.command },
            300
        ),
        escape(&verdict(&figures))
    );
    warnings(&mut body, reading, &figures);
    tiles(&mut body, &figures);
    body.push_str(
        "<section><h2>Accesses served by the fast tier</h2>\n<p \
        class=\"small\">Estimated from what the trackers saw.</p>\n",
    );
    body.push_str(&timeline.fast_share());
    body.push_str("</section>\n<section><h2>Where the memory is</h2>\n");
    body.push_str(&timeline.occupancy());
    body.push_str("</section>\n<section><h2>Where the hot pages are</h2>\n");
    if let Some(from) = parts.snapshots.last().map(|s| s.hot_from_per_s) {
        put!(
            &mut body,
            "<p class=\"small\">A page counts as hot from a threshold of its own at each step; at \
                the last: {} accesses a second.</p>\n",
            count(from)
        );
    }
    body.push_str(&timeline.hot_pages());
    body.push_str("</section>\n<section><h2>Pages moved by each step</h2>\n");
    body.push_str(&timeline.moves(&parts.outcomes));
    body.push_str("</section>\n");
    heat(&mut body, heatmap::data(&parts.snapshots, header.page_size_bytes, figures.summary.at_ns));
    body.push_str("<section><h2>Decisions</h2>\n");
    body.push_str(&table(&steps(&reading.entries)));
    body.push_str("</section>\n");
    not_moved(&mut body, &figures);
    cost(&mut body, &figures);
    machine(&mut body, reading);
    notes(&mut body, &parts.notes);
    page(&format!("{}: {}", header.policy, header.command), &body)
}

fn verdict(figures: &JournalFigures) -> String {
    let s = &figures.summary;
    let mut text = if s.promoted_pages == 0 && s.demoted_pages == 0 {
        "No page was moved.".to_owned()
    } else {
        format!(
            "Moved {} to a better tier and {} to a worse one.",
            pages(s.promoted_pages),
            pages(s.demoted_pages)
        )
    };
    if let Some(repaid) = s.repaid_pages.filter(|_| s.promoted_pages > 0) {
        let share = (repaid as f64 / s.promoted_pages as f64).min(1.0);
        text.push_str(&format!(
            " An estimated {} of the former saved as much time as their moves took.",
            percent(share)
        ));
    }
    if let Some((first, last)) = figures.share_first_last {
        text.push_str(&format!(
            " The fast tier served an estimated {} of accesses when first seen and {} at the end.",
            percent(first),
            percent(last)
        ));
    }
    if let Some(share) = figures.core_share.filter(|s| *s > 0.0) {
        text.push_str(&format!(
            " Watching, deciding and moving took {} of one core.",
            percent(share)
        ));
    }
    text
}

fn warnings(body: &mut String, reading: &ParsedJournal, figures: &JournalFigures) {
    if let Some(problem) = &reading.problem {
        put!(
            body,
            "<p class=\"warning\">The journal is not whole. {}.</p>\n",
            brief(&problem.to_string(), 300)
        );
    } else if !figures.complete {
        body.push_str(
            "<p class=\"warning\">The journal has no closing account: the run was still \
            going or was killed. Totals are added up from its steps.</p>\n",
        );
    }
    if figures.summary.lost_records > 0 {
        put!(
            body,
            "<p class=\"warning\">Trackers lost {} records; heat is lower than it was.</p>\n",
            count(figures.summary.lost_records)
        );
    }
}

fn tiles(body: &mut String, figures: &JournalFigures) {
    let s = &figures.summary;
    body.push_str("<div class=\"tiles\">\n");
    let (figure, more) = match figures.share_first_last {
        Some((first, last)) => {
            (percent(last), format!("of accesses at the end; {} when first seen", percent(first)))
        }
        None => ("unknown".to_owned(), "no access was seen".to_owned()),
    };
    tile(body, &figure, "in the fast tier", &more);
    tile(
        body,
        &count(s.promoted_pages),
        "pages moved up",
        &format!("and {} down", count(s.demoted_pages)),
    );
    tile(body, &bytes(s.migrated_bytes), "copied", &format!("in {} of calls", time(s.moving_ns)));
    tile(
        body,
        &or_unknown(figures.core_share.map(percent)),
        "of one core",
        "for tracking, deciding and moving",
    );
    let more = match figures.memory_share {
        Some(share) => format!("for tracking: {} of what is managed", percent(share)),
        None => "for tracking, at most".to_owned(),
    };
    tile(body, &bytes(s.peak_memory_bytes), "memory", &more);
    body.push_str("</div>\n");
}

fn heat(body: &mut String, data: Option<Value>) {
    body.push_str("<section><h2>Heat by address</h2>\n");
    let Some(data) = data else {
        body.push_str("<p class=\"small\">No heat by address was recorded.</p></section>\n");
        return;
    };
    put!(
        body,
        "<p class=\"small\">Each row is a stretch of addresses, lowest at the bottom, unmapped \
            gaps left out. \
         Above: accesses a second to a page, averaged over the row. Below: where the row's pages \
         lie.</p>\n\
         <div id=\"heat\" class=\"heat\"><noscript><p class=\"warning\">The heat map is drawn by \
         a script inside this \
         file, and scripts are off.</p></noscript></div>\n\
         <script type=\"application/json\" id=\"heat-data\">{}</script>\n</section>\n",
        embed(&data)
    );
}

fn not_moved(body: &mut String, figures: &JournalFigures) {
    body.push_str("<section><h2>What did not move, and why</h2>\n");
    if figures.failed.is_empty() {
        body.push_str(
            "<p class=\"small\">Every page that a plan named was moved, or no plan named \
                any.</p></section>\n",
        );
        return;
    }
    let most = figures.failed.first().map_or(1, |f| f.1.max(1)) as f64;
    body.push_str("<table class=\"plain meter\">\n");
    for (why, n) in &figures.failed {
        put!(
            body,
            "<tr><th>{}</th><td>{}</td><td class=\"track\"><i \
                style=\"width:{:.1}%\"></i></td></tr>\n",
            reason(*why),
            pages(*n),
            100.0 * *n as f64 / most
        );
    }
    body.push_str("</table></section>\n");
}

fn cost(body: &mut String, figures: &JournalFigures) {
    let s = &figures.summary;
    let of_run = |ns: u64| match s.at_ns {
        0 => "unknown".to_owned(),
        whole => percent(ns as f64 / whole as f64),
    };
    body.push_str("<section><h2>What it cost</h2>\n<table class=\"plain\">\n");
    for (what, ns, of) in [
        ("Tracking, kernel threads included", s.tracking_cpu_ns, "of one core"),
        ("Deciding", s.deciding_cpu_ns, "of one core"),
        ("Calls that move pages", s.moving_ns, "of one core"),
    ] {
        put!(body, "<tr><th>{what}</th><td>{}</td><td>{} {of}</td></tr>\n", time(ns), of_run(ns));
    }
    put!(
        body,
        "<tr><th>Memory for tracking, at most</th><td>{}</td><td>{} of {} \
            managed</td></tr>\n</table></section>\n",
        bytes(s.peak_memory_bytes),
        or_unknown(figures.memory_share.map(percent)),
        bytes(s.managed_bytes)
    );
}

fn machine(body: &mut String, reading: &ParsedJournal) {
    let header = &reading.header;
    body.push_str(
        "<section><h2>The machine, as its model states it</h2>\n<div \
        class=\"wide\"><table class=\"figures\">\n<tr><th>tier</th><th>capacity</th><th>read \
        latency</th><th>read bandwidth</th><th>write bandwidth</th></tr>\n",
    );
    for (rank, tier) in header.tiers.iter().enumerate().take(MAX_TIERS) {
        put!(
            body,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escape(&tier_name(header, rank)),
            bytes(tier.capacity_bytes),
            sourced(tier, "read_latency_ns", tier.read_latency_ns.map(time)),
            sourced(tier, "read_bandwidth_bytes_per_s", tier.read_bandwidth_bytes_per_s.map(rate)),
            sourced(
                tier,
                "write_bandwidth_bytes_per_s",
                tier.write_bandwidth_bytes_per_s.map(rate)
            ),
        );
    }
    body.push_str("</table></div>\n");
    if header.tiers.iter().all(|t| t.evidence.is_empty()) {
        body.push_str(
            "<p class=\"small under\">Where these figures come from was not recorded.</p>\n",
        );
    }
    body.push_str("<table class=\"plain\">\n");
    put!(body, "<tr><th>Base page</th><td>{}</td></tr>\n", bytes(header.page_size_bytes));
    for tracker in header.trackers.iter().take(16) {
        let blind = if tracker.blind_to.is_empty() { "not stated" } else { &tracker.blind_to };
        put!(
            body,
            "<tr><th>Tracker {}</th><td>does not see: {}</td></tr>\n",
            brief(&tracker.name, 40),
            brief(blind, 300)
        );
    }
    for (name, value) in header.params.iter().take(40) {
        put!(body, "<tr><th>{}</th><td>{}</td></tr>\n", brief(name, 60), brief(value, 200));
    }
    body.push_str("</table></section>\n");
}

/// A figure with its source below, as far as either is recorded.
fn sourced(tier: &TierHeader, key: &str, figure: Option<String>) -> String {
    let Some(figure) = figure else {
        return or_unknown(None);
    };
    let source = tier.evidence.get(key).map(|source| match source.as_str() {
        "hmat" => "firmware (HMAT)".to_owned(),
        "measured" => "measured".to_owned(),
        "config" => "machine file".to_owned(),
        "preset" => "preset".to_owned(),
        "distance" => "guessed from distances".to_owned(),
        "unknown" => "source unknown".to_owned(),
        other => brief(other, 40),
    });
    match source {
        Some(source) => format!("{figure}<span class=\"source\">{source}</span>"),
        None => figure,
    }
}

fn notes(body: &mut String, notes: &[(u64, &str)]) {
    if notes.is_empty() {
        return;
    }
    body.push_str("<section><h2>Notes</h2>\n<table class=\"plain\">\n");
    for (at, text) in notes.iter().take(MAX_NOTES) {
        put!(body, "<tr><th>{}</th><td>{}</td></tr>\n", time(*at), brief(text, 500));
    }
    body.push_str("</table></section>\n");
}

/// Notes that the text shows, so that it stays one screen; the page and JSON have more.
const TEXT_NOTES: usize = 5;
/// Notes that the page and JSON have: a hostile journal may hold millions.
const MAX_NOTES: usize = 200;

/// For a terminal of so many columns: one screen.
pub fn text(reading: &ParsedJournal, columns: usize) -> String {
    let parts = Parts::from_journal(reading);
    let figures = JournalFigures::from_parts(reading, &parts);
    let clean = |text: &str| -> String {
        text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
    };
    let mut out = format!(
        "{}\npolicy {}, machine {}, {}\n\n{}\n",
        clean(&reading.header.command),
        clean(&reading.header.policy),
        clean(&reading.header.machine),
        time(figures.summary.at_ns),
        fold(&verdict(&figures), columns)
    );
    let s = &figures.summary;
    put!(&mut out, "copied {} in {} of calls\n", bytes(s.migrated_bytes), time(s.moving_ns));
    put!(
        &mut out,
        "memory for tracking {} ({} of {} managed)\n",
        bytes(s.peak_memory_bytes),
        or_unknown(figures.memory_share.map(percent)),
        bytes(s.managed_bytes)
    );
    for (why, n) in &figures.failed {
        put!(&mut out, "not moved: {}, {}\n", pages(*n), reason(*why));
    }
    for (_, note) in parts.notes.iter().take(TEXT_NOTES) {
        put!(&mut out, "{}\n", fold(&format!("note: {}", clean(note)), columns));
    }
    if let Some(problem) = &reading.problem {
        put!(&mut out, "the journal is not whole: {}\n", clean(&problem.to_string()));
    }
    out
}

/// The figures.
pub fn json(reading: &ParsedJournal) -> Value {
    let parts = Parts::from_journal(reading);
    let figures = JournalFigures::from_parts(reading, &parts);
    let s = &figures.summary;
    let failed: serde_json::Map<String, Value> = figures
        .failed
        .iter()
        .filter_map(|(why, n)| {
            Some((serde_json::to_value(why).ok()?.as_str()?.to_owned(), json!(n)))
        })
        .collect();
    json!({
        "command": reading.header.command,
        "policy": reading.header.policy,
        "machine": reading.header.machine,
        "seconds": s.at_ns as f64 / 1e9,
        "steps": s.steps,
        "notes": parts.notes.iter().take(MAX_NOTES).map(|(_, text)| *text).collect::<Vec<_>>(),
        "complete": figures.complete,
        "problem": reading.problem.as_ref().map(ToString::to_string),
        "fast_access_share": s.fast_access_share,
        "fast_access_share_first": figures.share_first_last.map(|s| s.0),
        "fast_access_share_last": figures.share_first_last.map(|s| s.1),
        "promoted_pages": s.promoted_pages,
        "repaid_pages": s.repaid_pages,
        "demoted_pages": s.demoted_pages,
        "migrated_bytes": s.migrated_bytes,
        "failed_pages": failed,
        "tracking_cpu_seconds": s.tracking_cpu_ns as f64 / 1e9,
        "deciding_cpu_seconds": s.deciding_cpu_ns as f64 / 1e9,
        "moving_seconds": s.moving_ns as f64 / 1e9,
        "core_share": figures.core_share,
        "peak_memory_bytes": s.peak_memory_bytes,
        "managed_bytes": s.managed_bytes,
        "lost_records": s.lost_records,
    })
}
