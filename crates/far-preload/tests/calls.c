/* What programs do with memory of their own, beyond reading and writing it. Each case prints one
 * line when all is as C and the kernel promise. Half of each case's memory does not fit. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1 << 20)
#define BIG (24 * MIB)

static void must(int kept, const char *what) {
    if (!kept) {
        printf("not kept: %s (errno %d)\n", what, errno);
        fflush(stdout);
        _exit(1);
    }
}

static uint64_t mix(uint64_t n) { return n * 0x9e3779b97f4a7c15u >> (n % 23); }

static void fill(uint64_t *words, size_t bytes, uint64_t seed) {
    for (size_t n = 0; n < bytes / 8; n += 64) words[n] = mix(n + seed);
}

static void check(uint64_t *words, size_t bytes, uint64_t seed, const char *what) {
    for (size_t n = 0; n < bytes / 8; n += 64) must(words[n] == mix(n + seed), what);
}

static void *anonymous(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED, "mmap");
    return at;
}

static void heap(void) {
    enum { COUNT = 60000 };
    uint64_t **blocks = malloc(COUNT * sizeof *blocks);
    for (int round = 0; round < 2; round++) {
        for (int n = 0; n < COUNT; n++) {
            size_t size = 16 + mix(n) % 700;
            blocks[n] = malloc(size);
            memset(blocks[n], n & 255, size);
        }
        for (int n = 0; n < COUNT; n++) {
            size_t size = 16 + mix(n) % 700;
            unsigned char *b = (unsigned char *)blocks[n];
            must(b[0] == (n & 255) && b[size - 1] == (n & 255), "a small block");
            if (n % 3) free(b);
        }
    }
    uint64_t *large = malloc(BIG);
    fill(large, BIG, 1);
    large = realloc(large, BIG * 2);
    check(large, BIG, 1, "realloc to more");
    large = realloc(large, BIG / 2);
    check(large, BIG / 2, 1, "realloc to less");
    free(large);
    unsigned char *zeros = calloc(1, BIG);
    for (size_t n = 0; n < BIG; n += 512) must(zeros[n] == 0, "calloc after free");
    free(zeros);
}

static void maps(void) {
    uint64_t *at = anonymous(BIG);
    fill(at, BIG, 2);
    must(madvise(at, 8 * MIB, MADV_DONTNEED) == 0, "DONTNEED");
    for (size_t n = 0; n < MIB; n += 64) must(at[n] == 0, "zeros after DONTNEED");
    check(at + 8 * MIB / 8, 1 * MIB, 2 + 8 * MIB / 8, "beside DONTNEED");
    must(madvise(at + 1, 4096, MADV_DONTNEED) != 0 && errno == EINVAL, "an address within a page");
    must(madvise(at, 4 * MIB, MADV_FREE) == 0 && madvise(at, 4 * MIB, MADV_HUGEPAGE) == 0,
        "advice");
    must(madvise(at, BIG, MADV_WILLNEED) == 0 && (mlock(at, 4096) == 0 || errno == ENOMEM ||
        errno == EPERM), "WILLNEED, mlock");
    check(at + 12 * MIB / 8, 12 * MIB, 2 + 12 * MIB / 8, "the rest");
    must(munmap((char *)at + 4 * MIB, 4 * MIB) == 0 && munmap(at, 4 * MIB) == 0, "munmap of parts");
    check(at + 12 * MIB / 8, 12 * MIB, 2 + 12 * MIB / 8, "the rest after munmap");
    for (int n = 0; n < 50; n++) {
        uint64_t *again = anonymous(3 * MIB);
        for (size_t w = 0; w < 3 * MIB / 8; w += 512) must(again[w] == 0,
            "a fresh mapping is zeros");
        fill(again, 3 * MIB, n);
        must(munmap(again, 3 * MIB) == 0, "munmap");
    }
    must(munmap((char *)at + 8 * MIB, 16 * MIB) == 0, "munmap of the rest");
}

static void remap(void) {
    uint64_t *at = anonymous(BIG);
    fill(at, BIG, 3);
    uint64_t *wall = anonymous(MIB);
    wall[0] = 77;
    uint64_t *moved = mremap(at, BIG, BIG + 8 * MIB, MREMAP_MAYMOVE);
    must(moved != MAP_FAILED && wall[0] == 77, "mremap to more");
    check(moved, BIG, 3, "after mremap");
    for (size_t n = BIG / 8; n < (BIG + 8 * MIB) / 8; n += 512) must(moved[n] == 0, "zeros beyond");
    must(mremap(moved, BIG + 8 * MIB, 2 * MIB, 0) == moved, "mremap to less");
    check(moved, 2 * MIB, 3, "after mremap to less");
}

static void rights(void) {
    uint64_t *at = anonymous(BIG);
    fill(at, BIG, 4);
    must(mprotect(at, 6 * MIB, PROT_READ) == 0 && mprotect((char *)at + 6 * MIB, 2 * MIB,
        PROT_NONE) == 0, "mprotect");
    uint64_t *other = anonymous(BIG);
    fill(other, BIG, 5);
    check(at, 6 * MIB, 4, "what may only be read");
    check(other, BIG, 5, "another mapping");
    must(mprotect(at, 8 * MIB, PROT_READ | PROT_WRITE) == 0, "mprotect back");
    check(at, BIG, 4, "what could not be read");
    fill(at, BIG, 6);
    check(at, BIG, 6, "written anew");
}

static void system_calls(void) {
    unsigned char *at = anonymous(BIG), *back = anonymous(BIG);
    fill((uint64_t *)at, BIG, 7);
    FILE *file = tmpfile();
    int fd = fileno(file);
    for (size_t n = 0; n < BIG; n += MIB) must(pwrite(fd, at + n, MIB, n) == MIB, "write from far "
        "memory");
    for (size_t n = 0; n < BIG; n += MIB) must(pread(fd, back + n, MIB, n) == MIB, "read into far "
        "memory");
    check((uint64_t *)back, BIG, 7, "what was written and read");
    int ends[2];
    must(pipe(ends) == 0 && write(ends[1], at + 12345, 4096) == 4096 && read(ends[0], back + 54321,
        4096) == 4096, "a pipe");
    must(memcmp(at + 12345, back + 54321, 4096) == 0, "what went through it");
}

static uint64_t *shared;

static void *worker(void *number) {
    uint64_t me = (uint64_t)(uintptr_t)number;
    for (int round = 0; round < 3; round++) {
        for (size_t n = me; n < BIG / 4096; n += 8) shared[n * 512 + round] = mix(n + round);
        for (size_t n = me; n < BIG / 4096; n += 8) must(shared[n * 512 + round] == mix(n + round),
            "a thread's words");
        free(malloc(MIB + me * 4096));
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[8];
    shared = anonymous(BIG);
    for (uintptr_t n = 0; n < 8; n++) must(pthread_create(&all[n], NULL, worker, (void *)n) == 0,
        "pthread_create");
    for (int n = 0; n < 8; n++) pthread_join(all[n], NULL);
}

static int child(pid_t pid) {
    int status;
    must(pid > 0 && waitpid(pid, &status, 0) == pid, "waitpid");
    return status;
}

static void forks(void) {
    uint64_t *at = malloc(BIG);
    fill(at, BIG, 8);
    for (int round = 0; round < 3; round++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            check(at, BIG, 8 + round, "a child's memory");
            fill(at, BIG, 99);
            uint64_t *own = malloc(BIG);
            fill(own, BIG, 98);
            check(at, BIG, 99, "what a child wrote");
            check(own, BIG, 98, "what a child allocated");
            free(own);
            _exit(42);
        }
        /* The parent writes meanwhile: neither sees the other's. */
        fill(at, BIG, 9 + round);
        int status = child(pid);
        must(WIFEXITED(status) && WEXITSTATUS(status) == 42, "the child's status");
        check(at, BIG, 9 + round, "the parent's memory");
    }
}

