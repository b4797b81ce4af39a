//! Where blocks go once they are complete: packed and written at once, or by a thread of their own.

use crate::encode::ColumnEncoder;
use crate::error::TraceError;
use crate::frame::{section, BlockInfo, BlockKind};
use crate::pack::Packer;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Blocks that may wait for the thread that writes; each is half a megabyte. Who makes more waits.
const WAITING: usize = 8;

/// What a block's head says of it, but for what packing tells.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub kind: BlockKind,
    pub process: u32,
    pub thread: u32,
    pub count: u32,
    pub stores: u32,
    /// First and last time.
    pub span: (u64, u64),
}

/// A block's content.
#[derive(Debug)]
pub enum Content {
    Accesses(Box<ColumnEncoder>),
    /// Events as they lie in the section.
    Events(Vec<u8>),
    /// The end of the trace, and what it lacks, as that lies in the section.
    End(Vec<u8>),
}

/// Packs and writes.
#[derive(Debug)]
struct DirectSink<W> {
    out: W,
    offset: u64,
    packer: Packer,
    failed: bool,
}

impl<W: Write> DirectSink<W> {
    fn write(&mut self, head: Head, content: &mut Content) -> Result<(), TraceError> {
        let offset = self.offset;
        if self.failed {
            return Err(behind_a_failure(offset));
        }
        self.packer.begin();
        match content {
            Content::Accesses(columns) => columns.pack(&mut self.packer)?,
            Content::Events(events) => self.packer.section(section::EVENTS, events)?,
            Content::End(omissions) => self.packer.section(section::OMISSIONS, omissions)?,
        }
        let payload = self.packer.payload();
        let (first_time, last_time) = head.span;
        let info = BlockInfo {
            offset,
            kind: head.kind,
            process: head.process,
            thread: head.thread,
            count: head.count,
            stores: head.stores,
            first_time,
            last_time,
            payload_bytes: payload.len() as u32,
            payload_crc: crc32fast::hash(payload),
        };
        let done = self.out.write_all(&info.to_bytes()).and_then(|()| self.out.write_all(payload));
        if let Err(source) = done {
            self.failed = true;
            return Err(TraceError::Write { offset, source });
        }
        self.offset += info.stored_bytes();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TraceError> {
        self.out.flush().map_err(|source| TraceError::Write { offset: self.offset, source })
    }
}

/// Behind a block that was written in part, nothing could be found again.
fn behind_a_failure(offset: u64) -> TraceError {
    TraceError::Write {
        offset,
        source: std::io::Error::other("an earlier block could not be written"),
    }
}

/// What the thread is handed.
enum SinkJob {
    Block(Head, Content),
    /// Everything before is to be written and flushed; then say so.
    Flush(Sender<()>),
}

/// The thread that writes, as others see it.
#[derive(Debug)]
struct ThreadedSink<W> {
    jobs: SyncSender<SinkJob>,
    /// Columns to use again.
    empty: Receiver<Box<ColumnEncoder>>,
    errors: Receiver<TraceError>,
    offset: Arc<AtomicU64>,
    failed: bool,
    thread: JoinHandle<DirectSink<W>>,
}

impl<W: Write + Send + 'static> ThreadedSink<W> {
    fn begin(mut here: DirectSink<W>) -> std::io::Result<Self> {
        let (jobs, todo) = sync_channel(WAITING);
        let (give_back, empty) = channel();
        let (tell, errors) = channel();
        let offset = Arc::new(AtomicU64::new(here.offset));
        let reached = offset.clone();
        let thread = std::thread::Builder::new().name("trace-writer".into()).spawn(move || {
            for job in todo {
                let done = match job {
                    // After a failure blocks are only taken, so that nobody waits for space.
                    SinkJob::Block(..) if here.failed => Ok(()),
                    SinkJob::Block(head, mut content) => {
                        let done = here.write(head, &mut content);
                        // A block that could not be packed is as lost as one that could not be
                        // written.
                        here.failed |= done.is_err();
                        if let Content::Accesses(mut columns) = content {
                            columns.clear();
                            let _nobody_wants_it = give_back.send(columns);
                        }
                        done
                    }
                    SinkJob::Flush(done) => {
                        let flushed = if here.failed { Ok(()) } else { here.flush() };
                        drop(done);
                        flushed
                    }
                };
                reached.store(here.offset, Ordering::Relaxed);
                if let Err(error) = done {
                    let _nobody_asks = tell.send(error);
                }
            }
            here
        })?;
        Ok(Self { jobs, empty, errors, offset, failed: false, thread })
    }
}

impl<W> ThreadedSink<W> {
    fn write(&mut self, head: Head, content: Content) -> Result<(), TraceError> {
        self.check()?;
        // The thread ends only by a panic while somebody can send.
        self.jobs.send(SinkJob::Block(head, content)).map_err(|_| self.lost())
    }

