/* A program that knows its accesses, for the compiler's hooks. Prints where its arrays lie. Ends
 * with status 7. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 4096
/* 0: each width, 1: atomics, 2: copied from, 3: copied to and filled, 4: a vectorised sum, 5: three
 * threads, 6: a child,
   7: compared */
static struct { _Alignas(64) volatile char bytes[N]; } a[8];

#define EACH(type) \
    for (int i = 0; i < 16; i++) \
        ((volatile type *)a[0].bytes)[i] = (type)(((volatile type *)a[0].bytes)[i + 1] + 1);

__attribute__((noinline)) static void widths(void)
{
    EACH(uint8_t) EACH(uint16_t) EACH(uint32_t) EACH(uint64_t)
}

__attribute__((noinline)) static void atomics(void)
{
    for (int i = 0; i < 100; i++)
        atomic_fetch_add((_Atomic uint32_t *)a[1].bytes, 1);
    uint64_t expected = 0;
    atomic_compare_exchange_strong((_Atomic uint64_t *)(a[1].bytes + 64), &expected, 5);
    if (atomic_load((_Atomic uint32_t *)a[1].bytes) != 100 || a[1].bytes[64] != 5)
        abort();
}

__attribute__((noinline)) static float sum(const float *restrict values, int n)
{
    float s = 0;
    for (int i = 0; i < n; i++)
        s += values[i];
    return s;
}

static void *work(void *nothing)
{
    for (int i = 0; i < 5000; i++)
        a[5].bytes[i % N] += 1;
    return nothing;
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? (size_t)atoi(argv[1]) : N;
    (void)argv;
    printf("%p %d\n", (void *)a, (int)sizeof a[0]);
    fflush(stdout);
    widths();
    atomics();
    /* Between them, so that the compiler does not leave out what is written over. */
    memcpy((char *)a[3].bytes, (char *)a[2].bytes, n);
    __asm__ volatile("" : : : "memory");
    memset((char *)a[3].bytes, 1, n);
    __asm__ volatile("" : : : "memory");
    memmove((char *)a[3].bytes + 1, (char *)a[2].bytes, n - 1);
    if (sum((float *)a[4].bytes, N / 4) != 0 || memcmp((char *)a[7].bytes, (char *)a[7].bytes + 8,
        n / 4) != 0)
        return 1;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    if (fork() == 0) {
        for (int i = 0; i < 1000; i++)
            a[6].bytes[i] = 1;
        _exit(0);
    }
    wait(NULL);
    char *heap = malloc(100000);
    *(volatile char *)(heap + 5) = (char)argc;
    free(heap);
    return 7;
}
