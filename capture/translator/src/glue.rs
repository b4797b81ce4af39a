//! Between the program's registers and the runtime's: the only assembly, besides what is made at
//! run time.

use crate::context::{at, Context};

/// Why code of the cache left it; `Context::argument` says more.
pub mod reason {
    /// A jump that is not linked yet; the argument points to a [`crate::cache::Link`].
    pub const LINK: u64 = 1;
    /// An indirect jump; the argument is where to.
    pub const INDIRECT: u64 = 2;
    /// No space in the ring, or a signal waits; the argument points to a link to the block itself.
    pub const REFILL: u64 = 3;
    /// A system call; the argument points to a link to what follows.
    pub const CALL: u64 = 4;
    /// An instruction whose addresses the runtime computes; the argument points to a link to it.
    pub const SLOW: u64 = 5;
    /// Code that cannot be translated; the argument points to a link to it.
    pub const STOP: u64 = 6;
}

#[allow(improper_ctypes)] // pointers to contexts are handed through as they are
extern "C" {
    pub fn terrace_exit_link();
    pub fn terrace_exit_indirect();
    pub fn terrace_exit_refill();
    pub fn terrace_exit_call();
    pub fn terrace_exit_slow();
    pub fn terrace_exit_stop();
    /// Loads all registers from the context in GS and jumps to `Context::jump`.
    pub fn terrace_resume() -> !;
    /// The same, with the two registers that the cache keeps for itself.
    pub fn terrace_detach() -> !;
    /// Makes a system call that a thread or process comes out of twice. With a context, the child
    /// goes on with it.
    pub fn terrace_clone(number: u64, arguments: *const [u64; 6], child: *mut Context) -> i64;
    /// Makes a system call unless a signal waits already: -512 then. See `signal::hold_back`.
    pub fn terrace_call(number: u64, arguments: *const [u64; 6], waits: *const u32) -> i64;
    /// Where that begins, its instruction, and where it is left without.
    pub fn terrace_call_begin();
    pub fn terrace_call_now();
    pub fn terrace_call_not();
    /// Gives back the context's memory and ends the thread.
    pub fn terrace_end(context: u64, bytes: u64, status: u64) -> !;
    /// How the kernel is to return from a signal's handler.
    pub fn terrace_return();
    /// Where a handler sends a thread that is to go on in the runtime, its state being in the
    /// context.
    pub fn terrace_reenter();
}

/// Makes a system call of the program's; -512 where a signal waits already.
pub fn direct(context: &Context, number: u64, a: [u64; 6]) -> i64 {
    // SAFETY: the program's own call.
    unsafe { terrace_call(number, &a, context.waiting.count.as_ptr()) }
}

