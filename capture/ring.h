// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Shared memory between the recorder and the programs it watches, and a thread's side of its ring
 * of words. Included by the plugin (plugin.c) and by the runtime of the compiler's hooks
 * (hooks/runtime.c); crates/sys/src/capture.rs has the same offsets. Whoever includes it defines
 * RING_WRITER (`static`, or nothing where others must see the writer) and may define RING_REFILL,
 * which is called where a word finds no room.
 */
#pragma once
#ifndef RING_REFILL
#define RING_REFILL refill
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define AREA_MAGIC 0x0343415041525254ull /* "TRRAPAC" and version 3 */
struct control {
    uint64_t magic;
    uint32_t slots, ring_words;
    int32_t recorder;
    _Atomic uint32_t stopped;   /* the recorder takes no more words */
    _Atomic uint32_t blocks;    /* numbers of blocks given so far, through all processes */
    _Atomic uint32_t unplaced;  /* threads that found no slot */
    uint32_t options;
    _Atomic uint32_t escaped;   /* threads that a translator could not go on with */
    _Atomic uint32_t claimed;   /* slots from this one on have never been used */
    uint32_t large_slots;       /* so many slots have rings of `ring_words` */
    uint32_t small_ring_words;  /* of the other slots */
    _Atomic uint32_t beat;      /* grows while the recorder lives */
    uint64_t pid_namespace;     /* inode of the recorder's, 0 where it cannot tell */
    char begin_at[256], end_at[256]; /* functions, or empty */
    char emulator[1024], plugin[1024], area[256];
    _Atomic uint64_t claims;    /* times that a thread has taken a slot */
};
enum { KEEP_VALUES = 1 };
struct slot {
    _Atomic uint32_t state; /* 0 free, 1 in use, 2 all written */
    int32_t pid, tid;
    uint32_t zero;
    _Atomic uint64_t clock; /* the thread's time when it last wrote out */
    /* Words up to here, from `head` on, are zero or written: so the recorder finds what a killed
       thread did not hand over. 0 where the writer clears nothing. */
    _Atomic uint64_t cleared;
    uint64_t pid_namespace; /* inode of the process's; 0: the recorder's; 1: not known */
    uint64_t claim; /* how many times slots were taken before this one was */
    char pad1[16];
    _Atomic uint64_t head; /* words written */
    char pad2[56];
    _Atomic uint64_t tail; /* words taken */
    char pad3[120];
};
_Static_assert(sizeof(struct slot) == 256 && sizeof(struct control) <= 4096, "layout is shared "
    "with Rust");
#define CONTROL_BYTES 4096
/* Written out in chunks of so many words: what others lag behind, and what a killed thread loses at
   most whose writer does not clear chunks. */
#define CHUNK 1024u
#define MESSAGE_MOST 560

#define IS_WORD (1ull << 63)
#define MESSAGE (IS_WORD | 1ull << 60)
enum {
    M_THREAD = 1, M_BLOCK, M_SYSCALL, M_JUMP, M_MAP, M_EXEC, M_MARK, M_BEGIN, M_END, M_EXIT,
        M_HOOKS, M_OBJECT,
    M_UNRECORDED,
};

static struct control *control;
static struct slot *slots;
static uint64_t *rings;
/* Which file the memory is. */
static dev_t area_device;
static ino_t area_inode;

/* What a thread keeps; `next` reaches `limit` at once in a thread that has not written yet. */
struct writer {
    uint64_t *next, *limit;
    uint64_t clock;
    struct slot *slot;
    uint64_t *ring;
    uint64_t words;       /* of the ring */
    uint64_t written;     /* words up to the begin of the current chunk */
    bool dropping;
    uint64_t told;        /* of `written`, what `clock` knows */
};
RING_WRITER __thread struct writer me __attribute__((tls_model("initial-exec")));

static void put_message(unsigned which, const uint64_t *content, unsigned words);
/* Called when a thread has taken a slot and told who it is. */
static void after_claim(void);
/* The thread's time goes on with what it has written; for those who do not keep `clock`
 * otherwise. */
static void keep_clock(void);

/* Longer and longer, up to 6.4 ms: a recorder that has a core empties half a ring in one, but not
 * where it shares one. */
