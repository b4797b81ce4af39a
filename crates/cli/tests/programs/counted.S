# A static program that knows its accesses: 1000 rounds of 3 loads and 2 stores, one atomic read-modify-write, one push.
# Loads 3001, stores 2002, instructions 6007. Ends with status 5.
        .globl _start
        .text
_start: lea buffer(%rip), %rbx
        mov $1000, %ecx
1:      mov (%rbx), %rax            # load 8
        movzbl 8(%rbx), %edx        # load 1
        addq $1, 16(%rbx)           # load 8, store 8
        movups %xmm0, 32(%rbx)      # store 16
        dec %ecx
        jnz 1b
        lock xaddl %eax, 64(%rbx)   # load 4, store 4
        push %rax                   # store 8
        mov $60, %eax
        mov $5, %edi
        syscall
        .section .note.GNU-stack,"",@progbits
        .bss
        .balign 64
buffer: .skip 4096
