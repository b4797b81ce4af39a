//! In a container whose seccomp filter refuses what places memory: what does not need those calls
//! works, and errors name the filter. The filter is a real one, on a thread of its own.

#![allow(clippy::unwrap_used)]

use std::thread;
use terrace_alloc::attributes::{Attributes, ClassId, Mismatch};
use terrace_alloc::memory::Memory;
use terrace_sys::{
    allowed_nodes, bind_thread_memory, query_pages, zones, AnonymousMapping, MappingPages, Root,
    SysError,
};
use terrace_types::{Bytes, Pid, Vpn};

/// Refuses `calls` with `errno` on this thread from now on; false where the kernel has no filters.
fn refuse(calls: &[libc::c_long], errno: i32) -> bool {
    // `include/uapi/linux/{bpf_common,filter,seccomp}.h`: load the number of the call, compare it
    // with each, return.
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        program.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, *call as u32));
        program.push(op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: neither call takes a pointer but to `filter`, which the kernel copies and which
    // outlives the call. Only this thread is confined.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}

/// Runs `test` where the calls of memory policies and moves fail with `errno`.
fn confined(errno: i32, test: impl FnOnce() + Send + 'static) {
    let calls = [
        libc::SYS_mbind,
        libc::SYS_set_mempolicy,
        libc::SYS_get_mempolicy,
        libc::SYS_move_pages,
        libc::SYS_migrate_pages,
    ];
    let confined = thread::spawn(move || {
        if refuse(&calls, errno) {
            test();
        } else {
            println!("skipped: this kernel takes no seccomp filter");
        }
    });
    confined.join().unwrap();
}

const ERRNOS: [i32; 2] = [libc::EPERM, libc::ENOSYS];

#[test]
fn errors_name_the_filter_and_not_the_kernel_or_the_user() {
    for errno in ERRNOS {
        confined(errno, move || {
            let page = terrace_sys::page_size().get();
            let touched = vec![1_u8; 3 * page as usize];
            let vpn = Vpn(touched.as_ptr() as u64 / page + 1);
            let asked = query_pages(Pid(std::process::id() as i32), &[vpn]).unwrap_err();
            for error in [asked, allowed_nodes().unwrap_err()] {
                let text = error.to_string();
                assert!(error.may_be_filtered() && text.contains("seccomp filter"), "{text}");
                assert!(!text.contains("offers no such thing"), "{text}");
                assert_eq!(error.errno(), errno);
            }
        });
    }
    // Without a filter the words are the kernel's own.
    let error = SysError::from_errno("mbind", "node 7", libc::EINVAL, "name another");
    assert!(!error.may_be_filtered());
}

#[test]
fn binding_to_the_only_node_is_not_needed() {
    for errno in ERRNOS {
        confined(errno, || {
            let nodes = zones::nodes_with_memory(&Root::live());
            let mapping = AnonymousMapping::new(Bytes::mib(1), MappingPages::Base).unwrap();
            let bound = [mapping.bind(nodes[0]), bind_thread_memory(nodes[0])];
            if nodes.len() == 1 {
                assert_eq!(bound, [Ok(()), Ok(())]);
            } else {
                assert!(bound.iter().all(|b| b.as_ref().is_err_and(SysError::is_refusal)));
            }
        });
    }
}

#[test]
fn memory_is_allocated_and_described_or_said_to_be_unknown() {
    for errno in ERRNOS {
        confined(errno, || {
            let memory = match Memory::live(&|_| None) {
                Ok(memory) => memory,
                Err(e) => return println!("skipped: {e}"),
            };
            let at = memory.allocate(Bytes::mib(4), Attributes::default()).unwrap();
            // SAFETY: allocated just now, writable, and known to nobody else.
            unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 4 << 20) }.fill(1);
            let row = memory.describe(at).unwrap();
            let known: Bytes = row.got.iter().map(|g| g.1).sum();
            if zones::nodes_with_memory(&Root::live()).len() == 1 {
                assert_eq!(known, Bytes::mib(4), "{row:?}");
            } else {
                assert!(known == Bytes::ZERO && row.why.contains("not known"), "{row:?}");
            }
            memory.free(at).unwrap();
            let strict =
                Attributes { mismatch: Mismatch::Error, ..Attributes::in_class(ClassId(0)) };
            let at = memory.allocate(Bytes::mib(1), strict);
            if zones::nodes_with_memory(&Root::live()).len() == 1 {
                memory.free(at.unwrap()).unwrap();
            } else {
                assert!(at.unwrap_err().to_string().contains("seccomp filter"));
            }
        });
    }
}
