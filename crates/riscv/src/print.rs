//! Printing of instructions, as the GNU tools print them with `-M no-aliases`. A compressed
//! instruction prints as the one that it stands for.

use crate::decode::{Instruction, Layout, Op, TABLE};
use std::fmt::Write;

/// The name of an integer register in the calling convention; numbers past 31 wrap.
#[must_use]
pub fn integer_register_name(register: u8) -> &'static str {
    const NAMES: [&str; 32] = [
        "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4",
        "a5", "a6", "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4",
        "t5", "t6",
    ];
    NAMES[usize::from(register) & 31]
}

/// The name of a floating-point register in the calling convention.
fn float_register_name(register: u8) -> &'static str {
    const NAMES: [&str; 32] = [
        "ft0", "ft1", "ft2", "ft3", "ft4", "ft5", "ft6", "ft7", "fs0", "fs1", "fa0", "fa1", "fa2",
        "fa3", "fa4", "fa5", "fa6", "fa7", "fs2", "fs3", "fs4", "fs5", "fs6", "fs7", "fs8", "fs9",
        "fs10", "fs11", "ft8", "ft9", "ft10", "ft11",
    ];
    NAMES[usize::from(register) & 31]
}

/// Whether the destination and the first source are integer registers.
pub(crate) fn integer_operands(name: &str) -> (bool, bool) {
    let mut parts = name.split('.');
    let (stem, to, from) = (parts.next(), parts.next(), parts.next());
    let integer = |part: Option<&str>| matches!(part, Some("w" | "wu" | "l" | "lu" | "x"));
    match stem {
        // `fmv.w.x`: here w names the width of the floating-point register.
        Some("fmv") => (to == Some("x"), from == Some("x")),
        Some("fcvt") => (integer(to), integer(from)),
        Some("feq" | "flt" | "fle" | "fclass") => (true, false),
        Some(stem) if stem.starts_with('f') => (false, false),
        _ => (true, true),
    }
}

fn csr_name(number: i32) -> String {
    match number {
        1 => "fflags".into(),
        2 => "frm".into(),
        3 => "fcsr".into(),
        0xc00 => "cycle".into(),
        0xc01 => "time".into(),
        0xc02 => "instret".into(),
        _ => format!("{number:#x}"),
    }
}

/// `iorw` for each of four bits.
fn fence_set(bits: u32) -> String {
    let names = [(8, 'i'), (4, 'o'), (2, 'r'), (1, 'w')];
    let set: String = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, c)| *c).collect();
    if set.is_empty() {
        "unknown".into()
    } else {
        set
    }
}

impl Instruction {
    /// The instruction as text: mnemonic, a tab, operands. `pc` is its address, from which
    /// branches are printed with their target; `word` its bits, of which it keeps no acquire and
    /// release bits.
    #[must_use]
    pub fn print(&self, pc: u64, word: u32) -> String {
        let Some((_, _, layout)) = TABLE.iter().find(|(op, _, _)| *op == self.op) else {
            let digits = usize::from(self.length) * 2;
            return format!(".{}byte\t{word:#0width$x}", self.length, width = digits + 2);
        };
        let mut text = self.op.name().to_owned();
        if matches!(layout, Layout::Amo | Layout::Lr) {
            text += ["", ".rl", ".aq", ".aqrl"][(word >> 25 & 3) as usize];
        }
        let operands = self.print_operands(*layout, pc, word);
        if !operands.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\t{operands}");
        }
        text
    }

    fn print_operands(&self, layout: Layout, pc: u64, word: u32) -> String {
        let Self { rd, rs1, rs2, rs3, immediate, .. } = *self;
        let (x, f) = (integer_register_name, float_register_name);
        let (to_integer, from_integer) = integer_operands(self.op.name());
        let d = if to_integer { x(rd) } else { f(rd) };
        let a = if from_integer { x(rs1) } else { f(rs1) };
        let target = pc.wrapping_add(immediate as i64 as u64);
        let rounding = [",rne", ",rtz", ",rdn", ",rup", ",rmm", ",unknown", ",unknown", ""]
            [usize::from(self.rounding & 7)];
        match layout {
            Layout::R => format!("{d},{a},{}", x(rs2)),
            Layout::I if self.is_load() || self.op == Op::Jalr => {
                format!("{d},{immediate}({a})")
            }
            Layout::I => format!("{d},{a},{immediate}"),
            Layout::Shift | Layout::ShiftW => format!("{d},{a},{immediate:#x}"),
            Layout::Unary => format!("{d},{a}"),
            Layout::S => format!("{},{immediate}({})", x(rs2), x(rs1)),
            Layout::B => format!("{},{},{target:x}", x(rs1), x(rs2)),
            Layout::U => format!("{d},{:#x}", immediate as u32 >> 12),
            Layout::J => format!("{d},{target:x}"),
            Layout::Fence if self.op == Op::FenceI => String::new(),
            Layout::Fence => format!("{},{}", fence_set(word >> 24), fence_set(word >> 20)),
            Layout::Exact => String::new(),
            Layout::Csr => {
                let register = matches!(self.op, Op::Csrrw | Op::Csrrs | Op::Csrrc);
                let operand = if register { x(rs1).to_owned() } else { rs1.to_string() };
                format!("{},{},{operand}", x(rd), csr_name(immediate))
            }
            Layout::Amo => format!("{},{},({})", x(rd), x(rs2), x(rs1)),
            Layout::Lr => format!("{},({})", x(rd), x(rs1)),
            Layout::FI => format!("{},{immediate}({})", f(rd), x(rs1)),
            Layout::FS => format!("{},{immediate}({})", f(rs2), x(rs1)),
            Layout::R4 => format!("{d},{a},{},{}{rounding}", f(rs2), f(rs3)),
            Layout::FR => format!("{d},{a},{}{rounding}", f(rs2)),
            Layout::FU => {
                // These are exact, and print without a rounding mode.
                let exact = matches!(self.op, Op::FcvtDW | Op::FcvtDWu | Op::FcvtDS);
                format!("{d},{a}{}", if exact { "" } else { rounding })
            }
            Layout::FX => format!("{d},{a},{}", f(rs2)),
        }
    }

    fn is_load(&self) -> bool {
        use Op::{Lb, Lbu, Ld, Lh, Lhu, Lw, Lwu};
        matches!(self.op, Lb | Lh | Lw | Ld | Lbu | Lhu | Lwu)
    }
}
