//! Compressed memory first, another store behind it: what finds no free space in the first goes to
//! the second.

use super::{BackingStore, CompletedJob, Compressed, StoreBuffer, StoreError, StoreJob};
use std::os::fd::BorrowedFd;
use terrace_sys::SysError;
use terrace_types::{Bytes, Nanos};

/// Two stores.
#[derive(Debug)]
pub struct Tiered {
    first: Compressed,
    second: Box<dyn BackingStore>,
    done: Vec<CompletedJob>,
    passed: Vec<StoreJob>,
}

impl Tiered {
    /// `first` before `second`.
    #[must_use]
    pub fn new(first: Compressed, second: Box<dyn BackingStore>) -> Self {
        Self { first, second, done: Vec::new(), passed: Vec::new() }
    }

    /// Reads what the first store has; the pieces left are the second's. A piece may lie in both.
    fn read_first(&mut self, job: &mut StoreJob) -> Result<(), StoreError> {
        let StoreBuffer::Fill(frame) = &mut job.buffer else {
            return Ok(());
        };
        let mut left = Vec::new();
        for p in &job.pieces {
            // Runs of pages of one kind.
            let mut start = 0;
            while start < p.len {
                let here = self.first.holds(p.at + start as u64);
                let mut end = start + PAGE;
                while end < p.len && self.first.holds(p.at + end as u64) == here {
                    end += PAGE;
                }
                let end = end.min(p.len);
                let at = p.at + start as u64;
                if here {
                    self.first.get(at, &mut frame.bytes_mut()[p.start + start..p.start + end])?;
                } else {
                    left.push(super::JobPiece { at, start: p.start + start, len: end - start });
                }
                start = end;
            }
        }
        job.pieces = left;
        Ok(())
    }
}

const PAGE: usize = 4096;

impl BackingStore for Tiered {
    fn name(&self) -> &'static str {
        "tiered"
    }

    fn begin(&mut self, jobs: &mut Vec<StoreJob>) {
        for mut job in jobs.drain(..) {
            let write = matches!(job.buffer, StoreBuffer::Send(_));
            let result = if write { self.first.run(&mut job) } else { self.read_first(&mut job) };
            match result {
                Ok(()) if write || job.pieces.is_empty() => {
                    self.done.push(CompletedJob { job, result: Ok(()) })
                }
                Ok(()) => self.passed.push(job),
                Err(StoreError::Full { .. }) => {
                    // None of it may stay in the first: what is there is older than what the second
                    // gets.
                    for p in &job.pieces {
                        self.first.drop_run(p.at, p.len);
                    }
                    self.passed.push(job);
                }
                Err(error) => self.done.push(CompletedJob { job, result: Err(error) }),
            }
        }
        self.second.begin(&mut self.passed);
    }

    fn finished(&mut self, done: &mut Vec<CompletedJob>) {
        done.append(&mut self.done);
        self.second.finished(done);
    }

    fn signals_completion(&self) -> bool {
        self.second.signals_completion()
    }

    fn wait(&mut self, others: &[BorrowedFd<'_>], limit: Option<Nanos>) -> Result<u64, SysError> {
        self.second.wait(others, limit)
    }

    fn forget(&mut self, at: u64, len: usize) {
        self.first.drop_run(at, len);
        self.second.forget(at, len);
    }

    fn memory(&self) -> Bytes {
        self.first.memory() + self.second.memory()
    }

    fn metadata(&self) -> Bytes {
        self.first.metadata() + self.second.metadata()
    }

    fn remark(&self) -> Option<String> {
        self.second.remark()
    }
}
