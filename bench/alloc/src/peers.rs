//! The allocators compared, each as a pair of functions. Those of Debian's libraries are found in
//! what the driver loaded into this process beforehand (`LD_PRELOAD`), as a program linked with
//! them would have them.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::OnceLock;
use terrace_alloc::arena::{self, Arena, ArenaSpec};

/// Allocates.
pub type Alloc = unsafe extern "C" fn(usize) -> *mut c_void;
/// Frees.
pub type Free = unsafe extern "C" fn(*mut c_void);

/// A pair of functions, and what a thread calls before it begins.
#[derive(Clone, Copy)]
pub struct Peer {
    pub alloc: Alloc,
    pub free: Free,
    pub begin: fn(),
}

/// Names, each with the library that has to be loaded into the process first.
pub const PEERS: [(&str, Option<&str>); 10] = [
    ("glibc", None),
    ("jemalloc", Some("libjemalloc.so.2")),
    ("jemalloc-arena", Some("libjemalloc.so.2")),
    ("jemalloc-arena-tcache", Some("libjemalloc.so.2")),
    ("memkind-regular", Some("libmemkind.so.0")),
    ("memkind-dynamic", Some("libmemkind.so.0")),
    ("mimalloc", None),
    ("mimalloc-arena", None),
    ("terrace-preload", None),
    ("terrace-arena", None),
];

/// The functions of a peer.
pub fn peer(name: &str) -> Result<Peer, String> {
    let plain = Peer { alloc: libc::malloc, free: libc::free, begin: || () };
    match name {
        "glibc" | "jemalloc" | "terrace-preload" => Ok(plain),
        "jemalloc-arena" => {
            jemalloc_arena().map(|()| Peer { alloc: je_alloc, free: je_free, begin: je_none })
        }
        "jemalloc-arena-tcache" => {
            jemalloc_arena().map(|()| Peer { alloc: je_alloc, free: je_free, begin: je_tcache })
        }
        "memkind-regular" => {
            memkind(false).map(|()| Peer { alloc: mk_alloc, free: mk_free, begin: || () })
        }
        "memkind-dynamic" => {
            memkind(true).map(|()| Peer { alloc: mk_alloc, free: mk_free, begin: || () })
        }
        "mimalloc" => Ok(Peer { alloc: mi_alloc, free: mi_free, begin: || () }),
        "mimalloc-arena" => {
            mimalloc_arena().map(|()| Peer { alloc: mi_arena_alloc, free: mi_free, begin: || () })
        }
        "terrace-arena" => {
            terrace().map(|()| Peer { alloc: te_alloc, free: te_free, begin: || () })
        }
        _ => Err(format!("no peer is called {name}")),
    }
}

fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name ends with zero; the default scope is always there.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("{} is not in the process", name.to_string_lossy()));
    }
    Ok(found)
}

// ---- Terrace

static ARENA: OnceLock<Arena> = OnceLock::new();

fn terrace() -> Result<(), String> {
    let arena = Arena::create(&ArenaSpec::default()).map_err(|e| e.to_string())?;
    ARENA.set(arena).map_err(|_| "called twice".to_string())
}

unsafe extern "C" fn te_alloc(size: usize) -> *mut c_void {
    let Some(arena) = ARENA.get() else { return null_mut() };
    arena.alloc(size).map_or(null_mut(), |block| block.as_ptr().cast())
}

unsafe extern "C" fn te_free(block: *mut c_void) {
    // SAFETY: handed on.
    let freed = unsafe { arena::free(block.cast()) };
    debug_assert!(freed.is_ok());
}

// ---- mimalloc 3

static HEAP: AtomicPtr<libmimalloc_sys::mi_heap_t> = AtomicPtr::new(null_mut());

fn mimalloc_arena() -> Result<(), String> {
    let mut id = null_mut();
    // SAFETY: `id` is writable; the arena is 1 GiB that the library maps itself and gives to this
    // heap alone.
    let heap = unsafe {
        if libmimalloc_sys::mi_reserve_os_memory_ex(1 << 30, false, false, true, &mut id) != 0 {
            return Err("mi_reserve_os_memory_ex failed".into());
        }
        libmimalloc_sys::mi_heap_new_in_arena(id)
    };
    HEAP.store(heap, Release);
    if heap.is_null() {
        Err("mi_heap_new_in_arena failed".into())
    } else {
        Ok(())
    }
}

unsafe extern "C" fn mi_alloc(size: usize) -> *mut c_void {
    // SAFETY: any size is right.
    unsafe { libmimalloc_sys::mi_malloc(size) }
}

unsafe extern "C" fn mi_arena_alloc(size: usize) -> *mut c_void {
    // SAFETY: the heap was made before any thread begins, and is never destroyed.
    unsafe { libmimalloc_sys::mi_heap_malloc(HEAP.load(Relaxed), size) }
}

unsafe extern "C" fn mi_free(block: *mut c_void) {
    // SAFETY: handed on.
    unsafe { libmimalloc_sys::mi_free(block) }
}

// ---- jemalloc, an arena with extent hooks of our own

type Mallctl =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
type Mallocx = unsafe extern "C" fn(usize, c_int) -> *mut c_void;
type Dallocx = unsafe extern "C" fn(*mut c_void, c_int);

