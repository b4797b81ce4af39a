/* More threads at once than large rings: each makes 1000 increments of a word of its own. Prints
   where the words are. */
#include <pthread.h>
#include <stdio.h>

#define THREADS 300
static volatile long words[THREADS];
static pthread_barrier_t all;

static void *work(void *which)
{
    pthread_barrier_wait(&all);
    for (int i = 0; i < 1000; i++)
        words[(long)which]++;
    pthread_barrier_wait(&all);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_barrier_init(&all, NULL, THREADS);
    printf("%p %zu\n", (void *)words, sizeof words);
    fflush(stdout);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &small, work, (void *)i))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
