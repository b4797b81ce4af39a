/* Stores of all kinds into a critical object, one step an iteration. Restarted, it makes the steps
   that are done again, elsewhere, and compares: memory must hold exactly these. */
#include <immintrin.h>
#include <stdint.h>

#include "terrace_crash.h"

#define STEPS 64
#define BYTES 4096

static unsigned char memory[BYTES] __attribute__((aligned(64)));
static int done;

__attribute__((target("avx2"))) static void store_avx(unsigned char *at, int step)
{
    _mm256_storeu_si256((__m256i *)at, _mm256_set1_epi32(step * 0x01010107));
}

static void step_into(unsigned char *to, int step)
{
    unsigned char *at = to + step * 61 % (BYTES - 128), source[96];
    size_t count = 96;
    uint64_t eight = 0x0102030405060708u * (uint64_t)step;
    int i;
    for (i = 0; i < 96; i++)
        source[i] = (unsigned char)(step * 3 + i);
    switch (step % 12) {
    case 0: *(volatile unsigned char *)at = (unsigned char)step; break;
    case 1: *(volatile uint16_t *)at = (uint16_t)(step * 257); break;
    case 2: *(volatile uint32_t *)at = (uint32_t)step * 16843009u; break;
    case 3: *(volatile uint64_t *)at = eight; break;
    case 4: _mm_storeu_si128((__m128i *)at, _mm_set1_epi16((short)(step * 257))); break;
    case 5:
        if (__builtin_cpu_supports("avx2"))
            store_avx(at, step);
        break;
    case 6: { unsigned char *d = at, *s = source; /* a string instruction that repeats */
        __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(count)::"memory");
        break; }
    case 7: { unsigned char *d = at; count = 11;
        __asm__ volatile("rep stosq" : "+D"(d), "+c"(count) : "a"(eight) : "memory");
        break; }
    case 8: __atomic_exchange_n((uint64_t *)(to + step * 64 % BYTES), eight, __ATOMIC_SEQ_CST);
        break;
    case 9: __atomic_add_fetch((uint32_t *)(to + step * 64 % BYTES), 77, __ATOMIC_SEQ_CST); break;
    case 10: _mm_stream_si64((long long *)(to + step * 64 % BYTES), (long long)eight); break;
    case 11: __asm__ volatile("addw $259, (%0); xorb $5, 9(%0); negl 16(%0)"::"r"(at) : "memory");
        break;
    }
}

int main(void)
{
    static unsigned char again[BYTES] __attribute__((aligned(64)));
    int i;
    critical_data(memory, "char", BYTES);
    consistent_data(&done, "int", 1);
    crash_restore();
    if (getenv("TERRACE_CRASH_IMAGE")) {
        for (i = 1; i <= done; i++)
            step_into(again, i);
        for (i = 0; i < BYTES; i++)
            if (memory[i] != again[i]) {
                printf("byte %d is %d, not %d, after step %d\n", i, memory[i], again[i], done);
                return 1;
            }
        return 0;
    }
    start_crash();
    for (i = 1; i <= STEPS; i++) {
        step_into(memory, i);
        *(volatile int *)&done = i;
    }
    end_crash();
    return 0;
}
