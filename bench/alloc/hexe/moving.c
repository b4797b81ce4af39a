/* Moving data between two nodes: an arena as a whole, one move_pages with all of its pages, and
 * memmove to memory that is there already (SICM, section 4.1).
 *   moving FROM TO MIB...
 * Prints "MIB arena SECONDS move_pages SECONDS memmove SECONDS", there and back, medians of three,
 * base pages. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <terrace.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, ROUNDS = 3, MPOL_BIND = 2 };

static void check(int bad, const char *what)
{
    if (bad) {
        fprintf(stderr, "%s: %s\n", what, terrace_last_error());
        exit(1);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times)
{
    qsort(times, ROUNDS, sizeof *times, by_value);
    return times[ROUNDS / 2];
}

/* Every page moved by one call; how long it took. */
static double by_one_call(char *block, size_t pages, int node)
{
    void **at = malloc(pages * sizeof *at);
    int *to = malloc(pages * sizeof *to), *status = malloc(pages * sizeof *status);
    check(!at || !to || !status, "malloc");
    for (size_t i = 0; i < pages; i++) {
        at[i] = block + i * PAGE;
        to[i] = node;
        status[i] = -1;
    }
    double began = now();
    long failed = syscall(SYS_move_pages, 0, pages, at, to, status, 2 /* MPOL_MF_MOVE */);
    double took = now() - began;
    check(failed != 0, "move_pages");
    for (size_t i = 0; i < pages; i++)
        check(status[i] != node, "a page stayed");
    free(at);
    free(to);
    free(status);
    return took;
}

/* The arena moved as a whole; how long it took. */
static double as_arena(terrace_arena *arena, size_t pages, uint32_t node)
{
    terrace_moved moved;
    double began = now();
    check(terrace_arena_set_device(arena, TERRACE_DEVICES_PREFER, &node, 1, TERRACE_MOVE_PARTIAL,
        &moved), "move");
    double took = now() - began;
    check(moved.moved < pages, "pages stayed");
    return took;
}

static char *touched_on(size_t bytes, unsigned node)
{
    unsigned long mask = 1ul << node;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(at == MAP_FAILED, "mmap");
    check(syscall(SYS_mbind, at, bytes, MPOL_BIND, &mask, 64, 0) != 0, "mbind");
    memset(at, 1, bytes);
    return at;
}

static void one_size(uint32_t from, uint32_t to, size_t mib)
{
    size_t bytes = mib << 20;
    double arena_times[ROUNDS], call_times[ROUNDS], copy_times[ROUNDS];
    terrace_arena *arena;
    check(terrace_arena_create(0, TERRACE_DEVICES_PREFER, &from, 1, 0, "moving", &arena), "arena");
    char *block = terrace_arena_alloc(arena, bytes);
    check(block == NULL || (uintptr_t)block % PAGE, "block");
    memset(block, 1, bytes);
    for (int round = 0; round < ROUNDS; round++) {
        /* The same pages the same ways: which node is written to matters. */
        arena_times[round] = as_arena(arena, bytes / PAGE, to);
        call_times[round] = by_one_call(block, bytes / PAGE, (int)from);
        call_times[round] += by_one_call(block, bytes / PAGE, (int)to);
        arena_times[round] += as_arena(arena, bytes / PAGE, from);
    }
    terrace_arena_destroy(arena);
    char *here = touched_on(bytes, from), *there = touched_on(bytes, to);
    for (int round = 0; round < ROUNDS; round++) {
        double began = now();
        memmove(there, here, bytes);
        memmove(here, there, bytes);
        copy_times[round] = now() - began;
    }
    munmap(here, bytes);
    munmap(there, bytes);
    printf("%zu arena %.6f move_pages %.6f memmove %.6f\n", mib, median(arena_times),
        median(call_times), median(copy_times));
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: moving FROM TO MIB...\n");
        return 2;
    }
    check(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "prctl");
    for (int i = 3; i < argc; i++)
        one_size((uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), strtoul(argv[i], NULL, 10));
    return 0;
}
