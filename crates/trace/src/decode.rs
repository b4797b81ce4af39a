//! A block becomes columns again.

use crate::encode::{class, ESCAPE, LINE};
use crate::event::{AccessDescriptor, SampleDetail, TraceEvent};
use crate::events;
use crate::frame::{section, BlockInfo, BlockKind, BLOCK_ACCESSES};
use crate::pack::{unzigzag, Taker, Unpacker};
use terrace_sampling::DataSource;

/// Space for steps.
const STEPS: usize = 1 << 16;

/// Bits of an address that a packed access has space for.
const PACKED_ADDRESS: u32 = 48;
/// The longest gap that a packed access has space for.
const PACKED_GAP: u64 = (1 << 15) - 1;

/// A line of the dictionary, taken apart for [`Block::packed`].
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
struct Shape {
    /// Gap and direction, where a packed access has them.
    head: u64,
    /// Bits of the address it is predicted from that count: those of an address, or none.
    counts: u64,
    /// Where its class has its position in the register of positions, and one there.
    shift: u32,
    advance: u64,
    /// Accesses back to the one it is predicted from.
    back: u16,
    kind: AccessDescriptor,
}

impl Shape {
    fn of(line: u64) -> Self {
        let (class, kind, gap) =
            (line as u32 & 3, AccessDescriptor((line >> 16) as u8), line >> 24);
        Self {
            head: gap.min(PACKED_GAP) << PACKED_ADDRESS | u64::from(kind.is_store()) << 63,
            counts: if class == u32::from(class::WHOLE) { 0 } else { (1 << PACKED_ADDRESS) - 1 },
            shift: class * 16,
            advance: 1 << (class * 16),
            back: (line >> 2) as u16 & 0x3fff,
            kind,
        }
    }
}

/// A block's content, decoded into columns. Make one and hand it to the reader again and again: its
/// memory is reused.
///
/// Of an access block, `addresses`, `kinds` and `gaps` have an element for each access, in the
/// order of the thread's execution; the other columns are empty or have what their documentation
/// says.
#[derive(Debug)]
pub struct Block {
    pub(crate) info: BlockInfo,
    addresses: Vec<u64>,
    kinds: Vec<AccessDescriptor>,
    gaps: Vec<u32>,
    packed: Vec<u64>,
    jumps: Vec<(u32, u64)>,
    odd: Vec<(u32, u32)>,
    pcs: Vec<u64>,
    values: Vec<u8>,
    times: Vec<u64>,
    details: Vec<SampleDetail>,
    events: Vec<TraceEvent>,
    /// A power of two of them, so that a position of sixteen bits is always one.
    steps: Box<[u64; STEPS]>,
    pub(crate) unpacker: Unpacker,
}

