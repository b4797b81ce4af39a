/* libterrace_mpi: MPI_Alloc_mem and MPI_Win_allocate that honour hints about memory, for any
 * program and any MPI.
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * It stands before the MPI library (LD_PRELOAD, or -lterrace_mpi before it) and uses the profiling
 * interface (MPI 4.0, chapter 15). It is C and compiled with the mpicc at hand, because handles
 * differ from one MPI to another.
 *
 *   terrace_class     0 (fastest), 1, ..., -1 (slowest), or fastest, slowest, cuda-managed
 *   terrace_index     all (unless said), local, or an index within the class
 *   terrace_mismatch  fallback (unless said) or error
 *   terrace_pages     auto (unless said), base or huge
 *   terrace_name      what reports call it
 *
 * A call without terrace_class goes to MPI as it is. With it, memory is libterrace's, and a window
 * over it is made by MPI_Win_create: its MPI_WIN_CREATE_FLAVOR says so. MPI_Win_allocate_shared and
 * Fortran's own entry points of an MPI that does not go through C are not touched. */
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <terrace.h>

static terrace_memory *memory;
static int memory_code;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Windows whose memory is ours have their address under this key. */
static int window_key = MPI_KEYVAL_INVALID;
static pthread_mutex_t key_lock = PTHREAD_MUTEX_INITIALIZER;

static void find_memory(void) { memory_code = terrace_memory_create(&memory); }

/* The handle that all memory here is of; null where the machine cannot be read. */
terrace_memory *terrace_mpi_memory(void) {
    pthread_once(&once, find_memory);
    return memory_code == TERRACE_OK ? memory : NULL;
}

static int hint(MPI_Info info, const char *key, char *value) {
    int found = 0;
    if (info != MPI_INFO_NULL) PMPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found);
    return found;
}

static int number(const char *text, long least, long most, int *out) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < least || value > most) return 0;
    *out = (int)value;
    return 1;
}

/* Reads all hints. MPI_SUCCESS, or MPI_ERR_INFO_VALUE; *wish stays null where there are none. */
static int read_hints(MPI_Info info, terrace_attr **wish) {
    char value[MPI_MAX_INFO_VAL + 1];
    int class_id = TERRACE_CLASS_FASTEST, index = TERRACE_INDEX_ALL;
    int bad = 0;
    *wish = NULL;
    if (!hint(info, "terrace_class", value)) return MPI_SUCCESS;
    if (strcmp(value, "slowest") == 0) class_id = TERRACE_CLASS_SLOWEST;
    else if (strcmp(value, "cuda-managed") == 0) class_id = TERRACE_CLASS_CUDA_MANAGED;
    else if (strcmp(value, "fastest") != 0) bad |= !number(value, -32768, 32767, &class_id);
    if (hint(info, "terrace_index", value)) {
        if (strcmp(value, "local") == 0) index = TERRACE_INDEX_LOCAL;
        else if (strcmp(value, "all") != 0) bad |= !number(value, 0, 32767, &index);
    }
    if (bad || terrace_attr_create(wish) != TERRACE_OK) return MPI_ERR_INFO_VALUE;
    bad |= terrace_attr_add_class(*wish, class_id, index);
    if (hint(info, "terrace_mismatch", value)) {
        if (strcmp(value, "error") == 0) bad |= terrace_attr_set_mismatch(*wish,
            TERRACE_MISMATCH_ERROR);
        else bad |= strcmp(value, "fallback") != 0;
    }
    if (hint(info, "terrace_pages", value)) {
        if (strcmp(value, "base") == 0) bad |= terrace_attr_set_pages(*wish, TERRACE_PAGES_BASE);
        else if (strcmp(value, "huge") == 0) bad |= terrace_attr_set_pages(*wish,
            TERRACE_PAGES_HUGE);
        else bad |= strcmp(value, "auto") != 0;
    }
    if (hint(info, "terrace_name", value)) bad |= terrace_attr_set_name(*wish, value);
    if (!bad) return MPI_SUCCESS;
    terrace_attr_destroy(*wish);
    *wish = NULL;
    return MPI_ERR_INFO_VALUE;
}

