// One step of a breadth-first search: the unvisited neighbours of the frontier, one node a thread.
extern "C" __global__ void bfs(const int *starts, const int *edges, const int *frontier,
                               const int *visited, int *next, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        if (frontier[i] != 0) {
            int begin = starts[i];
            int end = starts[i + 1];
            for (int k = begin; k < end; k++) {
                int node = edges[k];
                if (visited[node] == 0)
                    next[node] = 1;
            }
        }
    }
}
