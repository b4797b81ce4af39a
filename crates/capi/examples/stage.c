/* A stencil over blocks, staged through node 0 with fixed threads; then a kernel that fails. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, terrace_last_error());             \
            return 1;                                                                     \
        }                                                                                 \
    } while (0)

enum { BLOCKS = 40, EACH = 8 * 1024 };

/* Each element becomes the mean of itself and its neighbours in the block, `*passes` times. */
static int smooth(size_t block, void *at, size_t bytes, void *passes) {
    double *x = at;
    size_t n = bytes / sizeof *x;
    (void)block;
    for (int pass = *(int *)passes; pass > 0; pass--)
        for (size_t i = 1; i + 1 < n; i++) x[i] = (x[i - 1] + x[i] + x[i + 1]) / 3;
    return 0;
}

static int spoil(size_t block, void *at, size_t bytes, void *user) {
    (void)user;
    memset(at, 0, bytes);
    return block == 17 ? 5 : 0;
}

/* Blocks one after the other, each told only when it is asked for. */
typedef struct {
    size_t next, end, each, fails_at;
} row;

static int next_block(terrace_block *block, void *user) {
    row *r = user;
    if (r->next == r->end) return 0;
    if (r->next == r->fails_at) return -7;
    *block = (terrace_block){r->next++ * r->each, r->each};
    return 1;
}

