// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What a program is linked with instead of the thread sanitizer's runtime when its objects are
 * compiled with
 * -fsanitize=thread: the compiler calls a hook before each load and store, and the hook writes a
 * word into a ring of shared memory (../ring.h) that `terrace record --source hooks` empties. Where
 * no recorder has set TERRACE_HOOKS_AREA, words go to a buffer that nobody reads.
 *
 * The program is never harmed: where the recorder is gone or asks to stop, words are dropped and
 * the program goes on.
 */
#define _GNU_SOURCE
#include "hooks.h"
#include <pthread.h>
#include <stddef.h>
#define RING_WRITER
#define RING_REFILL terrace_hooks_refill
#define RING_PAST_CACHES
#define me terrace_hooks_writer
#include "../ring.h"
#include "symbols.h"

_Static_assert(offsetof(struct writer, next) == 0 && offsetof(struct writer, limit) == 8, "as "
    "hooks.h has it");

int terrace_hooks_watch;
static struct function begin_at, end_at;
static uint64_t objects_from; /* allocations of at least so many bytes are told; 0 for none */
static pthread_key_t at_end;
enum { UNKNOWN, LOOKING, NO_RECORDER, RECORDED };
static _Atomic int state;

static void thread_ends(void *nothing)
{
    (void)nothing;
    release();
}

static void process_ends(void)
{
    release();
}

static void look_for_recorder(void)
{
    const char *path = getenv("TERRACE_HOOKS_AREA"), *objects = getenv("TERRACE_HOOKS_OBJECTS");
    const char *why = path ? open_area(path) : NULL;
    if (why)
        fprintf(stderr, "terrace: not recorded: %s: %s\n", path, why);
    if (!path || why) {
        atomic_store_explicit(&state, NO_RECORDER, memory_order_release);
        return;
    }
    objects_from = objects ? strtoull(objects, NULL, 10) : 0;
    begin_at = find_function(control->begin_at);
    end_at = find_function(control->end_at);
    terrace_hooks_watch = begin_at.start || end_at.start;
    pthread_key_create(&at_end, thread_ends);
    pthread_atfork(NULL, NULL, in_child);
    atexit(process_ends);
    atomic_store_explicit(&state, RECORDED, memory_order_release);
}

uint64_t *terrace_hooks_refill(void)
{
    static __thread bool looking;
    int none = UNKNOWN;
    if (atomic_compare_exchange_strong(&state, &none, LOOKING)) {
        looking = true;
        look_for_recorder();
        looking = false;
    }
    while (!looking && atomic_load_explicit(&state, memory_order_acquire) == LOOKING)
        sched_yield();
    if (looking || atomic_load_explicit(&state, memory_order_relaxed) == NO_RECORDER) {
        me.next = sink;
        me.limit = sink + CHUNK;
    } else {
        if (!me.slot && !me.dropping)
            me.next = NULL; /* has written to nobody until now */
        refill();
    }
    return me.next;
}

/* Each word but messages is an access, and counts as one instruction. */
static void keep_clock(void)
{
    uint64_t written = me.written + ((uint64_t)(me.next - me.ring) - me.written % me.words) % CHUNK;
    if (me.slot && written > me.told) {
        me.clock += written - me.told;
        me.told = written;
    }
}

static void tell_maps(void)
{
    char line[2300];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char bits[8] = "", name[2048] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %2047[^\n]", &start, &end, bits, name) < 3)
            continue;
        uint64_t prot = (bits[0] == 'r') | (bits[1] == 'w') << 1 | (bits[2] == 'x') << 2;
        uint64_t content[] = { start, end - start, prot, 2 };
        put_text(M_MAP, content, 4, name);
    }
    if (maps)
        fclose(maps);
}

static void after_claim(void)
{
    static _Atomic int told_for;
    me.told = me.written;
    pthread_setspecific(at_end, &at_end);
    put_message(M_HOOKS, NULL, 0);
    /* Once a process; a child has the same mappings, but the recorder need not know that. */
    if (atomic_exchange(&told_for, getpid()) != getpid())
        tell_maps();
}

void terrace_hooks_enter(uint64_t place)
{
    if (begin_at.start && place - begin_at.start < begin_at.bytes)
        put_message(M_BEGIN, NULL, 0);
    if (end_at.start && place - end_at.start < end_at.bytes)
        put_message(M_END, NULL, 0);
}

