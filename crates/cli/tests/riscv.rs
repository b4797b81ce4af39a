//! `terrace riscv run --pes` and `disasm` on programs of Debian's cross compiler, and `boot`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use terrace_testkit::compile_xbgas_program;

/// The named program of the xBGAS crate with its library; `None` without a compiler. Tests run
/// beside each other, so each has a file of its own.
fn compile(name: &str) -> Option<PathBuf> {
    compile_as(name, name)
}

fn compile_as(name: &str, output: &str) -> Option<PathBuf> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xbgas/tests/programs");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(output);
    compile_xbgas_program(&programs.join(name), 2018, &output).then_some(output)
}

fn terrace(words: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_terrace")).args(words).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// Runs two elements that spin in processes of their own, kills the command's process (0) or that
/// of element `killed - 1`, and waits until all have ended; the command's end and its messages.
fn kill_one(program: &str, killed: usize) -> (ExitStatus, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["riscv", "run", "--transport", "shared", "--pes", "2", program, "spins"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let mut processes = vec![child.id().to_string()];
    let started = holds_soon(|| {
        let text = std::fs::read_to_string(&children).expect("a process");
        processes.truncate(1);
        processes.extend(text.split_whitespace().map(str::to_owned));
        processes.len() == 3
    });
    let kill = |process: &String| Command::new("kill").args(["-9", process]).output();
    assert!(started && kill(&processes[killed]).expect("kill").status.success());
    let ended = holds_soon(|| processes.iter().all(|process| has_ended(process)));
    if !ended {
        processes.iter().filter(|process| !has_ended(process)).for_each(|left| {
            let _ = kill(left);
        });
    }
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8(output.stderr).expect("text");
    assert!(ended, "processes were left: {err}");
    (output.status, err)
}

/// Whether it comes to hold within a minute.
fn holds_soon(mut holds: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        match holds() {
            true => return true,
            false if began.elapsed() > Duration::from_secs(60) => return false,
            false => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Whether a process has ended, be it that nobody waited for it.
fn has_ended(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[test]
fn elements_run_print_and_name_the_one_at_fault() {
    let Some(program) = compile("single.c") else { return };
    let program = program.to_str().unwrap();
    let run = |words: &[&str]| terrace(&[&["riscv", "run"], words].concat());

    for transport in ["turns", "shared"] {
        let run = |words: &[&str]| run(&[&["--transport", transport, "--pes"], words].concat());
        let (status, out, err) = run(&["4", "--stats", program, "figure"]);
        assert_eq!((status, out.as_str()), (Some(0), "406\n".repeat(4).as_str()), "{err}");
        assert!(err.contains("element 0: ") && err.contains(" 3 remote loads"), "{err}");

        let (status, _, err) = run(&["4", program, "exits"]);
        assert_eq!(status, Some(3), "{err}");
        assert!(err.contains("element 1 exited with status 3 while 3 others wait"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");

        let (status, _, err) = run(&["2", program, "object"]);
        assert_eq!(status, Some(128 + 11), "{err}");
        assert!(err.contains("element 1, thread 0, at 0x"), "{err}");
        assert!(err.contains("no object 99"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }

    // A process that is killed ends all, and a line names its element.
    let (status, err) = kill_one(program, 2);
    assert_eq!(status.code(), Some(128 + 9), "{err}");
    assert!(err.contains("element 1: its process died by signal 9"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert_eq!(kill_one(program, 0).0.code(), None, "the command itself was killed");
    assert_eq!(run(&["--transport", "shared", "--fabric", "100ns", program]).0, Some(3));

    // In time, twice the same, and slower over a slower network.
    let timed = |fabric| {
        let (status, _, err) =
            run(&["--pes", "2", "--fabric", fabric, "--stats", program, "figure"]);
        assert_eq!(status, Some(0), "{err}");
        let last = err.lines().find_map(|line| line.split_once(" us until the last element ended"));
        let (line, _) = last.unwrap_or_else(|| panic!("{err}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let (near, far) = (timed("100ns"), timed("200ns"));
    assert!(near == timed("100ns") && near < far, "{near} {far}");
    let (status, _, err) = run(&["--pes", "2", "--fabric", "near", program, "figure"]);
    assert_eq!(status, Some(2), "{err}");

    // Without elements the library says so, and extended instructions are illegal.
    let (status, _, err) = run(&[program, "hello"]);
    assert_eq!(status, Some(9), "{err}");
    assert_eq!(run(&["--pes", "0", program]).0, Some(2));

    // One recording: a process for each element, in each of which the others have a thread. The
    // figure takes element 0 one load from each other, beside what barriers take.
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("elements.trace");
    let trace = trace.to_str().unwrap();
    let (status, _, err) = run(&["--pes", "4", "--record", trace, program, "figure"]);
    assert_eq!(status, Some(0), "{err}");
    let (_, out, err) = terrace(&["trace", "cat", trace, "--lines", "1000000"]);
    for element in 1..4 {
        let loads_of_others = out.lines().filter(|line| {
            let mut words = line.split(' ').skip(1);
            let at = words.next().and_then(|at| at.split_once(':'));
            let (process, thread) = at.unwrap_or_default();
            // Elements' own threads have the first numbers.
            process == element.to_string()
                && thread.parse().is_ok_and(|thread: u32| thread >= 4)
                && words.next() == Some("load")
        });
        assert!(loads_of_others.count() >= 1, "{element}: {err}");
    }
}

/// Starts four ranks that run a program of elements.
fn mpirun(words: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--allow-run-as-root", "--oversubscribe", "--timeout", "60", "-n", "4"])
        .args([env!("CARGO_BIN_EXE_terrace"), "riscv", "run", "--transport", "mpi"])
        .args(words);
    command
}

/// The process of a rank of this job, once all four have started.
fn rank_processes(job: u32) -> Option<Vec<String>> {
    let children = std::fs::read_to_string(format!("/proc/{job}/task/{job}/children")).ok()?;
    let rank = |rank: u32| {
        let variable = format!("OMPI_COMM_WORLD_RANK={rank}");
        let is_it = |process: &&str| {
            let environment = std::fs::read(format!("/proc/{process}/environ"));
            environment.is_ok_and(|e| e.split(|b| *b == 0).any(|v| v == variable.as_bytes()))
        };
        children.split_whitespace().find(is_it).map(str::to_owned)
    };
    (0..4).map(rank).collect()
}

#[test]
fn ranks_of_an_mpi_job_are_elements_and_one_that_dies_ends_all() {
    let Some(program) = compile_as("single.c", "single-of-ranks") else { return };
    let program = program.to_str().unwrap();
    if !cfg!(feature = "mpi") {
        let run = terrace(&["riscv", "run", "--transport", "mpi", program, "figure"]);
        let (status, out, err) = run;
        assert_eq!((status, out.as_str()), (Some(3), ""), "{err}");
        assert!(err.contains("built without MPI") && err.lines().count() == 1, "{err}");
        println!("skipped: built without the feature mpi");
        return;
    }
    let run = |words: &[&str]| {
        let output = mpirun(words).output().ok()?;
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Some((output.status.code(), text(output.stdout), text(output.stderr)))
    };
    let Some((status, out, err)) = run(&["--stats", program, "figure"]) else {
        println!("skipped: mpirun is not installed");
        return;
    };
    assert_eq!((status, out.as_str()), (Some(0), "406\n".repeat(4).as_str()), "{err}");
    assert!(err.contains("element 0: ") && err.contains("of 4 elements"), "{err}");
    // What mpirun says of statuses comes besides.
    for (words, wanted_status, wanted) in [
        (vec![program, "exits"], 3, "element 1 exited with status 3 while 3 others wait"),
        (vec![program, "object"], 128 + 11, "no object 99"),
        (vec!["--pes", "3", program, "figure"], 2, "--pes 3: mpirun started 4"),
        (vec!["/nowhere/program"], 1, "cannot read /nowhere/program"),
    ] {
        let (status, _, err) = run(&words).expect("it was there");
        assert_eq!(status, Some(wanted_status), "{err}");
        assert_eq!(err.matches(wanted).count(), 1, "{err}");
    }

    let job = mpirun(&[program, "spins"]).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut ranks = Vec::new();
    assert!(holds_soon(|| match rank_processes(job.id()) {
        Some(processes) => {
            ranks = processes;
            true
        }
        None => false,
    }));
    let killed = Command::new("kill").args(["-9", &ranks[2]]).output().expect("kill");
    assert!(killed.status.success());
    assert!(holds_soon(|| ranks.iter().all(|process| has_ended(process))), "{ranks:?}");
    let output = job.wait_with_output().expect("it ends");
    let err = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(128 + 9), "{err}");
    assert!(err.contains("process rank 2 ") && err.contains("signal 9"), "{err}");
}

#[test]
fn a_listing_names_extended_instructions_in_their_dialect() {
    let Some(program) = compile("conform.c") else { return };
    let program = program.to_str().unwrap();
    let (status, out, err) = terrace(&["riscv", "disasm", program]);
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains("\tauipc\t") && !out.contains("\terld\t"));
    let (_, out, _) = terrace(&["riscv", "disasm", "--dialect", "2018", program]);
    assert!(out.contains("\terld\tt0,") && out.contains("\teaddie\te10,"));
    assert_eq!(
        terrace(&["riscv", "disasm", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]).0,
        Some(2)
    );
}

/// A kernel image that waits for its timer, a second each time, for ever.
fn waiting_kernel() -> Vec<u8> {
    image(&[
        0xc010_2573, // rdtime a0
        0x0098_92b7, // lui t0, 0x989: a second of 10 MHz
        0x0055_0533, // add a0, a0, t0
        0x0000_0893, // li a7, 0: set_timer
        0x0000_0073, // ecall
        0x1050_0073, // wfi
        0xfe9f_f06f, // j -24
    ])
}

/// A kernel image that prints "hi" and switches the machine off.
fn kernel() -> Vec<u8> {
    image(&[
        0x0680_0513, // li a0, 'h'
        0x0010_0893, // li a7, 1: console_putchar
        0x0000_0073, // ecall
        0x0690_0513, // li a0, 'i'
        0x0000_0073, // ecall
        0x0080_0893, // li a7, 8: shutdown
        0x0000_0073, // ecall
    ])
}

/// A kernel image with these instructions.
fn image(words: &[u32]) -> Vec<u8> {
    let mut image = vec![0; 64];
    // j 64
    image[..4].copy_from_slice(&0x0400_006f_u32.to_le_bytes());
    image[56..60].copy_from_slice(b"RSC\x05");
    image.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    image
}

#[test]
fn a_kernel_boots_and_what_is_none_is_refused() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boot");
    std::fs::create_dir_all(&folder).expect("made");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let image = file("image", &kernel());
    let boot = |words: &[&str]| terrace(&[&["riscv", "boot"], words].concat());
    let (status, out, err) = boot(&["--stats", "--disk", &file("disk", &[0; 1024]), &image]);
    assert_eq!((status, out.as_str()), (Some(0), "hi"), "{err}");
    assert!(err.contains("8 instructions in"), "{err}");

    // An instruction that is none, at the start.
    let mut lost = kernel();
    lost[64..68].copy_from_slice(&u32::MAX.to_le_bytes());
    let cases = [
        (vec![image.as_str(), "--instructions", "3"], 1, "the instructions granted are used up"),
        (vec![image.as_str(), "--memory", "1k"], 2, "give a size from 4 MiB to 64 GiB"),
        (vec![image.as_str(), "--initrd", "/nowhere"], 1, "cannot read /nowhere"),
        (vec![], 2, "KERNEL"),
    ];
    for (words, code, wanted) in cases {
        let (status, _, err) = boot(&words);
        assert_eq!(status, Some(code), "{err}");
        assert!(err.contains(wanted), "{err}");
    }
    let (status, _, err) = boot(&[&file("lost", &lost)]);
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("no handler for exception"), "{err}");
    let (status, _, err) = boot(&[&file("text", b"no kernel")]);
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("no RISC-V kernel image"), "{err}");

    // A guest that waits with a timer set: it takes little of a core as long as it may be typed
    // to, and ends with its input.
    let mut child = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(["riscv", "boot", &file("waits", &waiting_kernel())])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    std::thread::sleep(Duration::from_secs(3));
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("a process");
    let ticks: Vec<u64> = stat.split(' ').skip(13).take(2).map(|n| n.parse().unwrap()).collect();
    // Of 100 a second; three turns take some 3 of them.
    assert!(child.try_wait().expect("a process").is_none() && ticks[0] + ticks[1] < 100, "{stat}");
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.contains("waits for input, which has ended"), "{err}");
}
