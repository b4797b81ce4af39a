/* Touches 4 pages by one path and 12 by another, 30 times, all for the first time. */
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((noinline)) static char *touch(size_t pages) {
    int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *memory = mmap(NULL, pages * 4096, rights, flags, -1, 0);
    for (size_t page = 0; page < pages; page++)
        memory[page * 4096] = 1;
    return memory;
}

__attribute__((noinline)) char *make_index(void) {
    char *memory = touch(4);
    __asm__ volatile("" ::"r"(memory));
    return memory;
}

__attribute__((noinline)) char *make_grid(void) {
    char *memory = touch(12);
    __asm__ volatile("" ::"r"(memory));
    return memory;
}

int main(void) {
    int sum = 0;
    for (int round = 0; round < 30; round++) {
        sum += make_index()[0] + make_grid()[0];
        usleep(10000);
    }
    return sum != 60;
}
