//! Decoding: one table says which word is which instruction, and where its operands lie.
//!
//! Source: The RISC-V Instruction Set Manual, volume I (RV32/64G instruction set listings), and
//! the bit-manipulation extensions Zba and Zbb, version 1.0.

/// Where an instruction has its operands, and with that which bits are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Two source registers.
    R,
    /// A source register and twelve bits.
    I,
    /// Shift by six bits.
    Shift,
    /// Shift by five bits.
    ShiftW,
    /// One source register, the rest fixed.
    Unary,
    S,
    B,
    U,
    J,
    Fence,
    /// All bits fixed.
    Exact,
    Csr,
    /// Atomic: acquire and release bits are free.
    Amo,
    Lr,
    /// Load to a floating-point register.
    FI,
    /// Store of a floating-point register.
    FS,
    /// Three sources and a rounding mode.
    R4,
    /// Two sources and a rounding mode.
    FR,
    /// One source and a rounding mode.
    FU,
    /// Two sources, the rest fixed.
    FX,
}

impl Layout {
    /// The bits that tell instructions of this layout apart.
    pub(crate) const fn mask(self) -> u32 {
        match self {
            Self::I | Self::S | Self::B | Self::Fence | Self::Csr | Self::FI | Self::FS => 0x707f,
            Self::R | Self::ShiftW | Self::FX => 0xfe00_707f,
            Self::Shift => 0xfc00_707f,
            Self::Unary => 0xfff0_707f,
            Self::U | Self::J => 0x7f,
            Self::Exact => 0xffff_ffff,
            Self::Amo => 0xf800_707f,
            Self::Lr => 0xf9f0_707f,
            Self::R4 => 0x0600_007f,
            Self::FR => 0xfe00_007f,
            Self::FU => 0xfff0_007f,
        }
    }

    /// The immediate operand, sign-extended.
    const fn immediate(self, word: u32) -> i32 {
        let signed = word as i32;
        match self {
            Self::I | Self::FI => signed >> 20,
            Self::Csr => (word >> 20) as i32,
            Self::Shift => (word >> 20 & 63) as i32,
            Self::ShiftW => (word >> 20 & 31) as i32,
            Self::S | Self::FS => (signed >> 25) << 5 | (word >> 7 & 31) as i32,
            Self::B => {
                (signed >> 31) << 12
                    | ((word >> 7 & 1) << 11 | (word >> 25 & 63) << 5 | (word >> 8 & 15) << 1)
                        as i32
            }
            Self::U => (word & 0xffff_f000) as i32,
            Self::J => {
                (signed >> 31) << 20
                    | (word & 0xff000 | (word >> 20 & 1) << 11 | (word >> 21 & 0x3ff) << 1) as i32
            }
            _ => 0,
        }
    }
}

macro_rules! instructions {
    ($($op:ident, $name:literal, $layout:ident, $pattern:literal;)*) => {
        /// An operation; [`Op::name`] is its mnemonic.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Op {
            /// Not decoded yet, or no instruction.
            Illegal,
            $($op,)*
        }

        impl Op {
            /// The mnemonic.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Illegal => "illegal",
                    $(Self::$op => $name,)*
                }
            }
        }

        /// Operation, its fixed bits, and its layout.
        pub(crate) const TABLE: &[(Op, u32, Layout)] = &[$((Op::$op, $pattern, Layout::$layout),)*];
    };
}

