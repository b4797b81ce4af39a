// Lennard-Jones forces from lists of neighbours, one atom a thread.
extern "C" __global__ void md(const float4 *position, const int *neighbor, float4 *force, int n,
                              int neighbors, float cutoff2)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 p = position[i];
        float fx = 0.0f;
        float fy = 0.0f;
        float fz = 0.0f;
        for (int j = 0; j < neighbors; j++) {
            int other = neighbor[j * n + i];
            float4 q = position[other];
            float dx = p.x - q.x;
            float dy = p.y - q.y;
            float dz = p.z - q.z;
            float r2 = dx * dx + dy * dy + dz * dz;
            if (r2 < cutoff2) {
                float r2inv = 1.0f / (r2 + 0.01f);
                float r6inv = r2inv * r2inv * r2inv;
                float strength = r2inv * r6inv * (1.5f * r6inv - 2.0f);
                fx += dx * strength;
                fy += dy * strength;
                fz += dz * strength;
            }
        }
        float4 out;
        out.x = fx;
        out.y = fy;
        out.z = fz;
        out.w = 0.0f;
        force[i] = out;
    }
}
