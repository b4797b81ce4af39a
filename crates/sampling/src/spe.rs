//! Records of Arm's Statistical Profiling Extension, as they lie in perf's auxiliary buffer.
//!
//! A record is a row of packets that ends with a time stamp or an end packet (Arm Architecture
//! Reference Manual for A-profile, chapter "Statistical Profiling Extension Sample Record
//! Specification"). A packet has one header byte, or two where the first is an extension, and up
//! to 8 bytes of payload, little-endian. What served an access follows from the architected events;
//! the data source packet differs by processor and is handed on as it is.

use crate::source::{AccessLocality, DataSource, MemoryLevel, MemoryOperation};

const PAD: u8 = 0;
const END: u8 = 1;
const TIMESTAMP: u8 = 0x71;

/// Bits of the events packet.
mod event {
    pub const L1_ACCESS: u64 = 1 << 2;
    pub const L1_REFILL: u64 = 1 << 3;
    pub const LAST_LEVEL_ACCESS: u64 = 1 << 8;
    pub const LAST_LEVEL_MISS: u64 = 1 << 9;
    pub const REMOTE_ACCESS: u64 = 1 << 10;
}

/// One record. Fields that it does not have are zero or `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpeRecord {
    /// Address of the instruction.
    pub instruction: u64,
    /// Virtual data address.
    pub address: u64,
    /// Physical data address.
    pub physical: u64,
    /// Cycles from dispatch to completion.
    pub total_cycles: u16,
    /// Cycles from dispatch to issue.
    pub issue_cycles: u16,
    /// Cycles of address translation.
    pub translation_cycles: u16,
    /// Events, a bit each.
    pub events: u64,
    /// Ticks of the generic timer.
    pub timestamp: u64,
    /// Context: what the kernel has in `CONTEXTIDR`, the thread where perf asked for it.
    pub context: Option<u32>,
    /// Load or store; `None`: the record is of another operation.
    pub operation: Option<SpeOperation>,
    /// The data source, in the processor's own code.
    pub raw_source: Option<u64>,
}

/// A memory operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeOperation {
    /// Load.
    Load,
    /// Store.
    Store,
}

impl SpeRecord {
    /// What served the access, as perf has it, by the architected events.
    #[must_use]
    pub fn source(&self) -> DataSource {
        let operation = match self.operation {
            Some(SpeOperation::Load) => MemoryOperation::Load,
            Some(SpeOperation::Store) => MemoryOperation::Store,
            None => return DataSource(0),
        };
        let has = |bit: u64| self.events & bit != 0;
        let level = if has(event::LAST_LEVEL_MISS) {
            MemoryLevel::Ram
        } else if has(event::LAST_LEVEL_ACCESS) {
            MemoryLevel::L3
        } else if has(event::L1_REFILL) {
            MemoryLevel::L2
        } else if has(event::L1_ACCESS) {
            MemoryLevel::L1
        } else {
            MemoryLevel::Unknown
        };
        let locality =
            if has(event::REMOTE_ACCESS) { AccessLocality::Remote } else { AccessLocality::Local };
        DataSource::new(operation, level, locality)
    }
}

/// Bytes that are no packet; what follows cannot be distinguished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset} of the samples begins no packet: {header:#04x}")]
pub struct SpeDamage {
    /// Where.
    pub offset: usize,
    /// The byte.
    pub header: u8,
}

/// One packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpePacket {
    Padding,
    End,
    Timestamp(u64),
    Events(u64),
    Source(u64),
    Context(u32),
    /// Class and payload.
    Operation(u8, u64),
    /// Which, and payload.
    Address(u8, u64),
    Counter(u8, u16),
}

/// Goes over the records in `bytes`. A record that is cut off at the end is left out; after damage
/// nothing more can be distinguished: that is the last item.
pub fn spe_records(bytes: &[u8]) -> impl Iterator<Item = Result<SpeRecord, SpeDamage>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut record = SpeRecord::default();
        let mut began = false;
        while at < bytes.len() {
            let (packet, length) = match packet(bytes, at) {
                Some(Ok(found)) => found,
                Some(Err(damage)) => {
                    at = bytes.len();
                    return Some(Err(damage));
                }
                None => break,
            };
            at += length;
            match packet {
                SpePacket::Padding => continue,
                SpePacket::End if began => return Some(Ok(record)),
                SpePacket::Timestamp(ticks) if began => {
                    return Some(Ok(SpeRecord { timestamp: ticks, ..record }))
                }
                // Left of a record whose begin was overwritten.
                SpePacket::End | SpePacket::Timestamp(_) => continue,
                other => record.take(other),
            }
            began = true;
        }
        at = bytes.len();
        None
    })
}

