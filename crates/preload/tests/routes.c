/* Allocations of several kinds, for plans to tell apart. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void *site_alloc(size_t size);
#if defined(__x86_64__)
__asm__(".globl site_alloc\n.type site_alloc,@function\nsite_alloc:\n  sub $8, %rsp\n  call "
    "malloc@PLT\n"
        ".globl after_site\nafter_site:\n  add $8, %rsp\n  ret\n");
#else
void *site_alloc(size_t size) { return malloc(size); }
#endif

static void *fill(void *block, size_t size) { memset(block, 1, size); return block; }
static void *solver(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "solver-7");
    /* Names are asked for again after 256 allocations. */
    for (int i = 0; i < 600; i++) fill(malloc(3000), 3000);
    return NULL;
}

int main(void) {
    for (int i = 0; i < 10; i++) fill(malloc(2 << 20), 2 << 20);
    for (int i = 0; i < 1000; i++) fill(site_alloc(5000), 5000);
    pthread_t t;
    pthread_create(&t, NULL, solver, NULL);
    pthread_join(t, NULL);
    return 0;
}
