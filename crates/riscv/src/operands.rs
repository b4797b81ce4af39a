//! Which integer registers an instruction reads and writes, for whoever models when it can go on.

use crate::decode::{Instruction, Layout, Op, TABLE};
use crate::print::integer_operands;

/// Integer registers of an instruction. The zero register is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IntegerOperands {
    /// Those that it reads, a bit each.
    pub read: u32,
    /// Those that it writes, a bit each.
    pub written: u32,
}

impl Instruction {
    /// The integer registers that it reads and writes; none of what is no instruction.
    #[must_use]
    pub fn integer_operands(&self) -> IntegerOperands {
        let Some((_, _, layout)) = TABLE.iter().find(|(op, _, _)| *op == self.op) else {
            return IntegerOperands::default();
        };
        let [rd, rs1, rs2] = [self.rd, self.rs1, self.rs2].map(|register| 1_u32 << (register & 31));
        let (read, written) = match layout {
            Layout::R | Layout::Amo => (rs1 | rs2, rd),
            Layout::I | Layout::Shift | Layout::ShiftW | Layout::Lr => (rs1, rd),
            Layout::S | Layout::B => (rs1 | rs2, 0),
            Layout::U | Layout::J => (0, rd),
            Layout::Csr if matches!(self.op, Op::Csrrwi | Op::Csrrsi | Op::Csrrci) => (0, rd),
            Layout::Csr => (rs1, rd),
            Layout::FI | Layout::FS => (rs1, 0),
            Layout::Fence | Layout::Exact | Layout::R4 => (0, 0),
            Layout::Unary | Layout::FR | Layout::FU | Layout::FX => {
                let (to, from) = integer_operands(self.op.name());
                (if from { rs1 } else { 0 }, if to { rd } else { 0 })
            }
        };
        IntegerOperands { read: read & !1, written: written & !1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_those_that_the_listing_names() {
        let bits = |registers: &[u32]| registers.iter().fold(0, |all, r| all | 1 << r);
        for (word, read, written) in [
            (0x00b5_0533, &[10, 11][..], &[10][..]), // add a0,a0,a1
            (0xff85_3583, &[10], &[11]),             // ld a1,-8(a0)
            (0xfea1_3823, &[2, 10], &[]),            // sd a0,-16(sp)
            (0xfeb5_0ee3, &[10, 11], &[]),           // beq a0,a1,-4
            (0xff9f_f06f, &[], &[]),                 // jal zero,-8
            (0x00b5_252f, &[10, 11], &[10]),         // amoadd.w a0,a1,(a0)
            (0x1005_252f, &[10], &[10]),             // lr.w a0,(a0)
            (0x0005_3507, &[10], &[]),               // fld fa0,0(a0)
            (0x02a5_7553, &[], &[]),                 // fadd.d fa0,fa0,fa0
            (0xe200_0553, &[], &[10]),               // fmv.x.d a0,ft0
            (0xf205_0553, &[10], &[]),               // fmv.d.x fa0,a0
            (0xa2a5_2553, &[], &[10]),               // feq.d a0,fa0,fa0
            (0x0ff0_000f, &[], &[]),                 // fence
            (0xc000_2573, &[], &[10]),               // rdcycle a0
            (0, &[], &[]),
        ] {
            let found = Instruction::decode(word).integer_operands();
            let expected = IntegerOperands { read: bits(read), written: bits(written) };
            assert_eq!(found, expected, "{word:#x}");
        }
    }
}
