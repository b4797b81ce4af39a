// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Atomic operations, which the compiler hands over whole: done here, sequentially consistent
 * whatever was asked, which is never weaker. A read-modify-write counts as a load and a store, and
 * so does a comparison that fails: the processor makes the same accesses.
 */
#pragma once

#define RMW(type, bits, log2_bytes, name, builtin) \
    type __tsan_atomic##bits##_##name(volatile type *p, type v, int order) \
    { \
        (void)order; \
        put_access(p, log2_bytes, 0, HERE), put_access(p, log2_bytes, STORE, HERE); \
        return builtin(p, v, __ATOMIC_SEQ_CST); \
    }
#define CAS(type, bits, log2_bytes, strength) \
    int __tsan_atomic##bits##_compare_exchange_##strength(volatile type *p, type *expected, type v, int good, int bad) \
    { \
        (void)good, (void)bad; \
        put_access(p, log2_bytes, 0, HERE), put_access(p, log2_bytes, STORE, HERE); \
        return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
#define ATOMICS(type, bits, log2_bytes) \
    type __tsan_atomic##bits##_load(const volatile type *p, int order) \
    { \
        (void)order; \
        put_access(p, log2_bytes, 0, HERE); \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST); \
    } \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int order) \
    { \
        (void)order; \
        put_access(p, log2_bytes, STORE, HERE); \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST); \
    } \
    RMW(type, bits, log2_bytes, exchange, __atomic_exchange_n) \
    RMW(type, bits, log2_bytes, fetch_add, __atomic_fetch_add) \
    RMW(type, bits, log2_bytes, fetch_sub, __atomic_fetch_sub) \
    RMW(type, bits, log2_bytes, fetch_and, __atomic_fetch_and) \
    RMW(type, bits, log2_bytes, fetch_or, __atomic_fetch_or) \
    RMW(type, bits, log2_bytes, fetch_xor, __atomic_fetch_xor) \
    RMW(type, bits, log2_bytes, fetch_nand, __atomic_fetch_nand) \
    CAS(type, bits, log2_bytes, strong) \
    CAS(type, bits, log2_bytes, weak) \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *p, type expected, type v, int good, int bad) \
    { \
        (void)good, (void)bad; \
        put_access(p, log2_bytes, 0, HERE), put_access(p, log2_bytes, STORE, HERE); \
        __atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        return expected; \
    }
ATOMICS(uint8_t, 8, 0)
ATOMICS(uint16_t, 16, 1)
ATOMICS(uint32_t, 32, 2)
ATOMICS(uint64_t, 64, 3)

/* Sixteen bytes: everything by comparing and exchanging, for the compiler would call another
 * library for the others. */
typedef unsigned __int128 wide;
static wide change_wide(volatile wide *p, wide v, int what)
{
    for (wide old = *p;;) {
        wide next = what == 0 ? v : what == 1 ? old + v : what == 2 ? old - v : what == 3 ? old &
            v :
                    what == 4 ? old | v : what == 5 ? old ^ v : what == 6 ? ~(old & v) : old;
        wide seen = __sync_val_compare_and_swap(p, old, next);
        if (seen == old)
            return old;
        old = seen;
    }
}
#define WIDE(name, what) \
    wide __tsan_atomic128_##name(volatile wide *p, wide v, int order) \
    { \
        (void)order; \
        put_access(p, 4, 0, HERE), put_access(p, 4, STORE, HERE); \
        return change_wide(p, v, what); \
    }
WIDE(exchange, 0)
WIDE(fetch_add, 1)
WIDE(fetch_sub, 2)
WIDE(fetch_and, 3)
WIDE(fetch_or, 4)
WIDE(fetch_xor, 5)
WIDE(fetch_nand, 6)

wide __tsan_atomic128_load(const volatile wide *p, int order)
{
    (void)order;
    put_access(p, 4, 0, HERE);
    return __sync_val_compare_and_swap((volatile wide *)p, 0, 0);
}

void __tsan_atomic128_store(volatile wide *p, wide v, int order)
{
    (void)order;
    put_access(p, 4, STORE, HERE);
    change_wide(p, v, 0);
}

wide __tsan_atomic128_compare_exchange_val(volatile wide *p, wide expected, wide v, int good,
    int bad)
{
    (void)good, (void)bad;
    put_access(p, 4, 0, HERE), put_access(p, 4, STORE, HERE);
    return __sync_val_compare_and_swap(p, expected, v);
}

int __tsan_atomic128_compare_exchange_strong(volatile wide *p, wide *expected, wide v, int good,
    int bad)
{
    wide seen = __tsan_atomic128_compare_exchange_val(p, *expected, v, good, bad);
    int done = seen == *expected;
    *expected = seen;
    return done;
}

int __tsan_atomic128_compare_exchange_weak(volatile wide *p, wide *expected, wide v, int good,
    int bad)
{
    return __tsan_atomic128_compare_exchange_strong(p, expected, v, good, bad);
}

void __tsan_atomic_thread_fence(int order) { (void)order, __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int order) { (void)order, __atomic_signal_fence(__ATOMIC_SEQ_CST); }
