//! The driver's library, loaded by `cudarc`.
//!
//! `cudarc` finds the library and knows the types; functions are looked up here one by one. Its own
//! wrappers panic where the library lacks a function, and read results into an enum that a newer
//! driver's numbers are not in.

use super::{CudaDevice, CudaError, CudaHome};
use crate::Root;
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, CStr};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use terrace_types::{Bytes, NodeId};

/// The CPUs, where a function takes a device: `CU_DEVICE_CPU` of cuda.h, a macro that bindings do
/// not have.
const CPU: c_int = -1;
const TEXT: usize = 256;

macro_rules! calls {
    ($($field:ident $symbol:literal ($($argument:ty),*);)*) => {
        /// Functions of the library. They stay: it is never unloaded.
        #[derive(Debug, Clone, Copy)]
        struct Calls {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Calls {
            /// # Safety
            /// The library can be loaded: `is_culib_present` said so.
            unsafe fn find() -> Result<Self, CudaError> {
                // SAFETY: it panics where there is no library, and there is one by the caller's
                // promise.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of cuda.h for the function of this name, which
                        // the driver keeps for ever.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(concat!($symbol, "\0").as_bytes())
                        };
                        *found.map_err(|_| CudaError::TooOld { function: $symbol })?
                    },)*
                })
            }
        }
    };
}

calls! {
    init "cuInit" (c_uint);
    error_name "cuGetErrorName" (c_int, *mut *const c_char);
    count "cuDeviceGetCount" (*mut c_int);
    device "cuDeviceGet" (*mut sys::CUdevice, c_int);
    name "cuDeviceGetName" (*mut c_char, c_int, sys::CUdevice);
    total "cuDeviceTotalMem_v2" (*mut usize, sys::CUdevice);
    attribute "cuDeviceGetAttribute" (*mut c_int, c_int, sys::CUdevice);
    bus "cuDeviceGetPCIBusId" (*mut c_char, c_int, sys::CUdevice);
    can_access "cuDeviceCanAccessPeer" (*mut c_int, sys::CUdevice, sys::CUdevice);
    retain "cuDevicePrimaryCtxRetain" (*mut sys::CUcontext, sys::CUdevice);
    let_go "cuDevicePrimaryCtxRelease_v2" (sys::CUdevice);
    push "cuCtxPushCurrent_v2" (sys::CUcontext);
    pop "cuCtxPopCurrent_v2" (*mut sys::CUcontext);
    free "cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate "cuMemAllocManaged" (*mut sys::CUdeviceptr, usize, c_uint);
    release "cuMemFree_v2" (sys::CUdeviceptr);
    advise "cuMemAdvise" (sys::CUdeviceptr, usize, c_int, c_int);
    bring "cuMemPrefetchAsync" (sys::CUdeviceptr, usize, c_int, sys::CUstream);
    wait "cuStreamSynchronize" (sys::CUstream);
}

/// A context, which is only handed back to the driver.
#[derive(Debug, Clone, Copy)]
struct Context(sys::CUcontext);

// SAFETY: the driver allows a context to be made current by any thread, several at once too;
// nothing else is done with it.
unsafe impl Send for Context {}

#[derive(Debug, Default)]
struct State {
    /// Contexts that were retained, by GPU.
    contexts: BTreeMap<u16, Context>,
    /// Managed memory of this handle: start to end, and the GPU whose context it was allocated in.
    blocks: BTreeMap<usize, (usize, u16)>,
}

/// The driver. What was allocated through it is given back when it is dropped.
#[derive(Debug)]
pub struct Cuda {
    calls: Calls,
    /// The driver's own numbers, by ours.
    handles: Vec<sys::CUdevice>,
    devices: Vec<CudaDevice>,
    state: Mutex<State>,
    /// Who loaded it: it does not serve children.
    process: u32,
}

