//! A block becomes columns again.

use crate::encode::{ESCAPE, LINE};
use crate::event::{Event, Kind};
use crate::events;
use crate::frame::{section, BlockInfo, BlockKind, BLOCK_ACCESSES};
use crate::pack::{unzigzag, Taker, Unpacker};

/// A block's content, decoded into columns. Make one and hand it to the reader again and again: its memory is reused.
///
/// Of an access block, `addresses`, `kinds` and `gaps` have an element for each access, in the order of the thread's
/// execution; the other columns are empty or have what their documentation says.
#[derive(Debug)]
pub struct Block {
    pub(crate) info: BlockInfo,
    addresses: Vec<u64>,
    kinds: Vec<Kind>,
    gaps: Vec<u32>,
    jumps: Vec<(u32, u64)>,
    odd: Vec<(u32, u32)>,
    pcs: Vec<u64>,
    values: Vec<u8>,
    times: Vec<u64>,
    events: Vec<Event>,
    predictors: Vec<u16>,
    steps: Vec<u64>,
    pub(crate) unpacker: Unpacker,
}

impl Block {
    /// An empty block.
    ///
    /// # Errors
    /// When the decompressor cannot have its memory.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            info: BlockInfo {
                offset: 0,
                kind: BlockKind::End,
                process: 0,
                thread: 0,
                count: 0,
                stores: 0,
                first_time: 0,
                last_time: 0,
                payload_bytes: 0,
                payload_crc: 0,
            },
            addresses: Vec::new(),
            kinds: Vec::new(),
            gaps: Vec::new(),
            jumps: Vec::new(),
            odd: Vec::new(),
            pcs: Vec::new(),
            values: Vec::new(),
            times: Vec::new(),
            events: Vec::new(),
            predictors: Vec::new(),
            steps: Vec::new(),
            unpacker: Unpacker::new()?,
        })
    }

    /// What its head says: process, thread, count, span of time.
    #[must_use]
    pub fn info(&self) -> &BlockInfo {
        &self.info
    }

    /// Virtual addresses of the first bytes.
    #[must_use]
    pub fn addresses(&self) -> &[u64] {
        &self.addresses[..self.kinds.len()]
    }

    /// Size, direction and dependence.
    #[must_use]
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Instructions executed since the thread's access before, this access's own included.
    #[must_use]
    pub fn gaps(&self) -> &[u32] {
        &self.gaps
    }

    /// Program counters, one an access; empty where they were not kept.
    #[must_use]
    pub fn pcs(&self) -> &[u64] {
        &self.pcs
    }

    /// Bytes that the stores wrote, one after another, each [`Block::size`] long; empty where they were not kept.
    #[must_use]
    pub fn values(&self) -> &[u8] {
        &self.values
    }

    /// Where time went on although the thread executed nothing (it waited): before the access of this index, by so many
    /// ticks besides its gap. Ascending.
    #[must_use]
    pub fn jumps(&self) -> &[(u32, u64)] {
        &self.jumps
    }

    /// Times that were recorded as such, one an access, in any order; empty where time follows from the gaps.
    #[must_use]
    pub fn explicit_times(&self) -> &[u64] {
        &self.times
    }

    /// Events of an event block.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Bytes of the access of this index; 0 beyond the last.
    #[must_use]
    pub fn size(&self, index: usize) -> u32 {
        let Some(kind) = self.kinds.get(index) else { return 0 };
        kind.size().unwrap_or_else(|| {
            let found = self.odd.binary_search_by_key(&(index as u32), |(at, _)| *at);
            found.map_or(0, |i| self.odd[i].1)
        })
    }

    /// Puts the time of each access, in ticks of the trace's clock, in place of what `out` held.
    pub fn times_into(&self, out: &mut Vec<u64>) {
        out.clear();
        if !self.times.is_empty() {
            out.extend_from_slice(&self.times);
            return;
        }
        let mut now = self.info.first_time;
        let mut jumps = self.jumps.iter().peekable();
        for (i, gap) in self.gaps.iter().enumerate() {
            while let Some((_, ticks)) = jumps.next_if(|(at, _)| *at as usize <= i) {
                now = now.saturating_add(*ticks);
            }
            now = now.saturating_add(u64::from(*gap));
            out.push(now);
        }
    }

    pub(crate) fn decode(&mut self, info: BlockInfo, payload: &[u8]) -> Result<(), &'static str> {
        self.clear();
        if crc32fast::hash(payload) != info.payload_crc {
            return Err("its checksum does not match");
        }
        self.unpacker.unpack(payload)?;
        self.info = info;
        let done = match info.kind {
            BlockKind::Accesses => self.decode_accesses(),
            BlockKind::Events => self.decode_events(),
            BlockKind::End => Ok(()),
        };
        if done.is_err() {
            self.clear();
        }
        done
    }

    /// Forgets all but `addresses`, which would be filled with zeroes again each time: `kinds` says how many count.
    fn clear(&mut self) {
        self.info.count = 0;
        self.kinds.clear();
        self.gaps.clear();
        self.jumps.clear();
        self.odd.clear();
        self.pcs.clear();
        self.values.clear();
        self.times.clear();
        self.events.clear();
    }

    fn decode_events(&mut self) -> Result<(), &'static str> {
        let mut rest = Taker(self.unpacker.get(section::EVENTS));
        for _ in 0..self.info.count {
            let event = events::take(&mut rest).ok_or("an event is cut off or nonsense")?;
            self.events.extend(event);
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err("more events than it says")
        }
    }

    fn decode_accesses(&mut self) -> Result<(), &'static str> {
        self.decode_shapes()?;
        self.decode_addresses()?;
        let stores = self.kinds.iter().filter(|k| k.is_store()).count();
        if stores != self.info.stores as usize {
            return Err("it has not as many stores as it says");
        }
        self.decode_sparse()?;
        self.decode_pcs()?;
        self.values.extend_from_slice(self.unpacker.get(section::VALUES));
        if !self.values.is_empty() {
            let bytes = (0..self.kinds.len()).filter(|i| self.kinds[*i].is_store()).map(|i| u64::from(self.size(i)));
            if bytes.sum::<u64>() != self.values.len() as u64 {
                return Err("its values are not as long as its stores");
            }
        }
        self.decode_times()
    }

    /// Kinds, gaps and predictors: a table look-up an access.
    fn decode_shapes(&mut self) -> Result<(), &'static str> {
        let count = self.info.count as usize;
        let shapes = self.unpacker.get(section::SHAPES);
        let lines = self.unpacker.get(section::DICTIONARY);
        if shapes.len() != count || count > BLOCK_ACCESSES {
            return Err("it has not as many accesses as it says");
        }
        if lines.len() % LINE != 0 || lines.len() > usize::from(ESCAPE) * LINE {
            return Err("its dictionary has no such size");
        }
        let mut table = [(0u32, Kind(0), u16::MAX); 256];
        for (entry, line) in table.iter_mut().zip(lines.chunks_exact(LINE)) {
            *entry = split(line);
        }
        let known = lines.len() / LINE;
        let mut escapes = self.unpacker.get(section::ESCAPES).chunks_exact(LINE);
        self.gaps.reserve(count);
        if escapes.len() == 0 {
            // The common case, as three plain loops over one small table each.
            if shapes.iter().any(|s| usize::from(*s) >= known) {
                return Err("it uses a line that its dictionary has not");
            }
            self.gaps.extend(shapes.iter().map(|s| table[usize::from(*s)].0));
            self.kinds.extend(shapes.iter().map(|s| table[usize::from(*s)].1));
            self.predictors.clear();
            self.predictors.extend(shapes.iter().map(|s| table[usize::from(*s)].2));
            return Ok(());
        }
        self.predictors.clear();
        for shape in shapes {
            let (gap, kind, predictor) = if *shape == ESCAPE {
                split(escapes.next().ok_or("it escapes more often than it has escapes")?)
            } else if usize::from(*shape) < known {
                table[usize::from(*shape)]
            } else {
                return Err("it uses a line that its dictionary has not");
            };
            self.gaps.push(gap);
            self.kinds.push(kind);
            self.predictors.push(predictor);
        }
        Ok(())
    }

    /// Addresses, without a branch that depends on how each was told: in programs that jump about, no such branch can be
    /// foreseen.
    fn decode_addresses(&mut self) -> Result<(), &'static str> {
        const SHORT: &str = "its address bytes end too early";
        const BACK: &str = "an address is predicted from before the block";
        /// What of the address looked at counts: all of it, but nothing where the address was told whole.
        const COUNTS: [u64; 4] = [u64::MAX, u64::MAX, u64::MAX, 0];
        let mut next = self.decode_steps()?;
        let ends = [next[1], next[2], next[3], self.steps.len()];
        let count = self.predictors.len();
        if self.addresses.len() < count {
            self.addresses.resize(BLOCK_ACCESSES.max(count), 0);
        }
        let addresses = &mut self.addresses[..count];
        for (i, predictor) in self.predictors.iter().enumerate() {
            let class = usize::from(predictor & 3);
            let at = next[class];
            next[class] = at + 1;
            let step = *self.steps.get(at).ok_or(SHORT)?;
            let from = *addresses.get(i.wrapping_sub(usize::from(predictor >> 2))).ok_or(BACK)?;
            addresses[i] = step.wrapping_add(from & COUNTS[class]);
        }
        if next == ends {
            Ok(())
        } else {
            Err(SHORT)
        }
    }

    /// Steps of all four classes, one class behind the other; says where each begins.
    fn decode_steps(&mut self) -> Result<[usize; 4], &'static str> {
        let (u, steps) = (&self.unpacker, &mut self.steps);
        steps.clear();
        let mut begins = [0; 4];
        steps.extend(u.get(section::NEAR).iter().map(|b| *b as i8 as u64));
        for (class, first, planes) in [(1, section::MIDDLE, 2), (2, section::FAR, 4), (3, section::WHOLE, 8)] {
            let begin = steps.len();
            begins[class] = begin;
            steps.resize(begin + u.get(first).len(), 0);
            for plane in 0..planes {
                let bytes = u.get(first + plane);
                if bytes.len() != steps.len() - begin {
                    return Err("its address bytes are not all there");
                }
                // The highest plane holds the sign.
                let sign = if plane + 1 == planes { u64::MAX } else { 0xff };
                for (step, byte) in steps[begin..].iter_mut().zip(bytes) {
                    *step |= (*byte as i8 as u64 & sign) << (8 * plane);
                }
            }
        }
        Ok(begins)
    }

    fn decode_sparse(&mut self) -> Result<(), &'static str> {
        let count = u64::from(self.info.count);
        let mut at = 0u64;
        let mut jumps = Taker(self.unpacker.get(section::JUMPS));
        while !jumps.is_empty() {
            let (skip, ticks) = jumps.number().zip(jumps.number()).ok_or("a jump of time is cut off")?;
            at = at.checked_add(skip).filter(|at| *at <= count).ok_or("a jump of time lies beyond the block")?;
            self.jumps.push((at as u32, ticks));
        }
        let mut at = 0u64;
        let mut odd = Taker(self.unpacker.get(section::ODD));
        while !odd.is_empty() {
            let (skip, size) = odd.number().zip(odd.small()).ok_or("an odd size is cut off")?;
            at = at.checked_add(skip).filter(|at| *at < count).ok_or("an odd size lies beyond the block")?;
            self.odd.push((at as u32, size));
        }
        Ok(())
    }

    fn decode_pcs(&mut self) -> Result<(), &'static str> {
        let (low, high) = (self.unpacker.get(section::PCS), self.unpacker.get(section::PCS + 1));
        if low.is_empty() && high.is_empty() {
            return Ok(());
        }
        if low.len() != self.kinds.len() || high.len() != low.len() {
            return Err("it has not as many program counters as accesses");
        }
        let mut list = Vec::new();
        let mut rest = Taker(self.unpacker.get(section::PC_LIST));
        let mut last = 0u64;
        while !rest.is_empty() {
            let step =
                rest.number().filter(|_| list.len() < BLOCK_ACCESSES).ok_or("its program counters are cut off")?;
            last = last.wrapping_add(unzigzag(step) as u64);
            list.push(last);
        }
        for (low, high) in low.iter().zip(high) {
            let pc = list.get(usize::from(u16::from_le_bytes([*low, *high])));
            self.pcs.push(*pc.ok_or("a program counter that is not in its list")?);
        }
        Ok(())
    }

    fn decode_times(&mut self) -> Result<(), &'static str> {
        let mut rest = Taker(self.unpacker.get(section::TIMES));
        let mut now = 0u64;
        while !rest.is_empty() {
            let step = rest.number().filter(|_| self.times.len() < self.kinds.len()).ok_or("its times are nonsense")?;
            now = now.wrapping_add(unzigzag(step) as u64);
            self.times.push(now);
        }
        if !self.times.is_empty() && self.times.len() != self.kinds.len() {
            return Err("it has not as many times as accesses");
        }
        Ok(())
    }
}

fn split(line: &[u8]) -> (u32, Kind, u16) {
    let gap = u32::from_le_bytes([line[3], line[4], line[5], line[6]]);
    (gap, Kind(line[2]), u16::from_le_bytes([line[0], line[1]]))
}
