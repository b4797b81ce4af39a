# SPDX-License-Identifier: Apache-2.0 OR MIT
# The hooks that matter for speed, for compilers whose output terrace-cc can only change as text: it puts this before the
# assembly and makes `call __tsan_read8` and the like this macro. The compiler expects a call there, so the registers that a
# call may change are free, the stack is aligned, and nothing lies below its pointer.
        .macro terrace_access kind
        movabsq $((((\@) & 0x7ff) << 52) | (\kind << 48)), %rdx
        movq    terrace_hooks_writer@gottpoff(%rip), %rcx
        orq     %rdi, %rdx
        movq    %fs:(%rcx), %rax
        cmpq    %fs:8(%rcx), %rax
        je      .Lterrace_full\@
.Lterrace_put\@:
        movnti  %rdx, (%rax)
        addq    $8, %rax
        movq    %rax, %fs:(%rcx)
        .subsection 1
.Lterrace_full\@:
        pushq   %rdx
        pushq   %rcx
        call    terrace_hooks_refill@PLT
        popq    %rcx
        popq    %rdx
        jmp     .Lterrace_put\@
        .previous
        .endm
