/* Threads and a forked child, each with a known number of accesses to an array of its own; says
 * where the arrays are. */
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3
#define LENGTH 512
static volatile long arrays[THREADS + 1][LENGTH] __attribute__((aligned(4096)));

__attribute__((noinline)) void work(int which)
{
    for (int round = 0; round < 100; round++)
        for (int i = 0; i < LENGTH; i++)
            arrays[which][i] += i; /* a load and a store */
}

static void *run(void *which)
{
    work((int)(long)which);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    printf("%p %zu\n", (void *)arrays, sizeof arrays[0]);
    fflush(stdout);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (fork() == 0) {
        work(THREADS);
        _exit(0);
    }
    wait(NULL);
    return arrays[THREADS][1]; /* the child's copy is its own: 0 */
}
