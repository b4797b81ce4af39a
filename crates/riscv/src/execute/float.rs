//! Floating-point arithmetic: operands from boxed registers, rounding mode, flags.

use super::{Hart, Trap};
use crate::decode::{Instruction, Op};
use crate::float::{FloatFormat, Rounding, DOUBLE, INVALID, SINGLE};
use std::cmp::Ordering;

/// Upper half of a register that holds a single.
const BOX: u64 = !0 << 32;

/// What an operation computes, apart from its width.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Fused { negate_product: bool, negate_addend: bool },
    Add,
    Subtract,
    Multiply,
    Divide,
    SquareRoot,
    Sign(fn(u64, u64) -> u64),
    Select(Ordering),
    Compare(fn(Ordering) -> bool, Signalling),
    ToInteger(Width),
    FromInteger(Width),
    Classify,
    Convert,
    MoveOut,
    MoveIn,
}

/// Whether a comparison also calls quiet NaNs invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signalling {
    Yes,
    No,
}

/// An integer type of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    I32,
    U32,
    I64,
    U64,
}

impl Width {
    const fn range(self) -> [i128; 2] {
        match self {
            Self::I32 => [i32::MIN as i128, i32::MAX as i128],
            Self::U32 => [0, u32::MAX as i128],
            Self::I64 => [i64::MIN as i128, i64::MAX as i128],
            Self::U64 => [0, u64::MAX as i128],
        }
    }

    fn value(self, register: u64) -> i128 {
        match self {
            Self::I32 => (register as i32).into(),
            Self::U32 => (register as u32).into(),
            Self::I64 => (register as i64).into(),
            Self::U64 => register.into(),
        }
    }

    /// As registers hold it: words are sign-extended, unsigned ones too.
    const fn register(self, value: i128) -> u64 {
        match self {
            Self::I32 | Self::U32 => value as i32 as u64,
            Self::I64 | Self::U64 => value as u64,
        }
    }
}

/// Width of the operands, and what is done with them.
fn meaning(op: Op) -> Option<(FloatFormat, Kind)> {
    let fused = |negate_product, negate_addend| Kind::Fused { negate_product, negate_addend };
    Some(match op {
        Op::FmaddS => (SINGLE, fused(false, false)),
        Op::FmsubS => (SINGLE, fused(false, true)),
        Op::FnmsubS => (SINGLE, fused(true, false)),
        Op::FnmaddS => (SINGLE, fused(true, true)),
        Op::FaddS => (SINGLE, Kind::Add),
        Op::FsubS => (SINGLE, Kind::Subtract),
        Op::FmulS => (SINGLE, Kind::Multiply),
        Op::FdivS => (SINGLE, Kind::Divide),
        Op::FsqrtS => (SINGLE, Kind::SquareRoot),
        Op::FsgnjS => (SINGLE, Kind::Sign(|_, b| b)),
        Op::FsgnjnS => (SINGLE, Kind::Sign(|_, b| !b)),
        Op::FsgnjxS => (SINGLE, Kind::Sign(|a, b| a ^ b)),
        Op::FminS => (SINGLE, Kind::Select(Ordering::Less)),
        Op::FmaxS => (SINGLE, Kind::Select(Ordering::Greater)),
        Op::FeqS => (SINGLE, Kind::Compare(Ordering::is_eq, Signalling::No)),
        Op::FltS => (SINGLE, Kind::Compare(Ordering::is_lt, Signalling::Yes)),
        Op::FleS => (SINGLE, Kind::Compare(Ordering::is_le, Signalling::Yes)),
        Op::FclassS => (SINGLE, Kind::Classify),
        Op::FcvtWS => (SINGLE, Kind::ToInteger(Width::I32)),
        Op::FcvtSW => (SINGLE, Kind::FromInteger(Width::I32)),
        Op::FcvtWuS => (SINGLE, Kind::ToInteger(Width::U32)),
        Op::FcvtSWu => (SINGLE, Kind::FromInteger(Width::U32)),
        Op::FcvtLS => (SINGLE, Kind::ToInteger(Width::I64)),
        Op::FcvtSL => (SINGLE, Kind::FromInteger(Width::I64)),
        Op::FcvtLuS => (SINGLE, Kind::ToInteger(Width::U64)),
        Op::FcvtSLu => (SINGLE, Kind::FromInteger(Width::U64)),
        Op::FmaddD => (DOUBLE, fused(false, false)),
        Op::FmsubD => (DOUBLE, fused(false, true)),
        Op::FnmsubD => (DOUBLE, fused(true, false)),
        Op::FnmaddD => (DOUBLE, fused(true, true)),
        Op::FaddD => (DOUBLE, Kind::Add),
        Op::FsubD => (DOUBLE, Kind::Subtract),
        Op::FmulD => (DOUBLE, Kind::Multiply),
        Op::FdivD => (DOUBLE, Kind::Divide),
        Op::FsqrtD => (DOUBLE, Kind::SquareRoot),
        Op::FsgnjD => (DOUBLE, Kind::Sign(|_, b| b)),
        Op::FsgnjnD => (DOUBLE, Kind::Sign(|_, b| !b)),
        Op::FsgnjxD => (DOUBLE, Kind::Sign(|a, b| a ^ b)),
        Op::FminD => (DOUBLE, Kind::Select(Ordering::Less)),
        Op::FmaxD => (DOUBLE, Kind::Select(Ordering::Greater)),
        Op::FeqD => (DOUBLE, Kind::Compare(Ordering::is_eq, Signalling::No)),
        Op::FltD => (DOUBLE, Kind::Compare(Ordering::is_lt, Signalling::Yes)),
        Op::FleD => (DOUBLE, Kind::Compare(Ordering::is_le, Signalling::Yes)),
        Op::FclassD => (DOUBLE, Kind::Classify),
        Op::FcvtWD => (DOUBLE, Kind::ToInteger(Width::I32)),
        Op::FcvtDW => (DOUBLE, Kind::FromInteger(Width::I32)),
        Op::FcvtWuD => (DOUBLE, Kind::ToInteger(Width::U32)),
        Op::FcvtDWu => (DOUBLE, Kind::FromInteger(Width::U32)),
        Op::FcvtLD => (DOUBLE, Kind::ToInteger(Width::I64)),
        Op::FcvtDL => (DOUBLE, Kind::FromInteger(Width::I64)),
        Op::FcvtLuD => (DOUBLE, Kind::ToInteger(Width::U64)),
        Op::FcvtDLu => (DOUBLE, Kind::FromInteger(Width::U64)),
        Op::FcvtSD => (DOUBLE, Kind::Convert),
        Op::FcvtDS => (SINGLE, Kind::Convert),
        Op::FmvXW => (SINGLE, Kind::MoveOut),
        Op::FmvWX => (SINGLE, Kind::MoveIn),
        Op::FmvXD => (DOUBLE, Kind::MoveOut),
        Op::FmvDX => (DOUBLE, Kind::MoveIn),
        _ => return None,
    })
}

