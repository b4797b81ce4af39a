#!/bin/bash
# Collects all measurements of the GPU of this machine in at most eight minutes:
#   bench/gpu/collect.sh FOLDER OUT
# FOLDER holds `collect` and `gpu_class` (examples of the crates gpu and alloc, the latter with the
# feature cuda), `code/` (collect compile FOLDER/code) and `stream.cubin` (gpu_class compile). OUT
# takes CSV files. A step that fails leaves the others alone; each says what it did.
set -u
folder=$1 out=$2
step() {
    local limit=$1 log=$2
    shift 2
    timeout "$limit" "$@" >"$out/$log" 2>&1
    echo "$log: status $?, ${SECONDS}s; $(tail -n 1 "$out/$log" | cut -c1-200)"
}
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv \
    >"$out/device.txt" 2>&1
ldconfig -p | grep -q libcuda.so.1 || export \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64:${LD_LIBRARY_PATH:-}
step 60 profile.log "$folder/collect" profile "$folder/code" "$out"
step 180 time.log "$folder/collect" time "$folder/code" "$out" 150
step 60 class.log "$folder/gpu_class" run "$folder/stream.cubin" 1536

# The sixteen counters of Stoltzfus et al. (table 3) under the names that Nsight Compute has for
# them (CUDA profiling guide, table of nvprof metrics); FLOPs are three counters.
metrics=sm__warps_active.avg.pct_of_peak_sustained_active
metrics+=,sm__warps_active.avg.per_cycle_active
metrics+=,lts__t_sectors_aperture_sysmem_op_write.sum
metrics+=,lts__t_sectors_op_write.sum
metrics+=,lts__t_sectors_op_read.sum
metrics+=,lts__t_sectors_op_read_lookup_miss.sum
metrics+=,dram__sectors_write.sum
metrics+=,dram__bytes_read.sum.per_second
metrics+=,smsp__warps_eligible.avg.per_cycle_active
metrics+=,lts__t_sectors_srcunit_tex_op_read.sum
metrics+=,lts__t_sectors_srcunit_tex_op_write.sum
metrics+=,l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second
metrics+=,smsp__sass_thread_inst_executed_op_fadd_pred_on.sum
metrics+=,smsp__sass_thread_inst_executed_op_fmul_pred_on.sum
metrics+=,smsp__sass_thread_inst_executed_op_ffma_pred_on.sum
metrics+=,smsp__inst_executed_pipe_xu.sum
metrics+=,smsp__thread_inst_executed_pred_on_per_inst_executed.ratio
metrics+=,smsp__thread_inst_executed_per_inst_executed.ratio
metrics+=,gpu__time_duration.sum
ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | \
    head -n 1)
if [ -z "$ncu" ]; then
    echo "counters.log: skipped: no ncu on this machine"
    exit 0
fi
# A name that this version does not know would end the run: such names are left out, and said.
known=$(timeout 30 "$ncu" --query-metrics --chip gh100 2>/dev/null | awk '{print $1}')
if [ -n "$known" ]; then
    kept=
    for metric in ${metrics//,/ }; do
        if grep -qx "${metric%%.*}" <<<"$known"; then
            kept+=,$metric
        else
            echo "counters.csv: $metric is not known to this ncu"
        fi
    done
    metrics=${kept#,}
fi
step 120 counters.csv "$ncu" --clock-control none --csv --page raw --print-units base \
    --metrics "$metrics" "$folder/collect" counters "$folder/code" "$out"
