//! The class of CUDA managed memory on a real GPU: `gpu_class compile FILE [ARCHITECTURE]` makes
//! the kernels' machine code without one, `gpu_class run FILE [MIB]` allocates, exhausts and runs
//! hexe's STREAM study (section V-B: all four kernels write a; priorities 2, 1, 1).
//!
//! Oversubscription is that of a limit of ours, which stands before the driver's free memory: no
//! more managed memory is asked for than the GPU has free. Ends with 1 where a result is wrong.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use terrace_alloc::attributes::{Attributes, Binding, ClassId, Mismatch, NodeSplit};
use terrace_alloc::commit::Scope;
use terrace_alloc::gpu::{CudaError, Device, Gpus, Home};
use terrace_alloc::memory::Memory;
use terrace_sys::compute::{
    BufferKind, ComputeGpu, GpuKernel, KernelArgument, KernelCompiler, LaunchShape,
};
use terrace_sys::{Cuda, Root};
use terrace_types::Bytes;

const KERNELS: &str = "
#define STREAM(NAME, VALUE) \\
    extern \"C\" __global__ void NAME(double *a, const double *b, const double *c, int n) \\
    { \\
        int i = blockIdx.x * blockDim.x + threadIdx.x; \\
        if (i < n) \\
            a[i] = VALUE; \\
    }
STREAM(copy, b[i])
STREAM(scale, 3.0 * b[i])
STREAM(add, b[i] + c[i])
STREAM(triad, b[i] + 3.0 * c[i])
";
/// Names, and arrays that a kernel touches, as STREAM counts.
const STREAM: [(&str, f64); 4] = [("copy", 2.0), ("scale", 2.0), ("add", 3.0), ("triad", 3.0)];
const ROUNDS: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["compile", file] => compile(file, "sm_90"),
        ["compile", file, architecture] => compile(file, architecture),
        ["run", file] => run(file, 1536),
        ["run", file, mib] => run(file, mib.parse()?),
        _ => Err("usage: gpu_class compile FILE [ARCHITECTURE] | run FILE [MIB]".into()),
    }
}

fn compile(file: &str, architecture: &str) -> Result<(), Box<dyn Error>> {
    let code = KernelCompiler::load()?.compile("stream.cu", KERNELS, architecture, &[])?;
    Ok(std::fs::write(file, code)?)
}

/// The driver's GPUs with less free memory than they have.
#[derive(Debug)]
struct LimitedGpus {
    driver: Cuda,
    limit: Bytes,
    at_start: Bytes,
}

impl Gpus for LimitedGpus {
    fn devices(&self) -> &[Device] {
        self.driver.devices()
    }
    fn free(&self, gpu: u16) -> Result<Bytes, CudaError> {
        let used = self.at_start.get().saturating_sub(self.driver.free(gpu)?.get());
        Ok(Bytes(self.limit.get().saturating_sub(used)))
    }
    fn allocate(&self, gpu: u16, len: Bytes) -> Result<usize, CudaError> {
        self.driver.allocate(gpu, len)
    }
    fn release(&self, address: usize) -> Result<(), CudaError> {
        self.driver.release(address)
    }
    fn prefer(&self, part: &Range<usize>, home: Option<Home>) -> Result<(), CudaError> {
        self.driver.prefer(part, home)
    }
    fn reach(&self, part: &Range<usize>, from: Home, on: bool) -> Result<(), CudaError> {
        self.driver.reach(part, from, on)
    }
    fn bring(&self, part: &Range<usize>, to: Home) -> Result<(), CudaError> {
        self.driver.bring(part, to)
    }
}

struct Study {
    gpu: ComputeGpu,
    code: Vec<u8>,
    bytes: usize,
}

fn run(file: &str, mib: usize) -> Result<(), Box<dyn Error>> {
    let code = std::fs::read(file)?;
    let gpu = ComputeGpu::open(0)?;
    println!("device,{}", gpu.limits().name);
    let bytes = (mib << 20) / 3 / 4096 * 4096;
    let study = Study { gpu, code, bytes };
    let free = study.gpu.free()?;
    // Five allocations of this size are there at once at most.
    if free.get() < 8 * bytes as u64 {
        return Err(
            format!("{mib} MiB are too much for a GPU with {free} free; ask for less").into()
        );
    }
    let memory = |limit: u64| -> Result<Memory, Box<dyn Error>> {
        let driver = Cuda::load(&Root::live())?;
        let at_start = driver.free(0)?;
        let gpus = LimitedGpus { driver, limit: Bytes(limit), at_start };
        Ok(Memory::live_with_gpus(&|_| None, Arc::new(gpus))?)
    };
    class(&study, &memory(free.get())?)?;
    exhaustion(&memory(4 * study.bytes as u64 / 3)?, study.bytes)?;
    println!("case,kernel,first_gb_per_s,best_gb_per_s,median_gb_per_s");
    study.explicit()?;
    study.managed()?;
    study.terrace("terrace_prefetch_then_cpu_init", &memory(free.get())?, Binding::Immediate)?;
    study.terrace("terrace_commit_after_init", &memory(free.get())?, Binding::OnCommit)?;
    // One array and a third: a fits, b and c stay with the host and are read over the bus.
    let small = memory(4 * study.bytes as u64 / 3)?;
    study.terrace("terrace_limit_one_array", &small, Binding::OnCommit)?;
    study.managed_thrash()
}

