/* An arena: small blocks whose pages move together, while the program goes on. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <terrace.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, terrace_last_error());             \
            return 1;                                                                     \
        }                                                                                 \
    } while (0)

int main(void) {
    enum { BLOCKS = 10000 };
    static char *blocks[BLOCKS];
    const uint32_t node = 0;
    terrace_arena *arena;
    CHECK(terrace_arena_create(64u << 20, TERRACE_DEVICES_PREFER, NULL, 0, 0, "tree", &arena) ==
        TERRACE_OK);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = terrace_arena_alloc(arena, 100);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], i, 100);
    }
    CHECK(terrace_arena_lookup(blocks[17]) == arena);
    terrace_arena *first;
    CHECK(terrace_arena_list(&first, 1) == 1 && first == arena);

    terrace_moved moved;
    terrace_move *moving;
    uint64_t done, total;
    CHECK(terrace_arena_set_device(arena, TERRACE_DEVICES_PREFER, &node, 1, TERRACE_MOVE_PARTIAL,
        &moved) == TERRACE_OK);
    printf("%llu pages, %llu moved, %llu there already\n", (unsigned long long)moved.pages,
           (unsigned long long)moved.moved, (unsigned long long)moved.already);
    CHECK(moved.pages > 0 && moved.stayed == 0);
    CHECK(terrace_arena_set_device_async(arena, TERRACE_DEVICES_PREFER, &node, 1,
        TERRACE_MOVE_STRICT, &moving) == 0);
    char *more = terrace_arena_calloc(arena, 10, 10); /* goes on working */
    CHECK(more != NULL && more[99] == 0);
    int state = terrace_move_poll(moving, &done, &total);
    CHECK(state == TERRACE_OK || state == TERRACE_E_AGAIN);
    CHECK(terrace_move_wait(moving, &moved) == TERRACE_OK);

    more = terrace_arena_realloc(arena, more, 5000);
    CHECK(more != NULL && more[50] == 0);
    void *aligned = terrace_arena_aligned(arena, 4096, 100);
    CHECK(aligned != NULL && (uintptr_t)aligned % 4096 == 0);
    CHECK(terrace_arena_aligned(arena, 48, 100) == NULL);
    CHECK(terrace_arena_calloc(arena, SIZE_MAX / 2, 3) == NULL);
    CHECK(terrace_arena_alloc(arena, 100u << 20) == NULL);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i][99] == (char)i);
        CHECK(terrace_arena_free(blocks[i]) == TERRACE_OK);
    }
    CHECK(terrace_arena_free(blocks[0]) == TERRACE_E_NOT_OURS);
    CHECK(terrace_arena_free((void *)blocks) == TERRACE_E_NOT_OURS);
    CHECK(terrace_arena_destroy(arena) == TERRACE_OK);
    CHECK(terrace_arena_destroy(arena) == TERRACE_E_DESTROYED);
    CHECK(terrace_arena_alloc(arena, 1) == NULL);
    return 0;
}
