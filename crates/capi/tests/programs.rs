//! Programs of others against the library: the examples, and those of `docs/guide/allocate.md`, compiled and run.

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
                let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                name.starts_with("libterrace") && !name.starts_with("libterrace_") && name.ends_with(".a")
            })
            .max_by_key(|p| p.metadata().and_then(|m| m.modified()).ok());
        let archive = newest.ok_or("libterrace.a was not built beside the test")?;
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
        run(Command::new(package().join("../../scripts/install-lib.sh")).arg(&prefix).arg(archive))?;
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
    let said = run(Command::new("pkg-config").env("PKG_CONFIG_PATH", path).args(["--cflags", "--libs", "terrace"]))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

/// Compiles and runs one program; `linked` is `shared` or `static`.
fn program(source: &Path, linked: &str) -> Result<String, String> {
    let prefix = prefix()?;
    let name = source.file_name().map(|n| n.to_string_lossy().replace('.', "-")).unwrap_or_default();
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

#[test]
fn the_guides_programs_run() {
    let guide = package().join("../../docs/guide/allocate.md");
    let text = std::fs::read_to_string(guide).unwrap();
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
    assert!(sources.len() >= 3, "the guide has {} programs", sources.len());
    all(&sources, "shared");
}

#[test]
fn symbols_have_versions_and_no_others_are_shown() {
    let prefix = match prefix() {
        Ok(prefix) => prefix,
        Err(why) if why.starts_with("skipped: ") => return println!("{why}"),
        Err(why) => panic!("{why}"),
    };
    let said = match run(Command::new("nm").args(["-D", "--defined-only"]).arg(prefix.join("lib/libterrace.so"))) {
        Ok(said) => said,
        Err(why) => return println!("skipped: {why}"),
    };
    let names: Vec<&str> = said.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    let functions: Vec<&&str> = names.iter().filter(|n| n.starts_with("terrace_")).collect();
    assert!(functions.len() > 20 && functions.iter().all(|n| n.ends_with("@@TERRACE_0.1")), "{names:?}");
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
