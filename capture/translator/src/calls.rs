//! The program's system calls. Most go to the kernel as they are.

use crate::cache::CACHE;
use crate::context::{Context, RAX, RDI, RDX, RSI, RSP};
use crate::glue::{self, direct};
use crate::program::{digits, give_program, is_own, program};
use crate::ring::message;
use crate::{area, exec, leave, signal, sys};

const CLONE: u64 = 56;
const FORK: u64 = 57;
const VFORK: u64 = 58;
const RT_SIGRETURN: u64 = 15;
const READLINKAT: u64 = 267;
const OPENAT: u64 = 257;
const CLONE3: u64 = 435;
const RSEQ: u64 = 334;
const SHMAT: u64 = 30;
const SHM_EXEC: u64 = 0o100_000;
const PKEY_MPROTECT: u64 = 329;
const CLONE_VM: u64 = 0x100;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_SETTLS: u64 = 0x8_0000;
const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const ARCH_GET_GS: u64 = 0x1004;

/// Makes the call that the program stands at; its counter is past it already.
pub fn system_call(context: &mut Context) {
    let number = context.registers[RAX];
    let r = &context.registers;
    let a = [r[RDI], r[RSI], r[RDX], r[10], r[8], r[9]];
    context.write_out();
    let result = match number {
        RT_SIGRETURN => return signal::come_back(context),
        sys::EXIT => end_thread(context, a[0]),
        sys::EXIT_GROUP => {
            context.give_up_slot(true);
            sys::exit_group(a[0] as i32)
        }
        CLONE | FORK | VFORK | CLONE3 => return start_other(context, number, a),
        sys::EXECVE => exec::exec(context, a),
        sys::EXECVEAT => exec::exec_at(context, a),
        _ if exec::gives_up_access(number) => {
            exec::save_descriptors();
            direct(context, number, a)
        }
        sys::RT_SIGACTION => signal::set_action(a),
        sys::SIGALTSTACK => signal::alternate(context, a),
        sys::ARCH_PRCTL => match a[0] {
            ARCH_SET_GS => {
                context.rip -= 2;
                leave::leave(context, "it uses the GS register, which the translator needs")
            }
            ARCH_GET_GS => i64::from(sys::write_memory(a[1], &[0; 8])) - 1,
            _ => {
                let result = direct(context, number, a);
                if a[0] == ARCH_SET_FS && result == 0 {
                    context.fs_base = a[1];
                }
                result
            }
        },
        // Its sections are known by addresses that are not executed here.
        RSEQ => -sys::ENOSYS,
        sys::MMAP
        | sys::MUNMAP
        | sys::MREMAP
        | sys::BRK
        | sys::MPROTECT
        | PKEY_MPROTECT
        | SHMAT => memory(context, number, a),
        sys::READLINK if is_own(a[0]) => give_program(a[1], a[2]),
        READLINKAT if is_own(a[1]) => give_program(a[2], a[3]),
        sys::OPEN if is_own(a[0]) => {
            direct(context, number, [program().as_ptr() as u64, a[1], a[2], 0, 0, 0])
        }
        OPENAT if is_own(a[1]) => {
            direct(context, number, [a[0], program().as_ptr() as u64, a[2], a[3], 0, 0])
        }
        _ => {
            let result = direct(context, number, a);
            if waits(number, a) && result != -sys::EAGAIN && result != AGAIN {
                context.catch_up();
            }
            result
        }
    };
    if result == AGAIN {
        // A signal first; then the call anew.
        context.rip -= 2;
        return;
    }
    signal::after_call(context, result);
}

/// The kernel was not asked, since a signal waits; or it wants to be asked again after one.
const AGAIN: i64 = -512;

/// Calls in which a thread waits for others; as the plugin has it.
fn waits(number: u64, a: [u64; 6]) -> bool {
    match number {
        202 => matches!(a[1] & 127, 0 | 6 | 9 | 11),
        // poll, ppoll, select, pselect6, epoll_wait, epoll_pwait, pause, nanosleep,
        // clock_nanosleep, wait4, waitid, rt_sigsuspend, rt_sigtimedwait
        7 | 271 | 23 | 270 | 232 | 281 | 34 | 35 | 230 | 61 | 247 | 130 | 128 => true,
        _ => false,
    }
}

