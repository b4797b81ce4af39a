//! A file that is there: its bytes are far memory, and what is written stays in it.

use super::{BackingStore, CompletedJob, FileStore, StoreBuffer, StoreError, StoreJob};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use terrace_sys::{StoreFile, SysError};
use terrace_types::{Bytes, Nanos};

/// The store.
#[derive(Debug)]
pub struct ExistingFile {
    inner: FileStore,
    /// The same file through the page cache: direct operations end at whole blocks, and a file need
    /// not.
    plain: File,
    bytes: u64,
    ended: Vec<CompletedJob>,
}

impl ExistingFile {
    /// Opens it.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: no such file, no permission, an empty file or not an ordinary one.
    pub fn open(path: &Path, writable: bool) -> Result<Self, StoreError> {
        let (file, plain, bytes) = StoreFile::existing(path, writable)?;
        Ok(Self { inner: FileStore::from_files(vec![file])?, plain, bytes, ended: Vec::new() })
    }

    /// Whether a job goes beyond the file's last whole block.
    fn ends_within(&self, job: &StoreJob) -> bool {
        let block = terrace_sys::page_size().get();
        let whole = self.bytes / block * block;
        job.pieces.iter().any(|p| p.at + p.len as u64 > whole)
    }

    /// One that reaches the end of the file, at once. Beyond the end there are zeros, and nothing
    /// is written.
    fn at_once(&self, job: &mut StoreJob) -> Result<(), StoreError> {
        for p in job.pieces.clone() {
            let len = (self.bytes.saturating_sub(p.at) as usize).min(p.len);
            let range = p.start..p.start + len;
            let (what, result) = match &mut job.buffer {
                StoreBuffer::Fill(frame) => {
                    frame.bytes_mut()[range.end..p.start + p.len].fill(0);
                    ("reading", self.plain.read_exact_at(&mut frame.bytes_mut()[range], p.at))
                }
                StoreBuffer::Send(frame) => {
                    ("writing", self.plain.write_all_at(&frame.bytes()[range], p.at))
                }
            };
            // An early end has no number of the kernel's: ENODATA, as from the ring.
            let errno = |e: &std::io::Error| e.raw_os_error().unwrap_or(61);
            result.map_err(|e| StoreError::Io {
                store: "file",
                what,
                at: p.at,
                errno: errno(&e),
            })?;
        }
        Ok(())
    }
}

impl BackingStore for ExistingFile {
    fn name(&self) -> &'static str {
        "file"
    }

    fn begin(&mut self, jobs: &mut Vec<StoreJob>) {
        let (ends, mut rest): (Vec<StoreJob>, Vec<StoreJob>) =
            jobs.drain(..).partition(|job| self.ends_within(job));
        for mut job in ends {
            let result = self.at_once(&mut job);
            self.ended.push(CompletedJob { job, result });
        }
        self.inner.begin(&mut rest);
    }

    fn finished(&mut self, done: &mut Vec<CompletedJob>) {
        done.append(&mut self.ended);
        self.inner.finished(done);
    }

    fn signals_completion(&self) -> bool {
        self.inner.signals_completion()
    }

    fn wait(&mut self, others: &[BorrowedFd<'_>], limit: Option<Nanos>) -> Result<u64, SysError> {
        self.inner.wait(others, limit)
    }

    fn forget(&mut self, _at: u64, _len: usize) {
        // Nothing of a file is forgotten: see `holds`.
    }

    fn holds(&self) -> Bytes {
        Bytes(self.bytes)
    }

    fn gap(&self) -> usize {
        self.inner.gap()
    }

    fn remark(&self) -> Option<String> {
        self.inner.remark()
    }
}
