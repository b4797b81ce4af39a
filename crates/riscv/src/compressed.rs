//! Compressed instructions (extension C for RV64 with D) as the full ones they stand for.

/// Bits `low..low + count` of the halfword, moved to bit `to`.
const fn field(half: u32, low: u32, count: u32, to: u32) -> u32 {
    (half >> low & ((1 << count) - 1)) << to
}

/// The value of `bits` bits as a signed number.
const fn sign_extend(value: u32, bits: u32) -> u32 {
    (((value << (32 - bits)) as i32) >> (32 - bits)) as u32
}

const fn i_type(opcode: u32, funct3: u32, rd: u32, rs1: u32, immediate: u32) -> u32 {
    opcode | rd << 7 | funct3 << 12 | rs1 << 15 | (immediate & 0xfff) << 20
}

const fn s_type(opcode: u32, funct3: u32, rs1: u32, rs2: u32, immediate: u32) -> u32 {
    let (low, high) = (immediate & 31, immediate >> 5 & 127);
    opcode | low << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | high << 25
}

const fn r_type(opcode: u32, funct3: u32, funct7: u32, rd: u32, [rs1, rs2]: [u32; 2]) -> u32 {
    opcode | rd << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | funct7 << 25
}

const fn j_type(rd: u32, offset: u32) -> u32 {
    0x6f | rd << 7
        | field(offset, 12, 8, 12)
        | field(offset, 11, 1, 20)
        | field(offset, 1, 10, 21)
        | field(offset, 20, 1, 31)
}

const fn b_type(funct3: u32, rs1: u32, offset: u32) -> u32 {
    0x63 | funct3 << 12
        | rs1 << 15
        | field(offset, 11, 1, 7)
        | field(offset, 1, 4, 8)
        | field(offset, 5, 6, 25)
        | field(offset, 12, 1, 31)
}

/// The full instruction; `None` for reserved and illegal halfwords.
pub fn expand(half: u16) -> Option<u32> {
    let half = u32::from(half);
    match half & 3 {
        0 => quadrant0(half),
        1 => quadrant1(half),
        2 => quadrant2(half),
        _ => None,
    }
}

/// Opcode, `funct3` and offset of the loads and stores that quadrants 0 and 2 share.
const fn access(kind: u32) -> (u32, u32, u32) {
    match kind {
        1 => (0x07, 3, 0x27),
        2 => (0x03, 2, 0x23),
        _ => (0x03, 3, 0x23),
    }
}

fn quadrant0(half: u32) -> Option<u32> {
    let (rs1, rs2) = (8 + field(half, 7, 3, 0), 8 + field(half, 2, 3, 0));
    let kind = half >> 13;
    let (load, funct3, store) = access(kind & 3);
    let offset = if kind & 3 == 2 {
        field(half, 10, 3, 3) | field(half, 6, 1, 2) | field(half, 5, 1, 6)
    } else {
        field(half, 10, 3, 3) | field(half, 5, 2, 6)
    };
    match kind {
        0 => {
            let immediate = field(half, 11, 2, 4)
                | field(half, 7, 4, 6)
                | field(half, 6, 1, 2)
                | field(half, 5, 1, 3);
            (immediate != 0).then(|| i_type(0x13, 0, rs2, 2, immediate))
        }
        1..=3 => Some(i_type(load, funct3, rs2, rs1, offset)),
        4 => None,
        _ => Some(s_type(store, funct3, rs1, rs2, offset)),
    }
}

fn quadrant1(half: u32) -> Option<u32> {
    let rd = field(half, 7, 5, 0);
    let immediate = sign_extend(field(half, 2, 5, 0) | field(half, 12, 1, 5), 6);
    match half >> 13 {
        0 => Some(i_type(0x13, 0, rd, rd, immediate)),
        1 => (rd != 0).then(|| i_type(0x1b, 0, rd, rd, immediate)),
        2 => Some(i_type(0x13, 0, rd, 0, immediate)),
        3 if immediate == 0 => None,
        3 if rd == 2 => {
            let immediate = field(half, 6, 1, 4)
                | field(half, 2, 1, 5)
                | field(half, 5, 1, 6)
                | field(half, 3, 2, 7)
                | field(half, 12, 1, 9);
            Some(i_type(0x13, 0, 2, 2, sign_extend(immediate, 10)))
        }
        3 => Some(0x37 | rd << 7 | immediate << 12),
        4 => arithmetic(half, immediate),
        5 => {
            let offset = field(half, 3, 3, 1)
                | field(half, 11, 1, 4)
                | field(half, 2, 1, 5)
                | field(half, 7, 1, 6)
                | field(half, 6, 1, 7)
                | field(half, 9, 2, 8)
                | field(half, 8, 1, 10)
                | field(half, 12, 1, 11);
            Some(j_type(0, sign_extend(offset, 12)))
        }
        kind => {
            let offset = field(half, 3, 2, 1)
                | field(half, 10, 2, 3)
                | field(half, 2, 1, 5)
                | field(half, 5, 2, 6)
                | field(half, 12, 1, 8);
            Some(b_type(kind - 6, 8 + field(half, 7, 3, 0), sign_extend(offset, 9)))
        }
    }
}

