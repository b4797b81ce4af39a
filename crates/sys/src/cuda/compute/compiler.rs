//! NVRTC, the compiler of CUDA C at run time.

use super::library::{functions, Library};
use super::Handle;
use crate::cuda::CudaError;
use std::ffi::{c_char, c_int, c_void, CString};

functions! { CompilerFunctions {
    create "nvrtcCreateProgram" (
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char
    );
    destroy "nvrtcDestroyProgram" (*mut Handle);
    compile "nvrtcCompileProgram" (Handle, c_int, *const *const c_char);
    log_size "nvrtcGetProgramLogSize" (Handle, *mut usize);
    log "nvrtcGetProgramLog" (Handle, *mut c_char);
    code_size "nvrtcGetCUBINSize" (Handle, *mut usize);
    code "nvrtcGetCUBIN" (Handle, *mut c_char);
} }

/// NVRTC, the compiler of CUDA C at run time. It needs no GPU.
#[derive(Debug)]
pub struct KernelCompiler {
    functions: CompilerFunctions,
}

/// Why a kernel did not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The compiler's library was not found.
    #[error(
        "NVRTC's library, libnvrtc.so, cannot be loaded; install CUDA's toolkit or the wheel \
        nvidia-cuda-nvrtc, and name its folder in LD_LIBRARY_PATH"
    )]
    NoCompiler,
    /// The library lacks a function.
    #[error(
        "NVRTC's library has no function {function}: it is older than CUDA 11.1; install a \
        newer one"
    )]
    TooOld {
        /// Its name.
        function: &'static str,
    },
    /// The source or an option holds a zero byte.
    #[error("the source of {name} holds a zero byte: it is no text")]
    NotText {
        /// What was to be compiled.
        name: String,
    },
    /// The compiler refused the source.
    #[error("{name} does not compile: {log}")]
    Refused {
        /// What was compiled.
        name: String,
        /// The compiler's own words, cut at 64 KiB.
        log: String,
    },
}

/// Bytes of a compiler's log that are kept.
const LOG_LIMIT: usize = 64 << 10;

impl KernelCompiler {
    /// Loads the compiler.
    ///
    /// # Errors
    /// No library, or an old one.
    pub fn load() -> Result<Self, CompileError> {
        let library = Library::open(&[
            "libnvrtc.so",
            "libnvrtc.so.13",
            "libnvrtc.so.12",
            "libnvrtc.so.11.2",
            "/usr/local/cuda/lib64/libnvrtc.so",
        ])
        .ok_or(CompileError::NoCompiler)?;
        let functions = CompilerFunctions::find(library).map_err(|error| match error {
            CudaError::TooOld { function } => CompileError::TooOld { function },
            _ => CompileError::NoCompiler,
        })?;
        Ok(Self { functions })
    }

    /// Machine code (a cubin) of `source` for an architecture such as `sm_90`; `name` is what the
    /// compiler's messages call the source.
    ///
    /// # Errors
    /// [`CompileError::Refused`] with the compiler's words.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        architecture: &str,
        defines: &[(String, i64)],
    ) -> Result<Vec<u8>, CompileError> {
        let text =
            |t: &str| CString::new(t).map_err(|_| CompileError::NotText { name: name.to_owned() });
        let (source, title) = (text(source)?, text(name)?);
        let mut options = vec![text(&format!("--gpu-architecture={architecture}"))?];
        for (key, value) in defines {
            options.push(text(&format!("-D{key}={value}"))?);
        }
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let f = &self.functions;
        let mut program: Handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: C strings that live until the call ends, and no headers.
        let created =
            unsafe { (f.create)(&mut program, source.as_ptr(), title.as_ptr(), 0, none, none) };
        let refused = |log: String| CompileError::Refused { name: name.to_owned(), log };
        if created != 0 {
            return Err(refused(format!("NVRTC cannot start (error {created})")));
        }
        // SAFETY: a program that was created above, and C strings that live on.
        let compiled = unsafe { (f.compile)(program, pointers.len() as c_int, pointers.as_ptr()) };
        let result = if compiled == 0 { Self::read(program, f.code_size, f.code) } else { None };
        let log = Self::read(program, f.log_size, f.log).unwrap_or_default();
        // SAFETY: created above, and not used again.
        let _destroyed = unsafe { (f.destroy)(&mut program) };
        result.filter(|code| !code.is_empty()).ok_or_else(|| {
            let log = String::from_utf8_lossy(&log[..log.len().min(LOG_LIMIT)]);
            refused(log.trim_matches(['\0', '\n', ' ']).to_owned())
        })
    }

    fn read(
        program: Handle,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        read: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut len = 0;
        // SAFETY: writes one number to a place of ours.
        if unsafe { size(program, &mut len) } != 0 {
            return None;
        }
        let mut bytes = vec![0_u8; len];
        // SAFETY: writes as many bytes as it said to a place of ours that has them.
        (unsafe { read(program, bytes.as_mut_ptr().cast()) } == 0).then_some(bytes)
    }
}
