// Binary search of many keys in a sorted array.
extern "C" __global__ void search(const int *sorted, const int *key, int *place, int n, int keys)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < keys) {
        int wanted = key[i];
        int low = 0;
        int high = n;
        while (low < high) {
            int middle = (low + high) / 2;
            if (sorted[middle] < wanted)
                low = middle + 1;
            else
                high = middle;
        }
        place[i] = low;
    }
}
