// Ranks: records are filled in order, then an index of them, which a merge sort puts in the order
// of the records' keys, and which the records are then read by. usage: ranks SEED RECORDS BYTES
#include "kernel.h"

static char *records;
static uint64_t bytes;

struct entry {
    char *record;
    uint64_t number;
};

static int before(const struct entry *a, const struct entry *b) {
    int order = memcmp(a->record, b->record, 16);
    return order < 0 || (order == 0 && a->number < b->number);
}

// Sorts `n` entries; `spare` has room for half of them.
static void merge_sort(struct entry *entries, struct entry *spare, uint64_t n) {
    if (n < 2) return;
    uint64_t half = n / 2, i = 0, j = half, at = 0;
    merge_sort(entries, spare, half);
    merge_sort(entries + half, spare, n - half);
    memcpy(spare, entries, half * sizeof *entries);
    while (i < half) {
        int second = j < n && before(&entries[j], &spare[i]);
        entries[at++] = second ? entries[j++] : spare[i++];
    }
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), n = argument(argc, argv, 2, 2000000);
    bytes = argument(argc, argv, 3, 64);
    if (bytes < 32) bytes = 32;
    records = allocate(n * bytes);
    for (uint64_t i = 0; i < n; i++) {
        char *record = records + i * bytes;
        for (int k = 0; k < 16; k++) record[k] = (char)('a' + random_below(&seed, 16));
        memset(record + 16, 'x', bytes - 24);
        memcpy(record + bytes - 8, &i, 8);
    }
    struct entry *entries = allocate(n * sizeof *entries);
    for (uint64_t i = 0; i < n; i++) entries[i] = (struct entry){records + i * bytes, i};
    struct entry *spare = allocate((n / 2 + 1) * sizeof *spare);
    merge_sort(entries, spare, n);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t number;
        memcpy(&number, entries[i].record + bytes - 8, 8);
        sum = sum * 31 + number;
    }
    printf("ranks %016lx\n", (unsigned long)sum);
    return 0;
}