int main(void) {
    static double data[BLOCKS * EACH], plain[BLOCKS * EACH];
    terrace_block blocks[BLOCKS];
    int passes = 4;
    for (int i = 0; i < BLOCKS * EACH; i++) data[i] = plain[i] = (double)(i * 37 % 1001);
    for (size_t b = 0; b < BLOCKS; b++) {
        blocks[b] = (terrace_block){b * EACH * sizeof *data, EACH * sizeof *data};
        smooth(b, plain + b * EACH, EACH * sizeof *data, &passes);
    }

    terrace_stage *stage;
    terrace_staged done;
    CHECK(terrace_stage_create(0, &stage) == TERRACE_OK);
    CHECK(terrace_stage_set_threads(stage, TERRACE_STAGE_FIXED, 1, 1) == TERRACE_OK);
    CHECK(terrace_stage_set_buffers(stage, 8u << 20, 4) == TERRACE_OK);
    CHECK(terrace_stage_set_work(stage, passes, 0) == TERRACE_OK);
    int code = terrace_stage_update(stage, data, sizeof data, blocks, BLOCKS, smooth, &passes,
        &done);
    if (code == TERRACE_E_KERNEL) {
        printf("skipped: %s\n", terrace_last_error());
        return 0;
    }
    CHECK(code == TERRACE_OK);
    CHECK(done.staged == 1 && done.brought_bytes == sizeof data && done.returned_bytes ==
        sizeof data);
    CHECK(memcmp(data, plain, sizeof data) == 0);
    printf("%d blocks staged through %u buffers\n", BLOCKS, done.slots);

    /* Where addresses stay kernels get the blocks themselves; of one whole page each, if that. */
    CHECK(terrace_stage_keep_addresses(stage, 1) == TERRACE_OK);
    CHECK(terrace_stage_update(stage, data, sizeof data, blocks, BLOCKS, smooth, &passes, &done) ==
        TERRACE_OK);
    CHECK(done.staged == 1 && done.brought_bytes == done.returned_bytes);
    CHECK(done.brought_bytes + done.stayed_bytes == sizeof data);
    for (size_t b = 0; b < BLOCKS; b++) smooth(b, plain + b * EACH, EACH * sizeof *data, &passes);
    CHECK(memcmp(data, plain, sizeof data) == 0);
    CHECK(terrace_stage_keep_addresses(stage, 0) == TERRACE_OK);

    /* By the model: nothing is known of a second node here, so it runs in place and says so. */
    CHECK(terrace_stage_set_threads(stage, TERRACE_STAGE_AUTO, 2, 0) == TERRACE_OK);
    CHECK(terrace_stage_update(stage, data, sizeof data, blocks, BLOCKS, smooth, &passes, &done) ==
        TERRACE_OK);
    CHECK(done.staged == 0 && strstr(done.why, "terrace probe") != NULL);
    for (size_t b = 0; b < BLOCKS; b++) smooth(b, plain + b * EACH, EACH * sizeof *data, &passes);
    CHECK(memcmp(data, plain, sizeof data) == 0);

    /* A kernel that fails: an error that names the block, whose source is as it was. */
    CHECK(terrace_stage_set_threads(stage, TERRACE_STAGE_FIXED, 1, 1) == TERRACE_OK);
    CHECK(terrace_stage_update(stage, data, sizeof data, blocks, BLOCKS, spoil, NULL, &done) ==
        TERRACE_E_STAGE);
    CHECK(done.failed_block == 17 && done.intact == 1);
    CHECK(strstr(terrace_last_error(), "block 17") != NULL);
    CHECK(memcmp(data + 17 * EACH, plain + 17 * EACH, EACH * sizeof *data) == 0);

    /* Blocks that a function gives while others are worked on: the same results, from one asked for
     * ahead on. */
    for (int i = 0; i < BLOCKS * EACH; i++) data[i] = plain[i] = (double)(i * 37 % 1001);
    for (size_t b = 0; b < BLOCKS; b++) smooth(b, plain + b * EACH, EACH * sizeof *data, &passes);
    row blocks_of = {0, BLOCKS, EACH * sizeof *data, BLOCKS};
    CHECK(terrace_stage_set_sequence(stage, 1, BLOCKS, 0) == TERRACE_OK);
    CHECK(terrace_stage_update_from(stage, data, sizeof data, next_block, &blocks_of, smooth,
        &passes, &done) == TERRACE_OK);
    CHECK(done.staged == 1 && done.brought_bytes == sizeof data && blocks_of.next == BLOCKS);
    CHECK(memcmp(data, plain, sizeof data) == 0);
    blocks_of = (row){0, BLOCKS, EACH * sizeof *data, 11};
    CHECK(terrace_stage_read_from(stage, data, sizeof data, next_block, &blocks_of, smooth,
        &passes, &done) == TERRACE_E_STAGE);
    CHECK(done.failed_block == 11 && done.intact == 1 && strstr(terrace_last_error(),
        "it gave -7") != NULL);
    blocks_of = (row){0, BLOCKS + 1, EACH * sizeof *data, BLOCKS + 1};
    CHECK(terrace_stage_update_from(stage, data, sizeof data, next_block, &blocks_of, smooth,
        &passes, &done) == TERRACE_E_INVALID);
    CHECK(terrace_stage_update_from(stage, data, sizeof data, NULL, NULL, smooth, &passes,
        &done) == TERRACE_E_INVALID);
    CHECK(terrace_stage_set_sequence(stage, 0, 0, 0) == TERRACE_OK);

    /* Refused before anything runs. */
    blocks[3].bytes += 8;
    CHECK(terrace_stage_update(stage, data, sizeof data, blocks, BLOCKS, smooth, &passes, NULL) ==
        TERRACE_E_INVALID);
    CHECK(strstr(terrace_last_error(), "overlap") != NULL);
    CHECK(terrace_stage_read(stage, NULL, 0, NULL, 0, smooth, &passes, &done) == TERRACE_OK &&
        done.staged == 0);
    CHECK(terrace_stage_set_work(stage, -1, 0) == TERRACE_E_INVALID);
    CHECK(terrace_stage_set_machine(stage, "preset:lab-cxl", 0, 1) == TERRACE_OK);
    CHECK(terrace_stage_set_machine(stage, "preset:lab-cxl", 0, 9) == TERRACE_E_MACHINE);
    terrace_stage_destroy(stage);
    return 0;
}
