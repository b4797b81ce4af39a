/*
 * A persistent log: a record is persistent before the log's length covers it.
 *
 *     cc -O2 -g -I.../include log.c -o log               correct
 *     cc -DBUG=1 ...                                      length and record are flushed together
 *     cc -DBUG=2 ...                                      the last fence is missing
 *     cc -DBUG=3 ...                                      the length is never flushed
 *     terrace crash check -- ./log
 */
#include "pm.h"

#define RECORDS 10

struct record {
    uint64_t size;
    uint64_t data[13]; /* longer than a line */
    uint64_t checksum;
};

static struct {
    uint64_t length;
    char pad[PM_LINE - 8];
    struct record records[RECORDS];
} pool __attribute__((aligned(64)));

static uint64_t sum_of(const struct record *record)
{
    uint64_t sum = record->size, i;
    for (i = 0; i < 13; i++)
        sum = pm_checksum(sum, record->data[i]);
    return sum;
}

static void append(uint64_t number)
{
    struct record *record = &pool.records[number], whole;
    uint64_t i;
    whole.size = number + 1;
    for (i = 0; i < 13; i++)
        whole.data[i] = number * 1000 + i;
    whole.checksum = sum_of(&whole);
    PM_SET(record->size, whole.size);
    for (i = 0; i < 13; i++)
        PM_SET(record->data[i], whole.data[i]);
    PM_SET(record->checksum, whole.checksum);
    pm_flush(record, sizeof *record);
#if BUG != 1
    pm_fence();
#endif
    PM_SET(pool.length, number + 1);
#if BUG != 3
    pm_flush(&pool.length, sizeof pool.length);
#endif
#if BUG == 2
    if (number + 1 < RECORDS)
#endif
        pm_fence();
}

static int is_whole(void)
{
    uint64_t i;
    if (pool.length > RECORDS)
        return 0;
    for (i = 0; i < pool.length; i++)
        if (pool.records[i].size != i + 1 || pool.records[i].checksum != sum_of(&pool.records[i])) {
            printf("record %llu is not whole\n", (unsigned long long)i);
            return 0;
        }
    return 1;
}

int main(void)
{
    uint64_t i;
    critical_data(&pool, "char", sizeof pool);
    crash_restore();
    if (pm_restarted())
        return !is_whole();
    start_crash();
    for (i = 0; i < RECORDS; i++)
        append(i);
    end_crash();
    return !is_whole();
}
