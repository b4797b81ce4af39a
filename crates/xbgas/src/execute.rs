//! What an extended instruction does, as data: a register to set, or an access to make. Pure.
//!
//! Source: "xBGAS: Toward a RISC-V ISA Extension for Global, Scalable Shared Memory", sections
//! 3.2 to 3.4.

use crate::decode::{AtomicOperation, ExtendedInstruction, Operands};

/// Extended registers below this cannot extend an address (section 3.2).
pub const FIRST_ADDRESSING_REGISTER: u8 = 10;

/// An address with the object that it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedAddress {
    /// Object id; 0 is the local memory.
    pub object: u64,
    /// Virtual address there.
    pub address: u64,
}

/// A register that an instruction sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetRegister {
    /// x0 to x31.
    Base(u8),
    /// e0 to e31.
    Extended(u8),
}

/// What an instruction does besides advancing the program counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtendedEffect {
    /// Sets a register.
    Set {
        /// Which.
        register: TargetRegister,
        /// To what.
        value: u64,
    },
    /// Loads into a register.
    Load {
        /// From where.
        at: ExtendedAddress,
        /// How much: 1, 2, 4 or 8.
        bytes: u8,
        /// Whether the value is sign-extended.
        signed: bool,
        /// Where to.
        register: TargetRegister,
    },
    /// Stores the low bytes of a value.
    Store {
        /// To where.
        at: ExtendedAddress,
        /// How much: 1, 2, 4 or 8.
        bytes: u8,
        /// The value.
        value: u64,
    },
    /// Replaces a value at once and brings the one before.
    Atomic {
        /// Where.
        at: ExtendedAddress,
        /// How much: 4 or 8.
        bytes: u8,
        /// What becomes of it.
        operation: AtomicOperation,
        /// The operand.
        operand: u64,
        /// What memory has to hold for a swap.
        expected: u64,
        /// Where to.
        register: TargetRegister,
    },
    /// Moves many elements between local memory and an object.
    Bulk {
        /// The first element there.
        at: ExtendedAddress,
        /// The first element here.
        local: u64,
        /// Bytes of an element: 1, 2, 4 or 8.
        bytes: u8,
        /// How many.
        count: u64,
        /// Elements from one to the next, on both sides.
        stride: i64,
        /// Whether it goes there.
        stored: bool,
    },
}

/// Elements of a bulk transfer at most: bounds what one instruction does. The revision's own
/// measurements go to 2000.
pub const MOST_BULK_ELEMENTS: u64 = 1 << 16;

/// Why an extended instruction is not executed, before any access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExtendedTrap {
    /// The address is extended by e0 to e9.
    #[error("{name} addresses through e{register}; use e10 to e31")]
    ReservedRegister {
        /// Mnemonic.
        name: &'static str,
        /// The extended register.
        register: u8,
    },
    /// An access of 128 bits.
    #[error("{0} needs registers of 128 bits, which RV64 lacks; use two accesses of 64 bits")]
    Wide(&'static str),
    /// A bulk transfer of too many elements.
    #[error("{name} of {count} elements; move at most {MOST_BULK_ELEMENTS} at once")]
    Bulk {
        /// Mnemonic.
        name: &'static str,
        /// How many.
        count: u64,
    },
}

impl ExtendedInstruction {
    /// Bytes of the access, and whether a load is sign-extended.
    fn width(&self) -> Option<(u8, bool)> {
        let bulk = matches!(self.operands, Operands::BulkLoad | Operands::BulkStore);
        let name = if bulk { &self.name[3..] } else { self.name };
        Some(match name.rsplit('.').next()?.trim_start_matches(['e', 'r', 'l', 's']) {
            "b" => (1, true),
            "h" => (2, true),
            "w" => (4, true),
            "d" | "" => (8, true),
            "bu" => (1, false),
            "hu" => (2, false),
            "wu" => (4, false),
            _ => return None,
        })
    }

    /// What the instruction does to a hart with base registers `x` and extended registers `e`.
    ///
    /// # Errors
    /// [`ExtendedTrap`].
    pub fn effect(&self, x: &[u64; 32], e: &[u64; 32]) -> Result<ExtendedEffect, ExtendedTrap> {
        let base = |register: u8| x[usize::from(register) & 31];
        let extended = |register: u8| e[usize::from(register) & 31];
        let added = |value: u64| value.wrapping_add(self.immediate as i64 as u64);
        let set = |register, value| Ok(ExtendedEffect::Set { register, value });
        let (value, register) = match self.operands {
            Operands::FromExtended => {
                return set(TargetRegister::Base(self.rd), added(extended(self.rs1)));
            }
            Operands::ToExtended => {
                return set(TargetRegister::Extended(self.rd), added(base(self.rs1)));
            }
            Operands::BetweenExtended => {
                return set(TargetRegister::Extended(self.rd), added(extended(self.rs1)));
            }
            Operands::Load | Operands::Raw => (base(self.rd), TargetRegister::Base(self.rd)),
            Operands::LoadExtended | Operands::RawExtended => {
                (extended(self.rd), TargetRegister::Extended(self.rd))
            }
            Operands::Store => (base(self.rs2), TargetRegister::Base(0)),
            Operands::StoreExtended => (extended(self.rs2), TargetRegister::Base(0)),
            Operands::Atomic(_) => (base(self.rs2), TargetRegister::Base(self.rd)),
            Operands::BulkLoad | Operands::BulkStore => (base(self.rs2), TargetRegister::Base(0)),
        };
        let by = self.addressing_register().unwrap_or(0);
        if by < FIRST_ADDRESSING_REGISTER {
            return Err(ExtendedTrap::ReservedRegister { name: self.name, register: by });
        }
        let (bytes, signed) = self.width().ok_or(ExtendedTrap::Wide(self.name))?;
        let at = ExtendedAddress { object: extended(by), address: added(base(self.rs1)) };
        if let Operands::Atomic(operation) = self.operands {
            let (operand, expected) = (value, base(self.rd));
            return Ok(ExtendedEffect::Atomic {
                at,
                bytes,
                operation,
                operand,
                expected,
                register,
            });
        }
        if matches!(self.operands, Operands::BulkLoad | Operands::BulkStore) {
            return self.bulk(extended(by), base(self.rd), base(self.rs1), x, bytes);
        }
        Ok(if self.is_load() {
            ExtendedEffect::Load { at, bytes, signed, register }
        } else {
            ExtendedEffect::Store { at, bytes, value }
        })
    }

