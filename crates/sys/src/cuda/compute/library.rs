//! NVIDIA's libraries, loaded when they are asked for and never unloaded.

use super::Handle;
use crate::cuda::CudaError;
use std::ffi::{c_void, CString};

/// A library that stays loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library(Handle);

impl Library {
    pub(super) fn open(names: &[&str]) -> Option<Self> {
        names.iter().find_map(|name| {
            let name = CString::new(*name).ok()?;
            // SAFETY: a C string; runs the initialisers of NVIDIA's library, which are made for it.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!handle.is_null()).then_some(Self(handle))
        })
    }

    pub(super) fn find(self, symbol: &'static str) -> Result<*mut c_void, CudaError> {
        let name = CString::new(symbol).map_err(|_| CudaError::TooOld { function: symbol })?;
        // SAFETY: the handle is of a library that is never closed, the name a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(CudaError::TooOld { function: symbol });
        }
        Ok(address)
    }
}

macro_rules! functions {
    ($name:ident { $($field:ident $symbol:literal ($($argument:ty),*);)* }) => {
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl $name {
            pub(super) fn find(library: Library) -> Result<Self, CudaError> {
                Ok(Self {
                    $($field: {
                        let address = library.find($symbol)?;
                        // SAFETY: the type is that of the header for the function of this name.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> c_int,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

pub(super) use functions;
