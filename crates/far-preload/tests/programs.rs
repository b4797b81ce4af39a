//! Programs that know nothing of far memory, with the library and without: the same output, at half
//! their memory or less.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use terrace_far::tally::{FarTotals, TallyReader, WORDS};
use terrace_sys::{SharedTable, Uffd};

/// The library, built for this profile.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().and_then(Path::parent).unwrap();
        let library = folder.join("libterrace_far_preload.so");
        // Cargo builds it before these tests, but not always to the outer folder.
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet", "-p", "terrace-far-preload"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        if std::env::var_os("TERRACE_FAR_BUILT").is_none() {
            let built = build.status();
            assert!(library.is_file(), "{} is not there: {built:?}", library.display());
        }
        library
    })
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("far-{name}"));
    let _fresh = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|o| o.status.success())
}

fn plain(folder: &Path, script: &str) -> Output {
    Command::new("sh").args(["-c", script]).current_dir(folder).env("LC_ALL", "C").output().unwrap()
}

/// With so many MiB of memory; what the pagers did.
fn far(folder: &Path, script: &str, mib: u64, store: &str) -> (Output, FarTotals) {
    let table = SharedTable::create(WORDS).unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .current_dir(folder)
        .env("LC_ALL", "C")
        .env("LD_PRELOAD", library());
    command.env("TERRACE_FAR_DRAM", (mib << 20).to_string()).env("TERRACE_FAR_STORE", store);
    command.env("TERRACE_FAR_TALLY", table.path().unwrap());
    let output = command.output().unwrap();
    (output, TallyReader::new(table).read().0)
}

