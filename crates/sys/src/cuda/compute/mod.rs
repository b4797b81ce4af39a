//! Kernels on one GPU: compile them with NVRTC, load, launch and time them.
//!
//! Both libraries, the driver's and the compiler's, are loaded when they are asked for. Nothing of
//! CUDA is needed to build this. The types and numbers are those of `cuda.h` and `nvrtc.h`, which
//! NVIDIA keeps stable for a function's name.

mod compiler;
mod driver;
mod library;
mod objects;

pub use compiler::{CompileError, KernelCompiler};

use super::CudaError;
use driver::{
    c_name, check, failure, read_limits, AccessPolicyWindow, DriverFunctions, ResourceDescription,
    TextureDescription,
};
use library::Library;
use std::ffi::{c_int, c_uint, c_void};
use std::rc::Rc;
use terrace_types::Bytes;

type DevicePointer = u64;
type Handle = *mut c_void;

/// What the driver says of a GPU (numbers of `CUdevice_attribute`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLimits {
    /// The driver's name for it.
    pub name: String,
    /// Compute capability times ten, 90 for 9.0.
    pub capability: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The L2 cache.
    pub l2: Bytes,
    /// Most shared memory of a block, when it asks for it.
    pub shared_per_block: Bytes,
    /// Shared memory of a multiprocessor.
    pub shared_per_multiprocessor: Bytes,
    /// Constant memory of a module.
    pub constant: Bytes,
    /// Most of the L2 cache that may be set aside for persisting accesses.
    pub persisting_l2: Bytes,
    /// The longest window of persisting accesses.
    pub access_window: Bytes,
    /// Registers of a multiprocessor.
    pub registers: u32,
    /// Threads of a multiprocessor.
    pub threads: u32,
    /// The core's clock, kHz.
    pub clock_khz: u32,
    /// The memory's clock, kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// All of its memory.
    pub memory: Bytes,
    /// Version of the driver's interface, 13000 for 13.0.
    pub driver: u32,
}

#[derive(Debug)]
struct Context {
    functions: DriverFunctions,
    stream: Handle,
    start: Handle,
    stop: Handle,
    limits: GpuLimits,
}

/// A GPU that kernels run on. It belongs to the thread that opened it.
#[derive(Debug, Clone)]
pub struct ComputeGpu {
    context: Rc<Context>,
}

/// What memory a buffer is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferKind {
    /// The GPU's own.
    Device,
    /// Managed: pages move to who touches them.
    Managed,
    /// The host's, pinned, which the GPU reads over the bus.
    Pinned,
}

/// Memory that kernels can reach; given back when dropped.
#[derive(Debug)]
pub struct GpuBuffer {
    context: Rc<Context>,
    kind: BufferKind,
    host: Handle,
    address: DevicePointer,
    len: usize,
}

/// What a texture's element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TexelFormat {
    /// One `float`.
    Float,
    /// One `int`.
    Int,
    /// Four `float`.
    Float4,
}

/// A texture over linear memory.
#[derive(Debug)]
pub struct GpuTexture {
    context: Rc<Context>,
    handle: u64,
}

/// A compiled kernel, loaded.
#[derive(Debug)]
pub struct GpuKernel {
    context: Rc<Context>,
    module: Handle,
    function: Handle,
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KernelArgument {
    /// A pointer or a texture's handle.
    Word(u64),
    /// An `int`.
    Int(i32),
    /// A `float`.
    Float(f32),
}

/// Shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared: Bytes,
}

/// Figures of a compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelFigures {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// Local memory of a thread, bytes.
    pub local_bytes: u32,
    /// Constant memory, bytes.
    pub constant_bytes: u32,
}

/// Repeated launches that the driver starts as one (a CUDA graph).
#[derive(Debug)]
pub struct LaunchGraph {
    context: Rc<Context>,
    graph: Handle,
    instance: Handle,
    repeats: u32,
}

impl ComputeGpu {
    /// Opens the GPU of this number.
    ///
    /// # Errors
    /// No driver, no GPU, or what the driver says.
    pub fn open(number: u16) -> Result<Self, CudaError> {
        let library = Library::open(&["libcuda.so.1", "libcuda.so"]).ok_or(CudaError::NoLibrary)?;
        let functions = DriverFunctions::find(library)?;
        // SAFETY: takes a number.
        match unsafe { (functions.init)(0) } {
            0 => {}
            // CUDA_ERROR_NO_DEVICE and CUDA_ERROR_STUB_LIBRARY of cuda.h.
            100 => return Err(CudaError::NoDevice),
            34 => return Err(CudaError::Stub),
            code => return Err(failure(&functions, "cuInit", code)),
        }
        let check = |call, code| check(&functions, call, code);
        let mut device = 0;
        // SAFETY: in this function each call writes to places of ours, of the header's types.
        unsafe {
            check("cuDeviceGet", (functions.device)(&mut device, c_int::from(number)))?;
        }
        let limits = read_limits(&functions, device)?;
        let mut context = std::ptr::null_mut();
        let (mut stream, mut start, mut stop) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: as above.
        unsafe {
            check("cuDevicePrimaryCtxRetain", (functions.retain_context)(&mut context, device))?;
            check("cuCtxSetCurrent", (functions.set_context)(context))?;
            // CU_STREAM_DEFAULT is 0: copies and fills, which go to the default stream, come
            // before.
            check("cuStreamCreate", (functions.create_stream)(&mut stream, 0))?;
            check("cuEventCreate", (functions.create_event)(&mut start, 0))?;
            check("cuEventCreate", (functions.create_event)(&mut stop, 0))?;
        }
        Ok(Self { context: Rc::new(Context { functions, stream, start, stop, limits }) })
    }

