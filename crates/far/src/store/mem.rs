//! Far memory that is memory: for tests, and for other nodes.

use super::{BackingStore, CompletedJob, StoreBuffer, StoreJob};
use std::collections::HashMap;
use terrace_types::Bytes;

const PAGE: usize = 4096;

/// Keeps pages as they are.
#[derive(Debug, Default)]
pub struct Mem {
    pages: HashMap<u64, Box<[u8]>>,
    done: Vec<CompletedJob>,
}

impl Mem {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl BackingStore for Mem {
    fn name(&self) -> &'static str {
        "mem"
    }

    fn begin(&mut self, jobs: &mut Vec<StoreJob>) {
        for mut job in jobs.drain(..) {
            for p in &job.pieces {
                for part in (0..p.len).step_by(PAGE) {
                    let page = (p.at + part as u64) / PAGE as u64;
                    let range = p.start + part..p.start + (part + PAGE).min(p.len);
                    match &mut job.buffer {
                        StoreBuffer::Send(frame) => {
                            self.pages.insert(page, frame.bytes()[range].into());
                        }
                        StoreBuffer::Fill(frame) => match self.pages.get(&page) {
                            Some(kept) => frame.bytes_mut()[range.clone()]
                                .copy_from_slice(&kept[..range.len()]),
                            None => frame.bytes_mut()[range].fill(0),
                        },
                    }
                }
            }
            self.done.push(CompletedJob { job, result: Ok(()) });
        }
    }

    fn finished(&mut self, done: &mut Vec<CompletedJob>) {
        done.append(&mut self.done);
    }

    fn forget(&mut self, at: u64, len: usize) {
        for part in (0..len as u64).step_by(PAGE) {
            self.pages.remove(&((at + part) / PAGE as u64));
        }
    }

    fn memory(&self) -> Bytes {
        Bytes((self.pages.len() * PAGE) as u64)
    }
}