/// Why far memory of whole programs cannot be tried here.
fn refused() -> Option<String> {
    match Uffd::open() {
        Ok(uffd) if uffd.features().kernel_faults && uffd.features().write_protect => None,
        Ok(_) => {
            Some("userfaultfd tells this user of faults of the program's own code only".to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

/// The same output and status, and nothing said, with data in the file and compressed.
fn same(name: &str, needs: &[&str], mib: u64, script: &str) -> Option<FarTotals> {
    if let Some(why) = refused() {
        println!("skipped: {why}");
        return None;
    }
    if let Some(missing) = needs.iter().find(|p| !has(p)) {
        println!("skipped: {missing} is not installed");
        return None;
    }
    let expected = plain(&folder(name), script);
    assert!(!expected.stdout.is_empty(), "{}", String::from_utf8_lossy(&expected.stderr));
    let mut last = None;
    for store in [".", "compressed", ".+compressed"] {
        let (ours, tally) = far(&folder(name), script, mib, store);
        assert_eq!(
            String::from_utf8_lossy(&expected.stdout),
            String::from_utf8_lossy(&ours.stdout),
            "{store}"
        );
        assert_eq!(
            String::from_utf8_lossy(&expected.stderr),
            String::from_utf8_lossy(&ours.stderr),
            "{store}"
        );
        assert_eq!(expected.status, ours.status, "{store}");
        assert_eq!((tally.lost, tally.write_failures), (0, 0), "{store}");
        println!("{name} {store}: {tally:?}");
        last = Some(tally);
    }
    last
}

#[test]
fn python_with_large_containers() {
    let script = "python3 -c '
import hashlib
d = {i: str(i) * 3 for i in range(100000)}
b = bytearray(24 << 20)
for i in range(0, len(b), 4096): b[i] = i // 4096 % 251
l = [d[k] for k in sorted(d, key=lambda k: k * 7919 % 100003)]
b += bytes(8 << 20)
del d
print(hashlib.sha256(\"\".join(l).encode()).hexdigest(), hashlib.sha256(b).hexdigest(), len(l))'";
    if let Some(tally) = same("python", &["python3"], 24, script) {
        assert!(tally.processes >= 1 && tally.written > 1 << 20, "{tally:?}");
    }
}

/// Pages of twice the memory by chance, read and written, while others want the CPUs too.
#[test]
fn memory_stays_within_what_was_given() {
    if let Some(why) =
        refused().or_else(|| (!has("python3")).then(|| "python3 is not installed".to_owned()))
    {
        return println!("skipped: {why}");
    }
    let script = "exec python3 -c '
b = bytearray(48 << 20)
n = 1
for turn in range(40000):
    n = (n * 6364136223846793005 + 1442695040888963407) % (1 << 64)
    at = (n >> 33) % len(b)
    b[at] = (b[at] + turn) % 256
print(sum(b[::4096]))'";
    let expected = plain(&folder("within"), script);
    for store in [".", "compressed"] {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(folder("within")).env("LD_PRELOAD", library());
        command.env("TERRACE_FAR_DRAM", (24 << 20).to_string()).env("TERRACE_FAR_STORE", store);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = [Arc::clone(&stop), Arc::clone(&stop)];
        let busy = stops.map(|stop| std::thread::spawn(move || keep_busy(&stop)));
        let (mut most, mut looks) = (0, 0);
        while child.try_wait().unwrap().is_none() {
            most = most.max(kib_of(child.id(), "RssAnon:").unwrap_or(0));
            looks += 1;
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        stop.store(true, Relaxed);
        busy.into_iter().for_each(|b| b.join().unwrap());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.stdout, expected.stdout, "{store}");
        println!("{store}: at most {most} KiB in {looks} looks");
        // Beside it: what is no program's heap or large mapping, and the pager's accounts;
        // compressed, the store as well.
        let beside = if store == "." { 4 << 10 } else { 12 << 10 };
        assert!(looks > 20 && most > 20 << 10 && most < (24 << 10) + beside, "{store}: {most} KiB");
    }
}

/// Two thirds of a CPU, in small parts.
fn keep_busy(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 2 {
            std::hint::spin_loop();
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A line of a process's status.
fn kib_of(pid: u32, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok())
}

#[test]
fn sqlite_in_memory() {
    let script =
        "sqlite3 :memory: \"pragma cache_size=-200000; create table t(a integer primary key, b text);
        with recursive n(i) as (select 1 union all select i+1 from n where i<120000)
        insert into t select i, printf('%d-%d-%s', i, i*i, hex(i)) from n; create index x on t(b);
        select count(*), sum(length(b)) from t; select * from t order by b desc limit 3; delete from t where a%3=0;
        select sum(length(b)) from t; pragma integrity_check;\"";
    same("sqlite", &["sqlite3"], 8, script);
}

#[test]
fn sort_of_lines() {
    let script = "seq 400000 | awk '{print ($1 * 7919) % 400009, $1}' | sort -S 64M --parallel=2 \
        -k2,2n | sha256sum";
    same("sort", &["sort", "awk"], 8, script);
}

#[test]
fn gcc_and_what_it_made() {
    let script = r#"for i in $(seq 160); do printf 'int f%d(int x){int s=0;for(int i=0;i<x;i++)s+=i*%d^(s>>3);return s;}\n' $i $i; done >p.c
        printf '#include <stdio.h>\nint main(){printf("%%d\\n",f7(1000)+f159(500));}\n' >>p.c
        gcc -O2 p.c -o p && sha256sum p | cut -c1-64 && ./p; echo 'int f( {' >q.c; gcc -c q.c 2>/dev/null; echo $?"#;
    same("gcc", &["gcc"], 16, script);
}

fn compile(folder: &Path, source: &str) -> Option<PathBuf> {
    if !has("gcc") {
        println!("skipped: gcc is not installed");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let program = folder.join("program");
    let done = Command::new("gcc")
        .args(["-O1", "-w", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(program)
}

#[test]
fn what_programs_do_with_memory() {
    if let Some(why) = refused() {
        return println!("skipped: {why}");
    }
    let folder = folder("calls");
    let Some(program) = compile(&folder, "calls.c") else { return };
    let cases = "heap maps remap rights system threads fork vfork exec signal descriptors fixed \
                 unmapped own-faults figures";
    for case in cases.split(' ') {
        let script = format!("exec {} {case}", program.display());
        let expected = plain(&folder, &script);
        assert_eq!(
            String::from_utf8_lossy(&expected.stdout),
            format!("{case} kept\n"),
            "{expected:?}"
        );
        let (ours, tally) = far(&folder, &script, 8, ".");
        assert_eq!(
            String::from_utf8_lossy(&ours.stdout),
            format!("{case} kept\n"),
            "{case}: {ours:?} {tally:?}"
        );
        assert_eq!((ours.status, ours.stderr.len()), (expected.status, 0), "{case}: {ours:?}");
        assert!(tally.written > 1 << 20 && tally.lost == 0, "{case}: {tally:?}");
        println!("{case}: {tally:?}");
    }
}

/// Seeded programs that change windows of memory by every call there is, beside a model of what
/// they must hold. `TERRACE_FAR_SECONDS` of them (20 unless set); `TERRACE_FAR_SEED` begins with
/// one.
#[test]
fn an_address_space_is_as_without_far_memory() {
    if let Some(why) = refused() {
        return println!("skipped: {why}");
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let seconds = number("TERRACE_FAR_SECONDS").unwrap_or(20);
    let first = number("TERRACE_FAR_SEED").unwrap_or(1);
    let folder = folder("space");
    let Some(program) = compile(&folder, "space.c") else { return };
    let begin = std::time::Instant::now();
    let (mut seed, mut written) = (first, 0);
    while seed < first + 4 || begin.elapsed().as_secs() < seconds {
        let (threads, store) = (1 + seed % 5, ["compressed", "."][(seed % 2) as usize]);
        // Who never ends is as wrong as who reads a wrong byte.
        let script = format!("exec timeout 120 {} {seed} 800 {threads}", program.display());
        if seed % 8 == first % 8 {
            let native = plain(&folder, &script);
            let said = String::from_utf8_lossy(&native.stdout);
            assert_eq!(said, "kept\n", "the model is wrong: seed {seed}");
        }
        let (ours, tally) = far(&folder, &script, 8, store);
        let said = String::from_utf8_lossy(&ours.stdout);
        assert_eq!((said.as_ref(), ours.status.code()), ("kept\n", Some(0)), "{seed}: {ours:?}");
        assert_eq!((tally.lost, tally.write_failures), (0, 0), "{seed}: {tally:?}");
        written += tally.written;
        seed += 1;
    }
    println!("seeds {first} to {seed}: {written} bytes written to stores");
    assert!(written > 1 << 20, "{written} bytes went out");
}

#[test]
fn a_crowd_of_threads_does_not_wait_for_ever() {
    if let Some(why) = refused() {
        return println!("skipped: {why}");
    }
    let folder = folder("crowd");
    let Some(program) = compile(&folder, "calls.c") else { return };
    for round in 0..8 {
        let script = format!("exec timeout 60 {} crowd", program.display());
        let (ours, tally) = far(&folder, &script, 8, "compressed");
        assert_eq!(String::from_utf8_lossy(&ours.stdout), "crowd kept\n", "{round}: {ours:?}");
        assert_eq!((tally.processes, tally.lost), (1, 0), "{round}: {tally:?}");
    }
}

#[test]
fn a_limit_on_addresses_leaves_space_for_the_program() {
    if let Some(why) = refused() {
        return println!("skipped: {why}");
    }
    let folder = folder("limit");
    let Some(program) = compile(&folder, "calls.c") else { return };
    for (limit, case) in [(1_000_000, "heap"), (400_000, "heap"), (1_000_000, "maps")] {
        let script = format!("ulimit -v {limit}; exec {} {case}", program.display());
        let (ours, tally) = far(&folder, &script, 8, "compressed");
        let expected = format!("{case} kept\n");
        assert_eq!(String::from_utf8_lossy(&ours.stdout), expected, "{limit}: {ours:?}");
        assert!(ours.stderr.is_empty(), "{limit}: {ours:?}");
        println!("{limit} {case}: {tally:?}");
    }
}

/// What a core file of a process with far memory holds: what was in memory, and not the hundreds of
/// GiB of addresses that it was mapped in.
#[test]
fn a_core_file_holds_what_is_in_memory() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if let Some(why) = refused().or_else(|| {
        let elsewhere = pattern.starts_with('|') || pattern.contains('/');
        elsewhere.then(|| "core files go elsewhere on this machine".to_owned())
    }) {
        return println!("skipped: {why}");
    }
    let folder = folder("core");
    let Some(program) = compile(&folder, "calls.c") else { return };
    let script = format!("ulimit -c unlimited || exit 77; exec {} ends abort", program.display());
    let (ours, _) = far(&folder, &script, 16, ".");
    if ours.status.code() == Some(77) {
        return println!("skipped: core files are not allowed here");
    }
    let core = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().to_string_lossy().starts_with("core"));
    let Some(core) = core else { return println!("skipped: no core file is written here") };
    use std::os::unix::fs::MetadataExt as _;
    let about = core.metadata().unwrap();
    println!("{} bytes long, {} on the disk", about.len(), about.blocks() * 512);
    assert!(about.len() < 2 << 30, "{} bytes long", about.len());
    assert!(about.blocks() * 512 > 8 << 20, "{} bytes on the disk", about.blocks() * 512);
}

#[test]
fn signals_and_status_are_the_programs_own() {
    if let Some(why) = refused() {
        return println!("skipped: {why}");
    }
    let folder = folder("ends");
    let Some(program) = compile(&folder, "calls.c") else { return };
    for how in ["abort", "segv", "exit"] {
        let script = format!("exec {} ends {how}", program.display());
        let (expected, (ours, tally)) = (plain(&folder, &script), far(&folder, &script, 8, "."));
        assert_eq!((expected.status, expected.stdout), (ours.status, ours.stdout), "{how}");
        assert_eq!(tally.processes, 1, "{how}");
    }
}

#[test]
fn a_store_that_cannot_be_made_leaves_the_program_as_it_is() {
    if let Some(why) = refused() {
        return println!("skipped: {why}");
    }
    let folder = folder("none");
    let Some(program) = compile(&folder, "calls.c") else { return };
    let (ours, tally) =
        far(&folder, &format!("exec {} heap", program.display()), 8, "/no/such/folder");
    assert_eq!(
        (String::from_utf8_lossy(&ours.stdout), ours.status.code()),
        ("heap kept\n".into(), Some(0))
    );
    let said = String::from_utf8_lossy(&ours.stderr).into_owned();
    assert!(said.contains("/no/such/folder") && said.lines().count() == 1, "{said}");
    assert_eq!(tally.faults, 0);
}
