//! Programs of others against the library: the examples, and those of `docs/guide/allocate.md`,
//! compiled and run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Runs a command; its output on success, all it said on failure.
fn run(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let out = command.output().map_err(|e| format!("{shown}: {e}"))?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(said);
    }
    Err(format!("{shown}: {}\n{said}{}", out.status, String::from_utf8_lossy(&out.stderr)))
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library that cargo built for this test, installed into a folder of its own.
fn prefix() -> Result<&'static Path, String> {
    static PREFIX: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || {
        if !has("cc") {
            return Err("skipped: there is no C compiler (apt install gcc)".to_owned());
        }
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        let deps = exe.parent().ok_or("no folder of the test")?;
        let folders = [deps.parent().unwrap_or(deps), deps];
        let newest = folders
            .iter()
            .filter_map(|f| std::fs::read_dir(f).ok())
            .flat_map(|dir| dir.flatten().map(|e| e.path()))
            .filter(|p| {
                let name =
                    p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                name.starts_with("libterrace")
                    && !name.starts_with("libterrace_")
                    && name.ends_with(".a")
            })
            .max_by_key(|p| p.metadata().and_then(|m| m.modified()).ok());
        let archive = newest.ok_or("libterrace.a was not built beside the test")?;
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
        run(Command::new(package().join("../../scripts/install-lib.sh"))
            .arg(&prefix)
            .arg(archive))?;
        Ok(prefix)
    };
    PREFIX.get_or_init(install).as_deref().map_err(Clone::clone)
}

/// What pkg-config says, asked of our file alone.
fn flags(prefix: &Path) -> Result<Vec<String>, String> {
    if !has("pkg-config") {
        let lib = prefix.join("lib");
        return Ok(vec![
            format!("-I{}", prefix.join("include").display()),
            format!("-L{}", lib.display()),
            "-lterrace".to_owned(),
        ]);
    }
    let path = prefix.join("lib/pkgconfig");
    let said = run(Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", path)
        .args(["--cflags", "--libs", "terrace"]))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

/// Compiles and runs one program; `linked` is `shared` or `static`.
fn program(source: &Path, linked: &str) -> Result<String, String> {
    let prefix = prefix()?;
    let name =
        source.file_name().map(|n| n.to_string_lossy().replace('.', "-")).unwrap_or_default();
    let folder = prefix.join(format!("{name}-{linked}"));
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let binary = folder.join("program");
    let (compiler, options): (&str, &[&str]) = match source.extension().and_then(|e| e.to_str()) {
        Some("c") => ("cc", &["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]),
        Some("cpp") => ("c++", &["-std=c++17", "-Wall", "-Wextra", "-Werror"]),
        _ => ("gfortran", &["-std=f2008", "-Wall"]),
    };
    if !has(compiler) {
        return Err(format!("skipped: there is no {compiler}"));
    }
    let mut command = Command::new(compiler);
    command.current_dir(&folder).args(options);
    if compiler == "gfortran" {
        command.arg(prefix.join("share/terrace/terrace.f90"));
    }
    command.arg("-o").arg(&binary).arg(source);
    let flags = flags(prefix)?;
    if linked == "static" {
        command.args(flags.iter().filter(|f| !f.starts_with("-l")));
        command.arg(prefix.join("lib/libterrace.a")).args(["-lpthread", "-ldl", "-lm"]);
    } else {
        command.args(&flags);
    }
    run(&mut command)?;
    run(Command::new(&binary).env("LD_LIBRARY_PATH", prefix.join("lib")))
}

/// Runs all; a missing compiler skips, anything else fails.
fn all(sources: &[PathBuf], linked: &str) {
    assert!(!sources.is_empty());
    for source in sources {
        match program(source, linked) {
            Ok(said) => assert!(!said.trim().is_empty(), "{} said nothing", source.display()),
            Err(why) if why.starts_with("skipped: ") => println!("{why}"),
            Err(why) => panic!("{why}"),
        }
    }
}

fn examples() -> Vec<PathBuf> {
    let dir = std::fs::read_dir(package().join("examples")).expect("the examples");
    let mut found: Vec<PathBuf> = dir.flatten().map(|e| e.path()).collect();
    found.sort();
    found
}

#[test]
fn examples_run_against_the_shared_library() {
    all(&examples(), "shared");
}

#[test]
fn examples_run_against_the_static_library() {
    all(&examples(), "static");
}

/// Programs in C and C++ on managed memory of a double of CUDA's driver (see the tests of
/// `terrace-alloc`); without it they say why there is none.
#[test]
fn managed_memory_is_reached_from_other_languages() {
    let Some(prefix) = prefix_or_skip() else { return };
    let folder = prefix.join("double");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-shared", "-fPIC", "-o"]).arg(folder.join(name));
        run(cc.arg(package().join("../alloc/tests/double/libcuda.c"))).unwrap();
    }
    for (ending, with) in [
        ("c", "Double 0: 62914560 of 268435456 bytes free, 4194304 ours"),
        ("cpp", "2 GPUs; 4 MiB are at home on GPU 0"),
    ] {
        // Under a name of its own: the example's is compiled by another test at the same time.
        let source = folder.join(format!("managed.{ending}"));
        std::fs::copy(package().join(format!("examples/gpu.{ending}")), &source).unwrap();
        match program(&source, "shared") {
            Ok(said) if cfg!(feature = "cuda") => println!("{said}"),
            Ok(said) => {
                assert!(said.contains("built without it; build with --features cuda"), "{said}");
                println!("skipped: built without the feature cuda");
                continue;
            }
            Err(why) if why.starts_with("skipped: ") => {
                println!("{why}");
                continue;
            }
            Err(why) => panic!("{why}"),
        }
        let libraries = std::env::join_paths([&folder, &prefix.join("lib")]).unwrap();
        let mut again = Command::new(prefix.join(format!("managed-{ending}-shared/program")));
        let said = run(again.env("LD_LIBRARY_PATH", libraries)).unwrap();
        assert!(said.contains(with), "{said}");
    }
}

#[test]
fn the_guides_programs_run() {
    let guide = |name: &str| {
        std::fs::read_to_string(package().join("../../docs/guide").join(name)).unwrap()
    };
    let text = guide("allocate.md") + &guide("far.md");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide");
    std::fs::create_dir_all(&folder).unwrap();
    let mut sources = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, block)) = rest.split_once("\n```") {
        let (info, block) = block.split_once('\n').unwrap_or((block, ""));
        let (code, after) = block.split_once("\n```").expect("a block that ends");
        rest = after;
        let ending = match info {
            "c" => "c",
            "cpp" => "cpp",
            "fortran" => "f90",
            _ => continue,
        };
        let path = folder.join(format!("guide{}.{ending}", sources.len()));
        std::fs::write(&path, format!("{code}\n")).unwrap();
        sources.push(path);
    }
    assert!(sources.len() >= 5, "the guides have {} programs", sources.len());
    all(&sources, "shared");
}