fn wish(name: &str, priority: u32, binding: Binding) -> Attributes {
    Attributes {
        name: name.to_owned(),
        priority,
        binding,
        prefetch: true,
        split: NodeSplit::SpillOver,
        ..Attributes::in_class(ClassId::CUDA_MANAGED)
    }
}

/// Managed allocation on the GPU: discovery, accounting, CPU and kernel see the same bytes.
fn class(study: &Study, memory: &Memory) -> Result<(), Box<dyn Error>> {
    println!("class: {}", memory.gpus()?);
    let before = memory.gpu_use(0)?;
    let size = Bytes(study.bytes as u64);
    let at = memory.allocate(
        size,
        Attributes { mismatch: Mismatch::Error, ..wish("b", 1, Binding::Immediate) },
    )?;
    let after = memory.gpu_use(0)?;
    println!(
        "strict allocation of {size}: free {} -> {}, bound {}, {} blocks; {}",
        before.free,
        after.free,
        after.bound,
        after.blocks,
        memory.describe(at)?.why
    );
    if before.free.get().saturating_sub(after.free.get()) < size.get() / 2 {
        println!("note: the driver's free memory fell by less than what was brought");
    }
    let to = memory.allocate(size, wish("a", 1, Binding::Immediate))?;
    fill(at, study.bytes, 2.0);
    study.kernel("scale")?.launch(&[to, at, at])?;
    expect(to, study.bytes, 6.0)?;
    memory.free(at)?;
    memory.free(to)?;
    println!("freed: free {}, bound {}", memory.gpu_use(0)?.free, memory.gpu_use(0)?.bound);
    Ok(())
}

/// What strict and lenient requests get when the GPU has no free space for them.
fn exhaustion(memory: &Memory, bytes: usize) -> Result<(), Box<dyn Error>> {
    let size = Bytes(bytes as u64);
    let strict =
        || Attributes { mismatch: Mismatch::Error, ..wish("strict", 1, Binding::Immediate) };
    let first = memory.allocate(size, strict())?;
    println!("limit: {} free of ours after one array", memory.gpu_use(0)?.free);
    match memory.allocate(size, strict()) {
        Ok(_) => return Err("a second array was accepted where one fits".into()),
        Err(error) => println!("strict: {error}"),
    }
    let second = memory.allocate(size, wish("lenient", 1, Binding::Immediate))?;
    println!("lenient: {}", memory.describe(second)?.why);
    fill(second, bytes, 1.0);
    memory.free(first)?;
    memory.free(second)?;
    let again = memory.allocate(size, strict())?;
    println!("after freeing, strict: {}", memory.describe(again)?.why);
    memory.free(again)?;
    match memory.allocate(size, Attributes { mismatch: Mismatch::Error, ..nowhere() }) {
        Ok(_) => Err("GPU 7 was found".into()),
        Err(error) => {
            println!("index that is not there: {error}");
            Ok(())
        }
    }
}

fn nowhere() -> Attributes {
    let mut wish = wish("nowhere", 1, Binding::Immediate);
    wish.places[0].index = terrace_alloc::attributes::Index::These(vec![7]);
    wish
}

struct StreamKernel<'a> {
    study: &'a Study,
    kernel: GpuKernel,
}

impl StreamKernel<'_> {
    fn shape(&self) -> LaunchShape {
        let n = self.study.bytes / 8;
        LaunchShape { grid: [n.div_ceil(256) as u32, 1, 1], block: [256, 1, 1], shared: Bytes(0) }
    }

    fn arguments(&self, arrays: &[usize; 3]) -> Vec<KernelArgument> {
        let pointers = arrays.iter().map(|a| KernelArgument::Word(*a as u64));
        pointers.chain([KernelArgument::Int((self.study.bytes / 8) as i32)]).collect()
    }

    fn launch(&self, arrays: &[usize; 3]) -> Result<(), CudaError> {
        self.study.gpu.run(&self.kernel, &self.shape(), &self.arguments(arrays))
    }

    fn time(&self, arrays: &[usize; 3]) -> Result<f64, CudaError> {
        let gpu = &self.study.gpu;
        let graph = gpu.capture(&self.kernel, &self.shape(), &self.arguments(arrays), 1)?;
        gpu.time(&graph)
    }
}