/* Memory as the hints ask; plain memory of MPI without any. */
static int allocate(MPI_Aint size, MPI_Info info, void **base, int *ours) {
    terrace_attr *wish;
    int code = read_hints(info, &wish);
    *ours = 0;
    *base = NULL;
    if (code != MPI_SUCCESS) return code;
    if (wish == NULL) return PMPI_Alloc_mem(size, info, base);
    if (size < 0) code = MPI_ERR_SIZE;
    else if (terrace_mpi_memory() == NULL ||
             terrace_memory_alloc(memory, (size_t)size, wish, base) != TERRACE_OK) code =
                 MPI_ERR_NO_MEM;
    terrace_attr_destroy(wish);
    *ours = code == MPI_SUCCESS;
    return code;
}

static int is_ours(const void *base) {
    return base != NULL && memory_code == TERRACE_OK && memory != NULL &&
        terrace_memory_lookup(memory, base) == base;
}

static int release(void *base) {
    if (!is_ours(base)) return PMPI_Free_mem(base);
    return terrace_memory_free(memory, base) == TERRACE_OK ? MPI_SUCCESS : MPI_ERR_BASE;
}

static int fail(MPI_Comm comm, int code) {
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

int MPI_Alloc_mem(MPI_Aint size, MPI_Info info, void *baseptr) {
    void *base;
    int ours, code = allocate(size, info, &base, &ours);
    if (code != MPI_SUCCESS) return fail(MPI_COMM_WORLD, code);
    *(void **)baseptr = base;
    return MPI_SUCCESS;
}

int MPI_Free_mem(void *base) {
    int code = release(base);
    return code == MPI_SUCCESS ? code : fail(MPI_COMM_WORLD, code);
}

static int make_key(void) {
    int code = MPI_SUCCESS;
    pthread_mutex_lock(&key_lock);
    if (window_key == MPI_KEYVAL_INVALID)
        code = PMPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, MPI_WIN_NULL_DELETE_FN, &window_key,
            NULL);
    pthread_mutex_unlock(&key_lock);
    return code;
}

int MPI_Win_allocate(MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr,
    MPI_Win *win) {
    char value[MPI_MAX_INFO_VAL + 1];
    int hinted = hint(info, "terrace_class", value), any, ours, worst, code;
    void *base;
    /* Hints may differ between ranks, and all must make the window in one way: one rank's hint
     * decides for all. */
    code = PMPI_Allreduce(&hinted, &any, 1, MPI_INT, MPI_MAX, comm);
    if (code != MPI_SUCCESS) return code;
    if (!any) return PMPI_Win_allocate(size, disp_unit, info, comm, baseptr, win);
    code = allocate(size, info, &base, &ours);
    if (code == MPI_SUCCESS) code = make_key();
    /* So does one rank's failure, since a window is made by all or by none. */
    int agreed = PMPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, comm);
    if (agreed == MPI_SUCCESS) agreed = worst;
    if (agreed == MPI_SUCCESS) agreed = PMPI_Win_create(base, size, disp_unit, info, comm, win);
    if (agreed == MPI_SUCCESS) agreed = PMPI_Win_set_attr(*win, window_key, base);
    if (agreed != MPI_SUCCESS) {
        if (base != NULL) release(base);
        return fail(comm, agreed);
    }
    *(void **)baseptr = base;
    return MPI_SUCCESS;
}

int MPI_Win_free(MPI_Win *win) {
    void *base = NULL;
    int found = 0;
    if (window_key != MPI_KEYVAL_INVALID && win != NULL && *win != MPI_WIN_NULL)
        PMPI_Win_get_attr(*win, window_key, &base, &found);
    int code = PMPI_Win_free(win);
    if (code != MPI_SUCCESS || !found || base == NULL) return code;
    return release(base);
}