core::arch::global_asm!(
    r#"
    .globl _start
_start:
    xor ebp, ebp
    mov rdi, rsp
    and rsp, -16
    call {start}
    ud2

    .macro leave_for name, why
    .globl \name
\name:
    mov qword ptr gs:[{reason}], \why
    jmp 2f
    .endm
    leave_for terrace_exit_link, 1
    leave_for terrace_exit_indirect, 2
    leave_for terrace_exit_refill, 3
    leave_for terrace_exit_call, 4
    leave_for terrace_exit_slow, 5
    leave_for terrace_exit_stop, 6
2:
    mov gs:[{argument}], r14
    mov gs:[{next}], r15
    mov gs:[{registers}], rax
    mov gs:[{registers} + 8], rcx
    mov gs:[{registers} + 16], rdx
    mov gs:[{registers} + 24], rbx
    mov gs:[{registers} + 32], rsp
    mov gs:[{registers} + 40], rbp
    mov gs:[{registers} + 48], rsi
    mov gs:[{registers} + 56], rdi
    mov gs:[{registers} + 64], r8
    mov gs:[{registers} + 72], r9
    mov gs:[{registers} + 80], r10
    mov gs:[{registers} + 88], r11
    mov gs:[{registers} + 96], r12
    mov gs:[{registers} + 104], r13
    mov rsp, gs:[{stack}]
    pushfq
    pop gs:[{flags}]
3:
    push 0x202
    popfq
    mov rdi, gs:[0]
    mov rsi, gs:[{xsave}]
    mov eax, -1
    mov edx, -1
    xsave64 [rsi]
    xor ebp, ebp
    call {runtime}
    mov gs:[{jump}], rax
    .globl terrace_resume
terrace_resume:
    mov rsp, gs:[{stack}]
    mov rsi, gs:[{xsave}]
    mov eax, -1
    mov edx, -1
    xrstor64 [rsi]
    mov rcx, gs:[{registers} + 8]
    mov rbx, gs:[{registers} + 24]
    mov rbp, gs:[{registers} + 40]
    mov rsi, gs:[{registers} + 48]
    mov rdi, gs:[{registers} + 56]
    mov r8, gs:[{registers} + 64]
    mov r9, gs:[{registers} + 72]
    mov r10, gs:[{registers} + 80]
    mov r11, gs:[{registers} + 88]
    mov r12, gs:[{registers} + 96]
    mov r13, gs:[{registers} + 104]
    mov rax, gs:[{registers}]
    mov rdx, gs:[{registers} + 16]
    mov r15, gs:[{next}]
    push gs:[{flags}]
    popfq
    mov rsp, gs:[{registers} + 32]
    jmp gs:[{jump}]

    .globl terrace_detach
terrace_detach:
    mov rsp, gs:[{stack}]
    mov rsi, gs:[{xsave}]
    mov eax, -1
    mov edx, -1
    xrstor64 [rsi]
    mov rcx, gs:[{registers} + 8]
    mov rbx, gs:[{registers} + 24]
    mov rbp, gs:[{registers} + 40]
    mov rsi, gs:[{registers} + 48]
    mov rdi, gs:[{registers} + 56]
    mov r8, gs:[{registers} + 64]
    mov r9, gs:[{registers} + 72]
    mov r10, gs:[{registers} + 80]
    mov r11, gs:[{registers} + 88]
    mov r12, gs:[{registers} + 96]
    mov r13, gs:[{registers} + 104]
    mov rax, gs:[{registers}]
    mov rdx, gs:[{registers} + 16]
    mov r14, gs:[{registers} + 112]
    mov r15, gs:[{registers} + 120]
    push gs:[{flags}]
    popfq
    mov rsp, gs:[{registers} + 32]
    jmp gs:[{rip}]

    .globl terrace_reenter
terrace_reenter:
    mov rsp, gs:[{stack}]
    mov qword ptr gs:[{reason}], 0
    jmp 3b

    .globl terrace_clone
terrace_clone:
    push rbx
    push r12
    mov rax, rdi
    mov rbx, rsi
    mov r12, rdx
    mov rdi, [rbx]
    mov rsi, [rbx + 8]
    mov rdx, [rbx + 16]
    mov r10, [rbx + 24]
    mov r8, [rbx + 32]
    mov r9, [rbx + 40]
    syscall
    test rax, rax
    jnz 4f
    test r12, r12
    jz 4f
    mov rdi, r12
    xor ebp, ebp
    call {child}
    jmp terrace_resume
4:
    pop r12
    pop rbx
    ret

    .globl terrace_call
terrace_call:
    push rbx
    push r12
    mov rax, rdi
    mov rbx, rsi
    mov r12, rdx
    mov rdi, [rbx]
    mov rsi, [rbx + 8]
    mov rdx, [rbx + 16]
    mov r10, [rbx + 24]
    mov r8, [rbx + 32]
    mov r9, [rbx + 40]
    .globl terrace_call_begin
terrace_call_begin:
    cmp dword ptr [r12], 0
    jne terrace_call_not
    .globl terrace_call_now
terrace_call_now:
    syscall
    pop r12
    pop rbx
    ret
    .globl terrace_call_not
terrace_call_not:
    mov rax, -512
    pop r12
    pop rbx
    ret

    .globl terrace_end
terrace_end:
    mov rbx, rdx
    mov eax, 11
    syscall
    mov eax, 60
    mov rdi, rbx
    syscall
    ud2

    .globl terrace_return
terrace_return:
    mov eax, 15
    syscall

    .globl memcpy
memcpy:
    mov rax, rdi
    mov rcx, rdx
    rep movsb
    ret
    .globl memmove
memmove:
    mov rax, rdi
    mov rcx, rdx
    mov r8, rdi
    sub r8, rsi
    cmp r8, rdx
    jb 5f
    rep movsb
    ret
5:
    std
    lea rdi, [rdi + rdx - 1]
    lea rsi, [rsi + rdx - 1]
    rep movsb
    cld
    ret
    .globl memset
memset:
    mov r8, rdi
    mov eax, esi
    mov rcx, rdx
    rep stosb
    mov rax, r8
    ret
    .globl memcmp
    .globl bcmp
memcmp:
bcmp:
    xor eax, eax
    xor ecx, ecx
6:
    cmp rcx, rdx
    je 7f
    movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r8d
    je 6b
7:
    ret
    .globl strlen
strlen:
    xor eax, eax
8:
    cmp byte ptr [rdi + rax], 0
    je 9f
    inc rax
    jmp 8b
9:
    ret
    "#,
    start = sym crate::terrace_start,
    runtime = sym crate::terrace_runtime,
    child = sym crate::terrace_child,
    reason = const at!(reason),
    argument = const at!(argument),
    next = const at!(next),
    registers = const at!(registers),
    stack = const at!(stack),
    flags = const at!(flags),
    xsave = const at!(xsave),
    jump = const at!(jump),
    rip = const at!(rip),
);
