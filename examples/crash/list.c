/*
 * A persistent list: nodes are written and persistent before the head points at them.
 *
 *     cc -O2 -g -I.../include list.c -o list             correct
 *     cc -DBUG=1 ...                                      the node is not flushed
 *     cc -DBUG=2 ...                                      the head points at the node first
 *     cc -DBUG=3 ...                                      the node is written after its flush
 *     cc -DBUG=4 ...                                      the node is flushed twice: slow, correct
 *     terrace crash check -- ./list
 */
#include "pm.h"

#define NODES 12

struct node {
    uint64_t value;
    uint64_t next; /* number of a node, from 1; 0 at the end */
    uint64_t checksum;
    char pad[PM_LINE - 24];
};

static struct {
    uint64_t head;
    char pad[PM_LINE - 8];
    struct node nodes[NODES];
} pool __attribute__((aligned(64)));

static void push(uint64_t number, uint64_t value)
{
    struct node *node = &pool.nodes[number - 1];
#if BUG == 2
    uint64_t old = pool.head;
    PM_SET(pool.head, number);
    pm_persist(&pool.head, sizeof pool.head);
    PM_SET(node->next, old);
#else
    PM_SET(node->next, pool.head);
#endif
    PM_SET(node->value, value);
#if BUG != 3
    PM_SET(node->checksum, pm_checksum(value, node->next));
#endif
#if BUG != 1
    pm_flush(node, sizeof *node);
#endif
#if BUG == 4
    pm_flush(node, sizeof *node);
#endif
#if BUG == 3
    PM_SET(node->checksum, pm_checksum(value, node->next));
#endif
    pm_fence();
#if BUG != 2
    PM_SET(pool.head, number);
    pm_persist(&pool.head, sizeof pool.head);
#endif
}

/* Every node that can be reached is whole, and none is reached twice. */
static int is_whole(void)
{
    uint64_t at = pool.head, steps = 0;
    while (at) {
        const struct node *node = &pool.nodes[at - 1];
        if (at > NODES || ++steps > NODES || node->checksum != pm_checksum(node->value,
            node->next)) {
            printf("node %llu is not whole\n", (unsigned long long)at);
            return 0;
        }
        at = node->next;
    }
    return steps == pool.head;
}

int main(void)
{
    uint64_t i;
    critical_data(&pool, "char", sizeof pool);
    crash_restore();
    if (pm_restarted())
        return !is_whole();
    start_crash();
    for (i = 1; i <= NODES; i++)
        push(i, 100 + i);
    end_crash();
    return !is_whole();
}
