/* What goes wrong is named: each call here must fail as it says, and a strict allocation must be
 * where it was asked for. */
#include <stdio.h>
#include <string.h>
#include <terrace.h>

#define EXPECT(code, call)                                                                   \
    do {                                                                                     \
        int got = (call);                                                                    \
        if (got != (code)) {                                                                 \
            fprintf(stderr, "line %d: %d (%s), not %d\n", __LINE__, got, terrace_last_error(), (code)); \
            return 1;                                                                        \
        }                                                                                    \
    } while (0)

int main(void) {
    terrace_memory *memory;
    terrace_attr *strict;
    void *at = &at;
    EXPECT(TERRACE_E_INVALID, terrace_memory_create(NULL));
    EXPECT(TERRACE_OK, terrace_memory_create(&memory));
    EXPECT(TERRACE_OK, terrace_attr_create(&strict));
    EXPECT(TERRACE_OK, terrace_attr_set_mismatch(strict, TERRACE_MISMATCH_ERROR));
    EXPECT(TERRACE_E_INVALID, terrace_attr_set_split(strict, 99));
    EXPECT(TERRACE_E_INVALID, terrace_attr_set_chunk(strict, 0));
    EXPECT(TERRACE_E_INVALID, terrace_attr_set_priority(NULL, 1));

    EXPECT(TERRACE_E_NO_ROOM, terrace_memory_alloc(memory, (size_t)1 << 45, strict, &at));
    if (at != NULL) return 2;
    EXPECT(TERRACE_E_TOO_LARGE, terrace_memory_alloc(memory, (size_t)-1, strict, &at));
    EXPECT(TERRACE_OK, terrace_memory_alloc(memory, 1 << 20, strict, &at));
    terrace_report *report;
    EXPECT(TERRACE_OK, terrace_memory_describe(memory, at, &report));
    if (terrace_report_got(report, 0, 0) != 1 << 20) return 3;
    terrace_report_destroy(report);

    if (terrace_memory_lookup(memory, (char *)at + 12345) != at) return 4;
    EXPECT(TERRACE_OK, terrace_memory_free(memory, at));
    EXPECT(TERRACE_E_NOT_OURS, terrace_memory_free(memory, at));
    if (strstr(terrace_last_error(), "freed before") == NULL) return 5;
    EXPECT(TERRACE_OK, terrace_memory_free(memory, NULL));

    EXPECT(TERRACE_OK, terrace_attr_add_class(strict, 1000, TERRACE_INDEX_ALL));
    EXPECT(TERRACE_E_NO_CLASS, terrace_memory_alloc(memory, 1, strict, &at));
    terrace_attr_destroy(strict);
    terrace_attr_destroy(NULL);
    terrace_memory_destroy(memory);
    puts("all as expected");
    return 0;
}
