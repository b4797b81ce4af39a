/* Three arrays, one more important than the others, placed together by one commit. */
#include <stdio.h>
#include <string.h>
#include <terrace.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, terrace_last_error());
    return 1;
}

int main(void) {
    enum { ARRAYS = 3 };
    const size_t size = 8u << 20;
    const char *names[ARRAYS] = {"a", "b", "c"};
    const unsigned priorities[ARRAYS] = {2, 1, 1};
    void *arrays[ARRAYS];
    terrace_memory *memory;
    if (terrace_memory_create(&memory)) return failed("create");

    for (int i = 0; i < ARRAYS; i++) {
        terrace_attr *wish;
        if (terrace_attr_create(&wish)) return failed("attributes");
        terrace_attr_add_class(wish, TERRACE_CLASS_FASTEST, TERRACE_INDEX_ALL);
        terrace_attr_set_binding(wish, TERRACE_BIND_ON_COMMIT);
        terrace_attr_set_priority(wish, priorities[i]);
        terrace_attr_set_name(wish, names[i]);
        if (terrace_memory_alloc(memory, size, wish, &arrays[i])) return failed("alloc");
        terrace_attr_destroy(wish);
    }

    terrace_report *report;
    if (terrace_memory_commit(memory, TERRACE_COMMIT_EPOCH, &report)) return failed("commit");
    for (size_t i = 0; i < terrace_report_count(report); i++) {
        terrace_row row;
        if (terrace_report_row(report, i, &row)) return failed("row");
        printf("%s:", row.name);
        for (int c = 0; c < terrace_memory_class_count(memory); c++) {
            printf(" %llu MiB in class %d;", (unsigned long long)(terrace_report_got(report, i,
                c) >> 20), c);
        }
        printf(" %s\n", row.why);
    }
    terrace_report_destroy(report);

    for (int i = 0; i < ARRAYS; i++) memset(arrays[i], i, size);
    for (int i = 0; i < ARRAYS; i++) {
        if (terrace_memory_free(memory, arrays[i])) return failed("free");
    }
    terrace_memory_destroy(memory);
    return 0;
}