fn arithmetic(half: u32, immediate: u32) -> Option<u32> {
    let (rd, rs2) = (8 + field(half, 7, 3, 0), 8 + field(half, 2, 3, 0));
    let shift = immediate & 63;
    match half >> 10 & 3 {
        0 => return Some(i_type(0x13, 5, rd, rd, shift)),
        1 => return Some(i_type(0x13, 5, rd, rd, shift | 0x400)),
        2 => return Some(i_type(0x13, 7, rd, rd, immediate)),
        _ => {}
    }
    let (opcode, funct3, funct7) = match (half >> 12 & 1, half >> 5 & 3) {
        (0, 0) => (0x33, 0, 0x20),
        (0, 1) => (0x33, 4, 0),
        (0, 2) => (0x33, 6, 0),
        (0, _) => (0x33, 7, 0),
        (_, 0) => (0x3b, 0, 0x20),
        (_, 1) => (0x3b, 0, 0),
        _ => return None,
    };
    Some(r_type(opcode, funct3, funct7, rd, [rd, rs2]))
}

fn quadrant2(half: u32) -> Option<u32> {
    let (rd, rs2) = (field(half, 7, 5, 0), field(half, 2, 5, 0));
    let kind = half >> 13;
    let (load, funct3, store) = access(kind & 3);
    let word = kind & 3 == 2;
    match kind {
        0 => Some(i_type(0x13, 1, rd, rd, rs2 | field(half, 12, 1, 5))),
        1..=3 if kind != 1 && rd == 0 => None,
        1..=3 => {
            let offset = if word {
                field(half, 4, 3, 2) | field(half, 12, 1, 5) | field(half, 2, 2, 6)
            } else {
                field(half, 5, 2, 3) | field(half, 12, 1, 5) | field(half, 2, 3, 6)
            };
            Some(i_type(load, funct3, rd, 2, offset))
        }
        4 => match (half >> 12 & 1, rd, rs2) {
            (0, 0, 0) => None,
            (0, _, 0) => Some(i_type(0x67, 0, 0, rd, 0)),
            (0, _, _) => Some(r_type(0x33, 0, 0, rd, [0, rs2])),
            (_, 0, 0) => Some(0x0010_0073),
            (_, _, 0) => Some(i_type(0x67, 0, 1, rd, 0)),
            _ => Some(r_type(0x33, 0, 0, rd, [rd, rs2])),
        },
        _ => {
            let offset = if word {
                field(half, 9, 4, 2) | field(half, 7, 2, 6)
            } else {
                field(half, 10, 3, 3) | field(half, 7, 3, 6)
            };
            Some(s_type(store, funct3, 2, rs2, offset))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halfwords_expand_as_the_assembler_pairs_them() {
        // c.addi sp,-32; c.ldsp ra,24(sp); c.jr ra; c.mv a0,a1; c.sd a1,8(a0); c.lui a0,0xfffff;
        // c.beqz a0,.-2; c.srai a0,63
        let pairs = [
            (0x1101, 0xfe01_0113),
            (0x60e2, 0x0181_3083),
            (0x8082, 0x0000_8067),
            (0x852e, 0x00b0_0533),
            (0xe50c, 0x00b5_3423),
            (0x757d, 0xffff_f537),
            (0xdd7d, 0xfe05_0fe3),
            (0x957d, 0x43f5_5513),
        ];
        for (half, full) in pairs {
            assert_eq!(expand(half), Some(full), "{half:#06x}");
        }
        assert_eq!(expand(0), None);
    }
}
