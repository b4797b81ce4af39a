/* A chase through a ring of pointers, a gather by an array of indexes, and a plain sum, each in a
 * function of its own;
   `after` is entered when they are done. */
#include <stdio.h>
#include <stdlib.h>

#define COUNT 1000
static void *ring[COUNT];
static int indexes[COUNT];
static long values[COUNT];

__attribute__((noinline)) void *chase(void **at)
{
    for (int i = 0; i < COUNT; i++)
        at = (void **)*at;
    return at;
}

__attribute__((noinline)) long gather(void)
{
    long sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += values[indexes[i]];
    return sum;
}

__attribute__((noinline)) long plain(void)
{
    long sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += values[i];
    return sum;
}

__attribute__((noinline)) void after(long sum)
{
    printf("%ld\n", sum);
}

int main(void)
{
    for (int i = 0; i < COUNT; i++) {
        ring[i] = &ring[(i + 7) % COUNT];
        indexes[i] = i * 7 % COUNT;
        values[i] = i;
    }
    void *end = chase((void **)ring);
    long sum = gather() + plain();
    after(sum + (end == ring));
    return 0;
}
