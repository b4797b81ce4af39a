//! A store that fails as told, for tests: errors, alterations, delays.

use super::{BackingStore, CompletedJob, StoreBuffer, StoreError, StoreJob};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use terrace_types::{Bytes, Seed};

/// How often what goes wrong, in thousandths of the jobs; can be changed while it runs.
#[derive(Debug, Default)]
pub struct Faults {
    /// Reads that fail with EIO.
    pub reads: AtomicU32,
    /// Writes that fail with EIO, or ENOSPC, leaving some of the bytes changed.
    pub writes: AtomicU32,
    /// Reads of which a byte is changed.
    pub altered: AtomicU32,
    /// Jobs that end one round later than they could.
    pub late: AtomicU32,
}

/// Another store with faults.
#[derive(Debug)]
pub struct Faulty {
    inner: Box<dyn BackingStore>,
    faults: Arc<Faults>,
    seed: Seed,
    late: Vec<CompletedJob>,
    failed: Vec<CompletedJob>,
}

impl Faulty {
    /// Wraps `inner`; what fails when follows from `seed`.
    #[must_use]
    pub fn new(inner: Box<dyn BackingStore>, faults: Arc<Faults>, seed: Seed) -> Self {
        Self { inner, faults, seed, late: Vec::new(), failed: Vec::new() }
    }

    fn chance(&mut self, thousandths: &AtomicU32) -> bool {
        let (r, next) = self.seed.next();
        self.seed = next;
        r % 1000 < u64::from(thousandths.load(Ordering::Relaxed))
    }
}

impl BackingStore for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn begin(&mut self, jobs: &mut Vec<StoreJob>) {
        let faults = Arc::clone(&self.faults);
        let mut sound = Vec::new();
        for mut job in jobs.drain(..) {
            let read = matches!(job.buffer, StoreBuffer::Fill(_));
            if !self.chance(if read { &faults.reads } else { &faults.writes }) {
                sound.push(job);
                continue;
            }
            let (what, errno) = if read { ("reading", 5) } else { ("writing", 28) };
            let at = job.pieces.first().map_or(0, |p| p.at);
            if let StoreBuffer::Fill(frame) = &mut job.buffer {
                // A failed read leaves rubbish, which nobody must see.
                frame.bytes_mut().fill(0xEE);
            } else {
                for p in &job.pieces {
                    self.inner.forget(p.at, p.len);
                }
            }
            self.failed.push(CompletedJob {
                job,
                result: Err(StoreError::Io { store: "faulty", what, at, errno }),
            });
        }
        self.inner.begin(&mut sound);
    }

    fn finished(&mut self, done: &mut Vec<CompletedJob>) {
        let faults = Arc::clone(&self.faults);
        let mut ended = std::mem::take(&mut self.late);
        let fresh = ended.len();
        ended.append(&mut self.failed);
        self.inner.finished(&mut ended);
        for (n, mut d) in ended.into_iter().enumerate() {
            if n >= fresh && self.chance(&faults.late) {
                self.late.push(d);
                continue;
            }
            if let (StoreBuffer::Fill(frame), Ok(())) = (&mut d.job.buffer, &d.result) {
                if self.chance(&faults.altered) {
                    if let Some(p) = d.job.pieces.first() {
                        frame.bytes_mut()[p.start] ^= 1;
                    }
                }
            }
            done.push(d);
        }
    }

    // What is late has nothing to tell of it: asked for again and again, so that it does not tell.

    fn forget(&mut self, at: u64, len: usize) {
        self.inner.forget(at, len);
    }

    fn gap(&self) -> usize {
        self.inner.gap()
    }

    fn metadata(&self) -> Bytes {
        self.inner.metadata()
    }

    fn memory(&self) -> Bytes {
        self.inner.memory()
    }
}
