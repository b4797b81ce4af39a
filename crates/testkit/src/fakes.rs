//! Fakes without a world behind them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use terrace_engine::{
    Journal, JournalError, Mapping, Observation, SampleRequest, TrackError, Tracker, TrackerInfo,
};
use terrace_types::{Request, Tick, TrackerVisibility};

/// Keeps lines in memory; clones share them.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal(pub Rc<RefCell<Vec<String>>>);

impl MemoryJournal {
    /// The whole journal, as a file would hold it.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.borrow().iter().map(|l| format!("{l}\n")).collect()
    }
}

impl Journal for MemoryJournal {
    fn append(&mut self, line: &str) -> Result<(), JournalError> {
        self.0.borrow_mut().push(line.to_owned());
        Ok(())
    }
}

/// Takes so many lines, then fails for ever: a full disk.
#[derive(Debug)]
pub struct FailingJournal {
    /// Lines it still takes.
    pub left: usize,
    /// Times it was asked in vain.
    pub refused: Rc<RefCell<usize>>,
}

impl Journal for FailingJournal {
    fn append(&mut self, _line: &str) -> Result<(), JournalError> {
        if self.left == 0 {
            *self.refused.borrow_mut() += 1;
            return Err(JournalError::Write("no space left on device".to_owned()));
        }
        self.left -= 1;
        Ok(())
    }
}

/// Replies from a list, then with nothing; notes what it was asked.
#[derive(Debug)]
pub struct ScriptedTracker {
    /// What it claims to see.
    pub sees: TrackerVisibility,
    /// Replies to come.
    pub replies: VecDeque<Observation>,
    /// Intervals asked for.
    pub asked: Rc<RefCell<Vec<SampleRequest>>>,
    /// Requests passed on.
    pub requests: Rc<RefCell<Vec<Request>>>,
}

impl Tracker for ScriptedTracker {
    fn info(&self) -> TrackerInfo {
        TrackerInfo { name: "scripted", sees: self.sees, blind_to: "anything not in its script" }
    }

    fn begin(&mut self, _mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        self.asked.borrow_mut().push(ask.clone());
        Ok(())
    }

    fn finish(&mut self, _now: Tick) -> Result<Observation, TrackError> {
        Ok(self.replies.pop_front().unwrap_or_default())
    }

    fn request(&mut self, request: &Request) -> Result<(), TrackError> {
        self.requests.borrow_mut().push(request.clone());
        Ok(())
    }
}

/// Works for a number of intervals, then stops: DAMON turned off under us.
pub struct StoppingTracker {
    /// The tracker it is until then.
    pub inner: Box<dyn Tracker>,
    /// Intervals it still works.
    pub sample_count: usize,
}

impl Tracker for StoppingTracker {
    fn info(&self) -> TrackerInfo {
        self.inner.info()
    }

    fn begin(&mut self, mappings: &[Mapping], ask: &SampleRequest) -> Result<(), TrackError> {
        if self.sample_count == 0 {
            return Err(TrackError::Stopped {
                tracker: self.info().name,
                why: "it was turned off".to_owned(),
                remedy: "turn it on again",
            });
        }
        self.sample_count -= 1;
        self.inner.begin(mappings, ask)
    }

    fn finish(&mut self, now: Tick) -> Result<Observation, TrackError> {
        self.inner.finish(now)
    }

    fn request(&mut self, request: &Request) -> Result<(), TrackError> {
        self.inner.request(request)
    }
}