impl Cuda {
    /// Loads the driver's library and asks it for GPUs; their nodes are read below `root`. No GPU's
    /// memory is taken for it.
    ///
    /// # Errors
    /// Why there is no CUDA here.
    pub fn load(root: &Root) -> Result<Self, CudaError> {
        // SAFETY: runs the initialisers of the libraries it finds: the driver's, which are made to
        // be loaded so.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoLibrary);
        }
        // SAFETY: it is present.
        let calls = unsafe { Calls::find() }?;
        let mut cuda = Self {
            calls,
            handles: Vec::new(),
            devices: Vec::new(),
            state: Mutex::default(),
            process: std::process::id(),
        };
        // SAFETY: takes a number.
        match unsafe { (calls.init)(0) } {
            0 => {}
            code if code == sys::CUresult::CUDA_ERROR_NO_DEVICE as c_int => {
                return Err(CudaError::NoDevice)
            }
            // What a child gets whose parent used the driver.
            code if code == sys::CUresult::CUDA_ERROR_NOT_INITIALIZED as c_int => {
                return Err(CudaError::Forked)
            }
            code if code == sys::CUresult::CUDA_ERROR_STUB_LIBRARY as c_int => {
                return Err(CudaError::Stub)
            }
            code => return Err(cuda.failed("cuInit", "the driver", code)),
        }
        let mut count = 0;
        // SAFETY: writes one number to a place of ours.
        cuda.done("cuDeviceGetCount", &"the driver", unsafe { (calls.count)(&mut count) })?;
        if count <= 0 {
            return Err(CudaError::NoDevice);
        }
        for ordinal in 0..count {
            let mut handle = 0;
            // SAFETY: writes one number to a place of ours.
            let code = unsafe { (calls.device)(&mut handle, ordinal) };
            cuda.done("cuDeviceGet", &format_args!("GPU {ordinal}"), code)?;
            cuda.handles.push(handle);
        }
        for number in 0..cuda.handles.len() {
            let device = cuda.look_at(root, number)?;
            cuda.devices.push(device);
        }
        Ok(cuda)
    }

    fn look_at(&self, root: &Root, number: usize) -> Result<CudaDevice, CudaError> {
        let handle = self.handles[number];
        let target = format!("GPU {number}");
        let mut text: [c_char; TEXT] = [0; TEXT];
        // SAFETY: writes at most as many bytes as it is told to a place of ours that has them, with
        // a zero at the end.
        let code = unsafe { (self.calls.name)(text.as_mut_ptr(), TEXT as c_int, handle) };
        self.done("cuDeviceGetName", &target, code)?;
        let name = shown(&mut text);
        let mut total = 0;
        // SAFETY: writes one number to a place of ours.
        self.done("cuDeviceTotalMem_v2", &target, unsafe {
            (self.calls.total)(&mut total, handle)
        })?;
        let mut places = 0;
        let concurrent =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as c_int;
        // SAFETY: writes one number to a place of ours.
        let code = unsafe { (self.calls.attribute)(&mut places, concurrent, handle) };
        self.done("cuDeviceGetAttribute", &target, code)?;
        // SAFETY: as for the name.
        let code = unsafe { (self.calls.bus)(text.as_mut_ptr(), TEXT as c_int, handle) };
        let node = if code == 0 { node_of(root, &shown(&mut text)) } else { None };
        let mut peers = Vec::new();
        for (other, peer) in self.handles.iter().enumerate().filter(|(other, _)| *other != number) {
            let mut can = 0;
            // SAFETY: writes one number to a place of ours.
            let code = unsafe { (self.calls.can_access)(&mut can, *peer, handle) };
            self.done("cuDeviceCanAccessPeer", &target, code)?;
            if can != 0 {
                peers.push(other as u16);
            }
        }
        Ok(CudaDevice { name, total: Bytes(total as u64), node, places: places != 0, peers })
    }

    /// GPUs that this process may use, in the driver's order.
    #[must_use]
    pub fn devices(&self) -> &[CudaDevice] {
        &self.devices
    }

    /// Free memory of a GPU, all processes counted. The first call for a GPU has the driver set
    /// itself up there, which takes some hundred megabytes of its memory.
    ///
    /// # Errors
    /// What the driver said.
    pub fn free(&self, gpu: u16) -> Result<Bytes, CudaError> {
        let (mut free, mut total) = (0, 0);
        let mut state = self.state()?;
        // SAFETY: writes two numbers to places of ours.
        self.within(&mut state, gpu, "cuMemGetInfo_v2", &CudaHome::Gpu(gpu), || unsafe {
            (self.calls.free)(&mut free, &mut total)
        })?;
        Ok(Bytes(free as u64))
    }

    /// `len` bytes of managed memory for all GPUs and the CPUs; `gpu` is the one the driver books
    /// it with. Pages that were never touched read as zeros in practice; the driver's documentation
    /// does not promise that.
    ///
    /// # Errors
    /// What the driver said.
    pub fn allocate(&self, gpu: u16, len: Bytes) -> Result<usize, CudaError> {
        const CALL: &str = "cuMemAllocManaged";
        let global = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as c_uint;
        let mut at = 0;
        let mut state = self.state()?;
        // SAFETY: writes one address to a place of ours.
        self.within(&mut state, gpu, CALL, &len, || unsafe {
            (self.calls.allocate)(&mut at, len.get() as usize, global)
        })?;
        let at = at as usize;
        state.blocks.insert(at, (at + len.get() as usize, gpu));
        Ok(at)
    }

    /// Gives managed memory back.
    ///
    /// # Errors
    /// [`CudaError::NotOurs`], or what the driver said.
    pub fn release(&self, address: usize) -> Result<(), CudaError> {
        let mut state = self.state()?;
        let &(_, gpu) = state.blocks.get(&address).ok_or(CudaError::NotOurs { address })?;
        self.give_back(&mut state, address, gpu)?;
        state.blocks.remove(&address);
        Ok(())
    }

    fn give_back(&self, state: &mut State, address: usize, gpu: u16) -> Result<(), CudaError> {
        // SAFETY: the driver gave this address to us, and has it still; that nobody uses it is what
        // giving back means.
        self.within(state, gpu, "cuMemFree_v2", &format_args!("{address:#x}"), || unsafe {
            (self.calls.release)(address as sys::CUdeviceptr)
        })
    }

    /// The home of the pages of `part`: the driver keeps them there, and brings them back; with
    /// `None` they have none, and lie with whoever touches them.
    ///
    /// # Errors
    /// [`CudaError::NotOurs`], or what the driver said.
    pub fn prefer(&self, part: &Range<usize>, home: Option<CudaHome>) -> Result<(), CudaError> {
        let advice = match home {
            Some(_) => sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
            None => sys::CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
        };
        self.advise(part, advice, home.unwrap_or(CudaHome::Host))
    }

    /// Whether CPUs or a GPU keep a way to the pages of `part` wherever these are, without bringing
    /// them near.
    ///
    /// # Errors
    /// [`CudaError::NotOurs`], or what the driver said.
    pub fn reach(&self, part: &Range<usize>, from: CudaHome, on: bool) -> Result<(), CudaError> {
        let advice = match on {
            true => sys::CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY,
            false => sys::CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY,
        };
        self.advise(part, advice, from)
    }

    fn advise(
        &self,
        part: &Range<usize>,
        advice: sys::CUmem_advise,
        whom: CudaHome,
    ) -> Result<(), CudaError> {
        let device = self.handle(whom);
        let mut state = self.state()?;
        let gpu = owner(&state, part)?;
        // SAFETY: the range is of a block that the driver gave to us and has still; advice changes
        // no byte of it.
        self.within(
            &mut state,
            gpu,
            "cuMemAdvise",
            &format_args!("{:#x} for {whom}", part.start),
            || unsafe {
                (self.calls.advise)(
                    part.start as sys::CUdeviceptr,
                    part.len(),
                    advice as c_int,
                    device,
                )
            },
        )
    }

    /// Brings the pages of `part` to a home, and waits until they are there.
    ///
    /// # Errors
    /// [`CudaError::NotOurs`], or what the driver said.
    pub fn bring(&self, part: &Range<usize>, to: CudaHome) -> Result<(), CudaError> {
        let device = self.handle(to);
        let mut state = self.state()?;
        let owner = owner(&state, part)?;
        // The stream of the GPU that they come to, so that what is waited for is theirs.
        let gpu = if let CudaHome::Gpu(gpu) = to { gpu } else { owner };
        let target = format_args!("{:#x} to {to}", part.start).to_string();
        let stream: sys::CUstream = std::ptr::null_mut();
        // SAFETY: the range is of a block that the driver gave to us and has still; no byte of it
        // changes. A null stream is the context's own.
        self.within(&mut state, gpu, "cuMemPrefetchAsync", &target, || unsafe {
            (self.calls.bring)(part.start as sys::CUdeviceptr, part.len(), device, stream)
        })?;
        // SAFETY: a null stream is the context's own.
        self.within(&mut state, gpu, "cuStreamSynchronize", &target, || unsafe {
            (self.calls.wait)(stream)
        })
    }

    fn handle(&self, home: CudaHome) -> c_int {
        match home {
            CudaHome::Host => CPU,
            // A number that there is not is one the driver refuses.
            CudaHome::Gpu(gpu) => self.handles.get(usize::from(gpu)).copied().unwrap_or(c_int::MAX),
        }
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, CudaError> {
        if std::process::id() != self.process {
            return Err(CudaError::Forked);
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `call` in the context of `gpu`; what was current for the thread is so afterwards.
    fn within(
        &self,
        state: &mut State,
        gpu: u16,
        name: &'static str,
        target: &dyn std::fmt::Display,
        call: impl FnOnce() -> c_int,
    ) -> Result<(), CudaError> {
        let context = match state.contexts.get(&gpu) {
            Some(context) => context.0,
            None => {
                let mut context: sys::CUcontext = std::ptr::null_mut();
                // SAFETY: writes one pointer to a place of ours.
                let code =
                    unsafe { (self.calls.retain)(&mut context, self.handle(CudaHome::Gpu(gpu))) };
                self.done("cuDevicePrimaryCtxRetain", &CudaHome::Gpu(gpu), code)?;
                state.contexts.insert(gpu, Context(context));
                context
            }
        };
        // SAFETY: the context is retained until this handle goes.
        self.done("cuCtxPushCurrent_v2", target, unsafe { (self.calls.push)(context) })?;
        let code = call();
        let mut popped: sys::CUcontext = std::ptr::null_mut();
        // SAFETY: writes one pointer to a place of ours; takes off what was put on above, by the
        // same thread.
        let off = unsafe { (self.calls.pop)(&mut popped) };
        self.done(name, target, code)?;
        self.done("cuCtxPopCurrent_v2", target, off)
    }

    fn done(
        &self,
        call: &'static str,
        target: &dyn std::fmt::Display,
        code: c_int,
    ) -> Result<(), CudaError> {
        match code {
            0 => Ok(()),
            code => Err(self.failed(call, &target.to_string(), code)),
        }
    }

    fn failed(&self, call: &'static str, target: &str, code: c_int) -> CudaError {
        let target = target.to_owned();
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as c_int {
            return CudaError::Full { call, target };
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: writes one pointer to a place of ours: null, or a text of the library, which
        // stays.
        let known = unsafe { (self.calls.error_name)(code, &mut name) } == 0 && !name.is_null();
        let name = match known {
            // SAFETY: not null, and a C string of the library by its documentation.
            true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            false => "an error of a newer driver".to_owned(),
        };
        CudaError::Failed { call, target, name, code }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // In a child the blocks are the parent's. At a process's end the driver may be gone before;
        // there is nobody to tell.
        if std::process::id() != self.process {
            return;
        }
        let mut state =
            std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (address, (_, gpu)) in std::mem::take(&mut state.blocks) {
            let _given_back = self.give_back(&mut state, address, gpu);
        }
        for gpu in state.contexts.keys() {
            // SAFETY: once for the one time that it was retained.
            let _released = unsafe { (self.calls.let_go)(self.handle(CudaHome::Gpu(*gpu))) };
        }
    }
}

/// The GPU that a part of a block was allocated with.
fn owner(state: &State, part: &Range<usize>) -> Result<u16, CudaError> {
    match state.blocks.range(..=part.start).next_back() {
        Some((_, (end, gpu))) if part.end <= *end => Ok(*gpu),
        _ => Err(CudaError::NotOurs { address: part.start }),
    }
}

/// The text that a function wrote.
fn shown(text: &mut [c_char; TEXT]) -> String {
    text[TEXT - 1] = 0;
    // SAFETY: it ends with a zero, at its last byte if not before.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
}

/// The node that a PCI device is attached to; firmware that does not say has the kernel write -1.
fn node_of(root: &Root, bus: &str) -> Option<NodeId> {
    let bus = bus.to_ascii_lowercase();
    if !bus.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.') {
        return None;
    }
    let text = root.text(&format!("/sys/bus/pci/devices/{bus}/numa_node")).ok()?;
    text.trim().parse().ok().map(NodeId)
}