#[rustfmt::skip]
instructions! {
    Lui, "lui", U, 0x00000037;
    Auipc, "auipc", U, 0x00000017;
    Jal, "jal", J, 0x0000006f;
    Jalr, "jalr", I, 0x00000067;
    Beq, "beq", B, 0x00000063;
    Bne, "bne", B, 0x00001063;
    Blt, "blt", B, 0x00004063;
    Bge, "bge", B, 0x00005063;
    Bltu, "bltu", B, 0x00006063;
    Bgeu, "bgeu", B, 0x00007063;
    Lb, "lb", I, 0x00000003;
    Lh, "lh", I, 0x00001003;
    Lw, "lw", I, 0x00002003;
    Ld, "ld", I, 0x00003003;
    Lbu, "lbu", I, 0x00004003;
    Lhu, "lhu", I, 0x00005003;
    Lwu, "lwu", I, 0x00006003;
    Sb, "sb", S, 0x00000023;
    Sh, "sh", S, 0x00001023;
    Sw, "sw", S, 0x00002023;
    Sd, "sd", S, 0x00003023;
    Addi, "addi", I, 0x00000013;
    Slti, "slti", I, 0x00002013;
    Sltiu, "sltiu", I, 0x00003013;
    Xori, "xori", I, 0x00004013;
    Ori, "ori", I, 0x00006013;
    Andi, "andi", I, 0x00007013;
    Slli, "slli", Shift, 0x00001013;
    Srli, "srli", Shift, 0x00005013;
    Srai, "srai", Shift, 0x40005013;
    Addiw, "addiw", I, 0x0000001b;
    Slliw, "slliw", ShiftW, 0x0000101b;
    Srliw, "srliw", ShiftW, 0x0000501b;
    Sraiw, "sraiw", ShiftW, 0x4000501b;
    Add, "add", R, 0x00000033;
    Sll, "sll", R, 0x00001033;
    Slt, "slt", R, 0x00002033;
    Sltu, "sltu", R, 0x00003033;
    Xor, "xor", R, 0x00004033;
    Srl, "srl", R, 0x00005033;
    Or, "or", R, 0x00006033;
    And, "and", R, 0x00007033;
    Sub, "sub", R, 0x40000033;
    Xnor, "xnor", R, 0x40004033;
    Sra, "sra", R, 0x40005033;
    Orn, "orn", R, 0x40006033;
    Andn, "andn", R, 0x40007033;
    Addw, "addw", R, 0x0000003b;
    Sllw, "sllw", R, 0x0000103b;
    Srlw, "srlw", R, 0x0000503b;
    Subw, "subw", R, 0x4000003b;
    Sraw, "sraw", R, 0x4000503b;
    Mul, "mul", R, 0x02000033;
    Mulh, "mulh", R, 0x02001033;
    Mulhsu, "mulhsu", R, 0x02002033;
    Mulhu, "mulhu", R, 0x02003033;
    Div, "div", R, 0x02004033;
    Divu, "divu", R, 0x02005033;
    Rem, "rem", R, 0x02006033;
    Remu, "remu", R, 0x02007033;
    Mulw, "mulw", R, 0x0200003b;
    Divw, "divw", R, 0x0200403b;
    Divuw, "divuw", R, 0x0200503b;
    Remw, "remw", R, 0x0200603b;
    Remuw, "remuw", R, 0x0200703b;
    Sh1add, "sh1add", R, 0x20002033;
    Sh2add, "sh2add", R, 0x20004033;
    Sh3add, "sh3add", R, 0x20006033;
    Sh1addUw, "sh1add.uw", R, 0x2000203b;
    Sh2addUw, "sh2add.uw", R, 0x2000403b;
    Sh3addUw, "sh3add.uw", R, 0x2000603b;
    AddUw, "add.uw", R, 0x0800003b;
    SlliUw, "slli.uw", Shift, 0x0800101b;
    Min, "min", R, 0x0a004033;
    Minu, "minu", R, 0x0a005033;
    Max, "max", R, 0x0a006033;
    Maxu, "maxu", R, 0x0a007033;
    Rol, "rol", R, 0x60001033;
    Ror, "ror", R, 0x60005033;
    Rolw, "rolw", R, 0x6000103b;
    Rorw, "rorw", R, 0x6000503b;
    Rori, "rori", Shift, 0x60005013;
    Roriw, "roriw", ShiftW, 0x6000501b;
    Clz, "clz", Unary, 0x60001013;
    Ctz, "ctz", Unary, 0x60101013;
    Cpop, "cpop", Unary, 0x60201013;
    SextB, "sext.b", Unary, 0x60401013;
    SextH, "sext.h", Unary, 0x60501013;
    Clzw, "clzw", Unary, 0x6000101b;
    Ctzw, "ctzw", Unary, 0x6010101b;
    Cpopw, "cpopw", Unary, 0x6020101b;
    ZextH, "zext.h", Unary, 0x0800403b;
    Rev8, "rev8", Unary, 0x6b805013;
    OrcB, "orc.b", Unary, 0x28705013;
    Fence, "fence", Fence, 0x0000000f;
    FenceI, "fence.i", Fence, 0x0000100f;
    Ecall, "ecall", Exact, 0x00000073;
    Ebreak, "ebreak", Exact, 0x00100073;
    Csrrw, "csrrw", Csr, 0x00001073;
    Csrrs, "csrrs", Csr, 0x00002073;
    Csrrc, "csrrc", Csr, 0x00003073;
    Csrrwi, "csrrwi", Csr, 0x00005073;
    Csrrsi, "csrrsi", Csr, 0x00006073;
    Csrrci, "csrrci", Csr, 0x00007073;
    AmoaddW, "amoadd.w", Amo, 0x0000202f;
    AmoswapW, "amoswap.w", Amo, 0x0800202f;
    AmoxorW, "amoxor.w", Amo, 0x2000202f;
    AmoorW, "amoor.w", Amo, 0x4000202f;
    AmoandW, "amoand.w", Amo, 0x6000202f;
    AmominW, "amomin.w", Amo, 0x8000202f;
    AmomaxW, "amomax.w", Amo, 0xa000202f;
    AmominuW, "amominu.w", Amo, 0xc000202f;
    AmomaxuW, "amomaxu.w", Amo, 0xe000202f;
    ScW, "sc.w", Amo, 0x1800202f;
    LrW, "lr.w", Lr, 0x1000202f;
    AmoaddD, "amoadd.d", Amo, 0x0000302f;
    AmoswapD, "amoswap.d", Amo, 0x0800302f;
    AmoxorD, "amoxor.d", Amo, 0x2000302f;
    AmoorD, "amoor.d", Amo, 0x4000302f;
    AmoandD, "amoand.d", Amo, 0x6000302f;
    AmominD, "amomin.d", Amo, 0x8000302f;
    AmomaxD, "amomax.d", Amo, 0xa000302f;
    AmominuD, "amominu.d", Amo, 0xc000302f;
    AmomaxuD, "amomaxu.d", Amo, 0xe000302f;
    ScD, "sc.d", Amo, 0x1800302f;
    LrD, "lr.d", Lr, 0x1000302f;
    Flw, "flw", FI, 0x00002007;
    Fld, "fld", FI, 0x00003007;
    Fsw, "fsw", FS, 0x00002027;
    Fsd, "fsd", FS, 0x00003027;
    FmaddS, "fmadd.s", R4, 0x00000043;
    FmsubS, "fmsub.s", R4, 0x00000047;
    FnmsubS, "fnmsub.s", R4, 0x0000004b;
    FnmaddS, "fnmadd.s", R4, 0x0000004f;
    FaddS, "fadd.s", FR, 0x00000053;
    FsubS, "fsub.s", FR, 0x08000053;
    FmulS, "fmul.s", FR, 0x10000053;
    FdivS, "fdiv.s", FR, 0x18000053;
    FsqrtS, "fsqrt.s", FU, 0x58000053;
    FsgnjS, "fsgnj.s", FX, 0x20000053;
    FsgnjnS, "fsgnjn.s", FX, 0x20001053;
    FsgnjxS, "fsgnjx.s", FX, 0x20002053;
    FminS, "fmin.s", FX, 0x28000053;
    FmaxS, "fmax.s", FX, 0x28001053;
    FleS, "fle.s", FX, 0xa0000053;
    FltS, "flt.s", FX, 0xa0001053;
    FeqS, "feq.s", FX, 0xa0002053;
    FcvtWS, "fcvt.w.s", FU, 0xc0000053;
    FcvtSW, "fcvt.s.w", FU, 0xd0000053;
    FcvtWuS, "fcvt.wu.s", FU, 0xc0100053;
    FcvtSWu, "fcvt.s.wu", FU, 0xd0100053;
    FcvtLS, "fcvt.l.s", FU, 0xc0200053;
    FcvtSL, "fcvt.s.l", FU, 0xd0200053;
    FcvtLuS, "fcvt.lu.s", FU, 0xc0300053;
    FcvtSLu, "fcvt.s.lu", FU, 0xd0300053;
    FclassS, "fclass.s", Unary, 0xe0001053;
    FmaddD, "fmadd.d", R4, 0x02000043;
    FmsubD, "fmsub.d", R4, 0x02000047;
    FnmsubD, "fnmsub.d", R4, 0x0200004b;
    FnmaddD, "fnmadd.d", R4, 0x0200004f;
    FaddD, "fadd.d", FR, 0x02000053;
    FsubD, "fsub.d", FR, 0x0a000053;
    FmulD, "fmul.d", FR, 0x12000053;
    FdivD, "fdiv.d", FR, 0x1a000053;
    FsqrtD, "fsqrt.d", FU, 0x5a000053;
    FsgnjD, "fsgnj.d", FX, 0x22000053;
    FsgnjnD, "fsgnjn.d", FX, 0x22001053;
    FsgnjxD, "fsgnjx.d", FX, 0x22002053;
    FminD, "fmin.d", FX, 0x2a000053;
    FmaxD, "fmax.d", FX, 0x2a001053;
    FleD, "fle.d", FX, 0xa2000053;
    FltD, "flt.d", FX, 0xa2001053;
    FeqD, "feq.d", FX, 0xa2002053;
    FcvtWD, "fcvt.w.d", FU, 0xc2000053;
    FcvtDW, "fcvt.d.w", FU, 0xd2000053;
    FcvtWuD, "fcvt.wu.d", FU, 0xc2100053;
    FcvtDWu, "fcvt.d.wu", FU, 0xd2100053;
    FcvtLD, "fcvt.l.d", FU, 0xc2200053;
    FcvtDL, "fcvt.d.l", FU, 0xd2200053;
    FcvtLuD, "fcvt.lu.d", FU, 0xc2300053;
    FcvtDLu, "fcvt.d.lu", FU, 0xd2300053;
    FclassD, "fclass.d", Unary, 0xe2001053;
    FcvtSD, "fcvt.s.d", FU, 0x40100053;
    FcvtDS, "fcvt.d.s", FU, 0x42000053;
    FmvXW, "fmv.x.w", Unary, 0xe0000053;
    FmvWX, "fmv.w.x", Unary, 0xf0000053;
    FmvXD, "fmv.x.d", Unary, 0xe2000053;
    FmvDX, "fmv.d.x", Unary, 0xf2000053;
}

