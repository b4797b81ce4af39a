//! Signals that the program handles. The kernel calls a handler of ours, which keeps the signal
//! until the thread is between two blocks; then its frame is made on the program's stack as the
//! kernel would have made it, with the program's registers. Faults are reported at the instruction
//! of the program that made them.

use crate::cache::{BASE, BYTES, CACHE};
use crate::context::{Context, R11, RAX, RCX, RDI, RDX, RING, RSI, RSP, SCRATCH};
use crate::glue;
use crate::lock::Lock;
use crate::sys;
use crate::waiting::WaitingSignal;
use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _xgetbv};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

const SA_NOCLDSTOP: u64 = 1;
const SA_NOCLDWAIT: u64 = 2;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
const SS_ONSTACK: u64 = 1;
const SS_DISABLE: u64 = 2;
const SIG_SETMASK: u64 = 2;
/// Illegal instruction, trap, bus error, arithmetic, segmentation: what an instruction can do at
/// once.
const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10;
const SYS_TGKILL: u64 = 234;
/// Flags by which a program has each of its instructions, or each access that is not aligned, end
/// in a signal: those of the cache's code would too.
pub const WATCHED_FLAGS: u64 = TRAP_FLAG | 0x4_0000;
const TRAP_FLAG: u64 = 0x100;
pub const WATCHED_WHY: &str = "it sets the trap flag or checks alignment";
const SIGTRAP: u64 = 5;
/// `si_code` of a trap after one instruction.
const TRAP_TRACE: i32 = 2;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

struct Actions {
    lock: Lock,
    all: UnsafeCell<[Action; 65]>,
}
// SAFETY: `all` is touched under `lock` only.
unsafe impl Sync for Actions {}
const NONE: Action = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
static ACTIONS: Actions = Actions { lock: Lock::new(), all: UnsafeCell::new([NONE; 65]) };

impl Actions {
    fn with<T>(&self, work: impl FnOnce(&mut [Action; 65]) -> T) -> T {
        let _held = self.lock.hold();
        // SAFETY: the lock is held.
        work(unsafe { &mut *self.all.get() })
    }
}

/// All actions; for a child that shares memory and not handlers.
pub fn all_actions() -> [Action; 65] {
    ACTIONS.with(|all| *all)
}

pub fn restore_actions(saved: [Action; 65]) {
    ACTIONS.with(|all| *all = saved);
}

/// Parts of the processor's state that are kept.
pub fn features() -> u64 {
    // SAFETY: `begin` has made sure of the instruction.
    unsafe { xgetbv() }
}

#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: the caller has made sure of the instruction.
    unsafe { _xgetbv(0) }
}

fn state_bytes() -> u64 {
    u64::from(__cpuid_count(0xd, 0).ebx)
}

/// Makes sure that the processor can keep its state as is done here.
pub fn begin() {
    if __cpuid_count(1, 0).ecx >> 27 & 1 == 0 || state_bytes() > crate::context::XSAVE_BYTES {
        crate::give_up("this processor cannot save its state (xsave) as the translator does");
    }
}

pub fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let (new, old_at) = (&mask as *const u64 as u64, &mut old as *mut u64 as u64);
    // SAFETY: two words of ours.
    unsafe { sys::call(sys::RT_SIGPROCMASK, [SIG_SETMASK, new, old_at, 8, 0, 0]) };
    old
}

/// The program sets an action: `rt_sigaction`.
pub fn set_action(a: [u64; 6]) -> i64 {
    let number = a[0] as usize;
    if a[3] != 8 || number == 0 || number > 64 {
        return -sys::EINVAL;
    }
    let mut new = None;
    if a[1] != 0 {
        let mut words = [0u8; 32];
        if sys::read_memory(a[1], &mut words) != 32 {
            return -sys::EFAULT;
        }
        let word =
            |i: usize| u64::from_le_bytes(words[8 * i..8 * i + 8].try_into().unwrap_or_default());
        new = Some(Action { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) });
    }
    let mut before = NONE;
    let result = ACTIONS.with(|all| {
        let native = new.map(|n| if n.handler > 1 { master(&n) } else { n });
        let native_at = native.as_ref().map_or(0, |n| n as *const Action as u64);
        // SAFETY: the kernel reads and writes actions of ours; the handler is ours, or none.
        let done = unsafe {
            sys::call(
                sys::RT_SIGACTION,
                [a[0], native_at, &mut before as *mut Action as u64, 8, 0, 0],
            )
        };
        if done >= 0 {
            if before.handler == handle as *const () as u64 {
                before = all[number];
            }
            if let Some(new) = new {
                all[number] = new;
            }
        }
        done
    });
    if result >= 0 && a[2] != 0 {
        let words = [before.handler, before.flags, before.restorer, before.mask];
        if !put_words(a[2], &words) {
            return -sys::EFAULT;
        }
    }
    result
}

