//! What the pager asks for, done: pages installed, taken away, read and written.

use super::*;

impl Service {
    pub(super) fn perform(&mut self, action: PagerAction) -> Result<(), SysError> {
        let g = self.pager.geometry();
        match action {
            PagerAction::Read { chunk, mask } => self.begin_read(chunk, mask),
            PagerAction::Write { chunk, mask } => self.begin_write(chunk, mask),
            PagerAction::Install { chunk, mask, .. }
            | PagerAction::Zeros { chunk, mask, .. }
            | PagerAction::Unprotect { chunk, mask } => self.let_go_on(action, chunk, mask)?,
            PagerAction::Wake { chunk, mask, tid } => {
                self.look_after(chunk, mask, tid);
                self.let_go_on(action, chunk, mask)?;
            }
            PagerAction::Release { chunk } => self.release(chunk),
            PagerAction::Extract { chunk, mask, dirty } => self.extract(chunk, mask, dirty),
            PagerAction::CopyOut { chunk, mask } => self.copy_out(chunk, mask)?,
            PagerAction::Poison { chunk, mask, tid, first } => {
                self.poison(chunk, mask, tid, first)?
            }
            PagerAction::Forget { chunk, mask } => {
                for part in g.parts(chunk, mask) {
                    self.store.forget(part.start as u64, part.len());
                }
            }
            PagerAction::Cure { chunk, mask } => {
                for part in g.parts(chunk, mask) {
                    self.shared.area.cure(&part);
                }
            }
            PagerAction::Detach { chunk, mask } => {
                g.parts(chunk, mask).for_each(|part| self.shared.area.detach(&part));
            }
            PagerAction::Answer { command, ok } => {
                if let Some(reply) = self.state.answers.remove(&command) {
                    reply.give(ok);
                }
            }
            PagerAction::Drop { .. } => {}
        }
        Ok(())
    }

    /// Who is woken for a page that is not there comes back at once, for ever. Some of those that
    /// are woken are looked at: who comes back is, soon.
    pub(super) fn look_after(&mut self, chunk: ChunkNo, mask: PageMask, tid: Tid) {
        self.state.wakes = self.state.wakes.wrapping_add(1);
        if self.state.wakes % WAKE_SAMPLE_INTERVAL != 0 {
            return;
        }
        let mut parts = self.pager.geometry().parts(chunk, mask);
        // Where the kernel does not tell, nothing is known against it.
        let gone = parts.any(|part| self.shared.area.is_there(&part).is_ok_and(|there| !there));
        if gone && self.pager.vanished(chunk, mask, tid) {
            self.state.why.insert(chunk, "it was unmapped by somebody else".to_owned());
        }
    }

    pub(super) fn take_frame(&mut self, chunk: ChunkNo) -> Option<ChunkFrame> {
        match self.state.frame_states.remove(&chunk) {
            Some(FrameState::Mine(frame)) => Some(frame),
            Some(FrameState::Protected(mut frame)) => {
                frame.empty();
                Some(frame)
            }
            _ => self.free.pop().or_else(|| self.bare.pop()),
        }
    }

    pub(super) fn pieces(&self, chunk: ChunkNo, mask: PageMask) -> Vec<JobPiece> {
        let g = self.pager.geometry();
        let base = u64::from(chunk) * g.chunk_bytes() as u64;
        let piece = |p: Range<usize>| JobPiece {
            at: p.start as u64,
            start: p.start - base as usize,
            len: p.len(),
        };
        g.parts(chunk, mask).map(piece).collect()
    }

    pub(super) fn begin_read(&mut self, chunk: ChunkNo, mask: PageMask) {
        let Some(frame) = self.take_frame(chunk) else {
            return;
        };
        let mut pieces = self.pieces(chunk, mask);
        let gap = self.store.gap();
        // What lies between is read into the frame as well, and not looked at.
        pieces.dedup_by(|next, before| {
            let end = before.start + before.len;
            let near = next.start - end <= gap;
            if near {
                before.len = next.start + next.len - before.start;
            }
            near
        });
        self.state.frame_states.insert(chunk, FrameState::Away);
        self.state.under_way.insert(chunk, mask);
        self.state.reads.push(StoreJob {
            tag: u64::from(chunk),
            buffer: StoreBuffer::Fill(frame),
            pieces,
        });
    }

    pub(super) fn begin_write(&mut self, chunk: ChunkNo, mask: PageMask) {
        let (frame, protected) = match self.state.frame_states.remove(&chunk) {
            Some(FrameState::Mine(frame)) => (frame, false),
            Some(FrameState::Protected(frame)) => (frame, true),
            _ => return,
        };
        // One that was on trial is at work from here on: another frame's memory goes for it.
        while self.free.len() + self.pager.at_work() > self.pager.frames() {
            let Some(mut spare) = self.free.pop() else {
                break;
            };
            spare.empty();
            self.bare.push(spare);
        }
        let pieces = self.pieces(chunk, mask);
        self.sum_up(chunk, mask, &frame);
        let frame = Arc::new(frame);
        if protected {
            self.state.protected.insert(chunk);
        }
        self.state.frame_states.insert(chunk, FrameState::Shared(Arc::clone(&frame)));
        self.state.under_way.insert(chunk, mask);
        self.state.writes.push(StoreJob {
            tag: u64::from(chunk),
            buffer: StoreBuffer::Send(frame),
            pieces,
        });
    }

