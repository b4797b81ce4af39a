//! The program replaces itself: with the translator again, for the new program.
//!
//! The translator and the recorder's memory are found by their paths. A program that gives up its
//! user, its root directory or its namespaces may not reach them afterwards, so descriptors of both
//! are kept from before.

use crate::context::Context;
use crate::glue::direct;
use crate::program::{digits, is_own_path, program, string};
use crate::ring::{message, Area};
use crate::{area, elf, sys};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};

/// Out of the way of numbers that scripts choose; where the limit is lower, none are kept.
const FIRST_SAVED_FD: u64 = 700;
const F_GETFD: u64 = 1;
const F_SETFD: u64 = 2;
const F_DUPFD_CLOEXEC: u64 = 1030;
const FD_CLOEXEC: u64 = 1;
const AT_EMPTY_PATH: u64 = 0x1000;
const AT_FDCWD: i32 = -100;

static AREA_FD: AtomicI32 = AtomicI32::new(-1);
static SELF_FD: AtomicI32 = AtomicI32::new(-1);

/// Flags of `clone` after which paths may lead elsewhere: CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID.
pub const NEW_NAMESPACES: u64 = 0x3002_0000;

/// Calls after which paths may lead elsewhere or nowhere: setuid to setfsgid, capset, unshare,
/// setns, chroot, pivot_root.
pub fn gives_up_access(number: u64) -> bool {
    matches!(
        number,
        105 | 106 | 113 | 114 | 116 | 117 | 119 | 122 | 123 | 126 | 272 | 308 | 161 | 155
    )
}

/// Opens the memory: `path` is its path or `@` and the number of a descriptor.
pub fn open_area(path: &[u8]) -> Result<Area, &'static str> {
    if let Some(number) = path.strip_prefix(b"@") {
        let fd = number
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .fold(0i32, |n, b| n.wrapping_mul(10).wrapping_add(i32::from(b - b'0')));
        let area = Area::map(i64::from(fd))?;
        // SAFETY: a descriptor that was handed to us.
        unsafe { sys::call3(sys::FCNTL, fd as u64, F_SETFD, FD_CLOEXEC) };
        AREA_FD.store(fd, Ordering::SeqCst);
        save_self();
        return Ok(area);
    }
    let fd = open(path.as_ptr(), 0o2000002);
    let area = Area::map(fd);
    close(fd);
    area
}

fn open(path: *const u8, flags: u64) -> i64 {
    // SAFETY: paths here end with a zero.
    unsafe { sys::call3(sys::OPEN, path as u64, flags, 0) }
}

fn close(fd: i64) {
    if fd >= 0 {
        // SAFETY: ours.
        unsafe { sys::call3(sys::CLOSE, fd as u64, 0, 0) };
    }
}

/// Opens a file at a high number.
fn open_high(path: *const u8, flags: u64) -> i32 {
    let fd = open(path, flags);
    if fd < 0 {
        return -1;
    }
    // SAFETY: our descriptor.
    let high = unsafe { sys::call3(sys::FCNTL, fd as u64, F_DUPFD_CLOEXEC, FIRST_SAVED_FD) };
    close(fd);
    high.max(-1) as i32
}

fn save_self() {
    SELF_FD.store(open_high(c"/proc/self/exe".as_ptr().cast(), 0o2000000), Ordering::SeqCst);
}

/// Whether a descriptor is still the memory's: programs close and reuse what they do not know.
fn is_area(area: &Area, fd: i32) -> bool {
    sys::FileId::of(i64::from(fd)) == Some(area.file)
}

/// Whether a descriptor is still the translator's.
fn is_self(fd: i32) -> bool {
    let own = sys::FileId::at(c"/proc/self/exe");
    fd >= 0 && sys::FileId::of(i64::from(fd)).is_some_and(|id| own.is_none_or(|own| own == id))
}

/// Before access is given up.
pub fn save_descriptors() {
    let Some(area) = area() else { return };
    if !is_area(area, AREA_FD.load(Ordering::SeqCst)) {
        AREA_FD.store(open_high(area.control().area.as_ptr(), 0o2000002), Ordering::SeqCst);
    }
    if !is_self(SELF_FD.load(Ordering::SeqCst)) {
        save_self();
    }
}

