// Counts of the records of a log by their key, in a table of open addresses that doubles when it is
// three quarters full; then questions for the counts of some. Keys have Zipf frequencies.
// The table has SLOTS (a power of 2) at first.
// usage: counts SEED RECORDS KEYS QUESTIONS THREADS [SLOTS]
#include "kernel.h"

struct record {
    uint64_t key, time, value;
};
struct entry {
    uint64_t key;
    uint32_t count, last;
};

static struct entry *table;
static uint64_t slots, keys;

static uint64_t key_of(uint64_t rank) {
    uint64_t state = rank;
    return next_random(&state) | 1;
}

static struct entry *find(struct entry *in, uint64_t many, uint64_t key) {
    uint64_t at = key >> 20 & (many - 1);
    while (in[at].key && in[at].key != key) at = (at + 1) & (many - 1);
    return &in[at];
}

static void twice(void) {
    struct entry *more = calloc(2 * slots, sizeof *more);
    if (!more) exit(1);
    for (uint64_t i = 0; i < slots; i++)
        if (table[i].key) *find(more, 2 * slots, table[i].key) = table[i];
    free(table);
    table = more;
    slots *= 2;
}

static void ask_share(struct share *s) {
    uint64_t state = s->seed, sum = 0;
    for (uint64_t i = s->from; i < s->to; i++)
        sum += find(table, slots, key_of(zipf_rank(&state, keys, 0.6)))->count;
    s->result = sum;
}

int main(int argc, char **argv) {
    uint64_t state = argument(argc, argv, 1, 1), records = argument(argc, argv, 2, 6000000);
    keys = argument(argc, argv, 3, 4000000);
    uint64_t questions = argument(argc, argv, 4, 6000000), threads = argument(argc, argv, 5, 1);
    struct record *log = allocate(records * sizeof *log);
    for (uint64_t i = 0; i < records; i++)
        log[i] = (struct record){key_of(zipf_rank(&state, keys, 0.6)), i, next_random(&state)};
    slots = argument(argc, argv, 6, 1024);
    if (!slots || slots & (slots - 1)) {
        fprintf(stderr, "%lu slots: give a power of 2\n", (unsigned long)slots);
        return 1;
    }
    table = calloc(slots, sizeof *table);
    if (!table) return 1;
    uint64_t used = 0;
    for (uint64_t i = 0; i < records; i++) {
        if (used * 4 > slots * 3) twice();
        struct entry *at = find(table, slots, log[i].key);
        used += !at->key;
        *at = (struct entry){log[i].key, at->count + 1, (uint32_t)log[i].time};
    }
    uint64_t sum = in_parallel(threads, questions, state, ask_share);
    printf("counts %016lx\n", (unsigned long)(sum ^ used << 32));
    return 0;
}
