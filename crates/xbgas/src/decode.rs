//! Decoding and printing of extended instructions. Pure.
//!
//! The encodings exclude one another in a few places:
//!
//! | instruction | 2018 | 2.0 | rev |
//! |---|---|---|---|
//! | `eaddie` / `ese` | 0x707b / 0x507b | 0x507b / 0x707b | 0x507b / 0x707b |
//! | `erse` | 0x46003033 | 0x44007033 | 0x46007033 |
//! | `erle` | 0x42004033 | 0xaa007033 | 0xaa007033 |
//! | opcode 0x77, `funct3` 6 | `elq` (and `esq`, 0x407b) | none | `elwu` |
//! | atomics, opcode 0x6b, `funct3` 6 and 7 | `eamo*.w`, `eamo*.d` | none | none |
//! | bulk transfers, opcode 0x5b, R4 | none | none | `ebl*`, `ebs*` |
//!
//! Sources: the binary tools of 2018, the specification 2.0 of 2023 and its revision of 2024.
//! `funct7` of atomics, 0 to 6, is their place in [`AtomicOperation`], as the tools number them.
//! `funct3` of bulk transfers is that of other loads and stores, and the two bits above `rs2` are
//! 0 for loads and 1 for stores: no text that we found numbers these.

use std::fmt;
use terrace_riscv::print::integer_register_name;

/// Which of the published encodings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// That of the binary tools of 2018.
    V2018,
    /// That of the specification 2.0.
    V2_0,
    /// That of its revision.
    Rev,
}

/// Where an instruction has its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operands {
    /// `rd, imm(rs1)`; the address is extended by the register paired with `rs1`.
    Load,
    /// The same, with an extended register as destination.
    LoadExtended,
    /// `rs2, imm(rs1)`.
    Store,
    /// The same, with an extended register as source.
    StoreExtended,
    /// `rd, rs1, ext`: the extended register is explicit.
    Raw,
    /// `ext, rs1, ext`.
    RawExtended,
    /// `rd, ext, imm`.
    FromExtended,
    /// `ext, rs1, imm`.
    ToExtended,
    /// `ext, ext, imm`.
    BetweenExtended,
    /// `rd, rs1, rs2`; the address in `rs1` is extended by the register paired with it.
    Atomic(AtomicOperation),
    /// `rd, rs1, rs2, rs3`: local address, remote address, count, stride; the register paired
    /// with `rd` extends the remote address.
    BulkLoad,
    /// The same: remote address, local address, count, stride.
    BulkStore,
}

/// What an atomic instruction makes of the value in memory and its operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Their sum.
    Add,
    /// Exclusive or.
    Xor,
    /// And.
    And,
    /// Or.
    Or,
    /// The smaller one, signed.
    Min,
    /// The larger one, signed.
    Max,
    /// The operand, where memory held what `rd` held.
    CompareSwap,
}

/// A decoded extended instruction; prints as the binary tools print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedInstruction {
    /// Mnemonic.
    pub name: &'static str,
    pub(crate) operands: Operands,
    /// Bits 7 to 11.
    pub rd: u8,
    /// Bits 15 to 19.
    pub rs1: u8,
    /// Bits 20 to 24.
    pub rs2: u8,
    /// Bits 27 to 31.
    pub rs3: u8,
    /// Offset or addend, in bytes.
    pub immediate: i32,
}

const LOADS: [&str; 6] = ["elb", "elh", "elw", "eld", "elbu", "elhu"];
const STORES: [&str; 4] = ["esb", "esh", "esw", "esd"];
const RAW_LOADS: [&str; 6] = ["erlb", "erlh", "erlw", "erld", "erlbu", "erlhu"];
const RAW_STORES: [&str; 4] = ["ersb", "ersh", "ersw", "ersd"];
const BULK_LOADS: [&str; 6] = ["eblb", "eblh", "eblw", "ebld", "eblbu", "eblhu"];
const BULK_STORES: [&str; 4] = ["ebsb", "ebsh", "ebsw", "ebsd"];
/// By `funct7`: operation, name of words, name of double words.
const ATOMICS: [(AtomicOperation, [&str; 2]); 7] = [
    (AtomicOperation::Add, ["eamoadd.w", "eamoadd.d"]),
    (AtomicOperation::Xor, ["eamoxor.w", "eamoxor.d"]),
    (AtomicOperation::And, ["eamoand.w", "eamoand.d"]),
    (AtomicOperation::Or, ["eamoor.w", "eamoor.d"]),
    (AtomicOperation::Min, ["eamomin.w", "eamomin.d"]),
    (AtomicOperation::Max, ["eamomax.w", "eamomax.d"]),
    (AtomicOperation::CompareSwap, ["eamocas.w", "eamocas.d"]),
];

