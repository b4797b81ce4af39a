// Scores of queries against keys, one score a thread.
#define DIMENSION 64
extern "C" __global__ void attention(const float *query, const float *key, float *score,
                                     int queries, int keys, float scale)
{
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    int q = blockIdx.y * blockDim.y + threadIdx.y;
#ifdef TILE_key
    __shared__ float tile[BLOCK_X][DIMENSION + 1];
    for (int t = threadIdx.y * BLOCK_X + threadIdx.x; t < BLOCK_X * DIMENSION;
         t += BLOCK_X * BLOCK_Y) {
        int from = blockIdx.x * BLOCK_X + t / DIMENSION;
        if (from < keys)
            tile[t / DIMENSION][t % DIMENSION] = key[from * DIMENSION + t % DIMENSION];
    }
#endif
#ifdef TILE_query
    __shared__ float asked[BLOCK_Y][DIMENSION];
    for (int t = threadIdx.x; t < DIMENSION; t += BLOCK_X) {
        if (q < queries)
            asked[threadIdx.y][t] = query[q * DIMENSION + t];
    }
#endif
#if defined(TILE_key) || defined(TILE_query)
    __syncthreads();
#endif
    if (k < keys && q < queries) {
        float sum = 0.0f;
        for (int d = 0; d < DIMENSION; d++) {
#ifdef TILE_query
            float left = asked[threadIdx.y][d];
#else
            float left = query[q * DIMENSION + d];
#endif
#ifdef TILE_key
            float right = tile[threadIdx.x][d];
#else
            float right = key[k * DIMENSION + d];
#endif
            sum += left * right;
        }
        score[q * keys + k] = sum * scale;
    }
}
