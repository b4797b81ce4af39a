/* A model of an address space beside the real one: threads change windows of their own at random by
 * every call that changes a mapping, fork, and hold each page against what it must hold. Run
 * without far memory it tests the model, with it far memory.
 *
 *   space SEED STEPS THREADS
 *
 * A page's content is one number v: at its start, and once more at word 1 + v % 511; all else is
 * zero. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 1536 /* of a window: 6 MiB */
#define FILE_PAGES 256
#define BLOCKS 48
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum kind { HOLE, ANON, FROM_FILE, SHARED };

struct page {
    uint64_t value, in_file; /* of a file's page, what it holds until it is written */
    unsigned char kind, rights;
};

struct window {
    char *base;
    struct page pages[PAGES];
    char *blocks[BLOCKS];
    size_t sizes[BLOCKS];
    uint64_t chance, seed, step, number;
    const char *doing;
};

static int file;
static long steps;
static unsigned long first_seed;

static uint64_t next(struct window *w, uint64_t below) {
    w->chance ^= w->chance << 13;
    w->chance ^= w->chance >> 7;
    w->chance ^= w->chance << 17;
    return (w->chance * 0x2545f4914f6cdd1du >> 20) % below;
}

static uint64_t *at(struct window *w, size_t page) { return (uint64_t *)(w->base + page * PAGE); }
static void differs(struct window *w, size_t page, const char *what) {
    int saved = errno;
    printf("seed %lu, thread %lu, step %lu (%s), page %zu: %s (errno %d)\n", first_seed, w->number,
        w->step, w->doing, page, what, saved);
    fflush(stdout);
    _exit(1);
}

static uint64_t file_value(size_t n) { return n * 7919 + 3; }

static void put(uint64_t *words, uint64_t before, uint64_t value) {
    if (before) words[1 + before % 511] = 0;
    words[0] = value;
    if (value) words[1 + value % 511] = value;
}

static int holds(const uint64_t *words, uint64_t value, uint64_t other) {
    size_t place = 1 + value % 511;
    other = 1 + other % 511;
    return words[0] == value && words[place] == value && (other == place || words[other] == 0);
}

static void check(struct window *w, size_t page, const char *what) {
    struct page *p = &w->pages[page];
    if (p->kind != HOLE && p->rights & PROT_READ && !holds(at(w, page), p->value, next(w,
        511))) differs(w, page, what);
}

static void write_page(struct window *w, size_t page) {
    struct page *p = &w->pages[page];
    if (p->kind == HOLE || (p->rights & 3) != 3) return;
    uint64_t value = next(w, 4) ? (w->step << 20) + page + 1 : 0;
    put(at(w, page), p->value, value);
    p->value = value;
}

static void set(struct window *w, size_t from, size_t end, int kind, int rights, uint64_t first) {
    for (size_t n = from; n < end; n++) {
        uint64_t value = kind == FROM_FILE ? file_value(first + n - from) : 0;
        w->pages[n] = (struct page){value, value, kind, rights};
    }
}

static int all_of(struct window *w, size_t from, size_t end, int kind, int rights) {
    for (size_t n = from; n < end; n++)
        if (w->pages[n].kind != kind || (rights && w->pages[n].rights != rights)) return 0;
    return 1;
}

/* The first hole of a range, or its end. */
static size_t hole(struct window *w, size_t from, size_t end) {
    while (from < end && w->pages[from].kind != HOLE) from++;
    return from;
}

static int with_holes(struct window *w, size_t from, size_t end) { return hole(w, from, end) < end;
    }

/* Each call by its name, or by its number. */
static void *do_mmap(struct window *w, void *a, size_t len, int rights, int flags, int fd,
    long offset) {
    if (next(w, 3)) return mmap(a, len, rights, flags, fd, offset);
    return (void *)syscall(SYS_mmap, a, len, rights, flags, fd, offset);
}
static int do_munmap(struct window *w, void *a, size_t len) { return next(w, 3) ? munmap(a, len) :
    (int)syscall(SYS_munmap, a, len); }
