//! Targets to which something happens while their pages are being moved: each works on memory of
//! its own until the first of its pages have come to the fast node, and then does it. Most of the
//! others are still to be moved.

use crate::memory::{fill, give_up, PageMapping, TargetFiles, NEVER_MOVED};
use crate::target::report;
use std::ffi::CString;
use std::ptr;
use std::time::Duration;
use terrace_guest::kernel;

/// Memory in which it happens.
const HOT: usize = 24 << 20;
/// How often it happens.
const ROUNDS: u64 = 4;
/// Bits of a child's status that are a checksum; greater ones say that it is not as meant.
const SUM_BITS: u64 = 0x3f;

fn child(work: impl FnOnce() -> u64) -> i32 {
    // SAFETY: this process has one thread, so the child may go on using std.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let sum = work();
        // SAFETY: _exit ends the child at once; its status carries some bits of the sum.
        unsafe { libc::_exit((sum & SUM_BITS) as i32) };
    }
    pid
}

fn wait_for(pid: i32) {
    let mut status = 0;
    // SAFETY: waits for a child of our own; status points to a live integer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let code = libc::WEXITSTATUS(status);
    if !libc::WIFEXITED(status) || code > SUM_BITS as i32 {
        give_up(
            if code == 0 { NEVER_MOVED } else { code },
            &format!("a child ended with {status:#x}"),
        );
    }
    println!("child {code:#x}");
}

/// Memory of which the first pages have just been moved.
fn being_moved(reported: &TargetFiles, seed: u64) -> PageMapping {
    let mut map = PageMapping::slow(HOT).fill(seed);
    let all = map.pages();
    reported.stir_until_moving(&mut map, 0..all);
    map
}

/// Children, one after the other, each of which ends while its pages are being moved.
pub fn exits(reported: &TargetFiles) {
    let filler = PageMapping::filler();
    for round in 0..ROUNDS {
        wait_for(child(|| being_moved(reported, round).sum(true)));
    }
    drop(filler);
    report("exit", ROUNDS);
}

/// The program replaces itself while its pages are being moved.
pub fn execs(reported: &TargetFiles, args: &[&str]) {
    let (round, before) = match args {
        [round, sum] => {
            (round.parse().unwrap_or(ROUNDS), u64::from_str_radix(sum, 16).unwrap_or(0))
        }
        _ => (0, 0),
    };
    if round == ROUNDS {
        return report("exec", before);
    }
    let sum = before.rotate_left(7) ^ being_moved(reported, round).sum(true);
    let own = std::env::current_exe().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    let words = [own, "target".into(), "exec".into(), (round + 1).to_string(), format!("{sum:x}")];
    let words: Vec<CString> = words.into_iter().filter_map(|w| CString::new(w).ok()).collect();
    let mut argv: Vec<*const libc::c_char> = words.iter().map(|w| w.as_ptr()).collect();
    argv.push(ptr::null());
    // SAFETY: argv is a null-terminated array of valid C strings that live across the call.
    unsafe { libc::execv(words[0].as_ptr(), argv.as_ptr()) };
    give_up(NEVER_MOVED, "execv failed");
}

/// Guest time for which pages stay shared: more than two periods of the tool, which has met them
/// then.
const SHARED: Duration = Duration::from_millis(250);

/// Reads what it shares for a while; unmanaged, not at all.
fn linger(reported: &TargetFiles, map: &PageMapping) {
    let until = kernel::now() + SHARED.as_nanos() as u64;
    while reported.managed() && kernel::now() < until {
        map.touch_once(0..map.pages());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Forks while its pages are being moved; parent and child then write to what they share.
pub fn forks(reported: &TargetFiles) {
    let mut sum = 0_u64;
    for round in 0..ROUNDS {
        let mut map = being_moved(reported, round);
        let half = map.words().len() / 2;
        let pid = child(|| {
            linger(reported, &map);
            fill(&mut map.words()[..half], round + 10);
            map.sum(false)
        });
        linger(reported, &map);
        fill(&mut map.words()[half..], round + 20);
        sum = sum.rotate_left(9) ^ map.sum(false);
        wait_for(pid);
    }
    report("fork", sum);
}

/// Unmaps, moves, discards and cuts its memory while its pages are being moved.
pub fn unmaps(reported: &TargetFiles) {
    let mut sum = 0_u64;
    for round in 0..ROUNDS {
        let mut map = being_moved(reported, round);
        match round {
            0 => {}
            1 => map.remap(HOT + HOT / 2),
            2 => map.discard_half(),
            _ => {
                map.cut_half();
                map.remap(HOT);
            }
        }
        if round > 0 {
            sum = sum.rotate_left(9) ^ map.sum(false);
            let tail = map.words().len() / 2;
            fill(&mut map.words()[tail..], round);
            sum = sum.rotate_left(9) ^ map.sum(false);
        }
    }
    report("unmap", sum);
}
