// A finite impulse response filter with 32 taps; beyond the end the signal is zero.
#define TAPS 32
extern "C" __global__ void fir(const float *signal, const float *tap, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef TILE_signal
    __shared__ float tile[BLOCK_X + TAPS];
    for (int t = threadIdx.x; t < BLOCK_X + TAPS; t += BLOCK_X) {
        int from = blockIdx.x * BLOCK_X + t;
        tile[t] = from < n + TAPS ? signal[from] : 0.0f;
    }
    __syncthreads();
#endif
    if (i < n) {
        float sum = 0.0f;
        for (int k = 0; k < TAPS; k++) {
#ifdef TILE_signal
            sum += tile[threadIdx.x + k] * tap[k];
#else
            sum += signal[i + k] * tap[k];
#endif
        }
        out[i] = sum;
    }
}
