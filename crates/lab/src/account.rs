//! What a run's counters say about pages moved and time spent, by who moved them.

use crate::job::JobResult;
use crate::policies::{self, PageMover, PolicySetup};
use crate::stats::RoiSpan;
use crate::wire::AtMark;
use serde::Deserialize;
use terrace_types::{BaselineId, BaselineKind, Contender, PolicyId};

const PAGE: u64 = 4096;

/// Figures that are known of a run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct KnownFigures {
    /// Pages that came to the fast node.
    #[serde(default)]
    pub promoted_pages: Option<u64>,
    /// Pages that left it.
    #[serde(default)]
    pub demoted_pages: Option<u64>,
    /// Bytes moved.
    #[serde(default)]
    pub migrated_bytes: Option<u64>,
    /// Processor seconds of tracking and deciding.
    #[serde(default)]
    pub overhead_seconds: Option<f64>,
}

/// From the kernel's counters.
#[must_use]
pub fn kernel(plan: &PolicySetup, result: &JobResult) -> KnownFigures {
    let count = |name: &str| result.reply.vmstat.get(name).copied().unwrap_or(0).max(0) as u64;
    let demoted =
        count("pgdemote_kswapd") + count("pgdemote_direct") + count("pgdemote_khugepaged");
    let mut summary = KnownFigures {
        promoted_pages: Some(count("pgpromote_success")),
        demoted_pages: Some(demoted),
        migrated_bytes: Some(count("pgmigrate_success") * PAGE),
        overhead_seconds: None,
    };
    let threads = result.reply.cpu.iter().map(|t| t.nanos).sum::<u64>() as f64 / 1e9;
    match plan.contender {
        Contender::Baseline(BaselineId::KernelDamos | BaselineId::KernelDamosTuned) => {
            let applied = |index| damos_pages(result, index);
            summary.promoted_pages = applied(0);
            summary.demoted_pages = applied(1);
            summary.overhead_seconds = Some(threads);
        }
        Contender::Policy(PolicyId::FirstTouch) => summary.overhead_seconds = Some(0.0),
        Contender::Baseline(id) if id.kind() == BaselineKind::Oracle => {
            summary.overhead_seconds = Some(0.0);
        }
        // What the kernel and the hardware take is not known; a policy's daemon reports itself.
        Contender::Baseline(_)
        | Contender::Policy(_)
        | Contender::FarStore(_)
        | Contender::Custom(_) => {}
    }
    if let (PageMover::Agent, Some(placed)) = (&plan.actor, &result.reply.placed) {
        // What was moved before the measured phase began is no move of it.
        let counts = matches!(plan.at_mark, AtMark::Place { counts: true, .. });
        let moved = |pages: u64| Some(if counts { pages } else { 0 });
        summary.promoted_pages = moved(placed.promoted_pages);
        summary.demoted_pages = moved(placed.demoted_pages);
        summary.migrated_bytes = summary.migrated_bytes.and_then(moved);
    }
    summary
}

/// What the guest's agent tried in vain, in words.
#[must_use]
pub fn refusals(result: &JobResult) -> Vec<String> {
    let placed = result.reply.placed.iter().flat_map(|p| &p.refused);
    let reclaimed = result.reply.reclaimed.iter().flat_map(|r| &r.refused);
    placed
        .map(|(why, pages)| format!("{pages} pages were not placed: {why}"))
        .chain(
            reclaimed.map(|(why, times)| format!("memory.reclaim fell short {times} times: {why}")),
        )
        .collect()
}

fn damos_pages(result: &JobResult, scheme: u32) -> Option<u64> {
    let text = result.files.get(&policies::damos_applied_file(scheme))?;
    let bytes: u64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    Some(bytes / PAGE)
}

/// From the tool's own summary, with the kernel's count of moved pages where it says nothing.
#[must_use]
pub fn tool(summary: Option<&[u8]>, result: &JobResult) -> KnownFigures {
    let mut out: KnownFigures =
        summary.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
    let moved = result.reply.vmstat.get("pgmigrate_success").copied().unwrap_or(0).max(0) as u64;
    out.migrated_bytes = out.migrated_bytes.or(Some(moved * PAGE));
    out
}

