//! What operations compute, for all ways to run a program.

use crate::code::{AluOperation, UpdateOperation};

#[inline(always)]
pub(crate) fn compute(operation: AluOperation, a: i64, b: i64) -> i64 {
    match operation {
        AluOperation::Add => a.wrapping_add(b),
        AluOperation::Subtract => a.wrapping_sub(b),
        AluOperation::Multiply => a.wrapping_mul(b),
        AluOperation::Divide if b == 0 => 0,
        AluOperation::Divide => a.wrapping_div(b),
        AluOperation::Remainder if b == 0 => 0,
        AluOperation::Remainder => a.wrapping_rem(b),
        AluOperation::And => a & b,
        AluOperation::Or => a | b,
        AluOperation::Xor => a ^ b,
        AluOperation::Minimum => a.min(b),
        AluOperation::Maximum => a.max(b),
        AluOperation::Equal => i64::from(a == b),
        AluOperation::NotEqual => i64::from(a != b),
        AluOperation::Less => i64::from(a < b),
        AluOperation::LessOrEqual => i64::from(a <= b),
    }
}

#[inline]
pub(crate) fn update(operation: UpdateOperation, word: i64, value: i64) -> i64 {
    match operation {
        UpdateOperation::Store => value,
        UpdateOperation::Add => word.wrapping_add(value),
        UpdateOperation::And => word & value,
        UpdateOperation::Or => word | value,
        UpdateOperation::Xor => word ^ value,
        UpdateOperation::Minimum => word.min(value),
        UpdateOperation::Maximum => word.max(value),
    }
}