/// Name and operands of a word.
fn classify(dialect: Dialect, word: u32) -> Option<(&'static str, Operands)> {
    let funct3 = (word >> 12 & 7) as usize;
    let old = dialect == Dialect::V2018;
    Some(match (word & 0x7f, funct3) {
        (0x77, 0..=5) => (LOADS[funct3], Operands::Load),
        (0x77, 6) => match dialect {
            Dialect::V2018 => ("elq", Operands::Load),
            Dialect::V2_0 => return None,
            Dialect::Rev => ("elwu", Operands::Load),
        },
        (0x77, _) => ("ele", Operands::LoadExtended),
        (0x7b, 0..=3) => (STORES[funct3], Operands::Store),
        (0x7b, 4) if old => ("esq", Operands::Store),
        (0x7b, 4) => return None,
        (0x7b, 6) => ("eaddi", Operands::FromExtended),
        (0x7b, 5) if old => ("ese", Operands::StoreExtended),
        (0x7b, 5) => ("eaddie", Operands::ToExtended),
        (0x7b, _) if old => ("eaddie", Operands::ToExtended),
        (0x7b, _) => ("ese", Operands::StoreExtended),
        (0x03, 7) => ("eaddix", Operands::BetweenExtended),
        (0x33, _) => return classify_raw(dialect, word & 0xfe00_707f, funct3),
        (0x6b, 6 | 7) if old => {
            let (operation, names) = ATOMICS.get((word >> 25) as usize)?;
            (names[funct3 - 6], Operands::Atomic(*operation))
        }
        (0x5b, _) if dialect == Dialect::Rev => match word >> 25 & 3 {
            0 => (*BULK_LOADS.get(funct3)?, Operands::BulkLoad),
            1 => (*BULK_STORES.get(funct3)?, Operands::BulkStore),
            _ => return None,
        },
        _ => return None,
    })
}

fn classify_raw(dialect: Dialect, fixed: u32, funct3: usize) -> Option<(&'static str, Operands)> {
    let (load, store) = match dialect {
        Dialect::V2018 => (0x4200_4033, 0x4600_3033),
        Dialect::V2_0 => (0xaa00_7033, 0x4400_7033),
        Dialect::Rev => (0xaa00_7033, 0x4600_7033),
    };
    if fixed == load {
        return Some(("erle", Operands::RawExtended));
    }
    if fixed == store {
        return Some(("erse", Operands::RawExtended));
    }
    let names: &[&'static str] = match fixed >> 25 {
        0x55 => &RAW_LOADS,
        0x22 => &RAW_STORES,
        _ => return None,
    };
    names.get(funct3).map(|name| (*name, Operands::Raw))
}

impl ExtendedInstruction {
    /// Decodes a word; `None` for what is no extended instruction of the dialect.
    #[must_use]
    pub fn decode(dialect: Dialect, word: u32) -> Option<Self> {
        let (name, operands) = classify(dialect, word)?;
        let register = |shift: u32| (word >> shift & 31) as u8;
        let high = (word as i32) >> 25;
        let immediate = match operands {
            Operands::Store | Operands::StoreExtended => high << 5 | i32::from(register(7)),
            Operands::Raw
            | Operands::RawExtended
            | Operands::Atomic(_)
            | Operands::BulkLoad
            | Operands::BulkStore => 0,
            _ => (word as i32) >> 20,
        };
        let [rd, rs1, rs2, rs3] = [7, 15, 20, 27].map(register);
        Some(Self { name, operands, rd, rs1, rs2, rs3, immediate })
    }

    /// The extended register that extends the address; `None` of an instruction that makes no
    /// access.
    #[must_use]
    pub fn addressing_register(&self) -> Option<u8> {
        match self.operands {
            Operands::Load
            | Operands::LoadExtended
            | Operands::Store
            | Operands::StoreExtended
            | Operands::Atomic(_) => Some(self.rs1),
            Operands::BulkLoad | Operands::BulkStore => Some(self.rd),
            Operands::Raw | Operands::RawExtended => Some(self.rs2),
            _ => None,
        }
    }

    /// The base registers that it reads, a bit each.
    #[must_use]
    pub fn base_registers_read(&self) -> u32 {
        let [rd, rs1, rs2, rs3] =
            [self.rd, self.rs1, self.rs2, self.rs3].map(|register| 1_u32 << (register & 31));
        let read = match self.operands {
            Operands::Load | Operands::LoadExtended | Operands::StoreExtended => rs1,
            Operands::Store => rs1 | rs2,
            Operands::Raw if self.is_load() => rs1,
            Operands::Raw => rs1 | rd,
            Operands::RawExtended | Operands::ToExtended => rs1,
            Operands::FromExtended | Operands::BetweenExtended => 0,
            Operands::Atomic(AtomicOperation::CompareSwap) => rd | rs1 | rs2,
            Operands::Atomic(_) => rs1 | rs2,
            Operands::BulkLoad | Operands::BulkStore => rd | rs1 | rs2 | rs3,
        };
        read & !1
    }

