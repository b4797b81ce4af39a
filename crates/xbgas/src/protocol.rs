//! What elements ask of each other's memory, and the answer. Whoever has the memory translates the
//! address and checks it; it knows nothing of who asks.

use crate::decode::AtomicOperation;
use terrace_riscv::memory::{GuestMemory, MemoryFault};

/// A request to the memory that has an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRequest {
    /// Virtual address there.
    pub address: u64,
    /// What to do.
    pub action: RemoteAction,
}

/// What to do at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteAction {
    /// Loads 1, 2, 4 or 8 bytes.
    Load {
        /// How many.
        bytes: u8,
        /// Whether the value is sign-extended.
        signed: bool,
    },
    /// Stores the low bytes of a value.
    Store {
        /// How many: 1, 2, 4 or 8.
        bytes: u8,
        /// The value.
        value: u64,
    },
    /// Replaces a value and brings the one before, sign-extended.
    Atomic {
        /// Its bytes: 4 or 8.
        bytes: u8,
        /// What becomes of it.
        operation: AtomicOperation,
        /// The operand.
        operand: u64,
        /// What has to be there for a swap.
        expected: u64,
    },
    /// Loads elements.
    LoadMany {
        /// Bytes of each.
        bytes: u8,
        /// How many.
        count: u64,
        /// Bytes from one to the next.
        step: i64,
    },
    /// Stores elements.
    StoreMany {
        /// Bytes of each.
        bytes: u8,
        /// All elements' bytes.
        data: Vec<u8>,
        /// Bytes from one to the next.
        step: i64,
    },
}

impl RemoteAction {
    /// Bytes of data that go to the memory, and that come back.
    #[must_use]
    pub fn data_bytes(&self) -> (u64, u64) {
        match self {
            Self::Load { bytes, .. } => (0, u64::from(*bytes)),
            Self::Store { bytes, .. } => (u64::from(*bytes), 0),
            // The operand, and for a swap what has to be there.
            Self::Atomic { bytes, operation, .. } => {
                let operands = if *operation == AtomicOperation::CompareSwap { 2 } else { 1 };
                (operands * u64::from(*bytes), u64::from(*bytes))
            }
            Self::LoadMany { bytes, count, .. } => (0, count * u64::from(*bytes)),
            Self::StoreMany { data, .. } => (data.len() as u64, 0),
        }
    }

    /// Bytes of an element, how many there are, and bytes from one to the next.
    #[must_use]
    pub fn shape(&self) -> (u8, u64, i64) {
        match self {
            Self::Load { bytes, .. } | Self::Store { bytes, .. } | Self::Atomic { bytes, .. } => {
                (*bytes, 1, 0)
            }
            Self::LoadMany { bytes, count, step } => (*bytes, *count, *step),
            Self::StoreMany { bytes, data, step } => {
                (*bytes, data.len() as u64 / u64::from((*bytes).max(1)), *step)
            }
        }
    }

    /// Whether it reads, and whether it writes.
    #[must_use]
    pub const fn needs(&self) -> (bool, bool) {
        match self {
            Self::Load { .. } | Self::LoadMany { .. } => (true, false),
            Self::Store { .. } | Self::StoreMany { .. } => (false, true),
            Self::Atomic { .. } => (true, true),
        }
    }

    /// Whether a reply has the form, and for many elements the length, of an answer to this.
    #[must_use]
    pub fn is_answered_by(&self, reply: &RemoteReply) -> bool {
        match (self, reply) {
            (Self::Load { .. } | Self::Atomic { .. }, RemoteReply::Value(_))
            | (Self::Store { .. } | Self::StoreMany { .. }, RemoteReply::Done) => true,
            (Self::LoadMany { .. }, RemoteReply::Bytes(data)) => {
                data.len() as u64 == self.data_bytes().1
            }
            _ => false,
        }
    }

