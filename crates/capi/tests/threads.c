/* Threads that allocate, hand blocks to one another, free each other's and share handles; for the
 * thread sanitizer too. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace.h>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
/* The library itself is not instrumented. What it promises is said here, for each 16 bytes since
 * blocks are cut anew: the old life of memory ends before its next begins. */
static void ends(char *block, size_t bytes) { for (size_t at = 0; at < bytes; at +=
    16) __tsan_release(block + at); }
static void begins(char *block, size_t bytes) { for (size_t at = 0; at < bytes; at +=
    16) __tsan_acquire(block + at); }
#else
static void ends(char *block, size_t bytes) { (void)block, (void)bytes; }
static void begins(char *block, size_t bytes) { (void)block, (void)bytes; }
#endif

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "line %d: %s\n", __LINE__, terrace_last_error());           \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

enum { THREADS = 4, ROUNDS = 4000, SLOTS = 64 };

static terrace_arena *arena;
static terrace_memory *memory;
static terrace_shared *shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint32_t *block; size_t words; uint32_t sign; } slots[SLOTS];

static void end(uint32_t *block, size_t words, uint32_t sign) {
    if (block == NULL) return;
    CHECK(block[0] == sign && block[words - 1] == sign);
    ends((char *)block, words * sizeof *block);
    CHECK(terrace_arena_free(block) == TERRACE_OK);
}

static void *work(void *number) {
    uint32_t x = 1 + (uint32_t)(uintptr_t)number;
    for (int round = 0; round < ROUNDS; round++) {
        x = x * 1664525u + 1013904223u;
        size_t words = 4 + (x >> 8) % 600;
        uint32_t *block = terrace_arena_alloc(arena, words * sizeof *block);
        CHECK(block != NULL);
        begins((char *)block, words * sizeof *block);
        block[0] = block[words - 1] = x;
        /* Put it into a slot; what was there, mostly of another thread, ends here. */
        pthread_mutex_lock(&lock);
        int slot = (x >> 4) % SLOTS;
        uint32_t *old = slots[slot].block, sign = slots[slot].sign;
        size_t old_words = slots[slot].words;
        slots[slot].block = block, slots[slot].words = words, slots[slot].sign = x;
        pthread_mutex_unlock(&lock);
        end(old, old_words, sign);
        if (round % 50 == 0) {
            char *page, *between = terrace_shared_alloc(shared, words, 64);
            CHECK(between != NULL);
            begins(between, words);
            memset(between, (int)x, words);
            ends(between, words);
            CHECK(terrace_shared_free(shared, between) == TERRACE_OK);
            CHECK(terrace_memory_alloc(memory, words * 100, NULL, (void **)&page) == TERRACE_OK);
            begins(page, words * 100);
            memset(page, (int)x, words * 100);
            ends(page, words * 100);
            CHECK(terrace_memory_free(memory, page) == TERRACE_OK);
        }
        if (round % 1000 == 0) {
            /* Two threads may want to move it at once: one is told so. */
            int code = terrace_arena_set_device(arena, TERRACE_DEVICES_PREFER, NULL, 0,
                TERRACE_MOVE_PARTIAL, NULL);
            CHECK(code == TERRACE_OK || code == TERRACE_E_BUSY);
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    CHECK(terrace_arena_create(0, TERRACE_DEVICES_PREFER, NULL, 0, 0, "threads", &arena) ==
        TERRACE_OK);
    CHECK(terrace_memory_create(&memory) == TERRACE_OK);
    CHECK(terrace_shared_create(NULL, 1 << 20, TERRACE_DEVICES_PREFER, NULL, 0, 0, &shared) ==
        TERRACE_OK);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SLOTS; i++) end(slots[i].block, slots[i].words, slots[i].sign);
    terrace_shared_close(shared);
    terrace_memory_destroy(memory);
    CHECK(terrace_arena_destroy(arena) == TERRACE_OK);
    puts("all as expected");
    return 0;
}
