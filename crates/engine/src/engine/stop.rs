//! Why the loop ends.

use crate::TargetError;

/// Why the loop cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// The target ended: the ordinary end.
    #[error("the target has ended")]
    TargetEnded,
    /// The kernel refuses to show the target.
    #[error(transparent)]
    Refused(TargetError),
    /// What the policy cannot do without is not there (any more). Exit status 3.
    #[error(
        "policy {policy} needs {what}, and no tracker here tells it; try --policy first-touch or \
            see terrace doctor"
    )]
    Missing {
        /// Policy.
        policy: &'static str,
        /// What it needs.
        what: &'static str,
    },
}

impl From<TargetError> for StopReason {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Ended => Self::TargetEnded,
            refused => Self::Refused(refused),
        }
    }
}
