// B-tree lookups with Zipf keys: an index over records, filled in random order.
// usage: btree SEED LOG2_KEYS LOOKUPS THREADS
#include "kernel.h"

enum { KEYS = 15 };
struct node {
    uint64_t keys[KEYS];
    void *below[KEYS + 1];
    uint32_t count, leaf;
};
struct record { uint64_t key; uint64_t fields[15]; };

static struct node *root;
static struct record *records;
static uint64_t keys;

static struct node *new_node(uint32_t leaf) {
    struct node *node = allocate(sizeof *node);
    node->count = 0;
    node->leaf = leaf;
    return node;
}

static uint32_t position(const struct node *node, uint64_t key) {
    uint32_t at = 0;
    while (at < node->count && node->keys[at] <= key) at++;
    return at;
}

// Splits the full child `at` of `parent`.
static void split(struct node *parent, uint32_t at) {
    struct node *left = parent->below[at], *right = new_node(left->leaf);
    uint32_t half = KEYS / 2, moved = left->leaf ? KEYS - half : KEYS - half - 1;
    uint64_t key = left->keys[half];
    memcpy(right->keys, left->keys + KEYS - moved, moved * sizeof(uint64_t));
    if (left->leaf) {
        memcpy(right->below, left->below + half, moved * sizeof(void *));
    } else {
        memcpy(right->below, left->below + half + 1, (moved + 1) * sizeof(void *));
    }
    right->count = moved;
    left->count = half;
    memmove(parent->keys + at + 1, parent->keys + at, (parent->count - at) * sizeof(uint64_t));
    memmove(parent->below + at + 2, parent->below + at + 1, (parent->count - at) * sizeof(void *));
    parent->keys[at] = key;
    parent->below[at + 1] = right;
    parent->count++;
}

static void insert(uint64_t key, struct record *record) {
    if (root->count == KEYS) {
        struct node *above = new_node(0);
        above->below[0] = root;
        root = above;
        split(root, 0);
    }
    struct node *node = root;
    while (!node->leaf) {
        uint32_t at = position(node, key);
        if (((struct node *)node->below[at])->count == KEYS) {
            split(node, at);
            at = position(node, key);
        }
        node = node->below[at];
    }
    uint32_t at = position(node, key);
    memmove(node->keys + at + 1, node->keys + at, (node->count - at) * sizeof(uint64_t));
    memmove(node->below + at + 1, node->below + at, (node->count - at) * sizeof(void *));
    node->keys[at] = key;
    node->below[at] = record;
    node->count++;
}

static uint64_t lookup(uint64_t key) {
    const struct node *node = root;
    while (!node->leaf) node = node->below[position(node, key)];
    uint32_t at = position(node, key);
    if (at == 0 || node->keys[at - 1] != key) return 0;
    const struct record *record = node->below[at - 1];
    return record->fields[key % 15];
}

static void look_up_share(struct share *s) {
    uint64_t sum = 0;
    for (uint64_t i = s->from; i < s->to; i++) {
        sum += lookup(scatter(zipf_rank(&s->seed, keys, 0.9), keys));
    }
    s->result = sum;
}

int main(int argc, char **argv) {
    uint64_t seed = argument(argc, argv, 1, 1), log2 = argument(argc, argv, 2, 21);
    uint64_t lookups = argument(argc, argv, 3, 4 << 20), threads = argument(argc, argv, 4, 1);
    keys = 1ull << log2;
    records = allocate(keys * sizeof *records);
    root = new_node(1);
    uint64_t odd = next_random(&seed) | 1;
    for (uint64_t i = 0; i < keys; i++) {
        struct record *record = &records[i];
        record->key = (i * odd) & (keys - 1);
        for (int f = 0; f < 15; f++) record->fields[f] = record->key * 31 + (uint64_t)f;
        insert(record->key, record);
    }
    printf("btree %016lx\n", (unsigned long)in_parallel(threads, lookups, seed, look_up_share));
    return 0;
}
