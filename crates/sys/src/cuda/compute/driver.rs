//! Functions, layouts and errors of the driver, as `cuda.h` has them.

use super::library::{functions, Library};
use super::{Context, DevicePointer, GpuLimits, Handle};
use crate::cuda::CudaError;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use terrace_types::Bytes;

functions! { DriverFunctions {
    init "cuInit" (c_uint);
    driver_version "cuDriverGetVersion" (*mut c_int);
    error_name "cuGetErrorName" (c_int, *mut *const c_char);
    device "cuDeviceGet" (*mut c_int, c_int);
    device_name "cuDeviceGetName" (*mut c_char, c_int, c_int);
    total_memory "cuDeviceTotalMem_v2" (*mut usize, c_int);
    attribute "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain_context "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    set_context "cuCtxSetCurrent" (Handle);
    set_limit "cuCtxSetLimit" (c_int, usize);
    reset_l2 "cuCtxResetPersistingL2Cache" ();
    memory_info "cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate "cuMemAlloc_v2" (*mut DevicePointer, usize);
    allocate_managed "cuMemAllocManaged" (*mut DevicePointer, usize, c_uint);
    allocate_host "cuMemHostAlloc" (*mut Handle, usize, c_uint);
    host_pointer "cuMemHostGetDevicePointer_v2" (*mut DevicePointer, Handle, c_uint);
    release "cuMemFree_v2" (DevicePointer);
    release_host "cuMemFreeHost" (Handle);
    copy_in "cuMemcpyHtoD_v2" (DevicePointer, *const c_void, usize);
    copy_out "cuMemcpyDtoH_v2" (*mut c_void, DevicePointer, usize);
    fill "cuMemsetD8_v2" (DevicePointer, u8, usize);
    load_module "cuModuleLoadData" (*mut Handle, *const c_void);
    unload_module "cuModuleUnload" (Handle);
    find_function "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    find_global "cuModuleGetGlobal_v2" (*mut DevicePointer, *mut usize, Handle, *const c_char);
    function_attribute "cuFuncGetAttribute" (*mut c_int, c_int, Handle);
    set_function_attribute "cuFuncSetAttribute" (Handle, c_int, c_int);
    occupancy "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, Handle, c_int, usize);
    launch "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
    create_stream "cuStreamCreate" (*mut Handle, c_uint);
    wait "cuStreamSynchronize" (Handle);
    stream_attribute "cuStreamSetAttribute" (Handle, c_int, *const c_void);
    begin_capture "cuStreamBeginCapture_v2" (Handle, c_int);
    end_capture "cuStreamEndCapture" (Handle, *mut Handle);
    instantiate "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    launch_graph "cuGraphLaunch" (Handle, Handle);
    destroy_graph "cuGraphDestroy" (Handle);
    destroy_instance "cuGraphExecDestroy" (Handle);
    create_event "cuEventCreate" (*mut Handle, c_uint);
    record_event "cuEventRecord" (Handle, Handle);
    elapsed "cuEventElapsedTime" (*mut f32, Handle, Handle);
    create_texture "cuTexObjectCreate" (
        *mut u64, *const ResourceDescription, *const TextureDescription, *const c_void
    );
    destroy_texture "cuTexObjectDestroy" (u64);
} }

