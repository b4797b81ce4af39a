//! Reads traces.

use crate::decode::Block;
use crate::error::TraceError;
use crate::event::TraceHeader;
use crate::frame::{section, BlockInfo, BlockKind, HEAD, MAGIC, MAX_HEADER, VERSION};
use crate::omissions;
use crate::pack::Unpacker;
use std::io::{self, Read, Seek, SeekFrom};

/// Reads a trace: the list of blocks at once, their content when asked.
///
/// Opening goes from head to head over the blocks without reading them, so it takes a moment even
/// for a long trace and works for one that was cut off. To read a trace on several cores, open it
/// several times.
#[derive(Debug)]
pub struct TraceReader<R> {
    input: R,
    header: TraceHeader,
    blocks: Vec<BlockInfo>,
    length: u64,
    finished: bool,
    omissions: Vec<String>,
    damage: Option<TraceError>,
    next: usize,
    payload: Vec<u8>,
}

impl<R: Read + Seek> TraceReader<R> {
    /// Reads the header and finds the blocks.
    ///
    /// # Errors
    /// [`TraceError::NotATrace`], [`TraceError::Version`], [`TraceError::Header`] or
    /// [`TraceError::Read`]. Damage behind the header is no error here: see
    /// [`TraceReader::damage`].
    pub fn open(mut input: R) -> Result<Self, TraceError> {
        let (header, start) = read_header(&mut input)?;
        let length = input
            .seek(SeekFrom::End(0))
            .map_err(|source| TraceError::Read { offset: start, source })?;
        let mut reader = Self {
            input,
            header,
            blocks: Vec::new(),
            length,
            finished: false,
            omissions: Vec::new(),
            damage: None,
            next: 0,
            payload: Vec::new(),
        };
        if let Err(error) = reader.find_blocks(start) {
            match error {
                TraceError::Read { .. } => return Err(error),
                damage => reader.damage = Some(damage),
            }
        }
        Ok(reader)
    }

    fn find_blocks(&mut self, start: u64) -> Result<(), TraceError> {
        let mut offset = start;
        while offset < self.length && !self.finished {
            let cut = TraceError::Damaged { offset, why: "the file ends within it" };
            if self.length - offset < HEAD as u64 {
                return Err(cut);
            }
            let mut head = [0; HEAD];
            let read = self
                .input
                .seek(SeekFrom::Start(offset))
                .and_then(|_| self.input.read_exact(&mut head));
            read.map_err(|source| TraceError::Read { offset, source })?;
            let info = BlockInfo::from_bytes(&head, offset)?;
            if info.stored_bytes() > self.length - offset {
                return Err(cut);
            }
            offset += info.stored_bytes();
            self.finished = info.kind == BlockKind::End;
            if self.finished {
                self.omissions = self.read_omissions(&info)?;
            } else {
                self.blocks.push(info);
            }
        }
        Ok(())
    }

    /// What the END block says is missing; its head has just been read.
    fn read_omissions(&mut self, end: &BlockInfo) -> Result<Vec<String>, TraceError> {
        let offset = end.offset;
        let failed = |source| TraceError::Read { offset, source };
        let damaged = |why| TraceError::Damaged { offset, why };
        let mut payload = vec![0; end.payload_bytes as usize];
        self.input.read_exact(&mut payload).map_err(failed)?;
        if crc32fast::hash(&payload) != end.payload_crc {
            return Err(damaged("its checksum does not match"));
        }
        if payload.len() <= 1 {
            return Ok(Vec::new());
        }
        let mut unpacker = Unpacker::new().map_err(failed)?;
        unpacker.unpack(&payload).map_err(damaged)?;
        Ok(omissions::from_bytes(unpacker.get(section::OMISSIONS)))
    }

    /// What the trace says of itself.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// All blocks that were found, in the order of the file. Of a thread, they are in the order of
    /// its execution.
    pub fn blocks(&self) -> &[BlockInfo] {
        &self.blocks
    }

    /// Bytes of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether it was written to its end. A trace that was not has been cut off, or is still being
    /// written.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// What the recorder knew to be missing when it finished, one sentence each.
    pub fn omissions(&self) -> &[String] {
        &self.omissions
    }

    /// Whether the trace holds all that its recorder was asked for, as far as is known without
    /// reading all blocks: it was written to its end, no block's head is damaged, and the recorder
    /// missed nothing.
    pub fn is_complete(&self) -> bool {
        self.finished && self.damage.is_none() && self.omissions.is_empty()
    }