/// Whether memory and translator can be opened by their paths, and are the same.
fn found_by_path(area: &Area) -> bool {
    const X_OK: u64 = 1;
    let fd = open(area.control().area.as_ptr(), 0o2000002);
    let same = sys::FileId::of(fd) == Some(area.file);
    close(fd);
    // SAFETY: a string that ends with a zero.
    same && unsafe {
        sys::call3(sys::ACCESS, area.control().emulator.as_ptr() as u64, X_OK, 0) == 0
    }
}

/// What becomes of a call.
enum Fate {
    /// The kernel answers it: there is nothing that could be recorded.
    Kernel,
    /// It runs, and is not recorded: which program, and why.
    Unrecorded(Vec<u8>, &'static str),
    /// It is started with these words: the program, and the translator's arguments behind the two
    /// that name itself and the memory.
    Followed(Vec<u8>, Vec<Vec<u8>>),
}

/// `execve`.
pub fn exec(context: &mut Context, a: [u64; 6]) -> i64 {
    match string(a[0], 4096) {
        Some(path) => exec_path(context, path, [a[1], a[2]], (sys::EXECVE, a)),
        None => direct(context, sys::EXECVE, a),
    }
}

/// `execveat`: by a path that the kernel takes as it is, or by a descriptor alone.
pub fn exec_at(context: &mut Context, a: [u64; 6]) -> i64 {
    let (folder, flags) = (a[0] as i32, a[4]);
    let path = match string(a[1], 4096) {
        Some(path) if path.first() == Some(&b'/') && flags == 0 => path,
        Some(path) if path.len() > 1 && folder == AT_FDCWD && flags == 0 => path,
        Some(path) if path.len() == 1 && folder >= 0 && flags == AT_EMPTY_PATH => {
            descriptor_path(folder)
        }
        _ => return direct(context, sys::EXECVEAT, a),
    };
    exec_path(context, path, [a[2], a[3]], (sys::EXECVEAT, a))
}

/// `/proc/self/fd/` and a number.
fn descriptor_path(fd: i32) -> Vec<u8> {
    let mut path = b"/proc/self/fd/".to_vec();
    path.extend(decimal(fd));
    path.push(0);
    path
}

fn decimal(n: i32) -> Vec<u8> {
    let (mut left, mut all) = (n, alloc::vec![b'0'; digits(i64::from(n))]);
    for digit in all.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    all
}

/// Starts the program of this path in the translator, or leaves it to the kernel's `call`.
fn exec_path(
    context: &mut Context,
    path: Vec<u8>,
    [arguments, environment]: [u64; 2],
    (number, a): (u64, [u64; 6]),
) -> i64 {
    let Some(area) = area().filter(|area| context.recorded() && !area.gone()) else {
        return direct(context, number, a);
    };
    match fate(area, path, arguments) {
        Fate::Kernel => direct(context, number, a),
        Fate::Unrecorded(path, why) => {
            let name = &path[..path.len().saturating_sub(1).min(1800)];
            let text = [name, b" (", why.as_bytes(), b")"].concat();
            context.text_message(message::UNRECORDED, &[], &text);
            context.write_out();
            direct(context, number, a)
        }
        Fate::Followed(path, words) => {
            context.text_message(message::EXEC, &[], &path[..path.len() - 1]);
            context.give_up_slot(false);
            let result = start_translator(area, words, environment);
            context.claim(Some(area), 0);
            if result == -sys::ENOENT {
                return direct(context, number, a);
            }
            result
        }
    }
}

/// Replaces this program; comes back only where that fails.
fn start_translator(area: &Area, rest: Vec<Vec<u8>>, environment: u64) -> i64 {
    let by_path = found_by_path(area);
    let (area_fd, self_fd) = (AREA_FD.load(Ordering::SeqCst), SELF_FD.load(Ordering::SeqCst));
    let control = area.control();
    let with_zero = |text: &[u8]| {
        let mut all = text.split(|b| *b == 0).next().unwrap_or_default().to_vec();
        all.push(0);
        all
    };
    let memory = if by_path {
        with_zero(&control.area)
    } else {
        [b"@".as_slice(), &decimal(area_fd), b"\0"].concat()
    };
    let mut words = alloc::vec![with_zero(&control.emulator), memory];
    words.extend(rest);
    let mut pointers: Vec<u64> = words.iter().map(|w| w.as_ptr() as u64).collect();
    pointers.push(0);
    let (program, list) = (control.emulator.as_ptr() as u64, pointers.as_ptr() as u64);
    // SAFETY: strings that end with a zero; does not return where it is done.
    unsafe {
        if by_path {
            return sys::call3(sys::EXECVE, program, list, environment);
        }
        sys::call3(sys::FCNTL, area_fd as u64, F_SETFD, 0);
        let empty = c"".as_ptr() as u64;
        let all = [self_fd as u64, empty, list, environment, AT_EMPTY_PATH, 0];
        let result = sys::call(sys::EXECVEAT, all);
        sys::call3(sys::FCNTL, area_fd as u64, F_SETFD, FD_CLOEXEC);
        result
    }
}

/// The words of a list of strings of the program's.
fn strings(at: u64) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while at != 0 && all.len() < 32768 {
        match sys::read_word(at + 8 * all.len() as u64)? {
            0 => break,
            text => all.push(string(text, 131_072)?),
        }
    }
    Some(all)
}

