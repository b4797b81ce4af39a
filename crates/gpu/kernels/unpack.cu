// Records of eight numbers, taken apart into eight arrays.
#define FIELDS 8
extern "C" __global__ void unpack(const float *record, float *field, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef TILE_record
    __shared__ float tile[BLOCK_X * FIELDS];
    for (int t = threadIdx.x; t < BLOCK_X * FIELDS; t += BLOCK_X) {
        int from = blockIdx.x * BLOCK_X * FIELDS + t;
        if (from < n * FIELDS)
            tile[t] = record[from];
    }
    __syncthreads();
    if (i < n) {
        for (int f = 0; f < FIELDS; f++)
            field[f * n + i] = tile[threadIdx.x * FIELDS + f];
    }
#else
    if (i < n) {
        for (int f = 0; f < FIELDS; f++)
            field[f * n + i] = record[i * FIELDS + f];
    }
#endif
}
