// Accelerations of bodies by all others.
static __device__ float4 attract(float4 sum, float4 own, float4 other)
{
    float dx = other.x - own.x;
    float dy = other.y - own.y;
    float dz = other.z - own.z;
    float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
    float strength = other.w * inverse * inverse * inverse;
    sum.x += dx * strength;
    sum.y += dy * strength;
    sum.z += dz * strength;
    return sum;
}

extern "C" __global__ void nbody(const float4 *body, float4 *acceleration, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 own = body[i < n ? i : 0];
    float4 sum;
    sum.x = 0.0f;
    sum.y = 0.0f;
    sum.z = 0.0f;
    sum.w = 0.0f;
#ifdef TILE_body
    __shared__ float4 tile[BLOCK_X];
    for (int first = 0; first < n; first += BLOCK_X) {
        int from = first + threadIdx.x;
        if (from < n)
            tile[threadIdx.x] = body[from];
        __syncthreads();
        int count = n - first < BLOCK_X ? n - first : BLOCK_X;
        for (int k = 0; k < count; k++)
            sum = attract(sum, own, tile[k]);
        __syncthreads();
    }
#else
    for (int k = 0; k < n; k++)
        sum = attract(sum, own, body[k]);
#endif
    if (i < n)
        acceleration[i] = sum;
}
