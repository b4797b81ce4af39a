// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Functions of the C library that read and write for the program: terrace-cc links with --wrap, so
 * that the program's calls come here and the library's own do not. What they touch is told as
 * pieces of up to 64 bytes.
 */
#pragma once

#define REAL(type, name, ...) \
    type __real_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__)

REAL(void *, memcpy, void *to, const void *from, size_t bytes)
{
    put_copy(to, from, bytes, HERE);
    return __real_memcpy(to, from, bytes);
}
REAL(void *, memmove, void *to, const void *from, size_t bytes)
{
    put_copy(to, from, bytes, HERE);
    return __real_memmove(to, from, bytes);
}
REAL(void *, memset, void *to, int value, size_t bytes)
{
    put_range(to, bytes, STORE, HERE);
    return __real_memset(to, value, bytes);
}
REAL(void *, mempcpy, void *to, const void *from, size_t bytes)
{
    put_copy(to, from, bytes, HERE);
    return __real_mempcpy(to, from, bytes);
}
REAL(void, bzero, void *to, size_t bytes)
{
    put_range(to, bytes, STORE, HERE);
    __real_bzero(to, bytes);
}
REAL(void *, __memcpy_chk, void *to, const void *from, size_t bytes, size_t room)
{
    put_copy(to, from, bytes, HERE);
    return __real___memcpy_chk(to, from, bytes, room);
}
REAL(void *, __memmove_chk, void *to, const void *from, size_t bytes, size_t room)
{
    put_copy(to, from, bytes, HERE);
    return __real___memmove_chk(to, from, bytes, room);
}
REAL(void *, __memset_chk, void *to, int value, size_t bytes, size_t room)
{
    put_range(to, bytes, STORE, HERE);
    return __real___memset_chk(to, value, bytes, room);
}
/* Told up to the first difference, as far as a comparison must look. */
REAL(int, memcmp, const void *a, const void *b, size_t bytes)
{
    const unsigned char *x = a, *y = b;
    size_t same = 0;
    while (same < bytes && x[same] == y[same])
        same++;
    size_t seen = same < bytes ? same + 1 : bytes;
    put_range(a, seen, 0, HERE);
    put_range(b, seen, 0, HERE);
    return __real_memcmp(a, b, bytes);
}
REAL(size_t, strlen, const char *text)
{
    size_t bytes = __real_strlen(text);
    put_range(text, bytes + 1, 0, HERE);
    return bytes;
}
REAL(char *, strcpy, char *to, const char *from)
{
    put_copy(to, from, __real_strlen(from) + 1, HERE);
    return __real_strcpy(to, from);
}

/* Newer compilers name them so. */
void *__tsan_memcpy(void *to, const void *from, size_t bytes) { return __wrap_memcpy(to, from,
    bytes); }
void *__tsan_memmove(void *to, const void *from, size_t bytes) { return __wrap_memmove(to, from,
    bytes); }
void *__tsan_memset(void *to, int value, size_t bytes) { return __wrap_memset(to, value, bytes); }

/* ---- Mappings: as system calls of these numbers, which is what they are ---- */

static void put_mapping(long number, uint64_t result, const uint64_t *arguments, const char *name)
{
    uint64_t content[8] = { (uint64_t)number, result };
    for (unsigned i = 0; i < 4; i++)
        content[2 + i] = arguments[i];
    put_text(M_SYSCALL, content, 8, name);
}
REAL(void *, mmap, void *at, size_t bytes, int rights, int flags, int fd, off_t offset)
{
    void *made = __real_mmap(at, bytes, rights, flags, fd, offset);
    if (made != MAP_FAILED) {
        char link[64], name[2048] = "";
        if (!(flags & MAP_ANONYMOUS)) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t n = readlink(link, name, sizeof name - 1);
            name[n > 0 ? n : 0] = 0;
        }
        put_mapping(SYS_mmap, (uint64_t)made, (uint64_t[]){ (uint64_t)at, bytes, (unsigned)rights,
            (unsigned)flags }, name);
    }
    return made;
}
REAL(int, munmap, void *at, size_t bytes)
{
    int failed = __real_munmap(at, bytes);
    if (!failed)
        put_mapping(SYS_munmap, 0, (uint64_t[]){ (uint64_t)at, bytes, 0, 0 }, "");
    return failed;
}

/* ---- Objects: where asked, allocations of some size have a name ---- */

/* From this size on malloc maps memory, which is told as it would be had the program asked for
 * it. */
#define MALLOC_MAPS (128u << 10)

