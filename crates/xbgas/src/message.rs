//! What elements of different processes tell each other, as bytes: requests to memories and their
//! answers, and what ends a run. All numbers are little-endian.

use crate::decode::AtomicOperation;
use crate::execute::MOST_BULK_ELEMENTS;
use crate::lookaside::ObjectMemory;
use crate::protocol::{RemoteAction, RemoteReply, RemoteRequest, RequestRefusal};
use crate::statistics::ElementStatistics;
use terrace_riscv::memory::{AccessKind, MemoryFault};

/// Bytes of a message at most: the elements of a bulk transfer, and what stands before them.
pub const MOST_MESSAGE_BYTES: usize = MOST_BULK_ELEMENTS as usize * 8 + 64;

/// What one element tells another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementMessage {
    /// Asks for an access to a memory that the receiver serves.
    Request {
        /// Which.
        memory: ObjectMemory,
        /// The access.
        request: RemoteRequest,
    },
    /// The answer to the one request of the receiver that the sender has.
    Reply(Result<RemoteReply, RequestRefusal>),
    /// To element 0: the sender cannot go on by itself.
    Idle(IdleReport),
    /// From element 0: report again, in this round, when idle.
    Probe {
        /// The round's number.
        round: u32,
    },
    /// The run is over.
    End {
        /// The status to end with.
        status: u8,
        /// Why, where not all elements exited.
        line: Option<String>,
    },
    /// The sender's last message.
    Leave,
}

/// What an element that cannot go on by itself tells element 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleReport {
    /// Of the last probe that it has seen.
    pub round: u32,
    /// What it exited with; `None`: it waits.
    pub exited: Option<u8>,
    /// Requests that it made of others.
    pub requests: u64,
    /// Requests of others that it answered.
    pub served: u64,
    /// What it did.
    pub statistics: ElementStatistics,
}

const OPERATIONS: [AtomicOperation; 7] = [
    AtomicOperation::Add,
    AtomicOperation::Xor,
    AtomicOperation::And,
    AtomicOperation::Or,
    AtomicOperation::Min,
    AtomicOperation::Max,
    AtomicOperation::CompareSwap,
];
const KINDS: [AccessKind; 3] = [AccessKind::Load, AccessKind::Store, AccessKind::Fetch];

#[derive(Debug, Default)]
struct MessageWriter(Vec<u8>);