static int do_mprotect(struct window *w, void *a, size_t len, int r) { return next(w, 3) ?
    mprotect(a, len, r) : (int)syscall(SYS_mprotect, a, len, r); }
static int do_madvise(struct window *w, void *a, size_t len, int how) { return next(w, 3) ?
    madvise(a, len, how) : (int)syscall(SYS_madvise, a, len, how); }
static void *do_mremap(struct window *w, void *a, size_t old, size_t new, int flags, void *to) {
    if (next(w, 3)) return mremap(a, old, new, flags, to);
    return (void *)syscall(SYS_mremap, a, old, new, flags, to);
}

static void maps(struct window *w, size_t a, size_t b, int how) {
    static const int all[] = {3, 3, 3, 1, 0};
    int rights = all[next(w, 5)], fixed = next(w, 4) ? MAP_FIXED : MAP_FIXED_NOREPLACE;
    int kind = how == 0 ? ANON : how == 1 ? FROM_FILE : SHARED;
    int flags = (kind == SHARED ? MAP_SHARED : MAP_PRIVATE) | (kind == FROM_FILE ? 0 :
        MAP_ANONYMOUS) | (next(w, 2) && kind == ANON ? MAP_NORESERVE : 0);
    size_t first = next(w, FILE_PAGES);
    if (kind == FROM_FILE && b - a > FILE_PAGES - first) b = a + FILE_PAGES - first;
    w->doing = fixed == MAP_FIXED ? "mmap fixed" : "mmap fixed, no replacement";
    int free_range = all_of(w, a, b, HOLE, 0);
    void *got = do_mmap(w, at(w, a), (b - a) * PAGE, rights, flags | fixed, kind == FROM_FILE ?
        file : -1, kind == FROM_FILE ? first * PAGE : 0);
    if (fixed == MAP_FIXED_NOREPLACE && !free_range) {
        if (got != MAP_FAILED || errno != EEXIST) differs(w, a, "replaced");
        return;
    }
    if (got != at(w, a)) differs(w, a, "not where it was asked for");
    set(w, a, b, kind, rights, first);
    /* A mapping that fails leaves what is there. */
    if (!next(w, 8) && do_mmap(w, at(w, a), (b - a) * PAGE, 3, MAP_PRIVATE | MAP_FIXED, 9999, 0) !=
        MAP_FAILED) differs(w, a, "mapped nothing");
}

static void protects(struct window *w, size_t a, size_t b) {
    static const int all[] = {3, 3, 1, 0};
    int rights = all[next(w, 4)];
    w->doing = "mprotect";
    size_t end = hole(w, a, b);
    int done = do_mprotect(w, at(w, a), (b - a) * PAGE, rights);
    if (end < b ? done == 0 || errno != ENOMEM : done != 0) differs(w, a, "another result");
    for (size_t n = a; n < end; n++) w->pages[n].rights = rights;
}

static void forgets(struct window *w, size_t a, size_t b) {
    w->doing = "madvise dontneed";
    int gaps = with_holes(w, a, b), done = do_madvise(w, at(w, a), (b - a) * PAGE, MADV_DONTNEED);
    if (gaps ? done == 0 || errno != ENOMEM : done != 0) differs(w, a, "another result");
    for (size_t n = a; n < b; n++) {
        struct page *p = &w->pages[n];
        if (p->kind == ANON) p->value = 0;
        if (p->kind == FROM_FILE) p->value = p->in_file;
    }
    if (all_of(w, a, b, ANON, 3)) {
        w->doing = "madvise free";
        if (do_madvise(w, at(w, a), (b - a) * PAGE, MADV_FREE) != 0) differs(w, a, "refused");
        for (size_t n = a; n < b; n++) {
            memset(at(w, n), 0, PAGE);
            write_page(w, n);
        }
    }
}

