//! The host's own prefetch: tags of a large cache do not fit the host's, and what will be looked at
//! is known early.

/// The host begins to fetch an element that will be needed soon; one that is not there is not
/// fetched. Changes nothing but time; does nothing where the host has no such instruction.
#[inline(always)]
pub fn ahead<T>(all: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(one) = all.get(index) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch neither reads nor writes as far as the program can tell, and the
        // address is that of a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(one).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _nothing_to_fetch_with = (all, index);
}