/// Share of last-level misses that the fast node served. Where everything is fast by decree, that
/// is all of them.
#[must_use]
pub fn fast_share(plan: &PolicySetup, span: Option<&RoiSpan>, fast: u32) -> Option<f64> {
    if plan.contender == BaselineId::AllFast.into() {
        return span.map(|_| 1.0);
    }
    span?.share_of(fast)
}

/// Memory accesses of the measured phase: what the workload says of itself, else what the plugin
/// counted.
#[must_use]
pub fn accesses(result: &JobResult) -> Option<u64> {
    let text = String::from_utf8_lossy(&result.stdout);
    let said = text.split_whitespace().find_map(|w| w.strip_prefix("accesses=")?.parse().ok());
    let counted =
        || result.stats.as_ref().and_then(|s| s.measured()).map(|s| s.accesses).filter(|&a| a > 0);
    said.or_else(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{PlaceReport, ReclaimReport, Reply, ThreadCpu};
    use std::collections::BTreeMap;

    fn result() -> JobResult {
        let mut reply = Reply::not_started(String::new());
        reply.vmstat =
            [("pgpromote_success", 7), ("pgdemote_kswapd", 3), ("pgmigrate_success", 12)]
                .into_iter()
                .map(|(k, v)| (k.to_string(), v))
                .collect();
        reply.cpu = vec![ThreadCpu { name: "kdamond.0".into(), nanos: 2_000_000 }];
        reply.placed =
            Some(PlaceReport { promoted_pages: 100, demoted_pages: 90, ..Default::default() });
        JobResult {
            reply,
            stdout: b"skew accesses=32000000 checksum=1\n".to_vec(),
            stderr: vec![],
            files: BTreeMap::from([(policies::damos_applied_file(0), b"40960\n".to_vec())]),
            stats: None,
            profile: None,
            wall_seconds: 0.0,
        }
    }

    fn plan(name: &str) -> PolicySetup {
        let shape =
            crate::shape::Shape::from_machine(&terrace_machine::preset("lab-cxl").unwrap(), None)
                .unwrap();
        policies::plan(name, &shape).unwrap()
    }

    #[test]
    fn counters_are_attributed_to_the_mover() {
        let got = kernel(&plan("kernel:numa-balancing"), &result());
        assert_eq!(
            (got.promoted_pages, got.demoted_pages, got.migrated_bytes),
            (Some(7), Some(3), Some(49152))
        );
        assert_eq!(got.overhead_seconds, None);
        let got = kernel(&plan("kernel:damos"), &result());
        assert_eq!(
            (got.promoted_pages, got.demoted_pages, got.overhead_seconds),
            (Some(10), None, Some(0.002))
        );
        let got = kernel(&plan("bound:ideal-move"), &result());
        assert_eq!(
            (got.promoted_pages, got.demoted_pages, got.migrated_bytes),
            (Some(100), Some(90), Some(49152))
        );
        let got = kernel(&plan("bound:static"), &result());
        assert_eq!(
            (got.promoted_pages, got.demoted_pages, got.migrated_bytes),
            (Some(0), Some(0), Some(0))
        );
    }

    #[test]
    fn what_was_refused_is_said() {
        let mut result = result();
        assert!(refusals(&result).is_empty());
        let refused = BTreeMap::from([("busy".to_string(), 3)]);
        result.reply.placed = Some(PlaceReport { refused: refused.clone(), ..Default::default() });
        result.reply.reclaimed = Some(ReclaimReport { refused, ..Default::default() });
        let said = refusals(&result);
        assert_eq!(
            said,
            ["3 pages were not placed: busy", "memory.reclaim fell short 3 times: busy"]
        );
    }

    #[test]
    fn the_tools_summary_is_believed_and_a_broken_one_survived() {
        let got =
            tool(Some(br#"{"promoted_pages":5,"overhead_seconds":0.1,"other":[]}"#), &result());
        assert_eq!(
            (got.promoted_pages, got.overhead_seconds, got.migrated_bytes),
            (Some(5), Some(0.1), Some(49152))
        );
        assert_eq!(tool(Some(b"{"), &result()).promoted_pages, None);
    }

    #[test]
    fn accesses_are_found() {
        assert_eq!(accesses(&result()), Some(32_000_000));
    }
}
