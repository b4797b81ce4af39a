//! The few instructions that the lab treats on purpose, told by their bytes (Intel SDM vol. 2).

/// What an instruction is to the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionKind {
    /// Nothing special.
    Plain,
    /// A mark of ours: `nopl disp32(%rax)` with a displacement that nobody else uses. Does nothing
    /// anywhere but here.
    Mark(u8),
    /// `mov` to a control register, or `invlpg`: what may change a translation that the processor
    /// has cached.
    ChangesTranslations,
    /// A store past the caches: `movnti`, `movntq`, `movntdq`, `movntps`, `movntpd`, and those of
    /// the VEX forms that there are.
    StoresPast,
}

/// Displacements of marks, but for their lowest byte.
const MARKS: u32 = 0x7e44_a000;

/// What the instruction that these bytes begin with is.
#[must_use]
pub fn kind(bytes: &[u8]) -> InstructionKind {
    if let [0x0f, 0x1f, 0x80, displacement @ ..] = bytes {
        if let Ok(word) = <[u8; 4]>::try_from(displacement) {
            let word = u32::from_le_bytes(word);
            return if word & !0xff == MARKS && word & 0xff != 0 {
                InstructionKind::Mark(word as u8)
            } else {
                InstructionKind::Plain
            };
        }
    }
    // Segments, address size, operand size, repetition, REX.
    let prefix = |b: &&u8| matches!(**b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
    let rest = &bytes[bytes.iter().take_while(prefix).count()..];
    // Opcode and ModRM of what is in map 0F, and whether it is a VEX form.
    let (code, modrm, vex) = match rest {
        [0x0f, code, modrm, ..] => (*code, *modrm, false),
        [0xc5, _, code, modrm, ..] => (*code, *modrm, true),
        [0xc4, map, _, code, modrm, ..] if map & 0x1f == 1 => (*code, *modrm, true),
        _ => return InstructionKind::Plain,
    };
    let memory = modrm >> 6 != 3;
    match code {
        0x22 if !vex => InstructionKind::ChangesTranslations,
        0x01 if !vex && memory && modrm >> 3 & 7 == 7 => InstructionKind::ChangesTranslations,
        0x2b | 0xe7 if memory => InstructionKind::StoresPast,
        0xc3 if !vex && memory => InstructionKind::StoresPast,
        _ => InstructionKind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as GNU as makes them.
    #[test]
    fn instructions_are_recognised_by_their_bytes() {
        let all: [(&[u8], InstructionKind, &str); 24] = [
            (&[0x0f, 0x1f, 0x80, 0x12, 0xa0, 0x44, 0x7e], InstructionKind::Mark(0x12), "our mark"),
            (&[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00], InstructionKind::Plain, "nopl 0x0(%rax)"),
            (&[0x0f, 0x1f, 0x40, 0x00], InstructionKind::Plain, "nopl 0x0(%rax), short"),
            (&[0x0f, 0x22, 0xd8], InstructionKind::ChangesTranslations, "mov %rax,%cr3"),
            (&[0x44, 0x0f, 0x22, 0xc0], InstructionKind::ChangesTranslations, "mov %rax,%cr8"),
            (&[0x0f, 0x20, 0xd8], InstructionKind::Plain, "mov %cr3,%rax"),
            (&[0x0f, 0x01, 0x3f], InstructionKind::ChangesTranslations, "invlpg (%rdi)"),
            (&[0x0f, 0x01, 0xf9], InstructionKind::Plain, "rdtscp"),
            (&[0x0f, 0xc3, 0x07], InstructionKind::StoresPast, "movnti %eax,(%rdi)"),
            (&[0x48, 0x0f, 0xc3, 0x07], InstructionKind::StoresPast, "movnti %rax,(%rdi)"),
            (&[0x66, 0x0f, 0xe7, 0x07], InstructionKind::StoresPast, "movntdq %xmm0,(%rdi)"),
            (
                &[0x66, 0x44, 0x0f, 0xe7, 0x47, 0x10],
                InstructionKind::StoresPast,
                "movntdq %xmm8,0x10(%rdi)",
            ),
            (
                &[0x64, 0x66, 0x0f, 0xe7, 0x07],
                InstructionKind::StoresPast,
                "movntdq %xmm0,%fs:(%rdi)",
            ),
            (&[0x0f, 0xe7, 0x07], InstructionKind::StoresPast, "movntq %mm0,(%rdi)"),
            (&[0x0f, 0x2b, 0x07], InstructionKind::StoresPast, "movntps %xmm0,(%rdi)"),
            (&[0x66, 0x0f, 0x2b, 0x07], InstructionKind::StoresPast, "movntpd %xmm0,(%rdi)"),
            (&[0xc5, 0xfd, 0xe7, 0x07], InstructionKind::StoresPast, "vmovntdq %ymm0,(%rdi)"),
            (&[0xc4, 0xc1, 0x7d, 0xe7, 0x07], InstructionKind::StoresPast, "vmovntdq %ymm0,(%r15)"),
            (
                &[0x66, 0x0f, 0x38, 0x2a, 0x07],
                InstructionKind::Plain,
                "movntdqa (%rdi),%xmm0, a load",
            ),
            (&[0x66, 0x0f, 0x7f, 0x07], InstructionKind::Plain, "movdqa %xmm0,(%rdi)"),
            (&[0xf3, 0x0f, 0xe6, 0x07], InstructionKind::Plain, "cvtdq2pd (%rdi),%xmm0"),
            (&[0x48, 0x89, 0x07], InstructionKind::Plain, "mov %rax,(%rdi)"),
            (&[0xc3], InstructionKind::Plain, "ret"),
            (&[0x0f, 0xc2, 0x07, 0x01], InstructionKind::Plain, "cmpltps (%rdi),%xmm0"),
        ];
        for (bytes, expected, text) in all {
            assert_eq!(kind(bytes), expected, "{text}");
        }
        assert_eq!(kind(&[]), InstructionKind::Plain);
        assert_eq!(kind(&[0x66; 15]), InstructionKind::Plain);
        (0..=255).for_each(|b| assert_eq!(kind(&[b]), InstructionKind::Plain));
    }
}
