//! What goes wrong around a process: forks beside threads, signal handlers, a kernel that forbids.
//! Each case is a child, so that it can be forbidden things, killed, and waited for.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::OnceLock;
use terrace_alloc::arena::{
    self, Arena, ArenaError, ArenaSpec, Devices, KernelNodes, NodeOps as _, Strictness,
};
use terrace_alloc::attributes::{Attributes, Binding, Mismatch};
use terrace_alloc::commit::Scope;
use terrace_alloc::error::AllocError;
use terrace_alloc::memory::Memory;
use terrace_alloc::shared::{SharedArena, SharedSpec};
use terrace_types::Bytes;

/// Runs `work` in a child that is killed after four minutes, which a second of work takes on a host
/// with much else to do; whether it came to its end.
fn in_a_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child runs `work` and ends without destructors; `alarm` ends it should a lock
    // never come.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sets a timer.
        unsafe { libc::alarm(240) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = -1;
    // SAFETY: waits for the child started above; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

#[test]
fn a_child_of_a_program_whose_threads_allocate_by_attributes_goes_on() {
    let memory = match Memory::live(&|_| None) {
        Ok(memory) => memory,
        Err(error) => return println!("skipped: {error}"),
    };
    let done = AtomicBool::new(false);
    let wish = |n: u32| {
        let binding = if n % 2 == 0 { Binding::OnCommit } else { Binding::Immediate };
        Attributes { binding, ..Attributes::default() }
    };
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !done.load(Relaxed) {
                    let mine: Vec<usize> = (0..20)
                        .map(|n| memory.allocate(Bytes(n * 3000), wish(n as u32)).unwrap())
                        .collect();
                    memory.commit(Scope::Epoch).unwrap();
                    mine.into_iter().for_each(|at| memory.free(at).unwrap());
                }
            });
        }
        let kept = memory.allocate(Bytes(5000), wish(1)).unwrap();
        // SAFETY: allocated above, this test's alone.
        unsafe { (kept as *mut u8).write(7) };
        let went_on = (0..30).all(|_| {
            in_a_child(|| {
                // SAFETY: the child's own copy of what was written above.
                assert_eq!(unsafe { (kept as *const u8).read() }, 7);
                let more: Vec<usize> =
                    (0..50).map(|n| memory.allocate(Bytes(n * 1000), wish(1)).unwrap()).collect();
                more.into_iter().for_each(|at| memory.free(at).unwrap());
                memory.free(kept).unwrap();
            })
        });
        done.store(true, Relaxed);
        assert!(went_on);
    });
}

/// What the handler found, for the test to count.
static GIVEN: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
static TOOLS: OnceLock<(Arena, Memory, SharedArena)> = OnceLock::new();

extern "C" fn allocate_in_a_handler(_: libc::c_int) {
    let Some((arena, memory, shared)) = TOOLS.get() else { return };
    let count = |what: &AtomicUsize| what.fetch_add(1, Relaxed);
    match arena.alloc(300) {
        // SAFETY: allocated just now.
        Ok(block) => match unsafe { arena::free(block.as_ptr()) } {
            Ok(()) => count(&GIVEN),
            Err(_) => count(&WRONG),
        },
        Err(arena::ArenaAllocError::Reentered) => count(&REFUSED),
        Err(_) => count(&WRONG),
    };
    match shared.alloc(300, 1) {
        // SAFETY: allocated just now.
        Ok(block) => match unsafe { shared.free(block.as_ptr()) } {
            Ok(()) => count(&GIVEN),
            Err(_) => count(&WRONG),
        },
        Err(terrace_alloc::shared::SharedError::Reentered) => count(&REFUSED),
        Err(_) => count(&WRONG),
    };
    // Only asked, for a heap of std's maps is behind it, which a handler may not enter.
    let _refused_or_not_there = memory.size_of(1);
}

#[test]
fn a_handler_that_allocates_is_served_or_refused_and_never_waits_for_itself() {
    let came_to_its_end = in_a_child(|| {
        let Ok(memory) = Memory::live(&|_| None) else { return };
        let arena = Arena::create(&ArenaSpec::default()).unwrap();
        let shared = SharedArena::create(&SharedSpec::default()).unwrap();
        let (arena, memory, shared) = TOOLS.get_or_init(|| (arena, memory, shared));
        // SAFETY: a handler of this program and a timer; the structures are whole.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = allocate_in_a_handler as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut()), 0);
            let often = libc::timeval { tv_sec: 0, tv_usec: 200 };
            let timer = libc::itimerval { it_interval: often, it_value: often };
            assert_eq!(libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()), 0);
        }
        let mut turn = 0_usize;
        while GIVEN.load(Relaxed) + REFUSED.load(Relaxed) < 400 {
            turn += 1;
            let size = 16 + turn * 31 % 9000;
            let (one, two) = (arena.alloc(size).unwrap(), shared.alloc(size, 1).unwrap());
            let three = memory.allocate(Bytes(size as u64), Attributes::default()).unwrap();
            // SAFETY: fresh blocks of `size` bytes each, at least 16, freed once.
            unsafe {
                for at in [one.as_ptr(), two.as_ptr(), three as *mut u8] {
                    at.write_bytes(turn as u8, size);
                    assert_eq!(at.add(size - 1).read(), turn as u8);
                }
                arena::free(one.as_ptr()).unwrap();
                shared.free(two.as_ptr()).unwrap();
            }
            memory.free(three).unwrap();
        }
        assert_eq!(WRONG.load(Relaxed), 0);
        assert_eq!(arena.stats().unwrap().blocks, 0);
        assert_eq!(shared.stats().unwrap().blocks, 0);
    });
    assert!(came_to_its_end);
}

