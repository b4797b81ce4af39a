//! Managed memory through the driver's library: a double of it, compiled here, in processes of
//! their own (how the library is found is settled once in a process); and a real GPU where there is
//! one.
//!
//! A process of its own is this program again, told by a variable which test it is to be.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_alloc::attributes::{
    Attributes, Binding, ClassId, ClassPlacement, Index, Mismatch, NodeSplit,
};
use terrace_alloc::commit::Scope;
use terrace_alloc::error::AllocError;
use terrace_alloc::gpu::CudaError;
use terrace_alloc::memory::Memory;
use terrace_alloc::types::Bytes;

const INSIDE: &str = "TERRACE_TEST_INSIDE";
const MIB: usize = 1 << 20;

fn memory() -> Memory {
    Memory::live(&|_| None).expect("the live machine's memory")
}

fn on(index: Index) -> Attributes {
    Attributes {
        places: vec![ClassPlacement { class: ClassId::CUDA_MANAGED, index }],
        ..Attributes::default()
    }
}

fn this(index: u16) -> Attributes {
    on(Index::These(vec![index]))
}

fn strict(wish: Attributes) -> Attributes {
    Attributes { mismatch: Mismatch::Error, ..wish }
}

/// All of it written and read again by the CPU.
fn used(address: usize, len: usize) {
    // SAFETY: `len` bytes that were allocated at `address` and that nobody else knows of.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
    bytes.iter_mut().enumerate().for_each(|(at, b)| *b = at as u8);
    assert!(bytes.iter().enumerate().all(|(at, b)| *b == at as u8));
}

/// Why the double cannot be used here.
fn missing() -> Option<&'static str> {
    if !cfg!(feature = "cuda") {
        return Some("built without the feature cuda");
    }
    let has = Command::new("cc").arg("--version").output().is_ok_and(|o| o.status.success());
    (!has).then_some("there is no C compiler (apt install gcc)")
}