static void vforks(void) {
    uint64_t *at = malloc(BIG);
    fill(at, BIG, 10);
    char *const argv[] = {"true", NULL};
    for (int n = 0; n < 10; n++) {
        pid_t pid = vfork();
        if (pid == 0) {
            execvp("true", argv);
            _exit(1);
        }
        must(child(pid) == 0, "vfork and exec");
        must(system("exit 3") == 3 << 8, "system");
    }
    check(at, BIG, 10, "the parent's memory");
}

static void execs(const char *me) {
    if (getenv("AGAIN")) {
        heap();
        return;
    }
    uint64_t *at = malloc(BIG);
    fill(at, BIG, 11);
    setenv("AGAIN", "1", 1);
    execl(me, me, "exec", NULL);
}

static volatile uint64_t seen;
static uint64_t *handled;

static void handler(int number) {
    for (size_t n = 0; n < BIG / 8; n += 512 * 64) seen += handled[n];
}

static void signals(void) {
    handled = anonymous(BIG);
    fill(handled, BIG, 12);
    struct sigaction act = {.sa_handler = handler};
    sigaction(SIGALRM, &act, NULL);
    uint64_t expected = 0, *other = anonymous(BIG);
    for (size_t n = 0; n < BIG / 8; n += 512 * 64) expected += handled[n];
    for (int n = 0; n < 20; n++) {
        seen = 0;
        fill(other, BIG, n);
        raise(SIGALRM);
        must(seen == expected, "what a handler read");
    }
}

