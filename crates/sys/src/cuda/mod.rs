//! GPUs of CUDA, through the driver's own library, which is loaded when it is asked for. Nothing of
//! it is needed to build Terrace or to run it: where it is missing, [`Cuda::load`] says what is.
//!
//! Only managed memory: one address for CPUs and GPUs, with pages that the driver moves and that
//! advice has a home for.

pub mod compute;
#[cfg(feature = "cuda")]
mod live;
#[cfg(not(feature = "cuda"))]
#[path = "without.rs"]
mod live;

pub use live::Cuda;

use terrace_types::{Bytes, NodeId};

/// A GPU that the driver shows this process. Its number is its place in the driver's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaDevice {
    /// What the driver calls it.
    pub name: String,
    /// Memory it has.
    pub total: Bytes,
    /// The node it is attached to, where firmware says so.
    pub node: Option<NodeId>,
    /// Whether advice and prefetching work on it: the driver's "concurrent managed access".
    pub places: bool,
    /// Numbers of the others that can access its memory.
    pub peers: Vec<u16>,
}

/// Where pages of managed memory are at home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CudaHome {
    /// With the CPUs.
    Host,
    /// With the GPU of this number.
    Gpu(u16),
}

impl std::fmt::Display for CudaHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("the host"),
            Self::Gpu(n) => write!(f, "GPU {n}"),
        }
    }
}

/// Why there is no CUDA, or what its driver refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// This build cannot.
    #[error(
        "this Terrace was built without it; build with --features cuda (Rust 1.88 or later, \
        nothing else)"
    )]
    NotBuilt,
    /// No library of the driver.
    #[error(
        "the driver's library, libcuda.so.1, cannot be loaded; install NVIDIA's driver, or \
        name its folder in LD_LIBRARY_PATH"
    )]
    NoLibrary,
    /// A library without a function that is needed.
    #[error(
        "the driver's library has no function {function}: it is older than CUDA 8; install a \
        newer driver"
    )]
    TooOld {
        /// What it lacks.
        function: &'static str,
    },
    /// The toolkit's stand-in for linking was loaded.
    #[error(
        "the library that was loaded is the toolkit's stub, not the driver's; take folders \
        called stubs out of LD_LIBRARY_PATH"
    )]
    Stub,
    /// A driver and no GPU.
    #[error(
        "the driver shows no GPU; look at nvidia-smi, and at CUDA_VISIBLE_DEVICES if it is set"
    )]
    NoDevice,
    /// GPUs, and none that managed memory can be placed on.
    #[error(
        "none of {gpus} GPUs lets managed memory be placed (no concurrent managed access); it \
        takes Pascal or later, outside of WSL"
    )]
    CannotPlace {
        /// How many there are.
        gpus: usize,
    },
    /// A child of a process that used the driver.
    #[error(
        "the driver does not serve a process that was forked after it was first used; use it \
        in the parent only, or exec"
    )]
    Forked,
    /// The memory is not of this handle.
    #[error(
        "{address:#x} is not managed memory of this handle; give the address that was allocated"
    )]
    NotOurs {
        /// Its address.
        address: usize,
    },
    /// The driver has no more memory.
    #[error("{call} on {target}: the driver has no memory for it; free some, or ask for less")]
    Full {
        /// The driver's function.
        call: &'static str,
        /// What it was tried on.
        target: String,
    },
    /// Anything else.
    #[error(
        "{call} on {target} failed ({name}, {code}); look at nvidia-smi and the kernel's log \
        for the GPU's state"
    )]
    Failed {
        /// The driver's function.
        call: &'static str,
        /// What it was tried on.
        target: String,
        /// The driver's name for it.
        name: String,
        /// The driver's number.
        code: i32,
    },
}