impl MessageWriter {
    fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn half(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn word(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn rest(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn request(&mut self, memory: ObjectMemory, request: &RemoteRequest) {
        match memory {
            ObjectMemory::Element(element) => self.byte(0).half(element),
            ObjectMemory::File(file) => self.byte(1).half(file),
        };
        self.word(request.address);
        match &request.action {
            RemoteAction::Load { bytes, signed } => {
                self.byte(0).byte(*bytes).byte((*signed).into());
            }
            RemoteAction::Store { bytes, value } => {
                self.byte(1).byte(*bytes).word(*value);
            }
            RemoteAction::Atomic { bytes, operation, operand, expected } => {
                let number = OPERATIONS.iter().position(|o| o == operation).unwrap_or(0);
                self.byte(2).byte(*bytes).byte(number as u8).word(*operand).word(*expected);
            }
            RemoteAction::LoadMany { bytes, count, step } => {
                self.byte(3).byte(*bytes).word(*count).word(*step as u64);
            }
            RemoteAction::StoreMany { bytes, data, step } => {
                self.byte(4).byte(*bytes).word(*step as u64).rest(data);
            }
        }
    }

    fn reply(&mut self, reply: &Result<RemoteReply, RequestRefusal>) {
        match reply {
            Ok(RemoteReply::Done) => {
                self.byte(0);
            }
            Ok(RemoteReply::Value(value)) => {
                self.byte(1).word(*value);
            }
            Ok(RemoteReply::Bytes(data)) => self.byte(2).rest(data),
            Err(RequestRefusal::Misaligned(address)) => {
                self.byte(3).word(*address);
            }
            Err(RequestRefusal::Memory(fault)) => {
                let kind = KINDS.iter().position(|k| *k == fault.kind).unwrap_or(0);
                self.byte(4).word(fault.address).byte(kind as u8).byte(fault.exhausted.into());
            }
        }
    }

    fn report(&mut self, report: &IdleReport) {
        let s = &report.statistics;
        self.half(report.round).byte(report.exited.is_some().into());
        self.byte(report.exited.unwrap_or(0)).word(report.requests).word(report.served);
        for count in [
            s.instructions,
            s.local_accesses,
            s.remote_loads,
            s.remote_stores,
            s.remote_bytes,
            s.waits,
            s.lookaside_hits,
            s.lookaside_misses,
        ] {
            self.word(count);
        }
    }
}

/// Takes a message apart; `None` where it is cut off or says what cannot be.
struct MessageReader<'a>(&'a [u8]);

impl MessageReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|byte| *byte < 2).map(|byte| byte == 1)
    }

    fn half(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn width(&mut self) -> Option<u8> {
        self.byte().filter(|bytes| [1, 2, 4, 8].contains(bytes))
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn request(&mut self) -> Option<ElementMessage> {
        let memory = match self.byte()? {
            0 => ObjectMemory::Element(self.half()?),
            1 => ObjectMemory::File(self.half()?),
            _ => return None,
        };
        let address = self.word()?;
        let (action, bytes) = (self.byte()?, self.width()?);
        let action = match action {
            0 => RemoteAction::Load { bytes, signed: self.flag()? },
            1 => RemoteAction::Store { bytes, value: self.word()? },
            2 => RemoteAction::Atomic {
                bytes,
                operation: *OPERATIONS.get(usize::from(self.byte()?))?,
                operand: self.word()?,
                expected: self.word()?,
            },
            3 => RemoteAction::LoadMany {
                bytes,
                count: self.word().filter(|count| *count <= MOST_BULK_ELEMENTS)?,
                step: self.word()? as i64,
            },
            4 => {
                let step = self.word()? as i64;
                let data = self.rest();
                let whole = data.len() % usize::from(bytes) == 0;
                whole.then_some(RemoteAction::StoreMany { bytes, data, step })?
            }
            _ => return None,
        };
        Some(ElementMessage::Request { memory, request: RemoteRequest { address, action } })
    }

    fn reply(&mut self) -> Option<ElementMessage> {
        Some(ElementMessage::Reply(match self.byte()? {
            0 => Ok(RemoteReply::Done),
            1 => Ok(RemoteReply::Value(self.word()?)),
            2 => Ok(RemoteReply::Bytes(self.rest())),
            3 => Err(RequestRefusal::Misaligned(self.word()?)),
            4 => Err(RequestRefusal::Memory(MemoryFault {
                address: self.word()?,
                kind: *KINDS.get(usize::from(self.byte()?))?,
                exhausted: self.flag()?,
            })),
            _ => return None,
        }))
    }

    fn report(&mut self) -> Option<ElementMessage> {
        let (round, exited) = (self.half()?, self.flag()?);
        // Each message has one encoding.
        let status = self.byte().filter(|status| exited || *status == 0)?;
        Some(ElementMessage::Idle(IdleReport {
            round,
            exited: exited.then_some(status),
            requests: self.word()?,
            served: self.word()?,
            statistics: ElementStatistics {
                instructions: self.word()?,
                local_accesses: self.word()?,
                remote_loads: self.word()?,
                remote_stores: self.word()?,
                remote_bytes: self.word()?,
                waits: self.word()?,
                lookaside_hits: self.word()?,
                lookaside_misses: self.word()?,
                time: None,
            },
        }))
    }
}

impl ElementMessage {
    /// The message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = MessageWriter::default();
        match self {
            Self::Request { memory, request } => writer.byte(0).request(*memory, request),
            Self::Reply(reply) => writer.byte(1).reply(reply),
            Self::Idle(report) => writer.byte(2).report(report),
            Self::Probe { round } => {
                writer.byte(3).half(*round);
            }
            Self::End { status, line } => {
                writer.byte(4).byte(*status).byte(line.is_some().into());
                writer.rest(line.as_deref().unwrap_or_default().as_bytes());
            }
            Self::Leave => {
                writer.byte(5);
            }
        }
        writer.0
    }

    /// The message that the bytes are; `None` where they are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = MessageReader(bytes);
        let message = match reader.byte()? {
            0 => reader.request()?,
            1 => reader.reply()?,
            2 => reader.report()?,
            3 => Self::Probe { round: reader.half()? },
            4 => {
                let (status, has_line) = (reader.byte()?, reader.flag()?);
                let line = String::from_utf8(reader.rest()).ok()?;
                if !has_line && !line.is_empty() {
                    return None;
                }
                Self::End { status, line: has_line.then_some(line) }
            }
            5 => Self::Leave,
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<ElementMessage> {
        let request = |memory, action| ElementMessage::Request {
            memory,
            request: RemoteRequest { address: 0x1234_5678_9abc, action },
        };
        let here = ObjectMemory::Element(3);
        let mut all = vec![
            request(here, RemoteAction::Load { bytes: 2, signed: true }),
            request(ObjectMemory::File(1), RemoteAction::Store { bytes: 8, value: u64::MAX }),
            request(here, RemoteAction::LoadMany { bytes: 4, count: 9, step: -12 }),
            request(here, RemoteAction::StoreMany { bytes: 4, data: vec![7; 40], step: 8 }),
            ElementMessage::Reply(Ok(RemoteReply::Done)),
            ElementMessage::Reply(Ok(RemoteReply::Value(5))),
            ElementMessage::Reply(Ok(RemoteReply::Bytes(vec![1, 2, 3]))),
            ElementMessage::Reply(Err(RequestRefusal::Misaligned(3))),
            ElementMessage::Probe { round: 7 },
            ElementMessage::End { status: 3, line: Some("element 1 exited".to_owned()) },
            ElementMessage::End { status: 0, line: None },
            ElementMessage::Leave,
        ];
        all.extend(OPERATIONS.map(|operation| {
            let (operand, expected) = (1, 2);
            request(here, RemoteAction::Atomic { bytes: 4, operation, operand, expected })
        }));
        all.extend(KINDS.map(|kind| {
            let fault = MemoryFault { address: 9, kind, exhausted: true };
            ElementMessage::Reply(Err(RequestRefusal::Memory(fault)))
        }));
        let statistics = ElementStatistics { instructions: 4, waits: 2, ..Default::default() };
        all.extend([None, Some(4)].map(|exited| {
            let (round, requests, served) = (1, 8, 9);
            ElementMessage::Idle(IdleReport { round, exited, requests, served, statistics })
        }));
        all
    }

    #[test]
    fn messages_come_back_from_their_bytes_and_from_no_others() {
        for message in messages() {
            let bytes = message.encode();
            assert_eq!(ElementMessage::decode(&bytes), Some(message.clone()));
            // Cut off, it is no message, or another one that says so itself.
            for length in 0..bytes.len() {
                if let Some(other) = ElementMessage::decode(&bytes[..length]) {
                    assert_eq!(other.encode(), bytes[..length], "{message:?}");
                }
            }
            // A byte that is wrong makes another message or none.
            for at in 0..bytes.len() {
                let mut wrong = bytes.clone();
                wrong[at] ^= 0x81;
                assert_ne!(ElementMessage::decode(&wrong), Some(message.clone()));
            }
        }
    }
}
