/*
 * Instructions of many kinds, without a C library, so that two recorders see the same: loads and
 * stores of all widths, repetitions, atomics, bit strings, the old floating-point stack, jumps
 * through tables, and registers that translators like to keep for themselves. Ends with a status
 * computed from all of it.
 */
typedef unsigned long word;
typedef unsigned char byte;

static double a[1024], b[16];
static int at[1024];
static word state = 1, table[64];
static byte to[65536], from[65536];
static long double wide = 1.5L;
static struct { word a; int b; short c; char d; } all[512];

static word next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static word fibonacci(word n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
static word plus(word x) { return x + 1; }
static word times(word x) { return x * 3; }
static word (*functions[4])(word) = { plus, times, plus, fibonacci };

static word chosen(word x)
{
    switch (x & 7) {
    case 0: return all[x & 511].a;
    case 1: return 3;
    case 2: return x * 7;
    case 3: return table[x & 63];
    case 4: return functions[x >> 3 & 1](x);
    case 5: return (word)all[x & 511].b;
    case 6: return x >> 3;
    default: return (word)all[x & 511].c;
    }
}

static word repetitions(word h)
{
    void *d = to, *s = from;
    word c = 5000;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(c) : : "memory");
    d = to, c = 600;
    __asm__ volatile("rep stosq" : "+D"(d), "+c"(c) : "a"(h) : "memory");
    c = 0;
    __asm__ volatile("rep stosq" : "+D"(d), "+c"(c) : "a"(h) : "memory");
    to[3000] = 0, d = to, c = 60000;
    __asm__ volatile("repne scasb" : "+D"(d), "+c"(c) : "a"(0) : "memory", "cc");
    h += c;
    d = to, s = from, c = 1000;
    __asm__ volatile("repe cmpsb" : "+D"(d), "+S"(s), "+c"(c) : : "memory", "cc");
    h += c;
    d = to + 64, s = from + 64;
    __asm__ volatile("movsq; movsb; std; movsb; movsw; cld; stosl; lodsl" : "+D"(d), "+S"(s) : :
        "memory", "rax");
    return h;
}

static word atomics(word h)
{
    for (int i = 0; i < 100; i++) {
        word expected = table[2];
        __asm__ volatile("lock xaddq %0, %1" : "+r"(h), "+m"(table[i & 63]));
        __asm__ volatile("xchgq %0, %1" : "+r"(h), "+m"(table[(i + 1) & 63]));
        __asm__ volatile("lock cmpxchgq %2, %1" : "+a"(expected), "+m"(table[2]) : "r"(h));
        __asm__ volatile("cmpxchgq %2, %1" : "+a"(expected), "+m"(table[3]) : "r"(h));
    }
    for (word i = 0; i < 64; i++)
        __asm__ volatile("btsq %1, %0" : : "m"(table[0]), "r"(i * 37 % 640) : "memory", "cc");
    __asm__ volatile("btq %1, %0" : : "m"(table[4]), "r"(-70l) : "cc");
    __asm__ volatile("btl %1, %0" : : "m"(table[4]), "r"(-5) : "cc");
    return h;
}

static word stacks(word h)
{
    for (int i = 0; i < 50; i++) {
        wide = wide * 1.25L + i;
        h += wide > 1e6L ? 1 : 2;
        if (wide > 1e9L)
            wide = 1;
    }
    __asm__ volatile("lea -256(%%rsp), %%rsp; pushq %0; popq %0; pushq (%1); popq 8(%1); push "
        "%%r15; push %%r14;"
                     "pop %%r14; pop %%r15; pushfq; popfq; enter $32, $0; leave; push %0; pop "
                         "8(%%rsp);"
                     "lea 256(%%rsp), %%rsp" : "+r"(h) : "r"(table) : "memory", "cc");
    __asm__ volatile("fldt %0; fstpt %0; fldl %1; fistpl %2; movups %3, %%xmm1; movaps %%xmm1, %4; "
        "movnti %%rax, %1"
                     : "+m"(wide), "+m"(b[1]), "+m"(at[3]), "+m"(from[17]), "+m"(b[8]) : : "xmm1",
                         "memory");
    return h;
}

#define CALLED "rdi", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc"

static word registers(word h)
{
    __asm__ volatile("mov %0, %%r15; mov $3, %%r14; mov (%%r15, %%r14, 8), %%rax; add %%rax, "
        "8(%%r15, %%r14, 4);"
                     "mov %%r14d, (%%r15); movb %%r14b, 3(%%r15); cmove 4(%%r15), %%r14d; xor "
                         "%%r15d, %%r15d;"
                     "imul $3, 16(%0, %%r15, 8), %%r14; bsf (%0), %%r15; adc %%r14, %%r15; rcl $3, "
                         "%%r15;"
                     "mov %%r15, 24(%0)" : : "r"(table) : "r14", "r15", "rax", "memory", "cc");
    __asm__ volatile("mov %0, %%rbx; mov $5, %%al; xlat; movb table(%%rip), %%ah; addb %%ah, 1 + "
        "table(%%rip)"
                     : : "r"(table) : "rbx", "rax", "memory", "cc");
    __asm__ volatile("mov $10, %%ecx; 1: incq %0; loop 1b; jrcxz 2f; nop; 2:" : "+m"(table[7]) : :
        "rcx", "cc");
    __asm__ volatile("call *%0" : : "m"(functions[1]) : CALLED);
    __asm__ volatile("lea 1f(%%rip), %%r14; mov %%r14, %0; jmp *%0; ud2; 1: mov %1, %%r15; call "
        "*8(%%r15);"
                     "xor %%r14d, %%r14d; call *(%%r15, %%r14, 8)" : "+m"(table[9]) :
                         "r"(functions) : "r14", "r15", CALLED);
    return h + table[3] + table[7];
}

static word work(void)
{
    word h = 0;
    for (int i = 0; i < 1024; i++)
        a[i] = i * 0.5, at[i] = (int)(next() % 1024);
    for (int round = 0; round < 3; round++) {
        double s = 0;
        for (int i = 0; i < 1024; i++)
            s += a[at[i]] * a[i];
        b[round] = s;
        h += (word)s;
    }
    for (word i = 0; i < 2000; i++)
        h += functions[next() & 1](h) + chosen(h + i);
    for (int i = 0; i < 512; i++)
        all[i].a += h, all[i].b -= i, all[i].c ^= (short)h, all[i].d += 3;
    h += fibonacci(12);
    return registers(stacks(atomics(repetitions(h))));
}

void _start(void)
{
    __asm__ volatile("and $-64, %rsp; .byte 0x0f, 0x1f, 0x80, 1, 0xa0, 0x44, 0x7e");
    word h = work();
    __asm__ volatile(".byte 0x0f, 0x1f, 0x80, 2, 0xa0, 0x44, 0x7e");
    __asm__ volatile("syscall" : : "a"(60), "D"(h & 127));
}