static void descriptors(void) {
    uint64_t *at = malloc(BIG);
    fill(at, BIG, 13);
    int out = dup(1);
    for (int fd = 3; fd < 256; fd++)
        if (fd != out) close(fd);
    fill(at, BIG, 14);
    check(at, BIG, 14, "after closing every descriptor");
    must(open("/dev/null", O_RDONLY) == (out == 3 ? 4 : 3), "the lowest descriptor is free");
}

static void fixed(void) {
    char *at = anonymous(BIG);
    fill((uint64_t *)at, BIG, 15);
    void *over = mmap(at + 4 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
        MAP_FIXED, -1, 0);
    must(over == at + 4 * MIB, "MAP_FIXED");
    for (size_t n = 4 * MIB; n < 6 * MIB; n += 512) must(at[n] == 0, "zeros after MAP_FIXED");
    FILE *file = tmpfile();
    must(fwrite("file", 1, 4, file) == 4 && fflush(file) == 0, "a file");
    over = mmap(at + 8 * MIB, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fileno(file), 0);
    must(over == at + 8 * MIB && memcmp(over, "file", 4) == 0, "a file over it");
    uint64_t *other = anonymous(BIG);
    fill(other, BIG, 16);
    check((uint64_t *)at, 4 * MIB, 15, "before it");
    check((uint64_t *)(at + 9 * MIB), 15 * MIB, 15 + 9 * MIB / 8, "behind it");
    must(memcmp(at + 8 * MIB, "file", 4) == 0 && munmap(at, BIG) == 0, "munmap of all");
}

static sigjmp_buf back;

static void fault(int number) { siglongjmp(back, number); }

/* Whether reading a byte is a SIGSEGV. */
static int faults(volatile char *at) {
    int number = sigsetjmp(back, 1);
    if (number == 0) (void)*at;
    return number == SIGSEGV;
}

static void unmapped(void) {
    struct sigaction act = {.sa_handler = fault};
    sigaction(SIGSEGV, &act, NULL);
    char *at = anonymous(BIG), *other = anonymous(BIG);
    fill((uint64_t *)at, BIG, 18);
    must(munmap(at + 4 * MIB, 2 * MIB) == 0, "munmap");
    must(faults(at + 4 * MIB) && faults(at + 6 * MIB - 1), "what is unmapped cannot be read");
    must(!faults(at + 4 * MIB - 1) && !faults(at + 6 * MIB), "what is beside it can be");
    must(mprotect(at + 4 * MIB, 4096, PROT_READ) != 0 && errno == ENOMEM, "mprotect of what is "
        "unmapped");
    must(madvise(at + 4 * MIB, 4096, MADV_DONTNEED) != 0 && errno == ENOMEM, "madvise of what is "
        "unmapped");
    must(mremap(at + 4 * MIB, 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT,
        "mremap of what is unmapped");
    must(mprotect(at, MIB, PROT_NONE) == 0 && faults(at) && mprotect(at, MIB, PROT_READ) == 0 &&
        !faults(at), "rights");
    char *again = mmap(at + 4 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
        -1, 0);
    must(again == at + 4 * MIB && again[4095] == 0, "a hint at a gap");
    fill((uint64_t *)other, BIG, 19);
    check((uint64_t *)at, 4 * MIB, 18, "before the gap");
    check((uint64_t *)(at + 6 * MIB), 18 * MIB, 18 + 6 * MIB / 8, "behind the gap");
    int seals = (int)syscall(462, at, 4096, 0); /* mseal, since Linux 6.10 */
    must(seals == 0 || errno == ENOSYS || errno == EPERM, "mseal");
    check((uint64_t *)at, 4 * MIB, 18, "what is sealed");
}

/* A userfaultfd of the program's own on memory that is far. */
static void own_faults(void) {
    char *at = anonymous(BIG), *other = anonymous(BIG), *page = anonymous(MIB);
    fill((uint64_t *)at, BIG, 20);
    fill((uint64_t *)other, BIG, 21);
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    must(fd >= 0, "userfaultfd");
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(uintptr_t)at, 2 * MIB}, .mode =
        UFFDIO_REGISTER_MODE_MISSING};
    must(ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &range) == 0, "register");
    must(madvise(at, MIB, MADV_DONTNEED) == 0, "DONTNEED");
    memset(page, 77, 4096);
    struct uffdio_copy copy = {.dst = (uintptr_t)at, .src = (uintptr_t)page, .len = 4096};
    must(ioctl(fd, UFFDIO_COPY, &copy) == 0 && at[0] == 77 && at[4095] == 77, "copy");
    must(ioctl(fd, UFFDIO_UNREGISTER, &range.range) == 0 && at[4096] == 0, "unregister");
    check((uint64_t *)(at + MIB), BIG - MIB, 20 + MIB / 8, "beside it");
    check((uint64_t *)other, BIG, 21, "another mapping");
}