static void advises(struct window *w, size_t a, size_t b) {
    static const int all[] = {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_SEQUENTIAL, MADV_NORMAL,
        MADV_DONTDUMP, MADV_DODUMP, MADV_DONTFORK, MADV_WIPEONFORK};
    int how = all[next(w, sizeof all / sizeof *all)];
    w->doing = "madvise";
    if (!all_of(w, a, b, ANON, 0)) return;
    if (do_madvise(w, at(w, a), (b - a) * PAGE, how) != 0) differs(w, a, "an advice was refused");
    if (how == MADV_DONTFORK && do_madvise(w, at(w, a), (b - a) * PAGE, MADV_DOFORK) !=
        0) differs(w, a, "dofork");
    if (how == MADV_WIPEONFORK && do_madvise(w, at(w, a), (b - a) * PAGE, MADV_KEEPONFORK) !=
        0) differs(w, a, "keeponfork");
    if (do_madvise(w, at(w, a), PAGE, 4711) == 0 || errno != EINVAL) differs(w, a, "an advice that "
        "is none");
}

static void moves(struct window *w, size_t a, size_t b) {
    size_t len = b - a, to = next(w, PAGES - len);
    if (to < b && a < to + len) return;
    int stays = next(w, 3) == 0;
    w->doing = stays ? "mremap fixed, not unmapped" : "mremap fixed";
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (stays ? MREMAP_DONTUNMAP : 0);
    if (stays && !all_of(w, a, b, ANON, 0)) return;
    /* With gaps it is an error before Linux 6.17 only. */
    if (with_holes(w, a, b)) return;
    void *got = do_mremap(w, at(w, a), len * PAGE, len * PAGE, flags, at(w, to));
    if (got == MAP_FAILED) {
        /* Several mappings at once are moved since Linux 6.17 only; and what was at the target may
         * be gone. */
        if (all_of(w, a, b, ANON, 3) && errno != EFAULT) differs(w, a, "refused");
        if (mmap(at(w, to), len * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at(w,
            to)) differs(w, to, "the target");
        set(w, to, to + len, ANON, 3, 0);
        return;
    }
    if (got != at(w, to)) differs(w, a, "moved elsewhere");
    memcpy(&w->pages[to], &w->pages[a], len * sizeof(struct page));
    for (size_t n = a; n < b; n++)
        if (stays) w->pages[n].value = 0;
        else w->pages[n].kind = HOLE;
}

static void grows(struct window *w, size_t len) {
    w->doing = "mremap to more";
    size_t more = len + 1 + next(w, 64);
    char *own = mmap(NULL, len * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) differs(w, 0, "mmap");
    for (size_t n = 0; n < len; n++) put((uint64_t *)(own + n * PAGE), 0, w->step + n + 1);
    if (next(w, 2)) {
        char *got = do_mremap(w, own, len * PAGE, more * PAGE, MREMAP_MAYMOVE, NULL);
        if (got == MAP_FAILED) differs(w, 0, "refused");
        own = got;
    } else {
        /* A hint need not be followed. */
        char *copy = do_mremap(w, own, len * PAGE, len * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP,
            NULL);
        if (copy == MAP_FAILED) differs(w, 0, "not unmapped: refused");
        for (size_t n = 0; n < len; n++)
            if (!holds((uint64_t *)(own + n * PAGE), 0, n)) differs(w, n, "what was moved away is "
                "not zero");
        munmap(own, len * PAGE);
        own = copy;
        more = len;
    }
    for (size_t n = 0; n < more; n++)
        if (!holds((uint64_t *)(own + n * PAGE), n < len ? w->step + n + 1 : 0, n)) differs(w, n,
            "after mremap");
    size_t less = 1 + next(w, more);
    if (do_mremap(w, own, more * PAGE, less * PAGE, 0, NULL) != own) differs(w, 0,
        "mremap to less");
    for (size_t n = 0; n < less; n++)
        if (!holds((uint64_t *)(own + n * PAGE), n < len ? w->step + n + 1 : 0, n)) differs(w, n,
            "after mremap to less");
    if (do_munmap(w, own, less * PAGE) != 0) differs(w, 0, "munmap");
}

static void segments(struct window *w, size_t a) {
    w->doing = "shmat";
    int remap = next(w, 2), id = shmget(IPC_PRIVATE, 4 * PAGE, IPC_CREAT | 0600), free_range =
        all_of(w, a, a + 4, HOLE, 0);
    if (id < 0) return;
    void *got = shmat(id, at(w, a), remap ? SHM_REMAP : 0);
    shmctl(id, IPC_RMID, NULL);
    if (!remap && !free_range) {
        if (got != (void *)-1 || errno != EINVAL) differs(w, a, "attached over something");
        return;
    }
    if (got != at(w, a)) differs(w, a, "not attached");
    set(w, a, a + 4, SHARED, 3, 0);
    for (size_t n = a; n < a + 4; n++) write_page(w, n);
    for (size_t n = a; n < a + 4; n++) check(w, n, "a segment");
    w->doing = "shmdt";
    if (shmdt(at(w, a)) != 0) differs(w, a, "not detached");
    set(w, a, a + 4, HOLE, 0, 0);
}

/* The kernel's own accesses: what may not be read is EFAULT, as is what is not mapped. */
static void kernel_reads(struct window *w, size_t page) {
    static __thread uint64_t copy[PAGE / 8];
    struct page *p = &w->pages[page];
    struct iovec here = {copy, PAGE}, there = {at(w, page), PAGE};
    int readable = p->kind != HOLE && p->rights & PROT_READ, writable = p->kind != HOLE &&
        (p->rights & 3) == 3;
    w->doing = "process_vm_readv";
    long got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (readable ? got != PAGE || !holds(copy, p->value, page) : got != -1 || errno !=
        EFAULT) differs(w, page, "read by the kernel");
    w->doing = "process_vm_writev";
    memset(copy, 0, sizeof copy);
    put(copy, 0, w->step + 5);
    got = process_vm_writev(getpid(), &here, 1, &there, 1, 0);
    if (writable ? got != PAGE : got != -1 || errno != EFAULT) differs(w, page, "written by the "
        "kernel");
    if (writable) p->value = w->step + 5;
    w->doing = "pwrite";
    unsigned char known[1];
    if (p->kind == HOLE && (mincore(at(w, page), PAGE, known) == 0 || errno != ENOMEM)) differs(w,
        page, "mincore of a hole");
    if (pwrite(file, at(w, page), PAGE, (FILE_PAGES + w->number) * PAGE) != (readable ? PAGE :
        -1)) differs(w, page, "written to a file");
    if (!writable) return;
    w->doing = "pread";
    memset(at(w, page), 255, PAGE);
    if (pread(file, at(w, page), PAGE, (FILE_PAGES + w->number) * PAGE) != PAGE) differs(w, page,
        "read from a file");
}

static void locks(struct window *w, size_t a, size_t b) {
    w->doing = "mlock";
    if (b > a + 8) b = a + 8;
    if (!all_of(w, a, b, ANON, 3)) return;
    if (mlock(at(w, a), (b - a) * PAGE) != 0 && errno != ENOMEM && errno != EPERM) differs(w, a,
        "mlock");
    munlock(at(w, a), (b - a) * PAGE);
}

static void heap(struct window *w) {
    w->doing = "the heap";
    size_t n = next(w, BLOCKS);
    char *b = w->blocks[n];
    for (size_t k = 0; b && k < w->sizes[n]; k += 4001)
        if (b[k] != (char)(n + w->sizes[n])) differs(w, n, "a block");
    size_t size = 1 + next(w, next(w, 4) ? 3000 : 300000);
    b = w->blocks[n] = next(w, 2) ? realloc(b, size) : (free(b), malloc(size));
    if (!b) differs(w, n, "no memory");
    w->sizes[n] = size;
    for (size_t k = 0; k < size; k += 4001) b[k] = (char)(n + size);
}

static void forks(struct window *w) {
    w->doing = "fork";
    pid_t pid = next(w, 4) ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid < 0) differs(w, 0, "fork");
    if (pid == 0) {
        w->doing = "in a child";
        for (size_t n = 0; n < PAGES; n++)
            if (w->pages[n].kind != SHARED) check(w, n, "a child's memory");
        for (size_t n = 0; n < PAGES; n += 3)
            if (w->pages[n].kind != SHARED) write_page(w, n);
        size_t a = next(w, PAGES - 64);
        maps(w, a, a + 64, 0);
        for (size_t n = 0; n < PAGES; n++)
            if (w->pages[n].kind != SHARED) check(w, n, "what a child wrote");
        if (munmap(w->base, PAGES * PAGE) != 0) differs(w, 0, "a child's munmap");
        _exit(23);
    }
    for (size_t n = 0; n < PAGES; n += 5)
        if (w->pages[n].kind != SHARED) write_page(w, n);
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 23) {
        errno = status;
        differs(w, 0, "a child's end (its status in place of errno)");
    }
}

