//! The loops that measure bandwidth, over whole arrays of doubles, and the chains that measure
//! latency.
//!
//! Each stream kernel has forms: `plain`, which the compiler makes vectors of, and, on x86-64 with
//! AVX, `streaming`, whose stores go past the caches so that no line is read only to be
//! overwritten. Which is faster differs between processors; whoever measures tries all of [`forms`]
//! and keeps the best.

use serde::{Deserialize, Serialize};

/// What is done to each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementKernel {
    /// `c = a`
    Copy,
    /// `b = s * c`
    Scale,
    /// `c = a + b`
    Add,
    /// `a = b + s * c`
    Triad,
    /// All of one array is read.
    Read,
    /// All of one array is written.
    Write,
    /// Two arrays are read for each one written.
    Mix2,
    /// Three arrays are read for each one written.
    Mix3,
    /// Four arrays are read for each one written.
    Mix4,
}

impl ElementKernel {
    /// Those of STREAM, in its order.
    pub const STREAM: [Self; 4] = [Self::Copy, Self::Scale, Self::Add, Self::Triad];
    /// From all reads to two reads a write.
    pub const MIXES: [Self; 4] = [Self::Read, Self::Mix4, Self::Mix3, Self::Mix2];

    /// Arrays read, as the source text has it: what a store reads before it writes does not count.
    #[must_use]
    pub const fn reads(self) -> usize {
        match self {
            Self::Write => 0,
            Self::Copy | Self::Scale | Self::Read => 1,
            Self::Add | Self::Triad | Self::Mix2 => 2,
            Self::Mix3 => 3,
            Self::Mix4 => 4,
        }
    }

    /// Arrays written.
    #[must_use]
    pub const fn writes(self) -> usize {
        match self {
            Self::Read => 0,
            _ => 1,
        }
    }

    /// Arrays in all.
    #[must_use]
    pub const fn arrays(self) -> usize {
        self.reads() + self.writes()
    }

    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Scale => "scale",
            Self::Add => "add",
            Self::Triad => "triad",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix2 => "mix2",
            Self::Mix3 => "mix3",
            Self::Mix4 => "mix4",
        }
    }
}

/// How a kernel is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// The compiler's.
    Plain,
    /// The C library's memcpy and memset.
    Library,
    /// Vectors whose stores go past the caches.
    Streaming,
    /// One word of each cache line: the line crosses the bus whole, and few instructions stand
    /// between lines.
    Lines,
}

impl Form {
    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Library => "library",
            Self::Streaming => "streaming",
            Self::Lines => "lines",
        }
    }
}

/// Forms of a kernel that this processor has.
#[must_use]
pub fn forms(kernel: ElementKernel) -> Vec<Form> {
    let mut forms = vec![Form::Plain];
    if matches!(kernel, ElementKernel::Copy | ElementKernel::Write) {
        forms.push(Form::Library);
    }
    if kernel.writes() > 0 && streaming() {
        forms.push(Form::Streaming);
    }
    if kernel == ElementKernel::Read {
        forms.push(Form::Lines);
    }
    forms
}

/// Whether all forms of [`ElementKernel::Write`] here store through the caches, which read a line
/// before they overwrite it (write-allocate: Intel SDM vol. 3, 12.3): then as many bytes are read
/// on the bus as are written.
#[must_use]
pub fn stores_read_first() -> bool {
    cfg!(target_arch = "x86_64") && !forms(ElementKernel::Write).contains(&Form::Streaming)
}

#[cfg(target_arch = "x86_64")]
fn streaming() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn streaming() -> bool {
    false
}

/// Elements that every length must be a multiple of.
pub const GRAIN: usize = 64;

/// Runs a kernel over `count` elements once. `arrays` holds those read, then the one written. What
/// [`ElementKernel::Read`] gives is a sum that keeps the compiler from leaving the reads out.
///
/// # Safety
/// `arrays` has [`ElementKernel::arrays`] pointers, each aligned to 64 bytes and valid for `count`
/// elements, for reading or for writing; the one written overlaps no other, and no other thread
/// touches it meanwhile. `count` is a multiple of [`GRAIN`]. `form` is one of [`forms`].
#[inline(never)]
pub unsafe fn run(kernel: ElementKernel, form: Form, arrays: &[*mut f64], count: usize) -> f64 {
    debug_assert_eq!(arrays.len(), kernel.arrays());
    #[cfg(target_arch = "x86_64")]
    if streaming() {
        // SAFETY: as the caller promises; AVX2 was detected.
        return unsafe { x86::run(kernel, form, arrays, count) };
    }
    // SAFETY: as the caller promises.
    unsafe { plain(kernel, form, arrays, count) }
}

/// What memset writes: processors write lines of zeros in less (see
/// [`terrace_sys::AnonymousMapping::fill`]).
const NOT_ZERO: u8 = 0x40;