#[test]
fn symbols_have_versions_and_no_others_are_shown() {
    let prefix = match prefix() {
        Ok(prefix) => prefix,
        Err(why) if why.starts_with("skipped: ") => return println!("{why}"),
        Err(why) => panic!("{why}"),
    };
    let said = match run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(prefix.join("lib/libterrace.so")))
    {
        Ok(said) => said,
        Err(why) => return println!("skipped: {why}"),
    };
    let names: Vec<&str> = said.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    let functions: Vec<&&str> = names.iter().filter(|n| n.starts_with("terrace_")).collect();
    assert!(
        functions.len() > 20 && functions.iter().all(|n| n.ends_with("@@TERRACE_0.1")),
        "{names:?}"
    );
    assert!(names.iter().all(|n| n.starts_with("terrace_") || *n == "TERRACE_0.1"), "{names:?}");
}

#[test]
fn cmake_finds_the_package() {
    if !has("cmake") {
        return println!("skipped: there is no cmake");
    }
    let prefix = match prefix() {
        Ok(prefix) => prefix,
        Err(why) if why.starts_with("skipped: ") => return println!("{why}"),
        Err(why) => panic!("{why}"),
    };
    let folder = prefix.join("cmake-project");
    std::fs::create_dir_all(&folder).unwrap();
    let source = package().join("examples/commit.c");
    let lists = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(example C)\nfind_package(Terrace REQUIRED)\n\
         add_executable(program {0})\ntarget_link_libraries(program Terrace::terrace)\n\
         add_executable(alone {0})\ntarget_link_libraries(alone Terrace::terrace_static)\n",
        source.display()
    );
    std::fs::write(folder.join("CMakeLists.txt"), lists).unwrap();
    let build = folder.join("build");
    let find = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    run(Command::new("cmake").arg("-S").arg(&folder).arg("-B").arg(&build).arg(find)).unwrap();
    run(Command::new("cmake").arg("--build").arg(&build)).unwrap();
    for name in ["program", "alone"] {
        let said = run(&mut Command::new(build.join(name))).unwrap();
        assert!(said.contains("class 0"), "{said}");
    }
}