const SHORT: &str = "its address bytes end too early";
const BACK: &str = "an address is predicted from before the block";
const ESCAPES_END: &str = "it escapes more often than it has escapes";

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
            packed: Vec::new(),
            jumps: Vec::new(),
            odd: Vec::new(),
            pcs: Vec::new(),
            values: Vec::new(),
            times: Vec::new(),
            details: Vec::new(),
            events: Vec::new(),
            steps: Box::new([0; STEPS]),
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
        &self.addresses[..self.apart()]
    }

    /// Accesses whose addresses and gaps are in columns of their own.
    fn apart(&self) -> usize {
        if self.packed.is_empty() {
            self.kinds.len()
        } else {
            0
        }
    }

    /// Addresses, gaps and directions in a word an access, where the reader was asked for them so
    /// ([`crate::TraceReader::read_packed`]), else empty: bits 0 to 47 are the address, bits 48 to
    /// 62 the gap, or 32,767 if it is longer, and bit 63 is set for a store.
    #[must_use]
    pub fn packed(&self) -> &[u64] {
        &self.packed
    }

    /// Gives [`Block::packed`] away, in exchange for memory for the next: what the list held before
    /// is of no interest. The block has no accesses afterwards.
    pub fn exchange_packed(&mut self, packed: &mut Vec<u64>) {
        std::mem::swap(&mut self.packed, packed);
        self.packed.clear();
        self.kinds.clear();
    }

    /// Size, direction and dependence.
    #[must_use]
    pub fn kinds(&self) -> &[AccessDescriptor] {
        &self.kinds
    }

    /// Instructions executed since the thread's access before, this access's own included.
    #[must_use]
    pub fn gaps(&self) -> &[u32] {
        &self.gaps[..self.apart()]
    }

    /// Program counters, one an access; empty where they were not kept.
    #[must_use]
    pub fn pcs(&self) -> &[u64] {
        &self.pcs
    }

    /// Bytes that the stores wrote, one after another, each [`Block::size`] long; empty where they
    /// were not kept.
    #[must_use]
    pub fn values(&self) -> &[u8] {
        &self.values
    }

    /// Where time went on although the thread executed nothing (it waited): before the access of
    /// this index, by so many ticks besides its gap. Ascending.
    #[must_use]
    pub fn jumps(&self) -> &[(u32, u64)] {
        &self.jumps
    }

    /// Times that were recorded as such, one an access, in any order; empty where time follows from
    /// the gaps.
    #[must_use]
    pub fn explicit_times(&self) -> &[u64] {
        &self.times
    }

    /// What a sampler knew of each access; empty where none was asked.
    #[must_use]
    pub fn details(&self) -> &[SampleDetail] {
        &self.details
    }

    /// Events of an event block.
    #[must_use]
    pub fn events(&self) -> &[TraceEvent] {
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
        for (i, gap) in self.gaps().iter().enumerate() {
            while let Some((_, ticks)) = jumps.next_if(|(at, _)| *at as usize <= i) {
                now = now.saturating_add(*ticks);
            }
            now = now.saturating_add(u64::from(*gap));
            out.push(now);
        }
    }

    /// `pack`: see [`crate::TraceReader::read_packed`].
    pub(crate) fn decode(
        &mut self,
        info: BlockInfo,
        payload: &[u8],
        pack: bool,
    ) -> Result<(), &'static str> {
        self.clear();
        if crc32fast::hash(payload) != info.payload_crc {
            return Err("its checksum does not match");
        }
        self.unpacker.unpack(payload)?;
        self.info = info;
        let done = match info.kind {
            BlockKind::Accesses => self.decode_accesses(pack),
            BlockKind::Events => self.decode_events(),
            BlockKind::End => Ok(()),
        };
        if done.is_err() {
            self.clear();
        }
        done
    }

    /// Forgets all but `addresses` and `gaps`, which would be filled with zeroes again each time:
    /// `kinds` says how many count.
    fn clear(&mut self) {
        self.info.count = 0;
        self.kinds.clear();
        self.packed.clear();
        self.jumps.clear();
        self.odd.clear();
        self.pcs.clear();
        self.values.clear();
        self.times.clear();
        self.details.clear();
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

    fn decode_accesses(&mut self, pack: bool) -> Result<(), &'static str> {
        self.decode_sparse()?;
        let pack = pack && self.jumps.iter().all(|(at, _)| *at == 0);
        if !pack || !self.decode_packed()? {
            self.packed.clear();
            self.decode_columns()?;
        }
        let stores = self.kinds.iter().filter(|k| k.is_store()).count();
        if stores != self.info.stores as usize {
            return Err("it has not as many stores as it says");
        }
        self.decode_pcs()?;
        self.values.extend_from_slice(self.unpacker.get(section::VALUES));
        if !self.values.is_empty() {
            let bytes = (0..self.kinds.len())
                .filter(|i| self.kinds[*i].is_store())
                .map(|i| u64::from(self.size(i)));
            if bytes.sum::<u64>() != self.values.len() as u64 {
                return Err("its values are not as long as its stores");
            }
        }
        self.decode_details()?;
        self.decode_times()
    }

    fn decode_details(&mut self) -> Result<(), &'static str> {
        const SHORT_DETAILS: &str = "details of its samples are cut off or nonsense";
        let get = |id: u8| self.unpacker.get(id);
        let list: Vec<u64> = get(section::SOURCE_LIST)
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
            .collect();
        let (mut latencies, mut sources, mut cpus) = (
            Taker(get(section::LATENCIES)),
            Taker(get(section::SOURCES)),
            Taker(get(section::CPUS)),
        );
        if latencies.is_empty() && sources.is_empty() && cpus.is_empty() {
            return Ok(());
        }
        let mut next = || {
            let code = usize::try_from(sources.number()?).ok()?;
            Some(SampleDetail {
                latency_cycles: latencies.small()?,
                source: DataSource(*list.get(code)?),
                cpu: cpus.small()?.wrapping_sub(1),
            })
        };
        for _ in 0..self.kinds.len() {
            self.details.push(next().ok_or(SHORT_DETAILS)?);
        }
        if latencies.is_empty() && sources.is_empty() && cpus.is_empty() {
            Ok(())
        } else {
            Err(SHORT_DETAILS)
        }
    }

    /// Kinds, gaps and addresses: for each access its line of the dictionary, its step, and the
    /// address that it is predicted from. Without a branch that depends on how an address was
    /// encoded: in programs that jump about, no such branch can be foreseen. And without a counter
    /// in memory, for the next access would wait until it was stored.
    fn decode_columns(&mut self) -> Result<(), &'static str> {
        let count = self.info.count as usize;
        let ends = self.decode_steps()?;
        let shapes = self.unpacker.get(section::SHAPES);
        self.check_counts(shapes, ends)?;
        let table = self.dictionary(shapes)?;
        let mut escapes = self.unpacker.get(section::ESCAPES).chunks_exact(LINE);
        if self.addresses.len() < count {
            self.addresses.resize(BLOCK_ACCESSES, 0);
            self.gaps.resize(BLOCK_ACCESSES, 0);
        }
        self.kinds.resize(count, AccessDescriptor(0));
        // Four positions among the steps, sixteen bits each, in one register. There are `count`
        // steps, so none of them can run into the next without its end being wrong.
        let (mut next, end) = (packed([0, ends[0], ends[1], ends[2]]), packed(ends));
        let addresses = &mut self.addresses[..count];
        let steps = &*self.steps;
        let columns = self.gaps[..count].iter_mut().zip(&mut self.kinds);
        for (i, (shape, (gap, kind))) in shapes.iter().zip(columns).enumerate() {
            let mut line = table[usize::from(*shape)];
            if *shape == ESCAPE {
                line = split(escapes.next().ok_or(ESCAPES_END)?);
            }
            *gap = (line >> 24) as u32;
            *kind = AccessDescriptor((line >> 16) as u8);
            // The predictor: class, and how many accesses back.
            let (class, back) = (line as u32 & 3, line as usize >> 2 & 0x3fff);
            let step = steps[(next >> (class * 16)) as usize % STEPS];
            next = next.wrapping_add(1 << (class * 16));
            let from = *addresses.get(i.wrapping_sub(back)).ok_or(BACK)?;
            // Nothing of the address looked at counts where the address was encoded whole.
            addresses[i] =
                step.wrapping_add(if class == u32::from(class::WHOLE) { 0 } else { from });
        }
        if next == end {
            Ok(())
        } else {
            Err(SHORT)
        }
    }

    /// As [`Self::decode_columns`], into [`Self::packed`] and kinds alone. `false`: an address does
    /// not fit.
    fn decode_packed(&mut self) -> Result<bool, &'static str> {
        let count = self.info.count as usize;
        let ends = self.decode_steps()?;
        let shapes = self.unpacker.get(section::SHAPES);
        self.check_counts(shapes, ends)?;
        let mut table = self.dictionary(shapes)?.map(Shape::of);
        let mut escapes = self.unpacker.get(section::ESCAPES).chunks_exact(LINE);
        self.packed.resize(count, 0);
        self.kinds.resize(count, AccessDescriptor(0));
        let (mut next, end) = (packed([0, ends[0], ends[1], ends[2]]), packed(ends));
        let (words, steps) = (&mut self.packed[..count], &*self.steps);
        let mut all = 0;
        for (i, (shape, kind)) in shapes.iter().zip(&mut self.kinds).enumerate() {
            if *shape == ESCAPE {
                table[usize::from(ESCAPE)] = Shape::of(split(escapes.next().ok_or(ESCAPES_END)?));
            }
            let shape = &table[usize::from(*shape)];
            *kind = shape.kind;
            let step = steps[(next >> shape.shift) as usize % STEPS];
            next = next.wrapping_add(shape.advance);
            let from = *words.get(i.wrapping_sub(usize::from(shape.back))).ok_or(BACK)?;
            let address = (from & shape.counts).wrapping_add(step);
            all |= address;
            words[i] = address | shape.head;
        }
        if next == end {
            Ok(all >> PACKED_ADDRESS == 0)
        } else {
            // Of addresses that do not fit, which lines follow does not depend.
            Err(SHORT)
        }
    }

    fn check_counts(&self, shapes: &[u8], ends: [usize; 4]) -> Result<(), &'static str> {
        let count = self.info.count as usize;
        if shapes.len() != count || count > BLOCK_ACCESSES {
            return Err("it has not as many accesses as it says");
        }
        if ends[3] != count {
            return Err("it has not as many addresses as accesses");
        }
        Ok(())
    }

    /// The block's dictionary, if it has all lines that are used.
    fn dictionary(&self, shapes: &[u8]) -> Result<[u64; 256], &'static str> {
        let lines = self.unpacker.get(section::DICTIONARY);
        if lines.len() % LINE != 0 || lines.len() > usize::from(ESCAPE) * LINE {
            return Err("its dictionary has no such size");
        }
        let known = (lines.len() / LINE) as u8;
        let unknown =
            shapes.iter().fold(false, |any, shape| any | (*shape >= known && *shape != ESCAPE));
        if unknown {
            return Err("it uses a line that its dictionary has not");
        }
        let mut table = [0; 256];
        for (entry, line) in table.iter_mut().zip(lines.chunks_exact(LINE)) {
            *entry = split(line);
        }
        Ok(table)
    }

    /// Steps of all four classes, one class behind the other; says where each ends.
    fn decode_steps(&mut self) -> Result<[usize; 4], &'static str> {
        let (u, mut end) = (&self.unpacker, 0);
        let mut ends = [0; 4];
        let classes =
            [(section::NEAR, 1), (section::MIDDLE, 2), (section::FAR, 4), (section::WHOLE, 8)];
        for ((first, planes), class_end) in classes.into_iter().zip(&mut ends) {
            let low = u.get(first);
            let steps = self
                .steps
                .get_mut(end..end + low.len())
                .filter(|_| end + low.len() <= BLOCK_ACCESSES);
            let steps = steps.ok_or("it has more addresses than a block holds")?;
            end += low.len();
            *class_end = end;
            // Planes whose bytes are all the same, as the high ones mostly are, cost nothing an
            // access.
            let mut same = 0;
            let mut filled = false;
            for plane in 0..planes {
                let bytes = u.get(first + plane);
                if bytes.len() != steps.len() {
                    return Err("its address bytes are not all there");
                }
                // The highest plane holds the sign.
                let sign = if plane + 1 == planes { u64::MAX } else { 0xff };
                let place = |byte: u8| (byte as i8 as u64 & sign) << (8 * plane);
                match bytes.first() {
                    Some(byte) if bytes[1..] == bytes[..bytes.len() - 1] => same |= place(*byte),
                    _ if filled => {
                        steps.iter_mut().zip(bytes).for_each(|(step, byte)| *step |= place(*byte))
                    }
                    _ => {
                        // Writes over what the block before left.
                        steps.iter_mut().zip(bytes).for_each(|(step, byte)| *step = place(*byte));
                        filled = true;
                    }
                }
            }
            if !filled {
                steps.fill(same);
            } else if same != 0 {
                steps.iter_mut().for_each(|step| *step |= same);
            }
        }
        Ok(ends)
    }

    fn decode_sparse(&mut self) -> Result<(), &'static str> {
        let count = u64::from(self.info.count);
        let mut at = 0u64;
        let mut jumps = Taker(self.unpacker.get(section::JUMPS));
        while !jumps.is_empty() {
            let (skip, ticks) =
                jumps.number().zip(jumps.number()).ok_or("a jump of time is cut off")?;
            at = at
                .checked_add(skip)
                .filter(|at| *at <= count)
                .ok_or("a jump of time lies beyond the block")?;
            self.jumps.push((at as u32, ticks));
        }
        let mut at = 0u64;
        let mut odd = Taker(self.unpacker.get(section::ODD));
        while !odd.is_empty() {
            let (skip, size) = odd.number().zip(odd.small()).ok_or("an odd size is cut off")?;
            at = at
                .checked_add(skip)
                .filter(|at| *at < count)
                .ok_or("an odd size lies beyond the block")?;
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
            let step = rest
                .number()
                .filter(|_| list.len() < BLOCK_ACCESSES)
                .ok_or("its program counters are cut off")?;
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
            let step = rest
                .number()
                .filter(|_| self.times.len() < self.kinds.len())
                .ok_or("its times are nonsense")?;
            now = now.wrapping_add(unzigzag(step) as u64);
            self.times.push(now);
        }
        if !self.times.is_empty() && self.times.len() != self.kinds.len() {
            return Err("it has not as many times as accesses");
        }
        Ok(())
    }
}

/// A line of the dictionary as one number, its first byte the lowest.
fn split(line: &[u8]) -> u64 {
    line.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Four positions of up to sixteen bits as one number.
fn packed(positions: [usize; 4]) -> u64 {
    positions.iter().rev().fold(0, |all, position| all << 16 | *position as u64)
}
