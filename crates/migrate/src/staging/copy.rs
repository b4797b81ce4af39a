//! Copies that go past the caches: what is copied ahead is read by another thread, later, or not at
//! all.

/// Below this a copy is left in the cache, where it may be found again.
const SMALL: usize = 128 << 10;

/// Whether large copies go past the caches on this processor; if not, each line that is written is
/// read first.
#[must_use]
pub const fn past_caches() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Copies `len` bytes.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, they do not overlap, and no other
/// thread writes either, or reads `to`, meanwhile.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= SMALL && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as the caller promises; AVX2 was detected.
        return unsafe { streaming(from, to, len) };
    }
    #[cfg(target_arch = "x86_64")]
    if len >= SMALL {
        // SAFETY: as the caller promises.
        return unsafe { streaming_sse2(from, to, len) };
    }
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As [`copy`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn streaming(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{
        _mm256_loadu_si256, _mm256_stream_si256, _mm_prefetch, _mm_sfence, _MM_HINT_T0,
    };
    const LINE: usize = 64;
    const AHEAD: usize = 512;
    let head = to.align_offset(LINE).min(len);
    // SAFETY: `head` is at most `len`.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let mut at = head;
    while at + LINE <= len {
        // A prefetch never faults, so that it may look beyond the end.
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD).cast());
        // SAFETY: a line from `at` lies in both; `to + at` is aligned to a line, as a streaming
        // store needs it.
        unsafe {
            let low = _mm256_loadu_si256(from.add(at).cast());
            let high = _mm256_loadu_si256(from.add(at + 32).cast());
            _mm256_stream_si256(to.add(at).cast(), low);
            _mm256_stream_si256(to.add(at + 32).cast(), high);
        }
        at += LINE;
    }
    // So that whoever is notified of the copy sees it whole.
    _mm_sfence();
    // SAFETY: less than a line is left, in both.
    unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at) };
}

/// The same with what every such processor has, in few instructions: in the lab each takes its time
/// (ADR 0193).
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn streaming_sse2(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence};
    const LINES: usize = 4 * 64;
    let head = to.align_offset(64).min(len);
    // SAFETY: `head` is at most `len`.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let mut at = head;
    while at + LINES <= len {
        // SAFETY: four lines from `at` lie in both; `to + at` is aligned to a line, as streaming
        // stores need it. The intrinsic for these takes an instruction more for each address.
        unsafe {
            for line in [0, 64, 128, 192] {
                let source = from.add(at + line).cast::<__m128i>();
                let [a, b, c, d] = std::array::from_fn(|i| _mm_loadu_si128(source.add(i)));
                std::arch::asm!(
                    "movntdq [{to}], {a}", "movntdq [{to} + 16], {b}",
                    "movntdq [{to} + 32], {c}", "movntdq [{to} + 48], {d}",
                    to = in(reg) to.add(at + line), a = in(xmm_reg) a, b = in(xmm_reg) b, c =
                        in(xmm_reg) c, d = in(xmm_reg) d,
                    options(nostack, preserves_flags)
                );
            }
        }
        at += LINES;
    }
    // So that whoever is notified of the copy sees it whole.
    // SAFETY: every x86-64 processor has it; it touches no memory.
    unsafe { _mm_sfence() };
    // SAFETY: fewer than four lines are left, in both.
    unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let source: Vec<u8> = (0..SMALL * 2 + 999).map(|i| (i * 7 + i / 251) as u8).collect();
        for (from, to, len) in
            [(0, 0, 0), (1, 2, 77), (0, 0, SMALL), (3, 61, SMALL + 1), (13, 5, SMALL * 2 + 777)]
        {
            let mut target = vec![0xee_u8; source.len() + 200];
            // SAFETY: both vectors are longer than offset and length, and different.
            unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
            let whole = |target: &[u8]| {
                assert_eq!(target[to..to + len], source[from..from + len], "{from} {to} {len}");
                assert!(target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0xee));
            };
            whole(&target);
            #[cfg(target_arch = "x86_64")]
            {
                target.fill(0xee);
                // SAFETY: as above.
                unsafe {
                    streaming_sse2(source.as_ptr().add(from), target.as_mut_ptr().add(to), len)
                };
                whole(&target);
            }
        }
    }
}