/* ---- Hooks as functions: for gcc, and for what inline.c does not have ---- */

static __attribute__((noinline)) void put_slowly(uint64_t word)
{
    put(word);
}

/* Short, and the rare call last, so that nothing is saved and restored. A program's addresses have
 * 47 bits. */
static inline __attribute__((always_inline)) void put_access(const volatile void *p,
    unsigned log2_bytes, unsigned way,
                                                             const void *place)
{
    uint64_t word = ((uint64_t)p | SIZE_AND_WAY(log2_bytes, way)) + ((uint64_t)place << 53 >> 1),
        *next = me.next;
    if (__builtin_expect(next == me.limit, 0)) {
        put_slowly(word);
        return;
    }
    put_past_caches(next, word);
    me.next = next + 1;
}

/* Pieces that are powers of two, 64 bytes at most, none across a line of 64. */
static inline unsigned piece(uint64_t at, uint64_t left)
{
    unsigned log2_bytes = at & 63 ? (unsigned)__builtin_ctzll(at & 63) : 6;
    while ((1ull << log2_bytes) > left)
        log2_bytes--;
    return log2_bytes;
}

static void put_range(const volatile void *p, uint64_t bytes, unsigned way, const void *place)
{
    for (uint64_t at = (uint64_t)p, end = at + bytes; at < end;) {
        unsigned log2_bytes = piece(at, end - at);
        put_access((void *)at, log2_bytes, way, place);
        at += 1ull << log2_bytes;
    }
}

static void put_copy(const void *to, const void *from, uint64_t bytes, const void *place)
{
    uint64_t load = (uint64_t)from, store = (uint64_t)to, load_end = load + bytes, store_end =
        store + bytes;
    while (load < load_end || store < store_end) {
        if (load < load_end) {
            unsigned log2_bytes = piece(load, load_end - load);
            put_access((void *)load, log2_bytes, 0, place);
            load += 1ull << log2_bytes;
        }
        if (store < store_end) {
            unsigned log2_bytes = piece(store, store_end - store);
            put_access((void *)store, log2_bytes, STORE, place);
            store += 1ull << log2_bytes;
        }
    }
}

#define HERE __builtin_return_address(0)
#define HOOKS(bytes, log2_bytes) \
    void __tsan_read##bytes(void *p) { put_access(p, log2_bytes, 0, HERE); } \
    void __tsan_write##bytes(void *p) { put_access(p, log2_bytes, STORE, HERE); } \
    void __tsan_unaligned_read##bytes(void *p) { put_access(p, log2_bytes, 0, HERE); } \
    void __tsan_unaligned_write##bytes(void *p) { put_access(p, log2_bytes, STORE, HERE); } \
    void __tsan_volatile_read##bytes(void *p) { put_access(p, log2_bytes, 0, HERE); } \
    void __tsan_volatile_write##bytes(void *p) { put_access(p, log2_bytes, STORE, HERE); } \
    void __tsan_unaligned_volatile_read##bytes(void *p) { put_access(p, log2_bytes, 0, HERE); } \
    void __tsan_unaligned_volatile_write##bytes(void *p) { put_access(p, log2_bytes, STORE, HERE); } \
    void __tsan_read_write##bytes(void *p) { put_access(p, log2_bytes, 0, HERE), put_access(p, log2_bytes, STORE, HERE); } \
    void __tsan_unaligned_read_write##bytes(void *p) \
    { \
        put_access(p, log2_bytes, 0, HERE), put_access(p, log2_bytes, STORE, HERE); \
    }
HOOKS(1, 0)
HOOKS(2, 1)
HOOKS(4, 2)
HOOKS(8, 3)
HOOKS(16, 4)

void __tsan_read_range(void *p, size_t bytes) { put_range(p, bytes, 0, HERE); }
void __tsan_write_range(void *p, size_t bytes) { put_range(p, bytes, STORE, HERE); }
void __tsan_vptr_read(void **p) { put_access(p, 3, 0, HERE); }
void __tsan_vptr_update(void **p, void *value) { (void)value, put_access(p, 3, STORE, HERE); }
void __tsan_init(void) { }
void __tsan_func_exit(void) { }

void __tsan_func_entry(void *caller)
{
    (void)caller;
    if (__builtin_expect(terrace_hooks_watch, 0))
        terrace_hooks_enter((uint64_t)HERE);
}

#include "atomics.h"
#include "library.h"