/// `CUDA_RESOURCE_DESC` for linear memory; its union has 128 bytes.
#[repr(C)]
pub(super) struct ResourceDescription {
    pub(super) kind: c_int,
    pub(super) address: DevicePointer,
    pub(super) format: c_int,
    pub(super) channels: c_uint,
    pub(super) bytes: usize,
    pub(super) rest: [u64; 13],
    pub(super) flags: c_uint,
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
pub(super) struct TextureDescription {
    pub(super) address_mode: [c_int; 3],
    pub(super) filter_mode: c_int,
    pub(super) flags: c_uint,
    pub(super) anisotropy: c_uint,
    pub(super) mipmap_filter: c_int,
    pub(super) mipmap: [f32; 3],
    pub(super) border: [f32; 4],
    pub(super) reserved: [c_int; 12],
}

/// `CUlaunchAttributeValue` with an access policy window; the union has 64 bytes.
#[repr(C)]
pub(super) struct AccessPolicyWindow {
    pub(super) base: *mut c_void,
    pub(super) bytes: usize,
    pub(super) hit_ratio: f32,
    pub(super) hit: c_int,
    pub(super) miss: c_int,
    pub(super) rest: [u32; 9],
}

const _: () = assert!(std::mem::size_of::<ResourceDescription>() == 144);
const _: () = assert!(std::mem::size_of::<TextureDescription>() == 104);
const _: () = assert!(std::mem::size_of::<AccessPolicyWindow>() == 64);

pub(super) fn c_name(name: &str, call: &'static str) -> Result<CString, CudaError> {
    CString::new(name).map_err(|_| CudaError::Failed {
        call,
        target: name.escape_debug().to_string(),
        name: "a name with a zero byte".to_owned(),
        code: 1,
    })
}

pub(super) fn write_bytes(context: &Context, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
    // SAFETY: reads so many bytes of ours; the callers cut them to the space at `address`.
    let code = unsafe { (context.functions.copy_in)(address, bytes.as_ptr().cast(), bytes.len()) };
    context.check("cuMemcpyHtoD_v2", code)
}

pub(super) fn check(
    functions: &DriverFunctions,
    call: &'static str,
    code: c_int,
) -> Result<(), CudaError> {
    match code {
        0 => Ok(()),
        code => Err(failure(functions, call, code)),
    }
}

pub(super) fn failure(functions: &DriverFunctions, call: &'static str, code: c_int) -> CudaError {
    let target = "the GPU".to_owned();
    // CUDA_ERROR_OUT_OF_MEMORY of cuda.h.
    if code == 2 {
        return CudaError::Full { call, target };
    }
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: writes one pointer to a place of ours: null, or a text of the library, which stays.
    let known = unsafe { (functions.error_name)(code, &mut name) } == 0 && !name.is_null();
    let name = match known {
        // SAFETY: not null, and a C string of the library by its documentation.
        true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        false => "an error of a newer driver".to_owned(),
    };
    CudaError::Failed { call, target, name, code }
}

pub(super) fn read_limits(
    functions: &DriverFunctions,
    device: c_int,
) -> Result<GpuLimits, CudaError> {
    const TEXT: usize = 256;
    let mut text: [c_char; TEXT] = [0; TEXT];
    let (mut memory, mut driver) = (0, 0);
    // SAFETY: each writes to a place of ours that is as large as said.
    unsafe {
        let code = (functions.device_name)(text.as_mut_ptr(), TEXT as c_int, device);
        check(functions, "cuDeviceGetName", code)?;
        check(functions, "cuDeviceTotalMem_v2", (functions.total_memory)(&mut memory, device))?;
        check(functions, "cuDriverGetVersion", (functions.driver_version)(&mut driver))?;
    }
    text[TEXT - 1] = 0;
    // SAFETY: it ends with a zero, at its last byte if not before.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
    let read = |number: c_int| {
        let mut value = 0;
        // SAFETY: writes one number to a place of ours.
        let code = unsafe { (functions.attribute)(&mut value, number, device) };
        // An attribute that this driver does not know is of a feature that is not there.
        if code == 0 {
            value.max(0) as u32
        } else {
            0
        }
    };
    let bytes = |number| Bytes(u64::from(read(number)));
    Ok(GpuLimits {
        name,
        capability: read(75) * 10 + read(76),
        multiprocessors: read(16),
        l2: bytes(38),
        shared_per_block: bytes(97),
        shared_per_multiprocessor: bytes(81),
        constant: bytes(9),
        persisting_l2: bytes(108),
        access_window: bytes(109),
        registers: read(82),
        threads: read(39),
        clock_khz: read(13),
        memory_clock_khz: read(36),
        memory_bus_bits: read(37),
        memory: Bytes(memory as u64),
        driver: driver.max(0) as u32,
    })
}
