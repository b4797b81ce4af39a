//! `include/terrace.h` is what the declarations say.

use std::path::Path;
use std::process::Command;

#[test]
fn the_committed_header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut made = Vec::new();
    let builder =
        ["codes", "attributes", "report", "memory", "arena", "shared", "stage", "sequence", "far"]
            .iter()
            .fold(cbindgen::Builder::new(), |b, name| {
                b.with_src(root.join(format!("src/{name}.rs")))
            });
    builder.with_config(config).generate().expect("bindings").write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = root.join("include/terrace.h");
    if std::env::var_os("TERRACE_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "include/terrace.h is not what src/ declares; look at the change and accept it with\n  \
         TERRACE_BLESS=1 cargo test -p terrace-capi --test header"
    );
}

#[test]
fn the_fortran_module_has_the_same_constants() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/terrace.h")).unwrap();
    let module = std::fs::read_to_string(root.join("fortran/terrace.f90")).unwrap();
    let mut compared = 0;
    for line in module.lines().filter(|l| l.contains("parameter, public ::")) {
        let list = line.split("::").nth(1).unwrap_or_default();
        for pair in list.split(',') {
            let (name, value) = pair.split_once('=').expect("NAME = VALUE");
            let stated = format!("#define {} {}\n", name.trim(), value.trim());
            assert!(header.contains(&stated), "terrace.h does not have {stated:?}");
            compared += 1;
        }
    }
    assert!(compared >= 10, "{compared} constants");
}

#[test]
fn programs_with_nvcs_own_names_compile_and_run_in_c_and_cpp() {
    const PROGRAM: &str = r#"
        #include "nvc.h"
        static double x[8];
        static int done = 3;
        int main(void)
        {
            crucial_data(x, "double", 8);
            consistent_data(&done, "int", 1);
            start_crash();
            x[0] = 1;
            clwb(x);
            clflush(&done);
            flush_whole_cache();
            crash_phase(15);
            end_crash();
            return (int)crash_restore() + (terrace_crash_state_.count == 2 ? 0 : 1);
        }
    "#;
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (compiler, source) in [("cc", "nvc.c"), ("c++", "nvc.cpp")] {
        let source = folder.join(source);
        std::fs::write(&source, PROGRAM).unwrap();
        let program = source.with_extension(compiler);
        let mut compile = Command::new(compiler);
        compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(&include);
        match compile.arg(&source).arg("-o").arg(&program).output() {
            Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr)),
            Err(_) => {
                eprintln!("skipped: there is no {compiler} (apt install g++)");
                continue;
            }
        }
        let status = Command::new(&program).env_remove("TERRACE_CRASH_REGION").status().unwrap();
        assert!(status.success(), "{compiler}: {status}");
    }
}