/// Whether the kernel gives the program other rights than its caller has, which it does not give to
/// the translator.
fn gains_rights(path: &[u8], status: &sys::FileStatus) -> bool {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010;
    // SAFETY: asks who this is, and for the length of an attribute.
    let (user, group, capabilities) = unsafe {
        let name = c"security.capability".as_ptr() as u64;
        (
            sys::call3(sys::GETEUID, 0, 0, 0) as u32,
            sys::call3(sys::GETEGID, 0, 0, 0) as u32,
            sys::call(sys::GETXATTR, [path.as_ptr() as u64, name, 0, 0, 0, 0]),
        )
    };
    (status.mode & SET_USER != 0 && status.user != user)
        || (status.mode & SET_GROUP == SET_GROUP && status.group != group)
        || (user != 0 && capabilities > 0)
}

/// Whether the path is that of a descriptor that would be closed before the program is read.
fn closes_on_exec(path: &[u8]) -> bool {
    let Some(number) = path.strip_prefix(b"/proc/self/fd/") else { return false };
    let fd = number
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .fold(0u64, |n, b| n.wrapping_mul(10).wrapping_add(u64::from(b - b'0')));
    // SAFETY: asks about a descriptor.
    unsafe { sys::call3(sys::FCNTL, fd, F_GETFD, 0) & FD_CLOEXEC as i64 == 1 }
}

fn fate(area: &Area, path: Vec<u8>, arguments: u64) -> Fate {
    const X_OK: u64 = 1;
    let own = is_own_path(&path[..path.len() - 1]);
    let path = if own { program().to_bytes_with_nul().to_vec() } else { path };
    // SAFETY: a string that ends with a zero.
    let may = unsafe { sys::call3(sys::ACCESS, path.as_ptr() as u64, X_OK, 0) } == 0;
    let Some(status) =
        sys::FileStatus::at(&path).filter(|s| may && s.mode & 0o170_000 == 0o100_000)
    else {
        return Fate::Kernel;
    };
    let mut words = Vec::new();
    let Some(given) = strings(arguments) else { return Fate::Kernel };
    if elf::is_program(&path) {
        words.push(given.first().cloned().unwrap_or_else(|| path.clone()));
        words.push(path.clone());
    } else {
        let head = elf::first_line(&path).unwrap_or_default();
        if head.starts_with(b"\x7fELF") {
            return Fate::Unrecorded(path, "it is not for x86-64");
        }
        let Some(line) = head.strip_prefix(b"#!") else { return Fate::Kernel };
        let line = line.trim_ascii();
        let blank = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let with_zero = |text: &[u8]| [text, b"\0"].concat();
        let (interpreter, option) = (with_zero(&line[..blank]), line[blank..].trim_ascii());
        if !elf::is_program(&interpreter) {
            return Fate::Kernel;
        }
        words.push(interpreter.clone());
        words.push(interpreter);
        if !option.is_empty() {
            words.push(with_zero(option));
        }
        words.push(path.clone());
    }
    words.extend(given.into_iter().skip(1));
    if gains_rights(&path, &status) {
        return Fate::Unrecorded(path, "it has set-user-ID or set-group-ID bits, or capabilities");
    }
    if closes_on_exec(&path) {
        return Fate::Unrecorded(path, "it is started by a descriptor that closes on exec");
    }
    let saved =
        || is_area(area, AREA_FD.load(Ordering::SeqCst)) && is_self(SELF_FD.load(Ordering::SeqCst));
    if !found_by_path(area) && !saved() {
        return Fate::Unrecorded(path, "it may not open the recorder's memory");
    }
    Fate::Followed(path, words)
}
