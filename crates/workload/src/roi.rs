//! Marks that a watching emulator can see: no-ops with a number in them, harmless elsewhere.
//! One of the two modules with unsafe code.
#![allow(unsafe_code)]

/// Which mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoiMarker {
    /// The measured phase begins.
    Begin,
    /// The measured phase ends.
    End,
}

/// Executes the mark: `nopl imm32(%rax)`, bytes `0f 1f 80 imm32`, with 0x7e44a001 for begin and
/// 0x7e44a002 for end. Does nothing on other processors.
#[inline(never)]
pub fn mark(which: RoiMarker) {
    #[cfg(target_arch = "x86_64")]
    match which {
        // SAFETY: a no-op with a memory operand computes an address and accesses nothing: no
        // register, flag or memory is changed. `nomem` is left out so that the compiler keeps
        // memory accesses on their side of the mark.
        RoiMarker::Begin => unsafe {
            std::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80",
                ".long 0x7e44a001",
                options(nostack, preserves_flags)
            );
        },
        // SAFETY: as above.
        RoiMarker::End => unsafe {
            std::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80",
                ".long 0x7e44a002",
                options(nostack, preserves_flags)
            );
        },
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _nothing_to_execute = which;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_harmless() {
        mark(RoiMarker::Begin);
        mark(RoiMarker::End);
    }
}
