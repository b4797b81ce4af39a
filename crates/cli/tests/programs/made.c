/*
 * Code made at run time, five times over at the same place: protected before each use, or, with an
 * argument, written and executed without. Ends with status 6.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **arguments)
{
    unsigned char code[] = { 0xb8, 0, 0, 0, 0, 0xc3 }; /* mov $0, %eax; ret */
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    (void)arguments;
    unsigned char *there = mmap(NULL, 4096, count > 1 ? all : PROT_READ | PROT_WRITE, MAP_PRIVATE |
        MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 5; i++) {
        if (count == 1)
            mprotect(there, 4096, PROT_READ | PROT_WRITE);
        code[1] = (unsigned char)(40 + i);
        memcpy(there, code, sizeof code);
        if (count == 1)
            mprotect(there, 4096, PROT_READ | PROT_EXEC);
        printf("%d\n", ((int (*)(void))there)());
    }
    return 6;
}
