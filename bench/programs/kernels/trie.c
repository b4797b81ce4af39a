// Trie of random keys, four bits a level, made key by key; then looked up with Zipf ranks.
// usage: trie SEED KEYS LOOKUPS THREADS
#include "kernel.h"

enum { WAYS = 16, LEVELS = 8 };

static uint32_t (*nodes)[WAYS];
static uint64_t keys, seed_of_keys;

static uint32_t key_of(uint64_t rank) {
    uint64_t state = seed_of_keys + rank;
    return (uint32_t)next_random(&state);
}

static void look_up_share(struct share *s) {
    uint64_t state = s->seed, sum = 0;
    for (uint64_t i = s->from; i < s->to; i++) {
        uint32_t key = key_of(zipf_rank(&state, keys, 0.9)), at = 0;
        for (int level = 0; level < LEVELS; level++) at = nodes[at][key >> 4 * level & 15];
        sum += at;
    }
    s->result = sum;
}

int main(int argc, char **argv) {
    seed_of_keys = argument(argc, argv, 1, 1);
    keys = argument(argc, argv, 2, 1 << 20);
    uint64_t lookups = argument(argc, argv, 3, 4 << 20), threads = argument(argc, argv, 4, 1);
    // A key adds at most a node for each level but the last, whose entries are values.
    uint64_t used = 1, most = keys * (LEVELS - 1) + 1;
    nodes = allocate(most * sizeof *nodes);
    memset(nodes[0], 0, sizeof *nodes);
    for (uint64_t rank = 0; rank < keys; rank++) {
        uint32_t key = key_of(rank), at = 0;
        for (int level = 0; level < LEVELS - 1; level++) {
            uint32_t *next = &nodes[at][key >> 4 * level & 15];
            if (!*next) {
                memset(nodes[used], 0, sizeof *nodes);
                *next = (uint32_t)used++;
            }
            at = *next;
        }
        nodes[at][key >> 4 * (LEVELS - 1)] = (uint32_t)rank + 1;
    }
    uint64_t sum = in_parallel(threads, lookups, seed_of_keys, look_up_share);
    printf("trie %016lx\n", (unsigned long)(sum ^ used));
    return 0;
}