    /// First and last address that it reaches from `address` on; `None` where that wraps around
    /// the address space, or there is nothing to reach.
    #[must_use]
    pub fn span(&self, address: u64) -> Option<(u64, u64)> {
        let (bytes, count, step) = self.shape();
        let reach = i128::from(step) * i128::from(count.checked_sub(1)?);
        let (first, last) =
            (i128::from(address) + reach.min(0), i128::from(address) + reach.max(0));
        Some((u64::try_from(first).ok()?, u64::try_from(last + i128::from(bytes) - 1).ok()?))
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteReply {
    /// It is done.
    Done,
    /// The value loaded.
    Value(u64),
    /// The bytes of the elements loaded.
    Bytes(Vec<u8>),
}

/// Why the memory refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    /// A byte that is not mapped for it.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// An atomic access that is not a multiple of its size.
    #[error("misaligned atomic access at {0:#x}")]
    Misaligned(u64),
}

/// Does what a request asks of a memory.
///
/// # Errors
/// [`RequestRefusal`]. Of many elements, those before the refused one are stored.
pub fn serve(
    memory: &mut GuestMemory,
    request: &RemoteRequest,
) -> Result<RemoteReply, RequestRefusal> {
    let at = request.address;
    let element = |index: u64, step: i64| at.wrapping_add(index.wrapping_mul(step as u64));
    Ok(match &request.action {
        RemoteAction::Load { bytes, signed } => {
            RemoteReply::Value(load(memory, at, *bytes, *signed)?)
        }
        RemoteAction::Store { bytes, value } => {
            store(memory, at, *bytes, *value)?;
            RemoteReply::Done
        }
        RemoteAction::Atomic { bytes, operation, operand, expected } => {
            if at % u64::from(*bytes) != 0 {
                return Err(RequestRefusal::Misaligned(at));
            }
            let old = load(memory, at, *bytes, true)?;
            let narrow = |value: u64| if *bytes == 4 { value as i32 as u64 } else { value };
            let (operand, expected) = (narrow(*operand), narrow(*expected));
            let new = combine(*operation, old, operand, expected);
            store(memory, at, *bytes, new)?;
            RemoteReply::Value(old)
        }
        RemoteAction::LoadMany { bytes, count, step } => {
            let mut data = vec![0; (*count * u64::from(*bytes)) as usize];
            for (index, part) in (0..).zip(data.chunks_exact_mut(usize::from(*bytes))) {
                memory.read(element(index, *step), part)?;
            }
            RemoteReply::Bytes(data)
        }
        RemoteAction::StoreMany { bytes, data, step } => {
            for (index, part) in (0..).zip(data.chunks_exact(usize::from(*bytes))) {
                memory.write(element(index, *step), part)?;
            }
            RemoteReply::Done
        }
    })
}

fn load(memory: &mut GuestMemory, at: u64, bytes: u8, signed: bool) -> Result<u64, MemoryFault> {
    let (value, unused) = match bytes {
        1 => (u8::from_le_bytes(memory.load(at)?).into(), 56),
        2 => (u16::from_le_bytes(memory.load(at)?).into(), 48),
        4 => (u32::from_le_bytes(memory.load(at)?).into(), 32),
        _ => (u64::from_le_bytes(memory.load(at)?), 0),
    };
    Ok(if signed { ((value << unused) as i64 >> unused) as u64 } else { value })
}

fn store(memory: &mut GuestMemory, at: u64, bytes: u8, value: u64) -> Result<(), MemoryFault> {
    match bytes {
        1 => memory.store(at, (value as u8).to_le_bytes()),
        2 => memory.store(at, (value as u16).to_le_bytes()),
        4 => memory.store(at, (value as u32).to_le_bytes()),
        _ => memory.store(at, value.to_le_bytes()),
    }
}

fn combine(operation: AtomicOperation, old: u64, operand: u64, expected: u64) -> u64 {
    match operation {
        AtomicOperation::Add => old.wrapping_add(operand),
        AtomicOperation::Xor => old ^ operand,
        AtomicOperation::And => old & operand,
        AtomicOperation::Or => old | operand,
        AtomicOperation::Min => (old as i64).min(operand as i64) as u64,
        AtomicOperation::Max => (old as i64).max(operand as i64) as u64,
        AtomicOperation::CompareSwap if old == expected => operand,
        AtomicOperation::CompareSwap => old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_riscv::memory::{READ, WRITE};

    fn memory() -> GuestMemory {
        let mut memory = GuestMemory::new(1 << 20);
        memory.map(0x1000, 0x3000, READ | WRITE);
        memory
    }

    #[test]
    fn atomics_change_words_as_their_names_say() {
        use AtomicOperation::{Add, And, CompareSwap, Max, Min, Or, Xor};
        let minus_two = -2_i64 as u64;
        for (bytes, operation, old, operand, expected, new) in [
            (8, Add, 5, minus_two, 0, 3),
            (4, Add, 0xffff_ffff, 1, 0, 0),
            (8, Xor, 6, 3, 0, 5),
            (8, And, 6, 3, 0, 2),
            (8, Or, 6, 3, 0, 7),
            (4, Min, 1, minus_two, 0, 0xffff_fffe),
            (8, Max, 1, minus_two, 0, 1),
            (8, CompareSwap, 4, 9, 4, 9),
            (8, CompareSwap, 4, 9, 5, 4),
            // The upper half of `expected` does not count.
            (4, CompareSwap, 4, 9, 7 << 32 | 4, 9),
        ] {
            let mut memory = memory();
            memory.write(0x1008, &u64::to_le_bytes(old)).unwrap();
            let action = RemoteAction::Atomic { bytes, operation, operand, expected };
            let reply = serve(&mut memory, &RemoteRequest { address: 0x1008, action }).unwrap();
            let before = if bytes == 4 { old as u32 as i32 as u64 } else { old };
            assert_eq!(reply, RemoteReply::Value(before), "{operation:?}");
            assert_eq!(memory.load::<8>(0x1008), Ok(u64::to_le_bytes(new)), "{operation:?}");
        }
        let action = RemoteAction::Atomic { bytes: 8, operation: Add, operand: 1, expected: 0 };
        let refused = serve(&mut memory(), &RemoteRequest { address: 0x1004, action });
        assert_eq!(refused, Err(RequestRefusal::Misaligned(0x1004)));
    }

    #[test]
    fn replies_of_another_form_or_length_are_no_answers() {
        use RemoteReply::{Bytes, Done, Value};
        let load = RemoteAction::Load { bytes: 4, signed: true };
        let store = RemoteAction::Store { bytes: 4, value: 1 };
        let many = RemoteAction::LoadMany { bytes: 4, count: 3, step: 4 };
        let put = RemoteAction::StoreMany { bytes: 4, data: vec![0; 12], step: 4 };
        assert!(load.is_answered_by(&Value(1)) && store.is_answered_by(&Done));
        assert!(many.is_answered_by(&Bytes(vec![0; 12])) && put.is_answered_by(&Done));
        for (action, reply) in [
            (&load, Done),
            (&load, Bytes(vec![0; 4])),
            (&store, Value(1)),
            (&many, Value(1)),
            (&many, Bytes(vec![0; 11])),
            (&many, Bytes(vec![0; 16])),
            (&put, Bytes(vec![0; 12])),
        ] {
            assert!(!action.is_answered_by(&reply), "{action:?} {reply:?}");
        }
    }

    #[test]
    fn many_elements_come_back_in_order_and_backwards() {
        let mut memory = memory();
        let data: Vec<u8> = (0..32).collect();
        let action = RemoteAction::StoreMany { bytes: 4, data: data.clone(), step: 12 };
        assert_eq!(action.span(0x1100), Some((0x1100, 0x1100 + 7 * 12 + 3)));
        serve(&mut memory, &RemoteRequest { address: 0x1100, action }).unwrap();
        let action = RemoteAction::LoadMany { bytes: 4, count: 8, step: -12 };
        let address = 0x1100 + 7 * 12;
        assert_eq!(action.span(address), Some((0x1100, address + 3)));
        let reply = serve(&mut memory, &RemoteRequest { address, action }).unwrap();
        let backwards: Vec<u8> = data.chunks(4).rev().flatten().copied().collect();
        assert_eq!(reply, RemoteReply::Bytes(backwards));
        let action = RemoteAction::LoadMany { bytes: 1, count: 0, step: 1 };
        assert_eq!(action.span(5), None);
        let action = RemoteAction::LoadMany { bytes: 8, count: 3, step: -8 };
        assert_eq!(action.span(8), None);
    }
}