impl Hart {
    /// A register as a number; a single that is not boxed is the canonical NaN.
    fn unboxed(&self, format: FloatFormat, register: u8) -> u64 {
        let bits = self.f[usize::from(register)];
        match format {
            DOUBLE => bits,
            _ if bits & BOX == BOX => bits & !BOX,
            _ => SINGLE.nan(),
        }
    }

    fn set_float(&mut self, format: FloatFormat, register: u8, bits: u64) {
        self.f[usize::from(register)] = if format == DOUBLE { bits } else { bits | BOX };
    }

    /// Executes an operation on floating-point registers.
    pub(super) fn float(&mut self, i: Instruction) -> Result<(), Trap> {
        let (format, kind) = meaning(i.op).ok_or(Trap::Illegal)?;
        let sign = 1 << if format == DOUBLE { 63 } else { 31 };
        let mut flags = self.fflags;
        let flags_at = &mut flags;
        let [a, b] = [i.rs1, i.rs2].map(|register| self.unboxed(format, register));
        let x = self.x[usize::from(i.rs1)];
        let mode = Rounding::from_bits(if i.rounding == 7 { self.frm } else { i.rounding });
        // Operations without rounding have other codes in these bits.
        let mode = match kind {
            Kind::Sign(_) | Kind::Select(_) | Kind::Compare(..) => Rounding::NearestEven,
            Kind::Classify | Kind::MoveOut | Kind::MoveIn => Rounding::NearestEven,
            _ => mode.ok_or(Trap::Illegal)?,
        };
        let mut result_format = format;
        let bits = match kind {
            Kind::Fused { negate_product, negate_addend } => {
                let c = self.unboxed(format, i.rs3);
                let a = if negate_product { format.negate(a) } else { a };
                let c = if negate_addend { format.negate(c) } else { c };
                format.multiply_add([a, b, c], mode, flags_at)
            }
            Kind::Add => format.add(a, b, mode, flags_at),
            Kind::Subtract => format.subtract(a, b, mode, flags_at),
            Kind::Multiply => format.multiply(a, b, mode, flags_at),
            Kind::Divide => format.divide(a, b, mode, flags_at),
            Kind::SquareRoot => format.square_root(a, mode, flags_at),
            Kind::Sign(combine) => a & !sign | combine(a, b) & sign,
            Kind::Select(extreme) => format.select(a, b, extreme, flags_at),
            Kind::FromInteger(width) => format.from_integer(width.value(x), mode, flags_at),
            Kind::Convert => {
                result_format = if format == DOUBLE { SINGLE } else { DOUBLE };
                format.convert(result_format, a, mode, flags_at)
            }
            Kind::MoveIn => x & (sign | (sign - 1)),
            Kind::Compare(holds, signalling) => {
                let order = format.compare(a, b);
                let signals = format.is_signalling(a) || format.is_signalling(b);
                if order.is_none() && (signals || signalling == Signalling::Yes) {
                    *flags_at |= INVALID;
                }
                self.set(i.rd, u64::from(order.is_some_and(holds)));
                self.fflags = flags;
                return Ok(());
            }
            Kind::ToInteger(width) => {
                let value = format.to_integer(a, width.range(), mode, flags_at);
                self.set(i.rd, width.register(value));
                self.fflags = flags;
                return Ok(());
            }
            Kind::Classify => {
                self.set(i.rd, format.classify(a));
                return Ok(());
            }
            Kind::MoveOut => {
                let raw = self.f[usize::from(i.rs1)];
                self.set(i.rd, if format == DOUBLE { raw } else { raw as i32 as u64 });
                return Ok(());
            }
        };
        self.set_float(result_format, i.rd, bits);
        self.fflags = flags;
        Ok(())
    }
}