static void doze(unsigned turn)
{
    struct timespec t = { 0, 100000l << (turn < 6 ? turn : 6) };
    nanosleep(&t, NULL);
}

/* Inode of this process's PID namespace; 0: the recorder's; 1: not known. */
static uint64_t foreign_namespace(void)
{
    struct stat status;
    if (!control->pid_namespace || stat("/proc/self/ns/pid", &status) != 0)
        return 1;
    return status.st_ino == control->pid_namespace ? 0 : status.st_ino;
}

/*
 * In another PID namespace the recorder's number means nothing. There, a recorder that shows no
 * sign of life for five seconds is taken to be gone: it gives one several thousand times a second.
 */
static bool recorder_gone(void)
{
    if (atomic_load_explicit(&control->stopped, memory_order_relaxed))
        return true;
    if (!foreign_namespace())
        return kill(control->recorder, 0) != 0 && errno == ESRCH;
    uint32_t beat = atomic_load_explicit(&control->beat, memory_order_relaxed);
    for (unsigned turn = 0; turn < 5000; turn++) {
        struct timespec millisecond = { 0, 1000000 };
        if (atomic_load_explicit(&control->beat, memory_order_relaxed) != beat)
            return false;
        nanosleep(&millisecond, NULL);
    }
    atomic_store(&control->stopped, 1);
    return true;
}

/* What tells this process from all others of the recording: its number, with that of a namespace of
   its own. */
static uint64_t process_key;

static uint64_t key_of(uint64_t namespace)
{
    return (uint64_t)(uint32_t)getpid() | (namespace & 0xffffffff) << 32;
}

/* The time of the thread that is furthest: where one that waited for others, or is new, goes on. */
static uint64_t furthest(void)
{
    uint64_t most = 0;
    unsigned claimed = atomic_load_explicit(&control->claimed, memory_order_relaxed);
    for (unsigned i = 0; i < claimed && i < control->slots; i++)
        if (atomic_load_explicit(&slots[i].state, memory_order_relaxed) == 1) {
            uint64_t c = atomic_load_explicit(&slots[i].clock, memory_order_relaxed);
            most = c > most ? c : most;
        }
    return most;
}

/* What was written to the chunk is there for whoever sees the head. */
static inline void settle(void)
{
#if defined RING_PAST_CACHES && defined __x86_64__
    __asm__ volatile("sfence" : : : "memory");
#endif
}

/* Words up to `next` can be taken. */
static void write_out(void)
{
    if (me.slot && !me.dropping) {
        uint64_t in_chunk = (uint64_t)(me.next - me.ring) - me.written % me.words;
        keep_clock();
        atomic_store_explicit(&me.slot->clock, me.clock, memory_order_relaxed);
        settle();
        atomic_store_explicit(&me.slot->head, me.written + in_chunk, memory_order_release);
    }
}

/* One for all threads: nobody reads it, and thread-local storage of this size would not fit where
 * `me` must lie. */
static uint64_t sink[CHUNK];

static void drop_all(void)
{
    me.dropping = true;
    me.slot = NULL;
    me.next = sink;
    me.limit = sink + CHUNK;
}

/* Makes what is left of the chunk zero and says so; see `slot.cleared`. */
static inline void clear_chunk(void)
{
#ifndef RING_PAST_CACHES
    memset(me.next, 0, (size_t)(me.limit - me.next) * sizeof *me.next);
    uint64_t end = me.written / CHUNK * CHUNK + CHUNK;
    atomic_store_explicit(&me.slot->cleared, end, memory_order_release);
#endif
}

/* Where a slot's ring lies. */
static uint64_t *ring_of(unsigned slot)
{
    uint64_t large = slot < control->large_slots ? slot : control->large_slots;
    return rings + large * control->ring_words + (slot - large) * control->small_ring_words;
}

