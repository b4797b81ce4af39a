//! Memory for the moments in which no arena can be asked. Handed out from one end to the other, by
//! one atomic step, so that signal handlers may. The block handed out last goes back when it is
//! freed, others never: whoever allocates and frees in turn, as those that list folders do, uses no
//! more with time.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::*};

const LEN: usize = 64 << 20;
/// Before each block stands its size.
const HEAD: usize = 16;

static START: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

fn start() -> Option<usize> {
    let start = START.load(Acquire);
    if start != 0 {
        return Some(start);
    }
    let new = terrace_sys::map_zeroed(LEN).ok()?;
    // The loser's mapping costs addresses only.
    Some(START.compare_exchange(0, new, AcqRel, Acquire).err().unwrap_or(new))
}

/// A zeroed block; `None` when the reserve is used up.
pub(crate) fn alloc(size: usize, align: usize) -> Option<NonNull<u8>> {
    let align = align.max(HEAD);
    if size > LEN || align > LEN {
        return None;
    }
    let start = start()?;
    let mut used = USED.load(Relaxed);
    loop {
        let block = (start + used + HEAD).next_multiple_of(align);
        let end = (block + size.max(1)).next_multiple_of(HEAD) - start;
        if end > LEN {
            return None;
        }
        match USED.compare_exchange_weak(used, end, Acquire, Relaxed) {
            Ok(_) => {
                // SAFETY: the 16 bytes before the block lie between what was used and the block,
                // ours since the step above.
                unsafe { ((block - HEAD) as *mut usize).write(size) };
                return NonNull::new(block as *mut u8);
            }
            Err(now) => used = now,
        }
    }
}

/// Whether a block is of the reserve.
pub(crate) fn holds(block: *const u8) -> bool {
    let start = START.load(Acquire);
    start != 0 && (block as usize).wrapping_sub(start) < LEN
}

/// Takes a block back, if it is of the reserve; whether it is.
///
/// # Safety
/// As for `free(3)`: the block is not used any more.
pub(crate) unsafe fn free(block: *mut u8) -> bool {
    let Some(size) = size(block) else {
        return false;
    };
    let first = block as usize - HEAD - START.load(Acquire);
    let end = (first + HEAD + size.max(1)).next_multiple_of(HEAD);
    if USED.load(Relaxed) == end {
        // Blocks are zeros when they are handed out. SAFETY: the head and the bytes are this
        // block's, which is the caller's until the step below.
        unsafe { block.sub(HEAD).write_bytes(0, HEAD + size) };
        // Another may have come after it by now: then this one stays.
        let _last = USED.compare_exchange(end, first, Release, Relaxed);
    }
    true
}

/// Bytes of a block of the reserve; `None`: it is not.
pub(crate) fn size(block: *const u8) -> Option<usize> {
    // SAFETY: `alloc` wrote the size before each block it gave, and the program has no other
    // pointers here.
    holds(block).then(|| unsafe { ((block as usize - HEAD) as *const usize).read() })
}

/// A line of text without allocation.
pub(crate) struct Line {
    text: [u8; 256],
    len: usize,
}

impl Line {
    pub(crate) const fn new() -> Self {
        Self { text: [0; 256], len: 0 }
    }

    /// Writes it to standard error.
    pub(crate) fn to_stderr(&self) {
        // SAFETY: `len` bytes of `text` are written.
        let _nobody_listens = unsafe { libc::write(2, self.text.as_ptr().cast(), self.len) };
    }
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, more: &str) -> std::fmt::Result {
        let space = self.text.len() - self.len;
        let fits = more.len().min(space);
        self.text[self.len..self.len + fits].copy_from_slice(&more.as_bytes()[..fits]);
        self.len += fits;
        if fits < more.len() {
            Err(std::fmt::Error)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a program does that lists folders over and over: 10,000 times 32 KiB are five times the
    /// reserve.
    #[test]
    fn the_last_block_goes_back_and_the_next_one_is_zeros() {
        let first = alloc(100, 16).unwrap();
        let used = USED.load(Relaxed);
        for n in 0..10_000_usize {
            let size = (32 << 10) + n % 40;
            let block = alloc(size, 16 << (n % 4)).unwrap();
            // SAFETY: so many bytes, this test's.
            let bytes = unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), size) };
            assert!(bytes.iter().all(|b| *b == 0), "turn {n}");
            bytes.fill(0xAB);
            assert_eq!(super::size(block.as_ptr()), Some(size));
            // SAFETY: not used any more.
            assert!(unsafe { free(block.as_ptr()) });
        }
        // What stays is what lay before blocks that had to be aligned.
        assert!(USED.load(Relaxed) - used <= 112, "{} bytes stay", USED.load(Relaxed) - used);
        let (second, third) = (alloc(7, 16).unwrap(), alloc(9, 16).unwrap());
        // SAFETY: not used any more; not the last one.
        assert!(unsafe { free(second.as_ptr()) });
        let fourth = alloc(7, 16).unwrap();
        assert!(fourth > third && third > first, "what is not last stays where it is");
        let elsewhere = Box::into_raw(Box::new(7_u64));
        // SAFETY: a block, if not of the reserve.
        assert!(!unsafe { free(elsewhere.cast()) });
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(elsewhere) });
    }
}
