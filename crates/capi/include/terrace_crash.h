/*
 * terrace_crash.h: tell `terrace crash` which objects a program needs to go on after a crash, where
 * a crash may happen, and what is flushed.
 *
 * Header only: nothing is linked. Without the tool, a flush is one no-op instruction, and
 * start_crash(), end_crash() and crash_restore() each look up one environment variable.
 *
 *     static double x[N];
 *     static int done;
 *     critical_data(x, "double", N);
 *     consistent_data(&done, "int", 1);
 *     int first = (int)crash_restore() + 1;      after a crash: x and done come from memory
 *     write_back_invalidate_cache();
 *     start_crash();
 *     for (int it = first; it <= n; it++) {
 *         ... one iteration ...
 *         done = it;
 *         cache_line_write_back(&done);
 *     }
 *     end_crash();
 *
 * The calls are those of NVC (Ren, Wu, Li, "Understanding Application Recomputability without Crash
 * Consistency in Non-Volatile Memory", MCHPC 2018, Table 1), except crash_restore(),
 * crash_phase() and readonly_data().
 */
#ifndef TERRACE_CRASH_H
#define TERRACE_CRASH_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One definition in a program, however many of its files include this header. */
#define TERRACE_CRASH_SHARED __attribute__((weak))
#define TERRACE_CRASH_OBJECTS 256

/* A data object, as it lies in region files and image files. */
struct terrace_crash_object {
    uint32_t kind;    /* 1 critical, 2 consistent, 3 read-only */
    uint32_t element; /* bytes of an element */
    uint64_t address;
    uint64_t bytes;
    char type[16];
    char name[48];
};

struct terrace_crash_state {
    uint64_t count;
    uint64_t refused; /* objects beyond the table */
    struct terrace_crash_object objects[TERRACE_CRASH_OBJECTS];
};

TERRACE_CRASH_SHARED struct terrace_crash_state terrace_crash_state_;

/* No-ops of seven bytes that a recorder recognises by their displacement. */
#if defined(__x86_64__)
#define TERRACE_CRASH_MARK(id, pointer) \
    __asm__ __volatile__(".byte 0x0f,0x1f,0x80," #id ",0xa0,0x44,0x7e" ::"a"(pointer) : "memory")
#else
#define TERRACE_CRASH_MARK(id, pointer) ((void)(pointer))
#endif

/* Bytes of an element of this type; 1 for a name that is not known, so that the count is bytes. */
TERRACE_CRASH_SHARED uint32_t terrace_crash_element_(const char *type)
{
    static const struct { const char *name; uint32_t bytes; } known[] = {
        { "double", 8 }, { "float", 4 }, { "int", 4 }, { "long", sizeof(long) }, { "char", 1 },
        { "short", 2 }, { "unsigned", 4 }, { "int8", 1 }, { "int16", 2 }, { "int32", 4 },
        { "int64", 8 }, { "uint8", 1 }, { "uint16", 2 }, { "uint32", 4 }, { "uint64", 8 },
        { "size_t", sizeof(size_t) }, { "complex", 8 }, { "dcomplex", 16 }, { "byte", 1 },
    };
    size_t i;
    for (i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(type, known[i].name))
            return known[i].bytes;
    return 1;
}

TERRACE_CRASH_SHARED void terrace_crash_object_(uint32_t kind, const char *name,
    const void *pointer,
                                                const char *type, uint64_t count)
{
    struct terrace_crash_state *all = &terrace_crash_state_;
    struct terrace_crash_object *object;
    if (all->count == TERRACE_CRASH_OBJECTS) {
        all->refused++;
        return;
    }
    object = &all->objects[all->count++];
    memset(object, 0, sizeof *object);
    object->kind = kind;
    object->element = terrace_crash_element_(type);
    object->address = (uint64_t)(uintptr_t)pointer;
    object->bytes = count * object->element;
    strncpy(object->type, type, sizeof object->type - 1);
    while (*name == '&' || *name == '(')
        name++;
    strncpy(object->name, name, sizeof object->name - 1);
}

/* The program cannot do what the tool asked it to. */
TERRACE_CRASH_SHARED void terrace_crash_fail_(const char *what, const char *path)
{
    fprintf(stderr, "terrace_crash.h: %s: %s\n", path, what);
    _exit(122);
}

/* 0, or the error's number. The kernel reads the bytes, so memory that is not mapped is EFAULT. */
TERRACE_CRASH_SHARED int terrace_crash_put_(int out, const void *from, uint64_t bytes)
{
    const char *at = (const char *)from;
    while (bytes) {
        ssize_t wrote = write(out, at, bytes);
        if (wrote < 0 && errno != EINTR)
            return errno;
        if (wrote > 0)
            at += wrote, bytes -= (uint64_t)wrote;
    }
    return 0;
}

TERRACE_CRASH_SHARED void terrace_crash_write_region_(const char *path)
{
    struct terrace_crash_state *all = &terrace_crash_state_;
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666), failed;
    uint64_t i;
    if (out < 0)
        terrace_crash_fail_("cannot be written", path);
    failed = terrace_crash_put_(out, "TERRCRR1", 8) || terrace_crash_put_(out, &all->count, 8) ||
             terrace_crash_put_(out, &all->refused, 8) ||
             terrace_crash_put_(out, all->objects, all->count * sizeof *all->objects);
    for (i = 0; !failed && i < all->count; i++) {
        const struct terrace_crash_object *object = &all->objects[i];
        if (object->kind != 3)
            failed = terrace_crash_put_(out, (const void *)(uintptr_t)object->address,
                                        object->bytes);
        if (failed == EFAULT)
            terrace_crash_fail_("its memory is not mapped at start_crash()", object->name);
    }
    if (close(out) || failed)
        terrace_crash_fail_("cannot be written whole", path);
}