static void *crowd_worker(void *number) {
    uint64_t me = (uint64_t)(uintptr_t)number, sum = me;
    for (int k = 0; k < 6; k++) {
        size_t count = ((200 << 10) + (me * 7919 + k * 104729) % 400000) / 8;
        uint64_t *words = malloc(count * 8);
        for (size_t n = 0; n < count; n++) words[n] = n * me + k;
        for (size_t n = 0; n < count; n++) must(words[n] == n * me + k, "a thread's block");
        if (k & 1) words = realloc(words, count * 16);
        free(words);
    }
    return (void *)(uintptr_t)sum;
}

/* Many threads allocate while far memory takes over. */
static void crowd(void) {
    for (int round = 0; round < 3; round++) {
        pthread_t all[24];
        for (uintptr_t n = 0; n < 24; n++) must(pthread_create(&all[n], NULL, crowd_worker,
            (void *)(n + 1)) == 0, "pthread_create");
        for (int n = 0; n < 24; n++) pthread_join(all[n], NULL);
    }
    uint64_t *at = malloc(BIG);
    fill(at, BIG, 22);
    check(at, BIG, 22, "after the crowd");
    free(at);
}

static size_t in_use(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static int near(size_t what, size_t expected) { return what > expected - expected / 16 &&
    what < expected + expected / 16 + MIB; }

/* What the allocator says of itself. */
static void figures(void) {
    size_t before = in_use();
    char *large = malloc(2 * BIG), *small[2000];
    memset(large, 1, 2 * BIG);
    for (int n = 0; n < 2000; n++) memset(small[n] = malloc(1000), 1, 1000);
    must(near(in_use() - before, 2 * BIG + 2000 * 1000), "mallinfo2 with blocks in use");
    char *text = NULL;
    size_t len = 0;
    FILE *stream = open_memstream(&text, &len);
    must(malloc_info(0, stream) == 0 && malloc_info(1, stream) == EINVAL && fclose(stream) == 0,
        "malloc_info");
    must(strncmp(text, "<malloc version=\"1\">", 20) == 0 && strstr(text, "</malloc>") != NULL,
        "what malloc_info writes");
    free(large);
    for (int n = 0; n < 2000; n++) free(small[n]);
    must(in_use() - before < 4 * MIB, "mallinfo2 after free");
    must(malloc_trim(0) == 1, "something is left to trim");
    struct mallinfo2 m = mallinfo2();
    must(m.fordblks < BIG && m.arena >= m.uordblks, "free bytes");
    char *again = malloc(BIG);
    fill((uint64_t *)again, BIG, 23);
    check((uint64_t *)again, BIG, 23, "after all that");
    free(again);
}

static void ends(const char *how) {
    uint64_t *at = malloc(BIG);
    fill(at, BIG, 17);
    check(at, BIG, 17, "before the end");
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "segv")) *(volatile int *)8 = 1;
    exit(23);
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    if (!strcmp(name, "heap")) heap();
    else if (!strcmp(name, "maps")) maps();
    else if (!strcmp(name, "remap")) remap();
    else if (!strcmp(name, "rights")) rights();
    else if (!strcmp(name, "system")) system_calls();
    else if (!strcmp(name, "threads")) threads();
    else if (!strcmp(name, "fork")) forks();
    else if (!strcmp(name, "vfork")) vforks();
    else if (!strcmp(name, "exec")) execs(words[0]);
    else if (!strcmp(name, "signal")) signals();
    else if (!strcmp(name, "descriptors")) descriptors();
    else if (!strcmp(name, "fixed")) fixed();
    else if (!strcmp(name, "unmapped")) unmapped();
    else if (!strcmp(name, "own-faults")) own_faults();
    else if (!strcmp(name, "crowd")) crowd();
    else if (!strcmp(name, "figures")) figures();
    else if (!strcmp(name, "ends")) ends(words[2]);
    else return 2;
    printf("%s kept\n", name);
    return 0;
}