/// Calls that change what is mapped.
fn memory(context: &mut Context, number: u64, a: [u64; 6]) -> i64 {
    let result = direct(context, number, a);
    if (-4095..0).contains(&result) {
        return result;
    }
    match number {
        sys::MMAP => CACHE.forget(result as u64, a[1], a[2]),
        sys::MUNMAP => CACHE.forget(a[0], a[1], 0),
        sys::MPROTECT => CACHE.forget(a[0], a[1], a[2]),
        sys::MREMAP => {
            CACHE.forget(a[0], a[1], 0);
            // What may be done there is not known here: the worst.
            CACHE.forget(result as u64, a[2], 7);
        }
        PKEY_MPROTECT => CACHE.forget(a[0], a[1], a[2]),
        SHMAT if a[2] & SHM_EXEC != 0 => CACHE.forget(0, u64::MAX >> 1, 7),
        _ => {}
    }
    if !matches!(number, sys::MMAP | sys::MUNMAP | sys::MREMAP | sys::BRK) {
        return result;
    }
    let mut name = [0u8; 2048];
    let mut length = 0;
    if number == sys::MMAP && a[3] & sys::MAP_ANONYMOUS == 0 && (a[4] as i32) >= 0 {
        let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        let mut left = a[4] as i32;
        let mut at = 14 + digits(i64::from(left));
        loop {
            at -= 1;
            link[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        // SAFETY: a string that ends with a zero, and space for the answer.
        length = unsafe {
            sys::call3(sys::READLINK, link.as_ptr() as u64, name.as_mut_ptr() as u64, 2047)
        }
        .max(0);
    }
    let numbers = [number, result as u64, a[0], a[1], a[2], a[3], a[4], a[5]];
    context.text_message(message::SYSCALL, &numbers, &name[..length as usize]);
    context.write_out();
    result
}

fn end_thread(context: &mut Context, status: u64) -> ! {
    context.give_up_slot(true);
    signal::set_mask(u64::MAX);
    // SAFETY: no signal comes any more, and nobody else uses the context.
    unsafe { glue::terrace_end(context.me as u64, context.bytes, status) }
}

/// A thread, or another process.
fn start_other(context: &mut Context, number: u64, a: [u64; 6]) {
    let mut given = a;
    let mut new = [0u64; 11];
    let (mut flags, mut stack, mut thread_area) = (0, 0, 0);
    match number {
        CLONE => (flags, stack, thread_area) = (a[0], a[1], a[4]),
        VFORK => flags = CLONE_VM | CLONE_VFORK | 17,
        CLONE3 => {
            let size = (a[1] as usize).min(88);
            let mut bytes = [0u8; 88];
            if size < 64 || sys::read_memory(a[0], &mut bytes[..size]) != size {
                return signal::after_call(context, -sys::EINVAL);
            }
            for (word, bytes) in new.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
            (flags, thread_area) = (new[0], new[7]);
            stack = if new[5] == 0 { 0 } else { new[5] + new[6] };
            given[1] = size as u64;
        }
        _ => {}
    }
    if flags & exec::NEW_NAMESPACES != 0 {
        exec::save_descriptors();
    }
    let before = signal::set_mask(u64::MAX);
    // None can come any more. One that waits is this thread's alone, and so is the mask meanwhile.
    if context.waiting.any() {
        signal::set_mask(before);
        context.rip -= 2;
        return;
    }
    if flags & CLONE_VM == 0 {
        // A process with its own memory: a copy of all this, on this stack.
        let to = if stack == 0 { context.registers[RSP] } else { stack };
        if number == CLONE3 {
            (new[5], new[6]) = (0, 0);
            given[0] = core::ptr::addr_of_mut!(new) as u64;
        } else if number == CLONE {
            given[1] = 0;
        }
        let kernel_number = if number == VFORK { FORK } else { number };
        // SAFETY: the child goes on here with a copy of the stack.
        let result = CACHE
            .fork(|| unsafe { glue::terrace_clone(kernel_number, &given, core::ptr::null_mut()) });
        if result == 0 {
            context.registers[RSP] = to;
            if flags & CLONE_SETTLS != 0 {
                context.fs_base = thread_area;
            }
            context.claim_in_child();
        }
        signal::set_mask(before);
        return signal::after_call(context, result);
    }
    let Some(child) = Context::new() else {
        signal::set_mask(before);
        return signal::after_call(context, -sys::ENOMEM);
    };
    let apart = flags & CLONE_THREAD == 0;
    child.registers = context.registers;
    child.fs_base = if flags & CLONE_SETTLS != 0 { thread_area } else { context.fs_base };
    (child.flags, child.rip) = (context.flags, context.rip);
    signal::after_call(child, 0);
    if stack != 0 {
        child.registers[RSP] = stack;
    }
    // What the kernel leaves as it is: vector registers.
    // SAFETY: both areas are of that size.
    unsafe {
        let bytes = crate::context::XSAVE_BYTES as usize;
        core::ptr::copy_nonoverlapping(context.xsave as *const u8, child.xsave as *mut u8, bytes);
    }
    child.save[0] = before;
    // 1: words are dropped.
    child.save[1] = u64::from(!context.recorded() && area().is_some());
    // The process it comes from; 0: a thread of this one.
    child.save[2] = if apart { context.writer.process } else { 0 };
    if flags & CLONE_VFORK != 0 {
        child.waiting.alternate = context.waiting.alternate;
    }
    let own = child.stack;
    match number {
        CLONE3 => {
            (new[5], new[6]) = (own - 4096, 4096);
            given[0] = core::ptr::addr_of_mut!(new) as u64;
        }
        VFORK => given = [flags, own, 0, 0, 0, 0],
        _ => given[1] = own,
    }
    let kernel_number = if number == VFORK { CLONE } else { number };
    let apart_handlers = (flags & CLONE_SIGHAND == 0).then(signal::all_actions);
    let (me, bytes) = (child.me, child.bytes);
    // SAFETY: the child runs on the stack of its own context.
    let result = unsafe { glue::terrace_clone(kernel_number, &given, me) };
    if flags & CLONE_VFORK != 0 || result < 0 {
        // The child is gone, or has memory of its own.
        // SAFETY: nobody uses it any more.
        unsafe { sys::call3(sys::MUNMAP, me as u64, bytes, 0) };
        apart_handlers.into_iter().for_each(signal::restore_actions);
    }
    signal::set_mask(before);
    signal::after_call(context, result);
}

/// A new thread, or process that shares memory, begins.
pub fn begin_child(context: &mut Context) {
    let [mask, dropped, parent] = context.save;
    context.claim(area().filter(|_| dropped == 0), parent);
    context.write_out();
    signal::set_mask(mask);
}