static void *work(void *argument) {
    struct window *w = argument;
    /* At addresses where nobody places anything without being asked to, so that holes stay holes:
     * low ones, or, where far memory has mappings elsewhere, some GiB behind those. */
    char *wanted = (char *)((1ul << 40) + (w->number << 32));
    w->base = mmap(wanted, PAGES * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->base != MAP_FAILED && w->base != wanted) {
        munmap(w->base, PAGES * PAGE);
        wanted = w->base + ((8 + w->number) << 30);
        w->base = mmap(wanted, PAGES * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (w->base != wanted) differs(w, 0, "mmap at a hint");
    set(w, 0, PAGES, ANON, 3, 0);
    w->doing = "filling";
    for (size_t n = 0; n < PAGES; n++) write_page(w, n);
    for (w->step = 1; w->step <= (uint64_t)steps; w->step++) {
        size_t len = 1 + next(w, next(w, 8) ? 48 : 400), a = next(w, PAGES - len), b = a + len;
        uint64_t what = next(w, 100);
        w->doing = "access";
        if (what < 30) for (size_t n = a; n < b; n++) { check(w, n, "before a write");
            write_page(w, n); }
        else if (what < 45) for (size_t n = a; n < b; n++) check(w, n, "read");
        else if (what < 54) { w->doing = "munmap"; if (do_munmap(w, at(w, a), len * PAGE) !=
            0) differs(w, a, "munmap"); set(w, a, b, HOLE, 0, 0); }
        else if (what < 66) maps(w, a, b, 0);
        else if (what < 70) maps(w, a, b, 1);
        else if (what < 72) maps(w, a, b, 2);
        else if (what < 77) protects(w, a, b);
        else if (what < 82) forgets(w, a, b);
        else if (what < 85) advises(w, a, b);
        else if (what < 90) moves(w, a, b);
        else if (what < 92) grows(w, len);
        else if (what < 93) segments(w, a % (PAGES - 4));
        else if (what < 96) kernel_reads(w, a);
        else if (what < 97) locks(w, a, b);
        else if (what < 99) heap(w);
        else if (next(w, 6) == 0) forks(w);
        w->doing = "afterwards";
        for (int n = 0; n < 6; n++) check(w, next(w, PAGES), "another page");
    }
    w->doing = "at the end";
    for (size_t n = 0; n < PAGES; n++) check(w, n, "the end");
    for (int n = 0; n < BLOCKS; n++) free(w->blocks[n]);
    if (munmap(w->base, PAGES * PAGE) != 0) differs(w, 0, "munmap");
    return NULL;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    first_seed = strtoul(words[1], NULL, 10);
    steps = atol(words[2]);
    long threads = atol(words[3]);
    FILE *stream = tmpfile();
    static uint64_t page[PAGE / 8];
    if (!stream || threads < 1 || threads > 64) return 2;
    file = fileno(stream);
    for (size_t n = 0; n < FILE_PAGES; n++) {
        memset(page, 0, sizeof page);
        put(page, 0, file_value(n));
        if (pwrite(file, page, PAGE, n * PAGE) != PAGE) return 2;
    }
    pthread_t all[64];
    static struct window windows[64];
    for (long n = 0; n < threads; n++) {
        windows[n].number = n;
        windows[n].chance = first_seed * 0x9e3779b97f4a7c15u + n * 0x123456789u + 1;
        if (pthread_create(&all[n], NULL, work, &windows[n]) != 0) return 2;
    }
    for (long n = 0; n < threads; n++) pthread_join(all[n], NULL);
    printf("kept\n");
    return 0;
}