    /// What went wrong meanwhile.
    fn check(&mut self) -> Result<(), TraceError> {
        if self.failed {
            return Err(behind_a_failure(self.offset.load(Ordering::Relaxed)));
        }
        match self.errors.try_recv() {
            Ok(error) => {
                self.failed = true;
                Err(error)
            }
            Err(_) => Ok(()),
        }
    }

    fn lost(&self) -> TraceError {
        let source = std::io::Error::other("the thread that writes the trace has ended");
        TraceError::Write { offset: self.offset.load(Ordering::Relaxed), source }
    }

    fn flush(&mut self) -> Result<(), TraceError> {
        let (done, wait) = channel();
        self.jobs.send(SinkJob::Flush(done)).map_err(|_| self.lost())?;
        // Nothing is ever sent: the sender is dropped once all is done.
        let _dropped = wait.recv();
        self.check()
    }

    fn finish(self) -> Result<DirectSink<W>, TraceError> {
        let lost = self.lost();
        drop(self.jobs);
        let here = self.thread.join().map_err(|_| lost)?;
        match self.errors.try_recv() {
            Ok(error) => Err(error),
            Err(_) => Ok(here),
        }
    }
}

#[derive(Debug)]
enum State<W> {
    Here(DirectSink<W>),
    /// A thread will write; it is begun with the first block.
    Soon(DirectSink<W>, fn(DirectSink<W>) -> std::io::Result<ThreadedSink<W>>),
    Behind(ThreadedSink<W>),
    /// The thread could not be begun, or has taken what was to be written with it.
    Lost,
}

/// See the module.
#[derive(Debug)]
pub struct Sink<W> {
    state: State<W>,
    /// In the boxes they were handed over in.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<ColumnEncoder>>,
}

impl<W: Write> Sink<W> {
    /// Writes at once, from `offset` of the file on.
    pub fn new(out: W, offset: u64) -> Result<Self, TraceError> {
        let here = DirectSink { out, offset, packer: Packer::new()?, failed: false };
        Ok(Self { state: State::Here(here), spare: Vec::new() })
    }

    /// Bytes written whole so far.
    pub fn written(&self) -> u64 {
        match &self.state {
            State::Here(here) | State::Soon(here, _) => here.offset,
            State::Behind(behind) => behind.offset.load(Ordering::Relaxed),
            State::Lost => 0,
        }
    }

    /// Columns for the next block.
    pub fn empty(&mut self) -> Box<ColumnEncoder> {
        if let State::Behind(behind) = &self.state {
            self.spare.extend(behind.empty.try_iter());
        }
        self.spare.pop().unwrap_or_default()
    }

    /// Writes a block, or sees to it that it will be. An error may be that of an earlier block.
    pub fn write(&mut self, head: Head, mut content: Content) -> Result<(), TraceError> {
        self.begin()?;
        match &mut self.state {
            State::Here(here) | State::Soon(here, _) => {
                let done = here.write(head, &mut content);
                if let Content::Accesses(mut columns) = content {
                    columns.clear();
                    self.spare.push(columns);
                }
                done
            }
            State::Behind(behind) => behind.write(head, content),
            State::Lost => Err(behind_a_failure(0)),
        }
    }

    fn begin(&mut self) -> Result<(), TraceError> {
        if let State::Soon(..) = self.state {
            if let State::Soon(here, begin) = std::mem::replace(&mut self.state, State::Lost) {
                let offset = here.offset;
                let behind = begin(here).map_err(|source| TraceError::Write { offset, source })?;
                self.state = State::Behind(behind);
            }
        }
        Ok(())
    }

    /// Waits until all is written.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        match &mut self.state {
            State::Here(here) | State::Soon(here, _) => here.flush(),
            State::Behind(behind) => behind.flush(),
            State::Lost => Err(behind_a_failure(0)),
        }
    }

    /// Waits until the thread that writes has ended.
    pub fn abandon(self) {
        if let State::Behind(behind) = self.state {
            drop(behind.jobs);
            // Whether it panicked does not matter any more.
            let _nothing_to_report = behind.thread.join();
        }
    }

    /// Waits until all is written; where it was written.
    pub fn finish(self) -> Result<W, TraceError> {
        let mut here = match self.state {
            State::Here(here) | State::Soon(here, _) => here,
            State::Behind(behind) => behind.finish()?,
            State::Lost => return Err(behind_a_failure(0)),
        };
        here.flush()?;
        Ok(here.out)
    }
}

impl<W: Write + Send + 'static> Sink<W> {
    /// From the first block on, a thread packs and writes. It is begun by whoever hands over that
    /// block, and has its signal mask.
    pub fn threaded(self) -> Self {
        match self.state {
            State::Here(here) => Self { state: State::Soon(here, ThreadedSink::begin), ..self },
            _ => self,
        }
    }
}