    fn bulk(
        &self,
        object: u64,
        to: u64,
        from: u64,
        x: &[u64; 32],
        bytes: u8,
    ) -> Result<ExtendedEffect, ExtendedTrap> {
        let count = x[usize::from(self.rs2) & 31];
        if count > MOST_BULK_ELEMENTS {
            return Err(ExtendedTrap::Bulk { name: self.name, count });
        }
        let stored = self.operands == Operands::BulkStore;
        let (local, address) = if stored { (from, to) } else { (to, from) };
        let at = ExtendedAddress { object, address };
        let stride = x[usize::from(self.rs3) & 31] as i64;
        Ok(ExtendedEffect::Bulk { at, local, bytes, count, stride, stored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Dialect;

    /// Base register n holds 0x1000 n, extended register n holds n.
    fn effect(word: u32) -> Result<ExtendedEffect, ExtendedTrap> {
        let x = std::array::from_fn(|n| 0x1000 * n as u64);
        let e = std::array::from_fn(|n| n as u64);
        ExtendedInstruction::decode(Dialect::V2018, word).unwrap().effect(&x, &e)
    }

    fn i_type(opcode: u32, funct3: u32, rd: u32, rs1: u32, immediate: u32) -> u32 {
        immediate << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
    }

    #[test]
    fn loads_of_all_widths_address_through_the_paired_register() {
        let widths = [(1, true), (2, true), (4, true), (8, true), (1, false), (2, false)];
        for (funct3, (bytes, signed)) in (0..).zip(widths) {
            let at = ExtendedAddress { object: 21, address: 0x15000 - 1 };
            let register = TargetRegister::Base(31);
            let expected = ExtendedEffect::Load { at, bytes, signed, register };
            assert_eq!(effect(i_type(0x77, funct3, 31, 21, 0xfff)), Ok(expected));
        }
        let register = TargetRegister::Extended(31);
        let at = ExtendedAddress { object: 21, address: 0x15000 };
        let expected = ExtendedEffect::Load { at, bytes: 8, signed: true, register };
        assert_eq!(effect(i_type(0x77, 7, 31, 21, 0)), Ok(expected));
    }

    #[test]
    fn stores_take_their_value_from_the_named_register() {
        for (funct3, bytes) in (0..).zip([1, 2, 4, 8]) {
            let word = i_type(0x7b, funct3, 8, 20, 5);
            let at = ExtendedAddress { object: 20, address: 0x14008 };
            assert_eq!(effect(word), Ok(ExtendedEffect::Store { at, bytes, value: 0x5000 }));
        }
        // ese e5,8(x20); ersd a5,a6,e11; erse e12,a5,e11
        let at = ExtendedAddress { object: 20, address: 0x14008 };
        let stored = ExtendedEffect::Store { at, bytes: 8, value: 5 };
        assert_eq!(effect(i_type(0x7b, 5, 8, 20, 5)), Ok(stored));
        let at = ExtendedAddress { object: 11, address: 0x10000 };
        let stored = ExtendedEffect::Store { at, bytes: 8, value: 0xf000 };
        assert_eq!(effect(0x44b8_37b3), Ok(stored));
        let at = ExtendedAddress { object: 11, address: 0xf000 };
        let stored = ExtendedEffect::Store { at, bytes: 8, value: 12 };
        assert_eq!(effect(0x46b7_b633), Ok(stored));
    }

    #[test]
    fn registers_move_as_the_paper_shows() {
        // eaddi x10,e22,0; eaddie e22,x10,0; eaddix e22,e21,-1
        let set = |register, value| Ok(ExtendedEffect::Set { register, value });
        assert_eq!(effect(i_type(0x7b, 6, 10, 22, 0)), set(TargetRegister::Base(10), 22));
        assert_eq!(effect(i_type(0x7b, 7, 22, 10, 0)), set(TargetRegister::Extended(22), 0xa000));
        assert_eq!(effect(i_type(0x03, 7, 22, 21, 0xfff)), set(TargetRegister::Extended(22), 20));
    }

    #[test]
    fn the_first_ten_registers_and_wide_accesses_trap() {
        for register in 0..32_u8 {
            let trap = ExtendedTrap::ReservedRegister { name: "eld", register };
            let found = effect(i_type(0x77, 3, 31, register.into(), 0));
            assert_eq!(found == Err(trap), register < 10, "{found:?}");
        }
        assert_eq!(effect(i_type(0x77, 6, 12, 11, 0)), Err(ExtendedTrap::Wide("elq")));
    }
}