impl Op {
    /// Whether it works on floating-point registers.
    #[must_use]
    pub const fn uses_floats(self) -> bool {
        self as u8 >= Self::Flw as u8 && (self as u8) <= Self::FmvDX as u8
    }
}

/// A decoded instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub op: Op,
    /// Destination register.
    pub rd: u8,
    /// First source register.
    pub rs1: u8,
    /// Second source register.
    pub rs2: u8,
    /// Third source register.
    pub rs3: u8,
    /// Rounding mode (`funct3`).
    pub rounding: u8,
    /// Bytes: 2 or 4.
    pub length: u8,
    /// Immediate operand, shift amount or number of a control and status register.
    pub immediate: i32,
}

impl Instruction {
    /// What no instruction decodes to.
    pub const ILLEGAL: Self = Self {
        op: Op::Illegal,
        rd: 0,
        rs1: 0,
        rs2: 0,
        rs3: 0,
        rounding: 0,
        length: 4,
        immediate: 0,
    };

    /// Decodes the instruction that begins with these four bytes; the upper two are not looked at
    /// where it is compressed.
    #[must_use]
    pub fn decode(word: u32) -> Self {
        if word & 3 == 3 {
            return Self::decode_full(word, 4);
        }
        match crate::compressed::expand(word as u16) {
            Some(full) => Self::decode_full(full, 2),
            None => Self { length: 2, ..Self::ILLEGAL },
        }
    }

