//! Whether somebody asked to end.

use crate::error::{LabError, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// A question that everything that waits asks now and then.
#[derive(Debug, Clone, Copy, Default)]
pub struct StopFlag(Option<&'static AtomicBool>);

impl StopFlag {
    /// Everything ends soon after `flag` is true.
    #[must_use]
    pub const fn watching(flag: &'static AtomicBool) -> Self {
        Self(Some(flag))
    }

    /// Whether it is.
    #[must_use]
    pub fn is_set(self) -> bool {
        self.0.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// [`LabError::Interrupted`] once it is.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_set() {
            return Err(LabError::Interrupted);
        }
        Ok(())
    }
}
