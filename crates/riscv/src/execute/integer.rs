//! Integer arithmetic of I, M, Zba and Zbb.

use crate::decode::Op;

/// Word arithmetic: the low halves, the result sign-extended.
#[inline(always)]
fn word(a: u64, b: u64, operation: impl Fn(i32, i32) -> i32) -> u64 {
    operation(a as i32, b as i32) as u64
}

/// Integer arithmetic of I, M, Zba and Zbb; `None` for other operations.
#[inline(always)]
pub(super) fn integer(op: Op, a: u64, b: u64, immediate: u64) -> Option<u64> {
    let (sa, sb) = (a as i64, b as i64);
    let amount = immediate as u32;
    Some(match op {
        Op::Slti => u64::from(sa < immediate as i64),
        Op::Sltiu => u64::from(a < immediate),
        Op::Xori => a ^ immediate,
        Op::Ori => a | immediate,
        Op::Srai => (sa >> (amount & 63)) as u64,
        Op::Slliw => word(a, b, |a, _| a.wrapping_shl(amount)),
        Op::Srliw => word(a, b, |a, _| (a as u32).wrapping_shr(amount) as i32),
        Op::Sraiw => word(a, b, |a, _| a.wrapping_shr(amount)),
        Op::Sub => a.wrapping_sub(b),
        Op::Sll => a << (b & 63),
        Op::Slt => u64::from(sa < sb),
        Op::Sltu => u64::from(a < b),
        Op::Xor => a ^ b,
        Op::Srl => a >> (b & 63),
        Op::Sra => (sa >> (b & 63)) as u64,
        Op::Or => a | b,
        Op::And => a & b,
        Op::Subw => word(a, b, i32::wrapping_sub),
        Op::Sllw => word(a, b, |a, b| a.wrapping_shl(b as u32)),
        Op::Srlw => word(a, b, |a, b| (a as u32).wrapping_shr(b as u32) as i32),
        Op::Sraw => word(a, b, |a, b| a.wrapping_shr(b as u32)),
        Op::Mul => a.wrapping_mul(b),
        Op::Mulh => ((i128::from(sa) * i128::from(sb)) >> 64) as u64,
        Op::Mulhsu => ((i128::from(sa) * i128::from(b)) >> 64) as u64,
        Op::Mulhu => ((u128::from(a) * u128::from(b)) >> 64) as u64,
        Op::Div if b == 0 => u64::MAX,
        Op::Div => sa.wrapping_div(sb) as u64,
        Op::Divu => a.checked_div(b).unwrap_or(u64::MAX),
        Op::Rem if b == 0 => a,
        Op::Rem => sa.wrapping_rem(sb) as u64,
        Op::Remu => a.checked_rem(b).unwrap_or(a),
        Op::Mulw => word(a, b, i32::wrapping_mul),
        Op::Divw => word(a, b, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) }),
        Op::Divuw => word(a, b, |a, b| (a as u32).checked_div(b as u32).map_or(-1, |q| q as i32)),
        Op::Remw => word(a, b, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        Op::Remuw => word(a, b, |a, b| (a as u32).checked_rem(b as u32).map_or(a, |r| r as i32)),
        _ => return bit_manipulation(op, a, b, amount),
    })
}

/// Zba and Zbb.
fn bit_manipulation(op: Op, a: u64, b: u64, amount: u32) -> Option<u64> {
    let low = u64::from(a as u32);
    let shifted_add = |base: u64, shift: u32| (base << shift).wrapping_add(b);
    Some(match op {
        Op::Xnor => !(a ^ b),
        Op::Orn => a | !b,
        Op::Andn => a & !b,
        Op::Sh1add => shifted_add(a, 1),
        Op::Sh2add => shifted_add(a, 2),
        Op::Sh3add => shifted_add(a, 3),
        Op::Sh1addUw => shifted_add(low, 1),
        Op::Sh2addUw => shifted_add(low, 2),
        Op::Sh3addUw => shifted_add(low, 3),
        Op::AddUw => low.wrapping_add(b),
        Op::SlliUw => low << (amount & 63),
        Op::Min => (a as i64).min(b as i64) as u64,
        Op::Max => (a as i64).max(b as i64) as u64,
        Op::Minu => a.min(b),
        Op::Maxu => a.max(b),
        Op::Rol => a.rotate_left(b as u32 & 63),
        Op::Ror => a.rotate_right(b as u32 & 63),
        Op::Rori => a.rotate_right(amount & 63),
        Op::Rolw => word(a, b, |a, b| a.rotate_left(b as u32 & 31)),
        Op::Rorw => word(a, b, |a, b| a.rotate_right(b as u32 & 31)),
        Op::Roriw => word(a, b, |a, _| a.rotate_right(amount & 31)),
        Op::Clz => a.leading_zeros().into(),
        Op::Ctz => a.trailing_zeros().into(),
        Op::Cpop => a.count_ones().into(),
        Op::Clzw => (a as u32).leading_zeros().into(),
        Op::Ctzw => (a as u32).trailing_zeros().into(),
        Op::Cpopw => (a as u32).count_ones().into(),
        Op::SextB => a as i8 as u64,
        Op::SextH => a as i16 as u64,
        Op::ZextH => a & 0xffff,
        Op::Rev8 => a.swap_bytes(),
        Op::OrcB => u64::from_le_bytes(a.to_le_bytes().map(|byte| if byte == 0 { 0 } else { 255 })),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_words_stay_within_words() {
        assert_eq!(integer(Op::Ctzw, 1 << 43, 0, 0), Some(32));
        assert_eq!(integer(Op::Ctzw, 1 << 43 | 8, 0, 0), Some(3));
        assert_eq!(integer(Op::Clzw, 1 << 43 | 1, 0, 0), Some(31));
    }
}