    pub(super) fn release(&mut self, chunk: ChunkNo) {
        let (frame, protected) = match self.state.frame_states.remove(&chunk) {
            Some(FrameState::Mine(frame)) => (Some(frame), false),
            Some(FrameState::Protected(frame)) => (Some(frame), true),
            Some(FrameState::Shared(frame)) => {
                (Arc::try_unwrap(frame).ok(), self.state.protected.remove(&chunk))
            }
            Some(FrameState::Away) | None => (None, false),
        };
        let Some(mut frame) = frame else {
            return;
        };
        // Together, those at work and those that keep their memory are what the map set aside for
        // frames.
        if !protected && self.free.len() + self.pager.at_work() < self.pager.frames() {
            self.free.push(frame);
        } else {
            frame.empty();
            self.bare.push(frame);
        }
    }

    /// The threads that wait is woken, or is to be woken `later`.
    pub(super) fn install(
        &self,
        chunk: ChunkNo,
        mask: PageMask,
        protect: bool,
        mut later: Option<&mut Vec<Range<usize>>>,
    ) -> Result<(), SysError> {
        let frame: &ChunkFrame = match self.state.frame_states.get(&chunk) {
            Some(FrameState::Mine(frame) | FrameState::Protected(frame)) => frame,
            Some(FrameState::Shared(frame)) => frame,
            Some(FrameState::Away) | None => return Ok(()),
        };
        let g = self.pager.geometry();
        let base = chunk as usize * g.chunk_bytes();
        for part in g.parts(chunk, mask) {
            patiently(|| {
                self.shared.area.install(&part, frame, part.start - base, protect, later.is_none())
            })?;
            if let Some(later) = &mut later {
                later.push(part);
            }
        }
        Ok(())
    }

    pub(super) fn extract(&mut self, chunk: ChunkNo, mask: PageMask, dirty: PageMask) {
        // Emptied, for pages are moved there; and of a chunk on trial only what its frame holds is
        // counted.
        let kept = self.free.pop().map(|mut frame| {
            frame.empty();
            frame
        });
        let Some(mut frame) = kept.or_else(|| self.bare.pop()) else {
            self.pager.extracted(chunk, 0, 0, now());
            return;
        };
        let g = self.pager.geometry();
        let base = chunk as usize * g.chunk_bytes();
        let mut got = 0;
        let parts = g
            .parts(chunk, mask & dirty)
            .map(|p| (p, false))
            .chain(g.parts(chunk, mask & !dirty).map(|p| (p, true)));
        for (part, protected) in parts {
            let to = part.start - base;
            let out = self.shared.area.extract(&part, &mut frame, to, protected);
            let whole = if out.bytes == part.len() {
                out.bytes
            } else {
                out.bytes / g.page_bytes() * g.page_bytes()
            };
            if whole < out.bytes {
                // A page of several pages of which some stay: all of it stays.
                let back = part.start + whole..part.start + out.bytes;
                let _mapped_already =
                    self.shared.area.install(&back, &frame, to + whole, protected, true);
            }
            for (_, m) in g.cover(part.start as u64..(part.start + whole) as u64, true) {
                got |= m;
            }
        }
        let zeros = self.zeros(chunk, got & dirty, &frame);
        // What was clean was mapped against writing, and moves as it is.
        let state =
            if mask & !dirty == 0 { FrameState::Mine(frame) } else { FrameState::Protected(frame) };
        self.state.frame_states.insert(chunk, state);
        self.pager.extracted(chunk, got, zeros, now());
    }

    pub(super) fn copy_out(&mut self, chunk: ChunkNo, mask: PageMask) -> Result<(), SysError> {
        let Some(mut frame) = self.take_frame(chunk) else {
            self.pager.extracted(chunk, 0, 0, now());
            return Ok(());
        };
        let g = self.pager.geometry();
        let base = chunk as usize * g.chunk_bytes();
        for part in g.parts(chunk, mask) {
            self.shared.area.copy_out(&part, &mut frame, part.start - base)?;
        }
        let zeros = self.zeros(chunk, mask, &frame);
        self.state.frame_states.insert(chunk, FrameState::Mine(frame));
        self.pager.extracted(chunk, mask, zeros, now());
        Ok(())
    }

    pub(super) fn poison(
        &mut self,
        chunk: ChunkNo,
        mask: PageMask,
        tid: Tid,
        first: bool,
    ) -> Result<(), SysError> {
        let why = self.state.why.remove(&chunk);
        for part in self.pager.geometry().parts(chunk, mask) {
            if first {
                let range = part.start as u64..part.end as u64;
                let address = self.shared.area.address() + range.start;
                let why = why.clone().unwrap_or_else(|| "its store failed".to_owned());
                (self.on_lost)(&LostBytes { range, address, thread: tid, why });
            }
            self.shared.area.poison(&part, tid)?;
        }
        Ok(())
    }
}