/* `parent`: the key of the process this one was forked from just now, else 0. */
static void claim(uint64_t parent)
{
    if (recorder_gone()) {
        drop_all();
        return;
    }
    uint64_t start = furthest();
    for (unsigned i = 0; i < control->slots; i++) {
        uint32_t free_state = 0;
        if (!atomic_compare_exchange_strong(&slots[i].state, &free_state, 3))
            continue;
        uint32_t claimed = atomic_load(&control->claimed);
        while (claimed <= i && !atomic_compare_exchange_weak(&control->claimed, &claimed, i + 1))
            ;
        me.slot = &slots[i];
        me.ring = ring_of(i);
        me.words = i < control->large_slots ? control->ring_words : control->small_ring_words;
        me.dropping = false;
        me.slot->pid_namespace = foreign_namespace();
        process_key = key_of(me.slot->pid_namespace);
        me.slot->pid = getpid();
        me.slot->tid = (int32_t)syscall(SYS_gettid);
        me.slot->claim = atomic_fetch_add(&control->claims, 1);
        me.written = atomic_load(&me.slot->head);
        me.clock = start;
        me.next = me.ring + me.written % me.words;
        me.limit = me.ring + (me.written / CHUNK * CHUNK) % me.words + CHUNK;
        clear_chunk();
        atomic_store(&me.slot->clock, me.clock);
        atomic_store(&me.slot->state, 1);
        uint64_t content[] = { process_key, (uint64_t)me.slot->tid, start, parent };
        put_message(M_THREAD, content, 4);
        after_claim();
        return;
    }
    atomic_fetch_add(&control->unplaced, 1);
    drop_all();
}

/* The chunk is full (or there is none): write it out and wait until the next may be written
 * over. */
static __attribute__((noinline)) void refill(void)
{
    if (!me.next) {
        claim(0);
        return;
    }
    if (me.dropping || atomic_load_explicit(&control->stopped, memory_order_relaxed)) {
        drop_all();
        return;
    }
    uint64_t words = me.words;
    me.written = me.written / CHUNK * CHUNK + CHUNK;
    keep_clock();
    atomic_store_explicit(&me.slot->clock, me.clock, memory_order_relaxed);
    settle();
    atomic_store_explicit(&me.slot->head, me.written, memory_order_release);
    /* Once it has to wait, until half the ring is free: to wait for each chunk costs more than to
     * write it. */
    uint64_t most = words - CHUNK;
    for (unsigned turn = 0; me.written - atomic_load_explicit(&me.slot->tail,
        memory_order_acquire) > most; turn++) {
        most = words / 2;
        if ((turn & 63) == 63 && recorder_gone()) {
            drop_all();
            return;
        }
        if (turn < 2)
            sched_yield();
        else
            doze(turn);
    }
    me.next = me.ring + me.written % words;
    me.limit = me.next + CHUNK;
    clear_chunk();
}

static inline void put(uint64_t word)
{
    if (__builtin_expect(me.next == me.limit, 0))
        RING_REFILL();
    *me.next++ = word;
}

static void put_message(unsigned which, const uint64_t *content, unsigned words)
{
    put(MESSAGE | which | (uint64_t)words << 16);
    for (unsigned i = 0; i < words; i++)
        put(content[i]);
}

/* Text of at most 2 KiB behind some numbers. */
static void put_text(unsigned which, const uint64_t *numbers, unsigned count, const char *text)
{
    uint64_t content[MESSAGE_MOST] = { 0 };
    size_t length = strnlen(text, 2048);
    memcpy(content, numbers, count * sizeof *content);
    content[count] = length;
    memcpy(content + count + 1, text, length);
    put_message(which, content, count + 1 + (unsigned)(length + 7) / 8);
}

/* Maps the recorder's memory; says why not, or NULL. */
static const char *open_area(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0)
        return strerror(errno);
    void *area = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (area == MAP_FAILED || ((struct control *)area)->magic != AREA_MAGIC)
        return "made for another version of terrace; build both from one source";
    slots = (struct slot *)((char *)area + CONTROL_BYTES);
    control = area;
    area_device = status.st_dev;
    area_inode = status.st_ino;
    size_t headers = (CONTROL_BYTES + control->slots * sizeof(struct slot) + 4095) / 4096 * 4096;
    rings = (uint64_t *)((char *)area + headers);
    return NULL;
}

/* The thread writes no more: its slot can be emptied and given to others. */
static void release(void)
{
    if (me.slot && !me.dropping) {
        put_message(M_EXIT, NULL, 0);
        if (me.slot && !me.dropping) {
            write_out();
            atomic_store(&me.slot->state, 2);
        }
    }
    drop_all();
}

static void in_child(void)
{
    if (me.dropping)
        return;
    uint64_t parent = process_key;
    memset(&me, 0, sizeof me);
    claim(parent);
    write_out();
}