/// A factor the compiler does not know.
#[inline(always)]
fn factor() -> f64 {
    std::hint::black_box(3.0)
}

/// All kernels as loops over slices.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn plain(kernel: ElementKernel, form: Form, arrays: &[*mut f64], n: usize) -> f64 {
    // SAFETY: the caller promises that each pointer is valid for `n` elements, and nobody writes
    // those read.
    let read = |i: usize| unsafe { std::slice::from_raw_parts(arrays[i].cast_const(), n) };
    if kernel == ElementKernel::Read {
        return if form == Form::Lines { sum_lines(read(0)) } else { sum(read(0)) };
    }
    let last = arrays[kernel.reads()];
    if form == Form::Library {
        // SAFETY: both are valid for `n` elements and do not overlap, as the caller promises.
        unsafe {
            match kernel {
                ElementKernel::Copy => {
                    std::ptr::copy_nonoverlapping(arrays[0].cast_const(), last, n)
                }
                _ => std::ptr::write_bytes(last, NOT_ZERO, n),
            }
        }
        return 0.0;
    }
    // SAFETY: the array written overlaps no other and nobody else touches it, as the caller
    // promises.
    let out = unsafe { std::slice::from_raw_parts_mut(last, n) };
    let s = factor();
    match kernel {
        ElementKernel::Copy => out.iter_mut().zip(read(0)).for_each(|(o, a)| *o = *a),
        ElementKernel::Scale => out.iter_mut().zip(read(0)).for_each(|(o, a)| *o = s * *a),
        ElementKernel::Add | ElementKernel::Mix2 => {
            out.iter_mut().zip(read(0)).zip(read(1)).for_each(|((o, a), b)| *o = *a + *b)
        }
        ElementKernel::Triad => {
            out.iter_mut().zip(read(0)).zip(read(1)).for_each(|((o, a), b)| *o = *a + s * *b)
        }
        ElementKernel::Write => out.iter_mut().for_each(|o| *o = s),
        ElementKernel::Mix3 => {
            let reads = read(0).iter().zip(read(1)).zip(read(2));
            out.iter_mut().zip(reads).for_each(|(o, ((a, b), c))| *o = *a + *b + *c);
        }
        _ => {
            let reads = read(0).iter().zip(read(1)).zip(read(2)).zip(read(3));
            out.iter_mut().zip(reads).for_each(|(o, (((a, b), c), d))| *o = *a + *b + *c + *d);
        }
    }
    0.0
}

/// Sixteen sums side by side, so that additions do not wait for each other.
#[inline(always)]
fn sum(all: &[f64]) -> f64 {
    let mut sums = [0.0; 32];
    for chunk in all.chunks_exact(32) {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += *value;
        }
    }
    sums.iter().sum()
}

