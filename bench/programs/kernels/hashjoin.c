// Hash join: builds a table over the smaller relation and probes it with the larger, whose keys are
// Zipf distributed. usage: hashjoin SEED BUILD_TUPLES PROBE_TUPLES THREADS
#include "kernel.h"

struct tuple { uint64_t key, value; };
static struct tuple *probe, *table;
static uint64_t mask;

static uint64_t slot_of(uint64_t key) { return (key * 0xff51afd7ed558ccdu >> 20) & mask; }

static void probe_share(struct share *s) {
    uint64_t sum = 0;
    for (uint64_t i = s->from; i < s->to; i++) {
        uint64_t at = slot_of(probe[i].key);
        while (table[at].key && table[at].key != probe[i].key) at = (at + 1) & mask;
        if (table[at].key) sum += table[at].value ^ probe[i].value;
    }
    s->result = sum;
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), n = argument(argc, argv, 2, 3 << 20);
    uint64_t m = argument(argc, argv, 3, 8 << 20), threads = argument(argc, argv, 4, 1);
    struct tuple *build = allocate(n * sizeof *build);
    for (uint64_t i = 0; i < n; i++) build[i] = (struct tuple){i * 2654435761u + 1,
        next_random(&seed)};
    probe = allocate(m * sizeof *probe);
    for (uint64_t i = 0; i < m; i++) {
        uint64_t rank = zipf_rank(&seed, n, 0.7);
        probe[i] = (struct tuple){rank * 2654435761u + (i % 8 != 0), next_random(&seed)};
    }
    for (mask = 1; mask < 2 * n;) mask <<= 1;
    table = calloc(mask, sizeof *table);
    if (!table) return 1;
    mask -= 1;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = slot_of(build[i].key);
        while (table[at].key) at = (at + 1) & mask;
        table[at] = build[i];
    }
    printf("hashjoin %016lx\n", (unsigned long)in_parallel(threads, m, seed, probe_share));
    return 0;
}