fn put_words(at: u64, words: &[u64]) -> bool {
    let mut bytes = [0u8; 32];
    words
        .iter()
        .zip(bytes.chunks_exact_mut(8))
        .for_each(|(w, b)| b.copy_from_slice(&w.to_le_bytes()));
    sys::write_memory(at, &bytes[..8 * words.len().min(4)])
}

/// What the kernel is given for an action of the program's.
fn master(action: &Action) -> Action {
    Action {
        handler: handle as *const () as u64,
        flags: action.flags & (SA_NOCLDSTOP | SA_NOCLDWAIT | SA_RESTART)
            | SA_SIGINFO
            | SA_ONSTACK
            | SA_RESTORER,
        restorer: glue::terrace_return as *const () as u64,
        mask: u64::MAX,
    }
}

/// Indices of the kernel's saved registers, behind 40 bytes of its `ucontext`; by number of the
/// register.
const SAVED: [usize; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
const SAVED_RIP: usize = 16;
const SAVED_FLAGS: usize = 17;
const SAVED_SEGMENTS: usize = 18;
const SAVED_ERROR: usize = 19;
const REGISTERS: u64 = 40;
const STATE: u64 = 224;
const MASK: u64 = 296;
const UCONTEXT_BYTES: u64 = 304;
const INFO_BYTES: u64 = 128;

/// What the kernel calls, on the context's own stack for signals.
unsafe extern "C" fn handle(number: u64, info: *const [u64; 16], user: u64) {
    // SAFETY: the processor checks the alignment of what follows no longer; the frame keeps the
    // program's flags.
    unsafe { asm!("push 0x202", "popfq") };
    let context: *mut Context;
    // SAFETY: GS points to the thread's context whenever signals can come.
    unsafe { asm!("mov {}, gs:[0]", out(reg) context, options(nostack, readonly)) };
    // SAFETY: the kernel's frame; the context is this thread's, whose other users are interrupted.
    unsafe {
        let context = &mut *context;
        let saved = (user + REGISTERS) as *mut u64;
        let rip = *saved.add(SAVED_RIP);
        let code = (*info)[1] as u32 as i32;
        let fault = FAULTS >> (number - 1) & 1 == 1 && code > 0;
        let step = number == SIGTRAP && code == TRAP_TRACE;
        let cached = (BASE..BASE + BYTES).contains(&rip);
        let ours = rip >= BASE + BYTES && rip < end_of_translator();
        if step && (ours || core::mem::replace(&mut context.detached, 0) == rip) {
            // A thread that goes on by itself with the trap flag set: these are the translator's
            // last instructions, not the program's first.
            return;
        }
        if fault && ours {
            // A bug, or a frame for a handler that has no space: as if there were no handler.
            let none = NONE;
            sys::call(sys::RT_SIGACTION, [number, &none as *const Action as u64, 0, 8, 0, 0]);
            return;
        }
        let mut again = fault && context.waiting.any();
        if !again {
            keep(context, number, &*info, saved, user);
        }
        if fault && cached {
            rebuild(context, saved, rip);
        } else if !cached && !ours {
            for (register, at) in SAVED.into_iter().enumerate() {
                context.registers[register] = *saved.add(at);
            }
            context.flags = *saved.add(SAVED_FLAGS);
            context.rip = rip;
            again = true;
        }
        if fault || again {
            *saved.add(SAVED_RIP) = glue::terrace_reenter as *const () as u64;
        } else if (glue::terrace_call_begin as *const () as u64
            ..=glue::terrace_call_now as *const () as u64)
            .contains(&rip)
        {
            *saved.add(SAVED_RIP) = glue::terrace_call_not as *const () as u64;
        }
        core::ptr::write_volatile(&mut context.limit, 0);
        core::ptr::write_volatile(&mut context.minus_limit, 0);
    }
}

extern "C" {
    #[link_name = "_end"]
    static END: u8;
}

fn end_of_translator() -> u64 {
    core::ptr::addr_of!(END) as u64
}

/// Keeps a signal for later, and others away until then.
unsafe fn keep(context: &mut Context, number: u64, info: &[u64; 16], saved: *mut u64, user: u64) {
    let count = context.waiting.count.load(Ordering::SeqCst) as usize;
    if count == context.waiting.held.len() {
        return;
    }
    let mask = (user + MASK) as *mut u64;
    // SAFETY: the kernel's frame.
    unsafe {
        let fault =
            [*saved.add(SAVED_ERROR), *saved.add(SAVED_ERROR + 1), *saved.add(SAVED_ERROR + 3)];
        context.waiting.held[count] = WaitingSignal { number, info: *info, fault };
        if count == 0 {
            context.waiting.mask = *mask;
        }
        *mask = !FAULTS;
    }
    context.waiting.count.store(count as u32 + 1, Ordering::SeqCst);
}

/// The program's state at the instruction that faulted in the cache.
unsafe fn rebuild(context: &mut Context, saved: *const u64, rip: u64) {
    let Some((_, begin, places)) = CACHE.places(rip) else {
        crate::give_up("a fault in code that is not known")
    };
    let within = (rip - begin) as usize;
    let Some(place) = places.iter().rev().find(|p| p.from <= within) else {
        crate::give_up("a fault in code that is not the program's")
    };
    // SAFETY: the kernel's frame.
    let saved = |at: usize| unsafe { *saved.add(at) };
    // The two that the cache keeps for itself are in the context already.
    for (register, at) in SAVED.into_iter().enumerate().take(usize::from(SCRATCH)) {
        context.registers[register] = saved(at);
    }
    for (slot, register) in place.borrowed.into_iter().enumerate() {
        if let Some(register) = register {
            context.registers[usize::from(register)] = context.save[slot];
        }
    }
    context.next = saved(SAVED[usize::from(RING)]) + 8 * place.words as u64;
    context.flags = saved(SAVED_FLAGS);
    context.rip = place.pc;
}

/// Hands the first signal that waits to the program's handler: its frame is on the stack and its
/// registers are set.
pub fn deliver(context: &mut Context) {
    let held = context.waiting.held[0];
    let before = context.waiting.mask;
    let number = held.number as usize;
    let rest = context.waiting.count.load(Ordering::SeqCst) as usize - 1;
    context.waiting.held.copy_within(1.., 0);
    context.waiting.count.store(rest as u32, Ordering::SeqCst);
    let action = ACTIONS.with(|all| {
        let action = all[number];
        if action.flags & SA_RESETHAND != 0 && action.handler > 1 {
            all[number] = NONE;
            let none = NONE;
            // SAFETY: the kernel reads an action of ours.
            unsafe {
                sys::call(
                    sys::RT_SIGACTION,
                    [held.number, &none as *const Action as u64, 0, 8, 0, 0],
                )
            };
        }
        action
    });
    if action.handler <= 1 {
        if action.handler == 0 {
            // Its handler was taken away meanwhile: what the kernel does without one.
            // SAFETY: sends a signal to this thread.
            unsafe {
                let (pid, tid) =
                    (sys::call3(sys::GETPID, 0, 0, 0), sys::call3(sys::GETTID, 0, 0, 0));
                sys::call3(SYS_TGKILL, pid as u64, tid as u64, held.number);
            }
        }
        if rest == 0 {
            set_mask(before);
        }
        return;
    }
    // SAFETY: memory that the program lends to its handlers; should it not be there, the fault ends
    // the program as the kernel would.
    unsafe { make_frame(context, &held, &action, before) };
    let own = if action.flags & SA_NODEFER == 0 { 1 << (number - 1) } else { 0 };
    let during = before | action.mask | own;
    if rest == 0 {
        set_mask(during);
    } else {
        context.waiting.mask = during;
    }
}

fn on_alternate(context: &Context) -> bool {
    let [start, bytes] = context.waiting.alternate;
    context.registers[RSP].wrapping_sub(start) < bytes
}

unsafe fn make_frame(context: &mut Context, held: &WaitingSignal, action: &Action, mask: u64) {
    let [start, bytes] = context.waiting.alternate;
    let switch = action.flags & SA_ONSTACK != 0 && bytes > 0 && !on_alternate(context);
    let top = if switch { start + bytes } else { context.registers[RSP] - 128 };
    let size = state_bytes();
    let state = (top - size - 4) & !63;
    let frame = ((state - 8 - UCONTEXT_BYTES - INFO_BYTES) & !15) - 8;
    let (user, info) = (frame + 8, frame + 8 + UCONTEXT_BYTES);
    // SAFETY: below the top of a stack of the program's.
    unsafe {
        core::ptr::copy_nonoverlapping(context.xsave as *const u8, state as *mut u8, size as usize);
        // What marks a frame that has more than the oldest registers.
        *((state + 464) as *mut u32) = 0x4650_5853;
        *((state + 468) as *mut u32) = size as u32 + 4;
        *((state + 472) as *mut u64) = features();
        *((state + 480) as *mut u32) = size as u32;
        core::ptr::write_unaligned((state + size) as *mut u32, 0x4650_5845);
        core::ptr::write_bytes(user as *mut u8, 0, UCONTEXT_BYTES as usize);
        let put = |at: u64, value: u64| *((user + at) as *mut u64) = value;
        put(0, 7);
        put(16, start);
        put(
            24,
            if bytes == 0 { SS_DISABLE } else { u64::from(on_alternate(context)) * SS_ONSTACK },
        );
        put(32, bytes);
        for (register, at) in SAVED.into_iter().enumerate() {
            put(REGISTERS + 8 * at as u64, context.registers[register]);
        }
        put(REGISTERS + 8 * SAVED_RIP as u64, context.rip);
        put(REGISTERS + 8 * SAVED_FLAGS as u64, context.flags);
        put(REGISTERS + 8 * SAVED_SEGMENTS as u64, 0x002b_0000_0000_0033);
        put(REGISTERS + 8 * SAVED_ERROR as u64, held.fault[0]);
        put(REGISTERS + 8 * (SAVED_ERROR as u64 + 1), held.fault[1]);
        put(REGISTERS + 8 * (SAVED_ERROR as u64 + 2), mask);
        put(REGISTERS + 8 * (SAVED_ERROR as u64 + 3), held.fault[2]);
        put(STATE, state);
        put(MASK, mask);
        *(info as *mut [u64; 16]) = held.info;
        *(frame as *mut u64) = action.restorer;
    }
    context.registers[RSP] = frame;
    context.registers[RDI] = held.number;
    context.registers[RSI] = info;
    context.registers[RDX] = user;
    context.registers[RAX] = 0;
    context.flags &= !(0x400 | 0x100 | 0x1_0000);
    context.rip = action.handler;
}

/// The program's handler returns: `rt_sigreturn`.
pub fn come_back(context: &mut Context) {
    let user = context.registers[RSP];
    let mut bytes = [0u8; UCONTEXT_BYTES as usize];
    if sys::read_memory(user, &mut bytes) != bytes.len() {
        crate::give_up("a signal's handler returns without its frame");
    }
    let word = |at: u64| {
        let at = at as usize;
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
    };
    for (register, at) in SAVED.into_iter().enumerate() {
        context.registers[register] = word(REGISTERS + 8 * at as u64);
    }
    context.rip = word(REGISTERS + 8 * SAVED_RIP as u64);
    // Those a program may change: arithmetic, direction, trap, alignment check.
    context.flags = word(REGISTERS + 8 * SAVED_FLAGS as u64) & 0x4_0dd5 | 0x202;
    let state = word(STATE);
    let size = state_bytes() as usize;
    if state != 0 {
        // SAFETY: the context's area is of that size, and was written by the processor.
        let area = unsafe { core::slice::from_raw_parts_mut(context.xsave as *mut u8, size) };
        if sys::read_memory(state, area) == size {
            let put = |area: &mut [u8], at: usize, value: u64| {
                area[at..at + 8].copy_from_slice(&value.to_le_bytes())
            };
            let kept =
                u64::from_le_bytes(area[512..520].try_into().unwrap_or_default()) & features();
            put(area, 512, kept);
            area[520..576].fill(0);
            area[26..28].fill(0);
        }
    }
    set_mask(word(MASK));
    if context.flags & WATCHED_FLAGS != 0 {
        crate::leave::leave(context, WATCHED_WHY);
    }
}

/// The program's stack for handlers: `sigaltstack`.
pub fn alternate(context: &mut Context, a: [u64; 6]) -> i64 {
    let [start, bytes] = context.waiting.alternate;
    let flags = if bytes == 0 { SS_DISABLE } else { u64::from(on_alternate(context)) * SS_ONSTACK };
    if a[0] != 0 {
        let mut new = [0u8; 24];
        if sys::read_memory(a[0], &mut new) != 24 {
            return -sys::EFAULT;
        }
        let word =
            |i: usize| u64::from_le_bytes(new[8 * i..8 * i + 8].try_into().unwrap_or_default());
        if on_alternate(context) {
            return -1;
        }
        context.waiting.alternate =
            if word(1) as u32 as u64 & SS_DISABLE != 0 { [0, 0] } else { [word(0), word(2)] };
    }
    if a[1] != 0 && !put_words(a[1], &[start, flags, bytes]) {
        return -sys::EFAULT;
    }
    0
}

/// What a system call leaves in the registers.
pub fn after_call(context: &mut Context, result: i64) {
    context.registers[RAX] = result as u64;
    context.registers[RCX] = context.rip;
    context.registers[R11] = context.flags;
}
