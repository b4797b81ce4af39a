//! The journal of a simulated run, kept in memory.

use std::cell::RefCell;
use std::rc::Rc;
use terrace_engine::{Journal, JournalError};

/// Maximum size of a journal in bytes: enough for hours of simulated time.
const MAX_JOURNAL_BYTES: usize = 256 << 20;

/// A journal whose text can be read afterwards.
#[derive(Debug, Clone, Default)]
pub struct SimJournal(Rc<RefCell<String>>);

impl SimJournal {
    /// What was written.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.borrow().clone()
    }
}

impl Journal for SimJournal {
    fn append(&mut self, line: &str) -> Result<(), JournalError> {
        let mut text = self.0.borrow_mut();
        if text.len() + line.len() > MAX_JOURNAL_BYTES {
            return Err(JournalError::Write(format!(
                "it has grown beyond {} MiB",
                MAX_JOURNAL_BYTES >> 20
            )));
        }
        text.push_str(line);
        text.push('\n');
        Ok(())
    }
}