static MALLOCX: AtomicUsize = AtomicUsize::new(0);
static DALLOCX: AtomicUsize = AtomicUsize::new(0);
static MALLCTL: AtomicUsize = AtomicUsize::new(0);
static JE_ARENA: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    static FLAGS: std::cell::Cell<c_int> = const { std::cell::Cell::new(0) };
}

/// `extent_hooks_t` of jemalloc 5: nine functions; absent ones mean "not done".
#[repr(C)]
struct Hooks([*const c_void; 9]);
// SAFETY: constant after it was made.
unsafe impl Sync for Hooks {}
static HOOKS: Hooks = Hooks([
    extent_alloc as *const c_void,
    null(),
    null(),
    null(),
    null(),
    null(),
    null(),
    null(),
    null(),
]);

unsafe extern "C" fn extent_alloc(
    _hooks: *const c_void,
    wanted: *mut c_void,
    size: usize,
    align: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: u32,
) -> *mut c_void {
    if !wanted.is_null() {
        return null_mut();
    }
    // SAFETY: a fresh mapping; the flags are jemalloc's to have written.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at =
            libc::mmap(null_mut(), size + align, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return null_mut();
        }
        *zero = true;
        *commit = true;
        (at as usize).next_multiple_of(align) as *mut c_void
    }
}

fn jemalloc_arena() -> Result<(), String> {
    MALLOCX.store(symbol(c"mallocx")? as usize, Relaxed);
    DALLOCX.store(symbol(c"dallocx")? as usize, Relaxed);
    MALLCTL.store(symbol(c"mallctl")? as usize, Relaxed);
    let mut arena = 0_u32;
    let mut size = size_of::<u32>();
    let mut hooks: *const Hooks = &raw const HOOKS;
    // SAFETY: jemalloc's own function, with the types its manual gives for `arenas.create`.
    let failed = unsafe {
        let mallctl: Mallctl = std::mem::transmute(MALLCTL.load(Relaxed));
        mallctl(
            c"arenas.create".as_ptr(),
            (&raw mut arena).cast(),
            &mut size,
            (&raw mut hooks).cast(),
            size_of::<*const Hooks>(),
        )
    };
    JE_ARENA.store(arena, Release);
    if failed != 0 {
        Err(format!("arenas.create failed ({failed})"))
    } else {
        Ok(())
    }
}

/// MALLOCX_ARENA and MALLOCX_TCACHE_NONE, as SICM, HMSDK and UMF do.
fn je_none() {
    FLAGS.set(((JE_ARENA.load(Acquire) as c_int + 1) << 20) | (1 << 8));
}

/// A cache of this thread and this arena.
fn je_tcache() {
    let mut tcache = 0_u32;
    let mut size = size_of::<u32>();
    // SAFETY: as above, for `tcache.create`.
    unsafe {
        let mallctl: Mallctl = std::mem::transmute(MALLCTL.load(Relaxed));
        mallctl(c"tcache.create".as_ptr(), (&raw mut tcache).cast(), &mut size, null_mut(), 0);
    }
    FLAGS.set(((JE_ARENA.load(Acquire) as c_int + 1) << 20) | ((tcache as c_int + 2) << 8));
}

unsafe extern "C" fn je_alloc(size: usize) -> *mut c_void {
    // SAFETY: found before any thread begins.
    unsafe { std::mem::transmute::<usize, Mallocx>(MALLOCX.load(Relaxed))(size, FLAGS.get()) }
}

unsafe extern "C" fn je_free(block: *mut c_void) {
    // SAFETY: as above.
    unsafe { std::mem::transmute::<usize, Dallocx>(DALLOCX.load(Relaxed))(block, FLAGS.get()) }
}

// ---- memkind

type KindMalloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type KindFree = unsafe extern "C" fn(*mut c_void, *mut c_void);
type CreateFixed = unsafe extern "C" fn(*mut c_void, usize, *mut *mut c_void) -> c_int;

static KIND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static KIND_MALLOC: AtomicUsize = AtomicUsize::new(0);
static KIND_FREE: AtomicUsize = AtomicUsize::new(0);

fn memkind(dynamic: bool) -> Result<(), String> {
    KIND_MALLOC.store(symbol(c"memkind_malloc")? as usize, Relaxed);
    KIND_FREE.store(symbol(c"memkind_free")? as usize, Relaxed);
    let mut kind = null_mut();
    if dynamic {
        let create = symbol(c"memkind_create_fixed")?;
        let len = 1 << 30;
        // SAFETY: a fresh mapping, handed to a new kind; the function is memkind's, with its
        // header's types.
        let failed = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let at = libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            std::mem::transmute::<*mut c_void, CreateFixed>(create)(at, len, &mut kind)
        };
        if failed != 0 {
            return Err(format!("memkind_create_fixed failed ({failed})"));
        }
    } else {
        // SAFETY: a variable of memkind's that holds a kind.
        kind = unsafe { *symbol(c"MEMKIND_REGULAR")?.cast::<*mut c_void>() };
    }
    KIND.store(kind, Release);
    Ok(())
}

unsafe extern "C" fn mk_alloc(size: usize) -> *mut c_void {
    // SAFETY: found before any thread begins.
    unsafe {
        std::mem::transmute::<usize, KindMalloc>(KIND_MALLOC.load(Relaxed))(
            KIND.load(Relaxed),
            size,
        )
    }
}

unsafe extern "C" fn mk_free(block: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        std::mem::transmute::<usize, KindFree>(KIND_FREE.load(Relaxed))(KIND.load(Relaxed), block)
    }
}