/* What the integer that starts here holds, as the iteration. */
TERRACE_CRASH_SHARED int64_t terrace_crash_iteration_(void)
{
    struct terrace_crash_state *all = &terrace_crash_state_;
    uint64_t i;
    for (i = 0; i < all->count; i++) {
        const struct terrace_crash_object *object = &all->objects[i];
        int64_t wide;
        int32_t narrow;
        if (object->kind != 2)
            continue;
        if (object->bytes == 8) {
            memcpy(&wide, (const void *)(uintptr_t)object->address, 8);
            return wide;
        }
        if (object->bytes == 4) {
            memcpy(&narrow, (const void *)(uintptr_t)object->address, 4);
            return narrow;
        }
    }
    return 0;
}

/* The begin of the code in which a crash may happen. */
TERRACE_CRASH_SHARED void start_crash(void)
{
    const char *path = getenv("TERRACE_CRASH_REGION");
    if (path)
        terrace_crash_write_region_(path);
    TERRACE_CRASH_MARK(0xc0, 0L);
}

/* Its end. */
TERRACE_CRASH_SHARED void end_crash(void)
{
    const char *path;
    TERRACE_CRASH_MARK(0xc1, 0L);
    path = getenv("TERRACE_CRASH_RESULT");
    if (path) {
        FILE *out = fopen(path, "w");
        if (!out)
            terrace_crash_fail_("cannot be written", path);
        fprintf(out, "%lld\n", (long long)terrace_crash_iteration_());
        if (fclose(out))
            terrace_crash_fail_("cannot be written whole", path);
    }
}

/*
 * After a restart by the tool: fills the critical and the consistent objects named so far from what
 * memory held at the crash, and returns the first consistent integer, the last iteration known to
 * be done. Otherwise does nothing and returns 0. A program whose objects have other sizes than at
 * the crash is ended with status 122.
 */
TERRACE_CRASH_SHARED int64_t crash_restore(void)
{
    struct terrace_crash_state *all = &terrace_crash_state_;
    const char *path = getenv("TERRACE_CRASH_IMAGE");
    char magic[8];
    uint64_t count, refused, i;
    FILE *in;
    if (!path)
        return 0;
    in = fopen(path, "rb");
    if (!in)
        terrace_crash_fail_("cannot be read", path);
    if (fread(magic, 8, 1, in) != 1 || memcmp(magic, "TERRCRI1", 8) ||
        fread(&count, 8, 1, in) != 1 || fread(&refused, 8, 1, in) != 1)
        terrace_crash_fail_("is no image", path);
    if (count != all->count)
        terrace_crash_fail_("the image has another number of objects than this program", path);
    for (i = 0; i < count; i++) {
        struct terrace_crash_object object;
        if (fread(&object, sizeof object, 1, in) != 1)
            terrace_crash_fail_("ends early", path);
        if (object.kind != all->objects[i].kind || object.bytes != all->objects[i].bytes)
            terrace_crash_fail_("an object has another size or kind than at the crash", path);
    }
    for (i = 0; i < count; i++) {
        const struct terrace_crash_object *object = &all->objects[i];
        if (object->kind != 3 && object->bytes &&
            fread((void *)(uintptr_t)object->address, object->bytes, 1, in) != 1)
            terrace_crash_fail_("ends early", path);
    }
    fclose(in);
    return terrace_crash_iteration_();
}

/* The line that holds this address: CLWB. */
static inline void cache_line_write_back(const void *pointer)
{
    TERRACE_CRASH_MARK(0xc4, pointer);
}

/* The same, and the line leaves all caches: CLFLUSH, CLFLUSHOPT. */
static inline void flush_cache_line(const void *pointer)
{
    TERRACE_CRASH_MARK(0xc5, pointer);
}

/* All lines of all caches: WBINVD. */
static inline void write_back_invalidate_cache(void)
{
    TERRACE_CRASH_MARK(0xc6, 0L);
}

/*
 * The begin of a phase of the region, by a literal number from 1 to 15. Successes and rates of a
 * program that marks phases are counted by them; else by equal parts of its iterations.
 */
#define crash_phase(number) \
    do { \
        (void)sizeof(char[(number) >= 1 && (number) <= 15 ? 1 : -1]); \
        TERRACE_CRASH_MARK((0xd0 + (number)), 0L); \
    } while (0)

/* An object that a restart needs, of `count` elements of a type: "double", "int", ... */
#define critical_data(pointer, type, count) \
    terrace_crash_object_(1, #pointer, (pointer), (type), (uint64_t)(count))
/* One that the program itself keeps consistent: a small integer among them is the iteration. */
#define consistent_data(pointer, type, count) \
    terrace_crash_object_(2, #pointer, (pointer), (type), (uint64_t)(count))
/* One that the program makes again by itself; it is in rates and in no image. */
#define readonly_data(pointer, type, count) \
    terrace_crash_object_(3, #pointer, (pointer), (type), (uint64_t)(count))

#ifdef __cplusplus
}
#endif
#endif
