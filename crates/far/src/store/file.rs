//! Files without a name, striped over folders (one a device), read and written past the page cache
//! with many operations under way. Where the kernel offers no `io_uring`, one after the other:
//! slower, and it says so.

use super::{BackingStore, CompletedJob, StoreBuffer, StoreError, StoreJob};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use terrace_sys::{wait_readable, Ring, StoreFile, SysError, Transfer};
use terrace_types::{Bytes, Nanos};

/// Bytes that lie together in one file: at least the largest chunk, so that no piece is torn apart.
const STRIPE: u64 = 2 << 20;
/// Operations under way.
const DEPTH: u32 = 128;

#[derive(Debug)]
enum Engine {
    Ring(Box<Ring>),
    Plain(Vec<File>, Vec<CompletedJob>),
}

/// A store in files.
#[derive(Debug)]
pub struct FileStore {
    engine: Engine,
    files: u64,
    direct: bool,
    without_ring: Option<String>,
}

impl FileStore {
    /// Makes one file in each folder; together they hold `bytes`, for which the space is taken now.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: no folder, no permission, disk full.
    pub fn create(folders: &[&Path], bytes: Bytes) -> Result<Self, StoreError> {
        let each = bytes.0.div_ceil(STRIPE).div_ceil(folders.len().max(1) as u64) * STRIPE;
        Self::from_files(
            folders.iter().map(|f| StoreFile::create(f, each)).collect::<Result<_, SysError>>()?,
        )
    }

    /// As [`FileStore::create`], but space is taken as it is written, so that `bytes` may exceed
    /// what there is. A disk that fills up is a write that fails: the data stays in memory.
    ///
    /// # Errors
    /// [`StoreError::Setup`]: no folder, no permission.
    pub fn sparse(folders: &[&Path], bytes: Bytes) -> Result<Self, StoreError> {
        let each = bytes.0.div_ceil(STRIPE).div_ceil(folders.len().max(1) as u64) * STRIPE;
        Self::from_files(
            folders.iter().map(|f| StoreFile::sparse(f, each)).collect::<Result<_, SysError>>()?,
        )
    }

    pub(super) fn from_files(made: Vec<StoreFile>) -> Result<Self, StoreError> {
        if made.is_empty() {
            let nothing = SysError::from_errno("open", "no folder", 2, "name at least one folder");
            return Err(nothing.into());
        }
        let direct = made.iter().all(|m| m.direct);
        let files: Vec<File> = made.into_iter().map(|m| m.file).collect();
        let clones = files.iter().map(File::try_clone).collect::<std::io::Result<Vec<File>>>();
        let clones = clones.map_err(|e| {
            SysError::from_io("dup", "a store file", &e, "raise the limit on open files")
        })?;
        let count = files.len() as u64;
        let (engine, without_ring) = match Ring::new(DEPTH, files) {
            Ok(ring) => (Engine::Ring(Box::new(ring)), None),
            Err(error) => (Engine::Plain(clones, Vec::new()), Some(error.to_string())),
        };
        Ok(Self { engine, files: count, direct, without_ring })
    }

    fn place(&self, at: u64) -> (usize, u64) {
        let stripe = at / STRIPE;
        ((stripe % self.files) as usize, stripe / self.files * STRIPE + at % STRIPE)
    }

    /// For tests: as where the kernel offers no ring.
    #[cfg(test)]
    pub(crate) fn without_ring(mut self) -> Self {
        if let Engine::Ring(ring) = self.engine {
            self.engine = Engine::Plain(ring.into_files(), Vec::new());
            self.without_ring = Some("a test".to_owned());
        }
        self
    }
}

fn failed(job: &StoreJob, errno: i32) -> StoreError {
    let what = if matches!(job.buffer, StoreBuffer::Fill(_)) { "reading" } else { "writing" };
    StoreError::Io { store: "file", what, at: job.pieces.first().map_or(0, |p| p.at), errno }
}