static void put_object(void *start, size_t bytes, const void *place)
{
    if (start && bytes >= MALLOC_MAPS) {
        uint64_t first = (uint64_t)start & ~4095ull, length = (((uint64_t)start + bytes + 4095) &
            ~4095ull) - first;
        put_mapping(SYS_mmap, first, (uint64_t[]){ 0, length, 3, MAP_PRIVATE | MAP_ANONYMOUS }, "");
    }
    if (!start || !objects_from || bytes < objects_from)
        return;
    char name[512];
    uint64_t content[] = { (uint64_t)start, bytes }, behind = 0;
    const char *function = function_of((uint64_t)place, &behind);
    if (function)
        snprintf(name, sizeof name, "%s+%#lx", function, (unsigned long)behind);
    else
        snprintf(name, sizeof name, "%#lx", (unsigned long)(uint64_t)place);
    put_text(M_OBJECT, content, 2, name);
}

/* An object that was told is gone. `bytes`: what the allocator has there, which is no less than was
 * asked for. */
size_t malloc_usable_size(void *);
static void put_no_object(void *start)
{
    if (!start || !objects_from)
        return;
    size_t bytes = malloc_usable_size(start);
    uint64_t content[] = { (uint64_t)start, bytes };
    if (bytes >= objects_from)
        put_text(M_OBJECT, content, 2, "");
}

REAL(void *, malloc, size_t bytes)
{
    void *made = __real_malloc(bytes);
    put_object(made, bytes, HERE);
    return made;
}
REAL(void *, calloc, size_t count, size_t bytes)
{
    void *made = __real_calloc(count, bytes);
    put_object(made, count * bytes, HERE);
    return made;
}
REAL(void *, realloc, void *old, size_t bytes)
{
    put_no_object(old);
    void *made = __real_realloc(old, bytes);
    put_object(made, bytes, HERE);
    return made;
}
REAL(void *, aligned_alloc, size_t alignment, size_t bytes)
{
    void *made = __real_aligned_alloc(alignment, bytes);
    put_object(made, bytes, HERE);
    return made;
}
REAL(int, posix_memalign, void **made, size_t alignment, size_t bytes)
{
    int failed = __real_posix_memalign(made, alignment, bytes);
    if (!failed)
        put_object(*made, bytes, HERE);
    return failed;
}
REAL(void, free, void *old)
{
    put_no_object(old);
    __real_free(old);
}

/* ---- Time: whoever waited goes on at the time of the thread that is furthest ---- */

static void catch_up(void)
{
    if (!me.slot || me.dropping)
        return;
    keep_clock();
    uint64_t now = furthest();
    if (now > me.clock) {
        uint64_t ticks = now - me.clock;
        me.clock = now;
        put_message(M_JUMP, &ticks, 1);
    }
}

REAL(int, pthread_join, pthread_t thread, void **result)
{
    write_out();
    int failed = __real_pthread_join(thread, result);
    catch_up();
    return failed;
}
REAL(int, pthread_barrier_wait, pthread_barrier_t *barrier)
{
    write_out();
    int serial = __real_pthread_barrier_wait(barrier);
    catch_up();
    return serial;
}
REAL(int, pthread_cond_wait, pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    write_out();
    int failed = __real_pthread_cond_wait(condition, mutex);
    catch_up();
    return failed;
}

/* ---- Ends that run no exit handlers ---- */

/* Not in a child of vfork, which has its parent's memory and so its parent's slot. */
static bool release_own(void)
{
    bool own = me.slot && me.slot->pid == getpid();
    if (own)
        release();
    return own;
}
REAL(void, _exit, int status)
{
    release_own();
    __real__exit(status);
    __builtin_unreachable();
}
REAL(void, _Exit, int status)
{
    release_own();
    __real__Exit(status);
    __builtin_unreachable();
}

/* The program is replaced; the new one, if it has hooks, finds the recorder by itself. */
static void exec_failed(bool released)
{
    if (released)
        memset(&me, 0, sizeof me); /* takes a slot again with its next word */
}
REAL(int, execve, const char *path, char *const argv[], char *const envp[])
{
    bool released = release_own();
    int failed = __real_execve(path, argv, envp);
    exec_failed(released);
    return failed;
}
REAL(int, execv, const char *path, char *const argv[])
{
    bool released = release_own();
    int failed = __real_execv(path, argv);
    exec_failed(released);
    return failed;
}
REAL(int, execvp, const char *file, char *const argv[])
{
    bool released = release_own();
    int failed = __real_execvp(file, argv);
    exec_failed(released);
    return failed;
}
