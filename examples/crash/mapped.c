/*
 * A log in a file that is mapped as persistent memory, with the processor's own instructions and
 * without terrace_crash.h: a record is persistent before the count says so. The count is written by
 * a non-temporal store.
 *
 *     cc -O2 -g mapped.c -o mapped                       correct
 *     cc -DBUG=1 ...                                     the record is not flushed
 *     cc -DBUG=2 ...                                     the count comes before the record
 *     terrace crash check --mapped log.pm -- ./mapped log.pm
 */
#include <emmintrin.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef BUG
#define BUG 0
#endif

#define RECORDS 6

struct record {
    uint64_t value, checksum;
    char pad[48];
};

struct log {
    long long count;
    char pad[56];
    struct record records[RECORDS];
};

static uint64_t checksum(uint64_t value)
{
    return (value + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

__attribute__((target("clwb"))) static void write_back(void *line)
{
    __builtin_ia32_clwb(line);
}

static void flush(void *line)
{
    if (__builtin_cpu_supports("clwb"))
        write_back(line);
    else
        _mm_clflush(line);
}

static void append(struct log *log)
{
    struct record *record = &log->records[log->count];
    uint64_t value = 100 + (uint64_t)log->count;
#if BUG == 2
    _mm_stream_si64(&log->count, log->count + 1);
    _mm_sfence();
#endif
    *(volatile uint64_t *)&record->value = value;
    *(volatile uint64_t *)&record->checksum = checksum(value);
#if BUG != 1
    flush(record);
#endif
    _mm_sfence();
#if BUG != 2
    _mm_stream_si64(&log->count, log->count + 1);
    _mm_sfence();
#endif
}

/* Every record that the count covers is whole. */
static int is_whole(const struct log *log)
{
    long long i;
    if (log->count < 0 || log->count > RECORDS)
        return 0;
    for (i = 0; i < log->count; i++)
        if (log->records[i].checksum != checksum(log->records[i].value))
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    struct log *log;
    int file;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    file = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, sizeof *log)) {
        perror(argv[1]);
        return 2;
    }
    log = mmap(NULL, sizeof *log, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (log == MAP_FAILED) {
        perror(argv[1]);
        return 2;
    }
    if (!is_whole(log)) {
        printf("a record is not whole\n");
        return 1;
    }
    while (log->count < RECORDS)
        append(log);
    return !is_whole(log);
}
