//! What happens where code of the cache cannot go on by itself.

use crate::cache::CACHE;
use crate::context::Context;
use crate::glue::{self, reason};
use crate::leave::leave;
use crate::make::Link;
use crate::plan::Kind;
use crate::{calls, signal, slow, sys};

/// Called with the program's state in the context; where to go on in the cache.
pub unsafe extern "C" fn terrace_runtime(context: *mut Context) -> u64 {
    // SAFETY: the thread's own, which nobody else uses while it is here.
    let context = unsafe { &mut *context };
    // SAFETY: reasons other than these have a link's address.
    let link = || unsafe { core::ptr::read_unaligned(context.argument as *const Link) };
    match context.reason {
        reason::LINK => {
            let link = link();
            context.rip = link.pc;
            let to = entry(context);
            // A signal's handler may come in between.
            if context.rip == link.pc {
                CACHE.link(link.site, to);
            }
            return to;
        }
        reason::INDIRECT => {
            context.rip = context.argument;
            let pc = context.rip;
            let to = entry(context);
            if context.rip == pc {
                context.remember(pc, to);
            }
            return to;
        }
        reason::REFILL => {
            context.rip = link().pc;
            context.refill();
        }
        reason::CALL => {
            context.rip = link().pc;
            calls::system_call(context);
        }
        reason::SLOW => {
            let link = link();
            context.rip = link.pc;
            slow::report(context);
            return link.site;
        }
        reason::STOP => {
            context.rip = link().pc;
            stop(context);
        }
        _ => {}
    }
    entry(context)
}

/// The first thing a thread or process made by `terrace_clone` does, on its own stack.
pub unsafe extern "C" fn terrace_child(context: *mut Context) {
    // SAFETY: the parent made it for this thread alone.
    let context = unsafe { &mut *context };
    // SAFETY: this thread has none yet.
    unsafe { context.adopt() };
    calls::begin_child(context);
    context.jump = entry(context);
}

/// Where the cache goes on for the program, after the signals that wait.
pub fn entry(context: &mut Context) -> u64 {
    if context.waiting.any() {
        signal::deliver(context);
        context.refill();
    }
    let pc = context.rip;
    match CACHE.find(context, pc) {
        Ok(entry) => entry,
        Err(crate::cache::Full) => leave(context, "the code cache is full"),
    }
}

/// What stands at the program's counter has no code: the processor shall say what it thinks of it.
fn stop(context: &mut Context) {
    if context.waiting.any() {
        return;
    }
    match CACHE.about(context.rip) {
        Some((_, Kind::Not(why), _)) => leave(context, why),
        Some((_, Kind::Absent, _)) => {
            // SAFETY: asks whether the page is mapped.
            let mapped = unsafe {
                sys::call3(sys::MINCORE, context.rip & !4095, 4096, [0u8; 8].as_mut_ptr() as u64)
            } == 0;
            if mapped {
                leave(context, "its code cannot be read");
            }
            context.write_out();
            // Code may be mapped there later.
            CACHE.forget(context.rip & !4095, 4096, 0);
            // SAFETY: the context holds the program's whole state.
            unsafe { glue::terrace_detach() }
        }
        _ => {}
    }
}
