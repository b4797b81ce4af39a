// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The hooks that matter for speed, as code to be inlined into a program compiled by clang
 * (terrace-cc does it): what the compiler wrote as a call becomes a compare and two stores.
 * `sanitize_thread` must be on both sides or nothing is inlined, hence the attribute against
 * instrumenting the hooks themselves.
 */
#include "hooks.h"

extern __thread struct hooks_writer terrace_hooks_writer __attribute__((tls_model("initial-exec")));
#define INLINE __attribute__((disable_sanitizer_instrumentation, always_inline))

static INLINE void put(uint64_t word)
{
    uint64_t *next = terrace_hooks_writer.next;
    if (__builtin_expect(next == terrace_hooks_writer.limit, 0))
        next = terrace_hooks_refill();
    put_past_caches(next, word);
    terrace_hooks_writer.next = next + 1;
}

/* `%=` is another number at each place the hook is inlined to; volatile keeps two places from
 * becoming one. */
#define PLACE(kind) \
    ({ \
        uint64_t place; \
        __asm__ volatile("movabsq $(((%=) & 0x7ff) << 52 | " #kind " << 48), %0" : "=r"(place)); \
        place; \
    })
#define HOOK(name, kind) \
    INLINE void __tsan_##name(void *p) \
    { \
        put((uint64_t)p | PLACE(kind)); \
    }
#define HOOKS(bytes, kind, store_kind) \
    HOOK(read##bytes, kind) \
    HOOK(write##bytes, store_kind) \
    HOOK(unaligned_read##bytes, kind) \
    HOOK(unaligned_write##bytes, store_kind)
HOOKS(1, 0, 8)
HOOKS(2, 1, 9)
HOOKS(4, 2, 10)
HOOKS(8, 3, 11)
HOOKS(16, 4, 12)

INLINE void __tsan_func_entry(void *caller)
{
    uint64_t here;
    (void)caller;
    if (__builtin_expect(terrace_hooks_watch, 0)) {
        __asm__ volatile("leaq (%%rip), %0" : "=r"(here));
        terrace_hooks_enter(here);
    }
}

INLINE void __tsan_func_exit(void)
{
}
