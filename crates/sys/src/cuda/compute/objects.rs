//! What a GPU's buffers, textures and kernels can do, and how they are given back.

use super::driver::{c_name, write_bytes};
use super::{
    BufferKind, GpuBuffer, GpuKernel, GpuTexture, KernelFigures, LaunchGraph, LaunchShape,
};
use crate::cuda::CudaError;
use std::ffi::c_int;
use terrace_types::Bytes;

impl GpuBuffer {
    /// Its address, as kernels use it.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Copies bytes in, as many as fit.
    ///
    /// # Errors
    /// What the driver says.
    pub fn write(&self, bytes: &[u8]) -> Result<(), CudaError> {
        write_bytes(&self.context, self.address, &bytes[..bytes.len().min(self.len)])
    }

    /// Copies bytes out, as many as there are.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), CudaError> {
        let len = bytes.len().min(self.len);
        // SAFETY: writes so many bytes to a place of ours that has them.
        let code = unsafe {
            (self.context.functions.copy_out)(bytes.as_mut_ptr().cast(), self.address, len)
        };
        self.context.check("cuMemcpyDtoH_v2", code)
    }

    /// Sets all bytes to zero.
    ///
    /// # Errors
    /// What the driver says.
    pub fn clear(&self) -> Result<(), CudaError> {
        // SAFETY: a buffer of ours and its length.
        let code = unsafe { (self.context.functions.fill)(self.address, 0, self.len) };
        self.context.check("cuMemsetD8_v2", code)
    }
}

impl GpuTexture {
    /// Its handle, as kernels take it.
    #[must_use]
    pub const fn handle(&self) -> u64 {
        self.handle
    }
}

impl GpuKernel {
    /// Writes to a variable of the module, such as an array in constant memory.
    ///
    /// # Errors
    /// No such variable, or what the driver says.
    pub fn write_variable(&self, name: &str, bytes: &[u8]) -> Result<(), CudaError> {
        let name = c_name(name, "cuModuleGetGlobal_v2")?;
        let (mut address, mut len) = (0, 0);
        // SAFETY: a module of ours, a C string, and two places of ours to write to.
        let code = unsafe {
            (self.context.functions.find_global)(&mut address, &mut len, self.module, name.as_ptr())
        };
        self.context.check("cuModuleGetGlobal_v2", code)?;
        write_bytes(&self.context, address, &bytes[..bytes.len().min(len)])
    }

    /// Allows so much dynamic shared memory.
    ///
    /// # Errors
    /// More than the GPU has.
    pub fn allow_shared(&self, bytes: Bytes) -> Result<(), CudaError> {
        let bytes = c_int::try_from(bytes.get()).unwrap_or(c_int::MAX);
        // SAFETY: a function of ours; CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES is 8.
        let code =
            unsafe { (self.context.functions.set_function_attribute)(self.function, 8, bytes) };
        self.context.check("cuFuncSetAttribute", code)
    }

    /// Blocks of a multiprocessor that fit at once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn resident_blocks(&self, shape: &LaunchShape) -> Result<u32, CudaError> {
        let mut blocks = 0;
        let threads = shape.block.iter().product::<u32>() as c_int;
        let shared = shape.shared.get() as usize;
        // SAFETY: writes one number to a place of ours.
        let code = unsafe {
            (self.context.functions.occupancy)(&mut blocks, self.function, threads, shared)
        };
        self.context.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.max(0) as u32)
    }

    /// Its figures.
    ///
    /// # Errors
    /// What the driver says.
    pub fn figures(&self) -> Result<KernelFigures, CudaError> {
        // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES 1, CONST 2, LOCAL 3, NUM_REGS 4.
        let read = |number| {
            let mut value = 0;
            // SAFETY: writes one number to a place of ours.
            let code = unsafe {
                (self.context.functions.function_attribute)(&mut value, number, self.function)
            };
            self.context.check("cuFuncGetAttribute", code).map(|()| value.max(0) as u32)
        };
        Ok(KernelFigures {
            shared_bytes: read(1)?,
            constant_bytes: read(2)?,
            local_bytes: read(3)?,
            registers: read(4)?,
        })
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        let f = &self.context.functions;
        // SAFETY: memory of ours, given back once, the way it was taken.
        let _released = unsafe {
            match self.kind {
                BufferKind::Pinned => (f.release_host)(self.host),
                BufferKind::Device | BufferKind::Managed => (f.release)(self.address),
            }
        };
    }
}

impl Drop for GpuTexture {
    fn drop(&mut self) {
        // SAFETY: a texture of ours, destroyed once.
        let _destroyed = unsafe { (self.context.functions.destroy_texture)(self.handle) };
    }
}

impl Drop for GpuKernel {
    fn drop(&mut self) {
        // SAFETY: a module of ours, unloaded once; launches were waited for.
        let _unloaded = unsafe { (self.context.functions.unload_module)(self.module) };
    }
}

impl Drop for LaunchGraph {
    fn drop(&mut self) {
        let f = &self.context.functions;
        // SAFETY: made by us, destroyed once; the driver refuses a null instance.
        unsafe {
            if !self.instance.is_null() {
                let _destroyed = (f.destroy_instance)(self.instance);
            }
            let _destroyed = (f.destroy_graph)(self.graph);
        }
    }
}