/// A folder with the double in it under these names.
fn double(folder: &str, names: &[&str], options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/double/libcuda.c");
    for name in names {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(folder.join(name));
        let done = cc.args(options).arg(&source).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    folder
}

/// Runs the test `name` of this program in a process with these libraries and variables; what the
/// double wrote down, and what the process said.
fn inside(name: &str, libraries: &Path, variables: &[(&str, &str)]) -> (String, String) {
    let log = libraries.join(format!("{name}.log"));
    let _was_there = std::fs::remove_file(&log);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(INSIDE, name).env("TERRACE_DOUBLE_LOG", &log);
    let out =
        child.env("LD_LIBRARY_PATH", libraries).envs(variables.iter().copied()).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{name}: {}\n{said}", out.status);
    (std::fs::read_to_string(&log).unwrap_or_default(), said)
}

fn is_inside(name: &str) -> bool {
    std::env::var(INSIDE).is_ok_and(|n| n == name)
}

/// The names under which the library is looked for; both, so that no other library is found before.
const BOTH: &[&str] = &["libcuda.so", "libcuda.so.1"];

#[test]
fn calls_reach_the_drivers_library_in_order() {
    const NAME: &str = "calls_reach_the_drivers_library_in_order";
    if is_inside(NAME) {
        let memory = memory();
        assert_eq!(memory.gpus().unwrap().members().collect::<Vec<_>>(), [0, 1]);
        let plain = memory.allocate(Bytes(2 * MIB as u64), this(0)).unwrap();
        used(plain, 2 * MIB);
        assert_eq!(memory.lookup(plain + 100), Some(plain));
        let sure = memory.allocate(Bytes(MIB as u64), strict(this(1))).unwrap();
        used(sure, MIB);
        let both =
            Attributes { split: NodeSplit::Equal, binding: Binding::OnCommit, ..on(Index::All) };
        let both = memory.allocate(Bytes(4 * MIB as u64), both).unwrap();
        let report = memory.commit(Scope::Epoch).unwrap();
        assert_eq!(report.rows[0].got, [(ClassId::CUDA_MANAGED.0 as usize, Bytes(4 * MIB as u64))]);
        let usage = memory.gpu_use(1).unwrap();
        assert_eq!(
            (usage.device.name.as_str(), usage.device.total),
            ("Double 1", Bytes(256 * MIB as u64))
        );
        assert_eq!(
            (usage.free, usage.bound, usage.blocks),
            (Bytes(63 * MIB as u64), Bytes(3 * MIB as u64), 2)
        );
        // More than the GPU has free: refused, and nothing of it is left.
        let much = memory.allocate(Bytes(80 * MIB as u64), strict(this(1))).unwrap_err();
        assert!(matches!(much, AllocError::NoSpaceOnGpus { .. }), "{much}");
        memory.free(both).unwrap();
        memory.free(sure).unwrap();
        assert!(matches!(memory.free(sure), Err(AllocError::NotOurs { .. })));
        return;
    }
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let (log, _) = inside(NAME, &double("both", BOTH, &[]), &[]);
    let expected = "\
init 0
retain gpu0
allocate 0: 2097152 in gpu0
prefer 0: 0+2097152 gpu0
reach 0: 0+2097152 cpu
reach 0: 0+2097152 gpu1
retain gpu1
allocate 1: 2097152 in gpu1
prefer 1: 0+1048576 gpu1
reach 1: 0+1048576 cpu
bring 1: 0+1048576 gpu1
wait gpu1
allocate 2: 4194304 in gpu0
prefer 2: 0+2097152 gpu0
reach 2: 0+2097152 cpu
reach 2: 0+2097152 gpu1
prefer 2: 2097152+2097152 gpu1
reach 2: 2097152+2097152 cpu
allocate 3: 83886080 in gpu1
no home 3: 0+83886080 cpu
no reach 3: 0+83886080 cpu
no reach 3: 0+83886080 gpu0
no reach 3: 0+83886080 gpu1
free 3
free 2
free 1
free 0
release gpu0 with 0 contexts current
release gpu1 with 0 contexts current
";
    assert_eq!(log, expected);
}

#[test]
fn the_library_is_found_by_the_name_that_drivers_install() {
    const NAME: &str = "the_library_is_found_by_the_name_that_drivers_install";
    if is_inside(NAME) {
        return println!("{}", memory().gpus().unwrap());
    }
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let (_, said) = inside(NAME, &double("one", &["libcuda.so.1"], &[]), &[]);
    if !said.contains("Double") {
        return println!("skipped: this machine has a libcuda.so, which is found before: {said}");
    }
    assert!(
        said.contains("index 0: Double 0, 256 MiB, reached by GPU 1; index 1: Double 1, 256 MiB"),
        "{said}"
    );
}

/// What stands in the way, as the errors have it.
#[test]
fn the_obstacle_is_named() {
    const NAME: &str = "the_obstacle_is_named";
    if is_inside(NAME) {
        let memory = memory();
        let error = memory.allocate(Bytes(1), strict(this(0))).unwrap_err();
        assert!(matches!(error, AllocError::NoCuda(_)), "{error}");
        println!("{error}");
        // A fallback has memory, and its report says the same.
        let other = memory.allocate(Bytes(MIB as u64), this(0)).unwrap();
        used(other, MIB);
        let row = memory.describe(other).unwrap();
        assert!(row.got.iter().all(|(class, _)| *class == 0), "{row:?}");
        return println!("{}", row.why);
    }
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let whole = double("ways", BOTH, &[]);
    let says = |libraries: &Path, variables: &[(&str, &str)], words: &str| {
        let (_, said) = inside(NAME, libraries, variables);
        let reported = said.lines().filter(|l| l.contains(words)).count();
        assert_eq!(reported, 2, "{words:?} once as an error, once as a note: {said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    let init = |code| [("TERRACE_DOUBLE_INIT", code)];
    says(&whole, &init("100"), "the driver shows no GPU");
    says(&whole, &init("3"), "forked after it was first used");
    says(&whole, &init("34"), "the toolkit's stub");
    says(&whole, &init("999"), "cuInit on the driver failed (CUDA_ERROR_UNKNOWN, 999)");
    says(
        &whole,
        &init("123456"),
        "cuInit on the driver failed (an error of a newer driver, 123456)",
    );
    says(&whole, &[("TERRACE_DOUBLE_GPUS", "0")], "the driver shows no GPU");
    says(&whole, &[("TERRACE_DOUBLE_PLACES", "0")], "none of 2 GPUs lets managed memory be placed");
    says(&double("old", BOTH, &["-DOLD"]), &[], "has no function cuMemPrefetchAsync");
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    if has_driver() {
        return println!("skipped: this machine has a driver, so its absence cannot be seen");
    }
    says(&empty, &[], "libcuda.so.1, cannot be loaded");
}

fn has_driver() -> bool {
    cfg!(feature = "cuda")
        && !matches!(memory().gpus(), Err(AllocError::NoCuda(CudaError::NoLibrary)))
}

/// A child that was forked has no CUDA: it is told so, has other memory, and leaves its parent's
/// alone.
#[test]
fn a_forked_child_is_refused_and_harms_nothing() {
    const NAME: &str = "a_forked_child_is_refused_and_harms_nothing";
    if is_inside(NAME) {
        let memory = memory();
        let at = memory.allocate(Bytes(MIB as u64), this(0)).unwrap();
        // SAFETY: the child calls nothing that another thread may have held a lock of, as the
        // test's only thread waits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = memory.allocate(Bytes(1), strict(this(0)));
            let named = matches!(refused, Err(AllocError::Cuda(CudaError::Forked)));
            let other = memory.allocate(Bytes(1), this(0)).is_ok();
            let kept = memory.free(at).is_err();
            drop(memory);
            // SAFETY: ends the child at once, without what the test's program would do at its end.
            unsafe { libc::_exit(i32::from(!(named && other && kept))) };
        }
        let mut status = 0;
        // SAFETY: writes one number to a place of ours.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        used(at, MIB);
        memory.free(at).unwrap();
        return;
    }
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let (log, _) = inside(NAME, &double("fork", BOTH, &[]), &[]);
    assert_eq!(log.matches("free").count(), 1, "{log}");
    assert_eq!(log.matches("allocate").count(), 1, "{log}");
}

/// The only test here that says something of a GPU.
#[test]
fn a_real_gpu_holds_what_it_is_asked_to() {
    if !cfg!(feature = "cuda") {
        return println!("skipped: built without the feature cuda");
    }
    let memory = memory();
    let gpus: Vec<u16> = match memory.gpus() {
        Ok(class) => class.members().collect(),
        Err(why) => return println!("skipped: {why}"),
    };
    const LEN: usize = 256 * MIB;
    for index in 0..gpus.len() as u16 {
        let before = memory.gpu_use(index).unwrap();
        println!(
            "GPU {}: {}, {} of {} free",
            before.number, before.device.name, before.free, before.device.total
        );
        if before.free < Bytes(2 * LEN as u64) {
            println!("skipped: GPU {index} is busy");
            continue;
        }
        let at = memory.allocate(Bytes(LEN as u64), strict(this(index))).unwrap();
        let with = memory.gpu_use(index).unwrap();
        assert!(
            before.free.get() - with.free.get() >= LEN as u64 / 2,
            "{} to {} free",
            before.free,
            with.free
        );
        assert_eq!(with.bound, Bytes(LEN as u64));
        assert_eq!(at % 4096, 0, "at a page's address");
        used(at, LEN);
        memory.free(at).unwrap();
        let wish = Attributes { binding: Binding::OnCommit, prefetch: true, ..this(index) };
        let at = memory.allocate(Bytes(LEN as u64), wish).unwrap();
        used(at, LEN);
        let report = memory.commit(Scope::Epoch).unwrap();
        assert_eq!(report.rows[0].populated, Bytes(LEN as u64), "{:?}", report.rows[0]);
        // What the CPU wrote before it was brought there is there.
        // SAFETY: allocated above, and nobody else's.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, LEN) };
        assert!(bytes.iter().enumerate().all(|(at, b)| *b == at as u8));
        memory.free(at).unwrap();
        let after = memory.gpu_use(index).unwrap();
        assert!(
            after.free.get() + LEN as u64 / 2 > before.free.get(),
            "{} to {} free",
            before.free,
            after.free
        );
        let much =
            memory.allocate(Bytes(before.device.total.get() * 2), strict(this(index))).unwrap_err();
        assert!(matches!(much, AllocError::NoSpaceOnGpus { .. }), "{much}");
    }
    let at = memory.allocate(Bytes(LEN as u64), on(Index::All)).unwrap();
    used(at, LEN);
    memory.free(at).unwrap();
}
