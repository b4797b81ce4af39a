/* An array four times its memory: written, read back, advised, pinned; then what is refused. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, terrace_last_error());             \
            return 1;                                                                     \
        }                                                                                 \
    } while (0)

static uint64_t mixed(uint64_t n) { return n * UINT64_C(0x9e3779b97f4a7c15) ^ n >> 7; }

static int with_store(const char *store) {
    const size_t bytes = 32u << 20, dram = 8u << 20, words = bytes / sizeof(uint64_t);
    terrace_far *far = NULL;
    terrace_far_counts counts;
    int code = terrace_far_map(bytes, dram, store, &far);
    if (code == TERRACE_E_KERNEL) {
        printf("skipped: %s\n", terrace_last_error());
        return 0;
    }
    CHECK(code == TERRACE_OK);
    uint64_t *at = terrace_far_address(far);
    CHECK(at != NULL && (uintptr_t)at % 4096 == 0 && at[words - 1] == 0);
    for (size_t n = 0; n < words; n++) at[n] = mixed(n);
    CHECK(terrace_far_flush(far) == TERRACE_OK);
    for (size_t n = 0; n < words; n++) CHECK(at[n] == mixed(n));
    CHECK(terrace_far_stats(far, &counts) == TERRACE_OK);
    CHECK(counts.faults > 0 && counts.written_bytes >= bytes - dram && counts.read_bytes >=
        bytes - 2 * dram);
    CHECK(counts.resident_bytes <= dram && counts.lost_bytes == 0 && counts.write_failures == 0);

    CHECK(terrace_far_pin(far, 0, 1u << 20, 1) == TERRACE_OK);
    CHECK(terrace_far_prefetch(far, 4u << 20, 1u << 20) == TERRACE_OK);
    CHECK(terrace_far_advise(far, 8u << 20, 8u << 20, TERRACE_FAR_DISCARD) == TERRACE_OK);
    CHECK(at[1u << 20] == 0 && at[(2u << 20) - 1] == 0 && at[2u << 20] == mixed(2u << 20) &&
        at[5] == mixed(5));
    CHECK(terrace_far_advise(far, 16u << 20, 8u << 20, TERRACE_FAR_COLD) == TERRACE_OK);
    CHECK(terrace_far_pin(far, 0, 1u << 20, 0) == TERRACE_OK);
    CHECK(terrace_far_set_dram(far, 6u << 20) == TERRACE_OK);

    CHECK(terrace_far_pin(far, 0, bytes, 1) == TERRACE_E_NO_ROOM);
    CHECK(strstr(terrace_last_error(), "half") != NULL);
    CHECK(terrace_far_prefetch(far, bytes - 10, 20) == TERRACE_E_INVALID);
    CHECK(terrace_far_advise(far, 0, 1, 77) == TERRACE_E_INVALID);
    CHECK(terrace_far_stats(far, NULL) == TERRACE_E_INVALID);
    printf("%s: %llu faults, %llu bytes read, %llu written\n", store,
        (unsigned long long)counts.faults,
           (unsigned long long)counts.read_bytes, (unsigned long long)counts.written_bytes);
    CHECK(terrace_far_unmap(far) == TERRACE_OK);
    return 0;
}

static int of_a_file(const char *folder) {
    const size_t words = 2u << 20, dram = 6u << 20;
    char path[4096];
    snprintf(path, sizeof path, "%s/terrace-far-%ld", folder, (long)getpid());
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    for (size_t n = 0; n < words; n++) {
        const uint64_t word = mixed(n);
        CHECK(fwrite(&word, sizeof word, 1, file) == 1);
    }
    CHECK(fputs("end", file) >= 0 && fclose(file) == 0);
    terrace_far *far = NULL;
    size_t bytes = 0;
    int code = terrace_far_open(path, dram, 1, &far, &bytes);
    if (code == TERRACE_E_KERNEL) {
        printf("skipped: %s\n", terrace_last_error());
        return remove(path);
    }
    CHECK(code == TERRACE_OK && bytes == 8 * words + 3);
    uint64_t *at = terrace_far_address(far);
    for (size_t n = 0; n < words; n++) CHECK(at[n] == mixed(n));
    CHECK(memcmp(at + words, "end", 4) == 0);
    for (size_t n = 0; n < words; n += 512) at[n] = n;
    CHECK(terrace_far_advise(far, 0, 1u << 20, TERRACE_FAR_DISCARD) == TERRACE_E_INVALID);
    CHECK(terrace_far_unmap(far) == TERRACE_OK);
    CHECK(terrace_far_open(path, dram, 0, &far, NULL) == TERRACE_OK);
    const uint64_t *now = terrace_far_address(far);
    for (size_t n = 0; n < words; n++) CHECK(now[n] == (n % 512 == 0 ? n : mixed(n)));
    CHECK(terrace_far_unmap(far) == TERRACE_OK && remove(path) == 0);
    far = NULL;
    CHECK(terrace_far_open(path, dram, 0, &far, NULL) != TERRACE_OK && far == NULL);
    CHECK(strstr(terrace_last_error(), path) != NULL);
    return 0;
}

int main(void) {
    const char *folder = getenv("TMPDIR");
    terrace_far *far = NULL;
    if (with_store("compressed") != 0 || with_store(folder ? folder : "/tmp") != 0) return 1;

    CHECK(terrace_far_map(1u << 20, 8u << 20, "/no/such/folder", &far) == TERRACE_E_STORE && far ==
        NULL);
    CHECK(strcmp(terrace_strerror(TERRACE_E_STORE), "the store of far memory failed") == 0);
    CHECK(terrace_far_map(64u << 20, 4096, "compressed", &far) == TERRACE_E_INVALID && far == NULL);
    CHECK(strstr(terrace_last_error(), "at least") != NULL);
    CHECK(terrace_far_map(0, 8u << 20, "compressed", &far) == TERRACE_E_INVALID);
    CHECK(terrace_far_map(1u << 20, 8u << 20, NULL, &far) == TERRACE_E_INVALID);
    CHECK(terrace_far_flush(NULL) == TERRACE_E_INVALID);
    CHECK(of_a_file(folder ? folder : "/tmp") == 0);
    CHECK(terrace_far_unmap(NULL) == TERRACE_OK && terrace_far_address(NULL) == NULL);
    return 0;
}