impl Study {
    fn kernel(&self, name: &str) -> Result<StreamKernel<'_>, CudaError> {
        Ok(StreamKernel { study: self, kernel: self.gpu.load(&self.code, name)? })
    }

    /// The four kernels in turn, so many rounds; the first is apart, as pages may have to come.
    fn rounds(&self, case: &str, arrays: [usize; 3], rounds: usize) -> Result<(), Box<dyn Error>> {
        let kernels: Vec<StreamKernel<'_>> =
            STREAM.iter().map(|(name, _)| self.kernel(name)).collect::<Result<_, _>>()?;
        let mut times = vec![Vec::new(); STREAM.len()];
        for _ in 0..rounds {
            for (kernel, times) in kernels.iter().zip(&mut times) {
                times.push(kernel.time(&arrays)?);
            }
        }
        for ((name, touched), times) in STREAM.iter().zip(&mut times) {
            let first = times[0];
            times.sort_by(f64::total_cmp);
            let rate = |ns: f64| touched * self.bytes as f64 / ns;
            println!(
                "{case},{name},{:.2},{:.2},{:.2}",
                rate(first),
                rate(times[0]),
                rate(times[times.len() / 2])
            );
        }
        Ok(())
    }

    /// `malloc` and copies: the GPU's own memory, b and c copied in, a copied out.
    fn explicit(&self) -> Result<(), Box<dyn Error>> {
        let host: Vec<u8> = 2.0_f64.to_ne_bytes().repeat(self.bytes / 8);
        let mut back = vec![0; self.bytes];
        let buffers = (0..3)
            .map(|_| self.gpu.allocate(BufferKind::Device, self.bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let start = std::time::Instant::now();
        buffers[1].write(&host)?;
        buffers[2].write(&host)?;
        let copied_in = start.elapsed().as_nanos() as f64;
        let at = [0, 1, 2].map(|i: usize| buffers[i].address() as usize);
        self.rounds("explicit_copy", at, ROUNDS)?;
        let start = std::time::Instant::now();
        buffers[0].read(&mut back)?;
        let copied_out = start.elapsed().as_nanos() as f64;
        let rate = |arrays: f64, ns: f64| arrays * self.bytes as f64 / ns;
        println!("explicit_copy,copy_in,{:.2},,", rate(2.0, copied_in));
        println!("explicit_copy,copy_out,{:.2},,", rate(1.0, copied_out));
        match back.chunks_exact(8).all(|c| c == 8.0_f64.to_ne_bytes()) {
            true => Ok(()),
            false => Err("the kernels computed something else than 8".into()),
        }
    }

    /// `cudaMallocManaged` alone: pages come when kernels touch them.
    fn managed(&self) -> Result<(), Box<dyn Error>> {
        let buffers = (0..3)
            .map(|_| self.gpu.allocate(BufferKind::Managed, self.bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let at = [0, 1, 2].map(|i: usize| buffers[i].address() as usize);
        self.init(at);
        self.rounds("managed", at, ROUNDS)?;
        expect(at[0], self.bytes, 5.0)
    }

    /// The host writes b and c before each round, so that their pages go to and fro.
    fn managed_thrash(&self) -> Result<(), Box<dyn Error>> {
        let buffers = (0..3)
            .map(|_| self.gpu.allocate(BufferKind::Managed, self.bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let at = [0, 1, 2].map(|i: usize| buffers[i].address() as usize);
        let kernel = self.kernel("triad")?;
        let mut times = Vec::new();
        for _ in 0..3 {
            self.init(at);
            times.push(kernel.time(&at)?);
        }
        times.sort_by(f64::total_cmp);
        let rate = 3.0 * self.bytes as f64 / times[1];
        println!("managed_host_writes_between,triad,,,{rate:.2}");
        expect(at[0], self.bytes, 5.0)
    }

    fn init(&self, [a, b, c]: [usize; 3]) {
        fill(a, self.bytes, 0.0);
        fill(b, self.bytes, 2.0);
        fill(c, self.bytes, 1.0);
    }

    /// Through `Memory`, whose advice and prefetches are the hints.
    fn terrace(&self, case: &str, memory: &Memory, binding: Binding) -> Result<(), Box<dyn Error>> {
        let size = Bytes(self.bytes as u64);
        let a = memory.allocate(size, wish("a", 2, binding))?;
        let b = memory.allocate(size, wish("b", 1, binding))?;
        let c = memory.allocate(size, wish("c", 1, binding))?;
        self.init([a, b, c]);
        if binding == Binding::OnCommit {
            memory.commit(Scope::All)?;
        }
        for at in [a, b, c] {
            let row = memory.describe(at)?;
            println!("# {case}: {}: {}", row.name, row.why);
        }
        self.rounds(case, [a, b, c], ROUNDS)?;
        expect(a, self.bytes, 5.0)?;
        for at in [a, b, c] {
            memory.free(at)?;
        }
        Ok(())
    }
}

fn fill(at: usize, bytes: usize, value: f64) {
    // SAFETY: managed memory of this process that holds so many bytes, aligned to pages; no kernel
    // runs now, since each was waited for.
    let values = unsafe { std::slice::from_raw_parts_mut(at as *mut f64, bytes / 8) };
    values.fill(value);
}

fn expect(at: usize, bytes: usize, value: f64) -> Result<(), Box<dyn Error>> {
    // SAFETY: as above.
    let values = unsafe { std::slice::from_raw_parts(at as *const f64, bytes / 8) };
    match values.iter().position(|v| *v != value) {
        None => Ok(()),
        Some(i) => Err(format!("element {i} is {} instead of {value}", values[i]).into()),
    }
}
