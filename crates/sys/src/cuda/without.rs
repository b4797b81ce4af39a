//! Builds without the feature `cuda`: the same door, always shut.

use super::{CudaDevice, CudaError, CudaHome};
use crate::Root;
use std::convert::Infallible;
use std::ops::Range;
use terrace_types::Bytes;

/// The driver, in builds that cannot have it: there is no value of this type.
#[derive(Debug)]
pub struct Cuda(Infallible);

impl Cuda {
    /// Says that this build has no CUDA.
    ///
    /// # Errors
    /// [`CudaError::NotBuilt`], always.
    pub const fn load(_root: &Root) -> Result<Self, CudaError> {
        Err(CudaError::NotBuilt)
    }

    /// GPUs.
    #[must_use]
    pub const fn devices(&self) -> &[CudaDevice] {
        match self.0 {}
    }

    /// Free memory of a GPU.
    ///
    /// # Errors
    /// Never: it cannot be called.
    pub const fn free(&self, _gpu: u16) -> Result<Bytes, CudaError> {
        match self.0 {}
    }

    /// New managed memory.
    ///
    /// # Errors
    /// Never: it cannot be called.
    pub const fn allocate(&self, _gpu: u16, _len: Bytes) -> Result<usize, CudaError> {
        match self.0 {}
    }

    /// Gives it back.
    ///
    /// # Errors
    /// Never: it cannot be called.
    pub const fn release(&self, _address: usize) -> Result<(), CudaError> {
        match self.0 {}
    }

    /// Its home.
    ///
    /// # Errors
    /// Never: it cannot be called.
    pub const fn prefer(
        &self,
        _part: &Range<usize>,
        _home: Option<CudaHome>,
    ) -> Result<(), CudaError> {
        match self.0 {}
    }

    /// Who reaches it.
    ///
    /// # Errors
    /// Never: it cannot be called.
    pub const fn reach(
        &self,
        _part: &Range<usize>,
        _from: CudaHome,
        _on: bool,
    ) -> Result<(), CudaError> {
        match self.0 {}
    }

    /// Brings it.
    ///
    /// # Errors
    /// Never: it cannot be called.
    pub const fn bring(&self, _part: &Range<usize>, _to: CudaHome) -> Result<(), CudaError> {
        match self.0 {}
    }
}
