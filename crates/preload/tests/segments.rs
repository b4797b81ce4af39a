//! Shared memory of programs that know nothing of arenas, on the nodes that a plan says.
#![allow(clippy::unwrap_used)]

mod under;

use std::path::{Path, PathBuf};
use under::{compile, folder, has, library, run};

/// A folder with the program and a plan in it.
fn prepared(name: &str, plan: &str) -> Option<(PathBuf, PathBuf)> {
    let folder = folder(name);
    let plan_file = folder.join("plan");
    std::fs::write(&plan_file, plan).unwrap();
    compile(&folder, "segments.c", "segments", &[]).then_some((folder, plan_file))
}

/// The first process under the library, the second as `other` begins it.
fn two(folder: &Path, name: &str, plan: &Path, other: &str) -> (String, String) {
    let name = format!("/terrace-{name}-{}", std::process::id());
    let script = format!("exec ./segments create {name} '{other} ./segments open {name}'");
    let ran = run(folder, &script, &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", plan)]);
    assert!(!Path::new(&format!("/dev/shm{name}")).exists());
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    (String::from_utf8_lossy(&ran.stdout).into_owned(), said)
}

fn node() -> String {
    let there = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    there.trim().split(['-', ',']).next().unwrap_or("0").to_owned()
}

/// What both processes say when the segment's policy is `policy`.
fn expected(policy: &str) -> String {
    format!(
        "first {policy}\nsecond reads: written by the first, x\nsecond {policy}\nfirst reads: \
            written by the second\n"
    )
}

#[test]
fn a_segment_comes_from_its_node_for_processes_with_the_library_and_without() {
    let node = node();
    let rules = format!(
        "arena near only {node}\narena far prefer {node}\nshm /terrace-only-* near\nshm \
            terrace-* far\n"
    );
    let Some((folder, plan)) = prepared("segments", &rules) else { return };
    let (plain, _) = two(&folder, "other", Path::new("/dev/null"), "env -u LD_PRELOAD");
    if plain != expected("default") {
        return println!("skipped: this kernel does not tell policies: {plain}");
    }
    for other in ["", "env -u LD_PRELOAD"] {
        assert_eq!(
            two(&folder, "only-a", &plan, other),
            (expected(&format!("bind:{node}")), String::new())
        );
        let (said, errors) = two(&folder, "b", &plan, other);
        assert!(
            said.contains(&format!("first prefer:{node}\n"))
                || said.contains(&format!("prefer (many):{node}")),
            "{said}"
        );
        assert_eq!(errors, "");
    }
}

/// A smaller window is tried where addresses are limited, and a program that runs without the
/// library runs.
#[test]
fn few_addresses_do_no_harm() {
    let node = node();
    let Some((folder, plan)) =
        prepared("segments-few", &format!("arena near only {node}\nshm * near\n"))
    else {
        return;
    };
    let name = format!("/terrace-few-{}", std::process::id());
    let script = format!(
        "ulimit -v 4000000; exec ./segments create {name} 'env -u LD_PRELOAD \
        ./segments open {name}'"
    );
    let ran = run(&folder, &script, &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", &plan)]);
    assert!(ran.status.success(), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stdout).contains("first reads: written by the second"));
}

/// Errors, `errno` and modes are the C library's.
#[test]
fn what_shm_open_refuses_is_refused_alike() {
    let Some((folder, plan)) = prepared("segments-refused", "arena a\nshm * a\n") else { return };
    let script =
        "./segments open /terrace-not-there; ./segments open /a/b; ./segments open ''; echo done";
    let plain = run(&folder, script, &[]);
    let ours = run(&folder, script, &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", &plan)]);
    assert_eq!(plain.stderr, ours.stderr);
    assert_eq!(plain.stdout, ours.stdout);
    assert!(String::from_utf8_lossy(&plain.stderr).contains("No such file"));
}

#[test]
fn python_shares_memory_on_a_node() {
    if !has("python3") {
        return println!("skipped: python3 is not installed");
    }
    let folder = folder("segments-python");
    let plan = folder.join("plan");
    std::fs::write(&plan, format!("arena near only {}\nshm /psm_* near\n", node())).unwrap();
    let program = "
import multiprocessing as m
from multiprocessing import shared_memory as s
def policies():
    return sorted({l.split()[1] for l in open('/proc/self/numa_maps') if 'psm_' in l})
def work(name, out):
    block = s.SharedMemory(name)
    block.buf[:5] = b'child'
    out.put(policies())
    block.close()
if __name__ == '__main__':
    c = m.get_context('spawn')
    block, out = s.SharedMemory(create=True, size=3 << 20), c.Queue()
    child = c.Process(target=work, args=(block.name, out))
    child.start(); there = out.get(); child.join()
    print(bytes(block.buf[:5]), there == policies(), there)
    block.close(); block.unlink()
";
    std::fs::write(folder.join("share.py"), program).unwrap();
    let plain = run(&folder, "exec python3 share.py", &[]);
    let plain = String::from_utf8_lossy(&plain.stdout).into_owned();
    if plain != "b'child' True ['default']\n" {
        return println!("skipped: this python or kernel does not tell: {plain}");
    }
    let ours = run(
        &folder,
        "exec python3 share.py",
        &[("LD_PRELOAD", library()), ("TERRACE_ALLOC", &plan)],
    );
    let said = String::from_utf8_lossy(&ours.stdout).into_owned();
    assert_eq!(
        said,
        format!("b'child' True ['bind:{}']\n", node()),
        "{}",
        String::from_utf8_lossy(&ours.stderr)
    );
}
