//! Status codes, and the text of the last error.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_alloc::error::AllocError;
use terrace_alloc::gpu::CudaError;

/// Done.
pub const TERRACE_OK: c_int = 0;
/// An argument is invalid: a null pointer, an unknown constant, a split without parts.
pub const TERRACE_E_INVALID: c_int = -1;
/// The machine has no such class or index.
pub const TERRACE_E_NO_CLASS: c_int = -2;
/// Local memory was requested by a thread that is not bound, or from a class without local nodes.
pub const TERRACE_E_NOT_LOCAL: c_int = -3;
/// The permitted nodes have too little free memory.
pub const TERRACE_E_NO_ROOM: c_int = -4;
/// The address was not allocated here, or was freed before.
pub const TERRACE_E_NOT_OURS: c_int = -5;
/// The size exceeds the address space.
pub const TERRACE_E_TOO_LARGE: c_int = -6;
/// A variable of the environment cannot be read.
pub const TERRACE_E_ENVIRONMENT: c_int = -7;
/// The machine cannot be read or ranked.
pub const TERRACE_E_MACHINE: c_int = -8;
/// The kernel refused.
pub const TERRACE_E_KERNEL: c_int = -9;
/// A mistake in Terrace itself.
pub const TERRACE_E_INTERNAL: c_int = -10;
/// The driver of CUDA refused.
pub const TERRACE_E_CUDA: c_int = -20;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps `text` for the thread, and returns `code`.
pub(crate) fn fail(code: c_int, text: &str) -> c_int {
    let text: String = text.chars().filter(|c| *c != '\0').collect();
    // During the thread's end there is nowhere to keep it, and nobody to read it.
    let _kept = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    code
}

pub(crate) fn invalid(what: &str) -> c_int {
    fail(TERRACE_E_INVALID, what)
}

/// Keeps the error for the thread, and returns its code.
pub(crate) fn failed(error: &AllocError) -> c_int {
    let code = match error {
        AllocError::TooLarge { .. } => TERRACE_E_TOO_LARGE,
        AllocError::NothingAsked
        | AllocError::BadSplit { .. }
        | AllocError::BadIntensity
        | AllocError::Solve(_) => TERRACE_E_INVALID,
        AllocError::NoSuchClass { .. }
        | AllocError::NoSuchIndex { .. }
        | AllocError::NoCuda(_)
        | AllocError::NoSuchGpu { .. } => TERRACE_E_NO_CLASS,
        AllocError::NotBound { .. }
        | AllocError::NotLocal { .. }
        | AllocError::NoGpuNear { .. } => TERRACE_E_NOT_LOCAL,
        AllocError::NoSpace { .. }
        | AllocError::NoSpaceOnGpus { .. }
        | AllocError::Cuda(CudaError::Full { .. }) => TERRACE_E_NO_ROOM,
        AllocError::Cuda(_) => TERRACE_E_CUDA,
        AllocError::NotOurs { .. } => TERRACE_E_NOT_OURS,
        AllocError::Reentered => crate::TERRACE_E_BUSY,
        AllocError::Environment { .. } => TERRACE_E_ENVIRONMENT,
        AllocError::NoNodes { .. } | AllocError::Topology(_) | AllocError::Rank(_) => {
            TERRACE_E_MACHINE
        }
        AllocError::Kernel(_) => TERRACE_E_KERNEL,
    };
    fail(code, &error.to_string())
}

/// Runs `call`; a panic becomes a code.
pub(crate) fn guard(call: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        fail(TERRACE_E_INTERNAL, "a mistake in Terrace itself; please report it")
    })
}

/// Returns the meaning of a code in a few words; never null. The text lives as long as the program.
#[no_mangle]
pub extern "C" fn terrace_strerror(code: c_int) -> *const c_char {
    let text: &'static CStr = match code {
        TERRACE_OK => c"done",
        TERRACE_E_INVALID => c"an argument means nothing",
        TERRACE_E_NO_CLASS => c"no such class of memory on this machine",
        TERRACE_E_NOT_LOCAL => c"no local memory for this thread",
        TERRACE_E_NO_ROOM => c"no room in the memory asked for",
        TERRACE_E_NOT_OURS => c"not an address of an allocation",
        TERRACE_E_TOO_LARGE => c"more than can be addressed",
        TERRACE_E_ENVIRONMENT => c"a variable of the environment cannot be read",
        TERRACE_E_MACHINE => c"the machine cannot be read",
        TERRACE_E_KERNEL => c"the kernel refused",
        TERRACE_E_CUDA => c"the driver of CUDA refused",
        TERRACE_E_INTERNAL => c"a mistake in Terrace itself",
        crate::TERRACE_E_DESTROYED => c"the arena was destroyed",
        crate::TERRACE_E_BUSY => c"busy: moving already, or inside the allocator",
        crate::TERRACE_E_INCOMPLETE => c"pages stayed behind",
        crate::TERRACE_E_CANCELLED => c"the move was cancelled",
        crate::TERRACE_E_AGAIN => c"not ended yet",
        crate::TERRACE_E_NOT_SHARED => c"not a shared arena",
        crate::TERRACE_E_LOST => c"the shared arena's lock is lost",
        crate::TERRACE_E_STAGE => c"the kernel failed at a block",
        crate::TERRACE_E_STORE => c"the store of far memory failed",
        _ => c"not a code of Terrace",
    };
    text.as_ptr()
}

/// Returns the calling thread's last error in full: what failed, on which object, why and what to
/// try. It is empty before the first error. The text lives until the thread's next error.
#[no_mangle]
pub extern "C" fn terrace_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, as in `0.1.0`.
#[no_mangle]
pub extern "C" fn terrace_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
