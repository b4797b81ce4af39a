/* Four ranks put, get and reduce through memory that was asked for with hints. The same program
 * runs without the shim, where hints mean nothing: it says which it saw. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace.h>

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "rank %d line %d: %s\n", rank, __LINE__, #condition);        \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                \
        }                                                                                \
    } while (0)

enum { COUNT = 100000 };
static int rank, ranks;
static terrace_memory *memory;
static void *(*lookup)(const terrace_memory *, const void *);

static MPI_Info hints(const char *class_id, const char *mismatch) {
    MPI_Info info;
    MPI_Info_create(&info);
    if (class_id) MPI_Info_set(info, "terrace_class", class_id);
    if (mismatch) MPI_Info_set(info, "terrace_mismatch", mismatch);
    MPI_Info_set(info, "terrace_name", "window");
    return info;
}

static int placed(const void *base) { return memory != NULL && lookup(memory, base) == base; }

/* A ring: each rank puts its numbers into the next one's window, then gets them back from there. */
static void ring(MPI_Info info, int expect_placed) {
    double *base, *own = malloc(COUNT * sizeof *own), *back = malloc(COUNT * sizeof *back);
    MPI_Win win;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    CHECK(own && back);
    CHECK(MPI_Win_allocate(COUNT * sizeof *base, sizeof *base, info, MPI_COMM_WORLD, &base,
        &win) == MPI_SUCCESS);
    CHECK(placed(base) == (memory != NULL && expect_placed));
    for (int i = 0; i < COUNT; i++) own[i] = rank * 1000.0 + i;
    MPI_Win_fence(0, win);
    MPI_Put(own, COUNT, MPI_DOUBLE, next, 0, COUNT, MPI_DOUBLE, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < COUNT; i++) CHECK(base[i] == before * 1000.0 + i);
    MPI_Get(back, COUNT, MPI_DOUBLE, next, 0, COUNT, MPI_DOUBLE, win);
    MPI_Win_fence(0, win);
    CHECK(memcmp(own, back, COUNT * sizeof *own) == 0);
    void *kept = base;
    CHECK(MPI_Win_free(&win) == MPI_SUCCESS && win == MPI_WIN_NULL);
    CHECK(!placed(kept));
    free(own);
    free(back);
}

static void plain_memory(const char *class_id, int expect_placed) {
    MPI_Info info = class_id ? hints(class_id, NULL) : MPI_INFO_NULL;
    double *array, sum = 0, all;
    CHECK(MPI_Alloc_mem(COUNT * sizeof *array, info, &array) == MPI_SUCCESS);
    CHECK(placed(array) == (memory != NULL && expect_placed));
    for (int i = 0; i < COUNT; i++) array[i] = 1;
    for (int i = 0; i < COUNT; i++) sum += array[i];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == (double)COUNT * ranks);
    CHECK(MPI_Free_mem(array) == MPI_SUCCESS);
    if (info != MPI_INFO_NULL) MPI_Info_free(&info);
}

static void refused(const char *class_id, const char *mismatch, int expected) {
    MPI_Info info = hints(class_id, mismatch);
    void *base;
    MPI_Win win;
    int kind = MPI_SUCCESS;
    int code = MPI_Alloc_mem(100, info, &base);
    MPI_Error_class(code, &kind);
    CHECK(kind == expected);
    /* One rank alone has the hint that cannot be: all are told. */
    MPI_Info mixed = rank == 1 ? info : MPI_INFO_NULL;
    code = MPI_Win_allocate(100, 1, mixed, MPI_COMM_WORLD, &base, &win);
    MPI_Error_class(code, &kind);
    CHECK(kind == expected);
    MPI_Info_free(&info);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    terrace_memory *(*find)(void);
    *(void **)&find = dlsym(RTLD_DEFAULT, "terrace_mpi_memory");
    *(void **)&lookup = dlsym(RTLD_DEFAULT, "terrace_memory_lookup");
    if (find) {
        memory = find();
        CHECK(memory != NULL && lookup != NULL);
    }
    plain_memory(NULL, 0);
    plain_memory("fastest", 1);
    plain_memory("-1", 1);
    ring(MPI_INFO_NULL, 0);
    MPI_Info info = hints("0", "error"), one = rank == 2 ? info : MPI_INFO_NULL;
    ring(info, 1);
    ring(one, rank == 2);
    MPI_Info_free(&info);
    if (memory) {
        refused("nonsense", NULL, MPI_ERR_INFO_VALUE);
        refused("1000", "error", MPI_ERR_NO_MEM);
        refused("0", "perhaps", MPI_ERR_INFO_VALUE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, memory %s\n", ranks, memory ? "placed" : "plain");
    MPI_Finalize();
    return 0;
}