/// The first word of each line, eight lines a turn.
#[inline(always)]
fn sum_lines(all: &[f64]) -> f64 {
    const WORDS: usize = 8;
    let mut sums = [0.0; 8];
    for lines in all.chunks_exact(8 * WORDS) {
        for (sum, line) in sums.iter_mut().zip(lines.chunks_exact(WORDS)) {
            *sum += line[0];
        }
    }
    sums.iter().sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{factor, plain, ElementKernel, Form};
    use std::arch::x86_64::{
        __m256d, _mm256_add_pd, _mm256_load_pd, _mm256_mul_pd, _mm256_set1_pd, _mm256_stream_pd,
        _mm_prefetch, _mm_sfence, _MM_HINT_T0,
    };

    /// # Safety
    /// As [`super::run`], and the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn run(
        kernel: ElementKernel,
        form: Form,
        arrays: &[*mut f64],
        count: usize,
    ) -> f64 {
        if form != Form::Streaming {
            // SAFETY: as the caller promises.
            return unsafe { plain(kernel, form, arrays, count) };
        }
        let s = _mm256_set1_pd(factor());
        let p = |i: usize| arrays[i].cast_const();
        let out = arrays[kernel.reads()];
        // SAFETY: as the caller promises; `p` is asked for arrays that the kernel reads only.
        unsafe {
            match kernel {
                ElementKernel::Copy => each::<1>(
                    [p(0)],
                    out,
                    count,
                    #[inline(always)]
                    |[a]| a,
                ),
                ElementKernel::Scale => each::<1>(
                    [p(0)],
                    out,
                    count,
                    #[inline(always)]
                    |[a]| _mm256_mul_pd(s, a),
                ),
                ElementKernel::Add | ElementKernel::Mix2 => {
                    each::<2>(
                        [p(0), p(1)],
                        out,
                        count,
                        #[inline(always)]
                        |[a, b]| _mm256_add_pd(a, b),
                    );
                }
                ElementKernel::Triad => each::<2>(
                    [p(0), p(1)],
                    out,
                    count,
                    #[inline(always)]
                    |[a, b]| _mm256_add_pd(a, _mm256_mul_pd(s, b)),
                ),
                ElementKernel::Mix3 => each::<3>(
                    [p(0), p(1), p(2)],
                    out,
                    count,
                    #[inline(always)]
                    |[a, b, c]| _mm256_add_pd(a, _mm256_add_pd(b, c)),
                ),
                ElementKernel::Mix4 => each::<4>(
                    [p(0), p(1), p(2), p(3)],
                    out,
                    count,
                    #[inline(always)]
                    |[a, b, c, d]| _mm256_add_pd(_mm256_add_pd(a, b), _mm256_add_pd(c, d)),
                ),
                ElementKernel::Read | ElementKernel::Write => each::<0>(
                    [],
                    out,
                    count,
                    #[inline(always)]
                    |[]| s,
                ),
            }
        }
        0.0
    }

    /// Bytes that a load looks ahead.
    const AHEAD: usize = 512;

    /// `out[i] = f(in[0][i], in[1][i], ...)`, two lines of each array at a time, stored past the
    /// caches.
    ///
    /// # Safety
    /// As [`super::run`], and the processor has AVX2.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn each<const N: usize>(
        ins: [*const f64; N],
        out: *mut f64,
        count: usize,
        f: impl Fn([__m256d; N]) -> __m256d,
    ) {
        let mut i = 0;
        while i < count {
            for p in ins {
                // A prefetch never faults, so that it may look beyond the end.
                _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(i).wrapping_byte_add(AHEAD).cast());
                _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(i).wrapping_byte_add(AHEAD + 64).cast());
            }
            let mut k = 0;
            while k < 16 {
                // SAFETY: i + k + 4 <= count, a multiple of 16; arrays are aligned to 64 bytes and
                // so is every fourth element.
                unsafe {
                    let got = ins.map(
                        #[inline(always)]
                        |p| _mm256_load_pd(p.add(i + k)),
                    );
                    _mm256_stream_pd(out.add(i + k), f(got));
                }
                k += 4;
            }
            i += 16;
        }
        // So that what follows sees the stores in order.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    #[derive(Clone, Copy)]
    struct Line([f64; 8]);

    fn array(lines: usize, first: f64) -> Vec<Line> {
        (0..lines).map(|l| Line(std::array::from_fn(|i| first + (l * 8 + i) as f64))).collect()
    }

    #[test]
    fn every_form_of_every_kernel_computes_what_its_name_says() {
        let all = [
            ElementKernel::Copy,
            ElementKernel::Scale,
            ElementKernel::Add,
            ElementKernel::Triad,
            ElementKernel::Write,
            ElementKernel::Mix2,
            ElementKernel::Mix3,
            ElementKernel::Mix4,
        ];
        for kernel in all {
            for form in forms(kernel) {
                let mut ins: Vec<Vec<Line>> =
                    (0..kernel.reads()).map(|k| array(40, 100.0 * k as f64)).collect();
                let mut out = array(40, -7.0);
                let mut arrays: Vec<*mut f64> =
                    ins.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
                arrays.push(out.as_mut_ptr().cast());
                // SAFETY: as many aligned arrays as the kernel has, of 320 elements each, ours
                // alone; 5 times the grain.
                unsafe { run(kernel, form, &arrays, 320) };
                for i in [0, 1, 63, 64, 200, 319] {
                    let x = |k: usize| 100.0 * k as f64 + i as f64;
                    let wanted = match kernel {
                        ElementKernel::Copy => x(0),
                        ElementKernel::Scale => 3.0 * x(0),
                        ElementKernel::Add | ElementKernel::Mix2 => x(0) + x(1),
                        ElementKernel::Triad => x(0) + 3.0 * x(1),
                        ElementKernel::Mix3 => x(0) + x(1) + x(2),
                        ElementKernel::Mix4 => x(0) + x(1) + x(2) + x(3),
                        _ if form == Form::Library => f64::from_bits(0x4040_4040_4040_4040),
                        _ => 3.0,
                    };
                    assert_eq!(out[i / 8].0[i % 8], wanted, "{kernel:?} {form:?} at {i}");
                }
            }
        }
    }

    #[test]
    fn a_read_sums_everything() {
        let mut all = array(40, 0.0);
        // SAFETY: one aligned array of 320 elements, ours alone.
        let got = unsafe { run(ElementKernel::Read, Form::Plain, &[all.as_mut_ptr().cast()], 320) };
        assert_eq!(got, (0..320).map(f64::from).sum::<f64>());
        // SAFETY: as above.
        let got = unsafe { run(ElementKernel::Read, Form::Lines, &[all.as_mut_ptr().cast()], 320) };
        assert_eq!(got, (0..320).step_by(8).map(f64::from).sum::<f64>(), "one word of each line");
    }
}