    /// What the driver says of it.
    #[must_use]
    pub fn limits(&self) -> &GpuLimits {
        &self.context.limits
    }

    /// Free memory, all processes counted.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free(&self) -> Result<Bytes, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers to places of ours.
        let code = unsafe { (self.context.functions.memory_info)(&mut free, &mut total) };
        self.context.check("cuMemGetInfo_v2", code)?;
        Ok(Bytes(free as u64))
    }

    /// New memory.
    ///
    /// # Errors
    /// [`CudaError::Full`], or what the driver says.
    pub fn allocate(&self, kind: BufferKind, bytes: usize) -> Result<GpuBuffer, CudaError> {
        let f = &self.context.functions;
        let len = bytes.max(16);
        let (mut address, mut host) = (0, std::ptr::null_mut());
        // SAFETY: each call writes one pointer to a place of ours.
        unsafe {
            match kind {
                BufferKind::Device => {
                    self.context.check("cuMemAlloc_v2", (f.allocate)(&mut address, len))?;
                }
                // CU_MEM_ATTACH_GLOBAL is 1.
                BufferKind::Managed => self
                    .context
                    .check("cuMemAllocManaged", (f.allocate_managed)(&mut address, len, 1))?,
                // CU_MEMHOSTALLOC_DEVICEMAP is 2.
                BufferKind::Pinned => {
                    self.context.check("cuMemHostAlloc", (f.allocate_host)(&mut host, len, 2))?;
                    let code = (f.host_pointer)(&mut address, host, 0);
                    self.context.check("cuMemHostGetDevicePointer_v2", code)?;
                }
            }
        }
        Ok(GpuBuffer { context: Rc::clone(&self.context), kind, host, address, len })
    }

    /// Loads machine code and finds its kernel.
    ///
    /// # Errors
    /// Code for another architecture, no such kernel, or what the driver says.
    pub fn load(&self, code: &[u8], kernel: &str) -> Result<GpuKernel, CudaError> {
        let f = &self.context.functions;
        let name = c_name(kernel, "cuModuleGetFunction")?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: an image that the driver checks, and places of ours to write to.
        let loaded = unsafe { (f.load_module)(&mut module, code.as_ptr().cast()) };
        self.context.check("cuModuleLoadData", loaded)?;
        // SAFETY: a module of ours and a C string.
        let found = unsafe { (f.find_function)(&mut function, module, name.as_ptr()) };
        let kernel = GpuKernel { context: Rc::clone(&self.context), module, function };
        self.context.check("cuModuleGetFunction", found)?;
        Ok(kernel)
    }

    /// Sets memory of the L2 cache aside for persisting accesses, and which accesses those are;
    /// `None` ends it. The next captured launches have it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn persist(&self, buffer: Option<&GpuBuffer>) -> Result<(), CudaError> {
        let f = &self.context.functions;
        let limits = &self.context.limits;
        let most = limits.access_window.get() as usize;
        let bytes = buffer.map_or(0, |b| b.len.min(most));
        let aside = bytes.min(limits.persisting_l2.get() as usize);
        let ratio = if bytes == 0 { 0.0 } else { (aside as f32 / bytes as f32).min(1.0) };
        let window = AccessPolicyWindow {
            base: buffer.map_or(0, |b| b.address) as *mut c_void,
            bytes,
            hit_ratio: ratio,
            // CU_ACCESS_PROPERTY_PERSISTING is 2, STREAMING 1, NORMAL 0.
            hit: if bytes == 0 { 0 } else { 2 },
            miss: i32::from(bytes != 0),
            rest: [0; 9],
        };
        // SAFETY: numbers, and a value of the header's layout that is read during the call.
        unsafe {
            // CU_LIMIT_PERSISTING_L2_CACHE_SIZE is 6, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW 1.
            self.context.check("cuCtxSetLimit", (f.set_limit)(6, aside))?;
            let code = (f.stream_attribute)(
                self.context.stream,
                1,
                std::ptr::from_ref(&window).cast::<c_void>(),
            );
            self.context.check("cuStreamSetAttribute", code)?;
            if buffer.is_none() {
                self.context.check("cuCtxResetPersistingL2Cache", (f.reset_l2)())?;
            }
        }
        Ok(())
    }

    /// A texture over a buffer.
    ///
    /// # Errors
    /// What the driver says.
    pub fn texture(
        &self,
        buffer: &GpuBuffer,
        format: TexelFormat,
    ) -> Result<GpuTexture, CudaError> {
        // CU_AD_FORMAT_FLOAT is 0x20, SIGNED_INT32 0x0a; CU_TRSF_READ_AS_INTEGER is 1.
        let (number, channels, flags) = match format {
            TexelFormat::Float => (0x20, 1, 0),
            TexelFormat::Int => (0x0a, 1, 1),
            TexelFormat::Float4 => (0x20, 4, 0),
        };
        let resource = ResourceDescription {
            // CU_RESOURCE_TYPE_LINEAR is 2.
            kind: 2,
            address: buffer.address,
            format: number,
            channels,
            bytes: buffer.len,
            rest: [0; 13],
            flags: 0,
        };
        let texture = TextureDescription {
            address_mode: [0; 3],
            filter_mode: 0,
            flags,
            anisotropy: 0,
            mipmap_filter: 0,
            mipmap: [0.0; 3],
            border: [0.0; 4],
            reserved: [0; 12],
        };
        let mut handle = 0;
        // SAFETY: values of the header's layout that are read during the call; one number is
        // written to a place of ours.
        let code = unsafe {
            (self.context.functions.create_texture)(
                &mut handle,
                &resource,
                &texture,
                std::ptr::null(),
            )
        };
        self.context.check("cuTexObjectCreate", code)?;
        Ok(GpuTexture { context: Rc::clone(&self.context), handle })
    }

    /// Launches a kernel and waits for it.
    ///
    /// # Errors
    /// What the driver says; a kernel that reached outside of its memory is among it.
    pub fn run(
        &self,
        kernel: &GpuKernel,
        shape: &LaunchShape,
        arguments: &[KernelArgument],
    ) -> Result<(), CudaError> {
        self.enqueue(kernel, shape, arguments)?;
        self.wait()
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: a stream of ours.
        let code = unsafe { (self.context.functions.wait)(self.context.stream) };
        self.context.check("cuStreamSynchronize", code)
    }

    fn enqueue(
        &self,
        kernel: &GpuKernel,
        shape: &LaunchShape,
        arguments: &[KernelArgument],
    ) -> Result<(), CudaError> {
        let mut words: Vec<u64> = arguments
            .iter()
            .map(|argument| match argument {
                KernelArgument::Word(word) => *word,
                KernelArgument::Int(value) => u64::from(*value as u32),
                KernelArgument::Float(value) => u64::from(value.to_bits()),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> =
            words.iter_mut().map(|w| std::ptr::from_mut(w).cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let shared = shape.shared.get() as c_uint;
        // SAFETY: the driver copies each argument during the call, as many bytes as the kernel
        // says, eight at most. The kernel reaches memory of this GPU's context only, of which no
        // reference is ever made here.
        let code = unsafe {
            (self.context.functions.launch)(
                kernel.function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared,
                self.context.stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.context.check("cuLaunchKernel", code)
    }

    /// Captures so many launches as one graph.
    ///
    /// # Errors
    /// What the driver says.
    pub fn capture(
        &self,
        kernel: &GpuKernel,
        shape: &LaunchShape,
        arguments: &[KernelArgument],
        repeats: u32,
    ) -> Result<LaunchGraph, CudaError> {
        let f = &self.context.functions;
        let stream = self.context.stream;
        // SAFETY: a stream of ours; CU_STREAM_CAPTURE_MODE_THREAD_LOCAL is 1.
        let code = unsafe { (f.begin_capture)(stream, 1) };
        self.context.check("cuStreamBeginCapture_v2", code)?;
        let launched = (0..repeats).try_for_each(|_| self.enqueue(kernel, shape, arguments));
        let (mut graph, mut instance) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a stream of ours that captures; a place of ours to write to.
        let code = unsafe { (f.end_capture)(stream, &mut graph) };
        launched?;
        self.context.check("cuStreamEndCapture", code)?;
        // SAFETY: the graph was made above.
        let code = unsafe { (f.instantiate)(&mut instance, graph, 0) };
        let made = LaunchGraph { context: Rc::clone(&self.context), graph, instance, repeats };
        self.context.check("cuGraphInstantiateWithFlags", code)?;
        Ok(made)
    }

    /// Runs a graph and returns the time of one of its launches, ns, by the GPU's clock.
    ///
    /// # Errors
    /// What the driver says.
    pub fn time(&self, graph: &LaunchGraph) -> Result<f64, CudaError> {
        let (f, c) = (&self.context.functions, &self.context);
        let mut milliseconds = 0.0;
        // SAFETY: a graph, a stream and events of ours.
        unsafe {
            c.check("cuEventRecord", (f.record_event)(c.start, c.stream))?;
            c.check("cuGraphLaunch", (f.launch_graph)(graph.instance, c.stream))?;
            c.check("cuEventRecord", (f.record_event)(c.stop, c.stream))?;
            c.check("cuStreamSynchronize", (f.wait)(c.stream))?;
            c.check("cuEventElapsedTime", (f.elapsed)(&mut milliseconds, c.start, c.stop))?;
        }
        Ok(f64::from(milliseconds) * 1e6 / f64::from(graph.repeats.max(1)))
    }
}

impl Context {
    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        check(&self.functions, call, code)
    }
}
