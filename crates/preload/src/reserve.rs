//! Memory for the moments in which no arena can be asked. Handed out from one end to the other, by one atomic
//! step, so that signal handlers may; never given back.

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
        match USED.compare_exchange_weak(used, end, Relaxed, Relaxed) {
            Ok(_) => {
                // SAFETY: the 16 bytes before the block lie between what was used and the block, ours since the
                // step above.
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

/// Bytes of a block of the reserve; `None`: it is not.
pub(crate) fn size(block: *const u8) -> Option<usize> {
    // SAFETY: `alloc` wrote the size before each block it gave, and the program has no other pointers here.
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
        let room = self.text.len() - self.len;
        let fits = more.len().min(room);
        self.text[self.len..self.len + fits].copy_from_slice(&more.as_bytes()[..fits]);
        self.len += fits;
        if fits < more.len() {
            Err(std::fmt::Error)
        } else {
            Ok(())
        }
    }
}
