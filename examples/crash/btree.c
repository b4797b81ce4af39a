/*
 * A persistent B-tree of two levels. Leaves are not sorted; eight bytes say which of their places
 * count, so that one store adds a key. A full leaf is split into two new ones, and one store of
 * eight bytes switches to a new root.
 *
 *     cc -O2 -g -I.../include btree.c -o btree           correct
 *     cc -DBUG=1 ...                                      the key counts before it is persistent
 *     cc -DBUG=2 ...                                      a split's new leaf is not flushed
 *     cc -DBUG=3 ...                                      the new root is not flushed
 *     terrace crash check -- ./btree
 */
#include "pm.h"

#define PLACES 7 /* a leaf is a line */
#define LEAVES 24
#define ROOTS 24
#define FANOUT 14
#define KEYS 20

struct leaf {
    uint64_t used; /* a bit for each place */
    uint64_t keys[PLACES];
};

struct root {
    uint64_t count;
    struct {
        uint64_t leaf;
        uint64_t least; /* the least key that belongs there; of the first, 0 */
    } entries[FANOUT];
    char pad[PM_LINE * 4 - 8 * (1 + 2 * FANOUT)];
};

static struct {
    uint64_t root;
    char pad[PM_LINE - 8];
    struct leaf leaves[LEAVES];
    struct root roots[ROOTS];
} pool __attribute__((aligned(64)));

/* Volatile: what a restart would find out by a walk. */
static uint64_t next_leaf = 1, next_root = 1;

static uint64_t place_of(const struct root *root, uint64_t key)
{
    uint64_t at = root->count - 1;
    while (at && root->entries[at].least > key)
        at--;
    return at;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void fill(struct leaf *leaf, const uint64_t *keys, uint64_t count)
{
    uint64_t i;
    for (i = 0; i < count; i++)
        PM_SET(leaf->keys[i], keys[i]);
    PM_SET(leaf->used, (UINT64_C(1) << count) - 1);
#if BUG == 2
    if (leaf == &pool.leaves[next_leaf - 1])
        return;
#endif
    pm_flush(leaf, sizeof *leaf);
}

static void split(uint64_t at)
{
    const struct root *old = &pool.roots[pool.root];
    struct root *new = &pool.roots[next_root++];
    uint64_t keys[PLACES], first = next_leaf++, second = next_leaf++, i, from = 0;
    memcpy(keys, pool.leaves[old->entries[at].leaf].keys, sizeof keys);
    qsort(keys, PLACES, sizeof *keys, by_value);
    fill(&pool.leaves[first], keys, PLACES / 2);
    fill(&pool.leaves[second], keys + PLACES / 2, PLACES - PLACES / 2);
    for (i = 0; i < old->count + 1; i++) {
        uint64_t leaf = i == at ? first : i == at + 1 ? second : old->entries[from].leaf;
        uint64_t least = i == at + 1 ? keys[PLACES / 2] : old->entries[from].least;
        PM_SET(new->entries[i].leaf, leaf);
        PM_SET(new->entries[i].least, least);
        from += i != at;
    }
    PM_SET(new->count, old->count + 1);
#if BUG != 3
    pm_flush(new, 8 + new->count * sizeof new->entries[0]);
#endif
    pm_fence();
    PM_SET(pool.root, (uint64_t)(new - pool.roots));
    pm_persist(&pool.root, sizeof pool.root);
}

static void insert(uint64_t key)
{
    const struct root *root = &pool.roots[pool.root];
    uint64_t at = place_of(root, key), place = 0;
    struct leaf *leaf = &pool.leaves[root->entries[at].leaf];
    if (leaf->used == (UINT64_C(1) << PLACES) - 1) {
        split(at);
        insert(key);
        return;
    }
    while (leaf->used >> place & 1)
        place++;
#if BUG == 1
    PM_SET(leaf->used, leaf->used | UINT64_C(1) << place);
    pm_persist(leaf, sizeof *leaf);
    PM_SET(leaf->keys[place], key);
#else
    /* One line: its stores become persistent in order. */
    PM_SET(leaf->keys[place], key);
    PM_SET(leaf->used, leaf->used | UINT64_C(1) << place);
#endif
    pm_persist(leaf, sizeof *leaf);
}

static uint64_t key_of(uint64_t i)
{
    return i * 37 % 101 + 1;
}

/* The keys are the first so many of those inserted, each in the leaf where it is looked for. */
static int is_whole(void)
{
    const struct root *root = &pool.roots[pool.root < ROOTS ? pool.root : 0];
    uint64_t found = 0, i, j, k, expected;
    if (pool.root >= ROOTS || root->count < 1 || root->count > FANOUT)
        return 0;
    for (i = 0; i < root->count; i++) {
        const struct leaf *leaf = &pool.leaves[root->entries[i].leaf < LEAVES ?
            root->entries[i].leaf : 0];
        for (j = 0; j < PLACES; j++) {
            if (!(leaf->used >> j & 1))
                continue;
            if (place_of(root, leaf->keys[j]) != i)
                return 0;
            found++;
        }
    }
    for (expected = 0; expected < found; expected++) {
        uint64_t key = key_of(expected);
        const struct leaf *leaf = &pool.leaves[root->entries[place_of(root, key)].leaf];
        for (k = 0; k < PLACES && !((leaf->used >> k & 1) && leaf->keys[k] == key); k++)
            ;
        if (k == PLACES) {
            printf("key %llu is lost\n", (unsigned long long)key);
            return 0;
        }
    }
    return found <= KEYS;
}

int main(void)
{
    uint64_t i;
    critical_data(&pool, "char", sizeof pool);
    pool.roots[0].count = 1;
    crash_restore();
    if (pm_restarted())
        return !is_whole();
    start_crash();
    for (i = 0; i < KEYS; i++)
        insert(key_of(i));
    end_crash();
    return !is_whole();
}