    /// Whether it loads; of an instruction that makes an access, the others store.
    #[must_use]
    pub fn is_load(&self) -> bool {
        match self.operands {
            Operands::Load | Operands::LoadExtended => true,
            Operands::Atomic(_) | Operands::BulkLoad => true,
            Operands::Raw | Operands::RawExtended => self.name.starts_with("erl"),
            _ => false,
        }
    }
}

impl fmt::Display for ExtendedInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rd, rs1, rs2, immediate, .. } = *self;
        let [d, a, b] = [rd, rs1, rs2].map(integer_register_name);
        match self.operands {
            Operands::Load => write!(f, "{name}\t{d},{immediate}({a})"),
            Operands::LoadExtended => write!(f, "{name}\te{rd},{immediate}({a})"),
            Operands::Store => write!(f, "{name}\t{b},{immediate}({a})"),
            Operands::StoreExtended => write!(f, "{name}\te{rs2},{immediate}({a})"),
            Operands::Raw => write!(f, "{name}\t{d},{a},e{rs2}"),
            Operands::RawExtended => write!(f, "{name}\te{rd},{a},e{rs2}"),
            Operands::FromExtended => write!(f, "{name}\t{d},e{rs1},{immediate}"),
            Operands::ToExtended => write!(f, "{name}\te{rd},{a},{immediate}"),
            Operands::BetweenExtended => write!(f, "{name}\te{rd},e{rs1},{immediate}"),
            Operands::Atomic(_) => write!(f, "{name}\t{d},{a},{b}"),
            Operands::BulkLoad | Operands::BulkStore => {
                write!(f, "{name}\t{d},{a},{b},{}", integer_register_name(self.rs3))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listing_of_the_tools_of_2018_decodes_and_prints_the_same() {
        let listing = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../../shared/data/xbgas/v1.disass");
        let Ok(text) = std::fs::read_to_string(&listing) else {
            println!("skipped: {} is not there", listing.display());
            return;
        };
        let mut compared = 0;
        for line in text.lines() {
            // Address, word, mnemonic, operands and perhaps a symbol.
            let fields: Vec<&str> = line.split('\t').collect();
            let [_, word, name, operands] = fields[..] else { continue };
            let word = u32::from_str_radix(word.trim(), 16).unwrap();
            let expected = format!("{name}\t{}", operands.split(" #").next().unwrap());
            let printed = ExtendedInstruction::decode(Dialect::V2018, word).map(|i| i.to_string());
            assert_eq!(printed.as_deref(), Some(expected.as_str()), "{line}");
            compared += 1;
        }
        assert_eq!(compared, text.matches(":\t").count());
        assert!(compared > 290, "{compared} instructions");
    }

    #[test]
    fn dialects_differ_where_the_table_says() {
        let name = |dialect, word| ExtendedInstruction::decode(dialect, word).map(|i| i.name);
        for (word, names) in [
            (0x707b, [Some("eaddie"), Some("ese"), Some("ese")]),
            (0x507b, [Some("ese"), Some("eaddie"), Some("eaddie")]),
            (0x4600_3033, [Some("erse"), None, None]),
            (0x4400_7033, [None, Some("erse"), None]),
            (0x4600_7033, [None, None, Some("erse")]),
            (0x4200_4033, [Some("erle"), None, None]),
            (0xaa00_7033, [None, Some("erle"), Some("erle")]),
            (0x6077, [Some("elq"), None, Some("elwu")]),
            (0x407b, [Some("esq"), None, None]),
            (0x606b, [Some("eamoadd.w"), None, None]),
            (0x0c00_706b, [Some("eamocas.d"), None, None]),
            (0x0e00_706b, [None; 3]),
            (0x305b, [None, None, Some("ebld")]),
            (0x0200_005b, [None, None, Some("ebsb")]),
            (0x0200_405b, [None; 3]),
            (0x0400_005b, [None; 3]),
            (0x13, [None; 3]),
        ] {
            let found = [Dialect::V2018, Dialect::V2_0, Dialect::Rev].map(|d| name(d, word));
            assert_eq!(found, names, "{word:#x}");
        }
    }

    #[test]
    fn atomics_and_bulk_transfers_print_their_operands_in_order() {
        let print = |dialect, word| ExtendedInstruction::decode(dialect, word).unwrap().to_string();
        let (rd, rs1, rs2, rs3) = (10 << 7, 11 << 15, 12 << 20, 13 << 27);
        let atomic = 0x0800_706b | rd | rs1 | rs2;
        assert_eq!(print(Dialect::V2018, atomic), "eamomin.d\ta0,a1,a2");
        let bulk = 0x105b | rd | rs1 | rs2 | rs3;
        assert_eq!(print(Dialect::Rev, bulk), "eblh\ta0,a1,a2,a3");
        assert_eq!(print(Dialect::Rev, bulk | 1 << 25), "ebsh\ta0,a1,a2,a3");
    }
}
