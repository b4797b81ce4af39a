/* Whether what the allocator says of itself agrees with what was asked of it. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t in_use(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

int main(void) {
    size_t before = in_use();
    char *large = malloc(50 << 20), *small[1000];
    memset(large, 1, 50 << 20);
    for (int n = 0; n < 1000; n++) memset(small[n] = malloc(1000), 1, 1000);
    size_t grew = in_use() - before;
    struct mallinfo narrow = mallinfo();
    size_t wide = (size_t)(unsigned)narrow.uordblks + (unsigned)narrow.hblkhd;
    char *text = NULL;
    size_t len = 0;
    FILE *stream = open_memstream(&text, &len);
    if (malloc_info(0, stream) != 0 || fclose(stream) != 0 || !strstr(text, "</malloc>")) return 1;
    malloc_stats();
    if (grew < 50 << 20 || grew > 53 << 20 || wide < 50 << 20) return 2;
    free(large);
    for (int n = 0; n < 1000; n++) free(small[n]);
    if (in_use() - before > 2 << 20) return 3;
    if (malloc_usable_size(large = malloc(100)) < 100) return 4;
    (void)malloc_trim(0);
    puts("told");
    return 0;
}