/// The library's prefix; `None` after saying why there is none.
fn prefix_or_skip() -> Option<&'static Path> {
    match prefix() {
        Ok(prefix) => Some(prefix),
        Err(why) if why.starts_with("skipped: ") => {
            println!("{why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Four ranks, with the shim before MPI and without: hints place memory, and what the program
/// computes is the same.
#[test]
fn mpi_programs_hints_are_honoured() {
    if !has("mpicc") || !has("mpirun") {
        return println!(
            "skipped: there is no mpicc and mpirun (apt install openmpi-bin libopenmpi-dev)"
        );
    }
    let Some(prefix) = prefix_or_skip() else { return };
    let program = prefix.join("hints");
    let mut compile = Command::new("mpicc");
    compile
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(prefix.join("include"));
    run(compile.arg("-o").arg(&program).arg(package().join("tests/hints.c")).arg("-ldl")).unwrap();
    let shim = prefix.join("lib/libterrace_mpi.so");
    for (preload, memory) in [(None, "plain"), (Some(&shim), "placed")] {
        let mut ranks = Command::new("timeout");
        ranks.args(["120", "mpirun", "--oversubscribe", "-n", "4"]);
        if let Some(shim) = preload {
            ranks.arg("-x").arg(format!("LD_PRELOAD={}", shim.display()));
        }
        // Tests may run as root, in containers without network.
        let quiet = [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_btl", "self,vader"),
            ("OMPI_MCA_plm_rsh_agent", "false"),
        ];
        let said = run(ranks.envs(quiet).arg(&program)).unwrap();
        assert_eq!(said, format!("4 ranks, memory {memory}\n"));
    }
}

/// The man pages are installed, one for each function, and a man that is there reads them without a
/// word of complaint.
#[test]
fn man_pages_are_there_for_all_functions() {
    let Some(prefix) = prefix_or_skip() else { return };
    let pages = prefix.join("share/man/man3");
    let header = std::fs::read_to_string(package().join("include/terrace.h")).unwrap();
    let mut functions = 0;
    for line in header.lines().filter(|l| !l.starts_with(' ') && !l.starts_with('#')) {
        let Some(name) = line.split('(').next().and_then(|l| l.split([' ', '*']).next_back())
        else {
            continue;
        };
        if name.starts_with("terrace_") && line.contains('(') {
            assert!(pages.join(format!("{name}.3")).is_file(), "{name} has no page");
            functions += 1;
        }
    }
    assert!(functions > 50, "{functions} functions");
    if !has("man") {
        return println!("skipped: there is no man");
    }
    let said = Command::new("man")
        .args(["--warnings", "-l"])
        .arg(pages.join("terrace_arena.3"))
        .output()
        .unwrap();
    let (text, warned) =
        (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && warned.is_empty(), "{warned}");
    assert!(text.contains("terrace_arena_create"), "{text}");
}

/// C programs for checkers: all examples, and one with threads.
fn checked() -> Vec<PathBuf> {
    let own = |p: &PathBuf| p.extension().is_some_and(|e| e == "c");
    examples().into_iter().filter(own).chain([package().join("tests/threads.c")]).collect()
}

/// Compiles a C program with more options; `None` after saying that this cannot be done here.
fn compiled(
    prefix: &Path,
    source: &Path,
    name: &str,
    linked: &str,
    options: &[&str],
) -> Option<PathBuf> {
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let binary = prefix.join(format!("{stem}-{name}"));
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]).args(options).arg("-I");
    compile.arg(prefix.join("include")).arg("-o").arg(&binary).arg(source);
    compile.arg(prefix.join("lib").join(linked));
    match run(compile.args(["-lpthread", "-ldl", "-lm"])) {
        Ok(_) => Some(binary),
        Err(why) if why.contains("-fsanitize") || why.contains("san") => {
            println!(
                "skipped: this compiler has no {name}: {}",
                why.lines().last().unwrap_or_default()
            );
            None
        }
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn programs_run_under_the_address_sanitizer() {
    let Some(prefix) = prefix_or_skip() else { return };
    for source in checked() {
        let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let Some(binary) = compiled(prefix, &source, "address", "libterrace.a", &options) else {
            return;
        };
        run(Command::new(binary).env("ASAN_OPTIONS", "detect_leaks=1:halt_on_error=1")).unwrap();
    }
}

/// What the program does is checked, not the library: that is not instrumented, so its locks are
/// not seen, and what it does through `memset` and its like is left out. Addresses must lie where
/// no chance puts them: hence setarch.
#[test]
fn programs_run_under_the_thread_sanitizer() {
    let Some(prefix) = prefix_or_skip() else { return };
    if !has("setarch") {
        return println!("skipped: there is no setarch (util-linux)");
    }
    let source = package().join("tests/threads.c");
    let Some(binary) = compiled(prefix, &source, "thread", "libterrace.so", &["-fsanitize=thread"])
    else {
        return;
    };
    let left_out = prefix.join("left-out");
    std::fs::write(&left_out, "called_from_lib:libterrace.so\n").unwrap();
    let options = ("TSAN_OPTIONS", format!("halt_on_error=1:suppressions={}", left_out.display()));
    let lib = prefix.join("lib");
    run(Command::new("setarch").arg("-R").arg(binary).env("LD_LIBRARY_PATH", lib).envs([options]))
        .unwrap();
}

#[test]
fn programs_run_under_valgrind() {
    let Some(prefix) = prefix_or_skip() else { return };
    if !has("valgrind") {
        return println!("skipped: there is no valgrind");
    }
    // Valgrind runs one thread at a time: while one waits for a page of far memory, the pager's
    // could not bring it.
    for source in checked().into_iter().filter(|p| !p.ends_with("far.c")) {
        let Some(binary) = compiled(prefix, &source, "plain", "libterrace.a", &[]) else { return };
        let mut valgrind = Command::new("valgrind");
        valgrind.args([
            "-q",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        run(valgrind.arg(binary)).unwrap();
    }
}
