//! The only door to Linux: every raw system call and every file of `/proc` and `/sys` that Terrace
//! uses. Nothing here decides anything; errors are named situations with call, target, errno and
//! remedy ([`SysError`]). The library never prints and never aborts.

mod addresses;
mod allowance;
mod bounded;
mod btf;
mod caps;
mod capture;
mod cold;
mod cpu_turns;
mod cuda;
mod damon;
mod error;
mod farmem;
mod filetrace;
mod guardian;
mod interrupt;
mod kernelmem;
mod limits;
mod local_wake;
mod mapping;
#[cfg(feature = "mpi")]
mod mpi;
mod pagemap;
mod pagemove;
mod pagetables;
mod perf;
mod process;
mod region;
mod rights;
mod rings;
mod root;
mod rooted;
mod runner;
mod sampling;
mod seccomp;
mod shm;
mod storefile;
mod tally;
mod tasks;
mod threads;
mod time;
mod uffd;
mod uncore;
mod unit_memory;
mod uring;
mod usage;

pub mod maps;
pub mod task;
pub mod zones;

pub use addresses::{
    bind_range, discard_range, map_zeroed, open_range, prefer_huge_pages, reserve_range, NodePolicy,
};
pub use allowance::{address_limit, may_lock, pin, pin_process, Allowance};
pub use bounded::{run_bounded, BoundedCommand, BoundedEnd, BoundedRun};
pub use caps::{damon_is_usable, Capabilities, Capability, DamonProbe};
pub use capture::{has_thread_ended, CaptureArea, CaptureOptions, SlotOwner, SlotWords};
pub use cold::ColdRefs;
pub use cpu_turns::{idle_cpus, take_turn, InTurn};
pub use cuda::compute;
pub use cuda::{Cuda, CudaDevice, CudaError, CudaHome};
pub use damon::{DamonOps, DamonPlan, DamonRun, DamonTarget, RegionSample};
pub use error::SysError;
pub use farmem::{ChunkFrame, Extracted, FarArea, ReservedMemory};
pub use filetrace::{trace_files, FileUse, TracedCommand};
pub use guardian::Guardian;
pub use interrupt::{block_signals, Interrupt};
pub use kernelmem::{Frame, KernelMemory};
pub use limits::{
    busy_time, cgroup_headroom, cpu_quota, current_cpu, memory_available, memory_stalls,
    outlive_file_size_limit, own_cpus,
};
pub use local_wake::{LocalWaker, ThreadCpus};
pub use mapping::{bind_thread_memory, AnonymousMapping, MappingPages};
#[cfg(feature = "mpi")]
pub use mpi::MpiWorld;
pub use pagemap::{Category, Clear, ClearRefs, PageEntry, PageMap};
pub use pagemove::{move_pages, query_pages};
pub use pagetables::{PageTables, TableEntry};
pub use perf::{PerfRing, Tracepoint};
pub use process::{
    become_subreaper, end_with_parent, open_pidfd, signal_process, wait_for_end, PidFd,
};
pub use region::{allowed_nodes, MemPolicy, Region, ThreadMemory};
pub use rights::gained_rights;
pub use rings::{make_rings, RingEndpoint};
pub use root::{Root, TEXT_LIMIT};
pub use rooted::{folder_entries, FolderEntry, LastLink, RootedTree};
pub use runner::{CommandExit, Runner, StartError};
pub use sampling::{perf_paranoia, wait_for_records, SampleEvent, SampleRing, SampledTask};
pub use shm::{remove_shared, FileWindow, LockFound, RobustLock, SharedFile};
pub use storefile::{own_descriptors, wait_readable, SignalsBlocked, StoreFile, WakeDescriptor};
pub use tally::{is_running, SharedTable};
pub use terrace_types::{MoveCall, PageStatus};
pub use threads::{
    at_fork, spawn_bare, thread_name, ForkSafeLock, LockGuard, OneShotReply, ThreadEnd,
};
pub use time::{now, own_cpu, sleep, thread_cpu, BoostPeriod, CpuMeter, PriorityBoost};
pub use uffd::{Fault, Uffd, UffdFeatures};
pub use uncore::{controllers, Controller, ControllerTraffic, TrafficCounter};
pub use unit_memory::{execute_mark, CurrentTaskOffsets, UnitMemory};
pub use uring::{Ring, Transfer, TransferBuffer, TransferPiece};
pub use usage::{
    node_memory, node_of_cpu, numa_maps, page_moves, parse_numa_maps, parse_page_moves,
    NodeMapping, NodeMemory, PageMoves,
};

use terrace_types::Bytes;

/// Bytes of a base page.
#[must_use]
pub fn page_size() -> Bytes {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Bytes(u64::try_from(size).unwrap_or(4096))
}
