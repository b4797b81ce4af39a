//! How a thread leaves the code cache for good.

use crate::context::Context;
use crate::{area, glue, sys};

/// The thread goes on by itself, unrecorded.
pub fn leave(context: &mut Context, why: &str) -> ! {
    let mut hex = [b'0'; 16];
    for (i, digit) in hex.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(context.rip >> (60 - 4 * i) & 15) as usize];
    }
    let hex = core::str::from_utf8(&hex).unwrap_or("?");
    let first = context.recorded() || area().is_none();
    if first {
        sys::say(&[
            "terrace-translate: a thread goes on unrecorded from the instruction at 0x",
            hex,
            ": ",
            why,
        ]);
    }
    if let Some(area) = area().filter(|_| first) {
        area.note_escape();
    }
    context.give_up_slot(true);
    context.detached = context.rip;
    // SAFETY: the context holds the program's whole state.
    unsafe { glue::terrace_detach() }
}