    fn decode_full(word: u32, length: u8) -> Self {
        let found = TABLE.iter().find(|(_, pattern, layout)| word & layout.mask() == *pattern);
        let Some(&(op, _, layout)) = found else { return Self { length, ..Self::ILLEGAL } };
        let register = |shift: u32| (word >> shift & 31) as u8;
        Self {
            op,
            rd: register(7),
            rs1: register(15),
            rs2: register(20),
            rs3: register(27),
            rounding: (word >> 12 & 7) as u8,
            length,
            immediate: layout.immediate(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_entries_match_the_same_word() {
        for (i, (op, pattern, layout)) in TABLE.iter().enumerate() {
            assert_eq!(pattern & !layout.mask(), 0, "{}: pattern outside its mask", op.name());
            for (other, second, beside) in &TABLE[i + 1..] {
                let common = layout.mask() & beside.mask();
                assert_ne!(pattern & common, second & common, "{} {}", op.name(), other.name());
            }
        }
    }

    #[test]
    fn immediates_are_sign_extended() {
        // addi a0,a0,-1; beq a0,a1,-4; jal zero,-8; sd a0,-16(sp); lui a0,0xfffff
        let immediates = [0xfff5_0513, 0xfeb5_0ee3, 0xff9f_f06f, 0xfea1_3823, 0xffff_f537]
            .map(|word| Instruction::decode(word).immediate);
        assert_eq!(immediates, [-1, -4, -8, -16, -4096]);
    }
}