impl SpeRecord {
    fn take(&mut self, packet: SpePacket) {
        /// Bits 0 to 55 of an address; those above say in which state it was used.
        const PLAIN: u64 = (1 << 56) - 1;
        // A kernel's address has its upper bits set, which bits 56 to 63 do not tell.
        let extend = |address: u64| ((address << 8) as i64 >> 8) as u64;
        match packet {
            SpePacket::Events(events) => self.events = events,
            SpePacket::Source(source) => self.raw_source = Some(source),
            SpePacket::Context(context) => self.context = Some(context),
            // Class 1: loads, stores and atomics; bit 0 of the payload: a store.
            SpePacket::Operation(1, payload) => {
                let store = payload & 1 == 1;
                self.operation = Some(if store { SpeOperation::Store } else { SpeOperation::Load });
            }
            SpePacket::Address(0, address) => self.instruction = extend(address),
            SpePacket::Address(2, address) => self.address = extend(address),
            SpePacket::Address(3, address) => self.physical = address & PLAIN,
            SpePacket::Counter(0, cycles) => self.total_cycles = cycles,
            SpePacket::Counter(1, cycles) => self.issue_cycles = cycles,
            SpePacket::Counter(2, cycles) => self.translation_cycles = cycles,
            // Branches and their targets, and what later versions add.
            _ => {}
        }
    }
}

/// The packet at an offset below the end, and its bytes; `None` where it is cut off.
fn packet(bytes: &[u8], at: usize) -> Option<Result<(SpePacket, usize), SpeDamage>> {
    let header = bytes[at];
    match header {
        PAD => return Some(Ok((SpePacket::Padding, 1))),
        END => return Some(Ok((SpePacket::End, 1))),
        _ => {}
    }
    // An extension has the upper bits of the index; alone with a zero it fills up to an alignment.
    let extended = header & 0xfc == 0x20;
    let (code, upper, before) = if extended {
        let second = *bytes.get(at + 1)?;
        if second == PAD {
            let alignment = 1_usize << ((header & 3) + 1);
            let filled = (at + 2).next_multiple_of(alignment) - at;
            return Some(Ok((SpePacket::Padding, filled)));
        }
        (second, (header & 3) << 3, 2)
    } else {
        (header, 0, 1)
    };
    let kind = match code {
        TIMESTAMP if !extended => SpePacketKind::Timestamp,
        _ if !extended && code & 0xcf == 0x42 => SpePacketKind::Events,
        _ if !extended && code & 0xcf == 0x43 => SpePacketKind::Source,
        _ if !extended && code & 0xfc == 0x64 => SpePacketKind::Context,
        _ if !extended && code & 0xfc == 0x48 => SpePacketKind::Operation,
        _ if code & 0xf8 == 0xb0 => SpePacketKind::Address,
        _ if code & 0xf8 == 0x98 => SpePacketKind::Counter,
        _ => return Some(Err(SpeDamage { offset: at, header })),
    };
    let size = 1_usize << (code >> 4 & 3);
    let mut word = [0; 8];
    word[..size].copy_from_slice(bytes.get(at + before..at + before + size)?);
    let payload = u64::from_le_bytes(word);
    let index = upper | code & 7;
    let packet = match kind {
        SpePacketKind::Timestamp => SpePacket::Timestamp(payload),
        SpePacketKind::Events => SpePacket::Events(payload),
        SpePacketKind::Source => SpePacket::Source(payload),
        SpePacketKind::Context => SpePacket::Context(payload as u32),
        SpePacketKind::Operation => SpePacket::Operation(code & 3, payload),
        SpePacketKind::Address => SpePacket::Address(index, payload),
        SpePacketKind::Counter => SpePacket::Counter(index, payload as u16),
    };
    Some(Ok((packet, before + size)))
}

