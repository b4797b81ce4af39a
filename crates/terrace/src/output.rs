//! What a managed run reports of itself.

use crate::idle::IdleMemory;
use serde::Serialize;
use terrace_engine::journal::JournalSummary;
use terrace_types::Bytes;

/// The account of `run` or `attach`, as `--summary` writes it.
#[derive(Debug, Clone, Serialize)]
pub struct RunSummary {
    /// Whether pages were managed at all.
    pub managed: bool,
    /// Why not, when not.
    pub unmanaged_because: Option<String>,
    /// Why managing ended before the target did, where it had to.
    pub stopped_because: Option<String>,
    /// The same for who decides on an exit status.
    #[serde(skip)]
    pub stopped: Option<Stopped>,
    /// The policy asked for.
    pub policy: String,
    /// Trackers in use.
    pub trackers: Vec<String>,
    /// CPU seconds of tracking and deciding, kernel threads we started included; moving apart.
    /// `--cpu` bounds both together.
    pub overhead_seconds: f64,
    /// Seconds spent in calls that move pages.
    pub moving_seconds: f64,
    /// Where nothing was to be moved: how much memory was idle for how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleMemory>,
    /// Things worth knowing, one sentence each.
    pub notes: Vec<String>,
    /// The engine's account.
    #[serde(flatten)]
    pub account: JournalSummary,
}

/// What ended management early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The machine lacks, by now, what the policy needs.
    Lacking,
    /// The kernel refuses to show the target.
    Refused,
}

impl RunSummary {
    /// A run that was not managed.
    #[must_use]
    pub fn unmanaged(policy: &str, why: String) -> Self {
        Self {
            managed: false,
            unmanaged_because: Some(why),
            stopped_because: None,
            stopped: None,
            policy: policy.to_owned(),
            trackers: Vec::new(),
            overhead_seconds: 0.0,
            moving_seconds: 0.0,
            idle: None,
            notes: Vec::new(),
            account: JournalSummary::default(),
        }
    }

    /// One line for standard error.
    #[must_use]
    pub fn line(&self) -> String {
        if let Some(why) = &self.unmanaged_because {
            return format!("ran unmanaged: {why}");
        }
        let a = &self.account;
        let seconds = a.at_ns as f64 / 1e9;
        let share = match a.fast_access_share {
            Some(share) => format!("{:.0}% of accesses fast (estimated)", share * 100.0),
            None => "share of fast accesses unknown".to_owned(),
        };
        let cost = self.overhead_seconds + self.moving_seconds;
        let percent = if seconds > 0.0 { cost / seconds * 100.0 } else { 0.0 };
        format!(
            "{}: {} pages promoted, {} demoted, {share}; cost {cost:.2} s of CPU ({percent:.1}% \
                of a core), \
             {:.2} s of it moving, and {} in {seconds:.2} s",
            self.policy,
            a.promoted_pages,
            a.demoted_pages,
            self.moving_seconds,
            Bytes(a.peak_memory_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_was_done_or_why_not() {
        let s = RunSummary::unmanaged("terrace", "one tier only".into());
        assert_eq!(s.line(), "ran unmanaged: one tier only");
        let managed = RunSummary { managed: true, unmanaged_because: None, ..s };
        assert!(managed.line().starts_with("terrace: 0 pages promoted"));
        assert!(!managed.line().contains('\n'));
    }
}