    /// Why the trace is not complete, one sentence each; empty for a complete one. Whoever shows
    /// figures of a trace repeats them.
    pub fn shortcomings(&self) -> Vec<String> {
        let mut all: Vec<String> = self.damage.iter().map(ToString::to_string).collect();
        if !self.finished && self.damage.is_none() {
            all.push("the recording was not written to its end".to_owned());
        }
        all.extend(self.omissions.iter().map(|o| format!("the recording is incomplete: {o}")));
        all
    }

    /// What stopped the search for blocks, if anything did.
    pub fn damage(&self) -> Option<&TraceError> {
        self.damage.as_ref()
    }

    /// Positions in [`TraceReader::blocks`] of access blocks of one thread (or all, with `None`)
    /// that may hold accesses of `from <= time < until`.
    pub fn select(
        &self,
        thread: Option<u32>,
        from: u64,
        until: u64,
    ) -> impl Iterator<Item = usize> + '_ {
        self.blocks.iter().enumerate().filter_map(move |(i, b)| {
            let asked = b.kind == BlockKind::Accesses
                && thread.is_none_or(|t| t == b.thread)
                && b.last_time >= from
                && b.first_time < until;
            asked.then_some(i)
        })
    }

    /// Reads the block at this position of [`TraceReader::blocks`].
    ///
    /// # Errors
    /// [`TraceError::Damaged`], after which `block` is empty and other blocks can still be read;
    /// [`TraceError::Read`].
    pub fn read(&mut self, position: usize, block: &mut Block) -> Result<(), TraceError> {
        self.read_as(position, block, false)
    }

    /// As [`TraceReader::read`], of an access block into [`Block::packed`] in place of
    /// [`Block::addresses`] and [`Block::gaps`], which is faster. Where an address has more than 48
    /// bits, or the thread waited within the block ([`Block::jumps`]), it is read as ever.
    ///
    /// # Errors
    /// As [`TraceReader::read`].
    pub fn read_packed(&mut self, position: usize, block: &mut Block) -> Result<(), TraceError> {
        self.read_as(position, block, true)
    }

    fn read_as(
        &mut self,
        position: usize,
        block: &mut Block,
        pack: bool,
    ) -> Result<(), TraceError> {
        let Some(info) = self.blocks.get(position).copied() else {
            return Err(TraceError::Unfit("a block that the trace does not have"));
        };
        let offset = info.offset;
        self.payload.resize(info.payload_bytes as usize, 0);
        let start = SeekFrom::Start(offset + HEAD as u64);
        let read = self.input.seek(start).and_then(|_| self.input.read_exact(&mut self.payload));
        read.map_err(|source| TraceError::Read { offset, source })?;
        block.decode(info, &self.payload, pack).map_err(|why| TraceError::Damaged { offset, why })
    }

    /// Reads the next block of the file; `false` after the last. A damaged block is an error once,
    /// and the next call goes on behind it.
    ///
    /// # Errors
    /// As [`TraceReader::read`].
    pub fn next_block(&mut self, block: &mut Block) -> Result<bool, TraceError> {
        if self.next >= self.blocks.len() {
            return Ok(false);
        }
        self.next += 1;
        self.read(self.next - 1, block).map(|()| true)
    }

    /// Makes [`TraceReader::next_block`] begin again at this position.
    pub fn rewind_to(&mut self, position: usize) {
        self.next = position;
    }
}

fn read_header(input: &mut impl Read) -> Result<(TraceHeader, u64), TraceError> {
    let failed = |source| TraceError::Read { offset: 0, source };
    let mut head = [0; 16];
    let got = read_up_to(input, &mut head).map_err(failed)?;
    if got < 8 || &head[..7] != MAGIC {
        return Err(TraceError::NotATrace);
    }
    if head[7] != VERSION {
        return Err(TraceError::Version { found: head[7], known: VERSION });
    }
    let damaged = |why: &str| TraceError::Header { why: why.to_owned() };
    if got < head.len() {
        return Err(damaged("the file ends within it"));
    }
    let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    let crc = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    if length > MAX_HEADER {
        return Err(damaged("it claims to be longer than any header is"));
    }
    let mut json = vec![0; length as usize];
    if read_up_to(input, &mut json).map_err(failed)? < json.len() {
        return Err(damaged("the file ends within it"));
    }
    if crc32fast::hash(&json) != crc {
        return Err(damaged("its checksum does not match"));
    }
    let header: TraceHeader = serde_json::from_slice(&json).map_err(|e| damaged(&e.to_string()))?;
    Ok((header, 16 + u64::from(length)))
}

/// Fills the buffer as far as the input goes.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}