/// What a header says that its packet is.
#[derive(Debug, Clone, Copy)]
enum SpePacketKind {
    Timestamp,
    Events,
    Source,
    Context,
    Operation,
    Address,
    Counter,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load that missed the last level, on another node; the packets as a processor orders them.
    fn load() -> Vec<u8> {
        let mut bytes = vec![0xb0]; // address of the instruction, state in the last byte
        bytes.extend([0x10, 0x20, 0x40, 0, 0, 0, 0, 0x80]);
        bytes.extend([0x65, 42, 0, 0, 0]); // context of the second level
        bytes.extend([0x49, 0]); // load
        bytes.extend([0x52, 0x0e, 0x07]); // retired, L1 access and refill, LLC access, miss, remote
        bytes.extend([0x99, 7, 0]); // issue latency
        bytes.extend([0x98, 0x2c, 1]); // total latency
        bytes.push(0xb2); // virtual data address
        bytes.extend([0x34, 0x12, 0, 0, 0xff, 0x7f, 0, 0]);
        bytes.extend([0x9a, 3, 0]);
        bytes.extend([0x43, 0x0d]); // data source
        bytes.extend([0x71, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes
    }

    #[test]
    fn a_load_is_read_with_latency_and_source() {
        let mut bytes = vec![0, 0];
        bytes.extend(load());
        // A store that ends without a time, after padding; then a branch, which is no access.
        bytes.extend([0, 0x49, 1, 0x52, 0x06, 0, 0xb2, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend([0x4a, 1, 1]);
        let read: Vec<SpeRecord> = spe_records(&bytes).map(Result::unwrap).collect();
        assert_eq!(read.len(), 3);
        let wanted = SpeRecord {
            instruction: 0x40_2010,
            address: 0x7fff_0000_1234,
            total_cycles: 300,
            issue_cycles: 7,
            translation_cycles: 3,
            events: 0x70e,
            timestamp: 0x0807_0605_0403_0201,
            context: Some(42),
            operation: Some(SpeOperation::Load),
            raw_source: Some(0x0d),
            physical: 0,
        };
        assert_eq!(read[0], wanted);
        let source = read[0].source();
        assert_eq!(source.operation(), MemoryOperation::Load);
        assert_eq!(
            (source.level(), source.locality()),
            (MemoryLevel::Ram, Some(AccessLocality::Remote))
        );
        assert_eq!((read[1].operation, read[1].address), (Some(SpeOperation::Store), 1));
        assert_eq!(read[1].source().level(), MemoryLevel::L1);
        assert_eq!((read[2].operation, read[2].source()), (None, DataSource(0)));
    }

    #[test]
    fn addresses_of_the_kernel_keep_their_upper_bits() {
        let mut bytes = vec![0xb0, 0, 0, 0x10, 0x80, 0, 0x80, 0xff, 0xa0];
        bytes.extend([0xb3, 1, 2, 3, 0, 0, 0, 0, 0x80, 1]);
        let read = spe_records(&bytes).next().unwrap().unwrap();
        assert_eq!((read.instruction, read.physical), (0xffff_8000_8010_0000, 0x03_0201));
    }

    #[test]
    fn damage_ends_the_records_and_cuts_leave_the_last_out() {
        let mut bytes = load();
        let whole = bytes.len();
        bytes.extend([0xff, 1, 2]);
        let read: Vec<_> = spe_records(&bytes).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[1], Err(SpeDamage { offset: whole, header: 0xff }));
        for end in 0..whole {
            assert_eq!(spe_records(&bytes[..end]).count(), 0, "{end}");
        }
        // Any byte anywhere: never a panic.
        for at in 0..whole {
            for byte in 0..=255 {
                let mut hurt = load();
                hurt[at] = byte;
                assert!(spe_records(&hurt).count() <= whole);
            }
        }
    }

    #[test]
    fn extensions_have_more_indices_and_fill_up_to_an_alignment() {
        // Address 8 and up are not known; the record goes on behind them.
        let mut bytes = vec![0x49, 0, 0x21, 0xb0, 1, 2, 3, 4, 5, 6, 7, 8];
        bytes.extend([0x21, 0]); // up to a multiple of four
        assert_eq!(bytes.len() % 4, 2);
        bytes.extend([0xaa, 0xaa, 1]);
        let read: Vec<_> = spe_records(&bytes).map(Result::unwrap).collect();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].instruction, read[0].operation), (0, Some(SpeOperation::Load)));
    }
}