impl BackingStore for FileStore {
    fn name(&self) -> &'static str {
        "file"
    }

    fn begin(&mut self, jobs: &mut Vec<StoreJob>) {
        let places: Vec<Vec<(usize, u64)>> =
            jobs.iter().map(|j| j.pieces.iter().map(|p| self.place(p.at)).collect()).collect();
        match &mut self.engine {
            Engine::Ring(ring) => {
                for (job, places) in jobs.drain(..).zip(places) {
                    let pieces = job.pieces.iter().zip(places);
                    let pieces = pieces
                        .map(|(p, (file, offset))| terrace_sys::TransferPiece {
                            file,
                            offset,
                            start: p.start,
                            len: p.len,
                        })
                        .collect();
                    let buffer = match job.buffer {
                        StoreBuffer::Fill(frame) => terrace_sys::TransferBuffer::Fill(frame),
                        StoreBuffer::Send(frame) => terrace_sys::TransferBuffer::Send(frame),
                    };
                    ring.begin(Transfer { tag: job.tag, buffer, pieces });
                }
                // What the kernel does not take now stays queued; `finished` tries again.
                let _tried_again = ring.submit();
            }
            Engine::Plain(files, done) => {
                for (mut job, places) in jobs.drain(..).zip(places) {
                    let result = plain(files, &mut job, &places);
                    done.push(CompletedJob { job, result });
                }
            }
        }
    }

    fn finished(&mut self, done: &mut Vec<CompletedJob>) {
        match &mut self.engine {
            Engine::Ring(ring) => {
                let mut ended = Vec::new();
                let _tried_again = ring.finished(&mut ended);
                for (transfer, errno) in ended {
                    let buffer = match transfer.buffer {
                        terrace_sys::TransferBuffer::Fill(frame) => StoreBuffer::Fill(frame),
                        terrace_sys::TransferBuffer::Send(frame) => StoreBuffer::Send(frame),
                    };
                    let files = self.files;
                    let pieces = transfer.pieces.iter().map(|p| super::JobPiece {
                        at: (p.offset / STRIPE * files + p.file as u64) * STRIPE
                            + p.offset % STRIPE,
                        start: p.start,
                        len: p.len,
                    });
                    let job = StoreJob { tag: transfer.tag, pieces: pieces.collect(), buffer };
                    let result = if errno == 0 { Ok(()) } else { Err(failed(&job, errno)) };
                    done.push(CompletedJob { job, result });
                }
            }
            Engine::Plain(_, ended) => done.append(ended),
        }
    }

    fn signals_completion(&self) -> bool {
        matches!(self.engine, Engine::Ring(_))
    }

    fn wait(&mut self, others: &[BorrowedFd<'_>], limit: Option<Nanos>) -> Result<u64, SysError> {
        match &mut self.engine {
            Engine::Ring(ring) => ring.wait(others, limit),
            Engine::Plain(..) => wait_readable(others, limit),
        }
    }

    fn forget(&mut self, _at: u64, _len: usize) {
        // The space stays taken: giving it back would cost a call now and the space later.
    }

    fn gap(&self) -> usize {
        // A device takes longer for another operation than for some pages more.
        16 << 10
    }

    fn remark(&self) -> Option<String> {
        match (&self.without_ring, self.direct) {
            (Some(why), _) => Some(format!("no io_uring, so one operation at a time: {why}")),
            (None, false) => Some(
                "this file system has no direct I/O, so data is also in the page cache".to_owned(),
            ),
            (None, true) => None,
        }
    }
}

fn plain(files: &[File], job: &mut StoreJob, places: &[(usize, u64)]) -> Result<(), StoreError> {
    let pieces = job.pieces.clone();
    for (p, (file, offset)) in pieces.iter().zip(places) {
        let range = p.start..p.start + p.len;
        let result = match &mut job.buffer {
            StoreBuffer::Fill(frame) => {
                files[*file].read_exact_at(&mut frame.bytes_mut()[range], *offset)
            }
            StoreBuffer::Send(frame) => files[*file].write_all_at(&frame.bytes()[range], *offset),
        };
        // An early end has no number of the kernel's: ENODATA, as from the ring.
        result.map_err(|e| failed(job, e.raw_os_error().unwrap_or(61)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_all_files_without_overlap() {
        let folder = std::env::temp_dir();
        let folders = [folder.as_path(), folder.as_path(), folder.as_path()];
        let store = FileStore::create(&folders, Bytes::mib(32)).unwrap();
        let mut seen = std::collections::HashSet::new();
        for at in (0..32_u64 << 20).step_by(1 << 20) {
            let (file, offset) = store.place(at);
            assert!(file < 3 && offset < 12 << 20, "{at}: file {file} at {offset}");
            assert!(seen.insert((file, offset)));
        }
    }

    #[test]
    fn without_a_ring_it_works_and_says_so() {
        let store = FileStore::create(&[std::env::temp_dir().as_path()], Bytes::mib(8))
            .unwrap()
            .without_ring();
        assert!(store.remark().is_some_and(|r| r.contains("no io_uring")));
        let made = crate::FarMap::new(Bytes::mib(8), Bytes::mib(3), Box::new(store));
        let map = match made {
            Ok(map) => map,
            Err(error) => return println!("skipped: {error}"),
        };
        for (n, w) in map.words().iter().enumerate() {
            w.store(n as u64, std::sync::atomic::Ordering::Relaxed);
        }
        for (n, w) in map.words().iter().enumerate() {
            assert_eq!(w.load(std::sync::atomic::Ordering::Relaxed), n as u64);
        }
        assert!(map.statistics().counts.read_bytes > 0);
    }
}