/// Has the kernel refuse these calls to this process from now on, as sandboxes do (`seccomp(2)`).
fn forbid(calls: &[libc::c_long]) {
    let statement = |code: u32, jt: usize, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jt as u8,
        jf,
        k,
    };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        filter.push(statement(equal, calls.len() - at, 0, *call as u32));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(statement(
        libc::BPF_RET | libc::BPF_K,
        0,
        0,
        libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    ));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter that lives across the call; it concerns this child alone.
    unsafe {
        let none: libc::c_ulong = 0;
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, none + 1, none, none, none), 0);
        let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, std::ptr::from_ref(&program)), 0);
    }
}

#[test]
fn without_mbind_strict_binding_is_refused_except_on_the_only_node() {
    if KernelNodes.nodes().is_empty() {
        return println!("skipped: this kernel shows no nodes");
    }
    let as_it_should = in_a_child(|| {
        forbid(&[libc::SYS_mbind]);
        let node = KernelNodes.nodes()[0];
        // Where there is one node, memory lies on it whether it is bound or not.
        let alone = KernelNodes.nodes().len() == 1;
        let only = Devices::Only(vec![node]);
        let bound = Arena::create(&ArenaSpec { devices: only.clone(), ..ArenaSpec::default() });
        match bound {
            Ok(_) => assert!(alone),
            Err(ArenaError::Bind(e)) => assert!(!alone && e.is_refusal(), "{e}"),
            Err(other) => panic!("{other}"),
        }
        let arena = Arena::create(&ArenaSpec::default()).unwrap();
        let block = arena.alloc(100_000).unwrap();
        // SAFETY: a block of so many bytes.
        unsafe { block.as_ptr().write_bytes(1, 100_000) };
        match arena.set_device(&only, Strictness::Strict) {
            Ok(_) => assert!(alone),
            Err(e) => {
                assert!(!alone && e.to_string().contains("mbind"), "{e}");
                assert_eq!(arena.devices(), Some(Devices::Anywhere));
            }
        }
        // SAFETY: allocated above, written, and not moved.
        assert_eq!(unsafe { block.as_ptr().add(99_999).read() }, 1);

        let shared = SharedSpec { devices: only, ..SharedSpec::default() };
        match SharedArena::create(&shared) {
            Ok(_) => assert!(alone),
            Err(e) => assert!(!alone && e.to_string().contains("mbind"), "{e}"),
        }
        SharedArena::create(&SharedSpec::default()).unwrap().alloc(100, 1).unwrap();

        let Ok(memory) = Memory::live(&|_| None) else { return };
        let at = memory.allocate(Bytes::mib(3), Attributes::default()).unwrap();
        // SAFETY: allocated above, of so many bytes.
        unsafe { (at as *mut u8).write_bytes(2, 3 << 20) };
        let row = memory.describe(at).unwrap();
        let says = row.why.contains("mbind") && row.why.contains("where the kernel puts it");
        assert_eq!(says, !alone, "{}", row.why);
        memory.free(at).unwrap();
        let later = Attributes { binding: Binding::OnCommit, ..Attributes::default() };
        let at = memory.allocate(Bytes(5000), later).unwrap();
        match memory.commit(Scope::Epoch) {
            Ok(_) => assert!(alone),
            Err(AllocError::Kernel(e)) => assert!(!alone && e.is_refusal(), "{e}"),
            Err(other) => panic!("{other}"),
        }
        // SAFETY: still the program's, wherever it is.
        unsafe { (at as *mut u8).write(3) };
        memory.free(at).unwrap();
    });
    assert!(as_it_should);
}

#[test]
fn without_move_pages_strict_memory_is_refused_except_on_the_only_node() {
    let as_it_should = in_a_child(|| {
        forbid(&[libc::SYS_move_pages, libc::SYS_mbind]);
        let arena = Arena::create(&ArenaSpec::default()).unwrap();
        let block = arena.alloc(100_000).unwrap();
        // SAFETY: a block of so many bytes.
        unsafe { block.as_ptr().write_bytes(1, 100_000) };
        let alone = KernelNodes.nodes().len() == 1;
        match arena.residency() {
            Ok(residency) => assert!(alone, "{residency:?}"),
            Err(e) => assert!(e.to_string().contains("move_pages"), "{e}"),
        }
        let Ok(memory) = Memory::live(&|_| None) else { return };
        let strict = Attributes { mismatch: Mismatch::Error, ..Attributes::default() };
        match memory.allocate(Bytes(5000), strict) {
            Ok(at) => {
                assert!(alone);
                memory.free(at).unwrap();
            }
            Err(e) => assert!(!alone && matches!(e, AllocError::Kernel(_)), "{e}"),
        }
        memory.allocate(Bytes(5000), Attributes::default()).unwrap();
    });
    assert!(as_it_should);
}
