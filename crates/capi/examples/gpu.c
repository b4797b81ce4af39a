/* An array that CPUs and a GPU reach at one address, at home on the GPU; without CUDA it is said
 * why, and other memory will do. */
#include <stdio.h>
#include <string.h>
#include <terrace.h>

int main(void) {
    const size_t bytes = 4 << 20;
    terrace_memory *memory;
    terrace_attr *wish;
    if (terrace_memory_create(&memory) || terrace_attr_create(&wish)) {
        fprintf(stderr, "%s\n", terrace_last_error());
        return 1;
    }
    const int gpus = terrace_memory_class_nodes(memory, TERRACE_CLASS_CUDA_MANAGED);
    if (gpus < 0) printf("no GPU: %s\n", terrace_last_error());

    double *array;
    terrace_attr_add_class(wish, TERRACE_CLASS_CUDA_MANAGED, 0);
    terrace_attr_set_prefetch(wish, 1);
    if (terrace_memory_alloc(memory, bytes, wish, (void **)&array)) {
        fprintf(stderr, "%s\n", terrace_last_error());
        return 2;
    }
    array[0] = 1; /* and a kernel of CUDA may have the same pointer */
    terrace_report *report;
    terrace_row row;
    if (terrace_memory_describe(memory, array, &report) || terrace_report_row(report, 0,
        &row)) return 3;
    printf("%s\n", row.why);
    if (terrace_report_got(report, 0, gpus < 0 ? 0 : TERRACE_CLASS_CUDA_MANAGED) == 0) return 4;
    terrace_report_destroy(report);
    for (int i = 0; i < gpus; i++) {
        terrace_gpu gpu;
        if (terrace_memory_gpu(memory, i, &gpu)) return 5;
        printf("%s: %llu of %llu bytes free, %llu ours\n", gpu.name,
            (unsigned long long)gpu.free_bytes,
               (unsigned long long)gpu.total_bytes, (unsigned long long)gpu.bound_bytes);
    }
    if (terrace_memory_free(memory, array)) return 6;

    /* Without fallback, what is not there is an error. */
    void *at = &array;
    terrace_attr_set_mismatch(wish, TERRACE_MISMATCH_ERROR);
    const int code = terrace_memory_alloc(memory, bytes, wish, &at);
    if (code != (gpus < 0 ? TERRACE_E_NO_CLASS : TERRACE_OK)) return 7;
    if ((at == NULL) != (gpus < 0)) return 8;
    terrace_attr_destroy(wish);
    terrace_memory_destroy(memory);
    return 0;
}
