#define _GNU_SOURCE
#include "place.h"
#include <memkind.h>
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <terrace.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ARRAYS = 16, MOST_NODES = 64, SAMPLE = 7, BATCH = 1024, PAGE = 4096 };

static enum { MALLOC, MEMKIND, TERRACE, ARENA } how;
static const char *kinds;
static terrace_memory *memory;
static terrace_arena *arena;
static struct {
    const char *name;
    char *at;
    size_t bytes;
} arrays[MOST_ARRAYS];
static int count;

static void give_up(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(int code, const char *what)
{
    if (code != TERRACE_OK)
        give_up(what, terrace_last_error());
}

void place_open(const char *text)
{
    if (strcmp(text, "malloc") == 0) {
        how = MALLOC;
    } else if (strncmp(text, "memkind:", 8) == 0) {
        how = MEMKIND;
        kinds = text + 8;
    } else if (strcmp(text, "terrace") == 0) {
        how = TERRACE;
        check(terrace_memory_create(&memory), "terrace_memory_create");
    } else if (strncmp(text, "arena:", 6) == 0) {
        how = ARENA;
        uint32_t nodes[MOST_NODES];
        size_t known = 0;
        for (const char *at = text + 5; at != NULL && known < MOST_NODES; at = strchr(at + 1, ','))
            nodes[known++] = (uint32_t)atoi(at + 1);
        check(terrace_arena_create(0, TERRACE_DEVICES_SPILL, nodes, known, 0, "arrays", &arena),
            "terrace_arena_create");
    } else {
        give_up(text, "give malloc, terrace, arena:NODE,... or memkind:KIND,...");
    }
}

static memkind_t next_kind(void)
{
    static const struct {
        const char *name;
        memkind_t *kind;
    } known[] = {
        {"default", &MEMKIND_DEFAULT},
        {"hbw", &MEMKIND_HBW},
        {"hbw-all", &MEMKIND_HBW_ALL},
        {"hbw-preferred", &MEMKIND_HBW_PREFERRED},
        {"hbw-interleave", &MEMKIND_HBW_INTERLEAVE},
        {"interleave", &MEMKIND_INTERLEAVE},
    };
    size_t len = strcspn(kinds, ",");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) == len && strncmp(known[i].name, kinds, len) == 0) {
            if (kinds[len] == ',')
                kinds += len + 1;
            return *known[i].kind;
        }
    }
    give_up(kinds, "no such kind");
    return NULL;
}

static void *by_terrace(const char *name, size_t bytes, unsigned priority, double reads,
    double writes)
{
    terrace_attr *wish;
    void *at = NULL;
    check(terrace_attr_create(&wish), name);
    check(terrace_attr_add_class(wish, TERRACE_CLASS_FASTEST, TERRACE_INDEX_ALL), name);
    check(terrace_attr_set_binding(wish, TERRACE_BIND_ON_COMMIT), name);
    check(terrace_attr_set_priority(wish, priority), name);
    check(terrace_attr_set_intensity(wish, reads, writes), name);
    check(terrace_attr_set_name(wish, name), name);
    check(terrace_memory_alloc(memory, bytes, wish, &at), name);
    terrace_attr_destroy(wish);
    return at;
}

void *place_array(const char *name, size_t bytes, unsigned priority, double reads, double writes)
{
    void *at = NULL;
    switch (how) {
    case MALLOC:
        at = malloc(bytes);
        break;
    case MEMKIND:
        at = memkind_malloc(next_kind(), bytes);
        break;
    case ARENA:
        at = terrace_arena_alloc(arena, bytes);
        break;
    case TERRACE:
        at = by_terrace(name, bytes, priority, reads, writes);
        break;
    }
    if (at == NULL)
        give_up(name, "no memory");
    if (count < MOST_ARRAYS) {
        arrays[count].name = name;
        arrays[count].at = at;
        arrays[count++].bytes = bytes;
    }
    return at;
}

void place_commit(void)
{
    if (how != TERRACE)
        return;
    terrace_report *report;
    check(terrace_memory_commit(memory, TERRACE_COMMIT_EPOCH, &report), "terrace_memory_commit");
    for (size_t at = 0; at < terrace_report_count(report); at++) {
        terrace_row row;
        check(terrace_report_row(report, at, &row), "terrace_report_row");
        fprintf(stderr, "%s: %s\n", row.name, row.why);
    }
    terrace_report_destroy(report);
}

void place_show(void)
{
    static void *pages[BATCH];
    static int nodes[BATCH];
    for (int a = 0; a < count; a++) {
        size_t on[MOST_NODES] = {0}, all = arrays[a].bytes / PAGE / SAMPLE, seen = 0;
        char *at = (char *)(((uintptr_t)arrays[a].at + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
        for (size_t first = 0; first < all; first += BATCH) {
            size_t n = all - first < BATCH ? all - first : BATCH;
            for (size_t i = 0; i < n; i++)
                pages[i] = at + (first + i) * SAMPLE * PAGE;
            if (syscall(SYS_move_pages, 0, n, pages, NULL, nodes, 0) != 0)
                continue;
            for (size_t i = 0; i < n; i++) {
                if (nodes[i] >= 0 && nodes[i] < MOST_NODES)
                    on[nodes[i]]++, seen++;
            }
        }
        printf("where %s", arrays[a].name);
        for (int node = 0; node < MOST_NODES; node++) {
            if (on[node])
                printf(" %d:%.1f%%", node, 100.0 * (double)on[node] / (double)seen);
        }
        printf("\n");
    }
}

void place_threads(int threads)
{
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
#pragma omp parallel
    {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(omp_get_thread_num(), &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0)
            give_up("sched_setaffinity", "there is no CPU for each thread");
    }
}

/* nopl imm32(%rax), as crates/workload has it. */
void place_mark_begin(void)
{
    __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x7e44a001" ::: "memory");
}

void place_mark_end(void)
{
    __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x7e44a002" ::: "memory");
}

double place_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
